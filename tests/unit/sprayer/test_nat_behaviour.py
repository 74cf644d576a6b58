"""Mappings, filters, timers, hairpins, fragments and errors of a NAT (RFC 4787, 5382 and 5508).

``dios/sprayer/requirements.toml`` names tests of this file by requirement.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pytest

from dios.limits import SPRAYER_DATAGRAM_S, SPRAYER_DATAGRAMS, SPRAYER_WAITING, SPRAYER_WAITING_S
from dios.sprayer import INSIDE, OUTSIDE, MemoryEngine, NetworkFunction, Workers
from dios.sprayer.functions.balancer import Balancer
from dios.sprayer.functions.firewall import Firewall, Rule
from dios.sprayer.functions.mapping import MAPPING
from dios.sprayer.functions.nat import Nat
from dios.sprayer.memory_engine import SentFrame
from dios.sprayer.runtime.worker_kernels import NOW, WAITING
from tests.support.sprayer.frames import (
    ACK,
    ESP,
    FIN,
    GRE,
    ICMP,
    ICMP6,
    SCTP,
    SYN,
    TCP,
    UDP,
    UDP_LITE,
    Made,
    ones_sum,
    parts_of,
    read,
)
from tests.unit.sprayer.test_spray_nat import OUTER, V6, Harness, clients_of, opened

pytestmark = pytest.mark.timeout(900)
"""The first test compiles a function of the network, which takes a minute of processor time."""

INNER, INNER_6 = ("10.0.0.5", "10.0.0.6"), ("2001:db8::5", "2001:db8::6")
TARGET, TARGET_6 = "203.0.113.1", "2001:db8:9::1"


def client(protocol: int = UDP, *, six: bool = False, port: int = 4000, **changes: object) -> Made:
    """Return a packet of a client inside."""
    ends = (INNER_6[0], TARGET_6) if six else (INNER[0], TARGET)
    target = 0 if protocol in (ICMP, ICMP6) else 53
    packet = Made(*ends, port, target, protocol, flags=SYN)
    return replace(packet, **changes)  # type: ignore[arg-type] # of the test


def harness_of(cores: int = 2, seed: int = 4, **settings: object) -> Harness:
    """Return a NAT with addresses of both versions."""
    nat = Nat((*OUTER, *V6), **({"flows_max": 4096} | settings))  # type: ignore[arg-type] # of the test
    return Harness(nat, cores, seed)


def outside_of(harness: Harness, packet: Made) -> Made:
    """Return the packet as it is outside, after it has opened a session."""
    seen = read(harness.give([packet], INSIDE)[0].data)
    return replace(packet, source=seen.source, source_port=seen.source_port)


def sent_of(harness: Harness, packet: Made, side: int) -> SentFrame | None:
    """Return what is sent of one packet."""
    return harness.give([packet], side).get(0)


def address(data: bytes) -> str:
    """Return the text of an address."""
    return str(ipaddress.ip_address(data))


def after(harness: Harness, seconds: int) -> int:
    """Return the number of rows when seconds have passed."""
    harness.workers.set_time(int(harness.workers.control[NOW]) + seconds)
    harness.workers.expire_flows()
    return harness.workers.statistics().flows["held"]


@pytest.mark.parametrize("protocol", [TCP, UDP, ICMP])
def test_an_end_inside_has_one_end_outside_for_all_targets(protocol: int) -> None:
    """Flows of one end to ten targets on any cores have one source; those of another end have another."""
    harness = harness_of(cores=3)
    packets = [client(protocol, target=f"203.0.113.{n}") for n in range(1, 11)]
    packets.append(client(protocol, port=4002))
    seen = [read(harness.give([packet], INSIDE)[0].data) for packet in packets]
    assert len({(packet.source, packet.source_port) for packet in seen[:10]}) == 1
    assert seen[10].source_port != seen[0].source_port
    assert harness.nat.totals()["opened"] == 2
    assert harness.nat.totals()["sessions"] == 11


def test_an_address_inside_keeps_its_address_outside() -> None:
    """All ports of one address have the same address outside, while it has ports."""
    harness = harness_of()
    for address in ("10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.0.8"):
        sources = opened(harness, [client(UDP, source=address, port=port) for port in range(100, 140)])
        assert len({source for source, _ in sources.values()}) == 1


def test_a_port_keeps_its_parity() -> None:
    """Even ports stay even, and odd ports odd, as long as there are such ports."""
    harness = harness_of()
    sources = opened(harness, [client(UDP, port=port) for port in range(1, 60)])
    assert all((port - 1 - number) % 2 == 0 for number, (_, port) in sources.items())


def test_ports_cannot_be_guessed() -> None:
    """Ports of mappings that are opened one after the other are not neighbours."""
    harness = harness_of()
    ports = [outside_of(harness, client(UDP, port=2 * n)).source_port for n in range(1, 30)]
    assert sum(abs(a - b) <= 4 for a, b in pairwise(ports)) < 5


def test_a_mapping_of_udp_lives_for_five_minutes_and_is_refreshed_from_inside() -> None:
    """It is there after 299 s without packets, also again after a packet from inside, and gone after 301."""
    harness = harness_of()
    packet = client()
    first = outside_of(harness, packet)
    assert after(harness, 299) == 4
    assert outside_of(harness, packet) == first
    assert after(harness, 299) == 4
    assert after(harness, 2) == 0


@pytest.mark.parametrize(
    "filtering", ["endpoint-independent", "address-dependent", "address-and-port-dependent"]
)
def test_a_filter_decides_who_comes_in(filtering: str) -> None:
    """Another port of a known address, and a stranger, to an existing mapping."""
    harness = harness_of(filtering=filtering)
    back = outside_of(harness, client()).other_way()
    assert sent_of(harness, back, OUTSIDE) is not None
    port = sent_of(harness, replace(back, source_port=99), OUTSIDE)
    stranger = sent_of(harness, replace(back, source="203.0.113.77"), OUTSIDE)
    assert (port is None, stranger is None) == {
        "endpoint-independent": (False, False),
        "address-dependent": (False, True),
        "address-and-port-dependent": (True, True),
    }[filtering]
    assert harness.causes().get("refused", 0) == (port is None) + (stranger is None)


@pytest.mark.parametrize("six", [False, True])
@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_two_ends_inside_meet_by_their_ends_outside(protocol: int, *, six: bool) -> None:
    """A packet to an own address goes back inside, from the sender's end outside, and so does the answer."""
    harness = harness_of()
    inner = INNER_6 if six else INNER
    here, there = client(protocol, six=six), client(protocol, six=six, source=inner[1], port=5001)
    mine, other = outside_of(harness, here), outside_of(harness, there)
    for sender, receiver, to in ((here, there, other), (there, here, mine)):
        flags = SYN if sender is here else SYN | ACK
        packet = replace(sender, target=to.source, target_port=to.source_port, flags=flags, payload=b"hi")
        sent = sent_of(harness, packet, INSIDE)
        assert sent is not None
        assert sent.back
        own = mine if sender is here else other
        expected = replace(
            packet,
            source=own.source,
            source_port=own.source_port,
            target=receiver.source,
            target_port=receiver.source_port,
        )
        assert sent.data[14:] == expected.packet()
    assert harness.nat.totals()["hairpins"] == 2


