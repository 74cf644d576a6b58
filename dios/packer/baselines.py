"""The rules of other systems; use them as in ``allocate(datacenter, job, policy=baselines.TETRIS)``.

Packer's own rules are in ``policies.py``. All rules check whole paths, so a comparison shows the effect of
the choice of servers and of the knowledge about a job.
"""

from __future__ import annotations

from typing import Final

from dios.packer.policies import AHEAD, ALIGNED, FIXED, LITERAL, Policy

TETRIS: Final = Policy("tetris", "align", remote=0.1, knows="peaks")
"""Alignment, and a tenth less for traffic from another server; knows peaks."""
TETRIS_TIME: Final = Policy("tetris-time", "align", remote=0.1)
"""The same with the demands over time."""
SLOTS: Final = Policy("slots", "first", knows="slots")
"""A server is four equal slots; a task takes one, or as many as its peaks need."""
DRF_FIRST_FIT: Final = Policy("drf-first-fit", "first", knows="peaks", order="share")
"""Tasks in the order of their dominant shares, each on the first server with room for its peaks."""
BEST_FIT: Final = Policy("best-fit", "best", knows="peaks")
"""Each task at the place with the least rest; knows peaks."""
BEST_FIT_TIME: Final = Policy("best-fit-time", "best")
"""The same with the demands over time."""

POLICIES: Final = {
    policy.name: policy
    for policy in (
        LITERAL,
        FIXED,
        ALIGNED,
        AHEAD,
        TETRIS,
        TETRIS_TIME,
        SLOTS,
        DRF_FIRST_FIT,
        BEST_FIT,
        BEST_FIT_TIME,
    )
}
"""All policies by name, Packer's own first."""
