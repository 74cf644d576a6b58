"""Exceptions at random places of random steps: what was promised holds, and others are served."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from unittest import mock

import pytest

from dios import limits
from dios.core import events
from dios.core.machine import Core
from dios.core.model.rows import RowSource
from dios.core.remote.peers import Here
from dios.ids import Principal
from labs.sim.cluster.world import QUIET_NS, ClusterWorld
from labs.sim.disk.faults import NoFaults
from labs.sim.node.world import NodeWorld
from tests.support.core.defects import Injector

STEPS = 400
FOR_SOMEBODY = (
    events.Called,
    events.SessionOpened,
    events.TaskStarted,
    events.TaskEnded,
    events.Disconnected,
    events.ConsoleArrived,
    events.Received,
)


@pytest.fixture(autouse=True)
def _plain_cores() -> Iterator[None]:
    """Cores that are not compared with a copy of themselves, in which other calls would raise."""

    def plain(rng: Random, owner: Principal, here: Here, rows: RowSource, *, checked: bool) -> Core:
        del checked
        return Core(rng.randbytes, owner, here=here, rows=rows)

    with mock.patch("labs.sim.node.host.ContinuedCore", plain):
        yield


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.extended(keep=4)
def test_a_node_outlives_its_defects(seed: int) -> None:
    """No exception leaves the core; tables, contents and the store agree after every step."""
    world = NodeWorld(seed, NoFaults(), fills=False)
    # The probes at the end meet no defects.
    rng = Random(f"defects {seed}")  # noqa: S311 - a seed repeats itself
    injector = Injector(rng, 3, FOR_SOMEBODY, wanted=lambda: world.steps < STEPS)
    with injector.active():
        world.run(STEPS)
    assert injector.raised > 3
    assert injector.escaped == 0


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.extended(keep=4)
def test_a_node_outlives_the_defects_of_effects(seed: int) -> None:
    """Exceptions while effects are carried out end their tasks; what others read is what was written."""
    world = NodeWorld(seed, NoFaults(), fills=False)
    rng = Random(f"defects of effects {seed}")  # noqa: S311 - as above
    injector = Injector(rng, 30, FOR_SOMEBODY, wanted=lambda: world.steps < STEPS)
    with injector.in_effects():
        world.run(STEPS)
    assert injector.raised > 3


@pytest.mark.parametrize("seed", [*range(14), 43])
@pytest.mark.extended(keep=2)
def test_a_cluster_outlives_its_defects(seed: int) -> None:
    """Nodes with defects in calls and messages agree with each other in the end, and nothing is left over."""
    world = ClusterWorld(seed)
    rng = Random(f"defects {seed}")  # noqa: S311 - as above
    injector = Injector(rng, 100, FOR_SOMEBODY, wanted=lambda: world.acting)
    # A request that a defect lost is given up after some time; references are compared again after that.
    quiet_ns = QUIET_NS + (limits.DCP_UNCONFIRMED_MS + limits.RECONCILE_PERIOD_MS) * 1_000_000
    with injector.active():
        world.run(quiet_ns=quiet_ns)
    assert injector.escaped == 0