@pytest.mark.parametrize("six", [False, True])
def test_an_own_port_of_nobody_is_unreachable(*, six: bool) -> None:
    """The sender inside of a datagram to a free port outside gets an ICMP error; nothing leaves."""
    harness = harness_of()
    packet = client(six=six, target=V6[0] if six else OUTER[0], target_port=9)
    sent = sent_of(harness, packet, INSIDE)
    assert sent is not None
    assert sent.back
    head = 54 if six else 34
    assert tuple(sent.data[head : head + 2]) == ((1, 4) if six else (3, 3))
    assert sent.data[head + 8 :] == packet.packet()
    assert sent_of(harness, replace(packet, protocol=TCP), INSIDE) is None
    assert harness.causes() == {"no_flow": 1}


def test_an_error_ends_no_mapping_and_refreshes_none() -> None:
    """After errors of a router a session goes on, and without packets it expires as if there were none."""
    harness = harness_of()
    packet = client(ICMP, payload=b"12345678")
    seen = outside_of(harness, packet)
    error = Made("203.0.113.7", seen.source, protocol=ICMP, error_about=seen.packet()[:28])
    assert sent_of(harness, error, OUTSIDE) is not None
    assert after(harness, 59) == 4
    assert sent_of(harness, error, OUTSIDE) is not None
    assert outside_of(harness, packet) == seen
    assert after(harness, 59) == 4
    assert sent_of(harness, error, OUTSIDE) is not None
    assert after(harness, 2) == 0
    assert sent_of(harness, error, OUTSIDE) is None


