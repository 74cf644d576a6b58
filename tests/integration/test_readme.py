"""The README's commands and program, run as a newcomer would."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node.command_user import Person

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def block(containing: str, language: str = "") -> str:
    """Return the first code block of the README in ``language`` that contains a text."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return next(str(text) for kind, text in blocks if kind == language and containing in text)


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Person]:
    """A user with two text files, a job and a worker; their node is stopped at the end."""
    someone = Person(tmp_path)
    someone.writes("data/one.txt", "one fish two fish\n")
    someone.writes("data/two.txt", "red fish blue fish\n")
    someone.writes("job.py", "import sys\nprint('arguments', *sys.argv[1:])\n")
    someone.writes("worker.py", "import dios\nwith dios.connect() as node:\n    print(len(node.inputs))\n")
    yield someone
    someone.types("dios-node stop")


def test_the_quick_start_works_as_written(newcomer: Person) -> None:
    """Every line of the README's quick start succeeds, in order."""
    script = "\n".join(
        line for line in block("dios-node start").splitlines() if not line.startswith("export")
    )
    done = newcomer.pastes(script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "arguments --top 20" in done.stdout
    assert "data/one.txt" in done.stdout


def test_the_cluster_works_as_written(newcomer: Person) -> None:
    """Every line about several nodes succeeds after the quick start, in order, and leaves nothing."""
    newcomer.environment["DIOS_POOL_SIZE"] = "1"
    del newcomer.environment["DIOS_COORDINATOR"]
    newcomer.types("dios-node start --data ./node0 --detach")
    done = newcomer.pastes(block("dios up"))
    if done.returncode:
        newcomer.types("dios down")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "one fish two fish\n" in done.stdout
    assert "arguments" in done.stdout


def test_the_first_program_prints_what_the_readme_shows(newcomer: Person) -> None:
    """The README's ten lines need no running node, and have exactly the output that is printed below them."""
    newcomer.writes("words.py", block("dios.Executor", "python"))
    done = newcomer.pastes(f"{sys.executable} -W error words.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == block("fish and red: [")


def test_the_program_with_references_prints_what_the_readme_shows(newcomer: Person) -> None:
    """The README's program with references has exactly the output that is printed below it."""
    newcomer.types("dios-node start --data ./node0 --detach")
    newcomer.writes("words.py", block("Spawner", "python"))
    done = newcomer.pastes(f"{sys.executable} -W error words.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout == block("bytes on disk")


def test_the_python_interface_works_as_written(newcomer: Person) -> None:
    """The README's tour of the Python interface runs to its end next to a node."""
    newcomer.types("dios-node start --data ./node0 --detach")
    newcomer.writes("program.py", block("worker.py", "python"))
    done = newcomer.pastes(f"{sys.executable} -W error program.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == "3"
