"""The program behind ``make test-pythons``: where it finds interpreters, and how it counts results."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import pytest

from tests.lab import pythons

RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"


def program(folder: Path, line: str) -> Path:
    """A program by the name of this version's interpreter."""
    folder.mkdir()
    path = folder / f"python{RUNNING}"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return folder


def test_the_package_names_the_versions_that_are_tested() -> None:
    """The classifiers are the version of CI and those of this program."""
    project = tomllib.loads((pythons.ROOT / "pyproject.toml").read_text())["project"]
    prefix = "Programming Language :: Python :: 3."
    named = {text.removeprefix(prefix) for text in project["classifiers"] if text.startswith(prefix)}
    assert named == {"11", *(version.removeprefix("3.") for version in pythons.VERSIONS)}


def test_an_interpreter_is_one_that_runs_and_has_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of the name that fails, as a version manager's may, is passed over; so is another version."""
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    broken = program(tmp_path / "broken", "exit 127")
    other = program(tmp_path / "other", 'echo \'["2.7.18", "/other", "/"]\'')
    real = program(tmp_path / "real", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, (broken, other, real))))
    interpreter = pythons.interpreter_here(RUNNING)
    assert interpreter is not None
    assert (interpreter.program, interpreter.prefix) == (sys.executable, sys.base_prefix)
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, (broken, other))))
    assert pythons.interpreter_here(RUNNING) is None


def test_a_version_that_cannot_be_had_is_reported_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row says that it was not run, and why; the others are not affected."""
    monkeypatch.setattr(pythons, "KEPT", tmp_path)
    row = pythons.try_version("3.99", [], debian=False)
    assert not row.has_run
    assert "no suite of Debian is known to have it" in pythons.summary([row])


def test_results_are_counted_by_test(tmp_path: Path) -> None:
    """Failures and errors count as failed, with their names."""
    report = tmp_path / "results.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.a" name="good"/>'
        '<testcase classname="tests.a" name="bad"><failure/></testcase>'
        '<testcase classname="tests.a" name="broken"><error/></testcase>'
        '<testcase classname="tests.a" name="other"><skipped/></testcase></testsuite></testsuites>'
    )
    counts, failed = pythons._results(report)
    assert counts == "1 passed, 2 failed, 1 skipped"
    assert failed == ("tests/a.py::bad", "tests/a.py::broken")
