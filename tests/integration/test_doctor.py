"""``dios doctor`` on this machine, and on machines that lack something."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dios import limits
from dios.host.confinement.mechanisms import LOST_WITHOUT, Availability, Mechanism, probe
from dios.installation import extra_command
from dios.node.doctor import processor
from dios.node.doctor.diagnosis import Diagnosis, examine
from dios.node.doctor.finding import DoctorFinding, DoctorLevel, DoctorTest
from tests.support.node.command_user import Person


@pytest.fixture(scope="module")
def probed() -> dict[str, Mechanism]:
    """What this machine has."""
    return probe()


@pytest.fixture(scope="module")
def all_there(probed: dict[str, Mechanism]) -> dict[str, Mechanism]:
    """A machine that has everything."""
    return {
        name: replace(mechanism, availability=Availability.AVAILABLE) for name, mechanism in probed.items()
    }


def without(mechanisms: dict[str, Mechanism], name: str) -> dict[str, Mechanism]:
    """The same machine without one mechanism."""
    return {
        **mechanisms,
        name: replace(mechanisms[name], availability=Availability.MISSING, detail="was refused"),
    }


def finding(diagnosis: Diagnosis, name: str) -> DoctorFinding:
    """What was found about one thing."""
    return next(candidate for candidate in diagnosis.findings if candidate.name == name)


def test_the_command_says_the_same_as_the_probe(probed: dict[str, Mechanism], tmp_path: Path) -> None:
    """Without a node, `dios doctor` names every mechanism; its exit status says if tasks are confined."""
    confined = all(m.available for m in probed.values() if m.needed_for_pure)
    done = Person(tmp_path).types("dios doctor -v", status=0 if confined else 1)
    assert all(f"  {name} " in done.stdout for name in probed), done.stdout
    assert "Promises of a node on this machine" in done.stdout
    assert done.stdout.startswith("Pure tasks are fully confined here") is confined
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"], "it leaves nothing behind"


def test_programs_get_the_same_as_json(probed: dict[str, Mechanism], tmp_path: Path) -> None:
    """`dios doctor --json` has each finding with its level, and the guarantees with whether they hold."""
    confined = all(m.available for m in probed.values() if m.needed_for_pure)
    told = json.loads(Person(tmp_path).types("dios doctor --json", status=0 if confined else 1).stdout)
    assert told["confined"] is confined
    levels = {row["name"]: row["level"] for row in told["findings"]}
    assert {name for name, level in levels.items() if level == "ok"} >= {
        name for name, mechanism in probed.items() if mechanism.available
    }
    assert {"python", "kernel", "store", "shared memory", "memory limits", "open files"} <= set(levels)
    assert {"process limits", "time limits", "processor share", "reservations"} <= set(levels)
    assert all(isinstance(guarantee["holds"], bool) for guarantee in told["guarantees"])


@pytest.mark.long
def test_each_needed_mechanism_counts(all_there: dict[str, Mechanism], tmp_path: Path) -> None:
    """Without any one needed mechanism tasks are not confined; the reason and what to change are told."""
    assert examine(tmp_path, mechanisms=all_there).confined
    for name, mechanism in all_there.items():
        diagnosis = examine(tmp_path, mechanisms=without(all_there, name))
        assert diagnosis.confined is not mechanism.needed_for_pure, name
        told = finding(diagnosis, name)
        assert told.level is (DoctorLevel.MISSING if mechanism.needed_for_pure else DoctorLevel.WEAK), name
        assert told.detail == "was refused"
        assert told.advice, name
        broken = [guarantee for guarantee in diagnosis.guarantees if not guarantee.holds]
        weaker = [guarantee for guarantee in diagnosis.guarantees if guarantee.weaker]
        assert broken or weaker, f"nothing depends on {name}"
        assert all(name in guarantee.missing for guarantee in broken), name


def test_the_engine_of_webassembly_is_optional(
    all_there: dict[str, Mechanism], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without wasmtime the row names the extra, and pure tasks are as confined as before."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    diagnosis = examine(tmp_path, mechanisms=all_there)
    told = finding(diagnosis, "wasmtime")
    assert told.level is DoctorLevel.WEAK
    assert told.advice == f"optional: {extra_command('wasm')}"
    assert diagnosis.confined


def test_a_store_directory_is_tried_and_not_made(all_there: dict[str, Mechanism], tmp_path: Path) -> None:
    """A data directory that is not there yet is judged by where it would be, and is not made."""
    wanted = tmp_path / "deep" / "node0"
    told = finding(examine(wanted, mechanisms=all_there), "store")
    assert told.level is not DoctorLevel.MISSING, told.detail
    assert str(tmp_path) in told.detail
    assert not list(tmp_path.iterdir())


def test_a_file_is_no_store_directory(all_there: dict[str, Mechanism], tmp_path: Path) -> None:
    """A path through a file is refused with what to do, and durability is then not guaranteed."""
    (tmp_path / "file").write_text("x")
    diagnosis = examine(tmp_path / "file", mechanisms=all_there)
    told = finding(diagnosis, "store")
    assert told.level is DoctorLevel.MISSING
    assert "--data" in told.advice
    assert any(not guarantee.holds and guarantee.missing == ("store",) for guarantee in diagnosis.guarantees)
    assert diagnosis.confined, "what the store lacks does not unlock a task"


def test_a_directory_that_cannot_be_written_is_told(all_there: dict[str, Mechanism], tmp_path: Path) -> None:
    """A directory in which nothing can be made is refused with the system's reason."""
    place = Path("/proc/self") if os.geteuid() == 0 else tmp_path / "locked"
    if os.geteuid() != 0:
        place.mkdir(mode=0o500)
    told = finding(examine(place, mechanisms=all_there), "store")
    assert told.level is DoctorLevel.MISSING
    assert str(place) in told.detail


