"""Looking before sleeping."""

from __future__ import annotations

import itertools

import pytest

from dios.limits import SPIN_BACKOFF_WAITS_MAX, SPIN_BACKOFF_WAITS_MIN
from dios.transport.rings import adaptive_spin
from dios.transport.rings.adaptive_spin import AdaptiveSpin


def waits_until_the_next_look(looking: AdaptiveSpin) -> int:
    """How many waits are slept through before ``ready`` is asked again."""
    asked: list[int] = []
    waits = 0
    while not asked:
        looking.spin(lambda: asked.append(1))
        waits += 1
    return waits - 1


def test_an_answer_that_is_there_is_seen() -> None:
    """A look at what is ready pays, and asks once."""
    asked: list[int] = []

    def ready() -> bool:
        asked.append(1)
        return True

    assert AdaptiveSpin().spin(ready)
    assert asked == [1]


def test_looks_in_vain_become_rare() -> None:
    """After each look in vain twice as many waits are slept through, up to a bound."""
    looking = AdaptiveSpin()
    assert waits_until_the_next_look(looking) == 0
    expected = SPIN_BACKOFF_WAITS_MIN
    while expected < SPIN_BACKOFF_WAITS_MAX:
        assert waits_until_the_next_look(looking) == expected
        expected *= 2
    assert waits_until_the_next_look(looking) == SPIN_BACKOFF_WAITS_MAX
    assert waits_until_the_next_look(looking) == SPIN_BACKOFF_WAITS_MAX


def test_a_look_that_paid_begins_anew() -> None:
    """Once a look has paid, the next one in vain is followed by few slept waits again."""
    looking = AdaptiveSpin()
    for _ in range(3):
        waits_until_the_next_look(looking)
    while not looking.spin(lambda: True):
        pass
    assert waits_until_the_next_look(looking) == 0
    assert waits_until_the_next_look(looking) == SPIN_BACKOFF_WAITS_MIN


def test_a_spin_lasts_as_long_as_its_end_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that advances by 10 ns with each reading, a spin of up to 100 ns asks eleven times."""
    clock = itertools.count(0, 10)
    monkeypatch.setattr(adaptive_spin, "monotonic_ns", lambda: next(clock))
    asked: list[int] = []
    assert not AdaptiveSpin(100).spin(lambda: asked.append(1))
    assert len(asked) == 11
