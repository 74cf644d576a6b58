"""Secrecy labels: what a task that has read something secret may still do, here and on other nodes."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dios.core import effects, events
from dios.core.calls import flows
from dios.core.model import disclosure
from dios.core.model.records import Provenance
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.types import (
    Brand,
    Cause,
    Flag,
    Mode,
    NameKind,
    ObjectType,
    Permission,
    Resource,
    Scope,
    Semantics,
)
from tests.support.core.cluster import Cluster
from tests.support.core.harness import Client, Node
from tests.support.core.two_nodes import Two

SECRET = ("uid:1000/payroll",)
READ, WRITE = int(Permission.READ), int(Permission.WRITE)


def labelled(owner: Client, *tags: str, kind: ObjectType = ObjectType.SHMEM_BLOB) -> messages.Reference:
    """A new object of the owner's with these tags."""
    data = b"content" if kind is ObjectType.SHMEM_BLOB else None
    call = messages.CreateLabelled(kind, (owner.groups[0],), data=data, secrecy=tags)
    return owner.ask(messages.Created, call).reference


def reader_of(
    owner: Client, *others: int, secret: int = 0, rights: int = int(Permission.ALL)
) -> tuple[Client, list[int]]:
    """A task with a secret input and other references, which has read the secret."""
    secret = secret or labelled(owner, "payroll").ref
    handed = (messages.Handed(secret, READ), *(messages.Handed(ref, rights) for ref in others))
    task = owner.run(inputs=handed)
    refs = [reference.ref for reference in task.welcome.inputs]
    assert isinstance(task.call(messages.ReadOnce(refs[0])), messages.Buffer)
    return task, refs[1:]


def test_a_task_that_has_read_writes_only_what_has_the_label(node: Node) -> None:
    """The label goes up with the read; then a commit to an object without the tag is refused."""
    owner = node.session()
    open_one, secret_one = owner.create(data=b"x").reference.ref, labelled(owner, "payroll").ref
    task, (public, hidden) = reader_of(owner, open_one, secret_one)
    answer = task.ask(messages.Failure, messages.WriteOnce(public, b"leak"))
    assert answer.code == Code.EPERM
    assert "the task has read" in answer.message
    assert "labelled uid:1000/payroll" in answer.message
    task.ask(messages.Committed, messages.WriteOnce(hidden, b"stays"))
    assert task.refused(messages.AcquireWrite(public, 4)) == Code.EPERM
    reference = task.create(name_kind=NameKind.ANONYMOUS, data=b"result").reference
    assert reference.secrecy == SECRET


def test_a_write_that_was_acquired_before_the_read_is_refused_at_its_commit(node: Node) -> None:
    """The order of acquire and read is no way around the label."""
    owner = node.session()
    public = owner.create(data=b"x").reference.ref
    secret = labelled(owner, "payroll").ref
    task = owner.run(inputs=(messages.Handed(secret, READ), messages.Handed(public, READ | WRITE)))
    first, second = (reference.ref for reference in task.welcome.inputs)
    opened = task.ask(messages.Buffer, messages.AcquireWrite(second, 4))
    task.ask(messages.Buffer, messages.ReadOnce(first))
    assert task.refused(messages.CommitWrite(second, opened.buffer)) == Code.EPERM
    assert task.refused(messages.ReleaseWrite(second, opened.buffer, int(Flag.RELEASE_COMMIT))) == Code.EPERM
    task.ask(messages.Done, messages.ReleaseWrite(second, opened.buffer))


def test_mapped_memory_bounds_what_may_be_read(node: Node) -> None:
    """A task that has mapped a stream never reads what the stream may not carry, also when it dropped it."""
    owner = node.session()
    stream = owner.ask(messages.Created, messages.Create(ObjectType.SHMEM_STREAM, (owner.groups[0],)))
    secret = labelled(owner, "payroll").ref
    given = (messages.Handed(secret, READ), messages.Handed(stream.reference.ref, READ | WRITE))
    task = owner.run(inputs=given)
    first, second = (reference.ref for reference in task.welcome.inputs)
    task.ask(messages.Attached, messages.Attach(second, Mode.READ))
    assert task.refused(messages.ReadOnce(first)) == Code.EPERM
    task.ask(messages.Done, messages.Delete(second, int(Flag.HANDLE_ONLY)))
    assert task.refused(messages.ReadOnce(first)) == Code.EPERM