def test_memory_is_told_by_what_counts_it(all_there: dict[str, Mechanism], tmp_path: Path) -> None:
    """The memory limit's finding says what enforces it, and without a control group what is left."""
    with_group = finding(examine(tmp_path, mechanisms=all_there), "memory limits")
    alone = finding(examine(tmp_path, mechanisms=without(all_there, "cgroup_memory")), "memory limits")
    assert "control group" in with_group.detail
    assert with_group.level is not DoctorLevel.MISSING
    assert alone.level is DoctorLevel.WEAK
    assert LOST_WITHOUT["cgroup_memory"] in alone.detail
    assert alone.advice
    assert f"{limits.TASK_MEMORY_BYTES_DEFAULT // limits.GIB} GiB" in alone.detail


def test_processes_are_told_by_what_counts_them(all_there: dict[str, Mechanism], tmp_path: Path) -> None:
    """The finding says what enforces the limit, and without a control group what is left."""
    with_group = finding(examine(tmp_path, mechanisms=all_there), "process limits")
    alone = finding(examine(tmp_path, mechanisms=without(all_there, "cgroup_pids")), "process limits")
    assert with_group.level is DoctorLevel.OK
    assert "control group" in with_group.detail
    assert alone.level is DoctorLevel.WEAK
    assert LOST_WITHOUT["cgroup_pids"] in alone.detail


def test_the_part_of_the_daemon_is_a_promise(
    all_there: dict[str, Mechanism], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its share or its slice a daemon runs, and the promise says which part of it falls away."""
    for missing in ("daemon share", "daemon slice"):
        tests = [
            DoctorTest(name, "purpose").result("detail", "advice" if name == missing else "")
            for name in ("daemon share", "daemon slice")
        ]
        monkeypatch.setattr(processor, "examine_processor", lambda _, tests=tests: tests)
        diagnosis = examine(tmp_path, mechanisms=all_there)
        assert finding(diagnosis, missing).level is DoctorLevel.WEAK
        (weaker,) = [
            guarantee
            for guarantee in diagnosis.guarantees
            if guarantee.weaker and ("its part" in guarantee.promise or "time slice" in guarantee.promise)
        ]
        assert ("time slice" in weaker.promise) is (missing == "daemon slice")
        assert diagnosis.confined


def test_the_limits_of_sandboxes_are_shown(all_there: dict[str, Mechanism], tmp_path: Path) -> None:
    """The finding has the numbers of the settings, and names what has none."""
    told = finding(examine(tmp_path, mechanisms=all_there), "sandbox limits")
    assert told.level is DoctorLevel.OK
    assert "objects=1000" in told.detail
    (tmp_path / "node.toml").write_text('[sandbox_limits]\nobjects = "none"\nreferences = 77\n')
    told = finding(examine(tmp_path, mechanisms=all_there), "sandbox limits")
    assert told.level is DoctorLevel.WEAK
    assert "references=77" in told.detail
    assert "objects" in told.advice


def test_the_command_teaches(tmp_path: Path) -> None:
    """`dios doctor --help` shows examples, and docs/command-line.md explains the command."""
    told = Person(tmp_path).types("dios doctor --help").stdout
    assert "dios doctor --json" in told.partition("Examples:")[2]
    page = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"
    assert "## dios doctor" in page.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="tasks of an ordinary user's node have the same user")
def test_an_environment_that_other_users_cannot_enter_is_named(
    tmp_path: Path, all_there: dict[str, Mechanism], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Templates and forks run as another user, who must reach the packages as well as the interpreter."""
    inner = tmp_path / "closed" / "environment"
    inner.mkdir(parents=True)
    inner.parent.chmod(0o700)
    monkeypatch.setattr(sys, "prefix", str(inner))
    told = finding(examine(tmp_path, mechanisms=all_there), "python")
    assert told.level is DoctorLevel.WEAK
    assert f"cannot enter {inner.parent}" in told.advice
