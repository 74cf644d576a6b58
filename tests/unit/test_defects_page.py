"""Each command on the page of defects exists: its test, its simulator and seed, its target of make."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.chaos.kept.plan import Kind
from tests.sim import test_cluster, test_flows

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "labs" / "benchmarks" / "results" / "defects.md"
LAST_CELL = re.compile(r"^\|.*\|([^|]*)\|$")


def defects() -> str:
    """Return the page, which has the tables of defects."""
    return PAGE.read_text()


def commands() -> list[str]:
    """Return the commands in the last cells of the tables of defects."""
    text = defects()
    cells = [match.group(1) for line in text.splitlines() if (match := LAST_CELL.match(line))]
    return sorted({command for cell in cells for command in re.findall(r"`([^`]+)`", cell)})


def rows() -> list[str]:
    """Return the rows of the tables of defects, without their heads."""
    lines = defects().splitlines()
    return [line for line in lines if line.startswith("| ") and not line.endswith("| again |")]


@cache
def functions(path: Path) -> frozenset[str]:
    """Return the names of the functions of a module."""
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds))


def test_every_defect_has_a_command() -> None:
    """The last cell of each row has at least one."""
    assert [row for row in rows() if "`" not in row.split("|")[-2]] == []


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("tests/")])
def test_a_test_of_a_defect_exists(command: str) -> None:
    """It is named by its file and its function."""
    file, _, name = command.partition("::")
    assert name in functions(ROOT / file)


@pytest.mark.parametrize("command", [command for command in commands() if command.startswith("make ")])
def test_a_round_of_a_defect_can_be_played(command: str) -> None:
    """The variables are those of the target, and the kinds of faults exist."""
    _, target, *words = re.findall(r'(?:[^\s"]|"[^"]*")+', command)
    recipe = (ROOT / "Makefile").read_text().partition(f"\n{target}: ")[2].partition("\n\n")[0]
    chosen = dict(word.split("=", 1) for word in words)
    assert [name for name in chosen if f"$({name})" not in recipe] == []
    faults = chosen.get("FAULTS", "none").strip('"')
    assert faults == "none" or set(faults.split(",")) <= set(Kind)


@pytest.mark.long
def test_every_other_command_is_one_of_the_simulator() -> None:
    """Its options are those that the simulator has."""
    others = [command for command in commands() if not command.startswith(("tests/", "make "))]
    help_text = subprocess.run(
        [sys.executable, "-m", "labs.sim", "--help"], capture_output=True, text=True, check=True
    ).stdout
    for command in others:
        assert command.startswith("python -m labs.sim ")
        assert [word for word in command.split() if word.startswith("--") and word not in help_text] == []


def test_every_seed_that_found_a_defect_is_on_the_page() -> None:
    """The page has the finding of each seed that is kept in the tests of the simulators."""
    text = PAGE.read_text()
    for seed, finding in test_cluster.FOUND.items():
        assert f"| {finding} | `python -m labs.sim --cluster --first {seed} --seeds 1` |" in text
    for finding in test_flows.FOUND.values():
        assert f"| {finding} |" in text


def test_a_command_that_does_not_exist_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A row that names a test of another name fails."""
    page = tmp_path / "defects.md"
    page.write_text(
        "| what | found by | again |\n|---|---|---|\n| x | y | `tests/sim/test_world.py::test_x` |\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "PAGE", page)
    assert commands() == ["tests/sim/test_world.py::test_x"]
    with pytest.raises(AssertionError):
        test_a_test_of_a_defect_exists(commands()[0])
