"""The doctor on environments: what keeps users from having packages of their own is named."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from dios.host.confinement.mechanisms import Availability, Mechanism
from dios.host.confinement.view import FOR_ENVIRONMENTS
from dios.node.doctor.environments import examine_environments
from dios.node.doctor.finding import DoctorFinding, DoctorLevel

ALL = {name: Mechanism(Availability.AVAILABLE, "", needed_for_pure=True) for name in FOR_ENVIRONMENTS}


def examined(data: Path, mechanisms: dict[str, Mechanism] = ALL) -> DoctorFinding:
    """What the doctor finds for a node in a folder, which may not be there."""
    finding = examine_environments(data / "node", mechanisms)
    assert finding is not None
    return finding


def test_a_machine_that_can_have_them_is_well(tmp_path: Path) -> None:
    """The bound on the disk is shown."""
    finding = examined(tmp_path)
    assert (finding.level, finding.detail) == (DoctorLevel.OK, "at most 8,192 MiB")


@pytest.mark.parametrize("name", sorted(FOR_ENVIRONMENTS))
def test_a_missing_mechanism_is_named(tmp_path: Path, name: str) -> None:
    """Without it no task has an environment, also where a weaker sandbox is accepted."""
    lacking = ALL | {name: Mechanism(Availability.MISSING, "it is off", needed_for_pure=True)}
    finding = examined(tmp_path, lacking)
    assert finding.level is DoctorLevel.WEAK
    assert name in finding.detail


def test_what_the_owner_chose_is_no_fault(tmp_path: Path) -> None:
    """A bound of 0 turns them off."""
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "node.toml").write_text("environments_bytes = 0\n", encoding="utf-8")
    finding = examined(tmp_path)
    assert (finding.level, finding.detail) == (DoctorLevel.OK, "off: environments_bytes is 0")


def test_a_python_without_pip_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice is the command that adds it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    finding = examined(tmp_path)
    assert finding.level is DoctorLevel.WEAK
    assert finding.advice.endswith("install pip")
