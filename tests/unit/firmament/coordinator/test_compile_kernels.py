"""The command that compiles the scheduler's kernels, and the state that it shows to other processes."""

from __future__ import annotations

import fcntl
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dios import kernel_cache
from dios.firmament import compile_kernels
from dios.firmament.compile_kernels import LOCK, compile_all, status

ENDED_S_MAX = 60
Report = Callable[[int, int], None]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for compiled kernels."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    place = kernel_cache.writable_folder()
    assert place is not None
    return place


@pytest.fixture
def seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The states that another process would see while two kernels are compiled, and then loaded."""
    states: list[str] = []

    def run_pass(report: Report) -> str:
        for compiled in (1, 2):
            report(compiled, 2)
            states.append(status())
        if (folder / "a.nbi").exists():
            return ""
        (folder / "a.nbi").write_text("code")
        return "a"

    monkeypatch.setattr(compile_kernels, "run_pass", run_pass)
    return states


def test_other_processes_see_how_far_the_compilation_is(folder: Path, seen: list[str]) -> None:
    """The kernels are compiled only when a second process has loaded all of them."""
    assert status() == "not compiled"
    progress: list[tuple[int, int]] = []
    compile_all(lambda compiled, total: progress.append((compiled, total)))
    assert seen == ["compiling 1 of 2", "compiling 2 of 2"] * 2
    assert progress == [(1, 2), (2, 2), (1, 2), (2, 2), (1, 1)]
    assert status() == "compiled"
    assert not list(folder.glob("*.status*"))


def test_kernels_are_compiled_once_unless_the_record_is_doubted(folder: Path, seen: list[str]) -> None:
    """A coordinator that could not load a kernel has them compiled again."""
    assert folder.is_dir()
    compile_all(lambda *_: None)
    seen.clear()
    compile_all(lambda *_: None)
    assert seen == []
    compile_all(lambda *_: None, again=True)
    assert seen == ["compiling 1 of 2", "compiling 2 of 2"]


def test_kernels_that_no_process_can_load_are_never_complete(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names them."""
    monkeypatch.setattr(compile_kernels, "run_pass", lambda _report: "dios.a, dios.b")
    with pytest.raises(OSError, match=r"cannot be loaded: dios\.a, dios\.b"):
        compile_all(lambda *_: None)
    assert status() == "not compiled"
    assert folder.is_dir()


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


def test_an_interruption_ends_the_command_with_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C leaves what is compiled, and the lock is free."""

    def run_pass(_report: Report) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(compile_kernels, "run_pass", run_pass)
    with pytest.raises(SystemExit) as ended:
        compile_kernels.main()
    assert ended.value.code == 130
    assert (
        capsys.readouterr().out.splitlines()[1].startswith("stopped; the kernels that are compiled are kept")
    )
    assert status() == "not compiled"
    assert folder.is_dir()


def test_a_folder_that_cannot_be_written_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command fails with what to do where nothing can be kept."""
    monkeypatch.setattr(kernel_cache, "writable_folder", lambda: None)
    monkeypatch.setattr(kernel_cache, "is_complete", lambda: False)
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
