"""Tasks that must leave their node, or have a bound of their time: they end once, whatever they do."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dios.core import effects, events
from dios.core.model.invariants import check
from dios.core.model.records import Task
from dios.core.snapshot import decode, encode
from dios.errors import Code
from dios.wire import messages
from dios.wire.messages import Work
from dios.wire.types import Cause, Flag, NodeWish, TaskState
from tests.support.core.cluster import MS, Citizen, Cluster, ClusterNode
from tests.support.core.harness import Entropy

GRACE_MS = 1_000
MOVABLE = Work(restartable=True, grace_ms=GRACE_MS)


class Place:
    """One node, a user who runs tasks there, and its operator."""

    def __init__(self) -> None:
        self.cluster = Cluster(("r1",))
        self.node: ClusterNode = self.cluster.nodes[0]
        self.user = self.cluster.session(self.node)
        created = self.user.create(data=b"pass")
        self.program = created.reference.ref
        self.ends: list[int] = []

    def run(self, work: Work = MOVABLE) -> Citizen:
        """A task that runs here."""
        seq = self.user.send(messages.Run(self.program, work=work, host="n1"))
        (job,) = self.cluster.start_spawned()
        assert isinstance(self.user.answer(seq), messages.Created)
        return job

    def drain(self, wish: NodeWish = NodeWish.DRAIN) -> None:
        """Drain the node, or undo that."""
        self.user.ask(messages.Nodes, messages.SetNode("n1", wish))

    def preempt(self, job: Citizen) -> tuple[tuple[int, str], ...]:
        """Preempt a task as the scheduler does; the refusals."""
        return self.user.ask(messages.Placed, messages.Place("n1", (), (job.task,))).refused

    def record(self, job: Citizen) -> Task:
        """The record of a task."""
        task = self.node.core.state.tasks[job.task]
        assert isinstance(task, Task)
        return task

    def pass_time(self, ms: int) -> None:
        """Let time pass, and the node's timer fire."""
        self.node.now += ms * MS
        self.node.step(events.TimerFired(self.node.now))

    def killed(self, job: Citizen) -> bool:
        """True if the last step ended the process of a task."""
        return effects.Kill(job.task) in self.node.outcome.after


@pytest.fixture
def place() -> Place:
    """One node."""
    return Place()


def test_a_drained_node_asks_its_tasks_to_leave(place: Place) -> None:
    """A task that waits to be asked gets the time that it has; it leaves, and its end says so."""
    job = place.run()
    seq = job.send(messages.AwaitMove(60_000))
    assert job.answer(seq) is None
    place.drain()
    assert job.answer(seq) == messages.Done(GRACE_MS)
    status = place.record(job).row()
    assert (status.state, status.leave_ns) == (TaskState.RUNNING, place.node.now + GRACE_MS * MS)
    job.send(messages.Leave())
    assert place.killed(job)
    assert place.record(job).cause is Cause.MOVED
    assert "n1 is drained" in place.record(job).detail
    place.pass_time(2 * GRACE_MS)
    assert not place.killed(job)


def test_a_task_that_was_asked_before_is_told_at_once(place: Place) -> None:
    """The first question after the request gets the rest of the time."""
    job = place.run()
    assert job.call(messages.AwaitMove()) == messages.Done(0)
    place.drain()
    place.pass_time(400)
    assert job.call(messages.AwaitMove(60_000)) == messages.Done(600)


def test_a_question_ends_after_its_own_time(place: Place) -> None:
    """A task that is not asked gets 0 when its wait is over."""
    job = place.run()
    seq = job.send(messages.AwaitMove(500))
    place.pass_time(499)
    assert job.answer(seq) is None
    place.pass_time(1)
    assert job.answer(seq) == messages.Done(0)


def test_a_task_that_never_answers_is_ended(place: Place) -> None:
    """It is ended when its time is over, not before; the reason is in its end."""
    job = place.run()
    place.drain()
    place.pass_time(GRACE_MS - 1)
    assert place.record(job).cause is Cause.NONE
    place.pass_time(1)
    assert place.killed(job)
    assert place.record(job).cause is Cause.PREEMPTED
    assert "did not leave in time" in place.record(job).detail


def test_the_node_asks_to_be_called_when_the_time_is_over(place: Place) -> None:
    """The core's next deadline is the end of the time, so that nothing else has to happen."""
    place.run()
    place.drain()
    assert place.node.outcome.deadline is not None
    assert place.node.outcome.deadline <= place.node.now + GRACE_MS * MS


