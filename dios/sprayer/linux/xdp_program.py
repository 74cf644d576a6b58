"""Which worker's socket gets a frame, before the kernel makes anything of it: programs for XDP.

For: AF_XDP sockets. The rules and the hash are those of packet sockets, and so are the words for them: see
``fanout.py``. Not for: attaching it (``bpf_calls.py``).

VLAN tags are in the frame here, and two are looked behind. A frame that comes by a queue without sockets is
dropped, not left to the kernel: the function owns its interfaces, and what it did not see must not pass.
"""

from __future__ import annotations

from typing import Final

from dios.sprayer.flows.five_tuple import MIX_ONE
from dios.sprayer.linux import ebpf
from dios.sprayer.linux.ebpf import Register
from dios.sprayer.linux.fanout import (
    CONNECTION_FLAGS,
    IP4,
    IP6,
    SEQUENCE_BITS,
    SLICE_BITS,
    TAGS,
    TCP,
    TIMESTAMPS,
    UDP,
    Keys,
    Steering,
    keys,
)

_REDIRECT_MAP: Final = 51
_DROP: Final = 1
_DATA: Final = 0
_DATA_END: Final = 4
_QUEUE: Final = 16

# What the registers hold: one for passing things, the end of the frame, both ends of the flow, of which the
# first is the hash later, the protocol, where IP and its transport begin, and the queue.
_SPARE: Final = Register.R1
_END: Final = Register.R3
_ONE: Final = Register.R4
_HASH: Final = Register.R4
_OTHER: Final = Register.R5
_PROTOCOL: Final = Register.R6
_NETWORK: Final = Register.R7
_TRANSPORT: Final = Register.R8
_ARRIVED: Final = Register.R9
_A: Final = Register.R0
_B: Final = Register.R2


def program(how: Steering, cores: int, secret: int, sockets: int | None = None) -> bytes:
    """The program for one interface; ``sockets`` is the file of the map of its sockets.

    Their places there are by queue, by core. Without a map, the answer is the core, for whoever tries it.
    """
    key = keys(secret)
    return ebpf.assemble(
        [
            *_find(),
            *_internet(key),
            *_by_ports(key),
            *_choose(how, cores),
            *_by_flow(cores),
            *_give(cores, sockets),
        ]
    )


def _need(address: Register, count: int) -> ebpf.Program:
    """Go to the first core unless the frame has so many bytes from there on."""
    return [
        ebpf.calculate_address("move", _SPARE, address),
        ebpf.calculate_address("add", _SPARE, count),
        ebpf.jump_beyond(_SPARE, _END, "first"),
    ]


def _find() -> ebpf.Program:
    """From the frame to IPv4 or IPv6."""
    lines: ebpf.Program = [
        ebpf.load(_ARRIVED, Register.R1, _QUEUE, 4),
        ebpf.load(_NETWORK, Register.R1, _DATA, 4),
        ebpf.load(_END, Register.R1, _DATA_END, 4),
        *_need(_NETWORK, 14),
        *ebpf.load_network(_A, _NETWORK, 12, 2),
        ebpf.calculate_address("add", _NETWORK, 14),
    ]
    for place in ("outer", "inner"):
        lines += [ebpf.jump("equal", _A, tag, place) for tag in TAGS]
        lines += [ebpf.go("untagged"), ebpf.Label(place), *_need(_NETWORK, 4)]
        lines += [*ebpf.load_network(_A, _NETWORK, 2, 2), ebpf.calculate_address("add", _NETWORK, 4)]
    return [
        *lines,
        ebpf.Label("untagged"),
        ebpf.jump("equal", _A, IP4, "four"),
        ebpf.jump("equal", _A, IP6, "six"),
        ebpf.go("first"),
    ]


def _internet(key: Keys) -> ebpf.Program:
    """Both kinds of header: ends of the flow, where the transport begins, and the protocol."""
    lines: ebpf.Program = [ebpf.Label("four"), *_need(_NETWORK, 20)]
    for end, offset in ((_ONE, 12), (_OTHER, 16)):
        lines += [*ebpf.load_network(end, _NETWORK, offset, 4), ebpf.calculate("mul", end, key.last)]
        lines += [ebpf.calculate("add", end, key.mapped)]
    lines += [
        ebpf.load(_TRANSPORT, _NETWORK, 0, 1),
        ebpf.calculate("and", _TRANSPORT, 15),
        ebpf.calculate("lsh", _TRANSPORT, 2),
        ebpf.calculate_address("add", _TRANSPORT, _NETWORK),
        *ebpf.load_network(_A, _NETWORK, 6, 2),
        ebpf.jump("any", _A, 0x3FFF, "no_ports"),
        ebpf.load(_PROTOCOL, _NETWORK, 9, 1),
        ebpf.go("protocol"),
        ebpf.Label("six"),
        *_need(_NETWORK, 40),
    ]
    for end, offset in ((_ONE, 8), (_OTHER, 24)):
        lines += [*ebpf.load_network(end, _NETWORK, offset, 4), ebpf.calculate("mul", end, MIX_ONE)]
        lines += [*ebpf.load_network(_A, _NETWORK, offset + 4, 4), ebpf.calculate("add", end, _A)]
        lines += [ebpf.calculate("mul", end, key.first)]
        for further, times in ((8, key.third), (12, key.last)):
            lines += [*ebpf.load_network(_A, _NETWORK, offset + further, 4)]
            lines += [ebpf.calculate("mul", _A, times), ebpf.calculate("add", end, _A)]
    return [
        *lines,
        ebpf.calculate_address("move", _TRANSPORT, _NETWORK),
        ebpf.calculate_address("add", _TRANSPORT, 40),
        ebpf.load(_PROTOCOL, _NETWORK, 6, 1),
        ebpf.Label("protocol"),
        ebpf.jump("equal", _PROTOCOL, TCP, "ports"),
        ebpf.jump("equal", _PROTOCOL, UDP, "ports"),
        ebpf.Label("no_ports"),
        *_both(),
        ebpf.go("by_flow"),
    ]


