"""The host's part of a node's metrics, which completes the core's rows of the table ``metrics``.

Nothing is measured until somebody reads the table: see ``dios.host.loop.call_meter``. ``dios.web.metrics``
describes all metrics.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from dios.core.calls.node_metrics import TABLE, MetricRow
from dios.host.loop.call_meter import LATENCY_BOUNDS_NS
from dios.node.assembly import NodeHost
from dios.wire.messages import TableRows

_PEERS_MAX: Final = 128
"""The most peers with rows of their own, so that the answer stays small."""
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_STARTED_S: Final = time.time()
_COUNTED_OF_PEERS: Final = {
    "messages_sent": "dios_peer_messages_sent_total",
    "messages_received": "dios_peer_messages_received_total",
    "bytes_sent": "dios_peer_bytes_sent_total",
    "bytes_received": "dios_peer_bytes_received_total",
    "connections": "dios_peer_connections_total",
    "denied": "dios_peer_refusals_total",
}


def completed(
    answer: TableRows,
    host: NodeHost | None,
    stored: Mapping[str, int],
    scrubbed: Mapping[str, int],
    ready: int,
) -> TableRows:
    """Return the last rows of the table ``metrics`` with those of the host; other answers as they are.

    ``stored`` has the counts of the store, ``scrubbed`` those of scrubbing; ``ready`` is the number of
    processes in the pool.
    """
    if answer.table != TABLE or answer.following or host is None:
        return answer
    host.meter.note_reader()
    rows = [*_calls(host), *_store(host, stored), *_peers(host), *_process()]
    rows += [
        ("dios_core_steps_total", "", host.driver.steps),
        ("dios_core_work_units_total", "", host.driver.units),
        ("dios_pool_processes", "", ready),
        ("dios_audit_records_total", "", host.journal.counts["audit_records"]),
        ("dios_audit_bytes", "", host.journal.counts["audit_bytes"]),
    ]
    rows += [("dios_scrubbing", f"count={name}", number) for name, number in sorted(scrubbed.items())]
    return replace(answer, rows=(*answer.rows, *rows))


def _calls(host: NodeHost) -> Iterator[MetricRow]:
    meter = host.meter
    for (kind, outcome), number in sorted(meter.outcomes.items()):
        yield "dios_calls_total", f"call={kind},outcome={outcome}", number
    yield "dios_calls_untimed_total", "", meter.untimed
    if meter.latencies:
        # The bounds go with the values, so that a reader of another version needs no copy of them.
        yield "dios_call_latency_bounds_ns", "", " ".join(map(str, LATENCY_BOUNDS_NS))
    for kind, latencies in sorted(meter.latencies.items()):
        numbers = (latencies.sum_ns, *latencies.buckets)
        yield "dios_call_latency_seconds", f"call={kind}", " ".join(map(str, numbers))


def _store(host: NodeHost, stored: Mapping[str, int]) -> Iterator[MetricRow]:
    figures = host.persister.figures
    yield "dios_store_commits_total", "", figures.commits
    yield "dios_store_committed_changes_total", "", figures.jobs
    yield "dios_store_failures_total", "", figures.failures
    yield "dios_store_busy_seconds_total", "", figures.busy_ns
    yield "dios_store_queue", "", host.persister.backlog
    for name, number in sorted(stored.items()):
        yield f"dios_store_{name}", "", number


def _peers(host: NodeHost) -> Iterator[MetricRow]:
    links = host.links
    if links is None:
        return
    for count, metric in _COUNTED_OF_PEERS.items():
        yield metric, "", links.counts[count]
    for place, (name, session) in enumerate(sorted(links.sessions(), key=lambda entry: entry[0])):
        if place >= _PEERS_MAX:
            break
        yield "dios_peer_connected", f"peer={name}", int(session is not None)
        if session is None:
            continue
        yield "dios_peer_link_sent_bytes_total", f"peer={name}", session.sent_bytes
        yield "dios_peer_link_received_bytes_total", f"peer={name}", session.received_bytes
        if session.line.round_trip_us:
            yield "dios_peer_round_trip_seconds", f"peer={name}", session.line.round_trip_us * 1_000
            yield "dios_peer_queued_bytes", f"peer={name}", session.line.queued_bytes


def _process() -> Iterator[MetricRow]:
    times = os.times()
    yield "process_cpu_seconds_total", "", round((times.user + times.system) * 1e9)
    yield "process_start_time_seconds", "", round(_STARTED_S * 1e9)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        # Linux 6.2 and newer give the number of descriptors as the size of the folder.
        descriptors = Path("/proc/self/fd").stat().st_size
    except (OSError, ValueError, IndexError):
        return
    yield "process_resident_memory_bytes", "", pages * _PAGE_BYTES
    if descriptors:
        yield "process_open_fds", "", descriptors
