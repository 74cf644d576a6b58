"""A writer that holds the lock of a memory for ever costs the node nothing but this memory.

Only a program outside the sandbox can be such a writer, and the programs of the node's own user are trusted:
so this is about other users. What waits for the lock cannot even be killed; so each attempt is made in a
thread, which ends at the latest when the writer does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from dios import limits
from dios.core.effects import AnswerRead, AnswerWrite, ApplyWrite, WriteSource
from dios.host.content.buffers import Buffers
from dios.host.content.contents import Contents, read_from, size_of
from dios.host.content.memories import ContentMemory
from dios.ids import BufferId, ObjectId, PayloadId, TaskId
from dios.wire import messages
from dios.wire.messages import Buffer
from dios.wire.types import Buffering
from tests.support.client.fake_node import FakeNode, reference
from tests.support.host.empty_contents import empty_contents, finish
from tests.support.host.stuck_writer import stuck_writer

LIMIT_S = 10
TARGET, STRANGER, OWN = ObjectId(1), TaskId(1), TaskId(2)
LARGE = limits.SPARSE_COPY_BYTES_MIN


@pytest.fixture
def contents() -> Iterator[Contents]:
    """No contents."""
    with empty_contents() as fresh:
        yield fresh


@pytest.fixture
def buffers(contents: Contents) -> Iterator[Buffers]:
    """No open buffers, and one task that may be such a writer."""
    fresh = Buffers(contents, lambda task: task == STRANGER)
    yield fresh
    fresh.close_all()


def opened(buffers: Buffers, task: TaskId, number: int, *, raw: bool = False, reuse: bool = False) -> int:
    """Open a buffer to write; its descriptor, or -1 if the task has it already."""
    order = AnswerWrite(
        task, number, Buffer(number, LARGE, 0, 0), TARGET, 0, LARGE, raw=raw, blank=not reuse, reuse=reuse
    )
    answered = finish(buffers.write(order))
    assert answered is not None
    return answered.fds[0] if answered.fds else -1


def without_waiting(work: Callable[[], object]) -> None:
    """Do ``work``, which must not wait for the writer."""
    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(LIMIT_S)
    assert not worker.is_alive(), "this waits for a process that never ends its write"


def bytes_now(contents: Contents) -> bytes:
    """All bytes of the object."""
    content = contents.current(TARGET)
    return read_from(content, 0, size_of(content))


def test_a_commit_does_not_wait_for_its_writer(contents: Contents, buffers: Buffers) -> None:
    """The bytes that another user commits become the object's while their program holds the memory."""
    with stuck_writer(opened(buffers, STRANGER, 1)):
        order = ApplyWrite(TARGET, WriteSource(buffer=BufferId(1), length=LARGE))
        without_waiting(lambda: finish(buffers.apply(order, None)))
        assert bytes_now(contents) == bytes(LARGE)
    content = contents.current(TARGET)
    assert isinstance(content, ContentMemory)
    assert content.frozen


def test_the_next_write_does_not_wait_for_its_writer(contents: Contents, buffers: Buffers) -> None:
    """A buffer that is acquired again is filled with the object's bytes all the same."""
    contents.set(TARGET, ContentMemory.version(LARGE, contents.pool).filled(b"x" * LARGE))
    with stuck_writer(opened(buffers, STRANGER, 1)):
        without_waiting(lambda: opened(buffers, STRANGER, 1, reuse=True))
    buffer = buffers.get(BufferId(1))
    assert buffer is not None
    assert read_from(buffer.content, 0, 3) == b"xxx"


def test_raw_memory_is_everybodys(contents: Contents, buffers: Buffers) -> None:
    """Other writers write, open and enlarge a raw object whose memory one writer holds."""
    with stuck_writer(opened(buffers, STRANGER, 1, raw=True)):
        without_waiting(lambda: opened(buffers, OWN, 2, raw=True))
        order = ApplyWrite(TARGET, WriteSource(payload=PayloadId(1), offset=4096, length=5))
        without_waiting(lambda: finish(buffers.apply(order, b"hello")))
        beyond = ApplyWrite(TARGET, WriteSource(payload=PayloadId(2), offset=LARGE, length=5))
        without_waiting(lambda: finish(buffers.apply(beyond, b"world")))
    assert bytes_now(contents) == bytes(4096) + b"hello" + bytes(LARGE - 4096 - 5) + b"world"


def test_another_writer_of_raw_memory_does_not_wait() -> None:
    """A task writes a raw object whose memory another writer holds."""
    fd = ContentMemory.own(LARGE).writer_fd()

    def answer(call: messages.AnyCall) -> tuple[messages.AnyResult, list[int]] | messages.AnyResult:
        if isinstance(call, messages.AcquireWrite):
            buffer = messages.Buffer(5, LARGE, 0, 0, messages.Mapping.WRITABLE, 0, LARGE)
            return buffer, [os.dup(fd)]
        return messages.Done(1)

    with FakeNode(answer) as fake:
        blob = fake.connect().handle(replace(reference(), buffering=Buffering.RAW))
        with stuck_writer(fd), blob.write(LARGE) as request:
            without_waiting(lambda: request.fill(memoryview(b"mine")))
            assert os.pread(fd, 5, 0) == b"mine\0"


@pytest.mark.parametrize("size", [LARGE, 2 * limits.LOOP_COPY_BYTES_MAX], ids=["in the loop", "in a thread"])
def test_no_file_of_the_store_is_given_away(
    tmp_path: Path, contents: Contents, buffers: Buffers, size: int
) -> None:
    """Another user's program gets a copy: a direct read holds a lock that deleting the file needs."""
    path = tmp_path / "extent"
    path.write_bytes(bytes(range(256)) * (size // 256))
    contents.set(TARGET, ContentMemory(os.open(path, os.O_RDONLY), size, frozen=True, stored=True))
    inodes = {}
    for task in (STRANGER, OWN):
        order = AnswerRead(task, 1, Buffer(int(task), size - 300, 0, 0), TARGET, 300, size - 300)
        answered = finish(buffers.read(order))
        assert answered is not None
        (fd,) = answered.fds
        assert isinstance(answered.result, Buffer)
        assert os.pread(fd, size, answered.result.start)[: size - 300] == path.read_bytes()[300:]
        inodes[task] = os.fstat(fd).st_ino
        os.close(fd)
    assert inodes[OWN] == path.stat().st_ino
    assert inodes[STRANGER] != path.stat().st_ino
