"""The call by which rates are told to a node and meters are read (EDRF each control interval).

Not for: deciding rates (``dios.firmament``), or keeping to them (``dios.host.bandwidth.rates``).
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, Struct

from dios import limits
from dios.wire.fields import U64, Call, Text
from dios.wire.scheduling import Label
from dios.wire.types import Traffic


class Rate(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """At most so many bytes per second of what a principal moves; of two for the same the last counts."""

    principal: Label
    traffic: Traffic
    bytes_s: U64


Step: TypeAlias = tuple[U64, U64]
"""In so many milliseconds from now, so many bytes per second."""


class Guarantee(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """At least so many bytes per second from this node for one edge of a job (Packer paper, II-A).

    ``source`` and ``target`` are ids of tasks, 0 for none: as a source what the node itself stores, as a
    target what is written to the other node's store. ``steps``, in order of time, each hold from then until
    the next; before the first nothing is guaranteed. ``weight_milli`` counts when what is left is shared.
    """

    principal: Label
    source: U64
    target: U64
    weight_milli: Annotated[int, Meta(ge=0, le=1_000)] = 0
    steps: Annotated[tuple[Step, ...], Meta(max_length=limits.GUARANTEE_STEPS_MAX)] = ()


class Govern(Call, frozen=True, tag=48):
    """Keep to these rates on the node called ``host``, and tell what was moved there.

    The rates and guarantees stand in the place of all that were told before, for ``lease_ms``; then, and
    whoever none of them names, nobody is limited. A ``lease_ms`` of 0 changes none of them. ``shares`` is
    what coordinators tell each other, whatever it says: the node keeps the one with the highest
    ``shares_version`` in memory; empty ones are not kept, their version says what the caller has. For the
    nodes' own user and root.
    """

    host: Text = ""
    rates: Annotated[tuple[Rate, ...], Meta(max_length=limits.RATES_MAX)] = ()
    lease_ms: Annotated[int, Meta(ge=0, le=limits.RATES_LEASE_MS_MAX)] = 0
    shares_version: U64 = 0
    shares: Annotated[bytes, Meta(max_length=limits.SHARES_BYTES_MAX)] = b""
    guarantees: Annotated[tuple[Guarantee, ...], Meta(max_length=limits.GUARANTEES_MAX)] = ()


# -- the answer -------------------------------------------------------------------------------------------
class Meter(Struct, frozen=True, array_like=True):
    """What a principal moved since the node started, and what it wants to move now; in bytes.

    With a ``task`` it is what is moved for that task, which is at an end of a guarantee; such bytes are not
    on the principal's own meter.
    """

    principal: str
    traffic: Traffic
    moved: int
    waiting: int
    task: int = 0


UNMEASURED: Final = (-1, -1, -1)
"""The capacity in a core's own answer, to which its host adds what it has measured; never on the wire."""


class Metered(Struct, frozen=True, array_like=True, tag=18):
    """Answer to Govern. ``capacity`` is in bytes per second for each ``Traffic``, 0 where nobody knows.

    ``shares_version`` is that of the shares the node has, 0 for none; they are here where they are newer than
    the caller's. ``node`` is its id, 0 of a node without a cluster.
    """

    node: int
    meters: tuple[Meter, ...]
    capacity: tuple[int, int, int]
    shares_version: int
    shares: bytes
