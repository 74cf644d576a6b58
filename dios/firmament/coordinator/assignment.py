"""Which coordinator schedules what: the three set-ups of Figure 6.6 (thesis §6.5.1).

For: coordinators, each of which works it out for itself from the same facts.
Not for: safety. While nodes disagree two may schedule the same runs; a node places each once, and no more
on itself than it has, so that one of them loses and tries again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class SetUp(StrEnum):
    """Who schedules in a cluster."""

    CENTRALISED = "centralised"
    """One coordinator for all nodes."""
    HIERARCHICAL = "hierarchical"
    """One for each rack, and above them one for what finds no place in its rack."""
    DISTRIBUTED = "distributed"
    """Each for the runs of its own node, on all nodes."""


@dataclass(frozen=True, slots=True)
class CandidateNode:
    """A node that lives, as a coordinator sees it."""

    node: int
    name: str
    rack: str
    coordinated: bool
    """Whether it has a coordinator that lives."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one coordinator has to do; names of nodes."""

    attend: frozenset[str] = frozenset()
    """Whose runs it places."""
    machines: frozenset[str] = frozenset()
    """Where it may place them; it has to know what runs there."""
    after_s: float = 0.0
    """It leaves runs to the coordinators below it until they have waited so long."""
    below: frozenset[str] = frozenset()
    """The nodes of ``attend`` whose runs are another's to place first."""
    leader: str = ""
    """Who schedules for this coordinator's own node."""
    governs: frozenset[str] = frozenset()
    """Whose links and stores it divides; all nodes, or none."""


def assign_nodes(own: int, nodes: Sequence[CandidateNode], set_up: SetUp, delegation_s: float) -> Assignment:
    """What the coordinator of node ``own`` does, with these nodes living.

    The first by identifier of those with a coordinator leads; so a leader changes only when it dies or a
    smaller one joins. ``delegation_s`` is how long a rack has for its own runs.
    """
    able = sorted((one for one in nodes if one.coordinated), key=lambda one: one.node)
    me = next((one for one in able if one.node == own), None)
    if me is None:
        return Assignment()
    everybody = frozenset(one.name for one in nodes)
    root = able[0]
    if set_up is SetUp.DISTRIBUTED:
        governs = everybody if me is root else frozenset[str]()
        return Assignment(frozenset({me.name}), everybody, leader=me.name, governs=governs)
    if set_up is SetUp.CENTRALISED:
        if me is root:
            return Assignment(everybody, everybody, leader=root.name, governs=everybody)
        return Assignment(leader=root.name)
    first = next(one for one in able if one.rack == me.rack)
    rack = frozenset(one.name for one in nodes if one.rack == me.rack)
    if me is root:
        # It is its own rack's first, too; other racks with a coordinator come first with theirs.
        racks = {one.rack for one in able} - {me.rack}
        below = frozenset(one.name for one in nodes if one.rack in racks)
        return Assignment(everybody, everybody, delegation_s, below, root.name, everybody)
    if me is first:
        return Assignment(rack, rack, leader=me.name)
    return Assignment(leader=first.name)
