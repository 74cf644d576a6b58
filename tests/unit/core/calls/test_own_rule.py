"""A scheduler that places nothing loses its lease, and the node starts by its own rule the runs that fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dios import limits
from dios.core import effects
from dios.core.model.records import Task
from dios.ids import Principal, TaskId
from dios.wire import messages
from dios.wire.messages import Constraint, Placement, PromisedStart, Quota, SetAdmission, Work
from dios.wire.types import Affinity, NameKind, NodeWish
from tests.support.core.cluster import Citizen, Cluster, ClusterNode

CALM = Principal("uid:7")
GREEDY = Principal("uid:8")
HALF = Work(cpus_milli=1_000)
WHOLE = Work(cpus_milli=2_000)
"""All processors of a node."""
STEP_MS = 2_500
"""Between two reads of a scheduler."""
REVIEWED_MS = limits.QUEUE_LEASE_MS + 2_000
"""A node looks at its waiting runs at least so often."""


class Site:
    """Three nodes. Runs wait on the first; the second has a scheduler that reads and does nothing more."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.here, self.liar, self.third = self.cluster.nodes
        self.schedulers = {node.node: self.cluster.session(node) for node in self.cluster.nodes}
        self.hold_ms = 0
        self.room: messages.KeepRooms | None = None
        """What the schedulers note again and again."""

    def user(self, principal: Principal = CALM) -> tuple[Citizen, int]:
        """Return a session of a user on the first node, and a program of that user."""
        user = self.here.session(principal)
        return user, user.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref

    def submit(self, work: Work = HALF, principal: Principal = CALM) -> tuple[Citizen, int]:
        """Make a run that waits; return its caller and the number of the call."""
        user, program = self.user(principal)
        seq = user.send(messages.Run(program, label="job", work=work))
        self.cluster.settle()
        return user, seq

    def read(self, node: ClusterNode) -> messages.QueueRows:
        """Read the queue of the first node as the scheduler of a node."""
        host = "" if node is self.here else "n1"
        return self.schedulers[node.node].ask(messages.QueueRows, messages.ReadQueue(host, attend=True))

    def attend(self, milliseconds: int, *nodes: ClusterNode) -> None:
        """Let time pass, in which the schedulers of these nodes read the queue and place nothing."""
        for _ in range(max(1, milliseconds // STEP_MS)):
            for node in nodes or (self.liar,):
                self.read(node)
                if self.hold_ms:
                    call = SetAdmission("n1", hold_ms=self.hold_ms)
                    self.schedulers[node.node].ask(messages.Done, call)
                if self.room is not None:
                    self.schedulers[node.node].ask(messages.Placed, self.room)
            self.cluster.advance(STEP_MS, STEP_MS)

    def tasks(self, node: ClusterNode | None = None) -> list[Task]:
        """Return the living tasks of a node."""
        return list((node or self.here).core.state.living_tasks())

    def attended(self) -> bool:
        """Return True if runs of the first node wait for a scheduler."""
        return self.here.core.state.queue.attended(self.here.now)


@pytest.fixture
def site() -> Site:
    """A cluster."""
    return Site()


@pytest.mark.parametrize(
    "work", [Work(), HALF, Work(cpus_milli=500, constraints=(Constraint("node", value="n1"),))]
)
def test_a_scheduler_that_places_nothing_costs_seconds(site: Site, work: Work) -> None:
    """The run that it leaves waiting starts, and the node says who lost the lease, to its log and to all."""
    site.read(site.liar)
    site.submit(work)
    site.attend(limits.SCHEDULER_PROGRESS_MS - STEP_MS)
    assert not site.cluster.spawned
    site.attend(STEP_MS + 2 * REVIEWED_MS)
    assert len(site.cluster.spawned) == 1
    assert not site.attended()
    site.cluster.advance(5_000, 100)
    for node in site.cluster.nodes:
        rows = {
            row.name: row.barred
            for row in site.cluster.session(node).ask(messages.Nodes, messages.ListNodes()).nodes
        }
        assert rows == {"n1": (2,), "n2": (), "n3": ()}
    (record,) = [
        effect for effect in site.here.effects if isinstance(effect, effects.Audit) and effect.action == "bar"
    ]
    assert "n2" in record.detail


def test_the_next_scheduler_has_the_lease(site: Site) -> None:
    """A second scheduler that attends is not barred with the first, and what it places starts."""
    site.read(site.liar)
    site.submit(WHOLE)
    site.attend(limits.SCHEDULER_PROGRESS_MS - STEP_MS)
    site.attend(2 * REVIEWED_MS, site.liar, site.third)
    queue = site.here.core.state.queue
    assert queue.barred(site.here.now) == [2]
    assert site.attended()
    (row,) = site.read(site.third).waiting
    call = messages.Place("n1", (Placement(row.id, "n3"),))
    assert site.schedulers[site.third.node].ask(messages.Placed, call).refused == ()
    assert [node for node, _ in site.cluster.spawned] == [site.third]


def test_a_scheduler_that_has_departed_is_not_barred(site: Site) -> None:
    """It has left the queue to another one, as a coordinator does that gets another assignment."""
    site.read(site.third)
    site.read(site.liar)
    site.submit()
    site.attend(limits.SCHEDULER_PROGRESS_MS + 2 * REVIEWED_MS)
    assert site.here.core.state.queue.barred(site.here.now) == [2]


@pytest.mark.parametrize(
    "work",
    [
        Work(cpus_milli=2_001),
        Work(cpus_milli=500, constraints=(Constraint("gpu"),)),
        Work(cpus_milli=500, job=7, gang=2, tasks=2),
        Work(cpus_milli=500, affinity=Affinity.SPREAD_NODES),
        Work(cpus_milli=500, reservation=7),
        Work(cpus_milli=500, best_effort=True),
    ],
)
def test_a_run_that_the_node_cannot_start_costs_no_lease(site: Site, work: Work) -> None:
    """The node does not blame a scheduler for what it could not do itself."""
    site.read(site.liar)
    site.submit(work)
    site.attend(limits.SCHEDULER_PROGRESS_MS + 2 * REVIEWED_MS)
    assert site.attended()
    assert not site.cluster.spawned


def test_a_run_beyond_the_quota_costs_no_lease(site: Site) -> None:
    """The node knows the quota and does not start the run either."""
    site.read(site.liar)
    site.schedulers[site.liar.node].ask(messages.Done, SetAdmission("n1", (Quota(CALM, tasks=0),)))
    site.submit()
    site.attend(limits.SCHEDULER_PROGRESS_MS + 2 * REVIEWED_MS)
    assert site.attended()
    assert not site.cluster.spawned


def test_a_draining_node_starts_nothing_itself(site: Site) -> None:
    """It gets no new tasks, from nobody."""
    site.read(site.liar)
    site.schedulers[site.here.node].ask(messages.Nodes, messages.SetNode("n1", NodeWish.DRAIN))
    site.submit()
    site.attend(limits.SCHEDULER_PROGRESS_MS + 2 * REVIEWED_MS)
    assert not site.cluster.spawned


def test_a_scheduler_that_places_keeps_its_lease(site: Site) -> None:
    """A run may wait for long while others are placed, as in a queue that is longer than the cluster."""
    for _ in range(4):
        site.read(site.liar)
        site.submit(WHOLE)
        site.submit(HALF, GREEDY)
        site.attend(limits.SCHEDULER_PROGRESS_MS - 2_000)
        row = next(row for row in site.read(site.liar).waiting if row.principal == GREEDY)
        call = messages.Place("n1", (Placement(row.id, "n3"),))
        site.schedulers[site.liar.node].ask(messages.Placed, call)
        for node, task in site.cluster.spawned:
            node.end(TaskId(task))
        site.cluster.spawned.clear()
    assert site.attended()
    assert not site.tasks()


@pytest.mark.parametrize("attends", [True, False])
def test_placing_where_nothing_fits_is_no_progress(site: Site, *, attends: bool) -> None:
    """A scheduler that sends runs to a full node again and again is barred, and they start here."""
    site.third.session(GREEDY).run(host="n3", work=WHOLE)
    site.read(site.liar if attends else site.third)
    site.submit()
    (waiting,) = site.here.core.state.queue.waiting.values()
    began = waiting.since
    refused: list[str] = []
    for _ in range((limits.SCHEDULER_PROGRESS_MS + 2 * REVIEWED_MS) // 1_000):
        site.read(site.liar if attends else site.third)
        call = messages.Place("n1", (Placement(waiting.chosen.task, "n3"),))
        answer = site.schedulers[site.liar.node].ask(messages.Placed, call)
        refused += [why for _, why in answer.refused]
        site.cluster.settle()
        site.cluster.advance(1_000, 1_000)
        assert {queued.since for queued in site.here.core.state.queue.waiting.values()} <= {began}
    assert 2 in site.here.core.state.queue.barred(site.here.now)
    assert any("barred" in why for why in refused)
    assert [task.id for task in site.tasks()] == [waiting.chosen.task]


def test_a_start_on_another_node_is_progress(site: Site) -> None:
    """The time of the scheduler that has placed it begins again when the other node has started the run."""
    site.read(site.liar)
    site.submit(WHOLE)
    site.attend(2 * STEP_MS)
    (row,) = site.read(site.liar).waiting
    site.schedulers[site.liar.node].ask(messages.Placed, messages.Place("n1", (Placement(row.id, "n3"),)))
    before = site.here.now
    site.cluster.start_spawned()
    site.cluster.settle()
    (scheduler,) = site.here.core.state.queue.schedulers
    assert scheduler.since >= before


def test_a_reason_keeps_the_lease_for_a_bounded_time(site: Site) -> None:
    """A scheduler that always has a reason costs minutes, and less each time that it was found out."""
    site.hold_ms = 30_000
    site.read(site.liar)
    site.submit()
    site.attend(limits.SCHEDULER_HOLD_MS_MAX - 5_000)
    assert site.attended()
    assert not site.cluster.spawned
    site.attend(5_000 + 2 * REVIEWED_MS)
    assert len(site.cluster.spawned) == 1
    site.attend(limits.SCHEDULER_BARRED_MS)
    assert site.attended(), "it may try again"
    site.submit()
    site.attend(limits.SCHEDULER_HOLD_MS_MAX // 4 + 2 * REVIEWED_MS)
    assert len(site.cluster.spawned) == 2


@pytest.mark.parametrize("ends", [True, False])
def test_a_reason_that_the_node_sees_keeps_the_lease(site: Site, *, ends: bool) -> None:
    """Room that is kept for a run of the same queue stays kept while that run cannot start here."""
    first, _ = site.user()
    occupant = first.run(host="n1", work=HALF)
    site.read(site.liar)
    site.submit(WHOLE)
    (owner,) = site.read(site.liar).waiting
    site.submit(HALF, GREEDY)
    site.hold_ms = 30_000
    site.room = messages.KeepRooms("n1", (PromisedStart(owner.id, "n1", 1_000),))
    site.cluster.spawned.clear()
    site.attend(limits.SCHEDULER_HOLD_MS_MAX + 3 * REVIEWED_MS)
    assert site.attended()
    assert not site.cluster.spawned
    if ends:
        site.cluster.end(occupant)
        site.cluster.spawned.clear()
        site.attend(limits.SCHEDULER_HOLD_MS_MAX + 3 * REVIEWED_MS)
    else:
        site.room = None
        site.attend(int(limits.RESERVATION_UNKNOWN_S * 1_000) + 3 * REVIEWED_MS)
    assert site.cluster.spawned, "it fits now, or its start is long past"


def test_a_lost_lease_is_longer_each_time_and_comes_back(site: Site) -> None:
    """The first loss lasts for SCHEDULER_BARRED_MS and the next one for twice that."""
    queue = site.here.core.state.queue
    for factor in (1, 2):
        site.read(site.liar)
        site.submit()
        site.attend(limits.SCHEDULER_PROGRESS_MS + 2 * REVIEWED_MS)
        assert queue.barred(site.here.now) == [2]
        (scheduler,) = queue.schedulers
        began = site.here.now - 2 * REVIEWED_MS * 1_000_000
        lost = scheduler.barred_until
        site.cluster.spawned.clear()
        while queue.barred(site.here.now):
            site.attend(STEP_MS)
        assert scheduler.lost == factor
        assert 0 <= site.here.now - lost <= 2 * STEP_MS * 1_000_000
        assert lost - began >= factor * limits.SCHEDULER_BARRED_MS * 1_000_000


def test_without_a_scheduler_the_node_serves_first_who_holds_least_of_it(site: Site) -> None:
    """Runs that reserve resources start in the order of their principals' holdings, as far as they fit."""
    holder, _ = site.user(GREEDY)
    holder.run(host="n1", work=HALF)
    site.read(site.liar)
    site.submit(HALF, GREEDY)
    site.submit(HALF, CALM)
    site.cluster.spawned.clear()
    site.attend(limits.SCHEDULER_PROGRESS_MS + 2 * REVIEWED_MS)
    (spawned,) = site.cluster.spawned
    assert site.here.core.state.tasks[TaskId(spawned[1])].principal == CALM


@settings(max_examples=12, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([CALM, GREEDY]), st.sampled_from([500, 1_000, 2_000])),
        min_size=1,
        max_size=7,
    ),
    st.integers(1, 2),
)
def test_every_run_starts_within_room_and_quota_although_the_scheduler_lies(
    loads: list[tuple[Principal, int]], quota: int
) -> None:
    """No run is left over, none starts beyond the processors of the node, and none beyond the quota."""
    site = Site()
    site.schedulers[site.liar.node].ask(messages.Done, SetAdmission("n1", (Quota(GREEDY, tasks=quota),)))
    site.read(site.liar)
    lasts: dict[int, int] = {}
    for principal, cpus_milli in loads:
        site.submit(Work(cpus_milli=cpus_milli), principal)
    for _ in range(400):
        site.attend(STEP_MS)
        running = site.tasks()
        assert sum(task.recipe.work.cpus_milli for task in running if task.recipe) <= 2_000
        assert sum(task.principal == GREEDY for task in running) <= quota
        site.cluster.spawned.clear()
        for task in running:
            lasts.setdefault(task.id, len(lasts) % 3 + 1)
            lasts[task.id] -= 1
            if not lasts[task.id]:
                site.here.end(task.id)
                site.cluster.settle()
        if len(lasts) == len(loads) and not site.tasks():
            return
    raise AssertionError(f"{len(loads) - len(lasts)} runs never started")
