"""The metrics of a node: of its core, its store, its peers and its process.

The node's process fills the rows of the table ``metrics`` from these families; a reader turns the rows into
readings again. A row is a metric, its labels as ``key=value,key=value``, and its value. Nothing is measured
until somebody reads the table: see ``dios.host.loop.call_meter``.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Final, TypeAlias

from msgspec.structs import replace

from dios.core.calls.tables import METRICS
from dios.core.model.records import LocalHolder, Session, Task
from dios.core.model.state import State
from dios.core.remote.peers import Cluster
from dios.host.loop.call_meter import LATENCY_BOUNDS_NS
from dios.host.peers.link import PeerSession
from dios.node.assembly import NodeHost
from dios.node.metrics.family import NANO, Family, Kind, Reading, Value, labelled, single
from dios.wire.messages import TableRows
from dios.wire.types import Fitness

_PEERS_MAX: Final = 128
"""The most peers with rows of their own, so that the answer stays small."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STARTED_S: Final = time.time()
_BOUNDS: Final = "dios_call_latency_bounds_ns"


class MeasuredHost:
    """A node at one moment, as its metrics read it.

    ``stored`` has the counts of the store, ``scrubbed`` those of scrubbing; ``ready`` is the number of
    processes in the pool.
    """

    def __init__(
        self, host: NodeHost, stored: Mapping[str, int], scrubbed: Mapping[str, int], ready: int
    ) -> None:
        self.host: Final = host
        self.state: Final[State] = host.driver.state
        self.stored: Final = stored
        self.scrubbed: Final = scrubbed
        self.ready: Final = ready

    @cached_property
    def holders(self) -> Counter[str]:
        """The numbers of references, buffers and sessions, and of tasks by state."""
        counts: Counter[str] = Counter(references=0, buffers=0, sessions=0)
        for holder in self.state.tasks.values():
            counts["references"] += len(holder.table)
            counts["sessions"] += isinstance(holder, Session)
            if isinstance(holder, Task):
                counts[f"task {holder.state.name.lower()}"] += 1
            if isinstance(holder, LocalHolder):
                counts["buffers"] += len(holder.buffers)
        return counts

    @cached_property
    def sessions(self) -> list[tuple[str, PeerSession | None]]:
        """The connections with other nodes, or None, by the nodes' names."""
        links = self.host.links
        sessions = [] if links is None else sorted(links.sessions(), key=lambda pair: pair[0])
        return list(islice(sessions, _PEERS_MAX))

    @cached_property
    def resident_bytes(self) -> int | None:
        """The memory of the daemon; None if the machine does not say."""
        try:
            return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
        except (OSError, ValueError, IndexError):
            return None

    @cached_property
    def descriptors(self) -> int | None:
        """The open descriptors of the daemon; None if the kernel is older than 6.2, or does not say."""
        try:
            return Path("/proc/self/fd").stat().st_size or None
        except OSError:
            return None


_Node: TypeAlias = Family[MeasuredHost]
_Numbers: TypeAlias = Iterable[tuple[str, float]]


def _counter(text: str, read: Callable[[MeasuredHost], float | None], scale: float = 1.0) -> _Node:
    return Family(Kind.COUNTER, text, single(read), scale=scale)


def _gauge(text: str, read: Callable[[MeasuredHost], float | None], scale: float = 1.0) -> _Node:
    return Family(Kind.GAUGE, text, single(read), scale=scale)


def _counters(text: str, label: str, read: Callable[[MeasuredHost], _Numbers]) -> _Node:
    return Family(Kind.COUNTER, text, labelled(read), labels=(label,))


def _gauges(text: str, label: str, read: Callable[[MeasuredHost], _Numbers], scale: float = 1.0) -> _Node:
    return Family(Kind.GAUGE, text, labelled(read), labels=(label,), scale=scale)


def _of_cluster(read: Callable[[Cluster], float]) -> Callable[[MeasuredHost], float | None]:
    return lambda node: None if node.state.cluster is None else read(node.state.cluster)


