"""Everything a node knows, and the few operations on it that keep the tables consistent.

Not for: system calls. Whatever is changed here is checked by ``dios.core.invariants``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from dios.core.nametable import NameTable
from dios.core.objects import PhysicalObject
from dios.core.pending import PendingTable
from dios.core.references import Provenance, Reference
from dios.core.tasks import Task
from dios.ids import BufferId, Name, ObjectId, Principal, RefId, TaskId, Ticket
from dios.limits import NAME_BYTES
from dios.wire.types import Permission

_POSITIVE_63_BITS: Final = 2**63 - 1


class State:
    """The tables of one node."""

    __slots__ = (
        "_next_buffer",
        "dropped",
        "ended",
        "entropy",
        "groups",
        "homes",
        "names",
        "next_ticket",
        "node_owner",
        "objects",
        "pending",
        "restricted",
        "settled",
        "shutting_down",
        "tasks",
    )

    def __init__(self, entropy: Callable[[int], bytes], node_owner: Principal, *, restricted: bool) -> None:
        self.entropy: Final = entropy
        self.node_owner: Final = node_owner
        self.restricted: Final = restricted
        self.objects: dict[ObjectId, PhysicalObject] = {}
        self.tasks: dict[TaskId, Task] = {}
        self.names: Final = NameTable()
        self.groups: dict[Name, PhysicalObject] = {}
        self.homes: dict[Principal, PhysicalObject] = {}
        self.pending: Final = PendingTable()
        self.ended: deque[Task] = deque()
        self.next_ticket = 1
        self.settled = Ticket(0)
        self.dropped: list[tuple[Ticket, PhysicalObject]] = []  # drops not known to be durable
        self.shutting_down = False
        self._next_buffer = 1

    # -- identifiers ----------------------------------------------------------------------------
    def fresh_id(self) -> int:
        """A random 63-bit id that is not 0, so that every language and format can carry it."""
        while True:
            number = int.from_bytes(self.entropy(8), "big") & _POSITIVE_63_BITS
            if number:
                return number

    def fresh_name(self) -> Name:
        """A random name (§4.3.1)."""
        return Name(self.entropy(NAME_BYTES))

    def fresh_buffer(self) -> BufferId:
        """The next buffer id; never re-used."""
        number = self._next_buffer
        self._next_buffer += 1
        return BufferId(number)

    # -- objects and references -----------------------------------------------------------------
    def add_object(self, target: PhysicalObject) -> None:
        """Enter a physical object into the node's tables."""
        self.objects[target.id] = target
        self.names.insert(target)

    def forget_object(self, target: PhysicalObject) -> None:
        """Take a destroyed object out of every table of the node."""
        self.objects.pop(target.id, None)
        self.names.remove(target)
        if target.name is not None and self.groups.get(target.name) is target:
            del self.groups[target.name]
        if self.homes.get(target.owner) is target:
            # The store refused it: the next session of the principal makes another.
            del self.homes[target.owner]

    def add_reference(
        self,
        task: Task,
        target: PhysicalObject,
        permissions: Permission,
        provenance: Provenance,
        label: str = "",
    ) -> Reference:
        """A fresh reference in the task's table; the caller has made sure that there is room."""
        reference = Reference(
            RefId(self.fresh_id()), task, target, permissions, provenance, task.table.take_slot(), label
        )
        task.table.insert(reference)
        target.references[reference.id] = reference
        return reference
