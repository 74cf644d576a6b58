"""The places from which wheels are installed: a folder, the files of a group, or the package index of pip."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from dios.client.keyring import Keyring
from dios.client.sync.node import Node
from dios.errors import InvalidError
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.catalogue_places import KeyringCatalogue
from dios.lib.files.downloads import download
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.paths import PROTOCOL, split_group, stored_path

_SUFFIX: Final = ".whl"
_VARIABLES: Final = "PIP_"
_COPIES: Final = "wheels"


class WheelSource(Protocol):
    """A place with wheels."""

    def __str__(self) -> str:
        """Return its name for messages."""

    def marks(self) -> list[str]:
        """Return texts that differ if other wheels may be there."""

    def folder(self, building: Path) -> str:
        """Return the folder from which pip reads them, "" for an index. Copies are below ``building``."""


class PackageIndex:
    """The index for which pip is configured. It counts as unchanged while the variables of pip are."""

    def __str__(self) -> str:
        return "the package index of pip"

    def marks(self) -> list[str]:
        """Return the variables that configure pip."""
        return sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_VARIABLES))

    def folder(self, building: Path) -> str:
        """Return no folder."""
        del building
        return ""


class WheelFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self._path: Final = path

    def __str__(self) -> str:
        return f"the wheels in {self._path}"

    def marks(self) -> list[str]:
        """Return the names, sizes and times of the wheels."""
        return [
            f"{entry.name} {entry.stat().st_size} {entry.stat().st_mtime_ns}"
            for entry in sorted(os.scandir(self._path), key=lambda entry: entry.name)
            if entry.name.endswith(_SUFFIX)
        ]

    def folder(self, building: Path) -> str:
        """Return the folder itself."""
        del building
        return str(self._path)


class GroupWheels:
    """A directory of a group's files, or all of them."""

    def __init__(self, node: Node, place: str) -> None:
        self._place: Final = place
        alias, self._directory = split_group(place)
        keyring = Keyring.load()
        name = keyring.groups.get(alias)
        group = None if name is None else node.group(bytes(name))
        if group is None:
            raise InvalidError(
                f"cannot install from {place}: there is no such group of this connection. `dios group ls` "
                "lists yours"
            )
        self._files: Final = GroupFiles(node, group, KeyringCatalogue(node, keyring, alias, group))

    def __str__(self) -> str:
        return f"the wheels in {self._place}"

    def _entries(self) -> Iterator[tuple[str, CatalogueEntry]]:
        for entry in self._files.entries():
            directory, _, name = stored_path(entry.file).rpartition("/")
            if directory == self._directory and name.endswith(_SUFFIX):
                yield name, entry

    def marks(self) -> list[str]:
        """Return the names and digests of the wheels."""
        return sorted(f"{name} {entry.size} {entry.digest.hex()}" for name, entry in self._entries())

    def folder(self, building: Path) -> str:
        """Return a folder with copies, whose digests are those of the group's list."""
        copies = building / _COPIES
        copies.mkdir()
        for name, entry in self._entries():
            download(self._files, entry, copies / name)
        return str(copies)


def source_at(node: Node, wheels: str | os.PathLike[str] | None) -> WheelSource:
    """Return the place of wheels that a caller names. Raise InvalidError for one that is not there."""
    if wheels is None:
        return PackageIndex()
    if str(wheels).startswith(f"{PROTOCOL}://"):
        return GroupWheels(node, str(wheels))
    path = Path(wheels).expanduser().absolute()
    if not path.is_dir():
        raise InvalidError(
            f"cannot install from the wheels in {path}: it is no folder. Give one with .whl files, or "
            f"{PROTOCOL}://GROUP/DIRECTORY"
        )
    return WheelFolder(path)
