"""The records of a node: objects, references, tasks, buffers and waiting calls (thesis §4.2, §4.5, §4.7).

They refer to each other, so they share one module. They hold data and the operations on one record. The
tables of records are in ``dios.core.model.state``, and the system calls on them are in ``dios.core.calls``.
In this order: waiting calls, physical objects, references and a task's table of them, buffers and the
requests on them, the start of a task, and tasks.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dios import limits
from dios.core.events import ObjectRecord
from dios.core.model.accounts import Account, Version, charge_all
from dios.core.model.origins import BLANKS
from dios.core.model.secrecy import PUBLIC, Label, is_owned, missing
from dios.core.model.type_rules import is_blob
from dios.core.model.type_states import StreamState, TypeState
from dios.errors import BadReferenceError, LimitError, shortened
from dios.ids import BufferId, Name, NodeId, ObjectId, Principal, RefId, TaskId, Ticket
from dios.wire import dcp, messages
from dios.wire.messages import AnyCall, Bound, Limits, Work
from dios.wire.nametext import fingerprint
from dios.wire.types import (
    Brand,
    Buffering,
    Cause,
    Deletion,
    Isolation,
    Mode,
    ObjectType,
    Permission,
    Persistence,
    Proximity,
    Resource,
    Semantics,
    TaskState,
)

CallId: TypeAlias = tuple[TaskId, int, int]
"""A waiting call: its task, its sequence number, and the number of its row in the table of waiting calls."""

RequestId: TypeAlias = tuple[NodeId, int]
"""A request to another node: the node, and the request's number."""


# -- waiting calls ----------------------------------------------------------------------------------
class Progress(Struct):
    """The base of the intermediate results of a waiting call (``dios.core.remote.continuations``)."""


class Pending:
    """One waiting call and the objects whose change may finish it.

    ``watched`` has the places of each object in a select call, so that a change of one object makes the node
    look only at these.
    ``deadline`` is the latest moment for the next check, and ``limit`` is the end of the caller's timeout.
    ``requests`` are requests to other nodes, and ``progress`` holds the results of those that are answered.
    While the call waits, no lease is granted on the objects in ``closes``, and the bytes of ``held`` are
    counted with its task. The table assigns ``number``, which distinguishes this call from an earlier one
    with the same sequence number.
    """

    __slots__ = (
        "call",
        "closes",
        "deadline",
        "held",
        "limit",
        "number",
        "progress",
        "requests",
        "seq",
        "task",
        "watched",
    )

    def __init__(
        self,
        task: Holder,
        seq: int,
        call: AnyCall,
        watched: dict[PhysicalObject, tuple[int, ...]],
        deadline: int | None = None,
        limit: int | None = None,
        *,
        closes: tuple[PhysicalObject, ...] = (),
    ) -> None:
        self.task: Final = task
        self.seq: Final = seq
        self.call: Final = call
        self.watched: Final = watched
        self.closes: Final = closes
        self.held: Version | None = None
        self.deadline = deadline
        self.limit: Final = limit
        self.requests: list[RequestId] = []
        self.progress: Progress | None = None
        self.number = 0

    @property
    def key(self) -> tuple[int, int]:
        """The task and the sequence number, unique among all waiting calls."""
        return (self.task.id, self.seq)

    @property
    def id(self) -> CallId:
        """The id by which continuations refer to this very call."""
        return (self.task.id, self.seq, self.number)


class Waking(enum.IntEnum):
    """The state of the work that tries the calls again which wait on an object."""

    NO = 0
    QUEUED = 1
    BEGUN = 2
    AGAIN = 3  # begun, and the object has changed since


# -- physical objects -------------------------------------------------------------------------------
_HERE: Final = NodeId(0)

_ON_DISK = frozenset({ObjectType.DURABLE_BLOB, ObjectType.DURABLE_STREAM})


_TYPE_DESCRIPTORS: Final = {
    ObjectType.SHMEM_STREAM: limits.STREAM_DESCRIPTORS,
    ObjectType.TCP_STREAM: limits.SOCKET_DESCRIPTORS,
    ObjectType.UDP_STREAM: limits.SOCKET_DESCRIPTORS,
    ObjectType.TCP_ACCEPT_STREAM: limits.ACCEPTOR_DESCRIPTORS,
}


def descriptors_of_object(kind: ObjectType, buffering: Buffering) -> int:
    """Return the number of the node's descriptors that an object needs whatever its size."""
    raw = limits.MEMORY_DESCRIPTORS if buffering is Buffering.RAW else 0
    return _TYPE_DESCRIPTORS.get(kind, raw)


def files_of(size: int, *, volatile: bool) -> int:
    """Return the number of descriptors of stored bytes that a task reads: large ones are an open file."""
    return limits.FILE_DESCRIPTORS if not volatile and size > limits.INLINE_BYTES_MAX else 0


