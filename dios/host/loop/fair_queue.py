"""Turns at what is slow: large copies run in few threads, and everybody who waits gets one after another.

Not for: what is copied, or in which order effects of one object take place (``dios.host.loop.effector``).

A copy takes as long as it is large, and who asks for many large ones must not make others wait for all of
them. So a task has one at a time, turns go around among principals, and among the tasks of each.

A principal that has a rate takes as long as its rate is low, and however few turns it had, it would have
them for so long that others, with rates or without, waited for it. So it has one at a time, beside those that
the others have. To whom something is promised, it has one beside all of those.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol, TypeAlias

from dios import limits
from dios.core.effects import Outcome, Spawn
from dios.core.events import Called, Disconnected, Event, SessionOpened, TaskEnded
from dios.host.bandwidth.accounts import Account
from dios.ids import Principal, TaskId
from dios.wire import messages

Begin: TypeAlias = Callable[[], None]
Is: TypeAlias = Callable[[Account], bool]


class Whose(Protocol):
    """Tells for whom a task acts."""

    def of(self, task: TaskId) -> Account:
        """The account among whose like turns go around."""
        ...


_NOBODY: Final = Principal("")
_STARTS: Final[frozenset[type]] = frozenset({messages.Run, messages.Vector})


class Owners:
    """The principal that each task and session acts for, as far as events and effects tell (§3.2.2.1)."""

    def __init__(self) -> None:
        self._principals: Final[dict[TaskId, Principal]] = {}

    def __len__(self) -> int:
        return len(self._principals)

    def of(self, task: TaskId) -> Principal:
        """Its principal; an empty one where nobody knows."""
        return self._principals.get(task, _NOBODY)

    def add(self, task: TaskId, principal: str) -> None:
        """A task of another node is served here from now on, for this principal."""
        self._principals[task] = Principal(principal)

    def remove(self, task: TaskId) -> None:
        """It is not any more."""
        self._principals.pop(task, None)

    def note(self, event: Event, outcome: Outcome) -> None:
        """Learn who begins and who ends. Every call comes by here, and most do neither."""
        if isinstance(event, Called):
            if type(event.call) in _STARTS:
                self._note_children(event, outcome)
        elif isinstance(event, SessionOpened):
            self._principals[event.task] = event.principal
        elif isinstance(event, Disconnected | TaskEnded):
            self._principals.pop(event.task, None)

    def _note_children(self, event: Called, outcome: Outcome) -> None:
        for effect in outcome.after:
            if type(effect) is Spawn:
                # A task acts for whoever started it.
                self._principals[effect.task] = self.of(event.task)


class Turns:
    """Who waits for a turn. ``begin`` of each is called when it is its turn; then ``ended`` must be.

    Of accounts that are not ``paced`` there are ``at_once`` turns at a time, of these and the paced ones
    together ``at_most``; beside them ``promised_most`` of the paced ones that are ``promised`` theirs.
    """

    def __init__(
        self,
        owners: Whose,
        at_once: int = limits.COPIES_AT_ONCE_MAX,
        *,
        at_most: int = 0,
        paced: Is | None = None,
        promised: Is = lambda _: False,
        promised_most: int = 0,
    ) -> None:
        self._owners: Final = owners
        self._at_once: Final = at_once
        self._at_most: Final = max(at_once, at_most)
        self._paced: Final = paced
        self._promised: Final = promised
        self._promised_most: Final = promised_most
        self._waiting: Final[dict[TaskId, deque[Begin]]] = {}
        self._running: Final[set[TaskId]] = set()
        # When each had a turn last, as the number of that turn; who had none comes first.
        self._turn = 0
        self._turns_of: Final[dict[Account, int]] = {}
        self._turns_of_tasks: Final[dict[TaskId, int]] = {}

    def ask(self, task: TaskId, begin: Begin) -> None:
        """``task`` wants a turn; it may be its turn at once."""
        self._waiting.setdefault(task, deque()).append(begin)
        self.go_on()

    def ended(self, task: TaskId) -> None:
        """The turn of ``task`` is over."""
        self._running.discard(task)
        if task not in self._waiting:
            self._turns_of_tasks.pop(task, None)
        self.go_on()

    def go_on(self) -> None:
        """Somebody has a turn now, perhaps: another one's is over, or rates have changed."""
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
        found: list[TaskId] = []
        for task in able:
            account = self._owners.of(task)
            if not self._paced(account):
                free = at_once
            else:
                free = (room_for_promised if self._promised(account) else room) and account not in busy
            if free:
                found.append(task)
        return found

    def _last_turn(self, task: TaskId) -> tuple[int, int]:
        return self._turns_of.get(self._owners.of(task), 0), self._turns_of_tasks.get(task, 0)
