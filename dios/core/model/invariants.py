"""The invariants of a node's tables between two steps; checked in tests, in the simulator, and on request.

A violation is a defect of the core and raises InvariantError.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable

from dios import limits
from dios.core.model.accounts import Account, Version, descriptors_of
from dios.core.model.names import internal_name
from dios.core.model.records import Holder, LocalHolder, PhysicalObject, Reference, Task
from dios.core.model.state import State
from dios.core.model.type_states import StreamState
from dios.errors import InvariantError
from dios.wire.types import Deletion, Mode, ObjectType, Permission, Resource, TaskState


def check(state: State) -> None:
    """Raise InvariantError for the first invariant that does not hold."""
    _check_references(state)
    _check_counters(state)
    _check_names(state)
    _check_pending(state)
    _check_delegations(state)
    _check_streams(state)
    _check_accounts(state)
    for task in state.everybody():
        _check_task(task)


def recount(state: State) -> None:
    """Set what follows from the tables: active requests, references of streams, and the use in accounts."""
    active = _active(state)
    for target in state.objects.values():
        target.a_r, target.a_w = active.get(target.id, (0, 0))
        if isinstance(target.state, StreamState):
            target.state.able = _able(target)
    for account, used in _use(state):
        account.used[:] = used


def _require(condition: bool, violation: str) -> None:  # noqa: FBT001 - reads as a sentence
    if not condition:
        raise InvariantError(violation)


def _check_references(state: State) -> None:
    """Check that reference counts are exact, each reference is in one table, ids and slots are unique."""
    counted: dict[int, dict[int, Reference]] = {}
    seen: set[int] = set()
    for task in state.everybody():
        slots: set[int] = set()
        for reference in task.table:
            _require(id(reference) not in seen, "a reference is in two tables")
            seen.add(id(reference))
            _require(reference.task is task, "a reference is in the table of another task")
            _require(reference.slot not in slots, "two references share a slot")
            slots.add(reference.slot)
            _require(0 <= reference.permissions <= Permission.EVERY, "a reference has unknown permissions")
            if reference.object.home:
                _check_proxy(state, reference)
                continue
            if not reference.object.zombie:
                counted.setdefault(reference.object.id, {})[reference.id] = reference
                _require(
                    state.objects.get(reference.object.id) is reference.object,
                    "a reference leads to an object that is not in the node's tables",
                )
        _require(len(task.table) <= limits.REFERENCES_PER_TASK_MAX, "a reference table is over its bound")
    for target in state.objects.values():
        _require(target.references == counted.get(target.id, {}), "a reference count is not exact")
        homes = [reference.task.home for reference in target.references.values() if reference.task.home]
        exact = target.watchers == Counter(homes) if homes else not target.watchers
        _require(exact, "other nodes' references are not counted exactly")
        _require(not target.zombie, "a zombie is still in the node's tables")
        unreferenced = target.deletion is Deletion.REFERENCE_COUNTED and not target.references
        # A recovered durable object is counted from its first reference on (§4.2, Persistence).
        recovered = target.recorded is not None and not target.ticket
        _require(not unreferenced or target.pinned > 0 or recovered, "an object without references exists")


def _check_proxy(state: State, reference: Reference) -> None:
    """Check that a reference to an object of another node leads to its only proxy and is counted there."""
    target = reference.object
    cluster = state.cluster
    _require(cluster is not None and not reference.task.home, "a task of another node has a proxy object")
    if cluster is not None:
        proxy = cluster.peers[target.home].proxies.get(target.id)
        _require(proxy is target, "a proxy object is not in the table of its node")
        _require(target.references.get(reference.id) is reference, "a proxy object lacks its reference")


def _check_counters(state: State) -> None:
    """Check that a_r and a_w are exactly the numbers of active requests."""
    for task in state.everybody():
        for buffer in task.buffers.values():
            _require(buffer.reference.task is task, "a buffer is in the table of another task")
            _require(buffer.id in buffer.reference.buffers, "a buffer is missing from its reference")
            _require(not (buffer.active and buffer.object.zombie), "a request is active on a zombie")
    active = _active(state)
    for target in state.objects.values():
        expected = active.get(target.id, [0, 0])
        _require([target.a_r, target.a_w] == expected, "active counters are not exact")


def _active(state: State) -> dict[int, list[int]]:
    """Return the numbers of active reads and writes of each object that has any."""
    active: dict[int, list[int]] = {}
    for task in state.everybody():
        for buffer in task.buffers.values():
            if buffer.active:
                pair = active.setdefault(buffer.object.id, [0, 0])
                pair[0 if buffer.mode is Mode.READ else 1] += 1
    return active


def _check_names(state: State) -> None:
    """Check that the name table has exactly the living named objects, once for each of their groups."""
    expected: dict[bytes, set[int]] = {}
    for target in state.objects.values():
        if target.name is not None:
            for group in target.groups:
                expected.setdefault(internal_name(target.name, group), set()).add(target.id)
    actual = {key: {target.id for target in entry} for key, entry in state.names.items()}
    _require(actual == expected, "the name table does not match the objects")
    for owner, home in state.homes.items():
        _require(_is_group(home) and home.owner == owner, "a home group is gone or has another owner")
    for group_name, group_object in state.groups.items():
        _require(
            _is_group(group_object) and group_object.name == group_name,
            "the group table has an object that is not a group",
        )


def _is_group(target: PhysicalObject) -> bool:
    return target.type is ObjectType.GROUP and not target.zombie


def _check_pending(state: State) -> None:
    """Check that every waiting call belongs to a living task and that its objects would wake it."""
    closed = Counter(target for row in state.pending for target in row.closes)
    for target in state.objects.values():
        _require(target.closed == closed[target], "an object miscounts the calls that close it to leases")
    for row in state.pending:
        _require(row.task.state is not TaskState.ENDED, "a call of an ended task is waiting")
        _require(row.task.pending.get(row.seq) is row, "a waiting call is missing from its task")
        key = row.key
        woken = all(key in target.waiters or target.zombie for target in row.watched)
        _require(woken, "a waiting call is missing from its object")


def _check_delegations(state: State) -> None:
    """Check that delegations run through living references, and none outlives its origin."""
    for task in state.everybody():
        for reference in task.table:
            origin = reference.origin
            if origin is not None:
                _require(
                    origin.id in origin.task.table or _is_inner(origin),
                    "a delegation comes from a reference that is gone",
                )
                _require(origin.descendants.get(reference.id) is reference, "an origin lacks a descendant")
                limited = origin.expires_ns == 0 or 0 < reference.expires_ns <= origin.expires_ns
                _require(limited, "a delegation expires later than the reference it came from")
            for other in reference.descendants.values():
                _require(other.origin is reference, "a descendant has another origin")


def _is_inner(reference: Reference) -> bool:
    """Return True if a dropped reference must stay between its descendants and its origin."""
    return reference.dropped and (len(reference.descendants) > 1 or reference.retiring)


def _check_accounts(state: State) -> None:
    """Check that the use in every account is what the tables hold."""
    for account, used in _use(state):
        _require(account.used == used, f"an account is not exact: {account.used} instead of {used}")


def _use(state: State) -> Iterable[tuple[Account, list[int]]]:
    """Return each account in use, and its use as the tables hold it."""
    own: dict[int, tuple[Account, list[int]]] = {}
    nothing = [0] * len(Resource)

    def count(accounts: Iterable[Account], resource: Resource, amount: int) -> None:
        for account in accounts:
            row = own.get(id(account))
            if row is None:
                row = own[id(account)] = (account, nothing.copy())
            row[1][resource] += amount

    versions: dict[int, Version] = {}
    for owner, (objects, size) in state.dormant_owners.items():
        count([state.account_of(owner)], Resource.OBJECTS, objects)
        count([state.account_of(owner)], Resource.BYTES, size)
    for name, (objects, size) in state.dormant_groups.items():
        count(state.accounts_of_groups((name,)), Resource.OBJECTS, objects)
        count(state.accounts_of_groups((name,)), Resource.BYTES, size)
    for target in state.objects.values():
        count(target.accounts, Resource.OBJECTS, 1)
        count(target.accounts, Resource.DESCRIPTORS, target.descriptors)
        versions[id(target.version)] = target.version
    for task in state.everybody():
        count([task.account], Resource.REQUESTS, len(task.pending))
        count([task.account], Resource.REFERENCES, len(task.table))
        for reference in task.table:
            count(reference.object.sharing, Resource.REFERENCES, 1)
        for buffer in task.buffers.values():
            count(buffer.accounts, Resource.REQUESTS, 1)
            count([task.account], Resource.DESCRIPTORS, buffer.files)
            if buffer.held is not None:
                versions[id(buffer.held)] = buffer.held
        count([task.account], Resource.REQUESTS, len(task.remote_buffers))
        for remote in task.remote_buffers.values():
            versions[id(remote.held)] = remote.held
        if task.state is not TaskState.ENDED and isinstance(task, Task):
            count([task.parent.account, *task.member_accounts], Resource.TASKS, 1)
            count([task.account, *task.member_accounts], Resource.MEMORY_BYTES, task.reserved.memory_bytes)
    versions |= {id(row.held): row.held for row in state.pending if row.held is not None}
    if state.cluster is not None:
        versions |= {id(version): version for version in state.cluster.charged()}
    for version in versions.values():
        count(version.accounts, Resource.BYTES, version.bytes)
        if version.volatile:
            count(version.accounts, Resource.VOLATILE_BYTES, version.bytes)
            # A small former memory of a raw object has descriptors as well.
            _require(
                version.descriptors
                in (
                    {0}
                    if version.in_rings
                    else {descriptors_of(version.bytes, volatile=True), limits.MEMORY_DESCRIPTORS}
                ),
                "a version does not count its descriptors",
            )
            count(version.accounts, Resource.DESCRIPTORS, version.descriptors)
    # Also accounts without any use, which may be wrong, too.
    groups = (group.account for group in state.groups.values() if group.account is not None)
    holders = (task.account for task in state.everybody())
    count((*state.principals.values(), *groups, *holders), Resource.OBJECTS, 0)
    expected: dict[int, tuple[Account, list[int]]] = {}
    for account, used in own.values():
        above: Account | None = account
        while above is not None:
            _, sums = expected.setdefault(id(above), (above, nothing.copy()))
            sums[:] = map(operator.add, sums, used)
            above = above.parent
    for account, used in expected.values():
        used[Resource.CPU_MS] = account.used[Resource.CPU_MS]  # the CPU time of ended tasks stays counted
    return expected.values()


def _check_streams(state: State) -> None:
    """Check that the references that may attach to the ends of a stream are counted."""
    for target in state.objects.values():
        if isinstance(target.state, StreamState):
            able = _able(target)
            _require(target.state.able == able, "the references of a stream are not counted exactly")


def _able(target: PhysicalObject) -> dict[Mode, int]:
    """Return the numbers of references that may attach to the ends of a stream."""
    rights = [reference.permissions for reference in target.references.values()]
    readers = sum(1 for held in rights if held & Permission.READ)
    writers = sum(1 for held in rights if held & Permission.WRITE)
    return {Mode.READ: readers, Mode.WRITE: writers}


def _check_task(task: Holder) -> None:
    if task.state is TaskState.ENDED:
        _require(not len(task.table), "an ended task holds references")
        _require(not task.buffers and not task.pending, "an ended task has buffers or waiting calls")
    if isinstance(task, LocalHolder):
        unread = task.events or task.lost_events
        _require(task.state is not TaskState.ENDED or not unread, "an ended task has unread events")
        _require(len(task.events) <= limits.EVENTS_PER_TASK_MAX, "an event queue is over its bound")
