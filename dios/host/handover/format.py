"""The bytes that a node's process hands to its successor in a sealed memory; docs/formats.md.

A magic number, the version, the length of the core's snapshot, the snapshot (``dios.core.snapshot``), the
host's part as MessagePack, and the BLAKE3 digest of all that. The memory never becomes a file: it has the
names of objects, which are secrets. Descriptors are named by their numbers, because the process is the same.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import msgspec
from blake3 import blake3
from msgspec import UNSET, Meta, Struct, UnsetType

from dios import limits
from dios.errors import DamagedError
from dios.wire.fields import (
    Address,
    ByteCount,
    Count,
    Counter,
    Epoch,
    Identifier,
    Label,
    Milliseconds,
    Nanoseconds,
    ProcessId,
    Slot,
    Text,
    User,
)
from dios.wire.types import Brand, Mode, ObjectType

VERSION: Final = 1

_MAGIC: Final = b"DIOSHAND"
_DIGEST_BYTES: Final = 32
_HEAD_BYTES: Final = len(_MAGIC) + 4 + 8
_PURPOSE: Final = "dios 2026 state that a node hands to its successor"

Descriptor: TypeAlias = Annotated[int, Meta(ge=0, le=limits.OPEN_FILES_MAX)]
Maybe: TypeAlias = Annotated[int, Meta(ge=-1, le=limits.OPEN_FILES_MAX)]
"""A descriptor, or -1 for none."""

Number: TypeAlias = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Place: TypeAlias = Annotated[int, Meta(ge=-1, le=2**32 - 1)]
"""The place of a memory in ``HostState.memories``, or -1 for none."""

Small: TypeAlias = Annotated[bytes, Meta(max_length=limits.DCP_MESSAGE_BYTES_MAX)]
Frame: TypeAlias = Annotated[bytes, Meta(max_length=limits.REPLY_BYTES_MAX + 4)]
Frames: TypeAlias = Annotated[tuple[Frame, ...], Meta(max_length=limits.RECEIVE_BYTES)]
_MANY: Final = Meta(max_length=limits.HANDED_OVER_MAX)


class Part(Struct, frozen=True, forbid_unknown_fields=True):
    """The base class of all parts. Fields have names, so that a later version can add one with a default."""


# -- bytes ----------------------------------------------------------------------------------------
class Memory(Part, frozen=True):
    """A memory or file of the store with its bytes; ``writers`` is the open file that its writers share."""

    fd: Descriptor
    size: ByteCount
    frozen: bool
    raw: bool
    stored: bool
    contested: bool
    writers: Maybe


class Bytes(Part, frozen=True):
    """A content: the memory at a place, or the bytes themselves."""

    memory: Place
    data: Small = b""


class Content(Part, frozen=True):
    """The current content of an object that the store does not have."""

    object: Identifier
    content: Bytes


class OpenBuffer(Part, frozen=True):
    """An open buffer."""

    buffer: Identifier
    content: Bytes
    start: ByteCount
    length: ByteCount
    shadow: bool
    mapped: bool


class KeptPayload(Part, frozen=True):
    """Bytes that came with a call which waits."""

    payload: Number
    content: Bytes


# -- pages, consoles, streams -----------------------------------------------------------------------
class Counters(Part, frozen=True):
    """The counters of an object that its slots show, and the step that published them."""

    object: Identifier
    step: Number
    outdated: Count
    published: tuple[Counter, Counter, Counter, Counter, Counter, Counter] | None
    zombie: bool = False
    direct: bool = False


class BoundSlot(Part, frozen=True):
    """A slot of a page and the object that it shows."""

    slot: Slot
    object: Identifier
    still: bool | UnsetType = UNSET
    """True if it shows no counters, because the task may not know them."""


class Page(Part, frozen=True):
    """The public page of a task: its memory, and the task's own descriptor until the task has it."""

    task: Identifier
    fd: Descriptor
    reader: Maybe
    next_stamp: Number
    bound: Annotated[tuple[BoundSlot, ...], Meta(max_length=limits.REFERENCES_PER_TASK_MAX)]


class Console(Part, frozen=True):
    """The last bytes that a task printed."""

    task: Identifier
    tail: Annotated[bytes, Meta(max_length=limits.CONSOLE_TAIL_BYTES)]
    arrived: ByteCount
    read_to: ByteCount
    followed: bool


class EndedConsole(Part, frozen=True):
    """An ended task whose console is kept, in the order of their ends."""

    task: Identifier
    principal: User
    job: Identifier
    size: ByteCount


class Ring(Part, frozen=True):
    """The node's side of the ring of a stream, or with ``mode`` of one direction of a network stream."""

    object: Identifier
    mode: Mode | None
    ring_bytes: Annotated[int, Meta(ge=0, le=limits.STREAM_RING_BYTES_MAX)]
    writer: Descriptor
    reader: Descriptor
    write_socket: Descriptor
    read_socket: Maybe
    wanting: Annotated[tuple[Mode, ...], Meta(max_length=2)]


