"""The quotas and holdings that a coordinator sends its nodes, and its reasons to leave runs waiting.

The nodes enforce them for all tasks that start there (``dios.core.calls.own_rule``, ``admission``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from dios.firmament.coordinator.assignment import Assignment
from dios.firmament.coordinator.cluster_state import Phase, TrackedCluster
from dios.limits import PRINCIPALS_WAITING_MAX, QUOTAS_MAX
from dios.wire.admission import Holding, Quota, SetAdmission
from dios.wire.fields import U63_MAX

HOLD_S: Final = 30.0
"""The time for which a reason is stated; it is stated again while runs wait in a queue that is attended.

Turns, quotas and kept rooms are reasons. The message to the node does not distinguish them.
"""
REFRESH_S: Final = 10.0
"""The longest time between two messages to a node while anything has to be known there."""
_SCALES: Final = (1.0, 1000.0, 1.0, 1.0, 1.0, 1.0)
"""The units of a holding in one unit of the scheduler's resources."""
_ALL: Final = ""
"""In place of a node's name: all nodes together."""


class _Sent(NamedTuple):
    message: SetAdmission
    at: float
    is_heard: bool = False


class NodeAdmissions:
    """The last message to each node, and whether the node has answered it."""

    def __init__(self) -> None:
        self._sent: dict[str, _Sent] = {}

    def confirm(self, name: str, message: SetAdmission) -> None:
        """Note that a node has answered a message; until then it is due again and again."""
        sent = self._sent.get(name)
        if sent is not None and sent.message == message:
            self._sent[name] = sent._replace(is_heard=True)

    def forget(self, name: str) -> None:
        """Forget what a node knows, because it has restarted."""
        if name in self._sent:
            self._sent[name] = self._sent[name]._replace(is_heard=False)

    def due(
        self,
        cluster: TrackedCluster,
        quotas: Mapping[str, Sequence[float]],
        assignment: Assignment,
        informed: Iterable[str],
        now: float,
    ) -> dict[str, SetAdmission]:
        """Return the messages that nodes should get now, by name.

        ``quotas`` are by principal, in the units of the scheduler. ``informed`` are the nodes of which this
        coordinator has the shares.
        """
        for name in self._sent.keys() - assignment.governs - assignment.attend:
            del self._sent[name]
        limited = {who: quota for who, quota in quotas.items() if not all(map(math.isinf, quota))}
        governed = assignment.governs & set(informed)
        holdings = _holdings(cluster, limited)
        everywhere = tuple(_quotas(limited, holdings.get(_ALL, {})))
        waiting = cluster.waiting_principals(now, PRINCIPALS_WAITING_MAX)
        messages: dict[str, SetAdmission] = {}
        for name in sorted(assignment.attend | governed):
            rows = _for_node(everywhere, holdings.get(name, {})) if name in governed else None
            hold_s = HOLD_S if name in assignment.attend and cluster.has_waiting(name) else 0.0
            message = SetAdmission("", rows, waiting if rows is not None else (), int(hold_s * 1000))
            sent = self._sent.get(name)
            is_late = sent is not None and now - sent.at >= REFRESH_S and bool(rows or waiting or hold_s)
            if sent is None or not sent.is_heard or sent.message != message or is_late:
                self._sent[name] = _Sent(message, now)
                messages[name] = message
        return messages

    @property
    def is_idle(self) -> bool:
        """Return True if no node has to hear again of what it knows."""
        return all(
            sent.is_heard and not (sent.message.quotas or sent.message.waiting or sent.message.hold_ms)
            for sent in self._sent.values()
        )


def _holdings(
    cluster: TrackedCluster, principals: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, Holding]]:
    """Return what each of these principals holds, by node and for all nodes, with tasks on their way."""
    holdings: dict[str, dict[str, Holding]] = {}
    if not principals:
        return holdings
    for tracked in cluster.tasks.values():
        principal = tracked.row.principal
        if principal not in principals or tracked.phase is Phase.WAITING:
            continue
        holding = Holding.of(tracked.row.work)
        for name in (_ALL, tracked.place or tracked.host):
            held = holdings.setdefault(name, {})
            held[principal] = held.get(principal, Holding()).plus(holding)
    return holdings


def _whole(most: float, scale: float) -> int | None:
    """Return a quota in the units of a holding; None is no limit, as is one beyond all holdings."""
    scaled = most * scale
    return None if scaled >= U63_MAX else round(scaled)


def _quotas(limited: Mapping[str, Sequence[float]], held: Mapping[str, Holding]) -> Iterator[Quota]:
    """Yield the quotas as a node gets them on which the principals hold nothing."""
    for principal in sorted(limited)[:QUOTAS_MAX]:
        tasks, cpus, memory, disk_io, network, devices = map(_whole, limited[principal], _SCALES)
        elsewhere = held.get(principal, Holding())
        yield Quota(principal, tasks, cpus, memory, disk_io, network, devices, elsewhere)


def _for_node(quotas: tuple[Quota, ...], held: Mapping[str, Holding]) -> tuple[Quota, ...]:
    """Return the quotas as a node gets them on which these principals hold this."""
    if not held:
        return quotas
    return tuple(
        replace(quota, elsewhere=quota.elsewhere.minus(held[quota.principal]))
        if quota.principal in held
        else quota
        for quota in quotas
    )