def _of_clusters(read: Callable[[Cluster], _Numbers]) -> Callable[[MeasuredHost], _Numbers]:
    return lambda node: () if node.state.cluster is None else read(node.state.cluster)


def _peer_count(count: str) -> Callable[[MeasuredHost], float | None]:
    return lambda node: None if node.host.links is None else node.host.links.counts[count]


def _of_peers(read: Callable[[PeerSession], float | None]) -> Callable[[MeasuredHost], _Numbers]:
    def numbers(node: MeasuredHost) -> Iterator[tuple[str, float]]:
        for name, session in node.sessions:
            number = None if session is None else read(session)
            if number is not None:
                yield name, number

    return numbers


def _stored(count: str) -> Callable[[MeasuredHost], float | None]:
    return lambda node: node.stored.get(count)


def _calls(node: MeasuredHost) -> Iterator[Value]:
    yield from sorted(node.host.meter.outcomes.items())


def _latencies(node: MeasuredHost) -> Iterator[Value]:
    for kind, latencies in sorted(node.host.meter.latencies.items()):
        yield (kind,), " ".join(map(str, (latencies.sum_ns, *latencies.buckets)))


def _processor_ns(node: MeasuredHost) -> int:
    del node
    times = os.times()
    return round((times.user + times.system) * 1e9)


