"""The errors of the whole system: one enumeration of stable codes, and one exception class for each code.

A code crosses the wire and never changes its number. A program catches the exceptions. Errors of the
libraries below are translated where they occur. ``docs/errors.md`` lists all of them.
"""

from __future__ import annotations

import enum
from typing import ClassVar, Final

MESSAGE_CHARS_MAX: Final = 8 * 1024
"""The length of an error's message; the rest is left out."""


class Code(enum.IntEnum):
    """The stable error codes, named after errno where the meaning is the same."""

    EPERM = 1
    ENOENT = 2
    ESRCH = 3
    EIO = 5
    EBADF = 9
    EAGAIN = 11
    ENOMEM = 12
    EBUSY = 16
    EEXIST = 17
    EINVAL = 22
    EFBIG = 27
    ENOSPC = 28
    EPIPE = 32
    ENOEXEC = 8
    ENOSYS = 38
    EOF = 61
    EPROTO = 71
    ENOBUFS = 105
    ETIMEDOUT = 110
    EHOSTUNREACH = 113
    ESTALE = 116
    EDQUOT = 122
    ECANCELED = 125


def shortened(text: str) -> str:
    """Return the text, without its end if it is longer than a message may be."""
    return text if len(text) <= MESSAGE_CHARS_MAX else f"{text[: MESSAGE_CHARS_MAX - 4]} ..."


def unwrap_group(error: BaseException) -> BaseException:
    """Return the first DiosError in nested groups of exceptions, else the first exception.

    An error that is no group is returned as it is.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [unwrap_group(inner) for inner in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, DiosError)), leaves[0])


class DiosError(Exception):
    """The base class of every error that a call raises; the subclass says what the caller can do about it.

    Catch the subclass that the program can handle, and let the others end it. ``message`` is the reason,
    ``call`` the name of the refused call, ``fingerprint`` identifies the object, ``code`` is the stable code.
    """

    code: ClassVar[Code] = Code.EIO

    def __init__(self, message: str, *, call: str = "", fingerprint: str = "") -> None:
        message = shortened(message)
        self.message: Final = message
        self.call: Final = call
        self.fingerprint: Final = fingerprint
        place = " ".join(part for part in (call, f"on {fingerprint}" if fingerprint else "") if part)
        super().__init__(f"{place}: {message}" if place else message)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the error with its attributes: subclasses take different arguments."""
        return _restored, (type(self), self.args, dict(vars(self)))


def _restored(kind: type[DiosError], args: tuple[object, ...], attributes: dict[str, object]) -> DiosError:
    error = kind.__new__(kind, *args)
    # An error that is an OSError as well gets its arguments from its initialiser, which is not called here.
    error.args = args
    vars(error).update(attributes)
    return error


class NotPermittedError(DiosError):
    """The reference, the group or the user does not have the right that the call needs.

    Repeating the call does not help. Use a reference that carries the right, or ask its owner for one.
    """

    code = Code.EPERM


class NoSuchTaskError(DiosError):
    """The task has ended and its object is gone.

    Drop the reference. Start the task again if its work is still needed.
    """

    code = Code.ESRCH


class DamagedError(DiosError):
    """A device failed, or stored bytes no longer match their digest.

    Do not trust the object's content. Read another replica, or run ``dios-node check`` on the stopped node
    and restore the object from a backup.
    """

    code = Code.EIO


class BadReferenceError(DiosError):
    """The reference or the buffer does not exist, was deleted, or belongs to another task.

    Drop it. Look the object up again, or ask the task that passed it for a new reference.
    """

    code = Code.EBADF


class WouldBlockError(DiosError):
    """The call would have to wait, and it was sent with NON_BLOCKING or in a vector; nothing was changed.

    Try again later, or send the call alone and without NON_BLOCKING.
    """

    code = Code.EAGAIN


class OutOfMemoryError(DiosError):
    """The machine has no memory, descriptors or processes left for the call; nothing was changed.

    Release buffers, or end tasks, then try again. A full table is a ``LimitError`` instead.
    """

    code = Code.ENOMEM


class ExistsError(DiosError):
    """The name is taken: a deterministic creation was repeated while its object exists.

    Look up the existing object, or choose another name.
    """

    code = Code.EEXIST


class InvalidError(DiosError):
    """An argument is wrong, the calls came in a wrong order, or the call is not possible in a vector.

    Nothing was changed. Correct the program; the message names the argument. Send a call that is not possible
    in a vector alone.
    """

    code = Code.EINVAL


