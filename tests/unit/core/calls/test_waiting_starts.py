"""Runs that wait for room: what waits and what is refused, the order, and who leaves the queue."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core import effects, events
from dios.errors import Code
from dios.ids import Principal, TaskId
from dios.wire import messages
from dios.wire.messages import Bound, Limits
from dios.wire.types import Brand, Flag, NameKind, Resource, Scope, TaskState
from tests.support.core.cluster import Citizen, Cluster
from tests.support.core.harness import OWNER, Client, Node

STRANGER = Principal("uid:1001")
QUIET = int(Flag.NON_BLOCKING)


def bind(node: Node, tasks: int, principal: Principal | None = None) -> None:
    """Let the node, or one principal, run so many tasks."""
    state = node.core.state
    account = state.account if principal is None else state.account_of(principal)
    account.bind((Bound(Resource.TASKS, tasks),))


def run_of(session: Client, label: str = "", **options: object) -> messages.Run:
    """A run of a fresh program of the session."""
    program = session.create(name_kind=NameKind.ANONYMOUS, data=b"pass")
    return messages.Run(program.reference.ref, label=label, **options)  # type: ignore[arg-type]


def spawned(node: Node) -> list[str]:
    """The labels of all tasks that the host was told to start."""
    return [effect.label for effect in node.effects if isinstance(effect, effects.Spawn)]


def running(node: Node) -> list[TaskId]:
    """The tasks, in the order of their start."""
    return [effect.task for effect in node.effects if isinstance(effect, effects.Spawn)]


def begin(node: Node) -> None:
    """Let the processes of all tasks begin."""
    for task in running(node):
        node.step(events.TaskStarted(node.now, task, 100))


def end_next(node: Node, done: set[TaskId]) -> None:
    """Let the task end that was started first."""
    task = next(task_id for task_id in running(node) if task_id not in done)
    done.add(task)
    node.end(task)


def test_runs_wait_for_room_and_start_in_their_order() -> None:
    """With room for two, two of seven runs start at once, the others when tasks end; all are answered."""
    node = Node()
    bind(node, 2)
    session = node.session()
    seqs = [session.send(run_of(session, str(number))) for number in range(7)]
    done: set[TaskId] = set()
    assert spawned(node) == ["0", "1"]
    for number in range(5):
        begin(node)
        end_next(node, done)
        assert spawned(node) == [str(index) for index in range(3 + number)]
    begin(node)
    assert all(isinstance(session.answer(seq), messages.Created) for seq in seqs)
    assert not len(node.core.state.starts)


def test_principals_take_turns() -> None:
    """The run of a principal with one waiting run starts before the second one of a principal with many."""
    node = Node()
    bind(node, 1)
    many, few = node.session(OWNER), node.session(STRANGER)
    for number in range(5):
        many.send(run_of(many, f"many {number}"))
    few.send(run_of(few, "few"))
    done: set[TaskId] = set()
    for _ in range(3):
        end_next(node, done)
    assert spawned(node).index("few") <= 2


def test_a_principal_at_its_limit_does_not_block_others() -> None:
    """Runs over a principal's own limit wait, and others start although they came later."""
    node = Node()
    mine, other = node.session(OWNER), node.session(STRANGER)
    bind(node, 1, OWNER)
    mine.send(run_of(mine, "first"))
    mine.send(run_of(mine, "second"))
    other.send(run_of(other, "theirs"))
    assert spawned(node) == ["first", "theirs"]
    bounds = (Bound(Resource.TASKS, 2),)
    mine.ask(messages.LimitRows, messages.SetLimits(Scope.PRINCIPAL, bounds, 0, str(OWNER)))
    assert spawned(node)[-1] == "second"


def test_memory_is_waited_for_as_well() -> None:
    """A run whose memory the principal has in use waits; one that exceeds its limit altogether is refused."""
    node = Node()
    session = node.session()
    node.core.state.account_of(OWNER).bind((Bound(Resource.MEMORY_BYTES, 1 << 30),))
    big = Limits(memory_bytes=3 << 28)
    session.send(run_of(session, "one", limits=big))
    seq = session.send(run_of(session, "two", limits=big))
    assert session.answer(seq) is None
    assert session.refused(run_of(session, limits=Limits(memory_bytes=1 << 31))) == Code.EDQUOT
    end_next(node, set())
    assert spawned(node) == ["one", "two"]


