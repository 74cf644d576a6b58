"""References: segregated handle capabilities with a public and a private part (thesis §4.5).

Not for: making them valid in a task (``dios.core.model.reference_table``). Table 4.3 decides what
delegation changes.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from dios.core.model.objects import PhysicalObject
from dios.ids import BufferId, RefId
from dios.wire import messages
from dios.wire.types import Permission

if TYPE_CHECKING:
    from dios.core.model.io_requests import Buffer
    from dios.core.model.tasks import Task


class Provenance(enum.Enum):
    """How a task came by a reference; Table 4.2 depends on it for groups."""

    INITIAL = "initial"
    CREATED = "created"
    RESOLVED = "resolved"
    DELEGATED = "delegated"


class Reference:
    """The private part: holder, object, rights, open buffers, and the place of the public part.

    ``origin`` is the reference that it was delegated from and ``descendants`` are those delegated from it,
    which are taken back with it; ``expires_ns`` is when it goes by itself, 0 for never.
    """

    __slots__ = (
        "buffers",
        "descendants",
        "expires_ns",
        "granted_ns",
        "id",
        "label",
        "object",
        "origin",
        "permissions",
        "position",
        "provenance",
        "slot",
        "task",
    )

    def __init__(
        self,
        ref_id: RefId,
        task: Task,
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
        self.position = 0  # how far this holder has read a console
        self.buffers: dict[BufferId, Buffer] = {}
        self.origin = origin
        self.descendants: dict[RefId, Reference] = {}
        self.expires_ns: Final = expires_ns
        self.granted_ns: Final = granted_ns
        if origin is not None:
            origin.descendants[ref_id] = self

    def public(self) -> messages.Reference:
        """The public part as the holder sees it now (§4.5.1)."""
        target = self.object
        return messages.Reference(
            ref=self.id,
            object=target.id,
            type=target.type,
            permissions=int(self.permissions),
            persistence=target.persistence,
            proximity=target.proximity,
            deletion=target.deletion,
            buffering=target.buffering,
            slot=self.slot,
            size=target.size,
            v_r=target.v_r,
            v_w=target.v_w,
            a_r=target.a_r,
            a_w=target.a_w,
            fingerprint=target.fingerprint,
            label=self.label,
            expires_ns=self.expires_ns,
            node=target.place[0],
            rack=target.place[1],
            address=target.address,
        )

    def disown(self) -> None:
        """Leave the line of delegations: what was delegated from here comes from where this came from."""
        origin = self.origin
        if origin is None and not self.descendants:
            return
        if origin is not None:
            del origin.descendants[self.id]
            origin.descendants.update(self.descendants)
        for other in self.descendants.values():
            other.origin = origin
        self.origin, self.descendants = None, {}


def narrowed(held: Permission, wanted: int) -> Permission:
    """Rights after a delegation: only ever fewer (Table 4.3, permissions)."""
    return held & Permission(wanted & int(Permission.ALL))


def earlier(one: int, other: int) -> int:
    """The earlier of two moments, of which 0 is never."""
    return min(one or other, other or one)