class TooLargeError(DiosError):
    """The size is above the fixed maximum of its kind; nothing was changed.

    Split the data into several objects, entries or messages. No setting raises this maximum.
    """

    code = Code.EFBIG


class NoSpaceError(DiosError):
    """The disk of the store is full, or a disk quota is used up; nothing was changed.

    Remove objects or free space on the disk, then try again. Reading still works.
    """

    code = Code.ENOSPC


class LimitError(DiosError):
    """A limit is reached, or a table of bounded size is full; nothing was changed.

    The message says which limit, and for the limits of a task, a group or a principal how much was requested
    and who can raise it. Release something that counts against the limit, or ask for a higher one.
    """

    code = Code.EDQUOT


class TooManyCallsError(LimitError):
    """The call would have to wait, and as many calls of the task, or runs of its principal, wait as may wait.

    Nothing was changed. The Python clients make the call again when another call of theirs is answered, and
    after a pause, so that programs rarely see this error.
    """

    code = Code.ENOBUFS


class ClosedError(DiosError):
    """The other end of the stream or the connection is closed.

    It is unknown whether a call that waited for its answer was executed. Close this end. Open a new stream,
    or connect again, to continue.
    """

    code = Code.EPIPE


class NotExecutableError(DiosError):
    """The object contains no program that this node can start.

    Store a program in it as Python source in UTF-8, or choose another object.
    """

    code = Code.ENOEXEC


class NotSupportedError(DiosError):
    """The type of the object, this machine or this release does not have the operation.

    Use another type or another node; the message says what is missing.
    """

    code = Code.ENOSYS


class MissingEnvironmentError(NotSupportedError):
    """The node does not have the packages or the image that the task names, or has removed them.

    Bring them again: ``dios env build``, or a new sandbox with the image.
    """

    code = Code.ENOENT


class EndOfStreamError(DiosError):
    """Everything in the stream was read, and its writer has closed it.

    Stop reading; this is the regular end of a stream.
    """

    code = Code.EOF


class ProtocolError(DiosError):
    """The peer sent bytes that are not a message of this protocol; the connection to it was closed.

    Connect again. If it happens again, compare the versions of both programs.
    """

    code = Code.EPROTO


class TimeLimitError(DiosError, TimeoutError):
    """The timeout of a waiting call passed before its answer came.

    Call again with a longer timeout, or give up. It is a ``TimeoutError`` as well.
    """

    code = Code.ETIMEDOUT
    errno: int | None = int(Code.ETIMEDOUT)


class UnreachableError(DiosError, ConnectionError):
    """The node, or the machine that holds the object, does not answer.

    It is unknown whether a call that changes something was executed. Try again later, or use another replica.
    It is a ``ConnectionError`` as well.
    """

    code = Code.EHOSTUNREACH
    errno: int | None = int(Code.EHOSTUNREACH)


class StaleError(DiosError):
    """The object is a zombie: it was deleted, and its I/O is disabled for good.

    Drop the reference, and look up or create another object.
    """

    code = Code.ESTALE


class Conflict(DiosError):  # noqa: N818 - the public name is fixed by the documentation
    """The commit failed: another request violated its semantics; nothing was changed.

    Acquire again, and do the work again on the new bytes. A cancelled call raises it too.
    """

    code = Code.ECANCELED


class Busy(DiosError):  # noqa: N818 - the public name is fixed by the documentation
    """The request was not admitted: another one that excludes it is active; nothing was changed.

    Try again after a pause, or choose a weaker level of semantics. An end of a stream, a network address or
    an interface that is in use raises it too: choose another one.
    """

    code = Code.EBUSY


class InvariantError(BaseException):
    """The core contradicts itself. This is a defect of dios: report it, and never catch it."""


def _classes() -> dict[Code, type[DiosError]]:
    classes: dict[Code, type[DiosError]] = {}
    kinds = DiosError.__subclasses__()
    while kinds:
        kind = kinds.pop()
        if "code" in vars(kind):
            classes[kind.code] = kind
        kinds += kind.__subclasses__()
    return classes


BY_CODE: Final = _classes()


def error_for(code: int, message: str, *, call: str = "", fingerprint: str = "") -> DiosError:
    """Return the exception for a code that came over the wire."""
    try:
        kind = BY_CODE[Code(code)]
    except (ValueError, KeyError):
        return DiosError(f"unknown error code {code}: {message}", call=call, fingerprint=fingerprint)
    return kind(message, call=call, fingerprint=fingerprint)
