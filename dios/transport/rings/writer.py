"""The writing end of a SHMEM_STREAM; ``dios.transport.rings.waiting`` describes the rules of the ring."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final

from dios import limits
from dios.errors import ClosedError, InvalidError, ProtocolError, TooLargeError
from dios.transport.rings.end import (
    CLOSED_BIT,
    ORDERED,
    Bytes,
    RingEnd,
    Steps,
    acquire_lock,
    fence,
    release_lock,
)
from dios.transport.rings.layout import BROKEN, COMMITS, CONTROL_BYTES, COUNT, STATE

_LENGTH: Final = struct.Struct("<I")
_pack: Final = _LENGTH.pack
_PREFIX: Final = _LENGTH.size
_JOIN_MAX: Final = 2048
"""Up to this size it is faster to join prefix and message than to store twice."""


class RingWriter(RingEnd):
    """The writing end. It owns the three descriptors, in the order of an ``Attached`` reply."""

    def __init__(self, fds: Sequence[int], ring_bytes: int) -> None:
        super().__init__(fds, ring_bytes, CONTROL_BYTES + ring_bytes, CONTROL_BYTES)
        self._stop: Final = CONTROL_BYTES + ring_bytes
        self._fast_max: Final = ring_bytes // 2
        # A longer message is published at once, so that the reader copies it while the next one is written.
        self._together_max: Final = ring_bytes // 64
        self._tail = self._own[COUNT]
        self._head = 0
        self._limit = 0
        self._refresh()
        self._place = CONTROL_BYTES + self._tail % ring_bytes

    def _changed(self) -> bool:
        return self._peer[COUNT] != self._head

    def _refresh(self) -> int:
        """Read the reader's head, and return the number of free bytes."""
        head = self._peer[COUNT]
        if not self._head <= head <= self._tail or self._tail - head > self.ring_bytes:
            raise ProtocolError(f"the reader's counter went from {self._head} to {head} of {self._tail}")
        if not ORDERED:
            fence()
        self._head = head
        self._limit = head + self.ring_bytes
        return self._limit - self._tail

    def writable(self) -> bool:
        """Return True if a byte can be written, or the reader's end be noticed, without waiting."""
        if self.closed or self._limit > self._tail:
            return True
        return self._refresh() > 0 or self.peer_closed

    @property
    def room(self) -> int:
        """Return the number of bytes that can be written now."""
        return self._refresh()

    def _publish(self) -> None:
        own = self._own
        own[COMMITS] = self._commits
        if not ORDERED:
            fence()
        own[COUNT] = self._tail
        acquire_lock()
        release_lock()
        if not ORDERED:
            fence()
        state = self._peer[STATE]
        if state:
            self._notify(state)

    def send(self, data: Bytes, timeout_s: float | None = None) -> None:
        """Write one message; wait while there is no room.

        Raises ClosedError if the reader is closed, TooLargeError above STREAM_MESSAGE_BYTES_MAX, and
        TimeLimitError if there was no room for its beginning within ``timeout_s`` seconds; then nothing
        was sent.
        """
        size = len(data) + _PREFIX
        tail = self._tail + size
        place = self._place
        end = place + size
        slowly = tail > self._limit or end > self._stop or size > self._fast_max or type(data) is not bytes
        # Checked before storing, too: a closed reader may still map the memory, and must learn nothing more.
        if slowly or self._peer[STATE] >= CLOSED_BIT:
            self._run(self.send_steps(data), timeout_s)
            return
        if size <= _JOIN_MAX:
            self._own_map[place:end] = _pack(size - _PREFIX) + data
        else:
            self._own_map[place : place + _PREFIX] = _pack(size - _PREFIX)
            self._own_map[place + _PREFIX : end] = data
        self._tail = tail
        self._place = end
        self._commits += 1
        own = self._own
        own[COMMITS] = self._commits
        if not ORDERED:
            fence()
        own[COUNT] = tail
        acquire_lock()
        release_lock()
        state = self._peer[STATE]
        if state:
            if state >= CLOSED_BIT:
                raise ClosedError("the reader of this stream is gone")
            self._notify(state)

    def send_many(self, messages: Iterable[bytes], timeout_s: float | None = None) -> None:
        """Write messages one after the other and publish them together; raises the errors of ``send``."""
        self._check_open()
        place = self._place
        stop = self._stop
        room = self._limit - self._tail
        mapping = self._own_map
        try:
            for data in messages:
                size = len(data) + _PREFIX
                end = place + size
                if size <= room and end <= stop and size <= self._together_max:
                    if size <= _JOIN_MAX:
                        mapping[place:end] = _pack(size - _PREFIX) + data
                    else:
                        mapping[place : place + _PREFIX] = _pack(size - _PREFIX)
                        mapping[place + _PREFIX : end] = data
                    self._place = place = end
                    self._tail += size
                    self._commits += 1
                    room -= size
                else:
                    # It may have to wait for a reader that does not know of the messages before it.
                    self._publish()
                    self.send(data, timeout_s)
                    place = self._place
                    room = self._limit - self._tail
        finally:
            if not self.closed:
                self._publish()
        self._check_open()

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("this end of the stream was closed")
        if self.peer_closed:
            raise ClosedError("the reader of this stream is gone")

    def _until_free(self, need: int, *, harmless: bool) -> Steps[int]:
        while True:
            self._check_open()
            free = self._refresh()
            if free >= need:
                return free
            yield from self._asleep(harmless)

    def _put(self, data: memoryview) -> None:
        """Store bytes that fit, without publishing them."""
        size = len(data)
        place = self._place if self._place < self._stop else CONTROL_BYTES
        first = min(size, self._stop - place)
        self._own_map[place : place + first] = data[:first]
        place += first
        if first < size:
            place = CONTROL_BYTES + size - first
            self._own_map[CONTROL_BYTES:place] = data[first:]
        self._place = place
        self._tail += size

    def send_steps(self, data: Bytes) -> Steps[None]:
        """Do the work of ``send`` for a caller that sleeps itself: poll ``fileno`` between two steps."""
        with memoryview(data) as view, view.cast("B") as rest:
            size = len(rest)
            if size > limits.STREAM_MESSAGE_BYTES_MAX:
                raise TooLargeError(f"a message of {size} bytes is over {limits.STREAM_MESSAGE_BYTES_MAX}")
            # A short message is stored completely or not at all; a longer message is stored in pieces.
            whole = size + _PREFIX <= self.ring_bytes // 2
            yield from self._until_free(size + _PREFIX if whole else _PREFIX, harmless=True)
            self._put(memoryview(_pack(size)))
            done = 0
            while done < size:
                free = self._limit - self._tail
                if not free:
                    free = yield from self._until_free(1, harmless=False)
                piece = min(free, size - done, self.ring_bytes // 4 if not whole else size)
                self._put(rest[done : done + piece])
                done += piece
                if done < size:
                    self._publish()
        self._commits += 1
        self._publish()

    def write(self, data: Bytes, timeout_s: float | None = None) -> None:
        """Write bytes that are not a message; wait while there is no room.

        Raises the errors of ``send``, but after TimeLimitError some of the bytes may have been written.
        """
        self._run(self.write_steps(data), timeout_s)

    def write_steps(self, data: Bytes) -> Steps[None]:
        """Do the work of ``write`` for a caller that sleeps itself."""
        with memoryview(data) as view, view.cast("B") as rest:
            size, done = len(rest), 0
            while done < size:
                free = yield from self._until_free(1, harmless=True)
                piece = min(free, size - done, self.ring_bytes // 4)
                self._put(rest[done : done + piece])
                done += piece
                self._commits += done == size
                self._publish()
        self._check_open()

    def acquire_room(self, size_max: int) -> memoryview:
        """Do ``acquire_write`` for the bytes that fit now without a wrap, and never wait.

        Raise InvalidError if none do, ClosedError if the reader is closed.
        """
        self._check_open()
        place = self._place if self._place < self._stop else CONTROL_BYTES
        return self.acquire_write(min(self._refresh(), self._stop - place, size_max), 0)

    def acquire_write(self, size: int, timeout_s: float | None = None) -> memoryview:
        """Return a view of ``size`` bytes to fill (§4.7), 1 to ``ring_bytes``; valid until ``commit_write``.

        It is in the ring itself unless it would wrap there. Raises the errors of ``send``.
        """
        if not 0 < size <= self.ring_bytes or self._borrowed is not None:
            raise InvalidError(f"cannot acquire {size} bytes: one write of 1 to {self.ring_bytes} at a time")
        self._run(self._until_free(size, harmless=True), timeout_s)
        place = self._place if self._place < self._stop else CONTROL_BYTES
        self._place = place
        if place + size <= self._stop:
            self._borrowed = memoryview(self._own_map)[place : place + size]
        else:
            self._aside = bytearray(size)
            self._borrowed = memoryview(self._aside)
        return self._borrowed

    def commit_write(self, size: int | None = None) -> None:
        """Send the first ``size`` bytes of the view (None: all), and release the view."""
        if self._borrowed is None or self.closed:
            raise InvalidError("there is no acquired write to commit")
        length = len(self._borrowed)
        size = length if size is None else size
        if not 0 <= size <= length:
            raise InvalidError(f"{size} bytes were not acquired, only {length}")
        aside = self._aside
        self._give_back()
        self._check_open()
        if aside is not None:
            self._put(memoryview(aside)[:size])
        else:
            self._place += size
            self._tail += size
        self._commits += 1
        self._publish()

    def break_off(self) -> None:
        """Close, and mark the data as incomplete: the reader gets UnreachableError."""
        if not self.closed:
            self._own[COUNT] = BROKEN
            self.close()

    def close(self) -> None:
        """Close the writing end; the reader can still read everything that was sent."""
        self._limit = -1
        super().close()
