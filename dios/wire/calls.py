"""The calls of a task to its node: the thirteen calls, their compounds, and introspection.

Sizes and offsets are bytes. A size of 0 means everything for reads and the default for writes. References,
objects and buffers are unsigned integers below 2**63; 0 means none. The core executes calls in
``dios.core.calls.dispatch``.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import asdict

from dios import limits
from dios.wire.fields import (
    U63,
    Arguments,
    ByteCount,
    Call,
    Groups,
    Identifier,
    Inline,
    Label,
    Message,
    NameBytes,
    Secrecy,
    Text,
    Thousandths,
    User,
)
from dios.wire.mandates import MandateBytes, RegisterBytes
from dios.wire.scheduling import Work
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
    RequestEnd,
    Resource,
    SandboxUse,
    Scope,
    Semantics,
)

DIRECT_READS_MAX: Final = 1_023
"""The most reads without a call that a message reports. A client that has as many makes a call."""

Counted: TypeAlias = Annotated[int, Meta(ge=0, le=DIRECT_READS_MAX)]


# -- the thirteen calls (Table 4.4, appendix B) ---------------------------------------------------
class Create(Call, frozen=True, tag=1):
    """dios_create (B.1.1); ``data`` is written before the reply, ``size`` is the ring of a stream or a hint.

    ``address`` is "HOST:PORT" and for network streams alone: the address to connect to, listen on or bind.
    For a NETWORK object it is the origins that it is limited to, with blanks between them. ``network`` is
    such an object: its right permits the TCP_STREAM. With 0 it is the right to the whole network.
    """

    object_type: ObjectType
    groups: Groups = ()
    name_kind: NameKind = NameKind.RANDOM
    deletion: Deletion | None = None
    size: U63 = 0
    buffering: Buffering = Buffering.DOUBLE
    host: Text = ""
    flags: U63 = 0
    data: Inline | None = None
    address: Text = ""
    network: Identifier = 0


class CreateLabelled(Create, frozen=True, tag=59):
    """Create an object with this secrecy label. Without the call, it has that of its creator.

    The label of a network object is its clearance: what has other tags is not sent there.
    """

    secrecy: Secrecy = ()


def labelled(call: Create, secrecy: Secrecy) -> CreateLabelled:
    """Return the same call with a label."""
    return CreateLabelled(**asdict(call), secrecy=secrecy)


class Lookup(Call, frozen=True, tag=2):
    """dios_lookup (B.1.2); with ``group`` 0 in every group of which the caller is a member."""

    name: NameBytes
    group: Identifier = 0
    limit: Annotated[int, Meta(ge=1, le=limits.LOOKUP_REFERENCES_MAX)] = limits.LOOKUP_REFERENCES_MAX
    flags: U63 = 0


class Copy(Call, frozen=True, tag=3):
    """dios_copy (B.1.3): delegate ``ref`` to ``task`` with no more than ``permissions``.

    The receiver loses it after ``lifetime_ns``; 0 means never. ``host`` asks for a new physical
    object on the node of that name, with the object's bytes.
    """

    ref: Identifier
    task: Identifier
    permissions: U63 = int(Permission.ALL)
    persistence: Persistence | None = None
    proximity: Proximity | None = None
    buffering: Buffering | None = None
    flags: U63 = 0
    lifetime_ns: U63 = 0
    host: Text = ""


class Delete(Call, frozen=True, tag=4):
    """dios_delete (B.1.4); ``counted`` as in ``ReadOnce``."""

    ref: Identifier
    flags: U63 = 0
    counted: Counted = 0


class Handed(Struct, frozen=True, array_like=True):
    """A reference that a new task receives, narrowed to ``permissions``, under a label of its own.

    The task loses it ``lifetime_ns`` after its start; 0 means never.
    """

    ref: Identifier
    permissions: U63
    label: Text = ""
    lifetime_ns: U63 = 0


class Limits(Struct, frozen=True, array_like=True):
    """The resources that one task may use; 0 means the node's default.

    The first three limit its own process. The others limit the task and everything it starts; a total
    that is missing is that of the process, if that is given.
    """

    memory_bytes: U63 = 0
    cpu_ms: U63 = 0
    processes: U63 = 0
    objects: U63 = 0
    bytes: U63 = 0
    references: U63 = 0
    requests: U63 = 0
    tasks: U63 = 0
    total_cpu_ms: U63 = 0
    total_memory_bytes: U63 = 0
    volatile_bytes: U63 = 0
    descriptors: U63 = 0


class Run(Call, frozen=True, tag=5):
    """dios_run (B.1.5): the executable, group memberships, and the task-describing structure.

    ``like`` is a task to repeat, with the same groups, inputs, outputs, arguments, brand and limits; the
    call may only add inputs. ``executable`` 0 repeats the same program, too. ``work`` is for the scheduler
    (§6.2): the needs of the task and its urgency. ``template`` names a template of the node, from which a
    pure task is forked, or an environment (``dios.wire.environments``) in which it starts.

    With FORK, ``like`` is a running task of this node that was started with FORKABLE. The child is a fork of
    its process, with the same program, brand, template and limits, and with the given inputs alone.
    """

    executable: Identifier
    groups: Groups = ()
    inputs: Annotated[tuple[Handed, ...], Meta(max_length=limits.ARGUMENTS_MAX)] = ()
    outputs: Annotated[tuple[Handed, ...], Meta(max_length=limits.ARGUMENTS_MAX)] = ()
    arguments: Arguments = ()
    label: Text = ""
    brand: Brand = Brand.PURE
    host: Text = ""
    limits: Limits = Limits()
    flags: U63 = 0
    like: Identifier = 0
    work: Work = Work()
    template: Label = ""


class Pause(Call, frozen=True, tag=6):
    """dios_pause (B.1.6)."""

    task: Identifier
    flags: U63 = 0


class Resume(Call, frozen=True, tag=7):
    """dios_resume (B.1.6)."""

    task: Identifier
    flags: U63 = 0


class AcquireRead(Call, frozen=True, tag=8):
    """dios_acquire_read (B.1.7); ``counted`` as in ``ReadOnce``."""

    ref: Identifier
    size: U63 = 0
    offset: U63 = 0
    semantics: Semantics = Semantics.ANY
    iov: AcquireIov = AcquireIov.CREATE
    buffer: Identifier = 0
    flags: U63 = 0
    counted: Counted = 0


class CommitRead(Call, frozen=True, tag=9):
    """dios_commit_read (B.1.8)."""

    ref: Identifier
    buffer: Identifier
    iov: CommitIov = CommitIov.USE
    flags: U63 = 0


class ReleaseRead(Call, frozen=True, tag=10):
    """dios_release_read (B.1.9)."""

    ref: Identifier
    buffer: Identifier
    flags: U63 = 0


class AcquireWrite(Call, frozen=True, tag=11):
    """dios_acquire_write (B.1.10)."""

    ref: Identifier
    size: U63 = 0
    offset: U63 = 0
    semantics: Semantics = Semantics.ANY
    iov: AcquireIov = AcquireIov.CREATE
    buffer: Identifier = 0
    flags: U63 = 0


class CommitWrite(Call, frozen=True, tag=12):
    """dios_commit_write (B.1.11); ``size`` 0 commits the whole buffer, ``data`` fills it first."""

    ref: Identifier
    buffer: Identifier
    size: U63 = 0
    iov: CommitIov = CommitIov.USE
    flags: U63 = 0
    data: Inline | None = None


class ReleaseWrite(Call, frozen=True, tag=13):
    """dios_release_write (B.1.12)."""

    ref: Identifier
    buffer: Identifier
    flags: U63 = 0


class Select(Call, frozen=True, tag=14):
    """dios_select (B.1.13); ``timeout_ns`` None waits for ever."""

    refs: Annotated[tuple[Identifier, ...], Meta(min_length=1, max_length=limits.SELECT_REFERENCES_MAX)]
    mode: Mode = Mode.READ
    timeout_ns: U63 | None = None
    flags: U63 = 0


# -- compounds (§5.2.3) ---------------------------------------------------------------------------
class ReadOnce(Call, frozen=True, tag=20):
    """Acquire, commit and release a read in one message.

    ``counted`` is the number of reads of the same object through this reference that were made without a
    call since the last message with such a number.
    """

    ref: Identifier
    size: U63 = 0
    offset: U63 = 0
    semantics: Semantics = Semantics.ANY
    flags: U63 = 0
    counted: Counted = 0


class WriteOnce(Call, frozen=True, tag=21):
    """Acquire, fill, commit and release a write in one message."""

    ref: Identifier
    data: Inline
    offset: U63 = 0
    semantics: Semantics = Semantics.ANY
    flags: U63 = 0


class CommitAcquireRead(Call, frozen=True, tag=22):
    """Commit a read and start the next one on the same buffer."""

    ref: Identifier
    buffer: Identifier
    semantics: Semantics = Semantics.ANY
    flags: U63 = 0


class CommitAcquireWrite(Call, frozen=True, tag=23):
    """Commit a write and start the next one on the same buffer."""

    ref: Identifier
    buffer: Identifier
    size: U63 = 0
    semantics: Semantics = Semantics.ANY
    flags: U63 = 0
    data: Inline | None = None


class Attach(Call, frozen=True, tag=24):
    """Become the writing or reading end of a SHMEM_STREAM; its I/O then needs no further call."""

    ref: Identifier
    mode: Mode
    flags: U63 = 0


# -- an addition to the thesis: taking back delegated references --------------------------------------
class Retire(Call, frozen=True, tag=25):
    """Take away every reference that was delegated from ``ref``, directly and further on.

    With EVERYONE, ``holder`` is the fingerprint of a task or session, of which alone the references to the
    object are taken away, with those delegated from them.
    """

    ref: Identifier
    flags: U63 = 0
    holder: Text = ""


# -- an addition to the thesis: introspection that grants nothing -------------------------------------
class Stat(Call, frozen=True, tag=30):
    """The public attributes of one reference, for a caller without a mapped page."""

    ref: Identifier


class ConsoleOf(Call, frozen=True, tag=31):
    """A read-only reference to the console of a task whose reference the caller may read."""

    task: Identifier


class ListTasks(Call, frozen=True, tag=32):
    """The tasks of the caller's principal: on all nodes, or with LOCAL_ONLY here; refused to pure tasks."""

    flags: U63 = 0


