"""Where a task runs that names no node: an interface, and the simplest policy behind it.

Not for: optimal schedules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dios.wire.gossip import Member
from dios.wire.messages import Limits


class Placement(Protocol):
    """Chooses one of the candidates, which are other nodes that live, or this one."""

    def choose(self, candidates: Sequence[Member], own: Member, asked: Limits) -> Member:
        """The node for a task with these limits."""
        ...


class LeastLoaded:
    """The node with the fewest tasks for each processor."""

    def choose(self, candidates: Sequence[Member], own: Member, asked: Limits) -> Member:
        """This one where others have no less to do."""
        del asked
        able = [member for member in (own, *candidates) if not member.draining] or [own]
        return min(able, key=lambda one: (one.load.tasks / max(one.load.cpus, 1), one is not own, one.name))
