"""Clusters in virtual time: tables come to be true, deaths are seen soon, and the living stay alive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dios import limits
from dios.core.membership.dissemination import Dissemination
from dios.core.membership.table_digest import TableDigest
from dios.ids import NodeId
from dios.wire import gossip
from dios.wire.gossip import GossipMessage, MemberRow
from dios.wire.types import NodeStatus
from labs.sim.event_queue import S
from tests.support.core.membership_faults import heal_everything, stable, times_of_death, unlucky
from tests.support.core.membership_world import GossipWorld

pytestmark = pytest.mark.long

SUPPORT = Path(__file__).resolve().parents[1] / "support" / "programs"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.extended(keep=1)
def test_after_whatever_happened_all_tables_come_to_be_true(seed: int) -> None:
    """Within 30 s of peace every running node knows every running one in its epoch, and no other as alive."""
    world = unlucky(1 + seed % 16, seed)
    heal_everything(world)
    assert world.converges(30 * S), world.differences()
    mark = len(world.seen)
    world.loss = 0.0
    world.run(20 * S)
    assert not world.differences()
    assert not [s for s in world.seen[mark:] if s.change.member.status is NodeStatus.DEAD]


@pytest.mark.parametrize("size", [2, 3, 16])
def test_lost_messages_kill_nobody(size: int) -> None:
    """With every twentieth message lost nobody is declared dead in minutes of peace."""
    world = stable(size, 1, loss=0.05)
    world.run(600 * S // size)
    assert not world.deaths()


@pytest.mark.parametrize("loss", [0.0, 0.05])
@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_who_can_be_reached_through_another_is_not_dead(seed: int, *, both_ways: bool, loss: float) -> None:
    """A node that has lost all its neighbours but one, in one or both directions, is alive to all."""
    for size, inwards in ((3, False), (6, False), (6, True)):
        world = stable(size, seed, loss=loss)
        lonely, _, *others = world.ids()
        if inwards:
            world.part(others, [lonely], both_ways=both_ways)
        else:
            world.part([lonely], others, both_ways=both_ways)
        world.run(20 * S)
        assert not world.deaths()


@pytest.mark.parametrize("closes_dead", [True, False])
def test_a_healed_partition_costs_nobody_inside_a_side_its_life(*, closes_dead: bool) -> None:
    """Each side held the other for dead; when they meet, nobody believes that of its own neighbours."""
    for size in (4, 16):
        world = stable(size, 1, closes_dead=closes_dead)
        ids = world.ids()
        world.part(ids[::2], ids[1::2])
        world.run(20 * S)
        assert len(world.deaths()) == 2 * (size // 2) ** 2
        world.heal()
        assert world.converges(10 * S), world.differences()
        sides = [set(ids[::2]), set(ids[1::2])]
        for seen in world.deaths():
            assert not any({seen.observer, seen.change.member.node} <= side for side in sides)


def test_connections_that_break_kill_nobody() -> None:
    """Nodes whose connections to each other break, one after the other, stay alive to all."""
    world = stable(8, 1)
    for _ in range(40):
        node, other = world.rng.sample(world.ids(), 2)
        world.break_links([node], [other])
        world.run(S // 4)
    assert not world.deaths()


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize("closes_dead", [True, False])
def test_a_node_that_was_frozen_comes_back_and_takes_nobody_with_it(size: int, *, closes_dead: bool) -> None:
    """Ten seconds of standing still cost a node its own life for a while, and nobody else's."""
    for seed in range(8):
        world = stable(size, seed, closes_dead=closes_dead)
        frozen = world.ids()[0]
        world.freeze(frozen)
        world.run(10 * S)
        assert len(world.deaths()) == size - 1
        world.thaw(frozen)
        assert world.converges(10 * S), world.differences()
        assert {seen.change.member.node for seen in world.deaths()} == {frozen}


@pytest.mark.parametrize(("how", "within"), [("kill", S), ("freeze", 3 * S)])
@pytest.mark.parametrize("size", [2, 3, 16])
def test_a_death_is_seen_by_everybody_in_time(size: int, how: str, within: int) -> None:
    """A killed node is dead to all within one second of virtual time, a frozen one within three."""
    for seed in range(4):
        world = stable(size, seed, loss=0.05 * (seed % 2))
        times = times_of_death(world, world.rng.choice(world.ids()), how)
        assert len(times) >= size - 1
        assert max(times) < within
        assert len({seen.change.member.node for seen in world.deaths()}) == 1


def test_a_restart_is_seen_as_a_new_epoch() -> None:
    """Whoever is killed and started again at once is alive in its next epoch, and all were told."""
    world = stable(5, 1)
    again = world.ids()[0]
    mark = len(world.seen)
    world.kill(again)
    world.start(again)
    assert world.converges(5 * S), world.differences()
    told = {seen.observer for seen in world.seen[mark:] if seen.change.restarted}
    assert told == set(world.ids()) - {again}


