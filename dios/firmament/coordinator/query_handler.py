"""Answers about the flow scheduler (`dios sched`, `dios shares`); ``cluster_queries`` has the common ones."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec

from dios.errors import InvalidError, NotPermittedError
from dios.firmament.coordinator.admissions import Admissions
from dios.firmament.coordinator.answers import (
    AccountAnswer,
    CatalogueModelAnswer,
    EnforcementAnswer,
    ExplainedAnswer,
    HistoryAnswer,
    ModelChangeAnswer,
    ModelsAnswer,
    PromiseAnswer,
    PromisesAnswer,
    QuotaAnswer,
    RateAnswer,
    RateSolutionAnswer,
    RoundAnswer,
    SchedulerAnswer,
    SettingsAnswer,
    SharesAnswer,
    SharingAnswer,
    TaskExplained,
    WorthCopyAnswer,
)
from dios.firmament.coordinator.cluster_queries import Answer, ClusterQueries, NodeHoldings, Question
from dios.firmament.coordinator.cluster_state import Phase, TrackedCluster, TrackedTask
from dios.firmament.coordinator.live_settings import LiveSettings
from dios.firmament.coordinator.rate_solver import SolveReport
from dios.firmament.coordinator.usage_queries import learned
from dios.firmament.custom_model.remote_model import RemoteModel
from dios.firmament.models import catalogue
from dios.firmament.models.considered import CONSIDERED_BY
from dios.firmament.models.late import LateModel
from dios.firmament.network.export import NamedProblem
from dios.firmament.policies.predicted_turns import PredictedTurn
from dios.firmament.policies.principal_accounts import PrincipalAccount, PrincipalAccounts
from dios.firmament.rounds.results import Round
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.solvers.registry import solve
from dios.limits import EXPLAIN_S, EXPLAIN_SHARE, PROGRESS_WHOLE, RESERVATIONS_MAX, SCHED_MODEL_BYTES_MAX
from dios.wire.fields import Label, Text
from dios.wire.messages import Asked, Occupant, Rate
from dios.wire.schema_words import fault_in_words

_ROUNDS_SHOWN: Final = 50
_DELTAS_SHOWN: Final = 20
"""Deltas listed for each round. The numbers of each kind are complete."""


_Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e30, le=1e30)]
"""`set_terms` refuses what is below 0, and names the resource."""


class _QuotaTerms(msgspec.Struct):
    """The fields of `dios quota set`."""

    principal: Text
    weight: _Amount | None = None
    quota: Annotated[dict[Text, _Amount | None], msgspec.Meta(max_length=64)] = {}


_Words: TypeAlias = Annotated[dict[Label, Label], msgspec.Meta(max_length=64)]


class PolicyTerms(msgspec.Struct):
    """The fields of `dios sched set-model` and `dios sched set`."""

    model: Label = ""
    parameters: _Words = {}
    settings: _Words = {}
    source: Annotated[str, msgspec.Meta(max_length=SCHED_MODEL_BYTES_MAX)] = ""


def policy_terms(asked: Asked, question: Question) -> PolicyTerms:
    """Return the fields of a question that changes the policy.

    Raises:
        NotPermittedError: the question is not of the nodes' own user.
        InvalidError: a field is invalid.
    """
    if not asked.ruler:
        raise NotPermittedError("only the nodes' own user and root may choose how the cluster is scheduled")
    try:
        return msgspec.convert(question, type=PolicyTerms)
    except msgspec.ValidationError as error:
        raise InvalidError(f"invalid model or settings: {fault_in_words(error)}") from None


class ExplainAllowance:
    """The time that explanations may take, so that many questions do not delay rounds.

    It is a token bucket of seconds: EXPLAIN_SHARE of the time that passes, and EXPLAIN_S at once.
    """

    def __init__(self) -> None:
        self._left_s = EXPLAIN_S
        self._at_s: float | None = None

    def left_s(self, now_s: float) -> float:
        """Return the seconds that an explanation may take now."""
        passed = 0.0 if self._at_s is None else now_s - self._at_s
        self._at_s = now_s
        self._left_s = min(EXPLAIN_S, self._left_s + EXPLAIN_SHARE * passed)
        return max(self._left_s, 0.0)

    def spend(self, seconds: float) -> None:
        """Record the seconds that an explanation took; the next ones try no changes until they are over.

        A trial round takes time without an allowance, too, so that a debt is bounded.
        """
        self._left_s = max(self._left_s - seconds, -EXPLAIN_S)


class QueryHandler(ClusterQueries):
    """Answers about one flow scheduler, its principals' shares and its jobs over time."""

    def __init__(
        self,
        cluster: TrackedCluster,
        scheduler: FlowScheduler,
        node: str,
        set_up: str,
        accounts: PrincipalAccounts,
        admissions: Admissions,
        policy: LiveSettings,
    ) -> None:
        super().__init__(cluster, node, set_up)
        self._policy = policy
        self._scheduler = scheduler
        self._accounts = accounts
        self._admissions = admissions
        self._allowance: Final = ExplainAllowance()
        self.rates: dict[str, tuple[Rate, ...]] = {}
        """The rates in force, by node."""
        self.rates_by: SolveReport | None = None
        """The computation of the last rates."""

    def _handlers(self) -> Mapping[str, Callable[[Asked, Question], Answer]]:
        return {
            **super()._handlers(),
            "models": self._models,
            "set-model": self._set_model,
            "settings": self._settings,
            "set": self._set,
            "reset": self._reset,
            "history": self._history,
            "export": self._export,
            "promises": self._promises,
            "shares": self._shares,
            "quota": self._quota,
            "pack": lambda asked, question: self._admissions.answer(asked, question, self.now),
            "learn": partial(learned, self._scheduler.state.knowledge),
        }

    def _holdings(self, machine: int) -> NodeHoldings:
        resources = self._scheduler.state.resources
        row = self._scheduler.state.machine_row(machine)
        reserved = resources.reserved[row]
        outside = float(resources.outside[row])
        return NodeHoldings(int(resources.running[row]), float(reserved[0]), int(reserved[1]), outside)

    def _model(self) -> str:
        return self._scheduler.model.name

    def _enforcement(self, asked: Asked, question: Question) -> EnforcementAnswer:
        answer = super()._enforcement(asked, question)
        if question.get("model"):
            answer["custom"] = isinstance(self._scheduler.model, RemoteModel)
        return answer

    def _scheduler_status(self, asked: Asked) -> SchedulerAnswer:
        last = self._scheduler.history[-1] if self._scheduler.history else None
        return {
            "model": self._model(),
            "rounds": last.number if last else 0,
            "last_round": _round(last, asked) if last else None,
            "placed_by": "flow",
            "kernels": {"state": "ready"},
            "worth_copies": self._worth_copies(asked),
        }

    def _worth_copies(self, asked: Asked) -> list[WorthCopyAnswer]:
        """Return the caller's tasks that LATE would copy, the one that ends last first.

        The nodes' own user gets those of all principals. Other models copy nothing.
        """
        answers: list[WorthCopyAnswer] = []
        for task, left in self._candidates().items():
            tracked = self._cluster.tasks.get(task)
            if tracked is not None and (asked.ruler or tracked.row.principal == asked.principal):
                answers.append({"task": tracked.row.fingerprint, "seconds_left": round(left, 1)})
        return answers

    def _candidates(self) -> dict[int, float]:
        """Return the seconds that are left by task, of the tasks that LATE would copy."""
        model, state = self._scheduler.model, self._scheduler.state
        if not isinstance(model, LateModel):
            return {}
        state.now = max(state.now, self.now)
        return {int(state.tasks.id[candidate.task]): candidate.left for candidate in model.candidates(state)}

    def _models(self, asked: Asked, question: Question) -> ModelsAnswer:
        del asked, question
        rows: list[CatalogueModelAnswer] = [
            {
                "model": name,
                "summary": catalogue.find(name).summary,
                "considers": [option for option, models in CONSIDERED_BY.items() if name in models],
            }
            for name in catalogue.MODELS
        ]
        return {"models": rows, "current": self._scheduler.model.name}

    def _set_model(self, asked: Asked, question: Question) -> ModelChangeAnswer:
        terms = policy_terms(asked, question)
        before = self._scheduler.model.name
        self._policy.set_model(terms.model, terms.parameters, self.now, terms.source)
        return {"before": before, "model": self._scheduler.model.name}

    def _settings(self, asked: Asked, question: Question) -> SettingsAnswer:
        del asked, question
        return {"settings": self._policy.rows()}

    def _set(self, asked: Asked, question: Question) -> SettingsAnswer:
        self._policy.set_settings(policy_terms(asked, question).settings, self.now)
        return {"settings": self._policy.rows()}

    def _reset(self, asked: Asked, question: Question) -> SettingsAnswer:
        policy_terms(asked, question)
        self._policy.reset(self.now)
        return {"settings": self._policy.rows()}

    def _history(self, asked: Asked, question: Question) -> HistoryAnswer:
        del question
        rounds = list(self._scheduler.history)[-_ROUNDS_SHOWN:]
        return {"rounds": [_round(past_round, asked) for past_round in rounds]}

    def _promises(self, asked: Asked, question: Question) -> PromisesAnswer:
        """Return when the caller's waiting tasks start for which machines are kept."""
        del question
        state, known = self._scheduler.state, self._cluster.tasks
        promises: list[PromiseAnswer] = []
        for task, tracked in known.items():
            if tracked.phase is not Phase.WAITING or tracked.row.principal != asked.principal:
                continue
            promised = self._scheduler.promised_start(task)
            if promised is None:
                continue
            awaited = [known[task_id].row for task_id in promised.awaited if task_id in known]
            own = [row.fingerprint for row in awaited if row.principal == asked.principal]
            names = [state.resources.names[state.machine_row(machine)] for machine in promised.machines]
            promises.append(
                {
                    "task": tracked.row.fingerprint,
                    "nodes": names,
                    "starts_in_s": max(0.0, promised.start - self.now),
                    "after": own,
                    "others": len(promised.awaited) - len(own),
                }
            )
        promises.sort(key=lambda promise: (promise["starts_in_s"], promise["task"]))
        return {"promises": promises[:RESERVATIONS_MAX]}

    def _shares(self, asked: Asked, question: Question) -> SharesAnswer:
        """Return all accounts to the nodes' own user, and to others their own and the number of accounts."""
        del question
        state = self._scheduler.state
        state.now = max(state.now, self.now)
        accounts = self._accounts.accounts(state)
        waiting = Counter(
            task.row.principal for task in self._cluster.tasks.values() if task.phase is Phase.WAITING
        )
        turns = self._accounts.turns(state, sorted(waiting))
        shown = [account for account in accounts if asked.ruler or account.principal == asked.principal]
        rates: list[RateAnswer] = [
            {
                "node": node,
                "traffic": rate.traffic.name.lower(),
                "principal": rate.principal,
                "bytes_s": rate.bytes_s,
            }
            for node, rates_of_node in sorted(self.rates.items())
            for rate in rates_of_node
            if asked.ruler or rate.principal == asked.principal
        ]
        return {
            "fairness": self._accounts.rule.value,
            "memory_s": self._accounts.memory_s,
            "coordinator": self._node,
            "sharing": len(accounts),
            "principals": [
                _sharing(account, waiting[account.principal], turns.get(account.principal))
                for account in shown
            ],
            "rates": rates,
            "rates_by": _rate_solution(self.rates_by),
        }

    def _quota(self, asked: Asked, question: Question) -> QuotaAnswer:
        if not asked.ruler:
            raise NotPermittedError("only the nodes' own user and root may set weights and quotas")
        try:
            terms = msgspec.convert(question, type=_QuotaTerms)
        except msgspec.ValidationError as error:
            raise InvalidError(f"invalid weight or quota: {fault_in_words(error)}") from None
        state = self._scheduler.state
        state.now = max(state.now, self.now)
        self._accounts.set_terms(state, terms.principal, terms.weight, terms.quota)
        accounts = [
            account for account in self._accounts.accounts(state) if account.principal == terms.principal
        ]
        return {"principals": [_account(account) for account in accounts]}

    def _export(self, asked: Asked, question: Question) -> Answer:
        if not asked.ruler:
            raise NotPermittedError("only the nodes' own user and root may see the network of all tasks")
        named = self._scheduler.problem()
        if question.get("as") == "links":
            return {"links": self._links(named)}
        if question.get("as") == "dot":
            return {"text": named.to_dot()}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "network.dimacs"
            named.to_dimacs(path)
            return {"text": path.read_text()}

    def _links(self, named: NamedProblem) -> list[tuple[str, str, int, int]]:
        """Return the used arcs with the fingerprints of tasks, by which users know them."""
        marks = {
            f"task {task}": f"task {tracked.row.fingerprint}" for task, tracked in self._cluster.tasks.items()
        }
        links = named.to_links(solve(named.problem).flow)
        return [(marks.get(tail, tail), head, units, cost) for tail, head, units, cost in links]

    def _explain(self, asked: Asked, question: Question) -> ExplainedAnswer:
        word = str(question.get("task", ""))
        try:
            return super()._explain(asked, question)
        except InvalidError:
            job = self._admissions.waiting_job(asked, word, self.now)
            if job is None:
                raise
        return {
            "task": "",
            "label": job.name,
            "node": "",
            "phase": "waiting",
            "caller": "",
            "moving": False,
            "moves": 0,
            "restarts": 0,
            "kept_bytes": 0,
            "model": self._model(),
            "lines": job.lines,
            "explanation": None,
        }

    def _explain_briefly(self, task: int, tracked: TrackedTask) -> str:
        return super()._explain_briefly(task, tracked) or self._admissions.explain(tracked)

    def _explain_task(self, task: int, tracked: TrackedTask) -> TaskExplained:
        began = time.monotonic()
        explanation = self._scheduler.explain(task, self._allowance.left_s(began))
        self._allowance.spend(time.monotonic() - began)
        # Users know the task by its fingerprint, not by its number.
        marks = {task: tracked.row.fingerprint}
        if (original := self._cluster.original_of(tracked.row)) is not None:
            marks[original] = tracked.row.work.copy_of
        lines = [*explanation.lines(), *self._progress_lines(task, tracked)]
        for number, mark in marks.items():
            lines = [line.replace(f"{number}", mark) for line in lines]
        return {"lines": lines, "explanation": explanation}

    def _progress_lines(self, task: int, tracked: TrackedTask) -> list[str]:
        """Return how far a task is, if it reports that, and the task of which it is a copy."""
        lines: list[str] = []
        if isinstance(tracked.row, Occupant) and tracked.row.progress is not None:
            done = f"{tracked.row.progress / PROGRESS_WHOLE:.0%} of its work is done"
            left = self._candidates().get(task)
            advice = "" if left is None else f"; about {left:.0f} s are left, and a copy of it may end sooner"
            lines.append(done + advice)
        if self._cluster.original_of(tracked.row) is not None:
            lines.append(f"it is a copy of task {tracked.row.work.copy_of}")
        return lines


