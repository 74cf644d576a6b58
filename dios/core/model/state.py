"""All tables of a node, and the few operations on them that keep the tables consistent.

``dios.core.model.invariants`` checks the invariants of the tables.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import ClassVar, Final, TypeVar

from dios.core.events import DormantUse, ObjectRecord
from dios.core.model import names
from dios.core.model.accounts import UNLIMITED, Account, Defaults, charge_all, charge_bytes
from dios.core.model.defects import DefectAccounts
from dios.core.model.expiries import ExpiryTable
from dios.core.model.history import History
from dios.core.model.moves import MoveTable
from dios.core.model.name_table import NameTable
from dios.core.model.names import HOLDER_KEY_BYTES, Secrets, internal_name, logs_group
from dios.core.model.pending import PendingTable
from dios.core.model.quotas import Admission
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
from dios.core.model.rows import NoRows, RowSource, is_dormant
from dios.core.model.start_queue import StartQueue
from dios.core.model.story import Story
from dios.core.model.submission_queue import SubmissionQueue
from dios.core.model.type_states import StreamState
from dios.core.model.work_items import WorkQueue
from dios.core.remote.peers import Cluster
from dios.ids import BufferId, InternalName, Name, NodeId, ObjectId, Principal, RefId, TaskId, Ticket
from dios.limits import LOOKUP_REFERENCES_MAX, NAME_BYTES
from dios.wire.types import Fitness, ObjectType, Permission, Resource, Scope

_POSITIVE_63_BITS: Final = 2**63 - 1

UNLOADED_AT_ONCE: Final = 16
"""Objects that a step forgets at most because they are in the store; a step reads fewer rows than that."""


Key = TypeVar("Key", Principal, Name)


class State:
    """The tables of one node."""

    __slots__ = (
        "account",
        "admission",
        "cluster",
        "defaults",
        "defects",
        "dormant_groups",
        "dormant_owners",
        "dropped",
        "dropping",
        "ended",
        "ends",
        "entropy",
        "expiries",
        "failed_programs",
        "fitness",
        "groups",
        "holder_key",
        "homes",
        "idle",
        "labelled",
        "later_secrets",
        "log_groups",
        "logs",
        "members",
        "moves",
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
        "rows",
        "secret",
        "settled",
        "share_holders",
        "shutting_down",
        "starts",
        "story",
        "tasks",
        "unsettled",
        "why_not_fit",
        "work",
    )

    ADDED_FIELDS: ClassVar[Mapping[str, object]] = {
        "admission": None,
        "fitness": Fitness.FIT,
        "later_secrets": (),
        "why_not_fit": "",
    }
    """Fields that snapshots of earlier releases lack, with their values."""

    def __init__(
        self,
        entropy: Callable[[int], bytes],
        node_owner: Principal,
        *,
        restricted: bool,
        defaults: Defaults,
        cluster: Cluster | None = None,
        secret: bytes = b"",
        rows: RowSource = NoRows(),  # noqa: B008 - it has no state
    ) -> None:
        self.rows: Final = rows
        self.entropy: Final = entropy
        self.node_owner: Final = node_owner
        self.restricted: Final = restricted
        self.defaults: Final = defaults
        self.objects: dict[ObjectId, PhysicalObject] = {}
        self.tasks: dict[TaskId, LocalHolder] = {}
        self.cluster: Final = cluster
        self.secret: Final = secret
        self.later_secrets: tuple[bytes, ...] = ()
        self.remote_tasks: dict[TaskId, RemoteTask] = {}  # records of tasks of other nodes, by their id here
        self.holder_key = b""  # drawn with the first such record
        self.names: Final = NameTable()
        self.groups: dict[Name, PhysicalObject] = {}
        self.members: dict[Name, dict[TaskId, LocalHolder]] = {}
        self.homes: dict[Principal, PhysicalObject] = {}
        self.account: Final = Account(Scope.NODE, "", defaults.node)
        self.principals: dict[Principal, Account] = {}
        self.admission: Admission | None = None  # None until the scheduler has sent quotas
        self.queue: Final = SubmissionQueue()
        self.starts: Final = StartQueue()
        self.pending: Final = PendingTable(self.queue, self.starts)
        self.expiries: Final = ExpiryTable()
        self.moves: Final = MoveTable()
        self.ended: Final = History[Task]()
        self.ends: Final[dict[str, int]] = {}
        """The number of tasks that have ended since the start of the node, by cause."""
        self.recipes: Final = History[Task]()  # ended tasks that still have their recipe
        self.logs: Final = History[PhysicalObject]()
        self.failed_programs: Final = History[PhysicalObject]()  # kept, so that a run can be repeated
        self.network: PhysicalObject | None = None  # created on first use
        self.next_ticket = 1
        # The sessions that read a group by a share, by the node and the id of its record; 0 is this node.
        self.share_holders: dict[tuple[NodeId, ObjectId], dict[TaskId, Name]] = {}
        self.settled = Ticket(0)
        self.dropped: deque[tuple[Ticket, PhysicalObject]] = deque()  # drops not known to be durable
        self.dropping: dict[ObjectId, Ticket] = {}  # objects in ``dropped``, with the last of their drops
        self.unsettled: deque[tuple[Ticket, PhysicalObject]] = deque()  # changes not known to be durable
        self.idle: dict[ObjectId, PhysicalObject] = {}  # durable, without references; longest first
        self.dormant_owners: dict[Principal, tuple[int, int]] = {}  # objects and bytes that are only in rows
        self.dormant_groups: dict[Name, tuple[int, int]] = {}
        self.log_groups: set[Name] = set()
        self.labelled = False  # True once there was a secrecy label, so that calls are checked for flows
        self.work: Final = WorkQueue()
        self.shutting_down = False
        self.fitness = Fitness.FIT  # of this node for pure tasks
        self.why_not_fit = ""
        self.defects: Final = DefectAccounts()
        self.next_buffer = 1
        self.story: Final = Story()

    # -- identifiers ----------------------------------------------------------------------------
    def fresh_id(self) -> int:
        """Return a random 63-bit id that is not 0, which every language and format can carry."""
        while True:
            number = int.from_bytes(self.entropy(8), "big") & _POSITIVE_63_BITS
            if number:
                return number

    @property
    def secrets(self) -> Secrets:
        """The secrets of the cluster."""
        return Secrets(self.secret, self.later_secrets)

    def __repr__(self) -> str:
        return (
            f"<State: {len(self.objects)} objects, {len(self.tasks)} tasks, {len(self.pending)} calls wait>"
        )

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
        target = self.find_object(ObjectId(number))
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
        if group.name is None:
            return
        former = self.groups.get(group.name)
        if former is not group:
            if former is not None:
                self._count_members(former, -1)
            self.groups[group.name] = group
            if group.account is None:
                group.account = Account(Scope.GROUP, group.fingerprint)
            # Also for a group whose removal the store refused: its members came and went meanwhile.
            self._count_members(group, 1)
        self.apply_limits(group)

    def apply_limits(self, group: PhysicalObject) -> None:
        """Apply the limits in a group's record: to its principal for a home group, else to the group."""
        if self.homes.get(group.owner) is group:
            self.account_of(group.owner).rebind((*self.defaults.principal, *group.limits))
        elif group.account is not None:
            group.account.rebind((*self.defaults.group, *group.limits))

    def accounts_of_groups(self, names: tuple[Name, ...]) -> tuple[Account, ...]:
        """Return the accounts of those of the named groups that exist."""
        groups = (self.groups.get(name) for name in names)
        return tuple(group.account for group in groups if group is not None and group.account is not None)

    # -- the store ------------------------------------------------------------------------------
    def settle(self, last: Ticket) -> None:
        """Note that all changes up to a ticket are durable."""
        self.settled = last
        unsettled, dropped = self.unsettled, self.dropped
        while unsettled and unsettled[0][0] <= last:
            unsettled.popleft()
        while dropped and dropped[0][0] <= last:
            ticket, target = dropped.popleft()
            if self.dropping.get(target.id) == ticket:
                del self.dropping[target.id]

    # -- objects that are only in the store ---------------------------------------------------------
    def find_object(self, target: ObjectId) -> PhysicalObject | None:
        """Return the object with this id; read its row if it is only in the store."""
        resident = self.objects.get(target)
        if resident is not None or self.rows.idle_max is None or target in self.dropping:
            return resident
        record = self.rows.read(target)
        return None if record is None else self._awaken(record)

    def find_named(self, names: Sequence[InternalName]) -> Iterator[PhysicalObject]:
        """Yield the objects under any of these names, at most a bound."""
        if self.rows.idle_max is None:
            yield from self.names.find_all(names)
            return
        stored = [target for target in self.rows.named(names) if target not in self.objects]
        resident = list(self.names.find_all(names))
        yield from resident
        wanted = set(names)
        for target in stored[: LOOKUP_REFERENCES_MAX**2 - len(resident)]:
            # The caller may have changed the tables since.
            if target in self.objects or target in self.dropping:
                continue
            record = self.rows.read(target)
            if record is not None and record.name is not None:
                name = record.name
                if any(internal_name(name, group) in wanted for group in record.groups):
                    yield self._awaken(record)

    def expect_dormant(self, use: DormantUse) -> None:
        """Count the objects that are only in the store, at the start of the node."""
        for owner, count, size in use.owners:
            self._count_dormant((self.account_of(owner),), count, size)
            self.dormant_owners[owner] = (count, size)
        for name, count, size in use.groups:
            self.dormant_groups[name] = (count, size)
            group = self.groups.get(name)
            if group is not None and group.account is not None:
                self._count_dormant((group.account,), count, size)

    @property
    def dormant_count(self) -> int:
        """The number of objects that are only in the store."""
        return sum(count for count, _ in self.dormant_owners.values())

    def unload_idle(self) -> None:
        """Forget some objects without references that the store has, if there are more than a bound."""
        most = self.rows.idle_max
        for _ in range(min(len(self.idle) - most, UNLOADED_AT_ONCE) if most is not None else 0):
            number = next(iter(self.idle))
            target = self.idle.pop(number)
            if self.objects.get(number) is not target or not self._may_sleep(target):
                if self.objects.get(number) is target and not target.references:
                    self.idle[number] = target  # later, perhaps
                continue
            self._change_dormant(target.owner, target.groups, 1, target.size)
            del self.objects[number]
            self._count(target, -1)
            target.version.supersede()
            target.zombie = True  # this record of the object is of no use any more
            self.names.remove(target, is_stored=True)

    def note_idle(self, target: PhysicalObject) -> None:
        """Note that the last reference to an object is gone."""
        if self.rows.idle_max is None or target.type is not ObjectType.DURABLE_BLOB:
            return
        if self.objects.get(target.id) is target:
            self.idle[target.id] = target

    def _may_sleep(self, target: PhysicalObject) -> bool:
        if not target.is_idle or target.ticket > self.settled or target.recorded is None:
            return False
        if not is_dormant(target.recorded, self.log_groups):
            return False
        # A task with limits is charged for its objects as long as they exist.
        account = target.accounts[0] if target.accounts else None
        while account is not None and account.scope is Scope.TASK:
            if any(account.bounds[resource] != UNLIMITED for resource in (Resource.OBJECTS, Resource.BYTES)):
                return False
            account = account.parent
        return account is self.account_of(target.owner)

    def _awaken(self, record: ObjectRecord) -> PhysicalObject:
        """Enter the object of a dormant row into the tables."""
        accounts = (self.account_of(record.owner), *self.accounts_of_groups(record.groups))
        target = PhysicalObject.from_record(record, accounts)
        self.add_object(target, is_stored=True)
        # It counts as dormant until it is entered, also if that fails.
        self._change_dormant(record.owner, record.groups, -1, -record.size)
        self.note_idle(target)
        return target

    def _change_dormant(self, owner: Principal, groups: tuple[Name, ...], count: int, size: int) -> None:
        self._count_dormant((self.account_of(owner), *self.accounts_of_groups(groups)), count, size)
        former = self.dormant_owners.get(owner, (0, 0))
        _set_use(self.dormant_owners, owner, former[0] + count, former[1] + size)
        for name in groups:
            former = self.dormant_groups.get(name, (0, 0))
            _set_use(self.dormant_groups, name, former[0] + count, former[1] + size)

    def _count_members(self, group: PhysicalObject, sign: int) -> None:
        """Add the dormant members of a group to its account, or take them away."""
        if group.account is not None and group.name is not None:
            count, size = self.dormant_groups.get(group.name, (0, 0))
            self._count_dormant((group.account,), sign * count, sign * size)

    @staticmethod
    def _count_dormant(accounts: tuple[Account, ...], count: int, size: int) -> None:
        charge_all(accounts, Resource.OBJECTS, count)
        charge_bytes(accounts, size, volatile=False)

    # -- objects and references -----------------------------------------------------------------
    def add_object(self, target: PhysicalObject, *, is_stored: bool = False) -> None:
        """Add a physical object to the node's tables; one that ``is_stored`` was only in the store before."""
        if self.cluster is not None:
            target.place = self.cluster.place
        if target.secrecy:
            self.labelled = True
        self.objects[target.id] = target
        self.story.note("enters", "", target.fingerprint)
        self._count(target, 1)
        self.names.insert(target, is_stored=is_stored)

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
            self.story.note("leaves", "", target.fingerprint)
            self._count(target, -1)
            target.version.supersede()
        self.names.remove(target)
        self.idle.pop(target.id, None)
        if target.name is not None and self.groups.get(target.name) is target:
            del self.groups[target.name]
            self._count_members(target, -1)
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
        if self.idle:
            self.idle.pop(target.id, None)
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
        if not target.references:
            self.note_idle(target)
        if isinstance(target.state, StreamState):
            target.state.count(reference.permissions, -1)
        if reference.task.home:
            reference.object.watch(reference.task.home, -1)
        charge_all((reference.task.account, *reference.object.sharing), Resource.REFERENCES, -1)
        reference.disown()
        if reference.expires_ns:
            self.expiries.forget(reference)


def _set_use(table: dict[Key, tuple[int, int]], key: Key, count: int, size: int) -> None:
    if count > 0:
        table[key] = (count, size)
    else:
        table.pop(key, None)
