"""Rates: who is held up for how long, who is not, and meters that count what really moved."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import trio

from dios import limits
from dios.core.effects import SetRates
from dios.host.bandwidth.rates import Charge, Rates
from dios.ids import TaskId
from dios.wire.messages import Meter, Metered, Rate
from dios.wire.rates import UNMEASURED
from dios.wire.types import Traffic

GREEDY, MODEST = "uid:1", "uid:2"
PIECE = limits.DATA_PIECE_BYTES
SLOW = limits.RATE_BYTES_S_MIN
S = 1_000_000_000
WAIT_S = 10.0
KNOWN = (10**9, 10**9, 10**8)
ASKED = Metered(7, (), UNMEASURED, 3, b"shares")


class FakeClock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 5 * S

    def __call__(self) -> int:
        """Nanoseconds."""
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    """Stands still until it is moved."""
    return FakeClock()


@pytest.fixture
def rates(clock: FakeClock) -> Rates:
    """Nobody has a rate, and people have said what link and store carry."""
    return Rates(KNOWN, now=clock)


def told(principal: str, bytes_s: int = SLOW, traffic: Traffic = Traffic.OUT) -> Rate:
    """One rate."""
    return Rate(principal, traffic, bytes_s)


def never() -> bool:
    """The connection stands."""
    return False


class Taker:
    """A thread that takes pieces of a principal's until it has so many, or is to end."""

    def __init__(self, rates: Rates, principal: str, pieces: int) -> None:
        self.taken = 0
        self.ended = False
        self.refused = False
        self._charge = Charge(rates, principal, Traffic.OUT, pieces * PIECE)
        self._pieces = pieces
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for _ in range(self._pieces):
            if not self._charge.take(PIECE, lambda: self.ended):
                self.refused = True
                break
            self.taken += 1
            self._charge.went(PIECE)
        self._charge.close()

    def join(self) -> bool:
        """Whether it is done."""
        self.thread.join(WAIT_S)
        return not self.thread.is_alive()


def waits(condition: Callable[[], bool]) -> None:
    """Wait until something another thread does is done."""
    event = threading.Event()
    for _ in range(int(WAIT_S * 1000)):
        if condition():
            return
        event.wait(0.001)
    raise AssertionError("it never came to be")


def test_nobody_waits_who_has_no_rate(rates: Rates) -> None:
    """Without rates, and beside the rates of others, a principal takes what it wants at a standing clock."""
    assert Taker(rates, MODEST, 100).join()
    rates.set(SetRates((told(GREEDY),), 1_000))
    assert Taker(rates, MODEST, 100).join()
    assert not rates.paced(MODEST, Traffic.OUT)
    assert rates.paced(GREEDY, Traffic.OUT)
    assert not rates.paced(GREEDY, Traffic.STORE)


def test_a_limited_principal_waits_for_its_bytes(rates: Rates, clock: FakeClock) -> None:
    """At a standing clock it gets one piece, and the next each time its rate has given one."""
    rates.set(SetRates((told(GREEDY, 4 * PIECE),), 60_000))
    taker = Taker(rates, GREEDY, 4)
    for pieces in range(1, 5):
        waits(lambda: taker.taken == pieces)  # noqa: B023 - called before the loop goes on
        clock.now += S // 4 - 1
        rates.wake()
        assert not (pieces < 4 and taker.taken > pieces), "not yet"
        clock.now += 1
        rates.wake()
    assert taker.join()


def test_a_lease_that_runs_out_lifts_its_rates(rates: Rates, clock: FakeClock) -> None:
    """Who waits when a lease is over waits no longer, and nobody is limited from then on."""
    rates.set(SetRates((told(GREEDY),), 1_000))
    taker = Taker(rates, GREEDY, 1_000)
    waits(lambda: taker.taken == 1)
    clock.now += 1_000 * 1_000_000
    rates.wake()
    assert taker.join()
    assert taker.taken == 1_000
    assert not rates.paced(GREEDY, Traffic.OUT)


