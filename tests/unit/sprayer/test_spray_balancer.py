"""The balancer whose servers change while it runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dios.limits import SERVICE_MEMBERS_MAX
from dios.sprayer import OUTSIDE, Batch, Flows, MemoryEngine, Workers, get_five_tuple
from dios.sprayer.functions.balancer import Balancer, Server
from tests.support.sprayer.frames import ACK, SYN, Made, read

SERVICE = ("192.0.2.9", 80)
INNER = "10.1.0.254"
ONE, TWO, THREE = (("10.1.0.1", 8001), ("10.1.0.2", 8002), ("10.1.0.3", 8003))
SIX = ("2001:db8:ffff:ffff:ffff:ffff:ffff:1", 8006)


class Harness:
    """A balancer on two cores, and what it makes of clients."""

    def __init__(self, balancer: Balancer) -> None:
        self.balancer = balancer
        self.workers = Workers(balancer, MemoryEngine([], 2), seed=1, now=50)

    def give(self, frames: Sequence[bytes]) -> dict[int, bytes]:
        """Return the packets that were forwarded from outside, by the number of the frame."""
        steer = [number % 2 for number in range(len(frames))]
        engine = MemoryEngine(frames, 2, sides=[OUTSIDE] * len(frames), steer=steer)
        self.workers.change_engine(engine)
        self.workers.drain()
        return {sent.frame: sent.data for sent in engine.sent()}

    def servers(self, clients: Sequence[Made]) -> list[Server | None]:
        """The server that each client's packet goes to, None for one that is dropped."""
        sent = self.give([client.frame() for client in clients])
        answers = {number: read(data) for number, data in sent.items()}
        return [
            (answers[n].target, answers[n].target_port) if n in answers else None for n in range(len(clients))
        ]


def clients(first: int, count: int, flags: int = SYN) -> list[Made]:
    """Return clients with different ports."""
    return [Made(source="203.0.113.7", source_port=5000 + first + n, flags=flags) for n in range(count)]


def test_who_left_gets_no_new_connections_and_keeps_its_own() -> None:
    """New connections go to the servers of the moment; packets of old ones to where they always went."""
    harness = Harness(Balancer(SERVICE, [ONE, TWO], INNER))
    dealt = harness.servers(clients(0, 40))
    assert set(dealt) == {ONE, TWO}
    harness.balancer.set_servers([TWO, THREE])
    later = harness.servers(clients(100, 40))
    assert {server: later.count(server) for server in set(later)} == {TWO: 20, THREE: 20}
    assert harness.servers(clients(0, 40, ACK)) == dealt
    assert harness.balancer.shares() == {TWO: 40, THREE: 20}


def test_a_place_that_was_somebody_elses_begins_at_nothing() -> None:
    """However often servers change, each is counted with its own connections only."""
    harness = Harness(Balancer(SERVICE, [ONE], INNER))
    for turn in range(SERVICE_MEMBERS_MAX + 50):
        harness.balancer.set_servers([("10.1.1.1", 1 + turn)])
    harness.servers(clients(0, 10))
    assert harness.balancer.shares() == {("10.1.1.1", SERVICE_MEMBERS_MAX + 50): 10}
    harness.balancer.set_servers([THREE])
    harness.balancer.set_servers([("10.1.1.1", 1), THREE])
    assert sum(harness.balancer.shares().values()) == 0


def test_without_servers_connections_are_refused_by_a_cause() -> None:
    """Nobody there is a counted drop, and the next one that comes is dealt to."""
    there: list[Server] = []
    harness = Harness(Balancer(SERVICE, lambda: there, INNER))
    assert harness.servers(clients(0, 5)) == [None] * 5
    assert harness.workers.statistics().causes["no_server"] == 5
    there.append(ONE)
    harness.balancer.manage()
    assert harness.servers(clients(10, 5)) == [ONE] * 5


def test_it_asks_before_the_first_packet_and_leaves_out_what_it_cannot_reach() -> None:
    """The source of servers is asked at the start; IPv6 servers are left out of a service of IPv4."""
    harness = Harness(Balancer(SERVICE, lambda: [SIX, ONE], INNER))
    assert harness.servers(clients(0, 3)) == [ONE] * 3
    harness = Harness(Balancer(("2001:db8::9", 80), lambda: [SIX, ONE], "2001:db8::fe"))
    packets = [replace(client, source="2001:db8:1::7", target="2001:db8::9") for client in clients(0, 3)]
    assert harness.servers(packets) == [SIX] * 3


def test_an_answer_that_fails_changes_nothing_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """An exception of the source of servers is logged, and the known servers stay in use."""
    answers: list[list[Server]] = [[ONE]]

    def ask() -> list[Server]:
        return answers.pop()

    harness = Harness(Balancer(SERVICE, ask, INNER))
    ended = threading.Event()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            harness.workers.tick()
        ended.set()
        harness.workers.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "Balancer.manage: IndexError: pop from empty list"
    ]
    assert harness.servers(clients(0, 3)) == [ONE] * 3


@pytest.mark.parametrize("wrong", [[SIX], [("10.1.0.1", 0)], [("10.1.0.1", 1 + n) for n in range(1025)]])
def test_servers_that_cannot_be_are_refused(wrong: list[Server]) -> None:
    """Another version of IP, no port, or too many: all stays as it was."""
    balancer = Balancer(SERVICE, [ONE], INNER)
    with pytest.raises(ValueError, match=r"IPv4 and a port from 1|at most 1024"):
        balancer.set_servers(wrong)
    assert list(balancer.shares()) == [ONE]
    with pytest.raises(ValueError, match="at least one"):
        Balancer(SERVICE, [], INNER)


class Chooser(Balancer):
    """Chooses a server for every packet, and counts those whose port is not the end of their address."""

    stateless = True

    def prepare(self, cores: int) -> None:
        """Another counter."""
        super().prepare(cores)
        self.halves = self.counters(cores, "chosen", "halves")

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Choose."""
        for packet in batch:
            to, _ = self.choose(get_five_tuple(packet), flows.core)
            self.halves[flows.core, 0] += 1
            if to.target_low & 0xFFFF != to.target_port:
                self.halves[flows.core, 1] += 1


def test_no_core_sees_half_of_a_change() -> None:
    """While servers change as fast as can be, address and port of each choice are those of one server."""
    lists = [[(f"10.{n}.{n}.{host}", 256 * n + host) for host in range(1, 50 + n)] for n in range(1, 9)]
    balancer = Chooser(SERVICE, lists[0], INNER)
    frames = [client.frame() for client in clients(0, 1000)]
    steer = np.arange(len(frames)) % 2
    engine = MemoryEngine(frames, 2, steer=steer, room=0, again=1000)
    workers = Workers(balancer, engine, seed=1, now=50)
    turns = 0
    with workers:
        while engine.waiting():
            turns += 1
            balancer.set_servers(lists[turns % len(lists)])
    totals = balancer.totals()
    assert totals["chosen"] == 1001 * len(frames)
    assert totals["halves"] == 0, turns
    assert turns > 10
