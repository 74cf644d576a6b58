"""The script of a program for its workers, and the names of its main module: both sides without a node."""

from __future__ import annotations

import enum
import functools
import pickle
import sys
from array import array
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import cloudpickle  # type: ignore[import-untyped]
import msgspec
import pytest

from dios.errors import InvalidError
from dios.lib.executor import frames, main_module, script
from dios.lib.executor.call_data import NeedsDataError, pickled_small
from dios.lib.executor.frames import FrameBuffer, Function
from dios.lib.executor.local_modules import LocalModules
from dios.lib.executor.main_module import Definition
from dios.lib.executor.main_names import MainNames, large_definition
from dios.lib.executor.main_worker import WorkerMain, _changed_in_place, explain, running_script
from dios.lib.executor.script import Script, read_script

GUARD = 'if __name__ == "__main__":'


class Pair:
    """A main module, and the one of its worker, in one process: they take turns as ``__main__``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, source: str, file: Path | None = None) -> None:
        self._monkeypatch = monkeypatch
        self._classes: dict[int, WeakValueDictionary[str, type]] = {}
        self.main = ModuleType("__main__")
        self._enter(self.main)
        if file is not None:
            file.write_text(source, "utf-8")
            self.main.__file__ = str(file)
        self.run(source)
        self.names = MainNames(LocalModules())
        self.new_worker()

    def new_worker(self) -> None:
        """Make the next calls in another worker, which has nothing."""
        main_module.failures.clear()
        self._sent = 0
        self.worker = WorkerMain()
        self._enter(self.main)

    def _enter(self, module: ModuleType) -> None:
        self._monkeypatch.setitem(sys.modules, "__main__", module)
        # Otherwise the classes of the worker would be those of the program.
        known: WeakValueDictionary[str, type] = WeakValueDictionary()
        tracked = self._classes.setdefault(id(module), known)
        self._monkeypatch.setattr(cloudpickle.cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", tracked)

    def run(self, source: str) -> None:
        """Run a cell in the main module."""
        exec(compile(source, "<main>", "exec", dont_inherit=True), vars(self.main))  # noqa: S102 - of this test

    def call(self, name: str, *args: object) -> object:
        """Return the value of a call of a function of the main module, in the worker."""
        self.names.take()
        pickled = pickled_small((vars(self.main)[name], args), "the call", self.names)
        self._enter(self.worker._module)
        try:
            self._obey()
            function, arguments = pickle.loads(pickled.data[1:])  # noqa: S301 - of this test
            return function(*arguments)
        except (NameError, AttributeError) as error:
            explain(error)
            raise
        finally:
            self._enter(self.main)

    def _obey(self) -> None:
        for kind, body in FrameBuffer().feed(b"".join(self.names.log[self._sent :])):
            if kind == frames.SCRIPT:
                self.worker.run_script(msgspec.msgpack.decode(body, type=Script))
            else:
                self.worker.define(msgspec.msgpack.decode(body, type=Definition))
        self._sent = len(self.names.log)


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No failures of other workers, and the main module of the tests at the end."""
    monkeypatch.setitem(sys.modules, "__mp_main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    yield
    main_module.failures.clear()


# -- the script -------------------------------------------------------------------------------------
def test_the_guarded_part_stays_at_home(tmp_path: Path) -> None:
    """It is empty in the script for workers, whose other lines are the same, for each form of a guard."""
    guards = [
        f"{GUARD}\n    secret = 1\n    f(\n)\nelse:\n    other = 1\n",
        "if '__main__' == __name__: secret = 1; f()\n",
        'if __name__ == "__main__" and len("ä"):\n\n    @f\n    def secret(): ...\n    x = """\nsecret"""\n',
    ]
    for guard in guards:
        path = tmp_path / "guarded.py"
        path.write_text(f"def f(*_): return used\nä = 1\n{guard}last = 2\n", "utf-8")
        module = ModuleType("__main__")
        module.__file__ = str(path)
        read = read_script(module)
        assert read is not None
        assert read.names is not None
        assert "secret" not in read.sent.source
        assert len(read.sent.source.split("\n")) == len(path.read_text("utf-8").split("\n"))
        assert read.names.replayed >= {"f", "ä", "last"}
        assert "secret" not in read.names.replayed
        assert "used" in read.names.used
        compile(read.sent.source, "guarded", "exec")


@pytest.mark.parametrize(
    "source", ["x = 1\n", "if __name__ == 'other':\n    pass\n", "if __name__ != '__main__':\n    pass\n"]
)
def test_no_worker_runs_a_script_without_a_guard(tmp_path: Path, source: str) -> None:
    """It would do everything again. What it imports is known nevertheless."""
    module = ModuleType("__main__")
    module.__file__ = str(tmp_path / "open.py")
    (tmp_path / "open.py").write_text(source)
    read = read_script(module)
    assert read is not None
    assert (read.sent.source, read.names, read.text) == ("", None, source.encode())


def test_some_main_modules_are_no_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Notebooks, prompts, installed programs, and files that are gone or no Python."""
    module = ModuleType("__main__")
    assert read_script(module) is None
    for file, content in (
        (tmp_path / "gone.py", None),
        (tmp_path / "bad.py", "if:"),
        (Path(script.__file__), None),
    ):
        if content is not None:
            file.write_text(content)
        module.__file__ = str(file)
        if file != Path(script.__file__):
            assert read_script(module) is None
    monkeypatch.setattr(script, "is_of_library", lambda _path: True)
    module.__file__ = script.__file__
    assert read_script(module) is None


SCRIPT = f"""
import functools, sys, threading
{"table"} = {{"a": [1]}}
alias = table
held = [0]
number = 1
lock = threading.Lock()
broken = open("/no/such/file") if "worker" in sys.modules["__main__"].__dict__ else "fallback"
class Config:
    level = 1
    names = []
class Thing:
    def __init__(self, n): self.n = n
things = [Thing(1)]
@functools.lru_cache
def cached(): return number
def read(): return table, alias is table, number, Config.level, Config.names, [t.n for t in things], broken
def default(known=held): return known
def later(): return absent
def fresh(): return made.n, type(made) is Thing, from_guard()
def locked():
    with lock: return cached()
{GUARD}
    from_guard = lambda: 9
"""


def test_a_worker_has_the_state_of_the_program_at_the_first_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs from the script is changed in place, what it lacks is added, and the rest is untouched."""
    pair = Pair(monkeypatch, SCRIPT, tmp_path / "program.py")
    pair.run(
        "table['b'] = 2; held.append(3); number = 5; Config.level = 2; Config.names.append('x')\n"
        "things[0].n = 8; made = Thing(4)\nfrom_guard = lambda: 9\n"
    )
    assert pair.call("read") == ({"a": [1], "b": 2}, True, 5, 2, ["x"], [8], "fallback")
    assert pair.call("default") == [0, 3]
    assert pair.call("fresh") == (4, True, 9)
    assert pair.call("locked") == 5
    pair.run("number = 6")
    assert pair.call("read") == ({"a": [1], "b": 2}, True, 5, 2, ["x"], [8], "fallback")
    with pytest.raises(NameError, match="absent"):
        pair.call("later")


class Color(enum.Enum):
    """An enumeration."""

    RED = 1
    BLUE = 2


class Number(float):
    """A number with a unit."""

    unit = ""


class Text(str):  # noqa: SLOT000 - it has a dictionary
    """A text with attributes."""


class Slots:
    """An object whose state is not in its dictionary alone."""

    __slots__ = ("__dict__", "x")


class Named(NamedTuple):
    """A tuple."""

    x: int


class Marked(Named):
    """A tuple with attributes."""


class Counted(dict[str, int]):
    """A dictionary with attributes."""


class Open:
    """An object with a dictionary."""


class Key:
    """An object that is found by its state."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.n == self.n

    def __hash__(self) -> int:
        return hash(self.n)


def marked(value: object, **attributes: object) -> object:
    """Return a value with attributes."""
    for name, attribute in attributes.items():
        setattr(value, name, attribute)
    return value


@pytest.mark.parametrize(
    ("present", "value"),
    [
        ([1], [2, 3]),
        ({"a": 1}, {"b": 2}),
        ({1}, {2}),
        (bytearray(b"a"), bytearray(b"bc")),
        (deque("ab", 2), deque("c", 2)),
        (Counter("a"), Counter("bb")),
        (OrderedDict(a=1), OrderedDict(c=1, b=2)),
        (defaultdict(list, a=[]), defaultdict(dict, b={})),
        (marked(Open(), x=1), marked(Open(), y=2)),
        (marked(Open(), x=1), Open()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_and_plain_objects_are_changed_in_place(present: object, value: object) -> None:
    """Other parts of the script that hold them see the change."""
    assert _changed_in_place(present, value)
    assert pickle.dumps(present) == pickle.dumps(value)


@pytest.mark.parametrize(
    ("present", "value"),
    [
        (Color.RED, Color.BLUE),
        (marked(Number(1), unit="m"), marked(Number(2), unit="km")),
        (marked(Text("a"), x=1), marked(Text("b"), x=2)),
        (marked(Slots(), x=1, y=2), marked(Slots(), y=3)),
        (marked(Slots(), y=1), marked(Slots(), x=2)),
        (Named(1), Named(2)),
        (marked(Marked(1), y=1), marked(Marked(2), y=2)),
        (marked(Counted(a=1), x=1), marked(Counted(b=1), x=2)),
        (Random(1), Random(2)),  # noqa: S311 - a value with state in C
        (Key(1), Key(2)),
        (deque("ab", 2), deque("c", 3)),
        (functools.partial(len), functools.partial(print)),
        (ValueError(1), ValueError(2)),
        (array("b", [1]), array("b", [2])),
        ([1], (1,)),
        (1, 2),
        (object(), object()),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_left_alone(present: object, value: object) -> None:
    """They have state besides a dictionary, or others find them by their state."""
    before = repr(present), dict(getattr(present, "__dict__", {})), getattr(present, "x", None)
    assert not _changed_in_place(present, value)
    assert (repr(present), dict(getattr(present, "__dict__", {})), getattr(present, "x", None)) == before


def test_two_names_of_one_value_stay_so_and_others_are_parted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program may give a name of a list another list, or a name of one of two lists the other one."""
    source = (
        "a = b = [1]\nc, d = [2], [3]\ne = f = {}\n"
        "def read(): return a, b, c, d, e, f, c is d, a is b, e is f\n"
        f"{GUARD}\n    pass\n"
    )
    pair = Pair(monkeypatch, source, tmp_path / "program.py")
    pair.run("b = [4]; d = c; e['x'] = 1")
    assert pair.call("read") == ([1], [4], [2], [2], {"x": 1}, {"x": 1}, True, False, True)


def test_a_value_that_refers_to_itself_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound methods, parents and containers refer to the value of the name, not to a copy of it."""
    source = (
        "class Node:\n"
        "    def __init__(self): self.n = 1; self.children = []; self.method = self.get; self.me = self\n"
        "    def get(self): return self.n\n"
        "class Child: pass\n"
        "node, loop = Node(), [1]\nloop.append(loop)\n"
        "def read():\n    node.n += 1\n    child, = node.children\n"
        "    return node.method(), node.me is node, child.parent is node, loop[0], loop[1] is loop\n"
        f"{GUARD}\n    pass\n"
    )
    pair = Pair(monkeypatch, source, tmp_path / "program.py")
    pair.run("node.n = 5; loop[0] = 2; child = Child(); child.parent = node")
    pair.run("node.children.append(child); del child")
    assert pair.call("read") == (6, True, True, 2, True)


def test_a_value_that_a_worker_cannot_load_is_absent_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that uses it has the reason, and not the value of the script."""
    source = (
        "class Rare:\n    def __reduce__(self): return loaded, ()\n"
        "def loaded():\n    raise OSError('no disk')\n"
        "class Config:\n    level = 1\n"
        f"value = 1\ndef use(): return value\ndef level(): return Config().level\n{GUARD}\n    pass\n"
    )
    pair = Pair(monkeypatch, source, tmp_path / "program.py")
    pair.run("value = Rare(); Config.level = Rare()")
    for name, absent in (("use", NameError), ("level", AttributeError)):
        with pytest.raises(absent) as caught:
            pair.call(name)
        assert "no disk" in caught.value.__notes__[0]
    pair.run("value = 5; Config.level = 6")
    pair.names.renew()
    assert (pair.call("use"), pair.call("level")) == (5, 6)
    assert not main_module.failures


def test_a_large_value_replaces_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the script made here stays if it is equal; one that has no pickle is replaced as well."""
    pair = Pair(monkeypatch, "")
    pair._enter(pair.worker._module)
    names = vars(pair.worker._module)
    parts = bytes(2**20), [1, bytearray(2**17)]
    whole = large_definition(pair.worker, ("table",), [parts])
    assert [len(buffer) for buffer in whole.buffers] == [2**20, 2**17]
    sent = Definition(("table",), main_module.IF_DIFFERENT, whole.data)
    for former, stays in (
        ([lambda: 1], False),
        ((bytes(2**20), [1, bytearray(2**17)]), True),
        ((b"1" * 2**20, [1, bytearray(2**17)]), False),
        ((bytes(2**20), [2, bytearray(2**17)]), False),
    ):
        names["table"] = former
        pair.worker.define(sent, whole.buffers)
        assert names["table"] == parts
        assert (names["table"] is former) == stays


def test_large_data_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their arrays and bytes lie apart and do not count; copies of parts with other names do."""
    pair = Pair(monkeypatch, "part = list(range(50_000))\nwhole = [part, bytes(2**20)]\n")
    whole = vars(pair.main)["whole"]
    assert len(large_definition(pair.names, ("whole",), [whole], bytes_max=1000).data) < 100
    with pytest.raises(NeedsDataError):
        large_definition(pair.names, ("whole",), [whole], bytes_max=1000, by_name=False)


def test_values_without_an_ordinary_equality_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array is compared by its pickle alone."""
    source = f"import numpy as np\nx = np.zeros(2)\ndef use(): return x.tolist()\n{GUARD}\n    pass\n"
    pair = Pair(monkeypatch, source, tmp_path / "program.py")
    pair.run("x += 1")
    assert pair.call("use") == [1.0, 1.0]


def test_changed_values_are_sent_again_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a new series of calls, what the program has changed replaces what a call has changed."""
    pair = Pair(monkeypatch, SCRIPT, tmp_path / "program.py")
    pair.call("read")
    vars(pair.worker._module)["held"].append("of a call")
    sent = len(pair.names.log)
    pair.names.renew()
    assert len(pair.names.log) == sent
    pair.run("table['b'] = 2; number = 6; Config.level = 3")
    pair.names.renew()
    assert len(pair.names.log) == sent + 4, "the second name of the table follows its first one"
    assert pair.call("read") == ({"a": [1], "b": 2}, True, 6, 3, [], [1], "fallback")
    assert pair.call("default") == [0, "of a call"]


def test_a_name_that_cannot_be_sent_explains_its_absence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a worker has the reason of the program."""
    pair = Pair(monkeypatch, f"def use(): return link\n{GUARD}\n    pass\n", tmp_path / "program.py")
    pair.run("link = (n for n in ())")
    with pytest.raises(NameError) as caught:
        pair.call("use")
    assert "cannot pickle 'generator'" in caught.value.__notes__[0]


@pytest.mark.parametrize("value", ["(n for n in ())", "bytes(2**21)"], ids=["unsendable", "large"])
def test_a_value_that_could_not_be_sent_for_a_while_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """Meanwhile no worker has a former one, and afterwards all have it, although it is equal to that."""
    source = f"x = [0]\ndef use(): return x\n{GUARD}\n    pass\n"
    pair = Pair(monkeypatch, source, tmp_path / "program.py")
    pair.run("x = [1]")
    assert pair.call("use") == [1]
    pair.run(f"x = {value}")
    pair.names.renew()
    size = len(pair.names.log)
    if value.startswith("("):
        for _ in range(2):
            with pytest.raises(NameError) as caught:
                pair.call("use")
            assert "cannot pickle 'generator'" in caught.value.__notes__[0]
            pair.new_worker()
    else:
        vars(pair.worker._module)["x"] = "of a call"
    pair.names.renew()
    assert len(pair.names.log) == size, "nothing is sent twice"
    pair.run("x = [1]")
    pair.names.renew()
    for _ in range(2):
        assert pair.call("use") == [1]
        pair.new_worker()


def test_a_value_that_was_large_and_cannot_be_sent_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers keep no value that a call has brought."""
    pair = Pair(monkeypatch, f"def use(): return x\n{GUARD}\n    pass\n", tmp_path / "program.py")
    pair.run("x = bytes(2**21)")
    pair.names.take()
    vars(pair.worker._module)["x"] = "of a call"
    pair.run("x = (n for n in ())")
    pair.names.renew()
    with pytest.raises(NameError, match="x"):
        pair.call("use")


def test_names_that_cannot_be_sent_concern_the_calls_that_need_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Functions of the guarded part, and proxies that raise whatever they are asked."""
    source = (
        "def use(): return inner(), proxy.x\ndef other(): return 1\n"
        "class Proxy:\n    def __getattribute__(self, name): raise RuntimeError('no request')\n"
        f"    __class__ = property(lambda self: self.x)\n{GUARD}\n    pass\n"
    )
    pair = Pair(monkeypatch, source, tmp_path / "program.py")
    pair.run("def inner(known=(n for n in ())): return known\nproxy = Proxy()")
    assert pair.call("other") == 1
    with pytest.raises(InvalidError, match="inner of the main module cannot be sent"):
        pair.call("use")


def test_a_take_that_is_interrupted_begins_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C at the first call, the next one sends the script and all values."""
    source = (
        "class Slow:\n    def __reduce__(self):\n        if waits: raise KeyboardInterrupt\n"
        "        return Slow, ()\na, b, waits = 1, Slow(), True\ndef use(): return a, type(b)\n"
        f"{GUARD}\n    pass\n"
    )
    pair = Pair(monkeypatch, source, tmp_path / "program.py")
    pair.run("a = 2")
    with pytest.raises(KeyboardInterrupt):
        pair.names.take()
    assert not pair.names.log
    pair.run("waits = False")
    assert pair.call("use") == (2, vars(pair.worker._module)["Slow"])


def test_arguments_and_paths_may_have_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script finds arguments and its own path as the program has them."""
    source = f"import sys\ndef use(): return sys.argv[1:], __file__\n{GUARD}\n    pass\n"
    monkeypatch.setattr(sys, "argv", ["program", "\udcff", "ä", "\ud800"])
    path = tmp_path / "\udcfe.py"
    pair = Pair(monkeypatch, source, path)
    assert pair.call("use") == (["\udcff", "ä", "\ud800"], str(path))


def test_a_failing_statement_is_replaced_by_its_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that only the program can read, exits and executors do not stop the script of a worker."""
    source = (
        "from __future__ import annotations\nimport sys\n"
        "from dios.lib.executor.main_worker import running_script\n"
        "if running_script(): raise SystemExit(3)\n"
        "data = [1, 2] if not running_script() else 1 / 0\n"
        "def decorated(f):\n    if running_script(): raise OSError('no cache')\n    return f\n"
        "@decorated\ndef use(x: Undefined = None): return data, __name__, __file__, sys.argv[0]\n"
        f"also = __name__ == '__main__'\ndef is_main(): return also\n{GUARD}\n    pass\n"
    )
    pair = Pair(monkeypatch, source, tmp_path / "program.py")
    sys.argv[0] = "asked"
    assert pair.call("use") == ([1, 2], "__main__", str(tmp_path / "program.py"), "asked")
    assert pair.call("is_main") is True, "a value of the main program"
    assert not running_script()


# -- values that belong together --------------------------------------------------------------------
TOGETHER: Final = """
import logging
class Node:
    def __init__(self): self.n = 0
class Slots:
    __slots__ = ("other",)
class Config:
    shared = None
a, b, c, d = Node(), Node(), Node(), Node()
first, second, holder = Slots(), Slots(), [None]
first.other = second.other = None
left, right, third = Node(), Node(), Node()
def circle(): return a.other is b, b.other is c, c.other is a, d.other is a
def slots(): return first.other is second, second.other is first, holder[0] is first
def parts():
    left.part.append(2)
    return left.part is right.part, right.part, Config.shared is right.part, third.part is left
def loggers(): return left.log is right.log, left.log is logging.getLogger("x")
"""
CHANGES: Final = """
a.other, b.other, c.other, d.other = b, c, a, a
first.other, second.other, holder[0] = second, first, first
left.part = right.part = Config.shared = [1]
third.part = left
left.log = right.log = logging.getLogger("x")
"""


@pytest.mark.parametrize("guard", [f"{GUARD}\n    pass\n", ""], ids=["script", "no script"])
@pytest.mark.parametrize("name", ["circle", "slots", "parts", "loggers"])
def test_values_that_point_at_each_other_or_share_a_part_stay_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guard: str, name: str
) -> None:
    """In each worker, at each call, and after further changes, as in the program."""
    expected = {
        "circle": (True, True, True, True),
        "slots": (True, True, True),
        "parts": (True, [1, 2], True, True),
        "loggers": (True, True),
    }
    pair = Pair(monkeypatch, TOGETHER + guard, tmp_path / "program.py" if guard else None)
    pair.run(CHANGES)
    assert pair.call(name) == expected[name]
    size = len(pair.names.log)
    pair.new_worker()
    assert pair.call(name) == expected[name]
    pair.names.renew()
    assert len(pair.names.log) == size, "nothing is sent twice"
    pair.run(CHANGES + "a.n = d.n = left.n = third.n = 5")
    pair.names.renew()
    if not (guard or name == "loggers"):
        assert pair.call(name) == expected[name]
    pair.new_worker()
    assert pair.call(name) == expected[name]


