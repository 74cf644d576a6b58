"""The command that compiles the scheduler's kernels, and the state that it shows to other processes."""

from __future__ import annotations

import fcntl
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dios.firmament import compile_kernels
from dios.firmament.compile_kernels import LOCK, compile_all, status
from dios.firmament.coordinator import compile_kernels as compiler
from dios.firmament.coordinator import kernel_compilation

ENDED_S_MAX = 60


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for compiled kernels."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The states that another process would see while kernels are compiled; nothing is compiled."""
    states: list[str] = []

    def compile_two(report: Callable[[int, int], None]) -> None:
        for compiled in (1, 2):
            report(compiled, 2)
            states.append(status())

    monkeypatch.setattr(compiler, "compile_all", compile_two)
    return states


def test_other_processes_see_how_far_the_compilation_is(folder: Path, seen: list[str]) -> None:
    """The state is "not compiled", then a number of kernels, then "compiled"."""
    assert status() == "not compiled"
    progress: list[tuple[int, int, str]] = []
    compile_all(lambda compiled, total, words: progress.append((compiled, total, words)))
    assert seen == ["compiling 1 of 2", "compiling 2 of 2"]
    assert progress == [(1, 2, "compiling 1 of 2"), (2, 2, "compiling 2 of 2"), (1, 1, "compiled")]
    assert status() == "compiled"
    assert not list(folder.glob("*.status*"))


def test_kernels_are_compiled_once(folder: Path, seen: list[str]) -> None:
    """A second call finds the kernels and only reports that they are there."""
    assert folder.is_dir()
    compile_all(lambda *_: None)
    seen.clear()
    words: list[str] = []
    compile_all(lambda _compiled, _total, state: words.append(state))
    assert (seen, words) == ([], ["compiled"])


def test_a_process_that_has_not_reported_yet_is_seen(folder: Path) -> None:
    """While another process holds the lock the state is "compiling", even before its first report."""
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert status() == "compiling"


def test_the_command_says_what_it_does(seen: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal the command writes a line at the start and one at the end."""
    compile_kernels.main()
    assert seen
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("compiling the scheduler's kernels")
    assert last.startswith("compiled the scheduler's kernels in")


def test_a_folder_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command fails with what to do where nothing can be kept."""
    monkeypatch.setattr(kernel_compilation, "cache_folder", lambda: None)
    monkeypatch.setattr(kernel_compilation, "is_complete", lambda: False)
    assert "no folder" in status()
    with pytest.raises(SystemExit, match="NUMBA_CACHE_DIR"):
        compile_kernels.main()


COORDINATOR = """
import trio
from dios.firmament.coordinator.kernel_compilation import BackgroundCompiler

async def main():
    compiler = BackgroundCompiler()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(compiler.compile)
        while not compiler.progress.total:
            await trio.sleep(0.01)
        print(compiler.progress, flush=True)

trio.run(main)
"""


def test_the_compiler_ends_with_a_killed_coordinator(folder: Path) -> None:
    """Nothing but the compiler has the other end of the error output when its parent is killed."""
    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = folder / "dios-kernels.status"
        state.write_text("compiling 3 of 7")
        command = [sys.executable, "-c", COORDINATOR]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as coordinator:
            assert coordinator.stdout is not None
            assert coordinator.stderr is not None
            assert coordinator.stdout.readline() == b"3 of 7\n"
            # From now on the compiler has nothing to report, so that no broken pipe ends it.
            state.write_text("compiling")
            coordinator.kill()
            ready, _, _ = select.select([coordinator.stderr], [], [], ENDED_S_MAX)
            assert ready, "the compiler still runs"
            assert coordinator.stderr.read() == b""
