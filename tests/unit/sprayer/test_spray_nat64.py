"""Translation between IPv6 and IPv4: the rules of RFC 6052, 6146 and 7915, each by frames made elsewhere."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dios.sprayer import INSIDE, OUTSIDE, MemoryEngine, Workers, halves
from dios.sprayer.functions.nat64 import Nat64, four_of, read_prefix, six_of
from dios.sprayer.memory_engine import SentFrame
from dios.sprayer.packets.packet import address_of
from tests.support.sprayer.frames import (
    ACK,
    FIN,
    ICMP,
    ICMP6,
    RST,
    SYN,
    TCP,
    UDP,
    Made,
    ones_sum,
    parts_of,
    read,
)

POOL = ("198.51.100.1", "198.51.100.2")
CLIENT, SERVER = "2001:db8::5", "192.0.2.33"
PREFIX = "64:ff9b::"
RULES = [
    ("2001:db8::/32", "2001:db8:c000:221::"),
    ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
    ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
    ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
    ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
    ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
    ("64:ff9b::/96", "64:ff9b::192.0.2.33"),
]


def six(four: str) -> str:
    """Return the address for IPv6 of a server."""
    return str(ipaddress.ip_address(int(ipaddress.ip_address(PREFIX)) | int(ipaddress.ip_address(four))))


class Translator:
    """A NAT64 on some cores; each frame arrives at any of them."""

    def __init__(self, cores: int = 2, **settings: object) -> None:
        self.function = Nat64(POOL, **settings)  # type: ignore[arg-type] # of the test
        self.workers = Workers(self.function, MemoryEngine([], cores), seed=3, now=100)
        self.cores = cores
        self.now = 100

    def give(self, frames: Sequence[bytes], side: int) -> dict[int, SentFrame]:
        """Return what is sent, by the number of the frame."""
        steer = np.arange(len(frames)) % self.cores
        sides = [side] * len(frames)
        engine = MemoryEngine(frames, self.cores, sides=sides, steer=steer, grow=self.function.grows)
        self.workers.change_engine(engine)
        self.workers.drain()
        return {sent.frame: sent for sent in engine.sent()}

    def translated(self, frame: bytes, side: int) -> bytes:
        """Return the frame that one frame becomes, on the other side."""
        sent = self.give([frame], side)[0]
        assert not sent.back
        return sent.data

    def causes(self) -> dict[str, int]:
        """Return the causes that occurred."""
        return {name: count for name, count in self.workers.statistics().causes.items() if count}

    def held_after(self, seconds: int) -> int:
        """Return the number of rows that are left when seconds have passed: two of a mapping or a session."""
        self.now += seconds
        self.workers.set_time(self.now)
        self.workers.expire_flows()
        return self.workers.statistics().flows["held"]

    def opened(self, packet: Made) -> Made:
        """Open a mapping; return the packet as the server sees it."""
        seen = read(self.translated(packet.frame(), INSIDE))
        assert seen.source in POOL
        return replace(packet, source=seen.source, source_port=seen.source_port, target=SERVER)


@pytest.fixture(scope="module")
def shared() -> Translator:
    """One function for many tests, because making it takes longer than they do."""
    return Translator()


def client(protocol: int = TCP, **changes: object) -> Made:
    """A packet of a client to the server."""
    packet = Made(CLIENT, six(SERVER), 4001, 80, protocol=protocol, flags=SYN)
    return replace(packet, **changes)  # type: ignore[arg-type] # of the test


def renewed(frame: bytes, **fields: int) -> bytes:
    """Set fields of an IPv4 header (``ttl``, ``name``, ``parts``, ``traffic``), with its checksum."""
    head = bytearray(frame[14:34])
    head[1] = fields.get("traffic", head[1])
    head[4:6] = struct.pack(">H", fields.get("name", 1))
    head[6:8] = struct.pack(">H", fields.get("parts", 0))
    head[8] = fields.get("ttl", 64)
    head[10:12] = b"\0\0"
    head[10:12] = struct.pack(">H", ones_sum(bytes(head)))
    return frame[:14] + bytes(head) + frame[34:]


def test_a_header_that_proves_its_sender_is_not_taken_away(shared: Translator) -> None:
    """A packet with an authentication header is dropped, also one of a session."""
    packet = client(source_port=4777)
    shared.opened(packet)
    before = shared.causes().get("protocol", 0)
    proof = b"\x33" + bytes([TCP, 4, *bytes(22)])
    assert shared.give([replace(packet, flags=ACK, options=proof).frame()], INSIDE) == {}
    assert shared.causes()["protocol"] == before + 1


@pytest.mark.parametrize(("prefix", "text"), RULES)
def test_addresses_are_those_of_the_table_of_rfc_6052(prefix: str, text: str) -> None:
    """192.0.2.33 is embedded with each length of prefix, and read again; other addresses stand for none."""
    base, bits = read_prefix(prefix)
    low, high, low_6, strange = (word(half) for half in (halves(SERVER)[1], *halves(text), 0x2001DEAD << 32))
    assert halves(text) == six_of(low, base, bits)
    assert four_of(high, low_6, base, bits) == low
    assert four_of(strange, low_6, base, bits) == 0


def word(value: int) -> int:
    """Return a number as compiled code has it."""
    return cast("int", np.uint64(value))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([TCP, UDP, ICMP]), st.binary(max_size=60), st.integers(1, 65_535), st.integers(1, 65_535)
)
def test_packets_go_there_and_back_with_right_checksums(
    shared: Translator, protocol: int, payload: bytes, port: int, service: int
) -> None:
    """A packet is what the client would have made for IPv4, with one hop less, and so is the answer."""
    out = client(ICMP6 if protocol == ICMP else protocol, source_port=port, payload=payload)
    out = replace(out, target_port=0 if protocol == ICMP else service)
    frame = shared.translated(out.frame(), INSIDE)
    seen = read(frame)
    assert seen.sums_right
    assert (seen.target, seen.target_port, seen.payload) == (SERVER, out.target_port, payload)
    assert (frame[22], frame[20:22], seen.protocol) == (63, b"\0\0", protocol)
    assert (seen.source_port ^ port) % 2 == 0
    back = Made(SERVER, seen.source, service, seen.source_port, protocol, SYN | ACK, payload)
    if protocol == ICMP:
        back = replace(back, source_port=seen.source_port, target_port=0, kind=0)
    got = read(shared.translated(back.frame(), OUTSIDE))
    assert got.sums_right
    assert (got.source, got.target, got.payload) == (six(SERVER), CLIENT, payload)
    assert (got.target_port, got.source_port) == (port, 0 if protocol == ICMP else service)
    assert got.protocol == (ICMP6 if protocol == ICMP else protocol)


def test_a_mapping_serves_all_servers_and_is_kept_by_all() -> None:
    """An end inside has one end outside, whatever its target, and strangers reach it by that."""
    translator = Translator()
    first = translator.opened(client(UDP))
    other = read(translator.translated(client(UDP, target=six("192.0.2.99"), target_port=53).frame(), INSIDE))
    assert (first.source, first.source_port) == (other.source, other.source_port)
    stranger = Made("203.0.113.9", first.source, 7, first.source_port, UDP)
    assert read(translator.translated(stranger.frame(), OUTSIDE)).target == CLIENT
    assert translator.give([replace(stranger, target_port=first.source_port ^ 2).frame()], OUTSIDE) == {}
    assert translator.give([client(UDP, target="2001:db8::9").frame()], INSIDE) == {}
    assert translator.causes() == {"no_flow": 1, "no_address": 1}


def test_neighbours_inside_meet_by_their_addresses_outside() -> None:
    """A packet to an own address goes back inside, from the sender's address outside (RFC 6146, 3.8)."""
    translator = Translator()
    first = translator.opened(client(UDP))
    other = translator.opened(client(UDP, source="2001:db8::6", source_port=5000))
    frame = client(UDP, target=six(other.source), target_port=other.source_port, payload=b"hi").frame()
    sent = translator.give([frame], INSIDE)[0]
    assert (sent.back, sent.data[:12]) == (True, frame[6:12] + frame[:6])
    seen = read(sent.data)
    assert (seen.source, seen.source_port) == (six(first.source), first.source_port)
    assert (seen.target, seen.target_port, seen.sums_right) == ("2001:db8::6", 5000, True)
    assert translator.function.totals()["hairpins"] == 1


