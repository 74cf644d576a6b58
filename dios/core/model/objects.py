"""Physical objects: the structure behind every name and reference (thesis §4.2, Figure 4.2).

Not for: their bytes, which the host holds, or what a type can do (``dios.core.model.type_rules``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dios.core.events import ObjectRecord
from dios.core.model.accounts import Account, Version
from dios.core.model.type_rules import is_blob
from dios.core.model.type_states import TypeState
from dios.ids import Name, NodeId, ObjectId, Principal, Ticket
from dios.wire.messages import Bound
from dios.wire.nametext import fingerprint
from dios.wire.types import Buffering, Deletion, ObjectType, Persistence, Proximity

if TYPE_CHECKING:
    from dios.core.model.pending import Pending
    from dios.core.model.references import Reference


_HERE: Final = NodeId(0)

_ON_DISK = frozenset({ObjectType.DURABLE_BLOB, ObjectType.DURABLE_STREAM})


class PhysicalObject:
    """One physical object with its four counters (§4.7) and its life cycle.

    ``references`` are those that count: empty once the object is a zombie. ``pinned`` stands for the
    node's own interests, beside references. ``ticket`` is the last store operation on the object;
    ``undo`` has, for each operation not known to be durable, the record before it. ``accounts`` are whom
    it is counted with: its creator first, then ``sharing``, its groups; none for what the node makes itself.
    ``account`` and ``limits`` are a group's own. ``raw_memory`` says that its writers have memory of its own
    to write, and ``retirements`` how often references to it were taken back. ``shown`` is a fingerprint
    that another node gave it.
    """

    __slots__ = (
        "a_r",
        "a_w",
        "account",
        "accounts",
        "address",
        "admissions",
        "buffering",
        "deletion",
        "dirty",
        "fingerprint",
        "groups",
        "home",
        "id",
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
        "sharing",
        "size",
        "state",
        "ticket",
        "type",
        "undo",
        "v_r",
        "v_w",
        "version",
        "waiters",
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
    ) -> None:
        self.id: Final = object_id
        self.type: Final = kind
        self.name: Final = name
        self.groups: Final = groups
        self.owner: Final = owner
        self.deletion: Final = deletion
        self.buffering: Final = buffering
        self.proximity: Final = proximity
        self.fingerprint: Final = shown or fingerprint(
            name if name is not None else object_id.to_bytes(8, "big")
        )
        self.home = _HERE  # of a stand-in: the node that has the object
        self.place = ("", "")  # name and rack of the node that has it
        self.watchers: dict[NodeId, int] = {}  # how many references tasks of other nodes have to it
        self.size = 0
        self.v_r = 0
        self.v_w = 0
        self.a_r = 0
        self.a_w = 0
        self.admissions = 0  # beside the four: a request that came and went without committing
        self.dirty = 0  # failed writes that had already touched raw bytes
        self.zombie = False
        self.pinned = 0
        self.references: dict[int, Reference] = {}
        self.waiters: dict[tuple[int, int], Pending] = {}
        self.ticket = Ticket(0)
        self.recorded: ObjectRecord | None = None
        self.undo: list[tuple[Ticket, ObjectRecord | None]] = []
        self.state: TypeState = None
        self.accounts = accounts
        self.sharing = accounts[1:]
        self.version = Version(accounts, volatile=self.volatile)
        self.raw_memory = False
        self.retirements = 0
        self.address = ""  # of a network stream, once it is open
        self.account: Account | None = None
        self.limits: tuple[Bound, ...] = ()

    @property
    def persistence(self) -> Persistence:
        """Durable exactly when the store holds a record of it."""
        return Persistence.DURABLE if self.recorded is not None else Persistence.VOLATILE

    @property
    def gone(self) -> bool:
        """Whether I/O on it would not wait, but fail or tell of its end."""
        return self.zombie

    @property
    def volatile(self) -> bool:
        """Whether its bytes are in memory."""
        return self.type not in _ON_DISK

    def record(self) -> ObjectRecord:
        """What the store keeps of this object as it is now."""
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
        )

    @classmethod
    def from_record(cls, record: ObjectRecord, accounts: tuple[Account, ...] = ()) -> PhysicalObject:
        """Reinstate an object at start (§4.2, Persistence)."""
        made = cls(
            record.object,
            record.type,
            record.name,
            record.groups,
            record.owner,
            deletion=record.deletion,
            buffering=record.buffering,
            accounts=accounts,
        )
        made.restore(record)
        return made

    def restore(self, record: ObjectRecord) -> None:
        """Go back to what the store holds, after a write that could not be made durable."""
        self.size = record.size
        if is_blob(self.type) or self.type is ObjectType.DURABLE_STREAM:
            self.version.resize(record.size)
        self.limits = record.limits
        self.v_r = max(record.v_r, self.v_r)
        self.v_w = record.v_w
        self.recorded = record

    def growth(self, size: int) -> int:
        """How many more bytes are counted once the next version has ``size``."""
        return size - (0 if self.version.holders and not self.raw_memory else self.version.bytes)

    def rewritten(self, size: int) -> None:
        """A write was committed: the next version, or the same memory with other bytes."""
        self.size = size
        if self.raw_memory:
            self._widen(size)
        elif not self.version.holders:
            self.version.resize(size)
        else:
            self._replace(size)

    def opened_raw(self, size: int) -> None:
        """A task gets the object's own memory of ``size`` bytes to write. That never shrinks again, whether
        the write is committed or not.
        """
        if not self.raw_memory and self.version.holders:
            self._replace(size)
        self.raw_memory = True
        self._widen(size)

    def disown(self) -> None:
        """It is counted with nobody any more."""
        self.version.supersede()
        self.accounts = self.sharing = ()
        self.version = Version((), self.size, volatile=self.volatile)

    def watch(self, node: NodeId, change: int) -> None:
        """Tasks of another node have so many references more, or less, to this."""
        count = self.watchers.get(node, 0) + change
        if count:
            self.watchers[node] = count
        else:
            self.watchers.pop(node, None)

    def _widen(self, size: int) -> None:
        self.version.resize(max(size, self.version.bytes))

    def _replace(self, size: int) -> None:
        self.version.supersede()
        self.version = Version(self.accounts, size, volatile=self.volatile)