@pytest.mark.parametrize("six", [False, True])
@pytest.mark.parametrize("protocol", [TCP, UDP, ICMP])
def test_errors_are_translated_both_ways(protocol: int, *, six: bool) -> None:
    """Outer addresses, and the packet inside of an error, are those of the realm to which it goes."""
    harness = harness_of()
    if six and protocol == ICMP:
        protocol = ICMP6
    kind = ICMP6 if six else ICMP
    router_out, router_in = ("2001:db8:7::7", "2001:db8::77") if six else ("203.0.113.7", "10.0.0.77")
    packet = client(protocol, six=six, payload=b"12345678")
    seen = outside_of(harness, packet)
    size = 68 if six else 48
    sent = sent_of(
        harness, Made(router_out, seen.source, protocol=kind, error_about=seen.packet()[:size]), OUTSIDE
    )
    assert sent is not None
    expected = Made(router_out, packet.source, protocol=kind, error_about=packet.packet()[:size])
    assert sent.data == expected.frame()
    if protocol in (ICMP, ICMP6):
        return
    # A router inside is hidden behind the address outside of the session.
    inward, back = replace(packet.other_way(), flags=ACK), replace(seen.other_way(), flags=ACK)
    sent = sent_of(
        harness, Made(router_in, packet.target, protocol=kind, error_about=inward.packet()[:size]), INSIDE
    )
    assert sent is not None
    expected = Made(seen.source, packet.target, protocol=kind, error_about=back.packet()[:size])
    assert sent.data == expected.frame()


def test_errors_with_wrong_sums_are_dropped() -> None:
    """A wrong checksum of an ICMP error, or of the IPv4 header in it, is a drop; options are passed."""
    harness = harness_of()
    packet = client(payload=b"12345678", options=bytes([1, 1, 1, 0]))
    seen = outside_of(harness, packet)
    error = Made("203.0.113.7", seen.source, protocol=ICMP, error_about=seen.packet())
    frame = bytearray(error.frame())
    frame[36] ^= 1
    assert give_frames(harness, [bytes(frame)], OUTSIDE) == {}
    broken = bytearray(seen.packet())
    broken[10] ^= 1
    assert sent_of(harness, replace(error, error_about=bytes(broken)), OUTSIDE) is None
    assert harness.causes() == {"bad_sum": 2}
    # The transport checksum of the packet inside does not count.
    broken = bytearray(seen.packet())
    broken[-1] ^= 1
    assert sent_of(harness, replace(error, error_about=bytes(broken)), OUTSIDE) is not None
    assert sent_of(harness, error, OUTSIDE) is not None


def test_an_error_between_two_ends_inside_reaches_the_sender() -> None:
    """Also an error about a packet that had no answer, from an end without a session of its own."""
    harness = harness_of()
    here, there = client(payload=b"12345678"), client(source=INNER[1], port=5001)
    mine, other = outside_of(harness, here), outside_of(harness, there)
    packet = replace(here, target=other.source, target_port=other.source_port)
    got = replace(packet, source=mine.source, source_port=mine.source_port, target=INNER[1], target_port=5001)
    assert sent_of(harness, packet, INSIDE) is not None
    sent = sent_of(harness, Made(INNER[1], mine.source, protocol=ICMP, error_about=got.packet()), INSIDE)
    assert sent is not None
    assert sent.back
    expected = Made(other.source, INNER[0], protocol=ICMP, error_about=packet.packet())
    assert sent.data[14:] == expected.packet()


