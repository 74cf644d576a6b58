"""All tables of a node, and the few operations on them that keep the tables consistent.

``dios.core.model.invariants`` checks the invariants of the tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Final

from dios.core.model import names
from dios.core.model.accounts import Account, Defaults, charge_all
from dios.core.model.defects import DefectAccounts
from dios.core.model.expiries import ExpiryTable
from dios.core.model.history import History
from dios.core.model.name_table import NameTable
from dios.core.model.names import HOLDER_KEY_BYTES, logs_group
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
from dios.core.model.start_queue import StartQueue
from dios.core.model.submission_queue import SubmissionQueue
from dios.core.model.type_states import StreamState
from dios.core.model.work_items import WorkQueue
from dios.core.remote.peers import Cluster
from dios.ids import BufferId, Name, NodeId, ObjectId, Principal, RefId, TaskId, Ticket
from dios.limits import NAME_BYTES
from dios.wire.types import ObjectType, Permission, Resource, Scope

_POSITIVE_63_BITS: Final = 2**63 - 1


class State:
    """The tables of one node."""

    __slots__ = (
        "account",
        "cluster",
        "defaults",
        "defects",
        "dropped",
        "ended",
        "entropy",
        "expiries",
        "failed_programs",
        "groups",
        "holder_key",
        "homes",
        "logs",
        "members",
        "names",
        "network",
        "next_buffer",
        "next_ticket",
        "node_owner",
        "objects",
        "pending",
        "principals",
        "queue",
        "recipes",
        "remote_tasks",
        "restricted",
        "secret",
        "settled",
        "shutting_down",
        "starts",
        "tasks",
        "unsettled",
        "work",
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
        self.remote_tasks: dict[TaskId, RemoteTask] = {}  # records of tasks of other nodes, by their id here
        self.holder_key = b""  # drawn with the first such record
        self.names: Final = NameTable()
        self.groups: dict[Name, PhysicalObject] = {}
        self.members: dict[Name, dict[TaskId, LocalHolder]] = {}
        self.homes: dict[Principal, PhysicalObject] = {}
        self.account: Final = Account(Scope.NODE, "", defaults.node)
        self.principals: dict[Principal, Account] = {}
        self.queue: Final = SubmissionQueue()
        self.starts: Final = StartQueue()
        self.pending: Final = PendingTable(self.queue, self.starts)
        self.expiries: Final = ExpiryTable()
        self.ended: Final = History[Task]()
        self.recipes: Final = History[Task]()  # ended tasks that still have their recipe
        self.logs: Final = History[PhysicalObject]()
        self.failed_programs: Final = History[PhysicalObject]()  # kept, so that a run can be repeated
        self.network: PhysicalObject | None = None  # created on first use
        self.next_ticket = 1
        self.settled = Ticket(0)
        self.dropped: deque[tuple[Ticket, PhysicalObject]] = deque()  # drops not known to be durable
        self.unsettled: deque[tuple[Ticket, PhysicalObject]] = deque()  # changes not known to be durable
        self.work: Final = WorkQueue()
        self.shutting_down = False
        self.defects: Final = DefectAccounts()
        self.next_buffer = 1

    # -- identifiers ----------------------------------------------------------------------------
    def fresh_id(self) -> int:
        """Return a random 63-bit id that is not 0, which every language and format can carry."""
        while True:
            number = int.from_bytes(self.entropy(8), "big") & _POSITIVE_63_BITS
            if number:
                return number

    def holder_id(self, node: NodeId, task: TaskId) -> TaskId:
        """Return the id on this node of a task of another node, whose id there is ``task``.

        It depends on a secret key, so that no node can choose ids that meet those of others.
        """
        if not self.holder_key:
            self.holder_key = self.entropy(HOLDER_KEY_BYTES)
        return names.holder_id(self.holder_key, node, task)

    def chose_id(self, number: int) -> bool:
        """Return True if this node chose the id of the object with this id.

        A node that starts a task here chooses the id of the task, which may be that of another node's object.
        """
        target = self.objects.get(ObjectId(number))
        if target is None or target.type is not ObjectType.TASK:
            return target is not None
        task = self.tasks.get(TaskId(number))
        return task is not None and not (isinstance(task, Task) and task.parent.home)

    def fresh_name(self) -> Name:
        """Return a random name (§4.3.1)."""
        return Name(self.entropy(NAME_BYTES))

    def fresh_buffer(self) -> BufferId:
        """Return the next buffer id; ids are never re-used."""
        number = self.next_buffer
        self.next_buffer += 1
        return BufferId(number)

    # -- accounts -------------------------------------------------------------------------------
    @property
    def place(self) -> str:
        """The name of this node; empty without a cluster."""
        return "" if self.cluster is None else self.cluster.here.name

    def everybody(self) -> Iterator[Holder]:
        """Return the tasks and sessions of this node and the remote tasks, also those that are ending."""
        ending = (holder for holder in self.work.ending() if isinstance(holder, RemoteTask))
        return chain(self.tasks.values(), self.remote_tasks.values(), ending)

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

    # -- the store ------------------------------------------------------------------------------
    def settle(self, last: Ticket) -> None:
        """Note that all changes up to a ticket are durable."""
        self.settled = last
        for changes in (self.dropped, self.unsettled):
            while changes and changes[0][0] <= last:
                changes.popleft()

    # -- objects and references -----------------------------------------------------------------
    def add_object(self, target: PhysicalObject) -> None:
        """Add a physical object to the node's tables."""
        if self.cluster is not None:
            target.place = self.cluster.place
        self.objects[target.id] = target
        self._count(target, 1)
        self.names.insert(target)

    def uncount(self, target: PhysicalObject) -> None:
        """Remove an object without references from its accounts; only the node still uses it."""
        self._count(target, -1)
        target.disown()

    @staticmethod
    def _count(target: PhysicalObject, sign: int) -> None:
        charge_all(target.accounts, Resource.OBJECTS, sign)
        if target.descriptors:
            charge_all(target.accounts, Resource.DESCRIPTORS, sign * target.descriptors)

    def forget_object(self, target: PhysicalObject) -> None:
        """Remove a destroyed object from every table of the node."""
        if self.objects.pop(target.id, None) is not None:
            self._count(target, -1)
            target.version.supersede()
        self.names.remove(target)
        if target.name is not None and self.groups.get(target.name) is target:
            del self.groups[target.name]
            # Its name space is gone with it: lookups find nothing there, and no task stays a member.
            self._dismiss(target.name)
        if self.homes.get(target.owner) is target:
            # The store refused the home group: the next session of the principal makes another.
            del self.homes[target.owner]
            self._dismiss(logs_group(target.name or Name(b"")))
            self.account_of(target.owner).rebind(self.defaults.principal)

    # -- members --------------------------------------------------------------------------------
    def enter_member(self, task: LocalHolder, group: Name) -> None:
        """Make a task or session a member of a group."""
        task.memberships[group] = None
        self.members.setdefault(group, {})[task.id] = task

    def forget_member(self, task: LocalHolder) -> None:
        """Remove a task from the tables of members."""
        for group in task.memberships:
            inside = self.members.get(group)
            if inside is not None:
                inside.pop(task.id, None)
                if not inside:
                    del self.members[group]

    def _dismiss(self, group: Name) -> None:
        for task in self.members.pop(group, {}).values():
            task.leave(group)

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
        if isinstance(target.state, StreamState):
            target.state.count(permissions, 1)
        if task.home:
            target.watch(task.home, 1)
        charge_all((task.account, *target.sharing), Resource.REFERENCES, 1)
        if reference.expires_ns:
            self.expiries.add(reference)
        return reference

    def remove_reference(self, reference: Reference) -> None:
        """Remove a reference from its holder's table and from every account."""
        reference.task.table.remove(reference.id)
        target = reference.object
        target.references.pop(reference.id, None)
        if isinstance(target.state, StreamState):
            target.state.count(reference.permissions, -1)
        if reference.task.home:
            reference.object.watch(reference.task.home, -1)
        charge_all((reference.task.account, *reference.object.sharing), Resource.REFERENCES, -1)
        reference.disown()
        if reference.expires_ns:
            self.expiries.forget(reference)
