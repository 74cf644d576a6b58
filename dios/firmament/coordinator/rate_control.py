"""Rates for links and stores, computed from moved and waiting bytes (EDRF or DC-DRF, by ``rate_solver``).

The coordinator that governs computes them once in each control interval; the nodes' daemons enforce them.

A principal is a tenant. Its demand for a resource is the bytes that it moved there in the last interval and
those that still wait, as a fraction of the resource's capacity. A principal that no resource limits receives
as much as the largest share there, because it may want more before the next interval, up to its share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from dios.fairness.allocation import Floats, Ints
from dios.firmament.coordinator.rate_solver import RateSolver, TenantDemands
from dios.limits import RATE_BYTES_S_MIN, RATES_MAX
from dios.wire.messages import Meter, Metered, Rate
from dios.wire.types import Traffic


@dataclass
class _NodeTraffic:
    """The last report of one node."""

    at: float
    moved: dict[tuple[str, Traffic], int]
    wanted: dict[tuple[str, Traffic], float] = field(default_factory=dict)
    """Bytes per second, of the last interval."""
    waits: dict[tuple[str, Traffic], float] = field(default_factory=dict)
    """The part of it that was not moved."""
    capacity: tuple[int, int, int] = (0, 0, 0)
    tasks: dict[tuple[int, Traffic], int] = field(default_factory=dict)
    """Bytes moved for tasks with a guaranteed edge, by task."""
    goes: dict[tuple[int, Traffic], float] = field(default_factory=dict)
    """The same in bytes per second, in the last interval."""
    promised: dict[Traffic, float] = field(default_factory=dict)
    """The bandwidth that those tasks wanted together in the last interval."""


class RateControl:
    """The demands of all principals at all nodes, and the resulting rates."""

    def __init__(self, solver: RateSolver | None = None) -> None:
        self._nodes: dict[str, _NodeTraffic] = {}
        self.solver = RateSolver() if solver is None else solver

    def record(self, host: str, metered: Metered, now: float) -> None:
        """Record a node's meters; ``now`` is in seconds of any monotonic clock."""
        large = [reading for reading in metered.meters if not reading.task]
        fresh = _NodeTraffic(
            now,
            {(reading.principal, reading.traffic): reading.moved for reading in large},
            capacity=metered.capacity,
        )
        fresh.tasks = {
            (reading.task, reading.traffic): reading.moved for reading in metered.meters if reading.task
        }
        before = self._nodes.get(host)
        # A smaller value means that the node has restarted.
        if before is not None and now > before.at and all(_ran_on(reading, before) for reading in large):
            span = now - before.at
            for meter in large:
                key = meter.principal, meter.traffic
                wanted = (meter.moved - before.moved.get(key, 0) + meter.waiting) / span
                if wanted > 0:
                    fresh.wanted[key], fresh.waits[key] = wanted, meter.waiting / span
            for meter in metered.meters:
                if meter.task:
                    goes = max(0, meter.moved - before.tasks.get((meter.task, meter.traffic), 0))
                    fresh.goes[meter.task, meter.traffic] = goes / span
                    wanted = fresh.promised.get(meter.traffic, 0.0) + (goes + meter.waiting) / span
                    fresh.promised[meter.traffic] = wanted
        self._nodes[host] = fresh

    def capacities(self) -> dict[str, tuple[int, int, int]]:
        """Return the capacities of each node in bytes per second, for each ``Traffic``; 0: unknown."""
        return {host: node.capacity for host, node in self._nodes.items()}

    def sent_for(self, host: str, task: int) -> float:
        """Return the bytes per second that a node sends for a task with a guaranteed edge."""
        node = self._nodes.get(host)
        return 0.0 if node is None else node.goes.get((task, Traffic.OUT), 0.0)

    def forget(self, host: str) -> None:
        """Forget a node."""
        self._nodes.pop(host, None)

    def rates(
        self,
        weights: Mapping[str, float],
        guaranteed: Mapping[str, Mapping[Traffic, float]] = MappingProxyType({}),
    ) -> dict[str, tuple[Rate, ...]]:
        """Return the limits that each node has to enforce; empty if there is enough for all.

        Bandwidth that is ``guaranteed`` to edges of jobs and used, by node in bytes per second, is not
        divided.
        """
        columns = [
            (host, traffic)
            for host, node in sorted(self._nodes.items())
            for traffic in Traffic
            if node.capacity[traffic] > 0
        ]
        tenants = sorted({who for node in self._nodes.values() for who, _ in node.wanted})
        if not columns or not tenants or (len(tenants) < 2 and not guaranteed):
            return {}
        capacity = np.array([self._left(host, at, guaranteed.get(host, {})) for host, at in columns])
        demands, tenant = self._demands(tenants, columns, capacity, weights)
        given = self.solver.solve(demands)
        if not given.limited.any():
            return {}
        rates_by_host: dict[str, list[Rate]] = {host: [] for host, _ in columns}
        most = np.zeros(len(columns))
        np.maximum.at(most, demands.resources, given.amounts)
        # Everybody has a rate at a resource where anybody is limited. Receivers enforce none.
        divided = np.zeros(len(columns), np.bool_)
        divided[demands.resources[given.limited[tenant]]] = True
        divided &= np.array([traffic is not Traffic.IN for _, traffic in columns])
        for entry in np.flatnonzero(divided[demands.resources]).tolist():
            at, number = int(demands.resources[entry]), int(tenant[entry])
            part = given.amounts[entry] if given.limited[number] else most[at]
            rate = max(RATE_BYTES_S_MIN, int(part * capacity[at]))
            host, traffic = columns[at]
            rates_by_host[host].append(Rate(tenants[number], traffic, rate))
        # A node accepts a bounded number of rates: the tightest ones count most.
        return {
            host: tuple(sorted(rates, key=lambda rate: rate.bytes_s)[:RATES_MAX])
            for host, rates in rates_by_host.items()
            if rates
        }

    def _demands(
        self,
        tenants: list[str],
        columns: list[tuple[str, Traffic]],
        capacity: Floats,
        weights: Mapping[str, float],
    ) -> tuple[TenantDemands, Ints]:
        """Return the demands of the tenants for the links and stores, and the tenant of each of them."""
        row = {who: number for number, who in enumerate(tenants)}
        sent = self._sent_part(tenants)
        entries: list[tuple[int, int, float]] = []
        for at, (host, traffic) in enumerate(columns):
            node = self._nodes[host]
            for (who, kind), wanted in node.wanted.items():
                if kind is traffic:
                    # Incoming bytes wait at their senders, so their demand follows the part that was sent.
                    waits = node.waits[who, kind] if kind is Traffic.IN else 0.0
                    rate = (wanted - waits) / sent[who] if kind is Traffic.IN else wanted
                    if rate > 0:
                        entries.append((row[who], at, rate / capacity[at]))
        entries.sort()
        tenant = np.array([entry[0] for entry in entries], np.int64)
        offsets = np.searchsorted(tenant, np.arange(len(tenants) + 1)).astype(np.int64)
        demands = TenantDemands(
            offsets,
            np.array([entry[1] for entry in entries], np.int64),
            np.array([entry[2] for entry in entries], np.float64),
            len(columns),
            np.array([weights.get(who, 1.0) for who in tenants]),
        )
        return demands, tenant

    def _left(self, host: str, traffic: Traffic, guaranteed: Mapping[Traffic, float]) -> float:
        """Return the bandwidth without guarantees of a link or store, in bytes per second, more than 0."""
        node = self._nodes[host]
        used = min(guaranteed.get(traffic, 0.0), node.promised.get(traffic, 0.0))
        return max(float(node.capacity[traffic]) - used, 1.0)

    def _sent_part(self, tenants: list[str]) -> dict[str, float]:
        """Return the part of its outgoing demand that each tenant could send, more than 0."""
        wanted, waits = dict.fromkeys(tenants, 0.0), dict.fromkeys(tenants, 0.0)
        for node in self._nodes.values():
            for (who, traffic), rate in node.wanted.items():
                if traffic is Traffic.OUT:
                    wanted[who] += rate
                    waits[who] += node.waits[who, traffic]
        return {who: max(1e-3, 1 - waits[who] / rate) if rate > 0 else 1.0 for who, rate in wanted.items()}


def _ran_on(meter: Meter, before: _NodeTraffic) -> bool:
    return meter.moved >= before.moved.get((meter.principal, meter.traffic), 0)
