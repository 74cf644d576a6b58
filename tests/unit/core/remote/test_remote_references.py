"""References across nodes: delegated, taken back, timed, released, kept or lost with nodes (§4.5.3)."""

from __future__ import annotations

import itertools

import pytest

from dios import limits
from dios.core import effects, events, lifetimes
from dios.core.model.records import PhysicalObject
from dios.core.step import Step
from dios.errors import Code
from dios.wire import messages
from dios.wire.types import Flag, ObjectType, Permission, Persistence
from tests.support.core.cluster import MS, Citizen, Cluster, ClusterNode, record_of

READ, DELEGATE, ALL = Permission.READ, Permission.DELEGATE, Permission.ALL
PLACES = list(itertools.product(range(3), repeat=3))


class Friends:
    """A giver, an object and a receiver, each on some node, which know each other."""

    def __init__(self, giver: int = 0, home: int = 1, receiver: int = 2, drift: int = 0) -> None:
        self.cluster = Cluster(drifts={3: drift})
        nodes = self.cluster.nodes
        self.home = nodes[home]
        self.keeper = self.cluster.session(nodes[home])
        self.giver = self.cluster.session(nodes[giver])
        self.receiver = self.cluster.session(nodes[receiver])
        created = self.keeper.create(data=b"shared")
        self.object, self.kept = created.reference.object, created.reference.ref
        (self.given,) = (reference.ref for reference in self.giver.lookup(created.name))
        (self.to,) = (reference.ref for reference in self.giver.lookup(self.receiver.welcome.name))

    def delegate(self, permissions: int = int(ALL), lifetime_ns: int = 0) -> messages.Reference:
        """The giver's reference goes to the receiver; what that is told of it."""
        copy = messages.Copy(self.given, self.to, permissions, lifetime_ns=lifetime_ns)
        self.giver.ask(messages.Done, copy)
        self.cluster.settle()
        return self.receiver.given()

    def holders(self) -> int:
        """How many references the object's own node counts."""
        target = self.home.core.state.objects.get(self.object)  # type: ignore[call-overload]
        return 0 if target is None else len(target.references)

    def nothing_between(self) -> bool:
        """No node stands in for anything any more."""
        states = [node.core.state for node in self.cluster.nodes]
        peers = [
            peer for state in states if state.cluster is not None for peer in state.cluster.peers.values()
        ]
        return not any(peer.proxies or peer.remote_tasks for peer in peers)


def gone(citizen: Citizen, ref: int) -> bool:
    """Whether a reference is no longer there."""
    answer = citizen.call(messages.Stat(ref))
    return isinstance(answer, messages.Failure) and answer.code == Code.EBADF


# -- delegation ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(("giver", "home", "receiver"), PLACES)
def test_delegation_wherever_each_is(giver: int, home: int, receiver: int) -> None:
    """In every placement of giver, object and receiver: it works, narrows, and is taken back by the giver."""
    friends = Friends(giver, home, receiver)
    told = friends.delegate(int(READ | DELEGATE))
    assert told.permissions == READ | DELEGATE
    assert told.object == friends.object
    assert friends.receiver.read(told.ref) == b"shared"
    assert friends.receiver.refused(messages.WriteOnce(told.ref, b"x")) == Code.EPERM
    wider = messages.Copy(told.ref, friends.receiver.self_ref, int(ALL))
    (again,) = friends.receiver.ask(messages.References, wider).references
    assert again.permissions == READ | DELEGATE
    assert friends.giver.ask(messages.Done, messages.Retire(friends.given)).value == 2
    friends.cluster.settle()
    assert gone(friends.receiver, told.ref)
    assert gone(friends.receiver, again.ref)
    assert friends.giver.read(friends.given) == b"shared"
    friends.cluster.advance(100)
    friends.cluster.check()


def test_proximity_is_seen_from_the_receiver() -> None:
    """The same object is near for who is in its rack, and far for who is not."""
    for receiver, expected in ((0, "rack"), (1, "node"), (2, "cluster")):
        friends = Friends(0, 1, receiver)
        told = friends.delegate()
        assert str(told.proximity) == expected
        assert (told.node, told.rack) == ("n2", "r1")