@pytest.mark.parametrize(("kind", "reply"), [(8, 0), (13, 14)])
def test_a_query_lives_for_a_minute(kind: int, reply: int) -> None:
    """A query for an echo or a timestamp opens a session, its reply comes in, and it ends after 60 s."""
    harness = harness_of()
    packet = client(ICMP, kind=kind)
    (frame,) = harness.give([packet], INSIDE).values()
    seen = replace(packet, source=address(frame.data[26:30]), source_port=int.from_bytes(frame.data[38:40]))
    assert frame.data == seen.frame()
    sent = sent_of(harness, replace(seen, source=TARGET, target=seen.source, kind=reply), OUTSIDE)
    assert sent is not None
    assert sent.data == replace(packet, source=TARGET, target=packet.source, kind=reply).frame()
    assert after(harness, 60) == 4
    assert after(harness, 1) == 0


def test_both_ends_may_open_at_the_same_time() -> None:
    """A SYN from each side, then SYN with ACK from each side, is a connection that lives for two hours."""
    harness = harness_of()
    packet = client(TCP)
    seen = outside_of(harness, packet)
    for flags, side in ((SYN, OUTSIDE), (SYN | ACK, INSIDE), (SYN | ACK, OUTSIDE), (ACK, INSIDE)):
        given = replace(packet if side == INSIDE else seen.other_way(), flags=flags)
        assert sent_of(harness, given, side) is not None
    assert after(harness, 7440) == 4
    assert after(harness, 1) == 0


def test_an_unsolicited_connection_is_dropped_without_an_answer() -> None:
    """A SYN from outside to no mapping, or one that a filter refuses, has no answer; the client can open."""
    harness = harness_of(filtering="address-dependent")
    seen = outside_of(harness, client(TCP))
    stranger = Made("203.0.113.9", seen.source, 80, seen.source_port, flags=SYN)
    assert harness.give([stranger, replace(stranger, target_port=1)], OUTSIDE) == {}
    assert harness.causes() == {"refused": 1, "no_flow": 1}
    assert (
        outside_of(harness, client(TCP, target="203.0.113.9", target_port=80)).source_port == seen.source_port
    )
    assert sent_of(harness, replace(stranger, flags=SYN | ACK), OUTSIDE) is not None


def test_connections_live_as_long_as_their_state_says() -> None:
    """Four minutes before it is open and after it has closed, and two hours and four minutes between."""
    harness = harness_of()
    packet = client(TCP)
    seen = outside_of(harness, packet)
    assert after(harness, 240) == 4
    assert after(harness, 1) == 0
    seen = outside_of(harness, packet)
    assert sent_of(harness, replace(seen.other_way(), flags=SYN | ACK), OUTSIDE) is not None
    assert after(harness, 7439) == 4
    assert sent_of(harness, replace(packet, flags=FIN | ACK), INSIDE) is not None
    assert after(harness, 7439) == 4
    assert sent_of(harness, replace(seen.other_way(), flags=FIN | ACK), OUTSIDE) is not None
    assert after(harness, 240) == 4
    assert after(harness, 1) == 0


def give_frames(
    harness: Harness, frames: list[bytes], side: int, *, mixed: bool = True
) -> dict[int, SentFrame]:
    """Return what is sent of frames, which come in any order on any cores, or else in order on one."""
    count = len(frames)
    order = harness.chance.sample(range(count), count) if mixed else range(count)
    steer = [harness.chance.randrange(harness.cores) if mixed else 0 for _ in frames]
    engine = MemoryEngine(
        frames, harness.cores, sides=[side] * count, steer=steer, order=order, grow=harness.nat.grows
    )
    harness.workers.change_engine(engine)
    harness.workers.drain(harness.chance.randrange)
    assert (engine.released == 1).all()
    return {sent.frame: sent for sent in engine.sent()}


def whole(sent: dict[int, SentFrame], count: int) -> bytes:
    """Return the payload of IP of a datagram from all of its fragments."""
    assert sorted(sent) == list(range(count))
    return b"".join(sent[n].data[34 if sent[n].data[14] >> 4 == 4 else 62 :] for n in range(count))


