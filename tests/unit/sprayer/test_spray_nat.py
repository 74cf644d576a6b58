from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dios.limits import SPRAYER_RING
from dios.sprayer import INSIDE, OUTSIDE, MemoryEngine, NetworkFunction, Workers
from dios.sprayer.functions.nat import Nat
from dios.sprayer.memory_engine import SentFrame
from tests.support.sprayer.frames import ACK, FIN, ICMP, RST, SYN, TCP, UDP, Made, read

OUTER = ("198.51.100.1", "198.51.100.2")


class Harness:
    """A function on some cores, to which frames are given in rounds, in an order that a seed chooses."""

    def __init__(self, nat: NetworkFunction, cores: int, seed: int, journal: int = 10_000) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - repeatable dice, nothing secret
        self.cores = cores
        self.engine = MemoryEngine([], cores)
        self.nat = nat
        self.workers = Workers(nat, self.engine, seed=seed, journal=journal, now=100)

    def give(
        self, frames: Sequence[Made], side: int | Sequence[int], *, threads: bool = False
    ) -> dict[int, SentFrame]:
        """Frames in any order, each on any core; what came of each that went on, by its number."""
        count = len(frames)
        sides = [side] * count if isinstance(side, int) else side
        order = self.chance.sample(range(count), count)
        steer = [self.chance.randrange(self.cores) for _ in range(count)]
        data = [frame.frame() for frame in frames]
        grow = self.nat.grows
        self.engine = MemoryEngine(data, self.cores, sides=sides, steer=steer, order=order, grow=grow)
        self.workers.change_engine(self.engine)
        if threads:
            with self.workers:
                done = threading.Event()
                while not (self.engine.released == 1).all():
                    done.wait(0.001)
        else:
            self.workers.drain(self.chance.randrange)
        assert (self.engine.released == 1).all(), "a frame was lost, or given back twice"
        outgoing = self.engine.sent()
        assert len({sent.frame for sent in outgoing}) == len(outgoing), "a frame was sent twice"
        return {sent.frame: sent for sent in outgoing}

    def causes(self) -> dict[str, int]:
        """Frames by cause, of which there were any."""
        return {name: count for name, count in self.workers.statistics().causes.items() if count}


def opened(harness: Harness, clients: list[Made]) -> dict[int, tuple[str, int]]:
    """Open connections; the outer address and port of each."""
    sent = harness.give([replace(client, flags=SYN) for client in clients], INSIDE)
    sources = {}
    for number, frame in sent.items():
        plain = read(frame.data)
        client = clients[number]
        sources[number] = (plain.source, plain.source_port)
        outer = replace(client, source=plain.source, source_port=plain.source_port, flags=SYN)
        assert frame.data == outer.frame()
    return sources


def clients_of(seed: int, count: int) -> list[Made]:
    """Different flows of TCP, UDP and ICMP."""
    chance = random.Random(seed)  # noqa: S311 - the same
    clients: dict[tuple[str, str, int, int, int], Made] = {}
    while len(clients) < count:
        protocol = chance.choice((TCP, TCP, UDP, ICMP))
        client = Made(
            source=f"10.0.0.{chance.randrange(1, 9)}",
            target=f"192.0.2.{chance.randrange(1, 5)}",
            source_port=chance.randrange(1, 65536),
            target_port=0 if protocol == ICMP else chance.choice((53, 80, 443)),
            protocol=protocol,
        )
        key = (client.source, client.target, client.source_port, client.target_port, client.protocol)
        clients[key] = client
    return list(clients.values())


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 60))
def test_translations_stay_right_in_any_order(seed: int, cores: int, count: int) -> None:
    """Permuted at random over cores, each packet becomes what one core would have made of it in sequence."""
    harness = Harness(Nat(OUTER, range(2000, 2200)), cores, seed)
    clients = clients_of(seed, count)
    outside = opened(harness, clients)
    assert len(outside) == count
    ends = {
        (*outside[n], client.protocol): (client.source, client.source_port, client.protocol)
        for n, client in enumerate(clients)
    }
    assert len(set(ends.values())) == len(ends), "two ends inside have one end outside"
    frames, sides, expected = [], [], []
    for number, client in enumerate(clients):
        address, port = outside[number]
        for turn in range(harness.chance.randrange(4)):
            there = replace(client, payload=bytes([turn]))
            frames.append(there)
            sides.append(INSIDE)
            expected.append(replace(there, source=address, source_port=port))
            back = replace(there.other_way(), payload=b"back" * turn)
            if client.protocol == ICMP:
                back = replace(there, source=there.target, target=there.source, kind=0)
                frames.append(replace(back, target=address, source_port=port))
            else:
                frames.append(replace(back, target=address, target_port=port))
            sides.append(OUTSIDE)
            expected.append(back)
    sent = harness.give(frames, sides)
    assert sorted(sent) == list(range(len(frames)))
    for number, frame in sent.items():
        assert frame.data == expected[number].frame(), f"seed {seed}, packet {number}"
    assert harness.causes() == {}
    check_journals(harness)