WaitNumber: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]


class Pump(Part, frozen=True):
    """The node's end of a direction of a network stream, to which a task attached with ``mode``."""

    mode: Mode
    wakeups: Descriptor
    wait_number: WaitNumber
    rung_for: WaitNumber


class PeerStream(Part, frozen=True):
    """The end of a stream with another node, to which a task attached with ``mode`` by request ``number``.

    ``dials`` if this node connects for it. ``epoch`` is the start of the other node, which must be the same.
    ``pending`` are bytes that go into the ring first.
    """

    node: Identifier
    number: Identifier
    dials: bool
    object: Identifier
    mode: Mode
    duplex: bool
    task: Identifier
    principal: Text
    epoch: Epoch
    wakeups: Descriptor
    wait_number: WaitNumber
    rung_for: WaitNumber
    pending: Annotated[bytes, Meta(max_length=limits.STREAM_PENDING_BYTES_MAX)] = b""
    finished: bool = False
    """True if ``pending`` is all that is left of the stream."""


class Accepted(Part, frozen=True):
    """A connection that no task has taken yet."""

    number: Number
    fd: Descriptor


class Socket(Part, frozen=True):
    """The socket of a network stream: with ``accepted`` connections if it listens."""

    object: Identifier
    kind: ObjectType
    address: Text
    fd: Descriptor
    pumps: Annotated[tuple[Pump, ...], Meta(max_length=2)] = ()
    reported: bool = False
    accepted: Annotated[tuple[Accepted, ...], Meta(max_length=limits.ACCEPT_WAITING_MAX + 1)] = ()
    principal: Text | UnsetType = UNSET
    """The principal whose place it has, which the first programs did not keep."""


class ClosedEnds(Part, frozen=True):
    """The ends of a stream that are closed."""

    object: Identifier
    modes: Annotated[tuple[Mode, ...], Meta(max_length=2)]


# -- processes --------------------------------------------------------------------------------------
class Unsent(Part, frozen=True):
    """Bytes that a peer's socket did not accept yet, with the descriptors that go with the first of them."""

    data: Frame
    fds: Annotated[tuple[Descriptor, ...], Meta(max_length=limits.DESCRIPTORS_PER_FRAME_MAX)]


class Channel(Part, frozen=True):
    """The connection of a task or session.

    ``unfinished`` is the beginning of a frame, ``calls`` are frames that were received and not handled.
    """

    fd: Descriptor
    unfinished: Frame
    calls: Frames
    unsent: Annotated[tuple[Unsent, ...], _MANY]
    unread: Count


class Group(Part, frozen=True):
    """A folder of a task in a hierarchy of control groups."""

    folder: Annotated[str, Meta(max_length=4096)]
    version: Annotated[int, Meta(ge=1, le=2)]
    controllers: Annotated[tuple[Text, ...], Meta(max_length=16)]


class Child(Part, frozen=True):
    """A process that a zygote made. One without a task waits for its first task, or loads a template."""

    number: Number
    brand: Brand
    pid: ProcessId
    pidfd: Descriptor
    folder: Maybe
    console: Descriptor
    memory_bytes: ByteCount
    cpu_ms: Milliseconds
    processes: Count
    groups: Annotated[tuple[Group, ...], Meta(max_length=8)]
    kill_asked: bool
    over_memory: bool


class Zygote(Part, frozen=True):
    """A zygote, which lives as long as its children."""

    pid: ProcessId
    control: Descriptor
    brand: Brand
    templates: bool
    children: Annotated[tuple[Child, ...], _MANY]


class Task(Part, frozen=True):
    """A running task of this node: the zygote (by its place) and number of its process."""

    task: Identifier
    principal: User
    job: Identifier
    zygote: Count
    child: Number
    channel: Channel
    killed: bool
    suspended: bool


class Session(Part, frozen=True):
    """A connected program of a user."""

    task: Identifier
    uid: Count
    pid: ProcessId
    channel: Channel
    closing: bool


class Newcomer(Part, frozen=True):
    """A program that has connected and not said its Hello."""

    uid: Count
    pid: ProcessId
    channel: Channel


# -- other nodes --------------------------------------------------------------------------------------
class Peer(Part, frozen=True):
    """Another node, with which a connection is kept, or made on demand."""

    node: Identifier
    name: Label
    address: Address
    kept: bool


class RemoteTask(Part, frozen=True):
    """A task of another node that has a record here."""

    task: Identifier
    node: Identifier


class Owner(Part, frozen=True):
    """The principal of a task, and its id on its own node if that is another one."""

    task: Identifier
    principal: User
    home_id: Identifier


