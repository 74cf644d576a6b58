"""The name, type, labels and meaning of every metric.

Names follow Prometheus' conventions: base units, and ``_total`` for numbers that only grow.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

NANO: Final = 1e-9
MICRO: Final = 1e-6


class Kind(enum.Enum):
    """The types of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """One metric. Values are multiplied by ``scale``."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    scale: float = 1.0


_COUNTER: Final = Kind.COUNTER
_GAUGE: Final = Kind.GAUGE

FAMILIES: Final[Mapping[str, Family]] = {
    # Calls
    "dios_calls_total": Family(
        _COUNTER,
        "Answered calls of tasks and sessions, since the metrics were first read. Reads from shared memory "
        "are no calls.",
        ("call", "outcome"),
    ),
    "dios_call_latency_seconds": Family(
        Kind.HISTOGRAM,
        "Time from the arrival of a call until its answer was sent, with the time that the call waited.",
        ("call",),
        NANO,
    ),
    "dios_calls_untimed_total": Family(_COUNTER, "Calls that were not timed because too many calls waited."),
    "dios_waiting_calls": Family(
        _GAUGE, "Calls whose answer waits: until a task ends, an event comes, or an object is free."
    ),
    # Objects, references, tasks
    "dios_objects": Family(_GAUGE, "Objects in memory, and further objects in the store only.", ("place",)),
    "dios_names": Family(_GAUGE, "Names of objects that this node knows."),
    "dios_references": Family(_GAUGE, "References of all tasks and sessions."),
    "dios_buffers": Family(_GAUGE, "Buffers of I/O requests."),
    "dios_sessions": Family(_GAUGE, "Connected programs that are no tasks."),
    "dios_tasks": Family(_GAUGE, "Tasks by state.", ("state",)),
    "dios_tasks_ended_total": Family(_COUNTER, "Tasks that ended, by the cause of their end.", ("cause",)),
    "dios_submitted_runs": Family(_GAUGE, "Runs in the submission queue, which wait for the scheduler."),
    "dios_schedulers_barred": Family(
        _GAUGE, "Schedulers that have lost their lease on the submission queue."
    ),
    "dios_queued_starts": Family(_GAUGE, "Runs that wait for a place on this node."),
    "dios_moving_runs": Family(_GAUGE, "Runs that are being moved to other nodes."),
    "dios_pool_processes": Family(_GAUGE, "Sandboxed processes that are ready for pure tasks."),
    "dios_fitness": Family(
        _GAUGE, "1 for the present ability to run pure tasks, 0 for the others.", ("state",)
    ),
    "dios_logs": Family(_GAUGE, "Log objects."),
    "dios_defects_total": Family(_COUNTER, "Steps of the core that failed because of a defect in the node."),
    # The core and the store
    "dios_core_steps_total": Family(_COUNTER, "Events that the core has processed."),
    "dios_core_work_units_total": Family(_COUNTER, "Work of the core, by which connections take turns."),
    "dios_store_commits_total": Family(
        _COUNTER, "Commits of the store; one commit takes all waiting changes."
    ),
    "dios_store_committed_changes_total": Family(_COUNTER, "Changes in these commits."),
    "dios_store_failures_total": Family(_COUNTER, "Changes that the store refused."),
    "dios_store_busy_seconds_total": Family(_COUNTER, "Time that commits took.", scale=NANO),
    "dios_store_queue": Family(_GAUGE, "Changes that wait for a commit, or whose commit is being reported."),
    "dios_store_objects": Family(_GAUGE, "Objects in the store."),
    "dios_store_bytes": Family(_GAUGE, "Bytes of objects in the store."),
    "dios_store_extents": Family(_GAUGE, "Files of large objects in the store."),
    "dios_scrubbing": Family(
        _GAUGE, "Progress and findings of the comparison of stored objects.", ("count",)
    ),
    "dios_audit_records_total": Family(_COUNTER, "Records in the audit log since the start of the node."),
    "dios_audit_bytes": Family(_GAUGE, "Bytes of the audit log."),
    # Other nodes
    "dios_members": Family(_GAUGE, "Other nodes of the cluster by status.", ("status",)),
    "dios_peer_connected": Family(_GAUGE, "1 if there is a connection with the node, else 0.", ("peer",)),
    "dios_peer_round_trip_seconds": Family(
        _GAUGE, "The kernel's estimate of the time to the node and back.", ("peer",), NANO
    ),
    "dios_peer_queued_bytes": Family(_GAUGE, "Bytes that wait to be sent to the node.", ("peer",)),
    "dios_peer_link_sent_bytes_total": Family(
        _COUNTER, "Bytes to the node on the present connection.", ("peer",)
    ),
    "dios_peer_link_received_bytes_total": Family(
        _COUNTER, "Bytes of the node on the present connection.", ("peer",)
    ),
    "dios_peer_messages_sent_total": Family(_COUNTER, "Messages to other nodes."),
    "dios_peer_messages_received_total": Family(_COUNTER, "Messages of other nodes."),
    "dios_peer_bytes_sent_total": Family(_COUNTER, "Bytes to other nodes."),
    "dios_peer_bytes_received_total": Family(_COUNTER, "Bytes of other nodes."),
    "dios_peer_connections_total": Family(_COUNTER, "Connections that were made with other nodes."),
    "dios_peer_refusals_total": Family(_COUNTER, "Connections of other nodes that were refused."),
    "dios_cache_versions": Family(_GAUGE, "Kept versions of objects of other nodes."),
    "dios_cache_bytes": Family(_GAUGE, "Bytes of kept versions of objects of other nodes."),
    "dios_cache_reads_total": Family(
        _COUNTER, "Reads of objects of other nodes, with bytes from the cache or not.", ("result",)
    ),
    "dios_leases": Family(_GAUGE, "Leases on versions, held here or granted to other nodes.", ("side",)),
    "dios_leased_reads_total": Family(_COUNTER, "Reads that a lease allowed without a message."),
    # The process
    "process_cpu_seconds_total": Family(_COUNTER, "Processor time of the daemon.", scale=NANO),
    "process_start_time_seconds": Family(_GAUGE, "Start of the daemon, in seconds since 1970.", scale=NANO),
    "process_resident_memory_bytes": Family(_GAUGE, "Resident memory of the daemon."),
    "process_open_fds": Family(_GAUGE, "Open descriptors of the daemon."),
    # The scheduler
    "dios_scheduler_up": Family(_GAUGE, "1 if a coordinator answers, else 0."),
    "dios_scheduler_rounds_total": Family(_COUNTER, "Rounds of the flow scheduler."),
    "dios_scheduler_round_seconds": Family(_GAUGE, "Time of the last round by phase.", ("phase",)),
    "dios_scheduler_network_arcs": Family(_GAUGE, "Arcs of the flow network of the last round."),
    "dios_scheduler_tasks": Family(_GAUGE, "Tasks of the cluster that the scheduler knows.", ("state",)),
    "dios_scheduler_reserved_cpus": Family(_GAUGE, "Processors set aside for tasks.", ("node",)),
    "dios_scheduler_cpus": Family(_GAUGE, "Processors of the node.", ("node",)),
    "dios_scheduler_reserved_memory_bytes": Family(_GAUGE, "Memory set aside for tasks.", ("node",)),
    "dios_scheduler_memory_bytes": Family(_GAUGE, "Memory of the node.", ("node",)),
    "dios_rates_solve_seconds": Family(
        _GAUGE,
        "Time of the last division of links and disks, by its algorithm: edrf (exact) or dc-drf.",
        ("algorithm",),
    ),
    "dios_rates_epsilon": Family(
        _GAUGE, "The part of a link or disk that the last division may have left over."
    ),
    "dios_share": Family(
        _GAUGE, "The largest fraction of a resource of the cluster that the principal holds.", ("principal",)
    ),
    "dios_share_entitlement": Family(
        _GAUGE, "The fraction that the principal is entitled to.", ("principal",)
    ),
    "dios_share_credit": Family(
        _GAUGE,
        "The mean past use of all principals minus that of this one; others come first if it is negative.",
        ("principal",),
    ),
    # Network functions of this machine
    "dios_nf_packets_total": Family(_COUNTER, "Packets that the function handled.", ("function", "core")),
    "dios_nf_dropped_packets_total": Family(_COUNTER, "Packets dropped, by cause.", ("function", "cause")),
    "dios_nf_queued_packets": Family(_GAUGE, "Packets that wait for a core.", ("function", "core")),
}
"""All metrics by name. ``docs/metrics.md`` lists them, and a test compares the two."""