def check_journals(harness: Harness) -> None:
    """No flow was ever changed by two cores."""
    written = []
    for flows in harness.workers.flows:
        count = int(flows.journal[0])
        assert count < len(flows.journal)
        written.append(set(flows.journal[1 : count + 1].tolist()))
    for core in range(len(written)):
        for other in range(core):
            assert not written[core] & written[other]
    assert harness.workers.statistics().flows["foreign"] == 0


def test_threads_translate_as_one_after_the_other() -> None:
    """Two threads at the same time make the same of 6,000 packets, and never write one another's flows."""
    harness = Harness(Nat(OUTER, range(2000, 2400)), 2, 5, journal=100_000)
    clients = [client for client in clients_of(5, 500) if client.protocol == TCP][:300]
    outside = opened(harness, clients)
    frames, sides, expected = [], [], []
    for turn in range(10):
        for number, client in enumerate(clients):
            address, port = outside[number]
            there = replace(client, payload=bytes([turn]), flags=FIN | ACK if turn == 7 else ACK)
            frames += [there, replace(there.other_way(), target=address, target_port=port)]
            sides += [INSIDE, OUTSIDE]
            expected += [replace(there, source=address, source_port=port), there.other_way()]
    sent = harness.give(frames, sides, threads=True)
    assert len(sent) == len(frames)
    for number, frame in sent.items():
        assert frame.data == expected[number].frame()
    assert harness.workers.statistics().counts["handed_over"] > 0
    check_journals(harness)


def test_a_closed_connection_gives_its_port_back() -> None:
    """After FIN both ways, and four minutes, the only port serves the next one; an open one keeps it."""
    nat = Nat(OUTER[:1], range(5000, 5001))
    harness = Harness(nat, 1, 1)
    first, second = Made(source_port=1), Made(source_port=2)
    assert opened(harness, [first]) == {0: (OUTER[0], 5000)}
    assert opened(harness, [second]) == {}
    assert harness.causes() == {"no_port": 1}
    back = replace(first.other_way(), target=OUTER[0], target_port=5000)
    for now in (200, 399):
        # The flow is used within each 240 seconds, in one direction only.
        harness.workers.set_time(now)
        assert len(harness.give([replace(back, flags=SYN | ACK)], OUTSIDE)) == 1
    assert opened(harness, [second]) == {}
    harness.give([replace(first, flags=FIN | ACK)], INSIDE)
    harness.give([replace(back, flags=FIN | ACK)], OUTSIDE)
    assert len(harness.give([first], INSIDE)) == 1, "the last ACK goes on"
    harness.workers.set_time(399 + 241)
    harness.workers.turn(0, 10_000)
    assert opened(harness, [second]) == {0: (OUTER[0], 5000)}
    assert {name: count for name, count in nat.totals().items() if count} == {
        "opened": 2,
        "expired": 1,
        "sessions": 2,
        "sessions_ended": 1,
    }
    assert harness.workers.statistics().flows["held"] == 4


