"""Runs of published test suites with pytest, in a process of their own, and their sources."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

import pytest

_ROOT: Final = Path(__file__).parents[3]
_CASE_S: Final = 120
_RUN_S: Final = 3000


class Outcomes(NamedTuple):
    """The cases of a run by their names, such as ``test_map[1]``."""

    passed: set[str]
    failed: dict[str, str]
    """The last lines of each failure."""


def outcomes_of(
    arguments: Iterable[str],
    folder: Path,
    *,
    environment: Mapping[str, str],
    plugin: str = "chosen_cases",
    without: Iterable[str] = (),
    only: Iterable[str] = (),
) -> Outcomes:
    """Run a suite in a folder, without some of its cases or only these, and return the outcomes.

    ``plugin`` is the module of this package that adapts it.
    """
    report = folder / "report.xml"
    command = [
        # Longer tracebacks would show the values of variables, whose memory a case may have unmapped.
        *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull),
        *(f"--rootdir={folder}", f"--junitxml={report}", f"--timeout={_CASE_S}"),
        *("-W", "default", "-p", f"{__package__}.{plugin}", "-p", f"{__package__}.chosen_cases"),
        *arguments,
    ]
    path = os.pathsep.join([str(_ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    cases = {"CASES_LEFT_OUT": "\n".join(without), "CASES_CHOSEN": "\n".join(only)}
    run = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment, "PYTHONPATH": path, **cases},
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
    )
    assert report.exists(), run.stdout[-4000:] + run.stderr[-4000:]
    passed, failed = set(), {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - of this run
        name = case.get("name", "")
        problems = [*case.iter("failure"), *case.iter("error")]
        if problems:
            failed[name] = "\n".join((problems[0].text or "").splitlines()[-3:])
        elif case.find("skipped") is None:
            passed.add(name)
    assert passed or failed, run.stdout[-4000:] + run.stderr[-4000:]
    return Outcomes(passed, failed)


def unpacked_source(requirement: str, folder: Path) -> Path:
    """Return the folder of a package's source distribution; skip the test if it cannot be had."""
    command = [
        *(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:"),
        *("-d", str(folder), requirement),
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if run.returncode:
        pytest.skip(f"the source of {requirement} is not to be had: {run.stderr.strip()[-300:]}")
    (archive,) = folder.glob("*.tar.gz")
    shutil.unpack_archive(archive, folder)
    return folder / archive.name.removesuffix(".tar.gz")
