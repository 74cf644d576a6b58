"""Changes of a waiting task, of its job, or of what is around it, that are tried in a copy of the scheduler.

Each is an event that a cluster can see: another description, the end of tasks, another quota.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from dios.firmament.cluster import changes as tables
from dios.firmament.cluster.state import ClusterState
from dios.firmament.descriptors import Constraint, JobDescriptor, TaskDescriptor
from dios.firmament.explain.explanation import CounterfactualKind
from dios.firmament.policies.principal_accounts import PrincipalAccounts
from dios.firmament.policies.reservations import Reservations
from dios.firmament.policies.stored_shares import RESOURCES
from dios.firmament.rounds.results import Round
from dios.wire.types import Affinity


class TrialScheduler(Protocol):
    """A scheduler in which changes can be tried: the part of ``FlowScheduler`` that this module uses."""

    state: ClusterState

    @property
    def ledger(self) -> PrincipalAccounts | None:
        """The accounts of principals, if they take turns."""

    @property
    def reservations(self) -> Reservations:
        """The machines that are kept for tasks."""

    def copy(self) -> TrialScheduler:
        """Return an independent copy."""

    def described(self, task: int) -> tuple[JobDescriptor, TaskDescriptor]:
        """Return the descriptions of a task and its job."""

    def waiting(self) -> dict[int, str]:
        """Return the principals of all waiting tasks."""

    def redescribe(self, described: TaskDescriptor) -> None:
        """Change a waiting task."""

    def redescribe_job(self, described: JobDescriptor) -> None:
        """Change a job."""

    def finished(self, task: int, now: float) -> None:
        """Remove a task."""

    def round(self, now: float) -> Round:
        """Solve a round and change the state."""

    def is_running(self, task: int) -> bool:
        """Return True if a task was placed."""


Change: TypeAlias = Callable[[TrialScheduler], None]
Group: TypeAlias = tuple[int, ...]
"""The identifiers of the waiting tasks that start together with a task."""


class LiftedRule(NamedTuple):
    """A change without amounts: something that keeps the task waiting is not there."""

    kind: CounterfactualKind
    text: str
    change: Change
    value: str = ""
    """The label of a constraint."""


def with_amounts(trial: TrialScheduler, group: Group, amounts: Mapping[str, float]) -> None:
    """Let tasks demand these amounts at most."""

    def lowered(descriptor: TaskDescriptor) -> TaskDescriptor:
        smaller = {name: min(amount, getattr(descriptor.demand, name)) for name, amount in amounts.items()}
        return replace(descriptor, demand=descriptor.demand._replace(**smaller))

    _redescribe(trial, group, lowered)


def with_gang(trial: TrialScheduler, task: int, size: int) -> None:
    """Let fewer tasks of a gang have to start together."""
    trial.redescribe_job(replace(trial.described(task)[0], gang=size))


def end_tasks(trial: TrialScheduler, tasks: Iterable[int], at: float) -> None:
    """End running tasks at a time."""
    for task in tasks:
        trial.finished(task, at)


def with_slot(trial: TrialScheduler, machine: int) -> None:
    """Add a slot to a machine."""
    tables.add_slot(trial.state, tables.emptiest_leaf(trial.state, trial.state.machine_row(machine)))


def lifted_rules(scheduler: TrialScheduler, task: int, group: Group) -> list[LiftedRule]:
    """Return the changes without amounts that may start a task, those of its own description first."""
    return [
        *_rules_of_task(scheduler, task, group),
        *_rules_of_job(scheduler, task),
        *_others(scheduler, task, group),
    ]


def _rules_of_task(scheduler: TrialScheduler, task: int, group: Group) -> Iterator[LiftedRule]:
    described = scheduler.described(task)[1]
    for constraint in described.constraints:
        if constraint.hard:

            def unconstrained(
                descriptor: TaskDescriptor, left_out: Constraint = constraint
            ) -> TaskDescriptor:
                return replace(
                    descriptor, constraints=tuple(kept for kept in descriptor.constraints if kept != left_out)
                )

            yield LiftedRule(
                CounterfactualKind.CONSTRAINT,
                f"without its constraint against machines that {constraint.unmet}",
                partial(_redescribe, group=group, changed=unconstrained),
                constraint.key,
            )
    if described.pinned is not None:
        unpinned = partial(
            _redescribe, group=group, changed=lambda descriptor: replace(descriptor, pinned=None)
        )
        yield LiftedRule(CounterfactualKind.PIN, "on any machine", unpinned)


def _rules_of_job(scheduler: TrialScheduler, task: int) -> Iterator[LiftedRule]:
    job = scheduler.described(task)[0]
    if job.affinity != Affinity.NONE:
        apart = partial(
            _redescribe_job, task=task, changed=lambda descriptor: replace(descriptor, affinity=Affinity.NONE)
        )
        text = "without the rule about which machines the tasks of its job share"
        yield LiftedRule(CounterfactualKind.AFFINITY, text, apart)
    if job.maximum_running is not None:
        endless = partial(
            _redescribe_job, task=task, changed=lambda descriptor: replace(descriptor, maximum_running=None)
        )
        text = f"without the bound of its series on tasks that run at once ({job.maximum_running})"
        yield LiftedRule(CounterfactualKind.SERIES, text, endless)


def _others(scheduler: TrialScheduler, task: int, group: Group) -> Iterator[LiftedRule]:
    """Yield the lack of a quota, of other tasks that wait, and of the room kept for them."""
    principal, ledger = scheduler.described(task)[0].principal, scheduler.ledger
    if ledger is None:
        return
    waiting = scheduler.waiting()
    several = (
        (
            CounterfactualKind.KEPT_ROOM,
            "without the tasks for which room is kept",
            [other for other in scheduler.reservations.present if other in waiting and other not in group],
        ),
        (
            CounterfactualKind.OWN_TASKS,
            "without the other waiting tasks of its principal",
            [other for other, who in waiting.items() if who == principal and other not in group],
        ),
        (
            CounterfactualKind.TURN,
            "without the waiting tasks of other principals, whose turn comes first",
            [other for other, who in waiting.items() if who != principal],
        ),
    )
    for kind, text, tasks in several:
        if tasks:
            yield LiftedRule(kind, text, partial(_withdraw, tasks=tasks))
    number, quota = scheduler.state.principal(principal), ledger.quota()
    if number < len(quota) and np.isfinite(quota[number]).any():
        lifted = partial(_lift_quota, principal=principal)
        yield LiftedRule(CounterfactualKind.QUOTA, "without the quota of its principal", lifted)


def _redescribe(
    trial: TrialScheduler, group: Group, changed: Callable[[TaskDescriptor], TaskDescriptor]
) -> None:
    for task in group:
        trial.redescribe(changed(trial.described(task)[1]))


def _redescribe_job(
    trial: TrialScheduler, task: int, changed: Callable[[JobDescriptor], JobDescriptor]
) -> None:
    trial.redescribe_job(changed(trial.described(task)[0]))


def _withdraw(trial: TrialScheduler, tasks: Iterable[int]) -> None:
    """Withdraw those of these tasks that still wait."""
    waiting = trial.waiting()
    for task in tasks:
        if task in waiting:
            trial.finished(task, trial.state.now)


def _lift_quota(trial: TrialScheduler, principal: str) -> None:
    if trial.ledger is not None:
        trial.ledger.set_terms(trial.state, principal, None, dict.fromkeys(RESOURCES))
