"""Greedy neighbours and an innocent client on a core without a clock: turns in the order of the host.

Connections take turns as in ``dios.host.process.task_host``: one makes calls until they have cost
``limits.TURN_UNITS_MAX`` units, then everybody else has a turn. The host's events (a started process, stored
changes, a socket) come with the next turn, and long work continues with each.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Final, TypeAlias, cast

from dios import limits
from dios.core import effects, events
from dios.ids import PayloadId, Principal, TaskId
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult
from dios.wire.types import Cause, Flag, NameKind, ObjectType
from labs.benchmarks.neighbours.kinds import KINDS
from tests.support.core.full_tables import FullNode
from tests.support.core.harness import Client

GREEDY: Final = Principal("uid:4000")
INNOCENT: Final = Principal("uid:5000")
OUTPUT_BYTES: Final = 64 * limits.KIB

TURN_WORK_MAX: Final = limits.STEP_WORK_MAX
"""Lines of one connection's turn: short calls up to the bound on units, and then one long call."""

UNIT_WORK_MAX: Final = 1_000
"""Lines for each unit that a neighbour is charged, on the average: what costs more must be charged more."""

SERVED_TURNS_MAX: Final = 6
"""Turns of the innocent client until a call is answered that waits for an event of the host."""

RUNS_MIN: Final = 2
"""Rounds of the innocent client, each with a run of a task, in every test."""

_Calls: TypeAlias = Generator[AnyCall, AnyResult, None]


class BusyNode:
    """A core with one innocent client, whose turns come between those of greedy neighbours."""

    def __init__(self) -> None:
        self.node: Final = FullNode()
        self.node.measured = True
        self.innocent: Final = _Innocent(self.node)
        self.lines = 0
        self.units = 0
        self.longest_turn = 0
        self._due: deque[events.Event] = deque()
        self._turn_lines = self._turn_units = 0

    def step(self, event: events.Event, *, charged: bool = True) -> effects.Outcome:
        """Make a step on behalf of a neighbour, and take its share of the turn."""
        node = self.node
        node.most = 0
        outcome = node.step(event)
        assert node.most <= limits.STEP_WORK_MAX, f"{node.most:,} lines in one step, for {event!r:.300}"
        self._follow(outcome)
        self._turn_lines += node.most
        self._turn_units += 1 + outcome.units
        if charged and self._turn_units >= limits.TURN_UNITS_MAX:
            self.end_turn()
        return outcome

    def end_turn(self) -> None:
        """End the turn of a neighbour: the innocent client and the node's own work come first."""
        self.longest_turn = max(self.longest_turn, self._turn_lines)
        assert self._turn_lines <= TURN_WORK_MAX, f"{self._turn_lines:,} lines in one turn"
        self.lines += self._turn_lines
        self.units += self._turn_units
        self._turn_lines = self._turn_units = 0
        node = self.node
        due, self._due = self._due, deque()
        for event in due:
            self._host_step(event)
        if node.outcome.deadline is not None and node.outcome.deadline <= node.now:
            self._host_step(events.TimerFired(node.now))
        for effect in self.innocent.turn():
            self._follow(effect)
        node.now += 1_000_000

    def _host_step(self, event: events.Event) -> None:
        """Make a step for an event of the host: it is bounded, and no connection's turn."""
        self.node.most = 0
        self._follow(self.node.step(event))
        assert self.node.most <= limits.STEP_WORK_MAX, f"{self.node.most:,} lines for {event!r:.300}"

    def _follow(self, outcome: effects.Outcome) -> None:
        """Queue the host's events for the effects of a step."""
        now = self.node.now
        if outcome.persist:
            self._due.append(events.Persisted(now, outcome.ticket))
        for effect in outcome.after:
            if isinstance(effect, effects.Spawn):
                self._due.append(events.TaskStarted(now, effect.task, 100))
                self._due += [events.ConsoleArrived(now, effect.task, OUTPUT_BYTES)] * 8
                if effect.principal == INNOCENT:
                    self._due.append(events.TaskEnded(now, effect.task, Cause.EXITED, 7))
            elif isinstance(effect, effects.Kill):
                self._due.append(events.TaskEnded(now, effect.task, Cause.KILLED))
            elif isinstance(effect, effects.OpenNetwork):
                self._due.append(events.NetworkFailed(now, effect.object, 111, "refused"))


