"""What a task asks of its node: thirteen calls, their compounds, and introspection that grants nothing.

Not for: what a call means (``dios.core.calls.dispatch``). Sizes and offsets are bytes; a size of 0 means "all
there is" for reads and "the default" for writes; references, objects and buffers are unsigned integers
below 2**63, 0 meaning "none".
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from dios import limits
from dios.wire.fields import U64, Arguments, Call, Groups, Inline, NameBytes, Text
from dios.wire.rates import Govern
from dios.wire.scheduling import Advise, AskScheduler, Place, ReadQueue, Report, Work
from dios.wire.types import (
    AcquireIov,
    Brand,
    Buffering,
    CommitIov,
    Deletion,
    Mode,
    NameKind,
    NodeWish,
    ObjectType,
    Permission,
    Persistence,
    Proximity,
    Resource,
    Scope,
    Semantics,
)


# -- the thirteen calls (Table 4.4, appendix B) ---------------------------------------------------
class Create(Call, frozen=True, tag=1):
    """dios_create (B.1.1); ``data`` is written before the reply, ``size`` is a stream's ring or a hint.

    ``address`` is "HOST:PORT", for network streams alone: where to connect, to listen, or to send from.
    """

    object_type: ObjectType
    groups: Groups = ()
    name_kind: NameKind = NameKind.RANDOM
    deletion: Deletion | None = None
    size: U64 = 0
    buffering: Buffering = Buffering.DOUBLE
    host: Text = ""
    flags: U64 = 0
    data: Inline | None = None
    address: Text = ""


class Lookup(Call, frozen=True, tag=2):
    """dios_lookup (B.1.2); ``group`` 0 means every group the caller is a member of."""

    name: NameBytes
    group: U64 = 0
    limit: Annotated[int, Meta(ge=1, le=limits.LOOKUP_REFERENCES_MAX)] = limits.LOOKUP_REFERENCES_MAX
    flags: U64 = 0


class Copy(Call, frozen=True, tag=3):
    """dios_copy (B.1.3): delegate ``ref`` to ``task`` with no more than ``permissions``.

    ``lifetime_ns`` from now the receiver loses it; 0 means never. ``host`` asks for a new physical
    object on the node of that name, with the object's bytes.
    """

    ref: U64
    task: U64
    permissions: U64 = int(Permission.ALL)
    persistence: Persistence | None = None
    proximity: Proximity | None = None
    buffering: Buffering | None = None
    flags: U64 = 0
    lifetime_ns: U64 = 0
    host: Text = ""


class Delete(Call, frozen=True, tag=4):
    """dios_delete (B.1.4)."""

    ref: U64
    flags: U64 = 0


class Handed(Struct, frozen=True, array_like=True):
    """One reference handed to a new task, narrowed to ``permissions``, under a label of its own.

    ``lifetime_ns`` from the task's start it loses it; 0 means never.
    """

    ref: U64
    permissions: U64
    label: Text = ""
    lifetime_ns: U64 = 0


class Limits(Struct, frozen=True, array_like=True):
    """What one task may use; 0 means the node's default.

    The first three are of its own process. The rest are of the task and everything it starts; a total
    that is not given is the process's own, where that is given.
    """

    memory_bytes: U64 = 0
    cpu_ms: U64 = 0
    processes: U64 = 0
    objects: U64 = 0
    bytes: U64 = 0
    references: U64 = 0
    requests: U64 = 0
    tasks: U64 = 0
    total_cpu_ms: U64 = 0
    total_memory_bytes: U64 = 0
    volatile_bytes: U64 = 0


class Run(Call, frozen=True, tag=5):
    """dios_run (B.1.5): the executable, group memberships, and the task-describing structure.

    ``like`` is a task to repeat: the same groups, inputs, outputs, arguments, brand and limits, to which
    the call may only add inputs; ``executable`` 0 means the same program, too. ``work`` is for who schedules
    (§6.2): what it needs, and how urgent it is.
    """

    executable: U64
    groups: Groups = ()
    inputs: Annotated[tuple[Handed, ...], Meta(max_length=limits.ARGUMENTS_MAX)] = ()
    outputs: Annotated[tuple[Handed, ...], Meta(max_length=limits.ARGUMENTS_MAX)] = ()
    arguments: Arguments = ()
    label: Text = ""
    brand: Brand = Brand.PURE
    host: Text = ""
    limits: Limits = Limits()
    flags: U64 = 0
    like: U64 = 0
    work: Work = Work()


class Pause(Call, frozen=True, tag=6):
    """dios_pause (B.1.6)."""

    task: U64
    flags: U64 = 0


class Resume(Call, frozen=True, tag=7):
    """dios_resume (B.1.6)."""

    task: U64
    flags: U64 = 0


class AcquireRead(Call, frozen=True, tag=8):
    """dios_acquire_read (B.1.7)."""

    ref: U64
    size: U64 = 0
    offset: U64 = 0
    semantics: Semantics = Semantics.ANY
    iov: AcquireIov = AcquireIov.CREATE
    buffer: U64 = 0
    flags: U64 = 0


class CommitRead(Call, frozen=True, tag=9):
    """dios_commit_read (B.1.8)."""

    ref: U64
    buffer: U64
    iov: CommitIov = CommitIov.USE
    flags: U64 = 0


class ReleaseRead(Call, frozen=True, tag=10):
    """dios_release_read (B.1.9)."""

    ref: U64
    buffer: U64
    flags: U64 = 0


class AcquireWrite(Call, frozen=True, tag=11):
    """dios_acquire_write (B.1.10)."""

    ref: U64
    size: U64 = 0
    offset: U64 = 0
    semantics: Semantics = Semantics.ANY
    iov: AcquireIov = AcquireIov.CREATE
    buffer: U64 = 0
    flags: U64 = 0


class CommitWrite(Call, frozen=True, tag=12):
    """dios_commit_write (B.1.11); ``size`` 0 commits the whole buffer, ``data`` fills it first."""

    ref: U64
    buffer: U64
    size: U64 = 0
    iov: CommitIov = CommitIov.USE
    flags: U64 = 0
    data: Inline | None = None


class ReleaseWrite(Call, frozen=True, tag=13):
    """dios_release_write (B.1.12)."""

    ref: U64
    buffer: U64
    flags: U64 = 0


class Select(Call, frozen=True, tag=14):
    """dios_select (B.1.13); ``timeout_ns`` None waits for ever."""

    refs: Annotated[tuple[U64, ...], Meta(min_length=1, max_length=limits.SELECT_REFERENCES_MAX)]
    mode: Mode = Mode.READ
    timeout_ns: U64 | None = None
    flags: U64 = 0


# -- compounds (§5.2.3) ---------------------------------------------------------------------------
class ReadOnce(Call, frozen=True, tag=20):
    """Acquire, commit and release a read in one message."""

    ref: U64
    size: U64 = 0
    offset: U64 = 0
    semantics: Semantics = Semantics.ANY
    flags: U64 = 0


class WriteOnce(Call, frozen=True, tag=21):
    """Acquire, fill, commit and release a write in one message."""

    ref: U64
    data: Inline
    offset: U64 = 0
    semantics: Semantics = Semantics.ANY
    flags: U64 = 0


class CommitAcquireRead(Call, frozen=True, tag=22):
    """Commit a read and start the next one on the same buffer."""

    ref: U64
    buffer: U64
    semantics: Semantics = Semantics.ANY
    flags: U64 = 0


class CommitAcquireWrite(Call, frozen=True, tag=23):
    """Commit a write and start the next one on the same buffer."""

    ref: U64
    buffer: U64
    size: U64 = 0
    semantics: Semantics = Semantics.ANY
    flags: U64 = 0
    data: Inline | None = None


class Attach(Call, frozen=True, tag=24):
    """Become the writing or reading end of a SHMEM_STREAM; its I/O then needs no further call."""

    ref: U64
    mode: Mode
    flags: U64 = 0


# -- beside the thesis: taking back what was delegated ---------------------------------------------
class Retire(Call, frozen=True, tag=25):
    """Take away every reference that was delegated from ``ref``, by its holder and further on."""

    ref: U64
    flags: U64 = 0


# -- beside the thesis: introspection that grants nothing -----------------------------------------
class Stat(Call, frozen=True, tag=30):
    """The public attributes of one reference, for who has no page mapped."""

    ref: U64


class ConsoleOf(Call, frozen=True, tag=31):
    """A read-only reference to the console of a task whose reference the caller may read."""

    task: U64


class ListTasks(Call, frozen=True, tag=32):
    """The tasks of the caller's own principal, on every node but with LOCAL_ONLY; refused to pure tasks."""

    flags: U64 = 0


