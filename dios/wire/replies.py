"""The replies of a node to a task: the answers to calls, and the events and records of TASK objects.

Descriptors are sent next to a frame: a ``Buffer`` whose ``mapping`` is not NONE has one, an ``Attached``
four, a ``Welcome`` one. The descriptors of a frame arrive in the order of the results in it.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from dios import limits
from dios.wire.fields import (
    U63,
    AnswerBytes,
    Arguments,
    ByteCount,
    Count,
    Counter,
    Epoch,
    Fingerprint,
    Identifier,
    Label,
    LabelText,
    Message,
    Milliseconds,
    NameBytes,
    Nanoseconds,
    Offset,
    Permissions,
    ProcessId,
    ProgramBytes,
    Secrecy,
    Slot,
    Text,
    Thousandths,
    TraceSpans,
    User,
)
from dios.wire.mandates import MandateTerms, RegisterBytes
from dios.wire.rates import Metered
from dios.wire.scheduling import Advice, DeviceKind, Placed, QueueRows
from dios.wire.types import (
    Brand,
    Buffering,
    Cause,
    Deletion,
    Fitness,
    NodeStatus,
    ObjectType,
    Persistence,
    Proximity,
    Resource,
    Scope,
    SecretState,
    TaskState,
)

_ROW_BYTES_MIN: Final = 16
_ROWS: Final = Meta(max_length=limits.REPLY_BYTES_MAX // _ROW_BYTES_MIN)
_CODE: Final = Meta(ge=0, le=2**15 - 1)
_INT64: Final = Meta(ge=-(2**63), le=2**63 - 1)
_PART_NAMES: Final = Meta(max_length=256)
_COLUMNS: Final = Meta(max_length=64)
_RESOURCES: Final = Meta(max_length=len(Resource))
_GIVEN: Final = Meta(max_length=limits.ARGUMENTS_MAX)


class Mapping(enum.IntEnum):
    """The way in which a task gets the bytes of a buffer."""

    NONE = 0  # nothing new: the bytes are in ``data``, or the earlier mapping is still valid
    READ_ONLY = 1  # a descriptor that can only be mapped for reading
    WRITABLE = 2  # a descriptor to map for reading and writing


class Failure(Struct, frozen=True, array_like=True, tag=0):
    """The call was refused and changed nothing."""

    code: Annotated[int, _CODE]
    message: Message
    fingerprint: Fingerprint = ""


class Done(Struct, frozen=True, array_like=True, tag=1):
    """The call succeeded; ``value`` is its boolean or count."""

    value: Count = 1


class Reference(Struct, frozen=True, array_like=True):
    """The public part of a reference (§4.5.1) as of this reply; live in slot ``slot`` of the page."""

    ref: Identifier
    object: Identifier
    type: ObjectType
    permissions: Permissions
    persistence: Persistence
    proximity: Proximity
    deletion: Deletion
    buffering: Buffering
    slot: Slot
    size: ByteCount
    v_r: Counter
    v_w: Counter
    a_r: Count
    a_w: Count
    fingerprint: Fingerprint
    label: Text = ""
    expires_ns: Nanoseconds = 0  # when the node takes it back, by the node's clock; 0 for never
    node: Label = ""  # the name and rack of the node that has the object; empty without a cluster
    rack: Label = ""
    address: Text = ""  # of a network stream: the peer's for a connection, its own for any other
    secrecy: Secrecy = ()  # the object's label; of a network object its clearance


class Created(Struct, frozen=True, array_like=True, tag=2):
    """Answer to create and run: the new name (None when anonymous) and the first reference."""

    name: NameBytes | None
    reference: Reference


class References(Struct, frozen=True, array_like=True, tag=3):
    """The answer to lookup; ``incomplete`` is True if a node could not be asked."""

    references: Annotated[tuple[Reference, ...], Meta(max_length=limits.LOOKUP_REFERENCES_MAX)]
    incomplete: bool = False


class Buffer(Struct, frozen=True, array_like=True, tag=4):
    """The answer to the acquiring calls: ``size`` usable bytes that start at ``start`` of the mapping.

    ``secrecy`` is the label of a status or console, which changes, in an answer to another node.
    """

    buffer: Identifier
    size: ByteCount
    v_r: Counter
    v_w: Counter
    mapping: Mapping = Mapping.NONE
    start: ByteCount = 0
    length: ByteCount = 0
    data: AnswerBytes | None = None
    secrecy: Secrecy = ()


class Committed(Struct, frozen=True, array_like=True, tag=5):
    """The commit succeeded; the object's versions after it."""

    v_r: Counter
    v_w: Counter


