"""Commands that other packages add to ``dios``, with a package that each test makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Protocol

import pytest


class Run(Protocol):
    """A call of ``dios`` next to a package with these entry points and this program."""

    def __call__(self, points: str, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the words of a command line."""


PROGRAM = """
import typer
app = typer.Typer(help="Tell stories.")
@app.callback()
def stories() -> None: pass
@app.command()
def short() -> None: print("Once.")
@app.command()
def long() -> None: print("Once upon a time.")
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run ``dios`` with a package next to the installed ones: its entry points and its module ``tales``."""

    def start(points: str, program: str, *words: str) -> subprocess.CompletedProcess[str]:
        described = tmp_path / "tales-1.0.dist-info"
        described.mkdir()
        (described / "entry_points.txt").write_text(points)
        (tmp_path / "tales.py").write_text(program)
        return subprocess.run(
            [sys.executable, "-m", "dios.cli.main", *words],
            env={"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return start


POINTS = "[console_scripts]\nshort = other:main\n\n[dios.commands]\nstory = tales:app\n"


def test_an_added_group_is_listed_and_runs(run: Run) -> None:
    """An entry point becomes a group of ``dios``, which its help lists in a section of its own."""
    assert run(POINTS, PROGRAM, "story", "short").stdout == "Once.\n"


def test_the_help_lists_what_is_added(run: Run) -> None:
    """The added group has its first sentence as its line."""
    listed = run(POINTS, PROGRAM, "--help").stdout.partition("Added by other packages:")[2]
    assert ["story", "Tell", "stories."] in [line.split() for line in listed.splitlines()]


def test_an_added_name_does_not_replace_a_command(run: Run) -> None:
    """A package cannot take the name of a command of ``dios``."""
    shown = run("[dios.commands]\nls = tales:app\n", PROGRAM, "--help").stdout
    assert "Tell stories" not in shown


def test_a_defect_of_a_package_does_not_take_away_the_help(run: Run) -> None:
    """The help has the reason why an added group cannot be loaded, and all other commands."""
    shown = run(POINTS, "import nothing_of_this_name", "--help").stdout
    assert "Cannot be loaded: ModuleNotFoundError" in shown
    assert "replicate" in shown


def test_a_command_of_an_added_group_is_suggested(run: Run) -> None:
    """The error about an unknown command names the added group that has it."""
    done = run(POINTS, PROGRAM, "short")
    assert done.returncode == 2
    assert "No such command 'short'. Did you mean 'story short'?" in done.stderr


def test_own_commands_read_no_entry_points() -> None:
    """A command of ``dios`` runs without a look at the installed packages."""
    program = (
        "import sys; from dios.cli.common import added_commands; from dios.cli.main import app\n"
        "try: app(['ls', '--help'], prog_name='dios')\n"
        "except SystemExit: pass\n"
        "print(added_commands.added_commands.cache_info().misses, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stderr.strip() == "0"


def test_without_packages_that_add_commands_the_help_has_no_such_section() -> None:
    """The laboratory's commands are not part of the product."""
    program = (
        "from dios.cli.common import lazy; lazy.added_commands = dict\n"
        "from dios.cli.main import app; app(['--help'], prog_name='dios')"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "Added by" not in done.stdout
    assert not {"lab", "repro", "solve", "fair"} & {
        line.split()[0] for line in done.stdout.splitlines() if line
    }
