"""A store that changes, swaps, cuts, removes or brings back what it has: each of that is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from dios.errors import Busy, DiosError, InvalidError
from dios.lib.backup import records
from dios.lib.backup.prune import prune
from dios.lib.backup.records import FileList, FileRecord, GroupRecord, RecordKind, Snapshot
from dios.lib.backup.repository import Repository, create_repository, open_repository, rollback_sign
from dios.lib.backup.verify import Verification
from dios.lib.packs import compression
from dios.lib.packs.chunks import (
    PACK_BYTES_MAX,
    PACK_MAGIC,
    PackNumbers,
    PackWriter,
    StoredChunk,
    pack_path,
    stored_chunks,
)
from dios.lib.packs.configuration import CONFIG_PATH
from dios.lib.packs.failures import DamagedBackupError
from dios.lib.packs.keys import Recipient, generate
from dios.lib.packs.sealing import DataKey
from dios.lib.packs.writer_state import StateFile, WriterState
from tests.support.backups import MemoryTarget

PAIR: Final = generate()
TEXTS: Final = (b"one" * 100, b"two" * 100)


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def add_snapshot(repository: Repository, sequence: int, text: bytes, previous: bytes = b"") -> bytes:
    """Store a snapshot of one group with one file, in a pack of its own; return its digest."""
    writer = PackWriter(repository.target, repository.key, {}, compress=repository.compress)
    numbers, own = PackNumbers(), PackNumbers()
    places = numbers.places(writer.add_all(text))
    record = FileRecord(RecordKind.FILE, "a", bytes(32), len(text), 1, 1, 1, places)
    writer.flush()
    listed = records.encode(FileList(1, numbers.packs, (record,)))
    chunks = own.places(writer.add_all(listed))
    writer.flush()
    group = GroupRecord("papers", bytes(32), 1, len(text), 0, False, own.packs, chunks)
    snapshot = Snapshot(1, repository.key.repository, sequence, sequence, previous, 0, (group,), {}, {})
    return repository.write(snapshot)


def backup() -> MemoryTarget:
    """A target with two snapshots: two packs for each, one of them with the list of files."""
    target = MemoryTarget()
    repository = create_repository(target, PAIR.recipient(), DataKey(bytes(range(32)), bytes(range(16))))
    digest = add_snapshot(repository, 1, TEXTS[0])
    add_snapshot(repository, 2, TEXTS[1], digest)
    return target


def findings(target: MemoryTarget) -> list[str]:
    """Everything that the owner of the private key finds wrong."""
    try:
        return Verification(open_repository(target, PAIR)).read().damages
    except DiosError as error:
        return [error.message]


def packs(target: MemoryTarget) -> list[str]:
    """The paths of packs, in the order in which they were stored."""
    return [path for path in target.files if path.startswith("packs/")]


def change(target: MemoryTarget, path: str, place: int) -> None:
    """Change one bit of a file."""
    data = bytearray(target.files[path])
    data[place] ^= 1
    target.files[path] = bytes(data)


def swap(target: MemoryTarget, name: str, other: str) -> None:
    """Exchange two files."""
    target.files[name], target.files[other] = target.files[other], target.files[name]


def cut(target: MemoryTarget, path: str, size: int) -> None:
    """Shorten a file."""
    target.files[path] = target.files[path][:size]


def wrap_a_key_of_the_stores_own(target: MemoryTarget) -> None:
    """Put another backup into its place, made by somebody who knows the recipient's public key."""
    target.files.clear()
    forger = Recipient(PAIR.recipient().public, bytes(32))
    repository = create_repository(target, forger, DataKey(bytes(32), bytes(range(16))))
    add_snapshot(repository, 1, b"forged")


def bring_in_a_snapshot_of_another_backup(target: MemoryTarget) -> None:
    """Put the newest snapshot of another backup of the same recipient beside the own ones."""
    other = MemoryTarget()
    repository = create_repository(other, PAIR.recipient(), DataKey(bytes(32), bytes(16)))
    add_snapshot(repository, 3, b"other")
    target.files |= {path: data for path, data in other.files.items() if path != "config"}


def rewrite_the_first_snapshot(target: MemoryTarget) -> None:
    """Put another snapshot of the same backup, as of a machine that was rolled back, into the first place."""
    repository = open_repository(target, PAIR)
    target.remove("snapshots/0000000001")
    add_snapshot(repository, 1, b"another")


