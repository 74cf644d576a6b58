"""The board: runs wait for whoever schedules, are placed once, and are lost with nobody but their caller."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dios import limits
from dios.core import events
from dios.core.model.records import Task
from dios.errors import Code
from dios.ids import Principal, TaskId
from dios.wire import messages
from dios.wire.codec import ADMISSION_VERSION
from dios.wire.messages import Constraint, Device, DeviceRequest, Near, Placement, ThreadPlace, Work
from dios.wire.node_labels import NO_LIMBO
from dios.wire.types import (
    Affinity,
    Brand,
    Cause,
    Flag,
    NameKind,
    NodeWish,
    Operator,
    Permission,
    TaskState,
)
from tests.support.core.cluster import Citizen, Cluster
from tests.support.core.harness import OWNER, Node

FAR = 2**62


class Yard:
    """A caller on the first node, and whoever schedules on the second."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.nodes = self.cluster.nodes
        self.caller = self.cluster.session(self.nodes[0])
        self.scheduler = self.cluster.session(self.nodes[1])
        created = self.caller.create(name_kind=NameKind.ANONYMOUS, data=b"pass")
        self.program = created.reference.ref
        self.cluster.settle()

    def board(self, host: str = "n1", since: int = 0, *, attend: bool = True) -> messages.QueueRows:
        """A node's board, as whoever schedules sees it."""
        return self.scheduler.ask(messages.QueueRows, messages.ReadQueue(host, since, attend=attend))

    def submit(self, **said: object) -> int:
        """A run that names no node; the number of the call, which waits."""
        seq = self.caller.send(messages.Run(self.program, label="job", **said))  # type: ignore[arg-type] # a test's
        self.cluster.settle()
        return seq

    def place(self, submission: int, node: str, host: str = "n1") -> messages.Placed:
        """Send a submission to a node."""
        return self.scheduler.ask(messages.Placed, messages.Place(host, (Placement(submission, node),)))

    def started(self, seq: int) -> tuple[Citizen, messages.Created]:
        """The task of a run that was placed, and what its caller was answered."""
        (job,) = self.cluster.start_spawned()
        answer = self.cluster.wait(self.caller, seq)
        assert isinstance(answer, messages.Created), answer
        return job, answer


@pytest.fixture
def yard() -> Yard:
    """Three nodes."""
    return Yard()


