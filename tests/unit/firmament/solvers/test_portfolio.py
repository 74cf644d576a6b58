from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from dios.errors import InvariantError
from dios.firmament.solvers import (
    FlowProblem,
    FlowSolution,
    OutOfRangeError,
    algorithms,
    certificate,
    cost_scaling,
    relaxation,
    solve,
    successive_shortest,
)
from dios.firmament.solvers.columns import Ints
from dios.firmament.solvers.errors import StoppedError
from dios.firmament.solvers.portfolio import (
    RACE_EVERY,
    WINS_TRUSTED,
    Portfolio,
    RaceLostError,
    Racer,
    _racer_slots,
    race,
)
from dios.limits import FLOW_RACERS_MAX, FLOW_TIMINGS_KEPT
from tests.support.firmament.flow_networks import network, problem_of

PATIENCE_SECONDS = 30
PROBLEM = problem_of([2, 0, -2], [(0, 1, 0, 2, 1), (1, 2, 0, 1, 1), (0, 2, 0, 2, 5)])


def quick(problem: FlowProblem, _: Ints) -> FlowSolution:
    """A racer that answers."""
    return successive_shortest.run(problem)


def until(true: Callable[[], bool]) -> bool:
    """Return True if a condition becomes true within the time limit."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def dawdle(_: FlowProblem, stop: Ints) -> FlowSolution:
    """A racer that never finishes, but stops on request."""
    until(lambda: bool(stop[0]))
    raise StoppedError("asked to stop" if stop[0] else "never asked to stop")


def refuse(_: FlowProblem, __: Ints) -> FlowSolution:
    """A racer that cannot."""
    raise OutOfRangeError("numbers too large")


def all_places_are_free() -> bool:
    """Return True if no racer runs: all slots can be acquired."""
    taken = 0
    while taken < FLOW_RACERS_MAX and _racer_slots.acquire(blocking=False):
        taken += 1
    for _ in range(taken):
        _racer_slots.release()
    return taken == FLOW_RACERS_MAX


def test_a_race_answers_as_any_algorithm_does() -> None:
    """On 40 random networks the algorithm "race" answers rightly, and says who was first."""
    assert "race" in algorithms()
    for seed in range(40):
        problem = network(seed)
        solution, expected = solve(problem, "race"), solve(problem, "ortools")
        assert solution.status == expected.status, f"seed {seed}"
        assert solution.status != "optimal" or solution.cost == expected.cost, f"seed {seed}"
        certificate(problem, solution)
        assert solution.algorithm in {"relaxation", "cost_scaling"}, f"seed {seed}: {solution.algorithm}"
    assert until(all_places_are_free)


def test_the_first_to_answer_wins_and_the_others_are_asked_to_stop() -> None:
    """A race does not wait for a slow algorithm, which is stopped and frees its slot."""
    told: list[bool] = []

    def slow(problem: FlowProblem, stop: Ints) -> FlowSolution:
        told.append(until(lambda: bool(stop[0])))
        return quick(problem, stop)

    solution = race(PROBLEM, {"slow": slow, "quick": quick})
    assert solution.cost == 7
    assert until(all_places_are_free)
    assert told == [True]


@pytest.mark.parametrize("algorithm", [relaxation.run, cost_scaling.run])
def test_the_racers_of_the_thesis_can_be_stopped(
    algorithm: Callable[[FlowProblem, Ints], FlowSolution],
) -> None:
    """Relaxation and cost scaling end without an answer once nobody wants it."""
    stop: Ints = PROBLEM.supply * 0 + 1
    with pytest.raises(StoppedError):
        algorithm(PROBLEM, stop)
    assert algorithm(PROBLEM, stop * 0).cost == 7


def test_an_algorithm_that_fails_does_not_lose_the_race() -> None:
    """The answer of one stands, whatever the other says."""
    for order in (("bad", "good"), ("good", "bad")):
        racers: dict[str, Racer] = {"bad": refuse, "good": quick}
        assert race(PROBLEM, {name: racers[name] for name in order}).cost == 7


def test_when_all_fail_all_are_told() -> None:
    """An error says what each algorithm said; that of a single one is raised as it is."""
    with pytest.raises(RaceLostError) as raised:
        race(PROBLEM, {"one": refuse, "two": refuse})
    assert "one: numbers too large" in raised.value.message
    assert "two: numbers too large" in raised.value.message
    with pytest.raises(OutOfRangeError):
        race(PROBLEM, {"one": refuse})
    with pytest.raises(RaceLostError, match="at least one"):
        race(PROBLEM, {})


def test_a_broken_invariant_is_no_lost_race() -> None:
    """A defect of an algorithm reaches the caller, although another might have answered."""

    def broken(_: FlowProblem, __: Ints) -> FlowSolution:
        raise InvariantError("the flow was lost")

    with pytest.raises(InvariantError, match="the flow was lost"):
        race(PROBLEM, {"broken": broken, "slow": dawdle})
    assert until(all_places_are_free)


def test_no_more_racers_run_than_there_are_places() -> None:
    """Beyond the bound a race has fewer algorithms, but always one."""
    ran: list[str] = []
    go = threading.Event()

    def named(name: str) -> Racer:
        def racer(problem: FlowProblem, stop: Ints) -> FlowSolution:
            ran.append(name)
            assert go.wait(PATIENCE_SECONDS)
            return quick(problem, stop)

        return racer

    assert until(all_places_are_free)
    runners = {str(number): named(str(number)) for number in range(FLOW_RACERS_MAX + 3)}
    answers: list[FlowSolution] = []
    first = threading.Thread(target=lambda: answers.append(race(PROBLEM, runners)))
    first.start()
    assert until(lambda: len(ran) == FLOW_RACERS_MAX)
    second = threading.Thread(target=lambda: answers.append(race(PROBLEM, {"late": named("late")})))
    second.start()
    go.set()
    first.join()
    second.join()
    assert [answer.cost for answer in answers] == [7, 7]
    assert sorted(ran) == sorted([*map(str, range(FLOW_RACERS_MAX)), "late"])
    assert until(all_places_are_free)


def test_a_portfolio_learns_who_wins() -> None:
    """After enough races of a size its winner runs alone, and now and then there is a race all the same."""
    portfolio = Portfolio({"good": quick, "slow": dawdle})
    for _ in range(WINS_TRUSTED + RACE_EVERY):
        assert portfolio.solve(PROBLEM).cost == 7
    racers = [timing.racers for timing in portfolio.timings]
    assert racers == [2] * WINS_TRUSTED + [1] * (RACE_EVERY - 1) + [2]
    assert {timing.algorithm for timing in portfolio.timings} == {"good"}
    assert portfolio.timings.maxlen == FLOW_TIMINGS_KEPT
    portfolio.solve(network(9))
    assert portfolio.timings[-1].racers == 2, "another size is another question"


def test_a_portfolio_doubts_a_favourite_that_fails() -> None:
    """If the favourite fails, all algorithms race again."""
    able = True

    def moody(problem: FlowProblem, stop: Ints) -> FlowSolution:
        return quick(problem, stop) if able else refuse(problem, stop)

    portfolio = Portfolio({"moody": moody, "slow": dawdle})
    for _ in range(WINS_TRUSTED + 1):
        portfolio.solve(PROBLEM)
    assert portfolio.timings[-1].racers == 1
    able = False
    portfolio._racers["slow"] = quick
    portfolio.solve(PROBLEM)
    assert (portfolio.timings[-1].racers, portfolio.timings[-1].algorithm) == (2, "slow")
