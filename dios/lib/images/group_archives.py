"""Archives of layouts that are files of a group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from blake3 import blake3

from dios.client.keyring import Keyring
from dios.client.sync.node import Node
from dios.errors import InvalidError, StaleError
from dios.lib.environments.archives import building_folder
from dios.lib.files.catalogue_places import KeyringCatalogue
from dios.lib.files.downloads import download
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.paths import split_group, stored_path


class StoredArchive:
    """An archive that is a file of a group. ``digest`` is that of its bytes in the group's list, or empty."""

    def __init__(self, node: Node, place: str) -> None:
        """Find the file at a place ``ALIAS/FILE``. Raise InvalidError if there is no such group or file."""
        alias, name = split_group(place)
        keyring = Keyring.load()
        known = keyring.groups.get(alias)
        group = None if known is None else node.group(bytes(known))
        if group is None:
            raise InvalidError(f"there is no group {alias!r} of this connection: `dios group ls` lists yours")
        self._files: Final = GroupFiles(node, group, KeyringCatalogue(node, keyring, alias, group))
        entry = next((entry for entry in self._files.entries() if stored_path(entry.file) == name), None)
        if entry is None:
            raise InvalidError(f"the group {alias!r} has no file {name!r}: `dios ls` lists its files")
        self._entry: Final = entry
        self.digest: Final = entry.digest.hex()

    @contextlib.contextmanager
    def copied(self) -> Iterator[Path]:
        """Yield a copy with the digest. Raise StaleError if the file was replaced in between."""
        with building_folder() as folder:
            copy = folder / "layout"
            download(self._files, self._entry, copy)
            if self.digest and blake3().update_mmap(copy).hexdigest() != self.digest:
                raise StaleError(f"{self._entry.file} was replaced while it was read. Read it again.")
            yield copy
