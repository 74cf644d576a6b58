"""The thesis' calls between machines, on five real nodes in two racks: the smallest cluster with an index."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import dios
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster, LocalNode
from dios.transport.identity import identity
from dios.transport.identity.identity import bare_context, load_own
from dios.wire import messages
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

NODES = 5
ATTEMPTS = 20
"""Measurements, of which the least counts: nodes also send messages of their own."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Five nodes without coordinators."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "1", "coordinator": "off"}
    live_cluster = local_cluster.make(
        tmp_path_factory.mktemp("five") / "cluster", nodes=NODES, racks=2, settings=settings
    )
    try:
        local_cluster.start(live_cluster)
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


@pytest.fixture(scope="module")
def nodes(cluster: LocalCluster) -> Iterator[list[dios.Node]]:
    """A session at each node, when all nodes know each other."""
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(dios.connect(str(node.socket))) for node in cluster.nodes]
        wait_until(lambda: all(knows_all(session) for session in sessions), "all nodes know each other")
        yield sessions


def knows_all(session: dios.Node) -> bool:
    """Return True if its node takes all nodes for alive."""
    return [member.status for member in session.nodes()] == [dios.NodeStatus.ALIVE] * NODES


def blob(session: dios.Node, data: bytes, kind: dios.ObjectType = dios.SHMEM_BLOB, host: str = "") -> bytes:
    """The name of a fresh object."""
    assert session.home is not None
    reference = session.create(kind, groups=[session.home], data=data, host=host)
    assert reference.name is not None
    return reference.name


def the(session: dios.Node, name: bytes) -> dios.Reference:
    """The reference to the only object of a name."""
    (reference,) = session.lookup(name)
    return reference


def messages_of(session: dios.Node, call: Callable[[], object]) -> int:
    """The least number of messages to other nodes that a call takes."""
    counts = []
    for _ in range(ATTEMPTS):
        before = session.info().counts["peer_messages_sent"]
        call()
        counts.append(session.info().counts["peer_messages_sent"] - before)
    return min(counts)


def pid_of(node: LocalNode) -> int:
    """Its process."""
    return int((node.data / "node.pid").read_text())


def test_an_object_of_another_node_is_used_like_an_own_one(nodes: list[dios.Node]) -> None:
    """The same calls work from each node; node, rack and proximity are there for those who ask."""
    name = blob(nodes[4], b"here")
    distances = {}
    for number, session in enumerate(nodes, start=1):
        reference = the(session, name)
        assert (reference.node, reference.rack) == ("n5", "r1")
        distances[f"n{number}"] = reference.proximity
        assert reference.read_bytes() == b"here"
    near, far = dios.Proximity.RACK, dios.Proximity.CLUSTER
    assert distances == {"n1": near, "n2": far, "n3": near, "n4": far, "n5": dios.Proximity.NODE}


def test_counters_and_levels_hold_between_nodes(nodes: list[dios.Node]) -> None:
    """A remote request is one of the object's: it counts there, and forbids what its level forbids."""
    name = blob(nodes[0], b"before")
    own, remote = the(nodes[0], name), the(nodes[3], name)
    with remote.write(6, dios.EXCL) as request:
        assert (own.stat().a_w, own.stat().a_r) == (1, 0)
        with pytest.raises(dios.Busy):
            own.read(dios.EXCL)
        own.write_bytes(b"other!")
        request.view[:6] = b"remote"
        with pytest.raises(dios.Conflict):
            request.commit()
        request.release()
    assert own.read_bytes() == b"other!"
    remote.write_bytes(b"AFTER!")
    assert own.read_bytes() == b"AFTER!"
    assert own.stat().v_w == 2


