"""The call that sends nodes the quotas to check before they start a task, wherever it came from.

``dios.firmament`` sends the quotas and the holdings of principals; each node enforces them
(``dios.core.calls.admission``).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from dios import limits
from dios.wire.fields import U63, U63_MAX, Call, Label, Text
from dios.wire.scheduling import Work


class Holding(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What tasks hold: their number, and the resources that are reserved for them, in the units of Work."""

    tasks: U63 = 0
    cpus_milli: U63 = 0
    memory_bytes: U63 = 0
    disk_io: U63 = 0
    network: U63 = 0
    devices: U63 = 0

    @classmethod
    def of(cls, work: Work) -> Holding:
        """Return the holding of one task with these needs."""
        if work.best_effort:
            return cls(1)
        devices = sum(device.count for device in work.devices)
        return cls(1, work.cpus_milli, work.memory_bytes, work.disk_io, work.network, devices)

    def plus(self, other: Holding) -> Holding:
        """Return the sum of two holdings, with U63_MAX for all that is beyond it."""
        return Holding(
            *(min(getattr(self, name) + getattr(other, name), U63_MAX) for name in self.__struct_fields__)
        )

    def minus(self, part: Holding) -> Holding:
        """Return the rest of a holding without a part of it."""
        return Holding(*(getattr(self, name) - getattr(part, name) for name in self.__struct_fields__))


class Quota(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The most that a principal may hold of the cluster at once; None is no limit.

    ``elsewhere`` is its holding on all nodes but the receiver, as the sender knows it.
    """

    principal: Label
    tasks: U63 | None = None
    cpus_milli: U63 | None = None
    memory_bytes: U63 | None = None
    disk_io: U63 | None = None
    network: U63 | None = None
    devices: U63 | None = None
    elsewhere: Holding = Holding()


class SetAdmission(Call, frozen=True, tag=60):
    """Enforce these quotas on the node called ``host``; they replace all earlier ones. None changes none.

    ``waiting`` are principals whose runs wait for their turn, two of them if there are so many. For
    ``hold_ms`` the sender has a reason not to place runs of that node's queue that would fit there. For the
    nodes' own user and root.
    """

    host: Text = ""
    quotas: Annotated[tuple[Quota, ...], Meta(max_length=limits.QUOTAS_MAX)] | None = None
    waiting: Annotated[tuple[Label, ...], Meta(max_length=limits.PRINCIPALS_WAITING_MAX)] = ()
    hold_ms: Annotated[int, Meta(ge=0, le=limits.SCHEDULER_HOLD_MS_MAX)] = 0
