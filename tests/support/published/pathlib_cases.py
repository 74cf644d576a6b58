"""The tests of universal_pathlib for a file system, on ``dios://``. pytest runs this file as a suite."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Final

import fsspec
import pytest
from upath import UPath
from upath.tests.cases import BaseTests

import dios

_numbers: Final = count()


@pytest.fixture(scope="module")
def group() -> Iterator[str]:
    """A group for all cases."""
    alias = f"paths-{os.getpid()}"
    with dios.connect() as node:
        dios.Keyring.load().add(alias, dios.parse_name(dios.format_name(node.create_group().name or b"")))
        yield alias


@pytest.fixture
def pathlib_base(tmp_path: Path) -> Path:
    """The same files in a local folder."""
    (tmp_path / "folder1").mkdir()
    for name in ("file1.txt", "file2.txt"):
        (tmp_path / "folder1" / name).write_text(name)
        (tmp_path / name).write_text("hello world")
    return tmp_path


@pytest.fixture
def local_testdir(pathlib_base: Path) -> str:
    """Its path as text."""
    return str(pathlib_base)


@pytest.fixture
def clear_registry() -> None:
    """Leave the registry as it is: it has no file system of the tests."""


@pytest.fixture
def clear_fsspec_memory_cache() -> Iterator[None]:
    """An empty file system in memory."""
    memory = fsspec.get_filesystem_class("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    yield
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


class TestPaths(BaseTests):  # type: ignore[misc] # it has no types
    """Each case has a folder of its own."""

    @pytest.fixture(autouse=True)
    def path(self, group: str) -> None:
        """Make the folder and the files of the suite."""
        self.path = UPath(  # type: ignore[assignment]  # the suite's name for both
            f"dios://{group}/{next(_numbers)}"
        )
        self.prepare_file_system()

    def test_is_correct_class(self) -> None:
        """universal_pathlib makes a class for a file system that it does not know."""
        assert isinstance(self.path, UPath)
