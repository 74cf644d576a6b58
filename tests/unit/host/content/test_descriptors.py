"""Descriptors on their way to tasks: made for one reply, closed with it, refused alone.

Not for: what a receiver can do with one (``tests/security/test_open_files.py``).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import dios.host
from dios import limits
from dios.core.effects import (
    AnswerAttach,
    AnswerRead,
    AnswerVector,
    AnswerWrite,
    ApplyWrite,
    CloseBuffer,
    Effect,
    WriteSource,
)
from dios.core.events import Called, EffectFailed, Persisted, PersistFailed
from dios.errors import Code
from dios.host.content.contents import Contents
from dios.host.content.memories import ContentMemory
from dios.host.loop.outbox import Outbox
from dios.ids import BufferId, ObjectId, TaskId
from dios.wire.messages import (
    AnyCall,
    Buffer,
    CommitAcquireWrite,
    CommitWrite,
    Done,
    Failure,
    Results,
)
from dios.wire.types import Mode
from labs.sim.step_work import lines_of
from tests.support.host.harness import TASK, Rig, no_descriptors, open_descriptors, put, rig

LARGE = 2 * limits.INLINE_BYTES_MAX
BLOB, RAW, STREAM, OTHER = ObjectId(1), ObjectId(2), ObjectId(3), ObjectId(4)


def _with_contents(host: Rig) -> Contents:
    contents = host.host.contents
    contents.set(BLOB, ContentMemory.version(LARGE, contents.pool).filled(b"x" * LARGE))
    contents.raw(RAW, LARGE)
    return contents


def _read(buffer: int, seq: int = 1) -> AnswerRead:
    return AnswerRead(TASK, seq, Buffer(buffer, LARGE, 0, 0), BLOB, 0, LARGE)


def _write(buffer: int, seq: int, *, raw: bool = False) -> AnswerWrite:
    return AnswerWrite(TASK, seq, Buffer(buffer, LARGE, 0, 0), RAW if raw else BLOB, 0, LARGE, raw=raw)


ANSWERS: dict[str, Effect] = {
    "read": _read(5),
    "shadow": _write(6, 1),
    "raw": _write(7, 1, raw=True),
    "stream": AnswerAttach(TASK, 1, STREAM, Mode.WRITE, limits.STREAM_RING_BYTES_MIN),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_descriptor_is_closed_with_its_reply(tmp_path: Path, kind: str) -> None:
    """What was sent to a task is not the node's any more, also where the task is gone."""
    async with rig(tmp_path) as host:
        _with_contents(host)
        host.do(ANSWERS[kind])
        before = open_descriptors()
        assert host.channel.replies[0][2], "nothing was sent"
        for _ in range(3):
            host.do(ANSWERS[kind])
        host.host.outbox.close(TASK)
        host.do(ANSWERS[kind])
        assert open_descriptors() == before


