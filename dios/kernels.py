"""Decorators that compile numeric kernels with Numba, and load compiled kernels from the disk.

A kernel takes and returns numbers and numpy arrays only, and counts flow and prices in integers. It runs
without the interpreter's lock. A first compilation takes from seconds to tens of seconds; the result is kept
in a folder of ``dios.kernel_cache``, and is loaded the next time. Importing this module, or one with kernels,
touches no file.

Daemons and tasks do not load this module. Numba is part of the extra ``cluster``.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import FunctionType
from typing import Final, ParamSpec, TypeVar, cast

import numba
from numba.core import event
from numba.core.caching import Cache, CompileResultCacheImpl, NullCache, _CacheLocator

from dios import kernel_cache

_P = ParamSpec("_P")
_R = TypeVar("_R")

_loading_only: Final = ContextVar("loading_only", default=False)


class NotCompiledError(Exception):
    """A kernel is on no disk, inside of :func:`loading_only`."""


@contextlib.contextmanager
def loading_only() -> Iterator[None]:
    """Raise NotCompiledError inside the block, in this thread, where a kernel would have to be compiled."""
    token = _loading_only.set(True)
    try:
        yield
    finally:
        _loading_only.reset(token)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a cache folder against other processes, if a file can be written there.

    Numba numbers the files of a kernel's variants. Without the lock, two processes that compile two variants
    at the same time would take the same number, and one variant would be loaded in place of the other.
    """
    try:
        lock = kernel_cache.open_lock(folder / "kernels.lock")
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


class _Locator(_CacheLocator):
    """The place of one kernel, in one folder."""

    def __init__(self, folder: Path, function: FunctionType) -> None:
        self._folder = folder
        self._function = function
        self._py_file = function.__code__.co_filename  # for a warning of Numba

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder exists."""

    def get_cache_path(self) -> str:
        return str(self._folder)

    def get_source_stamp(self) -> str:
        return kernel_cache.stamp(self._function.__module__.partition(".")[0])

    def get_disambiguator(self) -> str:
        return f"{self._function.__module__}-{self._function.__code__.co_firstlineno}"


class _Folder:
    """Gives Numba the place of a kernel in one folder, in the role of a class of locators."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def from_function(self, function: FunctionType, _file: str) -> _Locator:
        return _Locator(self._folder, function)


class _Storage(CompileResultCacheImpl):
    """The form in which Numba writes one kernel into one folder."""

    def __init__(self, function: FunctionType, folder: Path) -> None:
        vars(self)["_locator_classes"] = [_Folder(folder)]
        super().__init__(function)  # type: ignore[no-untyped-call] # numba has no types


class _FolderCache(Cache):
    """The compiled variants of one kernel in one folder."""

    def __init__(self, function: FunctionType, folder: Path) -> None:
        self.folder = folder
        vars(self)["_impl_class"] = functools.partial(_Storage, folder=folder)
        super().__init__(function)  # type: ignore[no-untyped-call] # numba has no types

    def load_overload(self, signature: object, target: object) -> object:
        with contextlib.suppress(OSError), _locked(self.folder):
            loaded: object = super().load_overload(signature, target)  # type: ignore[no-untyped-call] # the same
            return loaded
        return None

    def save_overload(self, signature: object, compiled: object) -> None:
        # A full disk, for example: the kernel is compiled anyway.
        with contextlib.suppress(OSError), _locked(self.folder):
            super().save_overload(signature, compiled)  # type: ignore[no-untyped-call] # the same

    def has_kernel(self) -> bool:
        """Return True if a variant of the kernel is in the folder."""
        return (self.folder / f"{self._impl.filename_base}.nbi").exists()


@functools.cache
def _folders() -> tuple[Path | None, list[Path]]:
    """Return the folder into which this process writes, and all from which it loads."""
    return kernel_cache.writable_folder(), kernel_cache.readable_folders()


class _LazyCache(NullCache):
    """The caches of one kernel, which touch no file before the kernel is called."""

    def __init__(self, function: FunctionType) -> None:
        self._function = function

    @functools.cached_property
    def _caches(self) -> list[_FolderCache]:
        return [_FolderCache(self._function, folder) for folder in _folders()[1]]

    @property
    def cache_path(self) -> str | None:
        """The folder from which the kernel is loaded, or into which it will be written."""
        stored = (cache.folder for cache in self._caches if cache.has_kernel())
        folder = next(stored, _folders()[0])
        return None if folder is None else str(folder)

    def load_overload(self, signature: object, target: object) -> object:
        for cache in self._caches:
            loaded = cache.load_overload(signature, target)
            if loaded is not None:
                return loaded
        if _loading_only.get():
            raise NotCompiledError(f"{self._function.__module__}.{self._function.__qualname__}")
        return None

    def save_overload(self, signature: object, compiled: object) -> None:
        for cache in self._caches:
            if cache.folder == _folders()[0]:
                cache.save_overload(signature, compiled)

    def flush(self) -> None:
        for cache in self._caches:
            if cache.folder == _folders()[0]:
                cache.flush()  # type: ignore[no-untyped-call] # numba has no types


def _compiled(function: Callable[_P, _R], **options: object) -> Callable[_P, _R]:
    dispatcher: object = numba.njit(nogil=True, **options)(function)  # type: ignore[call-overload] # see the callers
    # Numba's ``cache=True`` looks for a folder that it can write as soon as a module is imported.
    vars(dispatcher)["_cache"] = _LazyCache(cast("FunctionType", function))
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