def test_values_join_and_part_as_the_program_changes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be sent any more does not concern the one that it pointed at."""
    pair = Pair(monkeypatch, TOGETHER + "def names(): return left.n, right.n\n")
    pair.run("a.other = b\ndef pair(): return a.other is b, getattr(b, 'other', None) is a\n")
    assert pair.call("pair") == (True, False)
    pair.run("b.other = a")
    assert pair.call("pair") == pair.call("pair") == (True, True)
    pair.run("def only(): return b.other\nb.other = None\na = (n for n in ())\n")
    assert pair.call("only") is None
    with pytest.raises(InvalidError, match="a of the main module cannot be sent"):
        pair.call("pair")
    pair.run("a = Node()\na.other, b.other = b, a\n")
    assert pair.call("pair") == (True, True)


def test_a_value_follows_its_changed_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list in a list, in a default argument and in a class is the one of its name again."""
    pair = Pair(
        monkeypatch,
        "x = [1]\ny = [x]\ndef f(d=x): return d, y[0], C.k, x\nclass C:\n    k = x\n",
    )
    assert pair.call("f") == ([1],) * 4
    pair.run("x.append(2)")
    assert pair.call("f") == ([1, 2],) * 4


def test_code_and_data_may_point_at_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class with its own objects, a function in a list that is its default argument, two closures."""
    pair = Pair(
        monkeypatch,
        "class C:\n    def me(self): return type(self)\none = C()\nC.known = [one]\n"
        "steps = []\ndef step(known=steps): return known is steps, known[0] is step\nsteps.append(step)\n"
        "def make():\n    known = []\n    def add(x): known.append(x)\n    return add, lambda: known\n"
        "add, get = make()\n"
        "def f():\n    add(1)\n    return C.known[0] is one, one.me() is C, step(), get()\n",
    )
    assert pair.call("f") == (True, True, (True, True), [1])
    size = len(pair.names.log)
    assert pair.call("f") == (True, True, (True, True), [1, 1])
    assert len(pair.names.log) == size, "nothing is sent twice"


# -- without a script -------------------------------------------------------------------------------
def test_a_changed_name_is_sent_again_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data by their pickles, functions by their code, and classes by their attributes."""
    pair = Pair(
        monkeypatch,
        "x = [1]\ndef f(): return x\ndef g(): return f()\nclass C:\n    def m(self): return g()\n",
    )
    pair.run("def h(): return C().m()")
    assert pair.call("h") == [1]
    sent = len(pair.names.log)
    vars(pair.worker._module)["x"].append("of a call")
    assert pair.call("h") == [1, "of a call"]
    assert len(pair.names.log) == sent
    for cell, value, count in (
        ("x.append(2)", [1, 2], 1),
        ("f.__defaults__ = ()", [1, 2], 1),
        ("C.n = 1", [1, 2], 1),
        ("def f(): return 'f'", "f", 1),
        ("class C:\n    def m(self): return 'C'", "C", 1),
    ):
        pair.run(cell)
        assert pair.call("h") == value
        assert len(pair.names.log) == sent + count, cell
        sent = len(pair.names.log)


