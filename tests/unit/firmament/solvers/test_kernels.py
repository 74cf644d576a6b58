"""The decorators that compile kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dios import kernels
from dios.kernels import (
    NotCompiledError,
    force_inlined_kernel,
    inlined_kernel,
    kernel,
    loading_only,
    no_refcount_kernel,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for compiled kernels."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(kernels, "_folders", kernels._folders.__wrapped__)
    return tmp_path / "kernels"


def test_a_decorated_function_touches_no_file_before_its_first_call(folder: Path) -> None:
    """Commands import modules with kernels and call none."""

    @kernel
    def double(number: int) -> int:
        return 2 * number

    assert not folder.exists()
    assert double(21) == 42
    assert len(list(folder.rglob("*.nbc"))) == 1


def test_a_kernel_that_is_on_no_disk_is_not_compiled_where_loading_alone_is_allowed(folder: Path) -> None:
    """The error names the kernel; later it is compiled as usual."""

    @kernel
    def double(number: int) -> int:
        return 2 * number

    with loading_only(), pytest.raises(NotCompiledError, match="double"):
        double(21)
    assert not list(folder.rglob("*.nbc"))
    assert double(21) == 42


def test_all_decorators_compute_what_python_does() -> None:
    """A kernel may call kernels of every kind."""

    @inlined_kernel
    def add(left: int, right: int) -> int:
        return left + right

    @force_inlined_kernel
    def scale(column: np.ndarray[tuple[int], np.dtype[np.int64]], factor: int) -> None:
        for index in range(len(column)):
            column[index] *= factor

    @no_refcount_kernel
    def shift_and_scale(column: np.ndarray[tuple[int], np.dtype[np.int64]], factor: int) -> None:
        scale(column, factor)
        for index in range(len(column)):
            column[index] = add(column[index], 1)

    column = np.arange(4)
    shift_and_scale(column, 3)
    assert column.tolist() == [1, 4, 7, 10]
