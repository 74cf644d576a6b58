"""Cores before a node that lies, in process: what it says is answered, refused or left out, and bounded."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dios.core.model.invariants import check
from tests.fuzz.dcp import ANSWERS, REQUESTS
from tests.fuzz.dcp_simulation import ForgerySimulation

SEEDS = 12
MOVES = 300
MESSAGES = 20_000


def dice(seed: int) -> Random:
    """Dice that fall the same way every time."""
    return Random(seed)  # noqa: S311 - repeatable, nothing secret


@pytest.mark.long
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.randoms(use_true_random=False), st.integers(1, 10))
def test_a_refused_message_has_changed_nothing(rng: Random, moves: int) -> None:
    """Nothing but ProtocolError comes out of a core, and then everything is as it was before the message."""
    simulation = ForgerySimulation(rng, checked=1)
    for _ in range(moves):
        simulation.move()
        check(simulation.target.core.state)


def test_refusals_are_compared() -> None:
    """The simulation reaches refusals, and what it compares before and after them is there."""
    simulation = ForgerySimulation(dice(1), checked=1)
    for _ in range(60):
        simulation.move()
    assert simulation.compared > 50
    assert simulation.compared == simulation.refused


@pytest.mark.extended
def test_long_lies_leave_the_tables_right() -> None:
    """After twenty thousand lies of every kind tables are right and bounded, and no call hangs."""
    lied = 0
    kinds: set[str] = set()
    for seed in range(SEEDS):
        simulation = ForgerySimulation(dice(seed), checked=0)
        for move in range(MOVES):
            simulation.move()
            if not move % 20:
                check(simulation.target.core.state)
        for site in simulation.sites.values():
            check(site.core.state)
        for kind in ANSWERS if seed == SEEDS - 1 else ():
            if kind.__name__ not in kinds:
                simulation.lie(simulation.liar.answer_of(kind))
        lied += simulation.lied
        kinds |= simulation.kinds
    assert lied >= MESSAGES
    assert kinds >= {kind.__name__ for kind in (*REQUESTS, *ANSWERS)}


def test_a_play_repeats_itself() -> None:
    """The same dice tell the same lies, with the same end: a finding can be played again."""
    plays = [ForgerySimulation(dice(3), checked=0) for _ in range(2)]
    for simulation in plays:
        for _ in range(100):
            simulation.move()
    first, other = plays
    assert (first.lied, first.refused, first.worlds) == (other.lied, other.refused, other.worlds)
    assert list(first.target.core.state.objects) == list(other.target.core.state.objects)
