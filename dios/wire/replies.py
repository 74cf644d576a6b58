"""The replies of a node to a task: the answers to calls, and the events and records of TASK objects.

Descriptors are sent next to a frame: a ``Buffer`` whose ``mapping`` is not NONE has one, an ``Attached``
four, a ``Welcome`` one. The descriptors of a frame arrive in the order of the results in it.
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
    """The way in which a task gets the bytes of a buffer."""

    NONE = 0  # nothing new: the bytes are in ``data``, or the earlier mapping is still valid
    READ_ONLY = 1  # a descriptor that can only be mapped for reading
    WRITABLE = 2  # a descriptor to map for reading and writing


class Failure(Struct, frozen=True, array_like=True, tag=0):
    """The call was refused and changed nothing."""

    code: int
    message: str
    fingerprint: str = ""


class Done(Struct, frozen=True, array_like=True, tag=1):
    """The call succeeded; ``value`` is its boolean or count."""

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
    node: str = ""  # the name and rack of the node that has the object; empty without a cluster
    rack: str = ""
    address: str = ""  # of a network stream: the peer's for a connection, its own for any other


class Created(Struct, frozen=True, array_like=True, tag=2):
    """Answer to create and run: the new name (None when anonymous) and the first reference."""

    name: bytes | None
    reference: Reference


class References(Struct, frozen=True, array_like=True, tag=3):
    """The answer to lookup; ``incomplete`` is True if a node could not be asked."""

    references: tuple[Reference, ...]
    incomplete: bool = False


class Buffer(Struct, frozen=True, array_like=True, tag=4):
    """The answer to the acquiring calls: ``size`` usable bytes that start at ``start`` of the mapping."""

    buffer: int
    size: int
    v_r: int
    v_w: int
    mapping: Mapping = Mapping.NONE
    start: int = 0
    length: int = 0
    data: bytes | None = None


class Committed(Struct, frozen=True, array_like=True, tag=5):
    """The commit succeeded; the object's versions after it."""

    v_r: int
    v_w: int


class Selected(Struct, frozen=True, array_like=True, tag=6):
    """The index of the ready reference in the given list, or -1 after the timeout."""

    index: int


class Attached(Struct, frozen=True, array_like=True, tag=7):
    """One end of a stream. Its descriptors, in this order: the memory that this end writes, the memory it
    only reads, the event counter that it waits on, the event counter that it signals.
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
    """The answer to ListTasks, oldest first; ``incomplete`` is True if a node could not be asked."""

    tasks: tuple[TaskRow, ...]
    incomplete: bool = False


class LimitRow(Struct, frozen=True, array_like=True):
    """Use and limits of one task, group or principal: a number for each ``Resource`` in its order.

    ``subject`` is a principal or a fingerprint; None means that there is no limit.
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
    """One reference that a task received at its start.

    ``gone`` is True if the object was deleted, ``changed`` if it was written since.
    """

    fingerprint: str
    label: str
    type: ObjectType
    permissions: int
    size: int
    gone: bool
    changed: bool


class TaskDetail(Struct, frozen=True, array_like=True, tag=13):
    """The answer to Describe. ``groups`` and ``executable`` are fingerprints; a limit of 0 was not set.

    ``cpu_ms`` and ``memory_bytes`` are the use of its process, the second at its peak; 0 while it runs.
    ``repeatable`` is the reason why the run cannot be repeated; empty if it can.
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
    """The answer to NodeInfo: counts by name, and the guarantees that the machine lets the node enforce."""

    version: str
    node: str
    counts: dict[str, int]
    guarantees: dict[str, str]


class NodeRow(Struct, frozen=True, array_like=True):
    """One node of the cluster as the asked node knows it.

    ``node`` is its id, ``since_ns`` the time of its last change of status by the clock of the asked node,
    ``here`` is True for the asked node itself. Tasks, cpus and bytes of free memory are its last report.
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
    """The answer to ListNodes and SetNode: the asked node first, then by name."""

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
    """The first reply on a connection: the task's identity, and the references that it received (§4.5.2).

    The descriptor next to it is the public page of references, to be mapped read-only.
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
    """One frame to a task; ``seq`` is that of its request, or 0 for the Welcome of a new task."""

    seq: int
    result: AnyResult


# -- events and records of TASK objects -----------------------------------------------------------
class Delegated(Struct, frozen=True, array_like=True, tag=1):
    """On a self-reference: a task delegated a reference to this task (§4.5.3)."""

    reference: Reference
    sender: str


class ChildEnded(Struct, frozen=True, array_like=True, tag=2):
    """On a self-reference: a task that this task started has ended."""

    object: int
    status: TaskRow


class Lost(Struct, frozen=True, array_like=True, tag=3):
    """On a self-reference: the queue of events was full, and ``count`` events were dropped."""

    count: int


class Retired(Struct, frozen=True, array_like=True, tag=4):
    """On a self-reference: a reference of this task was taken back or has expired."""

    ref: int
    object: int
    fingerprint: str
    label: str
    expired: bool


SelfEvent: TypeAlias = Delegated | ChildEnded | Lost | Retired
