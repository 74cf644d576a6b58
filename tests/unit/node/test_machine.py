"""How much memory the node takes the machine to have, and the daemon's share of the processors."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from dios import limits
from dios.host.confinement.cgroups import is_autogroup_on
from dios.node import machine


@pytest.mark.parametrize(
    ("told", "wanted"), [("1073741824\n", limits.GIB), ("max\n", 0), (None, 0), (str(2**63 - 1), 0)]
)
def test_a_container_is_as_large_as_its_limit(tmp_path: Path, told: str | None, wanted: int) -> None:
    """A control group's limit counts where it is smaller than the machine's memory, whatever else is told."""
    path = tmp_path / "memory.max"
    if told is not None:
        path.write_text(told)
    assert machine.memory_bytes((path,)) == (wanted or machine.memory_bytes(()))


def test_objects_take_a_share() -> None:
    """Bytes in memory are limited to a share of the memory unless a setting says otherwise."""
    assert machine.volatile_bytes() <= machine.memory_bytes() * limits.VOLATILE_PERCENT // 100


@pytest.mark.parametrize(
    ("hard", "tasks", "own"),
    [
        (100_000, 16, limits.NODE_DESCRIPTORS),
        (100_000, 3_000, limits.NODE_DESCRIPTORS // 2 + 15_000),
        (10_000, 3_000, 5_000),
    ],
)
def test_many_tasks_need_descriptors(
    monkeypatch: pytest.MonkeyPatch, hard: int, tasks: int, own: int
) -> None:
    """The node keeps descriptors for its tasks, and leaves at least half of all to objects."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (hard, hard))
    assert machine.object_descriptors(tasks) == hard - own


_WHO = (
    "from dios.node.machine import come_before_tasks as go; print(go(), open('/proc/self/autogroup').read())"
)


def _autogroup_of(*, leads: bool) -> str:
    line = [sys.executable, "-c", _WHO]
    return subprocess.run(line, check=True, capture_output=True, text=True, start_new_session=leads).stdout


@pytest.mark.skipif(not is_autogroup_on() or os.geteuid() != 0, reason="needs autogroup, and a privilege")
def test_a_daemon_comes_before_its_tasks() -> None:
    """The leader of a session raises the share of its session; no other process does that to its session."""
    assert "True" in (leader := _autogroup_of(leads=True))
    assert "nice -10" in leader
    before = Path("/proc/self/autogroup").read_text()
    assert "False" in _autogroup_of(leads=False)
    assert Path("/proc/self/autogroup").read_text() == before


def test_a_machine_without_groups_of_sessions_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that refuses, or that is missing, is no error: the daemon runs as before."""
    monkeypatch.setattr(os, "getsid", lambda _: os.getpid())
    (tmp_path / "autogroup").mkdir()
    assert not machine.come_before_tasks(tmp_path)
    assert not machine.come_before_tasks(tmp_path / "nowhere")
