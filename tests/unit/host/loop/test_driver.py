from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio

from dios import limits
from dios.core.effects import (
    Answer,
    AnswerRead,
    AnswerReceived,
    AnswerVector,
    AnswerWrite,
    ApplyWrite,
    Audit,
    CloseBuffer,
    DropPayload,
    KeepPayload,
    Spawn,
    StoreOperation,
    WriteSource,
)
from dios.core.events import EffectFailed, Persisted, PersistFailed, TaskEnded
from dios.errors import Code, NoSpaceError
from dios.host.audit.reader import verify
from dios.ids import BufferId, ObjectId, TaskId
from dios.wire.messages import Buffer, Committed, Done, Failure, Limits, Results
from dios.wire.types import Brand, Cause
from tests.support.host.harness import TASK, WAIT_S, Rig, put, rig
from tests.support.node.raw_client import pattern


def done(seq: int) -> Answer:
    """A plain reply."""
    return Answer(TASK, seq, Done(seq))


def read_of(number: int, seq: int, length: int) -> AnswerRead:
    """A one-shot read of an object's beginning."""
    return AnswerRead(TASK, seq, Buffer(0, length, 0, 0), ObjectId(number), 0, length)


def write_small(host: Rig, number: int, seq: int, data: bytes) -> int:
    """A durable write of bytes that come with the call."""
    source = WriteSource(payload=host.next_payload, length=len(data))
    operations: list[StoreOperation] = [put(number, source)]
    return host.do(
        ApplyWrite(ObjectId(number), source, durable=True), done(seq), persist=operations, data=data
    )


def bytes_read(host: Rig) -> list[bytes | None]:
    """The inline bytes of all reads answered."""
    return [result.data for _, result in host.replies if isinstance(result, Buffer)]


async def test_answers_wait_for_their_ticket(tmp_path: Path) -> None:
    """A reply that depends on the disk comes after it; one that does not comes at once."""
    async with rig(tmp_path) as host:
        host.store.gate.clear()
        write_small(host, 1, 10, b"durable")
        host.do(done(11))
        assert [seq for seq, _ in host.replies] == [11]
        host.store.gate.set()
        await host.settled()
        assert [seq for seq, _ in host.replies] == [11, 10]
        assert [event.last for event in host.core.seen(Persisted)] == [1]


async def test_later_steps_see_the_content_of_their_version(tmp_path: Path) -> None:
    """Reads between two writes of one object each get the version that their step saw."""
    async with rig(tmp_path) as host:
        host.store.gate.clear()
        first = write_small(host, 1, 10, b"one")
        host.do(read_of(1, 11, 3), wait_for=first)
        second = write_small(host, 1, 12, b"second")
        host.do(read_of(1, 13, 6), wait_for=second)
        host.store.gate.set()
        await host.settled()
        assert bytes_read(host) == [b"one", b"second"]


async def test_an_answer_that_waits_has_the_bytes_that_a_later_step_drops(tmp_path: Path) -> None:
    """A kept payload is there for a step that waits for the disk, although the next step drops it."""
    async with rig(tmp_path) as host:
        kept = host.next_payload
        host.do(KeepPayload(kept), data=b"bytes")
        host.store.gate.clear()
        source = WriteSource(payload=host.next_payload, length=7)
        answer = AnswerReceived(TASK, 10, Buffer(0, 5, 0, 1, length=5), kept, 5)
        host.do(AnswerVector(TASK, 10, (answer,)), persist=[put(1, source)], data=b"durable")
        host.do(DropPayload(kept))
        host.store.gate.set()
        await host.settled()
        ((_, result),) = host.replies
        assert isinstance(result, Results)
        assert [part.data for part in result.results if isinstance(part, Buffer)] == [b"bytes"]


async def test_group_commit(tmp_path: Path) -> None:
    """What is asked for while the disk is busy is written together."""
    async with rig(tmp_path) as host:
        host.store.gate.clear()
        for number in range(1, 21):
            write_small(host, number, number, b"x")
        host.store.gate.set()
        await host.settled()
        assert sum(host.store.batches) == 20
        assert len(host.store.batches) <= 3


