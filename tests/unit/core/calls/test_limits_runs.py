"""CPU time and memory: set aside at a task's start, and what of it comes back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dios.core import effects
from dios.core.model.accounts import Defaults
from dios.limits import TASK_MEMORY_BYTES_DEFAULT
from dios.wire import messages
from dios.wire.messages import Bound, Limits
from dios.wire.types import Flag, Resource, Scope
from tests.support.core.harness import Client, Node
from tests.support.core.limits import SCOPES, Office, anonymous, destroyed, ordered, over, started

MB = 1 << 20


@pytest.fixture
def office(node: Node) -> Office:
    """Somebody who sets limits, and a task that has them."""
    return Office(node)


def program(client: Client) -> int:
    """Something that can be run."""
    return client.ask(messages.Created, anonymous(b"pass")).reference.ref


def bounds(node: Node) -> Limits:
    """What the host is told to hold the task to that was just started."""
    return next(effect.limits for effect in node.outcome.after if isinstance(effect, effects.Spawn))


def cpu(office: Office) -> int:
    """The CPU time that counts with the worker."""
    return office.used(Scope.TASK, Resource.CPU_MS)


# -- CPU time ---------------------------------------------------------------------------------------
def test_what_was_used_stays(office: Office) -> None:
    """CPU time is set aside at the start; at the end what was not used comes back and what was used stays."""
    task = started(office.worker, ordered(program(office.worker), cpu_ms=1000))
    assert bounds(office.node).cpu_ms == 1000
    assert cpu(office) == 1000
    office.node.end(task.task, cpu_ms=300)
    assert cpu(office) == 300


def test_more_than_was_set_aside_stays(office: Office) -> None:
    """What a task used over what was set aside counts, and the next task is refused what is gone."""
    office.leave(Scope.TASK, Resource.CPU_MS, 1000)
    blob = program(office.worker)
    task = started(office.worker, ordered(blob, cpu_ms=1000))
    office.node.end(task.task, cpu_ms=1010)
    assert cpu(office) == 1010
    over(office.worker, ordered(blob, cpu_ms=1))
    over(office.worker, ordered(blob))


def test_a_task_without_a_limit_gets_what_is_left(office: Office) -> None:
    """Under a limit above it, a task that asks for no CPU time is held to all that is left of it."""
    office.leave(Scope.TASK, Resource.CPU_MS, 10_000)
    blob = program(office.worker)
    office.node.end(started(office.worker, ordered(blob, cpu_ms=6000)).task, cpu_ms=3300)
    task = started(office.worker, ordered(blob))
    assert bounds(office.node).cpu_ms == 6000
    over(office.worker, ordered(blob))
    office.node.end(task.task, cpu_ms=0)
    started(office.worker, ordered(blob))


def test_cpu_time_is_set_aside_by_the_second(office: Office) -> None:
    """The kernel gives a second that has begun whole: many tasks of a millisecond each gain nothing."""
    office.leave(Scope.TASK, Resource.CPU_MS, 2000)
    blob = program(office.worker)
    for _ in range(2):
        started(office.worker, ordered(blob, cpu_ms=1))
        assert bounds(office.node).cpu_ms == 1000
    over(office.worker, ordered(blob, cpu_ms=1))


def test_without_any_limit_nothing_is_set_aside(office: Office) -> None:
    """Where nobody limits CPU time, a task has none set aside, and what it used is counted."""
    task = started(office.worker, ordered(program(office.worker)))
    assert bounds(office.node).cpu_ms == 0
    assert cpu(office) == 0
    office.node.end(task.task, cpu_ms=50)
    assert cpu(office) == 50


def test_a_groups_cpu_time(office: Office) -> None:
    """A task that is a member is held to what is left to its group."""
    office.leave(Scope.GROUP, Resource.CPU_MS, 5000)
    blob = program(office.worker)
    task = started(office.worker, ordered(blob, office.worker.groups[0]))
    assert bounds(office.node).cpu_ms == 5000
    over(office.worker, ordered(blob, office.worker.groups[0]))
    started(office.worker, ordered(blob))
    office.node.end(task.task, cpu_ms=100)
    assert office.used(Scope.GROUP, Resource.CPU_MS) == 100


# -- totals -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("own", "total"),
    [("cpu_ms", "total_cpu_ms"), ("memory_bytes", "total_memory_bytes")],
)
def test_own_limit_is_the_total(office: Office, own: str, total: str) -> None:
    """A task's own CPU time or memory is all that it and what it starts have, unless totals say more."""
    blob = program(office.worker)
    alone = started(office.worker, ordered(blob, **{own: 64_000_000}))
    over(alone, ordered(program(alone), **{own: 1}))
    more = started(office.worker, ordered(blob, **{own: 64_000_000, total: 100_000_000}))
    over(more, ordered(program(more), **{own: 36_000_001}))
    started(more, ordered(program(more), **{own: 36_000_000}))
    over(more, ordered(program(more), **{own: 1}))


@pytest.mark.parametrize("name", ["objects", "bytes", "references", "requests", "tasks"])
def test_limits_of_a_run_call(office: Office, name: str) -> None:
    """What a run call says holds for the task and everything it starts."""
    blob = program(office.worker)
    task = started(office.worker, ordered(blob, **{name: 10}))
    shown = office.shown(Scope.TASK, task=task)
    index = Resource[name.upper()]
    assert shown.limits == tuple(10 if resource is index else None for resource in Resource)


