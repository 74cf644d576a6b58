from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import dios.sprayer
from dios.kernels import no_refcount_kernel
from dios.sprayer import (
    INSIDE,
    OUTSIDE,
    Batch,
    Flows,
    HandlerError,
    MemoryEngine,
    NetworkFunction,
    Packet,
    Workers,
    drop,
    get_five_tuple,
    jain,
)
from dios.sprayer.functions.balancer import Balancer
from dios.sprayer.functions.firewall import Firewall, Rule
from dios.sprayer.functions.monitor import Monitor
from dios.sprayer.functions.redundancy import Redundancy
from dios.sprayer.functions.synthetic import Synthetic
from tests.support.sprayer.frames import ACK, FIN, ICMP, SYN, TCP, UDP, Made, read


class Harness:
    """A function on some cores, to which frames are given in rounds."""

    def __init__(self, function: NetworkFunction | None, cores: int = 2) -> None:
        self.cores = cores
        self.chance = random.Random(3)  # noqa: S311 - repeatable dice, nothing secret
        self.workers = Workers(function, MemoryEngine([], cores), seed=1, now=50)

    def give(self, frames: Sequence[bytes], side: int = INSIDE) -> dict[int, bytes]:
        """Return the forwarded packets by the number of the frame."""
        steer = [self.chance.randrange(self.cores) for _ in frames]
        engine = MemoryEngine(frames, self.cores, sides=[side] * len(frames), steer=steer)
        self.workers.change_engine(engine)
        self.workers.drain(self.chance.randrange)
        assert (engine.released == 1).all()
        return {sent.frame: sent.data for sent in engine.sent()}

    def causes(self) -> dict[str, int]:
        """Frames by cause, of which there were any."""
        return {name: count for name, count in self.workers.statistics().causes.items() if count}


def test_the_public_face_is_there() -> None:
    """Every name that the library lists can be imported, and the words of the thesis are among them."""
    assert all(hasattr(dios.sprayer, name) for name in dios.sprayer.__all__)
    assert {"NetworkFunction", "get_five_tuple", "reverse", "drop", "replay"} <= set(dios.sprayer.__all__)
    calls = {"insert_local_flow", "remove_local_flow", "get_local_flow", "get_flow", "get_flows"}
    assert calls <= set(dir(Flows)), "Table 3.2"


def test_without_a_function_everything_goes_on() -> None:
    """Frames are forwarded as they are; what no packet should be like is dropped by its rule and counted."""
    frames = [
        Made(flags=SYN).frame(),
        Made(protocol=UDP).frame(),
        b"\xff" * 12 + b"\x08\x06" + b"arp",
        b"short",
    ]
    frames.append(Made(options=b"\1" * 4).frame()[:20] + b"\x20\0" + Made(options=b"\1" * 4).frame()[22:])
    harness = Harness(None)
    assert harness.give(frames) == {n: data for n, data in enumerate(frames) if data != b"short"}
    assert harness.causes() == {"not_ip": 1, "truncated": 1, "fragment": 1}


def test_the_firewall_lets_answers_in() -> None:
    """Connections from inside pass in both directions until they are closed; others are dropped."""
    harness = Harness(Firewall())
    client = Made(flags=SYN)
    back = client.other_way()
    assert harness.give([back.frame(), replace(back, flags=ACK).frame()], OUTSIDE) == {}
    assert harness.give([client.frame()])
    answers = [replace(back, flags=flags).frame() for flags in (SYN | ACK, ACK, FIN | ACK)]
    assert harness.give(answers, OUTSIDE) == dict(enumerate(answers))
    assert harness.give([replace(client, flags=FIN | ACK).frame()])
    assert harness.give([replace(back, flags=ACK).frame()], OUTSIDE)
    harness.workers.set_time(61)
    for core in range(2):
        harness.workers.turn(core, 20_000)
    assert harness.give([replace(back, flags=ACK).frame()], OUTSIDE) == {}
    assert harness.causes() == {"refused": 1, "no_flow": 2}


