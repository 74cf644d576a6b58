"""Packing done slowly and plainly: whole paths link by link, and the equations as they are printed.

For: tests of ``dios.packer``. It shares nothing with the kernels but the units of the books.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np

from dios.packer import Capacity, Datacenter, Edge, Node, Placement, Spot, TiMra
from dios.packer.kernels.records import JobArrays
from dios.packer.policies import Policy

Link = tuple[Hashable, ...]


@dataclass
class Books:
    """What is in use in a data centre of one plane: by place and resource, and by link, at each slot."""

    datacenter: Datacenter
    used: dict[tuple[int, int, int], int] = field(default_factory=lambda: defaultdict(int))
    """(slot, resource, place)."""
    flow: dict[tuple[int, Link], int] = field(default_factory=lambda: defaultdict(int))

    def capacity(self, link: Link) -> int:
        """Of any link, in units."""
        whole = self.datacenter._empty_instant
        if link[0] in {"up", "down"}:
            return int(whole.free[0, 4, int(str(link[1]))])
        racks = 2 * self.datacenter.racks
        return int(whole.trunk[0, 0] if link[0] in {"rack up", "rack down"} else whole.trunk[0, racks])

    def path(self, place: int, other: int) -> list[Link]:
        """The links from a place to another."""
        if place == other:
            return []
        rack, pod = self.datacenter.site.rack, self.datacenter.site.pod
        left, right = int(rack[place]), int(rack[other])
        links: list[Link] = [("up", place), ("down", other)]
        if left != right:
            links += [("rack up", left), ("rack down", right)]
        if pod[left] != pod[right]:
            links += [("pod up", int(pod[left])), ("pod down", int(pod[right]))]
        return links

    def take(self, load: JobArrays, sign: int = 1) -> None:
        """Count all that has a place; for tests that recount from nothing."""
        for node, place in enumerate(load.place.tolist()):
            if place >= 0:
                self.take_node(load, node, sign)
        for edge in range(len(load.flow)):
            if min(load.place[load.ends[edge]]) >= 0:
                self.take_edge(load, edge, sign)

    def take_node(self, load: JobArrays, node: int, sign: int = 1) -> None:
        """Count a node where it is."""
        for t, slot in enumerate(load.slots.tolist()):
            for r in range(4):
                self.used[slot, r, int(load.place[node])] += sign * int(load.demand[node, t, r])

    def take_edge(self, load: JobArrays, edge: int, sign: int = 1) -> None:
        """Count an edge on its whole path."""
        place, other = load.place[load.ends[edge]].tolist()
        for link in self.path(place, other):
            for t, slot in enumerate(load.slots.tolist()):
                self.flow[slot, link] += sign * int(load.flow[edge, t])


def scores(
    books: Books, load: JobArrays, node: int, policy: Policy, weights: list[float]
) -> list[tuple[float, bool]]:
    """Equations 6 to 8 for each place that may hold the node: the score, and whether it has room."""
    site = books.datacenter._empty_instant
    low, high = load.span[node].tolist()
    scored = []
    partners = [
        (edge, int(load.place[other]))
        for edge, ends in enumerate(load.ends.tolist())
        if node in ends and load.place[other := ends[0] + ends[1] - node] >= 0
    ]
    longest = 6
    for place in range(low, high):
        score, ok = 0.0, True
        passing: dict[tuple[int, Link], int] = defaultdict(int)
        for t, slot in enumerate(load.slots.tolist()):
            for r in range(4):
                has = float(site.free[0, r, place])
                free = has - books.used[slot, r, place]
                need = float(load.demand[node, t, r])
                ok = ok and need <= free
                score += _term(policy, weights[r], free, need, has)
            for edge, there in partners:
                incoming = load.ends[edge, 1] == node
                links = books.path(there, place) if incoming else books.path(place, there)
                for link in links:
                    capacity = books.capacity(link)
                    left = capacity - books.flow[slot, link]
                    passing[slot, link] += int(load.flow[edge, t])
                    if policy.score == "cubic":
                        score += _term(policy, weights[4], left, float(load.flow[edge, t]), capacity)
                if policy.score == "cubic":
                    score += policy.unused * weights[4] * (longest - len(links))
        if policy.ahead > 0.0:
            score = _looked_ahead(books, load, node, place, policy, score)
        # Equation 5: all edges over a link count together.
        ok = ok and all(
            books.flow[slot, link] + flow <= books.capacity(link) for (slot, link), flow in passing.items()
        )
        if policy.score != "cubic":
            score *= distance(books, load, partners, place, policy)
        scored.append((score, ok))
    return scored


def _looked_ahead(
    books: Books, load: JobArrays, node: int, place: int, policy: Policy, score: float
) -> float:
    """Alignment with a place's link by all edges of a node, and what is left of it without room for them."""
    tight = False
    for t, slot in enumerate(load.slots.tolist()):
        for side, kind in enumerate(("up", "down")):
            need = float(
                sum(load.flow[edge, t] for edge in range(len(load.flow)) if load.ends[edge, side] == node)
            )
            capacity = books.capacity((kind, place))
            left = capacity - books.flow[slot, (kind, place)]
            tight = tight or need > left
            score += _term(policy, 0.0, left, need, capacity)
    return score * (1.0 - policy.ahead if tight else 1.0)