class Selected(Struct, frozen=True, array_like=True, tag=6):
    """The index of the ready reference in the given list, or -1 after the timeout."""

    index: Annotated[int, Meta(ge=-1, le=limits.SELECT_REFERENCES_MAX - 1)]


class Attached(Struct, frozen=True, array_like=True, tag=7):
    """One end of a stream. Its descriptors, in this order: the memory that this end writes, the memory it
    only reads, the socket through which the ends wake each other.
    """

    ring_bytes: Annotated[int, Meta(ge=0, le=limits.STREAM_RING_BYTES_MAX)]


class TaskRow(Struct, frozen=True, array_like=True):
    """One task as ``dios ps`` and the status record of a TASK object show it."""

    name: NameBytes | None
    fingerprint: Fingerprint
    label: Text
    state: TaskState
    brand: Brand
    principal: User
    pid: ProcessId
    started_ns: Nanoseconds
    ended_ns: Nanoseconds
    cause: Cause
    exit_code: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
    signal: Annotated[int, Meta(ge=0, le=255)]
    detail: Message
    parent: Fingerprint
    node: Label = ""
    leave_ns: Nanoseconds = 0
    """The time at which it is ended if it has not left its node before; 0 if it was not asked to leave."""
    moves: Counter = 0
    """The numbers of earlier moves of its run, and of earlier ends without a saved state."""
    restarts: Counter = 0
    kept_bytes: ByteCount = 0
    """The bytes of the checkpoint that it continues from."""
    progress: Thousandths | None = None
    """The share of its work that it has done; None if it has not reported it."""
    secrecy: Secrecy = ()
    """The tags of what it has read."""


class Tasks(Struct, frozen=True, array_like=True, tag=8):
    """The answer to ListTasks, oldest first; ``incomplete`` is True if a node could not be asked.

    ``dead_only`` is True if all of those nodes are dead, so that their tasks are lost. Nodes of an earlier
    release do not say it.
    """

    tasks: Annotated[tuple[TaskRow, ...], _ROWS]
    incomplete: bool = False
    dead_only: bool = False


class LimitRow(Struct, frozen=True, array_like=True):
    """Use and limits of one task, group or principal: a number for each ``Resource`` in its order.

    ``subject`` is a principal or a fingerprint; None means that there is no limit.
    """

    scope: Scope
    subject: Text
    label: Text
    used: Annotated[tuple[U63, ...], _RESOURCES]
    limits: Annotated[tuple[U63 | None, ...], _RESOURCES]
    secrecy: Secrecy = ()
    """The tags of what a task has read."""


class LimitRows(Struct, frozen=True, array_like=True, tag=12):
    """Answer to ListLimits and SetLimits: the node, then principals, then groups, then tasks."""

    rows: Annotated[tuple[LimitRow, ...], Meta(max_length=limits.LIMIT_ROWS_MAX)]


class HandedRow(Struct, frozen=True, array_like=True):
    """One reference that a task received at its start.

    ``gone`` is True if the object was deleted, ``changed`` if it was written since.
    """

    fingerprint: Fingerprint
    label: Text
    type: ObjectType
    permissions: Permissions
    size: ByteCount
    gone: bool
    changed: bool


class DeviceGrant(Struct, frozen=True, array_like=True):
    """A task's devices of one kind: their names, and all their files."""

    kind: DeviceKind
    names: Annotated[tuple[Label, ...], Meta(max_length=limits.DEVICES_MAX)]
    files: Annotated[tuple[Text, ...], Meta(max_length=limits.DEVICES_MAX * limits.DEVICE_FILES_MAX)] = ()


