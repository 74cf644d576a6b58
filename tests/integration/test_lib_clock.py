from __future__ import annotations

from collections.abc import Iterator

import lib_functions as functions
import pytest

import dios
from dios.lib.aio import AsyncLamportClock
from dios.lib.channels import channel
from dios.lib.clock import LamportClock, Stamp
from dios.lib.spawn import Spawner
from tests.support.client.loops import on_both_loops
from tests.support.node.running_node import RunningNode, running_node

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this file."""
    with running_node(tmp_path_factory.mktemp("clock") / "node") as node:
        yield node


@pytest.fixture
def node(started: RunningNode) -> Iterator[dios.Node]:
    """A session of a person."""
    with dios.connect(started.place, groups=()) as session:
        yield session


def test_events_of_one_clock_are_in_order(node: dios.Node) -> None:
    """Each event has a higher stamp than the one before, and than whatever it has learnt of."""
    with node.create(dios.SHMEM_BLOB) as blob:
        clock = LamportClock(blob)
        stamps = [
            clock.tick(),
            clock.tick(),
            clock.observe(Stamp(40, 7)),
            clock.tick(),
            clock.observe(Stamp(3, 7)),
        ]
        assert [stamp.time for stamp in stamps] == [1, 2, 41, 42, 43]
        assert stamps == sorted(stamps)


def test_stamps_of_a_shared_clock_are_distinct(node: dios.Node) -> None:
    """Four tasks that tick one clock at the same time see each time once, and each of them rising ones."""
    with node.create(dios.SHMEM_BLOB) as blob, Spawner(node) as spawner:
        futures = [spawner.spawn(functions.tick, blob, 25) for _ in range(4)]
        told = [future.result(SECONDS_MAX) for future in futures]
    assert all(stamps == sorted(stamps) for stamps in told)
    assert sorted(stamp.time for stamps in told for stamp in stamps) == list(range(1, 101))


def test_what_happened_before_has_the_lower_stamp(node: dios.Node) -> None:
    """Three tasks with clocks of their own pass messages round: nobody learns of an event before it was."""
    ring = [channel(node, Stamp) for _ in range(3)]
    clocks = [node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS) for _ in range(4)]
    turns = 10
    with Spawner(node) as spawner:
        futures = [
            spawner.spawn(functions.pass_round, clocks[place], ring[place][1], ring[place + 1][0], turns)
            for place in range(2)
        ]
        own = LamportClock(clocks[3])
        chain: list[Stamp] = []
        for _ in range(turns):
            chain.append(own.tick())
            ring[0][0].send(chain[-1])
            chain.append(own.observe(ring[2][1].receive(SECONDS_MAX)))
        told = [future.result(SECONDS_MAX) for future in futures]
    assert chain == sorted(set(chain))
    for stamps in told:
        # Received, own, received, own: each of them after the one before.
        assert stamps == sorted(set(stamps))
    assert len({stamp.clock for stamp in (*chain, *told[0], *told[1])}) == 3
    ring[0][0].close()
    ring[2][1].close()


def test_equal_times_have_one_order(node: dios.Node) -> None:
    """Two clocks that show the same time give different stamps, which everybody orders alike."""
    first, second = (
        LamportClock(node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS)).tick() for _ in range(2)
    )
    assert first.time == second.time
    assert (first < second) != (second < first)


def test_a_time_that_cannot_be_is_refused(node: dios.Node) -> None:
    """A stamp from elsewhere cannot make a clock run over."""
    with node.create(dios.SHMEM_BLOB) as blob:
        clock = LamportClock(blob)
        for time in (-1, 1 << 62):
            with pytest.raises(dios.DamagedError):
                clock.observe(Stamp(time, 1))
        assert clock.tick().time == 1


@on_both_loops
async def test_the_async_clock(started: RunningNode) -> None:
    """The same events by awaiting."""
    async with dios.open_node(started.place, groups=()) as node:
        clock = AsyncLamportClock(await node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS))
        assert (await clock.tick()).time == 1
        assert (await clock.observe(Stamp(9, 1))).time == 10
