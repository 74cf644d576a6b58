"""The state of the scheduler's numeric kernels, and their compilation in a background process.

A cold compilation takes minutes. It runs at the lowest priority, so that the coordinator and the tasks of the
machine go on. Numba keeps the compiled code on disk. Next to it a file named ``dios-kernels.ready`` holds a
fingerprint of the sources, the versions and the processor for which the code is complete. This module does
not load Numba; ``compile_kernels`` does.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import trio

from dios.kernel_sources import kernel_states
from dios.trusted_files import weakness

_PACKAGE: Final = Path(__file__).parents[2]
_FOLDERS: Final = ("fairness", "packer", "firmament")
"""The packages with kernels that a coordinator uses."""
_MARK: Final = "dios-kernels.ready"
_PROGRAM: Final = "from dios.firmament.compile_kernels import compile_in_background as main; main()"


class KernelProgress(NamedTuple):
    """The progress of a compilation."""

    compiled: int = 0
    total: int = 0
    """0 while it is not known."""
    problem: str = ""
    """Why the last attempt failed."""

    def __str__(self) -> str:
        return f"{self.compiled} of {self.total}" if self.total else "starting"


class KernelCompiler(Protocol):
    """The part of a compiler that a coordinator uses."""

    @property
    def progress(self) -> KernelProgress:
        """Return how far the compilation is."""

    def is_ready(self) -> bool:
        """Return True if all kernels are compiled, so that loading them takes seconds."""

    async def compile(self) -> None:
        """Compile all kernels; return when they can be loaded.

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
        """Return True if the cache holds all kernels for these versions and this processor."""
        return is_complete()

    async def compile(self) -> None:
        """Run the process to its end.

        Return at once if there is no folder in which compiled kernels can be kept: each process compiles for
        itself then.
        """
        if cache_folder() is None:
            return
        # A task finds its packages by its own path, which the environment does not have.
        environment = {**os.environ, "PYTHONPATH": str(_PACKAGE.parent)}
        # The process ends when its input closes, so that a coordinator that is killed leaves none behind.
        process = await trio.lowlevel.open_process(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
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


def cache_folder() -> Path | None:
    """Return the folder in which Numba keeps compiled kernels, or its like; None if none can be written.

    Numba uses ``NUMBA_CACHE_DIR``, else the folders of the modules, else the user's cache.
    """
    return next((folder for folder in _cache_folders() if _is_writable(folder)), None)


def is_complete() -> bool:
    """Return True if a compilation for these versions and this processor was completed."""
    wanted = _fingerprint()
    for folder in _cache_folders():
        with suppress(OSError):
            if not weakness(folder) and (folder / _MARK).read_text(encoding="utf-8") == wanted:
                return True
    return False


def mark_complete(folder: Path) -> None:
    """Record in a cache folder that it holds all kernels.

    Raises:
        OSError: the file cannot be written.
    """
    fresh = folder / f"{_MARK}.{os.getpid()}"
    fresh.write_text(_fingerprint(), encoding="utf-8")
    fresh.replace(folder / _MARK)


def _cache_folders() -> list[Path]:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return [Path(chosen)]
    folders = [_PACKAGE / "firmament" / "__pycache__"]
    with suppress(RuntimeError):  # no home directory
        folders.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba")
    return folders


def _is_writable(folder: Path) -> bool:
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return os.access(folder, os.W_OK) and not weakness(folder)
    return False


def _fingerprint() -> str:
    """Return a digest of all that Numba's cache depends on: sources, versions, and the processor."""
    digest = hashlib.sha256(platform.python_version().encode())
    for package in ("numba", "llvmlite", "numpy"):
        digest.update(f"{package} {metadata.version(package)}\n".encode())
    digest.update(_processor().encode())
    digest.update("\n".join(kernel_states(_PACKAGE / name for name in _FOLDERS)).encode())
    return digest.hexdigest()


@cache
def _processor() -> str:
    """Return the processor's model and features: compiled code runs on no other kind."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return "\n".join(
            sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))})
        )
    return platform.processor()