class TaskDetail(Struct, frozen=True, array_like=True, tag=13):
    """The answer to Describe. ``groups`` and ``executable`` are fingerprints; a limit of 0 was not set.

    ``cpu_ms`` and ``memory_bytes`` are the use of its process, the second at its peak; 0 while it runs.
    ``repeatable`` is the reason why the run cannot be repeated; empty if it can. The task is pinned to
    ``processors`` and has ``devices``.
    """

    status: TaskRow
    usage: LimitRow
    memory_limit_bytes: U63
    cpu_limit_ms: U63
    cpu_ms: Milliseconds
    memory_bytes: ByteCount
    groups: Annotated[tuple[Fingerprint, ...], Meta(max_length=2 * limits.GROUPS_PER_CALL_MAX)]
    inputs: Annotated[tuple[HandedRow, ...], _GIVEN]
    outputs: Annotated[tuple[HandedRow, ...], _GIVEN]
    arguments: Arguments
    executable: Fingerprint
    repeatable: Message
    processors: Annotated[tuple[Count, ...], Meta(max_length=limits.PINNED_PROCESSORS_MAX)] = ()
    devices: Annotated[tuple[DeviceGrant, ...], Meta(max_length=limits.DEVICE_KINDS_MAX)] = ()
    time_ms: Milliseconds = 0
    """The time after which its node ends it; 0 for never."""


class TemplateRow(Struct, frozen=True, array_like=True):
    """One template of a node: its modules, its state (idle, loading, loaded or failed), and its memory limit.

    ``used_bytes`` is the memory of its process now, ``load_ms`` the time that its last start took. It was
    started ``starts`` times, and ``tasks`` were forked from it. ``why`` is the reason of a failed start.
    ``prepared`` processes wait for a task.
    """

    name: Label
    modules: Annotated[tuple[Text, ...], Meta(max_length=limits.PRELOAD_MODULES_MAX)]
    state: Label
    memory_bytes: ByteCount
    used_bytes: ByteCount
    load_ms: Milliseconds
    starts: Counter
    tasks: Counter
    why: Message
    prepared: Counter = 0


class ResourceCapacity(Struct, frozen=True, array_like=True):
    """The bytes per second that a node's ``disk`` or ``network`` carries; 0 if that is unknown.

    ``source`` is configured, interface, measured, most seen or unknown; ``detail`` is the interface, or the
    reason.
    """

    resource: Label
    bytes_s: ByteCount
    source: Label
    detail: Message = ""


class KeepersReport(Struct, frozen=True):
    """The counts of ``Info`` about keepers of replicas on a node; those of replicas are of keepers that lead.

    ``leaving_nodes`` is the number of draining nodes that all of them know, and ``leaving_unchecked`` is the
    number of keepers that have not looked at every object since the nodes changed.
    """

    keepers: int = 0
    keepers_leading: int = 0
    leaving_nodes: int = 0
    leaving_replicas: int = 0
    leaving_bytes: int = 0
    leaving_unchecked: int = 0


class Info(Struct, frozen=True, array_like=True, tag=9):
    """The answer to NodeInfo: counts by name, the guarantees that the machine lets the node enforce, and its
    templates.
    """

    version: Text
    node: Text
    counts: Annotated[dict[Text, Annotated[int, _INT64]], _PART_NAMES]
    guarantees: Annotated[dict[Text, Message], _PART_NAMES]
    templates: Annotated[tuple[TemplateRow, ...], Meta(max_length=64)] = ()
    fitness: Fitness = Fitness.FIT
    """The node's ability to run pure tasks; the guarantee of that name has the reason."""
    capacities: Annotated[tuple[ResourceCapacity, ...], Meta(max_length=8)] = ()
    """Those of its link and disk, for a node in a cluster."""


class ClockReading(Struct, frozen=True, array_like=True):
    """A measured clock: it is ahead of the measuring node's by ``offset_ns``, give or take ``error_ns``."""

    offset_ns: Offset
    error_ns: Nanoseconds


class NodeRow(Struct, frozen=True, array_like=True):
    """One node of the cluster as the asked node knows it.

    ``node`` is its id, ``since_ns`` the time of its last change of status by the clock of the asked node,
    ``here`` is True for the asked node itself. Tasks, cpus and bytes of free memory are its last report.
    """

    node: Identifier
    name: Label
    rack: Label
    address: Text
    status: NodeStatus
    draining: bool
    epoch: Epoch
    since_ns: Nanoseconds
    tasks: Count
    cpus: Count
    memory_bytes: ByteCount
    here: bool
    coordinated: bool = False
    """True if the node has a living coordinator."""
    labels: LabelText = ""
    clock: ClockReading | None = None
    """None if the asked node has not measured the node's clock, or is the node itself."""
    fitness: Fitness = Fitness.FIT
    """The node's ability to run pure tasks."""
    barred: Annotated[tuple[Identifier, ...], Meta(max_length=limits.SCHEDULERS_BARRED_MAX)] = ()
    """The ids of the nodes whose schedulers have lost their lease on the node's queue."""
    roles: Label = ""
    """The roles in the certificate that the node showed, with commas between them; empty before that."""
    secret: SecretState = SecretState.CURRENT


