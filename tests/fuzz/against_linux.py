"""Network functions and Linux, datagram by datagram: a receiver gets the same from both, or nothing.

Both get the same random datagrams (``scapy_packets.py``), the function in memory, the kernel on virtual
cables. VLAN tags are for the function alone, which must leave them as they are. Compared is what a
receiver's stack accepts: datagrams joined from their fragments, with right checksums. The hops,
identifications and fragments of a router, and the ports that a translator chooses, are left out.
``differences.toml`` explains each known difference; any other one is a finding.
"""

from __future__ import annotations

import ipaddress
import struct
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol, get_args

import msgspec

from dios.sprayer import INSIDE, MemoryEngine, Workers
from dios.sprayer.functions.firewall import Firewall
from dios.sprayer.functions.nat import Nat
from dios.sprayer.functions.nat64 import Nat64
from dios.sprayer.functions.siit import Siit
from dios.sprayer.network_function import NetworkFunction
from tests.fuzz.scapy_packets import Generator, Sample, Session, number_in, without_tags
from tests.support.sprayer.frames import ICMP, ICMP6, TCP, UDP, UDP_LITE, ones_sum
from tests.support.sprayer.linux_router import OWN4, OWN6, PREFIX, RULES, Kind, LinuxRouter

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
DIFFERENCES: Final = Path(__file__).with_name("differences.toml")
ROUND: Final = 80
"""The number of datagrams that both get at once, of different sessions."""
_AGE: Final = 12
"""The number of rounds of a session; without packets it lives for longer than these in both."""
_ROUND_S: Final = 3
"""The time of a round for the function: fragments that wait are dropped before the next."""
_SESSIONS: Final = 300

Verdict = Literal["passes", "drops", "differs"]


class Outcome(NamedTuple):
    """A datagram that a receiver accepts, without what a router or translator may choose."""

    source: str
    target: str
    protocol: int
    service: int
    options: tuple[int, ...]
    """The kinds of options, or of extension headers."""
    ports: tuple[int, int]
    """0 for the translated one."""
    data: bytes
    """The rest of the transport protocol's bytes, without checksum."""


class Difference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A known difference of the functions from Linux, and its reason."""

    functions: tuple[Kind, ...]
    features: tuple[str, ...]
    """A datagram has one of these features."""
    verdict: tuple[Verdict, ...]
    """What the function does: it passes or drops what Linux drops or passes, or passes something else."""
    reason: str

    def explains(self, kind: Kind, features: frozenset[str], verdict: Verdict) -> bool:
        """Return True for such a difference."""
        return kind in self.functions and verdict in self.verdict and not features.isdisjoint(self.features)


@cache
def differences() -> tuple[Difference, ...]:
    """Return the known differences."""
    return tuple(msgspec.convert(tomllib.loads(DIFFERENCES.read_text())["differences"], list[Difference]))


class Finding(NamedTuple):
    """A difference that nothing explains."""

    sample: Sample
    verdict: Verdict
    ours: tuple[Outcome, ...]
    theirs: tuple[Outcome, ...]


@dataclass
class Comparison:
    """The numbers of a run."""

    frames: int = 0
    datagrams: int = 0
    forwarded: int = 0
    """Datagrams that passed with equal outcomes."""
    dropped: int = 0
    explained: Counter[int] = field(default_factory=Counter)
    """The number of datagrams by the index of the difference."""
    features: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def function_of(kind: Kind) -> NetworkFunction:
    """Return the function as the router of this kind does its work."""
    strict = "address-and-port-dependent"
    if kind == "nat":
        return Nat([OWN4, OWN6], filtering=strict)
    if kind == "firewall":
        return Firewall(RULES)
    if kind == "nat64":
        return Nat64([OWN4], f"{PREFIX}/96", filtering="address-dependent", mtu=9000)
    return Siit("192.0.2.253", f"{PREFIX}/96", mtu=9000)


class Translator(Protocol):
    """A network function, or Linux."""

    def forwarded(self, frames: list[bytes], side: int) -> list[bytes]:
        """Return the frames that leave at the other side, without tags."""
        ...


class Ours:
    """A network function with frames in memory."""

    def __init__(self, kind: Kind) -> None:
        self.function: Final = function_of(kind)
        self._now = 100
        self._workers: Final = Workers(self.function, MemoryEngine([], 1), seed=1, now=self._now)

    def forwarded(self, frames: list[bytes], side: int) -> list[bytes]:
        """Return the frames that leave at the other side, without the tags that they have kept."""
        self._now += _ROUND_S
        self._workers.set_time(self._now)
        engine = MemoryEngine(frames, 1, sides=[side] * len(frames), grow=self.function.grows)
        self._workers.change_engine(engine)
        self._workers.drain()
        results = []
        for sent in engine.sent():
            if not sent.back:
                tags = len(frames[sent.frame]) - len(without_tags(frames[sent.frame]))
                assert sent.data[: 12 + tags] == frames[sent.frame][: 12 + tags], (
                    "a tag or an address changed"
                )
                results.append(without_tags(sent.data))
        return results


# --- the receiver -------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A packet of IP, whole or a fragment."""

    key: tuple[bytes, bytes, int, int]
    source: bytes
    target: bytes
    protocol: int
    service: int
    options: tuple[int, ...]
    begin: int
    more: bool
    data: bytes