def test_what_never_fits_is_refused() -> None:
    """With a limit of no tasks at all, a run is refused at once."""
    node = Node()
    session = node.session()
    bind(node, 0, OWNER)
    assert session.refused(run_of(session)) == Code.EDQUOT


def test_who_does_not_wait_is_refused() -> None:
    """A run with NON_BLOCKING, in a vector, and of a task is refused where a session's run waits."""
    node = Node()
    bind(node, 1)
    session = node.session()
    call = run_of(session)
    parent = session.run()
    assert session.refused(messages.Run(call.executable, flags=QUIET)) == Code.EDQUOT
    results = session.call(messages.Vector((messages.Run(call.executable, flags=QUIET),)))
    assert isinstance(results, effects.AnswerVector)
    program = parent.create(name_kind=NameKind.ANONYMOUS, data=b"pass")
    assert parent.refused(messages.Run(program.reference.ref)) == Code.EDQUOT


@pytest.mark.parametrize("how", ["cancel", "end"])
def test_a_run_that_nobody_waits_for_leaves_the_queue(how: str) -> None:
    """A cancelled run, and the runs of a session that ends, are never started."""
    node = Node()
    bind(node, 1)
    first, session = node.session(), node.session()
    first.send(run_of(first, "first"))
    seq = session.send(run_of(session, "gone"))
    last = first.send(run_of(first, "last"))
    if how == "cancel":
        session.call(messages.Cancel(seq))
        answer = session.answer(seq)
        assert isinstance(answer, messages.Failure)
        assert answer.code == Code.ECANCELED
    else:
        node.step(events.Disconnected(node.now, session.task))
    end_next(node, set())
    assert spawned(node) == ["first", "last"]
    assert first.answer(last) is None


def test_waiting_runs_are_listed_with_their_places() -> None:
    """The list of tasks shows each waiting run with its place in the queue, and the reason of the first."""
    node = Node()
    bind(node, 1)
    session = node.session()
    for number in range(3):
        session.send(run_of(session, str(number)))
    rows = session.ask(messages.Tasks, messages.ListTasks()).tasks
    waiting = [(row.label, row.detail) for row in rows if row.state is TaskState.WAITING]
    reason = node.core.state.account.refusal(Resource.TASKS, 1).message
    assert waiting == [
        ("1", f"place 1 of 2 in the start queue: {reason}"),
        ("2", "place 2 of 2 in the start queue"),
    ]


def test_the_reason_is_that_of_the_last_attempt() -> None:
    """The first waiting run has room for a task and not for its memory, so the list says that of memory."""
    node = Node()
    session = node.session()
    node.core.state.account_of(OWNER).bind((Bound(Resource.MEMORY_BYTES, 1 << 30),))
    for label in ("one", "two", "three"):
        session.send(run_of(session, label, limits=Limits(memory_bytes=3 << 28)))
    end_next(node, set())
    rows = session.ask(messages.Tasks, messages.ListTasks()).tasks
    (detail,) = [row.detail for row in rows if row.state is TaskState.WAITING]
    assert detail.startswith("place 1 of 1 in the start queue: ")
    assert "memory" in detail


