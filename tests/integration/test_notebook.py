"""Notebooks: ``%%task`` cells in the shell of IPython, next to a real node."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.node.running_node import RunningNode, running_node

IPython = pytest.importorskip("IPython", reason="IPython is not installed: make setup")

import dios  # noqa: E402 - after the check that this file can run
from dios.bridges.notebook import CellFailedError, checked  # noqa: E402
from dios.bridges.notebook_worker import run_cell  # noqa: E402
from dios.lib.executor.errors import UntrustedResultError  # noqa: E402

PAGE = Path(__file__).parents[2] / "docs" / "sandbox.md"
SECTION = "\n## Single cells of a notebook\n"


class Notebook:
    """A shell of IPython, with the extension loaded."""

    def __init__(self) -> None:
        module = ModuleType("__main__")
        self.shell = IPython.core.interactiveshell.InteractiveShell(user_module=module)
        self.shell.run_line_magic("load_ext", "dios")

    def run(self, cell: str) -> BaseException | None:
        """Run a cell; return the exception that left it."""
        outcome = self.shell.run_cell(cell)
        error: BaseException | None = outcome.error_before_exec or outcome.error_in_exec
        return error

    def __getitem__(self, name: str) -> object:
        return self.shell.user_ns[name]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this file."""
    with running_node(tmp_path_factory.mktemp("notebook") / "node") as started:
        yield started


