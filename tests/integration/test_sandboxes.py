"""``dios.Sandbox`` on a running node: a session that keeps its variables, and holds what it was given."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

import dios
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.sandbox import link
from dios.lib.sandbox.errors import SandboxCodeError, SandboxEndedError
from dios.wire.types import Isolation
from tests.support.layouts import busybox_layout
from tests.support.node.command_user import Person
from tests.support.node.confinement import gvisor_or_skip, runtimes_or_skip
from tests.support.node.running_node import RunningNode
from tests.support.node.task_folder import TEMPORARY
from tests.support.node.unconfined_node import unconfined_node

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```python\n(.*?)```(?:\n\n```\n(.*?)```)?", re.DOTALL)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module."""
    running = RunningNode(tmp_path_factory.mktemp("sandbox") / "data", {"container_runtime": "any"})
    yield running
    running.stop()


@pytest.fixture(scope="module", params=["kernel", pytest.param("gvisor", marks=pytest.mark.long)])
def shared(
    request: pytest.FixtureRequest, node: RunningNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dios.Sandbox]:
    """A sandbox for the tests that do not end it, with each kernel below it."""
    if request.param == "gvisor":
        gvisor_or_skip()
    path = tmp_path_factory.mktemp("inputs") / "sales.csv"
    path.write_text("city,amount\nRome,3\nBerlin,4\n")
    empty = path.with_name("empty")
    empty.write_bytes(b"")
    inputs: dict[str, Path | str | bytes] = {"sales.csv": path, "note": b"bytes", "empty": str(empty)}
    with dios.Sandbox(node=node.place, inputs=inputs, timeout=PATIENCE_S, isolation=request.param) as sandbox:
        yield sandbox


@pytest.fixture
def box(shared: dios.Sandbox) -> dios.Sandbox:
    """The shared sandbox; a test that failed may have ended its session."""
    if shared.ended:
        shared.reset()
    return shared


def is_in_gvisor(box: dios.Sandbox) -> bool:
    """True for a sandbox with a kernel of its own."""
    return box._isolation is Isolation.GVISOR


POSSIBLE_IN_GVISOR = {"import os; os.fork()", "import os; os.listdir('/')"}
"""A kernel of its own has processes, and a root directory with nothing of the machine."""


def run(box: dios.Sandbox, source: str) -> dios.SandboxResult:
    """Run code that raises nothing."""
    result = box.run(source)
    assert result.error is None, str(result.error)
    return result


def test_a_session_keeps_its_variables(box: dios.Sandbox) -> None:
    """Later cells see what earlier ones made; the last expression is shown, unless a semicolon hides it."""
    assert run(box, "x = 20\ndef double(n):\n    return 2 * n").value_repr is None
    assert run(box, "import math\ndouble(x) + 2").value_repr == "42"
    assert run(box, "_ + math.floor(1.5)").value_repr == "43"
    assert run(box, "x;").value_repr is None
    assert run(box, "None").value_repr is None
    assert run(box, "").value_repr is None
    assert run(box, "# a comment alone").ok
    assert run(box, "'''text'''").value_repr == "'text'"


def test_a_session_does_not_start_with_a_labelled_input_that_it_may_not_read(node: RunningNode) -> None:
    """Its streams may not carry the tag; the error is the refusal."""
    with dios.connect(node.place) as own:
        pay = own.create(dios.SHMEM_BLOB, data=b"4100 5200", secrecy=["payroll"])
        with (
            pytest.raises(SandboxEndedError, match=r"it is labelled uid:\d+/payroll"),
            dios.Sandbox(node=own, inputs={"pay": pay}, timeout=PATIENCE_S) as refused,
        ):
            refused.run("1")


LABELLED_PARENT = b"""
import dios
node = dios.connect()
pay = node.input("pay")
pay.read_bytes(1)
with dios.Sandbox(node=node, inputs={"pay": pay}, timeout=60) as box:
    print(box.run("open('/inputs/pay').read()").value_repr)
"""


