"""The coordinator's answers to questions that need no flow scheduler, as JSON (`dios explain`, `dios sched`).

A question is ``{"ask": WORD, ...}``. An answer has ``"ok"``; if that is false, ``"error"`` has the reason.
"""

from __future__ import annotations

import json
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final, NamedTuple, TypeAlias

from dios import limits
from dios.client.enforcement import enforcement_text, sorted_out, wanted_of
from dios.errors import DiosError, InvalidError
from dios.firmament.coordinator.answers import (
    DevicesAnswer,
    EnforcementAnswer,
    EnforcingNodeAnswer,
    ExplainedAnswer,
    NodeAnswer,
    SchedulerAnswer,
    StatusAnswer,
    TaskExplained,
)
from dios.firmament.coordinator.assignment import Assignment
from dios.firmament.coordinator.cluster_state import Phase, TrackedCluster, TrackedTask
from dios.wire.messages import Asked, Occupant, QueueRows

ENFORCEMENT: Final = b'{"ask": "enforcement"}'
"""A question that is answered at once, whether or not the flow scheduler is loaded."""
Question: TypeAlias = dict[str, object]
Answer: TypeAlias = Mapping[str, object]
_PROBLEMS_SHOWN: Final = 10
_MATCHES_SHOWN: Final = 5


class NodeHoldings(NamedTuple):
    """The resources that the tasks on a node hold."""

    running: int
    cpus: float
    memory_bytes: int
    outside: float = 0.0
    """The processors in use by other programs that count, as measured; see ``outside_load``."""


