"""The thesis' objects, names, groups, references and I/O requests, as tasks of a running node meet them.

The calls come from pure tasks, over the sockets that they inherited.
"""

from __future__ import annotations

import itertools
import mmap
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import dios
from dios import limits
from dios.core.model.names import deterministic_name, special_name
from dios.errors import Code
from dios.ids import Name
from dios.wire import messages
from dios.wire.page import PublicAttributes, read_slot
from dios.wire.types import (
    AcquireIov,
    Brand,
    Buffering,
    Cause,
    CommitIov,
    Deletion,
    Flag,
    Mode,
    NameKind,
    ObjectType,
    Permission,
    Persistence,
    Proximity,
    Semantics,
    TaskState,
)
from tests.support.node.raw_client import RawClient
from tests.support.node.running_node import RunningNode, exists, running_node, wait_until
from tests.support.security.hostile_pair import Puppet, Stage, anonymous, open_stage, status_of

pytestmark = pytest.mark.long

ALL = int(Permission.ALL)
EXCL, MRSW, SRMW, ANY = Semantics
READ, WRITE = Mode


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A node with three tasks that share no group."""
    with open_stage(tmp_path_factory.mktemp("one")) as opened:
        yield opened


@pytest.fixture
def task(stage: Stage) -> Puppet:
    """A task with a group of its own."""
    return stage.victim


@pytest.fixture
def other(stage: Stage) -> Puppet:
    """A task that is in no group of the first."""
    return stage.confederate


def name_of(created: messages.Created) -> bytes:
    """The name of an object that has one."""
    assert created.name is not None
    return created.name


def new_group(task: Puppet) -> messages.Created:
    """A group that a task creates within its own."""
    return task.ask(messages.Created, messages.Create(ObjectType.GROUP, (task.own_group,)))


def own_copy(task: Puppet, ref: int, **options: object) -> messages.Reference:
    """A further reference of the same task."""
    call = messages.Copy(ref, task.self_ref, **options)  # type: ignore[arg-type] # fields of the message
    return task.ask(messages.References, call).references[0]


def drained(task: Puppet) -> Puppet:
    """The task, when it has read all its events."""
    while task.ask(messages.Selected, messages.Select((task.self_ref,), timeout_ns=1)).index == 0:
        task.read(task.self_ref)
    return task


def given(stage: Stage, giver: Puppet, ref: int, receiver: Puppet, **options: object) -> messages.Reference:
    """The reference of which the receiver is told."""
    to = stage.introduce(giver, receiver)
    giver.ask(messages.Done, messages.Copy(ref, to, **options))  # type: ignore[arg-type] # fields of the message
    return receiver.given()


# -- names and groups (§3.4, §4.3, §4.4) -----------------------------------------------------------
def test_a_name_is_worth_something_with_its_group_alone(task: Puppet, other: Puppet) -> None:
    """The same name resolves with the object's group, to every right, and with no other group of the task."""
    first, second = new_group(task).reference.ref, new_group(task).reference.ref
    both = task.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, (first, task.own_group)))
    inside = task.create(b"abc", ObjectType.SHMEM_BLOB, task.own_group)
    assert [row.object for row in task.finds(name_of(both), task.own_group)] == [both.reference.object]
    assert [row.permissions for row in task.finds(name_of(inside))] == [ALL]
    assert [row.object for row in task.finds(name_of(inside), task.own_group)] == [inside.reference.object]
    for group in (first, second):
        assert task.finds(name_of(inside), group) == ()
    for name in (name_of(inside), name_of(both)):
        assert other.finds(name) == ()


def test_names_are_random_or_follow_from_the_task_or_are_special(task: Puppet) -> None:
    """Deterministic names repeat by the task's name and a count, random ones never; anonymous has none."""
    names = {
        kind: [
            task.ask(messages.Created, messages.Create(ObjectType.SHMEM_BLOB, (task.own_group,), kind)).name
            for _ in range(2)
        ]
        for kind in NameKind
        if kind is not NameKind.ANONYMOUS
    }
    own = task.welcome.name
    assert own is not None
    computed = {deterministic_name(Name(own), count) for count in range(64)}
    assert computed.issuperset(names[NameKind.DETERMINISTIC])
    assert computed.isdisjoint(names[NameKind.RANDOM])
    assert len({name for pair in names.values() for name in pair}) == 4
    assert task.ask(messages.Created, anonymous()).name is None
    kinds = [row.type for number in (1, 2) for row in task.finds(special_name(number))]
    assert kinds == [ObjectType.CONSOLE_STREAM, ObjectType.TIMER_BLOB]
    assert task.finds(special_name(4)) == ()


def test_a_lookup_gives_all_physical_objects_up_to_a_number(task: Puppet) -> None:
    """A logical object with copies in memory and on disk is several references, each fresh, each complete."""
    created = task.create(b"abc", ObjectType.SHMEM_BLOB)
    copy = own_copy(task, created.reference.ref, persistence=Persistence.DURABLE)
    rows = task.finds(name_of(created))
    assert [row.object for row in rows] == [created.reference.object, copy.object]
    assert [row.persistence for row in rows] == [Persistence.VOLATILE, Persistence.DURABLE]
    assert {task.read(row.ref) for row in rows} == {b"abc"}
    assert not {row.ref for row in rows} & {created.reference.ref, copy.ref}
    call = messages.Lookup(name_of(created), limit=1)
    assert len(task.ask(messages.References, call).references) == 1
    task.ask(messages.Done, messages.Delete(created.reference.ref, int(Flag.DESTROY)))
    assert [row.object for row in task.finds(name_of(created))] == [copy.object]


