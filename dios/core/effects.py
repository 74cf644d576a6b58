"""The effects that the core asks of the host: the only output of the core.

An ``Outcome`` lists store operations that must be durable first (``persist``), then effects in order
(``after``). ``wait_for`` is the ticket that must be durable before ``after`` runs: that of the step's own
operations, or of an earlier step whose result this step depends on. 0 means that ``after`` runs at once.

The host keeps each blob's *current content* (immutable versions, or one raw memory) by object id, each
buffer's memory by buffer id, and the inline bytes of an event by payload id until its ``after`` has run.
Effects run in step order, so "current" means the same to the core and the host.

The docstring of an effect is the instruction to the host.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from blake3 import blake3
from msgspec import Struct

from dios.core.events import ObjectRecord
from dios.ids import BufferId, NodeId, ObjectId, PayloadId, Principal, TaskId, Ticket
from dios.wire import dcp
from dios.wire.mandates import Purpose
from dios.wire.messages import AnyResult, Attached, Buffer, Guarantee, Limits, Rate, Reference
from dios.wire.types import Brand, Isolation, Mode, ObjectType


# -- store operations -----------------------------------------------------------------------------
class WriteSource(Struct, frozen=True):
    """The source of the bytes of a write, and their place in the object.

    At most one of ``payload``, ``buffer`` and ``content_of`` (the current content of another object) is
    not 0; all are 0 for an empty object. The bytes are the first ``length`` of the source; they replace
    the object's bytes from ``offset`` on. With ``replace`` the object ends at ``offset + length``,
    otherwise longer old content stays.
    """

    payload: PayloadId = PayloadId(0)
    buffer: BufferId = BufferId(0)
    content_of: ObjectId = ObjectId(0)
    offset: int = 0
    length: int = 0
    replace: bool = True


class PutObject(Struct, frozen=True, tag=1):
    """Insert or replace an object's record; with ``source`` also its payload, both atomically.

    ``new`` means that the store has nothing of the object, so that the host need not look.
    """

    record: ObjectRecord
    source: WriteSource | None = None
    new: bool = False


class DropObject(Struct, frozen=True, tag=2):
    """Remove an object's record and payload."""

    object: ObjectId


class AppendLog(Struct, frozen=True, tag=3):
    """Store the payload of ``source`` as one entry at ``position`` of a log, and its record, atomically."""

    record: ObjectRecord
    position: int
    source: WriteSource


StoreOperation: TypeAlias = PutObject | DropObject | AppendLog


# -- replies and buffers --------------------------------------------------------------------------
class Answer(Struct, frozen=True, tag=10):
    """Send ``result`` as the reply to ``seq`` of ``task``."""

    task: TaskId
    seq: int
    result: AnyResult


class AnswerRead(Struct, frozen=True, tag=11):
    """Reply with ``length`` bytes of the object's current content from ``offset`` on.

    The host completes ``result`` with inline data or a read-only mapping. If ``result.buffer`` is not 0 the
    buffer stays open on exactly this content until CloseBuffer; 0 is a one-shot read. With ``reuse`` the
    task has a mapping of this buffer already, so nothing is sent when the content is still the same. A
    buffer id that exists already (TAKE, BORROW) releases its former content and holds this content now.
    ``committed`` means that the call has also made a commit, which stands if the buffer cannot be provided.
    ``known`` means that the node of the remote task has these bytes, so that they are not sent.
    """

    task: TaskId
    seq: int
    result: Buffer
    object: ObjectId
    offset: int
    length: int
    reuse: bool = False
    committed: bool = False
    known: bool = False


class AnswerWrite(Struct, frozen=True, tag=12):
    """Reply with a writable buffer of ``length`` bytes for the object's range from ``offset`` on.

    ``raw``: map the object's own memory. Otherwise a private shadow, filled with the object's bytes
    unless ``blank``. With ``reuse`` the task's mapping is kept (and re-filled unless ``blank``); a read
    buffer taken over by a write (``reuse`` and ``blank``) keeps its pinned content as its bytes.
    ``committed`` is as in AnswerRead.
    """

    task: TaskId
    seq: int
    result: Buffer
    object: ObjectId
    offset: int
    length: int
    raw: bool = False
    blank: bool = False
    reuse: bool = False
    committed: bool = False


class AnswerBytes(Struct, frozen=True, tag=13):
    """Reply with bytes of the core itself (a timer, a group's name, a status record, an event)."""

    task: TaskId
    seq: int
    result: Buffer
    data: bytes


class AnswerConsole(Struct, frozen=True, tag=14):
    """Reply with up to ``length`` bytes from ``position`` on of the console of the task ``console``."""

    task: TaskId
    seq: int
    result: Buffer
    console: TaskId
    position: int
    length: int