class PhysicalObject:
    """One physical object with its four counters (§4.7) and its life cycle.

    ``references`` are those that count: empty once the object is a zombie. ``pinned`` counts the node's own
    reasons to keep the object in addition to references. ``ticket`` is the last store operation on the
    object; ``undo`` has, for each operation not known to be durable, the record before it. ``accounts`` are
    those that the object is counted with: its creator's first, then ``sharing``, those of its groups. They
    are empty for objects that the node makes itself. ``account`` and ``limits`` are those of a group.
    ``raw_memory`` is set once writers change the object's own memory, and ``retirements`` is the number of
    times that references to it were taken back. ``shown`` is a fingerprint that another node gave it.
    ``secrecy`` is its label, which never changes; that of a task or console is its task's. ``counters_label``
    is that of its size and counters: for a console, that of its task.
    ``handed`` is set once the recipe of a task refers to the object. ``closed`` is the number of waiting
    calls because of which no lease on the object is granted.
    """

    __slots__ = (
        "a_r",
        "a_w",
        "account",
        "accounts",
        "address",
        "admissions",
        "buffering",
        "closed",
        "counters_label",
        "creator",
        "deletion",
        "dirty",
        "fingerprint",
        "groups",
        "handed",
        "home",
        "id",
        "late_reads",
        "limits",
        "name",
        "owner",
        "pinned",
        "place",
        "proximity",
        "raw_memory",
        "recorded",
        "references",
        "retirements",
        "secrecy",
        "sharing",
        "size",
        "sole",
        "state",
        "ticket",
        "type",
        "undo",
        "v_r",
        "v_w",
        "version",
        "waiters",
        "waking",
        "watchers",
        "zombie",
    )

    def __init__(
        self,
        object_id: ObjectId,
        kind: ObjectType,
        name: Name | None,
        groups: tuple[Name, ...],
        owner: Principal,
        *,
        deletion: Deletion,
        buffering: Buffering = Buffering.DOUBLE,
        proximity: Proximity = Proximity.NODE,
        accounts: tuple[Account, ...] = (),
        shown: str = "",
        secrecy: Label = PUBLIC,
    ) -> None:
        self.id: Final = object_id
        self.type: Final = kind
        self.name: Final = name
        self.groups: Final = groups
        self.owner: Final = owner
        self.deletion: Final = deletion
        self.buffering: Final = buffering
        self.proximity: Final = proximity
        self.secrecy: Final = secrecy
        self.counters_label = secrecy
        self.fingerprint: Final = shown or fingerprint(
            name if name is not None else object_id.to_bytes(8, "big")
        )
        self.home = _HERE  # of a proxy: the node that has the object
        self.place = ("", "")  # name and rack of the node that has it
        self.watchers: dict[NodeId, int] = {}  # node -> number of references that its tasks have
        self.size = 0
        self.v_r = self.v_w = 0
        self.a_r = self.a_w = 0
        self.admissions = 0  # all admitted requests, also those that came and went without a commit
        self.dirty = 0  # failed writes that had already touched raw bytes
        # Requests that count on the absence of other readers; direct reads to count when none is left.
        self.sole = self.late_reads = 0
        self.zombie = False
        self.pinned = 0
        self.references: dict[int, Reference] = {}
        self.waiters: dict[tuple[int, int], Pending] = {}
        self.waking = Waking.NO
        self.ticket = Ticket(0)
        self.recorded: ObjectRecord | None = None
        self.undo: list[tuple[Ticket, ObjectRecord | None]] = []
        self.state: TypeState = None
        self.accounts = accounts
        self.sharing = accounts[1:]
        self.version = Version(accounts, volatile=self.volatile, in_rings=kind in _TYPE_DESCRIPTORS)
        self.raw_memory = False
        self.retirements = 0
        self.address = ""  # of a network stream, once it is open
        self.account: Account | None = None
        self.creator = TaskId(0)  # of a group: the task that created it
        self.limits: tuple[Bound, ...] = ()
        self.handed = False
        self.closed = 0

    def __repr__(self) -> str:
        return f"<{self.type.name} {self.fingerprint} of {self.size} bytes>"

    @property
    def persistence(self) -> Persistence:
        """DURABLE exactly when the store holds a record of the object."""
        return Persistence.DURABLE if self.recorded is not None else Persistence.VOLATILE

    @property
    def direct(self) -> bool:
        """True if tasks of this node may read the object without a call, as if they had made one now.

        The node must see each read of a labelled object.
        """
        if self.secrecy:
            return False
        closed = self.a_w or self.sole or self.zombie or self.home or self.buffering is Buffering.RAW
        return not closed and is_blob(self.type)

    def counters_for_nodes(self) -> tuple[int, int, int, int, int, int]:
        """Return size, v_r, v_w, a_r, a_w and dirty for other nodes.

        Those of a labelled task's console are 0: other nodes do not know its label.
        """
        if self.counters_label != self.secrecy:
            return 0, 0, 0, 0, 0, 0
        return self.size, self.v_r, self.v_w, self.a_r, self.a_w, self.dirty

    def count_reads(self, count: int) -> None:
        """Count committed reads that were made without a call.

        They were made before the requests that count on the absence of readers, which must not fail by them.
        """
        if self.sole:
            self.late_reads += count
        else:
            self.v_r += count

    @property
    def gone(self) -> bool:
        """True if I/O on the object would not wait, but fail or return its end."""
        return self.zombie

    @property
    def volatile(self) -> bool:
        """True if the object's bytes are in memory."""
        return self.type not in _ON_DISK

    @property
    def descriptors(self) -> int:
        """The number of the node's descriptors that the object needs whatever its size."""
        if self.type is ObjectType.SHMEM_STREAM and isinstance(self.state, StreamState):
            is_whole = len(self.state.attached) == len(Mode)
            return limits.STREAM_DESCRIPTORS_ATTACHED if is_whole else limits.STREAM_DESCRIPTORS
        return descriptors_of_object(self.type, self.buffering)

    def record(self) -> ObjectRecord:
        """Return the record of the object's current attributes for the store."""
        return ObjectRecord(
            object=self.id,
            name=self.name,
            type=self.type,
            groups=self.groups,
            owner=self.owner,
            deletion=self.deletion,
            buffering=self.buffering,
            size=self.size,
            v_r=self.v_r,
            v_w=self.v_w,
            limits=self.limits,
            secrecy=self.secrecy,
        )

    @classmethod
    def from_record(cls, record: ObjectRecord, accounts: tuple[Account, ...] = ()) -> PhysicalObject:
        """Return an object that the store recovered at start (§4.2, Persistence)."""
        target = cls(
            record.object,
            record.type,
            record.name,
            record.groups,
            record.owner,
            deletion=record.deletion,
            buffering=record.buffering,
            accounts=accounts,
            secrecy=record.secrecy,
        )
        target.restore(record)
        return target

    def restore(self, record: ObjectRecord) -> None:
        """Return to the stored record, after a write that could not be made durable."""
        self.size = record.size
        if is_blob(self.type) or self.type is ObjectType.DURABLE_STREAM:
            self.version.resize(record.size)
        self.limits = record.limits
        self.v_r = max(record.v_r, self.v_r)
        self.v_w = record.v_w
        self.recorded = record

    @property
    def is_idle(self) -> bool:
        """True if nothing in this node refers to the object, and its stored record says everything about it.

        Only v_r may differ: it counts from the stored number again, as after a restart.
        """
        return (
            self.recorded is not None
            and not (self.references or self.waiters or self.watchers or self.pinned or self.handed)
            and not self.closed
            and not (self.zombie or self.home or self.a_r or self.a_w or self.version.holders)
            and self.waking is Waking.NO
            and self.state is None
            and not self.dirty
            and self.v_w == self.recorded.v_w
            and self.size == self.recorded.size
        )

    def growth(self, size: int) -> int:
        """Return the number of bytes by which the use grows once the next version has ``size``."""
        return size - (0 if self.version.holders and not self._fits(size) else self.version.bytes)

    def moves(self, size: int) -> bool:
        """Return True if ``size`` bytes need a larger memory, and buffers keep the former one."""
        return self.raw_memory and size > self.version.bytes and self.version.holders > 0

    def rewritten(self, size: int) -> None:
        """Note a committed write: the next version, or the same memory with other bytes."""
        self.size = size
        if not self._fits(size):
            self._replace(size)

    def opened_raw(self, size: int) -> None:
        """Note that a task gets the object's own memory of at least ``size`` bytes to write.

        This memory never shrinks again, also if the write is not committed. A larger one replaces it, and
        buffers that hold the former one keep it.
        """
        if not self._fits(size):
            self._replace(max(size, self.size))
        self.raw_memory = True

    def disown(self) -> None:
        """Remove the object from all accounts."""
        self.version.supersede()
        self.accounts = self.sharing = ()
        self.version = Version((), self.size, volatile=self.volatile)

    def held_by(self, task: Holder) -> Iterator[Reference]:
        """Yield the references of a task to this object."""
        few = not self.zombie and len(self.references) < len(task.table)
        for reference in self.references.values() if few else task.table:
            if reference.task is task and reference.object is self:
                yield reference

    def watch(self, node: NodeId, change: int) -> None:
        """Change by ``change`` the number of references that tasks of another node have to this object."""
        count = self.watchers.get(node, 0) + change
        if count:
            self.watchers[node] = count
        else:
            self.watchers.pop(node, None)

    def _fits(self, size: int) -> bool:
        """Return True if ``size`` bytes are written into the object's own memory as it is."""
        return self.raw_memory and size <= self.version.bytes

    def _replace(self, size: int) -> None:
        if not self.version.holders:
            self.version.resize(size)
            return
        self.version.supersede(own_memory=self.raw_memory)
        self.version = Version(self.accounts, size, volatile=self.volatile)