def test_a_task_is_ended_when_its_time_is_over(place: Place) -> None:
    """Its time begins with its process. The status has the cause, and the description the bound."""
    seq = place.user.send(messages.Run(place.program, work=Work(time_ms=500), host="n1"))
    place.pass_time(400)
    (job,) = place.cluster.start_spawned()
    place.pass_time(499)
    assert place.record(job).cause is Cause.NONE
    assert place.node.outcome.deadline == place.node.now + MS
    place.pass_time(1)
    assert place.killed(job)
    place.node.end(job.task, Cause.SIGNAL)
    row = place.record(job).row()
    assert (row.cause, row.detail) == (Cause.TIME, "it ran for 0.5 s, all the time that it was given")
    created = place.user.answer(seq)
    assert isinstance(created, messages.Created)
    detail = place.user.ask(messages.TaskDetail, messages.Describe(created.reference.ref))
    assert detail.time_ms == 500


def test_a_task_that_is_paused_while_it_starts_has_its_bound(place: Place) -> None:
    """Its process has begun, and its time with that."""
    run = messages.Run(place.program, work=Work(time_ms=500), host="n1", flags=Flag.NON_BLOCKING)
    created = place.user.ask(messages.Created, run)
    place.user.ask(messages.Done, messages.Pause(created.reference.ref))
    (job,) = place.cluster.start_spawned()
    assert place.record(job).state is TaskState.PAUSED
    place.pass_time(500)
    assert place.record(job).cause is Cause.TIME


def test_only_a_debugged_task_has_no_bound_of_its_time(place: Place) -> None:
    """One that is repeated as it was has the bound of the first."""
    seq = place.user.send(messages.Run(place.program, work=Work(time_ms=500), host="n1"))
    place.cluster.start_spawned()
    created = place.user.answer(seq)
    assert isinstance(created, messages.Created)
    for executable, expected in ((0, Cause.TIME), (place.program, Cause.NONE)):
        place.user.send(messages.Run(executable, like=created.reference.ref, flags=Flag.SPAWN_LOCAL))
        (again,) = place.cluster.start_spawned()
        place.pass_time(500)
        assert place.record(again).cause is expected


def test_a_task_that_cannot_save_says_why(place: Place) -> None:
    """Its text is in its end, and not in the audit log."""
    job = place.run()
    place.drain()
    job.send(messages.Leave("the secret is xyzzy"))
    assert place.record(job).cause is Cause.PREEMPTED
    assert "xyzzy" in place.record(job).detail
    place.node.end(job.task, Cause.SIGNAL)
    audited = [effect for effect in place.node.outcome.after if isinstance(effect, effects.Audit)]
    assert audited
    assert not any("xyzzy" in audit.detail for audit in audited)


def test_nobody_leaves_who_was_not_asked(place: Place) -> None:
    """A task that was not asked, and a session, cannot end in this way."""
    job = place.run()
    assert job.refused(messages.Leave()) == Code.EINVAL
    assert place.user.refused(messages.Leave()) == Code.EINVAL
    assert place.user.refused(messages.AwaitMove()) == Code.EINVAL


def test_tasks_without_a_grace_stay_on_a_drained_node(place: Place) -> None:
    """They are stopped at once if the scheduler takes their place, as far as they are restartable."""
    stays, restartable = place.run(Work()), place.run(Work(restartable=True))
    place.drain()
    place.pass_time(10 * GRACE_MS)
    assert [place.record(job).cause for job in (stays, restartable)] == [Cause.NONE, Cause.NONE]
    assert place.preempt(stays)
    assert not place.preempt(restartable)
    assert place.record(restartable).cause is Cause.PREEMPTED
    assert place.killed(restartable)


def test_only_a_restartable_task_has_a_grace(place: Place) -> None:
    """A run that contradicts itself is refused."""
    call = messages.Run(place.program, work=Work(grace_ms=1), host="n1")
    assert place.user.refused(call) == Code.EINVAL


def test_the_earlier_moves_of_a_run_are_in_its_status(place: Place) -> None:
    """What the caller says about the run is shown with the task."""
    job = place.run(Work(restartable=True, grace_ms=5, moves=2, restarts=1, kept_bytes=77))
    row = place.record(job).row()
    assert (row.moves, row.restarts, row.kept_bytes) == (2, 1, 77)


