"""What is stored for whom: metered to the byte once it is durable, and paid for before the next call."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import trio
import trio.testing

from dios import limits
from dios.core import effects as fx
from dios.core.effects import WriteSource
from dios.core.events import Called
from dios.errors import NoSpaceError
from dios.host.process.task_host import Payer
from dios.ids import Principal, TaskId
from dios.transport.unix.server import TaskChannel
from dios.wire import messages
from dios.wire.codec import encode_request
from dios.wire.messages import Metered, Rate
from dios.wire.rates import UNMEASURED
from dios.wire.types import Flag, ObjectType, Traffic
from tests.support.host.harness import TASK, Rig, put, rig

GREEDY, MODEST = "uid:1", "uid:2"
NEIGHBOUR = TaskId(TASK + 1)
SECOND = limits.RATE_BYTES_S_MIN
ASKED = Metered(0, (), UNMEASURED, 0, b"")
WRITE = messages.WriteOnce(1, b"x")
WAIT_S = 10.0


def stored(rig: Rig) -> dict[str, tuple[int, int]]:
    """What was stored for each, and is on its way."""
    answer = rig.host.rates.completed(ASKED)
    assert all(meter.traffic is Traffic.STORE for meter in answer.meters)
    return {meter.principal: (meter.moved, meter.waiting) for meter in answer.meters}


def store(rig: Rig, number: int, size: int) -> None:
    """The task stores a content of so many bytes."""
    data = bytes(size)
    source = WriteSource(payload=rig.next_payload, length=size)
    rig.do(persist=[put(number, source)], data=data)


def slow(rig: Rig, principal: str = GREEDY, lease_ms: int = 60_000) -> None:
    """Tell a rate of a piece a second."""
    rig.do(fx.SetRates((Rate(principal, Traffic.STORE, SECOND),), lease_ms))


async def test_what_is_durable_was_stored(tmp_path: Path) -> None:
    """Bytes wait until they are on the disk, and count for the principal of the caller, whoever owns them."""
    async with rig(tmp_path) as host:
        host.host.owners.add(TASK, GREEDY)
        host.store.gate.clear()
        store(host, 5, 1_000)
        store(host, 6, 234)
        assert stored(host) == {GREEDY: (0, 1_234)}
        host.store.gate.set()
        await host.settled()
        assert stored(host) == {GREEDY: (1_234, 0)}


async def test_what_nobody_called_for_is_its_owners(tmp_path: Path) -> None:
    """Where no caller is known the bytes are those of the object's owner."""
    async with rig(tmp_path) as host:
        store(host, 5, 7)
        await host.settled()
        assert stored(host) == {"uid:0": (7, 0)}


async def test_what_could_not_be_stored_was_not(tmp_path: Path) -> None:
    """A store that refuses leaves nothing waiting, and counts nothing."""
    async with rig(tmp_path) as host:
        host.host.owners.add(TASK, GREEDY)
        host.store.failures.append(NoSpaceError("full"))
        store(host, 5, 1_000)
        await host.settled()
        assert stored(host) == {GREEDY: (0, 0)}
        store(host, 5, 10)
        await host.settled()
        assert stored(host) == {GREEDY: (10, 0)}


class Callers:
    """Connections of a greedy and a modest task to a host, and which calls the core has seen."""

    def __init__(self, host: Rig, nursery: trio.Nursery) -> None:
        self.host = host
        self._nursery = nursery
        self._seq = 0
        self.socks = {task: self._connect(task) for task in (TASK, NEIGHBOUR)}
        host.host.owners.add(TASK, GREEDY)
        host.host.owners.add(NEIGHBOUR, MODEST)

    def _connect(self, task: TaskId) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._nursery.start_soon(self._serve, task, ours)
        return theirs

    async def _serve(self, task: TaskId, sock: socket.socket) -> None:
        async with trio.open_nursery() as senders:
            channel = TaskChannel(sock, senders)
            await self.host.host.tasks.read_calls(task, channel, Payer(Principal("uid:0"), task))
            channel.close()

    async def call(self, task: TaskId, *calls: messages.AnyCall) -> list[tuple[TaskId, type]]:
        """Make calls, and tell what the core has seen when everything that can go on has."""
        self.host.core.events.clear()
        for call in calls:
            self._seq += 1
            self.socks[task].sendall(encode_request(self._seq, call))
        await trio.testing.wait_all_tasks_blocked(0.01)
        return self.seen()

    def seen(self) -> list[tuple[TaskId, type]]:
        """The calls that the core was told of."""
        return [(event.task, type(event.call)) for event in self.host.core.seen(Called)]

    def close(self) -> None:
        """Hang up."""
        for sock in self.socks.values():
            sock.close()


