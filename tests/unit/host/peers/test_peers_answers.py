"""Answers to tasks of other nodes, and what is sent when a step fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dios import limits
from dios.core import effects as fx
from dios.core.events import Received
from dios.errors import Code, DamagedError, NoSpaceError
from dios.host.content.memories import ContentMemory
from dios.ids import BufferId, ObjectId, PayloadId, TaskId, Ticket
from dios.wire import dcp
from dios.wire.calls import ReadOnce, WriteOnce
from dios.wire.messages import Buffer, Done, Failure, Results
from dios.wire.types import Buffering, ObjectType
from tests.support.host.harness import TASK, put
from tests.support.peers.hosts import BLOB, CALLER, DEPUTY, PeerHost, connected, two_hosts, until
from tests.support.wire.descriptions import sample_message

OTHER_BLOB = ObjectId(50)
LARGE = 400_000


def sealed(data: bytes) -> ContentMemory:
    """A version with these bytes."""
    memory = ContentMemory.shadow(len(data)).filled(data)
    assert memory.adopt(len(data))
    return memory


def read(seq: int, target: ObjectId, size: int, *, buffer: int = 0, reuse: bool = False) -> fx.AnswerRead:
    """An answer to the deputy's read."""
    return fx.AnswerRead(DEPUTY, seq, Buffer(buffer, size, 1, 1), target, 0, size, reuse)


async def replies(host: PeerHost, count: int) -> list[Received]:
    """The answers that have come, when there are that many."""
    return await until(
        lambda: host.core.seen(Received) if len(host.core.seen(Received)) >= count else [], "answered"
    )


async def test_a_vector_is_answered_as_one(tmp_path: Path) -> None:
    """Buffers of a vector travel together, and each part of the asking task's answer has its own bytes."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        first, second = b"1" * LARGE, b"2" * LARGE
        other.blob(sealed(first))
        other.blob(sealed(second), OTHER_BLOB)
        other.do(fx.OpenRemoteTask(DEPUTY, here.node, "uid:1"))

        def hand_out(event: Received) -> list[fx.Effect]:
            assert isinstance(event.message, dcp.PeerReply)
            results = event.message.result
            assert isinstance(results, Results)
            parts: list[fx.Answer | fx.AnswerReceived] = []
            offset = 0
            for result in results.results:
                if isinstance(result, Buffer) and result.data is None:
                    parts.append(
                        fx.AnswerReceived(TASK, 1, result, event.payload, result.size, offset=offset)
                    )
                    offset += result.size
                else:
                    parts.append(fx.Answer(TASK, 1, result))
            assert offset == event.attached == 2 * LARGE
            return [fx.AnswerVector(TASK, 1, tuple(parts))]

        here.when_received(hand_out)
        other.do(
            fx.AnswerVector(
                DEPUTY,
                1,
                (read(1, BLOB, LARGE), fx.Answer(DEPUTY, 1, Done(7)), read(1, OTHER_BLOB, LARGE)),
            )
        )
        await until(here.results, "the task was answered")
        assert here.channel.read == [first, second]


async def test_a_request_whose_bytes_are_damaged_fails_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not sent. The core gets the failure as its answer, and does not try again for half a minute."""

    def damaged(_: ObjectId) -> bytes:
        raise DamagedError("the stored value does not match its digest", fingerprint="a")

    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        monkeypatch.setattr(here.host.contents, "current", damaged)
        body = dcp.CreateReplica(
            CALLER, None, (), "uid:1", ObjectType.DURABLE_BLOB, Buffering.DOUBLE, 0, 0, LARGE
        )
        here.ask(other, body, fx.WriteSource(content_of=BLOB, length=LARGE))
        (event,) = await replies(here, 1)
        assert event.node == other.node
        assert isinstance(event.message, dcp.PeerReply)
        assert isinstance(event.message.result, Failure)
        assert event.message.result.code == Code.EIO
        assert other.core.seen(Received) == []


