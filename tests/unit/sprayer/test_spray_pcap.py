from __future__ import annotations

import io
import random
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from dios.sprayer import PcapError, replay
from dios.sprayer.functions.firewall import Firewall
from dios.sprayer.functions.nat import Nat
from dios.sprayer.pcap import PcapWriter, read_pcap
from tests.support.sprayer.frames import ACK, ICMP, SYN, UDP, Made, read


def write(path: Path, frames: list[bytes], step_ns: int = 1000) -> Path:
    """A file of frames."""
    with path.open("wb") as file:
        writer = PcapWriter(file)
        for number, data in enumerate(frames):
            writer.write(1_700_000_000 * 10**9 + number * step_ns, data)
    return path


def frames_in(path: Path) -> list[bytes]:
    """Return the packets of a file."""
    with path.open("rb") as file:
        return [frame.data for frame in read_pcap(file, str(path))]


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("magic", "unit"), [(0xA1B2C3D4, 1000), (0xA1B23C4D, 1)])
def test_both_byte_orders_and_units_are_read(order: str, magic: int, unit: int) -> None:
    """Times are in nanoseconds, and a cut packet has its original length."""
    data = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65535, 1)
    data += struct.pack(f"{order}4I", 5, 7, 3, 3) + b"abc" + struct.pack(f"{order}4I", 6, 0, 2, 90) + b"de"
    frames = list(read_pcap(io.BytesIO(data), "some.pcap"))
    assert frames == [(5 * 10**9 + 7 * unit, b"abc", 3), (6 * 10**9, b"de", 90)]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a pcap file: it has 0 bytes"),
        (struct.pack("<I", 0x0A0D0D0A) + b"\0" * 20, "editcap -F pcap some.pcap"),
        (b"GIF89a" + b"\0" * 20, "begins with the bytes 47494638"),
        (struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 113), "link type 113"),
        (
            struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + b"\0" * 9,
            "header of a packet, at byte 24",
        ),
        (
            struct.pack("<IHHiIII4I", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1, 0, 0, 9, 9) + b"abc",
            "ends in a packet, at byte 24: 3 of 9 bytes",
        ),
        (
            struct.pack("<IHHiIII4I", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1, 0, 0, 2**31, 9),
            "a packet at byte 24 claims 2147483648 bytes",
        ),
    ],
)
def test_what_cannot_be_read_is_said_clearly(data: bytes, said: str) -> None:
    """Each file that is no classic pcap of Ethernet is refused with what it is, and where."""
    with pytest.raises(PcapError, match=said):
        list(read_pcap(io.BytesIO(data), "some.pcap"))


def test_a_file_is_replayed_with_its_own_time(tmp_path: Path) -> None:
    """A NAT's translations, and their end after five minutes of the file, are in the file that comes out."""
    client = Made(flags=SYN)
    frames = [client.frame(), replace(client, flags=ACK, payload=b"data").frame()]
    source = tmp_path / "in.pcap"
    with source.open("wb") as file:
        writer = PcapWriter(file)
        for second, data in ((10, frames[0]), (11, frames[1]), (700, b"\xff" * 60), (702, frames[1])):
            writer.write(second * 10**9 + 5, data)
    target = tmp_path / "out.pcap"
    statistics = replay(source, target, Nat(["198.51.100.1"]))
    with target.open("rb") as file:
        written = list(read_pcap(file, "out.pcap"))
    assert [frame.time_ns for frame in written] == [10 * 10**9 + 5, 11 * 10**9 + 5, 700 * 10**9 + 5]
    assert [read(frame.data).source for frame in written[:2]] == ["198.51.100.1"] * 2
    assert read(written[1].data).payload == b"data"
    assert statistics.causes["no_flow"] == 1
    assert statistics.flows["expired"] >= 1


def test_cores_make_no_difference_but_order(tmp_path: Path) -> None:
    """On three cores the same packets come out as on one."""
    clients = [Made(source_port=n, flags=SYN) for n in range(1, 200)]
    frames = [client.frame() for client in clients]
    source = write(tmp_path / "in.pcap", frames)
    replay(source, tmp_path / "one.pcap", Firewall())
    replay(source, tmp_path / "three.pcap", Firewall(), cores=3)
    assert frames_in(tmp_path / "one.pcap") == frames
    assert sorted(frames_in(tmp_path / "three.pcap")) == sorted(frames)


def test_an_empty_file_gives_an_empty_file(tmp_path: Path) -> None:
    """No packets are no error."""
    source = write(tmp_path / "in.pcap", [])
    assert replay(source, tmp_path / "out.pcap", None).counts["received"] == 0
    assert frames_in(tmp_path / "out.pcap") == []


def test_a_file_is_not_replayed_onto_itself(tmp_path: Path) -> None:
    """The file that is read stays as it is."""
    source = write(tmp_path / "in.pcap", [Made().frame()])
    with pytest.raises(PcapError, match="Name another output file"):
        replay(source, source, None)
    assert len(frames_in(source)) == 1


def test_hostile_packets_pass_without_harm(tmp_path: Path) -> None:
    """30,000 damaged packets are forwarded or dropped, each counted once, by a NAT on two cores."""
    seed = 17
    chance = random.Random(seed)  # noqa: S311 - repeatable dice, nothing secret
    whole = [Made(flags=SYN).frame(), Made(protocol=UDP, payload=b"abc").frame(), Made(protocol=ICMP).frame()]
    whole += [Made("2001:db8::1", "2001:db8::2", flags=flags).frame() for flags in (SYN, ACK, 255)]
    whole.append(Made(protocol=ICMP, error_about=Made().other_way().packet()).frame())
    frames = []
    for _ in range(30_000):
        frame = bytearray(chance.choice(whole))
        for _ in range(chance.randrange(4)):
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        frames.append(bytes(frame[: chance.choice((len(frame), chance.randrange(len(frame) + 1)))]))
    source = write(tmp_path / "in.pcap", frames)
    statistics = replay(source, tmp_path / "out.pcap", Nat(["198.51.100.1", "2001:db8:9::9"]), cores=2)
    sent = statistics.counts["sent"]
    assert statistics.counts["received"] == 30_000
    assert len(frames_in(tmp_path / "out.pcap")) == sent
    assert sent > 5_000, f"seed {seed}"
    forwarded = statistics.causes["not_ip"] + statistics.causes["neighbour"]
    assert sum(statistics.causes.values()) - forwarded == 30_000 - sent