def test_mappings_live_as_long_as_their_state_says() -> None:
    """UDP has five minutes; TCP has four, two hours once it is open, and four again after it has closed."""
    translator = Translator()
    udp, tcp = translator.opened(client(UDP)), translator.opened(client())
    back = Made(SERVER, tcp.source, 80, tcp.source_port)
    held_after = translator.held_after
    translator.translated(replace(back, flags=SYN | ACK).frame(), OUTSIDE)
    assert held_after(290) == 8
    assert held_after(20) == 4
    translator.translated(replace(back, flags=FIN | ACK).frame(), OUTSIDE)
    assert held_after(7000) == 4
    translator.translated(client(flags=FIN | ACK).frame(), INSIDE)
    assert held_after(230) == 4
    assert held_after(20) == 0
    translator.opened(client())
    assert held_after(250) == 0
    translator.opened(client())
    translator.translated(client(flags=RST).frame(), INSIDE)
    assert held_after(250) == 0
    assert udp.source in POOL


def test_ports_end_and_are_counted() -> None:
    """With no port left, a packet that would open a mapping is dropped."""
    translator = Translator(ports=range(2000, 2004))
    frames = [client(UDP, source_port=1000 + number).frame() for number in range(60)]
    assert len(translator.give(frames, INSIDE)) <= 8
    assert translator.causes()["no_port"] >= 52


