"""A fair queue for large copies and for starts of processes: few run at a time, and principals take turns.

The duration of a copy grows with its size, and a task with many large copies must not delay the copies of
all others. Therefore a task has one turn at a time; turns alternate among principals, and among the tasks
of each principal.

A copy of a principal with a rate lasts longer the lower its rate is. A few such copies would occupy all turns
for a long time. Therefore such a principal has one turn at a time, in addition to the turns of the others. A
principal with a guarantee has one turn in addition to all of those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from dios import limits
from dios.core.effects import Outcome, Spawn
from dios.core.events import Disconnected, Event, SessionOpened, TaskEnded
from dios.host.bandwidth.accounts import Account
from dios.host.handover import format as form
from dios.ids import Principal, TaskId

TurnCallback: TypeAlias = Callable[[], None]
AccountPredicate: TypeAlias = Callable[[Account], bool]


class AccountLookup(Protocol):
    """A map from tasks to the accounts that their turns count for."""

    def of(self, task: TaskId) -> Account:
        """Return the account of a task. Turns alternate among accounts."""


_NOBODY: Final = Principal("")
NO_ID: Final = TaskId(0)


class TaskPrincipals:
    """The principal of each task and session, learned from events and effects (§3.2.2.1)."""

    def __init__(self) -> None:
        self._principals: Final[dict[TaskId, Principal]] = {}
        self._home_ids: Final[dict[TaskId, TaskId]] = {}

    def __len__(self) -> int:
        return len(self._principals)

    def of(self, task: TaskId) -> Principal:
        """Return the principal of a task, or an empty one if it is unknown."""
        return self._principals.get(task, _NOBODY)

    def home_id(self, task: TaskId) -> TaskId:
        """Return the id of a task on its own node, by which guarantees name it."""
        return self._home_ids.get(task, task)

    def hand_over(self) -> tuple[form.Owner, ...]:
        """Describe all tasks for the successor of this process."""
        return tuple(
            form.Owner(task, principal, self._home_ids.get(task, NO_ID))
            for task, principal in self._principals.items()
        )

    def add(self, task: TaskId, principal: str, home_id: TaskId = NO_ID) -> None:
        """Register a task of another node, for which this node works from now on."""
        self._principals[task] = Principal(principal)
        if home_id:
            self._home_ids[task] = home_id

    def remove(self, task: TaskId) -> None:
        """Forget a task of another node."""
        self._principals.pop(task, None)
        self._home_ids.pop(task, None)

    def note(self, event: Event, outcome: Outcome) -> None:
        """Learn from a step which tasks began or ended. Every call passes here, and most do neither.

        Any event may begin a task: a run waits until there is room for it, or until a scheduler places it.
        """
        for effect in outcome.after:
            if type(effect) is Spawn:
                self._principals[effect.task] = effect.principal
        if isinstance(event, SessionOpened):
            self._principals[event.task] = event.principal
        elif isinstance(event, Disconnected | TaskEnded):
            self._principals.pop(event.task, None)


class FairQueue:
    """A fair queue. It calls ``begin`` when a turn starts; the caller then calls ``ended``.

    At most ``at_once`` turns of accounts that are not ``paced`` run at a time, and at most ``at_most`` of
    these and the paced ones together. In addition, ``promised_most`` turns are reserved for paced accounts
    that are ``promised`` a guarantee.
    """

    def __init__(
        self,
        owners: AccountLookup,
        at_once: int = limits.COPIES_AT_ONCE_MAX,
        *,
        at_most: int = 0,
        paced: AccountPredicate | None = None,
        promised: AccountPredicate = lambda _: False,
        promised_most: int = 0,
    ) -> None:
        self._owners: Final = owners
        self._at_once: Final = at_once
        self._at_most: Final = max(at_once, at_most)
        self._paced: Final = paced
        self._promised: Final = promised
        self._promised_most: Final = promised_most
        self._waiting: Final[dict[TaskId, deque[TurnCallback]]] = {}
        self._running: Final[set[TaskId]] = set()
        # The number of the last turn of each account and task; those without a turn so far come first.
        self._turn = 0
        self._turns_of: Final[dict[Account, int]] = {}
        self._turns_of_tasks: Final[dict[TaskId, int]] = {}

    @property
    def any_waits(self) -> bool:
        """True if a turn was requested and has not started."""
        return bool(self._waiting)

    def request_turn(self, task: TaskId, begin: TurnCallback) -> None:
        """Queue a turn for ``task``. The turn may start before this returns."""
        self._waiting.setdefault(task, deque()).append(begin)
        self.start_ready()

    def end_turn(self, task: TaskId) -> None:
        """End the turn of ``task`` and start the next ones."""
        self._running.discard(task)
        if task not in self._waiting:
            self._turns_of_tasks.pop(task, None)
        self.start_ready()

    def start_ready(self) -> None:
        """Start every turn that may run now: call this when a turn ended or rates changed."""
        while self._waiting:
            able = self._able()
            if not able:
                return
            task = min(able, key=self._last_turn)
            asked = self._waiting[task]
            begin = asked.popleft()
            if not asked:
                del self._waiting[task]
            self._turn += 1
            self._turns_of[self._owners.of(task)] = self._turns_of_tasks[task] = self._turn
            self._running.add(task)
            begin()

    def _able(self) -> list[TaskId]:
        able = [task for task in self._waiting if task not in self._running]
        if self._paced is None:
            return able if len(self._running) < self._at_once else []
        busy = [self._owners.of(task) for task in self._running]
        promised = sum(map(self._promised, busy))
        room = len(busy) - promised < self._at_most
        room_for_promised = promised < self._promised_most
        at_once = room and sum(not self._paced(account) for account in busy) < self._at_once
        startable: list[TaskId] = []
        for task in able:
            account = self._owners.of(task)
            if not self._paced(account):
                free = at_once
            else:
                free = (room_for_promised if self._promised(account) else room) and account not in busy
            if free:
                startable.append(task)
        return startable

    def _last_turn(self, task: TaskId) -> tuple[int, int]:
        return self._turns_of.get(self._owners.of(task), 0), self._turns_of_tasks.get(task, 0)
