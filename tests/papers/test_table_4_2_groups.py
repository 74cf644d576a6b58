"""Table 4.2, Figure 4.5 and §4.4: what a task can do with a group, by how it knows it."""

from __future__ import annotations

import pytest

from dios.core import events
from dios.errors import Code
from dios.ids import Principal
from dios.wire import messages
from dios.wire.types import NameKind, ObjectType
from tests.support.core.harness import Client, Node


class Scene:
    """A group ``g`` with an object in it, and three tasks: a member, its creator, and who resolved it.

    Tasks, not sessions: a session is made a member of what it creates (ADR 0003).
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.root = node.session()
        shared = self.root.create(ObjectType.GROUP).reference.ref
        self.creator = self.root.run(groups=(shared,))
        created = self.creator.ask(
            messages.Created, messages.Create(ObjectType.GROUP, (self.creator.groups[0],))
        )
        assert created.name is not None
        self.g = created.name
        self.of_creator = created.reference.ref
        self.secret = self.creator.create(groups=(self.of_creator,), data=b"secret")
        # A child of the creator is the plain way to become a member.
        self.member = self.creator.run(groups=(self.of_creator,))
        self.of_member = self.member.groups[0]
        self.resolver = self.root.run(groups=(shared,))
        (reference,) = self.resolver.lookup(created.name)
        self.of_resolver = reference.ref

    def task(self, relation: str) -> tuple[Client, int]:
        """The task that has this relation to g, and its reference to g."""
        return {
            "member": (self.member, self.of_member),
            "created": (self.creator, self.of_creator),
            "resolved": (self.resolver, self.of_resolver),
        }[relation]


@pytest.fixture
def scene(node: Node) -> Scene:
    """The three relations of Table 4.2."""
    return Scene(node)


@pytest.mark.parametrize(("relation", "count"), [("member", 1), ("created", 0), ("resolved", 0)])
def test_cell_resolve_names_in_g(scene: Scene, relation: str, count: int) -> None:
    """Table 4.2, first column: only members resolve, with the group given and without."""
    task, group = scene.task(relation)
    assert len(task.lookup(scene.secret.name, group)) == count
    assert len(task.lookup(scene.secret.name)) == count


@pytest.mark.parametrize("relation", ["member", "created", "resolved"])
def test_cell_create_objects_in_g(scene: Scene, relation: str) -> None:
    """Table 4.2, second column: all three create in g, and members find what they made."""
    task, group = scene.task(relation)
    created = task.create(groups=(group,), data=b"x")
    (reference,) = scene.member.lookup(created.name)
    assert reference.object == created.reference.object


@pytest.mark.parametrize("relation", ["member", "created"])
def test_cell_grant_membership_of_g(scene: Scene, relation: str) -> None:
    """Table 4.2, third column: members and the creator make their children members."""
    task, group = scene.task(relation)
    child = task.run(groups=(group,))
    assert len(child.lookup(scene.secret.name)) == 1


def test_cell_who_resolved_grants_nothing(scene: Scene) -> None:
    """Table 4.2, third column: who merely resolved g's name makes nobody a member."""
    task, group = scene.task("resolved")
    program = task.create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    assert task.refused(messages.Run(program, groups=(group,))) == Code.EPERM


def test_stranger_has_no_cell(scene: Scene) -> None:
    """Table 4.2: a task without any relation to g cannot even name it."""
    stranger = scene.root.run()
    assert stranger.lookup(scene.g) == ()
    for reference in (scene.of_creator, scene.of_member, scene.of_resolver):
        assert stranger.refused(messages.Create(ObjectType.SHMEM_BLOB, (reference,))) == Code.EBADF


def test_access_via_child(scene: Scene) -> None:
    """Figure 4.5: T_B, who resolved a's name, gains nothing in a through its own child T_C."""
    program = scene.resolver.create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    for groups in ((scene.of_resolver,), (scene.resolver.groups[0], scene.of_resolver)):
        assert scene.resolver.refused(messages.Run(program, groups=groups)) == Code.EPERM
    child = scene.resolver.run(groups=(scene.resolver.groups[0],))
    assert child.lookup(scene.secret.name) == ()
    # The child can resolve a's name too, and is no better off.
    (again,) = child.lookup(scene.g)
    assert child.lookup(scene.secret.name, again.ref) == ()
    program = child.create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    assert child.refused(messages.Run(program, groups=(again.ref,))) == Code.EPERM


@pytest.mark.parametrize("relation", ["member", "created", "resolved"])
def test_group_references_are_not_delegated(scene: Scene, relation: str) -> None:
    """§4.4: a reference to a group is never delegated, not to oneself and not at a child's start."""
    task, group = scene.task(relation)
    assert task.refused(messages.Copy(group, task.self_ref)) == Code.EPERM
    program = task.create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    assert task.refused(messages.Run(program, inputs=(messages.Handed(group, 31),))) == Code.EPERM


