"""The decorators that compile kernels, and the deletion of outdated compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dios import kernels, limits
from dios.kernels import (
    delete_outdated_kernels,
    force_inlined_kernel,
    inlined_kernel,
    kernel,
    no_refcount_kernel,
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of modules with kernels, next to which an outdated compiled kernel is stored."""
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    (cache / "old.nbi").touch()
    (cache / "old.nbc").touch()
    monkeypatch.setattr(kernels, "PACKAGE", tmp_path)
    monkeypatch.setattr(kernels, "_FOLDERS", (tmp_path,))
    monkeypatch.setattr(kernels, "_STAMP", cache / "kernels.stamp")
    (tmp_path / "kernels.py").touch()
    (tmp_path / "with_kernels.py").write_text(
        "from dios import limits\nfrom dios.kernels import kernel\nfrom dios.limits import SPRAYER_BATCH\n"
        "SIZE = limits.FLOW_UNBOUNDED\n"
    )
    delete_outdated_kernels.cache_clear()
    return cache


def test_outdated_kernels_are_deleted_at_the_first_call_and_not_before(folder: Path) -> None:
    """A decorated function touches no file; its first call deletes what was compiled before a change."""

    @kernel
    def double(number: int) -> int:
        return 2 * number

    assert sorted(path.name for path in folder.iterdir()) == ["old.nbc", "old.nbi"]
    assert double(21) == 42
    assert sorted(path.name for path in folder.iterdir()) == ["kernels.lock", "kernels.stamp"]


def test_kernels_that_are_up_to_date_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled kernels stay until a file with kernels changes, or a bound that such a file uses."""
    changes: list[Callable[[], object]] = [
        lambda: (folder.parent / "with_kernels.py").write_text(
            "from dios.kernels import kernel  # changed\n"
        ),
        lambda: monkeypatch.setattr(limits, "SPRAYER_BATCH", 1),
        lambda: monkeypatch.setattr(limits, "FLOW_UNBOUNDED", 1),
    ]
    for change in reversed(changes):
        delete_outdated_kernels.cache_clear()
        delete_outdated_kernels()
        (folder / "new.nbi").touch()
        (folder.parent / "other.py").write_text("from dios.limits import QUEUE_ROWS_MAX\n")
        monkeypatch.setattr(limits, "QUEUE_ROWS_MAX", limits.QUEUE_ROWS_MAX + 1)
        delete_outdated_kernels.cache_clear()
        delete_outdated_kernels()
        assert (folder / "new.nbi").exists()
        change()
        delete_outdated_kernels.cache_clear()
        delete_outdated_kernels()
        assert not (folder / "new.nbi").exists()


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
