"""Hostile tasks after names and groups of others, and after calls that are not theirs to make.

Not for: what replies look like to the byte and how long they take (``test_deniability``). The hostile task is
told every name there is, and it is of no use to it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple

import pytest

from dios import limits
from dios.core.model.names import deterministic_name, internal_name
from dios.errors import Code
from dios.ids import Name
from dios.wire import messages
from dios.wire.codec import decode_event, encode_request
from dios.wire.types import Flag, Mode, NameKind, ObjectType, Permission, Resource, Scope
from tests.support.security.every_call import ALL, own_program
from tests.support.security.hostile_pair import SECRET, Puppet, Stage, open_stage
from tests.support.security.places import PLACES

READ = int(Permission.READ)


@pytest.fixture(scope="module", params=PLACES, ids=attrgetter("name"))
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One node and its tasks, or sessions, for all attempts."""
    with open_stage(tmp_path_factory.mktemp("names"), request.param) as stage:
        yield stage


@pytest.fixture
def stage(opened: Stage) -> Iterator[Stage]:
    """A fresh secret before, and the victim unharmed after."""
    with opened.attempt() as stage:
        yield stage


# -- names ------------------------------------------------------------------------------------------
def _group_of(stage: Stage) -> messages.Created:
    return stage.victim.ask(messages.Created, messages.Create(ObjectType.GROUP, (stage.victim.own_group,)))


def _name_of(created: messages.Created) -> bytes:
    assert created.name is not None
    return created.name


def _deterministic(stage: Stage) -> bytes:
    """The name is computed from the name of the task that made the object, and how many it made before."""
    call = messages.Create(ObjectType.SHMEM_BLOB, (stage.victim.own_group,), NameKind.DETERMINISTIC)
    derived_name = _name_of(stage.victim.ask(messages.Created, call))
    name = stage.victim.welcome.name
    assert name is not None
    assert derived_name in {deterministic_name(Name(name), count) for count in range(64)}
    return derived_name


def _own_group_name(stage: Stage) -> bytes:
    return stage.victim.read(stage.victim.own_group)


def _internal(stage: Stage) -> bytes:
    return internal_name(Name(_name_of(stage.secret)), Name(_own_group_name(stage)))


def _one_bit_off(stage: Stage) -> bytes:
    name = _name_of(stage.secret)
    return bytes([name[0] ^ 1]) + name[1:]


def _neighbours_group(stage: Stage) -> bytes:
    assert stage.neighbour.welcome.home is not None
    call = messages.ReadOnce(stage.neighbour.welcome.home.ref)
    return stage.neighbour.ask(call, messages.Buffer).data or b""


NAMES: dict[str, Callable[[Stage], bytes | None]] = {
    "the-secrets": lambda stage: stage.secret.name,
    "one-bit-off": _one_bit_off,
    "internal": _internal,
    "computed": _deterministic,
    "the-victims-task": lambda stage: stage.victim.welcome.name,
    "the-victims-group": _own_group_name,
    "a-group-of-the-victims": lambda stage: _group_of(stage).name,
    "the-neighbours-home": _neighbours_group,
    "random": lambda _: secrets.token_bytes(32),
    "nothing": lambda _: bytes(32),
    "special-without-meaning": lambda _: bytes(30) + b"\xff\xff",
}
"""Names that the hostile task is told, or that it guesses."""


@pytest.mark.parametrize("name", NAMES)
def test_a_name_opens_nothing(stage: Stage, name: str) -> None:
    """Who knows a name and is no member of its group finds nothing by it, in all groups and in its own."""
    told = NAMES[name](stage)
    assert stage.mallory.finds(told) == ()
    assert stage.mallory.finds(told, stage.mallory.own_group) == ()


def test_a_right_is_not_widened_by_the_name(stage: Stage) -> None:
    """Who was handed a reference for reading, and learned the name, does not resolve it to every right."""
    ref = stage.victim.gives(stage.secret.reference.ref, stage.mallory, READ)
    assert stage.mallory.finds(stage.secret.name) == ()
    assert stage.mallory.read(ref) == SECRET


def test_a_name_cannot_be_put_into_another_group(stage: Stage) -> None:
    """An object of the own group never answers to a name of the victim's, which stays the victim's alone."""
    for kind in (NameKind.RANDOM, NameKind.DETERMINISTIC):
        call = messages.Create(ObjectType.SHMEM_BLOB, (stage.mallory.own_group,), kind, data=b"evil")
        stage.mallory.ask(messages.Created, call)
    (reference,) = stage.victim.finds(stage.secret.name)
    assert stage.victim.read(reference.ref) == SECRET


