"""The source files of numeric kernels, and all that compiled kernels depend on. Nothing here loads Numba."""

from __future__ import annotations

import ast
import hashlib
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
    """Return the names of ``dios.limits`` that a module uses."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "dios.limits":
            names.update(alias.name for alias in node.names)
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "limits"
        ):
            names.add(node.attr)
    return names & set(vars(limits))
