"""Five-tuples: reading and reversing them, and a hash that is equal for both directions; compiled.

A hash has two parts. The upper 16 bits choose the core. The programs that steer frames in the kernel compute
the same bits (``linux/fanout.py``), so frames that are steered by flow arrive on the core that stores the
flow. These programs can use only a few operations on 32 bits. The other 48 bits choose places in tables and
are mixed better.
"""

from __future__ import annotations

from typing import Final

from dios.kernels import no_refcount_kernel
from dios.sprayer.compile.intrinsics import int64, uint64
from dios.sprayer.packets.packet import DROP, FUNCTION, INSIDE, TO_CORE, WAIT, Flow, Packet

MIX_KEY: Final = 0x9E3779B97F4A7C15
_ONE: Final = uint64(MIX_KEY)
_TWO: Final = uint64(0xC2B2AE3D27D4EB4F)
_THREE: Final = uint64(0x165667B19E3779F9)
_ODD: Final = uint64(1)
_15: Final = uint64(15)
_16: Final = uint64(16)
_29: Final = uint64(29)
_32: Final = uint64(32)
_48: Final = uint64(48)
_LOWER: Final = uint64(2**32 - 1)
_PLACE: Final = uint64(2**48 - 1)

# Odd multipliers, without a pattern in their bits, for the part that chooses the core.
MIX_ONE: Final = 0x9E3779B1
MIX_TWO: Final = 0x85EBCA77
_MIX_ONE: Final = uint64(MIX_ONE)
_MIX_TWO: Final = uint64(MIX_TWO)


@no_refcount_kernel
def _mix_endpoint(high: int, low: int, port: int, seed: int) -> int:
    """Mix one endpoint of a flow so that the result is unpredictable without the seed."""
    mixed = (low ^ seed) * _ONE
    mixed ^= mixed >> _32
    mixed = (mixed + high * _TWO) ^ ((port + seed) * _THREE)
    mixed *= _ONE
    return mixed ^ (mixed >> _29)


@no_refcount_kernel
def _mix_endpoint_32(high: int, low: int, port: int, key: int) -> int:
    """Mix one endpoint of a flow to 32 bits: a sum of its words, each multiplied by a secret."""
    multiplier, two = key | _ODD, (key >> _32) | _ODD
    words = (high + (high >> _32) * _MIX_ONE) * ((multiplier ^ _MIX_TWO) | _ODD)
    words += (low >> _32) * ((multiplier ^ two) | _ODD) + low * multiplier + port * two
    words &= _LOWER
    return words ^ words >> _15


@no_refcount_kernel
def _hash_for_core(flow: Flow, seed: int) -> int:
    """Return 16 bits of a flow's endpoints; all higher bits are 0."""
    key = seed * _ONE
    source = _mix_endpoint_32(flow.source_high, flow.source_low, flow.source_port, key)
    other = _mix_endpoint_32(flow.target_high, flow.target_low, flow.target_port, key)
    return (((source + other) * _MIX_ONE) & _LOWER) >> _16


@no_refcount_kernel
def hash_flow(flow: Flow, seed: int) -> int:
    """Return 64 bits, equal for both directions of a flow (thesis section 3.2.2); ``seed`` is uint64."""
    source = _mix_endpoint(flow.source_high, flow.source_low, flow.source_port, seed)
    other = _mix_endpoint(flow.target_high, flow.target_low, flow.target_port, seed)
    mixed = (source + other + flow.protocol) * _TWO
    mixed ^= mixed >> _29
    mixed *= _THREE
    return ((mixed ^ (mixed >> _32)) & _PLACE) | (_hash_for_core(flow, seed) << _48)


@no_refcount_kernel
def hash_by_source(flow: Flow, seed: int) -> int:
    """Return the same hash, but the core in it is that of the flow's source end alone, for any target."""
    key = seed * _ONE
    source = _mix_endpoint_32(flow.source_high, flow.source_low, flow.source_port, key)
    core = ((source * _MIX_ONE) & _LOWER) >> _16
    return (hash_flow(flow, seed) & _PLACE) | (core << _48)


@no_refcount_kernel
def core_of_hash(hashed: int, cores: int) -> int:
    """Return the designated core of a hash among ``cores``."""
    return int64(((hashed >> _48) * uint64(cores)) >> _16)


@no_refcount_kernel
def get_five_tuple(packet: Packet) -> Flow:
    """Return the flow of a packet."""
    return Flow(
        packet.source_high,
        packet.source_low,
        packet.target_high,
        packet.target_low,
        uint64(packet.source_port),
        uint64(packet.target_port),
        uint64(packet.protocol),
    )


@no_refcount_kernel
def inside_first(packet: Packet) -> Flow:
    """Return the flow of a packet with the end that is inside as its source; ICMP is that of IPv4."""
    flow = get_five_tuple(packet)
    if packet.side != INSIDE:
        flow = reverse(flow)
    return with_protocol(flow, 1 if packet.protocol == 58 else packet.protocol)


@no_refcount_kernel
def with_protocol(flow: Flow, protocol: int) -> Flow:
    """Return the flow with another protocol."""
    return Flow(
        flow.source_high,
        flow.source_low,
        flow.target_high,
        flow.target_low,
        flow.source_port,
        flow.target_port,
        uint64(protocol),
    )


@no_refcount_kernel
def reverse(flow: Flow) -> Flow:
    """Return the flow in the other direction."""
    return Flow(
        flow.target_high,
        flow.target_low,
        flow.source_high,
        flow.source_low,
        flow.target_port,
        flow.source_port,
        flow.protocol,
    )


@no_refcount_kernel
def with_source(flow: Flow, high: int, low: int, port: int) -> Flow:
    """Return the flow with another source."""
    return Flow(
        uint64(high),
        uint64(low),
        flow.target_high,
        flow.target_low,
        uint64(port),
        flow.target_port,
        flow.protocol,
    )


@no_refcount_kernel
def with_target(flow: Flow, high: int, low: int, port: int) -> Flow:
    """Return the flow with another target."""
    return reverse(with_source(reverse(flow), high, low, port))


@no_refcount_kernel
def drop(packet: Packet, cause: int = FUNCTION) -> None:
    """Drop a packet, counted by a cause of ``dios.sprayer.packets.packet``."""
    packet.verdict = DROP
    packet.cause = cause


@no_refcount_kernel
def hand_over(packet: Packet) -> None:
    """Give a packet of ``regular_packets`` to ``connection_packets``, on the designated core of its flow.

    Call it where the flow of a packet is not known and the packet may open one. A packet of
    ``connection_packets`` cannot be handed over; it is dropped.
    """
    packet.verdict = TO_CORE


@no_refcount_kernel
def wait(packet: Packet) -> None:
    """Offer a packet of ``regular_packets`` to it again soon, up to ``SPRAYER_WAITING_S``, then drop it.

    It is for fragments whose first part has not come, of functions with ``takes_fragments``. The packet is
    the same the next time, with all fields that the function has set.
    """
    packet.verdict = WAIT
