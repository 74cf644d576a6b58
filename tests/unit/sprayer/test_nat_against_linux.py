"""The NAT and the masquerading of Linux, packet by packet: both forward the same packets, or none does.

Skipped with the reason where this machine makes no namespaces, or has no rules for translation in its kernel.
The packets are random, by a fixed seed.
"""

from __future__ import annotations

import contextlib
import random
import select
import shutil
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import pytest

from dios.sprayer import INSIDE, OUTSIDE, MemoryEngine, Workers
from dios.sprayer.functions.nat import Nat
from tests.support.lab.namespaces import MachineNamespaces, NotHereError, run
from tests.support.sprayer.frames import (
    ACK,
    ESP,
    GRE,
    ICMP,
    SYN,
    TCP,
    UDP,
    Made,
    ones_sum,
    parts_of,
    read_packet,
)

pytestmark = [pytest.mark.long, pytest.mark.extended]

OWN: Final = "198.51.100.1"
CLIENTS: Final = ("10.0.0.5", "10.0.0.6")
TARGETS: Final = ("203.0.113.1", "203.0.113.2")
ROUNDS: Final = 300
PATIENCE_S: Final = 20.0
_ALL: Final = 3
_HARDWARE: Final = {"in": "02:d1:05:03:00:01", "out": "02:d1:05:03:00:02"}
_ROUTER: Final = bytes.fromhex("02d105040000")
"""The hardware address of both interfaces of the kernel that translates."""
_RULES: Final = (
    "add table ip n; add chain ip n p { type nat hook postrouting priority 100 ; }; "
    "add rule ip n p oifname out0 masquerade; "
    "add chain ip n f { type filter hook forward priority 0 ; }; "
    "add rule ip n f iifname out0 ct state != { established, related } drop"
)


class Outcome(NamedTuple):
    """A forwarded datagram: the ends of it, without what a translator chooses or a router changes."""

    source: str
    target: str
    protocol: int
    port: int
    """The port that is not translated."""
    data: bytes
    """The payload, or of an ICMP error the type and code."""


class Datagram(NamedTuple):
    """A datagram that was forwarded, whole."""

    packet: bytes

    @property
    def is_error(self) -> bool:
        """True for an ICMP error."""
        return self.packet[9] == ICMP and self.packet[20] in (3, 11)


def joined(packets: list[bytes]) -> Datagram | None:
    """Return the datagram of which these are the fragments, or the one packet; None without any."""
    if not packets:
        return None
    parts = sorted((struct.unpack(">H", packet[6:8])[0] & 0x1FFF, packet) for packet in packets)
    data = b"".join(packet[20 : struct.unpack(">H", packet[2:4])[0]] for _, packet in parts)
    head = parts[0][1][:20]
    head = (
        head[:2] + struct.pack(">H", 20 + len(data)) + head[4:6] + b"\0\0" + head[8:10] + b"\0\0" + head[12:]
    )
    return Datagram(head[:10] + struct.pack(">H", ones_sum(head)) + head[12:] + data)


class Ours:
    """The NAT of this project, with frames in memory."""

    def __init__(self) -> None:
        self.nat = Nat([OWN], filtering="address-and-port-dependent")
        self.workers = Workers(self.nat, MemoryEngine([], 2), seed=1, now=100)

    def forwarded(self, frames: list[bytes], side: int) -> list[bytes]:
        """Return the packets of IP that leave at the other side."""
        steer = [number % 2 for number in range(len(frames))]
        engine = MemoryEngine(frames, 2, sides=[side] * len(frames), steer=steer, grow=self.nat.grows)
        self.workers.change_engine(engine)
        self.workers.drain()
        return [sent.data[14:] for sent in engine.sent() if not sent.back]


