"""The exceptions of calls as bytes: always their text, and the exception itself where the caller knows it.

The caller builds no class that it has not imported. It raises a ``RemoteError`` then, which has the name, the
text, the notes and the traceback of the exception, and is caught as the nearest built-in class of it.
"""

from __future__ import annotations

import builtins
import struct
import traceback
from collections.abc import Callable
from typing import Annotated, Final, TypeAlias, cast

import msgspec

from dios.client.plain_text import plain, plain_lines
from dios.lib.executor.results.forms import DecodeTimeoutError
from dios.lib.executor.results.harmless import NOTES_MAX, TEXT_CHARS_MAX, make_harmless
from dios.lib.executor.values import decode_result, encode_result

_SIZE: Final = struct.Struct("<I")
_NOTE_CHARS_MAX: Final = TEXT_CHARS_MAX // 8
_NAME_CHARS_MAX: Final = 256
_BASES_MAX: Final = 64
_LEFT_OUT_CHARS_MAX: Final = 64
"""The characters that say how many others are left out."""
_DESCRIPTION_BYTES_MAX: Final = 3 * 1024 * 1024
_OBJECT_BYTES_MAX: Final = 255 * 1024 * 1024
"""A larger exception arrives as text: a frame of a worker has at most 256 MiB."""
_PLAIN_BYTES_MAX: Final = 1024 * 1024
_CLASSES_KEPT: Final = 256
_UNKNOWN: Final = (__name__, "RemoteError")


class RemoteError(Exception):
    """An exception of a call, of a class that the caller has not imported, or that cannot be sent.

    It has the name, text and notes of the exception, and is an object of the nearest built-in class of it:
    ``except ValueError`` catches a ``json.JSONDecodeError``. Import the module of the class to get itself.
    """

    def __init__(self, text: str = "", bases: tuple[tuple[str, str], ...] = ()) -> None:
        self.args = (text,)
        self.text: Final = text
        self.bases: Final = bases
        """The module and the name of the class of the exception and of those above it, nearest first."""

    def __str__(self) -> str:
        return plain_lines(self.text)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __reduce__(self) -> tuple[object, ...]:
        return restore_error, (self.text, self.bases), self.__dict__


class RemoteTraceback(Exception):  # noqa: N818 - like the one of multiprocessing
    """The traceback of a call in its worker, as text: the ``__cause__`` of the exception that it raised."""

    def __str__(self) -> str:
        return f"\n{plain_lines(str(self.args[0]))}" if self.args else ""


_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=_NAME_CHARS_MAX + _LEFT_OUT_CHARS_MAX)]
_Note: TypeAlias = Annotated[str, msgspec.Meta(max_length=_NOTE_CHARS_MAX + _LEFT_OUT_CHARS_MAX)]
_Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX + _LEFT_OUT_CHARS_MAX)]


class Description(msgspec.Struct, frozen=True, array_like=True):
    """An exception in words. The bounds are those of a worker: one that sends more is hostile."""

    bases: Annotated[list[tuple[_Name, _Name]], msgspec.Meta(max_length=_BASES_MAX)]
    """The module and the name of its class and of all classes above it, nearest first."""
    text: _Text
    notes: Annotated[list[_Note], msgspec.Meta(max_length=NOTES_MAX)]
    traceback: _Text
    plain: Annotated[bytes, msgspec.Meta(max_length=_PLAIN_BYTES_MAX)] = b""
    """The exception with texts in the place of what a caller may not accept; empty if there is no need."""


_decoder: Final = msgspec.msgpack.Decoder(Description)


def encode_exception(error: BaseException, *, trust: bool = False) -> bytes:
    """Return an exception and its traceback, in a worker; in words alone if it cannot be pickled."""
    description = _described(error)
    body = plain = b""
    try:
        body = encode_result(error.with_traceback(None), trust=trust)
        if not trust:
            decode_result(body, trust=False)
    except BaseException:  # noqa: BLE001 - exceptions have any attributes, and this call alone shall fail
        plain = _plain(error)
    head = msgspec.msgpack.encode(msgspec.structs.replace(description, plain=plain))
    return b"".join((_SIZE.pack(len(head)), head, body if len(body) <= _OBJECT_BYTES_MAX else b""))


def decode_exception(data: bytes | bytearray, *, trust: bool, deadline: float | None = None) -> BaseException:
    """Return the exception of a call, in its caller, with the traceback of the worker as its cause.

    Control characters in its texts are escaped. Raises DecodeTimeoutError after ``deadline``, a time of
    ``time.monotonic``.
    """
    description = describe_exception(data)
    size = _SIZE.unpack_from(data)[0] if len(data) >= _SIZE.size else 0
    exception = (
        _decoded(data[_SIZE.size + size :], trust=trust, deadline=deadline)
        or _decoded(description.plain, trust=False, deadline=deadline)
        or _rebuilt(description)
    )
    exception.__cause__ = RemoteTraceback(description.traceback)
    return exception