class NodeInfo(Call, frozen=True, tag=33):
    """Counts and guarantees of this node, or of the named one; refused to pure tasks."""

    host: Text = ""


class Cancel(Call, frozen=True, tag=34):
    """Give up the waiting call ``seq``, which answers ECANCELED unless it is done."""

    seq: Identifier


class Shutdown(Call, frozen=True, tag=35):
    """End the node gracefully; only for the principal that runs it, or root."""


class Describe(Call, frozen=True, tag=36):
    """The references, limits and use of a task; for callers that may read the task."""

    task: Identifier


class ListLimits(Call, frozen=True, tag=37):
    """Use and limits of the node and of the caller's principal, groups and tasks.

    The node's own user gets those of all principals.
    """


class Bound(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """At most ``value`` of a resource; None lifts the limit."""

    resource: Resource
    value: U63 | None


class SetLimits(Call, frozen=True, tag=38):
    """Set limits of a principal, or of the group or task behind ``ref``; for the node's own user and root."""

    scope: Scope
    bounds: Annotated[tuple[Bound, ...], Meta(min_length=1, max_length=len(Resource))]
    ref: Identifier = 0
    principal: Text = ""


class ListNodes(Call, frozen=True, tag=39):
    """The nodes of the cluster as this node knows them; refused to pure tasks.

    The answer comes once the version of the list differs from ``known``, or after ``wait_ms``.
    """

    known: U63 = 0
    wait_ms: Annotated[int, Meta(ge=0, le=limits.QUEUE_WAIT_MS_MAX)] = 0


class SetNode(Call, frozen=True, tag=42):
    """Drain a node, undo that, or forget a node for good; for the node's own user and root."""

    host: Text
    wish: NodeWish


class LabelNode(Call, frozen=True, tag=55):
    """Set and remove labels of a node, ``rack`` among them; for the nodes' own user and root."""

    host: Text
    labels: Annotated[tuple[tuple[Label, Label], ...], Meta(max_length=limits.NODE_LABELS_MAX)] = ()
    removed: Annotated[tuple[Label, ...], Meta(max_length=limits.NODE_LABELS_MAX)] = ()


class RecordUse(Call, frozen=True, tag=78):
    """Record in the audit log that the caller uses something in a sandbox, before it does so, or its end.

    ``task`` is the session of the sandbox, which cannot make this call about itself. ``number`` is that of
    the use, so that an end names its beginning. ``program`` is printable text.
    """

    task: Identifier
    use: SandboxUse
    number: U63
    program: Annotated[str, Meta(max_length=limits.RECORDED_PROGRAM_CHARS_MAX)] = ""
    value: Annotated[int, Meta(ge=-128, le=limits.PORT_MAX)] | None = None


class ReadTable(Call, frozen=True, tag=49):
    """The rows of one of the node's tables from ``start`` on, or the names of the tables; for the node's own
    user and root. The tables hold fingerprints, never names.
    """

    table: Text = ""
    start: U63 = 0


class RecordRequest(Call, frozen=True, tag=50):
    """Record the end of an HTTP request in the audit log; for a task with the right to write a NETWORK object
    that is limited to origins. ``origin`` is the place of the request's origin among them.
    """

    ref: Identifier
    origin: Annotated[int, Meta(ge=0, le=limits.ORIGINS_MAX - 1)]
    method: Annotated[str, Meta(max_length=limits.METHOD_CHARS_MAX)]
    end: RequestEnd
    status: Annotated[int, Meta(ge=0, le=999)] = 0
    sent: ByteCount = 0
    received: ByteCount = 0


class Present(Call, frozen=True, tag=51):
    """Make a session a member of further groups of its principal, as the groups of its Hello.

    The answer has a reference to each group that was accepted, in the order of the names.
    """

    groups: Annotated[tuple[NameBytes, ...], Meta(min_length=1, max_length=limits.GROUPS_PER_CALL_MAX)]


class AwaitMove(Call, frozen=True, tag=52):
    """Wait until this task is asked to leave its node, or for ``wait_ms``.

    The answer is the number of milliseconds that are left until it is ended; 0 if nothing asks it to leave.
    """

    wait_ms: Annotated[int, Meta(ge=0, le=limits.MOVE_WAIT_MS_MAX)] = 0


class Leave(Call, frozen=True, tag=53):
    """End this task, which was asked to leave its node and has saved its state. There is no answer.

    A ``failure`` is the reason why it could not save its state.
    """

    failure: Message = ""


class ReportProgress(Call, frozen=True, tag=54):
    """Record the share of its work that this task has done. It shows in the task's row, and wakes nobody."""

    progress: Thousandths


class ShareGroup(Call, frozen=True, tag=57):
    """Let sessions of ``reader`` read what is in a group, until ``expires_ns`` or the record is destroyed.

    The answer has the record, an empty object in the caller's home group. Its name follows from the nonce,
    the group, the reader and the end.
    """

    group: Identifier
    nonce: NameBytes
    reader: User
    expires_ns: U63


class AcceptShare(Call, frozen=True, tag=58):
    """Read what is in a group that ``issuer`` shares with the caller's principal.

    The answer has a reference to the group, for lookups in it.
    """

    group: NameBytes
    nonce: NameBytes
    issuer: User
    expires_ns: U63


class IssueToken(Call, frozen=True, tag=71):
    """Record the grant of a sealed token (``dios.wire.sealed_tokens``) for a group of the caller.

    The answer has the record, an empty object in the caller's home group. Its name seals the token, and its
    destruction revokes every token of this grant.
    """

    group: Identifier
    grant: Annotated[bytes, Meta(max_length=limits.SEALED_TOKEN_BYTES_MAX)]


class RedeemToken(Call, frozen=True, tag=72):
    """Read what is in the group of a sealed token, as far as its caveats permit.

    The answer has a reference to the group, for lookups in it. ``cluster`` and ``user`` name the holder of a
    foreign cluster; only the node's own user may give them, and only that user redeems a token for paths.
    """

    token: Annotated[bytes, Meta(max_length=limits.SEALED_TOKEN_BYTES_MAX)]
    cluster: Annotated[bytes, Meta(max_length=limits.DIGEST_BYTES)] = b""
    user: User = ""


class PruneEnvironments(Call, frozen=True, tag=73):
    """Begin to remove the environments of this node in which no task runs: those of a digest, or those that
    were not used for ``unused_ms``. For the node's own user and root.
    """

    digest: Annotated[str, Meta(max_length=40)] = ""
    unused_ms: U63 = 0


class ReadRegister(Call, frozen=True, tag=74):
    """The register of enrolled principals of this node; refused to pure tasks."""


class Enrol(Call, frozen=True, tag=75):
    """Replace the register of enrolled principals by a newer one, on this node and from it on all others.

    The first register of a cluster is for the node's own user and root; later ones are accepted from
    everybody, because the key of the first one must have signed them.
    """

    register: RegisterBytes


class Vouch(Call, frozen=True, tag=76):
    """Give a node a mandate with which it acts for a user at other nodes (``dios.wire.mandates``)."""

    mandate: MandateBytes
    host: Text = ""


class ReadMandateTerms(Call, frozen=True, tag=77):
    """The terms on which the caller's principal signs a mandate for a node."""

    host: Text = ""
