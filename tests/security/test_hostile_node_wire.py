"""A real node, and one with a valid certificate that sends it lies and rubbish at full speed.

Not for: which connection ends by what (``tests/unit/host/peers/test_peers_hostile.py``), or what lies do to
a core (``tests/fuzz/test_dcp.py``). Here people and other nodes are served meanwhile, and nothing grows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import trio

import dios
from dios.errors import DiosError
from dios.host.audit import reader
from dios.host.peers.link import CONNECTIONS_MAX
from dios.node import daemon, local_cluster
from dios.node.local_cluster import LocalCluster, LocalNode
from dios.transport.identity import identity
from dios.transport.identity.identity import Identity
from dios.transport.tcp.secured import Secured
from dios.transport.tcp.tls import dial
from dios.wire import dcp, messages
from dios.wire.codec import DCP_VERSION
from dios.wire.dcp_frames import encode_frame
from tests.fuzz.dcp import Liar, Pools
from tests.support.node.running_node import wait_until

FRAMES = int(os.environ.get("HOSTILE_FRAMES", "20000"))
BURST = 1_000
GROWN_MIB_MAX = 24
LOG_LINES_MAX = 6
"""Lines of the node's log for each connection of the villain's."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalCluster, Identity]]:
    """Two nodes that run, and the identity of a third of their cluster."""
    settings = {"accept_weaker_sandbox": "yes", "pool_size": "1"}
    whole = local_cluster.make(tmp_path_factory.mktemp("hostile") / "cluster", nodes=3, settings=settings)
    villain = identity.load(whole.nodes[2].data)
    assert villain is not None
    two = replace(whole, nodes=whole.nodes[:2])
    try:
        local_cluster.start(two)
        yield two, villain
    finally:
        local_cluster.stop(two)


_BODIES = (
    dcp.Resolve,
    dcp.Release,
    dcp.TasksEnded,
    dcp.DeliverEvent,
    dcp.ReconcileReferences,
    dcp.Disband,
    dcp.Rows,
)
_CALLS = (
    messages.ReadOnce,
    messages.WriteOnce,
    messages.Stat,
    messages.Select,
    messages.AcquireWrite,
    messages.Cancel,
)


class Storm:
    """What the villain sends: lies about tasks of its own, and of others; some frames are damaged."""

    def __init__(self, me: Identity, target: LocalNode, seed: int) -> None:
        self.me = me
        self.target = target
        self.sent = 0
        self.connections = 0
        self._rng = Random(seed)  # noqa: S311 - repeatable, nothing secret
        pools = Pools()
        pools.add("node", me.node)
        pools.add("task", *range(70_000, 70_020))
        pools.add("ref", *range(80_000, 80_020))
        self._liar = Liar(self._rng, pools)

    def burst(self) -> bytes:
        """Lies that a core looks at, and at the end something that ends the connection."""
        frames = [encode_frame(self._sensible()) for _ in range(BURST)]
        last = encode_frame(self._liar.valid_message())
        place = self._rng.randrange(4, len(last))
        ends = (
            last[:place] + bytes([last[place] ^ 0xFF]) + last[place + 1 :],
            encode_frame(dcp.Gossip(b"\xc1")),
        )
        return b"".join((*frames, *ends))

    def _sensible(self) -> dcp.Message:
        while not _makes_sense(told := self._liar.valid_message()):
            pass
        return told

    async def run(self, frames: int) -> None:
        """Send so many, on as many connections as it takes."""
        end = self.sent + frames
        while self.sent < end:
            async with trio.open_nursery() as nursery:
                line = await dial(self.target.address, self.me, nursery)
                self.connections += 1
                hello = dcp.PeerHello(
                    1, DCP_VERSION, self.me.node, self.connections, self.me.name, "", "127.0.0.1:1"
                )
                line.send_nowait(encode_frame(hello) + self.burst())
                self.sent += BURST
                await _drained(line)
                nursery.cancel_scope.cancel()


def _makes_sense(told: dcp.Message) -> bool:
    """Whether a core would do something with it, and not end the connection."""
    if not isinstance(told, dcp.Ask):
        return False
    if isinstance(told.body, dcp.Forward):
        return isinstance(told.body.call, _CALLS)
    return isinstance(told.body, _BODIES)


async def _drained(line: Secured) -> None:
    try:
        while await line.receive():
            pass
    except (DiosError, OSError):
        pass
    line.close()


def own_memory_mib(node: LocalNode) -> int:
    """What the daemon holds in memory of its own."""
    running = daemon.find(node.socket)
    assert running is not None
    status = Path(f"/proc/{running.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) // 1024


def descriptors(node: LocalNode) -> int:
    """How many the daemon has open."""
    running = daemon.find(node.socket)
    assert running is not None
    return len(list(Path(f"/proc/{running.pid}/fd").iterdir()))


@pytest.mark.extended
def test_a_storm_of_lies_harms_nobody_else(cluster: tuple[LocalCluster, Identity]) -> None:
    """Sessions and other nodes are served rightly all the while; memory and descriptors do not grow."""
    two, villain = cluster
    near, far = two.nodes
    storm = Storm(villain, near, 1)
    served = 0
    with dios.connect(str(near.socket)) as session, dios.connect(str(far.socket)) as other:
        assert session.home is not None
        assert other.home is not None
        mine = session.create(dios.ObjectType.SHMEM_BLOB, data=b"here", groups=[session.home])
        theirs = other.create(dios.ObjectType.SHMEM_BLOB, data=b"there", groups=[other.home])
        assert mine.name is not None
        assert theirs.name is not None

        def live(stop: trio.Event) -> None:
            nonlocal served
            while not stop.is_set():
                for who, name, data in ((session, theirs.name, b"there"), (other, mine.name, b"here")):
                    assert name is not None
                    (handle,) = who.lookup(name)
                    assert handle.read_bytes() == data
                    handle.delete()
                served += 1

        async def attack() -> None:
            stop = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, live, stop)
                await storm.run(FRAMES // 2)
                stop.set()

        trio.run(attack)
        before, open_before, lines = own_memory_mib(near), descriptors(near), log_lines(near)
        connections = storm.connections
        trio.run(attack)
        # A connection may be lost before all of it is read: what counts is what has reached the core.
        for _ in range(FRAMES // BURST):
            if session.info().counts["peer_messages_received"] < FRAMES:
                trio.run(storm.run, BURST)
        received = session.info().counts["peer_messages_received"]
        assert received >= FRAMES, "the storm reached the core"
        assert own_memory_mib(near) - before <= GROWN_MIB_MAX
        assert descriptors(near) - open_before <= 2 * CONNECTIONS_MAX
        assert served > 1
        assert log_lines(near) - lines <= LOG_LINES_MAX * (storm.connections - connections + 10)
        assert {row.name for row in session.nodes() if row.usable} >= {"n1", "n2"}
        assert mine.read_bytes() == b"here"
    assert "Traceback" not in (near.data / daemon.LOG_NAME).read_text()
    wait_until(lambda: denials(near, villain.name) >= storm.connections, "each closing is recorded")


def log_lines(node: LocalNode) -> int:
    """How long the node's log is."""
    return (node.data / daemon.LOG_NAME).read_bytes().count(b"\n")


def denials(node: LocalNode, name: str) -> int:
    """How many records of its audit log say that the villain was denied something."""
    entries = reader.read(node.data / "audit")
    return sum(
        entry.record.outcome == "denied" and entry.record.principal == f"node:{name}" for entry in entries
    )