def test_a_lookup_asks_this_node_first_and_then_the_index(nodes: list[dios.Node]) -> None:
    """An own object costs no message; of an unknown name three index nodes are asked, not all the others."""
    own = blob(nodes[0], b"own")
    assert messages_of(nodes[0], lambda: nodes[0].lookup(own, limit=1)) == 0
    # Of the three index nodes of a name this one may be one. At first new members are asked, too.
    wait_until(lambda: messages_of_lookup(nodes[0], os.urandom(32)) == 2, "two other nodes are asked")
    asked = sorted(messages_of_lookup(nodes[0], os.urandom(32)) for _ in range(ATTEMPTS))
    assert asked[ATTEMPTS // 2] <= 3, "nodes also send messages of their own"


def messages_of_lookup(session: dios.Node, name: bytes) -> int:
    """The messages to other nodes while a name is looked up."""
    before = session.info().counts["peer_messages_sent"]
    session.lookup(name)
    return session.info().counts["peer_messages_sent"] - before


def test_a_name_of_another_node_is_remembered(nodes: list[dios.Node]) -> None:
    """From the second lookup on the node that had the name last is asked, with one message."""
    name = blob(nodes[2], b"there")
    assert len(nodes[0].lookup(name, limit=1)) == 1
    assert messages_of(nodes[0], lambda: nodes[0].lookup(name, limit=1)) == 1


def test_replicas_are_one_logical_object(nodes: list[dios.Node]) -> None:
    """Copies on other nodes and disks answer to one name; each has its own persistence, and all the bytes."""
    name = blob(nodes[0], b"data")
    original = the(nodes[0], name)
    original.copy(host="n2", persistence=dios.Persistence.DURABLE)
    original.copy(host="n3")
    for session in nodes:
        references = session.lookup(name)
        places = {(reference.node, reference.persistence) for reference in references}
        assert places == {
            ("n1", dios.Persistence.VOLATILE),
            ("n2", dios.Persistence.DURABLE),
            ("n3", dios.Persistence.VOLATILE),
        }
        assert {reference.read_bytes() for reference in references} == {b"data"}
        # Its own physical object comes first.
        if session is nodes[2]:
            assert references[0].node == "n3"
    original.destroy()
    assert {reference.node for reference in nodes[4].lookup(name)} == {"n2", "n3"}


def test_objects_and_tasks_begin_where_they_are_told(nodes: list[dios.Node]) -> None:
    """Create and run take the name of a node, and refuse an unknown one."""
    assert the(nodes[0], blob(nodes[0], b"x", host="n4")).node == "n4"
    program = b"import dios; print(dios.connect().self.node)"
    for host in ("n1", "n5"):
        with nodes[1].run(program, host=host) as task, task.console() as console:
            assert b"".join(console).strip().decode() == host
            assert task.wait(30).ok
    with nodes[1].run(program, local=True) as task:
        assert task.node == "n2"
    for call in (lambda: nodes[0].run(program, host="n9"), lambda: blob(nodes[0], b"x", host="n9")):
        with pytest.raises(dios.UnreachableError):
            call()


def test_a_call_takes_one_round_trip_to_one_node(nodes: list[dios.Node]) -> None:
    """A compound write is one message, whatever the number of nodes; its three single calls are three."""
    remote = the(nodes[0], blob(nodes[1], b"x" * 100))

    def write_once() -> None:
        answer = nodes[0].vector([messages.WriteOnce(remote.ref, b"y" * 100)])[0]
        assert not isinstance(answer, dios.DiosError)

    def acquire_commit_release() -> None:
        acquired = nodes[0].vector([messages.AcquireWrite(remote.ref, 100)])[0]
        assert not isinstance(acquired, dios.DiosError)
        buffer = acquired[0].buffer  # type: ignore[union-attr] # of an acquire
        for call in (messages.CommitWrite(remote.ref, buffer), messages.ReleaseWrite(remote.ref, buffer)):
            assert not isinstance(nodes[0].vector([call])[0], dios.DiosError)

    assert messages_of(nodes[0], write_once) == 1
    assert messages_of(nodes[0], acquire_commit_release) == 3


def test_no_node_waits_for_another_that_hangs(cluster: LocalCluster, nodes: list[dios.Node]) -> None:
    """With two of five nodes frozen the other three create, write and find each other's objects."""
    names = [blob(session, b"before") for session in nodes]
    frozen = [pid_of(cluster.nodes[number]) for number in (3, 4)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        for session in nodes[:3]:
            for name in names[:3]:
                session.lookup(name, limit=1)[0].write_bytes(b"during")
            assert the(session, blob(session, b"new")).read_bytes() == b"new"
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: all(knows_all(session) for session in nodes), "all nodes know each other again", 60)


def test_a_late_answer_is_of_one_execution(cluster: LocalCluster, nodes: list[dios.Node]) -> None:
    """A write to a frozen node is sent again, answered when the node goes on, and was done once."""
    name = blob(nodes[3], b"before")
    remote, own = the(nodes[0], name), the(nodes[3], name)
    pid = pid_of(cluster.nodes[3])
    answers: list[int | dios.UnreachableError] = []

    def write() -> None:
        try:
            answers.append(remote.write_bytes(b"after!"))
        except dios.UnreachableError as error:
            answers.append(error)

    # On a busy machine the frozen node may be taken for dead, and the call fails.
    before = -1
    for _ in range(5):
        before = own.stat().v_w
        thread = threading.Thread(target=write)
        os.kill(pid, signal.SIGSTOP)
        try:
            thread.start()
            # The first repeat comes after a quarter of a second.
            thread.join(0.6)
        finally:
            os.kill(pid, signal.SIGCONT)
        thread.join(60)
        wait_until(lambda: all(knows_all(session) for session in nodes), "all nodes know each other", 60)
        if answers[-1] == before + 1:
            break
    assert (own.read_bytes(), own.stat().v_w, answers[-1]) == (b"after!", before + 1, before + 1)


def test_a_stranger_between_nodes_gets_no_word_in(cluster: LocalCluster, tmp_path: Path) -> None:
    """A node talks to holders of a certificate of its cluster alone, and they to no stranger."""
    own = identity.load(cluster.nodes[0].data)
    assert own is not None
    stranger = identity.create_cluster(tmp_path / "stranger", name="stranger")

    def hears(member: identity.Identity, authority: bytes) -> bool:
        """Return True if a connection with the certificate of a member gets a first message."""
        context = bare_context(ssl.PROTOCOL_TLS_CLIENT, authority)
        load_own(context, member.chain[:-1], member.key())
        host, _, port = cluster.nodes[1].address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), 30) as sock, context.wrap_socket(sock) as tls:
                return bool(tls.recv(1))
        except (ssl.SSLError, ConnectionError):
            return False

    assert hears(own, own.chain[-1])
    assert not hears(stranger, own.chain[-1]), "a node does not talk to a stranger"
    assert not hears(own, stranger.chain[-1]), "a node is no member of a stranger's cluster"


def test_a_member_that_is_killed_is_missed_by_all(cluster: LocalCluster, nodes: list[dios.Node]) -> None:
    """Nodes hear of each other's death and return by gossip, and then use the member again."""
    os.kill(pid_of(cluster.nodes[4]), signal.SIGKILL)
    wait_until(
        lambda: all(status_of(session, "n5") is dios.NodeStatus.DEAD for session in nodes[:4]),
        "the others know that it is dead",
        60,
    )
    name = blob(nodes[0], b"x")
    assert len(nodes[1].lookup(name)) == 1
    local_cluster.start(cluster)
    wait_until(lambda: all(knows_all(session) for session in nodes[:4]), "it is back", 60)
    with dios.connect(str(cluster.nodes[4].socket)) as back:
        assert the(back, name).read_bytes() == b"x"


def status_of(session: dios.Node, name: str) -> dios.NodeStatus:
    """The status of a node, as a session's node knows it."""
    return next(member.status for member in session.nodes() if member.name == name)
