"""Random calls of several tasks against a small model; after each step both must say the same.

``DIOS_PROPERTY_EXAMPLES`` and ``DIOS_PROPERTY_WALKS`` run more than the suite does.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.support.core.machine_rules import CoreMachine
from tests.support.core.random_walk import walk

CoreMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("DIOS_PROPERTY_EXAMPLES", "60")),
    stateful_step_count=60,
    deadline=None,
    derandomize="DIOS_PROPERTY_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)


TestCoreMachine = CoreMachine.TestCase


@pytest.mark.parametrize("seed", range(int(os.environ.get("DIOS_PROPERTY_WALKS", "12"))))
@pytest.mark.extended(keep=1)
def test_long_walk(seed: int) -> None:
    """The core and the model agree over hundreds of steps of one history."""
    walk(seed, 400)


@pytest.mark.parametrize("seed", [16, 30])
@pytest.mark.extended(keep=1)
def test_walk_that_found_a_difference(seed: int) -> None:
    """A failed task's program without a name is charged to nobody, whatever its deletion mode."""
    walk(seed, 400)


@pytest.mark.parametrize("seed", [73])
@pytest.mark.extended(keep=1)
def test_walk_that_destroyed_a_group_that_was_gone(seed: int) -> None:
    """A group that is gone is destroyed once more: only the stale reference goes, as with any object."""
    walk(seed, 400)