FRAGMENTED: Final = [
    (TCP, False),
    (UDP, False),
    (ICMP, False),
    (GRE, False),
    (UDP_LITE, False),
    (UDP, True),
    (ICMP6, True),
]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("protocol", "six"), FRAGMENTED)
def test_fragments_pass_in_any_order(protocol: int, *, six: bool, seed: int) -> None:
    """Fragments on any cores in any order are one right datagram, also where it opens its session."""
    harness = harness_of(seed=seed)
    packet = client(protocol, six=six, payload=bytes(range(200)), flags=ACK)
    if protocol == TCP:
        outside_of(harness, replace(packet, flags=SYN))
    parts = parts_of(packet.frame(), 64, seed + 7)
    sent = give_frames(harness, parts, INSIDE)
    source = sent[0].data[26:30] if not six else sent[0].data[22:38]
    seen = replace(packet, source=address(source))
    if protocol in (TCP, UDP, ICMP, ICMP6):
        at = (62 if six else 34) + (4 if protocol in (ICMP, ICMP6) else 0)
        seen = replace(seen, source_port=struct.unpack(">H", sent[0].data[at : at + 2])[0])
    assert whole(sent, len(parts)) == seen.transport()
    assert harness.causes() == {}
    if protocol in (ICMP, ICMP6):
        return
    back = replace(seen.other_way(), payload=bytes(300))
    plain = replace(packet.other_way(), payload=bytes(300))
    if protocol == GRE:
        back = replace(plain, target=seen.source)
    parts = parts_of(back.frame(), 96, seed + 9)
    assert whole(give_frames(harness, parts, OUTSIDE), len(parts)) == plain.transport()


@pytest.mark.parametrize("copies", [True, False])
def test_fragments_wait_for_their_first(*, copies: bool) -> None:
    """They pass behind it, from their own frames or from copies, and each frame is released once."""
    harness = harness_of(cores=1)
    packet = client(payload=bytes(range(200)))
    parts = parts_of(packet.frame(), 64)
    engine = engine_of(parts[::-1], copies=copies)
    workers = Workers(harness.nat, engine, seed=3, now=100)
    workers.drain()
    assert (engine.released == 1).all()
    sent = {len(parts) - 1 - frame.frame: frame for frame in engine.sent()}
    assert len(whole(sent, len(parts))) == 208
    assert next(iter(sent)) == 0, "the first part leaves first"
    # Without it they are dropped.
    engine = engine_of(parts_of(packet.frame(), 64, 8)[1:], copies=copies)
    workers.change_engine(engine)
    workers.drain()
    assert (engine.released == 1).all()
    assert workers.statistics().causes["fragment"] == len(parts) - 1


class PatientEngine(MemoryEngine):
    """An engine whose frames can wait, as those of AF_XDP."""

    frees_in_order = False


def engine_of(frames: list[bytes], *, copies: bool) -> MemoryEngine:
    """Return an engine whose frames can wait, or must be copied."""
    kind = MemoryEngine if copies else PatientEngine
    return kind(frames, 1, sides=[INSIDE] * len(frames))


def test_waiting_is_bounded_in_number_and_time() -> None:
    """A core keeps no more than SPRAYER_WAITING fragments, and each for a limited time."""
    harness = harness_of(cores=1)
    later = [
        parts_of(client(payload=bytes(200)).frame(), 64, name)[1] for name in range(SPRAYER_WAITING + 20)
    ]
    engine = MemoryEngine(later, 1, sides=[INSIDE] * len(later))
    workers = harness.workers
    workers.change_engine(engine)
    workers.turn(0, 500)
    assert workers.workers[0].waiting_marks[WAITING] == SPRAYER_WAITING
    assert workers.statistics().causes["fragment"] == 20
    workers.set_time(100 + SPRAYER_WAITING_S)
    workers.turn(0, 10)
    assert workers.workers[0].waiting_marks[WAITING] == SPRAYER_WAITING
    workers.set_time(101 + SPRAYER_WAITING_S)
    workers.turn(0, 10)
    assert workers.workers[0].waiting_marks[WAITING] == 0
    assert workers.statistics().causes["fragment"] == SPRAYER_WAITING + 20
    assert (engine.released == 1).all()