# -- references -------------------------------------------------------------------------------------
class Provenance(enum.Enum):
    """The way in which a task got a reference; Table 4.2 depends on it for groups."""

    INITIAL = "initial"
    CREATED = "created"
    RESOLVED = "resolved"
    DELEGATED = "delegated"
    SHARED = "shared"
    """To the record of a share: what it lets a session read goes when this reference goes."""


class Reference:
    """The private part of a reference: holder, object, permissions, buffers, and the public part's slot.

    ``origin`` is the reference from which it was delegated, and ``descendants`` are those delegated from it,
    which are taken back when it is. It expires at ``expires_ns``, or never if that is 0.

    A dropped reference (``dropped``) with two descendants or more stays between them and its own origin, so
    that a drop never moves many descendants at once.
    """

    __slots__ = (
        "buffers",
        "descendants",
        "dropped",
        "expires_ns",
        "granted_ns",
        "id",
        "label",
        "object",
        "origin",
        "permissions",
        "position",
        "provenance",
        "remote_buffers",
        "retiring",
        "slot",
        "task",
    )

    def __init__(
        self,
        ref_id: RefId,
        task: Holder,
        target: PhysicalObject,
        permissions: Permission,
        provenance: Provenance,
        slot: int,
        label: str = "",
        origin: Reference | None = None,
        expires_ns: int = 0,
        granted_ns: int = 0,
    ) -> None:
        self.id: Final = ref_id
        self.task: Final = task
        self.object: Final = target
        self.permissions: Final = permissions
        self.provenance: Final = provenance
        self.slot: Final = slot
        self.label: Final = label
        self.position = 0  # the end of what this holder has read of a console
        self.buffers: dict[BufferId, Buffer] = {}
        self.remote_buffers: dict[BufferId, RemoteBuffer] = {}
        self.origin = origin
        self.descendants: dict[RefId, Reference] = {}
        self.dropped = False
        self.retiring = False  # those derived from it are being taken back
        self.expires_ns: Final = expires_ns
        self.granted_ns = granted_ns
        if origin is not None:
            origin.descendants[ref_id] = self

    def __repr__(self) -> str:
        return f"<reference {self.id:x} of {self.task!r} to {self.object!r}>"

    @property
    def shows_counters(self) -> bool:
        """True if the holder may know the object's size and counters, which others change by writing.

        The node of a remote task decides that for objects, whose labels it knows, but not for consoles.
        """
        target = self.object
        if self.task.home:
            return target.counters_label == target.secrecy
        return self.task.may_know(target.counters_label)

    def public(self) -> messages.Reference:
        """Return the public part as the holder may see it now (§4.5.1)."""
        if self.object.counters_label and not self.shows_counters:
            return replace(self.described(), **BLANKS[messages.Reference])
        return self.described()

    def described(self) -> messages.Reference:
        """Return the public part with the present counters, for other nodes."""
        target = self.object
        # By position: keywords take twice the time, and every create and stat passes here.
        name, rack = target.place
        return messages.Reference(
            self.id,
            target.id,
            target.type,
            self.permissions._value_,
            target.persistence,
            target.proximity,
            target.deletion,
            target.buffering,
            self.slot,
            target.size,
            target.v_r,
            target.v_w,
            target.a_r,
            target.a_w,
            target.fingerprint,
            self.label,
            self.expires_ns,
            name,
            rack,
            target.address,
            target.secrecy,
        )

    def disown(self) -> None:
        """Leave the chain of delegations: the descendants of this reference now come from its origin."""
        self.dropped = True
        origin = self.origin
        if len(self.descendants) > 1 or self.retiring:
            return
        self.cut_out()
        if origin is not None and origin.dropped and len(origin.descendants) <= 1 and not origin.retiring:
            origin.cut_out()

    @property
    def is_cut_out(self) -> bool:
        """True if the reference was dropped and left the chain of delegations."""
        return self.dropped and self.origin is None and not self.descendants and not self.retiring

    def move_beside(self, other: Reference) -> None:
        """Take the origin of an ancestor in the tree of delegations, so that both become siblings."""
        if self.origin is not None:
            del self.origin.descendants[self.id]
        self.origin = other.origin
        if self.origin is not None:
            self.origin.descendants[self.id] = self

    def cut_out(self) -> None:
        """Connect the only descendant, if there is one, to the origin."""
        origin = self.origin
        if origin is not None:
            del origin.descendants[self.id]
        for other in self.descendants.values():
            other.origin = origin
            if origin is not None:
                origin.descendants[other.id] = other
        self.origin, self.descendants = None, {}


