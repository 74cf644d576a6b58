"""Programs answer the same with ``dios.Executor`` as with the standard library's ProcessPoolExecutor.

Each program of ``programs`` asks some dozens of questions and prints the answers. It runs as a script, and
without its guard: then no worker runs it, and its names travel by value.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.node.running_node import RunningNode

pytestmark = pytest.mark.long

_PROGRAMS: Final = Path(__file__).parent / "programs"
_GUARD: Final = 'if __name__ == "__main__":'

_WITHOUT_SCRIPT: Final = {
    "source of a function",
    "names of modules",
    "the main module in a package",
    "large values with a part that has a name",
}
"""Without its guard a program's source stays where it is, a package in a worker finds no names of it, and
large values come with copies of their parts."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all programs."""
    running = RunningNode(tmp_path_factory.mktemp("programs") / "data", {})
    yield running
    running.stop()


def copied(folder: Path, guard: str) -> None:
    """Copy the programs, with another text for their guard, and one module in Latin-1."""
    for path in _PROGRAMS.rglob("*.*"):
        if path.suffix in {".py", ".txt"}:
            copy = folder / path.relative_to(_PROGRAMS)
            copy.parent.mkdir(exist_ok=True)
            text = path.read_text("utf-8").replace(_GUARD, guard)
            copy.write_text(text, "utf-8")
            if path.name == "words.py":
                copy.write_text(f"# -*- coding: latin-1 -*-\n{text}", "latin-1")


def answers(folder: Path, node: RunningNode, *command: str) -> dict[str, str]:
    """Return the answers of a program by their questions."""
    run = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "DIOS_NODE": node.place, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return dict(line.split(": ", 1) for line in run.stdout.splitlines() if ": " in line)


@pytest.mark.parametrize(
    "guard",
    [pytest.param(_GUARD, id="script"), pytest.param("if True:", id="no guard", marks=pytest.mark.extended)],
)
@pytest.mark.parametrize(
    "program", ["state.py", "changed.py", "kinds.py", "packages.py", "usage.py", "-m parts.run"]
)
def test_a_program_answers_as_with_processes(
    tmp_path: Path, node: RunningNode, program: str, guard: str
) -> None:
    """State of a script, changed values, kinds of functions and classes, packages, the interface."""
    copied(tmp_path, guard)
    expected = answers(tmp_path, node, *program.split(), "std")
    given = answers(tmp_path, node, *program.split(), "dios")
    left_out = set() if guard == _GUARD else _WITHOUT_SCRIPT
    different = {key: (expected[key], given.get(key)) for key in expected if given.get(key) != expected[key]}
    assert not {key: pair for key, pair in different.items() if key not in left_out}
    assert len(expected) == len(given) > 1


CELLS: Final = """
X, state, counter = 1, [], 0
class C:
    size = 1
    def get(self): return self.size, X
def f(): return X
def g(): return f() + 10
def add(k):
    state.append(k)
    return state
def bump():
    global counter
    counter += 1
    return counter
print(R(f), R(g), R(C().get), R(add, 1), R(add, 2), R(bump), R(bump))
# %%
X = 2
print(R(f), R(g), R(C().get), R(add, 3), R(bump))
# %%
def f(): return X * 100
C.size = 7
state.append("here")
print(R(f), R(g), R(C().get), R(add, 4), state)
# %%
class C:
    def get(self): return "new", X
counter = 50
print(R(C().get), R(isinstance, C(), C), R(bump), R(bump))
for k in range(2): print(R(lambda x: x + k, 1), end=" ")
# %%
import numpy as np
large = np.arange(1_000_000)
def total(): return int(large[-1])
print(R(total))
large += 1
print(R(total))
"""


def test_cells_keep_one_namespace_in_each_worker(tmp_path: Path, node: RunningNode) -> None:
    """What a call changes stays in its worker, until the notebook changes the same name."""
    program = (
        "import dios\n"
        "def R(function, *args): return executor.submit(function, *args).result(60)\n"
        "with dios.Executor(1) as executor:\n"
        f"    for number, cell in enumerate({CELLS!r}.split('# %%')):\n"
        "        exec(compile(cell, f'<cell {number}>', 'exec'), globals())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "DIOS_NODE": node.place},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.stdout.splitlines() == [
        "1 11 (1, 1) [1] [1, 2] 1 2",
        "2 12 (1, 2) [1, 2, 3] 3",
        "200 210 (7, 2) ['here', 4] ['here']",
        "('new', 2) True 51 52",
        "1 2 999999",
        "1000000",
    ], run.stderr


def test_logs_of_calls_are_shown_and_those_of_the_script_are_not(tmp_path: Path, node: RunningNode) -> None:
    """A handler that the script makes in a worker, and what the script prints there."""
    (tmp_path / "logs.py").write_text(
        "import dios, logging, sys\n"
        'logging.basicConfig(format="of a log: %(message)s")\n'
        "out = sys.stdout\n"
        'print("of the script", file=sys.stderr)\n'
        "def call():\n"
        '    logging.warning("of a call")\n'
        '    print("to a kept stream", file=out)\n'
        f"{_GUARD}\n"
        "    with dios.Executor(1) as executor:\n"
        "        executor.submit(call).result(120)\n",
        "utf-8",
    )
    run = subprocess.run(
        [sys.executable, "logs.py"],
        cwd=tmp_path,
        env={**os.environ, "DIOS_NODE": node.place},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = run.stderr.splitlines()
    assert lines == ["of the script", "[worker 1] of a log: of a call", "[worker 1] to a kept stream"]
