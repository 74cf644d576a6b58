"""What the core tells the host to do: the only way out.

Not for: doing it. An ``Outcome`` lists store operations that must be durable first (``persist``), then
effects in order (``after``). ``wait_for`` names the ticket that must be durable before ``after`` runs:
that of its own operations, or of an earlier step whose result this one has seen. 0 means at once.

The host keeps, by object id, each blob's *current content* (immutable versions, or one raw memory), by
buffer id each buffer's memory, and by payload id the inline bytes of an event until its ``after`` has
run. Effects run in step order,
so "current" means the same to both sides.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from dios.core.events import ObjectRecord
from dios.ids import BufferId, NodeId, ObjectId, PayloadId, TaskId, Ticket
from dios.wire import dcp
from dios.wire.messages import AnyResult, Buffer, Guarantee, Limits, Rate, Reference
from dios.wire.types import Brand, Mode, ObjectType


# -- store operations -----------------------------------------------------------------------------
class WriteSource(Struct, frozen=True):
    """Where the bytes of a write come from and where in the object they go.

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
    """Insert or replace an object's record; with ``source`` also its payload, atomically with it."""

    record: ObjectRecord
    source: WriteSource | None = None


class DropObject(Struct, frozen=True, tag=2):
    """Remove an object's record and payload."""

    object: ObjectId


class AppendLog(Struct, frozen=True, tag=3):
    """Put the payload of ``source`` as one entry at ``position`` of a log, and its record, atomically."""

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

    The host completes ``result`` with inline data or a read-only mapping. ``result.buffer`` not 0: the
    buffer stays open on exactly this content until CloseBuffer; 0: one-shot. With ``reuse`` the task has
    a mapping of this buffer already, so nothing is sent when the content is still the same. A buffer id
    that exists already (TAKE, BORROW) lets go of what it stood for and stands for this content now.
    """

    task: TaskId
    seq: int
    result: Buffer
    object: ObjectId
    offset: int
    length: int
    reuse: bool = False


class AnswerWrite(Struct, frozen=True, tag=12):
    """Reply with a writable buffer of ``length`` bytes for the object's range from ``offset`` on.

    ``raw``: map the object's own memory. Otherwise a private shadow, filled with the object's bytes
    unless ``blank``. With ``reuse`` the task's mapping is kept (and re-filled unless ``blank``); a read
    buffer taken over by a write (``reuse`` and ``blank``) keeps its pinned content as its bytes.
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


class AnswerBytes(Struct, frozen=True, tag=13):
    """Reply with bytes the core itself knows (a timer, a group's name, a status record, an event)."""

    task: TaskId
    seq: int
    result: Buffer
    data: bytes


class AnswerConsole(Struct, frozen=True, tag=14):
    """Reply with up to ``length`` bytes from position ``position`` of the console of ``console``."""

    task: TaskId
    seq: int
    result: Buffer
    console: TaskId
    position: int
    length: int


class AnswerVector(Struct, frozen=True, tag=15):
    """Reply with one Results whose parts are these answers' results, in order."""

    task: TaskId
    seq: int
    parts: tuple[Answer | AnswerRead | AnswerWrite | AnswerBytes | AnswerConsole | AnswerReceived, ...]


class CloseBuffer(Struct, frozen=True, tag=16):
    """The buffer is gone: unpin its content, free its memory."""

    buffer: BufferId


class ApplyWrite(Struct, frozen=True, tag=18):
    """Make a volatile blob's new current content out of ``source``.

    ``raw``: the bytes stand in the object's own memory already, nothing is to be done but growing.
    For a durable blob it comes after its PutObject and only switches the content to the stored one.
    """

    object: ObjectId
    source: WriteSource
    raw: bool = False
    durable: bool = False


class DuplicateContent(Struct, frozen=True, tag=19):
    """The new object starts with the current content of ``source`` (copy with changed persistence)."""

    object: ObjectId
    source: ObjectId


class DiscardContent(Struct, frozen=True, tag=20):
    """The object is gone; its content goes when the last buffer on it closes."""

    object: ObjectId


# -- the public page of references (§4.5.1) --------------------------------------------------------
class BindSlot(Struct, frozen=True, tag=30):
    """Write this reference's attributes into its slot of the task's page, and keep counters live there."""

    task: TaskId
    reference: Reference


class UnbindSlot(Struct, frozen=True, tag=31):
    """Clear the slot."""

    task: TaskId
    slot: int


class PublishCounters(Struct, frozen=True, tag=32):
    """The object's counters changed: write them into every slot bound to it."""

    object: ObjectId
    size: int
    v_r: int
    v_w: int
    a_r: int
    a_w: int
    dirty: int
    zombie: bool


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


class CloseStreamEnd(Struct, frozen=True, tag=41):
    """This end's task is gone or let go: tell the other end through the ring."""

    object: ObjectId
    mode: Mode


class WriteConsole(Struct, frozen=True, tag=42):
    """Append the payload to the console of ``task``, and tell of it by a ConsoleArrived event."""

    task: TaskId
    source: WriteSource


class OpenNetwork(Struct, frozen=True, tag=43):
    """Open the socket of a network stream; a NetworkOpened or a NetworkFailed follows.

    ``address`` is "HOST:PORT": where to connect, to listen, or to send from.
    """

    object: ObjectId
    kind: ObjectType
    address: str
    ring_bytes: int


