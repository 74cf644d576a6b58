"""The rules that choose a server: Packer's score as printed and as intended, and two of our own.

The rules of other systems are in ``baselines.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from dios.packer.kernels.records import ALIGN, BEST, CUBIC, FIRST, ScoreRule

KINDS: Final = {"cubic": CUBIC, "align": ALIGN, "first": FIRST, "best": BEST}


@dataclass(frozen=True)
class Policy:
    """A rule to compare servers, its knowledge of a job, and its order of placing the job's nodes.

    - ``score``: "cubic" is equations 7 and 8, "align" the scalar product of the demand and the free amounts,
      "best" prefers the place with the least rest, "first" takes the first with room.
    - ``unused``: the value that "cubic" gives each unused link of the longest path, at each instant.
    - ``remote``, ``racks``, ``pods``: the fractions of its score that a server loses with "align" if all
      traffic of the task has to leave the server, the rack, the pod.
    - ``ahead``: the fraction that a server loses if its link lacks room for all traffic that the task will
      ever have; 0 disables this check.
    - ``knows``: the demands over "time", only the "peaks", or only the "slots" of a server, which has
      ``slots`` of them.
    - ``order``: by "start" and dependency, by "flow" (each node after those with which it exchanges the
      most), or by dominant "share", smallest first.
    - ``calm``: while the utilisation of bandwidth is below ``calm`` times the highest of the other four, over
      the job's instants, servers are compared by "best" in order of "start". A job without a place in one
      way is tried in the other way, too. With 0 there is no other way.
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
    def calm_policy(self) -> Policy:
        """The rule for times with plenty of bandwidth."""
        return replace(self, score="best", order="start", ahead=0.0, remote=0.0, racks=0.0, pods=0.0)

    @property
    def rule(self) -> ScoreRule:
        """The parameters for the kernels."""
        return ScoreRule(KINDS[self.score], self.unused, self.remote, self.racks, self.pods, self.ahead)


LITERAL: Final = Policy("literal", unused=0.0)
"""Equations 6 to 8 as printed: used links add to a score, so that placing tasks together gains nothing."""
FIXED: Final = Policy("fixed")
"""The same, but each unused link of the longest path counts as a free one."""
ALIGNED: Final = Policy("aligned", "align", remote=0.1, racks=0.3, pods=0.3)
"""Alignment, with less score for traffic that leaves the server, the rack and the pod."""
AHEAD: Final = Policy("ahead", "align", remote=0.3, racks=0.3, pods=0.3, ahead=0.9, order="flow", calm=0.3)
"""The same in the order of flows, also with regard to edges whose other ends are not placed yet: a server
whose own link lacks room for a task's whole traffic is the last choice. If bandwidth is plenty, best fit."""
