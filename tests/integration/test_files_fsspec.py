"""The abstract test suite of fsspec, from the installed package, on files of a real node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dios
from tests.support.node.running_node import running_node

pytest.importorskip("fsspec", reason="fsspec is not installed: make setup")

import fsspec
from fsspec.tests import abstract


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A node and the alias of a group on it."""
    with running_node(tmp_path_factory.mktemp("files") / "data") as running:
        alias = f"suite-{running.running.pid}"
        with dios.connect(running.place, groups=()) as node:
            dios.Keyring.load().add(alias, dios.parse_name(dios.format_name(node.create_group().name or b"")))
        yield running.place, alias


class FilesOfNode(abstract.AbstractFixtures):  # type: ignore[misc]
    """The fixtures of the suite."""

    @pytest.fixture
    def fs(self, place: tuple[str, str]) -> object:
        """The file system, found by its entry point."""
        return fsspec.filesystem("dios", node=place[0])

    @pytest.fixture
    def fs_path(self, place: tuple[str, str]) -> str:
        """A directory for the test."""
        return f"{place[1]}/tests"


class TestCopy(FilesOfNode, abstract.AbstractCopyTests):  # type: ignore[misc]
    """Copying within the file system."""


class TestGet(FilesOfNode, abstract.AbstractGetTests):  # type: ignore[misc]
    """Copying to local files."""


class TestPut(FilesOfNode, abstract.AbstractPutTests):  # type: ignore[misc]
    """Copying local files."""


class TestOpen(FilesOfNode, abstract.AbstractOpenTests):  # type: ignore[misc]
    """Opening."""


class TestPipe(FilesOfNode, abstract.AbstractPipeTests):  # type: ignore[misc]
    """Writing bytes."""
