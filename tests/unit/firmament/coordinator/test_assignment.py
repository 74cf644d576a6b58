"""Who schedules what, in the three set-ups of Figure 6.6."""

from __future__ import annotations

import itertools
import random

import pytest

from dios.firmament.coordinator.assignment import Assignment, CandidateNode, SetUp, assign_nodes

NODES = [
    CandidateNode(11, "n1", "r1", coordinated=True),
    CandidateNode(12, "n2", "r1", coordinated=True),
    CandidateNode(13, "n3", "r2", coordinated=True),
    CandidateNode(14, "n4", "r2", coordinated=True),
]
ALL = frozenset({"n1", "n2", "n3", "n4"})


def duties(nodes: list[CandidateNode], set_up: SetUp) -> dict[str, Assignment]:
    """What each coordinator works out for itself."""
    return {node.name: assign_nodes(node.node, nodes, set_up, 2.0) for node in nodes}


def test_centralised_one_places_for_all() -> None:
    """One coordinator attends to every node; the others know who it is, and do nothing."""
    assignments = duties(NODES, SetUp.CENTRALISED)
    assert assignments["n1"] == Assignment(ALL, ALL, leader="n1", governs=ALL)
    assert all(assignments[name] == Assignment(leader="n1") for name in ("n2", "n3", "n4"))


def test_distributed_each_places_its_own() -> None:
    """Every coordinator attends to its own node, and places anywhere."""
    for name, duty in duties(NODES, SetUp.DISTRIBUTED).items():
        governs = ALL if name == "n1" else frozenset[str]()
        assert duty == Assignment(frozenset({name}), ALL, leader=name, governs=governs)


def test_hierarchical_racks_come_first() -> None:
    """Each rack's first coordinator has its rack; the first of all has all, after the racks' time."""
    assignments = duties(NODES, SetUp.HIERARCHICAL)
    assert assignments["n3"] == Assignment(frozenset({"n3", "n4"}), frozenset({"n3", "n4"}), leader="n3")
    assert assignments["n1"] == Assignment(ALL, ALL, 2.0, frozenset({"n3", "n4"}), "n1", ALL)
    assert assignments["n2"] == Assignment(leader="n1")
    assert assignments["n4"] == Assignment(leader="n3")


def test_who_has_no_coordinator_is_attended_to_by_others() -> None:
    """A node without a coordinator leads nothing, and its runs are placed all the same."""
    nodes = [CandidateNode(11, "n1", "r1", coordinated=False), *NODES[1:]]
    assignments = duties(nodes, SetUp.CENTRALISED)
    assert assignments["n1"] == Assignment()
    assert assignments["n2"].attend == ALL


@pytest.mark.parametrize("set_up", list(SetUp))
def test_somebody_attends_to_every_node(set_up: SetUp) -> None:
    """Whatever coordinators are left, each node is attended to, as long as there is one at all."""
    for alive in itertools.product((True, False), repeat=4):
        nodes = [
            CandidateNode(node.node, node.name, node.rack, coordinated=has)
            for node, has in zip(NODES, alive, strict=True)
        ]
        attended = frozenset().union(*(duty.attend for duty in duties(nodes, set_up).values()))
        if set_up is SetUp.DISTRIBUTED:
            assert attended == {node.name for node in nodes if node.coordinated}
        else:
            assert attended == (ALL if any(alive) else frozenset())


@pytest.mark.parametrize("set_up", list(SetUp))
def test_the_order_of_the_facts_does_not_matter(set_up: SetUp) -> None:
    """Coordinators that know the same nodes come to the same duties, in whatever order they heard of them."""
    mixed = random.Random(5).sample(NODES, len(NODES))  # noqa: S311 - a shuffle
    assert duties(NODES, set_up) == {node.name: duties(mixed, set_up)[node.name] for node in NODES}


@pytest.mark.parametrize("set_up", list(SetUp))
def test_one_divides_links_and_stores(set_up: SetUp) -> None:
    """However many schedule, one of them governs all nodes, and it is the first of those that can."""
    for alive in itertools.product((True, False), repeat=4):
        nodes = [
            CandidateNode(node.node, node.name, node.rack, coordinated=able)
            for node, able in zip(NODES, alive, strict=True)
        ]
        governing = {name: duty.governs for name, duty in duties(nodes, set_up).items() if duty.governs}
        first = [node.name for node in nodes if node.coordinated][:1]
        assert governing == dict.fromkeys(first, ALL)


@pytest.mark.parametrize("node", NODES, ids=lambda node: node.name)
@pytest.mark.parametrize("set_up", list(SetUp))
def test_a_queue_that_has_barred_its_scheduler_has_the_next_one(set_up: SetUp, node: CandidateNode) -> None:
    """Whichever coordinators a node has barred, one attends that it has not, if there is any."""
    for barred in itertools.product((True, False), repeat=4):
        out = frozenset(other.node for other, is_out in zip(NODES, barred, strict=True) if is_out)
        nodes = [with_barred(node, out) if other is node else other for other in NODES]
        assignments = duties(nodes, set_up)
        attending = {name for name, duty in assignments.items() if node.name in duty.attend}
        trusted = {other.name for other in NODES if other.node not in out}
        assert attending <= trusted
        assert bool(attending) == bool(trusted)
        for name in attending:
            assert {node.name} <= assignments[name].machines
        former = duties(NODES, set_up)
        before = {name for name, duty in former.items() if node.name in duty.attend}
        assert attending == (before & trusted or set(sorted(trusted)[:1]))
        for name, duty in assignments.items():
            assert duty.attend - {node.name} == former[name].attend - {node.name}, "the other queues stay"
            assert duty.governs == former[name].governs


def with_barred(node: CandidateNode, barred: frozenset[int]) -> CandidateNode:
    """Return a node that has barred some coordinators."""
    return CandidateNode(node.node, node.name, node.rack, node.coordinated, barred)