def test_objects_are_one_flat_store(task: Puppet) -> None:
    """An object of many groups is one object: no group is its place, and none is within another's names."""
    outer = new_group(task)
    inner = task.ask(messages.Created, messages.Create(ObjectType.GROUP, (outer.reference.ref,)))
    groups = (task.own_group, outer.reference.ref, inner.reference.ref)
    created = task.ask(messages.Created, messages.Create(ObjectType.DURABLE_BLOB, groups, data=b"x"))
    member = task.stage.puppet("member")
    try:
        (row,) = task.finds(name_of(created))
        task.ask(messages.Committed, messages.WriteOnce(row.ref, b"y"))
        assert task.read(created.reference.ref) == b"y"
        assert member.finds(name_of(created)) == ()
    finally:
        member.end()
    task.ask(messages.Done, messages.Delete(created.reference.ref))
    assert task.finds(name_of(created)) == ()


class Relations(NamedTuple):
    """A group with an object, its creator, a member, and a task that resolved the group's name."""

    creator: Puppet
    member: Puppet
    resolver: Puppet
    of_creator: int
    of_member: int
    of_resolver: int
    secret: messages.Created


@pytest.fixture(scope="module")
def relations(stage: Stage) -> Iterator[Relations]:
    """The three relations of Table 4.2 to a group g."""
    common = stage.director.create_group()
    creator, resolver = stage.puppet("creator", common), stage.puppet("resolver", common)
    g = new_group(creator)
    secret = creator.create(b"secret", ObjectType.SHMEM_BLOB, g.reference.ref)
    # A session of the same user may present the group's name, and makes its child a member.
    group = stage.director.group(name_of(g))
    assert group is not None
    member = stage.puppet("member", group)
    (of_resolver,) = resolver.finds(name_of(g))
    yield Relations(creator, member, resolver, g.reference.ref, member.own_group, of_resolver.ref, secret)
    for puppet in (creator, member, resolver):
        puppet.end()


COUNTS = b"import dios, sys; sys.exit(len(dios.connect().lookup(bytes.fromhex(sys.argv[1]))))"


def runs(task: Puppet, source: bytes, *arguments: str, **options: object) -> messages.TaskRow:
    """How a child of the task ended."""
    program = task.ask(messages.Created, anonymous(source)).reference.ref
    call = messages.Run(program, arguments=arguments, **options)  # type: ignore[arg-type] # fields of the message
    child = task.ask(messages.Created, call).reference.ref
    task.ask(messages.Selected, messages.Select((child,)))
    return status_of(task, child)


def children_find(task: Puppet, groups: tuple[int, ...], name: bytes) -> int:
    """How many objects a child of the task finds under a name."""
    row = runs(task, COUNTS, name.hex(), groups=groups)
    assert row.cause is Cause.EXITED, row
    return row.exit_code


def test_rights_in_a_group_follow_from_how_it_is_known(relations: Relations) -> None:
    """Members resolve; members, the creator and who resolved it create; the first two grant membership."""
    creator, member, resolver, of_creator, of_member, of_resolver, secret = relations
    name = name_of(secret)
    resolves = {"member": len(member.finds(name, of_member)), "creator": len(creator.finds(name, of_creator))}
    assert resolves | {"resolver": len(resolver.finds(name, of_resolver))} == {
        "member": 1,
        "creator": 0,
        "resolver": 0,
    }
    for puppet, group in ((member, of_member), (creator, of_creator), (resolver, of_resolver)):
        created = puppet.create(b"x", ObjectType.SHMEM_BLOB, group)
        assert [row.object for row in member.finds(name_of(created))] == [created.reference.object]
    assert children_find(member, (of_member,), name) == 1
    assert children_find(creator, (of_creator,), name) == 1
    program = resolver.ask(messages.Created, anonymous(COUNTS)).reference.ref
    resolver.refused(messages.Run(program, groups=(of_resolver,)), Code.EPERM)


def test_a_group_below_another_gives_nothing_of_it(relations: Relations) -> None:
    """A member of g resolves nothing of g's own group, and nobody reaches g through a child."""
    creator, member, resolver, _, _, of_resolver, secret = relations
    beside = creator.create(b"x")
    assert member.finds(name_of(beside)) == ()
    assert len(creator.finds(name_of(beside))) == 1
    assert children_find(resolver, (resolver.own_group,), name_of(secret)) == 0
    program = resolver.ask(messages.Created, anonymous(COUNTS)).reference.ref
    both = (resolver.own_group, of_resolver)
    resolver.refused(messages.Run(program, groups=both), Code.EPERM)


def test_membership_is_fixed_when_a_task_starts(relations: Relations) -> None:
    """What a task creates makes it no member; a child without groups has an empty one of its own."""
    creator, *_, secret = relations
    later = new_group(creator).reference.ref
    inside = creator.create(b"x", ObjectType.SHMEM_BLOB, later)
    assert creator.finds(name_of(inside)) == ()
    assert children_find(creator, (later,), name_of(inside)) == 1
    assert children_find(creator, (), name_of(inside)) == 0
    source = b"import dios, sys; node = dios.connect(); (group,) = node.groups; sys.exit(len(node.lookup("
    source += b"node.create(dios.SHMEM_BLOB, groups=[group]).name)))"
    assert runs(creator, source).exit_code == 1
    assert secret.name is not None


def test_groups_are_never_delegated(stage: Stage, relations: Relations) -> None:
    """Nobody hands on a reference to a group, to no task and to no child, however it was come by."""
    creator, member, resolver, *groups, _ = relations
    for puppet, group in zip((creator, member, resolver), groups, strict=True):
        to = stage.introduce(puppet, stage.confederate)
        for receiver in (to, puppet.self_ref):
            puppet.refused(messages.Copy(group, receiver), Code.EPERM)
        program = puppet.ask(messages.Created, anonymous(b"pass")).reference.ref
        puppet.refused(messages.Run(program, inputs=(messages.Handed(group, ALL),)), Code.EPERM)


