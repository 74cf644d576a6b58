"""The simulator's promises: seeds repeat, nothing acknowledged is lost, and a broken node is caught."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from copy import copy

import pytest

from dios.core import snapshot
from dios.core.events import PersistFailed
from dios.core.machine import Core
from dios.core.model.accounts import Account
from dios.core.model.records import PhysicalObject, Reference
from dios.core.model.state import State
from dios.core.step import Step
from dios.errors import InvariantError
from dios.wire import page
from dios.wire.types import Resource
from labs.sim.node.checker import BrokenPromiseError
from labs.sim.node.world import simulate


@pytest.mark.parametrize("seed", range(20))
def test_seed_keeps_every_promise(seed: int) -> None:
    """A node under load, failing disks and crashes loses and tears nothing it acknowledged."""
    report = simulate(seed)
    assert report.crashes >= 1


def _simulate_until_caught(seeds: int) -> None:
    for seed in range(seeds):
        simulate(seed)


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("direct", property(lambda target: not (target.a_w or target.zombie or target.home))),
        ("direct", property(lambda target: not (target.sole or target.zombie or target.home))),
    ],
    ids=["readers that must be alone", "writers"],
)
def test_a_read_without_a_call_that_no_call_could_have_made_is_caught(
    name: str, broken: property, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that permits reads during requests that exclude them does not pass."""
    monkeypatch.setattr(PhysicalObject, name, broken)
    with pytest.raises(AssertionError, match="while a request that excludes it was open"):
        _simulate_until_caught(40)


def test_a_read_of_an_outdated_version_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page whose stamp stays the same when the object is written does not pass."""
    monkeypatch.setattr(page, "_new_stamps", lambda _first: itertools.repeat(7))
    with pytest.raises(AssertionError, match="a call would return"):
        _simulate_until_caught(20)


def test_same_seed_same_trace() -> None:
    """A seed's trace digest is the same under different hash seeds."""

    def digest(hash_seed: str) -> str:
        code = "from labs.sim.node.world import simulate; print(simulate(5).digest)"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert digest("1") == digest("2") == simulate(5).digest + "\n"


def test_forgetful_core_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core that answers before its store operation is durable breaks a promise within a few seeds."""
    honest = Core.step

    def hasty(self: Core, event: object) -> object:
        outcome = honest(self, event)  # type: ignore[arg-type]
        outcome.wait_for = 0  # type: ignore[assignment]
        return outcome

    monkeypatch.setattr(Core, "step", hasty)
    with pytest.raises(BrokenPromiseError):
        _simulate_all(range(30))


@pytest.mark.parametrize(
    ("record", "field", "blank"),
    [
        (PhysicalObject, "waiters", {}),
        (Account, "used", [0] * len(Resource)),
        (Reference, "descendants", {}),
        (State, "next_buffer", 1),
    ],
)
def test_forgotten_field_is_caught(
    record: type, field: str, blank: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that forgets a field is caught within a few seeds: the core that continues is wrong."""
    schema = snapshot._SCHEMAS[record]

    def forgetful(value: object) -> tuple[object, ...]:
        fields = zip(schema.fields, schema.read(value), strict=True)
        return tuple(copy(blank) if name == field else original for name, original in fields)

    monkeypatch.setitem(snapshot._SCHEMAS, record, schema._replace(read=forgetful))
    with pytest.raises(InvariantError):
        _simulate_all(range(10))


def test_lost_write_that_comes_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion that fails together with the write before it must not bring that write back.

    A seed once found a core that did this; the agreement of core and store finds it within a few seeds.
    """
    honest = Core._persist_failed

    def forgetful(self: Core, step: Step, event: PersistFailed) -> None:
        for _, target in self.state.dropped:
            target.undo = []
        honest(self, step, event)

    monkeypatch.setattr(Core, "_persist_failed", forgetful)
    with pytest.raises(BrokenPromiseError, match="the store has"):
        _simulate_all(range(60))


def _simulate_all(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)
