"""Five-tuples: taken from packets, turned round, hashed the same in both directions; compiled.

Not for: where flows are kept (``flow_table.py``).

A hash has two parts. The upper 16 bits choose the core: programs that steer frames in the kernel reckon the
same ones (``linux/fanout.py``), so what is steered by flow arrives where it is kept, and nothing crosses.
Those programs know few steps on 32 bits; the other 48 bits, for places in tables, are better.
"""

from __future__ import annotations

from typing import Final

from dios.compiled import borrowing
from dios.sprayer.compile.intrinsics import natural, whole
from dios.sprayer.packets.packet import DROP, FUNCTION, Flow, Packet

MIX_KEY: Final = 0x9E3779B97F4A7C15
_ONE: Final = natural(MIX_KEY)
_TWO: Final = natural(0xC2B2AE3D27D4EB4F)
_THREE: Final = natural(0x165667B19E3779F9)
_ODD: Final = natural(1)
_15: Final = natural(15)
_16: Final = natural(16)
_29: Final = natural(29)
_32: Final = natural(32)
_48: Final = natural(48)
_LOWER: Final = natural(2**32 - 1)
_PLACE: Final = natural(2**48 - 1)

# Multipliers of the part that chooses: odd, and their bits without a pattern.
MIX_ONE: Final = 0x9E3779B1
MIX_TWO: Final = 0x85EBCA77
_MIX_ONE: Final = natural(MIX_ONE)
_MIX_TWO: Final = natural(MIX_TWO)


@borrowing
def _end(high: int, low: int, port: int, seed: int) -> int:
    """One end of a flow, in a way that nobody without the seed can steer."""
    mixed = (low ^ seed) * _ONE
    mixed ^= mixed >> _32
    mixed = (mixed + high * _TWO) ^ ((port + seed) * _THREE)
    mixed *= _ONE
    return mixed ^ (mixed >> _29)


@borrowing
def _end_for_core(high: int, low: int, port: int, key: int) -> int:
    """One end of a flow in 32 bits: a sum of its words, each multiplied by a secret."""
    one, two = key | _ODD, (key >> _32) | _ODD
    words = (high + (high >> _32) * _MIX_ONE) * ((one ^ _MIX_TWO) | _ODD)
    words += (low >> _32) * ((one ^ two) | _ODD) + low * one + port * two
    words &= _LOWER
    return words ^ words >> _15


@borrowing
def _hash_for_core(flow: Flow, seed: int) -> int:
    """16 bits of a flow's ends, above which is nothing."""
    key = seed * _ONE
    one = _end_for_core(flow.source_high, flow.source_low, flow.source_port, key)
    other = _end_for_core(flow.target_high, flow.target_low, flow.target_port, key)
    return (((one + other) * _MIX_ONE) & _LOWER) >> _16


@borrowing
def hash_flow(flow: Flow, seed: int) -> int:
    """64 bits of a five-tuple, the same for both directions (thesis section 3.2.2); ``seed`` is uint64."""
    one = _end(flow.source_high, flow.source_low, flow.source_port, seed)
    other = _end(flow.target_high, flow.target_low, flow.target_port, seed)
    mixed = (one + other + flow.protocol) * _TWO
    mixed ^= mixed >> _29
    mixed *= _THREE
    return ((mixed ^ (mixed >> _32)) & _PLACE) | (_hash_for_core(flow, seed) << _48)


@borrowing
def core_of_hash(hashed: int, cores: int) -> int:
    """The designated core of a hash, of so many."""
    return whole(((hashed >> _48) * natural(cores)) >> _16)


@borrowing
def get_five_tuple(packet: Packet) -> Flow:
    """The flow that a packet belongs to."""
    return Flow(
        packet.source_high,
        packet.source_low,
        packet.target_high,
        packet.target_low,
        natural(packet.source_port),
        natural(packet.target_port),
        natural(packet.protocol),
    )


@borrowing
def reverse(flow: Flow) -> Flow:
    """The flow in the other direction."""
    return Flow(
        flow.target_high,
        flow.target_low,
        flow.source_high,
        flow.source_low,
        flow.target_port,
        flow.source_port,
        flow.protocol,
    )


@borrowing
def with_source(flow: Flow, high: int, low: int, port: int) -> Flow:
    """The flow as it is from another source."""
    return Flow(
        natural(high),
        natural(low),
        flow.target_high,
        flow.target_low,
        natural(port),
        flow.target_port,
        flow.protocol,
    )


@borrowing
def with_target(flow: Flow, high: int, low: int, port: int) -> Flow:
    """The flow as it is to another target."""
    return reverse(with_source(reverse(flow), high, low, port))


@borrowing
def drop(packet: Packet, cause: int = FUNCTION) -> None:
    """Let a packet go no further, counted by a cause of ``dios.sprayer.packets.packet``."""
    packet.verdict = DROP
    packet.cause = cause
