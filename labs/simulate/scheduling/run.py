"""The simulation loop: a discrete-event simulation of a cluster under the real scheduler (§8.4).

Experiments, tests and ``dios lab simulate`` call ``simulate``. Hours of cluster time take seconds.

The same configuration always gives the same outcome, including all deltas, unless ``measured`` makes it
depend on real time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from dios.errors import InvalidError, InvariantError
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.rounds.results import Round
from labs import limits
from labs.simulate.scheduling.check import check
from labs.simulate.scheduling.measure import final_sample, running_sample
from labs.simulate.scheduling.outcome import DeltaDigest, SimulationOutcome, UtilisationSample, line_of
from labs.simulate.scheduling.scheduler_bridge import Bridge, FinishedTask, MeasuredTask, Scheduler
from labs.simulate.scheduling.world import HostDue, TaskRecord, World
from labs.simulate.workloads.events import (
    Happening,
    JobSubmission,
    MachineDown,
    MachineUp,
    SimulatedWorkload,
    SimulationEvents,
    UsageSample,
    Withdrawal,
)

PAUSE_S: Final = 1.0
"""With back-to-back rounds: seconds after a round without new messages until the next round."""

_LAST: Final = 1
"""The event order of rounds: other events of the same time come first."""


class SimulationProgress(NamedTuple):
    """The present state of a simulation, for a progress display."""

    now: float
    seconds: float
    rounds: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class SimulationConfig:
    """The arguments of a simulation.

    Attributes:
        workload: the source of events; each simulation needs a new workload.
        scheduler: the scheduler; each simulation needs a new scheduler.
        seconds: the simulated time to run.
        round_interval: simulated seconds between rounds; 0: back to back, which requires that a round takes
            time (``measured`` or ``decision_s``).
        decision_s: simulated seconds that a round takes; events meanwhile wait for the next round.
        measured: a round takes as much simulated time as it took in reality, in addition to ``decision_s``.
        sample_interval: simulated seconds between measurements of running tasks; None: never.
        keeps_work: a stopped task later continues its work instead of starting again.
        keep_deltas: record every delta in the outcome.
        knowledge: a knowledge base that receives the samples and final reports of tasks with a program, like
            that of a coordinator (§6.5.3); give the same one to the scheduler.
        checked: compare the scheduler's state with the world after every round.
    """

    workload: SimulatedWorkload
    scheduler: Scheduler
    seconds: float
    round_interval: float = 1.0
    decision_s: float = 0.0
    measured: bool = False
    sample_interval: float | None = None
    keeps_work: bool = False
    keep_deltas: bool = False
    knowledge: KnowledgeBase | None = None
    checked: bool = False

    def __post_init__(self) -> None:
        if not (0 < self.seconds < math.inf):
            raise InvalidError(f"seconds is {self.seconds}; it must be more than 0, and finite")
        if not (self.round_interval >= 0 and self.decision_s >= 0):
            raise InvalidError("round_interval and decision_s must be 0 or more seconds")
        if not (self.round_interval or self.decision_s or self.measured):
            raise InvalidError(
                "rounds back to back that take no time would never end; give round_interval or decision_s"
            )
        if self.sample_interval is not None and not self.sample_interval > 0:
            raise InvalidError(f"sample_interval is {self.sample_interval}; it must be more than 0 seconds")


def simulate(
    config: SimulationConfig, progress: Callable[[SimulationProgress], None] | None = None
) -> SimulationOutcome:
    """Run a simulation to its end, or until Ctrl-C, and return the results so far.

    Raises:
        InvariantError: the scheduler made an impossible decision, or lost a task.
        DiosError: the workload contains invalid data, such as a bad line of a trace.
    """
    engine = _Engine(config, progress)
    began = time.perf_counter()
    try:
        engine.run()
    except KeyboardInterrupt:
        engine.outcome.interrupted = True
    return engine.close(time.perf_counter() - began)


class _RoundDue(NamedTuple):
    """An event: the scheduler decides."""


class _RoundTakesEffect(NamedTuple):
    """An event: a decision takes effect."""

    done: Round


class _SampleDue(NamedTuple):
    """An event: running tasks are measured."""


class _LevelDue(NamedTuple):
    """An event: the utilisation is recorded."""


_Due = HostDue | JobSubmission | _RoundDue | _RoundTakesEffect | _SampleDue | _LevelDue


class _Engine:
    """One simulation while it runs."""

    def __init__(
        self, config: SimulationConfig, progress: Callable[[SimulationProgress], None] | None
    ) -> None:
        self._config = config
        self._progress = progress
        self._queue: SimulationEvents[_Due] = SimulationEvents()
        self._world = World(self._queue.put, keeps_work=config.keeps_work)
        self._bridge = Bridge(config.scheduler, self._world)
        self._events = config.workload.events()
        self._open_tasks: dict[int, int] = {}
        self._digest = DeltaDigest()
        self._now = 0.0
        self._round_pending = False
        self._follows = 0
        self._last_round = 0.0
        self.outcome = SimulationOutcome(model="", seconds=config.seconds)

    # The loop -------------------------------------------------------------------------------------

    def run(self) -> None:
        """Process events in order until the time is over or no events are left."""
        config = self._config
        self._queue.put(0.0, _LevelDue(), _LAST)
        if config.sample_interval:
            self._queue.put(config.sample_interval, _SampleDue())
        coming = next(self._events, None)
        while coming or self._follows or self._world.tasks or self._bridge.deciding:
            arrives = coming.time if coming else math.inf
            due = self._queue.next_time()
            if min(arrives, due) > config.seconds:
                self._advance_time(config.seconds)
                break
            self._advance_time(min(arrives, due))
            if coming and arrives <= due:
                self._process_workload_event(coming)
                coming = self._following(coming.time)
            else:
                self._process_queued_event(self._queue.take()[1])

    def close(self, real_s: float) -> SimulationOutcome:
        """Complete and return the outcome."""
        outcome = self.outcome
        self._note_level()
        outcome.unfinished = self._world.records()
        outcome.digest = self._digest.text()
        outcome.seconds = self._now
        outcome.real_s = real_s
        return outcome

    def _following(self, time_s: float) -> Happening | None:
        coming = next(self._events, None)
        if coming and coming.time < time_s:
            raise InvariantError(f"the workload's event at {coming.time} s comes after one at {time_s} s")
        return coming

    def _advance_time(self, at: float) -> None:
        """Advance the time to ``at``."""
        span = at - self._now
        self.outcome.slot_seconds += span * self._world.slots
        self.outcome.busy_seconds += span * self._world.running
        self._now = at

    # Events -----------------------------------------------------------------------------------------

    def _process_workload_event(self, event: Happening) -> None:
        """Process an event of the workload."""
        match event:
            case JobSubmission():
                self._submit(event)
            case MachineUp():
                self._world.machine_up(event.machine, event.model)
                self._bridge.send(event, self._now)
            case MachineDown():
                if self._world.has_machine(event.machine):
                    self._world.machine_down(event.machine, self._now)
                    self._bridge.send(event, self._now)
            case Withdrawal():
                record = self._world.withdraw(event.task, self._now)
                if record:
                    self._ended(record)
            case UsageSample():
                if self._world.runs(event.task):
                    self._bridge.send(MeasuredTask(event.task, event.usage), self._now)
        if self._bridge.changed:
            self._want_round()

    def _process_queued_event(self, item: _Due) -> None:
        """Process an event of the queue."""
        match item:
            case HostDue():
                for record in self._world.due(int(item), self._now):
                    self._ended(record)
            case JobSubmission():
                self._follows -= 1
                self._submit(item)
            case _RoundDue():
                self._round()
            case _RoundTakesEffect():
                self._apply_round(item.done)
            case _SampleDue():
                self._sample()
                self._queue.put(self._now + (self._config.sample_interval or math.inf), _SampleDue())
            case _LevelDue():
                self._note_level()
                self._next_level()
        if self._bridge.changed:
            self._want_round()

    def _submit(self, event: JobSubmission) -> None:
        for task in event.tasks:
            self._world.submit(event.job, task, self._now)
        job = event.job.job
        self._open_tasks[job] = self._open_tasks.get(job, 0) + len(event.tasks)
        self.outcome.submitted += len(event.tasks)
        self._bridge.send(event, self._now)

    def _ended(self, record: TaskRecord) -> None:
        self.outcome.ended.append(record)
        if self._config.knowledge and record.instructions:
            self._config.knowledge.add(final_sample(record))
        report = None if math.isnan(record.placed) else record.report()
        self._bridge.send(FinishedTask(record.task, report), self._now)
        self._open_tasks[record.job] -= 1
        if not self._open_tasks[record.job]:
            del self._open_tasks[record.job]
            follows = self._config.workload.job_done(record.job, self._now)
            if follows:
                self._follows += 1
                self._queue.put(max(follows.time, self._now), follows)

    def _sample(self) -> None:
        knowledge = self._config.knowledge
        for seen in self._world.measure():
            self._bridge.send(MeasuredTask(seen.record.task, seen.usage), self._now)
            if knowledge:
                knowledge.add(running_sample(seen, self._now))

    def _note_level(self) -> None:
        world = self._world
        waiting = world.tasks - world.running
        self.outcome.levels.append(
            UtilisationSample(self._now, world.machines, world.slots, world.running, waiting)
        )

    def _next_level(self) -> None:
        self._queue.put(self._now + self._config.seconds / limits.SIMULATED_LEVELS_MAX, _LevelDue(), _LAST)

    # Rounds -------------------------------------------------------------------------------------------

    def _want_round(self) -> None:
        """Queue a round if none is pending: now, or at the next multiple of the interval."""
        if self._round_pending:
            return
        self._round_pending = True
        interval = self._config.round_interval
        at = math.ceil(self._now / interval) * interval if interval else self._now
        if at < self._now or (self.outcome.rounds and at <= self._last_round):
            at = self._now + (interval or 0.0)
        self._queue.put(at, _RoundDue(), _LAST)

    def _round(self) -> None:
        self._last_round = self._now
        done = self._bridge.decide(self._now)
        self.outcome.model = done.model
        takes = self._config.decision_s + (done.total_s if self._config.measured else 0.0)
        if takes:
            self._queue.put(self._now + takes, _RoundTakesEffect(done), _LAST)
        else:
            self._apply_round(done)

    def _apply_round(self, done: Round) -> None:
        self._bridge.apply_deltas(done.deltas, self._now)
        self._round_pending = False
        self._record_round(done)
        if self._config.checked:
            check(self._config.scheduler, self._world)
        if self._bridge.changed:
            self._want_round()
        elif self._world.tasks:
            # Costs change with time alone, so another round is due even without new messages.
            self._round_pending = True
            later = max(self._now, self._last_round + (self._config.round_interval or PAUSE_S))
            self._queue.put(later, _RoundDue(), _LAST)
        if self._progress:
            world = self._world
            self._progress(
                SimulationProgress(
                    self._now,
                    self._config.seconds,
                    len(self.outcome.rounds),
                    world.running,
                    world.tasks - world.running,
                )
            )

    def _record_round(self, done: Round) -> None:
        outcome = self.outcome
        line = line_of(done)
        outcome.rounds.append(line)
        outcome.placed += line.placed
        outcome.preempted += line.preempted
        outcome.migrated += line.migrated
        outcome.faults += len(done.faults)
        room = limits.SIMULATED_FAULTS_KEPT - len(outcome.fault_texts)
        outcome.fault_texts += [f"{fault.source}: {fault.reason}" for fault in done.faults[: max(0, room)]]
        self._digest.add(self._now, done.deltas)
        if self._config.keep_deltas:
            outcome.deltas += [(self._now, delta) for delta in done.deltas]
