"""Physical objects: the structure behind every name and reference (thesis §4.2, Figure 4.2).

Not for: their bytes, which the host holds, or what a type can do (``dios.core.object_types``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dios.core.events import ObjectRecord
from dios.core.object_types.states import TypeState
from dios.ids import Name, ObjectId, Principal, Ticket
from dios.wire.nametext import fingerprint
from dios.wire.types import Buffering, Deletion, ObjectType, Persistence, Proximity

if TYPE_CHECKING:
    from dios.core.pending import Pending
    from dios.core.references import Reference


class PhysicalObject:
    """One physical object with its four counters (§4.7) and its life cycle.

    ``references`` are those that count: empty once the object is a zombie. ``pinned`` stands for the
    node's own interest, beside references. ``ticket`` is the last store operation on the object;
    ``undo`` has, for each operation not known to be durable, the record before it.
    """

    __slots__ = (
        "a_r",
        "a_w",
        "admissions",
        "buffering",
        "deletion",
        "dirty",
        "fingerprint",
        "groups",
        "id",
        "name",
        "owner",
        "pinned",
        "proximity",
        "recorded",
        "references",
        "size",
        "state",
        "ticket",
        "type",
        "undo",
        "v_r",
        "v_w",
        "waiters",
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
    ) -> None:
        self.id: Final = object_id
        self.type: Final = kind
        self.name: Final = name
        self.groups: Final = groups
        self.owner: Final = owner
        self.deletion: Final = deletion
        self.buffering: Final = buffering
        self.proximity: Final = proximity
        self.fingerprint: Final = fingerprint(name if name is not None else object_id.to_bytes(8, "big"))
        self.size = 0
        self.v_r = 0
        self.v_w = 0
        self.a_r = 0
        self.a_w = 0
        self.admissions = 0  # beside the four: a request that came and went without committing
        self.dirty = 0  # failed writes that had already touched raw bytes
        self.zombie = False
        self.pinned = False
        self.references: dict[int, Reference] = {}
        self.waiters: dict[tuple[int, int], Pending] = {}
        self.ticket = Ticket(0)
        self.recorded: ObjectRecord | None = None
        self.undo: list[tuple[Ticket, ObjectRecord | None]] = []
        self.state: TypeState = None

    @property
    def persistence(self) -> Persistence:
        """Durable exactly when the store holds a record of it."""
        return Persistence.DURABLE if self.recorded is not None else Persistence.VOLATILE

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
        )

    @classmethod
    def from_record(cls, record: ObjectRecord) -> PhysicalObject:
        """Reinstate an object at start (§4.2, Persistence)."""
        made = cls(
            record.object,
            record.type,
            record.name,
            record.groups,
            record.owner,
            deletion=record.deletion,
            buffering=record.buffering,
        )
        made.restore(record)
        return made

    def restore(self, record: ObjectRecord) -> None:
        """Go back to what the store holds, after a write that could not be made durable."""
        self.size = record.size
        self.v_r = max(record.v_r, self.v_r)
        self.v_w = record.v_w
        self.recorded = record
