"""The state of the scheduler's numeric kernels, and their compilation in a background process.

A cold compilation takes minutes. It runs at the lowest priority, so that the coordinator and the tasks of the
machine go on. ``dios.kernel_cache`` says where the compiled code is kept. This module does not load Numba.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

import trio

from dios import kernel_cache
from dios.firmament.compile_kernels import environment

_PROGRAM: Final = "from dios.firmament.compile_kernels import compile_in_background as main; main()"
_NO_FOLDER: Final = (
    "no folder for compiled kernels can be written, so each start of a coordinator compiles them; set "
    "NUMBA_CACHE_DIR or HOME of the node to a folder that its user can write"
)


class KernelProgress(NamedTuple):
    """The progress of a compilation."""

    compiled: int = 0
    total: int = 0
    """0 while it is not known."""
    problem: str = ""
    """Why the last attempt failed, or why there was none."""

    def __str__(self) -> str:
        return f"{self.compiled} of {self.total}" if self.total else "starting"


class KernelCompiler(Protocol):
    """The part of a compiler that a coordinator uses."""

    @property
    def progress(self) -> KernelProgress:
        """Return how far the compilation is."""

    def is_ready(self) -> bool:
        """Return True if all kernels are compiled, so that loading them takes seconds."""

    async def compile(self, *, again: bool = False) -> None:
        """Compile all kernels; return when they can be loaded.

        Args:
            again: a kernel could not be loaded, although all were recorded as compiled.

        Raises:
            KernelCompilationError: the compilation failed.
        """


class KernelCompilationError(Exception):
    """The process that compiles the kernels failed; its output is in the coordinator's console."""


class BackgroundCompiler:
    """Compiles in a process of the lowest priority; one at a time on a machine with one cache."""

    def __init__(self) -> None:
        self._progress = KernelProgress()

    @property
    def progress(self) -> KernelProgress:
        """Return how far the compilation is, as the process last reported it."""
        return self._progress

    def is_ready(self) -> bool:
        """Return True if a process has loaded all kernels for these versions and this processor."""
        return kernel_cache.is_complete()

    async def compile(self, *, again: bool = False) -> None:
        """Run the process to its end.

        Return at once if there is no folder in which compiled kernels can be kept: each process compiles for
        itself then, and the progress says so.
        """
        if kernel_cache.writable_folder() is None:
            self._progress = self._progress._replace(problem=_NO_FOLDER)
            return
        # The process ends when its input closes, so that a coordinator that is killed leaves none behind.
        process = await trio.lowlevel.open_process(
            [sys.executable, "-P", "-c", _PROGRAM, *(["again"] if again else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A task finds its packages by its own path, which the environment does not have.
            env=environment(),
        )
        try:
            await self._follow(process)
            status = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
        if status:
            why = f"the process that compiles the scheduler's kernels ended with status {status}"
            self._progress = self._progress._replace(problem=why)
            raise KernelCompilationError(f"{why}; the coordinator's console shows its output")

    async def _follow(self, process: trio.Process) -> None:
        """Read lines of two numbers, those of the compiled and of all kernels, until the process ends."""
        assert process.stdout is not None  # noqa: S101 - it was opened as a pipe
        rest = b""
        async for data in process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                with suppress(ValueError):
                    compiled, total = map(int, line.split())
                    self._progress = KernelProgress(compiled, total)