# -- references (§3.5, §4.5) -----------------------------------------------------------------------
def test_references_are_come_by_in_three_ways(stage: Stage, task: Puppet, other: Puppet) -> None:
    """At the start, by a name, and by delegation, of which the self-reference tells; each is a new handle."""
    start = task.welcome
    assert start.self_ref.type is ObjectType.TASK
    assert start.console.type is ObjectType.CONSOLE_STREAM
    created = task.create(b"abc")
    (resolved,) = task.finds(name_of(created))
    own = stage.director.create(ObjectType.SHMEM_BLOB, data=b"handed", naming=NameKind.ANONYMOUS)
    program = b"import dios, sys; (handed,) = dios.connect().inputs; sys.exit(len(handed.read_bytes()))"
    assert stage.director.run(program, inputs=[own]).wait(30).exit_code == len(b"handed")
    to = stage.introduce(task, other)
    other.send(messages.Select((other.self_ref,)))
    task.ask(messages.Done, messages.Copy(created.reference.ref, to, int(Permission.READ)))
    assert other.take() == messages.Selected(0)
    delegated = other.given()
    assert delegated.object == created.reference.object
    assert resolved.ref != created.reference.ref
    assert other.read(delegated.ref) == b"abc"


def test_a_handle_is_its_tasks_alone(task: Puppet, other: Puppet) -> None:
    """The number of a reference is worth nothing in another task, and dies with its handle."""
    ref = task.create(b"abc").reference.ref
    assert task.read(ref) == b"abc"
    other.refused(messages.ReadOnce(ref), Code.EBADF)
    other.refused(messages.Copy(ref, other.self_ref), Code.EBADF)
    task.ask(messages.Done, messages.Delete(ref, int(Flag.HANDLE_ONLY)))
    task.refused(messages.ReadOnce(ref), Code.EBADF)


def test_delegation_removes_rights_and_adds_none(stage: Stage, task: Puppet, other: Puppet) -> None:
    """The receiver has the rights that the giver has and names, and is refused all others."""
    created = task.create(b"abc").reference.ref
    for held, wanted in itertools.product((31, 9, 15, 24), (0, 1, 3, 8, 31, 2**40 + 1)):
        narrow = own_copy(task, created, permissions=held)
        assert given(stage, task, narrow.ref, other, permissions=wanted).permissions == held & wanted & ALL
    reader = given(stage, task, created, other, permissions=int(Permission.READ))
    assert other.read(reader.ref) == b"abc"
    other.refused(messages.WriteOnce(reader.ref, b"x"), Code.EPERM)
    other.refused(messages.Copy(reader.ref, other.self_ref), Code.EPERM)
    other.refused(messages.Run(reader.ref), Code.EPERM)


def test_a_moved_attribute_is_a_copy(stage: Stage, task: Puppet, other: Puppet) -> None:
    """With another persistence, buffering or proximity the receiver gets another physical object."""
    created = task.create(b"abc").reference
    same = given(
        stage, task, created.ref, other, persistence=Persistence.VOLATILE, buffering=Buffering.DOUBLE
    )
    assert (same.object, same.type) == (created.object, created.type)
    durable = given(stage, task, created.ref, other, persistence=Persistence.DURABLE)
    raw = given(stage, task, created.ref, other, buffering=Buffering.RAW)
    near = given(stage, task, created.ref, other, proximity=Proximity.PROCESS)
    assert durable.persistence is Persistence.DURABLE
    assert raw.buffering is Buffering.RAW
    assert (near.type, near.proximity) == (ObjectType.PRIVMEM_BLOB, Proximity.PROCESS)
    task.ask(messages.Committed, messages.WriteOnce(created.ref, b"xyz"))
    assert other.read(same.ref) == b"xyz"
    assert {other.read(copy.ref) for copy in (durable, raw, near)} == {b"abc"}
    assert len({copy.object for copy in (created, durable, raw, near)}) == 4


def test_attributes_are_the_objects_and_live(stage: Stage, task: Puppet, other: Puppet) -> None:
    """Type, versions and active requests at the receiver's moment, and as they change from then on."""
    created = task.create(b"abc").reference
    task.ask(messages.Committed, messages.WriteOnce(created.ref, b"abcd"))
    buffer = task.ask(messages.Buffer, messages.AcquireRead(created.ref))
    delegated = given(stage, task, created.ref, other)
    assert (delegated.type, delegated.size) == (ObjectType.SHMEM_BLOB, 4)
    assert (delegated.v_r, delegated.v_w, delegated.a_r, delegated.a_w) == (0, 1, 1, 0)
    other.refused(messages.ReleaseRead(delegated.ref, buffer.buffer), Code.EBADF)
    task.ask(messages.Buffer, messages.AcquireWrite(created.ref))
    task.ask(messages.Committed, messages.CommitRead(created.ref, buffer.buffer))
    now = other.stat(delegated.ref)
    assert (now.v_r, now.v_w, now.a_r, now.a_w) == (1, 1, 0, 1)


class Live(NamedTuple):
    """A session's page of public attributes."""

    view: memoryview

    def of(self, reference: messages.Reference) -> PublicAttributes:
        """Those of a reference, as they are now."""
        return read_slot(self.view, reference.slot)


