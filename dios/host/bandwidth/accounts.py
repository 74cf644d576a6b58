"""The account that bytes are charged to: a task's own while a guarantee names it, else its principal's.

A task that reserves bandwidth takes turns under an account of its own, too.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from dios.ids import TaskId


class TaskAccount(NamedTuple):
    """The account of a task that is an end of a guarantee, or has a rate of its own."""

    principal: str
    task: TaskId


Account: TypeAlias = str | TaskAccount
"""A principal stands for all its tasks that have no account of their own."""