def test_directions_that_end_at_different_times_do_not_keep_each_other() -> None:
    """A connection whose last packets came at different seconds expires, and its port is free."""
    harness = Harness(Nat(OUTER[:1], range(5000, 5001)), 1, 1)
    client = Made()
    opened(harness, [client])
    harness.workers.set_time(200)
    harness.give([replace(client.other_way(), target=OUTER[0], target_port=5000)], OUTSIDE)
    for now, held in ((401, 4), (440, 4), (441, 0), (900, 0)):
        harness.workers.set_time(now)
        harness.workers.expire_flows()
        harness.workers.expire_flows()
        assert harness.workers.statistics().flows["held"] == held


def test_a_made_up_reset_closes_nothing_that_goes_on() -> None:
    """A connection with traffic outlives RST, and one without is gone after four minutes."""
    harness = Harness(Nat(OUTER[:1], range(5000, 5001)), 1, 1)
    client = Made()
    ((address, port),) = opened(harness, [client]).values()
    back = replace(client.other_way(), target=address, target_port=port)
    harness.give([replace(back, flags=SYN | ACK)], OUTSIDE)
    harness.give([replace(client, flags=RST)], INSIDE)
    for now in range(300, 8000, 500):
        assert len(harness.give([client], INSIDE)) == 1
        harness.workers.set_time(now)
        harness.workers.turn(0, 10_000)
    harness.give([replace(back, flags=RST)], OUTSIDE)
    harness.workers.set_time(8050)
    harness.workers.turn(0, 10_000)
    assert len(harness.give([client], INSIDE)) == 0


def test_strangers_do_not_come_in() -> None:
    """A packet from outside without a flow is dropped and counted, whatever its flags are."""
    harness = Harness(Nat(OUTER), 2, 3)
    strangers = [
        Made("192.0.2.1", OUTER[0], 80, port, flags=flags) for port in (2000, 3000) for flags in (SYN, ACK)
    ]
    strangers.append(Made("192.0.2.1", OUTER[0], 80, 2000, protocol=UDP))
    assert harness.give(strangers, OUTSIDE) == {}
    assert harness.causes() == {"no_flow": 5}
    assert harness.workers.statistics().dropped == 5


@pytest.mark.parametrize("cores", [1, 3])
def test_out_of_ports_is_a_counted_drop(cores: int) -> None:
    """Of 100 connections to one target 20 get one of 20 ports, and all others are drops that are counted."""
    harness = Harness(Nat(OUTER[:1], range(4000, 4020)), cores, 8)
    sources = opened(harness, [Made(source_port=port) for port in range(1, 101)])
    assert sorted(port for _, port in sources.values()) == list(range(4000, 4020))
    assert harness.causes() == {"no_port": 80}
    assert harness.workers.statistics().flows["held"] == 80


@pytest.mark.parametrize("flows_max", [1, 10, 11])
def test_out_of_table_space_is_a_counted_drop(flows_max: int) -> None:
    """A full table opens no more connections, keeps no half of one, and what it has still goes on."""
    harness = Harness(Nat(OUTER, flows_max=flows_max), 1, 8)
    clients = [Made(source_port=port) for port in range(1, 51)]
    sources = opened(harness, clients)
    assert len(sources) == flows_max // 4
    assert harness.causes() == {"table_full": 50 - len(sources)}
    assert harness.workers.statistics().flows["held"] == 4 * len(sources)
    assert set(harness.give(clients, INSIDE)) == set(sources)


def test_out_of_ring_space_is_a_counted_drop() -> None:
    """A core that gets no turn takes no more than its ring; the rest is dropped, and no frame is lost."""
    clients = [Made(source_port=port, flags=SYN) for port in range(1, 2001)]
    engine = MemoryEngine([client.frame() for client in clients], 2)
    workers = Workers(Nat(OUTER), engine, seed=3)
    workers.turn(0, 2_000)  # a busy machine makes small batches
    counts, causes = workers.statistics(0).counts, workers.statistics(0).causes
    assert counts["handed_over"] == SPRAYER_RING
    assert causes["ring_full"] > 0
    assert counts["received"] == counts["sent"] + causes["ring_full"] + SPRAYER_RING
    workers.drain()
    assert (engine.released == 1).all()
    assert len(engine.sent()) == 2000 - causes["ring_full"]


