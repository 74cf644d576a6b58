"""The README's commands and program, run as a newcomer would."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from person import Person

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def block(containing: str, language: str = "") -> str:
    """The first code block of the README that holds ``containing``."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return next(str(text) for text in blocks if containing in text)


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Person]:
    """Somebody with two text files, a job and a worker, who stops their node in the end."""
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


def test_the_python_program_works_as_written(newcomer: Person) -> None:
    """The README's Python program runs to its end beside a node."""
    newcomer.types("dios-node start --data ./node0 --detach")
    newcomer.writes("program.py", block("import dios", "python"))
    done = newcomer.pastes(f"{sys.executable} -W error program.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-1] == "3"
