"""Admission of a whole job: a place for each task and a path for each edge, or a refusal (Algorithm 1).

The scores are compiled (``kernels``). Starting the tasks is left to the caller.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from dios.limits import PACKER_TRIES_MAX
from dios.packer.baselines import POLICIES
from dios.packer.datacenter import Datacenter, Link
from dios.packer.job.ti_mra import RESOURCES, UNITS, Floats, Ints, JobError, TiMra
from dios.packer.kernels.placement import place_job
from dios.packer.kernels.records import TOO_MUCH, JobArrays
from dios.packer.kernels.reservations import release_job
from dios.packer.policies import FIXED, Policy

NAMES: Final = (*RESOURCES, "bandwidth")


@dataclass(frozen=True, eq=False)
class Placement:
    """An admitted job; it keeps its reservations until its end, or until ``release``."""

    job: TiMra
    """The job in the data centre's instants, as it was reserved."""
    policy: Policy
    start: int
    """The first instant."""
    end: int
    """The instant after its last."""
    places: dict[str, str]
    """The place of each node by name: ``server 17``, or ``storage[0]`` for a service."""
    servers: dict[str, int]
    """The server of each task by name."""
    planes: tuple[int, ...]
    """The plane of each edge's path; 0 in a tree."""
    number: int
    _datacenter: Datacenter = field(repr=False)
    _arrays: JobArrays = field(repr=False)

    def __bool__(self) -> Literal[True]:
        return True

    def release(self, now: int | None = None) -> None:
        """Release the remaining reservations, from ``now`` on (None: the data centre's time).

        Raise ``ValueError`` if the job was released before or has ended, or if ``now`` is in the past.
        """
        if now is not None:
            self._datacenter.advance(now)
        if self.number not in self._datacenter._active:  # noqa: SLF001 - placements belong to their data centre
            raise ValueError(f"placement {self.number} of {self.job.name!r} has ended; it reserves nothing")
        begin = max(0, self._datacenter.now - self.start)
        release_job(self._datacenter.site, self._arrays, begin, self._datacenter.scratch(self._arrays))
        self._datacenter._active.discard(self.number)  # noqa: SLF001 - likewise


@dataclass(frozen=True)
class Refusal:
    """A job without a place; nothing was reserved."""

    job: str
    node: str
    """The node without a place, after the nodes before it had theirs."""
    resource: str
    """cpu, memory, disk_write, disk_read, or bandwidth."""
    instant: int
    """The data centre's instant."""
    needed: float
    """The amount needed, in the caller's units."""
    room: int
    """The number of places with that amount then; for bandwidth, of places with enough of all else."""
    places: int
    """The number of places for such a node."""
    link: Link | None = None
    """For bandwidth, a link that is short; None if every path is."""

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        return self.text(f"at instant {self.instant} ", self.link.owner if self.link else "")

    def text(self, when: str, owner: str) -> str:
        """Return the reason in words, with the time and the name of the link's owner as the caller has them.

        ``when`` is empty or ends with a space.
        """
        begin = f"{self.job!r} has no place: {when}"
        if self.resource == NAMES[4]:
            link = self.link.text(owner) if self.link else "every path"
            return (
                f"{begin}{link} has too little bandwidth for {self.node!r}, although {self.room} of "
                f"{self.places} places have enough of all else; start later, or send less"
            )
        unit = UNITS[NAMES.index(self.resource)]
        have = "none has" if self.room == 0 else f"only {self.room} have"
        shortage = "" if self.room == 0 else ", and those are short of something else"
        return (
            f"{begin}{self.node!r} needs {self.needed:g} {unit} of {self.resource}, and of {self.places} "
            f"possible places {have} that{shortage}; start later, or need less"
        )