def _read(packet: bytes) -> _Part | None:
    """Return a packet of IP, or None if a receiver drops it for its header."""
    if packet[0] >> 4 == 4:
        size, total = (packet[0] & 15) * 4, struct.unpack(">H", packet[2:4])[0]
        if size < 20 or not size <= total <= len(packet) or ones_sum(packet[:size]):
            return None
        field_, name = struct.unpack(">H", packet[6:8])[0], struct.unpack(">H", packet[4:6])[0]
        begin, more = (field_ & 0x1FFF) * 8, bool(field_ & 0x2000)
        ends = packet[12:16], packet[16:20]
        options = tuple(_option_kinds(packet[20:size]))
        key = (*ends, packet[9], name)
        return _Part(key, *ends, packet[9], packet[1], options, begin, more, packet[size:total])
    total = 40 + struct.unpack(">H", packet[4:6])[0]
    if packet[0] >> 4 != 6 or total > len(packet):
        return None
    kind, at, options6 = packet[6], 40, []
    begin, more, name = 0, False, 0
    ends = packet[8:24], packet[24:40]
    while kind in {0, 43, 44, 60} and at + 8 <= total:
        if kind == 44:
            value, name = struct.unpack(">HI", packet[at + 2 : at + 8])
            begin, more = value & 0xFFF8, bool(value & 1)
            kind, at = packet[at], at + 8
            if begin:
                break
        else:
            options6.append(kind)
            kind, at = packet[at], at + 8 * (packet[at + 1] + 1)
    service = struct.unpack(">H", packet[:2])[0] >> 4 & 0xFF
    return _Part((*ends, 0, name), *ends, kind, service, tuple(options6), begin, more, packet[at:total])


def _option_kinds(options: bytes) -> Iterable[int]:
    at = 0
    while at < len(options) and options[at] != 0:
        if options[at] == 1:
            at += 1
            continue
        yield options[at]
        if at + 1 >= len(options) or options[at + 1] < 2:
            return
        at += options[at + 1]


def datagrams(packets: Iterable[bytes]) -> Iterable[_Part]:
    """Yield whole datagrams; one whose fragments overlap, or are not all there, is none (RFC 5722)."""
    parts_by_key: dict[tuple[bytes, bytes, int, int], list[_Part]] = defaultdict(list)
    for packet in packets:
        part = _read(packet)
        if part is None:
            continue
        if part.begin > 0 or part.more:
            parts_by_key[part.key].append(part)
        else:
            yield part
    for parts in parts_by_key.values():
        ordered = sorted(set(parts), key=lambda part: part.begin)
        data, whole = b"", True
        for part in ordered:
            whole = whole and part.begin == len(data)
            data += part.data
        lasts = [part for part in ordered if not part.more]
        if whole and lasts == ordered[-1:]:
            yield ordered[0]._replace(data=data)


