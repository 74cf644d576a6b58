"""References: segregated handle capabilities with a public and a private part (thesis §4.5).

Not for: making them valid in a task (``dios.core.reftable``). Table 4.3 decides what delegation changes.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Final

from dios.core.objects import PhysicalObject
from dios.ids import BufferId, RefId
from dios.wire import messages
from dios.wire.types import Permission

if TYPE_CHECKING:
    from dios.core.iorequests import Buffer
    from dios.core.tasks import Task


class Provenance(enum.Enum):
    """How a task came by a reference; Table 4.2 depends on it for groups."""

    INITIAL = "initial"
    CREATED = "created"
    RESOLVED = "resolved"
    DELEGATED = "delegated"


class Reference:
    """The private part: holder, object, rights, open buffers, and the place of the public part."""

    __slots__ = ("buffers", "id", "label", "object", "permissions", "position", "provenance", "slot", "task")

    def __init__(
        self,
        ref_id: RefId,
        task: Task,
        target: PhysicalObject,
        permissions: Permission,
        provenance: Provenance,
        slot: int,
        label: str = "",
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
        )


def narrowed(held: Permission, wanted: int) -> Permission:
    """Rights after a delegation: only ever fewer (Table 4.3, permissions)."""
    return held & Permission(wanted & int(Permission.ALL))