NODE_FAMILIES: Final[Mapping[str, _Node]] = {
    # Calls
    "dios_calls_total": Family(
        Kind.COUNTER,
        "Answered calls of tasks and sessions, since the metrics were first read. Reads from shared memory "
        "are no calls.",
        _calls,
        labels=("call", "outcome"),
    ),
    "dios_call_latency_seconds": Family(
        Kind.HISTOGRAM,
        "Time from the arrival of a call until its answer was sent, with the time that the call waited.",
        _latencies,
        labels=("call",),
        scale=NANO,
    ),
    "dios_calls_untimed_total": _counter(
        "Calls that were not timed because too many calls waited.", lambda node: node.host.meter.untimed
    ),
    "dios_waiting_calls": _gauge(
        "Calls whose answer waits: until a task ends, an event comes, or an object is free.",
        lambda node: len(node.state.pending),
    ),
    # Objects, references, tasks
    "dios_objects": _gauges(
        "Objects in memory, and further objects in the store only.",
        "place",
        lambda node: [("memory", len(node.state.objects)), ("store", node.state.dormant_count)],
    ),
    "dios_names": _gauge(
        "Names of objects that this node knows.",
        lambda node: len(node.state.names) + node.state.dormant_count,
    ),
    "dios_references": _gauge(
        "References of all tasks and sessions.", lambda node: node.holders["references"]
    ),
    "dios_buffers": _gauge("Buffers of I/O requests.", lambda node: node.holders["buffers"]),
    "dios_sessions": _gauge("Connected programs that are no tasks.", lambda node: node.holders["sessions"]),
    "dios_tasks": _gauges(
        "Tasks by state.",
        "state",
        lambda node: [
            (name.removeprefix("task "), number)
            for name, number in sorted(node.holders.items())
            if name.startswith("task ")
        ],
    ),
    "dios_tasks_ended_total": _counters(
        "Tasks that ended, by the cause of their end.", "cause", lambda node: sorted(node.state.ends.items())
    ),
    "dios_submitted_runs": _gauge(
        "Runs in the submission queue, which wait for the scheduler.",
        lambda node: len(node.state.queue.waiting),
    ),
    "dios_schedulers_barred": _gauge(
        "Schedulers that have lost their lease on the submission queue.",
        _of_cluster(lambda cluster: len(cluster.membership.own.barred)),
    ),
    "dios_queued_starts": _gauge(
        "Runs that wait for a place on this node.", lambda node: len(node.state.starts)
    ),
    "dios_moving_runs": _gauge(
        "Runs that are being moved to other nodes.",
        lambda node: sum(bool(task.leave_ns) for task in node.state.living_tasks()),
    ),
    "dios_pool_processes": _gauge(
        "Sandboxed processes that are ready for pure tasks.", lambda node: node.ready
    ),
    "dios_fitness": _gauges(
        "1 for the present ability to run pure tasks, 0 for the others.",
        "state",
        lambda node: [(fitness.name.lower(), node.state.fitness is fitness) for fitness in Fitness],
    ),
    "dios_logs": _gauge("Log objects.", lambda node: len(node.state.logs)),
    "dios_defects_total": _counter(
        "Steps of the core that failed because of a defect in the node.",
        lambda node: node.state.defects.total,
    ),
    # The core and the store
    "dios_core_steps_total": _counter(
        "Events that the core has processed.", lambda node: node.host.driver.steps
    ),
    "dios_core_work_units_total": _counter(
        "Work of the core, by which connections take turns.", lambda node: node.host.driver.units
    ),
    "dios_store_commits_total": _counter(
        "Commits of the store; one commit takes all waiting changes.",
        lambda node: node.host.persister.figures.commits,
    ),
    "dios_store_committed_changes_total": _counter(
        "Changes in these commits.", lambda node: node.host.persister.figures.jobs
    ),
    "dios_store_failures_total": _counter(
        "Changes that the store refused.", lambda node: node.host.persister.figures.failures
    ),
    "dios_store_busy_seconds_total": _counter(
        "Time that commits took.", lambda node: node.host.persister.figures.busy_ns, NANO
    ),
    "dios_store_queue": _gauge(
        "Changes that wait for a commit, or whose commit is being reported.",
        lambda node: node.host.persister.backlog,
    ),
    "dios_store_objects": _gauge("Objects in the store.", _stored("objects")),
    "dios_store_bytes": _gauge("Bytes of objects in the store.", _stored("bytes")),
    "dios_store_extents": _gauge("Files of large objects in the store.", _stored("extents")),
    "dios_scrubbing": _gauges(
        "Progress and findings of the comparison of stored objects.",
        "count",
        lambda node: sorted(node.scrubbed.items()),
    ),
    "dios_audit_records_total": _counter(
        "Records in the audit log since the start of the node.",
        lambda node: node.host.journal.counts["audit_records"],
    ),
    "dios_audit_bytes": _gauge(
        "Bytes of the audit log.", lambda node: node.host.journal.counts["audit_bytes"]
    ),
    # Other nodes
    "dios_members": _gauges(
        "Other nodes of the cluster by status.",
        "status",
        _of_clusters(
            lambda cluster: sorted(
                Counter(row.status.name.lower() for row in cluster.membership.members.values()).items()
            )
        ),
    ),
    "dios_certificate_days_left": _gauge(
        "Whole days until this node's certificate ends; none for a certificate without an end.",
        lambda node: node.host.certificate_days(),
    ),
    "dios_peer_connected": _gauges(
        "1 if there is a connection with the node, else 0.",
        "peer",
        lambda node: [(name, session is not None) for name, session in node.sessions],
    ),
    "dios_peer_round_trip_seconds": _gauges(
        "The kernel's estimate of the time to the node and back.",
        "peer",
        _of_peers(lambda session: session.line.round_trip_us * 1_000 or None),
        NANO,
    ),
    "dios_peer_queued_bytes": _gauges(
        "Bytes that wait to be sent to the node.",
        "peer",
        _of_peers(lambda session: session.line.queued_bytes),
    ),
    "dios_peer_link_sent_bytes_total": _counters(
        "Bytes to the node on the present connection.", "peer", _of_peers(lambda session: session.sent_bytes)
    ),
    "dios_peer_link_received_bytes_total": _counters(
        "Bytes of the node on the present connection.",
        "peer",
        _of_peers(lambda session: session.received_bytes),
    ),
    "dios_peer_messages_sent_total": _counter("Messages to other nodes.", _peer_count("messages_sent")),
    "dios_peer_messages_received_total": _counter(
        "Messages of other nodes.", _peer_count("messages_received")
    ),
    "dios_peer_bytes_sent_total": _counter("Bytes to other nodes.", _peer_count("bytes_sent")),
    "dios_peer_bytes_received_total": _counter("Bytes of other nodes.", _peer_count("bytes_received")),
    "dios_peer_connections_total": _counter(
        "Connections that were made with other nodes.", _peer_count("connections")
    ),
    "dios_peer_refusals_total": _counter(
        "Connections of other nodes that were refused.", _peer_count("denied")
    ),
    "dios_cache_versions": _gauge(
        "Kept versions of objects of other nodes.",
        _of_cluster(lambda cluster: len(cluster.versions.versions)),
    ),
    "dios_cache_bytes": _gauge(
        "Bytes of kept versions of objects of other nodes.",
        _of_cluster(lambda cluster: cluster.versions.bytes),
    ),
    "dios_cache_reads_total": _counters(
        "Reads of objects of other nodes, with bytes from the cache or not.",
        "result",
        _of_clusters(lambda cluster: [("hit", cluster.versions.served), ("miss", cluster.versions.fetched)]),
    ),
    "dios_leases": _gauges(
        "Leases on versions, held here or granted to other nodes.",
        "side",
        _of_clusters(
            lambda cluster: [("reader", len(cluster.leases.held)), ("home", len(cluster.leases.granted))]
        ),
    ),
    "dios_leased_reads_total": _counter(
        "Reads that a lease allowed without a message.", _of_cluster(lambda cluster: cluster.leases.served)
    ),
    # The process
    "process_cpu_seconds_total": _counter("Processor time of the daemon.", _processor_ns, NANO),
    "process_start_time_seconds": _gauge(
        "Start of the daemon, in seconds since 1970.", lambda _: round(_STARTED_S * 1e9), NANO
    ),
    "process_resident_memory_bytes": _gauge(
        "Resident memory of the daemon.", lambda node: node.resident_bytes
    ),
    "process_open_fds": _gauge("Open descriptors of the daemon.", lambda node: node.descriptors),
}


