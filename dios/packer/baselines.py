"""What others do, behind the same call: ``allocate(datacenter, job, policy=baselines.TETRIS)``.

Not for: Packer's own policies (``policies.py``). All of these have the same check of whole paths, so that
what is compared is the choice of servers and what is known of a job.
"""

from __future__ import annotations

from typing import Final

from dios.packer.policies import AHEAD, ALIGNED, FIXED, LITERAL, Policy

TETRIS: Final = Policy("tetris", "align", remote=0.1, knows="peaks")
"""Alignment, a tenth less for what comes from another server; it knows peaks."""
TETRIS_TIME: Final = Policy("tetris-time", "align", remote=0.1)
"""The same, told the demands over time."""
SLOTS: Final = Policy("slots", "first", knows="slots")
"""Servers are four equal slots, a task takes one, or as many as its peaks need."""
DRF_FIRST_FIT: Final = Policy("drf-first-fit", "first", knows="peaks", order="share")
"""Tasks in the order of their dominant shares, each on the first server with room for its peaks."""
BEST_FIT: Final = Policy("best-fit", "best", knows="peaks")
"""Each task where it leaves the least."""
BEST_FIT_TIME: Final = Policy("best-fit-time", "best")
"""The same, told the demands over time."""

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
"""All of them by name, Packer's own first."""
