"""Calls and results as bytes: plain values quickly, everything else as a pickle.

A call goes to a sandbox, so its pickle may run any code there. A result comes from a sandbox, so the caller
loads it with ``trusted_results``, unless it trusts the workers.
"""

from __future__ import annotations

import io
import pickle
import struct
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

import cloudpickle  # type: ignore[import-untyped]
import msgspec

from dios.errors import InvalidError
from dios.lib.executor.blobs import BUFFER_BYTES_MIN, Part, aligned
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.local_modules import LocalModules
from dios.lib.executor.trusted_results import ResultPickler, load

Arguments: TypeAlias = "tuple[tuple[object, ...], dict[str, object]]"

_PLAIN: Final = b"m"
_PICKLE: Final = b"p"
STORED_BYTES_MIN: Final = 1024 * 1024
"""A result over this size stays in a blob on the node of its worker until the caller asks for it."""

PLAIN_CALL: Final = _PLAIN
PICKLED_CALL: Final = _PICKLE
SHARED_CALL: Final = b"s"
"""The first byte of a call with values in blobs. The size of a ``SharedHead``, it and a pickle follow."""
_SIZE: Final = struct.Struct("<Q")
_COUNT: Final = struct.Struct("<I")
_LEAST_SIZES: Final = 2
"""A result in a blob has a kind and the size of its body."""

_SCALARS: Final = frozenset({int, float, str, bytes, bool, type(None)})
_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder().decode


