"""On whose account bytes go: a task's own while a guarantee names it, or its principal's.

Not for: who may move how much (``dios.host.bandwidth.guarantees``, ``dios.host.bandwidth.rates``).
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from dios.ids import TaskId


class TaskAccount(NamedTuple):
    """One task of a principal that is at an end of a guarantee."""

    principal: str
    task: TaskId


Account: TypeAlias = str | TaskAccount
"""A principal stands for all of its that has no account of its own."""
