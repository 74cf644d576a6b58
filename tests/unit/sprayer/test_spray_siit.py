"""Stateless translation (RFC 7915): each packet alone, by frames made elsewhere."""

from __future__ import annotations

import ipaddress
import random
import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dios.sprayer import INSIDE, OUTSIDE, MemoryEngine, Workers
from dios.sprayer.functions.siit import Siit
from dios.sprayer.memory_engine import SentFrame
from tests.support.sprayer.frames import ACK, ICMP, ICMP6, TCP, UDP, Made, ones_sum, read

OWN = "198.51.100.1"
HOST, SERVER = "203.0.113.5", "192.0.2.33"
NEUTRAL, OTHER = "64:ff9b::", "2001:db8:122:344::"
SEED = 6


def six(four: str, prefix: str = NEUTRAL) -> str:
    """Return the address for IPv6, with a prefix of 96 bits."""
    return str(ipaddress.ip_address(int(ipaddress.ip_address(prefix)) | int(ipaddress.ip_address(four))))


class Translator:
    """A stateless translator; each frame arrives at any core."""

    def __init__(self, prefix: str = NEUTRAL) -> None:
        self.prefix = prefix
        self.function = Siit(OWN, prefix=f"{prefix}/96")
        self.workers = Workers(self.function, MemoryEngine([], 2), seed=3, now=100)

    def give(self, frames: Sequence[bytes], side: int) -> dict[int, SentFrame]:
        """Return what is sent, by the number of the frame."""
        steer = [number % 2 for number in range(len(frames))]
        engine = MemoryEngine(frames, 2, sides=[side] * len(frames), steer=steer, grow=self.function.grows)
        self.workers.change_engine(engine)
        self.workers.drain()
        return {sent.frame: sent for sent in engine.sent()}

    def translated(self, frame: bytes, side: int) -> bytes:
        """Return the frame that one frame becomes, on the other side."""
        sent = self.give([frame], side)[0]
        assert not sent.back
        return sent.data

    def out(self, **changes: object) -> Made:
        """Return a packet from inside."""
        packet = Made(six(HOST, self.prefix), six(SERVER, self.prefix), 4001, 80, flags=ACK)
        return replace(packet, **changes)  # type: ignore[arg-type] # of the test


@pytest.fixture(scope="module")
def shared() -> Translator:
    """One function for many tests, because making it takes longer than they do."""
    return Translator()


def test_packets_go_both_ways_and_ports_stay(shared: Translator) -> None:
    """Without any flow, TCP, UDP and echoes arrive with right checksums, from whichever side is first."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    for number in range(60):
        protocol = chance.choice([TCP, UDP, ICMP6])
        port = 0 if protocol == ICMP6 else chance.randrange(1, 65_536)
        packet = shared.out(protocol=protocol, target_port=port, payload=chance.randbytes(number))
        there = read(shared.translated(packet.frame(), INSIDE))
        assert (there.source, there.target, there.source_port, there.target_port) == (
            *(HOST, SERVER, packet.source_port, port),
        )
        assert (there.payload, there.sums_right) == (packet.payload, True)
        four = replace(packet, source=SERVER, target=HOST, protocol=ICMP if protocol == ICMP6 else protocol)
        back = read(shared.translated(four.frame(), OUTSIDE))
        assert (back.source, back.target, back.source_port, back.sums_right) == (
            *(six(SERVER), six(HOST), packet.source_port, True),
        )
    assert shared.workers.statistics().flows["held"] == 0


def test_a_damaged_header_is_not_translated(shared: Translator) -> None:
    """A wrong checksum of a header of IPv4 would be forgotten, because IPv6 has none."""
    frame = bytearray(Made(SERVER, HOST, 80, 4001, flags=ACK).frame())
    assert 0 in shared.give([bytes(frame)], OUTSIDE)
    frame[14 + 1] ^= 4
    before = shared.workers.statistics().causes["bad_sum"]
    assert shared.give([bytes(frame)], OUTSIDE) == {}
    assert shared.workers.statistics().causes["bad_sum"] == before + 1


def test_a_neutral_prefix_leaves_checksums_as_they_are(shared: Translator) -> None:
    """With 64:ff9b::/96 no byte of TCP changes (RFC 6052, section 4.1); with another one it does."""
    packet = shared.out(payload=b"neutral")
    assert shared.translated(packet.frame(), INSIDE)[34:] == packet.frame()[54:]
    wrong = bytearray(packet.frame())
    wrong[70] ^= 0x55
    assert not read(shared.translated(bytes(wrong), INSIDE)).sums_right
    other = Translator(OTHER)
    packet = other.out(payload=b"neutral")
    got = other.translated(packet.frame(), INSIDE)
    assert got[34:50] == packet.frame()[54:70]
    assert got[50:52] != packet.frame()[70:72]
    assert read(got).sums_right


@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_fragments_are_translated_in_any_order(shared: Translator, protocol: int) -> None:
    """Each part alone, also a last one first: identification, offset and flag are the original's."""
    whole = shared.out(protocol=protocol, payload=bytes(range(80)))
    packet, data = whole.packet(), whole.packet()[40:]
    parts = []
    for at, more in ((48, 0), (0, 1)):
        piece = data[at : at + 48] if more else data[at:]
        head = struct.pack(">BBHI", protocol, 0, at | more, 0x12345)
        size = struct.pack(">HB", len(piece) + 8, 44)
        parts.append(whole.frame()[:14] + packet[:4] + size + packet[7:40] + head + piece)
    last, first = (shared.translated(part, INSIDE) for part in parts)
    assert [frame[18:22] for frame in (first, last)] == [b"\x23\x45\x20\x00", b"\x23\x45\x00\x06"]
    four = replace(whole, source=HOST, target=SERVER).packet()
    assert first[34:] + last[34:] == four[20:]
    assert [ones_sum(frame[14:34]) for frame in (first, last)] == [0, 0]
    again = [shared.translated(part, OUTSIDE) for part in (turned(first), turned(last))]
    assert [frame[54:62] for frame in again] == [
        struct.pack(">BBHI", protocol, 0, at, 0x2345) for at in (1, 48)
    ]
    assert again[0][62:] + again[1][62:] == first[34:] + last[34:]