@pytest.fixture
def notebook(running: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    """A notebook next to the node."""
    monkeypatch.setenv("DIOS_NODE", running.place)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    # A shell makes its own module the main one, as in Jupyter.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    new_notebook = Notebook()
    yield new_notebook
    new_notebook.shell.run_line_magic("unload_ext", "dios")
    new_notebook.shell.reset()


def test_every_block_of_the_page_runs(notebook: Notebook) -> None:
    """The blocks of this section of docs/sandbox.md are cells of one notebook."""
    section = PAGE.read_text().partition(SECTION)[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 8
    for block in blocks:
        assert notebook.run(block) is None, block


def test_inputs_go_in_and_outputs_come_back(notebook: Notebook) -> None:
    """The cell has its inputs alone, and sets its outputs alone."""
    notebook.run("a, b, secret = [1, 2], {'x': (3, 4)}, 'not given'")
    cell = "%%task -i a,b -o c --cpus 1 --memory 1GiB\nother = 5\nc = (a, b, sorted(globals()))"
    assert notebook.run(cell) is None
    came = notebook["c"]
    assert type(came) is tuple
    assert came[:2] == ([1, 2], {"x": (3, 4)})
    assert {"a", "b"} <= set(came[2])
    assert "secret" not in came[2]
    assert "other" not in notebook.shell.user_ns
    assert notebook.run("%%task -o again\nagain = 'c' in globals()") is None
    assert notebook["again"] is False


def test_a_failed_cell_shows_its_own_traceback(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    """The traceback has the lines of the cell, and none of this program; no output is set."""
    error = notebook.run("%%task -o c\nc = 1\ndef divide(n):\n    return n / 0\ndivide(c)\n")
    assert isinstance(error, CellFailedError)
    assert str(error) == "ZeroDivisionError: division by zero"
    shown = capsys.readouterr().out
    assert "return n / 0" in shown
    assert "divide(c)" in shown
    assert "notebook_worker" not in shown
    assert "worker.py" not in shown
    assert "c" not in notebook.shell.user_ns
    assert "SyntaxError" in str(notebook.run("%%task\nc = = 1"))
    assert "did not set its outputs: c" in str(notebook.run("%%task -o c\nd = 1"))
    assert notebook.run("%%task -o c\nc = 1") is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("-i nothing", "not defined here: nothing"),
        ("-o class", "'class' is not the name"),
        ("-o a.b", "'a.b' is not the name"),
        ("--memory lots", "no size"),
        ("--wrong", "--wrong"),
        ("-i 'a", "quotation"),
    ],
)
def test_wrong_options_are_explained(
    notebook: Notebook, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    """Nothing runs, and the message names the option."""
    error = notebook.run(f"%%task {line}\npass")
    assert message in str(error)
    assert "--input NAMES" in str(error) or "not defined" in str(error)


def test_a_cell_that_is_killed_leaves_the_next_one(notebook: Notebook) -> None:
    """A cell whose process ends is reported in one line, and the next cell has a worker."""
    error = notebook.run("%%task -o c\nimport os\nos._exit(3)")
    assert isinstance(error, CellFailedError)
    assert "WorkerEndedError" in str(error)
    assert notebook.run("%%task -o c\nc = 1") is None
    assert notebook["c"] == 1


HOSTILE_CELL = """
import pickle, sys
from dios.lib.executor import values
class Attack:
    def __reduce__(self):
        return {call}
def encode(value, **_):
    return values.Encoded(values.ResultKind.PICKLE, pickle.dumps(value, 5), [])
for module in list(sys.modules.values()):
    if hasattr(module, "encode_parts"):
        module.encode_parts = encode
c = Attack()
"""


@pytest.mark.parametrize(
    "call",
    [
        "(eval, (\"__import__('sys').modules['builtins'].__dict__.__setitem__('hacked', 1)\",))",
        "(__import__('os').system, ('true',))",
        "(__import__('builtins').getattr, (1, 'real'))",
        "(__import__('IPython').get_ipython, ())",
        "(__import__('subprocess').Popen, (['true'],))",
    ],
)
def test_a_hostile_result_runs_nothing(notebook: Notebook, call: str) -> None:
    """A cell that makes its worker send a pickle with calls sends them in vain: the notebook refuses it."""
    error = notebook.run("%%task -o c\n" + HOSTILE_CELL.replace("{call}", call))
    assert isinstance(error, CellFailedError)
    assert "UntrustedResultError" in str(error), str(error)
    assert not hasattr(sys.modules["builtins"], "hacked")
    assert "c" not in notebook.shell.user_ns


@pytest.mark.parametrize(
    "reply",
    [
        None,
        (),
        ({"c": 1},),
        [{"c": 1}, ""],
        ({"c": 1, "open": 2}, ""),
        ({}, ""),
        ({"c": 1}, None),
        ({"c": 1}, b""),
        ("c", ""),
        ({"c": 1}, "", ""),
    ],
)
def test_only_the_outputs_that_were_asked_for_are_set(reply: object) -> None:
    """A worker that sends other names, or another form, sets no variable."""
    with pytest.raises(UntrustedResultError):
        checked(reply, ("c",))
    assert checked(({"c": 1}, ""), ("c",)) == {"c": 1}


def test_a_hostile_traceback_controls_no_terminal(notebook: Notebook) -> None:
    """Control letters in the text of an exception are shown as escapes."""
    error = notebook.run("%%task\nraise ValueError('\\x1b[2J\\x07 \\u202e gone')")
    assert isinstance(error, CellFailedError)
    assert all(line.isprintable() for line in error._render_traceback_())
    assert "\\x1b[2J" in str(error)


def test_the_code_of_a_cell_is_reported_without_a_node() -> None:
    """``run_cell`` returns the outputs, or the report of whatever left the cell."""
    assert run_cell("c = a + 1", "<cell>", {"a": 1}, ("c",)) == ({"c": 2}, "")
    outputs, report = run_cell("raise SystemExit(4)", "<cell>", {}, ())
    assert outputs == {}
    assert "SystemExit: 4" in report


def test_objects_are_shown_as_html(notebook: Notebook) -> None:
    """IPython finds the HTML form of a handle, with its fingerprint and without its name."""
    notebook.run("import dios\nnode = dios.connect(groups=[])")
    notebook.run("blob = node.create(dios.SHMEM_BLOB, data=b'x')")
    blob = notebook["blob"]
    assert isinstance(blob, dios.Reference)
    assert blob.name is not None
    data, _ = notebook.shell.display_formatter.format(blob)
    assert blob.fingerprint in data["text/html"]
    assert dios.format_name(blob.name) not in data["text/html"]
    assert notebook.run("node.close()") is None