class NodeInfo(Call, frozen=True, tag=33):
    """Counts and guarantees of this node, or of the one named; refused to pure tasks."""

    host: Text = ""


class Cancel(Call, frozen=True, tag=34):
    """Give up the waiting call with sequence number ``seq``; it answers ECANCELED unless it is done."""

    seq: U64


class Shutdown(Call, frozen=True, tag=35):
    """End the node gracefully; only for the principal that runs it, or root."""


class Describe(Call, frozen=True, tag=36):
    """What a task was handed, what it may use and has used; for who may read the task."""

    task: U64


class ListLimits(Call, frozen=True, tag=37):
    """Use and limits of the node, of the caller's principal, groups and tasks; for the node's own user of all
    principals.
    """


class Bound(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """At most ``value`` of a resource; None lifts the limit."""

    resource: Resource
    value: U64 | None


class SetLimits(Call, frozen=True, tag=38):
    """Set limits of a principal, or of the group or task behind ``ref``; for the node's own user and root."""

    scope: Scope
    bounds: Annotated[tuple[Bound, ...], Meta(min_length=1, max_length=len(Resource))]
    ref: U64 = 0
    principal: Text = ""


class ListNodes(Call, frozen=True, tag=39):
    """The nodes of the cluster as this one sees them; refused to pure tasks."""


class SetNode(Call, frozen=True, tag=42):
    """Drain a node, take that back, or forget a node for good; for the node's own user and root."""

    host: Text
    wish: NodeWish


class ReadTable(Call, frozen=True, tag=49):
    """The rows of one of the node's tables from ``start`` on, or the names of the tables; for the node's own
    user and root. The tables hold fingerprints, never names.
    """

    table: Text = ""
    start: U64 = 0


PlainCall: TypeAlias = (
    Create
    | Lookup
    | Copy
    | Delete
    | Run
    | Pause
    | Resume
    | AcquireRead
    | CommitRead
    | ReleaseRead
    | AcquireWrite
    | CommitWrite
    | ReleaseWrite
    | Select
    | ReadOnce
    | WriteOnce
    | CommitAcquireRead
    | CommitAcquireWrite
    | Attach
    | Retire
    | Stat
    | ConsoleOf
    | ListTasks
    | NodeInfo
    | Cancel
    | Shutdown
    | Describe
    | ListLimits
    | SetLimits
    | ListNodes
    | SetNode
    | ReadTable
    | ReadQueue
    | Place
    | AskScheduler
    | Advise
    | Report
    | Govern
)


class Vector(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=40):
    """Independent calls in one message, answered in one reply in their order; none may wait."""

    calls: Annotated[tuple[PlainCall, ...], Meta(min_length=1, max_length=limits.VECTOR_CALLS_MAX)]


class Hello(Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=41):
    """First message of a person's process: protocol version, and the groups of its keyring."""

    version: U64
    groups: Annotated[tuple[NameBytes, ...], Meta(max_length=limits.GROUPS_PER_CALL_MAX)] = ()
    label: Text = ""


AnyCall: TypeAlias = PlainCall | Vector | Hello


class Request(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One frame from a task: ``seq`` is the task's own and comes back in the reply."""

    seq: U64
    call: AnyCall