@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_fragments_follow_their_first(shared: Translator, protocol: int) -> None:
    """Both ways, parts have the identification and offsets of the original and are whole together."""
    opened = shared.opened(client(protocol, source_port=4444))
    whole = client(protocol, source_port=4444, payload=bytes(range(80)), flags=ACK)
    data = whole.packet()[40:]
    parts = []
    for at, more in ((0, 1), (48, 0)):
        piece = data[at : at + 48] if more else data[at:]
        head = struct.pack(">BBHI", protocol, 0, at | more, 0x12345)
        packet = whole.packet()
        parts.append(
            whole.frame()[:14]
            + packet[:4]
            + struct.pack(">HB", len(piece) + 8, 44)
            + packet[7:40]
            + head
            + piece
        )
    sent = [shared.translated(part, INSIDE) for part in parts]
    assert [frame[18:22] for frame in sent] == [b"\x23\x45\x20\x00", b"\x23\x45\x00\x06"]
    joined = renewed(replace(opened, flags=ACK, payload=bytes(range(80))).frame(), ttl=63)
    assert sent[0][34:] + sent[1][34:] == joined[34:]
    back = replace(opened.other_way(), payload=bytes(range(80)), flags=ACK).frame()
    for at, parts_field in ((0, 0x2000), (48, 6)):
        piece = back[34 + at : 82] if at == 0 else back[82:]
        head = back[14:16] + struct.pack(">H", 20 + len(piece)) + back[18:34]
        got = shared.translated(renewed(back[:14] + head + piece, name=7, parts=parts_field), OUTSIDE)
        assert (got[20], got[54:62]) == (44, struct.pack(">BBHI", protocol, 0, at | (at == 0), 7))
    before = shared.causes().get("fragment", 0)
    lonely = renewed(back[:34] + bytes(len(back) - 34), name=99, parts=6)
    assert shared.give([lonely], OUTSIDE) == {}
    assert shared.causes()["fragment"] == before + 1


def test_fragments_come_in_any_order() -> None:
    """Later fragments wait for the first one on any core, both ways, also where it opens the session."""
    translator = Translator()
    packet = client(UDP, payload=bytes(range(200)))
    parts = parts_of(packet.frame(), 64)
    sent = translator.give(parts[::-1], INSIDE)
    places = range(len(parts) - 1, -1, -1)
    first = sent[places[0]].data
    source, port = str(ipaddress.ip_address(first[26:30])), int.from_bytes(first[34:36])
    seen = Made(source, SERVER, port, 80, UDP, payload=packet.payload)
    assert b"".join(sent[place].data[34:] for place in places) == seen.transport()
    sent = translator.give(parts_of(seen.other_way().frame(), 64)[::-1], OUTSIDE)
    back = packet.other_way().transport()
    assert b"".join(sent[place].data[62:] for place in places) == back
    assert translator.causes() == {}


