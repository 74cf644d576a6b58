"""The hook that lists the packages of hosts in the wheel of a release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from dios.installation import DISTRIBUTION, FILE_NAME, version
from dios.node.bringup.dependencies import OWN_LOCK, read_lock

ROOT = Path(__file__).resolve().parents[2]
LIST = f"{FILE_NAME}-{version()}.dist-info/sboms/{DISTRIBUTION}.cdx.json"


def build(folder: Path, *, hooks: bool) -> Path:
    """Build the wheel of this tree into a folder; return its path."""
    environment = os.environ | ({"HATCH_BUILD_HOOKS_ENABLE": "true"} if hooks else {})
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.mark.long
def test_the_wheel_of_a_release_lists_the_packages_of_hosts(tmp_path: Path) -> None:
    """Each package of hosts.lock is in the list by its version, and nothing else; twice is the same."""
    wheel = build(tmp_path / "first", hooks=True)
    assert wheel.read_bytes() == build(tmp_path / "second", hooks=True).read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        listed = json.loads(archive.read(LIST))
        record = archive.read(f"{FILE_NAME}-{version()}.dist-info/RECORD").decode()
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    assert listed["metadata"]["component"]["name"] == DISTRIBUTION
    assert listed["metadata"]["component"]["version"] == version()
    packages = [f"{component['name']}=={component['version']}" for component in listed["components"]]
    assert packages == read_lock(OWN_LOCK).constraints.splitlines()
    assert f"\n{LIST},sha256=" in record


@pytest.mark.long
def test_other_wheels_need_no_library_for_the_list(tmp_path: Path) -> None:
    """The hook is for releases: whoever installs from a checkout needs hatchling alone."""
    with zipfile.ZipFile(build(tmp_path, hooks=False)) as archive:
        assert LIST not in archive.namelist()
