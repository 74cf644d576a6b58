"""QUIC: its headers, its packets on any core, and connections that are followed by their ids."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from dios.limits import SPRAYER_QUIC_IDS_MAX, SPRAYER_QUIC_LENGTHS_MAX, SPRAYER_QUIC_PORTS_MAX
from dios.sprayer import INSIDE, OUTSIDE, MemoryEngine, Workers
from dios.sprayer.functions.balancer import Balancer
from dios.sprayer.functions.nat import Nat
from tests.support.sprayer.frames import UDP, Made, Read, read

CORES = 2
SERVICE = ("192.0.2.9", 443)
SERVERS = [("10.1.0.1", 4433), ("10.1.0.2", 4433)]
INNER = "10.1.0.254"
CLIENT = Made(source="203.0.113.7", target=SERVICE[0], source_port=5000, target_port=443, protocol=UDP)
ID = bytes(range(1, 9))
SEED = 25


def long_header(target: bytes, source: bytes, version: int = 1) -> bytes:
    """A packet of a handshake with both ids."""
    ids = bytes([len(target)]) + target + bytes([len(source)]) + source
    return bytes([0xC3]) + version.to_bytes(4, "big") + ids + bytes(60)


def short_header(target: bytes) -> bytes:
    """A packet behind the handshake."""
    return b"\x41" + target + bytes(range(60))


class Harness:
    """A function on two cores; it is given one packet at a time, on a core of choice."""

    def __init__(self, function: Balancer | Nat) -> None:
        self.function = function
        self.workers = Workers(function, MemoryEngine([], CORES), seed=1, now=50)

    def give(self, packet: Made, side: int = OUTSIDE, core: int = 0) -> Read | None:
        """Return what is forwarded of a packet."""
        return self.give_frames([packet.frame()], side, core)[0]

    def give_frames(self, frames: Sequence[bytes], side: int, core: int) -> list[Read | None]:
        """The same for several frames."""
        engine = MemoryEngine(frames, CORES, sides=[side] * len(frames), steer=[core] * len(frames))
        self.workers.change_engine(engine)
        self.workers.drain()
        forwarded = {sent.frame: read(sent.data) for sent in engine.sent()}
        return [forwarded.get(number) for number in range(len(frames))]

    def cause(self, name: str) -> int:
        """Return how many packets were dropped for a cause."""
        return self.workers.statistics().causes[name]


def balanced(seed_id: bytes = ID) -> tuple[Harness, Made, tuple[str, int]]:
    """A balancer with one open connection of QUIC, the server's last packet, and that server."""
    harness = Harness(Balancer(SERVICE, SERVERS, INNER, quic_ports=[443, 4433]))
    first = harness.give(replace(CLIENT, payload=long_header(b"x" * 8, b"client")))
    assert first is not None
    back = Made(
        source=first.target,
        target=first.source,
        source_port=first.target_port,
        target_port=first.source_port,
        protocol=UDP,
        payload=long_header(b"client", seed_id),
    )
    answer = harness.give(back, INSIDE)
    assert answer is not None
    assert (answer.target, answer.target_port) == (CLIENT.source, CLIENT.source_port)
    return harness, back, (first.target, first.target_port)


def test_short_headers_are_processed_where_they_arrive() -> None:
    """Behind the handshake, packets of a known flow are regular on every core; all else crosses to one."""
    harness, _, server = balanced()
    before = harness.workers.statistics().counts
    for core in range(CORES):
        forwarded = harness.give(replace(CLIENT, payload=short_header(ID)), core=core)
        assert forwarded is not None
        assert (forwarded.target, forwarded.target_port) == server
    after = harness.workers.statistics().counts
    assert after["regular_packets"] - before["regular_packets"] == CORES
    assert after["handed_over"] == before["handed_over"]
    for core in range(CORES):
        harness.give(replace(CLIENT, payload=b"\x01" + bytes(70)), core=core)
    assert harness.workers.statistics().counts["handed_over"] == after["handed_over"] + 1


@pytest.mark.parametrize("length", [1, 8, 13, 20])
def test_a_flow_survives_the_migration_of_its_address(length: int) -> None:
    """From new addresses, on any core, an id of any length leads to the server of its connection."""
    chance = random.Random(SEED + length)  # noqa: S311 - test data
    known = chance.randbytes(length)
    harness, back, server = balanced(known)
    inner = back.target_port
    for number in range(6):
        moved = replace(CLIENT, source="198.51.100.4", source_port=7000 + number, payload=short_header(known))
        forwarded = harness.give(moved, core=number % CORES)
        assert forwarded is not None, (SEED, number)
        assert (forwarded.target, forwarded.target_port) == server
        assert forwarded.source_port != inner  # The server sees the change, and validates the new address.
        again = harness.give(moved, core=(number + 1) % CORES)
        assert again == forwarded
        answer = harness.give(
            replace(back, target_port=forwarded.source_port, payload=short_header(b"")), INSIDE
        )
        assert answer is not None
        assert (answer.target, answer.target_port) == ("198.51.100.4", 7000 + number)
    assert harness.function.totals()["migrated"] == 6


