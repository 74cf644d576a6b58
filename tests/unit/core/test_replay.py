"""A recorded node replays through a new core, which names the first step that differs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dios.core import events
from dios.core.effects import Outcome
from dios.core.machine import Core
from dios.core.model.accounts import Defaults
from dios.core.replay import Replay
from dios.errors import InvalidError
from dios.host.loop import recorder
from dios.host.loop.recorder import DIGEST_EVERY, Recorder
from dios.ids import Principal, TaskId
from dios.wire import messages
from dios.wire.types import ObjectType

_OWNER = Principal("uid:1000")


def _record(path: Path) -> int:
    writer = Recorder(path, os.urandom, _OWNER, restricted=False, defaults=Defaults(), digest_every=1)
    story: list[events.Event] = [
        events.Recovered(1, ()),
        events.SessionOpened(2, TaskId(5), 1, _OWNER, (), "test", 1),
        events.Called(3, TaskId(5), 2, messages.Create(ObjectType.SHMEM_BLOB, data=b"x")),
        events.Called(4, TaskId(5), 3, messages.Lookup(bytes(range(32)))),
        events.Disconnected(5, TaskId(5)),
    ]
    for event in story:
        writer.step(event)
    writer.close()
    return len(story)


def _replayed(path: Path) -> list[str]:
    """The difference of each step of a recording."""
    return [step.difference for step in Replay(path.read_bytes()).steps()]


def test_recording_replays(tmp_path: Path) -> None:
    """Every recorded outcome comes out of a fresh core again, byte for byte."""
    path = tmp_path / "record"
    count = _record(path)
    assert _replayed(path) == [""] * count


def test_torn_recording_replays_its_whole_steps(tmp_path: Path) -> None:
    """A recording that ends in the middle of a step, its node killed, replays up to there."""
    path = tmp_path / "record"
    _record(path)
    path.write_bytes(path.read_bytes()[:-5])
    assert _replayed(path) == [""] * 4


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
    assert _replayed(path) == ["", "", "state"]


def test_steps_without_a_digest_are_compared_by_their_outcome(tmp_path: Path) -> None:
    """By default a digest of the state is taken every few steps; all outcomes are compared."""
    path = tmp_path / "record"
    writer = Recorder(path, os.urandom, _OWNER, restricted=False, defaults=Defaults())
    for now in range(1, 2 * DIGEST_EVERY + 2):
        writer.step(events.TimerFired(now))
    writer.close()
    assert _replayed(path) == [""] * (2 * DIGEST_EVERY + 1)


def test_changed_recording_is_noticed(tmp_path: Path) -> None:
    """An outcome that differs from the recorded one is named by its place."""
    path = tmp_path / "record"
    _record(path)
    data = bytearray(path.read_bytes())
    data[-40] ^= 1  # in the last outcome's digest, before the state's
    path.write_bytes(data)
    assert _replayed(path) == ["", "", "", "", "outcome"]


def test_a_recorded_reader_of_the_story_reads_the_same(tmp_path: Path) -> None:
    """The story is as it was at each step, although it is no state."""
    path = tmp_path / "record"
    writer = Recorder(path, os.urandom, _OWNER, restricted=False, defaults=Defaults())
    writer.step(events.SessionOpened(1, TaskId(5), 1, _OWNER, (), "test", 1))
    for now in range(2, 5):
        writer.step(events.Called(now, TaskId(5), now, messages.ReadTable("story")))
    writer.close()
    assert _replayed(path) == [""] * 4


def test_the_story_of_a_step_names_what_it_touched(tmp_path: Path) -> None:
    """A step has the entries of its own event: the task, and the object that came with the call."""
    path = tmp_path / "record"
    _record(path)
    replay = Replay(path.read_bytes())
    stories = [step.story for step in replay.steps()]
    (task,) = {mark for _, event, mark, _, _ in stories[2] if event == "Create"}
    (entered,) = (mark for _, event, _, mark, _ in stories[2] if event == "enters")
    assert [event for _, event, mark, _, _ in stories[4] if mark == task] == ["Disconnected"]
    assert (5, "leaves", "", entered, 0) in stories[4]


@pytest.mark.parametrize("data", [b"", b"abc", b"\x01\x00\x00\x00\xc1"])
def test_other_files_are_no_recordings(data: bytes) -> None:
    """A file that is none is refused with an error that says so."""
    with pytest.raises(InvalidError, match="no recording"):
        Replay(data)


def test_a_recording_of_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its events may mean something else."""
    monkeypatch.setattr(recorder, "RECORDING_VERSION", 1)
    path = tmp_path / "record"
    _record(path)
    with pytest.raises(InvalidError, match="version 1"):
        Replay(path.read_bytes())