class RemoteTraceback(Exception):  # noqa: N818 - like the one of multiprocessing
    """The traceback of a call in its worker, as text: the ``__cause__`` of the exception that it raised."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}" if self.args else ""


# -- calls ------------------------------------------------------------------------------------------
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
) -> tuple[bytes, dict[str, str], bool]:
    """Return the pickle of a function, the sources that it needs and are new, and if it stays the same.

    Raises InvalidError with the part that cannot be pickled.
    """
    data, names = (pickled or pickled_whole)(function, "the function")
    return data, modules.add(names), _is_constant(function, 0)


def encode_arguments(
    args: Sequence[object], kwargs: dict[str, object], modules: LocalModules, pickled: Pickled | None = None
) -> tuple[bytes, dict[str, str]]:
    """Return the arguments of a call, and the sources that they need and are new.

    Raises InvalidError for an argument that cannot be pickled.
    """
    if not kwargs and _SCALARS.issuperset(map(type, args)):
        try:
            plain = _PLAIN + _pack(args)
        except (OverflowError, UnicodeEncodeError):
            plain = b""
        if 0 < len(plain) < BUFFER_BYTES_MIN or (plain and pickled is None):
            return plain, {}
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
    return _PICKLE + file.getvalue(), pickler.modules


@contextmanager
def named_errors(subject: str, *others: type[Exception]) -> Iterator[None]:
    """Turn the errors of pickling into an InvalidError about ``subject``, except ``others``."""
    try:
        yield
    except others:
        raise
    except Exception as error:
        raise InvalidError(
            f"{subject} cannot be sent to a worker: {error}. Send data, and open files, locks and "
            "connections in"
            " the function"
        ) from error


# -- results ----------------------------------------------------------------------------------------
class Encoded(NamedTuple):
    """A result as its parts: plain or a pickle, and the buffers of the pickle."""

    plain: bool
    body: bytes
    buffers: list[memoryview]

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return len(self.body) + sum(map(len, self.buffers))

    def joined(self) -> bytes:
        """Return the result as the body of a message."""
        if self.plain:
            return _PLAIN + self.body
        sizes = b"".join(_SIZE.pack(len(buffer)) for buffer in self.buffers)
        return b"".join((_PICKLE, _COUNT.pack(len(self.buffers)), sizes, *self.buffers, self.body))

    def parts(self) -> list[Part]:
        """Return the result as the parts of a blob; ``taken_apart`` reads them."""
        sizes = [0 if self.plain else 1, len(self.body), *map(len, self.buffers)]
        return [b"".join(map(_SIZE.pack, (len(sizes), *sizes))), self.body, *self.buffers]


def taken_apart(view: memoryview) -> tuple[bool, memoryview, list[memoryview]]:
    """Return what ``Encoded`` has of the bytes of a blob. Raises UntrustedResultError if they do not fit."""
    sizes = []
    end = _SIZE.size
    with suppress(struct.error):
        count = _SIZE.unpack_from(view)[0]
        end = (1 + count) * _SIZE.size
        if count >= _LEAST_SIZES and end <= len(view):
            sizes = [_SIZE.unpack_from(view, (1 + number) * _SIZE.size)[0] for number in range(count)]
    parts = []
    for size in sizes[1:]:
        place = aligned(end)
        end = place + size
        parts.append(view[place:end])
    if not parts or end != len(view) or sizes[0] > 1:
        raise UntrustedResultError("the result is in a blob whose bytes are not those of a result")
    return not sizes[0], parts[0], parts[1:]


def encode_parts(value: object, *, trust: bool = False) -> Encoded:
    """Return a result as parts, in a worker. Raise whatever the pickling of its parts raises.

    With ``trust`` the caller loads it as a pickle of any classes.
    """
    kind = type(value)
    if kind in _SCALARS or (kind is list and _SCALARS.issuperset(map(type, cast("list[object]", value)))):
        try:
            return Encoded(plain=True, body=_pack(value), buffers=[])
        except (OverflowError, UnicodeEncodeError):
            pass
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    if trust:
        cloudpickle.Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    else:
        ResultPickler(file, buffers).dump(value)
    return Encoded(plain=False, body=file.getvalue(), buffers=[buffer.raw() for buffer in buffers])


def encode_result(value: object, *, trust: bool = False) -> bytes:
    """Return a result as the body of a message."""
    return encode_parts(value, trust=trust).joined()


def decode_result(data: bytes | bytearray, *, trust: bool) -> object:
    """Return a result, in its caller. Raises UntrustedResultError for what a worker may not send.

    Arrays use the memory of ``data``, and are writable if it is.
    """
    view = memoryview(data)
    if data[:1] == _PLAIN:
        return _unpacked(view[1:])
    buffers = []
    try:
        count = _COUNT.unpack_from(view, 1)[0]
        place = 1 + _COUNT.size + count * _SIZE.size
        for index in range(count):
            size = _SIZE.unpack_from(view, 1 + _COUNT.size + index * _SIZE.size)[0]
            buffers.append(view[place : place + size])
            place += size
    except struct.error as error:
        raise UntrustedResultError(f"the result cannot be decoded: {error}") from None
    return _loaded(view[place:], buffers, trust=trust)


def decode_stored(view: memoryview, *, trust: bool) -> object:
    """Return the result in a blob; the same errors. Arrays use the memory of the blob."""
    plain, body, buffers = taken_apart(view)
    return _unpacked(body) if plain else _loaded(body, buffers, trust=trust)


def _unpacked(body: memoryview) -> object:
    try:
        return _unpack(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UntrustedResultError(f"the result cannot be decoded: {error}") from None


def _loaded(body: memoryview, buffers: list[memoryview], *, trust: bool) -> object:
    if trust:
        return pickle.loads(body, buffers=buffers)  # noqa: S301 - the caller said that it trusts the code
    return load(bytes(body), buffers)


def encode_exception(error: BaseException, *, trust: bool = False) -> bytes:
    """Return an exception and its traceback, in a worker; its text alone if it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    error = error.with_traceback(None)
    try:
        return encode_result((error, text), trust=trust)
    except Exception:  # noqa: BLE001 - exceptions have any attributes
        return encode_result((None, text), trust=trust)


def decode_exception(data: bytes | bytearray, *, trust: bool) -> BaseException:
    """Return the exception of a call, in its caller, with the traceback of the worker as its cause."""
    decoded = decode_result(data, trust=trust)
    if isinstance(decoded, tuple) and len(decoded) == 2 and isinstance(decoded[1], str):
        error, text = decoded[0], decoded[1]
        # SystemExit or KeyboardInterrupt of a worker must not end the caller.
        if not isinstance(error, Exception):
            error = RuntimeError(text.strip().rpartition("\n")[2])
        error.__cause__ = RemoteTraceback(text)
        return cast("BaseException", error)
    return RuntimeError("the worker reported an exception in an unknown form")


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
