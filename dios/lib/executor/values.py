"""Calls and results as bytes.

A call goes to a sandbox, so it is a pickle, which may run any code there. A result comes from a sandbox, so
it has the closed format of ``results``, unless the caller trusts the workers.
"""

from __future__ import annotations

import enum
import io
import pickle
import struct
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final, NamedTuple, Protocol, TypeAlias, cast

import cloudpickle  # type: ignore[import-untyped]
import msgspec

from dios.errors import InvalidError
from dios.lib.executor.blobs import BUFFER_BYTES_MIN, Part, aligned
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.local_modules import LocalModules
from dios.lib.executor.results.forms import DecodeTimeoutError
from dios.lib.executor.results.harmless import (
    TRACEBACK_CHARS_MAX,
    clean_text,
    make_harmless,
    message_of,
    notes_of,
    substitute,
)
from dios.lib.executor.results.reader import read_plain, read_plain_tuple, read_value
from dios.lib.executor.results.writer import plain_body, write_value

Arguments: TypeAlias = "tuple[tuple[object, ...], dict[str, object]]"

_PLAIN: Final = b"m"
_PICKLE: Final = b"p"
STORED_BYTES_MIN: Final = 1024 * 1024
"""A result over this size stays in a blob on the node of its worker until the caller asks for it."""

PLAIN_CALL: Final = _PLAIN
PICKLED_CALL: Final = _PICKLE
SHARED_CALL: Final = b"s"
"""The first byte of a call with values in blobs. The size of a ``SharedHead``, it and a pickle follow."""
_PARTS: Final = b"r"
"""The first byte of a result with parts."""
_MESSAGE_ALIGNMENT: Final = 16
"""The place of each part in a message is a multiple of this."""
EXCEPTION_BYTES_MAX: Final = 16 * 1024 * 1024
"""A larger exception is sent as text."""
_SIZE: Final = struct.Struct("<Q")
_LEAST_SIZES: Final = 2
"""A result in a blob has a kind and the size of its body."""

_SCALARS: Final = frozenset({int, float, str, bytes, bool, type(None)})
_pack: Final = msgspec.msgpack.Encoder().encode


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
        reduced = super().reducer_override(value)
        return _with_all_members(value, reduced) if isinstance(value, enum.EnumMeta) else reduced


def _with_all_members(cls: enum.EnumMeta, reduced: object) -> object:
    """Return a reduced class with all members: cloudpickle leaves out those of flags with several bits."""
    if not isinstance(reduced, tuple):
        return reduced
    make, arguments, (state, slots), *others = reduced
    members: dict[str, enum.Enum] = dict(cls.__members__)
    values = {name: member.value for name, member in members.items()}
    state = {name: attribute for name, attribute in state.items() if name not in members}
    return make, (*arguments[:3], values, *arguments[4:]), (state, slots), *others


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
class ResultKind(enum.IntEnum):
    """The form of a result's body."""

    PLAIN = 0
    """A scalar, or a list of scalars, in MessagePack."""
    PICKLE = 1
    """A pickle, for callers who trust the workers."""
    CLOSED = 2
    """A value in the closed format of ``results``."""
    TUPLE = 3
    """A tuple of scalars, as PLAIN has them as a list."""
    BYTES = 4
    """One ``bytes`` object."""


_KINDS: Final = {kind.value: kind for kind in ResultKind}
_PREFIXES: Final = {ResultKind.PLAIN: _PLAIN, ResultKind.TUPLE: b"t", ResultKind.BYTES: b"b"}
"""The first byte of a result without parts, by its kind."""
_KIND_OF_PREFIX: Final = {prefix[0]: kind for kind, prefix in _PREFIXES.items()}


class Encoded(NamedTuple):
    """A result as its parts: the body, and the buffers that it needs."""

    kind: ResultKind
    body: bytes | memoryview
    buffers: list[memoryview]

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return len(self.body) + sum(map(len, self.buffers))

    def joined(self) -> bytes:
        """Return the result as the body of a message."""
        if self.kind in _PREFIXES:
            return _PREFIXES[self.kind] + self.body
        end = len(_PARTS)
        parts: list[Part] = [_PARTS]
        for part in self.parts():
            parts += (bytes(_message_place(end) - end), part)
            end = _message_place(end) + len(part)
        return b"".join(parts)

    def parts(self) -> list[Part]:
        """Return the result as the parts of a blob; ``taken_apart`` reads them."""
        sizes = [self.kind, len(self.body), *map(len, self.buffers)]
        return [b"".join(map(_SIZE.pack, (len(sizes), *sizes))), self.body, *self.buffers]