def test_the_public_part_of_a_reference_is_read_without_a_call(stage: Stage, task: Puppet) -> None:
    """A page that the node alone writes shows counters, size and end of the object as others change it."""
    group = stage.director.create_group()
    writer = stage.puppet("writer", group)
    assert group.name is not None
    with RawClient(stage.running.running.socket, groups=(group.name,)) as client:
        created = client.ask(
            messages.Create(ObjectType.DURABLE_BLOB, (client.welcome.groups[-1].ref,), data=b"abc"),
            messages.Created,
        )
        (ref,) = (row.ref for row in writer.finds(name_of(created)))
        page = mmap.mmap(client.page_fd, limits.PUBLIC_PAGE_BYTES, prot=mmap.PROT_READ)
        with page, memoryview(page) as view:
            live = Live(view)
            before = live.of(created.reference)
            writer.ask(messages.Buffer, messages.AcquireRead(ref))
            request = writer.ask(messages.Buffer, messages.AcquireWrite(ref, 5))
            during = live.of(created.reference)
            writer.ask(messages.Committed, messages.CommitWrite(ref, request.buffer, data=b"other"))
            after = live.of(created.reference)
            writer.ask(messages.Done, messages.Delete(ref, int(Flag.DESTROY)))
            ended = live.of(created.reference)
    writer.end()
    assert (before.a_r, before.a_w, before.v_w, before.size) == (0, 0, 0, 3)
    assert (during.a_r, during.a_w, during.v_w, during.size) == (1, 1, 0, 3)
    assert (after.a_w, after.v_w, after.size) == (0, 1, 5)
    assert (before.zombie, ended.zombie) == (False, True)
    assert task.alive


def test_identifiers_are_random_and_never_used_again(task: Puppet) -> None:
    """Of many objects and references that come and go no number comes twice, or follows from another."""
    numbers: list[int] = []
    for _ in range(400):
        created = task.ask(messages.Created, anonymous(b"x")).reference
        numbers += [created.ref, created.object]
        task.ask(messages.Done, messages.Delete(created.ref))
    assert len(set(numbers)) == len(numbers)
    # Of 63 random bits each is set in about half of the numbers.
    shares = [sum(number >> bit & 1 for number in numbers) / len(numbers) for bit in range(62)]
    assert min(shares) > 0.4
    assert max(shares) < 0.6


# -- types and lifetimes (§4.2, Table 4.1, B.1.1, B.1.4) ---------------------------------------------
def test_types_have_their_deletion_persistence_and_proximity(stage: Stage, task: Puppet) -> None:
    """Table 4.1, by what the node makes of each type, and refuses to make."""
    home = stage.neighbour.welcome.home
    assert home is not None
    counted, immediate = Deletion.REFERENCE_COUNTED, Deletion.IMMEDIATE
    volatile, durable = Persistence.VOLATILE, Persistence.DURABLE
    rows = {
        ObjectType.DURABLE_BLOB: (immediate, durable, Proximity.NODE),
        ObjectType.PRIVMEM_BLOB: (counted, volatile, Proximity.PROCESS),
        ObjectType.SHMEM_BLOB: (counted, volatile, Proximity.NODE),
        ObjectType.TIMER_BLOB: (counted, volatile, Proximity.PROCESS),
        ObjectType.SHMEM_STREAM: (counted, volatile, Proximity.NODE),
        ObjectType.GROUP: (immediate, durable, Proximity.NODE),
        ObjectType.DURABLE_STREAM: (immediate, durable, Proximity.NODE),
    }
    for kind, row in rows.items():
        reference = stage.neighbour.ask(messages.Create(kind, (home.ref,)), messages.Created).reference
        assert (reference.deletion, reference.persistence, reference.proximity) == row, kind
        assert reference.permissions == ALL
    for kind in (ObjectType.UDP_STREAM, ObjectType.TCP_STREAM, ObjectType.TCP_ACCEPT_STREAM):
        task.refused(messages.Create(kind, address="127.0.0.1:80"), Code.EPERM)
    for kind in (ObjectType.CONSOLE_STREAM, ObjectType.TASK):
        task.refused(messages.Create(kind), Code.EINVAL)


def test_objects_end_by_their_deletion_mode(stage: Stage, task: Puppet, other: Puppet) -> None:
    """Counted ones with the last reference, immediate ones for all at once, immortal ones never."""
    counted = task.create(b"abc")
    held = given(stage, task, counted.reference.ref, other).ref
    task.ask(messages.Done, messages.Delete(counted.reference.ref))
    assert other.read(held) == b"abc"
    assert len(task.finds(name_of(counted))) == 1
    other.ask(messages.Done, messages.Delete(held))
    for row in task.finds(name_of(counted)):
        task.ask(messages.Done, messages.Delete(row.ref))
    immediate = task.create(b"abc", ObjectType.DURABLE_BLOB)
    held = given(stage, task, immediate.reference.ref, other).ref
    weak = given(stage, task, immediate.reference.ref, other, permissions=int(Permission.READ)).ref
    other.ask(messages.Done, messages.Delete(weak))
    assert other.read(held) == b"abc", "deleting needs the right"
    task.ask(messages.Done, messages.Delete(immediate.reference.ref))
    # The other reference is a zombie: it exists, and the object does not.
    other.refused(messages.ReadOnce(held), Code.ESTALE)
    other.ask(messages.References, messages.Stat(held))
    other.ask(messages.Done, messages.Delete(held))
    assert task.finds(name_of(immediate)) == ()
    home = stage.neighbour.welcome.home
    assert home is not None
    refused = stage.neighbour.any(messages.Delete(home.ref, int(Flag.DESTROY)))
    assert isinstance(refused, messages.Failure)
    assert refused.code == Code.EINVAL


def test_a_durable_stream_is_there_for_readers_who_come_later(task: Puppet, other: Puppet) -> None:
    """What was appended is read from any position, by tasks with positions of their own."""
    assert other.alive
    said = task.does(
        "import dios\n"
        "log = node.create_log(groups=node.groups)\n"
        "log.append_all([b'a', b'b', b'c'])\n"
        "again = node.find(log.name)\n"
        "first = [entry.data for entry in again.entries()]\n"
        "second = [entry.data for entry in log.entries(again.read_entries()[0].next)]\n"
        "said = repr((first, second))\n"
    )
    assert said == repr(([b"a", b"b", b"c"], [b"b", b"c"]))


