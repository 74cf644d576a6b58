"""A session never sees what another one wrote, also after a reset, in forks and in sessions of a template.

One session writes a secret everywhere that it can; then another one looks everywhere that it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeAlias

import pytest

import dios
from dios.host.confinement.mechanisms import probe
from dios.host.confinement.notifications import FORKS
from tests.support.node.running_node import RunningNode

PATIENCE_S = 60.0
TEMPLATE = "plots"
GIVEN = b"what was given " * 10_000

HIDE = """
import builtins, ctypes, gc, linecache, mmap, os, signal, sys, threading, traceback, types
mark = "secret-of-" + "another"
data = mark.encode()
kept = [bytearray(data * 1000) for _ in range(100)]
builtins.hidden = sys.hidden = os.hidden = traceback.hidden = mark
builtins.__dict__["repr"] = lambda value, shown=repr: mark
os.environ["HIDDEN"] = mark
sys.argv.append(mark); sys.path.append("/" + mark)
module = sys.modules["hidden"] = types.ModuleType("hidden"); module.text = mark
linecache.cache["<cell 1>"] = (10, None, [mark + "\\n"] * 50, "<cell 1>")
sys.excepthook = sys.displayhook = lambda *rest: sys.stdout.write(mark)
traceback.format_exception = lambda *rest, **named: [mark]
for path in ("hidden.txt", "/tmp/.hidden", "/var/tmp/hidden", "/inputs/hidden", "sitecustomize.py"):
    try:
        with open(path, "w") as file:
            file.write(mark * 1000)
    except OSError:
        pass
try:
    with open("/inputs/given", "r+b") as file:
        file.write(data)
except OSError:
    pass
# A text that was made before the session began, in place.
ctypes.memmove(id(sys.copyright) + sys.getsizeof(sys.copyright) - len(sys.copyright) - 1, data, len(data))
libc = ctypes.CDLL(None)
libc.setenv(b"HIDDEN_IN_C", data, 1)
try:
    page = mmap.mmap(-1, 1 << 20)
except PermissionError:  # where no control group counts memory, shared memory is refused
    page = mmap.mmap(-1, 1 << 20, mmap.MAP_PRIVATE)
page.write(data * 1000)
for name in ("encodings.utf_8", "json", "colorsys"):
    if name in sys.modules:
        sys.modules[name].hidden = mark
threading.Thread(target=threading.Event().wait, name=mark, daemon=True).start()
"""
"""A session that leaves a mark wherever it can."""

LOOK = """
import builtins, ctypes, gc, os, sys, threading, traceback
wanted = "".join(reversed("rehtona-fo-terces"))
found = []
def see(where, text):
    if wanted in str(text):
        found.append(where)
see("environment", dict(os.environ)); see("arguments", sys.argv); see("path", sys.path)
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
see("environment in C", libc.getenv(b"HIDDEN_IN_C"))
for module in list(sys.modules.values()):
    for name, value in list(getattr(module, "__dict__", {}).items()):
        if type(value) is str and value is not wanted:
            see(f"{module.__name__}.{name}", value)
see("modules", "hidden" in sys.modules and sys.modules["hidden"].text)
for folder in (".", "/tmp", "/var/tmp", "/inputs", "/dev/shm", "/proc/self", "/proc/1", "/run", "/"):
    try:
        names = os.listdir(folder)
    except OSError:
        continue
    see(folder, names)
    for name in names:
        try:
            see(folder + "/" + name, open(os.path.join(folder, name), "rb").read())
        except OSError:
            pass
        if "hidden" in name:
            found.append(name)
see("threads", [each.name for each in threading.enumerate()])
lists = [each for each in gc.get_objects() if type(each) is list]
see("objects", [each for each in lists if any(type(text) is str and wanted in text for text in each[:50])])
del lists
# Memory that the kernel gives out, and that the allocator has.
for size in (100, 10_000, 1_000_000, 50_000_000):
    libc.malloc.restype = ctypes.c_void_p
    place = libc.malloc(ctypes.c_size_t(size))
    if wanted.encode() in ctypes.string_at(place, size):
        found.append(f"{size} bytes of fresh memory")
    libc.free(ctypes.c_void_p(place))
if open("/inputs/given", "rb").read() != inputs["given"].read():
    found.append("the copy of an input")
sorted(set(found)), repr("x"), len(inputs["given"].read())
"""
"""A session that looks for the mark, without having it as text itself."""

FOUND_IN_ITSELF = {"environment", "arguments", "environment in C", "path", "modules", "objects", "threads"}
"""The places at which the search must find the mark in the session that left it."""

NOTHING = f"""([], "'x'", {len(GIVEN)})"""

Pair: TypeAlias = "Callable[[Callable[[dios.Sandbox], None]], dios.Sandbox]"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module, with a template of numpy and matplotlib."""
    pytest.importorskip("numpy")
    pytest.importorskip("matplotlib")
    templates = f"{TEMPLATE}=numpy,matplotlib.pyplot,json,colorsys"
    running = RunningNode(tmp_path_factory.mktemp("apart") / "data", {"templates": templates})
    yield running
    running.stop()


