"""Reading everything that a backup has, to find what is missing or changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dios.errors import InvalidError
from dios.lib.backup.records import GroupRecord, Snapshot
from dios.lib.backup.repository import ReadSnapshot, Repository, missing_sequences, rollback_sign
from dios.lib.packs.chunks import StoredChunk, pack_ids, stored_chunks
from dios.lib.packs.failures import DamagedBackupError

_DAMAGES_SHOWN_MAX: Final = 1_000


@dataclass(slots=True)
class Verified:
    """The data that was read, and the faults in it."""

    snapshots: int = 0
    files: int = 0
    chunks: int = 0
    read_bytes: int = 0
    unused_packs: int = 0
    newest: int = 0
    newest_ns: int = 0
    damages: list[str] = field(default_factory=list)
    """At most 1,000 findings, as sentences."""
    damage_count: int = 0

    def damage(self, text: str) -> None:
        """Record a finding."""
        self.damage_count += 1
        if len(self.damages) < _DAMAGES_SHOWN_MAX:
            self.damages.append(text)


class Verification:
    """The reading of every snapshot, or of ``only`` one, and once of every chunk that they name.

    Making it reads the snapshots and lists of files. Raises InvalidError if the only one does not exist,
    TargetError and OSError; damage is a finding.
    """

    def __init__(self, repository: Repository, *, only: int | None = None) -> None:
        self._repository: Final = repository
        self._outcome: Final = Verified()
        self._chunks: Final[dict[StoredChunk, str]] = {}
        """Each chunk with a file that has it."""
        self._list(only)

    @property
    def total(self) -> int:
        """Return the number of bytes to read."""
        return sum(chunk.size for chunk in self._chunks)

    @property
    def chunks(self) -> int:
        """Return the number of chunks to read."""
        return len(self._chunks)

    def _list(self, only: int | None) -> None:
        repository, outcome = self._repository, self._outcome
        present = pack_ids(repository.target)
        previous: ReadSnapshot | None = None
        newest: ReadSnapshot | None = None
        sequences = repository.sequences()
        for sequence in sequences if only is None else [only]:
            try:
                read = repository.read(sequence)
            except DamagedBackupError as error:
                outcome.damage(error.message)
                previous = None
                continue
            _require_chain(read, previous, outcome)
            previous = newest = read
            outcome.snapshots += 1
            outcome.newest, outcome.newest_ns = sequence, read.snapshot.time_ns
            for group in read.snapshot.groups:
                _enter_group(repository, read.snapshot, group, self._chunks, outcome)
        if only is None:
            for sequence in missing_sequences(sequences):
                outcome.damage(f"snapshot {sequence} is missing, although an older one is there")
            if sign := rollback_sign(repository, newest):
                outcome.damage(f"the backup was rolled back: {sign}")
            outcome.unused_packs = len(present - {chunk.pack for chunk in self._chunks})

    def read(self, moved: Callable[[int], object] = lambda _: None) -> Verified:
        """Read the chunks pack by pack, and return all findings; ``moved`` gets the progress in bytes."""
        _read_chunks(self._repository, self._chunks, self._outcome, moved)
        return self._outcome


def _require_chain(read: ReadSnapshot, previous: ReadSnapshot | None, outcome: Verified) -> None:
    """Check that a snapshot was made with the one before it in sight."""
    if previous is None or previous.snapshot.sequence != read.snapshot.sequence - 1:
        return
    if read.snapshot.previous != previous.digest:
        outcome.damage(
            f"snapshot {read.snapshot.sequence} was made after another snapshot "
            f"{previous.snapshot.sequence} than the one that is there"
        )


def _enter_group(
    repository: Repository,
    snapshot: Snapshot,
    group: GroupRecord,
    chunks: dict[StoredChunk, str],
    outcome: Verified,
) -> None:
    """Add the chunks of a group, each with a file that has it."""
    place = f"snapshot {snapshot.sequence}, {group.alias}"
    for chunk in stored_chunks(group.packs, group.chunks):
        chunks.setdefault(chunk, f"{place}: its list of files")
    try:
        listed = repository.files(group)
    except (DamagedBackupError, InvalidError) as error:
        outcome.damage(f"{place}: its list of files: {error.message}")
        return
    for record in listed.files:
        outcome.files += 1
        own = stored_chunks(listed.packs, record.chunks)
        if sum(chunk.size for chunk in own) != record.size:
            outcome.damage(f"{place}/{record.path}: another size than its chunks")
        for chunk in own:
            chunks.setdefault(chunk, f"{place}/{record.path}")


def _read_chunks(
    repository: Repository,
    chunks: dict[StoredChunk, str],
    outcome: Verified,
    moved: Callable[[int], object],
) -> None:
    """Read the chunks pack by pack."""
    lost: set[bytes] = set()
    for chunk in sorted(chunks, key=lambda stored: (stored.pack, stored.offset)):
        if chunk.pack in lost:
            outcome.damage(f"{chunks[chunk]}: pack {chunk.pack.hex()[:12]} cannot be read")
            continue
        try:
            repository.reader.read(chunk)
        except DamagedBackupError as error:
            outcome.damage(f"{chunks[chunk]}: {error.message}")
            # A pack that is missing is not asked for again for each of its chunks.
            if not repository.reader.has(chunk.pack):
                lost.add(chunk.pack)
        else:
            outcome.chunks += 1
            outcome.read_bytes += chunk.size
        moved(chunk.size)
