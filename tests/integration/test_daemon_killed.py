"""The daemon is killed: nothing is left running, and what it recorded can be replayed.

Not for: what it was told to keep (``tests/crash``), the store alone (``test_store_crash``), or power cuts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

import dios
from dios.cli.nodes.daemon import app
from dios.cli.nodes.inspection import ReplayRow, StateTables
from dios.core.replay import Replay
from tests.support.node.running_node import exists, running_node, wait_until


def test_killed_daemon_leaves_no_process(tmp_path: Path) -> None:
    """When the daemon is killed, its zygote, its pool and every task go too."""
    with running_node(tmp_path / "node") as node, dios.connect(node.place, groups=()) as session:
        session.run(b"import time\nwhile True: time.sleep(1)")
        below = node.descendants()
        assert len(below) >= 2
        node.kill()
        wait_until(lambda: not any(exists(pid) for pid in below), "every descendant is gone")


def test_recorded_daemon_replays(tmp_path: Path) -> None:
    """A real daemon's recorded events go through a fresh core with the same outcomes."""
    record = tmp_path / "record"
    with running_node(tmp_path / "node", record=str(record)) as node:
        with dios.connect(node.place, groups=()) as session:
            blob = session.create(dios.DURABLE_BLOB, groups=session.groups[:1], data=b"abc")
            blob.write_bytes(b"defg")
            task = session.run(b"print('hello')")
            assert task.wait(timeout=30).exit_code == 0
        node.stop()
    steps = list(Replay(record.read_bytes()).steps())
    assert not any(step.difference for step in steps)
    assert len(steps) > 8


def test_a_node_and_its_recording_show_the_same_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a running node shows of an object is in the replay of its recording, also after its end."""
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)  # a notebook's library leaves its own
    record = tmp_path / "record"
    with running_node(tmp_path / "node", record=str(record)) as node:
        with dios.connect(node.place, groups=()) as session:
            blob = session.create(dios.DURABLE_BLOB, groups=session.groups[:1], data=b"abc")
            mark = blob.fingerprint
            shown = dumped(mark, node.place)
            blob.destroy()
        story = dumped(mark, node.place)["story"]
        node.stop()
    assert [row["size"] for row in shown["objects"]] == [3]
    again = replayed(record, "--story", mark).story
    assert [row.event for row in again] == [row["event"] for row in story]
    assert again[-1].event == "leaves"
    end = again[-1].step
    before = replayed(record, "--until", str(end - 1), "--show", mark).tables
    assert [row["size"] for row in before["objects"]] == [3]
    changes = replayed(record, "--until", str(end), "--diff").changes
    assert [row.sign for row in changes if row.row.get("fingerprint") == mark] == ["-"]

    typed = f"show('{mark}')\nprint(step().number)\nprint(len(state.objects))\nwhile step(): pass\n\n"
    options = ("--until", str(end - 1), "--prompt")
    prompted = CliRunner().invoke(app, ["replay", str(record), *options], input=typed)
    assert prompted.exit_code == 0, prompted.output
    assert mark in prompted.stdout
    assert f">>> {end}\n" in prompted.stdout


def test_a_changed_recording_ends_with_status_1(tmp_path: Path) -> None:
    """The command says what differs, at the step where it does."""
    record = tmp_path / "record"
    with running_node(tmp_path / "node", record=str(record)) as node:
        node.stop()
    steps = replayed(record).steps
    data = bytearray(record.read_bytes())
    data[-8] ^= 1  # in the digest of the last outcome, before that of the state, which is empty
    record.write_bytes(data)
    told = replayed(record, status=1)
    assert told.steps == steps
    assert told.difference


def dumped(subject: str, node: str) -> StateTables:
    """The rows of a running node that have a fingerprint."""
    tables: StateTables = json.loads(said("dump", subject, "--node", node))
    return tables


def replayed(record: Path, *options: str, status: int = 0) -> ReplayRow:
    """What the replay of a recording shows."""
    return msgspec.json.decode(said("replay", str(record), *options, status=status), type=ReplayRow)


def said(*arguments: str, status: int = 0) -> str:
    """The output of a command of ``dios-node`` with --json."""
    ended = CliRunner().invoke(app, [*arguments, "--json"])
    assert ended.exit_code == status, ended.output
    return ended.stdout