class Nodes(Struct, frozen=True, array_like=True, tag=14):
    """The answer to ListNodes and SetNode: the asked node first, then by name.

    ``version`` counts the changes of the rows in anything but the load, since the asked node started.
    """

    nodes: Annotated[tuple[NodeRow, ...], Meta(max_length=limits.NODES_MAX)]
    version: Counter = 0


class TableRows(Struct, frozen=True, array_like=True, tag=19):
    """Answer to ReadTable: rows with a value for each column, and the ``start`` of those that follow, 0 where
    none do. ``tables`` are the names of all tables.
    """

    table: Text
    columns: Annotated[tuple[Text, ...], _COLUMNS]
    rows: Annotated[tuple[Annotated[tuple[Annotated[int, _INT64] | Message, ...], _COLUMNS], ...], _ROWS]
    following: U63
    tables: Annotated[tuple[Text, ...], _COLUMNS]


class Enrolled(Struct, frozen=True, array_like=True, tag=20):
    """Answer to ReadRegister: the register, empty if the cluster has none, and the cluster's own digest."""

    register: RegisterBytes
    cluster: Annotated[bytes, Meta(max_length=limits.DIGEST_BYTES)]


class MandateWanted(Struct, frozen=True, array_like=True, tag=21):
    """Answer to ReadMandateTerms: the terms, or None if the principal is not enrolled or needs no mandate."""

    terms: MandateTerms | None


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
    | Enrolled
    | MandateWanted
)


class Results(Struct, frozen=True, array_like=True, tag=10):
    """Answer to a Vector."""

    results: Annotated[tuple[PlainResult, ...], Meta(max_length=limits.VECTOR_CALLS_MAX)]


class Welcome(Struct, frozen=True, array_like=True, tag=11):
    """The first reply on a connection: the task's identity, and the references that it received (§4.5.2).

    The descriptor next to it is the public page of references, to be mapped read-only. ``program`` is the
    content of ``executable`` if that is small and on the task's node; otherwise the task reads it.
    ``devices`` has an entry for each kind of devices of the node, without names if the task has none of it.
    With ``traces``, the node answers traced calls with the times of their parts. A program of an enrolled
    user signs a mandate with ``mandate``, with which the node acts for the user at other nodes.
    """

    version: Count
    name: NameBytes
    brand: Brand
    self_ref: Reference
    console: Reference
    groups: Annotated[tuple[Reference, ...], Meta(max_length=2 * limits.GROUPS_PER_CALL_MAX)]
    inputs: Annotated[tuple[Reference, ...], _GIVEN]
    outputs: Annotated[tuple[Reference, ...], _GIVEN]
    arguments: Arguments
    executable: Reference | None
    label: Text
    home: Reference | None = None
    program: ProgramBytes | None = None
    devices: Annotated[tuple[DeviceGrant, ...], Meta(max_length=limits.DEVICE_KINDS_MAX)] = ()
    traces: bool = False
    mandate: MandateTerms | None = None


AnyResult: TypeAlias = PlainResult | Results | Welcome


class Reply(Struct, frozen=True, array_like=True):
    """One frame to a task; ``seq`` is that of its request, or 0 for the Welcome of a new task.

    ``spans`` are the parts of the work on a traced call.
    """

    seq: Identifier
    result: AnyResult
    spans: TraceSpans = ()


# -- events and records of TASK objects -----------------------------------------------------------
class Delegated(Struct, frozen=True, array_like=True, tag=1):
    """On a self-reference: a task delegated a reference to this task (§4.5.3)."""

    reference: Reference
    sender: Fingerprint


class ChildEnded(Struct, frozen=True, array_like=True, tag=2):
    """On a self-reference: a task that this task started has ended."""

    object: Identifier
    status: TaskRow


class Lost(Struct, frozen=True, array_like=True, tag=3):
    """On a self-reference: the queue of events was full, and ``count`` events were dropped."""

    count: Counter


class Retired(Struct, frozen=True, array_like=True, tag=4):
    """On a self-reference: a reference of this task was taken back or has expired."""

    ref: Identifier
    object: Identifier
    fingerprint: Fingerprint
    label: Text
    expired: bool


SelfEvent: TypeAlias = Delegated | ChildEnded | Lost | Retired
