from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from dios.errors import InvariantError
from dios.firmament.solvers import (
    FlowProblem,
    FlowSolution,
    OutOfRangeError,
    certificate,
    network_simplex,
)
from dios.firmament.solvers.columns import Ints
from labs.solvers import algorithms, cost_scaling, relaxation, solve
from labs.solvers.cost_scaling import StoppedError
from labs.solvers.race import RaceLostError, Racer, race
from tests.support.firmament.flow_networks import network, problem_of

PATIENCE_SECONDS = 30
PROBLEM = problem_of([2, 0, -2], [(0, 1, 0, 2, 1), (1, 2, 0, 1, 1), (0, 2, 0, 2, 5)])


def quick(problem: FlowProblem, _: Ints) -> FlowSolution:
    """A racer that answers."""
    return network_simplex.run(problem)


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


def test_the_first_to_answer_wins_and_the_others_are_asked_to_stop() -> None:
    """A race does not wait for a slow algorithm, which is asked to stop."""
    told: list[bool] = []

    def slow(problem: FlowProblem, stop: Ints) -> FlowSolution:
        told.append(until(lambda: bool(stop[0])))
        return quick(problem, stop)

    solution = race(PROBLEM, {"slow": slow, "quick": quick})
    assert solution.cost == 7
    assert until(lambda: told == [True])


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


def test_a_broken_invariant_is_no_lost_race() -> None:
    """A defect of an algorithm reaches the caller, although another might have answered."""

    def broken(_: FlowProblem, __: Ints) -> FlowSolution:
        raise InvariantError("the flow was lost")

    with pytest.raises(InvariantError, match="the flow was lost"):
        race(PROBLEM, {"broken": broken, "slow": dawdle})