def test_the_first_rule_that_fits_decides() -> None:
    """The rules are compared in order, with networks, protocols, ports and sides."""
    rules = [
        Rule(allow=False, target="192.0.2.128/25"),
        Rule(source="10.0.0.0/8", protocol=TCP, ports=(80, 90)),
        Rule(side=OUTSIDE, target="2001:db8::/32", protocol=UDP),
    ]
    harness = Harness(Firewall(rules))
    inside = [
        (Made(flags=SYN, target_port=80), True),
        (Made(flags=SYN, target_port=90), True),
        (Made(flags=SYN, target_port=91), False),
        (Made(flags=SYN, target="192.0.2.200"), False),
        (Made(flags=SYN, source="11.0.0.1"), False),
        (Made(protocol=UDP), False),
    ]
    forwarded = harness.give([packet.frame() for packet, _ in inside])
    assert sorted(forwarded) == [n for n, (_, goes) in enumerate(inside) if goes]
    outside = [
        (Made("2001:db9::1", "2001:db8::1", protocol=UDP), True),
        (Made("2001:db9::1", "2001:db8::1", flags=SYN), False),
        (Made("2001:db9::1", "2001:db9::2", protocol=UDP), False),
    ]
    forwarded = harness.give([packet.frame() for packet, _ in outside], OUTSIDE)
    assert sorted(forwarded) == [n for n, (_, goes) in enumerate(outside) if goes]


def test_the_balancer_deals_connections_out() -> None:
    """Each server gets its share, whatever it answers comes from the service, and checksums are right."""
    servers = [("10.1.0.1", 8080), ("10.1.0.2", 8081), ("10.1.0.3", 8082)]
    harness = Harness(Balancer(("192.0.2.9", 80), servers, "10.1.0.254"))
    clients = [Made(source=f"203.0.113.{n}", source_port=5000 + n, flags=SYN) for n in range(1, 61)]
    forwarded = harness.give([client.frame() for client in clients], OUTSIDE)
    assert len(forwarded) == 60
    dealt = [read(forwarded[n]) for n in range(60)]
    assert all(packet.sums_right and packet.source == "10.1.0.254" for packet in dealt)
    shares = [sum((packet.target, packet.target_port) == server for packet in dealt) for server in servers]
    assert sum(shares) == 60
    assert jain(shares) > 0.98
    assert len({(packet.source_port, packet.target) for packet in dealt}) == 60
    answers = [
        Made(packet.target, packet.source, packet.target_port, packet.source_port, payload=b"hello")
        for packet in dealt
    ]
    back = harness.give([answer.frame() for answer in answers])
    for n, client in enumerate(clients):
        assert back[n] == replace(client.other_way(), flags=ACK, payload=b"hello").frame()
    again = harness.give([replace(client, flags=ACK).frame() for client in clients], OUTSIDE)
    assert [(read(again[n]).target, read(again[n]).source_port) for n in range(60)] == [
        (packet.target, packet.source_port) for packet in dealt
    ]


def test_the_monitor_counts_over_all_cores() -> None:
    """Packets and bytes of a flow that every core saw some of are added up, and frames are as they were."""
    monitor = Monitor(100)
    harness = Harness(monitor, 3)
    client = Made(flags=SYN)
    harness.give([client.frame()])
    harness.give([client.other_way().frame()], OUTSIDE)
    data = [replace(client, flags=ACK, payload=b"x" * n).frame() for n in range(30)]
    assert harness.give(data) == dict(enumerate(data))
    first, second = monitor.largest()
    assert first == ("10.0.0.1", 1234, "192.0.2.9", 80, 6, 31, 54 + sum(len(frame) for frame in data))
    assert second == ("192.0.2.9", 80, "10.0.0.1", 1234, 6, 1, 54)
    assert monitor.totals()["connections"] == 2
    assert monitor.totals()["tcp"] == 32


def test_redundancy_is_found_whichever_core_saw_it() -> None:
    """A payload that was there before counts as such, others do not."""
    function = Redundancy(remembered=1024)
    harness = Harness(function)
    frames = [Made(payload=bytes([n]) * 100).frame() for n in range(50)]
    harness.give(frames)
    assert {name: count for name, count in function.totals().items() if count} == {
        "payloads": 50,
        "bytes": 5000,
    }
    assert harness.give(frames[:20]) == dict(enumerate(frames[:20]))
    assert function.totals()["again"] >= 18, "20, but for two in one place"