def allocate(
    datacenter: Datacenter,
    job: TiMra,
    now: int | None = None,
    *,
    policy: Policy | str = FIXED,
    pinned: Mapping[str, int] | None = None,
    after: int = 0,
) -> Placement | Refusal:
    """Admit a job from ``now`` on, as a whole or not at all (Packer paper, Algorithm 1, equations 4 to 8).

    ``now`` is an instant of the data centre, whose time advances to it; None is its current time. A job in
    instants of another length is converted; each new instant needs the most of those that it overlaps.
    ``policy`` is one of ``dios.packer.policies`` and ``dios.packer.baselines``, or its name. ``pinned`` gives
    the server for tasks, by name. A job with ``after`` begins that many instants later: its reservations are
    ahead of time. A ``Placement`` is true and a ``Refusal`` is false.

    The weight of a resource is 1 - its utilisation over that of all five, taken over the job's instants,
    once, before its first task; all weights are equal in an empty data centre.

    Raises ``ValueError`` if ``now`` is in the past, if the job ends after the horizon or needs an unknown
    service, or if the policy, a pinned task or its server is unknown.
    """
    chosen = _policy(policy)
    fitting = job.resampled(datacenter.instant_s)
    _check(datacenter, fitting, after)
    places = _pins(datacenter, job, pinned or {})
    if now is not None:
        datacenter.advance(now)
    used = datacenter.utilisation(fitting.instants, after)
    weights = _weights(used).astype(np.float32)
    report = np.zeros(5, np.int64)

    def tried(rule: Policy) -> JobArrays | None:
        load = _job_arrays(datacenter, fitting, rule, places, after)
        near = datacenter.scratch(load)
        placed = place_job(datacenter.site, load, rule.rule, weights, PACKER_TRIES_MAX, near, report)
        return load if placed else None

    rules = [chosen]
    if chosen.calm > 0.0:
        # Links may be idle only because jobs were refused for lack of them, so also try the other way.
        rules.insert(0 if used[4] < chosen.calm * used[:4].max() else 1, chosen.calm_policy)
    load = next((attempt for attempt in map(tried, rules) if attempt is not None), None)
    if load is None:
        return _refusal(datacenter, fitting, chosen, places, report.tolist(), after)
    start = datacenter.now + after
    end = start + fitting.instants
    indices = load.place.tolist()
    return Placement(
        fitting,
        chosen,
        start,
        end,
        {node.name: datacenter.place_name(at) for node, at in zip(job.nodes, indices, strict=True)},
        {node.name: at for node, at in zip(job.nodes, indices, strict=True) if node.service is None},
        tuple(load.plane.tolist()),
        datacenter._register(end),  # noqa: SLF001 - placements belong to their data centre
        datacenter,
        load,
    )


def _check(datacenter: Datacenter, job: TiMra, after: int) -> None:
    """Raise ``JobError`` for a job that this data centre can never hold."""
    if after < 0 or (after and job.instants + after > datacenter.horizon):
        raise ValueError(f"after is {after}; the job must begin from now on, and end within the horizon")
    if job.instants > datacenter.horizon:
        raise JobError(
            "instants", f"is {job.instants}, but the data centre's horizon is {datacenter.horizon}"
        )
    for node in job.nodes:
        if node.service is not None and node.service not in datacenter.services:
            known = ", ".join(datacenter.services) or "none"
            raise JobError(
                f"{node.field}.service", f"is {node.service!r}, which no machine offers; known: {known}"
            )


def _policy(policy: Policy | str) -> Policy:
    if isinstance(policy, Policy):
        return policy
    if policy not in POLICIES:
        raise ValueError(f"policy is {policy!r}; choose one of {', '.join(POLICIES)}")
    return POLICIES[policy]


def _weights(used: Floats) -> Floats:
    """Return the dynamic weights of equations 7 and 8 for utilisations (5,), bandwidth last."""
    total = float(used.sum())
    return 1.0 - (used / total if total > 0.0 else np.full(5, 0.2))


def _pins(datacenter: Datacenter, job: TiMra, pinned: Mapping[str, int]) -> dict[int, int]:
    """Return the servers of pinned tasks, by the tasks' numbers."""
    numbers = {node.name: at for at, node in enumerate(job.nodes) if node.service is None}
    for name, server in pinned.items():
        if name not in numbers:
            raise ValueError(f"pinned[{name!r}] is not the name of a task")
        if not 0 <= server < datacenter.servers:
            raise ValueError(f"pinned[{name!r}] is {server}; it must be from 0 to {datacenter.servers - 1}")
    return {numbers[name]: server for name, server in pinned.items()}