@pytest.mark.parametrize("buffer", [0, 9])
async def test_bytes_that_fit_a_frame_share_no_memory(tmp_path: Path, buffer: int) -> None:
    """The bytes go next to the answer. Nobody gets the memory, so that its pages serve the next version."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        contents, size = other.host.contents, 2 * limits.INLINE_BYTES_MAX
        other.blob(ContentMemory.version(size, contents.pool).filled(b"12" * (size // 2)))
        other.do(fx.OpenRemoteTask(DEPUTY, here.node, "uid:1"), read(1, BLOB, size, buffer=buffer))
        (event,) = await replies(here, 1)
        assert event.message == dcp.PeerReply(1, Buffer(buffer, size, 1, 1, length=size))
        assert event.attached == size
        assert other.host.buffers.has(BufferId(9), size) == bool(buffer)
        contents.discard(BLOB)
        assert contents.pool.free_bytes == (0 if buffer else size)
        other.host.buffers.close(BufferId(9))
        assert contents.pool.free_bytes == size


async def test_memory_that_writers_change_is_sent_again(tmp_path: Path) -> None:
    """A task elsewhere has no mapping that would change: it is sent the bytes as they are, each time."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        raw = ContentMemory.own(LARGE)
        other.blob(raw)
        other.do(fx.OpenRemoteTask(DEPUTY, here.node, "uid:1"))
        other.do(read(1, BLOB, LARGE, buffer=9))
        raw.fill(0, b"changed", 0, 7)
        other.do(read(2, BLOB, LARGE, buffer=9, reuse=True))
        assert [event.attached for event in await replies(here, 2)] == [LARGE, LARGE]


async def test_the_same_version_is_not_sent_again(tmp_path: Path) -> None:
    """A task that has the bytes of an immutable version already is told so, without them."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        other.blob(sealed(bytes(LARGE)))
        other.do(fx.OpenRemoteTask(DEPUTY, here.node, "uid:1"))
        other.do(read(1, BLOB, LARGE, buffer=9), read(2, BLOB, LARGE, buffer=9, reuse=True))
        events = {event.message: event.attached for event in await replies(here, 2)}
        assert sorted(events.values()) == [0, LARGE]


async def test_an_answer_under_way_is_not_sent_again(tmp_path: Path) -> None:
    """A request that is repeated while the bytes of its answer are on their way is told so, and no more."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        other.blob(sealed(bytes(LARGE)))
        other.do(fx.OpenRemoteTask(DEPUTY, here.node, "uid:1"), read(1, BLOB, LARGE), read(1, BLOB, LARGE))
        events = await replies(here, 2)
        assert [event.message for event in events if not event.attached] == [dcp.PeerReply(1, dcp.Working())]
        assert [event.attached for event in events if event.attached] == [LARGE]
        other.do(read(1, BLOB, LARGE))
        assert len(await replies(here, 3)) == 3


async def test_blank_buffers_bring_no_bytes(tmp_path: Path) -> None:
    """A buffer to write that nothing was filled into needs no bytes sent: it is zero at the task's node."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        other.do(fx.OpenRemoteTask(DEPUTY, here.node, "uid:1"))
        size = 64 * limits.MIB
        other.do(fx.AnswerWrite(DEPUTY, 1, Buffer(9, size, 0, 0), BLOB, 0, size, blank=True))
        (event,) = await replies(here, 1)
        assert event.attached == 0
        here.do(fx.AnswerReceived(TASK, 1, Buffer(9, size, 0, 0), event.payload, size, writable=True))
        assert here.host.buffers.has(BufferId(9), size)
        assert here.channel.read == [bytes(size)]


@pytest.mark.parametrize("away", [False, True], ids=["here", "away"])
async def test_the_start_of_a_task_brings_its_small_program(tmp_path: Path, *, away: bool) -> None:
    """The content is as it is now, and only of a program of this node, whatever another one has for an id."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        here.blob(b"print(1)")
        start = sample_message(dcp.Start)
        assert isinstance(start, dcp.Start)
        held = dcp.HeldReference(
            other.node if away else here.node, replace(start.program.reference, object=BLOB, size=8)
        )
        here.ask(other, replace(start, program=held, source=None))
        (event,) = await replies(other, 1)
        assert isinstance(event.message, dcp.Ask)
        assert isinstance(event.message.body, dcp.Start)
        assert event.message.body.source == (None if away else b"print(1)")


async def test_a_commit_is_sent_from_the_buffer(tmp_path: Path) -> None:
    """What a task wrote into its buffer for another node's object goes beside the commit, as it stands."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        here.do(fx.AnswerReceived(TASK, 1, Buffer(9, LARGE, 0, 0), PayloadId(0), LARGE, writable=True))
        opened = here.host.buffers.get(BufferId(9))
        assert opened is not None
        assert isinstance(opened.content, ContentMemory)
        opened.content.fill(5, b"written", 0, 7)
        here.ask(
            other, dcp.Forward(CALLER, ReadOnce(1)), fx.WriteSource(buffer=BufferId(9), length=LARGE - 1)
        )
        (event,) = await replies(other, 1)
        assert event.attached == LARGE - 1
        here.do(fx.CloseBuffer(BufferId(9)))
        assert not here.host.buffers.has(BufferId(9), 0)


async def test_an_answer_over_what_is_taken_in(tmp_path: Path) -> None:
    """More bytes than a node takes in at once are refused, with what to do."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        size = limits.DCP_RECEIVING_BYTES_MAX + 1
        other.blob(ContentMemory.shadow(size))
        other.do(fx.OpenRemoteTask(DEPUTY, here.node, "uid:1"), read(1, BLOB, size))
        (event,) = await replies(here, 1)
        assert isinstance(event.message, dcp.PeerReply)
        assert isinstance(event.message.result, Failure)
        assert event.message.result.code == Code.EFBIG
        assert "in parts" in event.message.result.message


