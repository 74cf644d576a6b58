"""The doctor on images: what keeps sandboxes from having them is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dios.host.confinement.mechanisms import Availability, Mechanism
from dios.host.containers.runtimes import NEEDED
from dios.node.doctor import images
from dios.node.doctor.finding import DoctorFinding, DoctorLevel
from dios.node.doctor.images import examine_gvisor, examine_images
from dios.start_watch import StartWatch
from tests.support.node.confinement import gvisor_or_skip, mechanisms_or_skip, runtimes_or_skip

PERMITTED = "container_runtime = 'any'\n"
ALL = {name: Mechanism(Availability.AVAILABLE, "", needed_for_pure=True) for name in NEEDED}


def examined(
    data: Path, settings: str = PERMITTED, mechanisms: dict[str, Mechanism] = ALL
) -> DoctorFinding | None:
    """What the doctor finds for a node with settings."""
    data.mkdir(exist_ok=True)
    (data / "node.toml").write_text(settings, encoding="utf-8")
    return examine_images(data, mechanisms)


def test_a_machine_with_a_runtime_is_well(tmp_path: Path) -> None:
    """It has started a container there."""
    runtimes = runtimes_or_skip()
    finding = examined(tmp_path)
    assert finding is not None
    assert (finding.level, finding.detail) == (DoctorLevel.OK, f"{runtimes[0]} starts containers")


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_a_missing_mechanism_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Without it no container is started."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    lacking = ALL | {name: Mechanism(Availability.MISSING, "it is off", needed_for_pure=True)}
    finding = examined(tmp_path, mechanisms=lacking)
    assert finding is not None
    assert finding.level is DoctorLevel.WEAK
    assert name in finding.detail


def examined_for_gvisor(
    data: Path, settings: str = "", mechanisms: dict[str, Mechanism] = ALL
) -> DoctorFinding:
    """What the doctor says about gVisor for a node with settings."""
    data.mkdir(exist_ok=True)
    (data / "node.toml").write_text(settings, encoding="utf-8")
    finding = examine_gvisor(data, mechanisms)
    assert finding is not None
    return finding


def test_a_machine_with_gvisor_is_well(tmp_path: Path) -> None:
    """It has started a container there, with the settings that every node has."""
    path = gvisor_or_skip()
    finding = examined_for_gvisor(tmp_path)
    assert finding.level is DoctorLevel.OK
    assert finding.detail == f"{path} starts sandboxes with a kernel of their own"


def test_a_machine_without_gvisor_is_no_fault(tmp_path: Path) -> None:
    """It is off, with the package that has it, or by the word of the settings."""
    finding = examined_for_gvisor(tmp_path, f"gvisor_runtime = '{tmp_path}/runsc'\n")
    assert finding.level is DoctorLevel.OK
    assert finding.detail == f"off: this machine has no program {tmp_path}/runsc; the package runsc has it"
    assert (
        examined_for_gvisor(tmp_path, "gvisor_runtime = 'none'\n").detail == 'off: gvisor_runtime is "none"'
    )
    (tmp_path / "node.toml").write_text("gvisor_runtime = 'runc'\n", encoding="utf-8")
    assert examine_gvisor(tmp_path, ALL) is None


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_a_missing_mechanism_of_gvisor_is_named(tmp_path: Path, name: str) -> None:
    """Without it nothing is started; other findings say how to get it."""
    lacking = ALL | {name: Mechanism(Availability.MISSING, "it is off", needed_for_pure=True)}
    assert f"gVisor needs {name}" in examined_for_gvisor(tmp_path, mechanisms=lacking).detail


def test_a_broken_gvisor_is_named_with_its_reason(tmp_path: Path) -> None:
    """A program that starts no container has only the name."""
    mechanisms_or_skip()
    program = tmp_path / "runsc"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    finding = examined_for_gvisor(tmp_path / "data", f"gvisor_runtime = '{program}'\n")
    assert finding.level is DoctorLevel.WEAK
    assert "runsc does not share memory between a container and the node" in finding.detail


def test_a_machine_without_a_runtime_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting names one that is not there."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    finding = examined(tmp_path, f"container_runtime = '{tmp_path}/crun'\n")
    assert finding is not None
    assert finding.level is DoctorLevel.WEAK
    assert "crun" in finding.advice


def test_a_runtime_that_fails_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that were tried are."""
    runtimes_or_skip()
    monkeypatch.setattr(images, "obstacle_to", lambda path: f"{Path(path).name} is broken")
    finding = examined(tmp_path)
    assert finding is not None
    assert finding.level is DoctorLevel.WEAK
    assert "crun is broken" in finding.detail or "runc is broken" in finding.detail


def test_a_broken_runtime_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is a script, which no task can become; the next one is tried."""
    working = runtimes_or_skip()[0]
    script = tmp_path / "crun"
    script.write_text("#!/bin/sh\n", encoding="utf-8")
    assert "ELF" in images.obstacle_to(str(script))
    monkeypatch.setattr(images, "known_runtimes", lambda _: [str(script), working])
    finding = examined(tmp_path / "data")
    assert finding is not None
    assert (finding.level, finding.detail) == (DoctorLevel.OK, f"{working} starts containers")


def test_a_runtime_that_does_not_answer_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is too slow for an answer is none without images."""
    runtime = runtimes_or_skip()[0]
    monkeypatch.setattr(StartWatch, "wait", lambda *_: False)
    assert images.obstacle_to(runtime).endswith("gave no answer, so this is unknown: try again")


def test_what_the_owner_chose_is_no_fault(tmp_path: Path) -> None:
    """A bound of 0 and the default turn images off; other tests show settings that cannot be read."""
    finding = examined(tmp_path, "environments_bytes = 0\n")
    assert finding is not None
    assert (finding.level, finding.detail) == (DoctorLevel.OK, "off: environments_bytes is 0")
    finding = examined(tmp_path, "")
    assert finding is not None
    assert finding.level is DoctorLevel.OK
    assert finding.detail == 'off: container_runtime is "none"; "any" permits images'
    assert examined(tmp_path, "container_runtime = 'docker'\n") is None


def test_a_node_of_an_ordinary_user_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor says so before it tries a runtime."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    finding = examined(tmp_path)
    assert finding is not None
    assert (finding.level, finding.detail) == (
        DoctorLevel.WEAK,
        "refused: an image needs a node of root",
    )