def test_rates_that_are_told_anew_hold_at_once(rates: Rates) -> None:
    """Who waits goes on when its rate is taken away; and no debt is forgotten where it is only renewed."""
    rates.set(SetRates((told(GREEDY),), 60_000))
    taker = Taker(rates, GREEDY, 1_000)
    waits(lambda: taker.taken == 1)
    for _ in range(50):
        rates.set(SetRates((told(GREEDY),), 60_000))
    assert taker.taken == 1, "telling the same again gives nothing"
    rates.set(SetRates((), 60_000))
    assert taker.join()


def test_a_connection_that_is_closed_waits_for_nothing(rates: Rates) -> None:
    """Closing wakes who waits for its rate; what it did not move it wants no longer."""
    rates.set(SetRates((told(GREEDY),), 60_000))
    taker = Taker(rates, GREEDY, 10)
    waits(lambda: taker.taken == 1)
    assert rates.completed(ASKED).meters == (Meter(GREEDY, Traffic.OUT, PIECE, 9 * PIECE),)
    taker.ended = True
    rates.wake()
    assert taker.join()
    assert taker.refused
    assert rates.completed(ASKED).meters == (Meter(GREEDY, Traffic.OUT, PIECE, 0),)


def test_no_rate_is_so_low_that_calls_wait_for_ever(rates: Rates, clock: FakeClock) -> None:
    """A rate of nothing is a piece a second."""
    rates.set(SetRates((told(GREEDY, 0),), 60_000))
    taker = Taker(rates, GREEDY, 2)
    waits(lambda: taker.taken == 1)
    clock.now += S * PIECE // SLOW
    rates.wake()
    assert taker.join()


async def test_a_debt_is_waited_off_in_the_loop(rates: Rates, clock: FakeClock) -> None:
    """Who has stored more than its rate gives waits, and is seen to want more; who has not goes on."""
    rates.set(SetRates((told(GREEDY, SLOW, Traffic.STORE),), 60_000))
    stored = Charge(rates, GREEDY, Traffic.STORE, 3 * SLOW)
    rates.spend(GREEDY, Traffic.STORE, 3 * SLOW)
    rates.spend(MODEST, Traffic.STORE, 3 * SLOW)
    stored.went(3 * SLOW)
    passed: list[str] = []

    async def store(principal: str) -> None:
        await rates.wait_for_credit(principal, Traffic.STORE, never)
        passed.append(principal)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store, GREEDY)
        nursery.start_soon(store, MODEST)
        await trio.testing.wait_all_tasks_blocked()
        assert passed == [MODEST]
        assert rates.completed(ASKED).meters == (Meter(GREEDY, Traffic.STORE, 3 * SLOW, 3 * SLOW),)
        clock.now += 2 * S
        rates.set(SetRates((told(GREEDY, SLOW, Traffic.STORE),), 60_000))
        await trio.testing.wait_all_tasks_blocked()
        assert passed == [MODEST]
        rates.set(SetRates((), 60_000))
    assert passed == [MODEST, GREEDY]
    assert rates.completed(ASKED).meters == (Meter(GREEDY, Traffic.STORE, 3 * SLOW, 0),)


def test_an_answer_keeps_what_the_core_said(rates: Rates) -> None:
    """Only meters and capacity are the host's."""
    Charge(rates, MODEST, Traffic.IN, 5).went(2)
    answer = rates.completed(ASKED)
    assert (answer.node, answer.shares_version, answer.shares) == (7, 3, b"shares")
    assert answer.meters == (Meter(MODEST, Traffic.IN, 2, 3),)
    assert answer.capacity == KNOWN
    assert Rates().completed(ASKED).capacity == (0, 0, 0)


