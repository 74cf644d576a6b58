"""What the host tells the core: the only way in.

Not for: deciding anything. Every event carries ``now`` in nanoseconds, as the host's clock gave it;
the core reads no clock. A list of events, recorded, replays through a fresh core.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from dios.ids import Name, NodeId, ObjectId, PayloadId, Principal, TaskId, Ticket
from dios.wire import dcp
from dios.wire.messages import AnyCall, Bound
from dios.wire.types import Buffering, Cause, Deletion, ObjectType


class ObjectRecord(Struct, frozen=True, array_like=True):
    """A physical object as the store keeps it, enough to rebuild it at start (§4.2, Persistence).

    ``groups`` are the external names of its groups; ``size`` and ``digest`` describe the payload that
    the store holds under the same object id; ``owner`` is the principal it was created for. ``limits``
    are a group's, and those of a home group its principal's.
    """

    object: ObjectId
    name: Name | None
    type: ObjectType
    groups: tuple[Name, ...]
    owner: Principal
    deletion: Deletion
    buffering: Buffering
    size: int
    v_r: int
    v_w: int
    limits: tuple[Bound, ...] = ()


class Recovered(Struct, frozen=True, tag=1):
    """First event of a core's life: what the store held."""

    now: int
    records: tuple[ObjectRecord, ...]


class SessionOpened(Struct, frozen=True, tag=2):
    """A person's process said Hello; ``task`` is the host's fresh id for it. Answered by a Welcome."""

    now: int
    task: TaskId
    seq: int
    principal: Principal
    groups: tuple[Name, ...]
    label: str
    pid: int


class Called(Struct, frozen=True, tag=3):
    """A task made a call. Its inline bytes stand in the host under ``payload``, those of a vector's calls
    under ids that count up from it; the core looks at their length only.
    """

    now: int
    task: TaskId
    seq: int
    call: AnyCall
    payload: PayloadId = PayloadId(0)


class Disconnected(Struct, frozen=True, tag=4):
    """The connection of a session or task is gone; ``reason`` is empty for an orderly end."""

    now: int
    task: TaskId
    reason: str = ""


class TaskStarted(Struct, frozen=True, tag=5):
    """The process for a Spawn runs."""

    now: int
    task: TaskId
    pid: int


class TaskEnded(Struct, frozen=True, tag=6):
    """The process of a task is gone, or never came to be (cause SPAWN).

    ``cpu_ms`` and ``memory_bytes`` are what it used, as far as the kernel told; the second at its peak.
    """

    now: int
    task: TaskId
    cause: Cause
    exit_code: int = 0
    signal: int = 0
    detail: str = ""
    cpu_ms: int = 0
    memory_bytes: int = 0


class ConsoleArrived(Struct, frozen=True, tag=7):
    """``size`` more bytes stand in the host's console buffer of ``task``; 0 means it is closed."""

    now: int
    task: TaskId
    size: int


class TimerFired(Struct, frozen=True, tag=8):
    """The deadline that an outcome asked for has come."""

    now: int


class Persisted(Struct, frozen=True, tag=12):
    """Every store operation up to ``last`` is durable: nothing of it will have to be undone."""

    now: int
    last: Ticket


class PersistFailed(Struct, frozen=True, tag=9):
    """Every store operation from ``first`` to ``last`` failed and none of them took place."""

    now: int
    first: Ticket
    last: Ticket
    code: int
    message: str


class EffectFailed(Struct, frozen=True, tag=10):
    """The host could not carry out an effect on an object (no memory for a buffer, damaged value)."""

    now: int
    task: TaskId
    buffer: int
    object: ObjectId
    code: int
    message: str


class ShutdownBegan(Struct, frozen=True, tag=11):
    """The node stops: no new calls are taken, tasks are ended."""

    now: int


class PeerUp(Struct, frozen=True, tag=13):
    """An authenticated control connection to another node stands; what it says of itself."""

    now: int
    node: NodeId
    epoch: int
    name: str
    rack: str
    address: str


class PeerDown(Struct, frozen=True, tag=14):
    """The control connection is gone; ``refused`` says that nobody listens at the other's address."""

    now: int
    node: NodeId
    epoch: int
    reason: str = ""
    refused: bool = False


class Received(Struct, frozen=True, tag=15):
    """A message of another node, which was connected with this epoch.

    Bytes inside its calls stand in the host under ids that count up from ``payload``, as those of
    ``Called``. Bytes that came beside the message stand under ``payload``, and are ``attached`` many.
    """

    now: int
    node: NodeId
    epoch: int
    message: dcp.Message
    payload: PayloadId = PayloadId(0)
    attached: int = 0


class UnderWay(Struct, frozen=True, tag=22):
    """Many bytes beside a request to another node, or beside its answer, are on their way or wait for that.

    The host tells it when the request is repeated meanwhile, and now and then while they come.
    """

    now: int
    node: NodeId
    number: int


class LogLeft(Struct, frozen=True, tag=21):
    """The last ``size`` bytes that a task wrote, which is over; they stand under ``payload``.

    An event of its own: that the log cannot be stored is nothing to those who wait for the task.
    """

    now: int
    task: TaskId
    payload: PayloadId
    size: int


class LoadMeasured(Struct, frozen=True, tag=16):
    """How much memory is free on this machine; the host tells it now and then."""

    now: int
    memory_bytes: int


class NetworkOpened(Struct, frozen=True, tag=17):
    """The socket of a network stream is open; ``address`` as ``Reference.address`` tells it."""

    now: int
    object: ObjectId
    address: str


class NetworkFailed(Struct, frozen=True, tag=18):
    """The socket could not be opened, or broke: the object is of no use any more."""

    now: int
    object: ObjectId
    code: int
    message: str


class ConnectionArrived(Struct, frozen=True, tag=19):
    """A peer connected to a TCP_ACCEPT_STREAM; the host keeps the connection under ``number``."""

    now: int
    object: ObjectId
    number: int
    address: str


class DatagramsDropped(Struct, frozen=True, tag=20):
    """So many datagrams more came for a UDP_STREAM while its ring was full, or were too long for it."""

    now: int
    object: ObjectId
    count: int


Event: TypeAlias = (
    Recovered
    | SessionOpened
    | Called
    | Disconnected
    | TaskStarted
    | TaskEnded
    | ConsoleArrived
    | TimerFired
    | Persisted
    | PersistFailed
    | EffectFailed
    | ShutdownBegan
    | PeerUp
    | PeerDown
    | Received
    | UnderWay
    | LogLeft
    | LoadMeasured
    | NetworkOpened
    | NetworkFailed
    | ConnectionArrived
    | DatagramsDropped
)
