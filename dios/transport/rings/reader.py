"""The reading end of a SHMEM_STREAM; ``dios.transport.rings.waiting`` describes the rules of the ring."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Final

from dios import limits
from dios.errors import (
    ClosedError,
    EndOfStreamError,
    InvalidError,
    ProtocolError,
    TooLargeError,
    UnreachableError,
)
from dios.transport.rings.end import ORDERED, RingEnd, Steps, acquire_lock, fence, release_lock
from dios.transport.rings.layout import BROKEN, COMMITS, CONTROL_BYTES, COUNT, STATE

_LENGTH: Final = struct.Struct("<I")
_unpack: Final = _LENGTH.unpack_from
_PREFIX: Final = _LENGTH.size


class RingReader(RingEnd):
    """The reading end. It owns the three descriptors, in the order of an ``Attached`` reply."""

    def __init__(self, fds: Sequence[int], ring_bytes: int) -> None:
        super().__init__(fds, ring_bytes, CONTROL_BYTES, CONTROL_BYTES + ring_bytes)
        self._stop: Final = CONTROL_BYTES + ring_bytes
        self._step: Final = ring_bytes // 4
        self._head = self._own[COUNT]
        self._tail = self._head
        self._told = self._head
        self._place = CONTROL_BYTES + self._head % ring_bytes

    def _changed(self) -> bool:
        return self._peer[COUNT] != self._tail

    def _refresh(self) -> int:
        """Read the writer's tail, and return the number of readable bytes."""
        tail = self._peer[COUNT]
        if tail < self._tail or tail - self._head > self.ring_bytes:
            if tail == BROKEN:
                raise UnreachableError("the stream ended early: the node of its other end is unreachable")
            raise ProtocolError(f"the writer's counter went from {self._tail} to {tail} of {self._head}")
        if not ORDERED:
            fence()
        self._tail = tail
        return tail - self._head

    def readable(self) -> bool:
        """Return True if a byte, or the end of the stream, can be read without waiting."""
        if self.closed or self._tail > self._head or (self._peer[COUNT] != self._tail and self._refresh()):
            return True
        if self._told != self._head:
            self._publish()
        return self.peer_closed

    def _publish(self) -> None:
        """Publish the number of bytes that were read."""
        if self._told == self._head:
            return
        self._told = self._head
        own = self._own
        own[COMMITS] = self._commits
        if not ORDERED:
            fence()
        own[COUNT] = self._head
        acquire_lock()
        release_lock()
        if not ORDERED:
            fence()
        state = self._peer[STATE]
        if state:
            self._notify(state)

    def hand_over(self) -> tuple[int, int, int]:
        """Publish what was read, and do as every end."""
        self._publish()
        return super().hand_over()

    def receive(self, timeout_s: float | None = None) -> bytes:
        """Wait for the next message and return it.

        Raises EndOfStreamError if the writer is closed and everything was read, TimeLimitError if no message
        began within ``timeout_s`` seconds, ProtocolError if the writer broke the ring or closed within a
        message.
        """
        head = self._head
        place = self._place
        begin = place + _PREFIX
        if self._tail - head >= _PREFIX and begin <= self._stop:
            (size,) = _unpack(self._peer_map, place)
            end = begin + size
            head += _PREFIX + size
            if head <= self._tail and end <= self._stop:
                data = self._peer_map[begin:end]
                self._head = head
                self._place = end
                self._commits += 1
                if head - self._told >= self._step:
                    self._publish()
                return data
        return self._run(self.receive_steps(), timeout_s)

    def receive_many(
        self, count_max: int = limits.STREAM_BATCH_MAX, timeout_s: float | None = None
    ) -> list[bytes]:
        """Return the messages that are here: at least one, at most ``count_max``.

        It stops when they have STREAM_BATCH_BYTES together, because a longer list costs fresh memory each
        time. Raises the errors of ``receive``.
        """
        messages = [self.receive(timeout_s)]
        room = limits.STREAM_BATCH_BYTES - len(messages[0])
        append = messages.append
        mapping = self._peer_map
        stop = self._stop
        head = self._head
        place = self._place
        left = self._refresh()
        while left >= _PREFIX and room > 0 and len(messages) < count_max:
            begin = place + _PREFIX
            if begin > stop:
                break
            (size,) = _unpack(mapping, place)
            end = begin + size
            size += _PREFIX
            if size > left or end > stop:
                break
            append(mapping[begin:end])
            place = end
            head += size
            left -= size
            room -= size
        self._head = head
        self._place = place
        self._commits += len(messages) - 1
        if head - self._told >= self._step:
            self._publish()
        return messages

    def receive_into(self, buffer: bytearray | memoryview, timeout_s: float | None = None) -> int:
        """Read the next message into ``buffer`` and return its length; for callers that re-use a buffer.

        Raises TooLargeError if the message does not fit, and leaves it in the stream. Raises the errors of
        ``receive``, too.
        """
        with memoryview(buffer) as view, view.cast("B") as target:
            return self._run(self.receive_into_steps(target), timeout_s)

    def _until_here(self, need: int, *, harmless: bool) -> Steps[int]:
        """Wait for ``need`` bytes and return the number of bytes here; fewer only if the writer is closed."""
        if self.closed:
            raise ClosedError("this end of the stream was closed")
        while True:
            here = self._refresh()
            if here >= need:
                return here
            self._publish()
            if self.peer_closed:
                # The writer wrote its last bytes before it closed.
                fence()
                return self._refresh()
            yield from self._asleep(harmless)

    def _get(self, size: int) -> bytes:
        """Take ``size`` bytes, which are here."""
        place = self._place if self._place < self._stop else CONTROL_BYTES
        end = place + size
        if end <= self._stop:
            data = self._peer_map[place:end]
        else:
            data = self._peer_map[place : self._stop]
            end = CONTROL_BYTES + size - len(data)
            data += self._peer_map[CONTROL_BYTES:end]
        self._place = end
        self._head += size
        return data

    def _prefix_steps(self, size_max: int = limits.STREAM_MESSAGE_BYTES_MAX) -> Steps[int]:
        """Wait for a message to begin, and return its length, without taking the prefix."""
        here = yield from self._until_here(_PREFIX, harmless=True)
        if not here:
            raise EndOfStreamError("the writer is gone and everything was read")
        if here < _PREFIX:
            raise self._cut(here)
        head, place = self._head, self._place
        (size,) = _unpack(self._get(_PREFIX))
        self._head, self._place = head, place
        if size > size_max:
            raise ProtocolError(f"a message of {size} bytes is over {size_max}")
        return int(size)

    def _cut(self, here: int) -> ProtocolError:
        return ProtocolError(f"truncated: the writer closed within a message, after {here} bytes of it")

    def receive_steps(self, size_max: int = limits.STREAM_MESSAGE_BYTES_MAX) -> Steps[bytes]:
        """Do the work of ``receive`` for a caller that sleeps itself: poll ``fileno`` between two steps.

        A message over ``size_max`` bytes is a ProtocolError.
        """
        size = yield from self._prefix_steps(size_max)
        if size + _PREFIX <= self.ring_bytes // 2:
            # One copy, as soon as the message is here completely.
            here = yield from self._until_here(size + _PREFIX, harmless=True)
            if here < size + _PREFIX:
                raise self._cut(here)
            self._get(_PREFIX)
            data = self._get(size)
        else:
            # BytesIO returns its one buffer as the result; joining pieces would copy them twice.
            with BytesIO() as whole:
                yield from self._long_steps(size, whole.write)
                data = whole.getvalue()
        self._commits += 1
        if self._head - self._told >= self._step:
            self._publish()
        return data

    def _long_steps(self, left: int, store: Callable[[memoryview], object]) -> Steps[None]:
        """Take prefix and message piece by piece, so that writer and reader copy at the same time."""
        self._get(_PREFIX)
        with memoryview(self._peer_map) as ring:
            while left:
                if self._head - self._told >= self._step:
                    self._publish()
                here = self._tail - self._head
                if not here:
                    here = yield from self._until_here(1, harmless=False)
                    if not here:
                        raise self._cut(0)
                place = self._place if self._place < self._stop else CONTROL_BYTES
                here = min(here, left, self._step, self._stop - place)
                with ring[place : place + here] as piece:
                    store(piece)
                self._place = place + here
                self._head += here
                left -= here

    def receive_into_steps(self, target: memoryview) -> Steps[int]:
        """Do the work of ``receive_into`` for a caller that sleeps itself."""
        size = yield from self._prefix_steps()
        if size > len(target):
            raise TooLargeError(f"the message has {size} bytes, the buffer {len(target)}. Use a larger one.")
        done = 0

        def store(piece: memoryview) -> None:
            nonlocal done
            target[done : done + len(piece)] = piece
            done += len(piece)

        yield from self._long_steps(size, store)
        self._commits += 1
        if self._head - self._told >= self._step:
            self._publish()
        return size

    def read(self, size_max: int = 0, timeout_s: float | None = None) -> bytes:
        """Wait for bytes of any message and return them: at least one, at most ``size_max`` (0: all here).

        Raises the errors of ``receive``.
        """
        return self._run(self.read_steps(size_max), timeout_s)

    def read_steps(self, size_max: int = 0) -> Steps[bytes]:
        """Do the work of ``read`` for a caller that sleeps itself."""
        here = yield from self._until_here(1, harmless=True)
        if not here:
            raise EndOfStreamError("the writer is gone and everything was read")
        data = self._get(min(here, size_max or here))
        self._commits += 1
        if self._head - self._told >= self._step:
            self._publish()
        return data

    def acquire_read(self, size: int = 0, timeout_s: float | None = None) -> memoryview:
        """Return a read-only view of the next ``size`` bytes (§4.7); 0 means what is here without a wrap.

        It has fewer bytes only at the end of the stream. It is in the ring itself unless it would wrap
        there, and is valid until ``commit_read``. The writer could change its bytes. Raises the errors of
        ``receive``.
        """
        if not 0 <= size <= self.ring_bytes or self._borrowed is not None:
            raise InvalidError(f"cannot acquire {size} bytes: one read of at most {self.ring_bytes}")
        here = self._run(self._until_here(max(size, 1), harmless=True), timeout_s)
        if not here:
            raise EndOfStreamError("the writer is gone and everything was read")
        place = self._place if self._place < self._stop else CONTROL_BYTES
        self._place = place
        size = min(size, here) if size else min(here, self._stop - place)
        if place + size <= self._stop:
            self._borrowed = memoryview(self._peer_map)[place : place + size]
        else:
            head = self._head
            self._aside = bytearray(self._get(size))
            self._head, self._place = head, place
            self._borrowed = memoryview(self._aside).toreadonly()
        return self._borrowed

    def commit_read(self, size: int | None = None) -> None:
        """Take the first ``size`` bytes of the view (None: all) out of the stream, and release the view."""
        if self._borrowed is None or self.closed:
            raise InvalidError("there is no acquired read to commit")
        length = len(self._borrowed)
        size = length if size is None else size
        if not 0 <= size <= length:
            raise InvalidError(f"{size} bytes were not acquired, only {length}")
        self._give_back()
        self._place += size
        if self._place > self._stop:
            self._place -= self.ring_bytes
        self._head += size
        self._commits += 1
        if self._head - self._told >= self._step:
            self._publish()

    def close(self) -> None:
        """Close the reading end; unread bytes are lost."""
        self._tail = self._head
        super().close()