class AnswerVector(Struct, frozen=True, tag=15):
    """Reply with one Results whose parts are the results of these answers, in order."""

    task: TaskId
    seq: int
    parts: tuple[
        Answer | AnswerRead | AnswerWrite | AnswerBytes | AnswerConsole | AnswerReceived | AnswerAttach, ...
    ]


class CloseBuffer(Struct, frozen=True, tag=16):
    """Close the buffer: unpin its content and free its memory."""

    buffer: BufferId


class ApplyWrite(Struct, frozen=True, tag=18):
    """Make a volatile blob's new current content out of ``source``.

    The bytes of a raw write are mostly in the object's own memory already, and then nothing is copied.
    For a durable blob it comes after its PutObject and only switches the content to the stored one.
    """

    object: ObjectId
    source: WriteSource
    durable: bool = False


class DuplicateContent(Struct, frozen=True, tag=19):
    """Give a new object the current content of ``source`` (copy with changed persistence)."""

    object: ObjectId
    source: ObjectId


class DiscardContent(Struct, frozen=True, tag=20):
    """Discard the content of an object that is gone, once the last buffer on it is closed."""

    object: ObjectId


# -- the public page of references (§4.5.1) --------------------------------------------------------
class BindSlot(Struct, frozen=True, tag=30):
    """Write this reference's attributes into its slot of the task's page, and keep its counters current.

    If the task may not know the counters, they stay as they are in the reference.
    """

    task: TaskId
    reference: Reference
    live: bool = True


class UnbindSlot(Struct, frozen=True, tag=31):
    """Clear the slot."""

    task: TaskId
    slot: int


class PublishCounters(Struct, frozen=True, tag=32):
    """Write an object's changed counters into every slot bound to it.

    ``direct``: tasks of this node may read this version without a call.
    """

    object: ObjectId
    size: int
    v_r: int
    v_w: int
    a_r: int
    a_w: int
    dirty: int
    zombie: bool
    direct: bool = False


# -- streams --------------------------------------------------------------------------------------
class AnswerAttach(Struct, frozen=True, tag=40):
    """Make the stream's ring if there is none yet, and reply with this end of it.

    ``duplex``: reading and writing have a ring each, with a socket at the other end of both.
    """

    task: TaskId
    seq: int
    object: ObjectId
    mode: Mode
    ring_bytes: int
    duplex: bool = False

    @property
    def result(self) -> Attached:
        """The reply."""
        return Attached(self.ring_bytes)


class CloseStreamEnd(Struct, frozen=True, tag=41):
    """Close this end, whose task is gone or dropped it, and notify the other end through the ring."""

    object: ObjectId
    mode: Mode


class WriteConsole(Struct, frozen=True, tag=42):
    """Append the payload to the console of ``task``, and report it with a ConsoleArrived event."""

    task: TaskId
    source: WriteSource


class OpenNetwork(Struct, frozen=True, tag=43):
    """Open the socket of a network stream; a NetworkOpened or a NetworkFailed follows.

    ``address`` is "HOST:PORT": the address to connect to, to listen on, or to send from. With ``origin``, an
    address that the host's name has, and that is not public, is refused. ``principal`` is that of the task.
    """

    object: ObjectId
    kind: ObjectType
    address: str
    ring_bytes: int
    origin: bool = False
    principal: Principal = Principal("")


class AdoptConnection(Struct, frozen=True, tag=44):
    """Give the connection that arrived under ``number`` to this object of ``principal``."""

    object: ObjectId
    number: int
    ring_bytes: int
    principal: Principal = Principal("")


class CloseNetwork(Struct, frozen=True, tag=45):
    """Send the bytes that are still in the ring of an object that is gone, and close the socket."""

    object: ObjectId


class AnswerLog(Struct, frozen=True, tag=46):
    """Reply with the entries of a log that lie wholly in the ``length`` bytes from ``position`` on."""

    task: TaskId
    seq: int
    result: Buffer
    object: ObjectId
    position: int
    length: int


# -- tasks ----------------------------------------------------------------------------------------
class TaskShare(Struct, frozen=True):
    """The part of the machine that is set aside for a task; 0 and empty for nothing.

    ``cpus_milli`` of ``node_cpus_milli`` thousandths of a processor, ``disk_io`` of ``node_disk_io`` bytes a
    second. ``processors`` are those on which alone a pinned task runs. A ``best_effort`` task has nothing set
    aside: it yields to all others. ``network`` are bytes a second.
    """

    cpus_milli: int = 0
    node_cpus_milli: int = 0
    disk_io: int = 0
    node_disk_io: int = 0
    processors: tuple[int, ...] = ()
    best_effort: bool = False
    network: int = 0
    replaces: bool = False
    """True if it replaces an earlier share: then parts of 0 are as for a task without a share."""