def test_taking_back_reaches_all_descendants() -> None:
    """From giver to receiver to a third on another node: the giver takes both back, with both told."""
    friends = Friends(0, 1, 2)
    first = friends.delegate()
    third = friends.cluster.session(friends.cluster.nodes[1])
    (to,) = friends.receiver.lookup(third.welcome.name)
    friends.receiver.ask(messages.Done, messages.Copy(first.ref, to.ref))
    second = third.given()
    assert friends.giver.ask(messages.Done, messages.Retire(friends.given)).value == 2
    friends.cluster.settle()
    for who, reference in ((friends.receiver, first), (third, second)):
        event = who.event()
        assert isinstance(event, messages.Retired)
        assert event.ref == reference.ref
        assert gone(who, reference.ref)


def test_taking_back_while_the_receiver_is_away() -> None:
    """What was retired while its holder's node could not hear of it is gone when it is back."""
    friends = Friends(0, 1, 2)
    told = friends.delegate()
    friends.cluster.part(friends.cluster.nodes[1], friends.cluster.nodes[2])
    friends.giver.ask(messages.Done, messages.Retire(friends.given))
    friends.cluster.heal()
    friends.cluster.advance(1_000, 100)
    assert gone(friends.receiver, told.ref)
    friends.cluster.check()


@pytest.mark.parametrize("drift", [-3_600_000 * MS, 3_600_000 * MS])
def test_a_lifetime_is_measured_by_the_objects_node(drift: int) -> None:
    """With clocks an hour apart a lifetime of a second is a second, and the holder is told of its end."""
    friends = Friends(0, 1, 2, drift)
    told = friends.delegate(lifetime_ns=1_000 * MS)
    now = friends.cluster.nodes[2].now
    assert now < told.expires_ns <= now + 1_000 * MS
    friends.cluster.advance(500, 50)
    assert friends.receiver.read(told.ref) == b"shared"
    friends.cluster.advance(700, 50)
    event = friends.receiver.event()
    assert isinstance(event, messages.Retired)
    assert event.expired
    assert gone(friends.receiver, told.ref)


# -- release ------------------------------------------------------------------------------------------
def test_references_are_dropped_together_without_waiting_for_other_nodes() -> None:
    """A vector that only drops references to objects of other nodes is answered without these nodes."""
    friends = Friends(0, 1, 2)
    (again,) = friends.giver.ask(
        messages.References, messages.Copy(friends.given, friends.giver.self_ref)
    ).references
    friends.cluster.part(friends.cluster.nodes[0], friends.cluster.nodes[1])
    drops = tuple(messages.Delete(ref, int(Flag.HANDLE_ONLY)) for ref in (friends.given, again.ref))
    seq = friends.giver.send(messages.Vector(drops))
    answer = friends.giver.answer(seq)
    assert isinstance(answer, effects.AnswerVector)
    assert [part.result for part in answer.parts if isinstance(part, effects.Answer)] == [
        messages.Done(1)
    ] * 2
    assert gone(friends.giver, friends.given)


@pytest.mark.parametrize("how", ["deleted", "handle", "session over"])
def test_a_released_reference_counts_no_more(how: str) -> None:
    """Deleted, dropped, or gone with its holder: the object's node counts one less, and none is left."""
    friends = Friends(0, 1, 2)
    told = friends.delegate()
    before = friends.holders()
    if how == "session over":
        friends.receiver.node.step(events.Disconnected(friends.cluster.now, friends.receiver.task))
    else:
        flags = int(Flag.HANDLE_ONLY) if how == "handle" else 0
        friends.receiver.ask(messages.Done, messages.Delete(told.ref, flags))
    friends.cluster.settle()
    assert friends.holders() == before - 1
    for who in (friends.giver, friends.keeper):
        who.node.step(events.Disconnected(friends.cluster.now, who.task))
    friends.receiver.node.step(events.Disconnected(friends.cluster.now, friends.receiver.task))
    friends.cluster.settle()
    assert friends.holders() == 0
    friends.cluster.advance(limits.RECONCILE_PERIOD_MS + limits.RECONCILE_YOUNG_MS + 100, 1_000)
    assert friends.nothing_between()