def narrowed(held: Permission, wanted: int) -> Permission:
    """Return the permissions after a delegation, which can only remove some (Table 4.3, permissions)."""
    return held & Permission(wanted & int(Permission.EVERY))


def earlier(first: int, second: int) -> int:
    """Return the earlier of two moments, where 0 means never."""
    return min(first or second, second or first)


class ReferenceTable:
    """References by id, and the free slots of the task's public page.

    References that have expired by ``now`` count as gone, even if they are not removed yet.
    """

    __slots__ = ("_free", "_next_slot", "_references", "now")

    def __init__(self) -> None:
        self._references: dict[int, Reference] = {}
        self._free: list[int] = []
        self._next_slot = 0
        self.now = 0

    def __len__(self) -> int:
        return len(self._references)

    def __iter__(self) -> Iterator[Reference]:
        return iter(list(self._references.values()))

    def __contains__(self, ref_id: int) -> bool:
        return ref_id in self._references

    def require_room(self, count: int = 1) -> None:
        """Raise LimitError if ``count`` more references do not fit."""
        if len(self._references) + count > limits.REFERENCES_PER_TASK_MAX:
            raise LimitError(
                f"the task holds {len(self._references)} of at most {limits.REFERENCES_PER_TASK_MAX}"
                " references. Delete some, then try again."
            )

    def take_slot(self) -> int:
        """Return a free slot of the public page; slots are re-used, ids never."""
        if self._free:
            return self._free.pop()
        slot = self._next_slot
        self._next_slot += 1
        return slot

    def insert(self, reference: Reference) -> None:
        """Add a new reference."""
        self._references[reference.id] = reference

    def get(self, ref_id: int) -> Reference:
        """Return one of the task's own references.

        Raises:
            BadReferenceError: the task has no such reference. It is the same error for a deleted reference,
                one of another task, and one that never existed.
        """
        reference = self._references.get(ref_id)
        if reference is None or 0 < reference.expires_ns <= self.now:
            raise BadReferenceError("this task has no such reference: it was deleted, or is another task's")
        return reference

    def find(self, ref_id: int) -> Reference | None:
        """Return one of the task's own references, or None."""
        reference = self._references.get(ref_id)
        if reference is not None and 0 < reference.expires_ns <= self.now:
            return None
        return reference

    def last(self) -> Reference:
        """Return the newest reference."""
        return last_value(self._references)

    def remove(self, ref_id: RefId) -> None:
        """Remove a reference and free its slot."""
        reference = self._references.pop(ref_id)
        self._free.append(reference.slot)


