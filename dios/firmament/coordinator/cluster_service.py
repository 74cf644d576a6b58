"""The base class of a coordinator's services: the state that it has while it schedules, by either scheduler.

``StartUpService`` decides by a simple rule, until the kernels are compiled. ``SchedulerService`` decides by
the flow scheduler. Both run in one thread at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from dios.errors import DiosError, InvalidError
from dios.firmament.coordinator.assignment import Assignment
from dios.firmament.coordinator.cluster_state import Phase, TrackedCluster
from dios.firmament.coordinator.observer import MeasurementReport
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.wire.messages import Asked, KeptRoom, Occupant, Placed, PromisedStart, QueueRows, Submission
from dios.wire.scheduling import COORDINATOR_LABEL

_PROBLEMS_MAX: Final = 20


class NotedStart(NamedTuple):
    """A promised start as the queue of a node has it."""

    row: KeptRoom
    submitted: float
    start: float


class NodeActions(NamedTuple):
    """The placements and preemptions that a node has to carry out after a round."""

    host: str
    placements: list[tuple[int, str]]
    """Submissions that wait there, and the nodes where they go."""
    preempted: list[int]
    """Tasks that run there and have to stop."""
    threads: dict[int, tuple[int, ...]]
    """The hardware threads that the scheduler chose for submissions; its node chooses for all others."""
    promised: Sequence[PromisedStart] = ()
    """The nodes that are kept for submissions which wait there, and the expected starts."""

    @property
    def changes_tasks(self) -> bool:
        """Return True if any task is to start or to stop."""
        return bool(self.placements or self.preempted)


class ClusterService(ABC):
    """The tracked cluster of one coordinator, and the problems that `dios sched status` shows.

    Args:
        cluster: what the coordinator knows of its nodes.
        node: the name of the coordinator's own node.
        knowledge: the measurements of all nodes.
    """

    def __init__(self, cluster: TrackedCluster, node: str, knowledge: KnowledgeBase) -> None:
        self.cluster: Final = cluster
        self.problems: deque[str] = deque(maxlen=_PROBLEMS_MAX)
        """Failures, newest last."""
        self.unmeasured: dict[str, str] = {}
        """The measurements that this node cannot make, and the reasons."""
        self.noted: dict[str, list[NotedStart]] = {}
        """The promised starts in the queues, by node."""
        self.links_changed = False
        """True if nodes have to learn new guarantees before the control interval is over."""
        self._knowledge = knowledge
        self._own = node
        self._assignment = Assignment()
        self._now = 0.0

    @property
    def has_waiting_tasks(self) -> bool:
        """Return True if any task waits for its place."""
        return self.cluster.waiting > 0

    @property
    def is_busy(self) -> bool:
        """Return True if rounds are needed even if nothing changes, because time passes."""
        return self.has_waiting_tasks or self.has_admitted_jobs

    @property
    def has_tasks(self) -> bool:
        """Return True if any task waits or runs, except for the nodes' coordinators."""
        return any(
            not (tracked.phase is Phase.RUNNING and _is_coordinator(tracked.row))
            for tracked in self.cluster.tasks.values()
        )

    def may_start(self, now: float) -> bool:
        """Return True if a further round could start tasks at once."""
        del now
        return self.has_waiting_tasks

    @property
    def has_admitted_jobs(self) -> bool:
        """Return True if any job over time is admitted, which may end without any event."""
        return False

    def change_assignment(self, before: Assignment, after: Assignment, now: float) -> None:
        """Use another assignment: forget what belongs to nodes that another coordinator schedules now."""
        self._assignment = after
        for name in before.attend - after.attend:
            self.cluster.release_submissions(name, now)
        for name in before.machines - after.machines:
            self.cluster.remove_node(name, now)
            self._knowledge.places.forget(name)
            self.noted.pop(name, None)

    def note(self, problem: str) -> None:
        """Record a failure for `dios sched status`."""
        if not self.problems or self.problems[-1] != problem:
            self.problems.append(problem)

    def read(self, name: str, queue: QueueRows, now: float) -> None:
        """Record the queue of a node."""
        self._now = now
        if queue.kept is not None:
            self.noted[name] = [
                NotedStart(row, now - row.waited_ms / 1000, now + row.in_ms / 1000) for row in queue.kept
            ]
        assignment = self._assignment
        after_s = assignment.after_s if name in assignment.below else 0.0
        attend, machine = name in assignment.attend, name in assignment.machines
        try:
            self.cluster.read(queue, now, attend=attend, machine=machine, after_s=after_s)
        except InvalidError as error:
            # One node's invalid rows must not keep the others from being scheduled.
            self.note(f"{name}: its queue is invalid and was skipped: {error}")

    def merge_report(self, name: str, report: MeasurementReport | None) -> None:
        """Add the measurements of a node's coordinator to the knowledge base."""
        if report is None or report.node != name:
            self.note(f"{name}: its report of measurements is invalid and was skipped")
            return
        self.cluster.machine_types[name] = report.machine_type
        if report.load is not None:
            self.cluster.note_load(name, report.load)
        if name == self._own:
            return
        try:
            self._knowledge.merge(report.batch)
        except DiosError as error:
            self.note(f"{name}: {error}")

    def record_answer(
        self, host: str, tasks: list[int], preempted: list[int], answer: Placed | None, now: float
    ) -> None:
        """Record a node's answer to its actions; None if it did not answer."""
        for reason in self.cluster.record_answer(host, tasks, answer, now):
            self.note(f"{host}: {reason}")
        for task in preempted:
            if answer is None or task in dict(answer.refused):
                self.cluster.mark_not_stopped(task)

    def must_wait(self, asked: Asked) -> bool:
        """Return True if a question needs figures that the nodes have not sent yet."""
        del asked
        return False

    @abstractmethod
    def quotas(self) -> Mapping[str, Sequence[float]]:
        """Return the most that principals may hold at once, by name: tasks, then each resource."""

    @abstractmethod
    def learn(self, shares: bytes, now: float, *, commitments: bool) -> None:
        """Use stored shares, of another coordinator or of this coordinator before a restart."""

    @abstractmethod
    def round(self, now: float) -> list[NodeActions]:
        """Decide about the waiting tasks; return what each node has to do."""

    @abstractmethod
    def answer(self, asked: Asked) -> bytes:
        """Return the answer to a question, as JSON."""


def _is_coordinator(row: Submission | Occupant) -> bool:
    """Return True for a node's coordinator. A task of a user that looks like it reserves nothing either."""
    return row.label == COORDINATOR_LABEL and not row.work.particular