# -- I/O requests (§3.7, §4.7, Table 4.5, Figures 3.4, 4.7 to 4.9, B.1.7 to B.1.12) ------------------
class Shared(NamedTuple):
    """An object of two tasks, as each refers to it."""

    first: Puppet
    second: Puppet
    mine: int
    theirs: int

    def acquire(self, mode: Mode, level: Semantics, *, second: bool = False) -> messages.AnyResult:
        """Begin a request."""
        kind = messages.AcquireRead if mode is READ else messages.AcquireWrite
        return (self.second if second else self.first).any(
            kind(self.theirs if second else self.mine, semantics=level)
        )

    def commit(self, mode: Mode, buffer: int, *, second: bool = False) -> bool:
        """Commit a request; return True if it held."""
        kind = messages.CommitRead if mode is READ else messages.CommitWrite
        task, ref = (self.second, self.theirs) if second else (self.first, self.mine)
        answer = task.any(kind(ref, buffer))
        if isinstance(answer, messages.Failure):
            assert answer.code == Code.ECANCELED, answer
        return isinstance(answer, messages.Committed)

    def counters(self) -> tuple[int, int, int, int]:
        """The object's."""
        row = self.first.stat(self.mine)
        return row.a_r, row.a_w, row.v_r, row.v_w


def shared(stage: Stage, task: Puppet, other: Puppet, data: bytes = b"0123456789") -> Shared:
    """A fresh object."""
    ref = task.create(data).reference.ref
    return Shared(task, other, ref, given(stage, task, ref, other).ref)


def buffer_of(answer: messages.AnyResult) -> int:
    """The buffer of a request that was admitted."""
    assert isinstance(answer, messages.Buffer), answer
    return answer.buffer


def admits(level: Semantics, readers: int, writers: int) -> bool:
    """Table 4.5, the columns of acquire."""
    return (level in {SRMW, ANY} or writers == 0) and (level in {MRSW, ANY} or readers == 0)


@pytest.mark.parametrize("level", list(Semantics))
def test_a_level_admits_next_to_the_requests_of_its_row(
    stage: Stage, task: Puppet, other: Puppet, level: Semantics
) -> None:
    """Each acquire cell of Table 4.5: admitted or refused at once, next to so many readers and writers."""
    for mode, (readers, writers) in itertools.product(Mode, ((0, 0), (1, 0), (0, 1), (2, 0), (0, 2), (1, 1))):
        objects = shared(stage, task, other)
        for kind in [READ] * readers + [WRITE] * writers:
            buffer_of(objects.acquire(kind, ANY))
        answer = objects.acquire(mode, level, second=True)
        if admits(level, readers, writers):
            buffer_of(answer)
            assert objects.counters()[:2] == (readers + (mode is READ), writers + (mode is WRITE))
        else:
            assert isinstance(answer, messages.Failure)
            assert answer.code == Code.EBUSY
            assert objects.counters()[:2] == (readers, writers)


@pytest.mark.parametrize("level", list(Semantics))
def test_a_commit_holds_unless_the_level_forbids_what_came_between(
    stage: Stage, task: Puppet, other: Puppet, level: Semantics
) -> None:
    """Each commit cell of Table 4.5: the other request stays, commits, or leaves without a commit."""
    for mode, between, ending in itertools.product(Mode, Mode, ("stays", "commits", "leaves")):
        objects = shared(stage, task, other)
        buffer = buffer_of(objects.acquire(mode, level))
        theirs = buffer_of(objects.acquire(between, ANY, second=True))
        release = (messages.ReleaseRead if between is READ else messages.ReleaseWrite)(objects.theirs, theirs)
        if ending == "commits":
            assert objects.commit(between, theirs, second=True)
        if ending != "stays":
            other.ask(messages.Done, release)
        before = objects.counters()
        forbidden = {EXCL: True, MRSW: between is WRITE, SRMW: between is READ, ANY: False}[level]
        disturbs = forbidden and (ending != "leaves" or level is EXCL)
        assert objects.commit(mode, buffer) is not disturbs, (mode, between, ending)
        assert objects.counters()[2:] == (
            before[2] + (mode is READ and not disturbs),
            before[3] + (mode is WRITE and not disturbs),
        )


def test_two_readers_see_a_write_by_their_levels(stage: Stage, task: Puppet, other: Puppet) -> None:
    """Of two reads next to a write the one that forbids writers does not hold; both have the old bytes."""
    objects = shared(stage, task, other, b"before")
    strict, loose = (
        task.ask(messages.Buffer, messages.AcquireRead(objects.mine, semantics=level))
        for level in (MRSW, ANY)
    )
    other.ask(messages.Committed, messages.WriteOnce(objects.theirs, b"AFTER!"))
    assert (strict.data, loose.data) == (b"before", b"before")
    assert (objects.commit(READ, strict.buffer), objects.commit(READ, loose.buffer)) == (False, True)
    assert task.read(objects.mine) == b"AFTER!"


def test_nobody_waits_for_a_request_that_stays(stage: Stage, task: Puppet, other: Puppet) -> None:
    """There are no locks: with an exclusive writer there, the other is refused at once, writes, and wins."""
    objects = shared(stage, task, other, b"before")
    buffer = buffer_of(objects.acquire(WRITE, EXCL))
    for mode in Mode:
        assert isinstance(objects.acquire(mode, EXCL, second=True), messages.Failure)
    other.ask(messages.Committed, messages.WriteOnce(objects.theirs, b"other!"))
    assert not objects.commit(WRITE, buffer)
    assert task.read(objects.mine) == b"other!", "a commit that does not hold changes nothing"


