from __future__ import annotations

import ctypes
import mmap
import random
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dios.sprayer import halves, set_source, set_target
from dios.sprayer.compile.intrinsics import uint64
from dios.sprayer.flows.five_tuple import core_of_hash
from dios.sprayer.packets.packet import CAUSES, PACKET, Packets, address_of
from dios.sprayer.packets.parse import parse
from tests.support.sprayer.frames import ACK, FIN, ICMP, ICMP6, RST, SYN, TCP, UDP, Made, read, read_packet
from tests.support.sprayer.kernels import fresh

SEED = uint64(12345)


@fresh
def parse_at(packets: Packets, seed: int) -> int:
    """Parse the only descriptor."""
    return parse(packets[0], seed)


@fresh
def set_source_at(packets: Packets, high: int, low: int, port: int) -> None:
    """Change the only packet."""
    set_source(packets[0], high, low, port)


@fresh
def set_target_at(packets: Packets, high: int, low: int, port: int) -> None:
    """Change the only packet."""
    set_target(packets[0], high, low, port)


class Parsed:
    """A frame in memory of exactly its size, with its descriptor."""

    def __init__(self, frame: bytes) -> None:
        self.bytes = np.frombuffer(bytearray(frame or b"\0"), np.uint8)
        self.packets = np.zeros(1, PACKET)
        self.packets["address"], self.packets["length"] = self.bytes.ctypes.data, len(frame)
        self.cause = CAUSES[parse_at(self.packets, SEED)].name

    def __getitem__(self, name: str) -> int:
        return int(self.packets[name][0])

    def ends(self) -> tuple[str, str, int, int]:
        """As a person writes them."""
        source = address_of(self["source_high"], self["source_low"])
        target = address_of(self["target_high"], self["target_low"])
        return source, target, self["source_port"], self["target_port"]


addresses4 = st.ip_addresses(v=4).map(str)
addresses6 = st.ip_addresses(v=6).map(str).filter(lambda text: not text.startswith("::ffff:"))
ports = st.integers(0, 65535)


@st.composite
def made_frames(draw: st.DrawFn) -> Made:
    """Anything that handlers get, but errors."""
    version = draw(st.sampled_from((4, 6)))
    addresses = addresses4 if version == 4 else addresses6
    protocol = draw(st.sampled_from((TCP, UDP, ICMP if version == 4 else ICMP6)))
    options = draw(st.sampled_from((b"", b"\1" * 4, b"\1" * 40)))
    if version == 6:
        extension = bytes([protocol, 0]) + b"\1\4\0\0\0\0"
        options = draw(st.sampled_from((b"", b"\0" + extension, b"\x3c\0\0\1\4\0\0\0\0" + extension)))
    source, target = draw(st.tuples(addresses, addresses).filter(lambda both: both[0] != both[1]))
    return Made(
        source=source,
        target=target,
        source_port=draw(ports),
        target_port=draw(ports),
        protocol=protocol,
        flags=draw(st.sampled_from((SYN, SYN | ACK, ACK, FIN | ACK, RST, RST | ACK))),
        payload=draw(st.binary(max_size=40)),
        tags=draw(st.sampled_from(((), (5,), (5, 6)))),
        options=options,
        kind=draw(st.sampled_from((8, 0))),
        checksum=draw(st.booleans()) or version == 6,
    )


@settings(max_examples=300, deadline=None)
@given(made_frames(), st.binary(max_size=6))
def test_descriptor_says_what_the_frame_does(frame: Made, padding: bytes) -> None:
    """Addresses, ports, protocol, flags and where what is carried begins, with tags, options and padding."""
    data = frame.frame()
    parsed, plain = Parsed(data + padding), read(data)
    assert parsed.cause == "fine"
    assert parsed.ends() == (plain.source, plain.target, plain.source_port, plain.target_port)
    assert parsed["protocol"] == frame.protocol
    assert parsed["end"] == len(data)
    assert data[parsed["payload"] :] == plain.payload
    if frame.protocol == TCP:
        bits = (parsed["fin"], parsed["syn"] * 2, parsed["rst"] * 4, parsed["ack"] * 16)
        assert sum(bits) == frame.flags
        assert parsed["opens"] == (frame.flags == SYN)


