"""Steering of frames to workers: programs that the kernel runs for each frame of a packet socket group.

Designated cores are known only after parsing (``five_tuple.py``): a connection packet that arrives elsewhere
is handed over. The hash here equals the part of that hash that chooses cores, so TCP and UDP frames that are
steered by it arrive on their designated core (thesis section 3.3).

In the thesis a network card matches the low bits of the TCP checksum, which look random; here the kernel
does.

- ``spray``: TCP over IPv4 or IPv6 without fragments is steered by its checksum, so the packets of a flow are
  spread over all cores.
- ``direct``: like ``spray``, but packets that may open or close a connection (SYN, FIN, RST) are steered by
  the hash to the core that stores their flow, so nothing is handed over between cores (thesis section 3.5, on
  programmable cards).
- ``rss``: everything is steered by a hash of addresses and ports, equal for both directions.
- ``subset:k``: TCP is steered by its checksum over ``k`` cores, which the hash chooses for each flow.
- ``flowlet``: TCP is steered by the hash and the sender's clock, in slices of ``SLICE_MS``, so packets that
  are sent together stay together (thesis section 3.5). A program keeps no state between packets, so the clock
  is that of the timestamps option if the sender uses it; otherwise slices are 64 KiB of the sequence numbers.

QUIC of the given ports is sprayed like TCP (thesis section 3.5), by two encrypted bytes of packets with a
short header. There are no flowlets of it, because its clock cannot be read; and UDP may have no checksum.

Everything else is steered by the hash: of addresses and ports, or of addresses only for other protocols,
fragments and IPv6 packets with extension headers. Frames that are not IP or too short go to the first core.

The kernel has already removed the outer VLAN tag of a frame; one more tag inside is skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dios.limits import SPRAYER_CORES_MAX
from dios.sprayer.flows.five_tuple import MIX_KEY, MIX_ONE, MIX_TWO
from dios.sprayer.linux import bpf
from dios.sprayer.packets.quic import SHORT_MIN

KINDS: Final = ("spray", "direct", "rss", "flowlet", "subset")
CONNECTION_FLAGS: Final = 7
"""FIN, SYN and RST."""
SLICE_MS: Final = 4
SLICE_BITS: Final = 2
SEQUENCE_BITS: Final = 16
TIMESTAMPS: Final = 0x0101080A
"""Two fillers and the option, as Linux, BSD and Windows place it on all but the first packet."""

QUIC_FORM: Final = 0xC0
"""The bits of a first byte that distinguish a short header (0x40)."""
QUIC_AT: Final = 8 + SHORT_MIN - 2
"""The offset from a UDP header of two bytes that are encrypted, whatever the length of the connection id."""

IP4: Final = 0x0800
IP6: Final = 0x86DD
TAGS: Final = (0x8100, 0x88A8)
TCP: Final = 6
UDP: Final = 17

# Memory words of a program.
_NETWORK: Final = 0
_HASH: Final = 1
_TRANSPORT: Final = 2
_SOURCE: Final = 3
_OTHER: Final = 4


@dataclass(frozen=True)
class Steering:
    """A way to spread frames over cores."""

    kind: str
    width: int = 0
    """For ``subset``: the number of cores for each flow."""
    quic_ports: tuple[int, ...] = ()
    """The UDP ports of QUIC servers."""

    @property
    def sprays_quic(self) -> bool:
        """True if packets of QUIC are spread over cores."""
        return bool(self.quic_ports) and self.kind in {"spray", "direct", "subset"}


@dataclass(frozen=True)
class Keys:
    """The 32-bit multipliers of the words of an address, from the last word on, and of ports."""

    last: int
    third: int
    first: int
    """The first word is multiplied by ``MIX_ONE``, then the sum of the first two by this."""
    port: int

    @property
    def mapped(self) -> int:
        """Return the share of the IPv4-mapped prefix, which descriptors have before an IPv4 address."""
        return 0xFFFF * self.third % 2**32


def keys(secret: int) -> Keys:
    """Return the multipliers for a secret of 64 bits."""
    key = secret * MIX_KEY % 2**64
    last, port = key % 2**32 | 1, key >> 32 | 1
    return Keys(last, (last ^ port) | 1, (last ^ MIX_TWO) | 1, port)


def steering(text: str) -> Steering:
    """Parse ``spray``, ``direct``, ``rss``, ``flowlet`` or ``subset:2``; raise ``ValueError`` otherwise."""
    match = re.fullmatch(r"subset:(\d{1,3})", text)
    if match and 0 < int(match[1]) <= SPRAYER_CORES_MAX:
        return Steering("subset", int(match[1]))
    if text in KINDS and text != "subset":
        return Steering(text)
    raise ValueError(
        f"unknown steering {text!r}: choose auto, spray, rss, flowlet, direct (spray, but connections open "
        f"and close on the core that stores them), or subset:2 (to {SPRAYER_CORES_MAX}): two cores per flow"
    )


def program(how: Steering, cores: int, secret: int) -> bytes:
    """Return the program for ``cores`` sockets, whose result is the index of one of them.

    ``secret`` (64 bits) is the seed of the hash. All interfaces of a function need the same secret, so that
    both directions of a flow reach one core; workers with the same designated cores have it as their seed.
    """
    return bpf.assemble([*_find(), *_by_hash(how, keys(secret), cores), *_choose(how, cores)])


def _find() -> bpf.Program:
    """Find IPv4 or IPv6 in the frame: X is the start of its header."""
    return [
        bpf.constant_x(0),
        bpf.ancillary(bpf.PROTOCOL),
        *(bpf.jump("equal", tag, "tagged") for tag in TAGS),
        bpf.go("untagged"),
        bpf.BpfLabel("tagged"),
        bpf.constant_x(4),
        bpf.load(2, 2),
        bpf.BpfLabel("untagged"),
        bpf.BpfInstruction(bpf.STORE_X, _NETWORK),
        bpf.jump("equal", IP4, "four"),
        bpf.jump("equal", IP6, "six"),
        bpf.answer(0),
    ]


def _by_hash(how: Steering, key: Keys, cores: int) -> bpf.Program:
    """Store the endpoints of the flow and the start of the transport header; A is the protocol."""
    return [
        bpf.BpfLabel("four"),
        *(bpf.load(12, 4, by_x=True), bpf.calculate("mul", key.last)),
        *(bpf.calculate("add", key.mapped), bpf.store(_SOURCE)),
        *(bpf.load(16, 4, by_x=True), bpf.calculate("mul", key.last)),
        *(bpf.calculate("add", key.mapped), bpf.store(_OTHER)),
        bpf.load(0, 1, by_x=True),
        bpf.calculate("and", 15),
        bpf.calculate("lsh", 2),
        bpf.calculate("add"),
        bpf.store(_TRANSPORT),
        bpf.load(6, 2, by_x=True),
        bpf.jump("any", 0x3FFF, "no_ports"),
        bpf.load(9, 1, by_x=True),
        bpf.go("protocol"),
        bpf.BpfLabel("six"),
        *_summed(key, 8, _SOURCE),
        *_summed(key, 24, _OTHER),
        bpf.from_x(),
        bpf.calculate("add", 40),
        bpf.store(_TRANSPORT),
        bpf.load(6, 1, by_x=True),
        bpf.BpfLabel("protocol"),
        bpf.fetch_x(_TRANSPORT),
        bpf.jump("equal", TCP, "tcp"),
        bpf.jump("equal", UDP, "ports", "no_ports"),
        bpf.BpfLabel("tcp"),
        *_with_ports(key),
        bpf.go("choose"),
        bpf.BpfLabel("ports"),
        *_with_ports(key),
        *(_quic(how, cores) if how.sprays_quic else []),
        bpf.fetch(_HASH),
        *_core(cores),
        bpf.answer(),
        bpf.BpfLabel("no_ports"),
        *_mixed(_SOURCE),
        *_mixed(_OTHER),
        *_both(),
        *_core(cores),
        bpf.answer(),
    ]


def _summed(key: Keys, offset: int, place: int) -> bpf.Program:
    """Reduce an IPv6 address to 32 bits."""
    lines: bpf.Program = [bpf.load(offset, 4, by_x=True), bpf.calculate("mul", MIX_ONE), bpf.store(place)]
    for word, before, after in ((1, None, key.first), (2, key.third, None), (3, key.last, None)):
        lines.append(bpf.load(offset + 4 * word, 4, by_x=True))
        lines += [bpf.calculate("mul", before)] if before else []
        lines += [bpf.fetch_x(place), bpf.calculate("add")]
        lines += [bpf.calculate("mul", after)] if after else []
        # X is the base of loads, so it is restored.
        lines += [bpf.store(place), bpf.fetch_x(_NETWORK)]
    return lines


def _with_ports(key: Keys) -> bpf.Program:
    """Store A = the hash of the flow; X is the start of the transport header before and afterwards."""
    lines: bpf.Program = []
    for offset, place in ((0, _SOURCE), (2, _OTHER)):
        lines += [bpf.load(offset, 2, by_x=True), bpf.calculate("mul", key.port), bpf.fetch_x(place)]
        lines += [bpf.calculate("add"), bpf.store(place), bpf.fetch_x(_TRANSPORT)]
    return [*lines, *_mixed(_SOURCE), *_mixed(_OTHER), *_both(), bpf.fetch_x(_TRANSPORT)]


def _mixed(place: int) -> bpf.Program:
    """Mix one endpoint of a flow."""
    mixed: bpf.Program = [bpf.fetch(place), bpf.to_x(), bpf.calculate("rsh", 15), bpf.calculate("xor")]
    return [*mixed, bpf.store(place)]


def _both() -> bpf.Program:
    """Store A = the hash of both endpoints in any order, 16 bits."""
    return [
        *(bpf.fetch_x(_OTHER), bpf.fetch(_SOURCE), bpf.calculate("add"), bpf.calculate("mul", MIX_ONE)),
        *(bpf.calculate("rsh", 16), bpf.store(_HASH)),
    ]


def _quic(how: Steering, cores: int) -> bpf.Program:
    """Steer UDP if it is QUIC with a short header: X is the start of its header; else continue."""
    lines: bpf.Program = []
    for offset in (0, 2):
        lines += [bpf.load(offset, 2, by_x=True)]
        lines += [bpf.jump("equal", port, "quic") for port in how.quic_ports]
    lines += [
        *(bpf.go("no_quic"), bpf.BpfLabel("quic")),
        *(bpf.load(4, 2, by_x=True), bpf.jump("greater", SHORT_MIN + 7, "", "no_quic")),
        *(bpf.load(8, 1, by_x=True), bpf.calculate("and", QUIC_FORM), bpf.jump("equal", 0x40, "", "no_quic")),
    ]
    if how.kind == "subset":
        lines += [bpf.fetch(_HASH), *_core(cores), bpf.store(_HASH), bpf.load(QUIC_AT, 2, by_x=True)]
        lines += [bpf.calculate("mod", min(how.width, cores)), bpf.fetch_x(_HASH), bpf.calculate("add")]
    else:
        lines += [bpf.load(QUIC_AT, 2, by_x=True)]
    return [*lines, bpf.answer(), bpf.BpfLabel("no_quic")]


def _core(cores: int) -> bpf.Program:
    """A = the core of the hash in A."""
    return [bpf.calculate("mul", cores), bpf.calculate("rsh", 16)]


def _choose(how: Steering, cores: int) -> bpf.Program:
    """Steer TCP: X is the start of its header. The kernel takes the result modulo the number of sockets."""
    begin: bpf.Program = [bpf.BpfLabel("choose")]
    if how.kind == "rss":
        return [*begin, bpf.fetch(_HASH), *_core(cores), bpf.answer()]
    if how.kind == "spray":
        return [*begin, bpf.load(16, 2, by_x=True), bpf.answer()]
    if how.kind == "direct":
        there: bpf.Program = [bpf.load(13, 1, by_x=True), bpf.jump("any", CONNECTION_FLAGS, "", "regular")]
        there += [bpf.fetch(_HASH), *_core(cores), bpf.answer()]
        return [*begin, *there, bpf.BpfLabel("regular"), bpf.load(16, 2, by_x=True), bpf.answer()]
    if how.kind == "subset":
        width = min(how.width, cores)
        part: bpf.Program = [bpf.fetch(_HASH), *_core(cores), bpf.store(_HASH)]
        part += [bpf.load(16, 2, by_x=True), bpf.calculate("mod", width), bpf.fetch_x(_HASH)]
        return [*begin, *part, bpf.calculate("add"), bpf.answer()]
    return [
        *begin,
        bpf.load(12, 1, by_x=True),
        bpf.jump("greater", 0x7F, "", "sequence"),  # eight words: room for the option
        bpf.load(20, 4, by_x=True),
        bpf.jump("equal", TIMESTAMPS, "", "sequence"),
        bpf.load(24, 4, by_x=True),
        bpf.calculate("rsh", SLICE_BITS),
        bpf.go("slice"),
        bpf.BpfLabel("sequence"),
        bpf.load(4, 4, by_x=True),
        bpf.calculate("rsh", SEQUENCE_BITS),
        bpf.BpfLabel("slice"),
        *(bpf.calculate("mul", MIX_ONE), bpf.to_x(), bpf.calculate("rsh", 16), bpf.calculate("xor")),
        *(bpf.fetch_x(_HASH), bpf.calculate("add"), bpf.calculate("and", 0xFFFF), bpf.answer()),
    ]
