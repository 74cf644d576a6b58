"""Deniability on the clock: no task feels whether a name exists in a group of others (§3.2.2, §4.4).

Not for: exact figures, which `make deniability` measures with more tries. No time is asserted: two sorts of
name are compared with each other, and a planted wait shows whether the comparison could see one.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import dios
from dios.host.confinement.mechanisms import obstacle_to_pure, probe
from labs.benchmarks.deniability import BLOCK, as_expected, by_kind, compare, compare_all, measure, prepare
from tests.support.node.running_node import running_node

TRIES = 1_500
ROUNDS = 8
SMALL = "control: planted wait of 2 us"
"""Too little for so few tries on a busy machine; the full measurement must find it."""


def test_names_of_others_take_no_other_time(tmp_path: Path) -> None:
    """With tries enough to find a planted wait of 5 us, names of others and of nothing look alike."""
    missing = obstacle_to_pure(probe())
    if missing:
        pytest.skip(f"pure tasks cannot be confined here: {missing}")
    samples: dict[str, list[float]] = {}
    told = []
    with (
        running_node(tmp_path / "data", accept_weaker_sandbox="no") as started,
        dios.connect(started.place, groups=()) as node,
    ):
        common, group, kinds = prepare(node)
        for _ in range(ROUNDS):
            # A busy machine needs more of them; what differs in truth only shows the better.
            for name, more in measure(node, common, group, kinds, TRIES).items():
                samples.setdefault(name, []).extend(more)
            comparisons = compare_all(samples)
            comparisons.pop(SMALL)
            if as_expected(comparisons):
                return
            told.append(
                [
                    (comparison.title, round(comparison.z, 2), round(comparison.distance, 3))
                    for comparison in comparisons.values()
                ]
            )
    pytest.fail(f"after none of {ROUNDS} rounds was the planted wait found and nothing else: {told}")


def _drawn(seed: int, shift: float) -> tuple[list[float], list[float]]:
    """Times as a busy machine gives them: two humps, a long tail."""
    draw = random.Random(seed)  # noqa: S311 - no secret
    first, second = (
        [draw.choice((40.0, 55.0)) + draw.expovariate(0.2) for _ in range(TRIES)] for _ in range(2)
    )
    return first, [value + shift for value in second]


@pytest.mark.parametrize("seed", range(10))
def test_the_comparison_tells_a_shift_from_chance(seed: int) -> None:
    """A shift by a tenth of the spread is found, and draws of one distribution are not told apart."""
    assert not compare("same", *_drawn(seed, 0.0)).differs
    assert compare("shifted", *_drawn(seed, 2.0)).differs


def test_equal_times_are_not_told_apart() -> None:
    """Where the clock is so coarse that all times are one, nothing is found."""
    compared = compare("equal", [7.0] * 50, [7.0] * 60)
    assert (compared.z, compared.distance, compared.differs) == (0.0, 0.0, False)


def test_the_load_of_the_moment_is_taken_out() -> None:
    """A machine that becomes slower in the middle leaves no trace in the samples of either sort."""
    plan = bytes([0, 1] * BLOCK)
    taken = [100] * BLOCK + [900] * BLOCK
    sorted_out = by_kind(["a", "b"], plan, taken)
    assert len(set(sorted_out["a"] + sorted_out["b"])) == 1
