"""Steering of frames to AF_XDP sockets: programs for XDP with the rules and the hash of ``fanout.py``.

VLAN tags are in the frame here, and up to two are skipped. A frame on a queue without sockets is dropped
instead of given to the kernel: the function owns its interfaces, and frames that it did not see must not
pass. ``bpf_calls.py`` attaches the program.
"""

from __future__ import annotations

from typing import Final

from dios.sprayer.flows.five_tuple import MIX_ONE
from dios.sprayer.linux import ebpf
from dios.sprayer.linux.ebpf import EbpfRegister
from dios.sprayer.linux.fanout import (
    CONNECTION_FLAGS,
    IP4,
    IP6,
    QUIC_AT,
    QUIC_FORM,
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
from dios.sprayer.packets.quic import SHORT_MIN

_REDIRECT_MAP: Final = 51
_DROP: Final = 1
_DATA: Final = 0
_DATA_END: Final = 4
_QUEUE: Final = 16

# The contents of the registers: a temporary value, the end of the frame, both endpoints of the flow (the
# first becomes the hash later), the protocol, the start of IP and of its transport header, and the queue.
_SPARE: Final = EbpfRegister.R1
_END: Final = EbpfRegister.R3
_ONE: Final = EbpfRegister.R4
_HASH: Final = EbpfRegister.R4
_OTHER: Final = EbpfRegister.R5
_PROTOCOL: Final = EbpfRegister.R6
_NETWORK: Final = EbpfRegister.R7
_TRANSPORT: Final = EbpfRegister.R8
_ARRIVED: Final = EbpfRegister.R9
_A: Final = EbpfRegister.R0
_B: Final = EbpfRegister.R2


def program(how: Steering, cores: int, secret: int, sockets: int | None = None) -> bytes:
    """Return the program for one interface; ``sockets`` is the file of the map of its sockets.

    Places in the map are ordered by queue, then by core. Without a map, the result is the core, for tests.
    """
    key = keys(secret)
    return ebpf.assemble(
        [
            *_find(),
            *_internet(key),
            *_by_ports(how, key),
            *_choose(how, cores),
            *(_quic(how, cores) if how.sprays_quic else []),
            *_by_flow(cores),
            *_give(cores, sockets),
        ]
    )


def _need(address: EbpfRegister, count: int) -> ebpf.Program:
    """Go to the first core unless the frame has ``count`` more bytes."""
    return [
        ebpf.calculate_address("move", _SPARE, address),
        ebpf.calculate_address("add", _SPARE, count),
        ebpf.jump_beyond(_SPARE, _END, "first"),
    ]


def _find() -> ebpf.Program:
    """Find IPv4 or IPv6 in the frame."""
    lines: ebpf.Program = [
        ebpf.load(_ARRIVED, EbpfRegister.R1, _QUEUE, 4),
        ebpf.load(_NETWORK, EbpfRegister.R1, _DATA, 4),
        ebpf.load(_END, EbpfRegister.R1, _DATA_END, 4),
        *_need(_NETWORK, 14),
        *ebpf.load_network(_A, _NETWORK, 12, 2),
        ebpf.calculate_address("add", _NETWORK, 14),
    ]
    for place in ("outer", "inner"):
        lines += [ebpf.jump("equal", _A, tag, place) for tag in TAGS]
        lines += [ebpf.go("untagged"), ebpf.EbpfLabel(place), *_need(_NETWORK, 4)]
        lines += [*ebpf.load_network(_A, _NETWORK, 2, 2), ebpf.calculate_address("add", _NETWORK, 4)]
    return [
        *lines,
        ebpf.EbpfLabel("untagged"),
        ebpf.jump("equal", _A, IP4, "four"),
        ebpf.jump("equal", _A, IP6, "six"),
        ebpf.go("first"),
    ]


def _internet(key: Keys) -> ebpf.Program:
    """Load the endpoints of the flow, the start of the transport header, and the protocol."""
    lines: ebpf.Program = [ebpf.EbpfLabel("four"), *_need(_NETWORK, 20)]
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
        ebpf.EbpfLabel("six"),
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
        ebpf.EbpfLabel("protocol"),
        ebpf.jump("equal", _PROTOCOL, TCP, "ports"),
        ebpf.jump("equal", _PROTOCOL, UDP, "ports"),
        ebpf.EbpfLabel("no_ports"),
        *_both(),
        ebpf.go("by_flow"),
    ]


def _by_ports(how: Steering, key: Keys) -> ebpf.Program:
    """Add ports to the hash, and continue with the rule for TCP, or for UDP that may be QUIC."""
    lines: ebpf.Program = [ebpf.EbpfLabel("ports"), *_need(_TRANSPORT, 4)]
    for end, offset in ((_ONE, 0), (_OTHER, 2)):
        lines += [*ebpf.load_network(_A, _TRANSPORT, offset, 2), ebpf.calculate("mul", _A, key.port)]
        lines += [ebpf.calculate("add", end, _A)]
    return [*lines, *_both(), ebpf.jump("other", _PROTOCOL, TCP, "udp" if how.sprays_quic else "by_flow")]