ATTACKS: Final[dict[str, tuple[Callable[[MemoryTarget], object], str]]] = {
    "a bit of a chunk": (lambda it: change(it, packs(it)[0], 20), "was changed"),
    "a bit of a list of files": (lambda it: change(it, packs(it)[1], 20), "its list of files"),
    "the last bit of a pack": (lambda it: change(it, packs(it)[2], -1), "was changed"),
    "two packs of equal length": (lambda it: swap(it, packs(it)[0], packs(it)[2]), "was changed"),
    "a copy of one pack for another": (
        lambda it: it.files.update({packs(it)[0]: it.files[packs(it)[2]]}),
        "was changed",
    ),
    "a pack that is cut": (lambda it: cut(it, packs(it)[0], 40), "cut since it was stored"),
    "a pack that is empty": (lambda it: cut(it, packs(it)[0], 0), "was changed"),
    "a pack that is gone": (lambda it: it.remove(packs(it)[0]), "is missing"),
    "a pack without end": (
        lambda it: it.files.update({packs(it)[0]: bytes(PACK_BYTES_MAX + 1)}),
        "was changed",
    ),
    "a bit of a snapshot": (lambda it: change(it, "snapshots/0000000001", 60), "snapshot 1 was changed"),
    "the salt of a snapshot": (lambda it: change(it, "snapshots/0000000001", 10), "snapshot 1 was changed"),
    "the magic number of a snapshot": (
        lambda it: change(it, "snapshots/0000000001", 0),
        "snapshot 1 was changed",
    ),
    "a snapshot that is cut": (lambda it: cut(it, "snapshots/0000000002", 30), "snapshot 2 was changed"),
    "two snapshots": (
        lambda it: swap(it, "snapshots/0000000001", "snapshots/0000000002"),
        "snapshot 1 was changed",
    ),
    "an old snapshot as a new one": (
        lambda it: it.files.update({"snapshots/0000000003": it.files["snapshots/0000000001"]}),
        "snapshot 3 was changed",
    ),
    "a snapshot that is missing in between": (
        lambda it: swap_out(it, "snapshots/0000000002", "snapshots/0000000003"),
        "snapshot 3 was changed",
    ),
    "a snapshot of another backup": (bring_in_a_snapshot_of_another_backup, "snapshot 3 was changed"),
    "another snapshot of the same backup": (rewrite_the_first_snapshot, "made after another snapshot 1"),
    "the wrapped key": (lambda it: change_config(it, "sealed"), "cannot open the backup"),
    "the key that it was wrapped with": (lambda it: change_config(it, "ephemeral"), "cannot open the backup"),
    "the id of the backup": (lambda it: change_config(it, "repository"), "cannot open the backup"),
    "a configuration that is no text": (lambda it: it.files.update(config=b"\xff"), "cannot be read"),
    "no configuration": (lambda it: it.remove("config"), "there is no backup"),
    "a whole backup of the store's own": (wrap_a_key_of_the_stores_own, "cannot open the backup"),
}


def swap_out(target: MemoryTarget, old: str, new: str) -> None:
    """Give a file another path."""
    target.files[new] = target.files.pop(old)


def change_config(target: MemoryTarget, field: str) -> None:
    """Change the first digit of a field of the configuration."""
    before, after = target.files["config"].split(f'"{field}": "'.encode())
    other = b"1" if after[:1] == b"0" else b"0"
    target.files["config"] = before + f'"{field}": "'.encode() + other + after[1:]


def test_an_honest_store_has_no_findings() -> None:
    """Two snapshots with a file each are read as a whole."""
    target = backup()
    verified = Verification(open_repository(target, PAIR)).read()
    assert (verified.snapshots, verified.files, verified.chunks, verified.unused_packs) == (2, 2, 4, 0)
    assert verified.damages == []


@pytest.mark.parametrize("attack", ATTACKS)
def test_each_change_of_the_store_is_noticed(attack: str) -> None:
    """The finding says what was changed."""
    target = backup()
    act, told = ATTACKS[attack]
    act(target)
    damages = findings(target)
    assert [text for text in damages if told in text], damages


def test_no_changed_byte_is_ever_given_out() -> None:
    """Whichever byte of a pack is changed, its reader gets an error."""
    target = backup()
    pack = packs(target)[0]
    for place in range(len(target.files[pack])):
        change(target, pack, place)
        repository = open_repository(target, PAIR)
        listed = repository.files(repository.read(1).snapshot.groups[0])
        with pytest.raises(DamagedBackupError):
            repository.reader.read_all(stored_chunks(listed.packs, listed.files[0].chunks))
        change(target, pack, place)