def test_membership_is_fixed_at_start(scene: Scene) -> None:
    """§4.4, Bootstrap: creating or resolving a group makes no running task a member."""
    task = scene.creator
    created = task.ask(messages.Created, messages.Create(ObjectType.GROUP, (task.groups[0],)))
    inside = task.create(groups=(created.reference.ref,))
    assert task.lookup(inside.name) == ()


def test_groups_are_not_transitive(scene: Scene) -> None:
    """Figure 4.4: a member of g is no member of g's parent group."""
    beside = scene.creator.create(groups=(scene.creator.groups[0],))
    assert scene.member.lookup(beside.name) == ()
    assert len(scene.creator.lookup(beside.name)) == 1


def test_task_without_groups_gets_an_empty_one(node: Node) -> None:
    """§4.4, Bootstrap: a task started with no groups resolves in one fresh, empty group."""
    root = node.session()
    here = root.create(data=b"x")
    child = root.run()
    assert len(child.groups) == 1
    assert child.lookup(here.name) == ()
    own = child.create(data=b"y")
    assert len(child.lookup(own.name)) == 1
    assert root.lookup(own.name) == ()


def test_object_in_many_groups(node: Node) -> None:
    """§4.4: an object in several groups is found once by a member of all, and in each by its members."""
    root = node.session()
    first, second = (root.create(ObjectType.GROUP).reference.ref for _ in range(2))
    created = root.create(groups=(first, second, first))
    assert len(root.lookup(created.name)) == 1
    for group in (first, second):
        assert len(root.run(groups=(group,)).lookup(created.name)) == 1


def test_lookup_needs_a_group_reference(node: Node) -> None:
    """B.1.2: a lookup in what is no group is refused."""
    root = node.session()
    created = root.create()
    call = messages.Lookup(created.name or b"", created.reference.ref)
    assert root.refused(call) == Code.EINVAL


def test_group_deleted(scene: Scene) -> None:
    """§4.2, §4.4: in a deleted group nothing can be created, and no child becomes a member of it."""
    program = scene.creator.create(groups=(), name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    scene.creator.call(messages.Delete(scene.of_creator))
    member_ref = scene.of_member
    call = messages.Create(ObjectType.SHMEM_BLOB, (member_ref,))
    assert scene.member.refused(call) == Code.ESTALE
    assert scene.creator.refused(messages.Run(program, groups=(scene.of_creator,))) == Code.EBADF


# -- semantics, Groups: principals -----------------------------------------------------------------
def test_session_is_member_of_what_it_creates(node: Node) -> None:
    """ADR 0003: a session resolves in a group it created, and so can grant it."""
    root = node.session()
    group = root.create(ObjectType.GROUP)
    created = root.create(groups=(group.reference.ref,))
    assert len(root.lookup(created.name, group.reference.ref)) == 1
    assert len(root.run(groups=(group.reference.ref,)).lookup(created.name)) == 1


def test_principal_presents_its_own_groups_only(node: Node) -> None:
    """Semantics, Groups: the node makes a session a member of its principal's groups, of no other's."""
    root = node.session()
    group = root.create(ObjectType.GROUP)
    created = root.create(groups=(group.reference.ref,))
    assert group.name is not None
    mine = node.session(groups=(group.name,))
    assert len(mine.lookup(created.name)) == 1
    theirs = node.session(Principal("uid:7"), groups=(group.name,))
    assert len(theirs.welcome.groups) == 1
    assert theirs.lookup(created.name) == ()
    assert theirs.lookup(group.name) == ()


def test_groups_presented_twice_count_once(node: Node) -> None:
    """Semantics, Groups: a group named twice in a keyring gives one reference."""
    root = node.session()
    group = root.create(ObjectType.GROUP)
    assert group.name is not None
    assert len(node.session(groups=(group.name, group.name)).welcome.groups) == 2


def test_home_is_made_again_when_the_store_refused_it(node: Node) -> None:
    """Semantics, Groups: a home that could not be stored is made anew at the next session."""
    root = node.session()
    ticket = node.outcome.ticket
    node.step(events.PersistFailed(node.now, ticket, ticket, int(Code.ENOSPC), "disk full"))
    assert root.refused(messages.Create(ObjectType.SHMEM_BLOB, (root.groups[0],))) == Code.ESTALE
    later = node.session()
    assert len(node.outcome.persist) == 1
    created = later.create(data=b"x")
    assert len(later.lookup(created.name)) == 1