class AdoptConnection(Struct, frozen=True, tag=44):
    """The connection that arrived under ``number`` is this object's from now on."""

    object: ObjectId
    number: int
    ring_bytes: int


class CloseNetwork(Struct, frozen=True, tag=45):
    """The object is gone: send what its ring still holds, and close the socket."""

    object: ObjectId


class AnswerLog(Struct, frozen=True, tag=46):
    """Reply with the whole entries of a log that stand in the ``length`` bytes from ``position`` on."""

    task: TaskId
    seq: int
    result: Buffer
    object: ObjectId
    position: int
    length: int


# -- tasks ----------------------------------------------------------------------------------------
class Spawn(Struct, frozen=True, tag=50):
    """Start a process for ``task``; its first message is the Welcome in an ``Answer`` that follows.

    ``executable`` is the object whose current content is the program.
    """

    task: TaskId
    brand: Brand
    label: str
    executable: ObjectId
    limits: Limits


class Kill(Struct, frozen=True, tag=51):
    """End the task's process; a TaskEnded follows. Nothing when it is gone already."""

    task: TaskId


class Suspend(Struct, frozen=True, tag=52):
    """Stop the task's process (SIGSTOP, or the cgroup's freezer)."""

    task: TaskId


class Continue(Struct, frozen=True, tag=53):
    """Let the task's process run on."""

    task: TaskId


class CloseConnection(Struct, frozen=True, tag=54):
    """Close the connection of a session, after what is queued for it was sent."""

    task: TaskId
    reason: str


class BeginShutdown(Struct, frozen=True, tag=55):
    """Somebody with the right asked the node to end."""


# -- other nodes (§4.8) ----------------------------------------------------------------------------
class Send(Struct, frozen=True, tag=70):
    """Say this to another node; lost without a word when there is no connection.

    The bytes of ``source`` (of a buffer, or an object's current content) travel beside it.
    """

    node: NodeId
    message: dcp.Message
    source: WriteSource | None = None


class OpenRemoteTask(Struct, frozen=True, tag=71):
    """Answers to this task go to another node from now on: each as ``dcp.PeerReply`` with the number ``seq``.

    Their bytes travel beside it, whatever they would be mapped from.
    """

    task: TaskId
    node: NodeId
    principal: str


class CloseRemoteTask(Struct, frozen=True, tag=72):
    """The task of the other node needs nothing of this one any more."""

    task: TaskId


class AnswerReceived(Struct, frozen=True, tag=73):
    """Reply with the bytes that another node sent: those in ``result.data``, or else those beside the message
    of this event, under ``payload`` from ``offset`` on; ``result.size`` of them, or none at all.

    ``writable``: in memory of the task's own, which stands for ``result.buffer`` until CloseBuffer and is
    ``length`` bytes long, filled with what came. Otherwise read-only. ``reuse``: the task's mapping is kept.
    """

    task: TaskId
    seq: int
    result: Buffer
    payload: PayloadId
    length: int
    writable: bool = False
    reuse: bool = False
    offset: int = 0


class KeepPayload(Struct, frozen=True, tag=77):
    """The bytes that came beside this event's message are needed by a later step: until DropPayload."""

    payload: PayloadId


class DropPayload(Struct, frozen=True, tag=78):
    """Bytes that were kept are needed no more."""

    payload: PayloadId


class AnswerAttachAway(Struct, frozen=True, tag=74):
    """Reply with one end of a new ring whose other end is the host's; it carries the stream of another node.

    ``number`` is that of the request that took the end over there: the data connection is known by it.
    """

    task: TaskId
    seq: int
    object: ObjectId
    mode: Mode
    ring_bytes: int
    node: NodeId
    number: int


class Contact(Struct, frozen=True, tag=75):
    """Have a connection to this node, from now on."""

    node: NodeId
    name: str
    address: str


class HangUp(Struct, frozen=True, tag=76):
    """End the connections with this node, and do not look for it any more.

    ``revoked``: its certificate is worth nothing from now on, for anybody.
    """

    node: NodeId
    reason: str
    revoked: bool = False


# -- rates ----------------------------------------------------------------------------------------
class SetRates(Struct, frozen=True, tag=80):
    """Keep to these rates and guarantees for ``lease_ms`` from now on, instead of all that were set before.

    To an ``Answer`` with a ``Metered`` the host adds the meters and the capacity. ``by`` is the task that
    told them, which is not held up itself.
    """

    rates: tuple[Rate, ...]
    lease_ms: int
    by: TaskId = TaskId(0)
    guarantees: tuple[Guarantee, ...] = ()


# -- audit (§3.2.2) --------------------------------------------------------------------------------
class Audit(Struct, frozen=True, tag=60):
    """One audit record; names appear as fingerprints only."""

    now: int
    action: str
    outcome: str
    principal: str
    task: str
    subject: str
    detail: str


Reply: TypeAlias = Answer | AnswerRead | AnswerWrite | AnswerBytes | AnswerConsole | AnswerReceived
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
    | AnswerAttachAway
    | Contact
    | HangUp
    | SetRates
)


class Outcome(Struct):
    """The answer to one event. ``deadline`` is the next ``now`` at which the core wants a TimerFired."""

    persist: list[StoreOperation]
    after: list[Effect]
    ticket: Ticket
    wait_for: Ticket
    deadline: int | None