def outcome(part: _Part, masked: int | None) -> Outcome | None:
    """Return what a receiver gets, or None if it drops the datagram.

    ``masked`` is the index of the translated port: 0 of the source, 1 of the target, or None.
    """
    ends = str(ipaddress.ip_address(part.source)), str(ipaddress.ip_address(part.target))
    data, protocol = part.data, part.protocol
    six = len(part.source) == 16
    least = {TCP: 20, UDP: 8, ICMP: 8, ICMP6: 8}.get(protocol, 0)
    if len(data) < least:
        return None
    ports = [0, 0]
    if protocol in (TCP, UDP, ICMP6) or (protocol == ICMP and not six):
        unsummed = protocol == UDP and data[6:8] == b"\0\0"
        size = struct.unpack(">H", data[4:6])[0] if protocol == UDP else len(data)
        data = data[:size]
        pseudo = (
            b"" if protocol == ICMP else part.source + part.target + struct.pack(">II", len(data), protocol)
        )
        if (unsummed and six) or (not unsummed and ones_sum(pseudo + data)):
            return None
    if protocol == UDP_LITE:
        pseudo = part.source + part.target + struct.pack(">II", len(data), protocol)
        if len(data) < 8 or ones_sum(pseudo + data[: int.from_bytes(data[4:6]) or None]):
            return None
        return Outcome(*ends, protocol, part.service, part.options, (0, 0), data[:6] + data[8:])
    if protocol == ICMP6 and 133 <= data[0] <= 137:
        return None  # routers decrease the hops of these messages, which hosts then ignore
    rest = data
    if protocol in (TCP, UDP):
        ports = list(struct.unpack(">HH", data[:4]))
        at = 16 if protocol == TCP else 6
        rest = data[4:at] + data[at + 2 :]
        if masked is not None:
            ports[masked] = 0
    elif protocol in (ICMP, ICMP6) and data[0] in (0, 8, 13, 14, 128, 129):
        ports = [0 if masked is not None else struct.unpack(">H", data[4:6])[0], 0]
        rest = data[:2] + data[6:]
    elif protocol in (ICMP, ICMP6):
        rest = _error(data, 1 - masked if masked is not None else None)
    # Routers write into these.
    options = tuple(kind for kind in part.options if six or kind not in {7, 68})
    return Outcome(*ends, protocol, part.service, options, (ports[0], ports[1]), rest)


def _error(data: bytes, masked: int | None) -> bytes:
    """Return of an ICMP error its kind, and of the packet in it the ends."""
    inner = data[8:]
    six = inner[:1] != b"" and inner[0] >> 4 == 6
    head = 40 if six else (inner[0] & 15) * 4 if inner else 20
    if len(inner) < head + 8:
        return data[:2] + data[4:]
    ends = inner[8:40] if six else inner[12:20]
    protocol = inner[6] if six else inner[9]
    ports = [inner[head : head + 2], inner[head + 2 : head + 4]]
    if protocol in (ICMP, ICMP6):
        ports = [inner[head : head + 1], b"" if masked is not None else inner[head + 4 : head + 6]]
    elif masked is not None:
        ports[masked] = b""
    return data[:2] + data[4:8] + ends + bytes([protocol]) + b"".join(ports) + inner[head + 8 :]


# --- the comparison -----------------------------------------------------------------------------------------


