"""A task in JSON, in all commands that print one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import field

from dios.cli.common.rows import Row

if TYPE_CHECKING:
    from typing import Self

    from dios.client.ops.status import Status


class TaskRow(Row, kw_only=True):
    """A task. Times are nanoseconds since 1970, 0 for not yet; secrecy is what it has read."""

    fingerprint: str
    label: str
    state: str
    brand: str
    principal: str
    pid: int
    started_ns: int = field(name="started")
    ended_ns: int = field(name="ended")
    cause: str
    exit_status: int | None
    signal: int
    detail: str
    parent: str
    node: str
    leave_ns: int = field(name="leave_by")
    moves: int
    restarts: int
    kept_bytes: int
    progress: float | None
    secrecy: list[str]

    @classmethod
    def of_task(cls, task: Status, **values: object) -> Self:
        """Return a row with these values, and the others of a task."""
        state = "moving" if task.leave_ns and not task.ended else task.state
        return cls.of(task, state=state, exit_status=task.exit_status if task.ended else None, **values)