_K = TypeVar("_K")
_V = TypeVar("_V")


def last_value(table: dict[_K, _V]) -> _V:
    """Return the value that was added last.

    The first value would be slow to find: a dictionary keeps the places of removed entries at its front.
    """
    key, value = table.popitem()
    table[key] = value
    return value


# -- buffers ----------------------------------------------------------------------------------------
class Buffer:
    """A buffer and the I/O request on it.

    ``reference`` is the one that the buffer serves now. While it is borrowed, ``owner`` is the reference
    that it belongs to and ``lent`` has its mode and range there. ``bare`` marks a request acquired with
    IOV_NONE, which has no bytes. The ``seen_`` fields are the object's counters at the acquire, or at this
    request's own last successful commit. ``held`` is the version whose bytes the buffer keeps, and
    ``accounts`` are those that it is counted with. ``files`` is the number of descriptors of stored bytes
    that are open for it, which are counted with its task.
    """

    __slots__ = (
        "accounts",
        "bare",
        "committed",
        "files",
        "held",
        "id",
        "length",
        "lent",
        "mode",
        "object",
        "offset",
        "opened",
        "owner",
        "reference",
        "seen_admissions",
        "seen_dirty",
        "seen_v_r",
        "seen_v_w",
        "semantics",
        "sole",
    )

    def __init__(self, buffer_id: BufferId, reference: Reference, mode: Mode, *, bare: bool = False) -> None:
        self.id: Final = buffer_id
        self.accounts: tuple[Account, ...] = (reference.task.account, *reference.object.sharing)
        self.held: Version | None = None
        self.files = 0
        self.reference = reference
        self.owner: Reference | None = None
        self.lent: tuple[Mode, int, int] | None = None
        self.object: PhysicalObject = reference.object
        self.mode = mode
        self.bare = bare
        self.offset = 0
        self.length = 0
        self.semantics = Semantics.ANY
        self.opened = False
        self.committed = False
        self.sole = False  # counted in the object's ``sole``
        self.seen_v_r = 0
        self.seen_v_w = 0
        self.seen_admissions = 0
        self.seen_dirty = 0

    def __repr__(self) -> str:
        return f"<buffer {self.id:x} of {self.reference!r}>"

    def stand_for(self, version: Version) -> None:
        """Hold this version from now on, and release the former one."""
        former, self.held = self.held, version.hold()
        if former is not None:
            former.release()
        self._count_files(files_of(version.bytes, volatile=version.volatile))

    def let_go(self) -> None:
        """Release the version, at the buffer's end."""
        if self.held is not None:
            self.held.release()
        self._count_files(0)

    def _count_files(self, files: int) -> None:
        if files != self.files:
            self.reference.task.account.charge(Resource.DESCRIPTORS, files - self.files)
            self.files = files

    def recount(self) -> None:
        """Count the buffer with the groups of the object that it serves now, and with those of its owner."""
        charge_all(self.accounts, Resource.REQUESTS, -1)
        lender = () if self.owner is None else self.owner.object.sharing
        counted = (self.reference.task.account, *self.reference.object.sharing, *lender)
        self.accounts = tuple(dict.fromkeys(counted))
        charge_all(self.accounts, Resource.REQUESTS, 1)

    def exclude_readers(self, *, sole: bool) -> None:
        """Count this buffer among the requests that count on the absence of other readers, or no longer.

        It stays counted after a commit, because the next commit covers the time since then.
        """
        if sole is self.sole:
            return
        target, self.sole = self.object, sole
        target.sole += 1 if sole else -1
        if not target.sole:
            target.v_r += target.late_reads
            target.late_reads = 0

    @property
    def active(self) -> bool:
        """True if a request is open on the buffer. The end of its object has ended the request."""
        return self.opened and not self.object.zombie

    @property
    def raw(self) -> bool:
        """True if the task writes the object's own bytes through this buffer."""
        return self.mode is Mode.WRITE and self.object.buffering is Buffering.RAW and not self.bare


