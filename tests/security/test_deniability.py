"""Deniability: a name that does not exist, and one in a group of others, cannot be told apart (§3.2.2, §4.4).

Not for: how long the answers take (``test_deniability_timing``). The core is looked at from inside: what it
does, which lines run, what it writes down. The node is looked at from a pure task's socket: its bytes.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import trio
from msgspec import structs

from dios.core import effects, events
from dios.core.machine import Core
from dios.core.model.names import deterministic_name
from dios.host.audit.log import AuditLog
from dios.ids import Name, PayloadId, Principal, TaskId
from dios.node.assembly import NodeHost
from dios.node.settings import load
from dios.wire import messages
from dios.wire.codec import encode_reply, encode_request
from dios.wire.types import NameKind, ObjectType, Persistence
from tests.support.core.harness import OWNER, Client, Entropy, Node
from tests.support.core.snapshot import snapshot
from tests.support.host.harness import GatedStore, NoTasks, RecordingChannel
from tests.support.node.raw_client import RawClient
from tests.support.security.hostile_pair import SECRET, Stage, open_stage
from tests.support.security.line_trace import Line, lines_of

ABSENT = bytes(range(32))
STRANGER = Principal("uid:7")
OTHER_USER = 65_533
MANY = 40


# -- the core, from inside ----------------------------------------------------------------------------
class Seen(NamedTuple):
    """Everything that one lookup makes the core do."""

    lines: list[Line]
    effects: list[object]
    persist: list[object]
    ticket: int
    wait_for: int
    deadline: int | None
    state: list[str]
    bytes: list[bytes]


class Scene:
    """A foreign group with things in it, and who asks for them."""

    def __init__(self) -> None:
        self.node = Node()
        root = self.node.session()
        common = root.create(ObjectType.GROUP).reference.ref
        self.maker = self.maker_of(root, common)
        self.group = self.maker.create(ObjectType.GROUP)
        asker = root.run(groups=(common,))
        self.refs = {
            "pure": (asker, 0),
            "pure-resolved-group": (asker, asker.lookup(self.group.name)[0].ref),
            "pure-own-group": (asker, asker.groups[0]),
            "pure-of-no-group": (root.run(), 0),
            "stranger": (stranger := self.node.session(STRANGER), 0),
            "stranger-own-group": (stranger, stranger.groups[0]),
        }

    def maker_of(self, root: Client, common: int) -> Client:
        """The task that makes what the others ask for."""
        return root.run(groups=(common,))

    def create(self, **options: object) -> messages.Created:
        """Something in the foreign group."""
        return self.maker.create(groups=(self.group.reference.ref,), **options)  # type: ignore[arg-type]


def _plain(scene: Scene) -> bytes | None:
    return scene.create(data=SECRET).name


def _of_many_objects(scene: Scene) -> bytes | None:
    created = scene.create(data=b"x")
    for _ in range(MANY):
        scene.maker.call(
            messages.Copy(created.reference.ref, scene.maker.self_ref, persistence=Persistence.DURABLE)
        )
    return created.name


def _not_durable_yet(scene: Scene) -> bytes | None:
    created = scene.create(kind=ObjectType.DURABLE_BLOB, data=SECRET)
    assert scene.node.outcome.wait_for > scene.node.core.state.settled
    return created.name


def _durable(scene: Scene) -> bytes | None:
    created = scene.create(kind=ObjectType.DURABLE_BLOB, data=SECRET)
    scene.node.step(events.Persisted(scene.node.now, scene.node.outcome.ticket))
    return created.name


def _deleted(scene: Scene) -> bytes | None:
    created = scene.create()
    scene.maker.call(messages.Delete(created.reference.ref))
    return created.name


FOREIGN: dict[str, Callable[[Scene], bytes | None]] = {
    "plain": _plain,
    "of-many-objects": _of_many_objects,
    "not-durable-yet": _not_durable_yet,
    "durable": _durable,
    "deleted": _deleted,
    "deterministic": lambda scene: scene.create(name_kind=NameKind.DETERMINISTIC).name,
    "a-group": lambda scene: scene.create(kind=ObjectType.GROUP).name,
    "a-stream": lambda scene: scene.create(kind=ObjectType.SHMEM_STREAM).name,
    "private-memory": lambda scene: scene.create(kind=ObjectType.PRIVMEM_BLOB, data=SECRET).name,
    "a-task": lambda scene: scene.maker.welcome.name,
}
"""Names of things that the asker may not find; the last is in a home group."""

ASKERS = (
    "pure",
    "pure-resolved-group",
    "pure-own-group",
    "pure-of-no-group",
    "stranger",
    "stranger-own-group",
)


def _seen(scene: Scene, asker: Client, call: messages.AnyCall) -> Seen:
    node = scene.node
    event = events.Called(node.now, asker.task, 50, call, PayloadId(9_000))
    outcome, lines = lines_of(lambda: node.core.step(event))
    told: list[object] = []
    replies: list[bytes] = []
    for effect in outcome.after:
        if isinstance(effect, effects.Audit):
            assert len(effect.subject) == 12
            told.append(structs.replace(effect, subject=""))
            continue
        told.append(effect)
        if isinstance(effect, effects.Answer):
            replies.append(encode_reply(effect.seq, effect.result))
    return Seen(
        lines,
        told,
        list(outcome.persist),
        outcome.ticket,
        outcome.wait_for,
        outcome.deadline,
        snapshot(node.core.state),
        replies,
    )


@pytest.mark.parametrize("asker", ASKERS)
@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("shape", ["call", "vector"])
def test_absent_and_foreign_take_the_same_path(foreign: str, asker: str, shape: str) -> None:
    """Lines run, effects, waiting, store operations, tables and reply bytes: all the same for both names."""
    scene = Scene()
    name = FOREIGN[foreign](scene)
    assert name is not None
    client, group = scene.refs[asker]
    seen = []
    for wanted in (name, ABSENT, name, b"\xff" * 32):
        call: messages.AnyCall = messages.Lookup(wanted, group)
        if shape == "vector":
            call = messages.Vector((messages.Lookup(wanted, group), messages.Lookup(ABSENT, group)))
        seen.append(_seen(scene, client, call))
    for other in seen[1:]:
        assert other == seen[0]
    assert seen[0].lines
    assert seen[0].wait_for == 0


def test_the_comparison_sees_a_difference() -> None:
    """The comparison can fail: a name that the asker may find runs other lines and does other things."""
    scene = Scene()
    client, _ = scene.refs["pure-own-group"]
    mine = client.create(data=b"mine")
    assert mine.name is not None
    absent = _seen(scene, client, messages.Lookup(ABSENT))
    present = _seen(scene, client, messages.Lookup(mine.name))
    assert present.lines != absent.lines
    assert present.effects != absent.effects
    assert present.state != absent.state


def test_group_names_presented_in_vain_look_alike() -> None:
    """A session is told the same when it presents the name of a foreign group and that of nothing."""
    node = Node()
    root = node.session()
    group = root.create(ObjectType.GROUP)
    assert group.name is not None
    node.session(STRANGER)  # the first one makes the principal's home group
    seen = []
    for name in (group.name, ABSENT):
        event = events.SessionOpened(node.now, TaskId(77), 1, STRANGER, (Name(name),), "x", 1)
        outcome, lines = lines_of(partial(node.core.step, event))
        audits = [
            (effect.action, effect.outcome, effect.detail)
            for effect in outcome.after
            if isinstance(effect, effects.Audit)
        ]
        welcome = next(effect.result for effect in outcome.after if isinstance(effect, effects.Answer))
        assert isinstance(welcome, messages.Welcome)
        node.core.step(events.Disconnected(node.now, TaskId(77), ""))
        kinds = [type(effect) for effect in outcome.after]
        seen.append((lines, audits, kinds, outcome.persist, outcome.wait_for, len(welcome.groups)))
    assert seen[0] == seen[1]


# -- the host, while the disk is slow -------------------------------------------------------------------
async def test_a_slow_disk_tells_nothing(tmp_path: Path) -> None:
    """While a foreign object waits for the disk, both names are answered at once, with the same bytes."""
    store = GatedStore()
    list(store.recover())
    audit = AuditLog(tmp_path / "audit")
    owner, stranger = RecordingChannel(), RecordingChannel()
    async with trio.open_nursery() as nursery:
        host = NodeHost(
            load(tmp_path, environ={}),
            store,
            audit,
            NoTasks(),
            nursery,
            complete=lambda info: info,
            core=Core(Entropy(), OWNER),
        )
        try:
            for number, principal, channel in ((1, OWNER, owner), (2, STRANGER, stranger)):
                task = TaskId(number)
                host.pages.open(task)
                host.outbox.open(task, channel)  # type: ignore[arg-type] # all that the outbox asks of it
                host.driver.feed(events.SessionOpened(1, task, 1, principal, (), "x", 1))
            await host.driver.wait_idle()
            welcome = owner.replies[0][1]
            assert isinstance(welcome, messages.Welcome)
            assert welcome.home is not None
            assert welcome.name is not None
            name = deterministic_name(Name(welcome.name), 0)
            store.gate.clear()
            call = messages.Create(
                ObjectType.DURABLE_BLOB, (welcome.home.ref,), NameKind.DETERMINISTIC, data=SECRET
            )
            host.driver.call(TaskId(1), 2, call)
            assert len(owner.replies) == 1, "the creation was answered before it was durable"
            before = len(stranger.replies)
            for wanted in (name, ABSENT, name, ABSENT):
                host.driver.call(TaskId(2), 7, messages.Lookup(wanted))
            told = stranger.replies[before:]
            assert len(told) == 4, "an answer waits for the disk"
            assert len(set(map(repr, told))) == 1
            store.gate.set()
            await host.driver.wait_idle()
            assert isinstance(owner.replies[1][1], messages.Created)
            assert owner.replies[1][1].name == name
        finally:
            store.gate.set()
            nursery.cancel_scope.cancel()
    await host.aclose()
    audit.close()


# -- the node, from outside -----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A node that another user may use too, in a folder that everybody can enter."""
    folder = Path(tempfile.mkdtemp(prefix="dios-"))
    folder.chmod(0o711)
    try:
        flags = {"socket": str(folder / "open.sock"), "allowed_uids": str(OTHER_USER)}
        with open_stage(folder, **flags) as opened, opened.attempt():
            yield opened
    finally:
        shutil.rmtree(folder)