def turned(frame: bytes) -> bytes:
    """Return a frame of IPv4 from outside, with the same payload: its addresses are exchanged."""
    return frame[:26] + frame[30:34] + frame[26:30] + frame[34:]


def raw(protocol: int, data: bytes, source: str, target: str, *, parts: int = 0) -> bytes:
    """Return a frame of any protocol, of the addresses' version of IP; ``parts`` is a word of IPv4."""
    ends = ipaddress.ip_address(source).packed + ipaddress.ip_address(target).packed
    if len(ends) == 32:
        head = struct.pack(">IHBB", 6 << 28, len(data), protocol, 64) + ends
    else:
        head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(data), 7, parts, 64, protocol, 0) + ends
        head = head[:10] + struct.pack(">H", ones_sum(head)) + head[12:]
    return b"\2" * 6 + b"\4" * 6 + (b"\x86\xdd" if len(ends) == 32 else b"\x08\0") + head + data


def test_other_protocols_pass_as_they_are(shared: Translator) -> None:
    """ESP, GRE, SCTP and unknown ones get the header of the other version, whole and in parts."""
    for protocol, data in ((50, b"esp" * 9), (47, b""), (132, b"s"), (200, bytes(range(99)))):
        got = shared.translated(raw(protocol, data, six(HOST), six(SERVER)), INSIDE)
        assert (got[12:15], got[23], got[22], got[34:]) == (b"\x08\0\x45", protocol, 63, data)
        assert (ones_sum(got[14:34]), got[26:34]) == (0, b"\xcb\0\x71\x05\xc0\0\x02\x21")
        got = shared.translated(raw(protocol, data, SERVER, HOST), OUTSIDE)
        assert (got[12:14], got[20], got[21], got[54:]) == (b"\x86\xdd", protocol, 63, data)
        assert got[18:20] == struct.pack(">H", len(data))
    got = shared.translated(raw(50, b"last", SERVER, HOST, parts=3), OUTSIDE)
    assert (got[20], got[54:]) == (44, struct.pack(">BBHI", 50, 0, 24, 7) + b"last")
    part = struct.pack(">BBHI", 50, 0, 24, 7) + b"last"
    got = shared.translated(raw(44, part, six(HOST), six(SERVER)), INSIDE)
    assert (got[18:24], got[34:]) == (b"\0\7\0\3\x3f\x32", b"last")


def test_errors_about_other_protocols_reach_their_sender(shared: Translator) -> None:
    """The sender of a tunnel of ESP gets errors of routers, in both directions."""
    sent = raw(50, b"12345678", six(SERVER), six(HOST))[14:]
    error = Made("2001:db8::77", six(SERVER), protocol=ICMP6, error_about=sent).frame()
    got = shared.translated(error, INSIDE)
    assert (got[34:36], ones_sum(got[34:])) == (b"\3\n", 0)
    assert (got[51], got[54:62], got[62:]) == (50, raw(0, b"", SERVER, HOST)[26:34], b"12345678")
    sent = raw(50, b"12345678", HOST, SERVER)[14:]
    got = shared.translated(Made("203.0.113.9", HOST, protocol=ICMP, error_about=sent).frame(), OUTSIDE)
    assert got[62:] == raw(50, b"12345678", six(HOST), six(SERVER))[14:]


