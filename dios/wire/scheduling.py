"""What a run says of its work, and the calls between a node and who schedules for it (thesis ch. 6).

Not for: deciding (``dios.firmament``), or what the calls do (``dios.core.calls.scheduling_calls``). A
submission waits
on the node of the task that asked for it; whoever schedules reads the nodes' boards and says where each
goes. So nothing is lost with a scheduler, and nothing is placed twice by two of them.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from dios import limits
from dios.wire.fields import U64, Call, Inline, Text
from dios.wire.types import Affinity, Operator, TaskState

Label: TypeAlias = Annotated[str, Meta(max_length=limits.NODE_NAME_BYTES_MAX)]


class Constraint(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a task asks of a node's labels; soft ones only cost (§6.3.1)."""

    key: Label
    operator: Operator = Operator.EQUAL
    value: Label = ""
    hard: bool = True


class Near(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A node that has input of the task, and how many bytes."""

    node: Label
    bytes: U64 = 0


class Work(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a task needs and how urgent it is; 0 and empty mean that nothing was said.

    What is said of the four resources is set aside on the node while the task runs. ``gang`` of the
    job's tasks start together or none; a ``job`` of 0 is the task's own. ``deadline_ms`` counts from now.
    """

    cpus_milli: U64 = 0
    memory_bytes: U64 = 0
    disk_io: U64 = 0
    """Bytes per second."""
    network: U64 = 0
    """Bytes per second."""
    priority: U64 = 0
    deadline_ms: U64 = 0
    equivalence: Label = ""
    interference: Annotated[int, Meta(ge=0, le=3)] = 1
    """Turtle, sheep, rabbit or devil (§7.3.2)."""
    service: bool = False
    restartable: bool = False
    """Whether it may be stopped, to be started again elsewhere."""
    job: U64 = 0
    gang: U64 = 0
    tasks: U64 = 0
    """How many tasks the job will have, where it is a gang."""
    affinity: Affinity = Affinity.NONE
    near: Annotated[tuple[Near, ...], Meta(max_length=limits.WORK_NEAR_MAX)] = ()
    constraints: Annotated[tuple[Constraint, ...], Meta(max_length=limits.WORK_CONSTRAINTS_MAX)] = ()
    reservation: U64 = 0
    """The number of the job that was admitted over time (Packer); what it needs is set aside already."""
    member: Label = ""
    """Which of that job's tasks it is."""

    @property
    def reserves(self) -> bool:
        """Whether anything is to be set aside for it."""
        return bool(self.cpus_milli or self.memory_bytes or self.disk_io or self.network)

    @property
    def choosy(self) -> bool:
        """Whether it says where it may run, beyond what it uses there."""
        return bool(self.gang or self.affinity or any(one.hard for one in self.constraints))

    @property
    def particular(self) -> bool:
        """Whether only who schedules can honour it."""
        return self.reserves or self.choosy


class ReadQueue(Call, frozen=True, tag=43):
    """What waits and runs on a node, once its board's version is over ``since``, or ``wait_ms`` passed.

    ``attend`` says that the caller schedules what waits there: runs wait for it from now on. ``own`` says
    that the caller is that node's own coordinator. For the node's own user and root.
    """

    host: Text = ""
    since: U64 = 0
    wait_ms: Annotated[int, Meta(ge=0, le=limits.QUEUE_WAIT_MS_MAX)] = 0
    attend: bool = False
    own: bool = False


class Placement(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A submission, and the name of the node where it goes."""

    submission: U64
    node: Label


class Place(Call, frozen=True, tag=44):
    """Start submissions of the node called ``host``, and stop tasks that run there and may be restarted.

    Each is done once: what is placed already, or gone, is refused alone. For the node's own user and root.
    """

    host: Text = ""
    placements: Annotated[tuple[Placement, ...], Meta(max_length=limits.BOARD_ROWS_MAX)] = ()
    preempted: Annotated[tuple[U64, ...], Meta(max_length=limits.BOARD_ROWS_MAX)] = ()


class AskScheduler(Call, frozen=True, tag=45):
    """A question to whoever schedules for this node, as ``dios.firmament.coordinator.query_handler`` spells
    it.
    """

    question: Annotated[bytes, Meta(max_length=limits.SCHEDULER_QUESTION_BYTES_MAX)]


class Advise(Call, frozen=True, tag=46):
    """The answer to a question on the board of the node called ``host``; what is longer comes in parts."""

    host: Text
    number: U64
    answer: Inline
    more: bool = False


class Report(Call, frozen=True, tag=47):
    """What this node's coordinator has measured, for whoever schedules; the newest few are kept."""

    data: Inline


# -- answers --------------------------------------------------------------------------------------------
class Submission(Struct, frozen=True, array_like=True):
    """A run that waits for its place; ``waited_ms`` so long by now. Its id is that of the task to be."""

    id: int
    fingerprint: str
    label: str
    principal: str
    waited_ms: int
    work: Work
    node: str
    """Where its caller is."""


class Occupant(Struct, frozen=True, array_like=True):
    """A task of a node. One that has ended stands here for a while, with what it used.

    What its work said of places is left out: it has its place.
    """

    id: int
    fingerprint: str
    label: str
    principal: str
    state: TaskState
    pid: int
    age_ms: int
    """Since it was started; of one that has ended: how long it ran."""
    work: Work
    cpu_ms: int
    memory_bytes: int
    completed: bool


class Asked(Struct, frozen=True, array_like=True):
    """A question that waits for an answer; ``ruler`` whether it is by the node's own user."""

    number: int
    principal: str
    ruler: bool
    question: bytes


class QueueRows(Struct, frozen=True, array_like=True, tag=15):
    """Answer to Board; without rows where nothing is newer than what the caller has seen.

    ``partial`` says that more waits than one answer holds. The last two are what coordinators tell each other
    by ``Govern``, for the node's own one, which may keep it; the version is 0 for none and for all others.
    """

    version: int
    node: int
    name: str
    rack: str
    cpus: int
    memory_bytes: int
    slots: int
    labels: tuple[tuple[str, str], ...]
    draining: bool
    coordinated: bool
    """Whether the node has a coordinator of its own."""
    waiting: tuple[Submission, ...]
    tasks: tuple[Occupant, ...]
    asked: tuple[Asked, ...]
    reports: tuple[tuple[int, bytes], ...]
    """Numbered, oldest first."""
    partial: bool
    shares_version: int = 0
    shares: bytes = b""


class Placed(Struct, frozen=True, array_like=True, tag=16):
    """Answer to Place: what of the submissions and tasks was refused, and why; the board's version before.

    What that board shows as waiting later came back: the node where it went had no room.
    """

    refused: tuple[tuple[int, str], ...]
    version: int


class Advice(Struct, frozen=True, array_like=True, tag=17):
    """Answer to AskScheduler."""

    answer: bytes