def _decoded(body: bytes | bytearray, *, trust: bool, deadline: float | None) -> Exception | None:
    """Return an exception if it can be built here, and is harmless."""
    try:
        error = decode_result(body, trust=trust, deadline=deadline)
    except DecodeTimeoutError:
        raise
    except Exception:  # noqa: BLE001 - a worker chose the bytes, or the class is unknown here
        return None
    # SystemExit or KeyboardInterrupt of a worker must not end the caller.
    is_exception = issubclass(type(error), Exception) and make_harmless(cast("Exception", error))
    return cast("Exception", error) if is_exception else None


def describe_exception(data: bytes | bytearray | memoryview) -> Description:
    """Return what an encoded exception says in words, without building it."""
    try:
        size = _SIZE.unpack_from(data)[0]
        if size <= min(_DESCRIPTION_BYTES_MAX, len(data) - _SIZE.size):
            return _decoder.decode(memoryview(data)[_SIZE.size : _SIZE.size + size])
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError):
        pass
    return Description([], "the worker reported an exception in an unknown form", [], "")


def _plain(error: BaseException) -> bytes:
    """Return an exception with the texts of those arguments and attributes that a caller may not accept.

    Those with arguments of a meaning of their own have none, nor have long ones.
    """
    if isinstance(error, OSError | BaseExceptionGroup | SyntaxError | UnicodeError):
        return b""
    try:
        builtin = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
        copy = cast("Callable[[type], BaseException]", builtin.__new__)(type(error))
        copy.args = tuple(map(_accepted, error.args))
        vars(copy).update({name: _accepted(value) for name, value in vars(error).items()})
        body = encode_result(copy)
    except BaseException:  # noqa: BLE001 - as above
        return b""
    return body if len(body) <= _PLAIN_BYTES_MAX else b""


def _accepted(value: object) -> object:
    """Return a value if this process accepts it as a result, and its text otherwise."""
    try:
        decode_result(encode_result(value), trust=False)
    except BaseException:  # noqa: BLE001 - as above
        return _text_of(lambda: repr(value))
    return value


def _described(error: BaseException) -> Description:
    if isinstance(error, RemoteError) and error.bases:
        bases = list(error.bases[:_BASES_MAX])
    else:
        bases = [(kind.__module__, kind.__qualname__) for kind in type(error).__mro__[:_BASES_MAX]]
    notes = getattr(error, "__notes__", ())
    shown = notes[:NOTES_MAX] if isinstance(notes, list | tuple) else ()
    return Description(
        [(_short(module, _NAME_CHARS_MAX), _short(name, _NAME_CHARS_MAX)) for module, name in bases],
        _text_of(lambda: str(error)),
        [_text_of(lambda note=note: str(note), _NOTE_CHARS_MAX) for note in shown],  # type: ignore[misc]
        _text_of(lambda: "".join(traceback.format_exception(error))),
    )


def _text_of(describe: Callable[[], str], most: int = TEXT_CHARS_MAX) -> str:
    try:
        return _short(describe(), most)
    except BaseException as error:  # noqa: BLE001 - code of the exception runs here
        return f"<its text cannot be made: {type(error).__name__}>"


def _short(text: str, most: int) -> str:
    """Return a text that can be encoded; the middle of a long one is left out."""
    text = str(text).encode("utf-8", "backslashreplace").decode()
    half = most // 2
    return (
        text if len(text) <= most else f"{text[:half]}\n… {len(text) - most:,} characters …\n{text[-half:]}"
    )


# -- the caller's side ------------------------------------------------------------------------------
_classes: Final[dict[tuple[str, str, type], type[RemoteError]]] = {}


def _rebuilt(description: Description) -> Exception:
    """Return a RemoteError that has the name of an exception's class and is caught like it."""
    known = [getattr(builtins, name, None) for module, name in description.bases if module == "builtins"]
    # A class that does not derive from Exception, such as KeyboardInterrupt, would end the caller.
    for base in (*known, RuntimeError):
        if isinstance(base, type) and issubclass(base, Exception):
            try:
                error = _class_of(description, base)(description.text, tuple(description.bases))
            except (TypeError, ValueError):  # ExceptionGroup and others need more than a text
                continue
            if issubclass(base, SyntaxError):
                setattr(error, "msg", str(error))  # noqa: B010 - tracebacks show it; mypy knows no such class
            for note in description.notes:
                error.add_note(plain_lines(note))
            return error
    raise AssertionError("a RuntimeError can be made of any text")


def _class_of(description: Description, base: type[Exception]) -> type[RemoteError]:
    module, name = (plain(part)[:_NAME_CHARS_MAX] for part in (description.bases or [_UNKNOWN])[0])
    known = _classes.get((module, name, base))
    if known is not None:
        return known
    bases = (RemoteError,) if base is Exception else (RemoteError, base)
    created = type(name.rpartition(".")[2], bases, {"__module__": module, "__qualname__": name})
    if len(_classes) < _CLASSES_KEPT:
        _classes[module, name, base] = created
    return created


def restore_error(text: str, bases: tuple[tuple[str, str], ...]) -> Exception:
    """Return a ``RemoteError`` from its pickle."""
    return _rebuilt(Description(list(bases), text, [], ""))
