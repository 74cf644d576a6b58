"""The source files of numeric kernels, and all that compiled kernels depend on. Nothing here loads Numba."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dios import limits

PACKAGE: Final = Path(__file__).parent


def kernel_states(folders: Iterable[Path], package: Path = PACKAGE) -> list[str]:
    """Return one line for each file with kernels below ``folders``, and for each bound that they use.

    Compiled kernels are outdated when any line changes, because a kernel is compiled into others. Bounds are
    compiled into kernels as numbers, so their values count, and not the file ``dios.limits``.
    """
    states: set[str] = set()
    decorators = list(package.glob("kernels.py"))
    for path in (*decorators, *(path for folder in folders for path in folder.rglob("*.py"))):
        text = path.read_bytes()
        if b"from dios.kernels import" in text or path in decorators:
            states.add(f"{path.relative_to(package)} {hashlib.sha256(text).hexdigest()}")
            states |= {f"{name} = {getattr(limits, name)!r}" for name in _bounds_used(text)}
    return sorted(states)


def _bounds_used(text: bytes) -> set[str]:
    """Return the names of ``dios.limits`` that are words of a module."""
    return {word.decode() for word in re.findall(rb"\b[A-Z][A-Z0-9_]+\b", text)} & set(vars(limits))