class RemoteBuffer:
    """A buffer on this node for a request on an object of another node.

    ``held`` are its bytes, counted with the task. It is not a ``Buffer`` because the other node counts its
    request.
    """

    __slots__ = ("held", "id", "length", "mode", "offset", "reference", "remote")

    def __init__(
        self, buffer_id: BufferId, remote: int, reference: Reference, mode: Mode, offset: int, held: Version
    ) -> None:
        self.id: Final = buffer_id
        self.remote: Final = remote
        self.reference = reference
        self.mode = mode
        self.offset = offset
        self.length = held.bytes
        self.held = held.hold()
        reference.remote_buffers[buffer_id] = self


# -- how a task was started -------------------------------------------------------------------------
class Reserved(Struct, frozen=True):
    """The resources that are reserved for a task while it runs."""

    memory_bytes: int = 0
    cpu_ms: int = 0


class FormerEntry(Struct, frozen=True):
    """The data of a run that has left the submission queue, which hold again if it comes back.

    ``fits_since`` is the time since which its node could start it, and ``lease`` is the end of its lease.
    ``placed_by`` is the node whose scheduler has placed it, 0 for this node; None if none has.
    """

    since: int
    fits_since: int = 0
    lease: int | None = None
    placed_by: NodeId | None = None


class ChildIdentity(Struct, frozen=True):
    """The id and the name of a task that is not started yet.

    ``host`` is the node where it has to run if its caller chose one and it waits for its turn all the same.
    ``entry`` is that of its run in the submission queue, while the run is out of it.
    """

    task: TaskId
    name: Name
    host: str = ""
    entry: FormerEntry | None = None

    @property
    def placed_by(self) -> NodeId | None:
        """The node whose scheduler has placed the run, or None."""
        return None if self.entry is None else self.entry.placed_by


class HandedReference(Struct, frozen=True):
    """A reference that was passed to a task at its start; ``v_w`` is the object's version at that moment.

    ``expires_ns`` is the moment at which the reference that it came from expires, 0 for never.
    ``retirements`` is the number of times that the object's references had been taken back by then.
    """

    object: PhysicalObject
    permissions: int
    label: str
    lifetime_ns: int
    v_w: int
    expires_ns: int
    retirements: int

    def lost(self, now: int) -> bool:
        """Return True if the reference cannot be passed again: it expired or was taken back since."""
        over = 0 < self.expires_ns <= now
        return over or self.object.zombie or self.object.retirements != self.retirements

    def row(self, reader: Holder) -> messages.HandedRow:
        """Return the reference as a row for a reader."""
        target = self.object
        row = messages.HandedRow(
            fingerprint=target.fingerprint,
            label=self.label,
            type=target.type,
            permissions=self.permissions,
            size=target.size,
            gone=target.zombie,
            changed=target.v_w != self.v_w,
        )
        return row if reader.may_know(target.counters_label) else replace(row, **BLANKS[messages.HandedRow])


class Recipe(Struct, frozen=True):
    """The run call of a task, with objects in the place of references.

    ``secrecy`` is the label with which the task begins: that of its parent and of its program.
    """

    program: HandedReference
    groups: tuple[Name, ...]
    inputs: tuple[HandedReference, ...]
    outputs: tuple[HandedReference, ...]
    arguments: tuple[str, ...]
    brand: Brand
    limits: Limits
    work: Work = Work()
    template: str = ""
    forkable: bool = False
    network: bool = False
    secrecy: Label = PUBLIC
    isolation: Isolation = Isolation.KERNEL

    def keep(self) -> None:
        """Keep the objects in memory, because the recipe is needed after its references are gone."""
        for given in (self.program, *self.inputs, *self.outputs):
            given.object.handed = True

    @property
    def executable(self) -> PhysicalObject:
        """The object with the task's program."""
        return self.program.object


# -- tasks ------------------------------------------------------------------------------------------


class Taint(NamedTuple):
    """The reason for a tag in a task's label: the object that it read first, and when."""

    fingerprint: str
    since_ns: int