@pytest.mark.parametrize("spare", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", ANSWERS)
async def test_without_descriptors_one_call_fails(tmp_path: Path, kind: str, spare: int) -> None:
    """A reply that needs a descriptor is refused when there is none; nothing leaks, the next go on."""
    async with rig(tmp_path) as host:
        _with_contents(host)
        before = open_descriptors()
        with no_descriptors(spare):
            host.do(ANSWERS[kind])
            inside = host.replies[0][1]
        held = int(isinstance(inside, Buffer) and kind in {"shadow", "raw"})
        host.do(_read(0, seq=2))
        assert isinstance(host.replies[-1][1], Buffer)
        if kind == "stream":
            host.host.streams.discard(STREAM)
        if isinstance(inside, Failure):
            assert inside.code == Code.ENOMEM
            assert len(host.core.seen(EffectFailed)) == (kind != "stream")
            host.host.buffers.close_all()
            held = 0
        elif spare == 0:
            pytest.fail("it needs no descriptor")
        assert open_descriptors() == before + held


async def test_a_vector_loses_only_the_parts_that_find_none(tmp_path: Path) -> None:
    """Of a vector's reads, those for which there is a descriptor are answered."""
    async with rig(tmp_path) as host:
        _with_contents(host)
        before = open_descriptors()
        with no_descriptors(2):
            host.do(AnswerVector(TASK, 1, tuple(_read(buffer) for buffer in (5, 6, 7))))
        (result,) = [result for _, result in host.replies]
        assert isinstance(result, Results)
        assert [type(part) for part in result.results] == [Buffer, Buffer, Failure]
        assert [event.buffer for event in host.core.seen(EffectFailed)] == [7]
        assert open_descriptors() == before


@pytest.mark.parametrize("spare", [0, 1])
async def test_the_store_needs_none_of_them(tmp_path: Path, spare: int) -> None:
    """With every descriptor taken, a large change is put together and stored, again and again."""
    async with rig(tmp_path) as host:
        contents = _with_contents(host)
        kept = contents.current(BLOB)
        before = open_descriptors()
        with no_descriptors(spare):
            for number in range(3):
                source = WriteSource(content_of=BLOB, offset=number, length=LARGE)
                write = ApplyWrite(OTHER, source, durable=True)
                host.do(write, persist=[put(OTHER, source)])
                await host.settled()
                assert len(host.core.seen(Persisted)) == number + 1
        assert host.core.seen(PersistFailed) == []
        assert contents.current(BLOB) is kept
        assert open_descriptors() == before


async def test_a_buffer_not_handed_out_is_not_committed(tmp_path: Path) -> None:
    """Who guesses the number of a buffer that still waits is refused, and the core never hears of it."""
    async with rig(tmp_path) as host:
        host.store.gate.clear()
        source = WriteSource(payload=host.next_payload, length=5)
        first = host.do(persist=[put(OTHER, source)], data=b"first")
        host.do(_write(5, 2), wait_for=first)
        steps = host.host.driver.steps
        early = CommitWrite(1, 5)
        tries: tuple[AnyCall, ...] = (early, CommitAcquireWrite(1, 5))
        for number, call in enumerate(tries, 3):
            host.host.driver.call(TASK, number, call)
            seq, refused = host.replies[-1]
            assert seq == number
            assert isinstance(refused, Failure)
            assert refused.code == Code.EBADF
        host.host.driver.call(TASK, 6, CommitWrite(1, 5, data=b"brings its bytes"))
        host.host.driver.call(TASK, 6, CommitWrite(1, 99))
        assert host.host.driver.steps == steps + 2, "the core has more to say to these"
        host.store.gate.set()
        await host.settled()
        host.host.driver.call(TASK, 7, early)
        assert isinstance(host.core.events[-1], Called)


async def test_commits_do_not_look_at_all_deferred_effects(tmp_path: Path) -> None:
    """The work for an early commit, and for one of another buffer, does not grow with what is deferred."""
    folder = str(Path(dios.host.__file__).parent)
    async with rig(tmp_path) as host:
        host.store.gate.clear()
        source = WriteSource(payload=host.next_payload, length=5)
        first = host.do(persist=[put(OTHER, source)], data=b"first")
        works: list[tuple[int, ...]] = []
        for count in (1, 100):
            for number in range(count):
                host.do(
                    *[_write(1_000 * count + 10 * number + offset, 2) for offset in range(10)], wait_for=first
                )
            calls = (CommitWrite(1, 1_000 * count), CommitWrite(1, 5))
            works.append(
                tuple(lines_of(lambda c=call: host.host.driver.call(TASK, 3, c), folder)[1] for call in calls)  # type: ignore[misc] # bound early
            )
        assert works[0] == works[1]
        host.store.gate.set()
        await host.settled()


async def test_a_closed_buffer_is_not_waited_for(tmp_path: Path) -> None:
    """The core answers a commit of a buffer that deferred effects open and close again."""
    async with rig(tmp_path) as host:
        host.store.gate.clear()
        source = WriteSource(payload=host.next_payload, length=5)
        first = host.do(persist=[put(OTHER, source)], data=b"first")
        host.do(_write(5, 2), wait_for=first)
        host.do(CloseBuffer(BufferId(5)), wait_for=first)
        host.host.driver.call(TASK, 3, CommitWrite(1, 5))
        assert isinstance(host.core.events[-1], Called)
        host.store.gate.set()
        await host.settled()
        assert not host.host.effector._unopened


def test_waiting_descriptors_are_all_or_none() -> None:
    """A reply that must wait for its task's start and finds too few descriptors for that keeps none."""
    outbox = Outbox(lambda *_: None)
    outbox.open(TaskId(1))
    mine = list(os.pipe())
    before = open_descriptors()
    with no_descriptors(1), pytest.raises(OSError, match="open files"):
        outbox.reply(TaskId(1), 0, Done(1), mine)
    assert open_descriptors() == before
    outbox.reply_and_close(TaskId(1), 0, Done(1), mine)
    assert open_descriptors() == before
    outbox.close(TaskId(1))
    assert open_descriptors() == before - 2
