"""The needs of a task, and the calls between a node and its scheduler (thesis ch. 6).

A submission waits on the node of the task that asked for it. The scheduler reads the submission queues of
its nodes and assigns each submission to a node. So no submission is lost with a scheduler, and none is
placed twice by two of them. ``dios.firmament`` decides; ``dios.core.calls.scheduling_calls`` executes.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from dios import limits
from dios.wire.fields import (
    U63,
    ByteCount,
    Call,
    Count,
    Counter,
    Fingerprint,
    Identifier,
    Inline,
    Label,
    Message,
    Milliseconds,
    ProcessId,
    Secrecy,
    Text,
    Thousandths,
)
from dios.wire.types import Affinity, Fitness, Operator, TaskState

COORDINATOR_LABEL: Final = "coordinator"
"""The label of the tasks of the nodes' coordinators."""


class Constraint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A condition of a task on the labels of a node; one that is not hard only adds cost (§6.3.1)."""

    key: Label
    operator: Operator = Operator.EQUAL
    value: Label = ""
    hard: bool = True


class Near(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A node that has input of the task, and the number of its bytes."""

    node: Label
    bytes: U63 = 0


DeviceKind: TypeAlias = Annotated[str, Meta(max_length=limits.DEVICE_KIND_CHARS_MAX)]
"""A kind of devices, such as ``gpu``. The operator of a node chooses it."""


