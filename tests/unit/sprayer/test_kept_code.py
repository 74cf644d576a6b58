"""Compiled functions on the disk: when they are loaded, when they are compiled anew, and how many stay."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from enum import IntEnum
from importlib import metadata
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from dios import kernel_cache
from dios.kernel_sources import PACKAGE

kept_code = pytest.importorskip("dios.sprayer.compile.kept_code", reason="numba is not installed: make setup")

from numba.core.ccallback import CFunc  # noqa: E402 - it may be missing

from dios.sprayer.compile import intrinsics  # noqa: E402 - it needs numba

PROGRAM: Final = """
import sys
from pathlib import Path

from dios import kernel_cache

folder, wanted = Path(sys.argv[1]), int(sys.argv[2])
kernel_cache.private_folder = lambda: folder

from dios.sprayer import MemoryEngine, NetworkFunction, Workers
from dios.sprayer.compile import intrinsics
from tests.support.sprayer.frames import UDP, Made


class Numbers(NetworkFunction):
    stateless = True

    def prepare(self, cores):
        self.counts = self.counters(cores, "packets")

    def regular_packets(self, batch, flows):
        for packet in batch:
            self.counts[flows.core, 0] += WEIGHT


WEIGHT = wanted
function = Numbers()
frame = Made("10.0.0.1", "10.0.0.2", 1, 2, UDP).frame()
Workers(function, MemoryEngine([frame], 1), seed=1).drain()
assert function.totals() == {"packets": wanted}, function.totals()
print(sum(1 - compiled.cache_hits for compiled in intrinsics._KEPT))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of this user in place of the one next to the kernels."""
    monkeypatch.setattr(kernel_cache, "private_folder", lambda: tmp_path)
    return tmp_path


def add(first: int, second: int, third: int) -> int:
    """Return a sum, as an example of a function for ``call_at``."""
    return first + second + 2 * third


def is_loaded(name: str) -> bool:
    """Compile ``add``, or load it; return True if it was loaded."""
    intrinsics.callable_at(add, name)
    compiled = intrinsics._KEPT[-1]
    assert isinstance(compiled, CFunc)
    assert compiled.ctypes(1, 2, 3) == 9
    return bool(compiled.cache_hits)


def test_a_second_process_compiles_nothing_and_a_changed_constant_is_compiled(tmp_path: Path) -> None:
    """Handlers and functions of the engine are loaded; another constant concerns the handlers alone."""

    def compiled(weight: int) -> int:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, tmp_path, str(weight)],
            env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert compiled(3) == 4
    assert compiled(3) == 0
    assert compiled(5) == 1
    assert {path.stat().st_mode & 0o022 for path in tmp_path.iterdir()} == {0}


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: data[:0], lambda data: data[:-1] + bytes([data[-1] ^ 1])],
    ids=["cut", "empty", "changed"],
)
def test_a_damaged_file_is_ignored_and_written_again(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    """Neither Numba nor the processor sees a byte of it."""
    assert not is_loaded("sum")
    assert is_loaded("sum")
    path = folder / "sum.code"
    path.write_bytes(damage(path.read_bytes()))
    assert not is_loaded("sum")
    assert is_loaded("sum")


def test_a_folder_that_cannot_be_written_only_costs_time(folder: Path) -> None:
    """The function is compiled each time."""
    (folder / "sum.code").mkdir()
    assert not is_loaded("sum")
    assert not is_loaded("sum")
    assert [path.name for path in folder.iterdir() if path.suffix != ".lock"] == ["sum.code"]


def test_those_that_were_not_used_longest_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading is use, and a function that was compiled last stays."""
    for age, name in enumerate(("b", "c", "a")):
        is_loaded(name)
        os.utime(folder / f"{name}.code", (age, age))
    size = (folder / "a.code").stat().st_size
    monkeypatch.setattr(kept_code, "SPRAYER_COMPILED_BYTES", 2 * size + size // 2)
    assert is_loaded("b")
    assert not is_loaded("d")
    assert sorted(path.name for path in folder.iterdir()) == ["b.code", "b.lock", "d.code", "d.lock"]


def test_a_process_waits_for_another_one_that_compiles_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads the code as soon as the other one has stored it."""
    is_loaded("elsewhere")
    waiting, loaded = threading.Event(), []

    def wait(_seconds: float) -> None:
        waiting.set()
        threading.Event().wait(0.001)

    monkeypatch.setattr(kept_code, "time", types.SimpleNamespace(monotonic=lambda: 0.0, sleep=wait))
    with (folder / "sum.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=lambda: loaded.append(is_loaded("sum")))
        thread.start()
        assert waiting.wait(60)
        (folder / "elsewhere.code").rename(folder / "sum.code")
    thread.join(60)
    assert loaded == [True]


def test_a_process_that_was_stopped_while_it_compiles_delays_others_for_a_limited_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards they compile themselves."""
    monkeypatch.setattr(kept_code, "SPRAYER_COMPILING_S", 0.0)
    with (folder / "sum.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not is_loaded("sum")


class Color(IntEnum):
    """A class with constants, as handlers may use them."""

    RED = 1


CONSTANTS: Final = types.ModuleType("constants")
CONSTANTS.NUMBER = 1  # type: ignore[attr-defined] # of the test
TABLE: Final = np.arange(10_000)
PAIR: tuple[object, ...] = (np.arange(10_000), 2)


def uses_much(first: int = 1, *, second: int = 2) -> int:
    """Use constants of each kind."""
    inner = [helper(number) for number in range(first)]
    return int(CONSTANTS.NUMBER + Color.RED + TABLE[0] + len(PAIR) + second + sum(inner))


def helper(number: int) -> int:
    """Return a number."""
    return number


def changed_array(number: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the numbers below 10,000, one of which is another one in the middle, where ``repr`` has dots."""
    array = np.arange(10_000)
    array[5000] = number
    return array


@pytest.mark.parametrize(
    ("target", "value"),
    [
        ("CONSTANTS", types.SimpleNamespace()),
        ("TABLE", changed_array(1)),
        ("TABLE", np.arange(10_000, dtype=np.int32)),
        ("PAIR", (changed_array(1), 2)),
        ("helper", lambda number: number + 1),
        ("Color", IntEnum("Color", {"RED": 2})),
    ],
)
def test_a_name_follows_each_constant_and_function(
    target: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the middle of an array, in a tuple, and where only an inner expression uses it."""
    before = kept_code.name_of("name", {"f": uses_much})
    assert before == kept_code.name_of("name", {"f": uses_much})
    assert before is not None
    monkeypatch.setitem(uses_much.__globals__, target, value)
    assert kept_code.name_of("name", {"f": uses_much}) != before


def test_a_name_follows_attributes_defaults_closures_facts_and_names_of_methods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever else decides the code."""

    def closed(number: int) -> Callable[[], int]:
        return lambda: number

    names = [
        kept_code.name_of("name", {"f": uses_much}),
        kept_code.name_of("name", {"g": uses_much}),
        kept_code.name_of("name", {"f": uses_much}, ["fact"]),
        kept_code.name_of("name", {"f": closed(1)}),
        kept_code.name_of("name", {"f": closed(2)}),
    ]
    monkeypatch.setattr(CONSTANTS, "NUMBER", 2)
    names.append(kept_code.name_of("name", {"f": uses_much}))
    monkeypatch.setattr(uses_much, "__defaults__", (2,))
    names.append(kept_code.name_of("name", {"f": uses_much}))
    monkeypatch.setattr(uses_much, "__kwdefaults__", {"second": 3})
    names.append(kept_code.name_of("name", {"f": uses_much}))
    assert len(set(names)) == len(names)
    assert None not in names


def test_a_function_with_an_unknown_constant_is_not_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows when it changes, so it is compiled each time."""
    monkeypatch.setitem(uses_much.__globals__, "TABLE", object())
    assert kept_code.name_of("name", {"f": uses_much}) is None
    compiled = kept_code.KeptCode(None)
    with compiled.compiled_once():
        assert compiled.load_overload(None, None) is None
    assert not list(folder.iterdir())


@pytest.mark.parametrize("package", ["numba", "llvmlite", "numpy"])
def test_another_version_has_another_folder(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nothing that another version has compiled is loaded."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    before, version = kernel_cache.private_folder(), metadata.version
    assert before is not None
    assert before.stat().st_mode & 0o777 == 0o700
    plain = kernel_cache.fingerprint.__wrapped__
    monkeypatch.setattr(kernel_cache, "fingerprint", plain)
    assert kernel_cache.private_folder() == before
    monkeypatch.setattr(metadata, "version", lambda name: "other" if name == package else version(name))
    assert kernel_cache.private_folder() not in (None, before)