def test_a_session_of_a_labelled_task_reads_what_its_starter_has_read(node: RunningNode) -> None:
    """The streams of the session have the label of that task."""
    with dios.connect(node.place) as own:
        pay = own.create(dios.SHMEM_BLOB, data=b"4100 5200", secrecy=["payroll"])
        task = own.run(LABELLED_PARENT, inputs={"pay": pay.restrict("read", "delegate")})
        task.wait(PATIENCE_S)
        assert b"".join(task.console()) == b"'4100 5200'\n"


def test_output_is_separate_and_complete(box: dios.Sandbox) -> None:
    """Both streams come as text, also without a line end, and measurements with them."""
    result = run(box, "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.stdout.write('no end')")
    assert (result.stdout, result.stderr) == ("out\nno end", "err\n")
    assert result.value_repr == "6"
    # The kernel of gVisor counts in steps of 10 ms.
    assert result.cpu_seconds > 0 or is_in_gvisor(box)
    assert result.peak_bytes > 1_000_000


def test_output_comes_while_the_code_runs(box: dios.Sandbox) -> None:
    """Each part is handed over in order and decoded; the result has everything again."""
    parts: list[tuple[str, str]] = []

    def show(stream: str, text: str) -> None:
        parts.append((stream, text))
        if text == "stop\n":
            assert box.interrupt()

    result = box.run(
        "import sys\nprint('x' + 'ä' * 10_000)\nprint('err', file=sys.stderr)\n"
        "print('stop')\nwhile True: pass",
        on_output=show,
    )
    assert result.error is not None
    assert result.error.type == "KeyboardInterrupt"
    assert "".join(text for stream, text in parts if stream == "stdout") == result.stdout
    assert "".join(text for stream, text in parts if stream == "stderr") == result.stderr == "err\n"
    assert len(parts) > 3


