"""The copies that are made and dropped for one object: after losses, with racks, full disks and conflicts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from dios import limits
from dios.lib.kept.decisions import Copied, KeptSteps, KeptWish, Place, next_steps
from dios.lib.kept.versions import (
    CREATED,
    Seen,
    VersionState,
    is_behind,
    is_beyond_repair,
    latest,
    noted,
)

FIVE = tuple(Place(f"n{number}", f"r{number % 3}") for number in range(5))
THREE = KeptWish(3)
APART = KeptWish(2, apart=True)
"""Two replicas in different racks."""


def copies(*nodes: str, state: VersionState = CREATED) -> list[Copied]:
    """Replicas on these nodes, in one state."""
    return [Copied(number, node, state) for number, node in enumerate(nodes, 1)]


def steps(
    wish: KeptWish, there: Iterable[Copied], places: Iterable[Place] = FIVE, **more: object
) -> KeptSteps:
    """The next steps for an object."""
    return next_steps(wish, list(there), list(places), key="o", **more)  # type: ignore[arg-type]


def changed(places: Iterable[Place], *names: str, **fields: bool) -> tuple[Place, ...]:
    """The places, of which some are different."""
    return tuple(Place(**{**place._asdict(), **fields}) if place.name in names else place for place in places)


class Group:
    """One object of a cluster, on which decisions are carried out."""

    def __init__(self, places: tuple[Place, ...], *nodes: str) -> None:
        self.places = places
        self.ids = count(len(nodes) + 1)
        self.there = copies(*nodes)

    def settle(self, wish: KeptWish) -> KeptSteps:
        """Carry out all steps; each number of replicas of the current version is at least what it was."""
        for _ in range(50):
            decision = steps(wish, self.there, self.places)
            if not decision.targets and not decision.drop:
                return decision
            assert decision.source is not None
            before = len({copied.node for copied in self.there})
            self.there = [copied for copied in self.there if copied not in decision.drop]
            self.there += [Copied(next(self.ids), name, decision.source.state) for name in decision.targets]
            assert self.there
            possible = sum(place.usable for place in self.places)
            assert len({copied.node for copied in self.there}) >= min(before, wish.replicas, possible)
        raise AssertionError(f"no rest: {self.there}")

    @property
    def nodes(self) -> set[str]:
        """The nodes with a replica."""
        return {copied.node for copied in self.there}

    def racks(self) -> set[str]:
        """The racks with a replica."""
        return {place.rack for place in self.places if place.name in self.nodes}


def test_a_new_object_gets_its_replicas_in_different_racks() -> None:
    """Three racks, three replicas, each in a rack of its own; nothing remains to be done then."""
    group = Group(FIVE, "n0")
    decision = group.settle(KeptWish(3, apart=True))
    assert (decision.current, decision.short, len(group.nodes)) == (3, 0, 3)
    assert group.racks() == {"r0", "r1", "r2"}


def test_nothing_is_copied_while_the_lost_node_may_come_back() -> None:
    """Its replica counts as there, but is shown as missing; after the grace time it is made elsewhere."""
    away = changed(FIVE, "n2", usable=False, away=True)
    decision = steps(THREE, copies("n0", "n1"), away)
    assert (decision.targets, decision.drop, decision.current, decision.short) == ((), (), 2, 1)
    assert decision.reason == "a node is away"
    gone = changed(FIVE, "n2", usable=False)
    assert len(steps(THREE, copies("n0", "n1"), gone).targets) == 1


def test_a_second_loss_within_the_grace_time_is_made_up_for_as_far_as_it_must() -> None:
    """One node is away and may have one replica; the other missing one is made at once."""
    away = changed(FIVE, "n2", usable=False, away=True)
    assert len(steps(THREE, copies("n0"), away).targets) == 1


def test_a_replica_that_comes_back_makes_another_one_surplus() -> None:
    """The number is exact again; the order of dropping is the same for every node that decides."""
    decision = steps(KeptWish(2), copies("n0", "n1", "n2"))
    assert (decision.targets, [copied.node for copied in decision.drop]) == ((), ["n2"])
    assert steps(KeptWish(2), reversed(copies("n0", "n1", "n2"))).drop == decision.drop


def test_nothing_is_dropped_while_a_node_is_away_or_did_not_answer() -> None:
    """Its view of the replicas may differ from that of this node."""
    away = changed(FIVE, "n4", usable=False, away=True)
    assert steps(KeptWish(1), copies("n0", "n1"), away).drop == ()
    assert steps(KeptWish(1), copies("n0", "n1"), whole=False).drop == ()


def test_two_nodes_that_decide_with_different_views_leave_the_promised_replicas() -> None:
    """Each drops surplus replicas by one order, so the first ones survive both."""
    every = copies("n0", "n1", "n2", "n3")
    for wish in (KeptWish(1), KeptWish(2)):
        dropped, other = steps(wish, every[:3]).drop, steps(wish, every[1:]).drop
        left = [copied for copied in every if copied not in (*dropped, *other)]
        assert len(left) >= wish.replicas


def test_a_draining_node_loses_its_replica_after_another_one_is_made() -> None:
    """The copy comes first, and the drop in a later step; without a node for it nothing is dropped."""
    draining = changed(FIVE, "n1", draining=True)
    first = steps(KeptWish(2), copies("n0", "n1"), draining)
    assert (len(first.targets), first.drop) == (1, ())
    group = Group(draining, "n0", "n1")
    assert group.settle(KeptWish(2)).short == 0
    assert "n1" not in group.nodes
    two = changed(FIVE[:2], "n1", draining=True)
    kept = steps(KeptWish(2), copies("n0", "n1"), two)
    assert (kept.targets, kept.drop, kept.current) == ((), (), 2)


def test_a_full_disk_is_passed_over() -> None:
    """Another node takes the replica; if all are full, the object is shown as short of its promise."""
    best = steps(KeptWish(2), copies("n0")).targets[0]
    other = steps(KeptWish(2), copies("n0"), changed(FIVE, best, refused=True)).targets
    assert other
    assert best not in other
    full = changed(FIVE, "n1", "n2", "n3", "n4", refused=True)
    decision = steps(KeptWish(2), copies("n0"), full)
    assert (decision.targets, decision.short, decision.reason) == ((), 1, "nodes refuse copies")


def test_replicas_that_share_a_rack_are_spread_when_another_rack_has_room() -> None:
    """A further replica is made in the other rack, then one of the crowded rack is dropped."""
    places = (Place("n0", "r0"), Place("n1", "r0"), Place("n2", "r1"))
    group = Group(places, "n0", "n1")
    group.settle(APART)
    assert group.racks() == {"r0", "r1"}
    assert len(group.nodes) == 2


def test_a_node_without_a_rack_is_a_fault_domain_of_its_own() -> None:
    """Otherwise two replicas without racks would look as if one loss could take both."""
    group = Group((Place("n0", ""), Place("n1", ""), Place("n2", "r1")), "n0")
    assert group.settle(APART).short == 0


def test_more_replicas_than_nodes_are_shown_as_missing() -> None:
    """Nothing else can be done about them."""
    decision = steps(KeptWish(3), copies("n0", "n1"), FIVE[:2])
    assert (decision.targets, decision.short, decision.reason) == ((), 1, "2 of the nodes can have replicas")


def test_without_any_replica_there_is_nothing_to_copy() -> None:
    """The object is shown as lost, or as unreachable."""
    decision = steps(THREE, [])
    assert (decision.source, decision.targets, decision.short) == (None, (), 3)


@given(
    events=st.lists(st.sampled_from(["lose", "lose rack", "back", "fill", "drain"]), max_size=12),
    replicas=st.integers(1, 3),
    apart=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_no_losses_short_of_all_replicas_lose_an_object(
    events: list[str], replicas: int, random: Random, *, apart: bool
) -> None:
    """Nodes and racks are lost, disks fill up, nodes drain and return, each after the last was made up for.

    While one replica lives, the object is there, and its number is restored as far as nodes take replicas.
    """
    wish = KeptWish(replicas, apart)
    group = Group(FIVE, "n0")
    group.settle(wish)
    for event in events:
        name = random.choice([place.name for place in group.places])
        rack = next(place.rack for place in group.places if place.name == name)
        lost = {
            "lose": {name},
            "lose rack": {place.name for place in FIVE if place.rack == rack},
        }.get(event, set())
        if group.nodes <= lost:
            continue  # that takes every replica at once
        if event == "back":
            group.places = FIVE
        group.places = changed(group.places, *lost, usable=False)
        group.there = [copied for copied in group.there if copied.node not in lost]
        if event in {"fill", "drain"}:
            group.places = changed(group.places, name, refused=event == "fill", draining=event == "drain")
        decision = group.settle(wish)
        assert group.there
        able = {
            place.name for place in group.places if place.usable and not place.refused and not place.draining
        }
        assert len(group.nodes) >= min(replicas, len(able))
        assert decision.short == max(replicas - len(group.nodes), 0)


# -- bytes --------------------------------------------------------------------------------------------
def test_replicas_with_other_bytes_count_for_nothing_and_go_at_last() -> None:
    """When there are enough others on nodes that answer, and not before that."""
    other = Copied(9, "n2", CREATED, 5)
    short = steps(THREE, copies("n0", "n1"), FIVE[:3], unsound=[other])
    assert (short.current, short.short, short.targets, short.drop) == (2, 1, ("n2",), ())
    kept = steps(THREE, copies("n0", "n1", "n2"), FIVE[:3], unsound=[other])
    assert (kept.current, kept.short, kept.drop) == (3, 0, (other,))
    assert steps(THREE, copies("n0", "n1", "n2"), FIVE[:3], unsound=[other], whole=False).drop == ()
    alone = steps(THREE, [], FIVE[:3], unsound=[other])
    assert (alone.source, alone.targets, alone.drop, alone.short) == (None, (), (), 3)
    away = changed(FIVE, "n2", usable=False)
    assert other not in steps(KeptWish(2), copies("n0", "n1"), away, unsound=[other]).drop


def test_a_replica_whose_bytes_were_compared_is_copied_first() -> None:
    """The others may have other bytes."""
    there = copies("n0", "n1")
    there[1] = there[1]._replace(verified=True)
    assert steps(THREE, there).source == there[1]


# -- versions -----------------------------------------------------------------------------------------
def state(v_w: int, digest: bytes = b"") -> VersionState:
    """A state; by default each version has bytes of its own."""
    return VersionState(v_w, digest or b"d%d" % v_w)


def test_a_replica_that_missed_a_write_is_behind_and_is_replaced() -> None:
    """The history of the written replica shows that its older state is that of the other one."""
    seen = noted((), {1: state(7), 2: state(7)})
    seen = noted(seen, {1: state(9), 2: state(7)})
    assert is_behind(state(7), state(9), seen)
    there = [Copied(1, "n0", state(9)), Copied(2, "n1", state(7)), Copied(3, "n2", state(9))]
    decision = steps(KeptWish(2), there, seen=seen)
    assert ([copied.object_id for copied in decision.drop], decision.conflict, decision.short) == ([2], (), 0)
    first = steps(KeptWish(2), there[:2], seen=seen)
    assert (first.drop, first.source, len(first.targets)) == ((), there[0], 1)


def test_replicas_that_were_both_written_conflict_and_are_left_alone() -> None:
    """On the two sides of a partition, whatever their versions; the conflict is shown with both."""
    seen = noted((), {1: state(7), 2: state(7)})
    seen = noted(seen, {1: state(8)})
    seen = noted(seen, {2: state(9)})
    there = [Copied(1, "n0", state(8)), Copied(2, "n1", state(9))]
    assert latest([state(8), state(9)], seen) == [state(8), state(9)]
    decision = steps(THREE, there, seen=seen)
    assert (decision.targets, decision.drop, decision.conflict) == ((), (), tuple(there))
    equal = [Copied(1, "n0", state(8, b"a")), Copied(2, "n1", state(8, b"b"))]
    assert len(steps(THREE, equal, seen=seen).conflict) == 2


def test_a_version_that_was_never_seen_is_not_taken_for_an_older_one() -> None:
    """A higher number alone does not prove that nothing else was written."""
    assert not is_behind(state(7), state(9), [Seen(9, b"d9", 1)])
    assert is_behind(CREATED, state(9), [])


def test_a_chain_of_replicas_proves_the_order() -> None:
    """One replica went from 5 to 6, another from 6 to 8."""
    seen = noted((), {1: state(5), 2: state(6)})
    seen = noted(seen, {1: state(6), 2: state(8)})
    assert is_behind(state(5), state(8), seen)
    assert not is_behind(state(8), state(5), seen)


def test_a_replica_that_was_away_for_long_is_behind() -> None:
    """However often the others were written, the notes show what came of its version; they stay bounded."""
    seen = noted((), {1: state(7), 2: state(7), 3: state(7)})
    for v_w in range(8, 8 + 4 * limits.KEPT_SEEN_MAX):
        seen = noted(seen, {1: state(v_w), 2: state(v_w)})
        assert len(seen) <= limits.KEPT_SEEN_MAX
        assert latest([state(7), state(v_w)], seen) == [state(v_w)]
    # The replicas of both are replaced one after the other.
    seen = noted(seen, {4: state(v_w)})
    seen = noted(seen, {4: state(v_w + 1)})
    assert latest([state(7), state(v_w + 1)], seen) == [state(v_w + 1)]


def test_a_damaged_replica_of_a_version_that_no_other_one_has_is_beyond_repair() -> None:
    """Others may have other bytes with its number, which does not help. The latest version stays, anyway."""
    lost, other, later = VersionState(1, b"lost"), VersionState(1, b"other"), VersionState(2, b"later")
    seen = [Seen(*lost, 7), Seen(*other, 8), Seen(*later, 8)]
    assert is_beyond_repair(7, 1, [other, later], seen)
    assert not is_beyond_repair(7, 1, [other, lost, later], seen)
    assert not is_beyond_repair(7, 1, [other, later], seen[1:]), "nobody saw what it had"
    assert not is_beyond_repair(7, 1, [other], seen), "nothing is later"
    assert is_beyond_repair(7, 0, [other, later], [])
    assert not is_beyond_repair(7, 3, [later], [])