def test_more_datagrams_than_there_is_room_for_take_the_place_of_the_oldest() -> None:
    """First parts of four times as many datagrams all pass, and the last datagram can be completed."""
    harness = harness_of(cores=1)
    packet = client(payload=bytes(200))
    names = range(4 * SPRAYER_DATAGRAMS)
    firsts = [parts_of(packet.frame(), 128, name)[0] for name in names]
    assert len(give_frames(harness, firsts, INSIDE, mixed=False)) == len(firsts)
    assert len(give_frames(harness, [parts_of(packet.frame(), 128, names[-1])[1]], INSIDE)) == 1


@pytest.mark.parametrize(
    ("at", "size", "more"),
    [
        (0, 64, True),
        (0, 8, True),
        (8, 8, True),
        (56, 16, True),
        (64, 8, False),
        (128, 80, False),
        (200, 8, True),
    ],
)
def test_a_part_that_overlaps_another_is_refused(at: int, size: int, *, more: bool) -> None:
    """A second part of bytes that have passed, or one behind the end, is dropped, and the others pass."""
    harness = harness_of(cores=1)
    packet = client(payload=bytes(200))
    parts = parts_of(packet.frame(), 64)
    forged = bytearray(parts_of(client(payload=bytes(400)).frame(), size)[1])
    head = forged[14:34]
    head[2:4] = struct.pack(">H", 20 + size)
    head[6:8] = struct.pack(">H", more << 13 | at >> 3)
    head[10:12] = b"\0\0"
    head[10:12] = struct.pack(">H", ones_sum(bytes(head)))
    attack = bytes(forged[:14]) + bytes(head) + bytes([255]) * size
    sent = give_frames(harness, [parts[0], parts[-1], attack, parts[1], parts[2]], INSIDE, mixed=False)
    assert sorted(sent) == [0, 1, 3, 4]
    assert harness.causes() == {"fragment": 1}


@pytest.mark.parametrize(("protocol", "size"), [(TCP, 16), (UDP, 0), (ICMP, 0)])
def test_a_first_part_without_its_header_is_refused(protocol: int, size: int) -> None:
    """A header in two parts could be replaced by the second one (RFC 1858)."""
    harness = harness_of(cores=1)
    frame = parts_of(client(protocol, payload=bytes(80)).frame(), max(size, 8))[0]
    if size == 0:
        frame = frame[:16] + struct.pack(">H", 20) + frame[18:34]
    assert give_frames(harness, [frame], INSIDE) == {}
    assert harness.causes() == {"fragment": 1}


def test_an_identification_can_be_used_again() -> None:
    """Of a complete datagram at once, of another one when its time is over."""
    harness = harness_of(cores=1)
    parts = parts_of(client(payload=bytes(200)).frame(), 64)
    for _ in range(3):
        assert len(give_frames(harness, parts, INSIDE, mixed=False)) == len(parts)
    assert len(give_frames(harness, parts[:2], INSIDE, mixed=False)) == 2
    assert give_frames(harness, parts[:2], INSIDE, mixed=False) == {}
    after(harness, SPRAYER_DATAGRAM_S + 1)
    assert len(give_frames(harness, parts, INSIDE, mixed=False)) == len(parts)


@pytest.mark.parametrize("six", [False, True])
@pytest.mark.parametrize("protocol", [GRE, ESP, SCTP, UDP_LITE])
def test_other_protocols_have_their_address_translated(protocol: int, *, six: bool) -> None:
    """They leave from an own address and come back, with right checksums, and nobody else comes in."""
    harness = harness_of(cores=3)
    packets = [
        client(protocol, six=six, target=TARGET_6[:-1] + str(n) if six else f"203.0.113.{n}", payload=b"data")
        for n in range(1, 9)
    ]
    sent = harness.give(packets, INSIDE)
    outer = {address(frame.data[22:38] if six else frame.data[26:30]) for frame in sent.values()}
    assert len(sent) == 8
    assert len(outer) == 1
    (own,) = outer
    assert all(sent[n].data == replace(packets[n], source=own).frame() for n in range(8))
    back = [replace(packet, source=packet.target, target=own) for packet in packets]
    got = harness.give(back, OUTSIDE)
    expected = [replace(packet, source=packet.target, target=packet.source) for packet in packets]
    assert [got[n].data for n in range(8)] == [packet.frame() for packet in expected]
    assert (
        sent_of(harness, replace(back[0], source="2001:db8:5::5" if six else "203.0.113.99"), OUTSIDE) is None
    )
    assert sent_of(harness, replace(packets[0], target=own), INSIDE) is None
    assert harness.causes() == {"no_flow": 2}
    assert after(harness, 301) == 0