def test_a_datagram_without_checksum_gets_one(shared: Translator) -> None:
    """IPv6 needs a checksum of UDP; one is calculated, and a fragment without is dropped."""
    opened = shared.opened(client(UDP, source_port=4555))
    back = replace(opened.other_way(), payload=b"odd", checksum=False)
    got = shared.translated(back.frame(), OUTSIDE)
    assert got[60:62] != b"\0\0"
    assert read(got).sums_right
    assert shared.give([renewed(back.frame(), parts=0x2000)], OUTSIDE) == {}


def test_a_damaged_header_is_not_translated(shared: Translator) -> None:
    """A wrong checksum of a header of IPv4 would be forgotten, because IPv6 has none."""
    back = replace(shared.opened(client(UDP, source_port=4556)).other_way(), payload=b"x").frame()
    before = shared.workers.statistics().causes["bad_sum"]
    assert shared.give([back[:15] + b"\x04" + back[16:]], OUTSIDE) == {}
    assert shared.workers.statistics().causes["bad_sum"] == before + 1


def test_headers_follow_rfc_7915(shared: Translator) -> None:
    """Traffic class, hops and extension headers; a packet above 1,260 bytes may not be fragmented."""
    opened = shared.opened(client(UDP, source_port=4666))
    back = renewed(replace(opened.other_way(), payload=b"x").frame(), traffic=0xB8, ttl=9)
    got = shared.translated(back, OUTSIDE)
    assert (got[14:18], got[21]) == (b"\x6b\x80\x00\x00", 8)
    extended = client(UDP, source_port=4666, payload=b"x", options=b"\x00" + bytes([17, 0, 1, 4, 0, 0, 0, 0]))
    got = shared.translated(extended.frame(), INSIDE)
    assert (len(got), read(got).sums_right) == (14 + 20 + 8 + 1, True)
    for size, fragmentable in ((1232, True), (1233, False)):
        got = shared.translated(client(UDP, source_port=4666, payload=bytes(size)).frame(), INSIDE)
        assert (got[18:20] != b"\0\0", got[20] & 0x40 == 0) == (fragmentable, fragmentable)


def test_errors_of_routers_reach_the_sender(shared: Translator) -> None:
    """Types, codes, MTUs and the packet inside are translated, both ways, with right checksums."""
    for protocol in (TCP, UDP, ICMP6):
        port = 4777 + protocol
        packet = client(
            protocol, source_port=port, target_port=0 if protocol == ICMP6 else 80, payload=b"12345678"
        )
        opened = shared.opened(packet)
        opened = replace(opened, protocol=ICMP if protocol == ICMP6 else protocol)
        for (kind, code, value), expected in {
            (3, 1, 0): (1, 0, 0),
            (3, 3, 0): (1, 4, 0),
            (3, 13, 0): (1, 1, 0),
            (3, 2, 0): (4, 1, 6),
            (3, 4, 1400): (2, 0, 1420),
            (3, 4, 0): (2, 0, 1280),
            (11, 0, 0): (3, 0, 0),
            (12, 0, 12 << 24): (4, 0, 8),
        }.items():
            error = Made("203.0.113.5", opened.source, protocol=ICMP, error_about=opened.packet())
            got = shared.translated(_typed(error.frame(), 34, kind, code, value), OUTSIDE)
            assert (got[54], got[55], *struct.unpack(">I", got[58:62])) == expected, (kind, code)
            assert ones_sum(got[22:54] + struct.pack(">II", len(got) - 54, 58) + got[54:]) == 0
            assert address_of(*struct.unpack(">QQ", got[22:38])) == six("203.0.113.5")
            assert got[62:] == replace(packet, kind=8).packet()
        inside = replace(packet.other_way(), flags=ACK) if protocol != ICMP6 else None
        if inside is None:
            continue
        for (kind, code, value), expected in {
            (1, 0, 0): (3, 1, 0),
            (1, 1, 0): (3, 10, 0),
            (1, 4, 0): (3, 3, 0),
            (2, 0, 1300): (3, 4, 1280),
            (3, 0, 0): (11, 0, 0),
            (4, 1, 0): (3, 2, 0),
            (4, 0, 7): (12, 0, 8 << 24),
        }.items():
            error = Made(CLIENT, six(SERVER), protocol=ICMP6, error_about=inside.packet())
            got = shared.translated(_typed(error.frame(), 54, kind, code, value), INSIDE)
            assert (got[34], got[35], *struct.unpack(">I", got[38:42])) == expected, (kind, code)
            assert (ones_sum(got[34:]), ones_sum(got[14:34]), got[26:30]) == (
                *(0, 0),
                ipaddress.ip_address(opened.source).packed,
            )
            back = replace(opened.other_way(), flags=ACK)
            assert (got[54:58], got[62:]) == (ipaddress.ip_address(SERVER).packed, back.packet()[20:])
            assert shared.give([_typed(error.frame(), 54, 1, 6, 0)], INSIDE) == {}