def _job_arrays(
    datacenter: Datacenter, job: TiMra, policy: Policy, pinned: Mapping[int, int], after: int = 0
) -> JobArrays:
    """Return the job in the data centre's units, restricted to the policy's knowledge of it."""
    demand = datacenter.quanta.up(job.demand)
    flow = datacenter.band.up(job.bandwidth)
    nodes, edges = len(job.nodes), len(job.edges)
    if policy.knows != "time":
        demand = np.broadcast_to(demand.max(axis=1, keepdims=True), demand.shape)
        flow = np.broadcast_to(flow.max(axis=1, keepdims=True, initial=0.0), flow.shape)
    if policy.knows == "slots":
        tasks = np.array([node.service is None for node in job.nodes])
        demand = _in_slots(datacenter, demand, tasks, policy.slots)
    order = job.order
    if policy.order == "share":
        order = np.argsort((demand.max(axis=1) / datacenter.totals[:4]).max(axis=1), kind="stable")
    elif policy.order == "flow":
        order = _by_flow(job)
    span = np.zeros((nodes, 2), np.int64)
    span[:, 1] = datacenter.servers
    for at, node in enumerate(job.nodes):
        if node.service is not None:
            span[at] = datacenter.services[node.service]
    for at, server in pinned.items():
        span[at] = server, server + 1
    hose = np.zeros((nodes, job.instants, 2), np.float32)
    if policy.ahead > 0.0:
        for side in range(2):
            total = np.zeros((nodes, job.instants))
            np.add.at(total, job.ends[:, side], flow)
            hose[:, :, side] = total
    both = job.ends.ravel()
    first = np.zeros(nodes + 1, np.int64)
    np.cumsum(np.bincount(both, minlength=nodes), out=first[1:])
    return JobArrays(
        demand=np.ascontiguousarray(demand, np.float32),
        flow=np.ascontiguousarray(flow, np.int64),
        hose=hose,
        ends=np.array(job.ends),
        order=np.array(order, np.int64),
        span=span,
        first=first,
        at=np.argsort(both, kind="stable") // 2,
        slots=(np.arange(job.instants) + datacenter.now + after) % datacenter.horizon,
        place=np.full(nodes, -1, np.int64),
        plane=np.full(edges, -1, np.int64),
    )


def _by_flow(job: TiMra) -> Ints:
    """Return the nodes, each after those with which it exchanges the most; the largest flow comes first."""
    volume = job.bandwidth.sum(axis=1).tolist()
    near: list[list[tuple[int, float]]] = [[] for _ in job.nodes]
    for (source, target), flow in zip(job.ends.tolist(), volume, strict=True):
        near[source].append((target, flow))
        near[target].append((source, flow))
    pull = [0.0] * len(near)
    whole = [sum(flow for _, flow in neighbours) for neighbours in near]
    rank = {int(node): at for at, node in enumerate(job.order)}
    # A node's pull only grows, so its newest entry comes before its older ones.
    ready = [(0.0, -whole[node], rank[node], node) for node in rank]
    heapq.heapify(ready)
    order: list[int] = []
    done = [False] * len(near)
    while ready:
        node = heapq.heappop(ready)[3]
        if done[node]:
            continue
        done[node] = True
        order.append(node)
        for other, flow in near[node]:
            if not done[other]:
                pull[other] += flow
                heapq.heappush(ready, (-pull[other], -whole[other], rank[other], other))
    return np.array(order, np.int64)


def _in_slots(datacenter: Datacenter, demand: Floats, tasks: npt.NDArray[np.bool_], slots: int) -> Floats:
    """Return demands rounded up to whole slots at the peaks, all the time; services stay unchanged."""
    slot = np.floor(datacenter.smallest / slots)
    many = np.ceil(demand / np.maximum(slot, 1.0)).max(axis=2, keepdims=True)
    booked = np.minimum(np.maximum(many, 1.0) * slot, TOO_MUCH)
    # If some server has none of a resource, neither have slots.
    booked = np.where((demand > 0.0) & (slot == 0.0), TOO_MUCH, booked)
    return np.where(tasks[:, None, None], booked, demand)


def _refusal(
    datacenter: Datacenter,
    job: TiMra,
    policy: Policy,
    pinned: Mapping[int, int],
    report: list[int],
    after: int,
) -> Refusal:
    node, resource, instant, room, link = report
    load = _job_arrays(datacenter, job, policy, pinned, after)
    low, high = load.span[node].tolist()
    if resource == 4:
        edges = (load.ends == node).any(axis=1)
        units = load.flow[edges, instant].sum(keepdims=True).astype(np.float64)
        needed = float(datacenter.band.amount(units)[0])
    else:
        units = load.demand[node, instant].astype(np.float64)
        # An amount that no server has may be too large for the data centre's units.
        needed = max(float(datacenter.quanta.amount(units)[resource]), job.demand[node, instant, resource])
    return Refusal(
        job.name,
        job.nodes[node].name,
        NAMES[resource],
        datacenter.now + after + instant,
        needed,
        room,
        high - low,
        datacenter.link(link) if link >= 0 else None,
    )