def _by_ports(key: Keys) -> ebpf.Program:
    """The hash with ports, and on to what is chosen for TCP."""
    lines: ebpf.Program = [ebpf.Label("ports"), *_need(_TRANSPORT, 4)]
    for end, offset in ((_ONE, 0), (_OTHER, 2)):
        lines += [*ebpf.load_network(_A, _TRANSPORT, offset, 2), ebpf.calculate("mul", _A, key.port)]
        lines += [ebpf.calculate("add", end, _A)]
    return [*lines, *_both(), ebpf.jump("other", _PROTOCOL, TCP, "by_flow")]


def _both() -> ebpf.Program:
    """Both ends together, in any order: 16 bits."""
    lines: ebpf.Program = []
    for end in (_ONE, _OTHER):
        lines += [ebpf.calculate("move", _A, end), ebpf.calculate("rsh", _A, 15)]
        lines += [ebpf.calculate("xor", end, _A)]
    lines += [ebpf.calculate("add", _HASH, _OTHER), ebpf.calculate("mul", _HASH, MIX_ONE)]
    return [*lines, ebpf.calculate("rsh", _HASH, 16)]


def _choose(how: Steering, cores: int) -> ebpf.Program:
    """For TCP: the core in A, and on to giving it the frame."""
    checksum: ebpf.Program = [*_need(_TRANSPORT, 18), *ebpf.load_network(_A, _TRANSPORT, 16, 2)]
    if how.kind == "rss":
        return []
    if how.kind == "spray":
        return [*checksum, ebpf.calculate("mod", _A, cores), ebpf.go("give")]
    if how.kind == "direct":
        flags: ebpf.Program = [*_need(_TRANSPORT, 18), ebpf.load(_A, _TRANSPORT, 13, 1)]
        flags += [ebpf.jump("any", _A, CONNECTION_FLAGS, "by_flow")]
        return [*flags, *checksum, ebpf.calculate("mod", _A, cores), ebpf.go("give")]
    if how.kind == "subset":
        part: ebpf.Program = [ebpf.calculate("mod", _A, min(how.width, cores)), *_core(_HASH, cores)]
        both: ebpf.Program = [ebpf.calculate("add", _A, _HASH), ebpf.calculate("mod", _A, cores)]
        return [*checksum, *part, *both, ebpf.go("give")]
    return [
        *_need(_TRANSPORT, 14),
        ebpf.load(_A, _TRANSPORT, 12, 1),
        ebpf.jump("greater", _A, 0x7F, "options"),  # eight words: room for the option
        ebpf.go("sequence"),
        ebpf.Label("options"),
        *_need(_TRANSPORT, 28),
        *ebpf.load_network(_A, _TRANSPORT, 20, 4),
        ebpf.jump("other", _A, TIMESTAMPS, "sequence"),
        *ebpf.load_network(_A, _TRANSPORT, 24, 4),
        ebpf.calculate("rsh", _A, SLICE_BITS),
        ebpf.go("slice"),
        ebpf.Label("sequence"),
        *ebpf.load_network(_A, _TRANSPORT, 4, 4),
        ebpf.calculate("rsh", _A, SEQUENCE_BITS),
        ebpf.Label("slice"),
        *(ebpf.calculate("mul", _A, MIX_ONE), ebpf.calculate("move", _B, _A)),
        *(ebpf.calculate("rsh", _B, 16), ebpf.calculate("xor", _A, _B)),
        *(ebpf.calculate("add", _A, _HASH), ebpf.calculate("and", _A, 0xFFFF)),
        *(ebpf.calculate("mod", _A, cores), ebpf.go("give")),
    ]


def _core(of: Register, cores: int) -> ebpf.Program:
    """The core of a hash."""
    return [ebpf.calculate("mul", of, cores), ebpf.calculate("rsh", of, 16)]


def _by_flow(cores: int) -> ebpf.Program:
    return [
        ebpf.Label("by_flow"),
        *_core(_HASH, cores),
        ebpf.calculate("move", _A, _HASH),
        ebpf.go("give"),
        ebpf.Label("first"),
        ebpf.calculate("move", _A, 0),
    ]


def _give(cores: int, sockets: int | None) -> ebpf.Program:
    """Let the socket of the core in A have the frame."""
    if sockets is None:
        return [ebpf.Label("give"), ebpf.leave()]
    return [
        ebpf.Label("give"),
        ebpf.calculate("mul", _ARRIVED, cores),
        ebpf.calculate("add", _A, _ARRIVED),
        ebpf.calculate("move", Register.R2, _A),
        *ebpf.load_map(Register.R1, sockets),
        ebpf.calculate("move", Register.R3, _DROP),
        ebpf.call(_REDIRECT_MAP),
        ebpf.leave(),
    ]
