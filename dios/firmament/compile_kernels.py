"""Compile the scheduler's kernels before they are needed: ``python -m dios.firmament.compile_kernels``.

The command shows its progress on one line of a terminal. A file next to the compiled kernels holds it as
well, which :func:`status` reads in other processes. A coordinator that finds no compiled kernels compiles
them in the background (``coordinator.kernel_compilation``).
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from dios.firmament.coordinator import kernel_compilation

LOCK: Final = "dios-kernels.lock"
"""The file that is locked by the process that compiles; the same one as a coordinator's."""

_STATUS: Final = "dios-kernels.status"

_REPORT_S: Final = 0.5
_LOWEST_PRIORITY: Final = 19
_INPUT_BYTES: Final = 4_096

Progress = Callable[[int, int, str], None]
"""Called with the number of compiled kernels, the number of all kernels, and a sentence about them."""


def status() -> str:
    """Return the state of the kernels in words: "compiled", "compiling 37 of 120", or "not compiled"."""
    folder = kernel_compilation.cache_folder()
    if folder is None:
        return "not compiled: no folder for compiled kernels can be written"
    if kernel_compilation.is_complete():
        return "compiled"
    with suppress(OSError), (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with suppress(OSError):
                return (folder / _STATUS).read_text(encoding="utf-8")
            return "compiling"
    return "not compiled"


def compile_all(progress: Progress) -> None:
    """Compile every kernel that a coordinator uses, unless that is done; wait for a process that does it.

    ``progress`` is called from another thread while kernels are compiled, and once at the end.

    Raises:
        OSError: no folder for compiled kernels can be written.
    """
    folder = kernel_compilation.cache_folder()
    if folder is None:
        raise OSError("no folder for compiled kernels can be written: set NUMBA_CACHE_DIR or HOME to one")
    if kernel_compilation.is_complete():
        progress(1, 1, "compiled")
        return

    def report(compiled: int, total: int) -> None:
        words = f"compiling {compiled} of {total}"
        with suppress(OSError):
            fresh = folder / f"{_STATUS}.{os.getpid()}"
            fresh.write_text(words, encoding="utf-8")
            fresh.replace(folder / _STATUS)
        progress(compiled, total, words)

    with (folder / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kernel_compilation.is_complete():
            # Loads Numba and every module with kernels, which takes seconds.
            from dios.firmament.coordinator import compile_kernels  # noqa: PLC0415 - see above

            compile_kernels.compile_all(report)
            kernel_compilation.mark_complete(folder)
        (folder / _STATUS).unlink(missing_ok=True)
    progress(1, 1, "compiled")


def _report_progress(compiled: int, total: int) -> None:
    """Write the two numbers on a line, which the coordinator reads."""
    sys.stdout.write(f"{compiled} {total}\n")
    sys.stdout.flush()


def _end_with_input() -> None:
    """End this process when its standard input closes."""
    while os.read(sys.stdin.fileno(), _INPUT_BYTES):
        pass
    # At once, because another thread may be busy in the compiler. Numba renames files that are complete.
    os._exit(1)


def compile_in_background() -> None:
    """Compile at the lowest priority, unless another process does it at this time or has done it.

    While another process compiles into the same folder, its numbers are printed. The process ends as soon as
    its standard input closes, which also happens when its parent is killed.
    """
    threading.Thread(target=_end_with_input, name="parent", daemon=True).start()
    os.nice(_LOWEST_PRIORITY)
    while (state := status()).startswith("compiling"):
        # The state is "compiling", or "compiling 37 of 120".
        numbers = [word for word in state.split() if word.isdigit()]
        if len(numbers) == 2:
            _report_progress(int(numbers[0]), int(numbers[1]))
        time.sleep(_REPORT_S)
    try:
        compile_all(lambda compiled, total, _: _report_progress(compiled, total))
    except OSError as error:
        sys.exit(f"cannot compile the scheduler's kernels: {error}")


def main() -> None:
    """Compile all kernels and show the progress on one line."""
    if kernel_compilation.is_complete():
        return
    began, terminal = time.monotonic(), sys.stdout.isatty()
    if not terminal:
        sys.stdout.write("compiling the scheduler's kernels, which takes some minutes, once\n")

    def show(compiled: int, total: int, _words: str) -> None:
        if terminal and total > 1:
            sys.stdout.write(f"\rcompiling the scheduler's kernels, once: {compiled} of {total} ")
            sys.stdout.flush()

    try:
        compile_all(show)
    except OSError as error:
        sys.exit(f"cannot compile the scheduler's kernels: {error}")
    done = f"compiled the scheduler's kernels in {time.monotonic() - began:.0f} s"
    sys.stdout.write(f"\r{done:<70}\n" if terminal else f"{done}\n")


if __name__ == "__main__":
    main()
