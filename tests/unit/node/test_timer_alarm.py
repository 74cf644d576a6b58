"""The timer of the core: it rings at the time that was requested last."""

from __future__ import annotations

from dataclasses import dataclass, field

import trio
from trio.testing import MockClock

from dios.core.events import Event
from dios.host.loop.clock import Clock
from dios.node.assembly import TimerAlarm

_S = 1_000_000_000


class VirtualClock(Clock):
    """A clock that shows the virtual time of the test's loop."""

    def __init__(self) -> None:
        super().__init__()
        self._began = trio.current_time()

    def now(self) -> int:
        """Return the nanoseconds since the clock was made."""
        return round((trio.current_time() - self._began) * _S)


@dataclass
class Ringing:
    """An alarm that runs, and the seconds at which it has rung."""

    nursery: trio.Nursery
    times: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = VirtualClock()
        self.alarm = TimerAlarm(self.clock)
        self.nursery.start_soon(self.alarm.run, self.note)

    def note(self, event: Event) -> None:
        """Record that it rings."""
        self.times.append(event.now // _S)

    async def until(self, second: int) -> list[int]:
        """Return the seconds at which it has rung until then."""
        await trio.sleep(second - self.clock.now() / _S)
        return self.times


async def test_the_last_request_counts(autojump_clock: MockClock) -> None:
    """A time that is moved later passes in silence; one that is moved earlier rings then; none never does."""
    del autojump_clock
    async with trio.open_nursery() as nursery:
        ringing = Ringing(nursery)
        await trio.testing.wait_all_tasks_blocked()
        for moved in (5, 9, 7):
            ringing.alarm.set(moved * _S)
        assert await ringing.until(20) == [7]
        for moved in (30, 40):
            ringing.alarm.set(moved * _S)
        assert await ringing.until(35) == [7]
        ringing.alarm.set(38 * _S)
        assert await ringing.until(60) == [7, 38]
        ringing.alarm.set(70 * _S)
        ringing.alarm.set(None)
        assert await ringing.until(90) == [7, 38]
        nursery.cancel_scope.cancel()