class Linux:
    """A machine whose kernel masquerades between two virtual cables, with a raw socket at each far end."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.middle = stack.enter_context(contextlib.closing(MachineNamespaces("middle")))
        self.sockets: dict[int, socket.socket] = {}
        self.marks = self.marked = 0
        """The number of marks, and the port outside of their session."""
        for side, name in ((INSIDE, "in"), (OUTSIDE, "out")):
            space = stack.enter_context(contextlib.closing(MachineNamespaces(name)))
            own = f"link add {name}0 address {_ROUTER.hex(':')} type veth peer name e0 netns {space.pid}"
            self.middle.batch([own, f"link set {name}0 addrgenmode none", f"link set {name}0 up"])
            space.batch(["link set e0 addrgenmode none", f"link set e0 address {_HARDWARE[name]}"])
            space.batch(["link set e0 arp off up"])
            with space.entered():
                end = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
                end.bind(("e0", _ALL))
            self.sockets[side] = end
        self.middle.batch(["address add 10.0.0.254/24 dev in0", f"address add {OWN}/24 dev out0"])
        self.middle.batch(
            [
                *(f"neigh add {client} lladdr {_HARDWARE['in']} dev in0 nud permanent" for client in CLIENTS),
                f"neigh add 198.51.100.254 lladdr {_HARDWARE['out']} dev out0 nud permanent",
                "route add default via 198.51.100.254 dev out0",
            ]
        )
        run(self.middle.inside("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))
        self._masquerade()

    def _masquerade(self) -> None:
        if shutil.which("nft"):
            run(self.middle.inside("nft", _RULES))
            return
        if not shutil.which("iptables"):
            raise NotHereError(
                "neither nft nor iptables is installed (on Debian or Ubuntu: apt install nftables)"
            )
        for rule in (
            "-t nat -A POSTROUTING -o out0 -j MASQUERADE",
            "-A FORWARD -i out0 -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
            "-A FORWARD -i out0 -j DROP",
        ):
            run(self.middle.inside("iptables", "-w", *rule.split()))

    def forwarded(self, frames: list[bytes], side: int) -> list[bytes]:
        """Return the packets of IP that leave at the other side."""
        for frame in frames:
            self.sockets[side].send(_ROUTER + frame[6:])
        mark = self.mark(side)
        self.sockets[side].send(_ROUTER + mark.frame()[6:])
        other = self.sockets[1 - side]
        packets: list[bytes] = []
        while select.select([other], [], [], PATIENCE_S)[0]:
            data = other.recv(4096)
            if data[12:14] != b"\x08\0":
                continue
            if mark.payload in data:
                self.marked = int.from_bytes(data[34:36]) if side == INSIDE else self.marked
                self._drain(side)
                return packets
            packets.append(data[14:])
        raise AssertionError("the kernel does not forward the packet behind the others")

    def _drain(self, side: int) -> None:
        """Forget what the kernel itself has answered to the sender."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.sockets[side].recv(4096, socket.MSG_DONTWAIT)

    def mark(self, side: int) -> Made:
        """Return a packet of an open session: what came before it was forwarded by then, or never is."""
        self.marks += 1
        mark = Made(CLIENTS[1], TARGETS[1], 9, 9, UDP, payload=f"mark {self.marks}.".encode())
        if side == INSIDE:
            return mark
        return replace(mark.other_way(), target=OWN, target_port=self.marked)


@pytest.fixture(scope="module")
def kernel() -> Iterator[Linux]:
    """A kernel that masquerades, on virtual cables."""
    with contextlib.ExitStack() as stack:
        try:
            linux = Linux(stack)
            linux.forwarded([], INSIDE)
        except (NotHereError, OSError) as error:
            pytest.skip(f"this machine cannot compare with its kernel: {error}")
        yield linux


