"""All tables of a node, and the few operations on them that keep the tables consistent.

``dios.core.model.invariants`` checks the invariants of the tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from dios.core.model.accounts import Account, Defaults, charge_all
from dios.core.model.expiries import ExpiryTable
from dios.core.model.name_table import NameTable
from dios.core.model.names import logs_group
from dios.core.model.pending import PendingTable
from dios.core.model.records import (
    Holder,
    LocalHolder,
    PhysicalObject,
    Provenance,
    Reference,
    RemoteTask,
    Task,
    earlier,
)
from dios.core.model.submission_queue import SubmissionQueue
from dios.core.remote.peers import Cluster
from dios.ids import BufferId, Name, ObjectId, Principal, RefId, TaskId, Ticket
from dios.limits import NAME_BYTES
from dios.wire.types import Permission, Resource, Scope

_POSITIVE_63_BITS: Final = 2**63 - 1


class State:
    """The tables of one node."""

    __slots__ = (
        "_next_buffer",
        "account",
        "cluster",
        "defaults",
        "dropped",
        "ended",
        "entropy",
        "expiries",
        "failed_programs",
        "groups",
        "homes",
        "logs",
        "names",
        "network",
        "next_ticket",
        "node_owner",
        "objects",
        "pending",
        "principals",
        "queue",
        "remote_tasks",
        "restricted",
        "secret",
        "settled",
        "shutting_down",
        "tasks",
    )

    def __init__(
        self,
        entropy: Callable[[int], bytes],
        node_owner: Principal,
        *,
        restricted: bool,
        defaults: Defaults,
        cluster: Cluster | None = None,
        secret: bytes = b"",
    ) -> None:
        self.entropy: Final = entropy
        self.node_owner: Final = node_owner
        self.restricted: Final = restricted
        self.defaults: Final = defaults
        self.objects: dict[ObjectId, PhysicalObject] = {}
        self.tasks: dict[TaskId, LocalHolder] = {}
        self.cluster: Final = cluster
        self.secret: Final = secret
        self.remote_tasks: dict[TaskId, RemoteTask] = {}  # records of tasks of other nodes
        self.names: Final = NameTable()
        self.groups: dict[Name, PhysicalObject] = {}
        self.homes: dict[Principal, PhysicalObject] = {}
        self.account: Final = Account(Scope.NODE, "", defaults.node)
        self.principals: dict[Principal, Account] = {}
        self.pending: Final = PendingTable()
        self.expiries: Final = ExpiryTable()
        self.ended: deque[Task] = deque()
        self.logs: deque[PhysicalObject] = deque()
        self.failed_programs: deque[PhysicalObject] = deque()  # kept, so that a run can be repeated
        self.network: PhysicalObject | None = None  # created on first use
        self.next_ticket = 1
        self.settled = Ticket(0)
        self.dropped: list[tuple[Ticket, PhysicalObject]] = []  # drops not known to be durable
        self.shutting_down = False
        self.queue: Final = SubmissionQueue()
        self._next_buffer = 1

    # -- identifiers ----------------------------------------------------------------------------
    def fresh_id(self) -> int:
        """Return a random 63-bit id that is not 0, which every language and format can carry."""
        while True:
            number = int.from_bytes(self.entropy(8), "big") & _POSITIVE_63_BITS
            if number:
                return number

    def fresh_name(self) -> Name:
        """Return a random name (§4.3.1)."""
        return Name(self.entropy(NAME_BYTES))

    def fresh_buffer(self) -> BufferId:
        """Return the next buffer id; ids are never re-used."""
        number = self._next_buffer
        self._next_buffer += 1
        return BufferId(number)

    # -- accounts -------------------------------------------------------------------------------
    @property
    def place(self) -> str:
        """The name of this node; empty without a cluster."""
        return "" if self.cluster is None else self.cluster.here.name

    def everybody(self) -> Iterator[Holder]:
        """Return the tasks and sessions of this node and the remote tasks."""
        return chain(self.tasks.values(), self.remote_tasks.values())

    def living_tasks(self) -> Iterator[Task]:
        """Return the tasks of this node that have not ended, without sessions."""
        return (task for task in self.tasks.values() if isinstance(task, Task) and task.alive)

    def account_of(self, principal: Principal) -> Account:
        """Return the account of all tasks and sessions of a principal."""
        account = self.principals.get(principal)
        if account is None:
            account = Account(Scope.PRINCIPAL, principal, self.defaults.principal, self.account)
            self.principals[principal] = account
        return account

    def enter_group(self, group: PhysicalObject) -> None:
        """Add a group to the table of groups, and give it an account and its limits."""
        if group.name is not None:
            self.groups[group.name] = group
            if group.account is None:
                group.account = Account(Scope.GROUP, group.fingerprint)
            self.apply_limits(group)

    def apply_limits(self, group: PhysicalObject) -> None:
        """Apply the limits in a group's record: to its principal for a home group, else to the group."""
        if self.homes.get(group.owner) is group:
            self.account_of(group.owner).rebind((*self.defaults.principal, *group.limits))
        elif group.account is not None:
            group.account.rebind((*self.defaults.group, *group.limits))

    def accounts_of_groups(self, names: tuple[Name, ...]) -> tuple[Account, ...]:
        """Return the accounts of those of the named groups that exist."""
        found = (self.groups.get(name) for name in names)
        return tuple(group.account for group in found if group is not None and group.account is not None)

    # -- objects and references -----------------------------------------------------------------
    def add_object(self, target: PhysicalObject) -> None:
        """Add a physical object to the node's tables."""
        if self.cluster is not None:
            target.place = self.cluster.place
        self.objects[target.id] = target
        charge_all(target.accounts, Resource.OBJECTS, 1)
        self.names.insert(target)

    def uncount(self, target: PhysicalObject) -> None:
        """Remove an object without references from its accounts; only the node still uses it."""
        for account in target.accounts:
            account.charge(Resource.OBJECTS, -1)
        target.disown()

    def forget_object(self, target: PhysicalObject) -> None:
        """Remove a destroyed object from every table of the node."""
        if self.objects.pop(target.id, None) is not None:
            charge_all(target.accounts, Resource.OBJECTS, -1)
            target.version.supersede()
        self.names.remove(target)
        if target.name is not None and self.groups.get(target.name) is target:
            del self.groups[target.name]
            # Its name space is gone with it: lookups find nothing there, and no task stays a member.
            for task in self.tasks.values():
                task.leave(target.name)
        if self.homes.get(target.owner) is target:
            # The store refused the home group: the next session of the principal makes another.
            del self.homes[target.owner]
            for task in self.tasks.values():
                task.leave(logs_group(target.name or Name(b"")))
            self.account_of(target.owner).rebind(self.defaults.principal)

    def add_reference(
        self,
        task: Holder,
        target: PhysicalObject,
        permissions: Permission,
        provenance: Provenance,
        label: str = "",
        origin: Reference | None = None,
        expires_ns: int = 0,
        *,
        ref_id: int = 0,
        now: int = 0,
    ) -> Reference:
        """Add a new reference to the task's table and return it. The caller checks for room first.

        It expires no later than the reference that it was delegated from. ``ref_id`` is set for a reference
        to a proxy object: the id of the reference on the other node.
        """
        reference = Reference(
            RefId(ref_id or self.fresh_id()),
            task,
            target,
            permissions,
            provenance,
            task.table.take_slot(),
            label,
            origin,
            expires_ns if origin is None else earlier(expires_ns, origin.expires_ns),
            now,
        )
        task.table.insert(reference)
        target.references[reference.id] = reference
        if task.home:
            target.watch(task.home, 1)
        charge_all((task.account, *target.sharing), Resource.REFERENCES, 1)
        if reference.expires_ns:
            self.expiries.add(reference)
        return reference

    def remove_reference(self, reference: Reference) -> None:
        """Remove a reference from its holder's table and from every account."""
        reference.task.table.remove(reference.id)
        reference.object.references.pop(reference.id, None)
        if reference.task.home:
            reference.object.watch(reference.task.home, -1)
        charge_all((reference.task.account, *reference.object.sharing), Resource.REFERENCES, -1)
        reference.disown()
        if reference.expires_ns:
            self.expiries.forget(reference)
