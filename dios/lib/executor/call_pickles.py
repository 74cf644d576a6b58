"""Calls as bytes: plain values quickly, everything else as a pickle of any functions and classes.

A call goes to a sandbox, so its pickle may run any code there.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final, Protocol, TypeAlias

import cloudpickle  # type: ignore[import-untyped]
import msgspec

from dios.errors import InvalidError
from dios.lib.executor.archives import Archive
from dios.lib.executor.blobs import BUFFER_BYTES_MIN
from dios.lib.executor.local_modules import LocalModules

Arguments: TypeAlias = "tuple[tuple[object, ...], dict[str, object]]"

PLAIN_CALL: Final = b"m"
PICKLED_CALL: Final = b"p"
SHARED_CALL: Final = b"s"
"""The first byte of a call with values in blobs. The size of a ``SharedHead``, it and a pickle follow."""

_SCALARS: Final = frozenset({int, float, str, bytes, bool, type(None)})
_pack: Final = msgspec.msgpack.Encoder().encode


class SharedHead(msgspec.Struct, frozen=True, array_like=True):
    """The values in blobs that the pickle of a call needs, by the object ids of the blobs."""

    buffers: list[tuple[int, int, int]]
    """Of each buffer of the pickle: the blob, the place in it and the size."""
    values: list[int]


class PickleFile(Protocol):
    """The file of a pickler."""

    def write(self, data: bytes | bytearray, /) -> object:
        """Add bytes of the pickle."""


class CallPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions and arguments, and notes the modules that they refer to."""

    def __init__(
        self, file: PickleFile, buffer_callback: Callable[[pickle.PickleBuffer], bool] | None = None
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.modules: Final[set[str]] = set()

    def reducer_override(self, value: object) -> object:
        """Note the module of a function, a class or an object."""
        named = value if isinstance(value, type | FunctionType) else type(value)
        self.modules.add(value.__name__ if isinstance(value, ModuleType) else str(named.__module__))
        return super().reducer_override(value)


def encode_call_function(
    function: object, modules: LocalModules, pickled: Pickled | None = None
) -> tuple[bytes, list[Archive], bool]:
    """Return the pickle of a function, the new archives that it needs, and if it stays the same.

    Raises InvalidError with the part that cannot be pickled.
    """
    data, names = (pickled or pickled_whole)(function, "the function")
    return data, modules.add(names), _is_constant(function, 0)


def encode_arguments(
    args: Sequence[object], kwargs: dict[str, object], modules: LocalModules, pickled: Pickled | None = None
) -> tuple[bytes, list[Archive]]:
    """Return the arguments of a call, and the new archives that they need.

    Raises InvalidError for an argument that cannot be pickled.
    """
    if not kwargs and _SCALARS.issuperset(map(type, args)):
        try:
            plain = PLAIN_CALL + _pack(args)
        except (OverflowError, UnicodeEncodeError):
            plain = b""
        if 0 < len(plain) < BUFFER_BYTES_MIN or (plain and pickled is None):
            return plain, []
    data, names = (pickled or pickled_whole)((tuple(args), kwargs), "an argument")
    return data, modules.add(names)


Pickled: TypeAlias = Callable[[object, str], tuple[bytes, set[str]]]
"""Returns the pickle of a value, described by the text for errors, and the names of its modules."""


def pickled_whole(value: object, subject: str) -> tuple[bytes, set[str]]:
    """Return the pickle of a value with everything in it, and the names of the modules that it refers to."""
    file = io.BytesIO()
    pickler = CallPickler(file)
    with named_errors(subject):
        pickler.dump(value)
    return PICKLED_CALL + file.getvalue(), pickler.modules


@contextmanager
def named_errors(subject: str, *others: type[Exception]) -> Iterator[None]:
    """Turn the errors of pickling into an InvalidError about ``subject``, except ``others``.

    A value may raise SystemExit or KeyboardInterrupt. In the main thread they may come from elsewhere.
    """
    try:
        yield
    except others:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise
        raise InvalidError(
            f"{subject} cannot be sent to a worker: {_reason(error)}. Send data, and open files, locks and "
            "connections in the function"
        ) from error


def _reason(error: BaseException) -> str:
    try:
        return str(error) if isinstance(error, Exception) else f"it raised {error!r}"
    except BaseException:  # noqa: BLE001 - code of the error's class
        return f"it raised {type(error).__name__}"


# -- functions that need not be sent again ----------------------------------------------------------
_FIXED: Final = (int, float, str, bytes, bool, type(None), type, BuiltinFunctionType, ModuleType)


def _is_constant(value: object, depth: int) -> bool:
    """Return True if the pickle of a function is the same at each call.

    It is not if the function refers to something that can change: a list in a global, an attribute of its
    object, a cell.
    """
    if isinstance(value, _FIXED):
        return True
    if depth > 4 or not isinstance(value, FunctionType):
        return False
    parts = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    try:
        parts += [cell.cell_contents for cell in value.__closure__ or ()]
    except ValueError:
        return False
    names = value.__globals__
    parts += [names[name] for name in value.__code__.co_names if name in names]
    return not value.__dict__ and all(part is value or _is_constant(part, depth + 1) for part in parts)