@pytest.mark.parametrize("kind", [BrokenPipeError, dios.TimeLimitError, dios.ClosedError, KeyboardInterrupt])
def test_an_exception_of_the_reader_of_output_interrupts_the_code(
    box: dios.Sandbox, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised by ``run``, and the session goes on."""
    monkeypatch.setattr(link, "GRACE_S", PATIENCE_S)
    run(box, "kept = 5")

    def show(stream: str, text: str) -> None:
        raise kind(stream + text)

    with pytest.raises(kind, match="stdoutbegun"):
        box.run("print('begun')\nprint('more')\nwhile True: pass", on_output=show)
    result = run(box, "kept")
    assert (result.stdout, result.value_repr) == ("", "5")


def test_an_error_shows_the_lines_of_its_cells(box: dios.Sandbox) -> None:
    """A traceback has the source of all cells in it, and no line of the sandbox."""
    run(box, "def divide(a, b):\n    return a / b")
    result = box.run("print('before')\ndivide(1, 0)")
    assert result.stdout == "before\n"
    assert not result.ok
    assert result.error is not None
    assert (result.error.type, result.error.message) == ("ZeroDivisionError", "division by zero")
    assert "    divide(1, 0)\n" in result.error.traceback
    assert "    return a / b\n" in result.error.traceback
    assert "dios/" not in result.error.traceback
    assert str(result.error) == result.error.traceback.rstrip()


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("1 +", "SyntaxError"),
        ("  x", "IndentationError"),
        ("return 1", "SyntaxError"),
        ("'\\0'; \0", "SyntaxError" if sys.version_info >= (3, 11, 4) else "ValueError"),
        ("exit(3)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): f()\nf()", "RecursionError"),
        ("input()", "EOFError"),
        ("inputs['nothing']", "KeyError"),
    ],
)
def test_an_error_leaves_the_session_as_it_was(box: dios.Sandbox, source: str, kind: str) -> None:
    """Whatever the code raises is described, and the session goes on."""
    run(box, "kept = 5")
    result = box.run(source)
    assert result.error is not None
    assert result.error.type == kind
    assert not result.error.ended
    assert "dios/lib" not in result.error.traceback
    assert run(box, "kept").value_repr == "5"


@pytest.mark.parametrize(
    ("source", "refused"),
    [
        ("import socket; socket.create_connection(('192.0.2.1', 80))", "network"),
        ("import urllib.request; urllib.request.urlopen('http://192.0.2.1')", "network"),
        ("import urllib.request; urllib.request.urlopen('http://example.org')", "network"),
        ("import subprocess; subprocess.run(['ls'])", "other processes"),
        ("import os; os.fork()", "a system call"),
        ("open('/report.txt', 'w')", "writing outside its folder"),
        ("open('/etc/passwd')", "files of the machine"),
        ("open('sales.csv')", "files of the machine"),
        ("open('/inputs/sales')", "a file in /inputs that is not there"),
        ("import os; os.listdir('/')", "files of the machine"),
        ("import module_that_nobody_has", "a module that is not there"),
        ("bytearray(1 << 45)", "memory"),
    ],
)
def test_an_error_says_what_was_refused(box: dios.Sandbox, source: str, refused: str) -> None:
    """The refusal has a name, and a sentence that says how to get what was refused."""
    if is_in_gvisor(box) and source in POSSIBLE_IN_GVISOR:
        pytest.skip("a kernel of its own refuses no processes and no list of its root")
    error = box.run(source).error
    assert error is not None
    assert error.refused == refused
    assert error.remedy
    assert error.remedy in str(error)


def test_inputs_are_files(box: dios.Sandbox) -> None:
    """Each input opens anew as a file, whatever it was given as."""
    assert run(box, "[inputs['sales.csv'].read(4) for _ in range(2)]").value_repr == "[b'city', b'city']"
    assert run(box, "inputs['note'].read(), inputs['empty'].read()").value_repr == "(b'bytes', b'')"
    assert run(box, "sorted(inputs)").value_repr == "['empty', 'note', 'sales.csv']"
    assert run(
        box, "import csv, io; list(csv.reader(io.TextIOWrapper(inputs['sales.csv'])))[1]"
    ).value_repr == ("['Rome', '3']")


def test_inputs_are_at_paths(node: RunningNode, box: dios.Sandbox) -> None:
    """Inputs are files of a folder, too, unless they would take much of the memory."""
    if run(box, "import os; os.path.isdir('/inputs')").value_repr != "True":
        pytest.skip("this machine gives tasks no folder")
    assert run(box, "open('/inputs/note').read(), sorted(os.listdir('/inputs'))").value_repr == (
        "('bytes', ['empty', 'note', 'sales.csv'])"
    )
    assert not box.run("open('/inputs/note', 'w')").ok
    inputs = {"large": bytes(60 << 20), "small": b"small"}
    with dios.Sandbox(node=node.place, inputs=inputs, memory="128 MiB", timeout=PATIENCE_S) as other:
        assert run(other, "import os; os.listdir('/inputs')").value_repr == "['small']"
        assert run(other, "inputs['large'].size").value_repr == str(60 << 20)


def test_references_are_inputs(node: RunningNode) -> None:
    """An object of the node is given to read, by a node that is open, and cannot be written."""
    with dios.connect(node.place) as opened, opened.create(dios.SHMEM_BLOB, data=b"of the node") as blob:
        with dios.Sandbox(node=opened, inputs={"blob": blob}) as box:
            assert run(box, "inputs['blob'].read()").value_repr == "b'of the node'"
            run(box, "import dios; given = dios.connect().input('blob')")
            error = box.run("given.write_bytes(b'changed')").error
            assert error is not None
            assert error.type == "NotPermittedError"
        assert blob.read_bytes() == b"of the node"


@pytest.mark.parametrize(
    "value",
    [1, "text", None, [1.5, {"a": (1, 2)}], {1, 2}, b"bytes", Decimal("1.50"), 1 << 200],
    ids=str,
)
def test_values_go_in_and_come_back(box: dios.Sandbox, value: object) -> None:
    """``put`` and ``get`` copy values, also those of classes of the program."""
    box.put("value", value)
    assert box.get("value") == value


def test_objects_of_the_program_go_in_and_come_back(
    box: dios.Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source of a class travels with its object, and the caller puts the object together again."""
    (tmp_path / "points.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Point:\n    x: int\n    def mirrored(self):\n"
        "        return Point(-self.x)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    point = importlib.import_module("points").Point(3)
    box.put("point", point)
    run(box, "other = point.mirrored()")
    assert box.get("other") == point.mirrored()


def test_arrays_and_functions_go_in_and_come_back(box: dios.Sandbox) -> None:
    """An array is writable on both sides; a function of the program can be called in the session."""
    np = pytest.importorskip("numpy")
    box.put("values", np.arange(100_000.0))
    run(box, "values[0] = 7.0")
    fetched = box.get("values")
    assert isinstance(fetched, np.ndarray)
    fetched[1] = 2.0
    assert fetched[:3].tolist() == [7.0, 2.0, 2.0]
    box.put("triple", lambda n: 3 * n)
    assert run(box, "triple(5)").value_repr == "15"
    assert box.call("triple", 7) == 21


def test_functions_of_the_session_are_called(box: dios.Sandbox) -> None:
    """``call`` returns the value, and raises a description of an exception, never the exception itself."""
    run(box, "def area(width, *, height=1):\n    print('area')\n    return width * height")
    assert box.call("area", 3, height=4) == 12
    with pytest.raises(SandboxCodeError, match="TypeError") as caught:
        box.call("area", None, height="x")
    assert "return width * height" in caught.value.failure.traceback
    with pytest.raises(SandboxCodeError, match=r"NameError.*'nothing'"):
        box.call("nothing")
    with pytest.raises(SandboxCodeError, match=r"NameError.*'nothing'"):
        box.get("nothing")
    assert run(box, "").stdout == "area\narea\n"


def test_a_value_of_a_class_of_the_session_is_refused(box: dios.Sandbox) -> None:
    """The caller takes no object whose class it does not have."""
    run(box, "class Mine:\n    pass\nmine = Mine()\nfunction = print")
    with pytest.raises(UntrustedResultError, match="Mine"):
        box.get("mine")
    with pytest.raises(UntrustedResultError):
        box.get("function")


def test_files_of_the_session_go_in_and_come_back(node: RunningNode) -> None:
    """A name that is no variable's is a file in the session's own folder, which a reset empties."""
    bounds = dios.SandboxBounds(value_bytes=1000)
    with dios.Sandbox(node=node.place, bounds=bounds, timeout=PATIENCE_S) as box:
        same = f"os.path.samefile('.', '{TEMPORARY}')"
        outcome = box.run("import os\nopen('out.txt', 'w').write('made here')\n" + same)
        if outcome.error is not None:
            pytest.skip(f"this machine gives tasks no folder: {outcome.error.message}")
        assert outcome.value_repr == "True"
        assert box.get("out.txt") == b"made here"
        box.put("in.csv", b"a,b")
        assert run(box, f"open('{TEMPORARY}/in.csv').read()").value_repr == "'a,b'"
        run(box, "open('large.bin', 'wb').write(bytes(5000))")
        with pytest.raises(SandboxCodeError, match="value_bytes"):
            box.get("large.bin")
        for name, kind in (("nothing.txt", "FileNotFoundError"), (TEMPORARY, "IsADirectoryError")):
            with pytest.raises(SandboxCodeError, match=kind):
                box.get(name)
        with pytest.raises(SandboxCodeError, match="Error"):
            box.put("/etc/passwd", b"root")
        box.reset()
        assert run(box, "import os; os.path.exists('out.txt')").value_repr == "False"


def test_what_cannot_be_sent_is_refused_before(box: dios.Sandbox) -> None:
    """Names that are none, and values that cannot be pickled, change nothing."""
    with pytest.raises(dios.InvalidError, match="name of a variable"):
        box.put("no.name", 1)
    with pytest.raises(dios.InvalidError):
        box.put("lock", threading.Lock())
    with pytest.raises(dios.InvalidError, match="UTF-8"):
        box.run("'\ud800'")
    with pytest.raises(dios.InvalidError, match="UTF-8"):
        box.get("\udfff.csv")
    assert run(box, "1").value_repr == "1"


def test_interrupt_stops_a_loop_and_keeps_the_session(box: dios.Sandbox) -> None:
    """Another thread stops loops and sleeps; without a run there is nothing to stop."""
    run(box, "count = 0")
    for source in ("while True: count += 1", "import time; time.sleep(3600)"):
        timer = threading.Thread(target=_interrupt_soon, args=(box,))
        timer.start()
        error = box.run(source).error
        timer.join()
        assert error is not None
        assert error.type == "KeyboardInterrupt"
    assert run(box, "count > 0").value_repr == "True"
    assert not box.interrupt()


def _interrupt_soon(box: dios.Sandbox) -> None:
    while not box.interrupt():
        time.sleep(0.05)


def test_a_run_over_its_time_is_interrupted(node: RunningNode) -> None:
    """The session keeps its variables; one that does not stop is ended."""
    with dios.Sandbox(node=node.place, timeout=1.5) as box:
        run(box, "x = 1")
        error = box.run("while True: pass").error
        assert error is not None
        assert (error.type, error.ended) == ("TimeoutError", False)
        assert error.traceback.endswith("(timeout=)\n")
        assert run(box, "x").value_repr == "1"
        run(box, "def endless():\n    while True: pass")
        error = box.run("while True:\n    try: endless()\n    except BaseException: pass").error
        assert error is not None
        assert error.ended
        assert "did not stop" in error.message
        with pytest.raises(SandboxEndedError, match=r"did not stop.*reset"):
            box.run("x")
        box.reset()
        assert not box.run("x").ok
        assert run(box, "5").value_repr == "5"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import os; os._exit(7)", "exit status 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)\nimport ctypes; ctypes.string_at(0)", ""),
        ("import ctypes; ctypes.CDLL(None).unshare(0x10000000)", "system call"),
        (
            "import gc; next(x for x in gc.get_objects() if type(x).__name__ == '_Session')._answers.close()",
            "exit status 0",
        ),
    ],
    ids=["exit", "crash", "refused call", "closed stream"],
)
def test_the_end_of_a_session_has_a_reason(node: RunningNode, source: str, reason: str) -> None:
    """The run, and each later one, says why the session ended; ``reset`` makes a fresh one."""
    with dios.Sandbox(node=node.place, timeout=PATIENCE_S) as box:
        run(box, "x = 1")
        result = box.run("print('last words')\n" + source)
        assert result.stdout == "last words\n"
        assert result.error is not None
        assert result.error.ended
        assert reason in result.error.message
        assert box.ended
        with pytest.raises(SandboxEndedError, match="reset"):
            box.run("x")
        with pytest.raises(SandboxEndedError, match="reset"):
            box.get("x")
        box.reset()
        assert not box.ended
        assert run(box, "'x' in globals()").value_repr == "False"


