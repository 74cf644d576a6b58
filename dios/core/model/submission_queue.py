"""The board of a node: what waits for its place, and what whoever schedules needs to know (thesis ch. 6).

Not for: the calls about it (``dios.core.calls.scheduling_calls``), or deciding (``dios.firmament``). The
board knows no
policy: runs wait on it while somebody attends to it, and are placed once.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from dios import limits
from dios.core.model.pending import Pending
from dios.core.model.recipes import ChildIdentity
from dios.errors import WouldBlockError
from dios.ids import Principal, TaskId
from dios.wire import messages
from dios.wire.nametext import fingerprint
from dios.wire.types import Cause, TaskState

if TYPE_CHECKING:
    from dios.core.model.state import State
    from dios.core.model.tasks import Task
    from dios.core.step import Step

_MS: Final = 1_000_000


class Waiting(Struct):
    """A run that waits for its place."""

    row: Pending
    call: messages.Run
    chosen: ChildIdentity
    fingerprint: str
    since: int


class SchedulerQuestion(Struct, frozen=True):
    """A question to whoever schedules, and the call that waits for the answer."""

    row: Pending
    asked: messages.Asked


class SubmissionQueue:
    """What is on it, and a version that counts its changes.

    ``attended_until`` is the time by which whoever schedules has to ask again; ``own_until`` the same for
    this node's own coordinator, which need not be the one that schedules. ``shares`` are those that
    coordinators told last, and ``shares_since`` the version of the board before them.
    """

    __slots__ = (
        "answers",
        "attended_until",
        "by_call",
        "ended",
        "next_question",
        "next_report",
        "own_until",
        "questions",
        "reports",
        "shares",
        "shares_since",
        "shares_version",
        "version",
        "waiters",
        "waiting",
    )

    def __init__(self) -> None:
        self.version = 1
        self.waiting: dict[TaskId, Waiting] = {}
        self.by_call: dict[tuple[int, int], TaskId] = {}
        self.ended: deque[messages.Occupant] = deque(maxlen=limits.BOARD_ENDED_KEPT)
        self.questions: dict[int, SchedulerQuestion] = {}
        self.answers: dict[int, list[bytes]] = {}
        self.reports: deque[tuple[int, bytes]] = deque(maxlen=limits.BOARD_REPORTS_KEPT)
        self.waiters: dict[tuple[int, int], Pending] = {}
        self.next_question = 1
        self.next_report = 1
        self.attended_until = 0
        self.own_until = 0
        self.shares_version = 0
        self.shares = b""
        self.shares_since = 0

    def attended(self, now: int) -> bool:
        """Whether somebody schedules what waits here."""
        return now < self.attended_until

    def renew(self, now: int, wait_ms: int, *, attend: bool, own: bool) -> None:
        """Whoever asks lives: at least until the lease after the answer is over."""
        until = now + (wait_ms + limits.BOARD_LEASE_MS) * _MS
        if attend:
            self.attended_until = until
        if own:
            self.own_until = until

    def keep_shares(self, version: int, shares: bytes) -> bool:
        """Keep these where they are newer than those here; whether they are."""
        if version <= self.shares_version:
            return False
        self.shares_version, self.shares, self.shares_since = version, shares, self.version
        return True

    def put(self, one: Waiting) -> None:
        """Let a run wait; one that waits already keeps its place in the order."""
        self.waiting[one.chosen.task] = one
        self.by_call[one.row.key] = one.chosen.task

    def take(self, one: Waiting) -> None:
        """A run waits no longer."""
        del self.waiting[one.chosen.task], self.by_call[one.row.key]

    def of_call(self, row: Pending) -> Waiting | None:
        """The run that waits by this very call."""
        one = self.waiting.get(self.by_call.get(row.key, TaskId(0)))
        return one if one is not None and one.row is row else None

    def tidy(self, state: State) -> None:
        """Forget what nobody waits for any more: callers end, and calls are cancelled."""
        for one in [one for one in self.waiting.values() if not state.pending.has(one.row)]:
            self.take(one)
        for number in [number for number, one in self.questions.items() if not state.pending.has(one.row)]:
            del self.questions[number]
            self.answers.pop(number, None)
        self.waiters = {key: row for key, row in self.waiters.items() if state.pending.has(row)}


def changed(step: Step) -> None:
    """Something on the board is new: who waits for that looks again."""
    board = step.state.board
    board.version += 1
    if board.waiters:
        step.wake.update(board.waiters)


def wait(
    step: Step, task: Task, seq: int, call: messages.Run, chosen: ChildIdentity, since: int | None = None
) -> None:
    """Let a run wait for its place; also again, when a node had no room for it after all (§6.5.1)."""
    began = step.now if since is None else since
    row = _row(step, task, seq, call)
    step.wait(row)
    step.state.board.put(Waiting(row, call, chosen, fingerprint(chosen.name), began))
    changed(step)


def wait_on(step: Step, one: Waiting) -> None:
    """The time to look whether anybody schedules has come, and somebody does: the next one."""
    step.state.pending.remove(one.row)
    one.row = _row(step, one.row.task, one.row.seq, one.call)
    step.wait(one.row)


def _row(step: Step, task: Task, seq: int, call: messages.Run) -> Pending:
    lease = max(step.state.board.attended_until, step.now + limits.BOARD_LEASE_MS * _MS)
    return Pending(task, seq, call, (), lease)


def require_fit(step: Step, work: messages.Work) -> None:
    """What is set aside here, with this, is no more than the machine has; WouldBlockError otherwise."""
    cluster = step.state.cluster
    if cluster is None or not work.reserves:
        return
    running = [other.recipe.work for other in step.state.tasks.values() if other.alive and other.recipe]
    here = cluster.here
    cpus = work.cpus_milli + sum(one.cpus_milli for one in running)
    memory = work.memory_bytes + sum(one.memory_bytes for one in running)
    if cpus > here.cpus * 1000 or (here.memory_bytes and memory > here.memory_bytes):
        raise WouldBlockError(
            f"node {here.name} has {here.cpus} processors and {here.memory_bytes} bytes of memory; with "
            f"this task {cpus / 1000:g} and {memory} would be set aside"
        )


def waiting_rows(state: State, principal: Principal) -> tuple[messages.TaskRow, ...]:
    """The runs of a principal that wait here, as `dios ps` shows them."""
    return tuple(
        messages.TaskRow(
            None,
            one.fingerprint,
            one.call.label,
            TaskState.WAITING,
            one.call.brand,
            principal,
            0,
            one.since,
            0,
            Cause.NONE,
            0,
            0,
            "",
            one.row.task.object.fingerprint,
            state.place,
        )
        for one in state.board.waiting.values()
        if one.row.task.principal == principal and state.pending.has(one.row)
    )


def note_end(step: Step, task: Task) -> None:
    """A task of this node has ended: whoever schedules learns with what it used."""
    if not task.is_session and not task.home:
        step.state.board.ended.append(occupant(task, step.now))
        changed(step)


def occupant(task: Task, now: int) -> messages.Occupant:
    """A task as the board shows it."""
    recipe = task.recipe
    until = task.ended_ns or now
    return messages.Occupant(
        task.id,
        task.object.fingerprint,
        task.label[: limits.BOARD_LABEL_CHARS_MAX],
        task.principal,
        task.state,
        task.pid,
        max(0, until - task.started_ns) // _MS,
        messages.Work() if recipe is None else replace(recipe.work, near=(), constraints=()),
        task.cpu_ms,
        task.memory_bytes,
        task.cause is Cause.EXITED and task.exit_code == 0,
    )
