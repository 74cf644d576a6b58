"""The error tree: one enumeration for the whole system, and one exception class for each of its codes.

Not for: errors of libraries below us, which are translated where they are met.
A code crosses the wire and never changes its number; an exception is what a person's program catches.
"""

from __future__ import annotations

import enum
from typing import ClassVar, Final


class Code(enum.IntEnum):
    """Stable error codes, named after errno where the meaning is the same."""

    EPERM = 1
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
    ETIMEDOUT = 110
    EHOSTUNREACH = 113
    ESTALE = 116
    EDQUOT = 122
    ECANCELED = 125


class DiosError(Exception):
    """Whatever a call to the node refused; its class says what the caller can do about it."""

    code: ClassVar[Code] = Code.EIO

    def __init__(self, message: str, *, call: str = "", fingerprint: str = "") -> None:
        self.message: Final = message
        self.call: Final = call
        self.fingerprint: Final = fingerprint
        place = " ".join(part for part in (call, f"on {fingerprint}" if fingerprint else "") if part)
        super().__init__(f"{place}: {message}" if place else message)


class NotPermittedError(DiosError):
    """The reference, group or principal does not carry the right that the call needs."""

    code = Code.EPERM


class NoSuchTaskError(DiosError):
    """The task has ended and its object is gone."""

    code = Code.ESRCH


class DamagedError(DiosError):
    """The store or a device failed, or a stored value no longer matches its digest."""

    code = Code.EIO


class BadReferenceError(DiosError):
    """The reference or buffer is forged, deleted, or another task's."""

    code = Code.EBADF


class WouldBlockError(DiosError):
    """A call with NON_BLOCKING would have had to wait."""

    code = Code.EAGAIN


class OutOfMemoryError(DiosError):
    """The node or the task's limit has no memory left for the buffer or table row."""

    code = Code.ENOMEM


class ExistsError(DiosError):
    """The name is taken: a deterministic creation was repeated while its object lives."""

    code = Code.EEXIST


class InvalidError(DiosError):
    """An argument, or the order of calls on one buffer, makes no sense; nothing was changed."""

    code = Code.EINVAL


class TooLargeError(DiosError):
    """The size is above the limit for its kind."""

    code = Code.EFBIG


class NoSpaceError(DiosError):
    """The store's disk or a quota is full; nothing was changed, reading goes on."""

    code = Code.ENOSPC


class LimitError(DiosError):
    """A limit of the task, of a group or of the principal is reached; nothing was changed.

    The message says which limit, how much of it is used, and who can raise it.
    """

    code = Code.EDQUOT


class ClosedError(DiosError):
    """The other end of the stream is gone."""

    code = Code.EPIPE


class NotExecutableError(DiosError):
    """The object handed to run holds no program this node can start."""

    code = Code.ENOEXEC


class NotSupportedError(DiosError):
    """The object's type, or this machine, has no such operation."""

    code = Code.ENOSYS


class EndOfStreamError(DiosError):
    """Everything was read and no writer is left."""

    code = Code.EOF


class ProtocolError(DiosError):
    """The peer sent bytes that are no message of this protocol; that one connection is closed."""

    code = Code.EPROTO


class TimeLimitError(DiosError):
    """The time limit of a waiting call passed."""

    code = Code.ETIMEDOUT


class UnreachableError(DiosError):
    """The node, or the machine that holds the object, does not answer."""

    code = Code.EHOSTUNREACH


class StaleError(DiosError):
    """The object is a zombie: it was deleted, its I/O is disabled for good."""

    code = Code.ESTALE


class Conflict(DiosError):  # noqa: N818 - the public name is fixed by the documentation
    """The commit failed: the concurrent access semantics did not hold; acquire again and retry."""

    code = Code.ECANCELED


class Busy(Conflict):
    """The acquire was not admitted beside the requests now active; retry, or choose a weaker level."""

    code = Code.EBUSY


class InvariantError(BaseException):
    """The core contradicts itself. A defect: never caught where expected failure is handled."""


def _classes() -> dict[Code, type[DiosError]]:
    found: dict[Code, type[DiosError]] = {}
    todo: list[type[DiosError]] = [DiosError]
    while todo:
        for kind in todo.pop().__subclasses__():
            found[kind.code] = kind
            todo.append(kind)
    return found


BY_CODE: Final = _classes()


def error_for(code: int, message: str, *, call: str = "", fingerprint: str = "") -> DiosError:
    """Build the exception for a code that came over the wire."""
    try:
        kind = BY_CODE[Code(code)]
    except (ValueError, KeyError):
        return DiosError(f"unknown error code {code}: {message}", call=call, fingerprint=fingerprint)
    return kind(message, call=call, fingerprint=fingerprint)