def test_the_synthetic_function_takes_its_cycles() -> None:
    """Connections are counted, all packets go on as they were, and each has its flow."""
    function = Synthetic(1000)
    harness = Harness(function)
    clients = [Made(source_port=n, flags=SYN) for n in range(1, 31)]
    harness.give([client.frame() for client in clients])
    data = [replace(client, flags=ACK, payload=b"y").frame() for client in clients]
    assert harness.give(data) == dict(enumerate(data))
    assert function.totals() == {"opened": 30, "known": 60}


class Lossy(NetworkFunction):
    """Drops what an array says, by the last byte of the source, and uses every kind of attribute."""

    stateless = True

    def __init__(self) -> None:
        self.table = np.zeros((2, 256), np.uint8)
        self.half = 0.5
        self.on = True
        self.text = "handlers do not see this"

    def prepare(self, cores: int) -> None:
        """One counter."""
        self.counts = self.counters(cores, "seen")

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Look it up."""
        for packet in batch:
            self.counts[flows.core, 0] += 1
            if self.on and self.table[1, packet.source_low & 255] and self.half < 0.75:
                drop(packet, 200)


def test_a_handler_sees_numbers_and_arrays_of_self() -> None:
    """Arrays as they are at any time, numbers as they were; an unknown cause is the function's own."""
    function = Lossy()
    harness = Harness(function)
    frames = [Made(source=f"10.0.0.{n}", flags=SYN).frame() for n in range(1, 9)]
    assert len(harness.give(frames)) == 8
    function.table[1, 3] = 1
    assert sorted(harness.give(frames)) == [0, 1, 3, 4, 5, 6, 7]
    assert harness.causes() == {"function": 1}
    assert function.totals() == {"seen": 16}


class Batched(NetworkFunction):
    """Looks flows up in the batch form."""

    entry = (("number", "u4"),)

    def connection_packets(self, batch: Batch, flows: Flows) -> None:
        """Number connections."""
        for packet in batch:
            entry = flows.insert_local_flow(get_five_tuple(packet))
            if entry is not None:
                entry.number = packet.source_port

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Drop what has no number, or another one."""
        flows.get_flows(batch)
        for i in range(len(batch)):
            if not flows.hits[i] or flows.entries[i].number != batch[i].source_port:
                drop(batch[i])


def test_the_batch_form_finds_what_the_other_does() -> None:
    """Every packet of a batch gets the entry of its own flow; packets without an entry are marked."""
    harness = Harness(Batched(), 3)
    harness.give([Made(source_port=n, flags=SYN).frame() for n in range(1, 101)])
    assert sorted(harness.give([Made(source_port=n).frame() for n in range(51, 201)])) == list(range(50))


class Nowhere(NetworkFunction):
    """A function that calls a method that does not exist."""

    stateless = True

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Nothing that works."""
        for packet in batch:
            self.nowhere(packet)  # type: ignore[attr-defined] # LINE of Nowhere: Unknown attribute 'nowhere'


class Lists(Nowhere):
    """Makes a list."""

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Nothing that works."""
        lengths = []  # LINE of Lists: it creates an array, a list
        for packet in batch:
            lengths.append(packet.length)  # noqa: PERF401 - as people write it


class Counts(Nowhere):
    """Counts in a number."""

    number = 0

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Nothing that works."""
        for packet in batch:
            self.number = packet.length  # LINE of Counts: a number of self cannot be changed


class Formats(Nowhere):
    """Writes text."""

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Nothing that works."""
        for packet in batch:
            f"{packet.length:x}".strip()  # LINE of Formats: format spec in f-strings not supported


class TooMany(Nowhere):
    """Calls with too much."""

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Nothing that works."""
        for packet in batch:
            drop(packet, 1, 2)  # type: ignore[call-arg] # LINE of TooMany: Cannot bind 'args=.a record


class Misspelt(Nowhere):
    """Reads what no packet has."""

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Nothing that works."""
        for packet in batch:
            if packet.source_prot == 80:  # type: ignore[attr-defined] # LINE of Misspelt: .* field 'source_prot'
                drop(packet)


class Unknown(Nowhere):
    """Reads what is nowhere."""

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Nothing that works."""
        for packet in batch:
            packet.length = packt  # type: ignore[name-defined] # noqa: F821 # LINE of Unknown: .*'packt' is not


