"""System calls that a filter leaves to a listener: it learns of each, and answers it (seccomp notifications).

The thread that made the call waits for the answer; nothing but its end interrupts that. The listener can let
the kernel make the call, refuse it, or give the process descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from typing import Final, NamedTuple

FORKS: Final = "listeners"
"""The name of this mechanism, without which no session can be forked."""

_NOTIFICATION: Final = struct.Struct("=QIIiIQ6Q")
_ANSWER: Final = struct.Struct("=QqiI")
_DESCRIPTOR: Final = struct.Struct("=QIIII")
_ID: Final = struct.Struct("=Q")

_RECEIVE: Final = 0xC0502100
_SEND: Final = 0xC0182101
_IS_VALID: Final = 0x40082102
_ADD_DESCRIPTOR: Final = 0x40182103

_CONTINUE: Final = 1
_AT_NUMBER: Final = 1


class Notification(NamedTuple):
    """One call: the thread that waits for an answer, the number of the call, and its first argument."""

    id: int
    thread: int
    number: int
    argument: int


class Listener:
    """The descriptor on which the calls of all processes with one filter arrive."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: Final = descriptor

    def fileno(self) -> int:
        """Return the descriptor, which is readable while a call waits."""
        return self._descriptor

    def check(self) -> None:
        """Raise ``OSError`` if the descriptor is no listener."""
        with contextlib.suppress(FileNotFoundError):
            self._control(_IS_VALID, _ID.pack(0))  # a listener says that no call has this number

    def receive(self) -> Notification | None:
        """Return the next call, or None if its process has ended meanwhile. Call it only if one waits."""
        data = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self._descriptor, _RECEIVE, data)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.EINTR}:
                return None
            raise
        number, thread, _, call, _, _, argument, *_ = _NOTIFICATION.unpack(data)
        return Notification(number, thread, call, argument)

    def is_waiting(self, notification: Notification) -> bool:
        """Return True while the call waits: then the number of its process has not been used again."""
        try:
            self._control(_IS_VALID, _ID.pack(notification.id))
        except OSError:
            return False
        return True

    def permit(self, notification: Notification) -> None:
        """Let the kernel make the call. Raise ``OSError`` if the process has ended."""
        self._control(_SEND, _ANSWER.pack(notification.id, 0, 0, _CONTINUE))

    def answer(self, notification: Notification, value: int) -> None:
        """Answer with a value, without the call being made. Raise ``OSError`` if the process has ended."""
        self._control(_SEND, _ANSWER.pack(notification.id, value, 0, 0))

    def refuse(self, notification: Notification, code: int) -> None:
        """Answer with an error. Do nothing if the process has ended."""
        try:
            self._control(_SEND, _ANSWER.pack(notification.id, 0, -code, 0))
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise

    def give(self, notification: Notification, descriptor: int, number: int) -> None:
        """Make a copy of a descriptor in the process, at ``number``, in the place of what was there.

        Raise ``OSError`` if the process has ended, or has no room for it.
        """
        flags = os.O_CLOEXEC if number > 2 else 0
        given = _DESCRIPTOR.pack(notification.id, _AT_NUMBER, descriptor, number, flags)
        self._control(_ADD_DESCRIPTOR, given)

    def _control(self, request: int, data: bytes) -> None:
        # Python repeats most calls that a signal interrupts, but not this one.
        while True:
            try:
                fcntl.ioctl(self._descriptor, request, data)
            except InterruptedError:
                continue
            return

    def close(self) -> None:
        """Close the descriptor: from then on every call of the filter is answered with ENOSYS."""
        os.close(self._descriptor)