@pytest.mark.parametrize("names", ["secret", "group", "task"])
def test_a_child_resolves_no_more_than_its_parent(stage: Stage, names: str) -> None:
    """A child that is told the names is no member either, and finds nothing."""
    name = {
        "secret": _name_of(stage.secret),
        "group": _own_group_name(stage),
        "task": stage.victim.welcome.name,
    }[names]
    assert name is not None
    source = b"import dios, sys\nprint(len(dios.connect().lookup(bytes.fromhex(sys.argv[1]))))\n"
    said = stage.mallory.does(
        f"child = node.run({source!r}, args=[{name.hex()!r}])\n"
        "status = child.wait(20)\n"
        "said = b''.join(child.console()).decode() + status.detail\n"
        "child.close()\n"
    )
    assert said.strip() == "0"


# -- groups -----------------------------------------------------------------------------------------
class Resolved(NamedTuple):
    """A group that its maker's companion merely resolved, and an object in it."""

    maker: Puppet
    group: messages.Created
    inside: messages.Created
    other: Puppet
    ref: int


@pytest.fixture
def resolved(stage: Stage) -> Iterator[Resolved]:
    """Two tasks in one group; one makes another group, of which the other resolves the name (Table 4.2)."""
    common = stage.director.create_group()
    maker, other = stage.puppet("maker", common), stage.puppet("other", common)
    group = maker.ask(messages.Created, messages.Create(ObjectType.GROUP, (maker.own_group,)))
    inside = maker.create(SECRET, ObjectType.SHMEM_BLOB, group.reference.ref)
    (reference,) = other.finds(group.name)
    yield Resolved(maker, group, inside, other, reference.ref)
    assert maker.read(inside.reference.ref) == SECRET
    assert maker.stat(group.reference.ref).object == group.reference.object
    for puppet in (maker, other):
        puppet.end()
    common.destroy()


def test_resolved_group_shows_nothing(resolved: Resolved) -> None:
    """Who merely resolved a group's name finds nothing in it, by that reference or without."""
    assert resolved.other.finds(resolved.inside.name, resolved.ref) == ()
    assert resolved.other.finds(resolved.inside.name) == ()


def test_resolved_group_hides_what_one_put_there(resolved: Resolved) -> None:
    """Who merely resolved a group creates in it, and cannot find even that again."""
    gift = resolved.other.create(b"gift", ObjectType.SHMEM_BLOB, resolved.ref)
    assert resolved.other.finds(gift.name, resolved.ref) == ()
    assert resolved.other.finds(gift.name) == ()


def test_resolved_group_makes_no_member(resolved: Resolved) -> None:
    """Membership is not to be granted by who merely resolved the group, not even to a child."""
    program = own_program(resolved.other)
    resolved.other.refused(messages.Run(program, (resolved.ref,)), Code.EPERM)
    resolved.other.refused(messages.Run(program, (resolved.other.own_group, resolved.ref)), Code.EPERM)


@pytest.mark.parametrize("flags", [Flag.NONE, Flag.DESTROY], ids=["delete", "destroy"])
def test_resolved_group_is_not_destroyed(resolved: Resolved, flags: Flag) -> None:
    """Who merely resolved a group does nothing but create in it: it does not take it from its members."""
    answer = resolved.other.any(messages.Delete(resolved.ref, int(flags)))
    if isinstance(answer, messages.Failure):
        assert answer.code == Code.EPERM
    again = resolved.maker.create(b"more", ObjectType.SHMEM_BLOB, resolved.group.reference.ref)
    assert again.name is not None
    assert len(resolved.maker.finds(resolved.group.name)) == 1


@pytest.mark.parametrize("which", ["own", "resolved"])
@pytest.mark.parametrize("way", ["to-itself", "to-another", "at-start", "as-output", "its-bytes"])
def test_group_references_are_never_handed_on(resolved: Resolved, stage: Stage, which: str, way: str) -> None:
    """A reference to a group stays where it is, whoever holds it and whatever way is tried (§4.4)."""
    task = resolved.other
    ref = resolved.ref if which == "resolved" else task.own_group
    handed = (messages.Handed(ref, ALL),)
    calls: dict[str, messages.AnyCall] = {
        "to-itself": messages.Copy(ref, task.self_ref),
        "to-another": messages.Copy(ref, stage.introduce(task, stage.confederate)),
        "at-start": messages.Run(own_program(task), inputs=handed),
        "as-output": messages.Run(own_program(task), outputs=handed),
        "its-bytes": messages.Copy(ref, task.self_ref, persistence=1),  # type: ignore[arg-type]
    }
    task.refused(calls[way], Code.EPERM)


def test_what_is_no_group_is_none(stage: Stage) -> None:
    """A blob, a task and a console are no groups to look up in, create in or start members of."""
    task = stage.mallory
    for ref in (task.mine, task.self_ref, task.welcome.console.ref):
        task.refused(messages.Lookup(_name_of(stage.secret), ref), Code.EINVAL)
        task.refused(messages.Create(ObjectType.SHMEM_BLOB, (ref,)), Code.EINVAL)
        task.refused(messages.Run(own_program(task), (ref,)), Code.EINVAL)


