"""Decorators that compile numeric kernels with Numba, and the cache of compiled kernels on disk.

A kernel takes and returns numbers and numpy arrays only, and counts flow and prices in integers. It runs
without the interpreter's lock. A first compilation takes from seconds to tens of seconds; the result is kept
next to the kernel's module, or below ``NUMBA_CACHE_DIR``, and is loaded the next time.

Numba looks for changes in the file of a kernel alone, and would go on using an outdated copy of a kernel of
another file that was compiled into it. So when any file with kernels has changed, all compiled kernels are
deleted. That happens when the first kernel is called: importing this module, or one with kernels, touches no
file.

Daemons and tasks do not load this module. Numba is part of the extra ``cluster``.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, ParamSpec, Protocol, TypeVar, cast

import numba
from numba.core import event
from numba.core.caching import FunctionCache, NullCache

from dios.kernel_sources import PACKAGE, kernel_states
from dios.trusted_files import weakness

_P = ParamSpec("_P")
_R = TypeVar("_R")

_log: Final = logging.getLogger(__name__)

_FOLDERS: Final = tuple(PACKAGE / name for name in ("fairness", "packer", "sprayer", "papers", "firmament"))
_STAMP: Final = PACKAGE / "firmament" / "__pycache__" / "kernels.stamp"


@functools.cache
def delete_outdated_kernels() -> None:
    """Delete all compiled kernels if a file with kernels, or a bound in one, changed since.

    The first call of a process does the work. Folders that cannot be written are left as they are: Numba
    keeps no compiled kernels there either.
    """
    stamp = "\n".join([numba.__version__, *kernel_states(_FOLDERS, PACKAGE)])
    with contextlib.suppress(OSError):
        _STAMP.parent.mkdir(exist_ok=True)
        with _locked(_STAMP.parent):
            if _STAMP.exists() and _STAMP.read_text() == stamp:
                return
            for folder in _FOLDERS:
                for path in (*folder.rglob("__pycache__/*.nbi"), *folder.rglob("__pycache__/*.nbc")):
                    path.unlink(missing_ok=True)
            _STAMP.write_text(stamp)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a cache folder against other processes, if a file can be written there.

    Numba numbers the files of a kernel's variants. Without the lock, two processes that compile two variants
    at the same time would take the same number, and one variant would be loaded in place of the other.
    """
    try:
        lock = (folder / "kernels.lock").open("a")
    except OSError:
        yield
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def measured_loading(report: Callable[[float], None]) -> Iterator[None]:
    """Measure how long kernels are compiled or loaded inside the block; ``report`` is given the seconds.

    It is not called if no kernel is. Kernels of all threads count.
    """
    with event.install_timer("numba:compiler_lock", report):
        yield


class _Cache(Protocol):
    """The methods that Numba calls of a kernel's cache."""

    @property
    def cache_path(self) -> str | None: ...
    def load_overload(self, signature: object, target: object) -> object: ...
    def save_overload(self, signature: object, compiled: object) -> None: ...
    def flush(self) -> None: ...


@functools.cache
def _is_obeyed(folder: str) -> bool:
    """Return True if no other user can put compiled kernels into the folder; else log the reason."""
    reason = weakness(folder)
    if reason:
        _log.warning("compiled kernels are not kept or loaded", extra={"folder": folder, "why": reason})
    return not reason


class _LazyCache(NullCache):
    """The cache of one kernel, which touches no file before the kernel is called."""

    def __init__(self, function: object) -> None:
        self._function = function

    @functools.cached_property
    def _cache(self) -> _Cache:
        delete_outdated_kernels()
        try:
            cache: object = FunctionCache(self._function)  # type: ignore[no-untyped-call] # numba has no types
        except RuntimeError:
            # No folder can be written, not even a home directory: each process compiles for itself.
            cache = NullCache()
        found = cast("_Cache", cache)
        # A compiled kernel is a pickle and machine code: loading it is running it.
        if found.cache_path is not None and not _is_obeyed(found.cache_path):
            return cast("_Cache", NullCache())
        return found

    @property
    def cache_path(self) -> str | None:
        return self._cache.cache_path

    def load_overload(self, signature: object, target: object) -> object:
        with self._locked_folder():
            return self._cache.load_overload(signature, target)

    def save_overload(self, signature: object, compiled: object) -> None:
        with self._locked_folder():
            self._cache.save_overload(signature, compiled)

    def _locked_folder(self) -> contextlib.AbstractContextManager[None]:
        path = self._cache.cache_path
        return contextlib.nullcontext() if path is None else _locked(Path(path))

    def flush(self) -> None:
        self._cache.flush()


def _compiled(function: Callable[_P, _R], **options: object) -> Callable[_P, _R]:
    dispatcher: object = numba.njit(nogil=True, **options)(function)  # type: ignore[call-overload] # see the callers
    # Numba's ``cache=True`` looks for a folder that it can write as soon as a module is imported.
    vars(dispatcher)["_cache"] = _LazyCache(function)
    return cast("Callable[_P, _R]", dispatcher)


def kernel(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function at its first call; it runs without the interpreter's lock."""
    return _compiled(function)


def inlined_kernel(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function part of the body of each kernel that calls it, before types are known."""
    return _compiled(function, inline="always")


def no_refcount_kernel(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function that makes no arrays and keeps none: it only borrows its arguments.

    No references are counted then, so a kernel that reads the columns of a tuple in its inner loop is several
    times faster than with :func:`kernel`.
    """
    return _compiled(function, _nrt=False)


def force_inlined_kernel(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function part of the machine code of each caller; like :func:`no_refcount_kernel` otherwise.

    For a small amount of work on a tuple of many arrays: each of them is passed as several arguments, which
    takes longer than the work. Arguments that are constants in the caller are constants in its copy.
    """
    return _compiled(function, _nrt=False, forceinline=True)