@pytest.mark.parametrize("asks", [True, False])
async def test_bytes_without_room_are_refused_before_they_are_kept(tmp_path: Path, *, asks: bool) -> None:
    """A request with more bytes than a node may have arriving fails, and so does an answer."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        room = other.host.links._parts.receiving  # type: ignore[union-attr] # a cluster has links
        room.most_of_one = LARGE - 1  # type: ignore[misc] # of a node with little memory
        here.blob(ContentMemory.shadow(LARGE))
        if asks:
            call = WriteOnce(1, b"")
            here.ask(other, dcp.Forward(CALLER, call), fx.WriteSource(content_of=BLOB, length=LARGE))
            (event,) = await replies(here, 1)
        else:
            here.do(fx.OpenRemoteTask(DEPUTY, other.node, "uid:1"), read(1, BLOB, LARGE))
            (event,) = await replies(other, 1)
        assert isinstance(event.message, dcp.PeerReply)
        assert isinstance(event.message.result, Failure)
        assert event.message.result.code == Code.ENOMEM
        assert "volatile_bytes_max" in event.message.result.message
        assert room.used == 0


async def test_a_deputy_that_is_over_is_not_answered(tmp_path: Path) -> None:
    """After CloseDeputy nothing is sent in its name, and nobody is remembered for it."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        other.do(fx.OpenRemoteTask(DEPUTY, here.node, "uid:1"))
        assert other.host.owners.of(DEPUTY) == "uid:1"
        other.do(fx.CloseRemoteTask(DEPUTY), fx.Answer(DEPUTY, 1, Done(1)))
        other.do(fx.Send(here.node, dcp.Gossip(b"after")))
        (event,) = await replies(here, 1)
        assert event.message == dcp.Gossip(b"after")
        assert other.host.owners.of(DEPUTY) == ""


async def test_what_could_not_be_stored_is_not_told_of(tmp_path: Path) -> None:
    """When the store refuses a step, its answer to a node is a refusal, and its requests are not made."""
    async with two_hosts(tmp_path) as (here, other):
        await connected(here, other)
        store = other.host.persister._store
        store.failures.append(NoSpaceError("the disk is full"))  # type: ignore[attr-defined] # a GatedStore
        outcome = fx.Outcome(
            [put(1)],
            [
                fx.Send(here.node, dcp.Ask(1, 1, dcp.Forward(CALLER, ReadOnce(1)))),
                fx.Send(here.node, dcp.PeerReply(3, Done(1))),
            ],
            Ticket(1),
            Ticket(1),
            None,
        )
        other.core.outcomes.append(outcome)
        other.host.driver.call(TASK, 1, ReadOnce(1))
        (event,) = await replies(here, 1)
        assert isinstance(event.message, dcp.PeerReply)
        assert event.message.number == 3
        assert isinstance(event.message.result, Failure)
        assert event.message.result.code == Code.ENOSPC


async def test_many_transfers_take_turns(tmp_path: Path) -> None:
    """Transfers of one task, however many, let that of another task pass, and all arrive.

    On a busy machine transfers leave before the last one is handed over, so one of three rounds is enough:
    without turns it would be the last of 301 in each.
    """
    places = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        async with two_hosts(folder) as (here, other):
            await connected(here, other)
            other.blob(sealed(bytes(LARGE)))
            greedy, modest = TaskId(100), TaskId(101)
            for task in (greedy, modest):
                other.do(fx.OpenRemoteTask(task, here.node, f"uid:{task}"))
            whole = Buffer(0, LARGE, 1, 1)
            answers = [fx.AnswerRead(greedy, seq, whole, BLOB, 0, LARGE) for seq in range(300)]
            other.do(*answers, fx.AnswerRead(modest, 1_000, whole, BLOB, 0, LARGE))
            events = await replies(here, 301)
            numbers = [event.message.number for event in events if isinstance(event.message, dcp.PeerReply)]
            assert sorted(numbers) == [*range(300), 1_000]
            places.append(numbers.index(1_000))
        if places[-1] < 10:
            break
    assert min(places) < 10, places
