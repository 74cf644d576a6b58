"""Claims about a way between two nodes that is cut while both live, and about a node that was away itself."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import pytest

from dios import limits
from dios.core import events
from dios.errors import Code, ProtocolError
from dios.wire import dcp, messages
from dios.wire.types import NodeStatus, ObjectType
from tests.support.core.cluster import MS, Cluster, ClusterNode, Parcel
from tests.support.core.harness import Client


@pytest.fixture
def scene() -> tuple[Cluster, ClusterNode, Client, messages.Reference]:
    """Three nodes, and a session of the first that refers to an object of the second."""
    cluster = Cluster()
    here, there, _ = cluster.nodes
    session = cluster.session(here)
    created = cluster.session(there).create(ObjectType.SHMEM_BLOB, data=b"bytes")
    reply = cluster.call(session, messages.Lookup(created.name or b""))
    assert isinstance(reply, messages.References)
    return cluster, there, session, reply.references[0]


def _silence(cluster: Cluster, there: ClusterNode) -> None:
    """Cut the way between the first node and another, without a word from the system."""
    cluster.cut.add(frozenset({cluster.nodes[0].node, there.node}))


def test_repeats_come_less_and_less_often(
    scene: tuple[Cluster, ClusterNode, Client, messages.Reference],
) -> None:
    """The pause doubles with each repeat of a request, up to a bound."""
    cluster, there, session, reference = scene
    sent_at: list[int] = []

    def note(parcel: Parcel) -> bool:
        is_request = parcel.to == there.node and isinstance(parcel.message, dcp.Ask)
        if is_request:
            sent_at.append(cluster.now)
        return is_request

    cluster.drop = note
    session.send(messages.ReadOnce(reference.ref))
    cluster.settle()
    cluster.advance(3 * limits.DCP_REPEAT_MS_MAX, 10)
    pauses = [(later - sooner) // MS for sooner, later in pairwise(sent_at)]
    ideal = [min(limits.DCP_REPEAT_MS_MIN << number, limits.DCP_REPEAT_MS_MAX) for number in range(4)]
    assert pauses[:4] == pytest.approx(ideal, abs=20)


def test_who_is_not_heard_is_waited_for_once(
    scene: tuple[Cluster, ClusterNode, Client, messages.Reference],
) -> None:
    """The first call fails after a bounded silence, the next at once, though others hear the node."""
    cluster, there, session, reference = scene
    _silence(cluster, there)
    began = cluster.now
    failure = cluster.call(session, messages.ReadOnce(reference.ref))
    assert isinstance(failure, messages.Failure)
    assert failure.code == Code.EHOSTUNREACH
    assert cluster.now - began <= (limits.DCP_PATIENCE_MS + 2 * limits.DCP_REPEAT_MS_MAX) * MS
    again = session.answer(session.send(messages.ReadOnce(reference.ref)))
    assert isinstance(again, messages.Failure)
    members = cluster.nodes[0].core.state.cluster
    assert members is not None
    assert members.membership.members[there.node].status is NodeStatus.ALIVE


def test_a_word_is_enough_to_be_asked_again(
    scene: tuple[Cluster, ClusterNode, Client, messages.Reference],
) -> None:
    """As soon as anything is heard of the node, calls go there again."""
    cluster, there, session, reference = scene
    _silence(cluster, there)
    cluster.call(session, messages.ReadOnce(reference.ref))
    cluster.cut.clear()
    cluster.advance(2_000)
    assert isinstance(cluster.call(session, messages.ReadOnce(reference.ref)), messages.Buffer)


def _pause(cluster: Cluster, there: ClusterNode, *, begins: bool, refused: bool = False) -> None:
    """Let a node fall silent after it has said that it begins to replace its program, or does not.

    With ``refused`` its process has ended since, so that its machine refuses connections.
    """
    for node in cluster.nodes:
        if node is not there:
            cluster.cut.add(frozenset({node.node, there.node}))
            node.step(events.PeerPaused(node.now, there.node, there.epoch, begins=begins))
            node.step(
                events.PeerDown(
                    node.now, there.node, there.epoch, "its program was replaced", refused=refused
                )
            )


@pytest.mark.parametrize("begins", [True, False])
def test_a_node_that_replaces_its_program_is_waited_for(
    scene: tuple[Cluster, ClusterNode, Client, messages.Reference], *, begins: bool
) -> None:
    """A call waits out a silence that was announced, also one that no node would survive otherwise."""
    cluster, there, session, reference = scene
    _pause(cluster, there, begins=begins)
    seq = session.send(messages.ReadOnce(reference.ref))
    cluster.advance(limits.CONTINUATION_PATIENCE_MS - 1_000)
    assert (session.answer(seq) is None) == begins
    cluster.cut.clear()
    for node in cluster.nodes:
        if node is not there:
            cluster.connect(node, there)
    if begins:
        assert isinstance(cluster.wait(session, seq), messages.Buffer)
        assert _status(cluster, there) is NodeStatus.ALIVE


@pytest.mark.parametrize("refused", [False, True])
def test_a_node_that_never_comes_back_is_dead(
    scene: tuple[Cluster, ClusterNode, Client, messages.Reference], *, refused: bool
) -> None:
    """The patience with an announced silence ends, at once if the process has certainly ended."""
    cluster, there, session, reference = scene
    _pause(cluster, there, begins=True, refused=refused)
    seq = session.send(messages.ReadOnce(reference.ref))
    failure = cluster.wait(session, seq, (0 if refused else limits.CONTINUATION_PATIENCE_MS) + 5_000)
    assert isinstance(failure, messages.Failure)
    assert failure.code == Code.EHOSTUNREACH
    assert _status(cluster, there) is NodeStatus.DEAD


def test_an_earlier_start_excuses_nothing(
    scene: tuple[Cluster, ClusterNode, Client, messages.Reference],
) -> None:
    """A notice of a connection that belonged to another start of the node is void."""
    cluster, there, _, _ = scene
    here = cluster.nodes[0]
    here.step(events.PeerPaused(here.now, there.node, there.epoch + 1, begins=True))
    members = here.core.state.cluster
    assert members is not None
    assert members.peers[there.node].excused_until == 0


def _status(cluster: Cluster, there: ClusterNode) -> NodeStatus:
    members = cluster.nodes[0].core.state.cluster
    assert members is not None
    return members.membership.members[there.node].status


def test_who_was_away_itself_blames_nobody(
    scene: tuple[Cluster, ClusterNode, Client, messages.Reference],
) -> None:
    """A node that was stopped for a minute in the middle of a call gets its answer when it goes on."""
    cluster, _, session, reference = scene
    here = cluster.nodes[0]
    seq = session.send(messages.ReadOnce(reference.ref))
    cluster.wire.clear()  # lost
    here.now += 60_000 * MS
    here.step(events.TimerFired(here.now))
    cluster.now = here.now
    assert isinstance(cluster.wait(session, seq), messages.Buffer)


def _question(cluster: Cluster, there: ClusterNode) -> int:
    """The number of the only request that waits for an answer of that node."""
    members = cluster.nodes[0].core.state.cluster
    assert members is not None
    (number,) = members.peers[there.node].asked
    return number


def test_what_is_on_its_way_is_waited_for(
    scene: tuple[Cluster, ClusterNode, Client, messages.Reference],
) -> None:
    """While bytes of a request are on their way it is not repeated and not given up; afterwards it is."""
    cluster, there, session, reference = scene
    here = cluster.nodes[0]
    asks: list[Parcel] = []

    def lost(parcel: Parcel) -> bool:
        asked = isinstance(parcel.message, dcp.Ask) and isinstance(parcel.message.body, dcp.Forward)
        if asked:
            asks.append(parcel)
        return asked

    cluster.drop = lost
    seq = session.send(messages.ReadOnce(reference.ref))
    cluster.settle()
    number = _question(cluster, there)
    for _ in range(3 * limits.DCP_UNCONFIRMED_MS // limits.DCP_REPEAT_MS_MAX):
        here.step(events.UnderWay(here.now, there.node, number))
        seen = len(asks)
        cluster.advance(limits.DCP_REPEAT_MS_MAX - 100, 100)
        assert len(asks) == seen, "nobody asks again for what comes"
        cluster.advance(200, 100)
    assert session.answer(seq) is None
    here.step(events.UnderWay(here.now, there.node, number + 1))
    here.step(events.UnderWay(here.now, here.node, number))
    failure = cluster.wait(session, seq, limits.DCP_UNCONFIRMED_MS + 2_500)
    assert isinstance(failure, messages.Failure)
    assert failure.code == Code.EHOSTUNREACH


def test_bytes_under_way_do_not_hide_that_a_way_is_cut(
    scene: tuple[Cluster, ClusterNode, Client, messages.Reference],
) -> None:
    """A node of which nothing is heard is out of reach, though bytes for it still wait to be sent."""
    cluster, there, session, reference = scene
    here = cluster.nodes[0]
    _silence(cluster, there)
    began = cluster.now
    seq = session.send(messages.ReadOnce(reference.ref))
    cluster.settle()
    number = _question(cluster, there)
    while session.answer(seq) is None and cluster.now - began < 10 * limits.DCP_UNCONFIRMED_MS * MS:
        here.step(events.UnderWay(here.now, there.node, number))
        cluster.advance(limits.DCP_REPEAT_MS_MAX + 100, 100)
    assert isinstance(session.answer(seq), messages.Failure)
    assert cluster.now - began <= (limits.DCP_PATIENCE_MS + 2 * limits.DCP_REPEAT_MS_MAX) * MS


def _open(cluster: Cluster, session: Client, there: ClusterNode) -> int:
    """A request to the other node that waits there for ever; its number."""
    session.send(messages.ReadOnce(_task_of(cluster, session, there)))
    cluster.settle()
    return _question(cluster, there)


def _task_of(cluster: Cluster, session: Client, there: ClusterNode) -> int:
    """A reference to a session of the other node, whose end can be waited for."""
    other = cluster.session(there)
    reply = cluster.call(session, messages.Lookup(other.welcome.name))
    assert isinstance(reply, messages.References)
    return reply.references[0].ref


def test_a_node_reports_the_requests_that_wait_there(
    scene: tuple[Cluster, ClusterNode, Client, messages.Reference],
) -> None:
    """Reports come less and less often, however many requests wait, and these are not repeated."""
    cluster, there, session, _ = scene
    target = _task_of(cluster, session, there)
    for _ in range(20):
        session.send(messages.ReadOnce(target))
    cluster.settle()
    reports: list[dcp.Working] = []
    repeats = 0

    def count(parcel: Parcel) -> bool:
        nonlocal repeats
        if isinstance(parcel.message, dcp.PeerReply) and isinstance(parcel.message.result, dcp.Working):
            reports.append(parcel.message.result)
        repeats += isinstance(parcel.message, dcp.Ask) and isinstance(parcel.message.body, dcp.Forward)
        return False

    cluster.drop = count
    cluster.advance(3_000, 50)
    reports.clear()
    repeats = 0
    cluster.advance(3 * limits.DCP_WORKING_PERIOD_MS_MAX, 50)
    assert 2 <= len(reports) <= 4
    assert {len(report.also) for report in reports} == {19}
    assert not repeats


def test_reports_about_other_requests_change_nothing(
    scene: tuple[Cluster, ClusterNode, Client, messages.Reference],
) -> None:
    """A report of a request that is settled is ignored; one of a number never used is refused whole."""
    cluster, there, session, _ = scene
    here = cluster.nodes[0]
    number = _open(cluster, session, there)
    members = here.core.state.cluster
    assert members is not None
    request = members.peers[there.node].asked[number]
    settled = dcp.PeerReply(number - 1, dcp.Working((number - 2, 0)))
    here.take(Parcel(there.node, here.node, there.epoch, settled, b""))
    assert not request.confirmed
    for wrong in (
        dcp.PeerReply(number, dcp.Working((number, number + 1))),
        dcp.PeerReply(number + 1, dcp.Working()),
    ):
        event = events.Received(here.now, there.node, there.epoch, wrong)
        with pytest.raises(ProtocolError, match="never made"):
            here.core.step(event)
        assert not request.confirmed


def test_reports_of_a_third_node_are_not_believed(
    scene: tuple[Cluster, ClusterNode, Client, messages.Reference],
) -> None:
    """A node cannot keep a request to another node waiting by reporting that request's number."""
    cluster, there, session, reference = scene
    here, _, third = cluster.nodes
    _silence(cluster, there)
    seq = session.send(messages.ReadOnce(reference.ref))
    cluster.settle()
    number = _question(cluster, there)
    for _ in range(40):
        lie = dcp.PeerReply(number, dcp.Working((number,)))
        with contextlib.suppress(ProtocolError):  # this node made no such request there
            here.step(events.Received(here.now, third.node, third.epoch, lie))
        cluster.advance(500, 100)
    failure = session.answer(seq)
    assert isinstance(failure, messages.Failure)
    assert failure.code == Code.EHOSTUNREACH