# -- memory -----------------------------------------------------------------------------------------
def test_memory_is_set_aside(office: Office) -> None:
    """A task's memory counts while it runs: what it asks for, else the default or all that it may have."""
    worker, blob = office.worker, program(office.worker)
    before = office.used(Scope.TASK, Resource.MEMORY_BYTES)
    task = started(worker, ordered(blob, memory_bytes=64 * MB))
    assert office.used(Scope.TASK, Resource.MEMORY_BYTES) == before + 64 * MB
    office.node.end(task.task)
    assert office.used(Scope.TASK, Resource.MEMORY_BYTES) == before
    started(worker, ordered(blob))
    assert bounds(office.node).memory_bytes == TASK_MEMORY_BYTES_DEFAULT
    started(worker, ordered(blob, total_memory_bytes=100 * MB))
    assert bounds(office.node).memory_bytes == 100 * MB


# -- defaults ---------------------------------------------------------------------------------------
def test_defaults_of_tasks() -> None:
    """Every task starts with the node's limits for tasks; a run call narrows them and never widens them."""
    node = Node(defaults=Defaults(task=(Bound(Resource.OBJECTS, 5), Bound(Resource.TASKS, None))))
    office = Office(node)
    blob = program(office.admin)
    for asked, given in ((0, 5), (3, 3), (9, 5)):
        narrow = started(office.admin, ordered(blob, objects=asked))
        assert office.shown(Scope.TASK, task=narrow).limits[Resource.OBJECTS] == given
    task = started(office.admin, ordered(blob))
    for _ in range(5):
        task.ask(messages.Created, anonymous())
    over(task, anonymous())
    office.admin.ask(messages.Created, anonymous())  # a session is no task


def test_limits_of_sandboxes() -> None:
    """A run for a sandbox has the node's limits for these, too; it narrows them and never widens them."""
    sandbox = (
        Bound(Resource.OBJECTS, 5),
        Bound(Resource.TASKS, None),
        Bound(Resource.MEMORY_BYTES, 300 * MB),
    )
    node = Node(defaults=Defaults(task=(Bound(Resource.REFERENCES, 50),), sandbox=sandbox))
    office = Office(node)
    blob = program(office.admin)
    for asked, given in ((0, 5), (3, 3), (9, 5)):
        call = ordered(blob, objects=asked)
        call = replace(call, flags=call.flags | Flag.SANDBOX)
        shown = office.shown(Scope.TASK, task=started(office.admin, call)).limits
        assert shown[Resource.OBJECTS] == given
        assert shown[Resource.REFERENCES] == 50
        assert shown[Resource.TASKS] is None
        assert shown[Resource.MEMORY_BYTES] == 300 * MB
    other = office.shown(Scope.TASK, task=started(office.admin, ordered(blob))).limits
    assert other[Resource.OBJECTS] is None


def test_defaults_of_groups() -> None:
    """Every group but a home starts with the node's limits for groups."""
    node = Node(defaults=Defaults(group=(Bound(Resource.OBJECTS, 1),)))
    office = Office(node)
    office.worker.create()
    over(office.worker, messages.Create(anonymous().object_type, (office.worker.groups[0],), data=b""))
    for _ in range(3):
        office.admin.create()
    office.row(Scope.GROUP, Bound(Resource.OBJECTS, None))
    office.worker.create()


def test_defaults_of_principals() -> None:
    """Every principal starts with the node's limits for principals, until it has its own for a resource."""
    node = Node(defaults=Defaults(principal=(Bound(Resource.OBJECTS, 2), Bound(Resource.BYTES, 50))))
    client = node.session("uid:7")  # type: ignore[arg-type]
    client.ask(messages.Created, anonymous())
    client.ask(messages.Created, anonymous())
    over(client, anonymous())
    call = messages.SetLimits(Scope.PRINCIPAL, (Bound(Resource.OBJECTS, 3),), principal="uid:7")
    shown = node.session().ask(messages.LimitRows, call).rows[0]
    assert (shown.limits[Resource.OBJECTS], shown.limits[Resource.BYTES]) == (3, 50)
    client.ask(messages.Created, anonymous())
    over(client, anonymous())


def test_default_memory_of_tasks() -> None:
    """A task that asks for no memory is held to the node's setting, or to its total where that is less."""
    node = Node(defaults=Defaults(task_memory_bytes=300 * MB))
    client = node.session()
    blob = program(client)
    started(client, ordered(blob))
    assert bounds(node).memory_bytes == 300 * MB
    started(client, ordered(blob, total_memory_bytes=200 * MB))
    assert bounds(node).memory_bytes == 200 * MB


def test_a_refused_task_leaves_nothing(office: Office) -> None:
    """A run that any account refuses has made no task, no group and no name, whichever refuses."""
    worker, blob = office.worker, program(office.worker)
    for scope in SCOPES:
        for resource in (Resource.TASKS, Resource.CPU_MS, Resource.MEMORY_BYTES, Resource.REFERENCES):
            if (scope, resource) == (Scope.GROUP, Resource.REFERENCES):
                continue  # nothing of this call is in the group
            office.leave(scope, resource, 0)
            over(worker, ordered(blob, worker.groups[0], memory_bytes=MB, cpu_ms=1))
            office.row(scope, Bound(resource, None))
    task = started(worker, ordered(blob, worker.groups[0], memory_bytes=MB, cpu_ms=1))
    worker.ask(messages.Done, destroyed(task.reference.ref))
