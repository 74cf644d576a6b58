"""References that go by themselves: when exactly, and that nothing derived from them stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dios import limits
from dios.core import events
from dios.core.machine import Core
from dios.core.model.records import Task
from dios.errors import Code
from dios.ids import PayloadId, Ticket
from dios.wire import messages
from dios.wire.types import Cause, Flag, ObjectType, Permission
from tests.support.core.harness import Client, Entropy, Node

LIFE = 1_000


class Loan:
    """Something that a session lends to a task for a while."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.owner = node.session()
        self.task = self.owner.run()
        self.other = self.owner.run()
        self.ref = self.owner.create(data=b"abc").reference.ref

    def lend(self, ref: int = 0, to: Client | None = None, lifetime: int = LIFE) -> messages.Reference:
        """What the receiver is told of a reference that ends."""
        receiver = to or self.task
        call = messages.Copy(ref or self.ref, receiver.reference.ref, lifetime_ns=lifetime)
        self.owner.ask(messages.Done, call)
        return receiver.given()


@pytest.fixture
def loan(node: Node) -> Loan:
    """Two tasks and an object to lend."""
    return Loan(node)


def due(node: Node) -> int:
    """When the core wants to be called again; 0 for never."""
    return node.outcome.deadline or 0


# -- the moment -------------------------------------------------------------------------------------
def test_exact_moment(loan: Loan) -> None:
    """A reference serves until just before its end, and is gone at its end."""
    node, task = loan.node, loan.task
    lent = loan.lend()
    assert lent.expires_ns == node.now + LIFE
    assert due(node) == lent.expires_ns
    node.now = lent.expires_ns - 1
    assert task.stat(lent.ref).expires_ns == lent.expires_ns
    node.now = lent.expires_ns
    assert isinstance(task.call(messages.Stat(lent.ref)), messages.Failure)
    assert task.refused(messages.Stat(lent.ref)) == Code.EBADF
    assert due(node) == 0
    assert task.event() == messages.Retired(lent.ref, lent.object, lent.fingerprint, "", expired=True)


@pytest.mark.parametrize(
    "event",
    [
        lambda loan: events.TimerFired(loan.node.now),
        lambda loan: events.Persisted(loan.node.now, Ticket(0)),
        lambda loan: events.TaskEnded(loan.node.now, loan.other.task, Cause.EXITED),
        lambda loan: events.Disconnected(loan.node.now, loan.other.task),
        lambda loan: events.ConsoleArrived(loan.node.now, loan.other.task, 5),
        lambda loan: events.Called(loan.node.now, loan.owner.task, 999, messages.NodeInfo(), PayloadId(0)),
        lambda loan: events.ShutdownBegan(loan.node.now),
    ],
)
def test_before_every_event(loan: Loan, event: Callable[[Loan], events.Event]) -> None:
    """Whatever happens next, at or after its end a reference is gone before it."""
    lent = loan.lend()
    table = loan.node.core.state.tasks[loan.task.task].table
    loan.node.now = lent.expires_ns + 5
    assert lent.ref in table
    loan.node.step(event(loan))
    assert lent.ref not in table


def test_the_earliest_is_asked_for(loan: Loan) -> None:
    """The host is asked to come back at the earliest end or time limit there is."""
    node = loan.node
    loan.lend(lifetime=500)
    assert node.outcome.deadline == node.now + 500
    loan.lend(lifetime=300)
    assert node.outcome.deadline == node.now + 300
    seq = loan.task.send(messages.Select((loan.task.welcome.console.ref,), timeout_ns=200))
    assert node.outcome.deadline == node.now + 200
    loan.task.ask(messages.Done, messages.Cancel(seq))
    assert node.outcome.deadline == node.now + 300


def test_a_wait_ends_with_its_reference(loan: Loan) -> None:
    """A call that waits on a reference is answered when its time is over."""
    stream = loan.owner.create(ObjectType.SHMEM_STREAM).reference.ref
    lent = loan.lend(stream)
    seq = loan.task.send(messages.Select((lent.ref,)))
    assert loan.task.answer(seq) is None
    loan.node.now = lent.expires_ns
    loan.node.step(events.TimerFired(loan.node.now))
    said = loan.task.answer(seq)
    assert isinstance(said, messages.Failure)


def test_an_open_write_is_aborted(loan: Loan) -> None:
    """A write that is open when the time is over is not committed."""
    lent = loan.lend()
    buffer = loan.task.ask(messages.Buffer, messages.AcquireWrite(lent.ref)).buffer
    loan.node.now = lent.expires_ns
    loan.task.call(messages.CommitWrite(lent.ref, buffer))
    assert loan.owner.counters(loan.ref) == (0, 0, 0, 0)


# -- what is delegated on ---------------------------------------------------------------------------
@pytest.mark.parametrize(("asked", "given"), [(0, LIFE), (10 * LIFE, LIFE), (LIFE, LIFE), (10, 10)])
def test_never_longer_than_what_it_came_from(loan: Loan, asked: int, given: int) -> None:
    """Whoever delegates a reference that ends can shorten its life for others, not lengthen it."""
    lent, task = loan.lend(), loan.task
    now = loan.node.now
    copy = task.ask(messages.References, messages.Copy(lent.ref, task.self_ref, lifetime_ns=asked))
    assert copy.references[0].expires_ns == now + given
    task.event()
    handed = messages.Handed(lent.ref, int(Permission.ALL), lifetime_ns=asked)
    child = task.run(inputs=(handed,), outputs=(handed,))
    assert {reference.expires_ns for reference in (*child.welcome.inputs, *child.welcome.outputs)} == {
        now + given
    }


