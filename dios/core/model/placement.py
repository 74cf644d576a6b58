"""The choice of a node for a task when no scheduler is there: an interface, and the simplest policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dios.wire.gossip import MemberRow
from dios.wire.messages import Limits
from dios.wire.types import NodeStatus


class Placement(Protocol):
    """Chooses one of the candidates, which are other nodes that live, or this one.

    It must not wait, and gives the same answer to the same question.
    """

    def choose(self, candidates: Sequence[MemberRow], own: MemberRow, asked: Limits) -> MemberRow:
        """The node for a task with these limits, of which 0 means that nothing was said; always one."""
        ...


class LeastLoaded:
    """The node with the fewest tasks for each processor; of equal ones this one, then the first by name.

    A draining node gets no task, and a suspect only when nothing else is left. Nodes that have less free
    memory than the task may use come after all others: a limit is no forecast, so they are not excluded.
    When everybody is draining the task stays here, where it was asked for.
    """

    def choose(self, candidates: Sequence[MemberRow], own: MemberRow, asked: Limits) -> MemberRow:
        """The node for a task with these limits."""

        def reluctance(one: MemberRow) -> tuple[bool, bool, float, bool, str, int]:
            return (
                one.status is not NodeStatus.ALIVE,
                one.load.memory_bytes < asked.memory_bytes,
                one.load.tasks / max(one.load.cpus, 1),
                one.node != own.node,
                one.name,
                one.node,
            )

        able = [one for one in (own, *candidates) if not one.draining]
        return min(able or [own], key=reluctance)
