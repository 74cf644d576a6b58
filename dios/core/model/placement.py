"""The choice of a node for a task in a cluster without a scheduler: an interface, and the simplest policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dios.wire.gossip import MemberRow
from dios.wire.messages import Limits
from dios.wire.types import Fitness, NodeStatus


class Placement(Protocol):
    """A policy that chooses a node for a task among this node and the other living nodes.

    It must not wait, and must return the same result for the same arguments.
    """

    def choose(
        self, candidates: Sequence[MemberRow], own: MemberRow, asked: Limits, *, pure: bool
    ) -> MemberRow:
        """Return the node for a task with these limits, where a limit of 0 was not given.

        ``pure`` is True for a task that needs a node that is fit for pure tasks.
        """


class LeastLoaded:
    """The policy that chooses the node with the fewest tasks per processor.

    In a tie it chooses this node, else the first node by name.

    A draining node gets no task, and a suspect only if there is no other node. A pure task goes to a node
    that does not know yet if it is fit only if no node is known to be, and to one that is not fit, which
    refuses it, only if there is no other. Nodes with less free memory than the limit of the task come after
    all others. They are not excluded, because a limit does not predict the use. If all nodes are draining
    the task stays on this node, where the run was requested.
    """

    def choose(
        self, candidates: Sequence[MemberRow], own: MemberRow, asked: Limits, *, pure: bool
    ) -> MemberRow:
        """Return the node for a task with these limits."""

        def rank(member: MemberRow) -> tuple[bool, bool, bool, bool, float, bool, str, int]:
            return (
                pure and member.fitness is Fitness.UNFIT,
                member.status is not NodeStatus.ALIVE,
                pure and member.fitness is Fitness.UNKNOWN,
                member.load.memory_bytes < asked.memory_bytes,
                member.load.tasks / max(member.load.cpus, 1),
                member.node != own.node,
                member.name,
                member.node,
            )

        accepting = [member for member in (own, *candidates) if not member.draining]
        return min(accepting or [own], key=rank)