REACHED = {
    "memory": ("kept = []\nwhile True: kept.append(bytearray(1 << 20))", "memory="),
    "mapped memory": (
        (
            "import mmap\ntry: pages = mmap.mmap(-1, 300 << 20)\n"
            # Where no control group counts memory, shared memory is refused.
            "except PermissionError: pages = mmap.mmap(-1, 300 << 20, mmap.MAP_PRIVATE)\n"
            "for at in range(0, 300 << 20, 4096): pages[at] = 1"
        ),
        "memory=",
    ),
    "files": ("with open('large', 'wb') as file:\n    while True: file.write(bytes(1 << 20))", "memory="),
    "processor time": ("while True: pass", "cpu_seconds="),
    "processor time of threads": (
        (
            "import hashlib, threading\ndef burn():\n"
            "    while True: hashlib.sha256(bytes(1 << 20)).digest()\n"
            "for _ in range(8): threading.Thread(target=burn, daemon=True).start()\nthreading.Event().wait()"
        ),
        "cpu_seconds=",
    ),
    "threads": (
        (
            "import threading\nend = threading.Event()\n"
            "while True: threading.Thread(target=end.wait, daemon=True).start()"
        ),
        "at most 256 threads",
    ),
    "open files": ("import os\nkept = []\nwhile True: kept.append(os.dup(0))", "limit of open files"),
    "wall time": ("import time; time.sleep(3600)", "timeout="),
}
"""For each limit, code that reaches it, and what its error says about it."""