class Play:
    """Rounds of random datagrams for a function and for the kernel."""

    def __init__(self, kind: Kind, seed: int, linux: LinuxRouter) -> None:
        self.kind: Final[Kind] = kind
        self.generator: Final = Generator(kind, seed)
        self.sides: tuple[Translator, Translator] = (Ours(kind), linux)
        self.comparison: Final = Comparison()
        self.sessions: list[Session] = []

    def run(self, frames: int) -> Comparison:
        """Play rounds until this number of frames was sent; return the numbers."""
        while self.comparison.frames < frames:
            self._round()
        return self.comparison

    def _round(self) -> None:
        generator = self.generator
        for session in self.sessions:
            session.age += 1
        self.sessions = [session for session in self.sessions if session.age < _AGE and not session.closed]
        while len(self.sessions) < _SESSIONS:
            self.sessions.append(generator.session())
        samples = [generator.sample(session) for session in generator.rng.sample(self.sessions, ROUND)]
        for side in (0, 1):
            self._compare([sample for sample in samples if sample.side == side], side)

    def _compare(self, samples: list[Sample], side: int) -> None:
        results = []
        for which, translator in enumerate(self.sides):
            frames = [frame for sample in samples for frame in sample.frames[which]]
            sent = frames if which == 0 else [without_tags(frame) for frame in frames]
            parts_by_number: dict[int | None, list[_Part]] = defaultdict(list)
            for part in datagrams(frame[14:] for frame in translator.forwarded(sent, side)):
                parts_by_number[number_in(part.data)].append(part)
            strange = parts_by_number.keys() - {sample.number for sample in samples}
            extra = [parts_by_number[number] for number in strange]
            assert not strange, f"{translator} sends a datagram that it has not got: {extra}"
            results.append(parts_by_number)
        self.comparison.frames += sum(len(sample.frames[0]) for sample in samples)
        for sample in samples:
            self._judge(sample, results[0][sample.number], results[1][sample.number])

    def _judge(self, sample: Sample, ours: list[_Part], theirs: list[_Part]) -> None:
        masked = None if self.kind in {"firewall", "siit"} or sample.side != INSIDE else 0
        outcomes = [
            tuple(sorted(filter(None, (outcome(part, masked) for part in parts)))) for parts in (ours, theirs)
        ]
        comparison, session = self.comparison, sample.session
        comparison.datagrams += 1
        comparison.features.update(sample.features)
        if "end" in sample.features:
            session.closed = True
        if outcomes[0] == outcomes[1]:
            if outcomes[0]:
                comparison.forwarded += 1
                if not any(feature.startswith("damaged") for feature in sample.features):
                    self._learn(sample, ours[0], theirs[0])
            else:
                comparison.dropped += 1
            return
        session.closed = True
        verdict: Verdict = "drops" if not outcomes[0] else "passes" if not outcomes[1] else "differs"
        for index, difference in enumerate(differences()):
            if difference.explains(self.kind, sample.features | {sample.role}, verdict):
                comparison.explained[index] += 1
                return
        comparison.findings.append(Finding(sample, verdict, outcomes[0], outcomes[1]))

    def _learn(self, sample: Sample, ours: _Part, theirs: _Part) -> None:
        """Record the ends outside of a session."""
        session = sample.session
        if sample.role == "answer":
            session.answered = True
            session.answer = _packet(ours)
        elif sample.role == "client":
            session.opened = True
            at = 4 if session.protocol == ICMP else 0
            ports = [int.from_bytes(part.data[at : at + 2]) for part in (ours, theirs)]
            session.ports = ports[0], ports[1]
            session.packets = _packet(ours), _packet(theirs)


def _packet(part: _Part) -> bytes:
    """Return a packet of IP with a datagram, as a router has it that reports an error."""
    data = part.data[:28]
    if len(part.source) == 16:
        head = struct.pack(">IHBB", 6 << 28, len(part.data), part.protocol, 60)
        return head + part.source + part.target + data
    size = min(20 + len(part.data), 65_535)
    head = struct.pack(">BBHHHBBH", 0x45, 0, size, 1, 0, 60, part.protocol, 0) + part.source + part.target
    return head[:10] + struct.pack(">H", ones_sum(head)) + head[12:] + data