def _quic(how: Steering, cores: int) -> ebpf.Program:
    """Steer UDP if it is QUIC with a short header; else continue with the rule by flow."""
    lines: ebpf.Program = [ebpf.EbpfLabel("udp")]
    for offset in (0, 2):
        lines += ebpf.load_network(_A, _TRANSPORT, offset, 2)
        lines += [ebpf.jump("equal", _A, port, "quic") for port in how.quic_ports]
    lines += [
        *(ebpf.go("by_flow"), ebpf.EbpfLabel("quic"), *_need(_TRANSPORT, 6)),
        *ebpf.load_network(_A, _TRANSPORT, 4, 2),
        *(ebpf.jump("greater", _A, SHORT_MIN + 7, "long_enough"), ebpf.go("by_flow")),
        *(ebpf.EbpfLabel("long_enough"), *_need(_TRANSPORT, QUIC_AT + 2)),
        *(ebpf.load(_A, _TRANSPORT, 8, 1), ebpf.calculate("and", _A, QUIC_FORM)),
        ebpf.jump("other", _A, 0x40, "by_flow"),
        *ebpf.load_network(_A, _TRANSPORT, QUIC_AT, 2),
    ]
    if how.kind == "subset":
        lines += [ebpf.calculate("mod", _A, min(how.width, cores)), *_core(_HASH, cores)]
        lines += [ebpf.calculate("add", _A, _HASH)]
    return [*lines, ebpf.calculate("mod", _A, cores), ebpf.go("give")]


def _both() -> ebpf.Program:
    """Combine both endpoints in any order to 16 bits."""
    lines: ebpf.Program = []
    for end in (_ONE, _OTHER):
        lines += [ebpf.calculate("move", _A, end), ebpf.calculate("rsh", _A, 15)]
        lines += [ebpf.calculate("xor", end, _A)]
    lines += [ebpf.calculate("add", _HASH, _OTHER), ebpf.calculate("mul", _HASH, MIX_ONE)]
    return [*lines, ebpf.calculate("rsh", _HASH, 16)]


def _choose(how: Steering, cores: int) -> ebpf.Program:
    """Steer TCP: store the core in A, and continue with the delivery."""
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
        ebpf.EbpfLabel("options"),
        *_need(_TRANSPORT, 28),
        *ebpf.load_network(_A, _TRANSPORT, 20, 4),
        ebpf.jump("other", _A, TIMESTAMPS, "sequence"),
        *ebpf.load_network(_A, _TRANSPORT, 24, 4),
        ebpf.calculate("rsh", _A, SLICE_BITS),
        ebpf.go("slice"),
        ebpf.EbpfLabel("sequence"),
        *ebpf.load_network(_A, _TRANSPORT, 4, 4),
        ebpf.calculate("rsh", _A, SEQUENCE_BITS),
        ebpf.EbpfLabel("slice"),
        *(ebpf.calculate("mul", _A, MIX_ONE), ebpf.calculate("move", _B, _A)),
        *(ebpf.calculate("rsh", _B, 16), ebpf.calculate("xor", _A, _B)),
        *(ebpf.calculate("add", _A, _HASH), ebpf.calculate("and", _A, 0xFFFF)),
        *(ebpf.calculate("mod", _A, cores), ebpf.go("give")),
    ]


def _core(of: EbpfRegister, cores: int) -> ebpf.Program:
    """Compute the core of a hash."""
    return [ebpf.calculate("mul", of, cores), ebpf.calculate("rsh", of, 16)]


def _by_flow(cores: int) -> ebpf.Program:
    return [
        ebpf.EbpfLabel("by_flow"),
        *_core(_HASH, cores),
        ebpf.calculate("move", _A, _HASH),
        ebpf.go("give"),
        ebpf.EbpfLabel("first"),
        ebpf.calculate("move", _A, 0),
    ]


def _give(cores: int, sockets: int | None) -> ebpf.Program:
    """Deliver the frame to the socket of the core in A."""
    if sockets is None:
        return [ebpf.EbpfLabel("give"), ebpf.leave()]
    return [
        ebpf.EbpfLabel("give"),
        ebpf.calculate("mul", _ARRIVED, cores),
        ebpf.calculate("add", _A, _ARRIVED),
        ebpf.calculate("move", EbpfRegister.R2, _A),
        *ebpf.load_map(EbpfRegister.R1, sockets),
        ebpf.calculate("move", EbpfRegister.R3, _DROP),
        ebpf.call(_REDIRECT_MAP),
        ebpf.leave(),
    ]
