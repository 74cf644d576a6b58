"""Two real nodes over real connections: bytes of every size, streams, and what a killed node costs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import dios
from dios import limits
from dios.node import local_cluster
from dios.node.local_cluster import LocalCluster, LocalNode
from dios.wire.messages import WriteOnce
from dios.wire.types import Flag
from tests.support.node.running_node import exists, wait_until

SIZES = (
    0,
    1,
    limits.INLINE_BYTES_MAX,
    limits.INLINE_BYTES_MAX + 1,
    limits.DCP_INLINE_BYTES_MAX + 1,
    limits.DATA_PIECE_BYTES * 3 + 17,
    20 * limits.MIB + 5,
)
WAIT_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two nodes, for all tests of this file."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "1"}
    live_cluster = local_cluster.make(tmp_path_factory.mktemp("two") / "cluster", nodes=2, settings=settings)
    try:
        local_cluster.start(live_cluster)
        yield live_cluster
    finally:
        local_cluster.stop(live_cluster)


def at(node: LocalNode) -> dios.Node:
    """A session there."""
    return dios.connect(str(node.socket))


@pytest.fixture
def near(cluster: LocalCluster) -> Iterator[dios.Node]:
    """A session at the first node."""
    with at(cluster.nodes[0]) as session:
        yield session


@pytest.fixture
def far(cluster: LocalCluster) -> Iterator[dios.Node]:
    """A session at the second node."""
    with at(cluster.nodes[1]) as session:
        yield session


def blob(session: dios.Node, data: bytes, kind: dios.ObjectType = dios.ObjectType.SHMEM_BLOB) -> bytes:
    """The name of a fresh object with these bytes."""
    assert session.home is not None
    reference = session.create(kind, data=data, groups=[session.home])
    assert reference.name is not None
    return reference.name


def reference_to(session: dios.Node, name: bytes) -> dios.Reference:
    """The reference to the only object of that name."""
    (reference,) = session.lookup(name)
    return reference


def pattern(size: int) -> bytes:
    """Bytes of which no two places look alike."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def test_a_node_starts_no_limbo_task_for_another(cluster: LocalCluster, near: dios.Node) -> None:
    """By default only users of its own machine may leave the sandbox there."""
    for host in ("", cluster.nodes[0].name):
        assert near.run(b"", host=host, brand=dios.Brand.LIMBO).wait(WAIT_S).ok
    with pytest.raises(dios.NotPermittedError, match="limbo_from_nodes"):
        near.run(b"", host=cluster.nodes[1].name, brand=dios.Brand.LIMBO)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", [dios.ObjectType.SHMEM_BLOB, dios.ObjectType.DURABLE_BLOB])
def test_bytes_go_both_ways(near: dios.Node, far: dios.Node, kind: dios.ObjectType, size: int) -> None:
    """What one node's object holds is read through the other, and what is written there is in it."""
    name = blob(near, pattern(size), kind)
    there = reference_to(far, name)
    assert there.node != near.info().node
    assert there.read_bytes() == pattern(size)
    there.write_bytes(pattern(size)[::-1])
    assert reference_to(near, name).read_bytes() == pattern(size)[::-1]
    assert there.read_bytes() == pattern(size)[::-1]


@pytest.mark.parametrize("writer", ["near", "far", "both"])
@pytest.mark.parametrize("size", [1_000, 3 * limits.MIB])
@pytest.mark.parametrize("kind", [dios.ObjectType.SHMEM_BLOB, dios.ObjectType.DURABLE_BLOB])
def test_a_read_under_a_lease_misses_no_write(
    near: dios.Node, far: dios.Node, kind: dios.ObjectType, size: int, writer: str
) -> None:
    """A node that answers repeated reads itself gives what was written, by whichever node."""
    name = blob(near, pattern(size), kind)
    here, there = reference_to(near, name), reference_to(far, name)
    for _ in range(3):
        assert there.read_bytes() == pattern(size)
    before = here.v_r
    for _ in range(5):
        assert there.read_bytes() == pattern(size)
    assert here.v_r == before  # so that these reads were no calls
    if writer == "both":
        with here.write() as buffer:
            buffer.view[:size] = bytes(size)
        there.write_bytes(pattern(size)[::-1])
    else:
        (here if writer == "near" else there).write_bytes(pattern(size)[::-1])
    assert there.read_bytes() == here.read_bytes() == pattern(size)[::-1]


def test_a_vector_of_writes_waits_for_a_lease(near: dios.Node, far: dios.Node) -> None:
    """The bytes of each of its calls are kept until the lease was returned."""
    references = [reference_to(near, blob(near, pattern(100 + number))) for number in range(3)]
    there = reference_to(far, references[1].name or b"")
    for _ in range(4):
        assert there.read_bytes() == pattern(101)
    flags = int(Flag.NONE)
    near.vector(
        [
            WriteOnce(reference.ref, bytes([place]) * 10, flags=flags)
            for place, reference in enumerate(references)
        ]
    )
    assert there.read_bytes()[:10] == bytes([1]) * 10
    assert [reference.read_bytes()[:10] for reference in references] == [
        bytes([place]) * 10 for place in range(3)
    ]


@pytest.mark.parametrize("size", [1_000, 3 * limits.MIB])
def test_a_buffer_is_written_and_committed_from_afar(near: dios.Node, far: dios.Node, size: int) -> None:
    """A writer on another node finds the old bytes in its buffer, changes some, and commits them."""
    name = blob(near, pattern(size))
    with reference_to(far, name).write() as buffer:
        assert bytes(buffer.view[:size]) == pattern(size)
        buffer.view[10:13] = b"new"
    expected = pattern(size)[:10] + b"new" + pattern(size)[13:]
    assert reference_to(near, name).read_bytes() == expected
    with reference_to(far, name).read() as buffer:
        assert bytes(buffer.view) == expected


