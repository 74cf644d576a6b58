"""What a program learns about tasks: their status, and the events on its own self-reference.

Not for: the records on the wire (``dios.wire.messages``), whose names would show in logs.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from dios.wire.messages import TaskRow
from dios.wire.types import Brand, Cause, TaskState

R = TypeVar("R")

_BY_SIGNAL: Final = 128
_FAILED: Final = 1
_NOT_STARTED: Final = 126
_SIGNAL_OF_CAUSE: Final = {Cause.SANDBOX: signal.SIGSYS, Cause.CPU: signal.SIGXCPU}
"""What ended a task where its status names no signal; else it was killed."""


@dataclass(frozen=True, slots=True)
class Status:
    """One task as its TASK object describes it; times are nanoseconds of the node's clock, 0 for not yet.

    ``detail`` says in words why it ended, with its last lines where there are any, and what to try;
    ``node`` is where it runs or ran.
    """

    fingerprint: str
    label: str
    state: TaskState
    brand: Brand = Brand.PURE
    principal: str = ""
    pid: int = 0
    started_ns: int = 0
    ended_ns: int = 0
    cause: Cause = Cause.NONE
    exit_code: int = 0
    signal: int = 0
    detail: str = ""
    parent: str = ""
    name: bytes | None = field(default=None, repr=False)
    node: str = ""

    @property
    def ended(self) -> bool:
        """Whether the task is over."""
        return self.state is TaskState.ENDED

    @property
    def ok(self) -> bool:
        """Whether its program ended by itself with exit code 0."""
        return self.ended and self.cause is Cause.EXITED and self.exit_code == 0

    @property
    def exit_status(self) -> int:
        """Its end as a shell would give it: the program's own status, 126 when it never started, else 128
        and the number of the signal that ended it. 0 for a task that still runs.
        """
        if not self.ended:
            return 0
        if self.cause is Cause.EXITED:
            return self.exit_code
        if self.cause is Cause.EXCEPTION:
            return self.exit_code or _FAILED
        if self.cause is Cause.SPAWN:
            return _NOT_STARTED
        return _BY_SIGNAL + (self.signal or _SIGNAL_OF_CAUSE.get(self.cause, signal.SIGKILL))


def status_of(row: TaskRow) -> Status:
    """A record from the wire as a program may show it."""
    return Status(
        fingerprint=row.fingerprint,
        label=row.label,
        state=row.state,
        brand=row.brand,
        principal=row.principal,
        pid=row.pid,
        started_ns=row.started_ns,
        ended_ns=row.ended_ns,
        cause=row.cause,
        exit_code=row.exit_code,
        signal=row.signal,
        detail=row.detail,
        parent=row.parent,
        name=row.name,
        node=row.node,
    )


@dataclass(frozen=True, slots=True)
class Delegated(Generic[R]):
    """Another task handed this one a reference (§4.5.3); ``sender`` is that task's fingerprint."""

    reference: R
    sender: str


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A task that this one started has ended; ``object_id`` is that of its reference."""

    object_id: int
    status: Status


@dataclass(frozen=True, slots=True)
class Retired:
    """A reference of this task was taken back by who delegated it, or ``expired``; I/O on it fails from now.

    ``ref`` is its number, as of ``Handle.ref``.
    """

    ref: int
    object_id: int
    fingerprint: str
    label: str
    expired: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """So many events were dropped because this task did not read them in time."""

    count: int
