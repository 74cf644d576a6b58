"""A set of ends that waits for the first ready one, and keeps what it has learned for the next wait.

An end without news stays announced between two waits: its peer wakes it once when something has come, and the
kernel lists the ends that were woken. The cost of a wait depends on the ends that are ready or were used
since the last one, and not on the size of the set.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from typing import Final

from dios.transport.rings.end import RingEnd, fence
from dios.transport.rings.waiting import is_ready

_EVENTS_MAX: Final = 256
"""The largest number of ends that the kernel lists at a time; the next list has others."""


class WaitSet:
    """Ends of one process that are waited for together, by one thread at a time."""

    def __init__(self) -> None:
        self._epoll: Final = select.epoll()
        self._process: Final = os.getpid()
        self._members: dict[RingEnd, None] = {}
        self._ends: Final[dict[int, RingEnd]] = {}
        # The ends that are not announced, those used longest ago first.
        self._unarmed: dict[RingEnd, None] = {}
        self._ended: Final[set[RingEnd]] = set()

    @property
    def usable(self) -> bool:
        """Return False in a forked process, which shares the kernel's list with its parent."""
        return self._process == os.getpid()

    def replace(self, ends: Iterable[RingEnd]) -> None:
        """Wait for these ends from now on, and no longer for others."""
        wanted = self._members = dict.fromkeys(ends)
        self._unarmed = {end: None for end in self._unarmed if end in wanted}
        for fd, end in list(self._ends.items()):
            if end not in wanted:
                self._drop(fd, end)
        for end in wanted:
            if end.closed:
                self._unarmed[end] = None
            elif end.observer is not self:
                self._epoll.register(end.fileno(), select.EPOLLIN)
                self._ends[end.fileno()] = end
                self._unarmed[end] = None
                end.observer = self

    def note_end_of_wait(self, end: RingEnd) -> None:
        """Look at this end again at the next wait, because its peer will not wake it."""
        self._ended.add(end)

    def note_closing(self, end: RingEnd) -> None:
        """Report this end as ready from now on."""
        end.observer = None
        self._ended.add(end)
        fd = end.fileno()
        # A forked process shares the kernel's list, in which the descriptors are those of its parent.
        if self._ends.pop(fd, None) is end and self.usable:
            self._epoll.unregister(fd)

    def wait(self, timeout_s: float | None = None) -> RingEnd | None:
        """Return an end that is ready, None after ``timeout_s`` seconds (None: wait for ever).

        Ends that stay ready are returned in turns. A closed end is ready. Raise ProtocolError if a peer sends
        wake-ups again and again without a reason.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        look_only = bool(self._unarmed or self._ended)
        while True:
            wait_s = 0.0 if look_only else -1 if deadline is None else max(0.0, deadline - time.monotonic())
            self._harvest(wait_s)
            ready = self._next_ready()
            if ready is not None:
                return ready
            if not look_only and deadline is not None and time.monotonic() >= deadline:
                return None
            look_only = False

    def close(self) -> None:
        """Wait for no end any more, and release the kernel's list."""
        if self.usable:
            self.replace(())
        self._epoll.close()

    def _drop(self, fd: int, end: RingEnd) -> None:
        del self._ends[fd]
        self._epoll.unregister(fd)
        end.observer = None
        end.disarm(woken=False)

    def _harvest(self, wait_s: float) -> None:
        """Move the ends that were woken, or used otherwise, to those that are not announced."""
        for fd, _ in self._epoll.poll(wait_s, _EVENTS_MAX):
            end = self._ends.get(fd)
            if end is not None:
                end.disarm()
        while self._ended:
            end = self._ended.pop()
            if end in self._members:
                self._unarmed[end] = None

    def _next_ready(self) -> RingEnd | None:
        """Return the next ready end that is not announced, and announce the silent ones before it."""
        ready = None
        while self._unarmed and ready is None:
            ready, silent = self._look()
            try:
                for end in silent:
                    end.announce()
                fence()
            except BaseException:
                self._unarmed.update(dict.fromkeys(silent))
                raise
            for end in silent:
                if end.has_news():
                    end.disarm(woken=False)
                    self._unarmed[end] = None
        return ready

    def _look(self) -> tuple[RingEnd | None, list[RingEnd]]:
        """Return the first ready end of those not announced, and those before it."""
        silent: list[RingEnd] = []
        for end in list(self._unarmed):
            # It stays at its place if the look raises an error.
            ready = is_ready(end)
            del self._unarmed[end]
            if ready:
                self._unarmed[end] = None
                return end, silent
            silent.append(end)
        return None, silent