def _message_place(end: int) -> int:
    """Return the next place at which a part of a message may begin."""
    return -(-end // _MESSAGE_ALIGNMENT) * _MESSAGE_ALIGNMENT


def taken_apart(view: memoryview, place: Callable[[int], int] = aligned) -> Encoded:
    """Return the result in the bytes of a blob; with another function for the places, in other bytes.

    Raises UntrustedResultError if the bytes are not those of a result.
    """
    count = _SIZE.unpack_from(view)[0] if len(view) >= _SIZE.size else 0
    end = (1 + count) * _SIZE.size
    if count >= _LEAST_SIZES and end <= len(view):
        kind, *sizes = view[_SIZE.size : end].cast("Q")
        parts = []
        for size in sizes:
            start = place(end)
            end = start + size
            parts.append(view[start:end])
        if kind in _KINDS and end == len(view):
            return Encoded(_KINDS[kind], parts[0], parts[1:])
    raise UntrustedResultError("the bytes of the result are not those of a result: call the function again")


def encode_parts(value: object, *, trust: bool = False) -> Encoded:
    """Return a result as parts, in a worker. Raise whatever the parts raise when they are taken apart.

    With ``trust`` the caller loads it as a pickle of any classes. Raises UntrustedResultError for a value
    that the caller would refuse, or that would change on its way.
    """
    if type(value) is bytes:
        return Encoded(ResultKind.BYTES, value, [])
    plain = plain_body(value)
    if plain is not None:
        return Encoded(ResultKind.TUPLE if type(value) is tuple else ResultKind.PLAIN, plain, [])
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    try:
        if not trust:
            return Encoded(ResultKind.CLOSED, *write_value(value))
        cloudpickle.Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    except SystemExit as error:
        # It would end the worker, and is the error of this call alone.
        raise TypeError(
            "the result cannot be sent: an object of it ended the program when it was reduced"
        ) from error
    return Encoded(ResultKind.PICKLE, file.getvalue(), [buffer.raw() for buffer in buffers])


def encode_result(value: object, *, trust: bool = False) -> bytes:
    """Return a result as the body of a message."""
    return encode_parts(value, trust=trust).joined()


def decode_result(data: bytes | bytearray, *, trust: bool, deadline: float | None = None) -> object:
    """Return a result, in its caller. Raises UntrustedResultError for what a worker may not send.

    Arrays use the memory of ``data``, and are writable if it is. Raises DecodeTimeoutError after
    ``deadline``, a time of ``time.monotonic``; a pickle is not interrupted.
    """
    view = memoryview(data)
    if data[:1] == _PLAIN:
        return read_plain(view[1:])
    kind = _KIND_OF_PREFIX.get(data[0]) if data else None
    if kind is not None:
        return _decoded(Encoded(kind, view[1:], []), trust, deadline)
    if data[:1] != _PARTS:
        raise UntrustedResultError("the result begins with unknown bytes: call the function again")
    # Places count from the first byte of the message.
    return _decoded(taken_apart(view[_MESSAGE_ALIGNMENT:], _message_place), trust, deadline)


def decode_stored(view: memoryview, *, trust: bool, deadline: float | None = None) -> object:
    """Return the result in a blob; the same errors. Arrays use the memory of the blob."""
    return _decoded(taken_apart(view), trust, deadline)


def _decoded(encoded: Encoded, trust: bool, deadline: float | None) -> object:  # noqa: FBT001 - the caller's
    kind, body, buffers = encoded
    if kind is ResultKind.CLOSED:
        return read_value(body, buffers, deadline)
    if kind is ResultKind.PLAIN:
        return read_plain(body)
    if kind is ResultKind.TUPLE:
        return read_plain_tuple(body)
    if kind is ResultKind.BYTES:
        return bytes(body)
    if not trust:
        raise UntrustedResultError(
            "the result is a pickle, which a caller does not load from a sandboxed worker. Make the executor "
            "with trust=True if you trust the code that ran"
        )
    return pickle.loads(body, buffers=buffers)  # noqa: S301 - the caller said that it trusts the code


# -- exceptions -------------------------------------------------------------------------------------
class _Report(msgspec.Struct, frozen=True, array_like=True):
    """An exception as text, and as a result if it has that form."""

    traceback: str
    bases: list[str]
    """The names of the class and its bases."""
    message: str
    notes: list[str]
    error: bytes


_report: Final = msgspec.msgpack.Decoder(_Report)


def encode_exception(error: BaseException, *, trust: bool = False) -> bytes:
    """Return an exception and its traceback, in a worker; its text alone if it has no other form."""
    text = "".join(traceback.format_exception(error))
    error = error.with_traceback(None)
    try:
        encoded = encode_result(error, trust=trust)
    except (Exception, SystemExit):  # noqa: BLE001 - exceptions have any attributes
        encoded = b""
    if len(encoded) > EXCEPTION_BYTES_MAX:
        encoded = b""
    return _pack(
        _Report(
            clean_text(text, TRACEBACK_CHARS_MAX),
            [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__],
            message_of(error),
            notes_of(error),
            encoded,
        )
    )


def decode_exception(data: bytes | bytearray, *, trust: bool, deadline: float | None = None) -> BaseException:
    """Return the exception of a call, in its caller, with the traceback of the worker as its cause.

    An exception of a class that this program does not know, or that is not accepted, becomes the nearest
    built-in exception with the same text and notes. Control characters in its texts are escaped.
    """
    try:
        report = _report.decode(data)
    except msgspec.DecodeError:
        return RuntimeError("the worker reported an exception in an unknown form")
    error: object = None
    if report.error:
        try:
            error = decode_result(bytearray(report.error), trust=trust, deadline=deadline)
        except DecodeTimeoutError:
            raise
        except Exception:  # noqa: BLE001 - a pickle of a trusted worker may need what is not here
            error = None
    # SystemExit or KeyboardInterrupt of a worker must not end the caller.
    if not issubclass(type(error), Exception) or not make_harmless(cast("Exception", error)):
        error = substitute(report.bases, report.message, report.notes)
        make_harmless(error)
    exception = cast("Exception", error)
    exception.__cause__ = RemoteTraceback(clean_text(report.traceback, TRACEBACK_CHARS_MAX))
    return exception


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
