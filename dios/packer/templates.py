"""Ready-made jobs, and jobs from other systems' descriptions (Packer paper, sections II-A and IV)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dios.packer.job.ti_mra import Demand, Edge, JobError, Node, TiMra


class Needs(NamedTuple):
    """The demands of one task on its server, over the instants of the job or as constants."""

    cpu: Demand = 1.0
    memory: Demand = 1024.0
    disk_write: Demand = 0.0
    disk_read: Demand = 0.0


def map_reduce(
    maps: int,
    reduces: int,
    *,
    map_instants: int = 6,
    shuffle_instants: int = 2,
    reduce_instants: int = 4,
    map_needs: Needs = Needs(disk_read=40.0),  # noqa: B008 - a constant
    reduce_needs: Needs = Needs(disk_write=40.0),  # noqa: B008 - a constant
    shuffle: float = 10.0,
    name: str = "mapreduce",
    instant_s: float = 1.0,
    weight: float = 0.5,
) -> TiMra:
    """Return a MapReduce job: mappers, a shuffle of bandwidth ``shuffle`` for each pair, and reducers.

    Mappers run for ``map_instants`` and the shuffle, reducers for the shuffle and ``reduce_instants``.
    """
    _at_least_one(maps=maps, reduces=reduces, map_instants=map_instants, shuffle_instants=shuffle_instants)
    _at_least_one(reduce_instants=reduce_instants)
    begin = map_instants
    end = map_instants + shuffle_instants
    nodes = [Node(f"map.{at}", *map_needs, end=end) for at in range(maps)]
    nodes += [Node(f"reduce.{at}", *reduce_needs, start=begin) for at in range(reduces)]
    flow = {begin: shuffle, end: 0.0}
    edges = [
        Edge(f"map.{source}", f"reduce.{other}", flow) for source in range(maps) for other in range(reduces)
    ]
    return TiMra(name, nodes, edges, end + reduce_instants, instant_s, weight)


def iterative(
    workers: int,
    rounds: int,
    *,
    compute_instants: int = 3,
    exchange_instants: int = 1,
    needs: Needs = Needs(),  # noqa: B008 - a constant
    exchange: float = 10.0,
    name: str = "iterative",
    instant_s: float = 1.0,
    weight: float = 0.5,
) -> TiMra:
    """Return a job of rounds as in PageRank.

    In each round all workers compute; then each sends ``exchange`` to every other one, with half the CPU.
    """
    _at_least_one(workers=workers, rounds=rounds, compute_instants=compute_instants)
    _at_least_one(exchange_instants=exchange_instants)
    round_instants = compute_instants + exchange_instants
    exchanging = np.tile(np.arange(round_instants) >= compute_instants, rounds)
    flow = np.where(exchanging, exchange, 0.0)
    life = rounds * round_instants
    # Nodes span all rounds, so the exchange is no dependency: only round n depends on round n - 1.
    busy = _halved(needs.cpu, exchanging)
    nodes = [Node(f"worker.{at}", busy, *needs[1:]) for at in range(workers)]
    edges = [
        Edge(f"worker.{source}", f"worker.{other}", flow, depends=False)
        for source in range(workers)
        for other in range(workers)
        if source != other
    ]
    return TiMra(name, nodes, edges, life, instant_s, weight)


def web_service(
    frontends: int,
    workers: int,
    *,
    load: Sequence[float] = (0.3, 0.6, 1.0, 0.6),
    frontend_needs: Needs = Needs(),  # noqa: B008 - a constant
    worker_needs: Needs = Needs(cpu=2.0, memory=2048.0),  # noqa: B008 - a constant
    requests: float = 2.0,
    answers: float = 10.0,
    storage: str | None = None,
    storage_bandwidth: float = 5.0,
    name: str = "web",
    instant_s: float = 60.0,
    weight: float = 0.5,
) -> TiMra:
    """Return a job of front ends that ask workers, which may read from a service.

    CPU, disk and bandwidth follow ``load``, one number for each instant; memory is constant. ``requests`` and
    ``answers`` are bandwidths of one pair at load 1. ``storage`` is the data centre's name of the service.
    """
    _at_least_one(frontends=frontends, workers=workers, load=len(load))
    level = np.asarray(load, np.float64)
    nodes = [Node(f"front.{at}", *_scaled(frontend_needs, level)) for at in range(frontends)]
    nodes += [Node(f"work.{at}", *_scaled(worker_needs, level)) for at in range(workers)]
    edges = []
    for frontend in range(frontends):
        for other in range(workers):
            edges.append(Edge(f"front.{frontend}", f"work.{other}", level * requests))
            edges.append(Edge(f"work.{other}", f"front.{frontend}", level * answers, depends=False))
    if storage is not None:
        nodes.append(Node("storage", service=storage))
        edges += [Edge("storage", f"work.{at}", level * storage_bandwidth) for at in range(workers)]
    return TiMra(name, nodes, edges, level.size, instant_s, weight)


def hose(
    tasks: int,
    bandwidth: float,
    *,
    instants: int = 1,
    needs: Needs = Needs(),  # noqa: B008 - a constant
    name: str = "hose",
    instant_s: float = 1.0,
    weight: float = 0.5,
) -> TiMra:
    """Return a job by the hose model: each task sends and receives up to ``bandwidth`` over one link.

    A TI-MRA has no switch in the middle, so each pair gets an equal part. A task's total traffic is what the
    hose allows, but a single pair is not guaranteed more than its part.
    """
    _at_least_one(tasks=tasks)
    nodes = [Node(f"task.{at}", *needs) for at in range(tasks)]
    share = bandwidth / (tasks - 1) if tasks > 1 else 0.0
    names = [node.name for node in nodes]
    edges = [
        Edge(source, other, share, depends=False) for source in names for other in names if source != other
    ]
    return TiMra(name, nodes, edges, instants, instant_s, weight)


class Component(NamedTuple):
    """A component of a tenant application graph: a number of equal tasks."""

    size: int
    needs: Needs = Needs()


def tag(
    components: Mapping[str, Component],
    trunks: Mapping[tuple[str, str], tuple[float, float]],
    hoses: Mapping[str, float] | None = None,
    *,
    instants: int = 1,
    name: str = "tag",
    instant_s: float = 1.0,
    weight: float = 0.5,
) -> TiMra:
    """Return a tenant application graph (CloudMirror's TAG) as a TI-MRA.

    ``trunks`` give, for (source, target), the total that each task of the source sends and that each task of
    the target receives; the smaller total counts and is divided equally among the pairs. ``hoses`` give, for
    a component, the bandwidth of each of its tasks with the others, as in ``hose``.
    """
    nodes: list[Node] = []
    for kind, component in components.items():
        _at_least_one(**{f"components[{kind}].size": component.size})
        nodes += [Node(f"{kind}.{at}", *component.needs) for at in range(component.size)]
    edges: list[Edge] = []
    for (source, target), (sent, received) in trunks.items():
        for end in (source, target):
            if end not in components:
                raise JobError(
                    f"trunks[{source}, {target}]", f"names {end!r}, but there is no such component"
                )
        many, few = components[source].size, components[target].size
        pairs = [(i, j) for i in range(many) for j in range(few) if (source, i) != (target, j)]
        share = min(sent * many, received * few) / max(1, len(pairs))
        edges += [Edge(f"{source}.{i}", f"{target}.{j}", share, depends=False) for i, j in pairs]
    for kind, bandwidth in (hoses or {}).items():
        if kind not in components:
            raise JobError(f"hoses[{kind}]", "does not name a component")
        size = components[kind].size
        share = bandwidth / max(1, size - 1)
        edges += [
            Edge(f"{kind}.{i}", f"{kind}.{j}", share, depends=False)
            for i in range(size)
            for j in range(size)
            if i != j
        ]
    return TiMra(name, nodes, edges, instants, instant_s, weight)


def peaks(job: TiMra) -> TiMra:
    """Return the job for mechanisms that know only peaks: each demand is its maximum at every instant."""
    demand = np.broadcast_to(job.demand.max(axis=1, keepdims=True), job.demand.shape)
    bandwidth = np.broadcast_to(job.bandwidth.max(axis=1, keepdims=True, initial=0.0), job.bandwidth.shape)
    return job.with_arrays(np.array(demand), np.array(bandwidth))


def _at_least_one(**given: int) -> None:
    for name, value in given.items():
        if value < 1:
            raise JobError(name, f"is {value}; it must be at least 1")


def _halved(cpu: Demand, halved: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Demand:
    """Return a constant CPU demand with half of it ``halved``; other demands are returned unchanged."""
    return np.where(halved, cpu / 2.0, cpu) if isinstance(cpu, int | float) else cpu


def _scaled(needs: Needs, level: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Needs:
    """Return needs whose constants of CPU and disk follow the load; memory does not."""
    cpu, memory, write, read = (
        level * need if isinstance(need, int | float) and at != 1 else need for at, need in enumerate(needs)
    )
    return Needs(cpu, memory, write, read)
