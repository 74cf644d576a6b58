"""The status of tasks, and the events on a task's self-reference, as programs get them.

``dios.wire.messages`` has the records on the wire.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from dios.client.ops.notebook_html import properties
from dios.limits import PROGRESS_WHOLE
from dios.wire.messages import TaskRow
from dios.wire.types import Brand, Cause, TaskState

R = TypeVar("R")

_BY_SIGNAL: Final = 128
_FAILED: Final = 1
_NOT_STARTED: Final = 126
_TIMED_OUT: Final = 124
"""The exit status of timeout(1)."""
_SIGNAL_OF_CAUSE: Final = {Cause.SANDBOX: signal.SIGSYS, Cause.CPU: signal.SIGXCPU}
"""The signal that stands for the cause of an end without a signal; other causes stand for SIGKILL."""


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a task; times are nanoseconds of the node's clock, 0 for not yet.

    ``detail`` is the reason of its end as text, with its last lines if there are any, and the remedy;
    ``node`` is the node on which it runs or ran. ``exit_code`` of a task that a node could not start is the
    code of the error, 0 if there is none. A task that was asked to leave its node is ended at
    ``leave_ns``. Its run was moved ``moves`` times and began again ``restarts`` times before; it continued
    from a checkpoint of ``kept_bytes``. ``progress`` is the share of its work that it has reported as done,
    from 0 to 1. ``secrecy`` are the tags of what it has read.
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
    leave_ns: int = 0
    moves: int = 0
    restarts: int = 0
    kept_bytes: int = 0
    progress: float | None = None
    secrecy: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """Return the status for a notebook, without the name."""
        ended = self.state is TaskState.ENDED
        return properties(
            "Status",
            (
                ("task", self.fingerprint),
                ("label", self.label),
                ("secrecy", " ".join(self.secrecy) or None),
                ("state", self.state.name.lower()),
                ("cause", self.cause.name.lower() if ended else None),
                ("exit code", self.exit_code if ended else None),
                ("node", self.node),
                ("detail", self.detail),
            ),
        )

    @property
    def ended(self) -> bool:
        """Return True if the task has ended."""
        return self.state is TaskState.ENDED

    @property
    def ok(self) -> bool:
        """Return True if its program ended by itself with exit code 0."""
        return self.ended and self.cause is Cause.EXITED and self.exit_code == 0

    @property
    def exit_status(self) -> int:
        """Return its end as a shell would: the exit code of the program, 126 if it never started, 124 if its
        time was over, else 128 plus the number of the signal that ended it. 0 for a running task.
        """
        if not self.ended:
            return 0
        if self.cause is Cause.EXITED:
            return self.exit_code
        if self.cause is Cause.EXCEPTION:
            return self.exit_code or _FAILED
        if self.cause is Cause.SPAWN:
            return _NOT_STARTED
        if self.cause is Cause.TIME:
            return _TIMED_OUT
        return _BY_SIGNAL + (self.signal or _SIGNAL_OF_CAUSE.get(self.cause, signal.SIGKILL))


def status_of(row: TaskRow) -> Status:
    """Return a record from the wire as a Status."""
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
        leave_ns=row.leave_ns,
        moves=row.moves,
        restarts=row.restarts,
        kept_bytes=row.kept_bytes,
        progress=None if row.progress is None else row.progress / PROGRESS_WHOLE,
        secrecy=row.secrecy,
    )


@dataclass(frozen=True, slots=True)
class Delegated(Generic[R]):
    """Another task delegated a reference to this one (§4.5.3); ``sender`` is that task's fingerprint."""

    reference: R
    sender: str


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """A task that this one started has ended; ``object_id`` is that of its reference."""

    object_id: int
    status: Status


@dataclass(frozen=True, slots=True)
class Retired:
    """A reference of this task was taken back, or has ``expired``; I/O on it fails from now on.

    ``ref`` is its number, like ``Handle.ref``.
    """

    ref: int
    object_id: int
    fingerprint: str
    label: str
    expired: bool


@dataclass(frozen=True, slots=True)
class Lost:
    """The number of events that were dropped because this task did not read them in time."""

    count: int