@pytest.mark.parametrize("limit", REACHED)
def test_each_limit_is_enforced_and_named(node: RunningNode, limit: str) -> None:
    """Code that goes on for ever is stopped; the error says which limit it was, and how to raise it."""
    source, told = REACHED[limit]
    timeout = 2.0 if limit == "wall time" else PATIENCE_S
    with dios.Sandbox(node=node.place, memory="128 MiB", cpu_seconds=3, timeout=timeout) as box:
        error = box.run(source).error
        assert error is not None
        assert told in str(error), str(error)
        box.reset()
        assert run(box, "1").value_repr == "1"


def test_output_is_cut_at_its_bound(node: RunningNode) -> None:
    """More output than the bound is cut with a notice, in each stream and in each run."""
    bounds = dios.SandboxBounds(output_bytes=1000, repr_chars=100, value_bytes=1000)
    with dios.Sandbox(node=node.place, bounds=bounds, timeout=PATIENCE_S) as box:
        for _ in range(2):
            result = run(
                box, "import sys\nfor _ in range(3000): print('x' * 99)\nprint('e', file=sys.stderr)"
            )
            assert result.stdout.endswith("[output over 1,000 bytes, the bound output_bytes, is cut]\n")
            assert len(result.stdout) < 1100
            assert result.stderr == "e\n"
        shown = run(box, "'y' * 5000").value_repr
        assert shown is not None
        assert len(shown) <= 100
        run(box, "large = bytes(5000)")
        with pytest.raises(SandboxCodeError, match="value_bytes"):
            box.get("large")
        assert len(run(box, "print('z' * 999)").stdout) == 1000
        parts: list[str] = []
        result = box.run("for _ in range(300): print('ä' * 99)", on_output=lambda _, text: parts.append(text))
        assert "".join(parts) == result.stdout
        assert result.stdout.endswith("is cut]\n")