def test_who_leaves_is_gone_and_not_dead() -> None:
    """Good-bye is enough: all know that the node has left, and none declares it dead."""
    for seed in range(4):
        world = stable(5, seed)
        leaver = world.ids()[0]
        mark = len(world.seen)
        world.leave(leaver)
        world.run(10 * S)
        last = {s.observer: s.change.member for s in world.seen[mark:]}
        assert {(row.node, row.status) for row in last.values()} == {(leaver, NodeStatus.LEFT)}
        assert len(last) == 4
        assert all(s.change.member.status is not NodeStatus.DEAD for s in world.seen[mark:])


def test_a_cluster_at_rest_says_little_and_its_bounds_hold() -> None:
    """A node of 16 sends fewer than 25 messages a second, and incarnations do not grow."""
    world = stable(16, 1)
    before = world.messages
    world.run(60 * S)
    assert (world.messages - before) / 16 / 60 < 25
    assert all(world.view(node).own.incarnation == 0 for node in world.ids())


def lie(world: GossipWorld) -> GossipMessage:
    """Something that the first node says, of which nothing need be true."""
    rng, ids = world.rng, world.ids()

    def row() -> MemberRow:
        return MemberRow(
            rng.choice([*ids, NodeId(rng.randrange(1, 2**63))]),
            "liar",
            address="elsewhere:1",
            epoch=rng.choice((0, 1, 2, 9, limits.EPOCH_MAX)),
            incarnation=rng.choice((0, 1, 7, 2**31, 2**32 + 9, 2**62)),
            status=rng.choice(list(NodeStatus)),
            version=rng.choice((0, 1, 7, 2**31, 2**62)),
        )

    rows = tuple(row() for _ in range(rng.randrange(5)))
    kind = rng.randrange(6)
    number, about = rng.randrange(2**62), rng.choice(ids)
    return (
        gossip.Ping(row(), number, rows),
        gossip.Ack(row(), number, about, rows),
        gossip.PingRequest(row(), number, about, rows),
        gossip.News(row(), rows),
        gossip.Table(row(), rows, more=rng.random() < 0.5),
        gossip.Digests(row(), tuple(rng.randrange(2**63) for _ in range(limits.GOSSIP_DIGESTS)), answer=True),
    )[kind]


# With seed 53 the lies raise a node's incarnation so far that others took its own word for nonsense.
@pytest.mark.parametrize("seed", [*range(6), 53])
def test_a_liar_does_no_lasting_harm(seed: int) -> None:
    """A member that tells whatever comes to its mind stops nobody, and when it stops all tables are true."""
    world = stable(4, seed)
    liar, *honest = world.ids()
    before = world.messages
    for _ in range(300):
        world.tell(liar, world.rng.choice(honest), lie(world))
        world.run(world.rng.randrange(S // 10))
    assert world.messages - before < 50 * 300
    world.kill(liar)
    assert world.converges(30 * S), world.differences()
    for node in honest:
        rows = world.view(node).members
        assert all(rows[other] == world.view(other).own for other in honest if other != node)


def knows_change(monkeypatch: pytest.MonkeyPatch, *, compares: bool) -> list[bool]:
    """Whether each of 40 nodes learns within a minute of a coordinator, while no news is passed on."""
    world = stable(40, 1)
    changed = world.ids()[0]
    monkeypatch.setattr(Dissemination, "take", lambda *_: [])
    if not compares:
        monkeypatch.setattr(TableDigest, "differing", lambda *_: [])
    world.change(changed, lambda view, now: view.coordinate(now, on=True))
    world.run(60 * S)
    return [world.view(node).members[changed].coordinated for node in world.ids() if node != changed]


def test_an_update_that_was_lost_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """If every piece of news is lost, the comparison of tables brings it to all nodes."""
    assert all(knows_change(monkeypatch, compares=True))


def test_an_update_that_is_never_sent_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the comparison the claim above fails: only those that the node sends to know."""
    known = knows_change(monkeypatch, compares=False)
    assert any(known)
    assert not all(known)


def test_the_same_seed_gives_the_same_run_under_every_hash_seed() -> None:
    """Nothing hangs on the order of a set: two processes with other hash seeds see the same changes."""
    program = "from tests.support.core.membership_faults import unlucky; print(unlucky(6, 3).seen)"
    runs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": f"{SUPPORT}:{SUPPORT.parents[2]}"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1


def test_the_simulation_can_fail() -> None:
    """A cut that heals never, and a table that is not true, are seen."""
    world = GossipWorld(2, 1)
    node, other = world.ids()
    world.part([node], [other])
    world.start_all()
    assert not world.converges(5 * S)
    assert len(world.differences()) == 2