@pytest.fixture(
    params=["another", "another of the template", "reset", "reset of the template", "origin", "fork"]
)
def second(request: pytest.FixtureRequest, node: RunningNode) -> Iterator[Pair]:
    """Return a function that lets one session write, and returns the other one."""
    kind: str = request.param
    forkable = kind in {"origin", "fork"}
    template = TEMPLATE if forkable or "template" in kind else ""
    if forkable and not probe()[FORKS].available:
        pytest.skip("sessions cannot be forked here")
    with ExitStack() as stack:

        def opened() -> dios.Sandbox:
            box = dios.Sandbox(
                node=node.place,
                template=template,
                timeout=PATIENCE_S,
                inputs={"given": GIVEN},
                forkable=forkable,
                memory="1 GiB",
            )
            return stack.enter_context(box)

        def pair(write: Callable[[dios.Sandbox], None]) -> dios.Sandbox:
            first = opened()
            if kind == "fork":
                # The origin writes after the fork.
                other = stack.enter_context(first.fork())
            elif kind == "origin":
                first, other = stack.enter_context(first.fork()), first
            elif kind.startswith("another"):
                other = opened()
            else:
                write(first)
                first.reset()
                return first
            write(first)
            return other

        yield pair


def did(box: dios.Sandbox, source: str) -> str:
    """Run code that succeeds, and return its value."""
    result = box.run(source)
    assert result.error is None, str(result.error)
    return result.value_repr or ""


def test_what_one_session_wrote_no_other_has(second: Pair) -> None:
    """Variables, modules, files, the environment, copies of inputs, threads and memory."""

    def write(box: dios.Sandbox) -> None:
        assert box.run(HIDE).error is None
        # Its own ``repr`` says nothing true any more.
        looked = box.run(LOOK + "print(*found, sep='|')")
        assert set(looked.stdout.strip().split("|")) >= FOUND_IN_ITSELF

    assert did(second(write), LOOK) == NOTHING


NUMBERS = "import numpy\nint(numpy.arange(5).sum()), numpy.pi, float(numpy.array([1.5, 2.5]).mean())"
SPOILT = """
import ctypes, numpy
numpy.pi = 3
numpy.arange = lambda *rest: numpy.zeros(3)
numpy.ndarray.__module__
one = numpy.float64(1)
# The objects of the type, in the memory that all sessions of the template begin with.
ctypes.memset(id(numpy.e) + 16, 0, 8)
numpy.core.numeric.ones = None
numpy.random.seed(1)
"""


def test_a_module_of_the_template_that_one_session_spoilt_is_whole_in_another(second: Pair) -> None:
    """Patched functions, constants and bytes of numpy are those of one session."""

    def write(box: dios.Sandbox) -> None:
        did(box, SPOILT)

    other = second(write)
    assert did(other, NUMBERS) == "(10, 3.141592653589793, 2.0)"
    assert did(other, "numpy.e") == "2.718281828459045"


DRAW = """
import matplotlib.pyplot as plt
figure = plt.figure(figsize=(2, 2), dpi=50)
plt.plot([1, 2, 3])
"""
SPOIL_FIGURES = """
import matplotlib.pyplot as plt
plt.rcParams["lines.linewidth"] = 30
plt.rcParams["axes.facecolor"] = "red"
plt.Figure.savefig = lambda self, file, **named: file.write(b"no picture")
plt.close = lambda *rest: None
"""


def test_figures_of_one_session_are_not_in_those_of_another(node: RunningNode, second: Pair) -> None:
    """Open figures, styles and patched functions of pyplot stay where they are."""
    with dios.Sandbox(node=node.place, template=TEMPLATE, timeout=PATIENCE_S) as alone:
        (expected,) = alone.run(DRAW).figures

    def write(box: dios.Sandbox) -> None:
        assert len(box.run(DRAW).figures) == 1
        assert box.run(SPOIL_FIGURES + DRAW).figures == ()

    result = second(write).run(DRAW)
    assert result.error is None
    assert result.figures == (expected,)


def test_errors_of_one_session_do_not_show_another(second: Pair) -> None:
    """A traceback has the lines of its own cells, and the text of its own exception."""

    def write(box: dios.Sandbox) -> None:
        error = box.run("secret = 'of the first'\nraise ValueError(secret)").error
        assert error is not None
        assert box.run(HIDE).error is None
        assert box.run("raise ValueError('again')").error is not None

    other = second(write)
    error = other.run("one = 1\none + 'x'").error
    assert error is not None
    assert error.type == "TypeError"
    assert "one + 'x'" in error.traceback
    assert "secret" not in str(error)
    error = other.run("secret").error
    assert error is not None
    assert error.type == "NameError"


MEETING_PLACES = {
    "shared memory": (
        "from multiprocessing import shared_memory\nshared_memory.SharedMemory('met', {make}, 100)"
    ),
    "System V memory": "import ctypes\nif ctypes.CDLL(None).shmget(4711, 100, 0o1666) < 0: raise OSError",
    "an abstract socket": (
        "import socket\nend = socket.socket(socket.AF_UNIX)\n(end.bind if {make} else end.connect)('\\0met')"
    ),
    "a message queue": (
        "import ctypes\nif ctypes.CDLL(None).mq_open(b'/met', 0o102, 0o666, 0) < 0: raise OSError"
    ),
    "a lock of a file of the library": (
        "import fcntl, os\nkept = open(os.__file__)\nfcntl.flock(kept, fcntl.LOCK_EX)"
    ),
    "times of a file of the library": "import os\nos.utime(os.__file__, (0, 0))",
    "an attribute of a file of the library": "import os\nos.setxattr(os.__file__, 'user.met', b'x')",
}
"""Ways by which two processes of one machine could exchange something."""


@pytest.mark.parametrize("way", MEETING_PLACES)
def test_there_is_no_place_to_meet(second: Pair, way: str) -> None:
    """Each way is refused to the one that writes, and to the one that looks."""
    source = MEETING_PLACES[way]
    first: list[dios.Sandbox] = []

    def write(box: dios.Sandbox) -> None:
        assert box.run(source.format(make=True)).error is not None, way
        first.append(box)

    error = second(write).run(source.format(make=False)).error
    assert error is not None
    assert not error.ended