@settings(max_examples=100, deadline=None)
@given(made_frames())
def test_both_directions_have_one_hash(frame: Made) -> None:
    """A packet and one that comes back have the same designated core, and hashes differ otherwise."""
    back = frame.other_way()
    if frame.protocol in (ICMP, ICMP6):
        back = replace(frame, source=frame.target, target=frame.source, kind=8 - frame.kind)
    parsed, other = Parsed(frame.frame()), Parsed(back.frame())
    assert parsed["hash"] == other["hash"]
    longer = replace(frame, source_port=frame.source_port ^ 1)
    assert Parsed(longer.frame())["hash"] != parsed["hash"]


def test_designated_cores_are_even() -> None:
    """Flows of one client spread over three cores, none of which has more than a tenth too many."""
    counts = [0] * 3
    for port in range(3000):
        hashed = uint64(Parsed(Made(source_port=port).frame())["hash"])
        counts[core_of_hash(hashed, 3)] += 1
    assert max(counts) < 1100, counts


@settings(max_examples=300, deadline=None)
@given(made_frames(), st.data())
def test_rewriting_keeps_checksums_right(frame: Made, data: st.DataObject) -> None:
    """After another source, or target, all checksums are right and nothing else is changed."""
    new = data.draw(addresses4 if frame.version == 4 else addresses6)
    port, away = data.draw(ports), data.draw(st.booleans())
    parsed = Parsed(frame.frame())
    before = read(frame.frame())
    assert before.sums_right
    change = set_target_at if away else set_source_at
    high, low = (uint64(half) for half in halves(new))
    change(parsed.packets, high, low, port)
    after = read(parsed.bytes.tobytes())
    echo = frame.protocol in (ICMP, ICMP6)
    if away:
        # An echo request has no port at its target, nor a reply at its source.
        kept = before.target_port if echo and frame.kind == 8 else port
        expected = replace(before, target=new, target_port=kept)
    else:
        kept = before.source_port if echo and frame.kind == 0 else port
        expected = replace(before, source=new, source_port=kept)
    assert after == expected
    if frame.protocol == UDP and not frame.checksum:
        at = parsed["transport"] + 6
        assert parsed.bytes[at : at + 2].tobytes() == b"\0\0"


@settings(max_examples=100, deadline=None)
@given(made_frames(), ports)
def test_a_wrong_checksum_stays_wrong(frame: Made, port: int) -> None:
    """A checksum that was wrong stays wrong."""
    frame = replace(frame, protocol=TCP, options=b"")
    data = bytearray(frame.frame())
    data[-frame.transport().__len__() + 16] ^= 0x5A
    assert not read(bytes(data)).sums_right
    parsed = Parsed(bytes(data))
    high, low = (uint64(half) for half in halves("192.0.2.77" if frame.version == 4 else "2001:db8::77"))
    set_source_at(parsed.packets, high, low, port)
    assert not read(parsed.bytes.tobytes()).sums_right


@settings(max_examples=150, deadline=None)
@given(made_frames(), ports, st.integers(8, 60))
def test_an_error_belongs_to_what_it_is_about(inside: Made, port: int, kept: int) -> None:
    """An ICMP error has the flow of the packet inside turned round, and both change together."""
    inside = replace(inside, tags=(), options=b"", source_port=inside.source_port | 1)
    router = "203.0.113.1" if inside.version == 4 else "2001:db8::1"
    head = 20 if inside.version == 4 else 40
    about = inside.packet()[: head + kept]
    outer = Made(router, inside.source, protocol=ICMP if inside.version == 4 else ICMP6, error_about=about)
    parsed = Parsed(outer.frame())
    plain = read_packet(inside.packet())
    assert parsed.cause == "fine"
    assert parsed["error"] == 1
    assert parsed.ends() == (plain.target, plain.source, plain.target_port, plain.source_port)
    new = "198.51.100.3" if inside.version == 4 else "2001:db8:3::3"
    high, low = (uint64(half) for half in halves(new))
    set_target_at(parsed.packets, high, low, port)
    frame = parsed.bytes.tobytes()
    # The identifier is read as a port; what else there is of an error does not matter here.
    assert read(frame).sums_right
    assert read(frame).target == new
    whole = bytearray(inside.packet())
    whole[: len(about)] = frame[14 + head + 8 :]
    if inside.protocol != TCP or kept >= 18:
        changed = read_packet(bytes(whole))
        assert changed.sums_right
        assert changed.source == new
        assert changed.target == plain.target
        echo_reply = inside.protocol in (ICMP, ICMP6) and inside.kind == 0
        assert changed.source_port == (plain.source_port if echo_reply else port)