def test_a_failed_write_is_felt_on_raw_memory_alone(stage: Stage, task: Puppet, other: Puppet) -> None:
    """Bytes of raw memory are changed before a commit that fails, so requests next to it do not hold."""
    for buffering in Buffering:
        call = messages.Create(ObjectType.SHMEM_BLOB, (task.own_group,), buffering=buffering, data=b"before")
        mine = task.ask(messages.Created, call).reference.ref
        objects = Shared(task, other, mine, given(stage, task, mine, other).ref)
        reading = buffer_of(objects.acquire(READ, ANY, second=True))
        writing = buffer_of(objects.acquire(WRITE, MRSW))
        buffer_of(objects.acquire(WRITE, ANY, second=True))
        assert not objects.commit(WRITE, writing), "there is another writer"
        task.ask(messages.Done, messages.ReleaseWrite(mine, writing))
        assert objects.commit(READ, reading, second=True) is (buffering is Buffering.DOUBLE)


STEPS = ("commit", "re-acquire", "release", "commit and release")


def step_call(step: str, mode: Mode, ref: int, buffer: int) -> messages.AnyCall:
    """The call of a step in Figure 4.8."""
    if step == "commit":
        return (messages.CommitRead if mode is READ else messages.CommitWrite)(ref, buffer)
    if step == "re-acquire":
        kind = messages.AcquireRead if mode is READ else messages.AcquireWrite
        return kind(ref, iov=AcquireIov.REUSE, buffer=buffer)
    flags = int(Flag.RELEASE_COMMIT) if step == "commit and release" else 0
    return (messages.ReleaseRead if mode is READ else messages.ReleaseWrite)(ref, buffer, flags=flags)


FIGURE_4_8 = {
    ("acquired", "commit"): "committed",
    ("acquired", "release"): "released",
    ("acquired", "commit and release"): "released",
    ("committed", "commit"): "committed",
    ("committed", "re-acquire"): "acquired",
    ("committed", "release"): "released",
}


@pytest.mark.parametrize("mode", list(Mode))
def test_a_request_goes_through_its_stages_alone(task: Puppet, mode: Mode) -> None:
    """Every order of three steps goes as Figure 4.8 draws it, or is refused and changes nothing."""
    ref = task.create(b"abc").reference.ref
    for order in itertools.product(STEPS, repeat=3):
        kind = messages.AcquireRead if mode is READ else messages.AcquireWrite
        buffer, state, commits = task.ask(messages.Buffer, kind(ref)).buffer, "acquired", 0
        before = task.stat(ref)
        for step in order:
            answer = task.any(step_call(step, mode, ref, buffer))
            following = FIGURE_4_8.get((state, step))
            if following is None:
                assert isinstance(answer, messages.Failure), (order, step)
                assert answer.code == (Code.EBADF if state == "released" else Code.EINVAL), (order, step)
                continue
            assert not isinstance(answer, messages.Failure), (order, step, answer)
            commits += "commit" in step
            state = following
        after = task.stat(ref)
        assert after.a_r + after.a_w == (state == "acquired"), order
        assert after.v_r + after.v_w - before.v_r - before.v_w == commits, order
        if state != "released":
            task.ask(messages.Done, step_call("release", mode, ref, buffer))


def test_buffers_are_used_again_taken_and_borrowed(task: Puppet) -> None:
    """A buffer serves its own reference until it is moved; what was borrowed goes back to its owner."""
    first, second = (task.create(b"abc").reference.ref for _ in range(2))

    def idle() -> int:
        buffer = task.ask(messages.Buffer, messages.AcquireRead(first)).buffer
        task.ask(messages.Committed, messages.CommitRead(first, buffer))
        return buffer

    def acquire(ref: int, iov: AcquireIov, buffer: int) -> messages.Buffer:
        return task.ask(messages.Buffer, messages.AcquireRead(ref, iov=iov, buffer=buffer))

    buffer = idle()
    task.refused(messages.AcquireRead(first, buffer=buffer), Code.EINVAL)
    task.refused(messages.AcquireRead(second, iov=AcquireIov.REUSE, buffer=buffer), Code.EBADF)
    assert acquire(first, AcquireIov.REUSE, buffer).buffer == buffer
    task.ask(messages.Committed, messages.CommitRead(first, buffer))
    assert acquire(second, AcquireIov.TAKE, buffer).buffer == buffer
    task.refused(messages.ReleaseRead(first, buffer), Code.EBADF)
    task.ask(messages.Done, messages.ReleaseRead(second, buffer))
    task.refused(messages.ReleaseRead(second, buffer), Code.EBADF)
    buffer = idle()
    acquire(second, AcquireIov.BORROW, buffer)
    task.ask(messages.Done, messages.ReleaseRead(second, buffer))
    assert acquire(first, AcquireIov.REUSE, buffer).buffer == buffer
    task.ask(messages.Committed, messages.CommitRead(first, buffer))
    # A write's commit takes over the bytes of a read's buffer.
    target = task.create(b"").reference.ref
    call = messages.CommitWrite(target, buffer, iov=CommitIov.BORROW)
    task.ask(messages.Committed, call)
    assert task.read(target) == b"abc"
    task.ask(messages.Done, messages.ReleaseRead(first, buffer))


def test_a_read_and_a_write_do_what_their_calls_say(task: Puppet) -> None:
    """Ranges of a read; a write seen at its commit and not before; a release that gives it up, or commits."""
    ref = task.create(b"0123456789").reference.ref
    for size, offset, expected in ((4, 0, b"0123"), (0, 3, b"3456789"), (99, 7, b"789"), (0, 10, b"")):
        buffer = task.ask(messages.Buffer, messages.AcquireRead(ref, size, offset))
        assert (buffer.data or b"") == expected
        assert task.ask(messages.Committed, messages.CommitRead(ref, buffer.buffer)).v_r
        assert task.stat(ref).a_r == 0
        task.ask(messages.Done, messages.ReleaseRead(ref, buffer.buffer))
    task.refused(messages.AcquireRead(ref, offset=11), Code.EINVAL)
    write = task.ask(messages.Buffer, messages.AcquireWrite(ref, 3, 2))
    assert write.data == b"234", "it is filled with what is there"
    assert task.read(ref) == b"0123456789"
    task.ask(messages.Committed, messages.CommitWrite(ref, write.buffer, data=b"abc"))
    assert task.read(ref) == b"01abc56789"
    task.ask(messages.Done, messages.ReleaseWrite(ref, write.buffer))
    write = task.ask(messages.Buffer, messages.AcquireWrite(ref, 3))
    task.ask(messages.Done, messages.ReleaseWrite(ref, write.buffer))
    assert (task.read(ref), task.stat(ref).a_w) == (b"01abc56789", 0)
    write = task.ask(messages.Buffer, messages.AcquireWrite(ref, 2, 8, flags=int(Flag.BLANK)))
    version = task.stat(ref).v_w
    task.ask(messages.Done, messages.ReleaseWrite(ref, write.buffer, flags=int(Flag.RELEASE_COMMIT)))
    assert task.stat(ref).v_w == version + 1
    assert task.read(ref) == b"01abc567\0\0"


