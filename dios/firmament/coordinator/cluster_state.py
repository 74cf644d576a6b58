"""What a coordinator believes of the cluster: boards of nodes turned into events for the scheduler (§6.5.1).

For: the coordinator's loop. Not for: talking to nodes (``coordinator.boards``) or deciding (``scheduler``).

A board is the truth about its node, and old by the time it is read. Three things may be under way: a
placement that was sent, a task that was started there and is on no board yet, and one that came back
because its node had no room. ``Books`` tells them apart by the versions of boards, so that nothing is
taken for new twice and nothing for lost that is only late.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from dios.firmament.cluster.state import RUNNING
from dios.firmament.coordinator.translate import described_job, described_machine, described_task, job_of
from dios.firmament.descriptors import BadDescriptorError, FinalReport, MachineDescriptor
from dios.firmament.scheduler import FlowScheduler
from dios.wire.messages import QueueRows, Occupant, Placed, Submission
from dios.wire.types import TaskState

_LATE_S = 10.0
"""A task that was placed and is on no board after so long was never started, or has ended unseen."""


class Phase(Enum):
    """Where a task is, as far as is known."""

    WAITING = 0
    SENT = 1
    """Its placement is on the way to its caller's node."""
    PLACED = 2
    """Its caller's node has taken it off its board."""
    RUNNING = 3
    LEAVING = 4
    """It was told to stop; for the scheduler it is gone already."""


@dataclass(slots=True)
class Entry:
    """One task."""

    row: Submission | Occupant
    host: str
    """The node of its caller while it waits; where it runs afterwards."""
    phase: Phase
    job: int
    target: str = ""
    since: float = 0.0
    """When it came to its phase."""
    version: int = 0
    """Of its caller's board when it was taken off it."""