def test_an_unknown_id_is_given_to_nobody() -> None:
    """A short header from an unknown address, with an id that no server announced, opens nothing."""
    harness, _, _ = balanced()
    held = harness.workers.statistics().flows["held"]
    stranger = replace(CLIENT, source="198.51.100.4", payload=short_header(b"q" * 8))
    assert [harness.give(stranger, core=core) for core in range(CORES)] == [None] * CORES
    assert harness.cause("no_flow") == CORES
    assert harness.workers.statistics().flows["held"] == held


def test_ids_of_a_connection_and_their_lengths_are_bounded() -> None:
    """A server, or somebody in its name, stores a few ids for a connection, of a few lengths."""
    harness, back, _ = balanced()
    held = harness.workers.statistics().flows["held"]
    for number in range(50):
        harness.give(replace(back, payload=long_header(b"client", bytes([number]) * 8)), INSIDE)
    assert harness.workers.statistics().flows["held"] == held + SPRAYER_QUIC_IDS_MAX - 1
    assert harness.function.totals()["ids_refused"] == 50 - SPRAYER_QUIC_IDS_MAX + 1
    assert isinstance(harness.function, Balancer)
    many, back, _ = balanced()
    for size in range(1, 21):
        many.give(replace(back, payload=long_header(b"client", b"i" * size)), INSIDE)
    assert isinstance(many.function, Balancer)
    assert (many.function.lengths.sum(axis=1) <= SPRAYER_QUIC_LENGTHS_MAX).all()


def test_hostile_headers_store_nothing_wrong() -> None:
    """Lengths beyond the packet or a version's bound, negotiation, cut and random packets are safe."""
    harness, back, _ = balanced()
    held = harness.workers.statistics().flows["held"]
    chance = random.Random(SEED)  # noqa: S311 - test data
    whole = long_header(b"client", ID)
    wrong = [
        long_header(b"client", b"n" * 8, version=0),
        long_header(b"t" * 21, b"n" * 8),
        long_header(b"client", b"n" * 21),
        long_header(b"client", b""),
        whole[:5] + b"\xff" + whole[6:],
        whole[:12] + b"\xff" + whole[13:],
        *(bytes([0xC0]) + bytes(4) + chance.randbytes(60) for _ in range(20)),
        *(whole[:size] for size in range(24)),
        long_header(b"c" * 14, b"")[:22] + b"\x14",
    ]
    given = [replace(back, payload=payload).frame() for payload in wrong]
    harness.give_frames(given, INSIDE, 0)
    harness.give_frames([replace(CLIENT, payload=payload).frame() for payload in wrong], OUTSIDE, 1)
    assert harness.workers.statistics().flows["held"] == held


def test_ids_end_with_their_connection() -> None:
    """An id stays while its connection is in use, and expires after it."""
    harness, _, _ = balanced()
    held = harness.workers.statistics().flows["held"]
    for late in (300, 600):
        harness.workers.set_time(50 + late)
        for core in range(CORES):
            harness.give(replace(CLIENT, payload=short_header(ID)), core=core)
        harness.workers.expire_flows()
    assert harness.workers.statistics().flows["held"] == held
    harness.workers.set_time(50 + 5000)
    for _ in range(2):
        harness.workers.expire_flows()
    assert harness.workers.statistics().flows["held"] == 0


def test_a_nat_opens_a_flow_for_a_migrated_client() -> None:
    """Inside, an unknown flow of QUIC is handed over to its designated core, which opens it; outside not."""
    harness = Harness(Nat(["192.0.2.1"], quic_ports=[443]))
    moved = Made(source="10.0.0.7", target="198.51.100.4", target_port=443, protocol=UDP)
    for port in range(5000, 5008):
        for core in range(CORES):
            packet = replace(moved, source_port=port, payload=short_header(ID))
            forwarded = harness.give(packet, INSIDE, core)
            assert forwarded is not None
            assert forwarded.source == "192.0.2.1"
    assert harness.function.totals()["opened"] == 8
    assert (
        harness.give(replace(CLIENT, target="192.0.2.1", source_port=443, payload=short_header(ID))) is None
    )
    assert harness.cause("no_flow") == 1


def test_ports_of_quic_are_checked() -> None:
    """Too many ports, or a number that is no port, are refused."""
    for ports in ([0], [70_000], list(range(1, SPRAYER_QUIC_PORTS_MAX + 2))):
        with pytest.raises(ValueError, match="QUIC ports"):
            Nat(["192.0.2.1"], quic_ports=ports)
