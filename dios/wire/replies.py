"""What a node tells a task: the answers to calls, and what is read from TASK objects.

Not for: sending them (``dios.wire.codec``). Descriptors travel beside a frame: a ``Buffer`` whose
``mapping`` is not NONE has one, an ``Attached`` four, a ``Welcome`` one; those of a frame arrive in the
order of the results in it.
"""

from __future__ import annotations

import enum
from typing import TypeAlias

from msgspec import Struct

from dios.wire.rates import Metered
from dios.wire.scheduling import Advice, Placed, QueueRows
from dios.wire.types import (
    Brand,
    Buffering,
    Cause,
    Deletion,
    NodeStatus,
    ObjectType,
    Persistence,
    Proximity,
    Scope,
    TaskState,
)


class Mapping(enum.IntEnum):
    """How a buffer reaches the task."""

    NONE = 0  # nothing new: the bytes are in ``data``, or the mapping made earlier is still right
    READ_ONLY = 1  # a descriptor that can only be mapped for reading
    WRITABLE = 2  # a descriptor to map for reading and writing


class Failure(Struct, frozen=True, array_like=True, tag=0):
    """The call was refused and changed nothing."""

    code: int
    message: str
    fingerprint: str = ""


class Done(Struct, frozen=True, array_like=True, tag=1):
    """The call did what it should; ``value`` is its boolean or count."""

    value: int = 1


class Reference(Struct, frozen=True, array_like=True):
    """The public part of a reference (§4.5.1) as of this reply; live in slot ``slot`` of the page."""

    ref: int
    object: int
    type: ObjectType
    permissions: int
    persistence: Persistence
    proximity: Proximity
    deletion: Deletion
    buffering: Buffering
    slot: int
    size: int
    v_r: int
    v_w: int
    a_r: int
    a_w: int
    fingerprint: str
    label: str = ""
    expires_ns: int = 0  # when the node takes it back, by the node's clock; 0 for never
    node: str = ""  # the name and rack of the node that has the object; empty in no cluster
    rack: str = ""
    address: str = ""  # of a network stream: the peer's of a connection, its own of any other


class Created(Struct, frozen=True, array_like=True, tag=2):
    """Answer to create and run: the new name (None when anonymous) and the first reference."""

    name: bytes | None
    reference: Reference


class References(Struct, frozen=True, array_like=True, tag=3):
    """Answer to lookup; ``incomplete`` says that some node could not be asked."""

    references: tuple[Reference, ...]
    incomplete: bool = False


class Buffer(Struct, frozen=True, array_like=True, tag=4):
    """Answer to the acquiring calls: ``size`` usable bytes, which start at ``start`` of the mapping."""

    buffer: int
    size: int
    v_r: int
    v_w: int
    mapping: Mapping = Mapping.NONE
    start: int = 0
    length: int = 0
    data: bytes | None = None


class Committed(Struct, frozen=True, array_like=True, tag=5):
    """A commit held; the object's versions after it."""

    v_r: int
    v_w: int


class Selected(Struct, frozen=True, array_like=True, tag=6):
    """Index of the ready reference in the list given, or -1 when the time passed."""

    index: int


class Attached(Struct, frozen=True, array_like=True, tag=7):
    """One end of a stream. Descriptors in this order: the memory this end writes, the memory it only
    reads, the event counter it waits on, the event counter it rings.
    """

    ring_bytes: int


class TaskRow(Struct, frozen=True, array_like=True):
    """One task as ``dios ps`` and the status record of a TASK object show it."""

    name: bytes | None
    fingerprint: str
    label: str
    state: TaskState
    brand: Brand
    principal: str
    pid: int
    started_ns: int
    ended_ns: int
    cause: Cause
    exit_code: int
    signal: int
    detail: str
    parent: str
    node: str = ""


class Tasks(Struct, frozen=True, array_like=True, tag=8):
    """Answer to ListTasks, oldest first; ``incomplete`` says that some node could not be asked."""

    tasks: tuple[TaskRow, ...]
    incomplete: bool = False


class LimitRow(Struct, frozen=True, array_like=True):
    """Use and limits of one task, group or principal, a number for each ``Resource`` in its order.

    ``subject`` is a principal or a fingerprint; a limit that is not set is None.
    """

    scope: Scope
    subject: str
    label: str
    used: tuple[int, ...]
    limits: tuple[int | None, ...]


class LimitRows(Struct, frozen=True, array_like=True, tag=12):
    """Answer to ListLimits and SetLimits: the node, then principals, then groups, then tasks."""

    rows: tuple[LimitRow, ...]


