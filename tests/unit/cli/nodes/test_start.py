"""`dios-node start` and `status` while a node recovers its store."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dios.cli.common.output import NOT_RUNNING
from dios.cli.nodes import daemon as commands
from dios.node import daemon
from dios.node.doctor.store import examine_store

PROGRESS = "index of 20,000 of 1,000,000 stored objects"


@pytest.fixture(autouse=True)
def _nobodys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.delenv("DIOS_NODE", raising=False)


@pytest.fixture
def recovering(tmp_path: Path) -> Iterator[Path]:
    """The data directory of a node that recovers: this process."""
    data = tmp_path / "node0"
    data.mkdir()
    with daemon.pid_file(data / "node.pid") as held:
        held.note(20_000, 1_000_000)
        yield data


@pytest.mark.parametrize("option", ["--data", "--node"])
def test_status_shows_a_recovery(recovering: Path, option: str) -> None:
    """A node that recovers does not run yet, and its progress is told to people and programs."""
    told = CliRunner().invoke(commands.app, ["status", option, str(recovering)])
    assert told.exit_code == NOT_RUNNING
    assert "recovering, process" in told.output
    assert PROGRESS in told.output
    told = CliRunner().invoke(commands.app, ["status", option, str(recovering), "--json"])
    assert told.exit_code == NOT_RUNNING
    shown = json.loads(told.stdout)
    assert not shown["running"]
    assert (shown["recovering"]["objects_done"], shown["recovering"]["objects"]) == (20_000, 1_000_000)


def test_doctor_shows_a_recovery(recovering: Path) -> None:
    """The line about the store says that a node recovers there."""
    assert PROGRESS in examine_store(recovering).detail
    with daemon.pid_file(recovering.parent / "node.pid"):
        assert "recovering" not in examine_store(recovering.parent).detail


@pytest.mark.parametrize("as_json", [False, True])
def test_start_shows_progress_to_people_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    """On a terminal the progress of a recovery is shown, with `--json` nothing is."""
    shown: list[str] = []

    @contextlib.contextmanager
    def progress(activity: str) -> Iterator[Callable[[str], None]]:
        shown.append(activity)
        yield shown.append

    def start_detached(data: Path, *, recovering: Callable[[int, int], None], **_: object) -> object:
        recovering(20_000, 1_000_000)
        return daemon.DaemonProcess(7, data / "node.sock")

    monkeypatch.setattr("dios.cli.nodes.daemon.progress", progress)
    monkeypatch.setattr("dios.node.daemon.start_detached", start_detached)
    words = ["start", "--data", str(tmp_path / "node0"), "--detach", *(["--json"] if as_json else [])]
    told = CliRunner().invoke(commands.app, words)
    assert told.exit_code == 0, told.output
    assert shown == ([] if as_json else ["starting the node", PROGRESS])