async def test_failed_write_is_refused_and_freed(tmp_path: Path) -> None:
    """A write the store refused is answered with a failure, its frees are done, and the core is told."""
    async with rig(tmp_path) as host:
        host.store.gate.clear()
        write_small(host, 1, 10, b"fits")
        host.store.failures.extend([None])
        host.store.gate.set()
        await host.settled()
        host.do(AnswerWrite(TASK, 9, Buffer(5, 4, 0, 0), ObjectId(2), 0, 4, blank=True))
        host.store.failures.append(NoSpaceError("the disk is full"))
        source = WriteSource(payload=host.next_payload, length=4)
        host.do(
            ApplyWrite(ObjectId(1), source, durable=True),
            done(11),
            CloseBuffer(BufferId(5)),
            persist=[put(1, source)],
            data=b"lost",
        )
        await host.settled()
        failure = host.replies[-1][1]
        assert isinstance(failure, Failure)
        assert (failure.code, failure.message) == (Code.ENOSPC, "the disk is full")
        assert len(host.host.buffers) == 0
        assert [(event.first, event.last) for event in host.core.seen(PersistFailed)] == [(2, 2)]
        host.do(read_of(1, 12, 4))
        assert bytes_read(host)[-1] == b"fits"


async def test_one_failure_spares_what_came_before(tmp_path: Path) -> None:
    """In a batch that fails, the changes before the one at fault are kept; those behind it are refused."""
    async with rig(tmp_path) as host:
        host.store.gate.clear()
        write_small(host, 9, 1, b"busy")
        for number in (1, 2, 3):
            write_small(host, number, 10 + number, b"x")
        error = NoSpaceError("full")
        # The batch of three, then the first alone, then the second alone.
        host.store.failures.extend([None, error, None, error])
        host.store.gate.set()
        await host.settled()
        kinds = {seq: type(result) for seq, result in host.replies}
        if host.store.batches[0] == 1:
            assert kinds == {1: Done, 11: Done, 12: Failure, 13: Failure}
            assert host.core.seen(PersistFailed)[0].first == 3


async def test_partial_write_over_a_large_version_on_its_way(tmp_path: Path) -> None:
    """A partial write over a large content that is still being stored is composed with that content."""
    async with rig(tmp_path) as host:
        size = limits.INLINE_BYTES_MAX * 3
        host.do(AnswerWrite(TASK, 1, Buffer(5, size, 0, 0), ObjectId(1), 0, size, blank=True))
        opened = host.host.buffers._open[BufferId(5)]
        assert not isinstance(opened.content, bytes)
        opened.content.filled(pattern(size))
        host.store.gate.clear()
        whole = WriteSource(buffer=BufferId(5), length=size)
        first = host.do(ApplyWrite(ObjectId(1), whole, durable=True), done(2), persist=[put(1, whole)])
        part = WriteSource(payload=host.next_payload, offset=7, length=3, replace=False)
        host.do(ApplyWrite(ObjectId(1), part, durable=True), done(3), persist=[put(1, part)], data=b"NEW")
        host.do(CloseBuffer(BufferId(5)), wait_for=first)
        host.store.gate.set()
        await host.settled()
        expected = pattern(size)[:7] + b"NEW" + pattern(size)[10:]
        assert host.host.contents.current(ObjectId(1)).read(0, size) == expected  # type: ignore[union-attr] # it is large
        assert len(host.host.buffers) == 0


async def test_slow_copy_keeps_the_order_of_its_object(tmp_path: Path) -> None:
    """While a large copy runs in a thread, replies about that object wait and others do not."""
    async with rig(tmp_path) as host:
        size = limits.LOOP_COPY_BYTES_MAX * 2
        host.do(AnswerWrite(TASK, 1, Buffer(5, size, 0, 0), ObjectId(1), 0, size, blank=True))
        shadow = host.host.buffers._open[BufferId(5)].content
        assert not isinstance(shadow, bytes)
        shadow.filled(pattern(size))
        # Only a part of the buffer is committed: it cannot become the content as it is.
        host.do(ApplyWrite(ObjectId(1), WriteSource(buffer=BufferId(5), length=size - 1)), done(2))
        host.do(read_of(1, 3, 100), done(4), CloseBuffer(BufferId(5)))
        host.do(done(5))
        assert [seq for seq, _ in host.replies] == [1, 5]
        await host.settled()
        assert [seq for seq, _ in host.replies] == [1, 5, 2, 3, 4]
        assert bytes_read(host)[-1] == pattern(size)[:100]
        assert len(host.host.buffers) == 0