# -- nodes that go and come ---------------------------------------------------------------------------
def dead(friends: Friends) -> None:
    """The receiver's node cannot be reached by anybody, until it is known to be dead."""
    cluster = friends.cluster
    for node in cluster.nodes[:2]:
        cluster.part(node, cluster.nodes[2])
    cluster.advance(5_000, 100)


def test_requests_of_a_dead_node_are_over_at_once() -> None:
    """What a dead node had under way counts no more: its lock is free. Its references stay a while."""
    friends = Friends(0, 1, 2)
    told = friends.delegate()
    friends.receiver.ask(messages.Buffer, messages.AcquireWrite(told.ref))
    held = friends.holders()
    dead(friends)
    assert friends.keeper.counters(friends.kept)[:2] == (0, 0)
    assert friends.holders() == held
    failure = friends.receiver.ask(messages.Failure, messages.ReadOnce(told.ref))
    assert failure.code == Code.EHOSTUNREACH


def test_a_node_that_returns_in_time_keeps_its_references() -> None:
    """Inside the grace period nothing is dropped: the reference works again without a call."""
    friends = Friends(0, 1, 2)
    told = friends.delegate()
    dead(friends)
    friends.cluster.heal()
    friends.cluster.advance(1_000, 100)
    assert friends.receiver.read(told.ref) == b"shared"
    friends.cluster.check()


def test_a_node_that_returns_too_late_has_lost_them() -> None:
    """After the grace period its references are dropped; when it is back its tasks are told of each."""
    friends = Friends(0, 1, 2)
    told = friends.delegate()
    held = friends.holders()
    dead(friends)
    friends.cluster.advance(limits.REMOTE_TASK_GRACE_MS + 1_000, 500)
    assert friends.holders() == held - 1
    friends.cluster.heal()
    friends.cluster.advance(1_000, 100)
    assert gone(friends.receiver, told.ref)
    event = friends.receiver.event()
    assert isinstance(event, messages.Retired)
    friends.cluster.check()


def restarted(friends: Friends, node: ClusterNode) -> None:
    """The node is started anew, and all meet it again."""
    node.crash()
    for other in friends.cluster.nodes:
        if other is not node:
            friends.cluster.connect(node, other)
            friends.cluster.connect(other, node)
    friends.cluster.settle()
    friends.cluster.advance(1_000, 100)


@pytest.mark.parametrize("persistence", list(Persistence))
def test_references_over_a_restart_of_the_objects_node(persistence: Persistence) -> None:
    """One that was looked up leads to a durable object again, by itself; to a volatile one it is stale."""
    friends = Friends(0, 1, 2)
    durable = persistence is Persistence.DURABLE
    created = friends.keeper.create(
        ObjectType.DURABLE_BLOB if durable else ObjectType.SHMEM_BLOB, data=b"restarted"
    )
    (reference,) = friends.receiver.lookup(created.name)
    restarted(friends, friends.home)
    if durable:
        assert friends.receiver.read(reference.ref) == b"restarted"
        assert friends.receiver.stat(reference.ref).persistence is persistence
    else:
        failure = friends.receiver.ask(messages.Failure, messages.ReadOnce(reference.ref))
        assert failure.code == Code.ESTALE
    friends.cluster.check()


def test_what_was_delegated_is_not_got_back() -> None:
    """After a restart of the object's node it cannot be told what was taken back: a delegated one is gone."""
    friends = Friends(0, 1, 2)
    created = friends.keeper.create(ObjectType.DURABLE_BLOB, data=b"restarted")
    (friends.given,) = (reference.ref for reference in friends.giver.lookup(created.name))
    told = friends.delegate()
    restarted(friends, friends.home)
    assert gone(friends.receiver, told.ref)
    assert friends.giver.read(friends.given) == b"restarted"


