"""The service of a coordinator while the scheduler's kernels are being compiled: placements by first fit.

Runs of jobs over time wait for the flow scheduler, because their places were chosen with it. Stored quotas
are respected, and nodes on which jobs over time hold room receive no runs. This module does not load Numba.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dios.errors import InvalidError
from dios.firmament.coordinator.answers import KernelsAnswer, SchedulerAnswer, TaskExplained
from dios.firmament.coordinator.assignment import StartOptions
from dios.firmament.coordinator.cluster_queries import Answer, ClusterQueries, NodeHoldings, Question
from dios.firmament.coordinator.cluster_service import ClusterService, NodeActions
from dios.firmament.coordinator.cluster_state import Phase, TrackedCluster, TrackedTask
from dios.firmament.coordinator.first_fit import FirstFitScheduler
from dios.firmament.coordinator.kernel_compilation import KernelCompiler
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.policies.stored_shares import decode
from dios.wire.messages import Asked

_RULE: Final = "each run goes to the least loaded node that satisfies its needs"
_LATER: Final = (
    "models",
    "set-model",
    "settings",
    "set",
    "reset",
    "history",
    "export",
    "shares",
    "quota",
    "pack",
    "learn",
)
"""Questions that only the flow scheduler answers."""


class StartUpService(ClusterService):
    """Places runs by first fit, and answers questions about them and about the compilation."""

    def __init__(
        self, options: StartOptions, node: str, knowledge: KnowledgeBase, kernels: KernelCompiler
    ) -> None:
        self._scheduler = FirstFitScheduler()
        super().__init__(TrackedCluster(self._scheduler), node, knowledge)
        self._queries = _StartUpQueries(self.cluster, self._scheduler, node, options, kernels)

    def learn(self, shares: bytes, now: float, *, commitments: bool) -> None:
        """Respect stored quotas, and keep off the nodes of admitted jobs."""
        del now, commitments
        try:
            stored = decode(shares)
        except InvalidError as error:
            self.note(str(error))
            return
        self._scheduler.set_quotas({row.principal: row.quota for row in stored.accounts})
        self._scheduler.exclude({node for job in stored.jobs for _, node in job.places})

    def quotas(self) -> Mapping[str, Sequence[float]]:
        """Return the quotas that were stored."""
        return self._scheduler.quotas

    def round(self, now: float) -> list[NodeActions]:
        """Place the waiting runs that fit; return what each node has to do."""
        self._now = now
        self.cluster.expire_placements(now)
        self.cluster.offer_best_effort(now)
        names = {queue.node: name for name, queue in self.cluster.nodes.items()}
        actions: dict[str, NodeActions] = {}
        for task, machine in self._scheduler.round(now):
            target = names[machine]
            tracked = self.cluster.mark_sent(task, target, now)
            if tracked is not None:
                action = actions.setdefault(tracked.host, NodeActions(tracked.host, [], [], {}))
                action.placements.append((task, target))
        return list(actions.values())

    def answer(self, asked: Asked) -> bytes:
        queries = self._queries
        queries.assignment, queries.unmeasured, queries.now = self._assignment, self.unmeasured, self._now
        queries.problems = list(self.problems)
        return queries.answer(asked)


class _StartUpQueries(ClusterQueries):
    """Answers while the kernels are being compiled."""

    def __init__(
        self,
        cluster: TrackedCluster,
        scheduler: FirstFitScheduler,
        node: str,
        options: StartOptions,
        kernels: KernelCompiler,
    ) -> None:
        super().__init__(cluster, node, str(options.set_up))
        self._scheduler = scheduler
        self._options = options
        self._kernels = kernels

    def _handlers(self) -> Mapping[str, Callable[[Asked, Question], Answer]]:
        return {**super()._handlers(), **dict.fromkeys(_LATER, self._later)}

    def _holdings(self, machine: int) -> NodeHoldings:
        load = self._scheduler.load_of(machine)
        return NodeHoldings(load.tasks, load.reserved.cpus, int(load.reserved.memory))

    def _model(self) -> str:
        return self._options.model

    def _scheduler_status(self, asked: Asked) -> SchedulerAnswer:
        del asked
        return {
            "model": self._model(),
            "rounds": 0,
            "last_round": None,
            "placed_by": "first-fit",
            "kernels": self._progress(),
            "worth_copies": [],
        }

    def _progress(self) -> KernelsAnswer:
        progress = self._kernels.progress
        return {
            "state": "compiling",
            "compiled": progress.compiled,
            "total": progress.total,
            "problem": progress.problem,
        }

    def _compiling(self) -> str:
        progress = self._kernels.progress
        number = f" ({progress})" if progress.total else ""
        problem = f" ({progress.problem})" if progress.problem else ""
        return f"the scheduler's kernels are being compiled{number}{problem}"

    def _later(self, asked: Asked, question: Question) -> Answer:
        del asked
        raise InvalidError(
            f"cannot answer {str(question.get('ask'))!r} yet: {self._compiling()}, which happens once after "
            "an installation and takes some minutes. `dios sched status` shows the progress."
        )

    def _explain_task(self, task: int, tracked: TrackedTask) -> TaskExplained:
        lines = self._where(task, tracked)
        lines.append(f"{self._compiling()}; until that is done a simple rule places runs: {_RULE}")
        return {"lines": lines, "explanation": None, "placed_by": "first-fit", "kernels": self._progress()}

    def _where(self, task: int, tracked: TrackedTask) -> list[str]:
        name = tracked.row.fingerprint
        if tracked.phase is Phase.RUNNING:
            return [f"{name} runs on {tracked.host}"]
        if tracked.place:
            return [f"{name} is being started on {tracked.place}"]
        if tracked.row.work.reservation:
            return [f"{name} waits: it belongs to a job over time, which only the flow scheduler places"]
        reasons = self._scheduler.why_waiting(task, self.now)
        if not reasons:
            return [f"{name} waits: it is placed in the next round, or when all of its gang fits"]
        return [f"{name} waits: no machine can take it now", *(f"  {reason}" for reason in reasons)]
