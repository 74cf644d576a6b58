"""The coordinator's desk: questions of people, as JSON, and its answers (`dios explain`, `dios sched`).

For: ``coordinator.loop``, which gets questions from boards. Not for: how answers are shown (``dios.cli``).

A question is ``{"ask": WORD, ...}``; an answer has ``"ok"``, and an error is told in ``"error"``.
"""

from __future__ import annotations

import json
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from dios import limits
from dios.errors import DiosError, InvalidError, NotPermittedError
from dios.firmament.coordinator.admissions import Admissions
from dios.firmament.coordinator.assignment import Duty
from dios.firmament.coordinator.cluster_state import Books, Entry, Phase
from dios.firmament.coordinator.usage_queries import learned
from dios.firmament.models import catalogue
from dios.firmament.policies.ledger import Ledger
from dios.firmament.rounds.results import Round
from dios.firmament.scheduler import FlowScheduler
from dios.wire.messages import Asked, Rate

_ROUNDS_SHOWN: Final = 50
_DELTAS_SHOWN: Final = 20
"""Of each round; how many of each kind there were is told in full."""


class _Terms(msgspec.Struct):
    """What `dios quota set` asks for."""

    principal: str
    weight: float | None = None
    quota: dict[str, float | None] = {}


class Desk:
    """Answers about one scheduler and what its coordinator believes."""

    def __init__(self, books: Books, node: str, set_up: str, ledger: Ledger, admissions: Admissions) -> None:
        self._books = books
        self._admissions = admissions
        self._ledger = ledger
        self._node = node
        self._set_up = set_up
        self.now = 0.0
        self.duty = Duty()
        self.problems: list[str] = []
        """What the coordinator could not do, newest last."""
        self.unmeasured: dict[str, str] = {}
        self.rates: dict[str, tuple[Rate, ...]] = {}
        """The rates that nodes are kept to now."""

    def answer(self, asked: Asked) -> bytes:
        """The answer to one question; never raises for what a person may have got wrong."""
        try:
            found = self._answered(asked, json.loads(asked.question))
        except (DiosError, ValueError) as error:
            found = {"ok": False, "error": str(error)}
        except Exception as error:  # noqa: BLE001 - a mistake in an answer must not end the scheduling
            found = {"ok": False, "error": f"the coordinator could not answer: {error!r}; its log has more"}
            traceback.print_exc()
        told = json.dumps(found).encode()
        if len(told) > limits.ADVICE_BYTES_MAX:
            told = json.dumps({"ok": False, "error": _too_long(len(told))}).encode()
        return told

    def _answered(self, asked: Asked, question: object) -> dict[str, object]:
        told = question if isinstance(question, dict) else {}
        handler = self._handlers().get(str(told.get("ask")))
        if handler is None:
            raise InvalidError(f"no such question: {question!r}; known: {', '.join(self._handlers())}")
        return handler(asked, told)

    def _handlers(self) -> dict[str, Callable[[Asked, dict[str, object]], dict[str, object]]]:
        return {
            "status": self._status,
            "models": self._models,
            "set-model": self._set_model,
            "history": self._history,
            "export": self._export,
            "explain": self._explain,
            "shares": self._shares,
            "quota": self._quota,
            "pack": lambda asked, question: self._admissions.answer(asked, question, self.now),
            "learn": partial(learned, self._scheduler.state.knowledge),
        }

    @property
    def _scheduler(self) -> FlowScheduler:
        return self._books.scheduler

    def _status(self, asked: Asked, question: dict[str, object]) -> dict[str, object]:
        del question
        state = self._scheduler.state
        entries = list(self._books.tasks.values())
        last = self._scheduler.history[-1] if self._scheduler.history else None
        return {
            "ok": True,
            "coordinator": self._node,
            "set_up": self._set_up,
            "model": self._scheduler.model.name,
            "attends": sorted(self.duty.attend),
            "nodes": [
                {
                    "node": name,
                    "rack": board.rack,
                    "cpus": board.cpus,
                    "memory_bytes": board.memory_bytes,
                    "running": int(state.resources.running[state.machine_row(board.node)]),
                    "cpus_set_aside": float(state.resources.reserved[state.machine_row(board.node), 0]),
                    "memory_set_aside": int(state.resources.reserved[state.machine_row(board.node), 1]),
                    "draining": board.draining,
                    "coordinator": board.coordinated,
                }
                for name, board in sorted(self._books.nodes.items())
            ],
            "waiting": sum(entry.phase is Phase.WAITING for entry in entries),
            "running": sum(entry.phase is Phase.RUNNING for entry in entries),
            "rounds": last.number if last else 0,
            "last_round": _round(last, asked) if last else None,
            # Problems name tasks, whosever they are.
            "problems": [*self.problems, *self._books.problems.values()][-10:] if asked.ruler else [],
            "unmeasured": self.unmeasured,
        }

    def _models(self, asked: Asked, question: dict[str, object]) -> dict[str, object]:
        del asked, question
        rows = [{"model": name, "summary": catalogue.find(name).summary} for name in catalogue.MODELS]
        return {"ok": True, "models": rows, "current": self._scheduler.model.name}

    def _set_model(self, asked: Asked, question: dict[str, object]) -> dict[str, object]:
        if not asked.ruler:
            raise NotPermittedError("only the nodes' own user and root choose the cost model")
        before = self._scheduler.model.name
        self._scheduler.set_model(catalogue.make(str(question.get("model"))), self.now)
        return {"ok": True, "before": before, "model": self._scheduler.model.name}

    def _history(self, asked: Asked, question: dict[str, object]) -> dict[str, object]:
        del question
        rounds = list(self._scheduler.history)[-_ROUNDS_SHOWN:]
        return {"ok": True, "rounds": [_round(one, asked) for one in rounds]}

    def _shares(self, asked: Asked, question: dict[str, object]) -> dict[str, object]:
        """Everybody's account for the ruler; of others their own, among how many."""
        del question
        state = self._scheduler.state
        state.now = max(state.now, self.now)
        accounts = self._ledger.accounts(state)
        waiting = Counter(
            entry.row.principal for entry in self._books.tasks.values() if entry.phase is Phase.WAITING
        )
        shown = [one for one in accounts if asked.ruler or one.principal == asked.principal]
        rates = [
            {
                "node": host,
                "traffic": rate.traffic.name.lower(),
                "principal": rate.principal,
                "bytes_s": rate.bytes_s,
            }
            for host, some in sorted(self.rates.items())
            for rate in some
            if asked.ruler or rate.principal == asked.principal
        ]
        return {
            "ok": True,
            "fairness": self._ledger.rule.value,
            "memory_s": self._ledger.memory_s,
            "coordinator": self._node,
            "sharing": len(accounts),
            "principals": [asdict(one) | {"waiting": waiting[one.principal]} for one in shown],
            "rates": rates,
        }

    def _quota(self, asked: Asked, question: dict[str, object]) -> dict[str, object]:
        if not asked.ruler:
            raise NotPermittedError("only the nodes' own user and root set weights and quotas")
        try:
            terms = msgspec.convert(question, type=_Terms)
        except msgspec.ValidationError as error:
            raise InvalidError(f"a quota that makes no sense: {error}") from None
        state = self._scheduler.state
        state.now = max(state.now, self.now)
        self._ledger.set_terms(state, terms.principal, terms.weight, terms.quota)
        found = [one for one in self._ledger.accounts(state) if one.principal == terms.principal]
        return {"ok": True, "principals": [asdict(one) for one in found]}

    def _export(self, asked: Asked, question: dict[str, object]) -> dict[str, object]:
        if not asked.ruler:
            raise NotPermittedError("only the nodes' own user and root see all tasks' network")
        named = self._scheduler.problem()
        if question.get("as") == "dot":
            return {"ok": True, "text": named.to_dot()}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "network.dimacs"
            named.to_dimacs(path)
            return {"ok": True, "text": path.read_text()}

    def _explain(self, asked: Asked, question: dict[str, object]) -> dict[str, object]:
        task, entry = self._found(asked, str(question.get("task", "")))
        row = entry.row
        found: dict[str, object] = {
            "ok": True,
            "task": row.fingerprint,
            "label": row.label,
            "node": entry.target or (entry.host if entry.phase is Phase.RUNNING else ""),
            "phase": entry.phase.name.lower(),
            "caller": entry.host,
            "model": self._scheduler.model.name,
        }
        short = self._in_short(task, entry)
        if short:
            return {**found, "lines": [short], "explanation": None}
        explanation = self._scheduler.explain(task)
        # People know the task by its fingerprint, not by its number.
        lines = [line.replace(f"{task}", row.fingerprint) for line in explanation.lines()]
        return {**found, "lines": lines, "explanation": explanation.to_json()}

    def _in_short(self, task: int, entry: Entry) -> str:
        """Why the scheduler knows nothing of a task; empty where it does."""
        if entry.phase is Phase.LEAVING:
            return "it was told to stop, to make room for another; it is about to end"
        problem = self._books.problems.get(task)
        if problem is not None:
            return f"it cannot be placed: {problem}"
        gang = self._books.gang_of(task)
        if gang is not None:
            return f"it waits for its gang: {gang[0]} of {gang[1]} tasks were submitted so far"
        return self._admissions.explained(entry)

    def _found(self, asked: Asked, word: str) -> tuple[int, Entry]:
        known = {
            task: entry
            for task, entry in self._books.tasks.items()
            if asked.ruler or entry.row.principal == asked.principal
        }
        exact = [task for task, entry in known.items() if word in {entry.row.fingerprint, entry.row.label}]
        begun = [task for task, entry in known.items() if word and entry.row.fingerprint.startswith(word)]
        matches = exact or begun
        if len(matches) == 1:
            return matches[0], known[matches[0]]
        if matches:
            some = ", ".join(known[task].row.fingerprint for task in matches[:5])
            raise InvalidError(f"{len(matches)} tasks are called {word!r}: say one of {some}")
        raise InvalidError(f"no task {word!r} waits or runs; `dios ps` lists yours")


def _too_long(size: int) -> str:
    return (
        f"the answer has {size} bytes, and at most {limits.ADVICE_BYTES_MAX} travel: this is a cluster for "
        "`dios sched simulate` and FlowScheduler.problem()"
    )


def _round(one: Round, asked: Asked) -> dict[str, object]:
    """A round as JSON; which tasks it moved is for the nodes' own user alone."""
    found = asdict(one)
    kinds = Counter(delta.change.name.lower() for delta in one.deltas)
    found["kinds"] = dict(kinds)
    found["deltas"] = [
        (delta.change.name.lower(), delta.task, delta.source, delta.target)
        for delta in one.deltas[: _DELTAS_SHOWN if asked.ruler else 0]
    ]
    faults = one.faults if asked.ruler else []
    found["faults"] = [f"{fault.where}: {fault.what}" for fault in faults]
    return found