def test_older_definitions_of_a_name_go_when_no_other_is_made_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new worker gets the latest values alone; the log of a long session stays short."""
    pair = Pair(
        monkeypatch, "x = [0]\ny = [x]\ndef f(d=x): return x[0], y[0][0], d[0]\nclass C:\n    k = x\n"
    )
    pair.run("def g(): return f(), C.k[0]")
    for number in range(1, 21):
        pair.run(f"x[0] = {number}; y.append({number})")
        if number % 5 == 0:
            pair.run("def f(d=x): return x[0], y[0][0], d[0]\nclass C:\n    k = x\n")
        pair.names.need("g")
    pair._sent = 0
    assert len(list(filter(None, pair.names.log))) < 16
    assert pair.call("g") == ((20, 20, 20), 20)


def test_a_value_that_could_not_be_sent_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls fail meanwhile, and the next value replaces the one that the worker had."""
    pair = Pair(monkeypatch, "x = [1]\ndef f(): return x")
    assert pair.call("f") == [1]
    pair.run("x = (n for n in ())")
    with pytest.raises(InvalidError, match="x of the main module cannot be sent"):
        pair.call("f")
    pair.run("x = [2]")
    assert pair.call("f") == [2]


def test_values_keep_their_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names of one list, a list in a list and in a default argument are one in the worker."""
    pair = Pair(
        monkeypatch,
        "a = []\nb = a\nc = {'a': a}\ndef f(d=a):\n    a.append(1)\n    return len(b), len(c['a']), len(d)\n"
        "loop = [a]\nloop.append(loop)\ndef g(): return loop[1] is loop, loop[0] is a\n",
    )
    assert pair.call("f") == (1, 1, 1)
    assert pair.call("g") == (True, True)


def test_parts_of_a_process_are_made_by_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks, thread locals, context variables with their defaults, caches; but no lock in a value."""
    pair = Pair(
        monkeypatch,
        "import threading, contextvars, functools, queue\n"
        "lock, relock, local = threading.Lock(), threading.RLock(), threading.local()\n"
        "plain, default = contextvars.ContextVar('plain'), contextvars.ContextVar('default', default=[3])\n"
        "class P:\n    @functools.cached_property\n    def p(self): return 3\n"
        "@functools.singledispatch\ndef kind(x): return 'object'\n"
        "@kind.register\ndef _(x: int): return 'int'\n"
        "@functools.lru_cache(maxsize=7)\ndef cached(x): return [x]\n"
        "def f():\n    with lock, relock: local.x = default.get(), P().p\n"
        "    same = cached(1) is cached(1), cached.cache_parameters()\n"
        "    return local.x, plain.get(1), kind(1), kind(''), *same\n"
        "q = queue.Queue()\ndef g(): return q\n",
    )
    assert pair.call("f") == (([3], 3), 1, "int", "object", True, {"maxsize": 7, "typed": False})
    with pytest.raises(InvalidError, match="q of the main module cannot be sent"):
        pair.call("g")


def test_a_name_of_a_loop_is_the_function_of_its_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lambda that has a name for a while is not taken for the next one of this name."""
    pair = Pair(monkeypatch, "")
    values = []
    for number in range(3):
        pair.run(f"h = lambda: {number}")
        values.append(pair.call("h"))
    assert values == [0, 1, 2]
    kept: Function[object] = vars(pair.main)["h"]
    assert pair.names.is_current(kept, "h", {"h"})
    pair.run("h = lambda: 5")
    assert not pair.names.is_current(kept, "h", {"h"})