def test_where_nobody_said_what_a_link_carries_it_can_show(clock: FakeClock) -> None:
    """Over a rate that was made of what was seen a little more goes; with room, more is seen next."""
    rates = Rates(now=clock)
    over = SLOW * (100 + limits.RATE_PROBE_PERCENT) // 100
    rates.set(SetRates((told(GREEDY),), 60_000))
    taker = Taker(rates, GREEDY, 100)
    waits(lambda: taker.taken == 1)
    for tenth in range(1, 111):
        clock.now += S // 10
        rates.wake()
        waits(lambda: taker.taken == 1 + tenth * over // 10 // PIECE)  # noqa: B023 - called before the loop goes on
        rates.completed(ASKED)
    assert rates.completed(ASKED).capacity[Traffic.OUT] > SLOW
    rates.set(SetRates((), 60_000))
    assert taker.join()


def test_what_could_be_moved_is_seen_while_somebody_waits(clock: FakeClock) -> None:
    """The highest rate over a second with work is told; a second with little of it says nothing."""
    rates = Rates(now=clock)

    def second(size: int, busy: int) -> int:
        charge = Charge(rates, MODEST, Traffic.OUT, size)
        clock.now += S * busy // 100
        charge.went(size)
        charge.close()
        clock.now += S * (100 - busy) // 100
        return rates.completed(ASKED).capacity[Traffic.OUT]

    assert second(9_000_000, 50) == 0, "half of the time nothing waited"
    assert second(3_000_000, 100) == 3_000_000
    assert second(2_000_000, 95) == 3_000_000
    assert second(7_000_000, 95) == 7_000_000
    clock.now += S // 2
    Charge(rates, MODEST, Traffic.OUT, 10**9).went(10**9)
    assert rates.completed(ASKED).capacity[Traffic.OUT] == 7_000_000, "half a second is too short a look"


def test_meters_are_bounded(rates: Rates) -> None:
    """However many principals there are, those who moved least and want nothing are forgotten first."""
    Charge(rates, GREEDY, Traffic.OUT, 5).went(5)
    wanting = Charge(rates, MODEST, Traffic.OUT, 5)
    for number in range(limits.RATES_METERED_MAX + 100):
        Charge(rates, f"uid:{number + 10}", Traffic.OUT, 1).went(1)
    meters = rates.completed(ASKED).meters
    assert len(meters) == limits.RATES_METERED_MAX
    assert {GREEDY, MODEST} <= {meter.principal for meter in meters}
    wanting.close()


def test_another_nodes_meters_stay_its_own() -> None:
    """An answer that came from another node has its meters already, and none of this one's are put there."""
    rates = Rates()
    rates.begin("uid:1", Traffic.OUT, 5)
    theirs = Metered(7, (Meter("uid:2", Traffic.STORE, 9, 0),), (0, 0, 3), 0, b"")
    assert rates.completed(theirs) == theirs
    nothing = Metered(7, (), (0, 0, 0), 0, b"")
    assert rates.completed(nothing) == nothing


def test_a_task_is_held_to_its_own_rate(rates: Rates, clock: FakeClock) -> None:
    """Bytes of both directions count; another task of the user, without a rate, does not wait."""
    mine, other = TaskId(5), TaskId(6)
    rates.limit_task(mine, 4 * PIECE)
    Charge(rates, GREEDY, Traffic.IN, PIECE, mine).went(PIECE)
    assert rates.is_task_in_debt(mine)
    taken: list[bool] = []
    charge = Charge(rates, GREEDY, Traffic.OUT, PIECE, mine)
    thread = threading.Thread(target=lambda: taken.append(charge.take(PIECE, never)), daemon=True)
    thread.start()
    assert Charge(rates, GREEDY, Traffic.OUT, PIECE, other).take(PIECE, never)
    clock.now += S // 4 - 1
    rates.wake()
    assert rates.is_task_in_debt(mine)
    assert not taken, "not yet"
    clock.now += 1
    rates.wake()
    waits(lambda: taken == [True])
    assert rates.is_task_in_debt(mine)
    rates.end_task(mine)
    assert charge.take(PIECE, never), "nobody waits for a task that has ended"


def test_what_a_task_leaves_in_a_stream_keeps_its_rate(rates: Rates, clock: FakeClock) -> None:
    """The end of the task lifts the rate of its transfers, and not that of the bytes in its rings."""
    rates.limit_task(TaskId(5), 4 * PIECE)
    rate = rates.task_rate(TaskId(5))
    assert rates.take_for_task(rate, PIECE, never)
    rates.end_task(TaskId(5))
    assert rates.take_for_task(rate, 0, never)
    asked: list[int] = []

    def ended() -> bool:
        clock.now += S // 8
        asked.append(clock.now)
        return len(asked) > 5

    assert rates.take_for_task(rate, PIECE, ended, beyond_end=True)
    assert len(asked) == 2
