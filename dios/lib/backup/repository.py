"""The backup in a target: its data key, its snapshots, and the signs that the target was rolled back."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from dios.errors import InvalidError
from dios.lib.backup import records
from dios.lib.backup.records import FileList, GroupRecord, Snapshot
from dios.lib.packs.chunks import LIST_BYTES_MAX, PACK_BYTES, PackReader, stored_chunks
from dios.lib.packs.configuration import BACKUP, read_config, write_config
from dios.lib.packs.failures import DamagedBackupError
from dios.lib.packs.keys import PrivateKey, Recipient, unwrap
from dios.lib.packs.sealing import SALT_BYTES, DataKey
from dios.lib.packs.targets import Target
from dios.lib.packs.writer_state import StateFile, WriterState


class ReadSnapshot(NamedTuple):
    """A snapshot, and the digest of its bytes, which the next one has."""

    snapshot: Snapshot
    digest: bytes


class Repository:
    """A backup that can be read, and written. New packs are compressed if ``compress``."""

    def __init__(self, target: Target, key: DataKey, *, compress: bool) -> None:
        self.target: Final = target
        self.compress: Final = compress
        self.key: Final = key
        self.reader: Final = PackReader(target, key)

    def sequences(self) -> list[int]:
        """Return the numbers of all snapshots, damaged ones included."""
        return records.sequences(self.target.names(records.SNAPSHOTS))

    def read(self, sequence: int) -> ReadSnapshot:
        """Return a snapshot. Raises InvalidError if there is none, DamagedBackupError."""
        try:
            data = self.target.read(records.snapshot_path(sequence), records.SNAPSHOT_BYTES_MAX)
        except FileNotFoundError:
            raise InvalidError(
                f"there is no snapshot {sequence} in {self.target.place}. `dios backup ls` lists them."
            ) from None
        head = len(records.SNAPSHOT_MAGIC)
        salt, sealed = data[head : head + SALT_BYTES], data[head + SALT_BYTES :]
        if data[:head] != records.SNAPSHOT_MAGIC or len(salt) != SALT_BYTES:
            raise DamagedBackupError(f"snapshot {sequence} was changed, replaced or cut since it was stored")
        plain = self.key.open_snapshot(sequence, salt, sealed)
        snapshot = records.decode_snapshot(plain)
        if (snapshot.sequence, snapshot.repository) != (sequence, self.key.repository):
            raise DamagedBackupError(f"snapshot {sequence} belongs to another place")
        return ReadSnapshot(snapshot, self.key.digest(plain))

    def readable(self, damaged: list[str]) -> Iterator[ReadSnapshot]:
        """Yield the snapshots, newest first. Damaged ones are left out, and described in ``damaged``."""
        for sequence in reversed(self.sequences()):
            try:
                yield self.read(sequence)
            except DamagedBackupError as error:
                damaged.append(error.message)

    def write(self, snapshot: Snapshot) -> bytes:
        """Store a snapshot, the last write of a backup; return the digest of its bytes."""
        plain = records.encode(snapshot)
        salt = secrets.token_bytes(SALT_BYTES)
        sealed = self.key.seal_snapshot(snapshot.sequence, salt, plain)
        if len(sealed) + SALT_BYTES > records.SNAPSHOT_BYTES_MAX - PACK_BYTES:
            raise InvalidError("the keyring has too many groups for one snapshot; give some with --group")
        self.target.write(records.snapshot_path(snapshot.sequence), records.SNAPSHOT_MAGIC + salt + sealed)
        return self.key.digest(plain)

    def files(self, group: GroupRecord) -> FileList:
        """Return the list of files of a group in a snapshot. Raises DamagedBackupError."""
        chunks = stored_chunks(group.packs, group.chunks)
        if sum(chunk.size for chunk in chunks) > LIST_BYTES_MAX:
            raise DamagedBackupError(f"the list of files of group {group.alias} is too long")
        return records.decode_list(self.reader.read_all(chunks))


def create_repository(target: Target, recipient: Recipient, key: DataKey) -> Repository:
    """Begin a backup in an empty target; raises as ``write_config``."""
    config = write_config(target, BACKUP, key, recipient)
    return Repository(target, key, compress=config.compress)


def open_repository(target: Target, key: PrivateKey | None) -> Repository:
    """Open a backup with the private key, or with the state of a machine that makes it.

    Raises InvalidError without either, and DamagedBackupError.
    """
    config = read_config(target, BACKUP)
    state = StateFile(target.place).load()
    if config is None:
        raise _no_backup(target, state)
    if key is not None:
        data_key = DataKey(unwrap(config.wrapped, key, config.repository), config.repository)
        return Repository(target, data_key, compress=config.compress)
    if state is None:
        raise InvalidError(
            f"this machine has no key for the backup in {target.place}. Give the private key with --key FILE."
        )
    if state.repository != config.repository:
        raise DamagedBackupError(
            f"{target.place} has another backup than the one that this machine makes there"
        )
    return Repository(target, DataKey(state.key, state.repository), compress=config.compress)


def _no_backup(target: Target, state: WriterState | None) -> InvalidError | DamagedBackupError:
    if state is not None:
        return DamagedBackupError(
            f"{target.place} has no file config, but this machine made snapshot {state.sequence} there: the "
            "backup was removed, or it is not mounted"
        )
    return InvalidError(f"there is no backup in {target.place}. `dios backup create` makes one.")


def missing_sequences(sequences: list[int]) -> list[int]:
    """Return the numbers of snapshots that are missing between others: only the oldest are ever removed."""
    present = set(sequences)
    missing = []
    for low, high in pairwise(sequences):
        missing += [
            sequence for sequence in range(low + 1, min(high, low + _SHOWN_MAX)) if sequence not in present
        ]
    return missing[:_SHOWN_MAX]


_SHOWN_MAX: Final = 100


def rollback_sign(repository: Repository, newest: ReadSnapshot | None) -> str:
    """Return how the target is older than this machine knows it, or "" if it is not, or nothing is known."""
    state = StateFile(repository.target.place).load()
    if state is None or state.repository != repository.key.repository or not state.sequence:
        return ""
    if newest is None or newest.snapshot.sequence < state.sequence:
        last = "no snapshot" if newest is None else f"snapshot {newest.snapshot.sequence} as its newest"
        return f"it has {last}, but this machine knows snapshot {state.sequence} in it"
    if newest.snapshot.sequence == state.sequence and newest.digest != state.digest:
        return f"its snapshot {state.sequence} is another one than this machine knows"
    return ""
