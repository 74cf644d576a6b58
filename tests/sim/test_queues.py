"""Nobody within his right waits for ever: the scheduler's queue in virtual time, under every cost model."""

from __future__ import annotations

import numpy as np
import pytest

from dios.errors import InvariantError
from dios.firmament.cluster.columns import Flags, Ints
from dios.firmament.cluster.state import ClusterState
from dios.firmament.models.catalogue import MODELS
from dios.firmament.policies.fair_queue import TaskFairQueue
from dios.firmament.policies.reservations import Head, Reservations
from dios.firmament.policies.room_in_time import RoomInTime
from labs.sim.queues.world import simulate_queues

pytestmark = pytest.mark.long

SEEDS_TO_FIND = 12


@pytest.mark.parametrize("seed", range(2 * len(MODELS)))
@pytest.mark.extended(keep=2)
def test_large_jobs_start_in_their_time(seed: int) -> None:
    """Machines fail and coordinators follow each other; all start at last, and large ones in their time."""
    assert simulate_queues(seed).large


@pytest.mark.parametrize(
    "seed",
    [
        24,  # tasks filled kept machines until a guessed end
        71,  # a gang that the network left out had no machines
        239,  # a gang whose room was free waited for a network in which it fits
        367,  # a cost model gave the room of a task that had its turn to tasks that had none
    ],
)
def test_seeds_that_found_faults_pass(seed: int) -> None:
    """Each of them broke a claim once."""
    assert simulate_queues(seed).large


def test_a_seed_repeats_itself() -> None:
    """The same seed makes the same decisions."""
    assert simulate_queues(1) == simulate_queues(1)


def none_kept(self: TaskFairQueue, *given: object) -> list[Head]:
    """Keep no machines for anybody."""
    del self, given
    return []


def all_fill(self: Reservations, state: ClusterState, tasks: Ints, machine: Ints) -> Flags:
    """Let everybody take what is kept."""
    del self, state, machine
    return np.ones(len(tasks), np.bool_)


def by_guess(self: RoomInTime, places: object, demand: object, now: float) -> float:
    """Take the guesses of ends for facts."""
    del places, demand
    return float(self.end.max(initial=now))


def outcome(seed: int) -> str:
    """Return the claim that does not hold in a seed; empty if all do."""
    try:
        simulate_queues(seed, "spread")
    except InvariantError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("owner", "name", "rule"),
    [
        (TaskFairQueue, "heads", none_kept),
        (Reservations, "may_fill", all_fill),
        (RoomInTime, "not_before", by_guess),
    ],
)
@pytest.mark.extended(keep=1)
def test_a_broken_rule_is_found(
    owner: type, name: str, rule: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that keeps no machines, or lets others fill them, breaks the claim in a few seeds."""
    monkeypatch.setattr(owner, name, rule)
    assert any("had to start by" in outcome(seed) for seed in range(SEEDS_TO_FIND))