def test_a_right_to_declassify_is_delegated_and_taken_back(node: Node) -> None:
    """Its owner's sessions have the right; a task has it as long as its reference."""
    owner = node.session()
    key = labelled(owner, "payroll")
    assert key.permissions == Permission.EVERY
    public = owner.create(data=b"x").reference.ref
    task, (_, target) = reader_of(owner, key.ref, public, rights=int(Permission.EVERY))
    task.ask(messages.Committed, messages.WriteOnce(target, b"released"))
    plain = messages.CreateLabelled(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, data=b"x")
    assert task.ask(messages.Created, plain).reference.secrecy == ()
    owner.ask(messages.Done, messages.Retire(key.ref))
    assert task.refused(messages.WriteOnce(target, b"leak")) == Code.EPERM
    assert task.refused(plain) == Code.EPERM


def test_a_delegation_without_the_right_gives_none(node: Node) -> None:
    """All rights of the thesis do not include the right to declassify."""
    owner = node.session()
    key = labelled(owner, "payroll")
    task = owner.run(inputs=(messages.Handed(key.ref, int(Permission.ALL)),))
    assert not task.welcome.inputs[0].permissions & Permission.DECLASSIFY
    (reference,) = task.lookup(owner.create(data=b"x").name) or (None,)
    assert reference is None or not reference.permissions & Permission.DECLASSIFY


def test_children_have_their_parents_label(node: Node) -> None:
    """A child begins with the label of its parent, which chose its arguments, and of its program."""
    owner = node.session()
    public = owner.create(data=b"x").reference.ref
    task, (target,) = reader_of(owner, public)
    child = task.run(inputs=(messages.Handed(target, READ | WRITE),))
    assert child.refused(messages.WriteOnce(child.welcome.inputs[0].ref, b"leak")) == Code.EPERM
    program = labelled(owner, "payroll").ref
    seq = owner.send(messages.Run(program, flags=int(Flag.NON_BLOCKING)))
    assert isinstance(owner.answer(seq), messages.Created)
    assert list(node.core.state.tasks.values())[-1].secrecy == SECRET


def test_a_status_raises_its_reader(node: Node) -> None:
    """Exit code and output are bytes of the task: a task without the label that reads them gets it."""
    owner = node.session()
    child, _ = reader_of(owner)
    owner.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, (owner.groups[0],)))
    watcher = owner.run(inputs=(messages.Handed(child.reference.ref, READ),))
    node.end(child.task, exit_code=42)
    ref = watcher.welcome.inputs[0].ref
    assert isinstance(watcher.call(messages.ReadOnce(ref)), effects.AnswerBytes)
    assert node.core.state.tasks[watcher.task].secrecy == SECRET
    rows = owner.ask(messages.Tasks, messages.ListTasks()).tasks
    assert 42 in {row.exit_code for row in rows}


@pytest.mark.parametrize("rights", [Permission.ALL, Permission.EVERY])
def test_a_parent_is_not_told_what_its_child_chose(node: Node, rights: Permission) -> None:
    """The event of a child's end has no exit code for a parent without the child's label.

    A right to declassify does not help: it may be taken back, and the event gives the parent no tag.
    """
    owner = node.session()
    secret = labelled(owner, "payroll").ref
    parent = owner.run(inputs=(messages.Handed(secret, int(rights)),))
    child = parent.run(inputs=(messages.Handed(parent.welcome.inputs[0].ref, READ),))
    child.ask(messages.Buffer, messages.ReadOnce(child.welcome.inputs[0].ref))
    node.end(child.task, Cause.EXITED, exit_code=42)
    event = parent.event()
    assert isinstance(event, messages.ChildEnded)
    assert event.status.exit_code == 0
    assert node.core.state.tasks[parent.task].secrecy == ()


def test_other_users_and_unconfined_tasks_do_not_read(node: Node) -> None:
    """A session of another user and a limbo task read nothing labelled: they can send it anywhere."""
    owner = node.session()
    secret = labelled(owner, "payroll")
    foreign = labelled(owner, "uid:7/theirs")
    assert owner.refused(messages.ReadOnce(foreign.ref)) == Code.EPERM
    task = owner.run(inputs=(messages.Handed(secret.ref, READ),), brand=Brand.LIMBO)
    assert task.refused(messages.ReadOnce(task.welcome.inputs[0].ref)) == Code.EPERM
    other = node.session(Principal("uid:7"))
    owner.delegate(foreign.ref, _control(owner, other))
    theirs = other.given()
    other.ask(messages.Buffer, messages.ReadOnce(theirs.ref))
    owner.delegate(secret.ref, _control(owner, other))
    assert other.refused(messages.ReadOnce(other.given().ref)) == Code.EPERM


