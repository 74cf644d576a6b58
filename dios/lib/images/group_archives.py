"""Archives of layouts that are files of a group."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from dios.client.keyring import Keyring
from dios.client.sync.node import Node
from dios.errors import InvalidError
from dios.lib.environments.archives import building_folder
from dios.lib.files.catalogue_places import KeyringCatalogue
from dios.lib.files.downloads import download
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.paths import split_group, stored_path


@contextlib.contextmanager
def copied_archive(node: Node, place: str) -> Iterator[Path]:
    """Yield a copy of a file of a group, whose digest is that of the group's list.

    ``place`` is ``ALIAS/FILE``. Raise InvalidError if there is no such group or file.
    """
    alias, name = split_group(place)
    keyring = Keyring.load()
    known = keyring.groups.get(alias)
    group = None if known is None else node.group(bytes(known))
    if group is None:
        raise InvalidError(f"there is no group {alias!r} of this connection: `dios group ls` lists yours")
    files = GroupFiles(node, group, KeyringCatalogue(node, keyring, alias, group))
    entry = next((entry for entry in files.entries() if stored_path(entry.file) == name), None)
    if entry is None:
        raise InvalidError(f"the group {alias!r} has no file {name!r}: `dios ls` lists its files")
    with building_folder() as folder:
        copy = folder / "layout"
        download(files, entry, copy)
        yield copy
