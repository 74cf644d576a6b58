"""Removing old snapshots, and packs that no snapshot names.

Snapshots go first, the oldest first, so that a run that breaks off leaves no snapshot without its packs.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from dios.errors import InvalidError
from dios.lib.backup import records
from dios.lib.backup.repository import Repository
from dios.lib.packs.chunks import pack_ids, pack_path
from dios.lib.packs.failures import DamagedBackupError


class Pruned(NamedTuple):
    """The numbers of snapshots and packs that were removed, and of those that stay."""

    snapshots: int
    packs: int
    snapshots_left: int
    packs_left: int


def prune(repository: Repository, keep: int) -> Pruned:
    """Remove all but the newest ``keep`` snapshots, then the packs that none of these names.

    The caller holds the lock of the writer. Raises DamagedBackupError before anything is removed if one of
    the snapshots that stay, or a list of files of it, cannot be read, or if a pack of it is missing: an older
    snapshot may be the last one that can be restored.
    """
    if keep < 1:
        raise InvalidError("at least one snapshot has to stay")
    sequences = repository.sequences()
    gone, stay = sequences[:-keep], sequences[-keep:]
    used: set[bytes] = set()
    for sequence in stay:
        for group in repository.read(sequence).snapshot.groups:
            used.update(group.packs, repository.files(group).packs)
    present = pack_ids(repository.target)
    if used - present:
        raise DamagedBackupError(
            f"{len(used - present)} packs of the snapshots that stay are missing. Nothing was removed. `dios "
            "backup verify` shows which files they had; make a new backup before you prune."
        )
    for sequence in gone:
        _remove(repository, records.snapshot_path(sequence))
    unused = present - used
    for pack in sorted(unused):
        _remove(repository, pack_path(pack))
    return Pruned(len(gone), len(unused), len(stay), len(present) - len(unused))


def _remove(repository: Repository, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        repository.target.remove(path)