def size_of_picture(data: bytes) -> tuple[int, int]:
    """Return the width and the height of a PNG picture."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack_from(">II", data, 16)
    return width, height


def test_figures_come_as_pictures(box: dios.Sandbox) -> None:
    """Each open figure of pyplot is in the result of its run once, also if the run raises after it."""
    pytest.importorskip("matplotlib")
    result = run(
        box, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nplt.figure()\nplt.plot([2, 1]);"
    )
    assert len(result.figures) == 2
    assert all(min(size_of_picture(figure)) > 100 for figure in result.figures)
    assert result.stderr == ""
    assert run(box, "1").figures == ()
    failed = box.run("plt.plot([1, 2])\n1 / 0")
    assert failed.error is not None
    assert failed.error.type == "ZeroDivisionError"
    assert len(failed.figures) == 1


def test_figures_over_the_bounds_are_dropped_with_a_notice(node: RunningNode) -> None:
    """Neither the number nor the size of figures passes its bound, and the code is told."""
    pytest.importorskip("matplotlib")
    bounds = dios.SandboxBounds(figures=1, figure_bytes=200_000)
    with dios.Sandbox(node=node.place, bounds=bounds, timeout=PATIENCE_S) as box:
        result = run(box, "import matplotlib.pyplot as plt\nfor _ in range(3): plt.figure()")
        assert len(result.figures) == 1
        assert "at most 1 figures" in result.stderr
        result = run(box, "plt.figure(figsize=(120, 1), dpi=150); plt.plot([1, 2]);")
        assert result.figures == ()
        assert "make it smaller" in result.stderr
        assert run(box, "plt.get_fignums()").value_repr == "[]"


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_data_frames_come_as_rows(box: dios.Sandbox, package: str) -> None:
    """The last value is a table of plain values, with the numbers of all its rows and columns."""
    pytest.importorskip(package)
    maker = {"pandas": "pandas.DataFrame", "polars": "polars.DataFrame", "pyarrow": "pyarrow.table"}[package]
    result = run(
        box,
        f"import {package}\nframe = {maker}({{'n': list(range(100)), 'text': ['a'] * 99 + ['b']}})\nframe",
    )
    (table,) = result.tables
    assert result.value_table is table
    assert table.columns == ("n", "text")
    assert table.rows[:2] == ((0, "a"), (1, "a"))
    assert (len(table.rows), table.row_count, table.column_count) == (50, 100, 2)
    assert result.value_repr
    wide = (
        f"{maker}({{f'c{{n}}': [b'bytes', None, 10**17] if n == 0 else [1.5, 2.5, None] for n in range(60)}})"
    )
    if package == "pandas":
        (table,) = run(box, wide).tables
        assert (len(table.columns), table.column_count) == (50, 60)
        assert [row[0] for row in table.rows] == ["b'bytes'", None, 10**17]


def test_the_index_of_a_frame_is_a_column(box: dios.Sandbox) -> None:
    """Rows that have names of their own keep them; a series is a table of one column."""
    pytest.importorskip("pandas")
    result = run(box, "import pandas\npandas.DataFrame({'a': [1, 2]}, index=['x', 'y'])")
    assert result.tables[0].rows == (("x", 1), ("y", 2))
    result = run(box, "pandas.Series([1.5], name='s')")
    assert (result.tables[0].columns, result.tables[0].rows) == (("s",), ((1.5,),))


def test_display_shows_values_like_the_last_one(box: dios.Sandbox) -> None:
    """Frames are tables, other values are printed."""
    pytest.importorskip("pandas")
    result = run(
        box,
        "import pandas\nframe = pandas.DataFrame({'a': [1]})\ndisplay(5, frame, 'text')\n"
        "for _ in range(20): display(frame)",
    )
    assert result.stdout == "5\n'text'\n"
    assert len(result.tables) == 10
    assert result.value_table is None
    assert run(box, "for _ in range(10): display(frame)\nframe").value_table is None
    assert "at most 10 tables" in result.stderr


def test_only_the_last_value_is_the_table_of_the_value(box: dios.Sandbox) -> None:
    """A frame that is displayed before another value, or over the bound, is not taken for the value."""
    pytest.importorskip("pandas")
    shown = run(box, "import pandas\ndisplay(pandas.DataFrame({'n': [1]}))\n5")
    assert (len(shown.tables), shown.value_repr, shown.value_table) == (1, "5", None)
    many = run(box, "for _ in range(10): display(pandas.DataFrame({'n': [1]}))\npandas.DataFrame({'m': [1]})")
    assert (len(many.tables), many.value_table) == (10, None)


def test_names_are_completed(box: dios.Sandbox) -> None:
    """Variables, built-in names and attributes; a session that sends something else is not believed."""
    run(box, "import math\nmath_of_mine = 1\nclass Own:\n    part = math")
    assert box.complete("math") == ["math", "math_of_mine"]
    assert box.complete("math.sq") == ["math.sqrt"]
    assert box.complete("Own.part.sq") == ["Own.part.sqrt"]
    assert box.complete("nonloc") == ["nonlocal"]
    assert box.complete("isinst") == ["isinstance"]
    assert "math.pi" in box.complete("math.")
    assert box.complete("nothing_like_this") == []
    for missing in ("nothing.a", "math.nothing.a"):
        with pytest.raises(SandboxCodeError):
            box.complete(missing)
    for wrong in ("", "1", "a b", "f().a", "a..b", "a" * 1000):
        with pytest.raises(dios.InvalidError, match="to complete"):
            box.complete(wrong)
    for hostile in (["other"], ["math\n"], ["math" * 1000], ["math"] * 1000, "math", [1]):
        run(
            box,
            "import dios.lib.sandbox.session as session\nhonest = session._completions\n"
            f"session._completions = lambda *_: {hostile!r}",
        )
        with pytest.raises(UntrustedResultError):
            box.complete("math")
        run(box, "session._completions = honest")


def test_threads_of_a_cell_go_on(box: dios.Sandbox) -> None:
    """The output of a thread comes with the run in which it is read."""
    run(
        box,
        "import threading\ngo = threading.Event()\ndef later():\n    go.wait()\n    print('from a thread')",
    )
    run(box, "thread = threading.Thread(target=later); thread.start()")
    assert "from a thread\n" in run(box, "go.set(); thread.join()").stdout


def test_code_that_closes_its_output_gets_a_new_one(box: dios.Sandbox) -> None:
    """Closed, detached and replaced streams cost their own run alone."""
    for source in (
        "import sys; sys.stdout.close()",
        "import sys; sys.stdout.detach()",
        "import sys; sys.stdout = sys.stderr = None",
        "import sys; del sys.stdout",
        "import sys; sys.stderr.buffer.close()",
    ):
        box.run(source)
        assert run(box, "print('there')").stdout == "there\n"


def test_a_sandbox_serves_event_loops_and_threads(box: dios.Sandbox) -> None:
    """In an asyncio program each call runs in a thread; calls wait for their turn."""
    run(box, "total = 0")

    async def many() -> list[dios.SandboxResult]:
        sources = [f"total += {number}\ntotal" for number in range(5)]
        return await asyncio.gather(*(asyncio.to_thread(box.run, source) for source in sources))

    results = asyncio.run(many())
    assert all(result.ok for result in results)
    assert max(int(result.value_repr or 0) for result in results) == 10


def test_a_closed_sandbox_says_so(node: RunningNode) -> None:
    """After ``close`` nothing runs, and a run in another thread ends."""
    box = dios.Sandbox(node=node.place, timeout=None)
    results: list[dios.SandboxResult] = []
    thread = threading.Thread(target=lambda: results.append(box.run("while True: pass")))
    thread.start()
    _interrupt_soon(box)
    box.close()
    thread.join(PATIENCE_S)
    assert results
    assert results[0].error is not None
    for refused in (lambda: box.run("1"), box.reset):
        with pytest.raises(SandboxEndedError, match="closed"):
            refused()
    box.close()


@pytest.mark.parametrize(
    "given",
    [
        {"memory": "much"},
        {"timeout": 0},
        {"cpu_seconds": -1},
        {"inputs": {".orders": b""}},
        {"inputs": {"a/b": b""}},
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(given: dict[str, object]) -> None:
    """The error comes before a node is asked."""
    with pytest.raises(dios.InvalidError):
        dios.Sandbox(**given)  # type: ignore[arg-type]  # they are wrong


def test_a_machine_that_cannot_confine_tasks_is_reported(tmp_path: Path) -> None:
    """A session that the node refuses to start is an error with the node's reason."""
    with (
        unconfined_node(tmp_path / "data") as data,
        pytest.raises(
            dios.NotSupportedError,
            match="cannot confine them: mount missing",
        ),
    ):
        dios.Sandbox(node=data)