class CoreGreedy:
    """A greedy neighbour on a core, see ``labs.benchmarks.neighbours.kinds.Greedy``."""

    table: Final = 2_000

    def __init__(self, busy: BusyNode, principal: Principal = GREEDY) -> None:
        self._busy: Final = busy
        self._principal: Final = principal
        self._client: Client = self._open("greedy")
        self._crowd: Final[list[Client]] = []

    @property
    def welcome(self) -> messages.Welcome:
        """The node's greeting of the present session."""
        return self._client.welcome

    def ask(self, call: AnyCall) -> AnyResult:
        """Make a call; others have their turns until it is answered."""
        answers = self._busy.node.answers
        key = (self._client.task, self._send(call))
        for _ in range(SERVED_TURNS_MAX * 64):
            if key in answers:
                return result_of(answers.pop(key))
            self._busy.end_turn()
        raise AssertionError(f"{call!r:.200} of a neighbour is never answered")

    def post(self, call: AnyCall) -> int:
        """Make a call that may wait."""
        return self._send(call)

    def leave(self, label: str = "") -> None:
        """End the session, and begin another."""
        self._end("")
        self._client = self._open(label)

    def cut(self) -> None:
        """End the session because of bytes that are no frame, and begin another."""
        self._end("truncated: the client closed after 99 bytes of an unfinished frame")
        self._client = self._open("")

    def crowd(self, call: AnyCall, count: int) -> None:
        """Make a call in each of further sessions; a core without a host has fewer of them."""
        first = self._client
        while len(self._crowd) < min(count, 20):
            self._crowd.append(self._open("crowd"))
        for client in self._crowd:
            self._client = client
            self._send(call)
        self._client = first

    def deafen(self, call: AnyCall, count: int) -> None:
        """Make calls; a core does not see that nobody reads the answers, until the host ends the session."""
        for _ in range(min(count, 50)):
            self._send(call)
        self.cut()

    def linger(self, seconds: float) -> None:
        """Let the others have some turns, with the output of all tasks of this neighbour."""
        busy = self._busy
        for _ in range(int(seconds * 20)):
            for task in list(busy.node.core.state.tasks.values()):
                if task.principal == self._principal and task.id != self._client.task:
                    busy.step(events.ConsoleArrived(busy.node.now, task.id, OUTPUT_BYTES), charged=False)
            busy.end_turn()

    def _send(self, call: AnyCall) -> int:
        node = self._busy.node
        node.seq += 1
        node.payload += 2_000
        seq = node.seq
        event = events.Called(node.now, self._client.task, seq, call, PayloadId(node.payload))
        self._busy.step(event)
        return seq

    def _open(self, label: str) -> Client:
        node = self._busy.node
        node.tasks += 1
        task = TaskId(node.tasks)
        self._busy.step(events.SessionOpened(node.now, task, 1, self._principal, (), label, 42))
        welcome = _welcome(node.outcome, task)
        return Client(node, task, welcome)

    def _end(self, reason: str) -> None:
        node = self._busy.node
        self._busy.step(events.Disconnected(node.now, self._client.task, reason))


class _Innocent:
    """A client whose calls are made one in each of its turns, and must be answered within some turns."""

    def __init__(self, node: FullNode) -> None:
        self._node: Final = node
        self._client: Final = node.session(INNOCENT)
        self._calls: Final[_Calls] = _innocent_calls(self._client)
        self._next: AnyCall = next(self._calls)
        self._seq = 0
        self._waited = 0
        self.served = 0
        self.runs = 0
        self.longest_wait = 0

    def turn(self) -> Iterator[effects.Outcome]:
        """Make the next call, or see that the former one is answered in time; return the steps made."""
        node = self._node
        if not self._seq:
            self._seq = self._client.send(self._next)
            yield node.outcome
        answer = self._client.answer(self._seq)
        self._waited += 1
        self.longest_wait = max(self.longest_wait, self._waited)
        assert answer is not None or self._waited <= SERVED_TURNS_MAX, (
            f"{self._next!r:.200} is not answered after {self._waited} turns"
        )
        if answer is None:
            return
        self.served += 1
        self.runs += isinstance(self._next, messages.Run)
        del node.answers[self._client.task, self._seq]
        self._seq = self._waited = 0
        self._next = self._calls.send(result_of(answer))


def _innocent_calls(client: Client) -> _Calls:
    """Yield the calls of an innocent client, and check their answers."""
    program = yield messages.Create(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, data=b"pass")
    assert isinstance(program, messages.Created), program
    while True:
        stat = yield messages.Stat(client.self_ref)
        assert isinstance(stat, messages.References), stat
        created = yield messages.Create(ObjectType.SHMEM_BLOB, (client.groups[0],))
        assert isinstance(created, messages.Created), created
        ref = created.reference.ref
        wrote = yield messages.WriteOnce(ref, b"innocent")
        assert isinstance(wrote, messages.Committed), wrote
        assert created.name is not None
        answer = yield messages.Lookup(created.name)
        assert isinstance(answer, messages.References), answer
        assert [reference.object for reference in answer.references] == [created.reference.object]
        yield messages.Delete(answer.references[0].ref)
        gone = yield messages.Delete(ref, int(Flag.DESTROY))
        assert isinstance(gone, messages.Done), gone
        ran = yield messages.Run(program.reference.ref)
        assert isinstance(ran, messages.Created), ran
        ended = yield messages.Select((ran.reference.ref,))
        assert ended == messages.Selected(0)
        yield messages.Delete(ran.reference.ref, int(Flag.HANDLE_ONLY))


def result_of(answer: object) -> AnyResult:
    """Return the message that the host would send for an answer."""
    if isinstance(answer, effects.AnswerVector):
        return messages.Results(tuple(result_of(part) for part in answer.parts))  # type: ignore[misc]
    return cast("AnyResult", getattr(answer, "result", answer))


def _welcome(outcome: effects.Outcome, task: TaskId) -> messages.Welcome:
    for effect in outcome.after:
        if isinstance(effect, effects.Answer) and effect.task == task:
            assert isinstance(effect.result, messages.Welcome), effect.result
            return effect.result
    raise AssertionError("a session was not welcomed")


def drive(busy: BusyNode, kind: str, lines: int, parts: int, count: int = 2) -> None:
    """Let neighbours of one kind work in turns for a number of lines, and at most ``parts`` of each."""
    owner = KINDS[kind].owner
    principal = Principal("uid:1000") if owner else GREEDY
    working = deque(KINDS[kind].kind(CoreGreedy(busy, principal)) for _ in range(count))
    for _ in range(parts * count):
        next(working[0])
        working.rotate()
        if busy.lines > lines:
            break
    while busy.innocent.runs < RUNS_MIN:
        busy.end_turn()