class Holder:
    """A holder of references on this node: a task, a session, or a task of another node.

    ``home`` is the node of a remote task and 0 for the others. ``home_id`` is the holder's id on its own
    node, which messages between nodes have; ``id`` is its id in the tables of this node. ``remote_nodes`` are
    the nodes that have a record of a task of this node, and ``remote_buffers`` are its buffers for objects of
    other nodes. ``secrecy`` is its label, with the reason for each tag in ``taints``. The label stays within
    the ``ceiling`` unless the task may declassify: memory that it has mapped, or a network that it may use,
    carries bytes without calls. None is no bound. A remote task has both on its own node.
    """

    __slots__ = (
        "account",
        "brand",
        "buffers",
        "ceiling",
        "children",
        "ended_ns",
        "home",
        "home_id",
        "id",
        "label",
        "memberships",
        "object",
        "pending",
        "principal",
        "remote_buffers",
        "remote_nodes",
        "retirements",
        "secrecy",
        "started_ns",
        "state",
        "table",
        "taints",
    )

    def __init__(
        self,
        own: PhysicalObject,
        principal: Principal,
        brand: Brand,
        memberships: tuple[Name, ...],
        account: Account,
        *,
        label: str,
        now: int,
        state: TaskState = TaskState.RUNNING,
        home: NodeId = _HERE,
        home_id: TaskId | None = None,
    ) -> None:
        self.id: Final = TaskId(own.id)
        self.home_id: Final = self.id if home_id is None else home_id
        self.object: Final = own
        self.principal = principal
        self.brand = brand
        self.memberships: dict[Name, None] = dict.fromkeys(memberships)
        self.account = account
        self.label = label
        self.table: Final = ReferenceTable()
        self.buffers: dict[BufferId, Buffer] = {}
        self.pending: dict[int, Pending] = {}
        self.children: dict[TaskId, Task] = {}
        self.home: Final = home
        self.remote_nodes: set[NodeId] = set()
        self.retirements = 0  # that it asked for and that are not complete
        self.remote_buffers: dict[BufferId, RemoteBuffer] = {}
        self.secrecy: Label = PUBLIC
        self.ceiling: Label | None = None
        self.taints: dict[str, Taint] = {}
        self.state = state
        self.started_ns = now
        self.ended_ns = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.object.fingerprint} of {self.principal}, {self.state.name}>"

    @property
    def alive(self) -> bool:
        """True if the holder can still make calls."""
        return not self.ended_ns

    def may_know(self, label: Label) -> bool:
        """Return True if the holder may know what has this label without getting its tags.

        A right to declassify does not help a task here: its label does not go up with a row, so that it could
        write what it was shown after the right was taken back.
        """
        lacking = missing(label, self.secrecy)
        return not lacking or (
            self.brand is Brand.LEGACY and all(is_owned(tag, self.principal) for tag in lacking)
        )

    @property
    def job(self) -> TaskId:
        """The session or task on whose account the holder's audit records and history are."""
        return self.id

    def caller(self) -> dcp.Caller:
        """Return the description of the holder in requests to other nodes."""
        return dcp.Caller(self.home_id, self.principal, self.object.fingerprint, self.brand, self.label)

    def leave(self, group: Name) -> None:
        """Forget a group that no longer exists."""
        self.memberships.pop(group, None)


class RemoteTask(Holder):
    """A remote task record: this node's view of a task of another node.

    It has no process. Its table holds the references that count, so that every check, counter, limit and
    retirement works as for a task of this node. ``guessed`` is set while its principal is unknown. Its id
    here follows from its node and its id there (``State.holder_id``), so that no node can take the id of
    another node's task.
    """

    __slots__ = ("guessed",)

    def __init__(
        self,
        own: PhysicalObject,
        principal: Principal,
        brand: Brand,
        account: Account,
        *,
        home: NodeId,
        home_id: TaskId,
        guessed: bool,
        label: str,
        now: int,
    ) -> None:
        super().__init__(own, principal, brand, (), account, label=label, now=now, home=home, home_id=home_id)
        self.guessed = guessed


