"""Builds an explanation: follows a task's flow in a trial round, and tries which changes are sufficient.

``FlowScheduler.explain`` solves the trial round. The layout of the text is in ``explanation``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dios.firmament.cluster.columns import ABSENT, Flags, Ints
from dios.firmament.cluster.state import RUNNING, ClusterState
from dios.firmament.descriptors import Level
from dios.firmament.explain.excluded import excluded_machines
from dios.firmament.explain.explanation import (
    CandidateMachine,
    ExcludedMachines,
    Explanation,
    PathStep,
    SufficientChange,
)
from dios.firmament.explain.network_paths import FAR, WhatIf, cheapest_paths
from dios.firmament.network.export import VertexNames
from dios.firmament.network.flow_trace import trace
from dios.firmament.network.task_rows import CONTINUE, UNSCHEDULED
from dios.firmament.network.vertices import SINK, VertexKind, Vertices
from dios.firmament.policies.gangs import GangTable, needed
from dios.firmament.policies.restrictions import Restrictions
from dios.firmament.rounds.round_maker import TrialRound

PLACES = 4
"""The number of best machines that an explanation lists."""

TRIED = 3
"""The number of these that are tried with one more slot."""


@dataclass(frozen=True, eq=False)
class ExplainedTask:
    """The task to explain, and the trial round."""

    state: ClusterState
    restrictions: Restrictions
    outcome: TrialRound
    vertices: Vertices
    names: VertexNames
    task: int
    """The task's row."""
    round: int
    model: str
    remark: Callable[[int], str]
    """Returns the cost model's remark about a resource row."""
    growth: Callable[[], float]
    """Returns the growth of the cost of waiting per second."""
    algorithm: str


def explain_task(subject: ExplainedTask) -> Explanation:
    """Explain a task that takes part in the trial round."""
    explainer = _Explainer(subject)
    return explainer.running() if explainer.runs else explainer.waiting()


def _duration_text(seconds: float) -> str:
    """Return a time in words."""
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("hours", 3600, 48), ("days", 86400, 1000)):
        if seconds < most * length:
            return f"about {seconds / length:.3g} {unit}"
    return "years"


def explain_left_out(
    state: ClusterState, gangs: GangTable, task: int, number: int, model: str, turn: str
) -> Explanation:
    """Explain why a task does not take part: its turn, a gang without room, or too many other misfits.

    ``turn`` is the reason why it is not its principal's turn; empty if it is.
    """
    job = int(state.tasks.job[task])
    need = int(needed(state, np.array([job]))[0])
    if turn:
        reason = turn
    elif need:
        slots = int(state.resources.slots[state.cluster])
        reason = f"its gang needs {need} places at once, and the cluster has {slots} slots in all"
        pause = gangs.paused_until(job)
        if need <= slots and pause > state.now:
            reason = (
                f"no room was found for its gang of {need}; it is tried again in {pause - state.now:.3g} s"
            )
        elif need <= slots:
            reason = f"other gangs are more urgent than its gang of {need} tasks"
    else:
        reason = "too many tasks did not fit where they were placed; it takes part when some of them run"
    machines = len(state.resources.at(Level.MACHINE))
    ids = int(state.tasks.id[task]), int(state.jobs.id[job])
    return Explanation(*ids, "waits", reason, None, number, model, None, total_machines=machines)


def _nowhere(excluded: list[ExcludedMachines]) -> str:
    """Return why no machine takes a task: the reason of all of them, or of the most."""
    if not excluded:
        return "there is no machine"
    begin = "no machine can take it" + (" now" if any(exclusion.passes for exclusion in excluded) else "")
    if len(excluded) == 1:
        return f"{begin}: {excluded[0].reason}"
    most = max(excluded, key=lambda exclusion: exclusion.machines)
    return f"{begin}; most of them: {most.reason}"