@pytest.fixture(params=["task", "other-user"])
def asked(stage: Stage, request: pytest.FixtureRequest) -> Iterator[Callable[[messages.AnyCall], bytes]]:
    """Somebody who makes calls, and gets the bytes of the replies."""
    if request.param == "other-user":
        with _as_user(OTHER_USER):
            client = RawClient(stage.running.running.socket)
        with client:
            yield lambda call: _bytes_for(client, call)
        return
    yield stage.mallory.bytes_for


@contextmanager
def _as_user(uid: int) -> Iterator[None]:
    """Be another user for as long as it takes to connect: the node asks the system who did."""
    before = os.geteuid()
    try:
        os.seteuid(uid)
    except PermissionError as error:
        pytest.skip(f"this user cannot become another: errno {error.errno}")
    try:
        yield
    finally:
        os.seteuid(before)


def _bytes_for(client: RawClient, call: messages.AnyCall) -> bytes:
    client.channel.send(encode_request(1 << 20, call))
    return client.channel.receive(20)[0]


@pytest.mark.parametrize("shape", ["call", "vector"])
def test_reply_bytes_are_the_same(
    stage: Stage, asked: Callable[[messages.AnyCall], bytes], shape: str
) -> None:
    """Over the socket, for tasks and other users: the same bytes for an absent name and every foreign one."""
    victim = stage.victim
    group = victim.ask(messages.Created, messages.Create(ObjectType.GROUP, (victim.own_group,)))
    inside = victim.create(SECRET, ObjectType.DURABLE_BLOB, group.reference.ref)
    names = [stage.secret.name, group.name, inside.name, victim.welcome.name]
    replies = set()
    for name in (ABSENT, *names, b"\xff" * 32):
        assert name is not None
        call: messages.AnyCall = messages.Lookup(name)
        if shape == "vector":
            call = messages.Vector((messages.Lookup(name), messages.Stat(1), messages.Lookup(name, limit=1)))
        replies.add(asked(call))
    assert len(replies) == 1
    victim.ask(messages.Done, messages.Delete(inside.reference.ref))