def cut(frame: bytes, size: int) -> bytes:
    """The beginning of a frame."""
    return frame[:size]


def changed(frame: bytes, at: int, *values: int) -> bytes:
    """A frame with other bytes in one place."""
    return frame[:at] + bytes(values) + frame[at + len(values) :]


FOUR, SIX = Made().frame(), Made("2001:db8::1", "2001:db8::2").frame()


def six_with(options: bytes) -> bytes:
    """A frame of IPv6 with extensions."""
    return Made("2001:db8::1", "2001:db8::2", options=options).frame()


def four_with(options: bytes) -> bytes:
    """A frame of IPv4 with options."""
    return Made(options=options).frame()


@pytest.mark.parametrize(
    ("frame", "cause"),
    [
        (b"", "truncated"),
        (cut(FOUR, 13), "truncated"),
        (cut(FOUR, 33), "truncated"),
        (cut(FOUR, 53), "truncated"),
        (cut(SIX, 53), "truncated"),
        (cut(SIX, 73), "truncated"),
        (changed(FOUR, 14, 0x65), "bad_version"),
        (changed(SIX, 14, 0x45), "bad_version"),
        (changed(FOUR, 14, 0x44), "bad_header"),
        (changed(FOUR, 14, 0x4F), "bad_header"),
        (changed(FOUR, 16, 0, 19), "bad_header"),
        (changed(FOUR, 14 + 20 + 12, 0x40), "bad_header"),
        (changed(FOUR, 14 + 20 + 12, 0xF0), "truncated"),
        (changed(FOUR, 14 + 6, 0x20, 0), "fragment"),
        (changed(FOUR, 14 + 6, 0, 9), "fragment"),
        (changed(FOUR, 14 + 9, 47), "protocol"),
        (changed(FOUR, 14 + 9, ICMP6), "protocol"),
        (changed(SIX, 14 + 6, ICMP), "protocol"),
        (changed(FOUR, 14 + 20 + 13, 0), "bad_flags"),
        (changed(FOUR, 14 + 20 + 13, SYN | FIN), "bad_flags"),
        (changed(FOUR, 14 + 20 + 13, SYN | RST), "bad_flags"),
        (Made(source="192.0.2.9", source_port=80).frame(), "to_itself"),
        (Made(tags=(1, 2, 3)).frame(), "tags"),
        (changed(FOUR, 12, 0x08, 0x06), "not_ip"),
        (changed(FOUR, 12, 0, 40), "not_ip"),
        (FOUR + b"\0" * 65536, "too_long"),
        (six_with(b"\x2c" + bytes([TCP, 0, 0, 1, 0, 0, 0, 1])), "fragment"),
        (six_with(b"\x2c" + bytes([TCP, 0, 0, 0, 0, 0, 0, 1])), "fine"),
        (six_with(b"\x2b" + bytes([TCP, 0, 0, 1, 0, 0, 0, 0])), "routed"),
        (six_with(b"\x2b" + bytes([TCP, 0, 0, 0, 0, 0, 0, 0])), "fine"),
        (
            six_with(b"\0" + bytes([60, 0, 0, 0, 0, 0, 0, 0]) * 8 + bytes([TCP, 0, 0, 0, 0, 0, 0, 0])),
            "extensions",
        ),
        (six_with(b"\0" + bytes([TCP, 200, 0, 0, 0, 0, 0, 0])), "truncated"),
        (four_with(b"\x83\x07\x04\xc0\x00\x02\x07\x00"), "routed"),
        (four_with(b"\x89\x07\x04\xc0\x00\x02\x07\x00"), "routed"),
        (four_with(b"\x01\x83\x07\x08\xc0\x00\x02\x07"), "fine"),
        (four_with(b"\x00\x83\x07\x04\xc0\x00\x02\x07"), "fine"),
        (four_with(b"\x01\x94\x04\x00\x00\x01\x01\x01"), "fine"),
        (four_with(b"\x01\x94\x08\x00\x00\x01\x01\x01"), "bad_header"),
        (four_with(b"\x01\x01\x94\x01"), "bad_header"),
        (four_with(b"\x01\x01\x01\x94"), "bad_header"),
        (Made(protocol=ICMP, kind=17).frame(), "protocol"),
        (Made("2001:db8::1", "2001:db8::2", protocol=ICMP6, kind=135).frame(), "neighbour"),
        (Made(protocol=ICMP, error_about=Made().packet()[:27]).frame(), "truncated"),
        (Made(protocol=ICMP, error_about=SIX[14:]).frame(), "bad_version"),
        (Made(protocol=ICMP, error_about=Made().packet()).frame(), "bad_header"),
    ],
)
def test_odd_frames_have_their_cause(frame: bytes, cause: str) -> None:
    """Whatever is wrong with a frame has a name, by which it is counted."""
    assert Parsed(frame).cause == cause


