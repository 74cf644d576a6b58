"""What a SHMEM_STREAM's ring promises, against a queue of messages and a buffer of bytes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dios.errors import (
    TooLargeError,
)
from tests.support.host.ring_ends import LIMIT_S, RING, Ends


class MessagesAgainstAQueue(RuleBasedStateMachine):
    """Any order of the message calls that does not wait gives what a queue gives."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = Ends()
        self.queue: deque[bytes] = deque()
        self.random = random.Random(1)  # noqa: S311 - data, no secret

    def _fits(self, size: int) -> bool:
        # A writer may find up to a quarter of the ring less room than there is.
        used = sum(len(message) + 4 for message in self.queue)
        return used + size + 4 <= RING - RING // 4

    @rule(size=st.integers(0, RING // 2 - 4), kind=st.sampled_from([bytes, bytearray, memoryview]))
    def send(self, size: int, kind: Callable[[bytes], bytes]) -> None:
        """Send one message if there is surely room for it."""
        if self._fits(size):
            data = self.random.randbytes(size)
            self.ends.writer.send(kind(data), timeout_s=LIMIT_S)
            self.queue.append(data)

    @rule(sizes=st.lists(st.integers(0, 200), max_size=10))
    def send_many(self, sizes: list[int]) -> None:
        """Send several together."""
        if self._fits(sum(sizes) + 4 * len(sizes)):
            messages = [self.random.randbytes(size) for size in sizes]
            self.ends.writer.send_many(messages, timeout_s=LIMIT_S)
            self.queue += messages

    @precondition(lambda self: self.queue)
    @rule()
    def receive(self) -> None:
        """Receive one."""
        assert self.ends.reader.receive(LIMIT_S) == self.queue.popleft()

    @precondition(lambda self: self.queue)
    @rule(count=st.integers(1, 20))
    def receive_many(self, count: int) -> None:
        """Receive several."""
        got = self.ends.reader.receive_many(count, LIMIT_S)
        assert 1 <= len(got) <= count
        assert got == [self.queue.popleft() for _ in got]

    @precondition(lambda self: self.queue)
    @rule(room=st.integers(0, RING))
    def receive_into(self, room: int) -> None:
        """Receive into a buffer, which may be too small."""
        buffer = bytearray(room)
        if len(self.queue[0]) > room:
            with pytest.raises(TooLargeError):
                self.ends.reader.receive_into(buffer, LIMIT_S)
        else:
            size = self.ends.reader.receive_into(buffer, LIMIT_S)
            assert buffer[:size] == self.queue.popleft()

    @invariant()
    def readable_means_not_empty(self) -> None:
        """The reader is readable exactly while something is queued."""
        assert self.ends.reader.readable() == bool(self.queue)

    def teardown(self) -> None:
        """Close everything."""
        self.ends.close()


class BytesAgainstABuffer(RuleBasedStateMachine):
    """Acquired and committed writes and reads give what one run of bytes gives."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = Ends()
        self.buffer = bytearray()
        self.random = random.Random(2)  # noqa: S311 - data, no secret

    @rule(size=st.integers(1, RING), share=st.floats(0, 1))
    def write(self, size: int, share: float) -> None:
        """Acquire, fill, and commit a part."""
        if len(self.buffer) + size > RING - RING // 4:
            return
        view = self.ends.writer.acquire_write(size, LIMIT_S)
        assert len(view) == size
        data = self.random.randbytes(size)
        view[:] = data
        kept = int(size * share)
        self.ends.writer.commit_write(kept)
        self.buffer += data[:kept]

    @precondition(lambda self: self.buffer)
    @rule(size=st.integers(0, RING), share=st.floats(0, 1))
    def read(self, size: int, share: float) -> None:
        """Acquire what is there, and commit a part."""
        view = self.ends.reader.acquire_read(min(size, len(self.buffer)), LIMIT_S)
        assert view.readonly
        seen = bytes(view)
        assert seen == self.buffer[: len(seen)]
        assert len(seen) == min(size, len(self.buffer)) or not size
        kept = int(len(seen) * share)
        self.ends.reader.commit_read(kept)
        del self.buffer[:kept]

    def teardown(self) -> None:
        """Close everything."""
        self.ends.close()


TestMessagesAgainstAQueue = MessagesAgainstAQueue.TestCase
TestMessagesAgainstAQueue.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestBytesAgainstABuffer = BytesAgainstABuffer.TestCase
TestBytesAgainstABuffer.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