def test_a_full_queue_lets_callers_wait_and_others_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond its part a principal is asked to call again; another one has room, and the first one later."""
    monkeypatch.setattr(limits, "STARTS_WAITING_MAX", 4)
    node = Node()
    bind(node, 1)
    many, few = node.session(OWNER), node.session(STRANGER)
    for number in range(3):
        many.send(run_of(many, f"many {number}"))
    assert many.refused(run_of(many)) == Code.ENOBUFS
    waiting = [few.send(run_of(few, f"few {number}")) for number in range(2)]
    assert all(few.answer(seq) is None for seq in waiting)
    assert few.refused(run_of(few)) == Code.ENOBUFS
    done: set[TaskId] = set()
    for _ in range(3):
        end_next(node, done)
    assert many.answer(many.send(run_of(many, "again"))) is None
    assert spawned(node)[-1] != "again"


# -- from another node ------------------------------------------------------------------------------
class Pair:
    """A session on one node that starts tasks on another with room for one, and a third node's object."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.home, self.there, self.third = self.cluster.nodes
        bind(self.there, 1)
        self.session = self.cluster.session(self.home)
        keeper = self.cluster.session(self.third)
        created = keeper.create(data=b"input")
        self.input = self.session.lookup(created.name)[0].ref
        self.program = self.session.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
        self.cluster.settle()

    def run(self, flags: int = 0) -> int:
        """Start a task over there."""
        handed = (messages.Handed(self.input, 1),)
        call = messages.Run(self.program, inputs=handed, host="n2", flags=flags, brand=Brand.PURE)
        seq = self.session.send(call)
        self.cluster.settle()
        return seq


@pytest.fixture
def pair() -> Pair:
    """Three nodes."""
    return Pair()


def test_a_run_that_waits_on_another_node_keeps_its_references(pair: Pair) -> None:
    """After minutes in the queue, while nodes compare references, it starts and reads what it was given."""
    pair.run()
    (first,) = pair.cluster.start_spawned()
    seq = pair.run()
    pair.cluster.advance(5 * limits.RECONCILE_PERIOD_MS, 500)
    assert pair.session.answer(seq) is None
    pair.cluster.end(first)
    pair.cluster.advance(3 * limits.RECONCILE_PERIOD_MS, 500)  # its process takes long to start, too
    (second,) = pair.cluster.start_spawned()
    assert isinstance(pair.session.answer(seq), messages.Created)
    assert second.read(second.welcome.inputs[0].ref) == b"input"
    assert second.welcome.executable is not None
    assert second.read(second.welcome.executable.ref) == b"pass"
    pair.cluster.check()


def test_a_run_without_waiting_is_refused_there(pair: Pair) -> None:
    """With NON_BLOCKING the other node refuses what it has no room for."""
    pair.run()
    answer = pair.session.answer(pair.run(QUIET))
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EDQUOT


@pytest.mark.parametrize("how", ["cancel", "end", "crash"])
def test_a_caller_that_is_gone_leaves_the_other_nodes_queue(pair: Pair, how: str) -> None:
    """A cancelled run, and those of a session or node that ended, are not started there."""
    pair.run()
    (first,) = pair.cluster.start_spawned()
    seq = pair.run()
    assert len(pair.there.core.state.starts) == 1
    if how == "cancel":
        pair.session.send(messages.Cancel(seq))
    elif how == "end":
        pair.home.step(events.Disconnected(pair.home.now, pair.session.task))
    else:
        pair.cluster.part(pair.home, pair.there)
        pair.cluster.advance(4_000, 100)
        pair.home.crash()
        pair.cluster.heal()
    pair.cluster.settle()
    pair.cluster.advance(200)
    assert not len(pair.there.core.state.starts)
    pair.cluster.end(first)
    assert not [task for node, task in pair.cluster.spawned if node is pair.there]


def test_a_waiting_run_is_neither_repeated_nor_given_up(pair: Pair) -> None:
    """The other node reports it; in minutes the caller's node repeats it hardly ever, and waits."""
    pair.run()
    (first,) = pair.cluster.start_spawned()
    seq = pair.run()
    asked = 0

    def count(parcel: object) -> bool:
        nonlocal asked
        asked += type(getattr(getattr(parcel, "message", None), "body", None)).__name__ == "Start"
        return False

    pair.cluster.drop = count
    pair.cluster.advance(4 * limits.DCP_UNCONFIRMED_MS, 100)
    assert pair.session.answer(seq) is None
    assert asked <= 4
    pair.cluster.end(first)
    job: Citizen = pair.cluster.start_spawned()[-1]
    assert isinstance(pair.session.answer(seq), messages.Created)
    assert job.welcome.inputs