def test_deleting_ends_requests_in_any_order(stage: Stage, task: Puppet, other: Puppet) -> None:
    """Figure 4.9: a delete between acquire and commit, one after it, and a commit after a failed one."""
    objects = shared(stage, task, other)
    buffer = buffer_of(objects.acquire(WRITE, ANY))
    other.ask(messages.Done, messages.Delete(objects.theirs, int(Flag.DESTROY)))
    task.refused(messages.CommitWrite(objects.mine, buffer), Code.ESTALE)
    task.ask(messages.Done, messages.ReleaseWrite(objects.mine, buffer))
    objects = shared(stage, task, other)
    buffer = buffer_of(objects.acquire(WRITE, EXCL))
    other.ask(messages.Committed, messages.WriteOnce(objects.theirs, b"x"))
    assert not objects.commit(WRITE, buffer)
    assert not objects.commit(WRITE, buffer)
    task.ask(messages.Done, messages.Delete(objects.mine))
    task.refused(messages.CommitWrite(objects.mine, buffer), Code.EBADF)
    assert other.read(objects.theirs)[:1] == b"x"
    assert other.stat(objects.theirs).a_w == 0


def test_calls_answer_at_once_if_they_are_to(task: Puppet) -> None:
    """What would wait is refused with the flag, and without it is answered when it can be."""
    own = drained(task).self_ref
    task.refused(messages.ReadOnce(own, flags=int(Flag.NON_BLOCKING)), Code.EAGAIN)
    now = messages.Select((own,), flags=int(Flag.NON_BLOCKING))
    assert task.ask(messages.Selected, now).index == -1
    task.send(messages.ReadOnce(own))
    task.send(messages.Copy(task.mine, own))
    answers = [task.take() for _ in range(2)]
    assert {type(answer) for answer in answers} == {messages.Buffer, messages.References}


def test_compound_calls_are_two_calls_in_one_message(stage: Stage, task: Puppet, other: Puppet) -> None:
    """One message reads, writes, or commits and acquires again, under the rules of the single calls."""
    objects = shared(stage, task, other, b"abc")
    assert task.ask(messages.Buffer, messages.ReadOnce(objects.mine)).data == b"abc"
    assert objects.counters() == (0, 0, 1, 0)
    task.ask(messages.Committed, messages.WriteOnce(objects.mine, b"xyz"))
    assert objects.counters() == (0, 0, 1, 1)
    request = task.ask(messages.Buffer, messages.AcquireRead(objects.mine, semantics=MRSW))
    again = task.ask(
        messages.Buffer, messages.CommitAcquireRead(objects.mine, request.buffer, semantics=MRSW)
    )
    assert objects.counters() == (1, 0, 2, 1)
    other.ask(messages.Committed, messages.WriteOnce(objects.theirs, b"new"))
    task.refused(messages.CommitAcquireRead(objects.mine, again.buffer), Code.ECANCELED)
    writer = buffer_of(objects.acquire(WRITE, ANY, second=True))
    assert isinstance(objects.acquire(READ, EXCL), messages.Failure)
    other.ask(messages.Done, messages.ReleaseWrite(objects.theirs, writer))


# -- tasks (§4.10.3, Table 4.7, B.1.5, B.1.6, B.1.13) -------------------------------------------------
def test_pause_stops_a_process_and_resume_lets_it_go_on(stage: Stage, task: Puppet) -> None:
    """A paused task answers nothing until it is resumed; pausing needs the right to execute."""
    worker = stage.puppet("worker")
    handle = stage.introduce(task, worker, "read write execute delegate")
    weak = own_copy(task, handle, permissions=ALL & ~int(Permission.EXECUTE)).ref
    for kind in (messages.Pause, messages.Resume):
        task.refused(kind(weak), Code.EPERM)
        task.refused(kind(task.mine), Code.EINVAL)
    assert task.ask(messages.Done, messages.Pause(handle)).value == 1
    assert task.ask(messages.Done, messages.Pause(handle)).value == 1
    assert worker.task.status().state is TaskState.PAUSED
    pid = worker.task.status().pid
    wait_until(lambda: state_of(pid) == "T", "the process is stopped")
    worker.begins("said = 'went on'")
    assert task.ask(messages.Done, messages.Resume(handle)).value == 1
    assert worker.has_done() == "went on"
    assert worker.task.status().state is TaskState.RUNNING
    worker.end()
    assert task.ask(messages.Done, messages.Pause(handle)).value == 0