def test_reply_bytes_in_a_group_merely_resolved(stage: Stage) -> None:
    """Over the socket, with the reference to a group that one merely resolved: the same bytes."""
    common = stage.director.create_group()
    maker, other = stage.puppet("maker", common), stage.puppet("other", common)
    group = maker.ask(messages.Created, messages.Create(ObjectType.GROUP, (maker.own_group,)))
    inside = maker.create(SECRET, ObjectType.SHMEM_BLOB, group.reference.ref)
    ref = other.finds(group.name)[0].ref
    assert inside.name is not None
    replies = {other.bytes_for(messages.Lookup(name, ref)) for name in (inside.name, ABSENT)}
    assert len(replies) == 1
    assert other.finds(inside.name, ref) == ()
    for puppet in (maker, other):
        puppet.end()
    common.destroy()


def test_the_audit_log_tells_them_apart_only_by_fingerprint(stage: Stage) -> None:
    """Both leave the same record but for time and subject: also who reads the log learns no more from one."""
    records = []
    for name in (stage.secret.name, ABSENT):
        assert name is not None
        stage.mallory.bytes_for(messages.Lookup(name))
        records.append(stage.next_record("lookup", stage.mallory))
    first, second = (structs.replace(record, now=0, subject="") for record in records)
    assert first == second
    assert (first.outcome, first.detail) == ("empty", "")
    assert records[0].subject != records[1].subject