def test_ends_inside_share_no_address_with_one_target_without_ports() -> None:
    """A second end gets the next address, a third none; another target is possible with any of them."""
    harness = harness_of()
    packets = [client(ESP, source=f"10.0.0.{n}") for n in (5, 6, 7)]
    sent = [sent_of(harness, packet, INSIDE) for packet in packets]
    assert sum(frame is None for frame in sent) == 1
    assert {frame.data[26:30] for frame in sent if frame} == {
        bytes(map(int, text.split("."))) for text in OUTER
    }
    assert harness.causes() == {"no_port": 1}
    assert all(sent_of(harness, replace(packet, target="203.0.113.50"), INSIDE) for packet in packets[:2])


def test_an_error_about_another_protocol_reaches_the_sender() -> None:
    """An ICMP error about ESP has the addresses of the realm inside; other ICMP messages are dropped."""
    harness = harness_of()
    packet = client(ESP, payload=b"12345678")
    sent = sent_of(harness, packet, INSIDE)
    assert sent is not None
    seen = replace(packet, source=address(sent.data[26:30]))
    got = sent_of(
        harness, Made("203.0.113.7", seen.source, protocol=ICMP, error_about=seen.packet()), OUTSIDE
    )
    assert got is not None
    expected = Made("203.0.113.7", packet.source, protocol=ICMP, error_about=packet.packet())
    assert got.data == expected.frame()
    assert sent_of(harness, client(ICMP, kind=17), INSIDE) is None
    assert sent_of(harness, client(51), INSIDE) is None
    assert harness.causes() == {"protocol": 2}


@pytest.mark.parametrize("six", [False, True])
def test_a_packet_that_does_not_fit_is_answered(*, six: bool) -> None:
    """The sender learns the MTU, also outside; a packet of IPv4 that may be fragmented is dropped."""
    harness = harness_of(mtu=1400)
    head = 54 if six else 34
    packet = client(six=six, payload=bytes(1400))
    seen = outside_of(harness, replace(packet, payload=b""))
    for long, side in ((packet, INSIDE), (replace(seen.other_way(), payload=bytes(1400)), OUTSIDE)):
        frame = bytearray(long.frame())
        if not six:
            assert sent_of(harness, long, side) is None
            frame[20] |= 0x40
            frame[24:26] = b"\0\0"
            frame[24:26] = struct.pack(">H", ones_sum(bytes(frame[14:34])))
        sent = give_frames(harness, [bytes(frame)], side)[0]
        assert sent.back
        assert tuple(sent.data[head : head + 2]) == ((2, 0) if six else (3, 4))
        assert struct.unpack(">I", sent.data[head + 4 : head + 8]) == (1400,)
        assert bytes(frame[14:]).startswith(sent.data[head + 8 :])
    assert harness.causes() == ({} if six else {"too_long": 2})


def test_a_host_that_takes_over_counts_sessions_again() -> None:
    """Rows that another host wrote in the middle of a change leave no mapping behind, and end none early."""
    harness = harness_of(cores=1, filtering="address-dependent")
    packets = [client(target=f"203.0.113.{n}") for n in range(1, 4)]
    opened(harness, packets)
    (flows,) = harness.workers.flows
    sessions = flows.table["entry"]["sessions"]
    kinds = flows.table["entry"]["kind"]
    before = sessions.copy()
    used = flows.words >> np.uint64(32) > 1
    sessions[used] = 9
    harness.nat.continue_flows(harness.workers.flows)
    assert (sessions[used] == before[used]).all()
    sessions[used & (kinds == MAPPING)] = 0
    assert after(harness, 302) == 0