def test_a_lent_program_ends(loan: Loan) -> None:
    """A task keeps the reference to its program no longer than who started it."""
    lent = loan.lend()
    loan.task.send(messages.Run(lent.ref, flags=int(Flag.NON_BLOCKING)))
    tasks = loan.node.core.state.living_tasks()
    (child,) = [task for task in tasks if isinstance(task.parent, Task)]
    ends = [reference.expires_ns for reference in child.table if reference.object.id == lent.object]
    assert ends == [lent.expires_ns]


def test_a_lent_tasks_console_ends(loan: Loan) -> None:
    """The console of a task that one may look at for a while is to be seen no longer."""
    lent = loan.lend(loan.other.reference.ref)
    console = loan.task.ask(messages.References, messages.ConsoleOf(lent.ref)).references[0]
    assert console.expires_ns == lent.expires_ns


def test_the_whole_line_ends(loan: Loan) -> None:
    """When the first reference of a line ends, so has all that came from it, whoever holds it."""
    lent, task = loan.lend(), loan.task
    child = task.run(inputs=(messages.Handed(lent.ref, int(Permission.ALL)),))
    task.ask(messages.Done, messages.Delete(lent.ref, int(Flag.HANDLE_ONLY)))
    given = child.welcome.inputs[0].ref
    child.stat(given)
    loan.node.now = lent.expires_ns
    assert isinstance(child.call(messages.Stat(given)), messages.Failure)


# -- lifetimes --------------------------------------------------------------------------------------
def test_at_the_start_of_a_task(loan: Loan) -> None:
    """An input with a lifetime goes that long after the task was started."""
    handed = messages.Handed(loan.ref, int(Permission.ALL), lifetime_ns=LIFE)
    child = loan.owner.run(inputs=(handed,))
    loan.node.now += LIFE - 1
    child.stat(child.welcome.inputs[0].ref)
    loan.node.now += 1
    assert isinstance(child.call(messages.Stat(child.welcome.inputs[0].ref)), messages.Failure)


@pytest.mark.parametrize("lifetime", [limits.LIFETIME_NS_MAX, limits.LIFETIME_NS_MAX + 1, 2**63 - 1])
def test_the_longest_lifetime(loan: Loan, lifetime: int) -> None:
    """A lifetime of over a year is refused wherever one is given, and nothing happens."""
    copy = messages.Copy(loan.ref, loan.task.reference.ref, lifetime_ns=lifetime)
    handed = messages.Handed(loan.ref, 1, lifetime_ns=lifetime)
    starts = [messages.Run(loan.ref, (), (handed,)), messages.Run(loan.ref, (), (), (handed,))]
    if lifetime > limits.LIFETIME_NS_MAX:
        assert loan.owner.refused(copy) == Code.EINVAL
        assert [loan.owner.refused(call) for call in starts] == [Code.EINVAL] * 2
    else:
        loan.owner.ask(messages.Done, copy)
        assert loan.task.given().expires_ns == loan.node.now + lifetime


# -- what stays behind ------------------------------------------------------------------------------
def test_no_moment_is_left_behind() -> None:
    """However many references with an end come and go before it, the node remembers a bounded number."""
    core = Core(Entropy(), "uid:1000")  # type: ignore[arg-type]
    node = Node()
    node.core = core
    owner = node.session()
    blob = owner.create().reference.ref
    table = core.state.expiries
    seq = 10
    for _ in range(5_000):
        seq += 2
        call = messages.Copy(blob, owner.self_ref, lifetime_ns=limits.LIFETIME_NS_MAX)
        outcome = core.step(events.Called(1, owner.task, seq, call))
        (reference,) = next(
            effect.result.references  # type: ignore[union-attr]
            for effect in outcome.after
            if isinstance(getattr(effect, "result", None), messages.References)
        )
        core.step(
            events.Called(1, owner.task, seq + 1, messages.Delete(reference.ref, int(Flag.HANDLE_ONLY)))
        )
        assert len(table._moments) <= limits.STALE_TIMERS_MAX + 2
    assert table.next() is None
    waits = core.state.pending
    for _ in range(5_000):
        seq += 2
        wait = messages.Select((owner.welcome.console.ref,), timeout_ns=10**15)
        core.step(events.Called(1, owner.task, seq, wait))
        core.step(events.Called(1, owner.task, seq + 1, messages.Cancel(seq)))
        assert len(waits._deadlines) <= limits.STALE_TIMERS_MAX + 2
    assert waits.next_deadline() is None


def test_many_end_at_once_in_order(loan: Loan) -> None:
    """References that are over by the time anything happens go in the order of their ends."""
    given = [loan.lend(lifetime=life) for life in (30, 10, 20, 10)]
    loan.node.now += 100
    loan.node.step(events.TimerFired(loan.node.now))
    told = [loan.task.event() for _ in given]
    order = [event.ref for event in told if isinstance(event, messages.Retired)]
    ends = {reference.ref: reference.expires_ns for reference in given}
    assert sorted(order) == sorted(ends)
    assert [ends[ref] for ref in order] == sorted(ends.values())


def test_replayed_alike() -> None:
    """The same events give the same outcomes, ends of references and what they wake included."""

    def story(node: Node) -> list[object]:
        loan = Loan(node)
        for life in (5, 5, 9, 3):
            loan.lend(lifetime=life)
        lent = loan.lend(lifetime=7)
        loan.task.ask(messages.References, messages.Copy(lent.ref, loan.task.self_ref))
        loan.task.send(messages.Select((lent.ref,), timeout_ns=50))
        for _ in range(10):
            node.now += 1
            node.step(events.TimerFired(node.now))
        return node.effects

    assert story(Node(3)) == story(Node(3))
