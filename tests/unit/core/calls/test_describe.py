"""What a task may learn of how another was run, used and ended."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core import events
from dios.errors import Code
from dios.wire import messages
from dios.wire.messages import Handed, Limits
from dios.wire.types import Cause, Flag, ObjectType, Permission, Resource, TaskState
from tests.support.core.harness import Node
from tests.support.core.limits import anonymous, destroyed, started

READ = int(Permission.READ)


def described(node: Node) -> tuple[messages.TaskDetail, list[messages.Reference]]:
    """A task that was given everything, and what it was given."""
    owner = node.session()
    group = owner.create(ObjectType.GROUP).reference
    given = [owner.create(data=b"x" * size).reference for size in (3, 4, 5)]
    call = messages.Run(
        given[0].ref,
        (group.ref,),
        (Handed(given[1].ref, READ, "in"),),
        (Handed(given[2].ref, READ | 2, "out"),),
        ("a", "b"),
        limits=Limits(memory_bytes=1 << 26, cpu_ms=7000, objects=8),
        flags=int(Flag.NON_BLOCKING),
    )
    task = started(owner, call)
    task.ask(messages.Created, anonymous(b"x" * 100))
    owner.ask(messages.Committed, messages.WriteOnce(given[1].ref, b"later"))
    owner.ask(messages.Done, destroyed(given[2].ref))
    node.step(
        events.TaskEnded(node.now, task.task, Cause.MEMORY, 0, 9, "too much", cpu_ms=65, memory_bytes=9_999)
    )
    return owner.ask(messages.TaskDetail, messages.Describe(task.reference.ref)), [group, *given]


def test_what_was_handed(node: Node) -> None:
    """Program, groups, arguments, and each input and output: its rights, and what became of it."""
    detail, (group, program, read, written) = described(node)
    assert (detail.executable, detail.groups) == (program.fingerprint, (group.fingerprint,))
    assert detail.arguments == ("a", "b")
    blob = ObjectType.SHMEM_BLOB
    assert detail.inputs == (
        messages.HandedRow(read.fingerprint, "in", blob, READ, 5, gone=False, changed=True),
    )
    assert detail.outputs == (
        messages.HandedRow(written.fingerprint, "out", blob, READ | 2, 5, gone=True, changed=False),
    )
    assert "output out" in detail.repeatable


def test_what_was_used(node: Node) -> None:
    """What its process was held to and used, what counts with it still, and how it ended."""
    detail, _ = described(node)
    assert (detail.memory_limit_bytes, detail.cpu_limit_ms) == (1 << 26, 7000)
    assert (detail.cpu_ms, detail.memory_bytes) == (65, 9_999)
    status = detail.status
    assert (status.state, status.cause, status.signal, status.detail) == (
        TaskState.ENDED,
        Cause.MEMORY,
        9,
        "too much",
    )
    assert detail.usage.used[Resource.CPU_MS] == 65
    assert detail.usage.used[Resource.MEMORY_BYTES] == 0
    assert detail.usage.limits[Resource.OBJECTS] == 8


def test_while_it_runs(node: Node) -> None:
    """A running task shows what is set aside for it, and that it could be repeated."""
    owner = node.session()
    program = owner.ask(messages.Created, anonymous()).reference.ref
    call = messages.Run(
        program, limits=Limits(memory_bytes=1 << 26, cpu_ms=9_000), flags=int(Flag.NON_BLOCKING)
    )
    task = started(owner, call)
    detail = owner.ask(messages.TaskDetail, messages.Describe(task.reference.ref))
    assert (detail.usage.used[Resource.CPU_MS], detail.usage.used[Resource.MEMORY_BYTES]) == (9000, 1 << 26)
    assert (detail.cpu_ms, detail.memory_bytes, detail.repeatable, detail.groups) == (0, 0, "", ())


@pytest.mark.parametrize("rights", [0, 2, 4, 8, 16])
def test_needs_the_right_to_read(node: Node, rights: int) -> None:
    """Who may not read a task learns nothing of it, whatever else it may."""
    owner = node.session()
    first, second = owner.run(), owner.run()
    owner.delegate(second.reference.ref, first.reference.ref, rights)
    assert first.refused(messages.Describe(first.given().ref)) == Code.EPERM
    owner.delegate(second.reference.ref, first.reference.ref, rights | READ)
    first.ask(messages.TaskDetail, messages.Describe(first.given().ref))


def test_a_pure_task_describes_itself(node: Node) -> None:
    """A task reads its own limits and use by the reference to itself."""
    task = node.session().run(limits=Limits(objects=3))
    detail = task.ask(messages.TaskDetail, messages.Describe(task.self_ref))
    assert detail.usage.limits[Resource.OBJECTS] == 3


def test_what_is_no_started_task(node: Node) -> None:
    """Sessions were not run, and other objects are no tasks."""
    owner = node.session()
    assert owner.refused(messages.Describe(owner.self_ref)) == Code.ESRCH
    assert owner.refused(messages.Describe(owner.create().reference.ref)) == Code.EINVAL
    assert owner.refused(messages.Describe(7)) == Code.EBADF


def test_forgotten_with_the_task(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """How a task was run is known as long as the node keeps its status, and keeps nothing alive."""
    monkeypatch.setattr(limits, "ENDED_TASKS_KEPT", 1)
    owner = node.session()
    blob = owner.ask(messages.Created, anonymous()).reference
    first = owner.run(inputs=(Handed(blob.ref, READ),))
    owner.ask(messages.Done, messages.Delete(blob.ref))
    node.end(first.task)
    assert blob.object not in node.core.state.objects
    assert owner.ask(messages.TaskDetail, messages.Describe(first.reference.ref)).inputs[0].gone
    node.end(owner.run().task)
    assert owner.refused(messages.Describe(first.reference.ref)) == Code.ESRCH


@pytest.mark.long
def test_how_old_tasks_were_run_is_forgotten(node: Node) -> None:
    """Of the tasks that ended, only how the latest were run is kept: arguments and labels take memory."""
    owner = node.session()
    first = owner.run()
    node.end(first.task)
    ref = owner.lookup(first.welcome.name)[0].ref
    for _ in range(limits.RECIPES_KEPT - 1):
        node.end(owner.run().task)
    assert owner.ask(messages.TaskDetail, messages.Describe(ref)).executable
    node.end(owner.run().task)
    assert owner.refused(messages.Describe(ref)) == Code.ESRCH