async def test_missing_bytes_are_a_failure(tmp_path: Path) -> None:
    """A read that the host cannot serve is refused, and the core closes its buffer."""
    async with rig(tmp_path) as host:
        host.do(AnswerRead(TASK, 1, Buffer(8, 50, 0, 0), ObjectId(1), 0, 50), done(2))
        result = host.replies[0][1]
        assert isinstance(result, Failure)
        assert result.code == Code.EIO
        assert [event.buffer for event in host.core.seen(EffectFailed)] == [8]
        assert [seq for seq, _ in host.replies] == [1, 2]


@pytest.mark.parametrize("vector", [False, True])
async def test_a_commit_stands_without_the_next_buffer(tmp_path: Path, *, vector: bool) -> None:
    """If a call has committed, a buffer that the host cannot provide does not make the commit a failure."""
    async with rig(tmp_path) as host:
        part = AnswerRead(TASK, 1, Buffer(8, 50, 3, 4), ObjectId(1), 0, 50, committed=True)
        host.do(AnswerVector(TASK, 1, (part,)) if vector else part)
        result = host.replies[0][1]
        assert result == (Results((Committed(3, 4),)) if vector else Committed(3, 4))
        assert [event.buffer for event in host.core.seen(EffectFailed)] == [8]


async def test_task_that_cannot_start_ends(tmp_path: Path) -> None:
    """A spawn that fails is told to the core as an end with its reason; nothing is left of it."""
    async with rig(tmp_path) as host:
        host.do(Spawn(TaskId(5), Brand.PURE, "", ObjectId(1), Limits()))
        await host.host.tasks.wait_all_ended()
        (ended,) = host.core.seen(TaskEnded)
        assert (ended.task, ended.cause) == (5, Cause.SPAWN)
        assert "no PURE tasks" in ended.detail
        assert host.host.outbox.get(TaskId(5)) is None
        assert len(host.host.pages) == 1


async def test_a_durable_change_is_recorded_before_anybody_is_told(tmp_path: Path) -> None:
    """When the reply to something durable is sent, its audit record has left the process."""
    async with rig(tmp_path) as host:
        seen: list[int] = []
        send = host.channel.send_nowait

        def sent(frame: bytes, fds: Sequence[int] = ()) -> None:
            seen.append(verify(tmp_path / "audit").records)
            send(frame, fds)

        host.channel.send_nowait = sent  # type: ignore[method-assign] # looks at the log at that moment
        created = Audit(1, "create", "ok", "uid:0", "t", "s", "")
        # The record stands behind the answer on purpose: the order within a step must not matter.
        host.do(done(1), created, persist=[put(1)])
        await host.settled()
        host.do(created, done(2), persist=[put(2)])
        await host.settled()
        assert seen == [1, 2]
        host.store.failures.append(NoSpaceError("full"))
        host.do(done(3), persist=[put(3)])
        await host.settled()
        assert seen == [1, 2, 2]


async def test_a_defect_in_the_writer_ends_the_node(tmp_path: Path) -> None:
    """What nobody expected in the writer thread ends the host; nobody waits for ever."""

    async def run_into_it() -> None:
        async with rig(tmp_path) as host:
            host.store.failures.append(ArithmeticError("a defect"))  # type: ignore[arg-type] # no DiosError
            host.do(done(1), persist=[put(1)])
            await trio.sleep_forever()

    with trio.fail_after(WAIT_S), pytest.raises(ExceptionGroup) as ended:
        await run_into_it()
    assert ended.group_contains(ArithmeticError)