class Books:
    """The tasks and nodes that one coordinator knows, and the scheduler that is kept in step with them."""

    def __init__(self, scheduler: FlowScheduler) -> None:
        self.scheduler = scheduler
        self.tasks: dict[int, Entry] = {}
        self.nodes: dict[str, QueueRows] = {}
        """The last board of each node that is a machine here."""
        self._gangs: dict[int, dict[int, Entry]] = {}
        """Tasks of gangs that are not complete yet, by job."""
        self._machines: dict[str, MachineDescriptor] = {}
        self.types: dict[str, str] = {}
        """Machine types by node, as their coordinators report them."""
        self.problems: dict[int, str] = {}
        """Why a task was not taken by the scheduler; it is told again when a machine comes."""

    # Boards -------------------------------------------------------------------------------------------

    def read(
        self, board: QueueRows, now: float, *, attend: bool, machine: bool, after_s: float = 0.0
    ) -> None:
        """Take in a node's board: ``attend`` its submissions, and as a ``machine`` what runs there.

        Of its submissions only those count that have waited for ``after_s`` seconds.
        """
        if machine:
            self._keep_machine(board, now)
            self._read_tasks(board, now)
        if attend:
            self._read_submissions(board, after_s, now)

    def lost(self, name: str, now: float) -> None:
        """A node is dead, or no longer this coordinator's: what is known of it goes."""
        board = self.nodes.pop(name, None)
        self._machines.pop(name, None)
        for task, entry in list(self.tasks.items()):
            there = entry.target == name and entry.phase is Phase.PLACED
            # What is on its way to another node is told of by its answer.
            if there or (entry.host == name and entry.phase is not Phase.PLACED):
                self._forget(task, now, completed=False)
        if board is not None:
            self.scheduler.remove_machine(board.node, now)

    def expire(self, now: float) -> None:
        """Forget what was placed and is on no board after so long: it was never started there."""
        for task, entry in list(self.tasks.items()):
            if entry.phase is Phase.PLACED and now - entry.since > _LATE_S:
                self._forget(task, now, completed=False)

    def left(self, name: str, now: float) -> None:
        """A node's submissions are no longer this coordinator's to place."""
        for task, entry in list(self.tasks.items()):
            if entry.host == name and entry.phase is Phase.WAITING:
                self._forget(task, now, completed=False)

    def _keep_machine(self, board: QueueRows, now: float) -> None:
        known = self.nodes.get(board.name)
        wanted = described_machine(board, self.types.get(board.name, ""))
        if known is not None and (known.node != board.node or self._machines[board.name] != wanted):
            self.lost(board.name, now)
            known = None
        if known is None:
            self.scheduler.add_machine(wanted, now)
            self._machines[board.name] = wanted
            again = [self.tasks[task] for task in self.problems]
            self.problems.clear()
            for job in {entry.job: None for entry in again}:
                self._enter([entry for entry in again if entry.job == job], now)
        if known is None or known.draining != board.draining:
            self.scheduler.drain(board.node, board.draining)
        self.nodes[board.name] = board

    def _read_tasks(self, board: QueueRows, now: float) -> None:
        alive = {row.id for row in board.tasks if row.state is not TaskState.ENDED}
        ended = {row.id: row for row in board.tasks if row.state is TaskState.ENDED}
        for row in board.tasks:
            if row.state is not TaskState.ENDED:
                self._runs(board, row, now)
        for task, entry in list(self.tasks.items()):
            if task in alive:
                continue
            here = entry.host == board.name and entry.phase in {Phase.RUNNING, Phase.LEAVING}
            coming = entry.target == board.name and entry.phase is Phase.PLACED
            if here or (coming and task in ended):
                self._forget(task, now, ended=ended.get(task))

    def _runs(self, board: QueueRows, row: Occupant, now: float) -> None:
        entry = self.tasks.get(row.id)
        if entry is None:
            entry = Entry(row, board.name, Phase.RUNNING, job_of(row))
            self._enter([entry], now)
            self._started(row.id, board, now)
            return
        if entry.phase is Phase.LEAVING:
            return
        if entry.phase is Phase.RUNNING and entry.host == board.name:
            entry.row = row
            return
        if entry.phase is Phase.WAITING or entry.target != board.name:
            # Somebody else placed it.
            self._waits_again(row.id, now)
            self._leave_gang(row, entry, now)
            self._started(row.id, board, now)
        entry.row, entry.host, entry.phase, entry.since, entry.target = (
            row,
            board.name,
            Phase.RUNNING,
            now,
            "",
        )

    def _read_submissions(self, board: QueueRows, after_s: float, now: float) -> None:
        waiting = {row.id for row in board.waiting}
        for row in board.waiting:
            if row.waited_ms < after_s * 1000:
                continue
            entry = self.tasks.get(row.id)
            if entry is None:
                self._submitted(board.name, row, now)
            elif entry.phase is Phase.PLACED and board.version > entry.version:
                self._came_back(row.id, entry, row, board.name, now)
            elif entry.phase is Phase.WAITING:
                entry.row = row
        if board.partial:
            return
        for task, entry in list(self.tasks.items()):
            gone = entry.host == board.name and entry.phase is Phase.WAITING and task not in waiting
            if gone:
                self._forget(task, now, completed=False)

    def _submitted(self, host: str, row: Submission, now: float) -> None:
        entry = Entry(row, host, Phase.WAITING, job_of(row), since=now)
        if row.work.gang and not self._known_job(entry.job):
            together = self._gangs.setdefault(entry.job, {})
            together[row.id] = entry
            self.tasks[row.id] = entry
            if len(together) >= max(row.work.tasks, row.work.gang):
                self._complete_gang(entry, now)
            return
        self._enter([entry], now)

    def gang_of(self, task: int) -> tuple[int, int] | None:
        """How many tasks of its gang there are, and how many it will have; None once it is complete."""
        entry = self.tasks[task]
        together = self._gangs.get(entry.job)
        if together is None:
            return None
        return len(together), max(entry.row.work.tasks, entry.row.work.gang)

    def _complete_gang(self, entry: Entry, now: float) -> None:
        together = self._gangs.pop(entry.job, None)
        if together is not None:
            self._enter(list(together.values()), now)

    def _leave_gang(self, row: Occupant, entry: Entry, now: float) -> None:
        """One of an incomplete gang runs already: for itself, as far as the scheduler is concerned."""
        together = self._gangs.get(entry.job)
        if together is not None and together.pop(row.id, None) is not None:
            if not together:
                del self._gangs[entry.job]
            entry.row = row
            self._enter([entry], now)

    def _known_job(self, job: int) -> bool:
        return job in self.scheduler.state.jobs

    def _came_back(self, task: int, entry: Entry, row: Submission, host: str, now: float) -> None:
        self._waits_again(task, now)
        entry.row, entry.host, entry.phase, entry.since, entry.target = row, host, Phase.WAITING, now, ""

    def _enter(self, entries: list[Entry], now: float) -> None:
        """Tell the scheduler of tasks of one job."""
        places = {board.name: board.node for board in self.nodes.values()}
        jobs = self.scheduler.state.jobs
        known = jobs.find(entries[0].job)
        try:
            job = described_job(entries[0].row, entries[0].job) if known < 0 else jobs.descriptors[known]
            self.scheduler.submit(job, [described_task(one.row, places, now) for one in entries], now)
        except BadDescriptorError as error:
            self.problems.update((one.row.id, error.message) for one in entries)
        self.tasks.update((one.row.id, one) for one in entries)

    def _runs_already(self, task: int) -> bool:
        table = self.scheduler.state.tasks
        row = table.find(task)
        return row >= 0 and table.status[row] == RUNNING

    def _waits_again(self, task: int, now: float) -> None:
        if self._runs_already(task):
            self.scheduler.rejected(task, now)

    def _started(self, task: int, board: QueueRows, now: float) -> None:
        if task not in self.problems and not self._runs_already(task):
            self.scheduler.started(task, board.node, now)

    def _forget(
        self, task: int, now: float, *, ended: Occupant | None = None, completed: bool = True
    ) -> None:
        entry = self.tasks.pop(task)
        if entry.phase is Phase.LEAVING:
            return
        if self.problems.pop(task, None) is not None:
            return
        pending = self._gangs.get(entry.job)
        if pending is not None and pending.pop(task, None) is not None:
            if not pending:
                del self._gangs[entry.job]
            return
        report = FinalReport(0.0, completed=completed)
        if ended is not None:
            report = FinalReport(
                ended.age_ms / 1000,
                ended.cpu_ms / 1000,
                memory_peak=ended.memory_bytes,
                completed=ended.completed,
            )
        self.scheduler.finished(task, now, report)

    # Placements -----------------------------------------------------------------------------------------

    def sent(self, task: int, target: str, now: float) -> Entry | None:
        """A placement goes out; None when the task is no longer there to be placed."""
        entry = self.tasks.get(task)
        if entry is None or entry.phase is not Phase.WAITING:
            return None
        entry.phase, entry.target, entry.since = Phase.SENT, target, now
        return entry

    def leaves(self, task: int, host: str, now: float) -> None:
        """A task is told to stop: whoever runs it submits it again, under another number."""
        entry = self.tasks[task]
        entry.phase, entry.host, entry.target = Phase.LEAVING, host, ""
        self.scheduler.finished(task, now, FinalReport(0.0, completed=False))

    def stayed(self, task: int) -> None:
        """It was not stopped: its node's board tells of it anew."""
        entry = self.tasks.get(task)
        if entry is not None and entry.phase is Phase.LEAVING:
            del self.tasks[task]

    def answered(self, host: str, tasks: list[int], answer: Placed | None, now: float) -> list[str]:
        """What a node said to placements; None: it did not answer. Gives the reasons of refusals."""
        refused = (
            dict(answer.refused) if answer is not None else dict.fromkeys(tasks, f"{host} does not answer")
        )
        for task in tasks:
            entry = self.tasks.get(task)
            if entry is None or entry.phase is not Phase.SENT:
                continue
            if task in refused:
                entry.phase, entry.target, entry.since = Phase.WAITING, "", now
                self._waits_again(task, now)
            else:
                entry.phase, entry.since = Phase.PLACED, now
                entry.version = answer.version if answer is not None else 0
        return [refused[task] for task in tasks if task in refused]