class _Explainer:
    def __init__(self, subject: ExplainedTask) -> None:
        outcome = subject.outcome
        self.subject, self.outcome = subject, outcome
        self.state, self.network = subject.state, outcome.network
        self.index = int(np.searchsorted(outcome.plan.tasks, subject.task))
        self.runs = bool(self.state.tasks.status[subject.task] == RUNNING)
        self.taken = self._taken()
        self.chosen = int(self.taken[self.index])
        rows = self.network.rows
        mine = np.arange(rows.start[self.index], rows.start[self.index + 1])
        self.options = mine[rows.kind[mine] != UNSCHEDULED]
        limited = [
            number for number, task_filter in outcome.plan.filters.items() if task_filter.limit is not None
        ]
        self.try_out = WhatIf(self.network, subject.names, subject.algorithm, limited)
        self.ways = cheapest_paths(
            rows.target[self.options],
            rows.cost[self.options],
            self.network.upper,
            self.network.vertices,
            self.network.upper.capacity > 0,
        )
        self.leaf, self.length = self._leaves()
        self.ahead: dict[int, str] = {}
        self.cost = self._cost()

    def _taken(self) -> Ints:
        """Return the arc that each task uses, (n,): the cheapest arc to the vertex where its unit goes."""
        rows = self.network.rows
        owner = rows.owner()
        fits = rows.target == self.outcome.solved.target[owner]
        order = np.lexsort((rows.cost, ~fits, owner))
        arcs: Ints = order[rows.start[:-1]]
        return arcs

    # Places -----------------------------------------------------------------------------------------

    def _leaves(self) -> tuple[Ints, Ints]:
        """Return by resource row the best leaf vertex of each machine, and the cost to run there."""
        upper, names = self.network.upper, self.subject.names
        tree = self.state.resources
        leaf = np.full(len(tree.alive), ABSENT, np.int64)
        length = np.full(len(tree.alive), FAR, np.int64)
        ends = np.flatnonzero((upper.head == SINK) & (upper.capacity > 0))
        ends = ends[self.ways.length[upper.tail[ends]] < FAR]
        total = self.ways.length[upper.tail[ends]] + upper.cost[ends]
        machine = tree.machine[names.row[upper.tail[ends]]]
        for at in np.argsort(-total, kind="stable").tolist():
            leaf[machine[at]], length[machine[at]] = upper.tail[ends[at]], total[at]
        return leaf, length

    def _cost(self) -> int:
        return sum(step.cost for step in self.path())

    def path(self) -> list[PathStep]:
        """Return the arcs of the task's unit in the trial solution."""
        rows, upper, name = self.network.rows, self.network.upper, self.subject.names
        task = f"task {self.state.tasks.id[self.subject.task]}"
        first = int(rows.target[self.chosen])
        steps = [PathStep(task, name(first), int(rows.cost[self.chosen]))]
        used = self.outcome.solved.flow > 0
        ways = cheapest_paths(np.array([first]), np.zeros(1, np.int64), upper, self.network.vertices, used)
        leaf = int(self.outcome.leaf[self.index])
        end = SINK
        if leaf != ABSENT:
            end = int(np.flatnonzero((name.row == leaf) & (name.kind == VertexKind.RESOURCE))[0])
        arcs = ways.arcs(end, upper.tail)
        if end != SINK:
            arcs.append(int(np.flatnonzero((upper.tail == end) & (upper.head == SINK))[0]))
        steps.extend(
            PathStep(name(int(upper.tail[arc])), name(int(upper.head[arc])), int(upper.cost[arc]))
            for arc in arcs
        )
        return steps

    def places(self, open_machines: Flags, other_than: int) -> list[CandidateMachine]:
        """Return the cheapest machines."""
        tree = self.state.resources
        rows = np.flatnonzero(open_machines & (self.length < FAR))
        rows = rows[rows != other_than]
        rows = rows[np.argsort(self.length[rows], kind="stable")][:PLACES]
        return [
            CandidateMachine(
                self.state.machine_ids[row],
                tree.names[row],
                int(self.length[row]),
                int(self.length[row]) - self.cost,
                int(tree.slots[row] - tree.running[row]),
                self.full_arc(row),
                self.subject.remark(row),
            )
            for row in rows.tolist()
        ]

    def full_arc(self, machine: int) -> str:
        """Return the first arc without room on the path to a machine, or an empty string."""
        upper, name = self.network.upper, self.subject.names
        leaf = int(self.leaf[machine])
        arcs = self.ways.arcs(leaf, upper.tail)
        arcs.append(int(np.flatnonzero((upper.tail == leaf) & (upper.head == SINK))[0]))
        for arc in arcs:
            if self.outcome.solved.flow[arc] >= upper.capacity[arc]:
                there = f"{name(int(upper.tail[arc]))} -> {name(int(upper.head[arc]))}"
                return f"no room on {there} ({upper.capacity[arc]} of {upper.capacity[arc]})"
        return ""

    # Answers ----------------------------------------------------------------------------------------

    def waiting(self) -> Explanation:
        """Explain a waiting task, and what would place it."""
        excluded, open_machines = self._excluded()
        places = self.places(open_machines, ABSENT)
        target = int(self.outcome.leaf[self.index])
        enough: list[SufficientChange] = []
        if not places:
            reason = _nowhere(excluded)
        elif self.outcome.held[self.index]:
            reason = "the cheapest machine went to tasks before it, or lacks resources other than slots"
        elif target != ABSENT:
            reason = (
                f"room has appeared since the last round; the next one places it on {self._machine(target)}"
            )
        else:
            enough = self._enough(places)
            reason = self._reason(places, enough)
        return self._explanation(reason, None, places, excluded, enough)

    def running(self) -> Explanation:
        """Explain a running task, and what would move or stop it."""
        here = int(self.state.tasks.machine[self.subject.task])
        name, stays = self.state.resources.names[here], self._why_it_stays()
        if stays:
            reason = f"on {name}, which costs {self.cost}; it does not move: {stays}"
            return self._explanation(reason, self.state.machine_ids[here], [], [], self._leaving(name))
        excluded, open_machines = self._excluded()
        places = self.places(open_machines, here)
        target = int(self.outcome.leaf[self.index])
        moves = target == ABSENT or self.state.resources.machine[target] != here
        if moves and not self.outcome.held[self.index]:
            effect = "stops it" if target == ABSENT else f"moves it to {self._machine(target)}"
            reason = f"on {name}; the next round {effect}"
            enough = []
        else:
            enough = self._leaving(name)
            reason = f"on {name}, which costs {self.cost}"
            if places:
                reason += f"; the best other place is {places[0].name} at {places[0].cost}"
        return self._explanation(reason, self.state.machine_ids[here], places, excluded, enough)

    def _why_it_stays(self) -> str:
        """Return why a running task has no arc to another machine; empty if it has."""
        plan, settings = self.outcome.plan, self.subject.restrictions.settings
        if not self.state.tasks.restartable[self.subject.task]:
            return "it may not be stopped and started again"
        if not settings.preemption:
            return "no task is stopped, by the setting preemption"
        if plan.fixed[self.index]:
            return "its principal holds no more than its right, so that others may not stop its tasks"
        if plan.rooted[self.index]:
            return "the tasks of its job stay together"
        return "" if settings.migration else "no task moves, by the setting migration"

    def _excluded(self) -> tuple[list[ExcludedMachines], Flags]:
        reachable = self.length < FAR
        return excluded_machines(self.state, self.subject.restrictions, self.subject.task, reachable)

    def _machine(self, leaf: int) -> str:
        tree = self.state.resources
        return tree.names[int(tree.machine[leaf])]

    def _reason(self, places: list[CandidateMachine], enough: list[SufficientChange]) -> str:
        best = places[0]
        if best.cost > self.cost:
            return f"waiting costs {self.cost}, and the best place, {best.name}, costs {best.cost}"
        if best.full:
            return (
                f"the best place, {best.name}, would save {self.cost - best.cost}, but there is {best.full}"
            )
        if enough or self.outcome.plan.bounds.most[self.state.tasks.job[self.subject.task]] == 0:
            return "other tasks of its series come first"
        return "its series runs as many tasks as it may at once"

    def _explanation(
        self,
        reason: str,
        machine: int | None,
        places: list[CandidateMachine],
        excluded: list[ExcludedMachines],
        enough: list[SufficientChange],
    ) -> Explanation:
        subject, tasks = self.subject, self.state.tasks
        return Explanation(
            int(tasks.id[subject.task]),
            int(self.state.jobs.id[tasks.job[subject.task]]),
            "runs" if self.runs else "waits",
            reason,
            machine,
            subject.round,
            subject.model,
            self.cost,
            self.path() if self.runs or places else [],
            places,
            len(self.state.resources.at(Level.MACHINE)),
            excluded,
            self._binding(places, enough),
            enough,
        )

    def _binding(self, places: list[CandidateMachine], enough: list[SufficientChange]) -> str:
        if self.runs or not places or not places[0].full:
            return ""
        best = places[0]
        worth = next((change.worth for change in enough if change.machine == best.machine), None)
        if worth is not None:
            return f"{best.full}; one more slot there is worth {worth}"
        first = self.ahead.get(best.machine)
        return best.full if first is None else f"{best.full}; one more slot there may go to {first} first"

    # Sufficient changes -----------------------------------------------------------------------------

    def _enough(self, places: list[CandidateMachine]) -> list[SufficientChange]:
        changes = [change for place in places[:TRIED] if (change := self._slot(place)) is not None]
        raised = self._raised()
        return changes if raised is None else [*changes, raised]

    def _slot(self, place: CandidateMachine) -> SufficientChange | None:
        """Try one more slot at a machine; return it if it alone places the task in every best solution."""
        arc = self.try_out.waiting_arc(self.index)
        row = self.state.machine_row(place.machine)
        if arc == ABSENT or place.cost >= self.cost:
            return None
        tree, names = self.state.resources, self.subject.names
        leaf = int(self.leaf[row])
        chain, above = {leaf}, int(names.row[leaf])
        while above != ABSENT:
            chain.add(int(np.flatnonzero((names.row == above) & (names.kind == VertexKind.RESOURCE))[0]))
            above = int(tree.parent[above])
        solution = self.try_out.with_slot(leaf, chain, arc)
        if solution.status != "optimal":
            return None
        if solution.flow[arc]:
            self._note_task_ahead(place.machine, solution.flow)
            return None
        worth = self.outcome.solved.cost - solution.cost
        text = f"sufficient: one more slot on {place.name} (worth {worth})"
        return SufficientChange("slot", place.machine, None, worth, None, text)

    def _note_task_ahead(self, machine: int, flow: Ints) -> None:
        """Record the task that runs with the slot and waits without it, if there is one."""
        rows = self.network.rows
        waits = rows.kind == UNSCHEDULED
        before = np.zeros(len(rows.target), np.bool_)
        before[self.taken] = True
        freed = np.flatnonzero(waits & before & (flow[: len(before)] == 0))
        if len(freed):
            task = rows.tasks[int(np.searchsorted(rows.start, freed[0], side="right")) - 1]
            self.ahead[machine] = f"task {self.state.tasks.id[task]}"

    def _raised(self) -> SufficientChange | None:
        """Return the cost of waiting above which it is cheapest for the cluster to place the task."""
        arc = self.try_out.waiting_arc(self.index)
        if arc == ABSENT:
            return None
        solution = self.try_out.without(arc)
        if solution.status != "optimal":
            return None
        gap = solution.cost - self.outcome.solved.cost
        bound = int(self.network.rows.cost[arc]) + gap
        growth = self.subject.growth()
        seconds = gap / growth if growth > 0 else None
        when = "" if seconds is None else f", in {_duration_text(seconds)} as it grows now"
        text = f"sufficient: a waiting cost above {bound} (now {bound - gap}){when}"
        return SufficientChange("waiting cost", None, bound, gap, seconds, text)

    def _returns(self, flow: Ints) -> bool:
        """Return True if the task comes back to its machine by way of an aggregate."""
        rows, tasks = self.network.rows, self.outcome.plan.tasks
        arcs = len(rows.target)
        leaf = trace(
            self.state.resources,
            self.subject.vertices,
            self.network.upper,
            flow[arcs:],
            rows.target[np.flatnonzero(flow[:arcs])],
            self.state.tasks.leaf[tasks],
        )
        place = int(leaf[self.index])
        tree = self.state.resources
        return place != ABSENT and tree.machine[place] == self.state.tasks.machine[self.subject.task]

    def _leaving(self, name: str) -> list[SufficientChange]:
        rows = self.network.rows
        stay = self.options[rows.kind[self.options] == CONTINUE]
        if not len(stay) or self.chosen != stay[0]:
            return []
        solution = self.try_out.without(int(stay[0]))
        if solution.status != "optimal" or self._returns(solution.flow):
            return []
        gap = solution.cost - self.outcome.solved.cost
        bound = int(rows.cost[stay[0]]) + gap
        text = f"it leaves {name} when the cost of staying exceeds {bound} (now {bound - gap})"
        return [SufficientChange("staying cost", None, bound, gap, None, text)]