def test_an_input_that_is_not_there_is_an_error(node: RunningNode, tmp_path: Path) -> None:
    """The path of a file that does not exist is the error of the constructor."""
    with pytest.raises(FileNotFoundError, match=r"nothing\.csv"):
        dios.Sandbox(node=node.place, inputs={"x": tmp_path / "nothing.csv"})


PAGE = (ROOT / "docs" / "sandbox.md").read_text()
PROGRAMS = BLOCK.findall(PAGE.partition("\n## Single cells of a notebook\n")[0])


@pytest.mark.parametrize(("program", "printed"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_of_the_page_run(node: RunningNode, tmp_path: Path, program: str, printed: str) -> None:
    """Each program of docs/sandbox.md prints what the page shows."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"city": ["Berlin", "Rome", "Paris"], "amount": [4, 8, 3]})
    frame.to_csv(tmp_path / "sales.csv", index=False)
    frame.to_parquet(tmp_path / "sales.parquet")
    if "image=" in program:
        runtimes_or_skip()
        busybox_layout(tmp_path / "tiny")
    environment = {**os.environ, "DIOS_NODE": node.place, "XDG_CONFIG_HOME": str(tmp_path / ".config")}
    if "dios://tries" in program:
        person = Person(tmp_path)
        person.environment["DIOS_NODE"] = node.place
        person.types("dios group create tries")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
