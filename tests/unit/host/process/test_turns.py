"""Connections take turns by the work that they cause, so that no neighbour waits for a queue of calls."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import trio

from dios import limits
from dios.core.effects import Outcome
from dios.core.events import Called, Event, SessionOpened
from dios.host.loop.clock import Clock
from dios.host.process.task_host import Payer
from dios.ids import Principal, TaskId
from dios.wire.codec import PROTOCOL_VERSION, encode_request
from dios.wire.messages import Hello, Stat, Vector
from tests.support.host.harness import RecordingChannel, Rig, ScriptedCore, rig

GREEDY = 8
QUEUED = 64
NEIGHBOUR = TaskId(7)
TURNS = 40
CONNECTIONS = 512
PIPELINES = 64
FRAMES = 8
VECTOR = Vector(tuple(Stat(1) for _ in range(limits.VECTOR_CALLS_MAX)))


@pytest.fixture(autouse=True)
def _standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass: these tests count work, and a step that takes long counts as more."""
    now = Clock().now()
    monkeypatch.setattr(Clock, "now", lambda _: now)


class CostlyCore(ScriptedCore):
    """A core for which a vector is as much work as its calls."""

    def step(self, event: Event) -> Outcome:
        """Take one event."""
        outcome = super().step(event)
        if isinstance(event, Called) and isinstance(event.call, Vector):
            outcome.units = len(event.call.calls)
        return outcome


class GreedyChannel(RecordingChannel):
    """A channel on which a queue of long vectors always waits."""

    def __init__(self) -> None:
        super().__init__()
        self.batches = 4

    async def receive(self) -> list[bytes]:
        """Return all frames that are there."""
        await trio.lowlevel.checkpoint()
        self.batches -= 1
        frame = encode_request(1, VECTOR)[4:]
        return [frame] * QUEUED if self.batches else []


class BusyChannel(RecordingChannel):
    """A channel on which a short call waits whenever the node reads."""

    def __init__(self) -> None:
        super().__init__()
        self.received = 0

    async def receive(self) -> list[bytes]:
        """Return a call."""
        await trio.lowlevel.checkpoint()
        self.received += 1
        return [encode_request(1, Stat(1))[4:]]


class PipelinedChannel(RecordingChannel):
    """A channel on which a queue of short calls always waits."""

    async def receive(self) -> list[bytes]:
        """Return as many calls as a client has open."""
        await trio.lowlevel.checkpoint()
        return [encode_request(1, Stat(1))[4:]] * QUEUED


class ModestChannel(RecordingChannel):
    """A channel on which a short call arrives from time to time."""

    def __init__(self, host: Rig) -> None:
        super().__init__()
        self._driver = host.host.driver
        self._began: int | None = None
        self._turns = TURNS
        self.waits: list[int] = []

    async def receive(self) -> list[bytes]:
        """Return a call, and note how much work of others the one before has waited for."""
        if self._began is not None:
            self.waits.append(self._driver.units - self._began)
        self._turns -= 1
        self._began = self._driver.units
        await trio.lowlevel.checkpoint()
        return [encode_request(1, Stat(1))[4:]] if self._turns else []


async def test_a_neighbour_waits_for_one_long_vector_of_each_greedy_client(tmp_path: Path) -> None:
    """Eight clients have queues of long vectors; a short call waits for at most one of each."""
    async with rig(tmp_path, CostlyCore()) as host:
        modest = ModestChannel(host)
        async with trio.open_nursery() as nursery:
            for number in range(GREEDY):
                channel = GreedyChannel()
                task = TaskId(100 + number)
                payer = Payer(Principal("uid:0"), task)
                nursery.start_soon(host.host.tasks.read_calls, task, channel, payer)  # type: ignore[arg-type] # all that is asked of a channel
            payer = Payer(Principal("uid:0"), NEIGHBOUR)
            nursery.start_soon(host.host.tasks.read_calls, NEIGHBOUR, modest, payer)  # type: ignore[arg-type] # likewise
    assert len(modest.waits) == TURNS - 1
    assert max(modest.waits) <= GREEDY * (limits.VECTOR_CALLS_MAX + 1) + 1
    # On the average it is far less: for each part of its vector, a greedy client lets all others have a turn.
    assert sum(modest.waits) / len(modest.waits) < GREEDY * limits.VECTOR_CALLS_MAX / 4


async def test_connections_of_one_principal_share_its_turn(tmp_path: Path) -> None:
    """A user with 512 connections that all call delays another user's call by its own turn, not by 512."""
    async with rig(tmp_path, CostlyCore()) as host:
        modest = ModestChannel(host)
        async with trio.open_nursery() as nursery:
            for number in range(CONNECTIONS):
                channel = BusyChannel()
                task = TaskId(100 + number)
                payer = Payer(Principal("uid:1"), task)
                nursery.start_soon(host.host.tasks.read_calls, task, channel, payer)  # type: ignore[arg-type] # all that is asked of a channel
            payer = Payer(Principal("uid:2"), NEIGHBOUR)
            await host.host.tasks.read_calls(NEIGHBOUR, modest, payer)  # type: ignore[arg-type] # likewise
            assert host.host.driver.units > TURNS * limits.TURN_UNITS_MAX / 2
            nursery.cancel_scope.cancel()
    assert len(modest.waits) == TURNS - 1
    # The call was made in one pass of the loop and is handled in the next: a turn in each, a turn that began
    # before them, and a call.
    assert max(modest.waits) <= 3 * (limits.TURN_UNITS_MAX + 2) + 2


