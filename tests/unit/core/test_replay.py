"""A recorded node replays through a fresh core."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dios.core import events
from dios.core.effects import Outcome
from dios.core.machine import Core
from dios.core.model.accounts import Defaults
from dios.host.loop.recorder import DIGEST_EVERY, Recorder
from dios.ids import Principal, TaskId
from dios.sim.node.replay import ReplayResult, replay
from dios.wire import messages
from dios.wire.types import ObjectType

_OWNER = Principal("uid:1000")


def _record(path: Path) -> int:
    recorder = Recorder(path, os.urandom, _OWNER, restricted=False, defaults=Defaults(), digest_every=1)
    story: list[events.Event] = [
        events.Recovered(1, ()),
        events.SessionOpened(2, TaskId(5), 1, _OWNER, (), "test", 1),
        events.Called(3, TaskId(5), 2, messages.Create(ObjectType.SHMEM_BLOB, data=b"x")),
        events.Called(4, TaskId(5), 3, messages.Lookup(bytes(range(32)))),
        events.Disconnected(5, TaskId(5)),
    ]
    for event in story:
        recorder.step(event)
    recorder.close()
    return len(story)


def test_recording_replays(tmp_path: Path) -> None:
    """Every recorded outcome comes out of a fresh core again, byte for byte."""
    path = tmp_path / "record"
    count = _record(path)
    result = replay(path)
    assert (result.events, result.first_difference) == (count, None)


def test_torn_recording_replays_its_whole_steps(tmp_path: Path) -> None:
    """A recording that ends in the middle of a step, its node killed, replays up to there."""
    path = tmp_path / "record"
    _record(path)
    path.write_bytes(path.read_bytes()[:-5])
    assert replay(path).first_difference is None
    assert replay(path).events == 4


def test_state_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step after which the state is another one is named, even where its outcome is as recorded."""
    path = tmp_path / "record"
    _record(path)
    honest = Core.step

    def drifting(self: Core, event: events.Event) -> Outcome:
        outcome = honest(self, event)
        if event.now == 3:
            next(iter(self.state.tasks.values())).deterministic_count += 1
        return outcome

    monkeypatch.setattr(Core, "step", drifting)
    result = replay(path)
    assert (result.first_difference, result.difference) == (2, "state")


def test_steps_without_a_digest_are_compared_by_their_outcome(tmp_path: Path) -> None:
    """By default a digest of the state is taken every few steps; all outcomes are compared."""
    path = tmp_path / "record"
    recorder = Recorder(path, os.urandom, _OWNER, restricted=False, defaults=Defaults())
    for now in range(1, 2 * DIGEST_EVERY + 2):
        recorder.step(events.TimerFired(now))
    recorder.close()
    assert replay(path) == ReplayResult(2 * DIGEST_EVERY + 1, None)


def test_changed_recording_is_noticed(tmp_path: Path) -> None:
    """An outcome that differs from the recorded one is named by its place."""
    path = tmp_path / "record"
    _record(path)
    data = bytearray(path.read_bytes())
    data[-40] ^= 1  # in the last outcome's digest, before the state's
    path.write_bytes(data)
    assert replay(path).first_difference == 4
