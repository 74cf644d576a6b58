"""Native programs of a node's settings as tasks, as their users run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.node.command_user import Person
from tests.support.node.confinement import mechanisms_or_skip

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SORT = Path("/usr/bin/sort")


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """A user whose nodes have sort as a program."""
    mechanisms_or_skip()
    if not SORT.exists():
        pytest.skip("no sort here")
    person = Person(tmp_path)
    person.environment |= {"DIOS_PROGRAMS": f"sort={SORT}", "DIOS_ACCEPT_WEAKER_SANDBOX": "no"}
    person.writes("lines", "3\n10\n2\n")
    return person


def test_the_command_runs_a_program_by_name(person: Person) -> None:
    """`dios run --program NAME -- ARGS` shows its output; what a native program cannot have is refused."""
    person.types("dios-node start --data ./node0 --detach")
    try:
        person.types("dios group create work")
        person.types("dios put lines --group work")
        run = "dios run --program sort -g work --input lines=lines"
        assert person.types(f"{run} -- -n /inputs/lines").stdout == "2\n3\n10\n"
        assert person.types(f"{run} -- /inputs/lines -r").stdout == "3\n2\n10\n"
        assert "standard output" in person.types(f"{run} --output a=b", status=125).stderr
        assert "--limbo" in person.types("dios run --program sort --limbo", status=125).stderr
        assert "cannot be the name" in person.types("dios run --program ../sh", status=125).stderr
        assert "[programs.NAME]" in person.types("dios run --program absent", status=1).stdout
        assert "--program NAME" in person.types("dios run", status=125).stderr
    finally:
        person.types("dios-node stop")


def test_a_program_that_cannot_run_keeps_the_node_from_starting(person: Person) -> None:
    """The reason is shown: here the file is a script."""
    script = person.writes("tool", "#!/bin/sh\n")
    person.environment["DIOS_PROGRAMS"] = f"tool={script}"
    refused = person.types("dios-node start --data ./node0 --detach", status=1)
    assert "name its interpreter" in refused.stderr


def test_the_example_runs(person: Person) -> None:
    """examples/native_sort.py sorts on a node of its own."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "native_sort.py", "lines"],
        cwd=person.home,
        env=person.environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2\n3\n10\n"


def test_a_parent_keeps_its_key_from_its_helper(person: Person) -> None:
    """examples/split_program.py: the native helper of a task has one of its two references."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / "split_program.py"],
        cwd=person.home,
        env=person.environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, signed = done.stdout.splitlines()
    assert first == "the helper has lines"
    assert "['apple', 'fig', 'pear']" in signed
