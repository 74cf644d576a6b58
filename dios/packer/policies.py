"""The ways to choose a server: Packer's score as printed and as meant, and a rule of our own.

Not for: what others do, which is in ``baselines.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from dios.packer.kernels.records import ALIGN, BEST, CUBIC, FIRST, Rule

KINDS: Final = {"cubic": CUBIC, "align": ALIGN, "first": FIRST, "best": BEST}


@dataclass(frozen=True)
class Policy:
    """How servers are compared, what of a job is known, and in which order its nodes are placed.

    ``score``: "cubic" is equations 7 and 8, "align" the scalar product of what is needed and what is free,
    "best" prefers whoever has the least left over, "first" the first that has room. ``unused`` is what
    "cubic" counts for each link of the longest path that a placement does not need, at each instant.
    ``remote``, ``racks`` and ``pods`` are the parts of a score that "align" takes away from a server if all
    that the task exchanges has to leave the server, the rack, the pod; ``ahead`` the part taken from a
    server whose link has no room for all that the task will ever exchange (0: that is not looked at).
    ``knows``: demands over "time", only "peaks", or only "slots" of a server, of which there are ``slots``.
    ``order``: by "start" and dependency, by "flow" (each after those with which it exchanges the most), or
    by dominant "share", the smallest first. While the utilisation of bandwidth is below ``calm`` times the
    highest of the other four, over the job's instants, servers are compared by "best", in order of "start";
    what finds no place one way is tried the other way too (``calm`` 0: there is no other).
    """

    name: str
    score: Literal["cubic", "align", "best", "first"] = "cubic"
    unused: float = 1.0
    remote: float = 0.0
    racks: float = 0.0
    pods: float = 0.0
    ahead: float = 0.0
    knows: Literal["time", "peaks", "slots"] = "time"
    order: Literal["start", "share", "flow"] = "start"
    slots: int = 4
    calm: float = 0.0

    @property
    def in_a_calm(self) -> Policy:
        """The rule for when bandwidth is plenty."""
        return replace(self, score="best", order="start", ahead=0.0, remote=0.0, racks=0.0, pods=0.0)

    @property
    def rule(self) -> Rule:
        """As the kernels know it."""
        return Rule(KINDS[self.score], self.unused, self.remote, self.racks, self.pods, self.ahead)


LITERAL: Final = Policy("literal", unused=0.0)
"""Equations 6 to 8 as printed: links that are used add to a score, so that co-located tasks gain nothing."""
FIXED: Final = Policy("fixed")
"""The same, where each link of the longest path that is not used counts as one that is free."""
ALIGNED: Final = Policy("aligned", "align", remote=0.1, racks=0.3, pods=0.3)
"""Alignment, less for what leaves the server, the rack and the pod."""
AHEAD: Final = Policy("ahead", "align", remote=0.3, racks=0.3, pods=0.3, ahead=0.9, order="flow", calm=0.3)
"""The same by the order of flows, with an eye to edges whose other ends have no place yet: a server whose own
link has no room for all that a task will exchange is the last choice. While bandwidth is plenty, best fit."""