def test_a_restarted_holder_holds_nothing() -> None:
    """A node that is started anew has lost its tasks, and the object's node drops what they held at once."""
    friends = Friends(0, 1, 2)
    friends.delegate()
    held = friends.holders()
    restarted(friends, friends.cluster.nodes[2])
    assert friends.holders() == held - 1
    friends.cluster.check()


# -- agreement ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("side", ["holder", "home"])
def test_both_sides_come_to_agree(side: str) -> None:
    """Whichever side knows of a reference alone, it is dropped there when the nodes compare."""
    friends = Friends(0, 1, 2)
    told = friends.delegate()
    friends.cluster.advance(limits.RECONCILE_YOUNG_MS + 100, 1_000)
    local = friends.receiver.node.core.state.tasks[friends.receiver.task]
    table = (local if side == "home" else record_of(friends.receiver, friends.home)).table
    friends.cluster.drop = lambda parcel: True  # noqa: ARG005 - all is lost
    if side == "home":
        friends.receiver.send(messages.Delete(told.ref, int(Flag.HANDLE_ONLY)))
    else:
        friends.keeper.send(messages.Retire(friends.kept, int(Flag.EVERYONE)))
    friends.cluster.settle()
    assert told.ref not in table
    for node, other in ((friends.home, friends.receiver.node), (friends.receiver.node, friends.home)):
        book = node.core.state.cluster
        assert book is not None
        book.peer(other.node).asked.clear()  # nobody says it again
    friends.cluster.drop = lambda parcel: False  # noqa: ARG005 - nothing is
    friends.cluster.advance(limits.RECONCILE_PERIOD_MS + 1_000, 500)
    assert friends.holders() == 2  # the keeper's and the giver's
    assert gone(friends.receiver, told.ref)
    friends.cluster.check()


def test_what_stood_in_before_takes_nothing_along() -> None:
    """A stand-in that is forgotten late, when another stands for the same object, leaves that one alone."""
    cluster = Cluster()
    here, there, _ = cluster.nodes
    session = cluster.session(here)
    created = cluster.session(there).create(ObjectType.SHMEM_BLOB, data=b"x")
    stand_ins: list[PhysicalObject] = []
    for _ in range(2):
        answer = cluster.call(session, messages.Lookup(created.name or b""))
        assert isinstance(answer, messages.References)
        reference = here.core.state.tasks[session.task].table.get(answer.references[0].ref)
        stand_ins.append(reference.object)
        if len(stand_ins) == 1:
            cluster.call(session, messages.Delete(reference.id, int(Flag.HANDLE_ONLY)))
    lifetimes.maybe_collect(Step(here.core.state, here.now), stand_ins[0])
    assert stand_ins[0] is not stand_ins[1]
    cluster.check()


def test_nothing_is_left_for_tasks_of_a_node_that_was_dead_already() -> None:
    """What was meant for a task of a dead node goes with the grace period, though it came after the death."""
    cluster = Cluster()
    here, other, far = cluster.nodes
    session = cluster.session(here)
    stranger = cluster.session(far)
    name = far.core.state.tasks[stranger.task].object.name
    answer = cluster.call(session, messages.Lookup(name or b""))
    assert isinstance(answer, messages.References)
    cluster.part(here, far)
    cluster.part(other, far)
    cluster.advance(3_000)
    created = session.create(ObjectType.SHMEM_BLOB, data=b"x")
    refused = cluster.call(session, messages.Copy(created.reference.ref, answer.references[0].ref))
    assert isinstance(refused, messages.Failure)
    assert refused.code == Code.EHOSTUNREACH
    cluster.advance(limits.REMOTE_TASK_GRACE_MS + 1_000, grain=250)
    assert here.core.state.cluster is not None
    assert not here.core.state.cluster.peers[far.node].remote_tasks
