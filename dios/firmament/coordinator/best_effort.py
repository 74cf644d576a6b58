"""The places of best-effort tasks: nodes whose measured use leaves the resources that such a task names.

Nothing is reserved for a best-effort task, so that it also fits where reservations are not used. It
waits here until a node has room, and then the scheduler gets it for that node alone, without a demand. On the
node it yields to all other tasks (``dios.host.confinement.cgroups``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec

from dios import limits
from dios.firmament import descriptors
from dios.firmament.descriptors import NOT_FIT, MachineDescriptor, Resources
from dios.wire import node_labels
from dios.wire.fields import U63, Identifier
from dios.wire.messages import Constraint, Work

_MARGIN: Final = 0.1
"""The share of a node's resources that others may use while it counts as idle."""
_BOOKED_S: Final = 5.0
"""The time after which a placement is part of the measured use."""
_AVOID_S: Final = 5.0
"""A task that a node did not take is not offered to it again for this time."""


class TaskLoad(msgspec.Struct, frozen=True, array_like=True):
    """The resources that a task uses."""

    task: Identifier
    cpus_milli: U63
    memory_bytes: U63
    disk_io: U63


MILLIWATTS_MAX: Final = 1_000_000_000
"""The highest power of a machine that counts: a megawatt."""

_Milliwatts: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MILLIWATTS_MAX)]


class NodeLoad(msgspec.Struct, frozen=True, array_like=True):
    """The measured use of a node's resources, in the units of ``Work``, and that of some of its tasks."""

    cpus_milli: U63
    memory_bytes: U63
    disk_io: U63
    network: U63
    tasks: Annotated[tuple[TaskLoad, ...], msgspec.Meta(max_length=limits.PROFILED_TASKS_MAX)] = ()
    milliwatts: _Milliwatts = 0
    """The power of the machine; 0 if it is not measured."""
    least_milliwatts: _Milliwatts = 0
    """The least power that was measured there."""

    @property
    def used(self) -> Resources:
        """The use of the whole node."""
        return Resources(
            self.cpus_milli / 1000, float(self.memory_bytes), float(self.disk_io), float(self.network)
        )


class _Booking(NamedTuple):
    """A best-effort task that was placed a short while ago, so that the measured use may lack it."""

    task: int
    node: str
    wanted: Resources
    until: float


class IdleRoom:
    """The measured use of all nodes, and the best-effort tasks that were placed since."""

    def __init__(self) -> None:
        self.loads: dict[str, NodeLoad] = {}
        """By node, as its coordinator measured it last."""
        self._booked: list[_Booking] = []
        self._avoided: dict[tuple[int, str], float] = {}

    def forget(self, node: str) -> None:
        """Forget a node."""
        self.loads.pop(node, None)

    def expire(self, now: float) -> None:
        """Forget bookings that the measured use contains."""
        self._booked = [booking for booking in self._booked if booking.until > now]
        self._avoided = {key: until for key, until in self._avoided.items() if until > now}

    def book(self, task: int, node: str, work: Work, now: float) -> None:
        """Record that a task is offered to a node."""
        self._booked.append(_Booking(task, node, wanted_by(work), now + _BOOKED_S))

    def refused(self, task: int, now: float) -> None:
        """Record that the scheduler did not place a task where it was offered."""
        for booking in self._booked:
            if booking.task == task:
                self._avoided[task, booking.node] = now + _AVOID_S
        self._booked = [kept for kept in self._booked if kept.task != task]

    def choose(self, task: int, work: Work, machines: Mapping[str, MachineDescriptor], *, pure: bool) -> str:
        """Return the node with the most idle processors that has room for a task; empty if none has."""
        candidates = [
            (-self._missed(work.constraints, machine), self._free(name, machine).cpus, name)
            for name, machine in machines.items()
            if (task, name) not in self._avoided and not self.obstacle(work, machine, pure=pure)
        ]
        return max(candidates)[2] if candidates else ""

    def obstacle(self, work: Work, machine: MachineDescriptor, *, pure: bool) -> str:
        """Return why a machine has no room for a best-effort task now; empty if it has."""
        labels = dict(machine.labels)
        for constraint in work.constraints:
            if constraint.hard and not satisfies(labels, constraint):
                return f"{machine.name} does not satisfy the constraint on {constraint.key}"
        if pure and NOT_FIT in labels:
            return f"{machine.name} is not fit for pure tasks: `dios node describe {machine.name}` says why"
        if machine.name not in self.loads:
            return f"the use of {machine.name} is not measured yet"
        free = self._free(machine.name, machine)
        for name, wanted, most, left in zip(
            Resources._fields, wanted_by(work), machine.capacity, free, strict=True
        ):
            if wanted > left and most:
                used = most * (1 + _MARGIN) - left
                return f"on {machine.name} {used:g} of {most:g} {name} are in use, and {wanted:g} are wanted"
        return ""

    def _free(self, name: str, machine: MachineDescriptor) -> Resources:
        """Return the resources that nobody uses, with the margin."""
        booked = [booking.wanted for booking in self._booked if booking.node == name]
        used = zip(self.loads[name].used, *booked, strict=True)
        return Resources(
            *(most * (1 + _MARGIN) - sum(parts) for most, parts in zip(machine.capacity, used, strict=True))
        )

    @staticmethod
    def _missed(constraints: Sequence[Constraint], machine: MachineDescriptor) -> int:
        labels = dict(machine.labels)
        return sum(not constraint.hard and not satisfies(labels, constraint) for constraint in constraints)


def wanted_by(work: Work) -> Resources:
    """Return the resources that a task names."""
    return Resources(
        work.cpus_milli / 1000,
        float(work.memory_bytes),
        float(work.disk_io),
        float(work.network),
        float(sum(device.count for device in work.devices)),
    )


def satisfies(labels: Mapping[str, str], constraint: Constraint | descriptors.Constraint) -> bool:
    """Return True if a machine with these labels satisfies a constraint."""
    return node_labels.satisfies(labels, constraint.key, constraint.operator, constraint.value)