async def test_short_calls_go_before_the_queues_of_the_same_principal(tmp_path: Path) -> None:
    """A connection with one short call now and then waits for a pass of the loop, not for 64 queues."""
    async with rig(tmp_path, CostlyCore()) as host:
        modest = ModestChannel(host)
        async with trio.open_nursery() as nursery:
            for number in range(PIPELINES):
                channel = PipelinedChannel()
                task = TaskId(100 + number)
                payer = Payer(Principal("uid:0"), task)
                nursery.start_soon(host.host.tasks.read_calls, task, channel, payer)  # type: ignore[arg-type] # all that is asked of a channel
            payer = Payer(Principal("uid:0"), NEIGHBOUR)
            await host.host.tasks.read_calls(NEIGHBOUR, modest, payer)  # type: ignore[arg-type] # likewise
            nursery.cancel_scope.cancel()
    late = sorted(modest.waits)[len(modest.waits) // 2]
    assert late <= 2 * limits.TURN_ALONE_UNITS_MAX + limits.TURN_UNITS_MAX
    assert late < PIPELINES * QUEUED / 4


async def test_all_connections_of_a_principal_have_their_turns(tmp_path: Path) -> None:
    """No connection of a principal is left behind while all of them call."""
    async with rig(tmp_path, CostlyCore()) as host:
        channels = [BusyChannel() for _ in range(CONNECTIONS)]
        async with trio.open_nursery() as nursery:
            for number, channel in enumerate(channels):
                task = TaskId(100 + number)
                payer = Payer(Principal("uid:1"), task)
                nursery.start_soon(host.host.tasks.read_calls, task, channel, payer)  # type: ignore[arg-type] # all that is asked of a channel
            while min(channel.received for channel in channels) < FRAMES:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
    assert max(channel.received for channel in channels) <= 3 * FRAMES


async def test_the_queue_of_a_client_that_is_gone_is_dropped(tmp_path: Path) -> None:
    """A client leaves a long queue behind: after the present turn, no call of it takes a turn from others."""
    async with rig(tmp_path, CostlyCore()) as host:
        channel = GreedyChannel()
        channel.abandoned = True
        payer = Payer(Principal("uid:0"), TaskId(100))
        await host.host.tasks.read_calls(TaskId(100), channel, payer)  # type: ignore[arg-type] # all that is asked of a channel
        assert host.host.driver.units <= limits.VECTOR_CALLS_MAX + 1


class OpeningChannel(RecordingChannel):
    """A channel of a client that says who it is, and no more."""

    def __init__(self) -> None:
        super().__init__()
        self._frames = [encode_request(1, Hello(PROTOCOL_VERSION, (), ""))[4:]]

    async def receive(self) -> list[bytes]:
        """Return the Hello; later wait for ever."""
        await trio.lowlevel.checkpoint()
        if not self._frames:
            await trio.sleep_forever()
        return [self._frames.pop()]


class CountingChannel(RecordingChannel):
    """A channel on which a short call always waits; it counts the sessions that open between its calls."""

    def __init__(self, core: ScriptedCore) -> None:
        super().__init__()
        self._core = core
        self.opened: list[int] = []

    async def receive(self) -> list[bytes]:
        """Return a call until all sessions are open."""
        self.opened.append(len(self._core.seen(SessionOpened)))
        await trio.lowlevel.checkpoint()
        return [encode_request(1, Stat(1))[4:]] if self.opened[-1] < CONNECTIONS else []


async def test_sessions_that_open_at_once_wait_for_turns(tmp_path: Path) -> None:
    """A neighbour of the same principal makes its calls between them, after a few openings each."""
    core = ScriptedCore()
    async with rig(tmp_path, core) as host:
        neighbour = CountingChannel(core)
        async with trio.open_nursery() as nursery:
            for number in range(CONNECTIONS):
                task, channel = TaskId(100 + number), OpeningChannel()
                nursery.start_soon(host.host.tasks.serve_session, task, Principal("uid:0"), 1, channel)  # type: ignore[arg-type] # all that is asked of a channel
            payer = Payer(Principal("uid:0"), NEIGHBOUR)
            await host.host.tasks.read_calls(NEIGHBOUR, neighbour, payer)  # type: ignore[arg-type] # likewise
            nursery.cancel_scope.cancel()
    between = [after - before for before, after in pairwise(neighbour.opened)]
    assert max(between) <= 2 * limits.TURN_ALONE_UNITS_MAX // limits.TURN_OPENING_UNITS