@pytest.mark.parametrize(
    "call",
    [
        WRITE,
        messages.Create(ObjectType.DURABLE_BLOB),
        messages.CommitWrite(1, 2),
        messages.CommitAcquireWrite(1, 2),
        messages.ReleaseWrite(1, 2, int(Flag.RELEASE_COMMIT)),
        messages.Vector((messages.Stat(1), WRITE)),
    ],
)
async def test_who_is_in_debt_stores_nothing_more(tmp_path: Path, call: messages.AnyCall) -> None:
    """Its next call that may store waits at its own connection, until the debt is off or the rate is lifted.

    What stores nothing is taken, and nobody else waits.
    """
    async with rig(tmp_path) as host, trio.open_nursery() as nursery:
        callers = Callers(host, nursery)
        slow(host)
        store(host, 5, 100 * SECOND)
        await host.settled()
        assert await callers.call(TASK, messages.Stat(1), messages.Lookup(bytes(32))) == [
            (TASK, messages.Stat),
            (TASK, messages.Lookup),
        ]
        assert await callers.call(TASK, call, messages.Stat(1)) == []
        assert stored(host)[GREEDY] == (100 * SECOND, 100 * SECOND), "it is seen to want more"
        assert await callers.call(NEIGHBOUR, call) == [(NEIGHBOUR, type(call))]
        host.core.events.clear()
        host.do(fx.SetRates((), 60_000))
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert callers.seen()[1:] == [(TASK, type(call)), (TASK, messages.Stat)]
        assert stored(host)[GREEDY] == (100 * SECOND, 0)
        callers.close()


async def test_who_tells_rates_is_not_held_up(tmp_path: Path) -> None:
    """A coordinator whose user is in debt goes on, or nobody could tell its user another rate."""
    async with rig(tmp_path) as host, trio.open_nursery() as nursery:
        callers = Callers(host, nursery)
        host.do(fx.SetRates((Rate(GREEDY, Traffic.STORE, SECOND),), 60_000, TASK))
        store(host, 5, 100 * SECOND)
        await host.settled()
        assert await callers.call(TASK, WRITE) == [(TASK, messages.WriteOnce)]
        slow(host)
        assert await callers.call(TASK, WRITE) == []
        callers.close()


async def test_who_has_hung_up_is_held_up_no_longer(tmp_path: Path) -> None:
    """A connection whose other end is gone ends, however large the debt."""
    async with rig(tmp_path) as host:
        with trio.fail_after(WAIT_S):
            async with trio.open_nursery() as nursery:
                callers = Callers(host, nursery)
                slow(host)
                store(host, 5, 1_000 * SECOND)
                assert await callers.call(TASK, WRITE) == []
                callers.close()
        assert callers.seen() == [(TASK, messages.WriteOnce)]


async def test_a_lease_that_runs_out_lets_it_store(tmp_path: Path) -> None:
    """When nobody tells rates any more, whoever is held up goes on by itself."""
    async with rig(tmp_path) as host, trio.open_nursery() as nursery:
        callers = Callers(host, nursery)
        slow(host, lease_ms=50)
        store(host, 5, 1_000 * SECOND)
        host.core.events.clear()
        await callers.call(TASK, WRITE)
        with trio.fail_after(WAIT_S):
            while callers.seen() != [(TASK, messages.WriteOnce)]:  # noqa: ASYNC110 - of another task's making
                await trio.sleep(0.001)
        callers.close()


async def test_what_people_say_of_link_and_store_is_told(tmp_path: Path) -> None:
    """The settings' rates are the capacity: out and in that of the link, then that of the store."""
    (tmp_path / "node.toml").write_text("link_rate = '125 MiB'\nstore_rate = '20 MiB'\n")
    async with rig(tmp_path) as host:
        host.do(fx.Answer(TASK, 1, ASKED))
        (answer,) = [result for _, result in host.replies]
        assert isinstance(answer, Metered)
        assert answer.capacity == (125 * limits.MIB, 125 * limits.MIB, 20 * limits.MIB)
