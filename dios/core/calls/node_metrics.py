"""The core's part of a node's metrics: the rows of the table ``metrics``, to which the host adds its own.

A row is a metric, its labels as ``key=value,key=value``, and its value. ``dios.web.metrics`` describes all
metrics and turns the rows into the text that Prometheus reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeAlias

from dios.core.model.records import LocalHolder, Session, Task
from dios.core.model.state import State
from dios.core.remote.peers import Cluster
from dios.wire.types import Fitness

MetricRow: TypeAlias = tuple[str, str, int | str]

TABLE: Final = "metrics"
COLUMNS: Final = ("metric", "labels", "value")


def rows(state: State, start: int) -> Iterable[MetricRow]:
    """Return the rows from an index on. There are at most some dozens."""
    return islice(_rows(state), start, None)


def _rows(state: State) -> Iterator[MetricRow]:
    yield "dios_objects", "place=memory", len(state.objects)
    yield "dios_objects", "place=store", state.dormant_count
    yield "dios_names", "", len(state.names) + state.dormant_count
    yield "dios_moving_runs", "", sum(bool(task.leave_ns) for task in state.living_tasks())
    yield "dios_waiting_calls", "", len(state.pending)
    yield "dios_submitted_runs", "", len(state.queue.waiting)
    if state.cluster is not None:
        yield "dios_schedulers_barred", "", len(state.cluster.membership.own.barred)
    yield "dios_queued_starts", "", len(state.starts)
    yield "dios_logs", "", len(state.logs)
    yield "dios_defects_total", "", state.defects.total
    for fitness in Fitness:
        yield "dios_fitness", f"state={fitness.name.lower()}", int(state.fitness is fitness)
    yield from _holders(state)
    for cause, number in sorted(state.ends.items()):
        yield "dios_tasks_ended_total", f"cause={cause}", number
    if state.cluster is not None:
        yield from _of_cluster(state.cluster)


def _holders(state: State) -> Iterator[MetricRow]:
    tasks: Counter[str] = Counter()
    sessions = references = buffers = 0
    for holder in state.tasks.values():
        references += len(holder.table)
        if isinstance(holder, Session):
            sessions += 1
        elif isinstance(holder, Task):
            tasks[holder.state.name.lower()] += 1
        if isinstance(holder, LocalHolder):
            buffers += len(holder.buffers)
    for name, number in sorted(tasks.items()):
        yield "dios_tasks", f"state={name}", number
    yield "dios_sessions", "", sessions
    yield "dios_references", "", references
    yield "dios_buffers", "", buffers


def _of_cluster(cluster: Cluster) -> Iterator[MetricRow]:
    statuses = Counter(row.status.name.lower() for row in cluster.membership.members.values())
    for status, number in sorted(statuses.items()):
        yield "dios_members", f"status={status}", number
    versions, leases = cluster.versions, cluster.leases
    yield "dios_cache_versions", "", len(versions.versions)
    yield "dios_cache_bytes", "", versions.bytes
    yield "dios_cache_reads_total", "result=hit", versions.served
    yield "dios_cache_reads_total", "result=miss", versions.fetched
    yield "dios_leases", "side=reader", len(leases.held)
    yield "dios_leases", "side=home", len(leases.granted)
    yield "dios_leased_reads_total", "", leases.served
