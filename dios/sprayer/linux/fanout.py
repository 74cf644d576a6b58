"""Which worker's socket gets a frame: programs that the kernel runs on each (thesis section 3.3).

For: the engine's PACKET_FANOUT groups. Not for: designated cores, which are known after parsing
(``flow_kernels.py``): a connection packet that arrives elsewhere is handed over. The hash here is the part
of theirs that chooses cores, so that TCP and UDP that go by it arrive there at once.

The thesis lets a network card match the low bits of the TCP checksum, which look random; here the kernel
does.

- ``spray``: TCP over IPv4 or IPv6 that is no fragment goes by its checksum, each packet elsewhere.
- ``direct``: the same, but what may open or close a connection (SYN, FIN, RST) goes by the hash, to where its
  flow is kept, so that nothing has to cross between cores (thesis section 3.5, on programmable cards).
- ``rss``: everything by a hash of addresses and ports, the same for both directions.
- ``subset:k``: TCP by its checksum over ``k`` cores, which the hash chooses for each flow.
- ``flowlet``: TCP by the hash and the sender's clock, in slices of ``SLICE_MS``, so packets that leave
  together stay together (thesis section 3.5). A program keeps nothing between packets, so the clock is that
  of the timestamps option where senders put it; without it, slices are 64 KiB of the sequence.

Everything else goes by the hash: other protocols by addresses, and by ports where they have them; what is a
fragment, or has extension headers of IPv6, by addresses; and all that is not IP, or too short, to the first.

A frame's outer VLAN tag comes beside it and is out of the way already; one more inside is looked behind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dios.limits import SPRAYER_CORES_MAX
from dios.sprayer.flows.five_tuple import MIX_KEY, MIX_ONE, MIX_TWO
from dios.sprayer.linux import bpf

KINDS: Final = ("spray", "direct", "rss", "flowlet", "subset")
CONNECTION_FLAGS: Final = 7
"""FIN, SYN and RST."""
SLICE_MS: Final = 4
SLICE_BITS: Final = 2
SEQUENCE_BITS: Final = 16
TIMESTAMPS: Final = 0x0101080A
"""Two fillers and the option: where Linux, BSD and Windows have it on all but the first packet."""

IP4: Final = 0x0800
IP6: Final = 0x86DD
TAGS: Final = (0x8100, 0x88A8)
TCP: Final = 6
UDP: Final = 17

# Places that a program keeps things in.
_NETWORK: Final = 0
_HASH: Final = 1
_TRANSPORT: Final = 2
_SOURCE: Final = 3
_OTHER: Final = 4


@dataclass(frozen=True)
class Steering:
    """How frames are spread over cores."""

    kind: str
    width: int = 0
    """Of ``subset``: so many cores for each flow."""


@dataclass(frozen=True)
class Keys:
    """What the words of an address, from the last one on, and ports are multiplied by; 32 bits each."""

    last: int
    third: int
    first: int
    """The first word is multiplied by ``MIX_ONE``, and both first ones by this."""
    port: int

    @property
    def mapped(self) -> int:
        """What stands before an address of IPv4 where descriptors have 128 bits."""
        return 0xFFFF * self.third % 2**32


def keys(secret: int) -> Keys:
    """The keys of a secret of 64 bits."""
    key = secret * MIX_KEY % 2**64
    last, port = key % 2**32 | 1, key >> 32 | 1
    return Keys(last, (last ^ port) | 1, (last ^ MIX_TWO) | 1, port)


def steering(text: str) -> Steering:
    """``spray``, ``direct``, ``rss``, ``flowlet`` or ``subset:2``. ``ValueError`` with these for another."""
    found = re.fullmatch(r"subset:(\d{1,3})", text)
    if found and 0 < int(found[1]) <= SPRAYER_CORES_MAX:
        return Steering("subset", int(found[1]))
    if text in KINDS and text != "subset":
        return Steering(text)
    raise ValueError(
        f"steering {text!r}: choose spray, rss, flowlet, direct (spray, but connections open and close where "
        f"they are kept), or subset:2 (to {SPRAYER_CORES_MAX}) for two cores of each flow"
    )


def program(how: Steering, cores: int, secret: int) -> bytes:
    """The program for so many sockets, which answers one's index; ``secret`` (64 bits) is that of the hash.

    All interfaces of a function need the same secret, so that both directions of a flow meet one core;
    workers whose designated cores shall be the same have it as their seed.
    """
    return bpf.assemble([*_find(), *_by_hash(keys(secret), cores), *_choose(how, cores)])


def _find() -> bpf.Program:
    """From the frame to IPv4 or IPv6: X is where its header begins."""
    return [
        bpf.constant_x(0),
        bpf.ancillary(bpf.PROTOCOL),
        *(bpf.jump("equal", tag, "tagged") for tag in TAGS),
        bpf.go("untagged"),
        bpf.Label("tagged"),
        bpf.constant_x(4),
        bpf.load(2, 2),
        bpf.Label("untagged"),
        bpf.Line(bpf.STORE_X, _NETWORK),
        bpf.jump("equal", IP4, "four"),
        bpf.jump("equal", IP6, "six"),
        bpf.answer(0),
    ]


def _by_hash(key: Keys, cores: int) -> bpf.Program:
    """Both kinds of header to places: ends of the flow, where the transport begins, and A the protocol."""
    return [
        bpf.Label("four"),
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
        bpf.Label("six"),
        *_summed(key, 8, _SOURCE),
        *_summed(key, 24, _OTHER),
        bpf.from_x(),
        bpf.calculate("add", 40),
        bpf.store(_TRANSPORT),
        bpf.load(6, 1, by_x=True),
        bpf.Label("protocol"),
        bpf.fetch_x(_TRANSPORT),
        bpf.jump("equal", TCP, "tcp"),
        bpf.jump("equal", UDP, "ports", "no_ports"),
        bpf.Label("tcp"),
        *_with_ports(key),
        bpf.go("choose"),
        bpf.Label("ports"),
        *_with_ports(key),
        *_core(cores),
        bpf.answer(),
        bpf.Label("no_ports"),
        *_mixed(_SOURCE),
        *_mixed(_OTHER),
        *_both(),
        *_core(cores),
        bpf.answer(),
    ]


def _summed(key: Keys, offset: int, place: int) -> bpf.Program:
    """An address of IPv6 as 32 bits."""
    lines: bpf.Program = [bpf.load(offset, 4, by_x=True), bpf.calculate("mul", MIX_ONE), bpf.store(place)]
    for word, before, after in ((1, None, key.first), (2, key.third, None), (3, key.last, None)):
        lines.append(bpf.load(offset + 4 * word, 4, by_x=True))
        lines += [bpf.calculate("mul", before)] if before else []
        lines += [bpf.fetch_x(place), bpf.calculate("add")]
        lines += [bpf.calculate("mul", after)] if after else []
        # X is needed to load by, so it comes back from where it is kept.
        lines += [bpf.store(place), bpf.fetch_x(_NETWORK)]
    return lines


def _with_ports(key: Keys) -> bpf.Program:
    """X is where the transport begins: A = the hash of the flow, kept, and X as before."""
    lines: bpf.Program = []
    for offset, place in ((0, _SOURCE), (2, _OTHER)):
        lines += [bpf.load(offset, 2, by_x=True), bpf.calculate("mul", key.port), bpf.fetch_x(place)]
        lines += [bpf.calculate("add"), bpf.store(place), bpf.fetch_x(_TRANSPORT)]
    return [*lines, *_mixed(_SOURCE), *_mixed(_OTHER), *_both(), bpf.fetch_x(_TRANSPORT)]


def _mixed(place: int) -> bpf.Program:
    """One end of a flow."""
    mixed: bpf.Program = [bpf.fetch(place), bpf.to_x(), bpf.calculate("rsh", 15), bpf.calculate("xor")]
    return [*mixed, bpf.store(place)]


def _both() -> bpf.Program:
    """A = both ends together, in any order: 16 bits, kept."""
    return [
        *(bpf.fetch_x(_OTHER), bpf.fetch(_SOURCE), bpf.calculate("add"), bpf.calculate("mul", MIX_ONE)),
        *(bpf.calculate("rsh", 16), bpf.store(_HASH)),
    ]


def _core(cores: int) -> bpf.Program:
    """A = the core of a hash in A."""
    return [bpf.calculate("mul", cores), bpf.calculate("rsh", 16)]


def _choose(how: Steering, cores: int) -> bpf.Program:
    """For TCP: X is where its header begins, A the hash. The kernel divides the answer by the sockets."""
    begin: bpf.Program = [bpf.Label("choose")]
    if how.kind == "rss":
        return [*begin, bpf.fetch(_HASH), *_core(cores), bpf.answer()]
    if how.kind == "spray":
        return [*begin, bpf.load(16, 2, by_x=True), bpf.answer()]
    if how.kind == "direct":
        there: bpf.Program = [bpf.load(13, 1, by_x=True), bpf.jump("any", CONNECTION_FLAGS, "", "regular")]
        there += [bpf.fetch(_HASH), *_core(cores), bpf.answer()]
        return [*begin, *there, bpf.Label("regular"), bpf.load(16, 2, by_x=True), bpf.answer()]
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
        bpf.Label("sequence"),
        bpf.load(4, 4, by_x=True),
        bpf.calculate("rsh", SEQUENCE_BITS),
        bpf.Label("slice"),
        *(bpf.calculate("mul", MIX_ONE), bpf.to_x(), bpf.calculate("rsh", 16), bpf.calculate("xor")),
        *(bpf.fetch_x(_HASH), bpf.calculate("add"), bpf.calculate("and", 0xFFFF), bpf.answer()),
    ]
