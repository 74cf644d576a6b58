"""The events that the host reports to the core: the only input of the core.

Every event carries ``now`` in nanoseconds of the host's clock, because the core reads no clock. A recorded
list of events can be replayed through a new core.
"""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from dios import limits
from dios.ids import Name, NodeId, ObjectId, PayloadId, Principal, TaskId, Ticket
from dios.wire import dcp
from dios.wire.codec import DCP_VERSION
from dios.wire.fields import ByteCount, Counter, Secrecy
from dios.wire.messages import AnyCall, Bound
from dios.wire.types import Buffering, Cause, Deletion, Fitness, ObjectType, Resource


class ObjectRecord(Struct, frozen=True, array_like=True):
    """The stored form of a physical object, from which it is rebuilt at start (§4.2, Persistence).

    ``groups`` are the external names of its groups. ``size`` is that of the payload that the store holds
    under the same object id. ``owner`` is the principal that it was created for. ``limits`` are those of a
    group, or for a home group those of its principal. ``secrecy`` is its label.
    """

    object: dcp.Object
    name: dcp.External | None
    type: ObjectType
    groups: Annotated[tuple[dcp.External, ...], Meta(max_length=limits.GROUPS_PER_CALL_MAX)]
    owner: Annotated[Principal, Meta(max_length=limits.TEXT_BYTES_MAX)]
    deletion: Deletion
    buffering: Buffering
    size: ByteCount
    v_r: Counter
    v_w: Counter
    limits: Annotated[tuple[Bound, ...], Meta(max_length=len(Resource))] = ()
    secrecy: Secrecy = ()


class DormantUse(Struct, frozen=True):
    """The numbers and bytes of the objects that stay in the store: by principal, and by name of a group."""

    owners: tuple[tuple[Principal, int, int], ...] = ()
    groups: tuple[tuple[Name, int, int], ...] = ()


class Recovered(Struct, frozen=True, tag=1):
    """The first event of a core: the records in the store, without those that it reads when it needs them."""

    now: int
    records: tuple[ObjectRecord, ...]
    dormant: DormantUse = DormantUse()


class SessionOpened(Struct, frozen=True, tag=2):
    """A user's process sent Hello; ``task`` is the host's new id for it. The answer is a Welcome."""

    now: int
    task: TaskId
    seq: int
    principal: Principal
    groups: tuple[Name, ...]
    label: str
    pid: int


class Called(Struct, frozen=True, tag=3):
    """A call of a task.

    The host keeps its inline bytes under ``payload``, and those of a vector's calls under ids that count up
    from it; the core reads only their length.
    """

    now: int
    task: TaskId
    seq: int
    call: AnyCall
    payload: PayloadId = PayloadId(0)


class Disconnected(Struct, frozen=True, tag=4):
    """The connection of a session or task is closed; ``reason`` is empty for an orderly end."""

    now: int
    task: TaskId
    reason: str = ""


class TaskStarted(Struct, frozen=True, tag=5):
    """The process for a Spawn is running."""

    now: int
    task: TaskId
    pid: int


class TaskEnded(Struct, frozen=True, tag=6):
    """The process of a task ended, or could not be started (cause SPAWN).

    ``cpu_ms`` is the CPU time that it used and ``memory_bytes`` its peak memory, as far as the kernel
    reported them.
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
    """The host's console buffer of ``task`` got ``size`` more bytes; 0 means that it is closed."""

    now: int
    task: TaskId
    size: int


class TimerFired(Struct, frozen=True, tag=8):
    """The deadline of an outcome has come."""

    now: int


class Persisted(Struct, frozen=True, tag=12):
    """Every store operation up to ``last`` is durable and will never be undone."""

    now: int
    last: Ticket


class PersistFailed(Struct, frozen=True, tag=9):
    """Every store operation from ``first`` to ``last`` failed, and none of them had an effect."""

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


class DefectFound(Struct, frozen=True, tag=24):
    """The host met an exception in the work for a task, or else for a node, which is to be ended.

    ``ends_object``: the content of ``object`` may be wrong, so that nobody may use it any more.
    """

    now: int
    task: TaskId
    node: NodeId
    object: ObjectId
    description: str
    ends_object: bool = False


class ShutdownBegan(Struct, frozen=True, tag=11):
    """The node stops: it takes no new calls and ends its tasks."""

    now: int


class PeerUp(Struct, frozen=True, tag=13):
    """An authenticated control connection to another node is open; the fields are its own statements.

    ``version`` is that of the messages, the highest that both nodes speak. ``roles`` are those
    in the node's certificate, and ``key`` is the SHA-256 of its public key.
    """

    now: int
    node: NodeId
    epoch: int
    name: str
    rack: str
    address: str
    version: int = DCP_VERSION
    roles: str = ""
    key: bytes = b""


class PeerDown(Struct, frozen=True, tag=14):
    """The control connection is closed.

    ``refused`` if no process listens at the other node's address; ``idle`` if one of the nodes closed it
    because nothing was sent on it for a while, which says nothing against the other node.
    """

    now: int
    node: NodeId
    epoch: int
    reason: str = ""
    refused: bool = False
    idle: bool = False