def _control(owner: Client, other: Client) -> int:
    """A reference of the owner to another session, which it delegates."""
    node = owner.node
    state = node.core.state
    reference = state.add_reference(
        state.tasks[owner.task], state.tasks[other.task].object, Permission.ALL, Provenance.DELEGATED
    )
    return reference.id


@pytest.mark.parametrize("tags", [tuple(f"t{number}" for number in range(16))])
def test_a_label_has_a_bound(node: Node, tags: tuple[str, ...]) -> None:
    """A task with as many tags as a label may have reads nothing with one more."""
    owner = node.session()
    task, _ = reader_of(owner, secret=labelled(owner, *tags).ref)
    more = labelled(owner, "more")
    owner.delegate(more.ref, task.reference.ref)
    assert task.refused(messages.ReadOnce(task.given().ref)) == Code.EDQUOT


# -- other nodes -----------------------------------------------------------------------------------------
def test_labels_travel_with_references() -> None:
    """A read of another node's object raises the reader at home, and its write is refused there."""
    two = Two()
    secret = labelled(two.keeper, "payroll")
    name = two.keeper.ask(
        messages.Created,
        messages.CreateLabelled(ObjectType.SHMEM_BLOB, (two.keeper.groups[0],), data=b"s", secrecy=SECRET),
    ).name
    assert secret.secrecy == SECRET
    (reference,) = two.me.lookup(name)
    assert reference.secrecy == SECRET
    assert reference.permissions & Permission.DECLASSIFY
    task = two.me.run()
    for ref in (reference.ref, two.ref):
        two.cluster.call(two.me, messages.Copy(ref, task.reference.ref, int(Permission.ALL)))
    first, second = task.given().ref, task.given().ref
    two.cluster.call(task, messages.ReadOnce(first))
    assert two.here.core.state.tasks[task.task].secrecy == SECRET
    refused = two.cluster.call(task, messages.WriteOnce(second, b"leak"))
    assert isinstance(refused, messages.Failure)
    assert refused.code == Code.EPERM
    two.cluster.check()


@pytest.mark.parametrize("way", ["read", "describe", "ended, lost", "lost"])
def test_what_a_task_learns_of_a_labelled_task_elsewhere_raises_it(way: str) -> None:
    """Its status, its description, and a reported end after the loss of its node: each has its label.

    That its node is lost is no word of the task.
    """
    cluster = Cluster(("r1", "r1"))
    owner = cluster.session(cluster.nodes[0])
    secret = labelled(owner, "payroll")
    program = owner.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    handed = (messages.Handed(secret.ref, READ),)
    flags = int(Flag.NON_BLOCKING)
    created = owner.ask(messages.Created, messages.Run(program, inputs=handed, host="n2", flags=flags))
    (child,) = cluster.start_spawned()
    assert isinstance(cluster.call(child, messages.ReadOnce(child.welcome.inputs[0].ref)), messages.Buffer)
    watcher = owner.run()
    cluster.call(owner, messages.Copy(created.reference.ref, watcher.reference.ref, READ))
    seen = watcher.given().ref
    if way in {"read", "ended, lost"}:
        cluster.end(child)
    if "lost" in way:
        cluster.part(*cluster.nodes)
        cluster.advance(6_000, 100)
    answer = cluster.call(watcher, messages.Describe(seen) if way == "describe" else messages.ReadOnce(seen))
    assert not isinstance(answer, messages.Failure), answer
    assert cluster.nodes[0].core.state.tasks[watcher.task].secrecy == (() if way == "lost" else SECRET)


def test_a_node_without_labels_gets_nothing_labelled() -> None:
    """A node of an earlier release finds no labelled object, and cannot be given one."""
    two = Two()
    created = two.keeper.ask(
        messages.Created,
        messages.CreateLabelled(ObjectType.SHMEM_BLOB, (two.keeper.groups[0],), data=b"s", secrecy=SECRET),
    )
    _, there_of_here = two.books()
    there_of_here.version = 3
    assert not two.me.lookup(created.name)
    assert not flows.knows_labels(there_of_here)
    copied = two.cluster.call(
        two.keeper, messages.Copy(created.reference.ref, two.keeper.self_ref, host="n1")
    )
    assert isinstance(copied, messages.Failure)
    assert copied.code == Code.EPERM
    assert "release without secrecy labels" in copied.message


