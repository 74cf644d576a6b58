"""The call that sets rates on a node and reads its meters (EDRF, each control interval).

``dios.firmament`` decides the rates, ``dios.host.bandwidth.rates`` enforces them.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from dios import limits
from dios.wire.fields import U63, ByteCount, Call, Identifier, Label, Text
from dios.wire.types import Traffic


class Rate(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The largest number of bytes per second for a principal; the last of two for the same one counts."""

    principal: Label
    traffic: Traffic
    bytes_s: U63


Step: TypeAlias = tuple[U63, U63]
"""A time in milliseconds from now, and the bytes per second from then on."""


class Guarantee(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The least number of bytes per second from this node for one edge of a job (Packer paper, II-A).

    ``source`` and ``target`` are ids of tasks, or 0: as a source the node's own store, as a target the
    other node's store. ``steps`` are in order of time, and each holds until the next one; before the first
    nothing is guaranteed. ``weight_milli`` is the weight with which the remainder is shared.
    """

    principal: Label
    source: Identifier
    target: Identifier
    weight_milli: Annotated[int, Meta(ge=0, le=1_000)] = 0
    steps: Annotated[tuple[Step, ...], Meta(max_length=limits.GUARANTEE_STEPS_MAX)] = ()


class HeldPart(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of this node that a running task of a job over time has at present (Packer paper, II-C).

    0: no part, and no bound.
    """

    task: Identifier
    cpus_milli: U63 = 0
    disk_io: U63 = 0
    """Bytes per second."""


class Govern(Call, frozen=True, tag=48):
    """Enforce these rates on the node called ``host``, and return the number of bytes moved there.

    The rates, guarantees and ``parts`` replace all earlier ones for ``lease_ms``. After that, nobody is
    limited, and neither is a principal without a rate. A ``lease_ms`` of 0 changes none of them. ``shares``
    are opaque data of the coordinators: the node keeps in memory those with the highest ``shares_version``.
    Empty shares are not kept; their version is that of the caller. For the nodes' own user and root.
    """

    host: Text = ""
    rates: Annotated[tuple[Rate, ...], Meta(max_length=limits.RATES_MAX)] = ()
    lease_ms: Annotated[int, Meta(ge=0, le=limits.RATES_LEASE_MS_MAX)] = 0
    shares_version: U63 = 0
    shares: Annotated[bytes, Meta(max_length=limits.SHARES_BYTES_MAX)] = b""
    guarantees: Annotated[tuple[Guarantee, ...], Meta(max_length=limits.GUARANTEES_MAX)] = ()
    parts: Annotated[tuple[HeldPart, ...], Meta(max_length=limits.HELD_PARTS_MAX)] = ()


# -- the answer -------------------------------------------------------------------------------------------
class Meter(Struct, frozen=True, array_like=True):
    """The bytes that a principal moved since the node started, and the bytes that it wants to move now.

    With a ``task`` it is the meter of that task, which is at an end of a guarantee; such bytes are not on the
    meter of the principal.
    """

    principal: Text
    traffic: Traffic
    moved: ByteCount
    waiting: ByteCount
    task: Identifier = 0


Capacity: TypeAlias = Annotated[int, Meta(ge=-1, le=limits.COUNTER_MAX)]
"""Bytes per second; -1 stands for a measurement that the host adds."""

UNMEASURED: Final = (-1, -1, -1)
"""The capacity in the core's own answer; the host adds its measurements. It is never on the wire."""


class Metered(Struct, frozen=True, array_like=True, tag=18):
    """The answer to Govern. ``capacity`` is in bytes per second for each ``Traffic``, 0 if it is not known.

    ``shares_version`` is that of the node's shares, 0 for none; ``shares`` are included if they are newer
    than the caller's. ``node`` is the id of the node, 0 without a cluster.
    """

    node: Identifier
    meters: Annotated[tuple[Meter, ...], Meta(max_length=limits.RATES_METERED_MAX + len(Traffic))]
    capacity: tuple[Capacity, Capacity, Capacity]
    shares_version: U63
    shares: Annotated[bytes, Meta(max_length=limits.SHARES_BYTES_MAX)]
