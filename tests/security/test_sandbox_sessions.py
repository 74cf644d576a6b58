"""Hostile code in the session of a ``dios.Sandbox``: it hurts its own session, and nothing else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.sandbox import link
from dios.lib.sandbox.errors import SandboxCodeError, SandboxEndedError, SessionForkError
from tests.support.node.running_node import RunningNode

PATIENCE_S = 60.0

REACH = """
import gc, msgspec, os, struct, sys, threading, time
from dios.lib.executor import frames
from dios.lib.sandbox import protocol
from dios.lib.sandbox.protocol import *
session = next(each for each in gc.get_objects() if type(each).__name__ == "_Session")
pack = msgspec.msgpack.encode
PNG = b"\\x89PNG\\r\\n\\x1a\\n"
def answer(*values, **named):
    session.send(protocol.DONE, pack(Answer(session._present, *values, **named)))
def raw(data):
    session._answers.write(data)
"""
"""Code of a session that takes hold of the part of DIOS in its process."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module."""
    running = RunningNode(tmp_path_factory.mktemp("hostile-sessions") / "data", {})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def shared(node: RunningNode) -> Iterator[dios.Sandbox]:
    """A sandbox for all tests; each gets a running session."""
    bounds = dios.SandboxBounds(
        output_bytes=20_000, repr_chars=1000, value_bytes=100_000, display_bytes=10 << 20
    )
    with dios.Sandbox(node=node.place, timeout=PATIENCE_S, bounds=bounds) as box:
        yield box


@pytest.fixture
def box(shared: dios.Sandbox) -> dios.Sandbox:
    """A fresh session that has taken hold of the part of DIOS in its process."""
    shared.reset()
    assert shared.run(REACH).ok
    return shared