def test_nothing_beyond_the_frame_is_read() -> None:
    """20,000 damaged frames at the very end of readable memory are parsed without a fault."""
    page = mmap.PAGESIZE
    area = mmap.mmap(-1, 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(base + page), page, 0):
        pytest.skip(f"memory cannot be closed: errno {ctypes.get_errno()}")
    try:
        seed = 99
        chance = random.Random(seed)  # noqa: S311 - repeatable dice, nothing secret
        whole = [
            Made(tags=(1, 2)).frame(),
            FOUR,
            SIX,
            six_with(b"\0" + bytes([60, 0, 0, 0, 0, 0, 0, 0]) * 3 + bytes([TCP, 0, 0, 0, 0, 0, 0, 0])),
            Made(protocol=UDP).frame(),
            Made("192.0.2.9", "10.0.0.1", protocol=ICMP, error_about=Made().packet()).frame(),
            Made("2001:db8::2", "2001:db8::1", protocol=ICMP6, error_about=SIX[14:]).frame(),
        ]
        packets = np.zeros(1, PACKET)
        fine = 0
        for _ in range(20_000):
            frame = bytearray(chance.choice(whole))
            for _ in range(chance.randrange(4)):
                frame[chance.randrange(len(frame))] = chance.choice(
                    (0, 1, 0x45, 0x60, 255, chance.randrange(256))
                )
            frame = frame[: chance.choice((len(frame), chance.randrange(len(frame) + 1)))]
            area[page - len(frame) : page] = bytes(frame)
            packets["address"], packets["length"] = base + page - len(frame), len(frame)
            if CAUSES[parse_at(packets, SEED)].name == "fine":
                fine += 1
                set_source_at(packets, packets["target_high"][0], packets["target_low"][0], 9)
                set_target_at(packets, packets["source_high"][0], packets["source_low"][0], 8)
        assert fine > 1000, f"seed {seed}"
    finally:
        libc.mprotect(ctypes.c_void_p(base + page), page, 3)


def test_a_descriptor_has_96_bytes() -> None:
    """Rings and caches are laid out for that."""
    assert PACKET.itemsize == 96
    assert struct.calcsize("96s") == PACKET.itemsize


def test_addresses_stand_in_halves() -> None:
    """IPv4 and IPv6 come back as they were written."""
    for text in ("192.0.2.1", "2001:db8::5", "::", "255.255.255.255"):
        assert address_of(*halves(text)) == text