def test_an_error_of_a_router_comes_to_the_client() -> None:
    """An ICMP error about a translated packet is about the client's own when it comes in."""
    harness = Harness(Nat(OUTER[:1]), 2, 4)
    client = Made(payload=b"12345678")
    ((address, port),) = opened(harness, [client]).values()
    outer = replace(client, source=address, source_port=port)
    error = Made("203.0.113.7", address, protocol=ICMP, error_about=outer.packet()[:28])
    (sent,) = harness.give([error], OUTSIDE).values()
    wanted = Made("203.0.113.7", client.source, protocol=ICMP, error_about=client.packet()[:28])
    assert sent.data == wanted.frame()


V6 = ("2001:db8:ffff::1", "2001:db8:ffff::2")


@pytest.mark.parametrize("addresses", [(*OUTER, *V6), (V6[0], OUTER[0], V6[1], OUTER[1]), OUTER[:1] + V6[:1]])
def test_a_flow_gets_an_address_of_its_own_version(addresses: tuple[str, ...]) -> None:
    """With addresses of both versions each flow leaves from one of its own, and its answers come back."""
    harness = Harness(Nat(addresses, range(3000, 3100)), 2, 3)
    clients = [Made(source_port=port, protocol=(TCP, UDP)[port % 2]) for port in range(50, 90)]
    clients += [
        Made("2001:db8::5", "2001:db8:1::9", port, protocol=(TCP, UDP)[port % 2]) for port in range(50, 90)
    ]
    outside = opened(harness, clients)
    assert len(outside) == len(clients)
    for number, client in enumerate(clients):
        assert ":" in outside[number][0] if client.version == 6 else ":" not in outside[number][0]
    assert {address for address, _ in outside.values()} <= set(addresses)
    answers = [
        replace(client.other_way(), target=outside[number][0], target_port=outside[number][1])
        for number, client in enumerate(clients)
    ]
    sent = harness.give(answers, OUTSIDE)
    assert [sent[number].data for number in range(len(clients))] == [c.other_way().frame() for c in clients]
    assert harness.causes() == {}


@pytest.mark.parametrize(("addresses", "lost"), [(OUTER, 1), (V6, 0)])
def test_a_flow_of_the_other_version_is_dropped_and_counted(addresses: tuple[str, ...], lost: int) -> None:
    """Without an address of its version nothing of a flow goes on, and the cause says why."""
    harness = Harness(Nat(addresses), 2, 6)
    clients = [Made(), Made("2001:db8::5", "2001:db8:1::9")]
    assert list(opened(harness, clients)) == [1 - lost]
    assert list(harness.give(clients, INSIDE)) == [1 - lost]
    assert harness.causes() == {"no_address": 1, "no_flow": 1}


def test_an_ipv6_packet_cannot_pass_for_an_ipv4_flow() -> None:
    """A packet of IPv6 whose addresses stand for those of an IPv4 flow is dropped and counted."""
    harness = Harness(Nat(OUTER), 2, 6)
    client = Made(protocol=UDP)
    assert opened(harness, [client])
    disguised = Made(f"::ffff:{client.source}", f"::ffff:{client.target}", client.source_port, protocol=UDP)
    assert harness.give([disguised], INSIDE) == {}
    assert harness.causes() == {"mapped": 1}


@pytest.mark.parametrize(
    ("addresses", "ports"),
    [
        ((), (2000,)),
        (OUTER, ()),
        (("255.255.255.255",), (2000,)),
        (("::",), (2000,)),
        (("224.0.0.1",), (2000,)),
        (("::1",), (2000,)),
        (("::ffff:192.0.2.1",), (2000,)),
        (("192.0.2.0/24",), (2000,)),
        ((OUTER[0], OUTER[0]), (2000,)),
        (OUTER, (0, 2000)),
        (OUTER, (70_000,)),
        (OUTER, (2000, 2000)),
    ],
)
def test_a_nat_that_cannot_serve_is_refused(addresses: tuple[str, ...], ports: tuple[int, ...]) -> None:
    """Addresses and ports from which no packet comes, or which are given twice, are errors at the start."""
    with pytest.raises(ValueError, match=r"[Gg]ive|needs|does not appear to be"):
        Nat(addresses, ports)