def outcome(datagram: Datagram | None, *, inside: bool) -> Outcome | None:
    """Return what both translators must agree about; ``inside`` is True if the datagram came from inside."""
    if datagram is None:
        return None
    packet = datagram.packet
    ends = socket.inet_ntoa(packet[12:16]), socket.inet_ntoa(packet[16:20])
    if datagram.is_error:
        return Outcome(*ends, ICMP, 0, packet[20:22] + packet[28:][16:20] + packet[28:][9:10])
    if packet[9] not in (TCP, UDP, ICMP):
        return Outcome(*ends, packet[9], 0, packet[20:])
    seen = read_packet(packet)
    assert seen.sums_right
    port = seen.target_port if inside else seen.source_port
    return Outcome(*ends, packet[9], port, bytes([seen.flags]) + seen.payload)


class Translator(Protocol):
    """The NAT here, or the kernel."""

    def forwarded(self, frames: list[bytes], side: int) -> list[bytes]:
        """Return the packets of IP that leave at the other side."""


class Play:
    """Random packets for both, and what each of them sends outside for a flow."""

    def __init__(self, seed: int, ours: Ours, linux: Linux) -> None:
        self.chance = random.Random(seed)  # noqa: S311 - test data
        self.sides: tuple[Translator, Translator] = (ours, linux)
        self.flows: dict[Made, tuple[bytes, bytes]] = {}
        """A client's packet, and its translation by each."""

    def from_inside(self) -> tuple[Outcome | None, ...]:
        """Give both a packet of a client, sometimes in fragments of any order."""
        protocol = self.chance.choice((TCP, UDP, UDP, ICMP, GRE, ESP))
        port = 0 if protocol in (GRE, ESP) else self.chance.randrange(2000, 2006)
        packet = Made(
            self.chance.choice(CLIENTS) if port else CLIENTS[0],
            self.chance.choice(TARGETS),
            port,
            53 if protocol in (TCP, UDP) else 0,
            protocol,
            SYN,
            self.chance.randbytes(self.chance.randrange(60, 300)),
        )
        frames = [packet.frame()]
        if protocol == UDP and self.chance.random() < 0.5:
            frames = parts_of(packet.frame(), 64, self.chance.randrange(1, 65536))
            self.chance.shuffle(frames)
        datagrams = [joined(side.forwarded(frames, INSIDE)) for side in self.sides]
        first, second = datagrams
        if first and second:
            self.flows[replace(packet, payload=b"")] = first.packet, second.packet
        return tuple(outcome(datagram, inside=True) for datagram in datagrams)

    def from_outside(self, kind: str) -> tuple[Outcome | None, ...]:
        """Give both an answer, the packet of a stranger, or an error of a router, for a random flow."""
        packet = self.chance.choice(list(self.flows))
        results = []
        payload = self.chance.randbytes(20)
        for side, translated in zip(self.sides, self.flows[packet], strict=True):
            port = struct.unpack(">H", translated[24:26] if packet.protocol == ICMP else translated[20:22])[0]
            back = Made(
                packet.target, OWN, packet.target_port, port, packet.protocol, SYN | ACK, payload, kind=0
            )
            if packet.protocol == ICMP:
                back = replace(back, source_port=port, target_port=0)
            elif packet.protocol in (GRE, ESP):
                back = replace(back, source_port=0, target_port=0)
            if kind == "stranger":
                back = replace(back, source="203.0.113.99")
            elif kind == "error":
                back = Made("203.0.113.98", OWN, protocol=ICMP, error_about=translated[:28])
            results.append(outcome(joined(side.forwarded([back.frame()], OUTSIDE)), inside=False))
        return tuple(results)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_kernel_agrees(kernel: Linux, seed: int) -> None:
    """Of 300 random packets each is forwarded by both with the same ends and payload, or by none."""
    play = Play(seed, Ours(), kernel)
    forwarded = 0
    for number in range(ROUNDS):
        kind = play.chance.choice(("inside", "inside", "answer", "stranger", "error"))
        if kind == "inside" or not play.flows:
            ours, theirs = play.from_inside()
        else:
            ours, theirs = play.from_outside(kind)
        assert ours == theirs, f"seed {seed}, packet {number}: {kind}"
        forwarded += ours is not None
    assert forwarded > ROUNDS // 3
