"""The records of the packing kernels: a data centre's free amounts, a job, and scratch memory for one task.

The public classes are ``Datacenter`` and ``TiMra``, in the caller's units. Here all amounts are whole numbers
of a quantum, so that releasing a reservation restores exactly the previous amounts.

Amounts of servers are single-precision numbers below ``UNITS_MAX``, which are exact, because processors
handle eight of them at a time. Amounts of links between switches are integers.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from dios.packer.job.ti_mra import Floats, Ints

Singles: TypeAlias = npt.NDArray[np.float32]

UNITS_MAX: Final = 2**24 - 2
"""Up to this number, sums and differences in single precision are exact."""
TOO_MUCH: Final = 2**25
"""A demand that no server meets."""

UP: Final = 4
"""The row of a server's outgoing bandwidth, after its four resources."""
DOWN: Final = 5
"""The row of a server's incoming bandwidth."""
BAND: Final = 4
"""The index of bandwidth among the five resources that have a weight."""


class DatacenterArrays(NamedTuple):
    """A data centre of N places (servers, then services), R racks and P pods, over a ring of H instants.

    Each rack has a link up and one down for each of A planes, each pod for each of A times C: a tree has
    one plane. The links of a rack in one direction, or of a pod, are a bundle.
    """

    free: Singles
    """(H, 6, N) free amounts: the four resources, bandwidth up, bandwidth down."""
    scale: Singles
    """(6, N) 1 / capacity, or 0 if there is none."""
    trunk: Ints
    """(H, 2 R A + 2 P A C) free bandwidth of links: racks up, racks down, pods up, pods down."""
    bundle: Ints
    """(H, 2 R + 2 P) free bandwidth of bundles: the sum over their planes."""
    bundle_scale: Floats
    """(2 R + 2 P,) 1 / capacity of a bundle."""
    spent: Ints
    """(H, 5) units in use of each resource, bandwidth of all links last."""
    rack: Ints
    """(N,) the rack of a place."""
    pod: Ints
    """(R,) the pod of a rack."""
    planes: Ints
    """(2,) A and C."""


class JobArrays(NamedTuple):
    """A job of V nodes and E edges over T instants, and its placement."""

    demand: Singles
    """(V, T, 4)"""
    flow: Ints
    """(E, T)"""
    hose: Singles
    """(V, T, 2) a node's traffic over all of its edges, sent and received; 0 without look-ahead."""
    ends: Ints
    """(E, 2)"""
    order: Ints
    """(V,) the nodes in the order of placement."""
    span: Ints
    """(V, 2) the range of places that may hold a node."""
    first: Ints
    """(V + 1,) the start of a node's edges in ``at``."""
    at: Ints
    """(2 E,) edges, grouped by node."""
    slots: Ints
    """(T,) the index of each instant in the ring."""
    place: Ints
    """(V,) result: the place of a node, or -1."""
    plane: Ints
    """(E,) result: the plane a C + c of an edge's path (a alone within a pod), or -1 if it is not placed."""


class Scratch(NamedTuple):
    """Scratch memory about one task: its exchange with placed nodes, by their server, rack and pod.

    An exchange in one direction (0: the task receives) at one instant is the number of edges and the sums
    of their flows, of the squares and of the cubes: all that equation 8 needs of edges that share a link.
    """

    total: Floats
    """(2, T, 4)"""
    groups: Ints
    """(3,) the number of servers, racks and pods."""
    who: Ints
    """(3, F) the servers, racks and pods."""
    part: Floats
    """(3, F, 2, T, 4) the exchange with each of them."""
    kept: Floats
    """(2, F) score and least rest of the servers that hold them, by their own resources."""
    links: Ints
    """(4,) the links of a path between switches that is being examined."""
    short: Ints
    """(2,) a link without room, and the instant."""
    work: Floats
    """(4,) an exchange that is being computed."""
    volume: Floats
    """(3, F) the flow with each over all instants, both directions."""
    inside: Floats
    """(3, F) the gain in score if the task is there itself: saved links minus the score of links there."""
    far_ok: Ints
    """(3, F) 1 if the links there have room for the exchange."""
    beyond: Floats
    full: Ints
    """(3,) the sum over all of the score of the links there, and the number without room."""
    pods: Ints
    """(1,) the number of pods."""
    tier_score: Floats
    tier_ok: Ints
    tier_kept: Floats
    """(3, max(R, P)) for the task in a rack (1) or a pod (2): the score and the room of its links for the
    exchange with the outside, and the flow that stays inside."""
    factor: Floats
    """(R,) the factor on a score because of distance."""
    score: Singles
    worst: Singles
    """(N,) each place's score, and the least rest of any resource; below 0 there is no room."""
    tight: Singles
    """(N,) the least rest of a place's link if all of a node's edges used it."""
    sums: Singles
    """(N,) a sum over instants that is being computed."""
    count_fit: Ints
    """(T, 4) the number of places with room for this alone; filled when no place has room for all."""


class ScoreRule(NamedTuple):
    """A policy's parameters for the kernels."""

    kind: int
    """CUBIC, ALIGN, FIRST or BEST."""
    bonus: float
    """The score of an unused link of the longest path, times the weight of bandwidth."""
    remote: float
    racks: float
    pods: float
    """The fractions of a score lost for flow to another server, between racks and between pods."""
    ahead: float
    """The fraction lost if a place's own link lacks room for all of a node's edges; 0 disables the check."""


CUBIC: Final = 0
"""Equations 7 and 8."""
ALIGN: Final = 1
"""The scalar product of the demand and the free amounts."""
FIRST: Final = 2
"""The first place with room."""
BEST: Final = 3
"""The place with the least rest."""


def has_room(scratch: Scratch, job: JobArrays) -> bool:
    """Return True if the scratch memory has room for any task of a job."""
    return int(scratch.total.shape[1]) >= job.slots.size and int(scratch.who.shape[1]) >= _edges_max(job)


def _edges_max(job: JobArrays) -> int:
    return max(1, int(np.diff(job.first).max(initial=0)))


def new_scratch(site: DatacenterArrays, job: JobArrays) -> Scratch:
    """Return new scratch memory, large enough for any task of the job."""
    places, instants = site.free.shape[2], job.slots.size
    fan = _edges_max(job)
    pods, racks = int(site.pod.max()) + 1, site.pod.size
    return Scratch(
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
