"""Compiled functions of network functions on the disk, so that only the first start compiles them.

Each function has one file in a folder next to the compiled kernels, which no other user can read or write.
The folder is for one processor and one set of versions (``dios.kernel_cache``), and a file's name changes
with the sources, types and constants that decide the code. A file begins with a digest of its contents:
damaged files are ignored, and written again.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import marshal
import os
import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Final, Protocol, cast

import numpy as np
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from dios import kernel_cache
from dios.kernel_sources import PACKAGE
from dios.limits import SPRAYER_COMPILED_BYTES, SPRAYER_COMPILING_S
from dios.sprayer.compile.tuple_methods import Function

_DIGEST_BYTES: Final = 32
_RETRY_S: Final = 0.05
_LIBRARIES: Final = frozenset({"builtins", "llvmlite", "math", "numba", "numpy", "operator", "typing"})
"""Their versions belong to the folder, so their functions count by name."""
_PLAIN: Final = (int, float, complex, str, bytes, range, np.generic, np.dtype, Enum, type(None), type(...))


class _Result(Protocol):
    """The result of a compilation by Numba."""

    def _reduce(self) -> tuple[object, ...]: ...
    def _find_referenced_environments(self) -> list[_Environment]: ...
    @property
    def codegen(self) -> _Generator: ...
    @property
    def library(self) -> _Library: ...


class _Environment(Protocol):
    env_name: str


class _Library(Protocol):
    def _ensure_finalized(self) -> None: ...


class _Generator(Protocol):
    def set_env(self, name: str, environment: _Environment, /) -> None: ...


class KeptCode(NullCache):
    """The file of one compiled function, in the role of a cache of Numba; without a name nothing is kept."""

    def __init__(self, name: str | None) -> None:
        folder = kernel_cache.private_folder() if name else None
        self._path: Final = folder / f"{name}.code" if folder else None

    @contextlib.contextmanager
    def compiled_once(self) -> Iterator[None]:
        """Let other processes of this user wait in the block for the code, for a limited time."""
        with contextlib.ExitStack() as stack:
            if self._path is not None:
                with contextlib.suppress(OSError):
                    lock = stack.enter_context(kernel_cache.open_lock(self._path.with_suffix(".lock")))
                    until = time.monotonic() + SPRAYER_COMPILING_S
                    while not _try_lock(lock.fileno()) and time.monotonic() < until:
                        time.sleep(_RETRY_S)
            yield

    def load_overload(self, _signature: object, target: object) -> object:
        """Return the compiled function, or None if it is not there or damaged."""
        if self._path is None:
            return None
        try:
            data = self._path.read_bytes()
            if _digest(data[_DIGEST_BYTES:]) != data[:_DIGEST_BYTES]:
                return None
            os.utime(self._path)
            parts = pickle.loads(data[_DIGEST_BYTES:])  # noqa: S301 - nobody else can write the folder
        except OSError:
            return None
        rebuilt: object = CompileResult._rebuild(target, *parts)  # type: ignore[no-untyped-call] # noqa: SLF001 - Numba's own cache
        return rebuilt

    def save_overload(self, _signature: object, compiled: object) -> None:
        """Write the compiled function, if that is possible; remove those that were not used longest."""
        result: _Result = cast("_Result", compiled)
        # Methods that became part of the function have environments of their own.
        result.library._ensure_finalized()  # noqa: SLF001 - Numba's own cache
        for environment in result._find_referenced_environments():  # noqa: SLF001 - Numba's own cache
            result.codegen.set_env(environment.env_name, environment)
        if self._path is None:
            return
        with contextlib.suppress(OSError):
            data: bytes = dumps(result._reduce())  # type: ignore[no-untyped-call] # noqa: SLF001 - Numba's own cache
            fresh = self._path.with_suffix(f".{os.getpid()}")
            try:
                fresh.write_bytes(_digest(data) + data)
                fresh.replace(self._path)
            finally:
                fresh.unlink(missing_ok=True)
            _remove_oldest(self._path)


def name_of(title: str, functions: Mapping[str, Function], facts: Iterable[str] = ()) -> str | None:
    """Return the name of the code of some functions, which changes whenever the code may.

    It depends on the functions and ``facts``, on all functions and constants that they use, and on this
    library. None if a function uses a constant of an unknown kind.
    """
    hasher = hashlib.blake2b(_library(), digest_size=12)
    seen: set[int] = set()
    try:
        for fact in (*facts, *(name for name in sorted(functions))):
            hasher.update(f"{fact}\n".encode())
        for name in sorted(functions):
            _hash_value(hasher, functions[name], (), seen)
    except _UnknownValueError:
        return None
    return f"{title}_{hasher.hexdigest()}"


class _UnknownValueError(Exception):
    """A value decides code in a way that is not known here."""


@functools.cache
def _library() -> bytes:
    """Return a digest of the sources of this library, except for kernels, which the folder depends on."""
    hasher = hashlib.blake2b()
    for path in (*sorted((PACKAGE / "sprayer").rglob("*.py")), PACKAGE / "limits.py"):
        hasher.update(path.read_bytes())
    return hasher.digest()


def _hash_value(hasher: hashlib.blake2b, value: object, names: tuple[str, ...], seen: set[int]) -> None:
    """Add a value to the digest; of a module and a class those attributes that are in ``names``."""
    value = getattr(value, "py_func", getattr(value, "_defn", value))
    if isinstance(value, _PLAIN):
        hasher.update(f"{type(value).__name__} {value!r}\n".encode())
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        hasher.update(f"{value.dtype} {value.shape}\n".encode() + value.tobytes())
    elif isinstance(value, tuple):
        hasher.update(f"{type(value).__name__} {len(value)}\n".encode())
        for part in value:
            _hash_value(hasher, part, names, seen)
    elif id(value) in seen:
        return
    elif isinstance(value, FunctionType) and not _is_of_library(value):
        seen.add(id(value))
        try:
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
        except ValueError:
            raise _UnknownValueError(repr(value)) from None  # a variable without a value so far
        for used in (value.__defaults__, tuple((value.__kwdefaults__ or {}).items()), *cells):
            _hash_value(hasher, used, (), seen)
        _hash_code(hasher, value.__code__, value.__globals__, seen)
    elif isinstance(value, ModuleType | type) and not _is_of_library(value):
        seen.add(id(value))
        hasher.update(f"{value.__name__}\n".encode())
        for name in names:
            if hasattr(value, name):
                _hash_value(hasher, getattr(value, name), names, seen)
    elif _is_of_library(value):
        hasher.update(f"{getattr(value, '__qualname__', getattr(value, '__name__', value))}\n".encode())
    elif not hasattr(value, "__get__"):  # a field of a tuple that a method uses has its name in the method
        raise _UnknownValueError(repr(value))


def _hash_code(hasher: hashlib.blake2b, code: CodeType, space: Mapping[str, object], seen: set[int]) -> None:
    hasher.update(marshal.dumps(code, 2))
    for name in code.co_names:
        if name in space:
            _hash_value(hasher, space[name], code.co_names, seen)
    for part in code.co_consts:
        if isinstance(part, CodeType):
            _hash_code(hasher, part, space, seen)


def _is_of_library(value: object) -> bool:
    """Return True for a module, class or function of a library; other values may hold anything."""
    if not (callable(value) or isinstance(value, ModuleType)):
        return False
    place = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(place).partition(".")[0] in _LIBRARIES or isinstance(value, np.ufunc)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_oldest(fresh: Path) -> None:
    """Remove functions that were not used longest until the folder's size is within its bound."""
    files = {path: path.stat() for path in fresh.parent.glob("*.code")}
    size = sum(status.st_size for status in files.values())
    for path in sorted(files.keys() - {fresh}, key=lambda path: files[path].st_mtime_ns):
        if size <= SPRAYER_COMPILED_BYTES:
            return
        for old in (path, path.with_suffix(".lock")):
            old.unlink(missing_ok=True)
        size -= files[path].st_size