def test_a_translation_makes_no_headers_that_a_router_reads(shared: Translator) -> None:
    """Numbers of extension headers, and ICMP of the other version or of other types, are dropped."""
    before = shared.workers.statistics().causes["protocol"]
    numbers = (0, 43, 44, 51, 58, 60, 135, 139, 140)
    frames = [raw(number, bytes([134, 0, *bytes(30)]), SERVER, HOST) for number in numbers]
    frames.append(raw(ICMP, bytes([13, *bytes(20)]), SERVER, HOST))
    assert shared.give(frames, OUTSIDE) == {}
    frames = [raw(ICMP, bytes([8, *bytes(20)]), six(HOST), six(SERVER))]
    frames.append(raw(ICMP6, bytes([200, *bytes(20)]), six(HOST), six(SERVER)))
    assert shared.give(frames, INSIDE) == {}
    assert shared.workers.statistics().causes["protocol"] == before + 12
    inner = raw(58, bytes(8), HOST, SERVER)[14:]
    assert shared.give([Made("203.0.113.9", HOST, protocol=ICMP, error_about=inner).frame()], OUTSIDE) == {}


def test_errors_and_the_packets_in_them_are_translated(shared: Translator) -> None:
    """A router's error reaches the sender; one without an address of IPv4 appears as the translator's."""
    packet = shared.out(protocol=UDP, payload=b"12345678")
    seen = replace(packet, source=HOST, target=SERVER)
    error = Made("203.0.113.99", HOST, protocol=ICMP, error_about=seen.packet())
    got = shared.translated(error.frame(), OUTSIDE)
    assert (got[54], got[55]) == (1, 0)
    assert ones_sum(got[22:54] + struct.pack(">II", len(got) - 54, 58) + got[54:]) == 0
    assert got[62:] == packet.packet()
    back = replace(packet.other_way(), payload=b"12345678")
    for router, address in ((six("203.0.113.98"), "203.0.113.98"), ("2001:db8::77", OWN)):
        error = Made(router, six(SERVER), protocol=ICMP6, error_about=back.packet())
        got = shared.translated(error.frame(), INSIDE)
        assert (ones_sum(got[34:]), ones_sum(got[14:34])) == (0, 0)
        assert got[26:34] == ipaddress.ip_address(address).packed + ipaddress.ip_address(SERVER).packed
        assert got[62:] == replace(back, source=SERVER, target=HOST).packet()[20:]


def with_flags(frame: bytes, flags: int) -> bytes:
    """Return a frame with these flags of fragments, and the right sum of its header."""
    changed = bytearray(frame)
    changed[20] = flags
    changed[24:26] = bytes(2)
    changed[24:26] = struct.pack(">H", ones_sum(bytes(changed[14:34])))
    return bytes(changed)


def test_what_cannot_be_translated_is_dropped_or_answered(shared: Translator) -> None:
    """Other addresses, wrong sides and fragments of echoes are dropped; others are answered with an error."""
    before = shared.workers.statistics().causes
    assert shared.give([shared.out(source="2001:db8::5").frame()], INSIDE) == {}
    assert shared.give([shared.out().frame()], OUTSIDE) == {}
    assert shared.give([replace(shared.out(), source=HOST, target=SERVER).frame()], INSIDE) == {}
    echo = with_flags(Made(SERVER, HOST, protocol=ICMP, payload=bytes(16)).frame(), 0x20)
    assert shared.give([echo], OUTSIDE) == {}
    after = shared.workers.statistics().causes
    assert {name: after[name] - before[name] for name in ("no_address", "fragment")} == {
        "no_address": 3,
        "fragment": 1,
    }
    last = bytearray(shared.out().frame())
    last[21] = 1
    sent = shared.give([bytes(last)], INSIDE)[0]
    assert (sent.back, sent.data[54:56], sent.data[22:38]) == (
        True,
        b"\x03\x00",
        ipaddress.ip_address(six(OWN)).packed,
    )
    large = with_flags(Made(SERVER, HOST, protocol=UDP, payload=bytes(1460)).frame(), 0x40)
    sent = shared.give([large], OUTSIDE)[0]
    assert (sent.back, sent.data[34:36], sent.data[38:42]) == (True, b"\x03\x04", struct.pack(">I", 1480))


def test_settings_of_a_translator_are_checked() -> None:
    """An address of IPv6, a prefix of another length, and an MTU below that of IPv6 are refused."""
    for settings, told in (
        ({"address": "2001:db8::1"}, "2001:db8::1"),
        ({"address": OWN, "prefix": "64:ff9b::/95"}, "prefix"),
        ({"address": OWN, "mtu": 1279}, "MTU"),
    ):
        with pytest.raises(ValueError, match=told):
            Siit(**settings)


def test_a_header_that_proves_its_sender_is_not_taken_away(shared: Translator) -> None:
    """A packet with an authentication header is dropped; behind another header, too. Others pass."""
    before = shared.workers.statistics().causes["protocol"]
    proof, hops = bytes([TCP, 4, *bytes(22)]), bytes([0, 1, 4, 0, 0, 0, 0])
    frames = [
        shared.out(options=headers).frame() for headers in (b"\x33" + proof, b"\0" + b"\x33" + hops + proof)
    ]
    assert shared.give(frames, INSIDE) == {}
    assert shared.workers.statistics().causes["protocol"] == before + 2
    assert shared.translated(shared.out(options=b"\0" + bytes([TCP]) + hops).frame(), INSIDE)
