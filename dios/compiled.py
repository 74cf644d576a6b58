"""The one way in which DIOS compiles a numeric kernel: Numba, cached on disk, without Python's lock.

Not for: code that a daemon or a task loads; numba stands in the extra ``cluster``.

A kernel takes and returns numbers and numpy arrays only, uses integers for flow and prices, and has
beside it a plain Python oracle in the tests. A cold compilation takes seconds to tens of seconds; what
is compiled is kept beside the module (or below ``NUMBA_CACHE_DIR``) and loaded the next time.

Numba looks for changes in the file of a kernel alone, and would go on with the old copy of a kernel of
another file that was compiled into it. So everything that is kept goes when any file with kernels changes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, ParamSpec, TypeVar, cast

import numba

_P = ParamSpec("_P")
_R = TypeVar("_R")

_ROOT: Final = Path(__file__).parent
_PACKAGES: Final = tuple(_ROOT / name for name in ("fairness", "packer", "sprayer", "papers", "firmament"))
_STAMP: Final = _PACKAGES[-1] / "__pycache__" / "kernels.stamp"


def _forget_older() -> None:
    """Delete kernels that were compiled before a file with kernels changed, where that may be done."""
    texts = {path: path.read_bytes() for package in _PACKAGES for path in package.rglob("*.py")}
    kernels = sorted(path for path, text in texts.items() if b"from dios.compiled import" in text)
    # The bounds that kernels know are compiled into them.
    kernels.append(_ROOT / "limits.py")
    seen = [(str(path.relative_to(_ROOT)), path.stat().st_mtime_ns) for path in kernels]
    stamp = f"{numba.__version__} {seen}"
    # Where nothing can be written, Numba keeps nothing here either.
    with contextlib.suppress(OSError):
        if _STAMP.exists() and _STAMP.read_text() == stamp:
            return
        for package in _PACKAGES:
            for kept in (*package.rglob("__pycache__/*.nbi"), *package.rglob("__pycache__/*.nbc")):
                kept.unlink(missing_ok=True)
        _STAMP.parent.mkdir(exist_ok=True)
        _STAMP.write_text(stamp)


_forget_older()


def _made(kernel: Callable[_P, _R], **options: object) -> Callable[_P, _R]:
    try:
        return cast("Callable[_P, _R]", numba.njit(cache=True, nogil=True, **options)(kernel))  # type: ignore[call-overload] # see the callers
    except RuntimeError:
        # There is no place to keep it, not even a home directory: it is compiled in each process.
        return cast("Callable[_P, _R]", numba.njit(nogil=True, **options)(kernel))  # type: ignore[call-overload] # likewise


def compiled(kernel: Callable[_P, _R]) -> Callable[_P, _R]:
    """The same function, compiled at its first call; the lock is let go while it runs."""
    return _made(kernel)


def inlined(kernel: Callable[_P, _R]) -> Callable[_P, _R]:
    """A small part of other kernels, put into each caller's body."""
    return _made(kernel, inline="always")


def borrowing(kernel: Callable[_P, _R]) -> Callable[_P, _R]:
    """As :func:`compiled`, for a kernel that makes no arrays and keeps none: only views of what it is given.

    Nothing is counted then. A kernel that reads columns of a tuple in its inner loop is several times faster.
    """
    return _made(kernel, _nrt=False)


def folded(kernel: Callable[_P, _R]) -> Callable[_P, _R]:
    """As :func:`borrowing`, put into each caller's machine code: small work on a tuple of many arrays.

    Each of its columns is handed over by itself otherwise, which costs more than the work.
    """
    return _made(kernel, _nrt=False, forceinline=True)