@dataclass
class Expected:
    """What the model knows of a task."""

    job: Citizen
    grace_ms: int
    over_ns: int | None
    due_ns: int = 0
    cause: Cause = Cause.NONE
    gone: bool = False


class Moves(RuleBasedStateMachine):
    """Drains, preemptions, leaves, ends and time, in any order, against a model of each task."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Place()
        self.tasks: list[Expected] = []

    def _ask(self, expected: Expected) -> None:
        if expected.cause is not Cause.NONE or expected.due_ns:
            return
        if expected.grace_ms:
            expected.due_ns = self.place.node.now + expected.grace_ms * MS
        else:
            expected.cause = Cause.PREEMPTED

    def _living(self, data: st.DataObject) -> Expected:
        return data.draw(
            st.sampled_from([expected for expected in self.tasks if expected.cause is Cause.NONE])
        )

    @precondition(lambda self: len(self.tasks) < 6)
    @rule(grace=st.sampled_from([0, 0, 100, 1_000, 1_000]), bound=st.sampled_from([0, 100, 700]))
    def run(self, grace: int, bound: int) -> None:
        """Start a task."""
        job = self.place.run(Work(restartable=True, grace_ms=grace, time_ms=bound))
        over_ns = self.place.node.now + bound * MS if bound else None
        self.tasks.append(Expected(job, grace, over_ns))

    @rule(wish=st.sampled_from([NodeWish.DRAIN, NodeWish.UNDRAIN]))
    def drain(self, wish: NodeWish) -> None:
        """Drain the node: those with a grace are asked."""
        self.place.drain(wish)
        for expected in self.tasks:
            if wish is NodeWish.DRAIN and expected.grace_ms:
                self._ask(expected)

    @precondition(lambda self: any(expected.cause is Cause.NONE for expected in self.tasks))
    @rule(data=st.data())
    def preempt(self, data: st.DataObject) -> None:
        """Take the place of a task."""
        expected = self._living(data)
        assert not self.place.preempt(expected.job)
        self._ask(expected)

    @precondition(lambda self: any(expected.cause is Cause.NONE for expected in self.tasks))
    @rule(data=st.data(), failure=st.sampled_from(["", "no room"]))
    def leave(self, data: st.DataObject, failure: str) -> None:
        """A task leaves; one that was not asked is refused."""
        expected = self._living(data)
        if expected.due_ns:
            expected.job.send(messages.Leave(failure))
            expected.cause = Cause.PREEMPTED if failure else Cause.MOVED
        else:
            assert expected.job.refused(messages.Leave(failure)) == Code.EINVAL

    @precondition(lambda self: any(not expected.gone for expected in self.tasks))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        """The process of a task is gone, on request or by itself."""
        expected = data.draw(st.sampled_from([running for running in self.tasks if not running.gone]))
        expected.gone = True
        expected.cause = Cause.EXITED if expected.cause is Cause.NONE else expected.cause
        self.place.node.end(expected.job.task)

    @rule(ms=st.sampled_from([1, 50, 100, 500, 1_000]))
    def wait(self, ms: int) -> None:
        """Time passes."""
        self.place.pass_time(ms)
        for expected in self.tasks:
            if expected.cause is Cause.NONE and 0 < expected.due_ns <= self.place.node.now:
                expected.cause = Cause.PREEMPTED
            elif (
                expected.cause is Cause.NONE
                and expected.over_ns is not None
                and expected.over_ns <= self.place.node.now
            ):
                expected.cause = Cause.TIME

    @rule()
    def restart_from_a_snapshot(self) -> None:
        """A core that continues from the stored state has the same deadlines."""
        state = self.place.node.core.state
        encoded = encode(state)
        again = decode(encoded, Entropy(1))
        assert encode(again) == encoded
        assert again.moves.next() == state.moves.next()

    @invariant()
    def agrees(self) -> None:
        """Each task has the cause of the model, and the first one to end is that of the model."""
        state = self.place.node.core.state
        check(state)
        moments: list[int] = []
        for expected in self.tasks:
            task = state.tasks.get(expected.job.task)
            if task is None:
                assert expected.gone
                continue
            assert task.cause is expected.cause
            if expected.cause is Cause.NONE:
                moments += [moment for moment in (expected.due_ns, expected.over_ns) if moment]
        assert state.moves.next() == min(moments, default=None)


TestMoves = Moves.TestCase
TestMoves.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
