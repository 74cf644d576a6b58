"""The metrics of the cluster's scheduler, as a coordinator answers them to the reading user.

The answers may come from a program of another user or version, and are checked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from dios.errors import DiosError
from dios.node.metrics.family import Family, Kind, Reading, Value, readings, single

LABELLED_MAX: Final = 256
"""The most principals, nodes or functions with values of their own."""

_log: Final = logging.getLogger(__name__)

Answer: TypeAlias = Mapping[str, object]


class AskedNode(Protocol):
    """The call of a client that is needed here."""

    def ask_scheduler(self, question: bytes) -> bytes:
        """Ask the scheduler of the cluster."""
        ...


class SchedulerAnswers:
    """The answers of the scheduler at one moment; None without an answer."""

    def __init__(self, node: AskedNode) -> None:
        self.status: Final = _ask(node, "status")
        self.shares: Final = None if self.status is None else _ask(node, "shares")


def _ask(node: AskedNode, question: str) -> Answer | None:
    try:
        answer: object = json.loads(node.ask_scheduler(json.dumps({"ask": question}).encode()))
    except (DiosError, ValueError) as error:
        _log.debug("the scheduler does not answer", extra={"why": str(error)})
        return None
    return answer if isinstance(answer, dict) and answer.get("ok") else None


def rows_of(value: object) -> Sequence[Answer]:
    """Return the rows in a part of an answer, or nothing if it is no list of objects."""
    rows = value if isinstance(value, list) else []
    return [row for row in rows if isinstance(row, dict)][:LABELLED_MAX]


def number_of(value: object) -> float:
    """Return a number in an answer, 0 if it is none."""
    return float(value) if isinstance(value, int | float) else 0.0


_Reader: TypeAlias = Callable[[SchedulerAnswers], Iterator[Value]]


def _status(key: str) -> _Reader:
    return single(lambda answers: None if answers.status is None else number_of(answers.status.get(key)))


def _last_round(answers: SchedulerAnswers) -> Answer | None:
    last = None if answers.status is None else answers.status.get("last_round")
    return last if isinstance(last, dict) else None


def _arcs(answers: SchedulerAnswers) -> float | None:
    last = _last_round(answers)
    return None if last is None else number_of(last.get("arcs"))


def _phases(answers: SchedulerAnswers) -> Iterator[Value]:
    last = _last_round(answers)
    for phase in () if last is None else ("update", "solve", "total"):
        yield (phase,), number_of(last.get(f"{phase}_s") if last else None)


def _tasks(answers: SchedulerAnswers) -> Iterator[Value]:
    if answers.status is not None:
        for state in ("running", "waiting"):
            yield (state,), number_of(answers.status.get(state))


def _of_nodes(key: str) -> _Reader:
    def read(answers: SchedulerAnswers) -> Iterator[Value]:
        for row in rows_of(None if answers.status is None else answers.status.get("nodes")):
            yield (str(row.get("node", "")),), number_of(row.get(key))

    return read


def _of_principals(key: str) -> _Reader:
    def read(answers: SchedulerAnswers) -> Iterator[Value]:
        for row in rows_of(None if answers.shares is None else answers.shares.get("principals")):
            yield (str(row.get("principal", "")),), number_of(row.get(key))

    return read


def _rates(answers: SchedulerAnswers) -> Answer | None:
    rates = None if answers.shares is None else answers.shares.get("rates_by")
    return rates if isinstance(rates, dict) else None


def _solve_seconds(answers: SchedulerAnswers) -> Iterator[Value]:
    rates = _rates(answers)
    if rates is not None:
        yield (str(rates.get("algorithm", "")),), number_of(rates.get("seconds"))


def _epsilon(answers: SchedulerAnswers) -> float | None:
    rates = _rates(answers)
    return None if rates is None else number_of(rates.get("epsilon"))


def _gauge(text: str, read: _Reader, *labels: str) -> Family[SchedulerAnswers]:
    return Family(Kind.GAUGE, text, read, labels=labels)


SCHEDULER_FAMILIES: Final[Mapping[str, Family[SchedulerAnswers]]] = {
    "dios_scheduler_up": _gauge(
        "1 if a coordinator answers, else 0.", single(lambda answers: answers.status is not None)
    ),
    "dios_scheduler_rounds_total": Family(Kind.COUNTER, "Rounds of the flow scheduler.", _status("rounds")),
    "dios_scheduler_round_seconds": _gauge("Time of the last round by phase.", _phases, "phase"),
    "dios_scheduler_network_arcs": _gauge("Arcs of the flow network of the last round.", single(_arcs)),
    "dios_scheduler_tasks": _gauge("Tasks of the cluster that the scheduler knows.", _tasks, "state"),
    "dios_scheduler_reserved_cpus": _gauge(
        "Processors set aside for tasks.", _of_nodes("cpus_set_aside"), "node"
    ),
    "dios_scheduler_cpus": _gauge("Processors of the node.", _of_nodes("cpus"), "node"),
    "dios_scheduler_reserved_memory_bytes": _gauge(
        "Memory set aside for tasks.", _of_nodes("memory_set_aside"), "node"
    ),
    "dios_scheduler_memory_bytes": _gauge("Memory of the node.", _of_nodes("memory_bytes"), "node"),
    "dios_rates_solve_seconds": _gauge(
        "Time of the last division of links and disks, by its algorithm: edrf (exact) or dc-drf.",
        _solve_seconds,
        "algorithm",
    ),
    "dios_rates_epsilon": _gauge(
        "The part of a link or disk that the last division may have left over.", single(_epsilon)
    ),
    "dios_share": _gauge(
        "The largest fraction of a resource of the cluster that the principal holds.",
        _of_principals("share"),
        "principal",
    ),
    "dios_share_entitlement": _gauge(
        "The fraction that the principal is entitled to.", _of_principals("entitlement"), "principal"
    ),
    "dios_share_credit": _gauge(
        "The mean past use of all principals minus that of this one; others come first if it is negative.",
        _of_principals("credit"),
        "principal",
    ),
}


def of_scheduler(node: AskedNode) -> Iterator[Reading]:
    """Return the scheduler's metrics that the caller may see."""
    return readings(SCHEDULER_FAMILIES, SchedulerAnswers(node))