class LocalHolder(Holder):
    """A task or a session of this node: it has a name, a console, and events to read.

    ``remote_children`` has the node, the fingerprint and the label of each child on another node.
    """

    __slots__ = (
        "cause",
        "console",
        "detail",
        "deterministic_count",
        "events",
        "lost_events",
        "name",
        "pid",
        "remote_children",
        "self_ref",
        "spawn_count",
    )

    def __init__(
        self,
        own: PhysicalObject,
        console: PhysicalObject,
        name: Name,
        principal: Principal,
        brand: Brand,
        memberships: tuple[Name, ...],
        account: Account,
        *,
        label: str,
        now: int,
        state: TaskState,
    ) -> None:
        super().__init__(own, principal, brand, memberships, account, label=label, now=now, state=state)
        self.console: Final = console
        self.name: Final = name
        self.remote_children: dict[TaskId, tuple[NodeId, str, str]] = {}
        self.events: deque[messages.SelfEvent] = deque()
        self.lost_events = 0
        self.deterministic_count = 0
        self.spawn_count = 0
        self.self_ref = 0
        self.pid = 0
        self.cause = Cause.NONE
        self.detail = ""

    def push_event(self, event: messages.SelfEvent) -> None:
        """Queue a notification on the self-reference; above the bound only the loss is counted (§4.5.3)."""
        if len(self.events) >= limits.EVENTS_PER_TASK_MAX:
            self.lost_events += 1
            return
        self.events.append(event)

    def pop_event(self) -> messages.SelfEvent | None:
        """Return the oldest notification; lost ones are reported when the queue is empty."""
        if self.events:
            return self.events.popleft()
        if self.lost_events:
            lost = messages.Lost(self.lost_events)
            self.lost_events = 0
            return lost
        return None

    @property
    def has_event(self) -> bool:
        """True if a read of the self-reference would not wait."""
        return bool(self.events) or self.lost_events > 0

    def row(self, node: str = "") -> messages.TaskRow:
        """Return the status record; ``node`` is the name of this node in a record for another node."""
        return messages.TaskRow(
            name=self.name,
            fingerprint=self.object.fingerprint,
            label=self.label,
            state=self.state,
            brand=self.brand,
            principal=self.principal,
            pid=self.pid,
            started_ns=self.started_ns,
            ended_ns=self.ended_ns,
            cause=self.cause,
            exit_code=0,
            signal=0,
            detail=shortened(self.detail),
            parent="",
            node=node,
            secrecy=self.secrecy,
        )


class Session(LocalHolder):
    """A session of a user: a root task of a principal, whose process the node does not manage.

    The node, as the cluster manager, makes it a member of the groups that it creates (ADR 0003). ``shares``
    are the groups of others that it may read, each with its reference to the record of the share (ADR 0082).
    """

    __slots__ = ("shares",)

    def __init__(
        self,
        own: PhysicalObject,
        console: PhysicalObject,
        name: Name,
        principal: Principal,
        memberships: tuple[Name, ...],
        account: Account,
        *,
        label: str,
        now: int,
    ) -> None:
        super().__init__(
            own,
            console,
            name,
            principal,
            Brand.LEGACY,
            memberships,
            account,
            label=label,
            now=now,
            state=TaskState.RUNNING,
        )
        self.shares: dict[Name, Reference] = {}


class Task(LocalHolder):
    """A task of this node. Memberships are fixed at its start.

    ``bounds`` are the limits of its own process and ``reserved`` is what is reserved for it now.
    ``defaults`` are its references to itself, its console and its groups. ``member_accounts`` are those of
    its groups. ``processors`` are those to which it is pinned, and ``devices`` those that it has.
    ``ends_with_session`` is True if a session
    started it without detaching it. ``leave_ns`` is the end of its grace period after
    it was asked to leave the node because of ``leave_reason``, else 0. ``progress`` is the share of its work
    that it reported last, in thousandths.
    """

    __slots__ = (
        "bounds",
        "cpu_ms",
        "defaults",
        "devices",
        "ends_with_session",
        "exit_code",
        "first_ancestor",
        "leave_ns",
        "leave_reason",
        "member_accounts",
        "memory_bytes",
        "parent",
        "processors",
        "progress",
        "recipe",
        "reserved",
        "signal",
    )

    def __init__(
        self,
        own: PhysicalObject,
        console: PhysicalObject,
        name: Name,
        principal: Principal,
        brand: Brand,
        memberships: tuple[Name, ...],
        account: Account,
        *,
        parent: Holder,
        label: str,
        now: int,
    ) -> None:
        super().__init__(
            own,
            console,
            name,
            principal,
            brand,
            memberships,
            account,
            label=label,
            now=now,
            state=TaskState.STARTING,
        )
        self.parent: Final = parent
        self.first_ancestor: Final = self.id if isinstance(parent, Session) else parent.job
        self.member_accounts: tuple[Account, ...] = ()
        self.bounds = Reserved()
        self.reserved = Reserved()
        self.recipe: Recipe | None = None
        self.processors: tuple[int, ...] = ()
        self.devices: tuple[messages.Device, ...] = ()
        self.defaults: tuple[Reference, ...] = ()
        self.ends_with_session = False
        self.leave_ns = 0
        self.leave_reason = ""
        self.progress: int | None = None
        self.exit_code = 0
        self.signal = 0
        self.cpu_ms = 0
        self.memory_bytes = 0

    @property
    def job(self) -> TaskId:
        """The task that a session started and to which this task goes back, or the other node's task."""
        return self.first_ancestor

    def row(self, node: str = "") -> messages.TaskRow:
        """Return the status record with the exit status of the process."""
        work = messages.Work() if self.recipe is None else self.recipe.work
        return replace(
            super().row(node),
            exit_code=self.exit_code,
            signal=self.signal,
            parent=self.parent.object.fingerprint,
            leave_ns=self.leave_ns,
            moves=work.moves,
            restarts=work.restarts,
            kept_bytes=work.kept_bytes,
            progress=self.progress,
        )
