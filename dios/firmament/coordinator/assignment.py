"""The assignment of nodes to coordinators: the three set-ups of Figure 6.6 (thesis §6.5.1).

Each coordinator computes its own assignment from the same facts. While coordinators disagree, two may
schedule the same runs. That is safe: a node starts each run once and accepts no more than it has room for, so
one coordinator is refused and tries again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice


class SetUp(StrEnum):
    """The set-up of a cluster's coordinators."""

    CENTRALISED = "centralised"
    """One coordinator for all nodes."""
    HIERARCHICAL = "hierarchical"
    """One coordinator for each rack, and one above them for runs that find no place in their rack."""
    DISTRIBUTED = "distributed"
    """Each coordinator for the runs of its own node, on all nodes."""


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options that the settings of a node give its coordinator at the start."""

    set_up: SetUp
    model: str
    fairness: str = "sdrf"
    memory_s: float = 1e6
    """The memory of ``fairness``: after this many seconds 1/e of a commitment is left."""


@dataclass(frozen=True, slots=True)
class CandidateNode:
    """A living node, as a coordinator knows it."""

    node: int
    name: str
    rack: str
    coordinated: bool
    """True if it has a living coordinator."""
    barred: frozenset[int] = frozenset()
    """The nodes whose coordinators have lost their lease on its queue, by identifier."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The nodes for which one coordinator is responsible, by name."""

    attend: frozenset[str] = frozenset()
    """The nodes whose runs it places."""
    machines: frozenset[str] = frozenset()
    """The nodes on which it may place them, whose tasks it has to know."""
    after_s: float = 0.0
    """The seconds for which it leaves runs to the coordinators below it."""
    below: frozenset[str] = frozenset()
    """The nodes of ``attend`` whose runs another coordinator places first."""
    leader: str = ""
    """The node whose coordinator schedules for this coordinator's own node."""
    governs: frozenset[str] = frozenset()
    """The nodes whose links and stores it divides: all or none."""


def assign_nodes(own: int, nodes: Sequence[CandidateNode], set_up: SetUp, delegation_s: float) -> Assignment:
    """Return the assignment of the coordinator of node ``own``, given the living nodes.

    The node with the smallest identifier of those with a coordinator leads, so a leader changes only when it
    dies or a smaller one joins. ``delegation_s`` is the time that a rack's coordinator has for its own runs.
    Queues of nodes that have barred the coordinator which would attend them have the next one of all.
    """
    assigned = _assigned(own, nodes, set_up, delegation_s)
    barring = [node for node in nodes if node.barred]
    if not barring:
        return assigned
    coordinators = _coordinators(nodes)
    attend = set(assigned.attend)
    for node in barring:
        former = _attending(node, coordinators, set_up)
        trusted = [other for other in former if other not in node.barred]
        if not trusted and former:
            trusted = [other.node for other in coordinators if other.node not in node.barred][:1]
        if own in trusted:
            attend.add(node.name)
        else:
            attend.discard(node.name)
    if attend == assigned.attend:
        return assigned
    machines = frozenset(node.name for node in nodes) if attend - assigned.attend else assigned.machines
    return replace(assigned, attend=frozenset(attend), machines=machines, below=assigned.below & attend)


def _coordinators(nodes: Sequence[CandidateNode]) -> list[CandidateNode]:
    """Return the nodes with a coordinator in the order in which they lead."""
    return sorted((node for node in nodes if node.coordinated), key=lambda node: node.node)


def _attending(node: CandidateNode, coordinators: Sequence[CandidateNode], set_up: SetUp) -> set[int]:
    """Return the nodes whose coordinators attend a node that has barred none."""
    if set_up is SetUp.DISTRIBUTED:
        return {node.node} if node.coordinated else set()
    attending = list(coordinators[:1])
    if set_up is SetUp.HIERARCHICAL:
        attending += islice((other for other in coordinators if other.rack == node.rack), 1)
    return {other.node for other in attending}


def _assigned(own: int, nodes: Sequence[CandidateNode], set_up: SetUp, delegation_s: float) -> Assignment:
    """Return the assignment of a coordinator if no node has barred any."""
    able = _coordinators(nodes)
    me = next((candidate for candidate in able if candidate.node == own), None)
    if me is None:
        return Assignment()
    everybody = frozenset(candidate.name for candidate in nodes)
    root = able[0]
    if set_up is SetUp.DISTRIBUTED:
        governs = everybody if me is root else frozenset[str]()
        return Assignment(frozenset({me.name}), everybody, leader=me.name, governs=governs)
    if set_up is SetUp.CENTRALISED:
        if me is root:
            return Assignment(everybody, everybody, leader=root.name, governs=everybody)
        return Assignment(leader=root.name)
    first = next(candidate for candidate in able if candidate.rack == me.rack)
    rack = frozenset(candidate.name for candidate in nodes if candidate.rack == me.rack)
    if me is root:
        # The root is the first of its own rack, too. In other racks their coordinators come first.
        racks = {candidate.rack for candidate in able} - {me.rack}
        below = frozenset(candidate.name for candidate in nodes if candidate.rack in racks)
        return Assignment(everybody, everybody, delegation_s, below, root.name, everybody)
    if me is first:
        return Assignment(rack, rack, leader=me.name)
    return Assignment(leader=first.name)
