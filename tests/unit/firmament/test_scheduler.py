from __future__ import annotations

import pytest

from dios.firmament.settings import Fairness, SchedulerSettings
from tests.support.firmament.cluster_histories import History

SETTINGS = {
    "plain": SchedulerSettings(certify_every=1),
    "slots only": SchedulerSettings(certify_every=1, fit=False),
    "fair": SchedulerSettings(certify_every=1, fairness=Fairness.BOUNDED),
    "strictly fair, patient": SchedulerSettings(
        certify_every=1, fairness=Fairness.STRICT, gang_preempts=False
    ),
    "nobody is stopped": SchedulerSettings(certify_every=1, preemption=False),
    "nobody moves": SchedulerSettings(certify_every=1, migration=False, solver="ortools"),
}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("settings", SETTINGS)
def test_random_histories_keep_every_promise(settings: str, seed: int) -> None:
    """Whatever happens: slots, sums, deltas, gangs, bounds, pins, constraints and affinity hold."""
    history = History(seed, SETTINGS[settings])
    for _ in range(25):
        for _ in range(history.random.randint(0, 6)):
            history.happen()
        history.round()