def test_a_firewall_passes_fragments_and_other_protocols_by_its_rules() -> None:
    """The rule for the first part decides for all, in any order; so does one for a protocol without ports."""
    firewall = Firewall([Rule(protocol=UDP, ports=(53, 53)), Rule(protocol=GRE)])
    harness = Harness(firewall, 2, 5)
    parts = parts_of(client(payload=bytes(200)).frame(), 64)
    sent = give_frames(harness, parts, INSIDE)
    assert [sent[n].data for n in range(len(parts))] == parts
    refused = parts_of(client(payload=bytes(200), target_port=54).frame(), 64, 9)
    assert give_frames(harness, refused, INSIDE) == {}
    assert harness.causes() == {"refused": 1, "fragment": len(refused) - 1}
    gre = client(GRE, payload=b"data")
    assert sent_of(harness, replace(gre, source=gre.target, target=gre.source), OUTSIDE) is None
    assert sent_of(harness, gre, INSIDE) is not None
    assert sent_of(harness, replace(gre, source=gre.target, target=gre.source), OUTSIDE) is not None
    assert sent_of(harness, client(ESP), INSIDE) is None


def test_a_fragment_hides_no_ports_behind_an_extension() -> None:
    """A first part of IPv6 whose ports are behind another extension is dropped, whatever the rules are."""
    harness = Harness(Firewall([Rule(allow=False, protocol=UDP, ports=(53, 53)), Rule()]), 1, 5)
    options = bytes([60, UDP, 0, 1, 4, 0, 0, 0, 0])
    frame = client(six=True, options=options, payload=bytes(200)).frame()
    first = parts_of(frame[:20] + bytes([60]) + frame[21:], 64)[0]
    assert give_frames(harness, [first], INSIDE) == {}
    assert harness.causes() == {"protocol": 1}


@pytest.mark.parametrize("name", ["firewall", "balancer"])
def test_an_open_connection_outlives_five_minutes(name: str) -> None:
    """Idle TCP has two hours and four minutes in all functions with flows, and its errors do not count."""
    function: NetworkFunction = Firewall()
    packet = client(TCP)
    if name == "balancer":
        function = Balancer((TARGET, 53), [("192.0.2.5", 80)], "192.0.2.254")
    harness = Harness(function, 1, 5)
    sent = sent_of(harness, packet, INSIDE)
    assert sent is not None
    seen = read(sent.data)
    back = Made(seen.target, seen.source, seen.target_port, seen.source_port, flags=SYN | ACK)
    assert sent_of(harness, back, OUTSIDE) is not None
    assert after(harness, 7440) == 2
    assert after(harness, 1) == 0


def test_a_balancer_passes_fragments_in_any_order() -> None:
    """A fragmented datagram to the service reaches one server whole."""
    balancer = Balancer((TARGET, 53), [("192.0.2.5", 80)], "192.0.2.254")
    harness = Harness(balancer, 2, 6)
    packet = client(payload=bytes(range(200)))
    parts = parts_of(packet.frame(), 64)
    sent = give_frames(harness, parts, INSIDE)
    port = struct.unpack(">H", sent[0].data[34:36])[0]
    seen = Made("192.0.2.254", "192.0.2.5", port, 80, UDP, payload=packet.payload)
    assert whole(sent, len(parts)) == seen.transport()


def test_flows_in_any_number_keep_their_ends_apart() -> None:
    """Of many flows on three cores, no end outside belongs to two ends inside."""
    harness = Harness(Nat(OUTER, range(2000, 2600)), 3, 11)
    clients = clients_of(11, 300)
    sources = opened(harness, clients)
    ends: dict[tuple[object, ...], tuple[object, ...]] = {}
    for number, packet in enumerate(clients):
        inside = (packet.source, packet.source_port, packet.protocol)
        assert ends.setdefault((*sources[number], packet.protocol), inside) == inside
    assert len(ends) == len({(packet.source, packet.source_port, packet.protocol) for packet in clients})