NO_SHARE: Final = TaskShare()


class Spawn(Struct, frozen=True, tag=50):
    """Start a process for ``task``; its first message is the Welcome in an ``Answer`` that follows.

    ``executable`` is the object whose current content is the program. ``job`` is charged for audit records
    of the task (``Audit``). ``template`` names the template from which a pure task is forked. A
    ``forkable`` task can be forked later. With ``fork_of`` the process of that task forks itself. The process
    is held to ``share`` as far as this machine can do that. A gateway holds keys of a granted network.
    ``template`` may name an environment; ``archive`` is the object from which the node can make it, or 0.
    ``isolation`` names the kernel of a pure task.
    """

    task: TaskId
    brand: Brand
    label: str
    executable: ObjectId
    limits: Limits
    principal: Principal = Principal("")
    job: TaskId = TaskId(0)
    template: str = ""
    forkable: bool = False
    fork_of: TaskId = TaskId(0)
    share: TaskShare = NO_SHARE
    is_gateway: bool = False
    archive: ObjectId = ObjectId(0)
    isolation: Isolation = Isolation.KERNEL


class Kill(Struct, frozen=True, tag=51):
    """End the task's process; a TaskEnded follows. It has no effect if the process is gone."""

    task: TaskId


class PruneEnvironments(Struct, frozen=True, tag=58):
    """Remove environments in which no task runs, as the call with this name says."""

    digest: str
    unused_ms: int


class Suspend(Struct, frozen=True, tag=52):
    """Stop the task's process (SIGSTOP, or the cgroup's freezer)."""

    task: TaskId


class Continue(Struct, frozen=True, tag=53):
    """Let the task's process run on."""

    task: TaskId


class CloseConnection(Struct, frozen=True, tag=54):
    """Close the connection of a session after everything queued for it is sent."""

    task: TaskId
    reason: str


class BeginShutdown(Struct, frozen=True, tag=55):
    """Stop the node: a caller with the right to do so asked for it."""


# -- other nodes (§4.8) ----------------------------------------------------------------------------
class Extension(Struct, frozen=True):
    """An extension of a mandate for the node that a request goes to, which this node signs."""

    mandate: bytes
    purposes: Purpose
    end_ms: int

    @property
    def key(self) -> bytes:
        """A value that is equal for equal extensions."""
        return blake3(b"%b %d %d" % (self.mandate, self.purposes, self.end_ms)).digest()


class Send(Struct, frozen=True, tag=70):
    """Send a message to another node; it is lost without notice when there is no connection.

    The bytes of ``source`` (of a buffer, or an object's current content) travel with it. With ``epoch``, it
    is for that start of the node only: the numbers of requests mean others after the next. The host adds the
    signed ``extensions`` to a request.
    """

    node: NodeId
    message: dcp.Message
    source: WriteSource | None = None
    epoch: int = 0
    extensions: tuple[Extension, ...] = ()


class OpenRemoteTask(Struct, frozen=True, tag=71):
    """Send answers to this task to another node from now on, as ``dcp.PeerReply`` with the number ``seq``.

    The bytes of an answer travel with it, also those that a local task would map. ``home_id`` is the id of
    the task on its own node, by which guarantees name it; 0 if it is ``task``.
    """

    task: TaskId
    node: NodeId
    principal: str
    home_id: TaskId = TaskId(0)


class CloseRemoteTask(Struct, frozen=True, tag=72):
    """End an OpenRemoteTask: the task of the other node no longer needs this node."""

    task: TaskId


class AnswerReceived(Struct, frozen=True, tag=73):
    """Reply with the bytes that another node sent.

    They are ``result.data`` if that is not empty, else ``result.size`` bytes of the payload that came with
    this event's message, from ``offset`` on. There may be none.

    ``writable``: give the task its own memory of ``length`` bytes, filled with the received bytes, which is
    held under ``result.buffer`` until CloseBuffer. Otherwise the bytes are read-only. ``reuse``: keep the
    task's mapping. ``committed`` is as in AnswerRead.
    """

    task: TaskId
    seq: int
    result: Buffer
    payload: PayloadId
    length: int
    writable: bool = False
    reuse: bool = False
    offset: int = 0
    committed: bool = False


class KeepPayload(Struct, frozen=True, tag=77):
    """Keep the bytes that came with this event's message for a later step, until DropPayload."""

    payload: PayloadId


class DropPayload(Struct, frozen=True, tag=78):
    """Drop bytes that a KeepPayload kept."""

    payload: PayloadId