def test_many_readers_at_once(near: dios.Node, cluster: LocalCluster) -> None:
    """Readers on the other node, each with a connection of its own, all get whole bytes."""
    names = [blob(near, bytes([number]) * (limits.MIB + number)) for number in range(8)]

    def read(number: int) -> bool:
        with at(cluster.nodes[1]) as session:
            reference = reference_to(session, names[number])
            wanted = bytes([number]) * (limits.MIB + number)
            return all(reference.read_bytes() == wanted for _ in range(5))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


def test_a_stream_between_nodes(near: dios.Node, far: dios.Node) -> None:
    """One session writes into a stream at its node, another reads it at the other node, to its end."""
    assert near.home is not None
    stream = near.create(dios.ObjectType.SHMEM_STREAM, groups=[near.home])
    assert isinstance(stream, dios.Stream)
    assert stream.name is not None
    there = reference_to(far, stream.name)
    assert isinstance(there, dios.Stream)
    messages = [pattern(size) for size in (0, 1, 5_000, 3 * limits.MIB)] * 3

    def write() -> None:
        with stream.writer as writer:
            for message in messages:
                writer.send(message, WAIT_S)

    thread = threading.Thread(target=write)
    thread.start()
    with there.reader as reader:
        assert [reader.receive(WAIT_S) for _ in messages] == messages
        with pytest.raises(dios.EndOfStreamError):
            reader.receive(WAIT_S)
    thread.join()


def test_reading_leaves_nothing_behind(near: dios.Node, far: dios.Node, cluster: LocalCluster) -> None:
    """However often large objects are read across nodes, neither node holds more descriptors for it."""
    reference = reference_to(far, blob(near, pattern(limits.MIB)))
    for _ in range(5):
        reference.read_bytes()
    before = [descriptors(node) for node in cluster.nodes]
    for _ in range(100):
        reference.read_bytes()
    for node, held in zip(cluster.nodes, before, strict=True):
        wait_until(lambda node=node, held=held: descriptors(node) <= held + 2, "no more are held")


def test_a_node_describes_itself_to_other_nodes(
    near: dios.Node, far: dios.Node, cluster: LocalCluster
) -> None:
    """A session at one node gets the version, the folder and the counts of the other one."""
    kept = [near.create(dios.ObjectType.SHMEM_BLOB) for _ in range(3)]
    told, own = far.info(host=near.self.node), near.info()
    assert told.node == own.node == str(cluster.nodes[0].data) != far.info().node
    assert (told.version, told.guarantees, told.templates) == (own.version, own.guarantees, own.templates)
    assert told.counts["objects"] == own.counts["objects"] != far.info().counts["objects"]
    del kept


def descriptors(node: LocalNode) -> int:
    """How many descriptors a node holds."""
    return len(list(Path(f"/proc/{pid_of(node)}/fd").iterdir()))


def pid_of(node: LocalNode) -> int:
    """Its process."""
    return int((node.data / "node.pid").read_text())


def test_a_killed_node_is_out_of_reach_until_it_is_back(cluster: LocalCluster, far: dios.Node) -> None:
    """Calls on objects of a killed node fail as unreachable; what is durable is there when it is back."""
    node = cluster.nodes[0]
    with at(node) as session:
        name = blob(session, b"kept", dios.ObjectType.DURABLE_BLOB)
    reference = reference_to(far, name)
    pid = pid_of(node)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not exists(pid), "it is gone")
    with pytest.raises(dios.UnreachableError):
        reference.read_bytes()
    local_cluster.start(cluster)
    wait_until(lambda: len(far.lookup(name)) == 1, "it is found again")
    assert reference_to(far, name).read_bytes() == b"kept"


# -- kept versions --------------------------------------------------------------------------------------
def transfers_to(session: dios.Node) -> int:
    """The number of answers of other nodes that have brought bytes into the node's cache, or past it."""
    return session.info().counts["reads_into_cache"]


@pytest.mark.parametrize("at_once", [False, True])
def test_readers_of_one_node_cost_one_transfer(near: dios.Node, cluster: LocalCluster, at_once: bool) -> None:  # noqa: FBT001 - a case
    """The bytes of a large object come to a node once, however many of its tasks read them, and when."""
    data = os.urandom(20 * limits.MIB)
    name = blob(near, data)
    sessions = [at(cluster.nodes[1]) for _ in range(10)]
    try:
        before, arrived = transfers_to(sessions[0]), sessions[0].info().counts["peer_bytes_received"]
        references = [reference_to(session, name) for session in sessions]
        with ThreadPoolExecutor(10 if at_once else 1) as threads:
            assert all(
                got == data for got in threads.map(lambda reference: reference.read_bytes(), references)
            )
        assert transfers_to(sessions[0]) == before + 1
        assert sessions[0].info().counts["peer_bytes_received"] - arrived < 2 * len(data)
        reference_to(near, name).write_bytes(data[::-1])
        assert references[5].read_bytes() == data[::-1]
    finally:
        for session in sessions:
            session.close()


def test_requests_map_the_kept_bytes(near: dios.Node, far: dios.Node, cluster: LocalCluster) -> None:
    """A request with a buffer gets the bytes that another task has read, until others are written."""
    data = os.urandom(limits.MIB)
    name = blob(near, data)
    with at(cluster.nodes[1]) as other:
        assert reference_to(other, name).read_bytes() == data
        before = transfers_to(far)
        reference = reference_to(far, name)
        with reference.read() as buffer:
            assert bytes(buffer.view) == data
        assert transfers_to(far) == before
        reference_to(near, name).write_bytes(data[::-1])
        with reference.read() as buffer:
            assert bytes(buffer.view) == data[::-1]