def test_a_coordinator_may_wait_for_the_queues_of_all_nodes(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known by the read of its own queue; the calls of all others are bounded as before."""
    monkeypatch.setattr(limits, "PENDING_PER_TASK_MAX", 4)
    monkeypatch.setattr(limits, "COORDINATOR_PENDING_MAX", 8)
    wait = messages.ReadQueue("", FAR, wait_ms=60_000)
    own = replace(wait, own=True)
    for who, first, most in ((yard.scheduler, own, 8), (yard.caller, wait, 4)):
        waiting = [who.send(call) for call in (first, *[wait] * (most - 1))]
        assert [who.answer(seq) for seq in waiting] == [None] * most
        assert who.ask(messages.Failure, wait).code == Code.ENOBUFS


@pytest.mark.parametrize("target", ["n1", "n2", "n3"])
def test_a_run_waits_and_is_started_where_it_is_placed(yard: Yard, target: str) -> None:
    """While somebody attends, a run stands on its node's board until it is placed, here or elsewhere."""
    yard.board()
    seq = yard.submit(work=Work(priority=3))
    assert yard.caller.answer(seq) is None
    (row,) = yard.board().waiting
    assert (row.label, row.work.priority, row.node, row.principal) == ("job", 3, "n1", OWNER)
    assert yard.place(row.id, target).refused == ()
    job, _ = yard.started(seq)
    assert job.node is yard.nodes[int(target[1]) - 1]
    assert job.task == row.id, "the task is the one that the submission said it would be"
    assert yard.board().waiting == ()
    yard.cluster.check()


def test_a_limbo_run_leaves_its_node_if_owners_let_it(yard: Yard) -> None:
    """A scheduler is told where it may start, and cannot place it elsewhere; pure runs may start anywhere."""

    def conditions(brand: Brand) -> tuple[Constraint, ...]:
        yard.board()
        yard.submit(brand=brand)
        (*_, row) = yard.board().waiting
        return row.work.constraints

    assert conditions(Brand.PURE) == ()
    assert conditions(Brand.LIMBO) == (Constraint("node", value="n1"),)
    (*_, row) = yard.board().waiting
    assert yard.place(row.id, "n2").refused
    assert not yard.board().limbo_from_nodes
    yard.nodes[0].let_limbo_in()
    assert conditions(Brand.PURE) == ()
    assert conditions(Brand.LIMBO) == (Constraint(NO_LIMBO, Operator.ABSENT),)
    assert yard.board().limbo_from_nodes


def test_a_submission_is_placed_once(yard: Yard) -> None:
    """Of two that place the same submission the second is refused, and one task runs."""
    yard.board()
    seq = yard.submit()
    (row,) = yard.board().waiting
    assert yard.place(row.id, "n2").refused == ()
    ((refused, why),) = yard.place(row.id, "n3").refused
    assert refused == row.id
    assert "placed already" in why
    job, _ = yard.started(seq)
    assert job.node is yard.nodes[1]


def test_without_a_scheduler_a_run_goes_where_there_are_fewest(yard: Yard) -> None:
    """Nobody attends: the run is placed at once, as before there were schedulers."""
    seq = yard.submit()
    yard.started(seq)


def test_who_stops_attending_is_waited_for_no_longer_than_its_lease(yard: Yard) -> None:
    """A scheduler that is gone holds a run up until its lease is over; then the run is placed without it."""
    yard.board()
    seq = yard.submit()
    yard.cluster.advance(limits.QUEUE_LEASE_MS // 2)
    assert not yard.cluster.spawned
    yard.cluster.advance(limits.QUEUE_LEASE_MS)
    yard.started(seq)
    assert yard.board().waiting == ()


def test_an_attended_run_waits_on_over_the_first_lease(yard: Yard) -> None:
    """While boards are read again and again a run waits as long as it has to."""
    yard.board()
    seq = yard.submit()
    for _ in range(7):
        yard.cluster.advance(limits.QUEUE_LEASE_MS // 2)
        assert len(yard.board().waiting) == 1
    (row,) = yard.board().waiting
    assert yard.caller.answer(seq) is None
    assert row.waited_ms >= 3 * limits.QUEUE_LEASE_MS


def test_what_is_set_aside_needs_a_scheduler(yard: Yard) -> None:
    """With nobody to schedule, a run that says what it needs is refused, not started without it."""
    call = messages.Run(yard.program, work=Work(cpus_milli=1000))
    assert yard.caller.refused(call) == Code.EHOSTUNREACH


def test_a_wrong_run_is_refused_at_once(yard: Yard) -> None:
    """What could not be started anyway does not come onto the board."""
    yard.board()
    assert yard.caller.refused(messages.Run(yard.program + 1)) == Code.EBADF
    assert yard.board().waiting == ()


def test_a_caller_that_ends_takes_its_submissions_along(yard: Yard) -> None:
    """A run that nobody waits for any more is on no board, and cannot be placed."""
    yard.board()
    yard.submit()
    (row,) = yard.board().waiting
    yard.nodes[0].step(events.Disconnected(yard.nodes[0].now, yard.caller.task))
    yard.cluster.settle()
    assert yard.board().waiting == ()
    assert yard.place(row.id, "n2").refused
    assert not yard.cluster.spawned


def test_a_cancelled_run_is_withdrawn(yard: Yard) -> None:
    """Giving a waiting run up takes it off the board."""
    yard.board()
    seq = yard.submit()
    assert yard.caller.ask(messages.Done, messages.Cancel(seq)).value == 1
    assert yard.board().waiting == ()


@pytest.mark.parametrize("target", ["n1", "n3"])
def test_a_node_without_room_hands_the_run_back(yard: Yard, target: str) -> None:
    """A node sets aside no more than it has: what is placed over that waits again, and can go elsewhere."""
    yard.board()
    whole = Work(cpus_milli=2000)
    first, second = yard.submit(work=whole), yard.submit(work=whole)
    earlier, two = yard.board().waiting
    yard.place(earlier.id, target)
    placed = yard.place(two.id, target)
    yard.cluster.settle()
    board = yard.board()
    assert [row.id for row in board.waiting] == [two.id]
    assert board.version > placed.version, "the board says that it is there anew"
    yard.started(first)
    yard.place(two.id, "n2")
    job, _ = yard.started(second)
    assert job.node is yard.nodes[1]
    yard.cluster.check()


def test_what_a_task_set_aside_is_free_when_it_ends(yard: Yard) -> None:
    """The next task of that size fits once the first is over."""
    yard.board()
    whole = Work(cpus_milli=2000)
    first, second = yard.submit(work=whole), yard.submit(work=whole)
    earlier, two = yard.board().waiting
    yard.place(earlier.id, "n3")
    job, _ = yard.started(first)
    yard.cluster.end(job)
    assert yard.place(two.id, "n3").refused == ()
    yard.started(second)


def test_a_board_tells_what_runs_and_what_has_ended(yard: Yard) -> None:
    """A node's tasks are on its board with what they set aside, and for a while after their end."""
    yard.board()
    seq = yard.submit(work=Work(cpus_milli=500))
    (row,) = yard.board().waiting
    yard.place(row.id, "n3")
    job, _ = yard.started(seq)
    (runs,) = yard.board("n3", attend=False).tasks
    assert (runs.id, runs.state, runs.work.cpus_milli) == (row.id, TaskState.RUNNING, 500)
    yard.cluster.end(job)
    (ended,) = yard.board("n3", attend=False).tasks
    assert (ended.id, ended.state, ended.completed) == (row.id, TaskState.ENDED, True)


def test_a_board_is_waited_for(yard: Yard) -> None:
    """A reader that has seen everything is answered when something is new, or when its time has passed."""
    seen = yard.board().version
    seq = yard.scheduler.send(messages.ReadQueue("n1", seen, 3_000, attend=True))
    yard.cluster.settle()
    assert yard.scheduler.answer(seq) is None
    yard.submit()
    answer = yard.cluster.wait(yard.scheduler, seq, 100)
    assert isinstance(answer, messages.QueueRows)
    assert len(answer.waiting) == 1
    late = yard.cluster.call(yard.scheduler, messages.ReadQueue("n1", FAR, 200, attend=True))
    assert isinstance(late, messages.QueueRows)
    assert (late.waiting, late.name) == ((), "n1"), "nothing is newer: the head alone"


def test_only_the_nodes_own_user_schedules(yard: Yard) -> None:
    """Nobody else reads boards or places runs; a task in the sandbox does neither, nor asks."""
    stranger = yard.nodes[0].session(Principal("uid:77"))
    for call in (
        messages.ReadQueue(),
        messages.Place("n1"),
        messages.Advise("", 1, b""),
        messages.Report(b""),
    ):
        assert stranger.refused(call) == Code.EPERM
    yard.submit()
    (job,) = yard.cluster.start_spawned()
    for question in (messages.ReadQueue(), messages.AskScheduler(b"?")):
        assert job.refused(question) == Code.EPERM


def test_a_question_is_answered_by_who_attends(yard: Yard) -> None:
    """A question stands on the asker's board, with who asks, and its answer may come in parts."""
    assert yard.caller.refused(messages.AskScheduler(b"why?")) == Code.EHOSTUNREACH
    yard.board()
    seq = yard.caller.send(messages.AskScheduler(b"why?"))
    yard.cluster.settle()
    (asked,) = yard.board().asked
    assert (asked.question, asked.ruler) == (b"why?", True)
    yard.scheduler.ask(messages.Done, messages.Advise("n1", asked.number, b"be", more=True))
    yard.scheduler.ask(messages.Done, messages.Advise("n1", asked.number, b"cause"))
    assert yard.cluster.wait(yard.caller, seq) == messages.Advice(b"because")
    refused = messages.Advise("n1", asked.number, b"again")
    assert yard.scheduler.refused(refused) == Code.ESRCH


def test_long_questions_wait_only_as_far_as_there_is_room(yard: Yard) -> None:
    """All that wait are bounded together; one more is refused, and the others are still answered."""
    yard.board()
    long = messages.AskScheduler(bytes(limits.SCHEDULER_QUESTION_BYTES_MAX))
    many = limits.SCHEDULER_QUESTIONS_BYTES_MAX // limits.SCHEDULER_QUESTION_BYTES_MAX
    waiting = [yard.caller.send(long) for _ in range(many)]
    yard.cluster.settle()
    assert yard.caller.refused(messages.AskScheduler(b"?")) == Code.EDQUOT
    for asked in yard.board().asked:
        yard.scheduler.ask(messages.Done, messages.Advise("n1", asked.number, b"yes"))
    assert [yard.cluster.wait(yard.caller, seq) for seq in waiting] == [messages.Advice(b"yes")] * many


def test_a_question_that_nobody_answers_ends(yard: Yard) -> None:
    """The asker is told when the answer takes too long."""
    yard.board()
    seq = yard.caller.send(messages.AskScheduler(b"why?"))
    yard.cluster.advance(limits.SCHEDULER_TIMEOUT_MS + 100, 100)
    answer = yard.caller.answer(seq)
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EHOSTUNREACH
    assert yard.board().asked == ()


@pytest.mark.parametrize("restartable", [True, False])
def test_only_what_may_be_restarted_is_preempted(yard: Yard, *, restartable: bool) -> None:
    """A task that was said to be restartable is stopped, and its end says why; any other runs on."""
    yard.board()
    seq = yard.submit(work=Work(restartable=restartable))
    (row,) = yard.board().waiting
    yard.place(row.id, "n3")
    job, _ = yard.started(seq)
    answer = yard.scheduler.ask(messages.Placed, messages.Place("n3", (), (row.id,)))
    task = yard.nodes[2].core.state.tasks[job.task]
    assert (answer.refused == ()) == restartable
    assert (task.cause is Cause.PREEMPTED) == restartable


def test_what_waits_is_in_the_list_of_tasks(yard: Yard) -> None:
    """A run that waits is listed as waiting, from any node, to its own user."""
    yard.board()
    yard.submit()
    for node in yard.nodes:
        rows = yard.cluster.session(node).ask(messages.Tasks, messages.ListTasks()).tasks
        assert [(row.label, row.state, row.node) for row in rows] == [("job", TaskState.WAITING, "n1")]


def test_reports_stand_on_the_board(yard: Yard) -> None:
    """What a node's own coordinator reports is there for whoever schedules, the newest few, numbered."""
    own = yard.cluster.session(yard.nodes[0])
    for number in range(limits.SCHEDULER_REPORTS_KEPT + 2):
        own.ask(messages.Done, messages.Report(b"%d" % number))
    reports = yard.board().reports
    assert [number for number, _ in reports] == [3, 4, 5, 6]
    assert reports[-1][1] == b"5"


def test_a_node_says_whether_it_has_a_coordinator(yard: Yard) -> None:
    """Its own coordinator's reading shows on the board, until the lease is over."""
    assert not yard.board().coordinated
    own = yard.cluster.session(yard.nodes[0])
    own.ask(messages.QueueRows, messages.ReadQueue(own=True))
    assert yard.board().coordinated
    yard.cluster.advance(limits.QUEUE_LEASE_MS + 100, 100)
    assert not yard.board().coordinated


@pytest.mark.parametrize("flag", [Flag.SPAWN_LOCAL, Flag.NON_BLOCKING])
def test_some_runs_are_never_scheduled(yard: Yard, flag: Flag) -> None:
    """A run on this node, and one that does not wait, are placed at once whoever attends."""
    yard.board()
    seq = yard.submit(flags=int(flag))
    assert yard.cluster.spawned or yard.caller.answer(seq) is not None


@pytest.mark.parametrize("place", ["n1", "n3"])
def test_a_node_that_is_named_sets_aside_no_more_than_it_has(yard: Yard, place: str) -> None:
    """A run that says where it goes is refused there when what it sets aside is not free."""
    whole = messages.Run(yard.program, host=place, work=Work(cpus_milli=2000))
    seq = yard.caller.send(whole)
    yard.cluster.settle()
    yard.started(seq)
    answer = yard.cluster.call(yard.caller, whole)
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EAGAIN
    assert "2 processors" in answer.message


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (Work(disk_io=60), Work(disk_io=50), "100 B/s of its disk"),
        (Work(network=7), Work(network=4), "10 B/s of its network"),
        (Work(memory_bytes=700), Work(memory_bytes=400), "1000 B of memory"),
    ],
)
def test_every_reservation_is_checked_on_its_node(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, first: Work, second: Work, named: str
) -> None:
    """A second run does not get what the first has, and one that needs another resource does."""
    node = yard.nodes[0]
    cluster = node.core.state.cluster
    assert cluster is not None
    here = replace(cluster.here, disk_io=100, network=10, memory_bytes=1000)
    monkeypatch.setattr(cluster, "here", here)
    seq = yard.caller.send(messages.Run(yard.program, host="n1", work=first))
    yard.cluster.settle()
    yard.started(seq)
    answer = yard.cluster.call(yard.caller, messages.Run(yard.program, host="n1", work=second))
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EAGAIN
    assert named in answer.message
    seq = yard.caller.send(messages.Run(yard.program, host="n1", work=Work(cpus_milli=100)))
    yard.cluster.settle()
    yard.started(seq)
    board = yard.board()
    assert (board.disk_io, board.network) == (100, 10)


def test_a_pinned_task_has_processors_that_no_other_one_has(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pinned task gets its own processors, and those of one that has ended go to the next."""
    node = yard.nodes[0]
    cluster = node.core.state.cluster
    assert cluster is not None
    monkeypatch.setattr(cluster, "here", replace(cluster.here, cpus=4, processors=(1, 3, 5, 7)))

    def processors(cpus: int) -> tuple[TaskId, tuple[int, ...]]:
        seq = yard.caller.send(
            messages.Run(yard.program, host="n1", work=Work(cpus_milli=1000 * cpus, pinned=True))
        )
        yard.cluster.settle()
        job, _ = yard.started(seq)
        task = node.core.state.tasks[job.task]
        assert isinstance(task, Task)
        return job.task, task.processors

    first, second = processors(1), processors(2)
    assert (first[1], second[1]) == ((1,), (3, 5))
    assert processors(1)[1] == (7,)
    full = yard.cluster.call(
        yard.caller, messages.Run(yard.program, host="n1", work=Work(cpus_milli=1000, pinned=True))
    )
    assert isinstance(full, messages.Failure)
    assert full.code == Code.EAGAIN
    node.step(events.TaskEnded(node.now, second[0], Cause.EXITED))
    yard.cluster.settle()
    assert processors(1)[1] == (3,)


def test_the_scheduler_names_threads_for_a_task(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task runs on the named threads that are free, and shares them unless it is pinned."""
    node = yard.nodes[0]
    cluster = node.core.state.cluster
    assert cluster is not None
    places = tuple(ThreadPlace(number, number % 2, 0, 0, 0) for number in range(4))
    here = replace(cluster.here, cpus=4, processors=(0, 1, 2, 3), threads=places)
    monkeypatch.setattr(cluster, "here", here)
    assert yard.board().threads == places

    def runs_on(work: Work, *named: int) -> tuple[int, ...]:
        seq = yard.submit(work=work)
        (row,) = yard.board().waiting
        placed = yard.scheduler.ask(messages.Placed, messages.Place("n1", (Placement(row.id, "n1", named),)))
        assert not placed.refused
        job, _ = yard.started(seq)
        (listed,) = (candidate for candidate in yard.board().tasks if candidate.id == job.task)
        return listed.processors

    pinned = Work(cpus_milli=2000, pinned=True)
    assert runs_on(pinned, 1, 3) == (1, 3)
    assert runs_on(Work(), 0) == runs_on(Work(cpus_milli=500), 0) == (0,)
    assert runs_on(Work(), 1) == (0,)
    assert runs_on(Work()) == ()
    assert runs_on(Work(cpus_milli=1000, pinned=True), 3) == (0,)


def test_a_device_belongs_to_one_task_at_a_time(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task gets devices that no other one has, more are refused, and those of an ended task go on."""
    node = yard.nodes[0]
    cluster = node.core.state.cluster
    assert cluster is not None
    own = (*(Device("seat", str(number)) for number in range(3)), Device("gpu", "0", ("/dev/nvidia0",)))
    monkeypatch.setattr(cluster, "here", replace(cluster.here, devices=own))

    def asking(kind: str, count: int) -> messages.Run:
        return messages.Run(yard.program, host="n1", work=Work(devices=(DeviceRequest(kind, count),)))

    def seats(count: int) -> tuple[TaskId, list[str]]:
        yard.caller.send(asking("seat", count))
        yard.cluster.settle()
        (job,) = yard.cluster.start_spawned()
        task = node.core.state.tasks[job.task]
        assert isinstance(task, Task)
        return job.task, [device.name for device in task.devices]

    first, second = seats(1), seats(2)
    assert (first[1], second[1]) == (["0"], ["1", "2"])
    board = yard.board()
    assert board.devices == (DeviceRequest("gpu", 1), DeviceRequest("seat", 3))
    assert sorted(device.name for row in board.tasks for device in row.devices) == ["0", "1", "2"]
    for kind, code, why in (
        ("seat", Code.EAGAIN, "3 devices of the kind seat; with this task 4"),
        ("fpga", Code.EAGAIN, "0 devices of the kind fpga"),
        ("gpu", Code.ENOSYS, "--limbo"),
    ):
        answer = yard.cluster.call(yard.caller, asking(kind, 1))
        assert isinstance(answer, messages.Failure)
        assert (answer.code, why in answer.message) == (code, True), answer
    node.step(events.TaskEnded(node.now, second[0], Cause.EXITED))
    yard.cluster.settle()
    assert seats(1)[1] == ["1"]


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (Work(cpus_milli=1500, pinned=True), "whole processors, and cpus is 1.5"),
        (Work(pinned=True), "whole processors"),
        (Work(cpus_milli=1000, pinned=True), "cannot pin a task to processors: no filter"),
        (Work(best_effort=True, gang=1, tasks=2), "nothing is reserved"),
        (Work(cpus_milli=1000, best_effort=True, pinned=True), "nothing is reserved"),
        (Work(devices=(DeviceRequest("gpu"),), best_effort=True), "nothing is reserved"),
        (Work(devices=(DeviceRequest("gpu"), DeviceRequest("gpu"))), "named twice"),
    ],
)
def test_a_pinned_run_that_cannot_be_is_refused(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, work: Work, why: str
) -> None:
    """Parts of processors, nodes without the mechanism, and contradictions are refused with the reason."""
    cluster = yard.nodes[0].core.state.cluster
    assert cluster is not None
    here = replace(cluster.here, processors=(0, 1), enforcement=(("pin", "no filter of system calls"),))
    monkeypatch.setattr(cluster, "here", here)
    answer = yard.cluster.call(yard.caller, messages.Run(yard.program, host="n1", work=work))
    assert isinstance(answer, messages.Failure)
    assert why in answer.message


def test_best_effort_reserves_nothing(yard: Yard) -> None:
    """A best-effort run takes no room from others, and needs none."""
    for work in (Work(cpus_milli=9000, best_effort=True), Work(cpus_milli=2000)):
        seq = yard.caller.send(messages.Run(yard.program, host="n1", work=work))
        yard.cluster.settle()
        yard.started(seq)
    yard.cluster.check()


@pytest.mark.parametrize(
    "work", [Work(gang=2, tasks=2), Work(affinity=Affinity.SAME_RACK), Work(constraints=(Constraint("gpu"),))]
)
def test_what_only_a_scheduler_can_give_is_not_dropped(yard: Yard, work: Work) -> None:
    """A run that says where it goes, and also what only a scheduler could honour, is refused."""
    yard.board()
    assert yard.caller.refused(messages.Run(yard.program, host="n3", work=work)) == Code.EINVAL
    local = messages.Run(yard.program, work=work, flags=int(Flag.SPAWN_LOCAL | Flag.NON_BLOCKING))
    assert yard.caller.refused(local) == Code.EINVAL
    ((answer, _),) = yard.caller.many(messages.Run(yard.program, work=work, flags=int(Flag.NON_BLOCKING)))
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EINVAL


def test_a_node_that_is_alone_sets_nothing_aside() -> None:
    """Where there is no cluster, a run that asks for more than a place is refused, not started without."""
    person = Node(1).session()
    program = person.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    failure = person.ask(messages.Failure, messages.Run(program, work=Work(cpus_milli=1000)))
    assert failure.code == Code.EINVAL
    assert "no cluster" in failure.message


def test_placing_and_advising_stand_alone(yard: Yard) -> None:
    """In a vector they are refused, and what waits goes on waiting: they answer calls of others."""
    yard.board()
    yard.submit()
    (row,) = yard.board().waiting
    at_home = yard.cluster.session(yard.nodes[0])
    answers = at_home.many(messages.Place("", (Placement(row.id, "n1"),)), messages.Advise("", 1, b""))
    assert [getattr(answer, "code", 0) for answer, _ in answers] == [Code.EINVAL, Code.EINVAL]
    assert [submission.id for submission in yard.board().waiting] == [row.id]
    yard.cluster.check()


def test_waiting_long_is_no_news(yard: Yard) -> None:
    """Leases that are renewed change no board: its version stands, and so does the order of what waits."""
    yard.board()
    for _ in range(3):
        yard.submit()
    before = yard.board()
    for _ in range(5):
        yard.cluster.advance(limits.QUEUE_LEASE_MS // 2)
        yard.board()
    after = yard.board()
    assert after.version == before.version
    assert [row.id for row in after.waiting] == [row.id for row in before.waiting]


def test_a_boards_rows_stay_small(yard: Yard) -> None:
    """What a task's work said of places is not told of one that runs: many words make no board too large."""
    yard.board()
    wishes = tuple(Constraint(f"k{number}", value="v" * 60, hard=False) for number in range(16))
    seq = yard.submit(work=Work(cpus_milli=100, constraints=wishes))
    (row,) = yard.board().waiting
    assert row.work.constraints == wishes
    yard.place(row.id, "n3")
    yard.started(seq)
    (runs,) = yard.board("n3", attend=False).tasks
    assert runs.work == Work(cpus_milli=100)


# -- nodes that fail while a run is placed ------------------------------------------------------------------
def test_a_run_that_never_left_its_node_waits_again(yard: Yard) -> None:
    """The scheduler's choice cannot be reached: nothing was started, so that another node may be chosen."""
    yard.board()
    seq = yard.submit()
    (row,) = yard.board().waiting
    yard.cluster.part(yard.nodes[0], yard.nodes[1])
    yard.scheduler = yard.cluster.session(yard.nodes[2])
    assert yard.place(row.id, "n2").refused == ()
    for _ in range(200):
        yard.cluster.advance(100, 100)
        if yard.board().waiting:
            break
    assert yard.caller.answer(seq) is None
    assert yard.place(row.id, "n3").refused == ()
    job, _ = yard.started(seq)
    assert job.node is yard.nodes[2]


def test_a_run_that_never_left_its_node_is_placed_elsewhere(yard: Yard) -> None:
    """Without a scheduler, the node of the caller chooses another node by itself."""
    keeper = yard.cluster.session(yard.nodes[2])
    (reference,) = yard.caller.lookup(keeper.create(data=b"input").name)
    for busy in ("n1", "n3"):
        yard.caller.ask(messages.Created, messages.Run(yard.program, host=busy, flags=int(Flag.NON_BLOCKING)))
    yard.cluster.start_spawned()
    handed = (messages.Handed(reference.ref, int(Permission.READ)),)
    call = messages.Run(yard.program, inputs=handed, label="job", flags=int(Flag.NON_BLOCKING))
    seq = yard.caller.send(call)  # the third node is asked for the input before the second one is asked
    yard.cluster.part(yard.nodes[0], yard.nodes[1])
    yard.cluster.advance(limits.DCP_UNCONFIRMED_MS + limits.DCP_PATIENCE_MS, 100)
    job, _ = yard.started(seq)
    assert job.node is not yard.nodes[1]


def test_a_run_whose_input_cannot_be_reached_was_not_started(yard: Yard) -> None:
    """A node fails while it offers an input: the caller learns that no task was started."""
    keeper = yard.cluster.session(yard.nodes[2])
    (reference,) = yard.caller.lookup(keeper.create(data=b"input").name)
    handed = (messages.Handed(reference.ref, int(Permission.READ)),)
    seq = yard.caller.send(messages.Run(yard.program, inputs=handed, host="n2"))
    yard.cluster.wire.clear()
    yard.cluster.part(yard.nodes[0], yard.nodes[2])
    failure = yard.cluster.wait(yard.caller, seq, 60_000)
    assert isinstance(failure, messages.Failure)
    assert failure.code == Code.EHOSTUNREACH
    assert "No task was started" in failure.message
    assert not yard.cluster.spawned


def changes(yard: Yard, since: int, listed: int = 0, tasks_listed: int = 0) -> messages.QueueRows:
    """The rows of the first node that changed after a version."""
    call = messages.ReadQueue(
        "n1", since, attend=True, changes=True, listed=listed, tasks_listed=tasks_listed
    )
    return yard.scheduler.ask(messages.QueueRows, call)


def test_a_reader_gets_only_the_changes(yard: Yard) -> None:
    """A run is listed once while it waits, and its id once when it has left."""
    first = yard.board()
    for _ in range(3):
        yard.submit()
    queue = changes(yard, first.version)
    assert not queue.whole
    assert len(queue.waiting) == 3
    assert changes(yard, queue.version).waiting == ()
    yard.submit()
    later = changes(yard, queue.version)
    assert [row.id for row in later.waiting] == [yard.board().waiting[-1].id]
    yard.place(queue.waiting[0].id, "n2")
    gone = changes(yard, later.version)
    assert (gone.waiting, gone.gone) == ((), (queue.waiting[0].id,))


def test_a_task_is_listed_again_when_it_changes_or_ends(yard: Yard) -> None:
    """Its start, its process, and its end are three changes; other changes do not list it again."""
    first = yard.board()
    yard.submit()
    (row,) = changes(yard, first.version).waiting
    yard.place(row.id, "n1")
    placed = changes(yard, first.version)
    assert [(task.id, task.state) for task in placed.tasks] == [(row.id, TaskState.STARTING)]
    (job,) = yard.cluster.start_spawned()
    running = changes(yard, placed.version)
    assert [(task.id, task.state) for task in running.tasks] == [(row.id, TaskState.RUNNING)]
    yard.submit()
    other = changes(yard, running.version)
    assert other.tasks == ()
    job.node.step(events.TaskEnded(job.node.now, job.task, Cause.EXITED))
    yard.cluster.settle()
    ended = changes(yard, other.version)
    assert [(task.id, task.state) for task in ended.tasks] == [(row.id, TaskState.ENDED)]
    assert ended.gone == (row.id,)


def test_a_long_queue_is_read_in_parts(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part goes on behind the mark of the one before, whatever changes meanwhile."""
    monkeypatch.setattr(limits, "QUEUE_ROWS_MAX", 4)
    yard.board()
    for _ in range(10):
        yard.submit()
    queue = changes(yard, 0)
    assert (queue.whole, queue.partial, len(queue.waiting)) == (True, True, 4)
    row_ids = [row.id for row in queue.waiting]
    yard.place(row_ids[0], "n2")
    while queue.partial:
        queue = changes(yard, queue.version, queue.listed)
        assert not queue.whole
        row_ids += [row.id for row in queue.waiting]
    assert len(row_ids) == len(set(row_ids)) == 10


@pytest.mark.parametrize("whole", [True, False])
def test_many_tasks_are_read_in_parts(yard: Yard, monkeypatch: pytest.MonkeyPatch, *, whole: bool) -> None:
    """Every living task is in a part, also one that changes or begins meanwhile; only changes follow."""
    monkeypatch.setattr(limits, "QUEUE_TASKS_MAX", 4)
    before = yard.board().version
    for _ in range(10):
        yard.submit()
    for row in yard.board().waiting:
        yard.place(row.id, "n1")
    queue = changes(yard, 0 if whole else before)
    assert (queue.whole, queue.partial, len(queue.tasks)) == (whole, True, 4)
    rows = {row.id: row for row in queue.tasks}
    first, *_ = rows
    yard.cluster.start_spawned()
    while queue.partial:
        queue = changes(yard, queue.version, queue.listed, queue.tasks_listed)
        assert not queue.whole
        assert len(queue.tasks) <= 4
        rows |= {row.id: row for row in queue.tasks}
    living = {task.id for task in yard.cluster.nodes[0].core.state.living_tasks() if task.recipe}
    assert set(rows) == living
    assert rows[TaskId(first)].state is TaskState.RUNNING
    assert changes(yard, queue.version).tasks == ()


def test_who_missed_too_much_reads_everything_again(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """More runs have left than the node remembers: the rows are whole, and what is missing is gone."""
    monkeypatch.setattr(limits, "QUEUE_GONE_KEPT", 2)
    queue = yard.cluster.nodes[0].core.state.queue
    queue.gone = type(queue.gone)(maxlen=2)
    yard.board()
    for _ in range(4):
        yard.submit()
    first = changes(yard, 0)
    for row in first.waiting[:3]:
        yard.place(row.id, "n2")
    again = changes(yard, first.version)
    assert again.whole
    assert [row.id for row in again.waiting] == [first.waiting[3].id]


def promise(yard: Yard, submission: int, node: str, in_ms: int = 5_000) -> messages.Placed:
    """Note a promised start in the queue of the first node."""
    start = messages.PromisedStart(submission, node, in_ms)
    return yard.scheduler.ask(messages.Placed, messages.KeepRooms("n1", (start,)))


def test_a_promised_start_is_shown_to_all_readers_until_it_is_over(yard: Yard) -> None:
    """It is in each answer that is newer, replaced, taken back, and gone with its run."""
    yard.board()
    seq = yard.submit(work=Work(cpus_milli=1000, constraints=(Constraint("rack", value="r1"),)))
    (row,) = yard.board().waiting
    assert promise(yard, row.id, "n2").refused == ()
    board = yard.board(attend=False)
    assert board.kept is not None
    ((kept),) = board.kept
    assert (kept.submission, kept.node, kept.work) == (row.id, "n2", Work(cpus_milli=1000))
    assert 0 < kept.in_ms <= 5_000
    yard.submit()
    assert changes(yard, board.version).kept is None, "it has not changed"
    promise(yard, row.id, "n3")
    assert [start.node for start in changes(yard, board.version).kept or ()] == ["n3"]
    promise(yard, row.id, "")
    assert changes(yard, board.version).kept == ()
    promise(yard, row.id, "n3")
    yard.place(row.id, "n2")
    yard.started(seq)
    assert changes(yard, board.version).kept == ()
    assert promise(yard, row.id, "n2").refused == (), "the run does not wait any more"
    assert yard.board().kept == ()
    yard.cluster.check()


def test_a_promised_start_long_past_is_void(yard: Yard) -> None:
    """A coordinator that reads the queue for the first time does not take it for a start now."""
    yard.board()
    yard.submit(work=Work(cpus_milli=100_000))
    (row,) = yard.board().waiting
    promise(yard, row.id, "n2", in_ms=1_000)
    unknown_s = int(limits.RESERVATION_UNKNOWN_S)
    for seconds, kept in ((unknown_s - 10, 1), (15, 0)):
        for _ in range(seconds):
            yard.cluster.advance(1_000, 500)
            yard.board()
        assert len(yard.board().kept or ()) == kept


def test_a_node_of_an_earlier_release_gets_no_promised_starts(yard: Yard) -> None:
    """It would end the connection, because it does not know the call."""
    yard.board()
    yard.submit()
    (row,) = yard.board().waiting
    peers = yard.scheduler.node.core.state.cluster
    assert peers is not None
    there = peers.peer(yard.nodes[0].node)
    there.version = ADMISSION_VERSION - 1
    call = messages.KeepRooms("n1", (messages.PromisedStart(row.id, "n2"),))
    assert yard.scheduler.refused(call) == Code.ENOSYS
    assert yard.board().kept == ()
    there.version = ADMISSION_VERSION
    assert promise(yard, row.id, "n2").refused == ()


def test_nothing_is_promised_on_a_dead_node_or_beyond_the_bound(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused ones change nothing, and a promise on a node that has died is not shown."""
    monkeypatch.setattr(limits, "RESERVATIONS_MAX", 1)
    yard.board()
    for _ in range(2):
        yard.submit()
    first, second = (row.id for row in yard.board().waiting)
    assert promise(yard, first, "n9").refused
    assert promise(yard, first, "n3").refused == ()
    assert promise(yard, second, "n2").refused, "one is kept already"
    assert [start.submission for start in yard.board().kept or ()] == [first]
    yard.nodes[2].crash()
    yard.cluster.advance(30_000, grain=200)
    assert yard.board().kept == ()


def test_a_waiting_run_shows_its_place_in_the_queue(yard: Yard) -> None:
    """`dios ps` shows it among the waiting runs of the same principal, and it moves up."""
    yard.board()
    for _ in range(3):
        yard.submit()
    first, *_ = yard.board().waiting
    for count in (3, 2):
        tasks = yard.caller.ask(messages.Tasks, messages.ListTasks(int(Flag.LOCAL_ONLY))).tasks
        shown = [row.detail for row in tasks if row.state is TaskState.WAITING]
        places = [f"place {place + 1} of {count} in the submission queue" for place in range(count)]
        assert shown == places + ["n2 starts it"] * (3 - count)
        if count == 3:
            yard.place(first.id, "n2")


def test_a_full_queue_lets_callers_wait_and_others_in(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its part a principal is asked to call again; another one has room, and the first one later."""
    monkeypatch.setattr(limits, "SUBMISSIONS_MAX", 4)
    yard.board()
    run = messages.Run(yard.program)
    for _ in range(2):
        assert yard.caller.answer(yard.submit()) is None
    assert yard.caller.refused(run) == Code.ENOBUFS
    other = yard.nodes[0].session(Principal("uid:4321"))
    program = other.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    assert other.answer(other.send(messages.Run(program))) is None
    first, *_ = yard.board().waiting
    yard.place(first.id, "n2")
    assert yard.caller.answer(yard.submit()) is None


def test_a_waiting_reader_attends_until_it_is_gone(yard: Yard) -> None:
    """A scheduler that waits for a change holds runs longer than a lease; when it ends, nobody attends."""
    since = yard.board().version
    call = messages.ReadQueue("n1", since, limits.QUEUE_WAIT_MS_MAX, attend=True)
    reading = yard.scheduler.send(call)
    yard.cluster.settle()
    yard.cluster.advance(3 * limits.QUEUE_LEASE_MS)
    assert yard.scheduler.answer(reading) is None
    queue = yard.nodes[0].core.state.queue
    assert queue.attended(yard.nodes[0].now)
    yard.scheduler.send(messages.Cancel(reading))
    yard.cluster.settle()
    assert not queue.attended(yard.nodes[0].now)


def test_a_change_of_the_list_of_nodes_wakes_its_readers(yard: Yard) -> None:
    """A reader that knows the present list waits, and is answered when a node drains or dies."""
    known = yard.scheduler.ask(messages.Nodes, messages.ListNodes()).version
    wait = messages.ListNodes(known, limits.QUEUE_WAIT_MS_MAX)
    reading = yard.scheduler.send(wait)
    yard.cluster.advance(5_000)
    assert yard.scheduler.answer(reading) is None
    drained = yard.scheduler.ask(messages.Nodes, messages.SetNode("n2", NodeWish.DRAIN))
    yard.cluster.settle()
    answer = yard.scheduler.answer(reading)
    assert isinstance(answer, messages.Nodes)
    assert answer.version > known
    assert [row.draining for row in answer.nodes] == [row.draining for row in drained.nodes]


def test_a_node_that_drains_wakes_the_readers_of_its_queue(yard: Yard) -> None:
    """A scheduler that waits for a change of the queue learns at once that the node takes no tasks."""
    since = yard.board().version
    reading = yard.scheduler.send(messages.ReadQueue("n1", since, limits.QUEUE_WAIT_MS_MAX))
    yard.cluster.settle()
    assert yard.scheduler.answer(reading) is None
    yard.scheduler.ask(messages.Nodes, messages.SetNode("n1", NodeWish.DRAIN))
    yard.cluster.settle()
    answer = yard.scheduler.answer(reading)
    assert isinstance(answer, messages.QueueRows)
    assert answer.draining


def test_a_run_prefers_the_nodes_of_its_inputs(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its row has the bytes of its inputs on each node, in the order of bytes; the program is no input."""
    monkeypatch.setattr(limits, "NEAR_BYTES_MIN", 300)
    keeper = yard.cluster.session(yard.nodes[2])
    far = [yard.caller.lookup(keeper.create(data=b"x" * size).name)[0].ref for size in (120, 100)]
    own = yard.caller.create(data=b"x" * 90).reference.ref
    handed = tuple(messages.Handed(ref, int(Permission.READ)) for ref in (own, *far))
    yard.board()
    yard.submit(inputs=handed)
    (row,) = yard.board().waiting
    assert row.work.near == (Near("n3", 220), Near("n1", 90))


@pytest.mark.parametrize(("least", "named"), [(91, ()), (1, (Near("n2", 7),))])
def test_small_inputs_and_named_nodes_change_nothing(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, least: int, named: tuple[Near, ...]
) -> None:
    """Inputs attract nothing below a size, and never against what the caller said."""
    monkeypatch.setattr(limits, "NEAR_BYTES_MIN", least)
    own = yard.caller.create(data=b"x" * 90).reference.ref
    yard.board()
    yard.submit(inputs=(messages.Handed(own, int(Permission.READ)),), work=Work(near=named))
    (row,) = yard.board().waiting
    assert row.work.near == named


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (Work(job_maximum=2), "name the job, too"),
        (Work(job=1, job_minimum=3, job_maximum=2), "give a larger maximum"),
        (Work(job=1, gang=3, tasks=3, job_maximum=2), "give a larger maximum"),
        (Work(job=1, job_minimum=1, best_effort=True), "its job has no minimum"),
    ],
)
def test_bounds_of_a_job_that_cannot_hold_are_refused(yard: Yard, work: Work, why: str) -> None:
    """The node refuses the run, whatever its client has checked."""
    answer = yard.cluster.wait(yard.caller, yard.submit(work=work))
    assert isinstance(answer, messages.Failure)
    assert (answer.code, why in answer.message) == (Code.EINVAL, True)


def test_bounds_of_a_job_need_the_scheduler(yard: Yard) -> None:
    """A run with bounds whose node was chosen is refused, because nobody would count it."""
    answer = yard.cluster.wait(yard.caller, yard.submit(work=Work(job=1, job_maximum=2), host="n2"))
    assert isinstance(answer, messages.Failure)
    assert "need the scheduler" in answer.message
