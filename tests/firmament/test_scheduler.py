from __future__ import annotations

import pytest
from sched_history import History


@pytest.mark.parametrize("seed", range(12))
def test_random_histories_keep_every_promise(seed: int) -> None:
    """Whatever happens: slots, sums, deltas, gangs, bounds, pins, constraints and affinity hold."""
    history = History(seed)
    for _ in range(25):
        for _ in range(history.random.randint(0, 6)):
            history.happen()
        history.round()