class PeerPaused(Struct, frozen=True, tag=26):
    """The other node replaces its program, so that it is silent for a while if ``begins``; else it goes on.

    It is the same start of the node when it connects again. See docs/adr/0072.
    """

    now: int
    node: NodeId
    epoch: int
    begins: bool


class Received(Struct, frozen=True, tag=15):
    """A message of another node, whose connection had this epoch.

    The host keeps the bytes inside its calls under ids that count up from ``payload``, as for ``Called``.
    It keeps the ``attached`` bytes that came with the message under ``payload``.
    """

    now: int
    node: NodeId
    epoch: int
    message: dcp.Message
    payload: PayloadId = PayloadId(0)
    attached: int = 0


class UnderWay(Struct, frozen=True, tag=22):
    """A large payload of a request to another node, or of its answer, is being sent or waits to be sent.

    The host reports it when the request is repeated meanwhile, and from time to time during the transfer.
    """

    now: int
    node: NodeId
    number: int


class NodesRemoved(Struct, frozen=True, tag=23):
    """The nodes that are removed from the cluster by the statements that this node has stored; all of them.

    ``call`` is the call that removed one, if any; ``failure`` is the reason if that failed.
    """

    now: int
    nodes: tuple[NodeId, ...]
    call: tuple[TaskId, int, int] | None = None
    failure: str = ""


class LabelsStored(Struct, frozen=True, tag=25):
    """The labels that a call has changed are stored, or the ``failure`` that prevented it."""

    now: int
    call: tuple[TaskId, int, int]
    failure: str = ""


class RegisterStored(Struct, frozen=True, tag=29):
    """The ``register`` of enrolled principals that counts from now on, and their keys.

    ``call`` is the call that brought it, if any. With a ``failure``, the register is not stored; if it is
    empty, the former one counts.
    """

    now: int
    register: bytes
    keys: tuple[tuple[Principal, tuple[bytes, ...]], ...]
    call: tuple[TaskId, int, int] | None = None
    failure: str = ""


class ExtensionsFailed(Struct, frozen=True, tag=31):
    """The extensions of mandates with these keys (``Extension.key``) could not be signed for a node."""

    now: int
    node: NodeId
    keys: tuple[bytes, ...]


class SecretsStored(Struct, frozen=True, tag=30):
    """The later secrets of the cluster that this node has stored, the present one last.

    ``mark`` is equal on all nodes with the same ones, and ``withheld`` are the nodes that do not get them.
    ``call`` is the call that changed the secret, if any; ``failure`` is the reason if that failed.
    """

    now: int
    secrets: tuple[bytes, ...]
    mark: int
    withheld: tuple[NodeId, ...]
    call: tuple[TaskId, int, int] | None = None
    failure: str = ""

    def __repr__(self) -> str:
        """Return a text without the secrets."""
        return f"SecretsStored({len(self.secrets)} secrets, {self.mark:016x}, {self.call}, {self.failure!r})"


class LogLeft(Struct, frozen=True, tag=21):
    """The last ``size`` bytes of the output of a task that ended, which the host keeps under ``payload``.

    It is a separate event, so that a log that cannot be stored does not affect callers that wait for the
    task.
    """

    now: int
    task: TaskId
    payload: PayloadId
    size: int


class LoadMeasured(Struct, frozen=True, tag=16):
    """The free memory of this machine in bytes, which the host reports from time to time."""

    now: int
    memory_bytes: int


class FitnessChanged(Struct, frozen=True, tag=27):
    """The host learned more of this node's ability to run pure tasks.

    ``reason`` is empty if the node is fit. ``enforcement`` is that of ``Here``.
    """

    now: int
    fitness: Fitness
    reason: str = ""
    enforcement: tuple[tuple[str, str], ...] = ()


class CapacityChanged(Struct, frozen=True, tag=28):
    """The host learned the bytes per second of this node's disk and network; 0 for unknown."""

    now: int
    disk_io: int
    network: int


class NetworkOpened(Struct, frozen=True, tag=17):
    """The socket of a network stream is open; ``address`` has the form of ``Reference.address``."""

    now: int
    object: ObjectId
    address: str


class NetworkFailed(Struct, frozen=True, tag=18):
    """The socket could not be opened, or it broke: the object can no longer be used."""

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
    """A UDP_STREAM dropped ``count`` more datagrams: its ring was full, or they were too long for it."""

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
    | DefectFound
    | ShutdownBegan
    | PeerUp
    | PeerDown
    | PeerPaused
    | Received
    | UnderWay
    | LogLeft
    | LoadMeasured
    | FitnessChanged
    | CapacityChanged
    | NodesRemoved
    | LabelsStored
    | RegisterStored
    | SecretsStored
    | ExtensionsFailed
    | NetworkOpened
    | NetworkFailed
    | ConnectionArrived
    | DatagramsDropped
)