def test_a_snapshot_that_is_missing_between_others_is_noticed() -> None:
    """Only the oldest snapshots are ever removed."""
    target = backup()
    add_snapshot(open_repository(target, PAIR), 3, b"three")
    target.remove("snapshots/0000000002")
    assert "snapshot 2 is missing, although an older one is there" in findings(target)


def test_a_target_that_was_rolled_back_is_noticed_by_its_writer() -> None:
    """A machine that knows a newer snapshot, or another one of that number, says so."""
    target = backup()
    repository = open_repository(target, PAIR)
    newest = repository.read(2)
    state = WriterState(repository.key.repository, repository.key.key, 2, 2, newest.digest)
    StateFile(target.place).save(state)
    assert rollback_sign(repository, newest) == ""
    assert "knows snapshot 2 in it" in rollback_sign(repository, repository.read(1))
    target.remove("snapshots/0000000002")
    assert [text for text in findings(target) if "rolled back" in text]
    add_snapshot(repository, 2, b"another")
    assert "is another one" in rollback_sign(repository, repository.read(2))
    target.remove("config")
    with pytest.raises(DamagedBackupError, match="made snapshot 2 there"):
        open_repository(target, None)


def test_the_state_of_a_machine_opens_its_own_backup_only() -> None:
    """Without the private key a machine opens what it made, and no other backup in its place."""
    target = backup()
    with pytest.raises(InvalidError, match="--key FILE"):
        open_repository(target, None)
    StateFile(target.place).save(WriterState(bytes(16), bytes(32)))
    with pytest.raises(DamagedBackupError, match="another backup"):
        open_repository(target, None)
    StateFile(target.place).save(WriterState(bytes(range(16)), bytes(range(32))))
    assert open_repository(target, None).read(2).snapshot.sequence == 2


def test_one_command_at_a_time_changes_a_target() -> None:
    """A second command of the user is refused while the first one runs."""
    file = StateFile("place")
    with file.locked(), pytest.raises(Busy), StateFile("place").locked():
        raise AssertionError
    with file.locked():
        assert file.load() is None


def test_the_list_of_packs_of_a_run_ignores_a_line_that_was_not_ended() -> None:
    """A machine that stopped while it wrote the list loses that line alone."""
    file = StateFile("place")
    chunk = StoredChunk(bytes([1]) * 32, bytes([2]) * 32, 8, 3)
    with file.locked():
        file.add_pack([chunk])
        with file.path.with_suffix(".packs").open("ab") as written:
            written.write(b'["0102",[["03')
        assert file.stored_packs() == [chunk]
        file.remove_packs()
        assert file.stored_packs() == []


def test_pruning_removes_nothing_that_a_snapshot_needs() -> None:
    """Packs of removed snapshots and of broken runs go; with a damaged snapshot nothing does."""
    target = backup()
    target.write(pack_path(bytes(32)), b"of a run that broke off")
    repository = open_repository(target, PAIR)
    assert prune(repository, 1) == (1, 3, 1, 2)
    assert findings(target) == []
    target = backup()
    before = dict(target.files)
    change(target, "snapshots/0000000002", 60)
    with pytest.raises(DamagedBackupError):
        prune(open_repository(target, PAIR), 1)
    assert target.files.keys() == before.keys()


def test_pruning_keeps_old_snapshots_while_the_newest_lacks_a_pack() -> None:
    """The files of the newest snapshot cannot all be restored then, and those of an older one can."""
    target = backup()
    repository = open_repository(target, PAIR)
    (group,) = repository.read(repository.sequences()[-1]).snapshot.groups
    (lost, *_) = set(repository.files(group).packs) - set(group.packs)
    target.remove(pack_path(lost))
    before = dict(target.files)
    with pytest.raises(DamagedBackupError, match="1 packs of the snapshots that stay are missing"):
        prune(open_repository(target, PAIR), 1)
    assert target.files.keys() == before.keys()


def test_a_backup_without_compression_stays_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its other readers may be older: a machine that has zstd continues it as it is."""
    with monkeypatch.context() as patch:
        patch.setattr(compression, "is_installed", lambda: False)
        target = backup()
    assert b'"version": 1' in target.files[CONFIG_PATH]
    repository = open_repository(target, PAIR)
    digest = repository.read(2).digest
    add_snapshot(repository, 3, b"three" * 100, digest)
    assert all(target.files[path].startswith(PACK_MAGIC) for path in packs(target))
    assert not findings(target)