def state_of(pid: int) -> str:
    """A process's state in ``/proc``."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_child_has_what_it_is_handed(task: Puppet) -> None:
    """Run gives arguments, inputs and outputs with their rights; nothing else of the parent is there."""
    text = task.create(b"abc").reference.ref
    result = task.ask(messages.Created, anonymous(b"")).reference.ref
    source = (
        b"import dios, sys; node = dios.connect()\n"
        b"node.outputs[0].write_bytes(node.inputs[0].read_bytes().upper() + sys.argv[1].encode())\n"
        b"sys.exit(len(node.inputs) + len(node.outputs))"
    )
    row = runs(
        task,
        source,
        "!",
        inputs=(messages.Handed(text, int(Permission.READ)),),
        outputs=(messages.Handed(result, int(Permission.WRITE)),),
    )
    assert (row.exit_code, task.read(result)) == (2, b"ABC!")
    blind = own_copy(task, text, permissions=ALL & ~int(Permission.EXECUTE)).ref
    task.refused(messages.Run(blind), Code.EPERM)
    task.refused(messages.Run(task.mine, host="nowhere"), Code.EHOSTUNREACH)


def test_select_names_the_first_that_is_ready(stage: Stage, task: Puppet, other: Puppet) -> None:
    """It waits for any of several objects, names the first that can be read, and ends with a time limit."""
    both = (stage.introduce(task, other, "read"), stage.introduce(other, task))
    drained(task)
    assert task.ask(messages.Selected, messages.Select((task.self_ref,), timeout_ns=1)).index == -1
    task.send(messages.Select((task.self_ref, both[0])))
    other.ask(messages.Done, messages.Copy(other.mine, both[1]))
    assert task.take() == messages.Selected(0)
    task.given()
    ref = task.create(b"x").reference.ref
    assert task.ask(messages.Selected, messages.Select((task.self_ref, ref))).index == 1


BRANDS = b"""
import dios, sys
node = dios.connect()
answers = []
for brand in ("pure", "limbo"):
    try:
        answers.append(node.run(b"import sys; sys.exit(0)", brand=brand).wait(30).ok)
    except dios.NotPermittedError:
        answers.append(None)
try:
    node.tasks()
    answers.append("all")
except dios.NotPermittedError:
    answers.append("none")
print(answers)
"""


@pytest.mark.parametrize("mode", ["liberal", "restricted"])
def test_a_brand_says_what_a_program_may_start(mode: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Pure starts pure alone and sees no list; limbo does both, and in restricted mode is pure."""
    folder = tmp_path_factory.mktemp(mode) / "data"
    with running_node(folder, mode=mode) as running, dios.connect(running.place) as node:
        said = {}
        for brand in (Brand.PURE, Brand.LIMBO):
            with node.run(BRANDS, brand=brand) as run, run.console() as console:
                said[brand] = b"".join(console).decode().strip()
    assert said[Brand.PURE] == "[True, None, 'none']"
    assert said[Brand.LIMBO] == ("[True, True, 'all']" if mode == "liberal" else said[Brand.PURE])


# -- the node (§3.2.2, §4.2, Figures 5.2 and 5.3) ------------------------------------------------------
def test_resolution_and_delegation_leave_records(stage: Stage, task: Puppet, other: Puppet) -> None:
    """The audit log has who looked up a name and who delegated what, and reads and writes are not in it."""
    created = task.create(b"abc")
    task.finds(name_of(created))
    assert stage.next_record("lookup", task).outcome == "ok"
    given(stage, task, created.reference.ref, other)
    record = stage.next_record("delegate", task)
    assert (record.outcome, record.subject) == ("ok", created.reference.fingerprint)
    task.read(created.reference.ref)
    task.refused(messages.ReadOnce(1), Code.EBADF)
    assert stage.next_record("readonce", task).outcome == "denied"


def test_stored_objects_take_no_memory_until_they_are_used(tmp_path: Path) -> None:
    """After a restart a node has those of its durable objects in its tables that are used."""
    many = 300
    with running_node(tmp_path / "data", pool_size="0") as running:
        with dios.connect(running.place) as node, node.batch() as batch:
            assert node.home is not None
            pending = [
                batch.add(node.create, dios.DURABLE_BLOB, data=b"%d" % number, groups=[node.home])
                for number in range(many)
            ]
        names = [reference.result().name for reference in pending]
        running.stop()
        running.restart()
        with dios.connect(running.place) as node:
            before = len(node.read_table("objects"))
            assert before < many // 10
            used = [node.find(name) for name in names[:20] if name is not None]
            assert [reference.read_bytes() for reference in used if reference] == [
                b"%d" % number for number in range(20)
            ]
            assert len(node.read_table("objects")) >= before + 20


@pytest.mark.parametrize("size", [0, 2])
def test_a_task_is_forked_before_it_is_wanted(tmp_path: Path, size: int) -> None:
    """With a pool the process of a task was there before the run; without one it was not."""
    with running_node(tmp_path / "data", pool_size=str(size)) as running, dios.connect(running.place) as node:
        assert node.run(b"").wait(30).ok
        wait_until(lambda: len(leaves(running)) >= size, "the pool is filled again")
        before = running.descendants()
        with node.run(b"import time; time.sleep(100)") as run:
            pid = run.status().pid
            assert exists(pid)
            assert (pid in before) is bool(size)
            run.kill()


def leaves(running: RunningNode) -> set[int]:
    """The processes below a node without processes of their own."""
    pids = running.descendants()
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}
    return pids - parents


def test_a_stream_needs_no_node_to_carry_its_messages(tmp_path: Path) -> None:
    """Two tasks that have its ends exchange messages in shared memory while the node is frozen."""
    with (
        running_node(tmp_path / "data", pool_size="0") as running,
        dios.connect(running.place) as first,
        dios.connect(running.place) as second,
    ):
        assert first.home is not None
        stream = first.create_stream(groups=[first.home])
        assert stream.name is not None
        end = second.find(stream.name)
        assert isinstance(end, dios.Stream)
        stream.send(b"before")
        assert end.receive(30) == b"before"
        os.kill(running.running.pid, signal.SIGSTOP)
        try:
            for number in range(100):
                stream.send(b"%d" % number)
            assert [end.receive(30) for _ in range(100)] == [b"%d" % number for number in range(100)]
        finally:
            os.kill(running.running.pid, signal.SIGCONT)
