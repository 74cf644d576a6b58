"""The common part of both ends of a ring: mappings, control words, waiting and waking.

``dios.transport.rings.writer`` and ``reader`` move the data.

An end with nothing to do spins briefly if that was successful lately (``adaptive_spin``). Then it numbers its
wait, checks once more, and sleeps until a wake-up comes (``wakeups``). The other end publishes its data, then
checks for a wait that it has not signalled yet. On both sides there is a full fence between the store and the
load that decides about sleeping or signalling.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import suppress
from mmap import PROT_READ, mmap
from typing import Final, Protocol, Self, TypeAlias, TypeVar

from dios.errors import ProtocolError, TimeLimitError
from dios.transport.memory.memfd import close_all
from dios.transport.rings.adaptive_spin import AdaptiveSpin
from dios.transport.rings.layout import CLOSED, COMMITS, CONTROL_BYTES, COUNT, STATE, WAITING
from dios.transport.rings.wakeups import hang_up, receive_wakeups, wake

T = TypeVar("T")
E = TypeVar("E", bound="RingEnd")
Bytes: TypeAlias = bytes | bytearray | memoryview
Steps: TypeAlias = Generator[bool, None, T]
"""A generator that yields where it must sleep: True where giving up leaves the stream unchanged."""

CLOSED_BIT: Final = 1 << 32
_WAIT_MASK: Final = CLOSED_BIT - 1
_IDLE_WAKEUPS_MAX: Final = 8
"""The most wake-ups in a row without any progress. An honest end causes one, if it wakes this end late."""

# Taking and releasing an uncontended lock is a full fence on x86. Processors with a weaker order need two
# pairs: the release of the first is ordered before the acquisition of the second.
_lock: Final = threading.Lock()
acquire_lock: Final = _lock.acquire
release_lock: Final = _lock.release
ORDERED: Final = os.uname().machine in {"x86_64", "AMD64", "i686"}


def fence() -> None:
    """Make every earlier store visible before any later load."""
    acquire_lock()
    release_lock()
    if not ORDERED:
        acquire_lock()
        release_lock()


class WaitObserver(Protocol):
    """Something that keeps the announced waits of ends, and learns when such a wait ends."""

    def note_end_of_wait(self, end: RingEnd) -> None:
        """Note that this end is no longer announced."""

    def note_closing(self, end: RingEnd) -> None:
        """Note that this end will be closed at once."""


class RingEnd(ABC):
    """The common part of both ends: mappings, control words, waiting and waking."""

    def __init__(self, fds: Sequence[int], ring_bytes: int, own_bytes: int, peer_bytes: int) -> None:
        own_fd, peer_fd, wakeups_fd = fds
        self.ring_bytes: Final = ring_bytes
        self.closed = False
        try:
            self._own_map: Final = mmap(own_fd, own_bytes)
            self._peer_map: Final = mmap(peer_fd, peer_bytes, prot=PROT_READ)
            self._wakeups: Final = socket.socket(fileno=wakeups_fd)
        except (OSError, ValueError) as error:
            close_all(fds)
            raise ProtocolError(f"these descriptors are not an end of a ring: {error}") from None
        # Each mapping has a descriptor of its own.
        close_all((own_fd, peer_fd))
        self._own: Final = memoryview(self._own_map)[:CONTROL_BYTES].cast("Q")
        self._own_halves: Final = memoryview(self._own_map)[:CONTROL_BYTES].cast("I")
        self._peer: Final = memoryview(self._peer_map)[:CONTROL_BYTES].cast("Q")
        self._wait_number = 0
        self._rung_for = 0
        self._peer_gone = False
        self._woken_at = -1
        self._idle_wakeups = 0
        self._spin = AdaptiveSpin().spin
        self._commits = self._own[COMMITS]
        self._borrowed: memoryview | None = None
        self._aside: bytearray | None = None
        self.observer: WaitObserver | None = None
        self._poll: Final = select.poll()
        self._poll.register(wakeups_fd, select.POLLIN)

    def hand_over(self) -> tuple[int, int, int]:
        """Return the socket, and the numbers of the last waits of both ends: a successor continues with them.

        Nothing may be acquired. The successor begins with the published counters.
        """
        return self._wakeups.fileno(), self._wait_number, self._rung_for

    def take_over(self, wait_number: int, rung_for: int) -> None:
        """Continue with the numbers of a predecessor, so that no wait is taken for an earlier one."""
        self._wait_number, self._rung_for = wait_number, rung_for

    def give_up(self) -> None:
        """Give up an acquired read or write, of which nothing was taken or sent."""
        self._give_back()

    def fileno(self) -> int:
        """Return the descriptor to poll for reading between ``arm`` and ``disarm``."""
        return self._wakeups.fileno()

    def spin_up_to(self, most_ns: int) -> None:
        """Let a spin before a wait last up to this time, for an end whose peer answers quickly."""
        self._spin = AdaptiveSpin(most_ns).spin

    @property
    def peer_closed(self) -> bool:
        """Return True if the other end is closed, or was when this was last asked."""
        # The word is in the other end's memory, which could write it again; a caller must not wait then.
        if not self._peer_gone and self._peer[STATE] >= CLOSED_BIT:
            self._peer_gone = True
        return self._peer_gone

    @abstractmethod
    def _changed(self) -> bool:
        """Return True if the data or space that this end waits for has come."""

    def arm(self) -> bool:
        """Announce a wait; True if it is needed: poll ``fileno``, then call ``disarm``.

        Raise ProtocolError if the other end sends wake-ups again and again without a reason.
        """
        if self.has_news():
            return False
        self.announce()
        fence()
        if self.has_news():
            self.disarm(woken=False)
            return False
        return True

    def has_news(self) -> bool:
        """Return True if the other end has moved a byte or closed since this end last looked."""
        return self._changed() or self.peer_closed

    def announce(self) -> None:
        """Announce a wait as ``arm`` does, but leave the fence and the check after it to the caller."""
        if self._idle_wakeups > _IDLE_WAKEUPS_MAX:
            raise ProtocolError("the other end of the stream sends wake-ups without moving a byte")
        self._wait_number = self._wait_number % _WAIT_MASK + 1
        self._own_halves[WAITING] = self._wait_number

    def disarm(self, *, woken: bool = True) -> None:
        """End the wait. Without ``woken``, ``fileno`` was not readable; a late wake-up ends the next wait."""
        if self.closed:
            return
        self._own_halves[WAITING] = 0
        if self.observer is not None:
            self.observer.note_end_of_wait(self)
        if not woken:
            return
        try:
            if not receive_wakeups(self._wakeups):
                self._peer_gone = True
        except BlockingIOError:
            return
        count = self._peer[COUNT]
        self._idle_wakeups = self._idle_wakeups + 1 if count == self._woken_at else 0
        self._woken_at = count

    def _asleep(self, harmless: bool) -> Steps[None]:  # noqa: FBT001 - handed on as it is
        """Sleep once, unless there is something to do."""
        if self._spin(self._changed) or not self.arm():
            return
        try:
            yield harmless
        finally:
            self.disarm()

    def _notify(self, state: int) -> None:
        """Signal the peer's present wait, once."""
        number = state & _WAIT_MASK
        if number and number != self._rung_for:
            self._rung_for = number
            wake(self._wakeups)

    def _run(self, steps: Steps[T], timeout_s: float | None) -> T:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while True:
                harmless = next(steps)
                if deadline is None or not harmless:
                    self._poll.poll()
                elif not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise TimeLimitError("nothing moved on the stream in time")
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            steps.close()

    def _give_back(self) -> None:
        if self._borrowed is not None:
            self._borrowed.release()
            self._borrowed = None
        self._aside = None

    def close(self) -> None:
        """Close this end, and release memory and descriptors; a second call does nothing."""
        if self.closed:
            return
        self._own_halves[CLOSED] = 1
        fence()
        hang_up(self._wakeups)
        self.abandon()

    def abandon(self) -> None:
        """Release memory and descriptors without a word to the other end: a fork does so with its copy."""
        if self.closed:
            return
        if self.observer is not None:
            self.observer.note_closing(self)
        self.closed = True
        # A view of a borrowed view keeps the memory until it is released itself.
        with suppress(BufferError):
            self._give_back()
        for view in (self._own, self._own_halves, self._peer):
            view.release()
        for mapping in (self._own_map, self._peer_map):
            with suppress(BufferError):
                mapping.close()
        self._wakeups.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