def test_a_replica_and_a_new_object_elsewhere_keep_the_label() -> None:
    """Copies on other nodes have the label, and so has what a labelled task creates there."""
    cluster = Cluster(("r1", "r1"))
    owner = cluster.session(cluster.nodes[0])
    secret = owner.ask(
        messages.Created,
        messages.CreateLabelled(ObjectType.SHMEM_BLOB, (owner.groups[0],), data=b"s", secrecy=("payroll",)),
    )
    copied = cluster.call(owner, messages.Copy(secret.reference.ref, owner.self_ref, host="n2"))
    assert not isinstance(copied, messages.Failure), copied
    kept = [
        stored.secrecy
        for stored in cluster.nodes[1].core.state.objects.values()
        if stored.name == secret.name
    ]
    assert kept == [SECRET]
    task = owner.run(inputs=(messages.Handed(secret.reference.ref, READ),))
    task.ask(messages.Buffer, messages.ReadOnce(task.welcome.inputs[0].ref))
    plain = messages.Create(ObjectType.SHMEM_BLOB, (task.groups[0],), data=b"r", host="n2")
    created = cluster.call(task, plain)
    assert isinstance(created, messages.Created), created
    assert created.reference.secrecy == SECRET
    cluster.check()


def test_a_snapshot_keeps_labels(node: Node) -> None:
    """The row of a task shows its label, and what another reader may not see is hidden in it."""
    owner = node.session()
    task, _ = reader_of(owner)
    row = node.core.state.tasks[task.task].row()
    assert row.secrecy == SECRET
    shown = disclosure.concealed(replace(row, exit_code=3, detail="text"))
    assert (shown.exit_code, shown.detail, shown.label) == (0, "", "")
    node.step(events.TimerFired(node.now))


def test_a_labelled_task_coins_no_tags(node: Node) -> None:
    """Tags are seen without the label, so its objects have its own, unless it may declassify those."""
    owner = node.session()
    task, _ = reader_of(owner)
    coined = messages.CreateLabelled(
        ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, data=b"x", secrecy=("payroll", "told")
    )
    failure = task.ask(messages.Failure, coined)
    assert failure.code == Code.EPERM
    assert "labelled uid:1000/told" in failure.message
    assert task.ask(messages.Created, replace(coined, secrecy=("payroll",))).reference.secrecy == SECRET
    trusted, _ = reader_of(owner, labelled(owner, "payroll").ref, rights=int(Permission.EVERY))
    assert trusted.ask(messages.Created, coined).reference.secrecy == (*SECRET, "uid:1000/told")


def test_tables_of_a_node_with_labels_are_for_processes_of_its_user(node: Node) -> None:
    """A task reads them as long as nothing is labelled: they show numbers that labelled tasks chose."""
    owner = node.session()
    task = owner.run(brand=Brand.LIMBO)
    assert task.ask(messages.TableRows, messages.ReadTable("tasks")).rows
    labelled(owner, "payroll")
    assert task.refused(messages.ReadTable("tasks")) == Code.EPERM
    assert owner.ask(messages.TableRows, messages.ReadTable("tasks")).rows


def test_limits_of_a_principal_need_authority(node: Node) -> None:
    """A change that names no object would be seen by everybody; one of a task is like a write to it."""
    owner = node.session()
    task, _ = reader_of(owner)
    bounds = (messages.Bound(Resource.OBJECTS, 7),)
    assert task.refused(messages.SetLimits(Scope.PRINCIPAL, bounds, principal="uid:1000")) == Code.EPERM
    failure = task.ask(messages.Failure, messages.SetLimits(Scope.PRINCIPAL, bounds, principal="uid:1000"))
    assert "setlimits by this task would release" in failure.message


def test_the_counters_of_a_labelled_object_are_for_those_who_may_know_them(node: Node) -> None:
    """A holder without the tags sees none, and is shown them with the answer of its first read."""
    owner = node.session()
    pay = labelled(owner, "payroll").ref
    task = owner.run(inputs=(messages.Handed(pay, int(Permission.ALL)),))
    ref = task.welcome.inputs[0].ref
    assert task.welcome.inputs[0].size == 0
    assert task.ask(messages.Committed, messages.WriteOnce(ref, b"more content")).v_w == 0
    assert task.ask(messages.References, messages.Stat(ref)).references[0].size == 0
    assert owner.ask(messages.References, messages.Stat(pay)).references[0].size == len(b"more content")
    task.ask(messages.Buffer, messages.ReadOnce(ref))
    (*_, bound) = [effect for effect in slots_of(node, task) if effect.reference.ref == ref]
    assert bound.live
    assert bound.reference == task.ask(messages.References, messages.Stat(ref)).references[0]
    assert bound.reference.v_w == 1


def slots_of(node: Node, task: Client) -> list[effects.BindSlot]:
    """The changes of the slots of a task's page."""
    return [
        effect for effect in node.effects if isinstance(effect, effects.BindSlot) and effect.task == task.task
    ]