class DeviceRequest(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The number of devices of a kind that a task has for itself while it runs."""

    kind: DeviceKind
    count: Annotated[int, Meta(ge=1, le=limits.DEVICES_MAX)] = 1


class Device(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A device of a node, which one task has at a time. One without files is only counted."""

    kind: DeviceKind
    name: Label
    """Its name among the devices of its kind, such as the number of a GPU."""
    files: Annotated[tuple[Text, ...], Meta(max_length=limits.DEVICE_FILES_MAX)] = ()


JobBound: TypeAlias = Annotated[int, Meta(ge=0, le=limits.JOB_BOUND_MAX)]
"""A number of running tasks of a job; 0 for no bound."""


Processors: TypeAlias = Annotated[tuple[Count, ...], Meta(max_length=limits.PINNED_PROCESSORS_MAX)]
"""Numbers of hardware threads, as the system has them."""


class ThreadPlace(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A hardware thread of a node, and the parts of the machine that it is in, each by a number (§6.5.2).

    Threads with the same number share the part. A ``cache`` is the last level, and a ``socket`` a package.
    """

    thread: Count
    core: Count
    cache: Count
    numa: Count
    socket: Count


class Work(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The needs and the urgency of a task; 0 and empty mean that nothing was given.

    The four resources are reserved on the node while the task runs. ``gang`` tasks of the job start
    together or not at all; a ``job`` of 0 is the task's own. Of the bounds that the tasks of a job name, the
    largest minimum and the smallest maximum hold. ``deadline_ms`` counts from now.
    """

    cpus_milli: U63 = 0
    memory_bytes: U63 = 0
    disk_io: U63 = 0
    """Bytes per second."""
    network: U63 = 0
    """Bytes per second."""
    priority: U63 = 0
    deadline_ms: U63 = 0
    equivalence: Label = ""
    interference: Annotated[int, Meta(ge=0, le=3)] = 1
    """Turtle, sheep, rabbit or devil (§7.3.2)."""
    service: bool = False
    restartable: bool = False
    """True if the task may be stopped and started again on another node."""
    job: Identifier = 0
    gang: U63 = 0
    tasks: U63 = 0
    """The number of tasks of the job, if it is a gang."""
    affinity: Affinity = Affinity.NONE
    near: Annotated[tuple[Near, ...], Meta(max_length=limits.WORK_NEAR_MAX)] = ()
    constraints: Annotated[tuple[Constraint, ...], Meta(max_length=limits.WORK_CONSTRAINTS_MAX)] = ()
    reservation: Identifier = 0
    """The number of the job that was admitted over time (Packer), whose needs are already reserved."""
    member: Label = ""
    """The name of the task within that job."""
    pinned: bool = False
    """True if it runs on whole processors that no other pinned task has."""
    best_effort: bool = False
    """True if nothing is reserved for it: it uses what others have reserved and do not use."""
    grace_ms: Annotated[int, Meta(ge=0, le=limits.GRACE_MS_MAX)] = 0
    """The time in which a restartable task leaves its node when it is asked to. 0: it is never asked."""
    moves: Counter = 0
    """The number of earlier moves of the run; for its reports only."""
    restarts: Counter = 0
    """The number of earlier times that it began again without having saved its state; likewise."""
    kept_bytes: ByteCount = 0
    """The bytes of the checkpoint that it continues from; likewise."""
    devices: Annotated[tuple[DeviceRequest, ...], Meta(max_length=limits.DEVICE_KINDS_MAX)] = ()
    """The devices that it needs, at most one entry for a kind."""
    threads: Processors = ()
    """The hardware threads that the scheduler named for it; its node uses those of them that are free."""
    job_minimum: JobBound = 0
    """E_j of its job: the number of tasks of the job that run before the work of others."""
    job_maximum: JobBound = 0
    """F_j of its job: the most tasks of the job that run at once; 0 for all."""
    copy_of: Fingerprint = ""
    """The task of the same user of which it is a speculative copy; for the scheduler only."""
    time_ms: Annotated[int, Meta(ge=0, le=limits.RUN_TIME_MS_MAX)] = 0
    """The time after which its node ends it, from the start of its process; 0: it may run for ever."""

    @property
    def reserves(self) -> bool:
        """Return True if resources are reserved for it."""
        return self.names_resources and not self.best_effort

    @property
    def names_resources(self) -> bool:
        """Return True if it says which resources it needs, reserved or not."""
        amounts = (self.cpus_milli, self.memory_bytes, self.disk_io, self.network, self.devices)
        return any(amounts)

    @property
    def processors(self) -> int:
        """The number of whole processors of a pinned task; 0 if it is not pinned."""
        return self.cpus_milli // 1000 if self.pinned else 0

    @property
    def choosy(self) -> bool:
        """Return True if it restricts the nodes where it may run, beyond its use of resources."""
        bounded = self.gang or self.job_minimum or self.job_maximum
        return bool(bounded or self.affinity or any(constraint.hard for constraint in self.constraints))

    @property
    def particular(self) -> bool:
        """Return True if only a scheduler can honour it."""
        return self.reserves or self.best_effort or self.choosy


class ReadQueue(Call, frozen=True, tag=43):
    """The submission queue and the tasks of a node, once its version is over ``since`` or after ``wait_ms``.

    With ``attend`` the caller schedules the queue: runs wait for it from now on. With ``own`` the caller is
    the coordinator of that node itself. With ``changes`` the answer has only the rows that changed after
    ``since``; a reader of a partial answer gives its marks ``listed`` and ``tasks_listed`` to get the waiting
    runs and the tasks behind them. For the node's own user and root.
    """

    host: Text = ""
    since: U63 = 0
    wait_ms: Annotated[int, Meta(ge=0, le=limits.QUEUE_WAIT_MS_MAX)] = 0
    attend: bool = False
    own: bool = False
    changes: bool = False
    listed: U63 = 0
    tasks_listed: U63 = 0


class Placement(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A submission, the name of the node to which it is assigned, and the task's place there."""

    submission: Identifier
    node: Label
    threads: Processors = ()
    """The hardware threads for its task; empty if its node chooses."""


class PromisedStart(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The node on which room is kept for a submission, and when its task is expected to start there."""

    submission: Identifier
    node: Label
    """Empty: nothing is kept for it any more."""
    in_ms: Milliseconds = 0


class Place(Call, frozen=True, tag=44):
    """Start submissions of the node called ``host``, and stop tasks that run there and may be restarted.

    Each is handled separately: one that is already placed or gone is refused alone. For the node's own user
    and root.
    """

    host: Text = ""
    placements: Annotated[tuple[Placement, ...], Meta(max_length=limits.QUEUE_ROWS_MAX)] = ()
    preempted: Annotated[tuple[Identifier, ...], Meta(max_length=limits.QUEUE_ROWS_MAX)] = ()


class KeepRooms(Call, frozen=True, tag=61):
    """Show these promised starts to all readers of the queue of the node called ``host``.

    Each is handled separately. For the node's own user and root.
    """

    host: Text = ""
    promised: Annotated[tuple[PromisedStart, ...], Meta(max_length=limits.RESERVATIONS_MAX)] = ()


class AskScheduler(Call, frozen=True, tag=45):
    """A question to the scheduler of this node, in the form of
    ``dios.firmament.coordinator.query_handler``.
    """

    question: Annotated[bytes, Meta(max_length=limits.SCHEDULER_QUESTION_BYTES_MAX)]


class Advise(Call, frozen=True, tag=46):
    """The answer to a question on the node called ``host``; a long answer comes in parts."""

    host: Text
    number: Identifier
    answer: Inline
    more: bool = False


class Report(Call, frozen=True, tag=47):
    """Measurements of this node's coordinator for the scheduler; the newest few are kept."""

    data: Inline


# -- answers --------------------------------------------------------------------------------------------
class Submission(Struct, frozen=True, array_like=True):
    """A run that waits for its place since ``waited_ms``. Its id is that of its future task."""

    id: Identifier
    fingerprint: Fingerprint
    label: Text
    principal: Text
    waited_ms: Milliseconds
    work: Work
    node: Label
    """The node of its caller."""
    pure: bool = False
    """True if it needs a node that is fit for pure tasks."""
    secrecy: Secrecy = ()
    """The tags of what its caller has read."""


class KeptRoom(Struct, frozen=True, array_like=True):
    """A submission for which room is kept on a node until its expected start.

    The parts of its work that restrict its place are omitted.
    """

    submission: Identifier
    node: Label
    in_ms: Milliseconds
    waited_ms: Milliseconds
    work: Work
    secrecy: Secrecy = ()
    """The tags of what its caller has read."""


class Occupant(Struct, frozen=True, array_like=True):
    """A task of a node. One that has ended is listed for a while, with its use of resources.

    The parts of its work that restrict its place are omitted.
    """

    id: Identifier
    fingerprint: Fingerprint
    label: Text
    principal: Text
    state: TaskState
    pid: ProcessId
    age_ms: Milliseconds
    """Since its start; for a task that has ended, its run time."""
    work: Work
    cpu_ms: Milliseconds
    memory_bytes: ByteCount
    completed: bool
    moving: bool = False
    """True if it was asked to leave the node."""
    devices: Annotated[tuple[Device, ...], Meta(max_length=limits.DEVICES_MAX)] = ()
    """The devices that it has, without their files."""
    processors: Processors = ()
    """The hardware threads on which alone it runs; empty if it may run on all."""
    progress: Thousandths | None = None
    """The share of its work that it has done; None if it has not reported it."""
    secrecy: Secrecy = ()
    """The tags of what it has read."""


class Asked(Struct, frozen=True, array_like=True):
    """A question that waits for an answer; ``ruler`` is True if it is from the node's own user."""

    number: Identifier
    principal: Text
    ruler: bool
    question: Annotated[bytes, Meta(max_length=limits.SCHEDULER_QUESTION_BYTES_MAX)]


class QueueRows(Struct, frozen=True, array_like=True, tag=15):
    """The answer to ReadQueue; without rows if nothing is newer than the caller's version.

    ``partial`` is True if one answer cannot hold all waiting runs or all living tasks. ``shares_version`` and
    ``shares`` are the data that coordinators exchange by ``Govern``, for the node's own coordinator; the
    version is 0 for all others.

    If ``whole`` is True, the rows are all that the node has, or with ``partial`` the first of them.
    Otherwise they are those that changed, and ``gone`` are the ids of runs that wait no longer and of tasks
    that have ended. ``listed`` and ``tasks_listed`` are the marks for the next call; each is 0 if nothing of
    its kind is left.
    """

    version: Counter
    node: Identifier
    name: Label
    rack: Label
    cpus: Count
    memory_bytes: ByteCount
    slots: Count
    labels: Annotated[tuple[tuple[Label, Label], ...], Meta(max_length=limits.NODE_LABELS_MAX)]
    draining: bool
    coordinated: bool
    """True if the node has a coordinator of its own."""
    waiting: Annotated[tuple[Submission, ...], Meta(max_length=limits.QUEUE_ROWS_MAX)]
    tasks: Annotated[tuple[Occupant, ...], Meta(max_length=limits.QUEUE_ROWS_MAX)]
    asked: Annotated[tuple[Asked, ...], Meta(max_length=limits.SCHEDULER_QUESTIONS_MAX)]
    reports: Annotated[tuple[tuple[Counter, Inline], ...], Meta(max_length=limits.SCHEDULER_REPORTS_KEPT)]
    """Numbered, the oldest first."""
    partial: bool
    shares_version: U63 = 0
    shares: Annotated[bytes, Meta(max_length=limits.SHARES_BYTES_MAX)] = b""
    whole: bool = True
    listed: U63 = 0
    gone: Annotated[tuple[Identifier, ...], Meta(max_length=limits.QUEUE_GONE_KEPT)] = ()
    tasks_listed: U63 = 0
    disk_io: U63 = 0
    """Bytes per second, as for ``network``; 0 while the node does not know it, and then none is reserved."""
    network: U63 = 0
    enforcement: Annotated[tuple[tuple[Label, Label], ...], Meta(max_length=limits.ENFORCED_MAX)] = ()
    """For each resource the reason why the node cannot hold a task to its part; empty if it can."""
    devices: Annotated[tuple[DeviceRequest, ...], Meta(max_length=limits.DEVICE_KINDS_MAX)] = ()
    """The number of the node's devices of each kind."""
    threads: Annotated[tuple[ThreadPlace, ...], Meta(max_length=limits.TOPOLOGY_CPUS_MAX)] = ()
    """The hardware threads for tasks, in answers with all rows; empty in others, or if unknown."""
    fitness: Fitness = Fitness.FIT
    """The node's ability to run pure tasks."""
    kept: Annotated[tuple[KeptRoom, ...], Meta(max_length=limits.RESERVATIONS_MAX)] | None = None
    """All promised starts of its submissions; None if they are those of the version that the caller knows."""
    limbo_from_nodes: bool = False
    """True if tasks of other nodes may start limbo tasks here."""


class Placed(Struct, frozen=True, array_like=True, tag=16):
    """The answer to Place: refused submissions and tasks with reasons, and the queue's earlier version.

    A submission that the queue shows as waiting afterwards came back: its node had no room.
    """

    refused: Annotated[tuple[tuple[Identifier, Message], ...], Meta(max_length=2 * limits.QUEUE_ROWS_MAX)]
    version: Counter


class Advice(Struct, frozen=True, array_like=True, tag=17):
    """The answer to AskScheduler."""

    answer: Annotated[bytes, Meta(max_length=limits.ADVICE_BYTES_MAX)]
