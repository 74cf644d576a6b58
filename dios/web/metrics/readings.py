"""Reads the metrics of a node, of its scheduler, and of the network functions of this machine.

Everything that arrives here may come from a program of another user or version, and is checked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from dios.errors import DiosError

LABELLED_MAX: Final = 256
"""The most principals, nodes or functions with values of their own."""
_TABLE: Final = "metrics"
_FUNCTIONS: Final = Path("/run/dios-functions")
_BOUNDS: Final = "dios_call_latency_bounds_ns"

_log: Final = logging.getLogger(__name__)


class Reading(NamedTuple):
    """One value of a metric, or the values of one histogram.

    ``buckets`` are pairs of an upper bound and the number of values up to it; ``value`` is then their sum.
    """

    metric: str
    labels: Mapping[str, str]
    value: float
    buckets: tuple[tuple[float, int], ...] = ()


class MeasuredNode(Protocol):
    """The calls of a client that are needed here."""

    def read_table(self, name: str) -> list[dict[str, int | str]]:
        """Return a table of the node."""

    def ask_scheduler(self, question: bytes) -> bytes:
        """Ask the scheduler of the cluster."""


def read_all(node: MeasuredNode) -> list[Reading]:
    """Return all metrics that the caller may see.

    Raises:
        NotPermittedError: the caller is neither the node's own user nor root.
    """
    return [*of_node(node.read_table(_TABLE)), *_of_scheduler(node), *of_functions()]


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


# -- the scheduler ----------------------------------------------------------------------------------
def _of_scheduler(node: MeasuredNode) -> Iterator[Reading]:
    status = _asked(node, "status")
    yield Reading("dios_scheduler_up", {}, float(status is not None))
    if status is None:
        return
    yield Reading("dios_scheduler_rounds_total", {}, _number(status.get("rounds")))
    for state in ("running", "waiting"):
        yield Reading("dios_scheduler_tasks", {"state": state}, _number(status.get(state)))
    last = status.get("last_round")
    if isinstance(last, dict):
        for phase in ("update", "solve", "total"):
            yield Reading("dios_scheduler_round_seconds", {"phase": phase}, _number(last.get(f"{phase}_s")))
        yield Reading("dios_scheduler_network_arcs", {}, _number(last.get("arcs")))
    for row in _rows(status.get("nodes")):
        labels = {"node": str(row.get("node", ""))}
        yield Reading("dios_scheduler_reserved_cpus", labels, _number(row.get("cpus_set_aside")))
        yield Reading("dios_scheduler_cpus", labels, _number(row.get("cpus")))
        yield Reading("dios_scheduler_reserved_memory_bytes", labels, _number(row.get("memory_set_aside")))
        yield Reading("dios_scheduler_memory_bytes", labels, _number(row.get("memory_bytes")))
    shares = _asked(node, "shares")
    for row in _rows(None if shares is None else shares.get("principals")):
        labels = {"principal": str(row.get("principal", ""))}
        yield Reading("dios_share", labels, _number(row.get("share")))
        yield Reading("dios_share_entitlement", labels, _number(row.get("entitlement")))
        yield Reading("dios_share_credit", labels, _number(row.get("credit")))
    by = None if shares is None else shares.get("rates_by")
    if isinstance(by, dict):
        labels = {"algorithm": str(by.get("algorithm", ""))}
        yield Reading("dios_rates_solve_seconds", labels, _number(by.get("seconds")))
        yield Reading("dios_rates_epsilon", {}, _number(by.get("epsilon")))


def _asked(node: MeasuredNode, question: str) -> Mapping[str, object] | None:
    """Return the answer of the scheduler, or None if there is none."""
    try:
        answer: object = json.loads(node.ask_scheduler(json.dumps({"ask": question}).encode()))
    except (DiosError, ValueError) as error:
        _log.debug("the scheduler does not answer", extra={"why": str(error)})
        return None
    return answer if isinstance(answer, dict) and answer.get("ok") else None


# -- network functions ------------------------------------------------------------------------------
def of_functions(folder: Path = _FUNCTIONS) -> Iterator[Reading]:
    """Yield the packets of the network functions of this machine that the caller may ask."""
    try:
        names = sorted(path.stem for path in folder.glob("*.sock"))[:LABELLED_MAX]
    except OSError:
        return
    if not names:
        return
    # Late, because it loads numeric code, and few machines run network functions.
    from dios.sprayer.runtime.statistics_socket import read_statistics  # noqa: PLC0415 - see above

    for name in names:
        try:
            statistics = read_statistics(name, folder)
        except DiosError:
            continue  # it has ended, or belongs to another user
        for row in _rows(statistics.get("cores")):
            labels = {"function": name, "core": str(row.get("core", ""))}
            yield Reading("dios_nf_packets_total", labels, _number(row.get("packets")))
            yield Reading("dios_nf_queued_packets", labels, _number(row.get("queue")))
        dropped = statistics.get("dropped")
        for cause, count in sorted(dropped.items()) if isinstance(dropped, dict) else ():
            labels = {"function": name, "cause": str(cause)}
            yield Reading("dios_nf_dropped_packets_total", labels, _number(count))


def _rows(value: object) -> Sequence[Mapping[str, object]]:
    rows = value if isinstance(value, list) else []
    return [row for row in rows if isinstance(row, dict)][:LABELLED_MAX]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