def _rate_solution(report: SolveReport | None) -> RateSolutionAnswer | None:
    if report is None:
        return None
    return {
        "algorithm": report.algorithm,
        "principals": report.principals,
        "resources": report.resources,
        "seconds": report.seconds,
        "epsilon": report.epsilon,
        "completed": report.completed,
        "exact_s": report.exact_s,
    }


def _sharing(account: PrincipalAccount, waiting: int, turn: PredictedTurn | None) -> SharingAnswer:
    return {
        **_account(account),
        "waiting": waiting,
        "turn": None if turn is None else turn.place,
        "next_in_s": None if turn is None else turn.next_in_s,
    }


def _account(account: PrincipalAccount) -> AccountAnswer:
    return {
        "principal": account.principal,
        "weight": account.weight,
        "entitlement": account.entitlement,
        "share": account.share,
        "resource": account.resource,
        "commitment": account.commitment,
        "credit": account.credit,
        "running": account.running,
        "quota": account.quota,
    }


def _round(past_round: Round, asked: Asked) -> RoundAnswer:
    """Return a round as JSON; only the nodes' own user sees which tasks it moved."""
    return {
        "number": past_round.number,
        "now": past_round.now,
        "model": past_round.model,
        "algorithm": past_round.algorithm,
        "deltas": [
            (delta.change.name.lower(), delta.task, delta.source, delta.target)
            for delta in past_round.deltas[: _DELTAS_SHOWN if asked.ruler else 0]
        ],
        "faults": [f"{fault.source}: {fault.reason}" for fault in (past_round.faults if asked.ruler else ())],
        "stands": past_round.stands,
        "cost": past_round.cost,
        "waiting": past_round.waiting,
        "running": past_round.running,
        "vertices": past_round.vertices,
        "arcs": past_round.arcs,
        "changes": past_round.changes,
        "update_s": past_round.update_s,
        "solve_s": past_round.solve_s,
        "total_s": past_round.total_s,
        "certified": past_round.certified,
        "kinds": dict(Counter(delta.change.name.lower() for delta in past_round.deltas)),
    }