class Port(Part, frozen=True):
    """The port for other nodes: its sockets, and this start of the node."""

    epoch: Epoch
    sockets: Annotated[tuple[Descriptor, ...], Meta(max_length=64)]


# -- the whole ------------------------------------------------------------------------------------------
class Steps(Part, frozen=True):
    """The counters of the loop."""

    durable: Number
    issued: Number
    steps: Number
    next_payload: Number


class FirstHostState(Part, frozen=True):
    """Everything except the core's state and streams between nodes, which the first programs did not keep.

    ``settings`` are those that the core was made with.
    """

    version: Text
    began_ns: Nanoseconds
    continuations: Count
    clock_offset: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
    settings: Annotated[dict[Text, Annotated[str, Meta(max_length=2**20)]], Meta(max_length=256)]
    pid_file: Descriptor
    listener: Descriptor
    steps: Steps
    attempt: Number = 0
    """The number of the request, which the report about it repeats."""
    owners: Annotated[tuple[Owner, ...], _MANY] = ()
    memories: Annotated[tuple[Memory, ...], _MANY] = ()
    contents: Annotated[tuple[Content, ...], _MANY] = ()
    buffers: Annotated[tuple[OpenBuffer, ...], _MANY] = ()
    payloads: Annotated[tuple[KeptPayload, ...], _MANY] = ()
    pages: Annotated[tuple[Page, ...], _MANY] = ()
    counters: Annotated[tuple[Counters, ...], _MANY] = ()
    consoles: Annotated[tuple[Console, ...], _MANY] = ()
    ended_consoles: Annotated[tuple[EndedConsole, ...], _MANY] = ()
    rings: Annotated[tuple[Ring, ...], _MANY] = ()
    closed_ends: Annotated[tuple[ClosedEnds, ...], _MANY] = ()
    sockets: Annotated[tuple[Socket, ...], _MANY] = ()
    next_accepted: Number = 1
    zygotes: Annotated[tuple[Zygote, ...], _MANY] = ()
    tasks: Annotated[tuple[Task, ...], _MANY] = ()
    sessions: Annotated[tuple[Session, ...], _MANY] = ()
    newcomers: Annotated[tuple[Newcomer, ...], _MANY] = ()
    port: Port | None = None
    lingering: Annotated[tuple[Descriptor, ...], _MANY] = ()
    """The sockets of connections with other nodes. TLS cannot be continued: they are closed when the
    successor is ready to connect again, so that the others do not take the node for dead before."""
    peers: Annotated[tuple[Peer, ...], _MANY] = ()
    remote_tasks: Annotated[tuple[RemoteTask, ...], _MANY] = ()


class HostState(FirstHostState, frozen=True):
    """Everything except the core's state."""

    fetched_rings: Annotated[tuple[Ring, ...], _MANY] = ()
    """The rings of tasks of this node that attached to streams of other nodes."""
    between: Annotated[tuple[PeerStream, ...], _MANY] = ()


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(HostState).decode


class Handover(msgspec.Struct, frozen=True):
    """The state of a node: the core's snapshot, and the host's part."""

    core: bytes
    host: HostState


def encode(handover: Handover) -> bytes:
    """Return the bytes of a handover."""
    host: FirstHostState = handover.host
    if not handover.host.between and not handover.host.fetched_rings:
        # Without streams, an earlier program can continue as well.
        host = FirstHostState(*(getattr(host, name) for name in FirstHostState.__struct_fields__))
    head = _MAGIC + VERSION.to_bytes(4, "big") + len(handover.core).to_bytes(8, "big")
    body = b"".join((head, handover.core, _encode(host)))
    return body + blake3(body, derive_key_context=_PURPOSE).digest()


def decode(data: bytes) -> Handover:
    """Return the handover in these bytes. Raise DamagedError if they are none of this version."""
    body, checksum = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if len(body) < _HEAD_BYTES or not body.startswith(_MAGIC):
        raise DamagedError("cannot continue the node: its state is incomplete")
    version = int.from_bytes(body[len(_MAGIC) : len(_MAGIC) + 4], "big")
    if version != VERSION:
        raise DamagedError(
            f"cannot continue the node: its state has version {version} of the format, and this program "
            f"reads version {VERSION}. Stop the node and start it again, which ends its tasks."
        )
    if blake3(body, derive_key_context=_PURPOSE).digest() != checksum:
        raise DamagedError("cannot continue the node: its state is damaged")
    end = _HEAD_BYTES + int.from_bytes(body[len(_MAGIC) + 4 : _HEAD_BYTES], "big")
    if end > len(body):
        raise DamagedError("cannot continue the node: its state is incomplete")
    try:
        return Handover(body[_HEAD_BYTES:end], _decode(body[end:]))
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedError(
            f"cannot continue the node: this program reads another state ({error}). "
            "Stop the node and start it again, which ends its tasks."
        ) from error
