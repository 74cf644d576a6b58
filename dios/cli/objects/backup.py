"""``dios backup``: encrypted copies of groups in another store, and groups restored from them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.failures import Failures, say_first
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    FAILED,
    Cells,
    counted,
    say,
    size_text,
    table_of,
    time_text,
    transfer,
    waiting,
    write_json,
)
from dios.cli.common.results import CommonOptions, OutputOptions
from dios.cli.common.rows import Row
from dios.client.keyring import Keyring, check_group_alias
from dios.client.sync.node import connect
from dios.errors import DamagedError, DiosError, InvalidError, UnreachableError
from dios.lib.backup.create import Source, Writer
from dios.lib.backup.prune import prune as prune_repository
from dios.lib.backup.records import GroupRecord, Snapshot
from dios.lib.backup.repository import (
    ReadSnapshot,
    Repository,
    missing_sequences,
    open_repository,
    rollback_sign,
)
from dios.lib.backup.restore import Restored, require_free, restore_group, restore_names
from dios.lib.backup.verify import Verification
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.catalogue_places import CATALOGUE_ALIAS
from dios.lib.kept.promises import KeptStatus, Promises
from dios.lib.packs.failures import DamagedBackupError
from dios.lib.packs.keys import PrivateKey, generate, load_private, load_recipient, save_pair
from dios.lib.packs.targets import open_target
from dios.lib.packs.writer_state import StateFile

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Backups: encrypted copies of your groups elsewhere, and groups restored from them.",
)

_SHOWN_MAX: Final = 20
_GROUPS_PER_SESSION: Final = 64
"""The number of groups that a session restores: it is a member of each, and memberships are bounded."""

TARGET_ARGUMENT: Final[str] = argument("TARGET", "A directory, or a URL such as s3://bucket/folder.")
KEY_OPTION: Final[Path | None] = option(
    "--key FILE", "The private key; default: this machine's own, if it makes the backup."
)


class BackupKeyRow(Row):
    """A new key pair: the file of the private key, and the recipient."""

    key: str
    recipient: str


class CreatedBackupRow(Row):
    """A new snapshot; ``left_out`` has at most 1,000 files and groups that could not be read, and why."""

    sequence: int
    time_ns: int
    files: int
    size: int
    read_bytes: int
    stored_bytes: int
    left_out: list[str]
    left_out_count: int
    groups: list[str]
    notices: list[str]


class StoredGroupRow(Row):
    """A group of a snapshot: its files and their bytes."""

    alias: str
    files: int
    size: int


class SnapshotRow(Row):
    """A snapshot; ``left_out`` is the number of files and groups that could not be read."""

    snapshot: int
    time_ns: int
    left_out: int
    groups: list[StoredGroupRow]


class SnapshotsRow(Row):
    """The snapshots of a backup, the newest first, and its damages as sentences."""

    target: str
    snapshots: list[SnapshotRow]
    damages: list[str]


class VerifiedRow(Row):
    """The data of a backup that was read, and at most 1,000 of its damages as sentences."""

    target: str
    snapshots: int
    files: int
    chunks: int
    read_bytes: int
    unused_packs: int
    newest: int
    newest_ns: int
    damages: list[str]
    damage_count: int


class RestoredNamesRow(Row):
    """The number of names that were added to the keyring, and the aliases that it had with other names."""

    snapshot: int
    added: int
    taken: list[str]


class RestoredRow(Row):
    """The groups that were restored from a snapshot; ``failed`` has groups and files that are damaged."""

    snapshot: int
    time_ns: int
    left_out: int
    groups: list[Restored]
    failed: dict[str, str]


class PrunedRow(Row):
    """The numbers of snapshots and packs that were removed, and of those that stay."""

    snapshots: int
    packs: int
    snapshots_left: int
    packs_left: int


@app.command(examples="dios backup keygen ./backup.key", json=BackupKeyRow)
def keygen(
    file: Path = argument("FILE", "The file of the private key, made now."), *, output: OutputOptions
) -> None:
    """Make a key pair: FILE reads backups, and FILE.pub makes them.

    Keep copies of FILE where neither the cluster nor the backups are. Without it nobody can restore anything
    when the machine that makes the backups is lost.
    """
    recipient = save_pair(file, generate())
    output.print_row(
        BackupKeyRow(str(file), str(recipient)),
        f"copy {file} to a safe place; next: dios backup create TARGET --recipient {recipient}",
        facts={"private key": str(file), "recipient": str(recipient)},
    )


@app.command(
    examples="dios backup create /mnt/backups --recipient backup.key.pub\n"
    "dios backup create s3://bucket/dios --group papers --group results",
    json=CreatedBackupRow,
)
def create(
    target: str = TARGET_ARGUMENT,
    *,
    group: list[str] | None = option("-g --group ALIAS", "Only this group."),
    recipient: Path | None = option("--recipient FILE", "The recipient's file; needed for a new backup."),
    key: Path | None = KEY_OPTION,
    accept_rollback: bool = option("--accept-rollback", "Continue although the target lost snapshots."),
    common: CommonOptions,
) -> None:
    """Store a snapshot of your groups: their files, journals and promised replicas, and your keyring's names.

    Only what is new since the last snapshots is stored, encrypted. The snapshot becomes visible by its last
    write. Files that cannot be read are left out, listed, and make the exit status 1.
    """
    place = open_target(target)
    reader = None if recipient is None else load_recipient(recipient)
    with opened(common.node, group or ()) as context, StateFile(place.place).locked():
        with waiting("reading the last snapshots"):
            writer = Writer(place, recipient=reader, key=_private(key), accept_rollback=accept_rollback)
        sources = _sources(context, group)
        entries = [entry for source in sources for entry in _entries(source)]
        total = sum(entry.size for entry in entries)
        with transfer("backup", total, steps=len(entries)) as moved:
            created = writer.create(sources, context.keyring, promises=_promises(context), moved=moved)
        notices = _not_covered(context, sources, group)
        without_room = 0 if group else context.keyring.not_presented
    groups = [source.alias for source in sources]
    common.print_row(
        CreatedBackupRow.of(created, groups=groups, notices=notices),
        *notices,
        facts={
            "snapshot": f"{created.sequence}, {time_text(created.time_ns)}",
            "groups": ", ".join(groups) or "none",
            "files": f"{created.files} ({size_text(created.size)})",
            "read": size_text(created.read_bytes),
            "stored": size_text(created.stored_bytes),
        },
    )
    if not common.as_json:
        say_first("left out", created.left_out, created.left_out_count)
    if created.left_out_count or without_room:
        raise typer.Exit(FAILED)


def _entries(source: Source) -> tuple[CatalogueEntry, ...]:
    """Return the entries of a group; none if they cannot be read, which leaves the group out later."""
    try:
        return source.files.entries()
    except (DamagedError, UnreachableError):
        return ()


def _private(key: Path | None) -> PrivateKey | None:
    return None if key is None else load_private(key)


def _sources(context: CommandContext, aliases: list[str] | None) -> list[Source]:
    """Return the chosen groups, or all that the node knows."""
    chosen = list(dict.fromkeys(context.reachable_groups() if aliases is None else aliases))
    keyring = context.keyring
    return [
        Source(alias, bytes(keyring.groups[_known(keyring, alias)]), context.files(alias)) for alias in chosen
    ]


def _known(keyring: Keyring, alias: str) -> str:
    if alias not in keyring.groups:
        raise InvalidError(f"your keyring has no group {alias!r}. `dios group ls` lists your groups.")
    return alias


def _promises(context: CommandContext) -> list[KeptStatus]:
    """Return the promises of replicas; none on a node that is in no cluster, or does not say."""
    if context.here() is None:
        return []
    try:
        return Promises(context.node).statuses()
    except DiosError as error:
        say(f"the promises of replicas are not stored: {error.message}")
        return []


def _not_covered(context: CommandContext, sources: list[Source], aliases: list[str] | None) -> list[str]:
    """Return sentences about what the snapshot does not have by its nature."""
    notices = []
    stored = {source.alias for source in sources}
    unknown = [alias for alias in context.keyring.groups if alias not in stored] if aliases is None else []
    if unknown:
        shown = ", ".join(unknown[:_SHOWN_MAX])
        notices.append(
            f"of {counted(len(unknown), 'group')} that this node does not know only the names are stored: "
            f"{shown}"
        )
    if aliases is None and context.keyring.not_presented:
        notices.append(
            f"a session has no room for {context.keyring.not_presented} older groups of your keyring; store "
            "them with --group, in another target"
        )
    others = [alias for alias in context.keyring.objects if not alias.startswith(CATALOGUE_ALIAS)]
    if others:
        notices.append(
            f"of {counted(len(others), 'other object')} in your keyring only the names are stored, not the "
            "bytes"
        )
    return notices


@app.command("ls", examples="dios backup ls /mnt/backups\ndios backup ls s3://b/f --json", json=SnapshotsRow)
def list_snapshots(
    target: str = TARGET_ARGUMENT, *, key: Path | None = KEY_OPTION, output: OutputOptions
) -> None:
    """List the snapshots of a backup with their groups."""
    repository = open_repository(open_target(target), _private(key))
    damaged: list[str] = []
    with waiting("reading the snapshots"):
        snapshots = list(repository.readable(damaged))[::-1]
    damaged += _signs(repository, snapshots[-1] if snapshots else None)
    rows = [
        SnapshotRow.of(
            stored.snapshot,
            snapshot=stored.snapshot.sequence,
            groups=[StoredGroupRow.of(group) for group in stored.snapshot.groups],
        )
        for stored in snapshots
    ]
    output.print_row(SnapshotsRow(repository.target.place, rows, damaged), *damaged, table=map(_cells, rows))
    if damaged:
        raise typer.Exit(FAILED)


def _signs(repository: Repository, newest: ReadSnapshot | None) -> list[str]:
    """Return sentences about snapshots that are missing."""
    signs = [
        f"snapshot {sequence} is missing, although an older one is there"
        for sequence in missing_sequences(repository.sequences())
    ]
    sign = rollback_sign(repository, newest)
    return [*signs, f"the backup was rolled back: {sign}"] if sign else signs


def _cells(row: SnapshotRow) -> Cells:
    return {
        "SNAPSHOT": row.snapshot,
        "TIME": time_text(row.time_ns),
        "GROUPS": ", ".join(group.alias for group in row.groups[:_SHOWN_MAX]),
        "FILES": sum(group.files for group in row.groups),
        "SIZE": size_text(sum(group.size for group in row.groups)),
        "LEFT OUT": row.left_out,
    }


@app.command(
    examples="dios backup verify /mnt/backups\ndios backup verify s3://b/f --key k", json=VerifiedRow
)
def verify(
    target: str = TARGET_ARGUMENT,
    *,
    key: Path | None = KEY_OPTION,
    snapshot: int | None = option("--snapshot N", "Only this snapshot; default: all.", min=1),
    output: OutputOptions,
) -> None:
    """Read everything that a backup has, and compare all digests. The exit status 1 means damage."""
    repository = open_repository(open_target(target), _private(key))
    with waiting("reading the lists of files"):
        verification = Verification(repository, only=snapshot)
    with transfer("verify", verification.total, steps=verification.chunks) as moved:
        verified = verification.read(moved)
    newest = f"{verified.newest}, {time_text(verified.newest_ns)}" if verified.newest else "none"
    output.print_row(
        VerifiedRow.of(verified, target=repository.target.place),
        facts={
            "snapshots": verified.snapshots,
            "newest": newest,
            "files": verified.files,
            "read": f"{counted(verified.chunks, 'chunk')} ({size_text(verified.read_bytes)})",
            "unused": f"{counted(verified.unused_packs, 'pack')}, of runs that broke off",
            "damages": verified.damage_count,
        },
    )
    if not output.as_json:
        say_first("damaged", verified.damages, verified.damage_count)
    if verified.damage_count:
        raise typer.Exit(FAILED)


@app.command(
    examples="dios backup restore /mnt/backups --key backup.key\n"
    "dios backup restore /mnt/backups --key backup.key --group papers --as papers-monday --snapshot 3\n"
    "dios backup restore /mnt/backups --key backup.key --names     (only the keyring was lost)",
    json=(RestoredRow, RestoredNamesRow),
)
def restore(
    target: str = TARGET_ARGUMENT,
    *,
    key: Path | None = KEY_OPTION,
    group: list[str] | None = option("-g --group ALIAS", "Only this group."),
    new_alias: str = option("--as ALIAS", "Restore a single group under this alias."),
    snapshot: int | None = option("--snapshot N", "A snapshot; default: the newest.", min=1),
    names: bool = option("--names", "Restore no bytes, only the names in your keyring."),
    common: CommonOptions,
) -> None:
    """Restore groups of a snapshot as new groups with the same files, and add them to your keyring.

    Objects and groups get new names, because nobody may choose a name. A group is visible when it is
    complete; an alias that your keyring has is refused before anything is stored. --names is for a keyring
    that was lost while its cluster lives: it adds the old names, and finds what is there.

    Files and groups that are damaged in the backup are left out and listed, and make the exit status 1.
    """
    if new_alias and (names or group is None or len(group) != 1):
        raise InvalidError("--as is for a single group; name it with --group")
    repository = open_repository(open_target(target), _private(key))
    with waiting("reading the snapshot"):
        chosen = _chosen(repository, snapshot)
    for sign in [] if snapshot else _signs(repository, chosen):
        say(sign)
    if names:
        _restore_names(chosen.snapshot, common)
        return
    records = _records(chosen.snapshot, group)
    if new_alias:
        check_group_alias(new_alias)
    wanted = [(record, new_alias or record.alias) for record in records]
    failures = Failures("not restored")
    done = _restore_all(repository, wanted, common.node, failures)
    _show_restored(chosen.snapshot, done, failures, common)
    failures.end()


def _restore_all(
    repository: Repository, wanted: list[tuple[GroupRecord, str]], node: str | None, failures: Failures
) -> list[Restored]:
    """Restore groups under aliases, after a check that all aliases are free; note what is damaged."""
    keyring = Keyring.load()
    with connect(node, groups=(), start=False) as connected:
        in_cluster = CommandContext(connected, keyring).here() is not None
        for _, alias in wanted:
            require_free(keyring, connected, alias)
    done: list[Restored] = []
    files, size = sum(record.files for record, _ in wanted), sum(record.size for record, _ in wanted)
    with transfer("restore", size, steps=files) as moved:
        for start in range(0, len(wanted), _GROUPS_PER_SESSION):
            with connect(node, groups=(), start=False) as connected:
                for record, alias in wanted[start : start + _GROUPS_PER_SESSION]:
                    with failures.going_on(alias):
                        restored = restore_group(
                            repository,
                            record,
                            connected,
                            keyring,
                            alias=alias,
                            in_cluster=in_cluster,
                            moved=moved,
                        )
                        done.append(restored)
                        for path, why in restored.damaged.items():
                            failures.note(f"{alias}/{path}", why)
    return done


def _chosen(repository: Repository, sequence: int | None) -> ReadSnapshot:
    """Return a snapshot, by default the newest."""
    sequences = repository.sequences()
    if sequence is None and not sequences:
        raise InvalidError(f"{repository.target.place} has no snapshot yet, or all were removed")
    try:
        return repository.read(sequences[-1] if sequence is None else sequence)
    except DamagedBackupError as error:
        raise DamagedBackupError(
            f"{error.message}. `dios backup ls` lists the others; choose one with --snapshot."
        ) from None


def _records(snapshot: Snapshot, aliases: list[str] | None) -> list[GroupRecord]:
    known = {record.alias: record for record in snapshot.groups}
    missing = [alias for alias in aliases or () if alias not in known]
    if missing:
        raise InvalidError(
            f"snapshot {snapshot.sequence} has no group {missing[0]!r}. `dios backup ls` lists the groups."
        )
    return [known[alias] for alias in dict.fromkeys(known if aliases is None else aliases)]


def _restore_names(snapshot: Snapshot, common: CommonOptions) -> None:
    added, taken = restore_names(snapshot, Keyring.load())
    common.print_row(
        RestoredNamesRow(snapshot.sequence, added, taken),
        f"{added} names were added to your keyring; next: dios group ls",
        *(f"{alias} was left alone: your keyring has another name under it" for alias in taken[:_SHOWN_MAX]),
    )
    if taken:
        raise typer.Exit(FAILED)


def _show_restored(
    snapshot: Snapshot, done: list[Restored], failures: Failures, common: CommonOptions
) -> None:
    if common.as_json:
        write_json(RestoredRow.of(snapshot, snapshot=snapshot.sequence, groups=done, failed=failures.reasons))
        return
    say(f"snapshot {snapshot.sequence} of {time_text(snapshot.time_ns)}")
    table_of(
        {"GROUP": restored.alias, "FILES": restored.files, "SIZE": size_text(restored.size)}
        for restored in done
    )
    for notice in (notice for restored in done for notice in restored.notices):
        say(notice)
    if snapshot.left_out:
        say(
            f"the snapshot lacks {counted(snapshot.left_out, 'file')} that could not be read when it was made"
        )


@app.command(examples="dios backup prune /mnt/backups --keep 30", json=PrunedRow)
def prune(
    target: str = TARGET_ARGUMENT,
    *,
    keep: int = option("--keep N", "The newest snapshots that stay.", min=1),
    key: Path | None = KEY_OPTION,
    output: OutputOptions,
) -> None:
    """Remove all but the newest N snapshots, and the packs that none of these needs.

    Run it on the machine that makes the backup: a snapshot that another machine makes at the same time could
    lose its packs.
    """
    place = open_target(target)
    with StateFile(place.place).locked(), waiting("reading the snapshots"):
        done = prune_repository(open_repository(place, _private(key)), keep)
    output.print_row(
        PrunedRow.of(done),
        f"removed {counted(done.snapshots, 'snapshot')} and {counted(done.packs, 'pack')}; kept "
        f"{counted(done.snapshots_left, 'snapshot')} and {counted(done.packs_left, 'pack')}",
    )