def _typed(frame: bytes, at: int, kind: int, code: int, value: int) -> bytes:
    """Set the type of an ICMP error, with its checksum."""
    body = struct.pack(">BBHI", kind, code, 0, value) + frame[at + 8 :]
    pseudo = frame[22:54] + struct.pack(">II", len(body), 58) if at == 54 else b""
    return frame[:at] + body[:2] + struct.pack(">H", ones_sum(pseudo + body)) + body[4:]


def test_what_does_not_fit_or_has_no_hops_is_answered(shared: Translator) -> None:
    """The sender gets "fragmentation needed" with the right MTU, or "time exceeded", from an own address."""
    opened = shared.opened(client(UDP, source_port=4888))
    large = replace(opened.other_way(), payload=bytes(1460))
    sent = shared.give([renewed(large.frame(), parts=0x4000)], OUTSIDE)[0]
    assert (sent.back, sent.data[34:36], sent.data[38:42]) == (True, b"\x03\x04", struct.pack(">I", 1480))
    assert (sent.data[26:34], len(sent.data)) == (
        ipaddress.ip_address(opened.source).packed + ipaddress.ip_address(SERVER).packed,
        14 + 576,
    )
    assert (ones_sum(sent.data[14:34]), ones_sum(sent.data[34:])) == (0, 0)
    old = shared.give([renewed(replace(large, payload=b"").frame(), ttl=1)], OUTSIDE)[0]
    assert (old.back, old.data[34:36]) == (True, b"\x0b\x00")
    frame = bytearray(client(UDP, source_port=4888).frame())
    frame[21] = 1
    old = shared.give([bytes(frame)], INSIDE)[0]
    assert (old.back, old.data[54:56], old.data[38:54]) == (
        True,
        b"\x03\x00",
        ipaddress.ip_address(CLIENT).packed,
    )
    got = old.data
    assert ones_sum(got[22:54] + struct.pack(">II", len(got) - 54, 58) + got[54:]) == 0


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"addresses": []}, "at least one address"),
        ({"addresses": ["2001:db8::1"]}, "give one of IPv4"),
        ({"prefix": "64:ff9b::/95"}, "give one of IPv6 of 32"),
        ({"prefix": "2001:db8:0:0:100::/96"}, "bits 64 to 71 are 0"),
        ({"mtu": 1000}, "an MTU of 1000"),
        ({"ports": [0]}, "ports are from 0"),
        ({"filtering": "port-dependent"}, "choose endpoint-independent, address-dependent or"),
        ({"sessions_max": 1}, "choose from 2 to 65536"),
    ],
)
def test_settings_that_cannot_serve_are_refused(settings: dict[str, object], told: str) -> None:
    """Addresses, prefixes, ports and MTUs that are not possible are errors that name what is."""
    with pytest.raises(ValueError, match=told):
        Nat64(**({"addresses": POOL} | settings))  # type: ignore[arg-type] # of the test
