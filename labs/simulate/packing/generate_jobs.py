"""Synthetic jobs from a seed, in the manner of the paper's workload (section III-A).

They serve experiments and tests and are no claim about real applications. As in the paper, the resources of
tasks are uniform between 0 and a slot, and bandwidth follows published measurements. The numbers of tasks and
instants, and the changes of demands over time, are our choice, given by ``Workload``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dios.packer.datacenter import Capacity
from dios.packer.job.ti_mra import Edge, Floats, Node, TiMra

SLOT: Final = Capacity(4.0, 8192.0, 50.0, 50.0)
"""A quarter of the paper's server."""


@dataclass(frozen=True)
class Workload:
    """The parameters of synthetic jobs.

    A job has 2 tasks plus an exponential number with the mean ``tasks``, at most ``tasks_max``, over
    ``instants_min`` to ``instants_max`` instants. Peaks are uniform between 0 and a ``slot``. A task has one
    to four phases, each at a uniform fraction of its peaks. Half of the jobs are MapReduce (first half,
    second half, a shuffle between), half are web services (two tiers, requests and answers all the time). A
    task has one to ``degree`` neighbours before it. Bandwidth is lognormal with the median ``mbps`` and the
    deviation ``spread`` of logarithms, and also has phases.
    """

    mbps: float = 30.0
    spread: float = 1.0
    tasks: float = 20.0
    tasks_max: int = 200
    instants_min: int = 10
    instants_max: int = 30
    degree: int = 8
    slot: Capacity = SLOT


def generate_job(workload: Workload, seed: int, number: int) -> TiMra:
    """Return job ``number`` of a seed; it depends on nothing else."""
    rng = np.random.default_rng([seed, number])
    count = min(workload.tasks_max, 2 + int(rng.exponential(workload.tasks)))
    instants = int(rng.integers(workload.instants_min, workload.instants_max + 1))
    batch = bool(rng.random() < 0.5)
    front = max(1, count // 2)
    turn = int(rng.integers(instants // 3, 2 * instants // 3 + 1))
    overlap = min(instants, turn + max(1, instants // 6))
    peaks = rng.uniform(0.0, 1.0, (count, 4)) * np.array(workload.slot)
    nodes = []
    for at in range(count):
        begin, end = (0, instants) if not batch else (0, overlap) if at < front else (turn, instants)
        shape = np.zeros((4, instants))
        for r in range(4):
            shape[r, begin:end] = peaks[at, r] * _phases(rng, end - begin)
        nodes.append(Node(f"task.{at}", *shape))
    edges = []
    for at in range(front, count):
        for source in rng.choice(front, min(front, int(rng.integers(1, workload.degree + 1))), replace=False):
            begin, end = (turn, overlap) if batch else (0, instants)
            flow = np.zeros(instants)
            peak = workload.mbps * rng.lognormal(0.0, workload.spread)
            flow[begin:end] = peak * _phases(rng, end - begin)
            edges.append(Edge(f"task.{source}", f"task.{at}", flow))
            if not batch:
                edges.append(Edge(f"task.{at}", f"task.{source}", flow / 4.0, depends=False))
    return TiMra(f"job.{number}", nodes, edges, instants, weight=float(rng.uniform()))


def _phases(rng: np.random.Generator, length: int) -> Floats:
    """Return fractions of a peak over time, in one to four phases, of which one is the peak itself."""
    many = int(rng.integers(1, min(4, length) + 1))
    cuts = (
        np.sort(rng.choice(np.arange(1, length), many - 1, replace=False)) if many > 1 else np.zeros(0, int)
    )
    levels = rng.uniform(0.0, 1.0, many)
    levels[rng.integers(many)] = 1.0
    return np.repeat(levels, np.diff(np.concatenate(([0], cuts, [length]))))