def completed(
    answer: TableRows,
    host: NodeHost | None,
    stored: Mapping[str, int],
    scrubbed: Mapping[str, int],
    ready: int,
) -> TableRows:
    """Return the rows of the table ``metrics``; the answers of other tables as they are."""
    if answer.table != METRICS or host is None:
        return answer
    host.meter.note_reader()
    return replace(answer, rows=tuple(_rows(MeasuredHost(host, stored, scrubbed, ready))))


def _rows(node: MeasuredHost) -> Iterator[tuple[str, str, int | str]]:
    # The bounds go with the values, so that a reader of another version needs no copy of them.
    yield _BOUNDS, "", " ".join(map(str, LATENCY_BOUNDS_NS))
    for metric, family in NODE_FAMILIES.items():
        for values, number in family.read(node):
            labels = ",".join(f"{label}={value}" for label, value in zip(family.labels, values, strict=True))
            yield metric, labels, number if isinstance(number, str) else int(number)


def of_node(rows: Iterable[Mapping[str, int | str]]) -> Iterator[Reading]:
    """Return the readings in the rows of the table ``metrics``; skip rows that are malformed."""
    bounds: list[int] = []
    for row in rows:
        metric, value = str(row.get("metric", "")), row.get("value", 0)
        pairs = (part.partition("=") for part in str(row.get("labels", "")).split(",") if part)
        labels = {key: text for key, _, text in pairs}
        if isinstance(value, int):
            yield Reading(metric, labels, value)
            continue
        try:
            numbers = [int(word) for word in value.split()]
        except ValueError:
            continue
        if metric == _BOUNDS:
            bounds = numbers
        elif len(numbers) == len(bounds) + 2:
            yield Reading(metric, labels, numbers[0], _cumulative([*bounds, float("inf")], numbers[1:]))


def _cumulative(bounds: Iterable[float], counts: Iterable[int]) -> tuple[tuple[float, int], ...]:
    buckets: list[tuple[float, int]] = []
    total = 0
    for bound, count in zip(bounds, counts, strict=True):
        total += count
        buckets.append((bound, total))
    return tuple(buckets)