class AnswerAttachRemote(Struct, frozen=True, tag=74):
    """Reply with one end of a new ring that carries a stream of another node; the host has the other end.

    ``number`` is that of the request that attached to the stream on the other node. It identifies the data
    connection.
    """

    task: TaskId
    seq: int
    object: ObjectId
    mode: Mode
    ring_bytes: int
    node: NodeId
    number: int


class Contact(Struct, frozen=True, tag=75):
    """Note the address of a node, and connect to it.

    With ``on_demand`` no connection is made before something is sent to the node; otherwise the connection is
    kept from now on.
    """

    node: NodeId
    name: str
    address: str
    on_demand: bool = False


class HangUp(Struct, frozen=True, tag=76):
    """Close the connections to this node, and open no more."""

    node: NodeId
    reason: str


class StoreRegister(Struct, frozen=True, tag=84):
    """Store a register of enrolled principals and pass it on; RegisterStored reports the result."""

    register: bytes
    call: tuple[TaskId, int, int]


class RotateSecret(Struct, frozen=True, tag=85):
    """Make, store and pass on the next generation of the cluster's secret; SecretsStored reports it."""

    call: tuple[TaskId, int, int]


class StoreLabels(Struct, frozen=True, tag=83):
    """Store this node's rack and labels for its next starts; LabelsStored reports the result."""

    rack: str
    labels: tuple[tuple[str, str], ...]
    call: tuple[TaskId, int, int]


class RemoveNode(Struct, frozen=True, tag=79):
    """Sign and store that the node is removed from the cluster, and send it to all nodes.

    ``restore``: the nodes that it removed itself are members again. NodesRemoved reports the result with
    ``call``, the call that asked for it.
    """

    node: NodeId
    restore: bool
    call: tuple[TaskId, int, int]


class EndConnection(Struct, frozen=True, tag=81):
    """Close the connections to this node; both nodes may then connect again."""

    node: NodeId
    reason: str


# -- rates ----------------------------------------------------------------------------------------
class SetRates(Struct, frozen=True, tag=80):
    """Apply these rates and guarantees for ``lease_ms`` from now on, instead of all former ones.

    The host adds the meters and the capacity to an ``Answer`` with a ``Metered``. ``by`` is the task that
    set the rates, which is not limited itself.
    """

    rates: tuple[Rate, ...]
    lease_ms: int
    by: TaskId = TaskId(0)
    guarantees: tuple[Guarantee, ...] = ()
    shares: tuple[tuple[TaskId, TaskShare], ...] = ()
    """The parts of the machine to which running tasks are held for that time, and no others."""


# -- audit (§3.2.2) --------------------------------------------------------------------------------
class Audit(Struct, frozen=True, tag=60):
    """One audit record; names appear as fingerprints only.

    ``job`` is not stored. It is the session, or the task started by a session, that is charged for the record
    and to which the task belongs; 0 for the node itself.
    """

    now: int
    action: str
    outcome: str
    principal: str
    task: str
    subject: str
    detail: str
    job: TaskId = TaskId(0)


class LogDefect(Struct, frozen=True, tag=61):
    """Write an exception of the core, and the party that it worked for, to the node's log."""

    subject: str
    trace: str


Reply: TypeAlias = (
    Answer | AnswerRead | AnswerWrite | AnswerBytes | AnswerConsole | AnswerReceived | AnswerAttach
)
"""The answer to one call, alone or in a vector."""

Effect: TypeAlias = (
    Answer
    | AnswerRead
    | AnswerWrite
    | AnswerBytes
    | AnswerConsole
    | AnswerVector
    | CloseBuffer
    | ApplyWrite
    | DuplicateContent
    | DiscardContent
    | BindSlot
    | UnbindSlot
    | PublishCounters
    | AnswerAttach
    | CloseStreamEnd
    | WriteConsole
    | OpenNetwork
    | AdoptConnection
    | CloseNetwork
    | AnswerLog
    | Spawn
    | Kill
    | PruneEnvironments
    | Suspend
    | Continue
    | CloseConnection
    | BeginShutdown
    | Audit
    | Send
    | OpenRemoteTask
    | CloseRemoteTask
    | AnswerReceived
    | KeepPayload
    | DropPayload
    | AnswerAttachRemote
    | Contact
    | HangUp
    | RemoveNode
    | StoreLabels
    | StoreRegister
    | RotateSecret
    | SetRates
    | EndConnection
    | LogDefect
)


class Outcome(Struct):
    """The result of one event. ``deadline`` is the next moment at which the core needs a TimerFired.

    ``units`` is the work of the step (``dios.core.model.work_items``), by which connections take turns.
    """

    persist: list[StoreOperation]
    after: list[Effect]
    ticket: Ticket
    wait_for: Ticket
    deadline: int | None
    units: int = 0