@pytest.mark.parametrize("kind", [Nowhere, Lists, Counts, Formats, TooMany, Misspelt, Unknown])
def test_a_handler_that_cannot_be_compiled_is_told_by_its_line(kind: type[NetworkFunction]) -> None:
    """The error names this file, the line, and what is wrong with it."""
    mark = f"# LINE of {kind.__name__}: "
    lines = Path(__file__).read_text().splitlines()
    ((line, said),) = [(n, text.split(mark)[1]) for n, text in enumerate(lines, 1) if mark in text]
    with pytest.raises(HandlerError, match=rf"test_spray_functions.py:{line}: .*{said}"):
        Workers(kind(), MemoryEngine([]))


@no_refcount_kernel
def _reads_nothing(packet: Packet) -> int:
    return packet.nothing  # type: ignore[attr-defined,no-any-return] # on purpose


class Elsewhere(Nowhere):
    """A function that calls code with an unknown field."""

    def regular_packets(self, batch: Batch, flows: Flows) -> None:
        """Nothing that works."""
        for packet in batch:
            packet.length = _reads_nothing(packet)


def test_a_mistake_in_what_a_handler_calls_is_an_error_of_the_handler() -> None:
    """An error outside of the class names the class if its line is not known."""
    with pytest.raises(HandlerError, match=r"class Elsewhere: .* 'nothing' is unknown"):
        Workers(Elsewhere(), MemoryEngine([]))


def test_a_function_without_handlers_is_told_so() -> None:
    """Nothing is compiled that could only fail."""
    with pytest.raises(HandlerError, match="has no method regular_packets"):
        Workers(NetworkFunction(), MemoryEngine([]))


def test_icmp_has_flows_too() -> None:
    """An answer to an echo comes back through the firewall, another one does not."""
    harness = Harness(Firewall())
    asked = Made(protocol=ICMP, source_port=77)
    answer = replace(asked, source=asked.target, target=asked.source, kind=0)
    assert harness.give([asked.frame()])
    answers = [answer.frame(), replace(answer, source_port=78).frame()]
    assert sorted(harness.give(answers, OUTSIDE)) == [0]


def test_a_rule_is_for_the_version_of_its_networks() -> None:
    """A wide network of IPv6 has no address of IPv4 in it; ``::/0`` has all of both."""
    wide = [Made("10.0.0.1", "192.0.2.9", flags=SYN), Made("1::2", "2001:db8::1", flags=SYN)]
    for network, expected in (("::/1", [1]), ("::/0", [0, 1]), ("0.0.0.0/0", [0])):
        forwarded = Harness(Firewall([Rule(source=network)])).give([packet.frame() for packet in wide])
        assert sorted(forwarded) == expected, network


@pytest.mark.parametrize(
    "rule",
    [
        Rule(source="10.0.0.0/8", target="2001:db8::/32"),
        Rule(source="10.0.0.0/8", protocol=58),
        Rule(target="2001:db8::/32", protocol=1),
        Rule(source="::ffff:10.0.0.0/104"),
        Rule(ports=(90, 80)),
        Rule(side=2),
    ],
)
def test_a_rule_that_matches_no_packet_is_refused(rule: Rule) -> None:
    """A rule that contradicts itself is an error at the start."""
    with pytest.raises(ValueError, match="matches no packet"):
        Firewall([rule])


@pytest.mark.parametrize(
    ("service", "server", "inner"),
    [
        (("192.0.2.9", 80), ("10.1.0.1", 80), "2001:db8::1"),
        (("192.0.2.9", 80), ("2001:db8::2", 80), "10.1.0.254"),
        (("192.0.2.9", 0), ("10.1.0.1", 80), "10.1.0.254"),
        (("192.0.2.9", 80), ("10.1.0.1", 80), "255.255.255.255"),
        (("192.0.2.9", 80), ("224.0.0.1", 80), "10.1.0.254"),
        (("192.0.2.9", 80), ("10.1.0.1", 80), "192.0.2.9"),
    ],
)
def test_a_balancer_that_cannot_serve_is_refused(
    service: tuple[str, int], server: tuple[str, int], inner: str
) -> None:
    """Addresses of two versions of IP, or from which no packet comes, are errors at the start."""
    with pytest.raises(ValueError, match=r"[Gg]ive|needs IPv4"):
        Balancer(service, [server], inner)