FORGERIES = {
    "a frame of an unknown kind": "session.send(99)",
    "a second start": "session.send(protocol.READY)",
    "an order": "session.send(protocol.ORDER, b'x')",
    "output of no stream": "session.send(protocol.OUTPUT, b'\\x07', b'x')",
    "empty output": "session.send(protocol.OUTPUT, b'\\x01')",
    "output without a stream": "session.send(protocol.OUTPUT)",
    "an endless frame": "raw(struct.pack('<IB', 0xFFFFFFFF, protocol.DONE))",
    "rubbish for an answer": "session.send(protocol.DONE, os.urandom(1000))",
    "an answer of the wrong types": "session.send(protocol.DONE, pack([session._present, 5, b'x']))",
    "text that is no text": "session.send(protocol.DONE, b'\\x92\\x01\\xa1\\xff')",
    "an answer to an earlier order": "session.send(protocol.DONE, pack(Answer(1)))",
    "an answer to a later order": "session.send(protocol.DONE, pack(Answer(session._present + 1)))",
    "two answers": "answer('1'), answer('2')",
    "a value over the bound": "answer('x' * 1001)",
    "data over the bound": "answer(data=bytes(100_001))",
    "a traceback over the bound": "answer(failure=FailureRecord('E', '', 'x' * 100_000))",
    "a figure that is a page": "answer(figures=[b'<script>alert(1)</script>'])",
    "a figure that fills the memory of a viewer": (
        "answer(figures=[PNG + struct.pack('>I4sII', 13, b'IHDR', 1 << 31, 1 << 31)])"
    ),
    "very many figures": "answer(figures=[PNG] * 101)",
    "a table with endless rows": "answer(tables=[msgspec.Raw(pack([['a'], [[1]] * 51, 51, 1]))])",
    "a table with huge texts": "answer(tables=[msgspec.Raw(pack([['a'], [['x' * 5000]], 1, 1]))])",
    "a table of tables": "answer(tables=[msgspec.Raw(b'\\x94' + b'\\x91' * 60_000)])",
    "a table of very many empty rows": "answer(tables=[msgspec.Raw(pack([[], [[]] * 90_000, 0, 0]))])",
    "a value shown of an unknown kind": "session.send(protocol.DISPLAY, pack([9]))",
    "a value shown that is a page": "session.send(protocol.DISPLAY, pack([0, '', '', b'<script>']))",
    "a value shown with a text over the bound": "session.send(protocol.DISPLAY, pack([0, 'x' * 1001]))",
    "a value shown with endless HTML": "session.send(protocol.DISPLAY, pack([0, '', 'x' * (2 << 20 | 1)]))",
    "a value shown under a page's name": (
        "session.send(protocol.DISPLAY, pack([0, '', '', b'', b'', [], '<b>']))"
    ),
    "more values shown than there may be": (
        "for _ in range(2_003): session.send(protocol.DISPLAY, pack([0, 'x']))"
    ),
    "larger values shown than there may be": (
        "for _ in range(6): session.send(protocol.DISPLAY, pack([0, '', 'x' * (1 << 20)]))"
    ),
    "an order to clear that is none": "session.send(protocol.CLEAR, b'\\x02')",
    "impossible measurements": "answer(cpu_ns=-5)",
    "endless measurements": "answer(peak_bytes=1 << 63)",
    "more output than there may be": (
        "for _ in range(100): session.send(protocol.OUTPUT, b'\\x01', bytes(8000))"
    ),
    "counters of the stream": "session._answers._tail = 1 << 60",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_session_that_forges_its_answers_is_ended(box: dios.Sandbox, name: str) -> None:
    """The run says that the session broke the protocol, the next one that it ended; ``reset`` works."""
    # It goes on, so that nothing but the forgery ends it.
    result = box.run(f"{FORGERIES[name]}\nsession._answers._publish()\ntime.sleep(3600)")
    if result.ok:
        # A forged answer that is right may end the run; the one after it does not count as another.
        result = box.run("1")
    assert result.error is not None
    assert result.error.ended
    assert "broke the protocol" in result.error.message
    with pytest.raises(SandboxEndedError, match="broke the protocol"):
        box.run("1")
    box.reset()
    assert box.run("1 + 1").value_repr == "2"


def test_a_forged_answer_is_data_alone(box: dios.Sandbox) -> None:
    """A session can choose the texts of its answer; texts they stay."""
    result = box.run("answer('forged', cpu_ns=5 * 10**9)\nos._exit(0)")
    assert (result.value_repr, result.cpu_seconds) == ("forged", 5.0)


# -- values -------------------------------------------------------------------------------------------
DATA = {
    "a call of a program": "b'p' + bytes(4) + b'\\x80\\x05cos\\nsystem\\n\\x8c\\x09touch own\\x85R.'",
    "a call by protocol 5": "pickled(Calls())",
    "a shared tuple without end": "b'p' + bytes(4) + b'\\x80\\x05)' + b'2\\x86' * 100 + b'.'",
    "very deep": "b'p' + bytes(4) + b'\\x80\\x05' + b']' * 30_000 + b'a' * 29_999 + b'.'",
    "cut off": "b'p' + bytes(4) + b'\\x80\\x05]('",
    "no pickle": "b'p' + bytes(4) + os.urandom(100)",
    "more buffers than bytes": "b'p' + b'\\xff' * 4 + bytes(100)",
    "empty": "b''",
    "unknown": "b'z'",
    "a text that is no text": "b'm\\xa1\\xff'",
    "deep and plain": "b'm' + b'\\x91' * 90_000",
    "an array of objects": (
        "pickled(__import__('numpy').array([Calls()], dtype=object)) if __import__('importlib').util"
        ".find_spec('numpy') else b''"
    ),
}

PICKLES = """
import importlib.util, pickle
class Calls:
    def __reduce__(self):
        return os.system, ("touch own",)
def pickled(value):
    return b"p" + bytes(4) + pickle.dumps(value, protocol=5)
import dios.lib.sandbox.session as module
"""


@pytest.mark.parametrize("name", DATA)
def test_a_forged_value_runs_nothing(
    box: dios.Sandbox, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller refuses the value, runs no code for it, and the session goes on."""
    monkeypatch.chdir(tmp_path)
    assert box.run(PICKLES + f"data = {DATA[name]}\nmodule.encode_result = lambda value: data").ok
    with pytest.raises(UntrustedResultError):
        box.get("data")
    with pytest.raises(UntrustedResultError):
        box.call("pickled", 1)
    assert not list(tmp_path.iterdir())
    assert box.run("1").ok


HOSTILE_VALUES = """
class Raises:
    def __repr__(self): raise ValueError("from repr")
class Leaves:
    def __repr__(self): os._exit
    def __reduce_ex__(self, protocol): raise SystemExit(3)
class Text(str):
    def encode(self, *rest, **named): return 5
    def isascii(self): return False
    def __len__(self): return -1
class OwnText:
    def __repr__(self): return Text("own")
class Huge:
    def __repr__(self): return "x" * 50_000_000
class Spoofed:
    @property
    def __class__(self): raise KeyError("class")
    def __getattr__(self, name): raise KeyError(name)
    def __repr__(self): return "spoofed"
class Surrogate:
    def __repr__(self): return "\\ud800\\udfff"
class Frame:
    __module__ = "pandas"
Frame.__module__ = "pandas.core.frame"
"""


@pytest.mark.parametrize(
    "value",
    ["Raises()", "Leaves()", "OwnText()", "Huge()", "Spoofed()", "Surrogate()", "Frame()", "Text('x')"],
)
def test_a_hostile_value_costs_its_own_run(box: dios.Sandbox, value: str) -> None:
    """Whatever a value does when it is shown or taken, the result is plain text and the session lives."""
    assert box.run(HOSTILE_VALUES).ok
    result = box.run(f"value = {value}\nvalue")
    assert result.error is None or not result.error.ended
    assert len(result.value_repr or "") <= 1000
    assert type(result.value_repr) in {str, type(None)}
    assert "\ud800" not in (result.value_repr or "")
    try:
        fetched = box.get("value")
    except (SandboxCodeError, UntrustedResultError):
        fetched = "x"
    assert type(fetched) is str
    assert box.run("1").value_repr == "1"


HOSTILE_PICTURES = {
    "a picture that is a page": "file.write(b'<script>alert(1)</script>')",
    "a huge picture": "file.write(PNG + bytes(50_000_000))",
    "a picture of endless size": "file.write(PNG + struct.pack('>I4sII', 13, b'IHDR', 1 << 30, 1 << 30))",
    "a picture that raises": "raise ValueError('no picture')",
    "a picture that leaves": "raise SystemExit(3)",
    "another file": "file.getvalue = lambda: 5",
}


@pytest.mark.parametrize("name", HOSTILE_PICTURES)
def test_a_hostile_figure_is_dropped(box: dios.Sandbox, name: str) -> None:
    """A module that calls itself pyplot gives nothing that is no picture within the bounds."""
    source = (
        "import types\npyplot = types.ModuleType('matplotlib.pyplot')\nclass Figure:\n"
        f"    def savefig(self, file, **named): {HOSTILE_PICTURES[name]}\n"
        "pyplot.get_fignums = lambda: range(1000)\npyplot.figure = lambda number: Figure()\n"
        "pyplot.close = lambda which: None\nsys.modules['matplotlib.pyplot'] = pyplot"
    )
    result = box.run(source)
    assert result.figures == ()
    assert len(result.stderr) <= 20_100
    assert result.error is None or not result.error.ended
    box.run("del sys.modules['matplotlib.pyplot']")
    assert box.run("1").value_repr == "1"


HOSTILE_FRAMES = {
    "huge texts": "pandas.DataFrame({'a': ['x' * 5_000_000] * 3, 'y' * 5_000_000: [1] * 3})",
    "objects that raise": "pandas.DataFrame({'a': [Raises(), Text('x'), Huge()]})",
    "a frame that lies": "Lies({'a': [1, 2]})",
    "endless numbers": "pandas.DataFrame({'a': [1 << 5000, float('nan'), float('inf')]})",
    "names that are none": "pandas.DataFrame([[1, 2]], columns=[Raises(), Huge()])",
}


@pytest.mark.parametrize("name", HOSTILE_FRAMES)
def test_a_hostile_frame_is_plain_and_bounded(box: dios.Sandbox, name: str) -> None:
    """Cells and names are short plain values, whatever a frame holds and says about itself."""
    pytest.importorskip("pandas")
    lies = "class Lies(pandas.DataFrame):\n    shape = (-5, 1 << 70)\n    columns = [5] * 10**6\n"
    assert box.run(f"{HOSTILE_VALUES}\nimport pandas\n{lies}").ok
    result = box.run(HOSTILE_FRAMES[name])
    assert result.error is None or not result.error.ended
    for table in result.tables:
        cells = [*table.columns, *(cell for row in table.rows for cell in row)]
        assert all(type(cell) in {str, int, float, bool, type(None)} for cell in cells)
        assert all(len(cell) <= 200 for cell in cells if isinstance(cell, str))
    assert box.run("1").value_repr == "1"


HOSTILE_ERRORS = {
    "a message that raises": "class E(Exception):\n    def __str__(self): raise E",
    "a message that is none": "class E(Exception):\n    def __str__(self): return 5",
    "a huge message": "class E(Exception):\n    def __str__(self): return 'x' * 50_000_000",
    "a name that raises": (
        "class M(type):\n    __qualname__ = __name__ = __module__ = property(lambda self: 1 / 0)\n"
        "class E(Exception, metaclass=M): pass"
    ),
    "a huge name": "E = type('E' * 1_000_000, (Exception,), {})",
    "a name with control characters": "E = type('E\\x1b[2J', (Exception,), {})",
    "attributes that raise": "class E(OSError):\n    def __getattribute__(self, name): raise KeyError(name)",
    "attributes of the system": "class E(OSError):\n    filename = errno = property(lambda self: 1 / 0)",
    "causes in a circle": "class E(Exception):\n    def __init__(self): self.__cause__ = self",
    "an end of the program": "class E(SystemExit, OSError): pass",
    "an interrupt": "class E(KeyboardInterrupt): pass",
    "notes that are none": "class E(Exception):\n    __notes__ = property(lambda self: [5, self])",
    "a deep group": (
        "def E():\n    e = ValueError()\n    for _ in range(5000): e = ExceptionGroup('g', [e])\n    return e"
    ),
}


@pytest.mark.parametrize("name", HOSTILE_ERRORS)
def test_a_hostile_exception_is_a_bounded_text(box: dios.Sandbox, name: str) -> None:
    """The failure has texts, whatever the exception does while it is described, and the session lives."""
    error = box.run(f"{HOSTILE_ERRORS[name]}\nraise E()").error
    assert error is not None
    assert not error.ended
    assert 0 < len(error.type) <= 200
    assert len(error.traceback) + len(error.message) < 50_000
    str(error).encode()
    assert box.run("1").value_repr == "1"


def test_a_forged_file_is_bytes_or_refused(box: dios.Sandbox) -> None:
    """The caller that asks for a file gets bytes and no other value."""
    assert box.run(
        "import dios.lib.sandbox.session as module\nmodule.encode_result = lambda value: b'm\\x05'"
    ).ok
    box.run("open('file.txt', 'w').write('text')")
    with pytest.raises((UntrustedResultError, SandboxCodeError)):
        box.get("file.txt")
    assert box.run("1").ok


# -- time and place -----------------------------------------------------------------------------------
@pytest.mark.long
@pytest.mark.parametrize(
    "source",
    [
        "class V:\n    def __repr__(self):\n        while True: pass\nV()",
        "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
        "while True: print('x' * 100)",
        "def more():\n    while True: print('x')\nthreading.Thread(target=more, daemon=True).start()\nmore()",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\nwhile True: pass",
        "session._interrupts.close()\nwhile True: pass",
        "session._raise_if_wanted = lambda: None\nwhile True: pass",
        "sys.settrace(lambda *rest: None); threading.stack_size(1 << 20)\nwhile True: pass",
        "session._sending.acquire()\nprint('never')",
        "10 ** 10 ** 9",
    ],
    ids=lambda source: source[-40:],
)
def test_nothing_takes_longer_than_its_time(node: RunningNode, source: str) -> None:
    """At the time limit a run ends or its session does; in both cases the caller goes on."""
    with dios.Sandbox(node=node.place, timeout=2, bounds=dios.SandboxBounds(output_bytes=10_000)) as box:
        assert box.run(REACH).ok
        result = box.run(source)
        assert result.error is not None
        assert result.error.ended or result.error.type == "TimeoutError" or "shown" in result.error.message
        assert len(result.stdout) < 11_000
        box.reset()
        assert box.run("1").value_repr == "1"


ENDLESS = """
def endless(*rest):
    part = b"\\x02\\0\\0\\0" + bytes([protocol.OUTPUT]) + b"\\x01x"
    while True:
        try:
            raw(part * 10_000)
        except BaseException:
            pass
"""


def test_output_that_never_ends_does_not_extend_a_run(node: RunningNode) -> None:
    """A session that always has bytes for its caller is ended at the time limit, not at its bound."""
    bounds = dios.SandboxBounds(output_bytes=64 << 20)
    with dios.Sandbox(node=node.place, timeout=1, bounds=bounds) as box:
        result = box.run(REACH + ENDLESS + "endless()")
        assert result.error is not None
        assert result.error.ended


@pytest.mark.extended(keep=2)
@pytest.mark.long
@pytest.mark.parametrize(
    "source",
    [
        "session._fork = lambda number: os.kill(0, signal.SIGSTOP)",
        "session._fork = lambda number: time.sleep(3600)",
        "session._fork = lambda number: (session._answers.close(), time.sleep(3600))",
        "session._fork = lambda number: answer(failure=FailureRecord('ForkError', forking.THREADS, ''))",
        "session._fork = endless",
        "session._become_fork = lambda: os.kill(0, signal.SIGSTOP)",
        "session._become_fork = lambda: time.sleep(3600)",
        "enter = session._enter\nsession._enter = lambda node: (enter(node), endless())",
        "enter = session._enter\nsession._enter = lambda node: (enter(node), time.sleep(3600))",
    ],
)
def test_a_fork_takes_no_longer_than_its_time(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """Whatever the session or its fork does instead of forking, the caller goes on after the time limit."""
    with dios.Sandbox(node=node.place, timeout=2, forkable=True) as box:
        setup = f"{REACH}{ENDLESS}import signal\nfrom dios.lib.sandbox import forking\n"
        assert box.run(setup + source).ok
        monkeypatch.setattr(link, "_START_WAIT_S", 3600.0)
        monkeypatch.setattr(link, "_END_WAIT_S", 3600.0)
        with pytest.raises((SessionForkError, SandboxEndedError)):
            box.fork()
        box.close()


def test_a_session_without_streams_is_not_waited_for(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that closes its streams and goes on is ended within the time of the run."""
    with dios.Sandbox(node=node.place, timeout=2) as box:
        monkeypatch.setattr(link, "_END_WAIT_S", 3600.0)
        result = box.run(f"{REACH}session._answers.close()\ntime.sleep(3600)")
        assert result.error is not None
        assert result.error.ended


def test_a_session_that_does_not_read_delays_its_caller_for_the_time_limit_alone(node: RunningNode) -> None:
    """An order that is larger than the stream ends the session that does not take it."""
    with dios.Sandbox(node=node.place, timeout=2) as box:
        assert box.run(REACH + "session._orders.read = lambda *rest: time.sleep(3600)").ok
        # The session is in its own read already: this order comes through, the next one does not.
        box.run("1")
        with pytest.raises(SandboxEndedError):
            box.put("large", bytes(20_000_000))
        box.reset()
        assert box.run("1").value_repr == "1"


def test_an_interrupt_during_get_stops_the_code_of_the_value(box: dios.Sandbox) -> None:
    """The value's own code gets the interrupt, and the session keeps its variables."""
    assert box.run(
        "class V:\n    def __reduce_ex__(self, protocol):\n        while True: pass\nvalue = V()"
    ).ok

    def interrupt() -> None:
        while not box.interrupt():
            time.sleep(0.05)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(SandboxCodeError, match="KeyboardInterrupt"):
        box.get("value")
    thread.join()
    assert box.run("type(value).__name__").value_repr == "'V'"


def test_threads_that_go_on_stay_within_the_bounds(box: dios.Sandbox) -> None:
    """A thread that prints for ever fills neither memory nor a later result, and delays no run."""
    endless = "def more():\n    while True: print('from a thread')\n"
    assert box.run(endless + "threading.Thread(target=more, daemon=True).start()").ok
    for _ in range(3):
        result = box.run("time.sleep(0.2)\n'done'")
        assert result.value_repr == "'done'"
        assert len(result.stdout) <= 20_100
    box.put("x", 1)
    assert box.get("x") == 1


def test_a_session_sees_no_other(node: RunningNode) -> None:
    """Two sessions of a program share no variable, no input, no list of tasks and no object."""
    with (
        dios.Sandbox(node=node.place, inputs={"mine": b"a secret"}) as first,
        dios.Sandbox(node=node.place, inputs={"other": b"public"}) as second,
    ):
        assert first.run("secret = 'a secret'").ok
        assert second.run("import dios, gc; node = dios.connect()").ok
        assert second.run("sorted(inputs)").value_repr == "['other']"
        assert second.run("'secret' in globals()").value_repr == "False"
        assert second.run("len([each for each in node.inputs if each.label[0] != '.'])").value_repr == "1"
        assert not second.run("node.tasks()").ok
        error = second.run("node.inputs[0].write_bytes(b'x')").error
        assert error is not None
        assert error.type == "NotPermittedError"
        first_pid = first.run(
            "import os; os.getpid(), len(node.groups) if 'node' in globals() else 1"
        ).value_repr
        assert first_pid == "(1, 1)"


def test_a_reset_leaves_nothing(node: RunningNode) -> None:
    """The fresh session is another process: variables, modules, environment, files and threads are gone."""
    with dios.Sandbox(node=node.place, inputs={"given": b"input"}, timeout=PATIENCE_S) as box:
        hide = (
            "import builtins, os, sys, threading, time\nbuiltins.hidden = sys.hidden = 'a secret'\n"
            "os.environ['HIDDEN'] = 'a secret'\nsys.modules['hidden'] = sys\n"
            "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()"
        )
        assert box.run(hide).ok
        box.reset()
        look = (
            "import builtins, gc, os, sys, threading\n"
            "found = [name for name in dir(builtins) + dir(sys) if 'hidden' in name]\n"
            "found += [name for name in (*os.environ, *sys.modules) if 'hidden' in name.lower()]\n"
            "found, threading.active_count(), inputs['given'].read()"
        )
        assert box.run(look).value_repr == "([], 2, b'input')"


def test_the_caller_sends_nothing_of_its_own(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session has none of the environment, arguments and paths of the program that opened it."""
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "4711")
    with dios.Sandbox(node=node.place) as box:
        assert box.run("import os, sys; os.environ.get('SECRET_OF_THE_CALLER'), sys.argv[1:]").value_repr == (
            "(None, [])"
        )
        assert box.run(f"import os; os.path.exists({str(Path.home() / '.ssh')!r})").value_repr == "False"
        assert str(os.getpid()) not in (box.run("import os; str(os.getppid())").value_repr or "")