# -- calls that are not a task's to make --------------------------------------------------------------
PRIVILEGED: dict[str, messages.PlainCall] = {
    "shutdown": messages.Shutdown(),
    "node-info": messages.NodeInfo(),
    "list-tasks": messages.ListTasks(),
    "list-limits": messages.ListLimits(),
    "set-limits": messages.SetLimits(
        Scope.PRINCIPAL, (messages.Bound(Resource.TASKS, None),), principal="uid:0"
    ),
}
"""What a pure task may not ask."""


@pytest.mark.parametrize("call", PRIVILEGED)
def test_calls_of_the_nodes_owner(stage: Stage, call: str) -> None:
    """A pure task learns nothing of the node and changes nothing of it."""
    stage.mallory.refused(PRIVILEGED[call], Code.EPERM)


def test_shutdown_in_a_vector(stage: Stage) -> None:
    """Wrapped in a vector, the node's end is not to be had either."""
    results = stage.mallory.ask(messages.Results, messages.Vector((messages.Shutdown(),)))
    (failure,) = results.results
    assert isinstance(failure, messages.Failure)
    assert failure.code == Code.EINVAL


def test_a_second_hello_makes_no_member(stage: Stage) -> None:
    """A task that says hello like a session, with names of groups it learned, is ended."""
    hostile = stage.puppet("second-hello")
    call = messages.Hello(1, (_own_group_name(stage), _neighbours_group(stage)))
    hostile.breaks_the_rules(encode_request(5, call))
    hostile.ends_as_protocol()
    hostile.end()


def test_a_number_that_waits_is_not_used_again(stage: Stage) -> None:
    """A sequence number of a call that waits, used again, ends the task that does it."""
    hostile = stage.puppet("same-number")
    wait = messages.Select((hostile.self_ref,), Mode.READ, None)
    seq = hostile.send(wait)
    hostile.breaks_the_rules(encode_request(seq, messages.Stat(hostile.self_ref)))
    hostile.ends_as_protocol()
    hostile.end()


def test_calls_of_others_are_not_cancelled(stage: Stage) -> None:
    """Cancelling by another's sequence number gives up nothing of the other's."""
    seq = stage.victim.send(messages.Select((stage.victim.self_ref,), Mode.READ, None))
    assert stage.mallory.ask(messages.Done, messages.Cancel(seq)).value == 0
    stage.victim.send(messages.Cancel(seq))
    ended, done = stage.victim.take(), stage.victim.take()
    assert isinstance(ended, messages.Failure)
    assert ended.code == Code.ECANCELED
    assert done == messages.Done(1)


@pytest.mark.parametrize("nesting", ["vector-in-vector", "hello-in-vector"])
def test_vectors_hold_plain_calls(stage: Stage, nesting: str) -> None:
    """A vector in a vector, or a hello, is no message: it ends its sender."""
    hostile = stage.puppet("nested")
    inner: messages.AnyCall = messages.Vector((messages.Stat(1),))
    if nesting == "hello-in-vector":
        inner = messages.Hello(1)
    hostile.breaks_the_rules(encode_request(7, messages.Vector((inner,))))  # type: ignore[arg-type]
    hostile.ends_as_protocol()
    hostile.end()


# -- flooding ---------------------------------------------------------------------------------------
def test_flooding_anothers_table_is_bounded(stage: Stage) -> None:
    """Who may delegate to a task fills its table to the bound at most; it keeps what it has, and is told."""
    target = stage.puppet("flooded")
    kept = target.create(SECRET).reference.ref
    to = stage.introduce(stage.mallory, target)
    copy = messages.Vector((messages.Copy(stage.mallory.mine, to),) * limits.VECTOR_CALLS_MAX)
    refused: list[messages.Failure] = []
    for _ in range(limits.REFERENCES_PER_TASK_MAX // limits.VECTOR_CALLS_MAX + 1):
        results = stage.mallory.ask(messages.Results, copy).results
        refused += [result for result in results if isinstance(result, messages.Failure)]
    assert {failure.code for failure in refused} <= {Code.ENOMEM, Code.EDQUOT}
    assert refused, "no bound was met"
    assert target.read(kept) == SECRET
    events = 0
    while not isinstance(event := decode_event(target.read(target.self_ref)), messages.Lost):
        assert isinstance(event, messages.Delegated)
        target.ask(messages.Done, messages.Delete(event.reference.ref))
        events += 1
    assert events <= limits.EVENTS_PER_TASK_MAX
    assert target.create(b"room again").name is not None
    target.end()


def test_flooding_needs_a_reference_to_the_task(stage: Stage) -> None:
    """Without a reference to a task nothing is put into its table, whatever number is tried."""
    before = stage.victim.ask(messages.Selected, messages.Select((stage.victim.self_ref,), Mode.READ, 0))
    for task in (stage.victim.self_ref, stage.victim.welcome.self_ref.object, 1):
        stage.mallory.refused(messages.Copy(stage.mallory.mine, task), Code.EBADF)
    assert before.index == -1
    after = stage.victim.ask(messages.Selected, messages.Select((stage.victim.self_ref,), Mode.READ, 0))
    assert after.index == -1