def _term(policy: Policy, weight: float, free: float, need: float, has: float) -> float:
    if has == 0:
        return float(policy.score == "best" and need > 0)
    if policy.score == "cubic":
        return weight * ((free - need) / has) ** 3 * (free / has)
    if policy.score == "align":
        return (need / has) * (free / has)
    if policy.score == "best" and need > 0:
        return 1.0 - (free - need) / has
    return 0.0


def distance(
    books: Books, load: JobArrays, partners: list[tuple[int, int]], place: int, policy: Policy
) -> float:
    """1 less the parts for flow that leaves server, rack and pod."""
    site = books.datacenter.site
    total = sum(int(load.flow[edge].sum()) for edge, _ in partners)
    if total == 0:
        return 1.0
    lost = 0.0
    for edge, there in partners:
        part = int(load.flow[edge].sum()) / total
        rack, other = site.rack[there], site.rack[place]
        lost += part * policy.remote * (there != place)
        lost += part * policy.racks * bool(rack != other)
        lost += part * policy.pods * bool(site.pod[rack] != site.pod[other])
    return 1.0 - lost


def draw_datacenter(seed: int, *, horizon: int = 6, fat: bool = False) -> Datacenter:
    """A small one, of unequal servers, with a service, tight links, and sometimes nothing of a resource."""
    rng = np.random.default_rng([seed, 1])
    services = {"store": [Spot(0, Capacity(4, 64, 50, 50), 40.0)]}
    if fat:
        return Datacenter.fat_tree(
            4, capacity=Capacity(4, 64, 50, 50), link=60.0, services=services, horizon=horizon
        )
    servers = int(rng.integers(1, 12))
    capacity = rng.choice([0.0, 4.0, 8.0, 10.0 / 3.0], (servers, 4), p=[0.05, 0.4, 0.4, 0.15])
    capacity *= np.array([1.0, 16.0, 12.5, 12.5])
    return Datacenter.tree(
        servers,
        per_rack=int(rng.integers(1, 4)),
        racks_per_pod=int(rng.integers(1, 4)),
        capacity=capacity,
        link=rng.choice([20.0, 60.0], servers),
        rack_link=float(rng.choice([30.0, 100.0])),
        pod_link=float(rng.choice([30.0, 200.0])),
        services=services,
        horizon=horizon,
    )


def draw_job(seed: int, number: int, *, instants_max: int = 6) -> TiMra:
    """A small job: tasks, perhaps the service, edges both ways, more than one between the same two."""
    rng = np.random.default_rng([seed, 2, number])
    count, instants = int(rng.integers(1, 7)), int(rng.integers(1, instants_max + 1))
    nodes = []
    for at in range(count):
        demand = rng.choice(
            [0.0, 0.5, 1.0, 2.0, rng.uniform(0, 4)], (4, instants), p=[0.3, 0.3, 0.2, 0.1, 0.1]
        )
        demand *= np.array([1.0, 16.0, 12.5, 12.5])[:, None]
        cpu, memory, write, read = demand
        service = "store" if at and rng.random() < 0.15 else None
        nodes.append(Node(f"n{at}", cpu, memory, write, read, service=service))
    edges = []
    for _ in range(int(rng.integers(0, 3 * count)) if count > 1 else 0):
        tail, other = rng.choice(count, 2, replace=False).tolist()
        flow = rng.choice([0.0, 1.0, 5.0, rng.uniform(0, 20)], instants)
        edges.append(Edge(f"n{tail}", f"n{other}", flow, depends=tail < other))
    return TiMra(f"job {number}", nodes, edges, instants)


def tasks_held(placements: list[Placement], now: int) -> Iterator[Placement]:
    """Those that hold anything at an instant or after."""
    return (placement for placement in placements if placement.end > now)


def close(actual: float, expected: float, scale: float) -> bool:
    """Equal but for single precision."""
    return math.isclose(actual, expected, rel_tol=2e-5, abs_tol=2e-5 * scale)
