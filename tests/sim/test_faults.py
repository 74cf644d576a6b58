"""A failing disk under the simulated node, and proof that the checker sees what a wrong store does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from random import Random

import pytest

from labs.sim.disk.device import Device
from labs.sim.disk.faults import DiskFault, Operation
from labs.sim.disk.model_store import ModelStore
from labs.sim.node.checker import BrokenPromiseError
from labs.sim.node.systematic import FaultCase, systematic
from labs.sim.node.world import INLINE_BYTES, OpenStore, simulate
from tests.support.core.broken_cores import answers_early
from tests.support.store import broken_stores as broken

pytestmark = pytest.mark.long

STEPS = 100
SEEDS_TO_FIND = 200


def opener(kind: type[ModelStore]) -> OpenStore:
    """Opens stores of a kind as the simulator does."""

    def open_one(device: Device, rng: Random) -> ModelStore:
        return kind(device, rng, inline_bytes=INLINE_BYTES)

    return open_one


@pytest.mark.parametrize("seed", range(20))
def test_seed_with_faults_keeps_every_promise(seed: int) -> None:
    """Under random faults of the disk nothing acknowledged is lost, nothing is torn or invented."""
    report = simulate(seed, faults=True)
    assert report.faults
    assert report.damaged <= report.faults.get(DiskFault.FLIP, 0)


def test_every_fault_at_every_operation_keeps_every_promise() -> None:
    """One life with each fault at each operation of its disk: promises hold, the node goes on."""
    result = systematic(1, STEPS)
    assert result.runs > 4 * result.operations
    assert result.faults.keys() == set(DiskFault)


def test_same_seed_same_faults_same_trace() -> None:
    """A seed with faults repeats itself."""
    assert simulate(3, faults=True) == simulate(3, faults=True)


@pytest.mark.parametrize(
    "kind",
    [
        broken.NoSyncBeforeMeta,
        broken.FailedSyncIgnored,
        broken.FailedSyncRepeated,
        broken.MetaNotSynced,
        broken.NoCopyOnWrite,
        broken.ExtentsNotSynced,
        broken.FolderNotSynced,
        broken.RemovesTooEarly,
        broken.KeepsRefused,
    ],
)
@pytest.mark.extended(keep=1)
def test_broken_store_is_caught_by_random_faults(kind: type[ModelStore]) -> None:
    """A store with one rule of its algorithm broken breaks a promise within a few seeds."""
    open_broken = opener(kind)

    def many() -> None:
        for seed in range(SEEDS_TO_FIND):
            simulate(seed, 300, faults=True, opener=open_broken)

    with pytest.raises(BrokenPromiseError):
        many()


def test_a_core_that_answers_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that answers before the disk has what it promises breaks a promise within a few seeds."""
    answers_early(monkeypatch)

    def many() -> None:
        for seed in range(SEEDS_TO_FIND):
            simulate(seed, 300, faults=True)

    with pytest.raises(BrokenPromiseError):
        many()


@pytest.mark.parametrize(
    ("kind", "first", "only"),
    [
        (broken.OneMetaPage, 6, lambda case: case.operation is Operation.WRITE_THROUGH),
        (broken.ServesDamaged, 13, lambda case: case.fault is DiskFault.FLIP),  # the first seeds pass
    ],
)
def test_broken_store_is_caught_at_its_operation(
    kind: type[ModelStore], first: int, only: Callable[[FaultCase], bool]
) -> None:
    """What chance finds rarely, the pass over all operations finds."""
    open_broken = opener(kind)

    def many() -> None:
        for seed in range(first, first + 20):
            systematic(seed, STEPS, only=only, opener=open_broken)

    with pytest.raises(BrokenPromiseError):
        many()


def test_command_shows_faults() -> None:
    """``python -m labs.sim --faults`` runs seeds and says which faults there were."""
    command = [sys.executable, "-m", "labs.sim", "--seeds", "3", "--faults"]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "3 seeds passed" in shown
    assert "EIO" in shown
