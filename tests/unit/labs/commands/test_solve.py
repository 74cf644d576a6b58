from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labs.solvers import algorithms, solve
from tests.support.firmament.flow_networks import network, problem_of
from tests.support.node.command_user import Person

pytestmark = [pytest.mark.long, pytest.mark.extended]

ROOT = Path(__file__).resolve().parents[4]
PATIENCE_SECONDS = 60

SMALL = """c two ways from 1 to 4
p min 4 5
n 1 4
n 4 -4
a 1 2 0 4 2
a 1 3 0 2 2
a 2 3 0 2 1
a 2 4 0 3 3
a 3 4 0 5 1
"""


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """A user who has compiled kernels next to the code, as after a first use."""
    return Person(tmp_path)


def test_a_network_in_a_file_is_solved(person: Person) -> None:
    """`dios lab solve` prints status, cost, time and certificate; `--flow` writes arcs that carry some."""
    (person.home / "small.dimacs").write_text(SMALL)
    told = person.types("dios lab solve small.dimacs --flow answer.flow").stdout
    for line in (("status", "optimal"), ("cost", "14"), ("certificate", "yes,")):
        assert any(words.split()[:2] == list(line) for words in told.splitlines()), told
    assert "4 vertices, 5 arcs" in told
    assert " s" in told.splitlines()[-1]
    written = (person.home / "answer.flow").read_text().splitlines()
    assert "s 14" in written
    assert [line for line in written if line.startswith("f ")] == ["f 1 2 2", "f 1 3 2", "f 2 3 2", "f 3 4 4"]


def test_json_has_the_same(person: Person) -> None:
    """`--json` is one document with status, cost, algorithm, certificate, sizes and seconds."""
    problem = network(24)
    problem.to_dimacs(person.home / "random.dimacs")
    told = json.loads(person.types("dios lab solve random.dimacs --json --algorithm race").stdout)
    assert told["status"] == "optimal"
    assert told["cost"] == solve(problem, "ortools").cost
    assert told["certificate"] is True
    assert told["algorithm"] in {"relaxation", "cost_scaling"}
    assert (told["vertices"], told["arcs"]) == (problem.vertices, problem.arcs)
    assert set(told["seconds"]) == {"read", "load", "solve", "check"}


def test_an_infeasible_network_is_told_with_its_reason(person: Person) -> None:
    """Exit status 1, the vertices that cannot send, and no file with a flow."""
    problem_of([2, -2], [(0, 1, 0, 1, 5)]).to_dimacs(person.home / "narrow.dimacs")
    done = person.types("dios lab solve narrow.dimacs --flow answer.flow", status=1)
    assert "infeasible" in done.stdout
    assert "1 too little" in done.stdout
    assert "wrote no flow to answer.flow" in done.stderr
    assert not (person.home / "answer.flow").exists()


def test_what_is_wrong_is_told_with_its_place(person: Person) -> None:
    """A bad line is named with file and number, an unknown algorithm with those there are."""
    (person.home / "bad.dimacs").write_text("p min 2 1\na 1 3 0 1 5\n")
    told = person.types("dios lab solve bad.dimacs", status=1).stderr
    assert "bad.dimacs:2: vertex 3 is not within 1 to 2" in told
    told = person.types("dios lab solve bad.dimacs --algorithm fastest", status=1).stderr
    assert "no algorithm 'fastest'; choose from auto, " in told
    assert "nowhere.dimacs" in person.types("dios lab solve nowhere.dimacs", status=1).stderr
    error = json.loads(person.types("dios lab solve bad.dimacs --json", status=1).stderr)
    assert error["error"] == "EINVAL"


def test_help_teaches(person: Person) -> None:
    """`--help` shows examples, the file's format and each algorithm's name; a page describes the command."""
    told = " ".join(person.types("dios lab solve --help").stdout.split())
    assert "dios lab solve network.dimacs --json" in told
    assert "a 1 2 0 1 5" in told
    for name in algorithms():
        assert name in told
    assert "| `dios lab solve FILE" in (ROOT / "docs" / "command-line.md").read_text()


ENDLESS = r"""
import os, numba, numpy
from dios.cli.main import main
from labs.solvers import registry

@numba.njit(nogil=True)
def spin(turns):
    while turns[0] >= 0:
        turns[0] = (turns[0] + 1) % 1000

def endless(problem):
    os.write(1, b"begun\n")
    spin(numpy.zeros(1, numpy.int64))

registry.ALGORITHMS["endless"] = endless
main()
"""


def test_ctrl_c_ends_the_wait(person: Person) -> None:
    """Ctrl-C ends the command with status 130 also while a kernel runs that never ends by itself."""
    (person.home / "small.dimacs").write_text(SMALL)
    command = [sys.executable, "-c", ENDLESS, "lab", "solve", "small.dimacs", "--algorithm", "endless"]
    with subprocess.Popen(
        command, cwd=person.home, env=person.environment, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "begun\n"
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_SECONDS) == 130
        finally:
            running.kill()
