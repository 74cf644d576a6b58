"""Compile the scheduler's kernels before they are needed: ``python -m dios.firmament.compile_kernels``.

The command shows its progress: on one line of a terminal, elsewhere a line every two seconds. A file next to
the compiled kernels holds it as well, which :func:`status` reads in other processes. A coordinator that finds
no compiled kernels runs the same in the background (``coordinator.kernel_compilation``).

Kernels are complete when a fresh process has loaded every one of them and compiled none.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Final

from dios import kernel_cache
from dios.kernel_sources import PACKAGE

LOCK: Final = "dios-kernels.lock"
"""The file that is locked by the process that compiles; the same one as a coordinator's."""

_STATUS: Final = "dios-kernels.status"
_PROGRAM: Final = "from dios.firmament.coordinator.compile_kernels import main; main()"
_PASSES_MAX: Final = 3
"""The first compiles, the second loads. A third is needed when another process has changed a folder."""

_REPORT_S: Final = 0.5
_LINE_S: Final = 2.0
_LOWEST_PRIORITY: Final = 19
_INPUT_BYTES: Final = 4_096
_STOPPED: Final = 130

Progress = Callable[[int, int], None]
"""Called with the number of compiled kernels and the number of all kernels."""


def status() -> str:
    """Return the state of the kernels in words: "compiled", "compiling 37 of 120", or "not compiled"."""
    if kernel_cache.is_complete():
        return "compiled"
    folder = kernel_cache.writable_folder()
    if folder is None:
        return "not compiled: no folder for compiled kernels can be written"
    with suppress(OSError), kernel_cache.open_lock(folder / LOCK) as lock:
        if not _try_lock(lock):
            with suppress(OSError):
                return (folder / _STATUS).read_text(encoding="utf-8")
            return "compiling"
    return "not compiled"


def compile_all(progress: Progress, *, again: bool = False) -> None:
    """Compile every kernel that a coordinator uses, unless that is done; wait for a process that does it.

    Args:
        progress: called from time to time while kernels are compiled, also by another process, and at the
            end with equal numbers.
        again: do not believe a record that says that all are compiled.

    Raises:
        OSError: no folder for compiled kernels can be written, or the compilation failed.
    """
    if kernel_cache.is_complete() and not again:
        progress(1, 1)
        return
    folder = kernel_cache.writable_folder()
    if folder is None:
        raise OSError("no folder for compiled kernels can be written: set NUMBA_CACHE_DIR or HOME to one")

    def report(compiled: int, total: int) -> None:
        with suppress(OSError):
            fresh = folder / f"{_STATUS}.{os.getpid()}"
            fresh.write_text(f"compiling {compiled} of {total}", encoding="utf-8")
            fresh.replace(folder / _STATUS)
        progress(compiled, total)

    with kernel_cache.open_lock(folder / LOCK) as lock:
        while not _try_lock(lock):
            # The state is "compiling", or "compiling 37 of 120".
            numbers = [int(word) for word in status().split() if word.isdigit()]
            if len(numbers) == 2:
                progress(*numbers)
            time.sleep(_REPORT_S)
        if again:
            kernel_cache.forget_complete()
        try:
            if again or not kernel_cache.is_complete():
                _compile_until_loaded(report)
        finally:
            (folder / _STATUS).unlink(missing_ok=True)
    progress(1, 1)


def _compile_until_loaded(report: Progress) -> None:
    """Run processes until one has loaded all kernels and compiled none; record that."""
    compiled = ""
    for _ in range(_PASSES_MAX):
        compiled = run_pass(report)
        if not compiled:
            kernel_cache.mark_complete()
            return
    raise OSError(f"some kernels are compiled by each process and cannot be loaded: {compiled}")


def run_pass(report: Progress) -> str:
    """Load all kernels in a process of its own, and compile those that are missing; return their names.

    Raises:
        OSError: the process failed; it has written the reason.
    """
    # The process has a session of its own, so that Ctrl-C reaches the command alone. It ends with its input.
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(),
    ) as process:
        assert process.stdout is not None  # noqa: S101 - it was opened as a pipe
        names = ""
        try:
            for line in process.stdout:
                words = line.split()
                if words[:1] == ["compiled"]:
                    names = ", ".join(words[1:])
                elif len(words) == 2:
                    report(int(words[0]), int(words[1]))
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise OSError(f"the process that compiles ended with status {process.returncode}")
    return names


def environment() -> dict[str, str]:
    """Return the environment of a process that compiles: it finds this package where this process has it."""
    return {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}


def end_with_input() -> None:
    """End this process when its standard input closes, which happens when its parent is killed, too."""

    def wait() -> None:
        while os.read(sys.stdin.fileno(), _INPUT_BYTES):
            pass
        # At once, because another thread may be busy in the compiler. Numba renames files that are complete.
        os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def compile_in_background() -> None:
    """Compile at the lowest priority, and print lines of two numbers, which the coordinator reads.

    The process ends as soon as its standard input closes. With the argument "again" it believes no record.
    """
    end_with_input()
    os.nice(_LOWEST_PRIORITY)

    def report(compiled: int, total: int) -> None:
        sys.stdout.write(f"{compiled} {total}\n")
        sys.stdout.flush()

    try:
        compile_all(report, again="again" in sys.argv)
    except OSError as error:
        sys.exit(f"cannot compile the scheduler's kernels: {error}")


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main() -> None:
    """Compile all kernels and show the progress."""
    if kernel_cache.is_complete():
        return
    began, terminal, last = time.monotonic(), sys.stdout.isatty(), 0.0

    def show(words: str, end: str = "\n") -> None:
        nonlocal last
        last = time.monotonic()
        sys.stdout.write(f"\r{words:<70}{end}" if terminal else f"{words}\n")
        sys.stdout.flush()

    def progress(compiled: int, total: int) -> None:
        if total > 1 and (terminal or time.monotonic() - last >= _LINE_S):
            show(f"compiling the scheduler's kernels, once: {compiled} of {total}", end="")

    try:
        show("compiling the scheduler's kernels, which takes some minutes, once", end="")
        compile_all(progress)
    except OSError as error:
        sys.exit(f"cannot compile the scheduler's kernels: {error}")
    except KeyboardInterrupt:
        show("stopped; the kernels that are compiled are kept, and the next call continues")
        sys.exit(_STOPPED)
    show(f"compiled the scheduler's kernels in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