def test_the_counters_of_a_console_have_the_label_of_its_task(node: Node) -> None:
    """A parent without the tags sees no more of the output once its child has read something labelled."""
    owner = node.session()
    parent = owner.run(inputs=(messages.Handed(labelled(owner, "payroll").ref, int(Permission.ALL)),))
    child = parent.run(inputs=(messages.Handed(parent.welcome.inputs[0].ref, READ),))
    console = parent.ask(messages.References, messages.ConsoleOf(child.reference.ref)).references[0].ref
    node.step(events.ConsoleArrived(node.now, child.task, 5))
    assert parent.ask(messages.References, messages.Stat(console)).references[0].size == 5
    child.ask(messages.Buffer, messages.ReadOnce(child.welcome.inputs[0].ref))
    node.step(events.ConsoleArrived(node.now, child.task, 7))
    assert parent.ask(messages.References, messages.Stat(console)).references[0].size == 0
    (*_, bound) = [effect for effect in slots_of(node, parent) if effect.reference.ref == console]
    assert (bound.live, bound.reference.size) == (False, 0)


def test_the_refusal_of_a_read_has_no_words_about_the_object(node: Node) -> None:
    """A task that does not get the label reads neither the size in bytes nor the end of a log."""
    owner = node.session()
    log = labelled(owner, "payroll", kind=ObjectType.DURABLE_STREAM).ref
    owner.ask(messages.Committed, messages.WriteOnce(log, b"entry"))
    task = owner.run(inputs=(messages.Handed(log, READ),))
    refusal = task.ask(messages.Failure, messages.ReadOnce(task.welcome.inputs[0].ref, offset=1 << 40))
    assert refusal.code == Code.EINVAL
    assert "refused for a reason that is labelled uid:1000/payroll" in refusal.message
    assert node.core.state.tasks[task.task].secrecy == ()


def test_refusals_at_a_labelled_object_have_no_counters(node: Node) -> None:
    """The messages are the same whatever others have made of the object."""
    owner = node.session()
    messages_of = []
    for count in (1, 3):
        pay = labelled(owner, "payroll").ref
        task = owner.run(inputs=(messages.Handed(pay, WRITE),))
        ref = task.welcome.inputs[0].ref
        owner.ask(messages.Committed, messages.WriteOnce(pay, b"x" * count, flags=int(Flag.REPLACE)))
        for _ in range(count):
            owner.ask(messages.Buffer, messages.AcquireWrite(pay, 1))
        busy = messages.AcquireWrite(ref, 1, semantics=Semantics.EXCL, flags=int(Flag.NON_BLOCKING))
        calls = (busy, messages.WriteOnce(ref, b"x", offset=100))
        messages_of.append([task.ask(messages.Failure, call).message for call in calls])
    assert messages_of[0] == messages_of[1]


def test_a_buffer_as_large_as_the_object_is_a_read(node: Node) -> None:
    """The size is of the label: with a size of its own, a write is none."""
    owner = node.session()
    pay = labelled(owner, "payroll").ref
    task = owner.run(inputs=(messages.Handed(pay, WRITE),))
    ref = task.welcome.inputs[0].ref
    task.ask(messages.Buffer, messages.AcquireWrite(ref, 4))
    assert node.core.state.tasks[task.task].secrecy == ()
    task.ask(messages.Buffer, messages.AcquireWrite(ref))
    assert node.core.state.tasks[task.task].secrecy == SECRET


@pytest.mark.parametrize("count", [1, 40])
def test_sums_with_labelled_parts_are_shown_in_steps(node: Node, count: int) -> None:
    """A task with a label moves no sum that others see by less than a step; the node's own user sees all."""
    owner, stranger = node.session(), node.session(Principal("uid:1001"))
    limbo = owner.run(brand=Brand.LIMBO)
    labelled(owner, "payroll")
    before = [sums_seen_by(reader) for reader in (stranger, limbo, owner)]
    for _ in range(count):
        owner.create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"x" * count)
    after = [sums_seen_by(reader) for reader in (stranger, limbo, owner)]
    assert before[:2] == after[:2]
    assert before[2] != after[2]


def sums_seen_by(reader: Client) -> tuple[list[tuple[int, ...]], dict[str, int]]:
    """The use of the node and of principals, and the counts of the node."""
    rows = reader.ask(messages.LimitRows, messages.ListLimits()).rows
    used = [row.used for row in rows if row.scope in {Scope.NODE, Scope.PRINCIPAL}]
    return used, reader.ask(messages.Info, messages.NodeInfo()).counts
