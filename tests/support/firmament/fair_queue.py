"""A cluster whose principals take turns: a real scheduler with its network and its ledger."""

from __future__ import annotations

from dios.firmament.descriptors import JobDescriptor, MachineDescriptor, Resources, TaskDescriptor
from dios.firmament.models.spread import SpreadModel
from dios.firmament.policies.principal_accounts import FairnessRule, PrincipalAccount, PrincipalAccounts
from dios.firmament.rounds.results import Change
from dios.firmament.scheduler import FlowScheduler
from dios.firmament.settings import SchedulerSettings

GB = 1e9


class Site:
    """A cluster of machines of so many processors and as many GB, whose principals take turns."""

    def __init__(
        self,
        *cpus: int,
        slots: int = 64,
        rule: FairnessRule = FairnessRule.SDRF,
        memory_s: float = 100.0,
        wall: float = 1e6,
    ) -> None:
        self.ledger = PrincipalAccounts(rule, memory_s, wall=wall)
        self.scheduler = FlowScheduler(SpreadModel(), SchedulerSettings(), ledger=self.ledger)
        for number, size in enumerate(cpus):
            self.add_machine(number, size, slots)
        self.next = 0
        self.owner: dict[int, str] = {}

    def add_machine(self, number: int, size: int, slots: int = 64) -> None:
        """One machine more."""
        has = Resources(float(size), size * GB)
        self.scheduler.add_machine(MachineDescriptor(number, f"m{number}", "r", has, slots), 0.0)

    def submit(
        self,
        who: str,
        count: int = 1,
        *,
        cpus: float = 1.0,
        memory: float = 0.0,
        now: float = 0.0,
        priority: int = 0,
        restartable: bool = False,
        gang: int = 0,
    ) -> list[int]:
        """So many tasks of one job; their numbers."""
        tasks = list(range(self.next, self.next + count))
        self.next += count
        descriptors = [
            TaskDescriptor(task, Resources(cpus, memory * GB), priority=priority, restartable=restartable)
            for task in tasks
        ]
        self.scheduler.submit(JobDescriptor(tasks[0], who, gang=gang), descriptors, now)
        self.owner.update(dict.fromkeys(tasks, who))
        return tasks

    def round(self, now: float) -> list[int]:
        """The tasks that a round places, ascending."""
        outcome = self.scheduler.round(now)
        assert not outcome.faults
        return sorted(delta.task for delta in outcome.deltas if delta.change is Change.PLACE)

    def running(self) -> dict[str, int]:
        """How many tasks run, by principal."""
        state = self.scheduler.state
        held = zip(state.principals.names, state.held[:, 0].tolist(), strict=False)
        return {name: int(count) for name, count in held}

    def account(self, who: str) -> PrincipalAccount:
        """One principal's account."""
        return next(
            account for account in self.ledger.accounts(self.scheduler.state) if account.principal == who
        )