class HandedRow(Struct, frozen=True, array_like=True):
    """One reference that a task was handed at its start.

    ``gone`` says that the object is no more, ``changed`` that it was written since.
    """

    fingerprint: str
    label: str
    type: ObjectType
    permissions: int
    size: int
    gone: bool
    changed: bool


class TaskDetail(Struct, frozen=True, array_like=True, tag=13):
    """Answer to Describe. ``groups`` and ``executable`` are fingerprints; limits of 0 were not set.

    ``cpu_ms`` and ``memory_bytes`` are what its process used, the second at its peak; 0 while it runs.
    ``repeatable`` says why a run like it is impossible; empty when it is possible.
    """

    status: TaskRow
    usage: LimitRow
    memory_limit_bytes: int
    cpu_limit_ms: int
    cpu_ms: int
    memory_bytes: int
    groups: tuple[str, ...]
    inputs: tuple[HandedRow, ...]
    outputs: tuple[HandedRow, ...]
    arguments: tuple[str, ...]
    executable: str
    repeatable: str


class Info(Struct, frozen=True, array_like=True, tag=9):
    """Answer to NodeInfo: counts by name, and what the machine lets the node enforce."""

    version: str
    node: str
    counts: dict[str, int]
    guarantees: dict[str, str]


class NodeRow(Struct, frozen=True, array_like=True):
    """One node of the cluster as the node asked sees it.

    ``node`` is its id, ``since_ns`` when it came to be in this status by the clock of the node asked,
    ``here`` whether it is that one itself; tasks, cpus and bytes of free memory are as it last told.
    """

    node: int
    name: str
    rack: str
    address: str
    status: NodeStatus
    draining: bool
    epoch: int
    since_ns: int
    tasks: int
    cpus: int
    memory_bytes: int
    here: bool


class Nodes(Struct, frozen=True, array_like=True, tag=14):
    """Answer to ListNodes and SetNode: the node asked first, then by name."""

    nodes: tuple[NodeRow, ...]


class TableRows(Struct, frozen=True, array_like=True, tag=19):
    """Answer to ReadTable: rows with a value for each column, and the ``start`` of those that follow, 0 where
    none do. ``tables`` are the names of all tables.
    """

    table: str
    columns: tuple[str, ...]
    rows: tuple[tuple[int | str, ...], ...]
    following: int
    tables: tuple[str, ...]


class Results(Struct, frozen=True, array_like=True, tag=10):
    """Answer to a Vector."""

    results: tuple[
        Failure
        | Done
        | Created
        | References
        | Buffer
        | Committed
        | Selected
        | Attached
        | Tasks
        | Info
        | LimitRows
        | TaskDetail
        | Nodes
        | QueueRows
        | Placed
        | Advice
        | Metered
        | TableRows,
        ...,
    ]


class Welcome(Struct, frozen=True, array_like=True, tag=11):
    """First reply on a connection: who the task is and what it was handed (§4.5.2).

    The descriptor beside it is the public page of references, to be mapped read-only.
    """

    version: int
    name: bytes
    brand: Brand
    self_ref: Reference
    console: Reference
    groups: tuple[Reference, ...]
    inputs: tuple[Reference, ...]
    outputs: tuple[Reference, ...]
    arguments: tuple[str, ...]
    executable: Reference | None
    label: str
    home: Reference | None = None


PlainResult: TypeAlias = (
    Failure
    | Done
    | Created
    | References
    | Buffer
    | Committed
    | Selected
    | Attached
    | Tasks
    | Info
    | LimitRows
    | TaskDetail
    | Nodes
    | QueueRows
    | Placed
    | Advice
    | Metered
    | TableRows
)
AnyResult: TypeAlias = PlainResult | Results | Welcome


class Reply(Struct, frozen=True, array_like=True):
    """One frame to a task; ``seq`` is that of its request, 0 for a Welcome nobody asked for."""

    seq: int
    result: AnyResult


# -- what is read from TASK objects ---------------------------------------------------------------
class Delegated(Struct, frozen=True, array_like=True, tag=1):
    """On a self-reference: somebody delegated a reference to this task (§4.5.3)."""

    reference: Reference
    sender: str


class ChildEnded(Struct, frozen=True, array_like=True, tag=2):
    """On a self-reference: a task this task started has ended."""

    object: int
    status: TaskRow


class Lost(Struct, frozen=True, array_like=True, tag=3):
    """On a self-reference: the queue of events was full and ``count`` were dropped."""

    count: int


class Retired(Struct, frozen=True, array_like=True, tag=4):
    """On a self-reference: a reference of this task was taken back, or its lifetime is over."""

    ref: int
    object: int
    fingerprint: str
    label: str
    expired: bool


SelfEvent: TypeAlias = Delegated | ChildEnded | Lost | Retired
