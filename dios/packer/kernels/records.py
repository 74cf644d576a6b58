"""The records that the kernels of packing work on: a data centre's books, a job, notes about one task.

Not for: people, who use ``Datacenter`` and ``TiMra``, in their own units. Here all amounts are whole numbers
of a quantum, so that what is taken and given back leaves exactly what was there.

Servers' amounts are kept as single-precision numbers below ``UNITS_MAX``, which are exact, because that is
what processors work on eight at a time. Those of links between switches are integers.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dios.packer.job.ti_mra import Floats, Ints

Singles: TypeAlias = npt.NDArray[np.float32]

UNITS_MAX: Final = 2**24 - 2
"""Up to here sums and differences in single precision are exact."""
TOO_MUCH: Final = 2**25
"""Stands for any demand that no server meets."""

UP: Final = 4
"""The row of what a server may send, after its four resources."""
DOWN: Final = 5
"""The row of what it may be sent."""
BAND: Final = 4
"""The place of bandwidth among the five resources that have a weight."""


class Site(NamedTuple):
    """A data centre of N places (servers, then services), R racks and P pods, over a ring of H instants.

    Each rack has a link up and one down for each of A planes, each pod for each of A times C: a tree has
    one plane. The links of a rack in one direction, or of a pod, are a bundle.
    """

    free: Singles
    """(H, 6, N) what is free: the four resources, bandwidth up, bandwidth down."""
    scale: Singles
    """(6, N) one over the capacity, 0 where there is none."""
    trunk: Ints
    """(H, 2 R A + 2 P A C) free bandwidth of links: racks up, racks down, pods up, pods down."""
    bundle: Ints
    """(H, 2 R + 2 P) the same of bundles: the sum over its planes."""
    bundle_scale: Floats
    """(2 R + 2 P,) one over the capacity of a bundle."""
    spent: Ints
    """(H, 5) units in use of each resource, bandwidth of all links last."""
    rack: Ints
    """(N,) where a place is."""
    pod: Ints
    """(R,)"""
    planes: Ints
    """(2,): A and C."""


class Load(NamedTuple):
    """A job of V nodes and E edges over T instants, and where it came to be."""

    demand: Singles
    """(V, T, 4)"""
    flow: Ints
    """(E, T)"""
    hose: Singles
    """(V, T, 2) what a node sends and is sent over all of its edges; 0 for who does not look ahead."""
    ends: Ints
    """(E, 2)"""
    order: Ints
    """(V,) who is placed when."""
    span: Ints
    """(V, 2) the places that may hold a node: from, up to and without."""
    first: Ints
    """(V + 1,) where a node's edges begin in ``at``."""
    at: Ints
    """(2 E,) edges by node."""
    slots: Ints
    """(T,) the place of each instant in the ring."""
    place: Ints
    """(V,) out: where a node is, or -1."""
    plane: Ints
    """(E,) out: the plane a C + c of an edge's path (a alone within a pod), or -1 for one not placed."""


class Near(NamedTuple):
    """Notes about one task: what it exchanges with those already placed, by server, rack and pod of theirs.

    An exchange in one direction (0: the task receives) at one instant is the number of edges and the sums
    of their flows, flows squared and cubed: all that equation 8 needs of edges that share a link.
    """

    total: Floats
    """(2, T, 4)"""
    groups: Ints
    """(3,) how many servers, racks and pods there are."""
    who: Ints
    """(3, F) which."""
    part: Floats
    """(3, F, 2, T, 4) the exchange with each."""
    kept: Floats
    """(2, F) score and least left of the servers that hold them, by their own resources."""
    links: Ints
    """(4,) a path between switches, while it is looked at."""
    short: Ints
    """(2,) a link without room, and the instant."""
    work: Floats
    """(4,) one exchange, while it is reckoned with."""
    volume: Floats
    """(3, F) the flow of each over all instants, both directions."""
    inside: Floats
    """(3, F) what a score gains if the task is there itself: links saved, less the score of links there."""
    far_ok: Ints
    """(3, F) whether the links there have room for the exchange."""
    beyond: Floats
    full: Ints
    """(3,) the sum over all of the score of links there, and how many have no room."""
    pods: Ints
    """(1,) how many pods there are."""
    tier_score: Floats
    tier_ok: Ints
    tier_kept: Floats
    """(3, max(R, P)) of a rack (1) and a pod (2), if the task were in it: the score and the room of its links
    with those beyond, and the flow that stays inside."""
    factor: Floats
    """(R,) what distance leaves of a score."""
    score: Singles
    worst: Singles
    """(N,) of each place: its score, and the least that is left of anything; below 0: no room."""
    tight: Singles
    """(N,) the least that is left of a place's link, if all of a node's edges had to pass it."""
    sums: Singles
    """(N,) a sum over instants, while it is reckoned."""
    count_fit: Ints
    """(T, 4) how many places have room by themselves; filled when there is none for all."""


class Rule(NamedTuple):
    """A policy as the kernels know it."""

    kind: int
    """CUBIC, ALIGN, FIRST or BEST."""
    bonus: float
    """What a link of the longest path that is not used counts, times the weight of bandwidth."""
    remote: float
    racks: float
    pods: float
    """Parts of a score lost for flow to another server, between racks and between pods."""
    ahead: float
    """The part lost where a place's own link has no room for all edges of a node; 0: not looked at."""


CUBIC: Final = 0
"""Equations 7 and 8."""
ALIGN: Final = 1
"""The scalar product of what is needed and what is free."""
FIRST: Final = 2
"""The first that has room."""
BEST: Final = 3
"""Whoever has the least left over."""


def fits(near: Near, load: Load) -> bool:
    """Whether notes have room for any task of a job."""
    return int(near.total.shape[1]) >= load.slots.size and int(near.who.shape[1]) >= _fan(load)


def _fan(load: Load) -> int:
    return max(1, int(np.diff(load.first).max(initial=0)))


def notes_for(site: Site, load: Load) -> Near:
    """Empty notes, large enough for any task of the job."""
    places, instants = site.free.shape[2], load.slots.size
    fan = _fan(load)
    pods, racks = int(site.pod.max()) + 1, site.pod.size
    return Near(
        total=np.empty((2, instants, 4)),
        groups=np.zeros(3, np.int64),
        who=np.empty((3, fan), np.int64),
        part=np.empty((3, fan, 2, instants, 4)),
        kept=np.empty((2, fan)),
        links=np.zeros(4, np.int64),
        short=np.zeros(2, np.int64),
        work=np.empty(4),
        volume=np.empty((3, fan)),
        inside=np.empty((3, fan)),
        far_ok=np.empty((3, fan), np.int64),
        beyond=np.zeros(3),
        full=np.zeros(3, np.int64),
        pods=np.array([pods]),
        tier_score=np.empty((3, max(racks, pods))),
        tier_ok=np.empty((3, max(racks, pods)), np.int64),
        tier_kept=np.empty((3, max(racks, pods))),
        factor=np.empty(racks),
        score=np.empty(places, np.float32),
        worst=np.empty(places, np.float32),
        tight=np.empty(places, np.float32),
        sums=np.empty(places, np.float32),
        count_fit=np.zeros((instants, 4), np.int64),
    )
