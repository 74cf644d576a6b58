"""B.1.2, §4.3.3 and Listing 4.2: what resolution finds, and that what it must not find looks like nothing."""

from __future__ import annotations

import pytest
from msgspec import structs

from dios import limits
from dios.core import effects
from dios.core.model.names import special_name
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.types import Flag, NameKind, ObjectType, Permission, Persistence
from tests.support.core.harness import Node


def told(node: Node, task: int) -> list[object]:
    """The last step's effects with what must differ taken out: the fingerprint of the name asked for."""
    return [
        structs.replace(effect, subject="") if isinstance(effect, effects.Audit) else effect
        for effect in node.outcome.after
        if not isinstance(effect, effects.Answer) or effect.task == task
    ]


def test_unknown_and_foreign_names_look_alike(node: Node) -> None:
    """Semantics, Groups: same bytes, same effects, same waiting, for a name that is not and one not ours."""
    owner, stranger = node.session(), node.session(Principal("uid:7"))
    secret = owner.create(ObjectType.DURABLE_BLOB, data=b"x")
    assert secret.name is not None
    seen: list[object] = []
    for name in (secret.name, bytes(range(32)), b"\xff" * 32):
        node.seq = 50
        answer = stranger.ask(messages.References, messages.Lookup(name))
        seen.append((answer, told(node, stranger.task), node.outcome.wait_for, node.outcome.persist))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("with_group", [False, True])
def test_group_of_no_membership_looks_empty(node: Node, with_group: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Semantics, Groups: in a group one may refer to but is no member of, every name looks unknown."""
    root = node.session()
    shared = root.create(ObjectType.GROUP).reference.ref
    maker, other = root.run(groups=(shared,)), root.run(groups=(shared,))
    group = maker.create(ObjectType.GROUP)
    inside = maker.create(groups=(group.reference.ref,))
    ref = other.lookup(group.name)[0].ref if with_group else 0
    seen: list[object] = []
    for name in (inside.name, bytes(range(32))):
        assert name is not None
        node.seq = 50
        answer = other.ask(messages.References, messages.Lookup(name, ref))
        seen.append((answer, told(node, other.task), node.outcome.wait_for))
    assert seen[0] == seen[1]


def test_resolution_gives_every_right(node: Node) -> None:
    """§4.3.3: each physical object found gives one fresh reference with every right."""
    client = node.session()
    created = client.create(data=b"abc")
    call = messages.Copy(created.reference.ref, client.self_ref, persistence=Persistence.DURABLE)
    client.call(call)
    references = client.lookup(created.name)
    assert len(references) == 2
    assert {reference.permissions for reference in references} == {int(Permission.ALL)}


def test_limit(node: Node) -> None:
    """Listing 4.2: no more references than asked for, the earliest objects first."""
    client = node.session()
    created = client.create(data=b"abc")
    for _ in range(3):
        client.call(messages.Copy(created.reference.ref, client.self_ref, persistence=Persistence.DURABLE))
    assert created.name is not None
    (first,) = client.ask(messages.References, messages.Lookup(created.name, limit=1)).references
    assert first.object == created.reference.object
    assert len(client.ask(messages.References, messages.Lookup(created.name, limit=3)).references) == 3


def test_anonymous_is_not_reachable(node: Node) -> None:
    """B.1.2 (a): an anonymous object is reached by no name, not even one of zeros."""
    client = node.session()
    client.create(name_kind=NameKind.ANONYMOUS)
    assert client.lookup(bytes(32)) == ()


def test_group_given_or_all_groups(node: Node) -> None:
    """B.1.2 (b): with a group only it is searched, without one every group of the task."""
    client = node.session()
    group = client.create(ObjectType.GROUP).reference.ref
    created = client.create(groups=(group,))
    assert len(client.lookup(created.name)) == 1
    assert len(client.lookup(created.name, group)) == 1
    assert client.lookup(created.name, client.groups[0]) == ()


def test_every_object_here_is_reachable(node: Node) -> None:
    """B.1.2 (c, d): on one node nothing is unreachable, and the answer says that it is complete."""
    client = node.session()
    created = client.create()
    assert created.name is not None
    for flags in (0, int(Flag.LOCAL_ONLY), int(Flag.NON_BLOCKING)):
        answer = client.ask(messages.References, messages.Lookup(created.name, flags=flags))
        assert not answer.incomplete
        assert len(answer.references) == 1


def test_deleted_is_not_found(node: Node) -> None:
    """B.1.4: the name goes with its last physical object."""
    client = node.session()
    created = client.create()
    client.call(messages.Delete(created.reference.ref))
    assert client.lookup(created.name) == ()
    assert created.name is not None


def test_special_names(node: Node) -> None:
    """Semantics, Names: special names mean something to their caller, in no group; unused ones nothing."""
    client = node.session()
    (console,) = client.lookup(special_name(1))
    (timer,) = client.lookup(special_name(2))
    assert (console.type, timer.type) == (ObjectType.CONSOLE_STREAM, ObjectType.TIMER_BLOB)
    assert client.lookup(special_name(4)) == ()
    assert client.lookup(special_name(65_535)) == ()


def test_special_console_references_can_be_dropped(node: Node) -> None:
    """B.1.4: of the references to its console a task keeps the first; what it resolved it can delete."""
    client = node.session()
    (console,) = client.lookup(special_name(1))
    client.ask(messages.Done, messages.Delete(console.ref))
    assert client.refused(messages.Stat(console.ref)) == Code.EBADF
    assert client.refused(messages.Delete(client.welcome.console.ref)) == Code.EINVAL


def test_full_table(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose table is full is refused before anything is made for it."""
    client = node.session()
    created = client.create()
    assert created.name is not None
    held = len(node.core.state.tasks[client.task].table)
    monkeypatch.setattr(limits, "REFERENCES_PER_TASK_MAX", held)
    for call in (
        messages.Lookup(created.name),
        messages.Lookup(special_name(1)),
        messages.Lookup(special_name(2)),
        messages.Create(ObjectType.SHMEM_BLOB),
        messages.Copy(created.reference.ref, client.self_ref),
        messages.Run(created.reference.ref),
        messages.ConsoleOf(client.self_ref),
    ):
        assert client.refused(call) == Code.EDQUOT