class ClusterQueries(ABC):
    """Answers about a tracked cluster: its state, and where one task is.

    Args:
        cluster: what the coordinator knows of its nodes.
        node: the name of the coordinator's own node.
        set_up: which coordinators schedule (``SetUp``).
    """

    def __init__(self, cluster: TrackedCluster, node: str, set_up: str) -> None:
        self._cluster = cluster
        self._node = node
        self._set_up = set_up
        self.now = 0.0
        self.assignment = Assignment()
        self.problems: list[str] = []
        """Failures of the coordinator, newest last."""
        self.unmeasured: dict[str, str] = {}

    def answer(self, asked: Asked) -> bytes:
        """Return the answer to a question; an invalid question is answered with its error."""
        try:
            answer = {"ok": True, **self._answer(asked, json.loads(asked.question))}
        except (DiosError, ValueError) as error:
            answer = {"ok": False, "error": str(error)}
        except Exception as error:  # noqa: BLE001 - a defect in an answer must not end the scheduling
            answer = {"ok": False, "error": f"the coordinator cannot answer: {error!r}. Its log has more."}
            traceback.print_exc()
        encoded = json.dumps(answer, default=asdict).encode()
        if len(encoded) > limits.ADVICE_BYTES_MAX:
            encoded = json.dumps({"ok": False, "error": _too_long(len(encoded))}).encode()
        return encoded

    def _answer(self, asked: Asked, question: object) -> Answer:
        fields = question if isinstance(question, dict) else {}
        handlers = self._handlers()
        handler = handlers.get(str(fields.get("ask")))
        if handler is None:
            raise InvalidError(f"unknown question {question!r}. Known questions: {', '.join(handlers)}.")
        return handler(asked, fields)

    def _handlers(self) -> Mapping[str, Callable[[Asked, Question], Answer]]:
        return {"status": self._status, "explain": self._explain, "enforcement": self._enforcement}

    @abstractmethod
    def _holdings(self, machine: int) -> NodeHoldings:
        """Return what the tasks on a machine hold."""

    @abstractmethod
    def _scheduler_status(self, asked: Asked) -> SchedulerAnswer:
        """Return the fields of the status that depend on the scheduler."""

    @abstractmethod
    def _explain_task(self, task: int, tracked: TrackedTask) -> TaskExplained:
        """Return ``lines`` and ``explanation`` for a task that the scheduler knows."""

    def _status(self, asked: Asked, question: Question) -> StatusAnswer:
        del question
        return {
            "coordinator": self._node,
            "set_up": self._set_up,
            "attends": sorted(self.assignment.attend),
            "nodes": [self._node_row(name) for name in sorted(self._cluster.nodes)],
            "waiting": self._cluster.waiting,
            "running": sum(task.phase is Phase.RUNNING for task in self._cluster.tasks.values()),
            # Problems name the tasks of all users.
            "problems": [*self.problems, *self._cluster.problems.values()][-_PROBLEMS_SHOWN:]
            if asked.ruler
            else [],
            "unmeasured": self.unmeasured,
            **self._scheduler_status(asked),
        }

    def _node_row(self, name: str) -> NodeAnswer:
        queue = self._cluster.nodes[name]
        holdings = self._holdings(queue.node)
        # None until the node is measured.
        load = self._cluster.idle.loads.get(name)
        return {
            "node": name,
            "rack": queue.rack,
            "cpus": queue.cpus,
            "memory_bytes": queue.memory_bytes,
            "disk_io": queue.disk_io,
            "network": queue.network,
            "enforcement": dict(queue.enforcement),
            "devices": self._devices(queue),
            "running": holdings.running,
            "cpus_set_aside": holdings.cpus,
            "memory_set_aside": holdings.memory_bytes,
            "cpus_used": None if load is None else load.cpus_milli / 1000,
            "cpus_outside": holdings.outside,
            "memory_used": None if load is None else load.memory_bytes,
            "watts": load.milliwatts / 1000 if load is not None and load.milliwatts else None,
            "draining": queue.draining,
            "coordinator": queue.coordinated,
        }

    def _devices(self, queue: QueueRows) -> dict[str, DevicesAnswer]:
        """Return the node's devices by kind: their number, and the names of those that tasks have now."""
        taken: dict[str, list[str]] = {}
        for tracked in self._cluster.tasks_on(queue.name):
            for device in tracked.row.devices if isinstance(tracked.row, Occupant) else ():
                taken.setdefault(device.kind, []).append(device.name)
        return {
            stock.kind: {"count": stock.count, "taken": sorted(taken.get(stock.kind, []))}
            for stock in queue.devices
        }

    def _enforcement(self, asked: Asked, question: Question) -> EnforcementAnswer:
        """Return what each node can hold a task to; the answer needs no scheduler.

        With ``model`` in the question it also has the cost model, whose choice the scheduler knows.
        """
        del asked
        rows: list[EnforcingNodeAnswer] = [
            {
                "node": name,
                "enforcement": dict(queue.enforcement),
                "disk_io": queue.disk_io,
                "network": queue.network,
            }
            for name, queue in sorted(self._cluster.nodes.items())
        ]
        answer: EnforcementAnswer = {"nodes": rows}
        if question.get("model"):
            answer["model"] = self._model()
        return answer

    def _explain(self, asked: Asked, question: Question) -> ExplainedAnswer:
        task, tracked = self._find_task(asked, str(question.get("task", "")))
        work = tracked.row.work
        moving = tracked.phase is Phase.LEAVING or (
            isinstance(tracked.row, Occupant) and tracked.row.moving and tracked.phase is Phase.RUNNING
        )
        brief = self._explain_briefly(task, tracked)
        explained: TaskExplained = (
            {"lines": [brief], "explanation": None} if brief else self._explain_task(task, tracked)
        )
        answer: ExplainedAnswer = {
            "task": tracked.row.fingerprint,
            "label": tracked.row.label,
            "node": tracked.target or (tracked.host if tracked.phase is Phase.RUNNING else ""),
            "phase": tracked.phase.name.lower(),
            "caller": tracked.host,
            "moving": moving,
            "moves": work.moves,
            "restarts": work.restarts,
            "kept_bytes": work.kept_bytes,
            "model": self._model(),
            "lines": explained["lines"],
            "explanation": explained["explanation"],
        }
        if "placed_by" in explained:
            answer["placed_by"] = explained["placed_by"]
        if "kernels" in explained:
            answer["kernels"] = explained["kernels"]
        if not brief:
            self._add_enforced(tracked, answer)
        answer["lines"] = [*answer["lines"], *_moves(tracked)]
        return answer

    def _add_enforced(self, tracked: TrackedTask, answer: ExplainedAnswer) -> None:
        """Add which of the task's needs its node enforces, and a line about it after the others."""
        wanted, place = wanted_of(tracked.row.work), self._cluster.nodes.get(tracked.place)
        if not wanted or place is None:
            return
        reported = dict(place.enforcement)
        answer["enforced"], answer["advisory"] = sorted_out(wanted, reported, limbo=False)
        more = f"on {place.name}: {enforcement_text(wanted, reported, limbo=False)}"
        answer["lines"] = [*answer["lines"], more]

    @abstractmethod
    def _model(self) -> str:
        """Return the cost model's name."""

    def _explain_briefly(self, task: int, tracked: TrackedTask) -> str:
        """Return why the scheduler does not know a task; empty if it knows it."""
        if tracked.phase is Phase.LEAVING:
            return "the scheduler asked it to leave, to make room for another task; it ends soon"
        problem = self._cluster.problems.get(task)
        if problem is not None:
            return f"it cannot be placed: {problem}"
        if task in self._cluster.patient:
            reasons = "; ".join(self._cluster.why_patient(task)[:_MATCHES_SHOWN])
            why = reasons or "it is offered to a node in the next round"
            return f"it waits for resources that others leave idle (best effort): {why}"
        gang = self._cluster.gang_of(task)
        if gang is not None:
            return f"it waits for its gang: {gang[0]} of {gang[1]} tasks were submitted so far"
        return ""

    def _find_task(self, asked: Asked, word: str) -> tuple[int, TrackedTask]:
        """Return the task that a word means: a fingerprint, its beginning, or a label.

        Raises:
            InvalidError: no task or several tasks match.
        """
        known = {
            task: tracked
            for task, tracked in self._cluster.tasks.items()
            if asked.ruler or tracked.row.principal == asked.principal
        }
        exact = [
            task for task, tracked in known.items() if word in {tracked.row.fingerprint, tracked.row.label}
        ]
        begun = [task for task, tracked in known.items() if word and tracked.row.fingerprint.startswith(word)]
        matches = exact or begun
        if len(matches) == 1:
            return matches[0], known[matches[0]]
        if matches:
            some = ", ".join(known[task].row.fingerprint for task in matches[:_MATCHES_SHOWN])
            raise InvalidError(
                f"{len(matches)} tasks are called {word!r}. Name one by its fingerprint: {some}"
            )
        raise InvalidError(f"no task {word!r} waits or runs. `dios ps` lists your tasks.")


def _moves(tracked: TrackedTask) -> list[str]:
    """Return lines about the moves of a run: the present one, and the earlier ones."""
    row, work = tracked.row, tracked.row.work
    lines = []
    if isinstance(row, Occupant) and row.moving and tracked.phase is Phase.RUNNING:
        lines.append("its node is drained and has asked it to leave; it will continue on another node")
    if work.moves or work.restarts:
        kept = f"a checkpoint of {work.kept_bytes} bytes" if work.kept_bytes else "its beginning"
        lines.append(
            f"earlier moves of its run: {work.moves}, restarts: {work.restarts}; it began from {kept}"
        )
    return lines


def _too_long(size: int) -> str:
    return (
        f"the answer has {size} bytes, and an answer may have at most {limits.ADVICE_BYTES_MAX}. For a "
        "cluster of this size use `dios lab simulate` or FlowScheduler.problem()."
    )
