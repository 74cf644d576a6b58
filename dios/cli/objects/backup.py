"""``dios backup``: encrypted copies of groups in another store, and groups restored from them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.failures import Failures, say_first
from dios.cli.common.output import (
    FAILED,
    JsonOption,
    NodeOption,
    counted,
    facts,
    reporting,
    say,
    size_text,
    table,
    time_text,
    transfer,
    waiting,
    write_json,
)
from dios.cli.common.signals import Stopped, stopped_by_signals
from dios.client.keyring import Keyring, check_group_alias
from dios.client.sync.node import connect
from dios.errors import DamagedError, DiosError, InvalidError, UnreachableError
from dios.lib.backup.create import Created, Source, Writer
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
from dios.lib.backup.verify import Verification, Verified
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

TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="A directory, or a URL such as s3://bucket/folder.")
]
KeyOption = Annotated[
    Path | None,
    typer.Option(
        "--key", metavar="FILE", help="The private key; default: this machine's own, if it makes the backup."
    ),
]


class BackupKeyRow(TypedDict):
    """A new key pair: the file of the private key, and the recipient."""

    key: str
    recipient: str


class CreatedBackupRow(TypedDict):
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


class StoredGroupRow(TypedDict):
    """A group of a snapshot: its files and their bytes."""

    alias: str
    files: int
    size: int


class SnapshotRow(TypedDict):
    """A snapshot; ``left_out`` is the number of files and groups that could not be read."""

    snapshot: int
    time_ns: int
    left_out: int
    groups: list[StoredGroupRow]


class SnapshotsRow(TypedDict):
    """The snapshots of a backup, the newest first, and its damages as sentences."""

    target: str
    snapshots: list[SnapshotRow]
    damages: list[str]


class VerifiedRow(TypedDict):
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


class RestoredNamesRow(TypedDict):
    """The number of names that were added to the keyring, and the aliases that it had with other names."""

    snapshot: int
    added: int
    taken: list[str]


class RestoredRow(TypedDict):
    """The groups that were restored from a snapshot; ``failed`` has groups and files that are damaged."""

    snapshot: int
    time_ns: int
    left_out: int
    groups: list[Restored]
    failed: dict[str, str]


class PrunedRow(TypedDict):
    """The numbers of snapshots and packs that were removed, and of those that stay."""

    snapshots: int
    packs: int
    snapshots_left: int
    packs_left: int


@app.command(epilog="\b\nExamples:\n  dios backup keygen ./backup.key")
def keygen(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of the private key, made now.")],
    *,
    as_json: JsonOption = False,
) -> None:
    """Make a key pair: FILE reads backups, and FILE.pub makes them.

    Keep copies of FILE where neither the cluster nor the backups are. Without it nobody can restore anything
    when the machine that makes the backups is lost.
    """
    with reporting("dios backup keygen", as_json=as_json):
        recipient = save_pair(file, generate())
        if as_json:
            row: BackupKeyRow = {"key": str(file), "recipient": str(recipient)}
            write_json(row)
            return
        facts([("private key", str(file)), ("recipient", str(recipient))])
        say(f"copy {file} to a safe place; next: dios backup create TARGET --recipient {recipient}")


@app.command(
    epilog="\b\nExamples:\n  dios backup create /mnt/backups --recipient backup.key.pub\n"
    "  dios backup create s3://bucket/dios --group papers --group results"
)
def create(
    target: TargetArgument,
    *,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", metavar="ALIAS", help="Only this group.")
    ] = None,
    recipient: Annotated[
        Path | None,
        typer.Option("--recipient", metavar="FILE", help="The recipient's file; needed for a new backup."),
    ] = None,
    key: KeyOption = None,
    accept_rollback: Annotated[
        bool, typer.Option("--accept-rollback", help="Continue although the target lost snapshots.")
    ] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Store a snapshot of your groups: their files, journals and promised replicas, and your keyring's names.

    Only what is new since the last snapshots is stored, encrypted. The snapshot becomes visible by its last
    write. Files that cannot be read are left out, listed, and make the exit status 1.
    """
    with reporting("dios backup create", as_json=as_json):
        place = open_target(target)
        reader = None if recipient is None else load_recipient(recipient)
        try:
            with stopped_by_signals(), opened(node, group or ()) as context, StateFile(place.place).locked():
                with waiting("reading the last snapshots"):
                    writer = Writer(
                        place, recipient=reader, key=_private(key), accept_rollback=accept_rollback
                    )
                sources = _sources(context, group)
                entries = [entry for source in sources for entry in _entries(source)]
                total = sum(entry.size for entry in entries)
                with transfer("backup", total, steps=len(entries)) as moved:
                    created = writer.create(
                        sources, context.keyring, promises=_promises(context), moved=moved
                    )
                left = _not_covered(context, sources, group)
                without_room = 0 if group else context.keyring.not_presented
        except Stopped as stopped:
            raise typer.Exit(stopped.exit_status) from None
        _show_created(created, sources, left, as_json=as_json)
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


def _show_created(created: Created, sources: list[Source], notices: list[str], *, as_json: bool) -> None:
    if as_json:
        row: CreatedBackupRow = {
            "sequence": created.sequence,
            "time_ns": created.time_ns,
            "files": created.files,
            "size": created.size,
            "read_bytes": created.read_bytes,
            "stored_bytes": created.stored_bytes,
            "left_out": created.left_out,
            "left_out_count": created.left_out_count,
            "groups": [source.alias for source in sources],
            "notices": notices,
        }
        write_json(row)
        return
    facts(
        [
            ("snapshot", f"{created.sequence}, {time_text(created.time_ns)}"),
            ("groups", ", ".join(source.alias for source in sources) or "none"),
            ("files", f"{created.files} ({size_text(created.size)})"),
            ("read", size_text(created.read_bytes)),
            ("stored", size_text(created.stored_bytes)),
        ]
    )
    for notice in notices:
        say(notice)
    say_first("left out", created.left_out, created.left_out_count)


@app.command("ls", epilog="\b\nExamples:\n  dios backup ls /mnt/backups\n  dios backup ls s3://b/f --json")
def list_snapshots(target: TargetArgument, *, key: KeyOption = None, as_json: JsonOption = False) -> None:
    """List the snapshots of a backup with their groups."""
    with reporting("dios backup ls", as_json=as_json):
        repository = open_repository(open_target(target), _private(key))
        damaged: list[str] = []
        with waiting("reading the snapshots"):
            snapshots = list(repository.readable(damaged))[::-1]
        damaged += _signs(repository, snapshots[-1] if snapshots else None)
        if as_json:
            row: SnapshotsRow = {
                "target": repository.target.place,
                "snapshots": [_described(stored.snapshot) for stored in snapshots],
                "damages": damaged,
            }
            write_json(row)
        else:
            table(
                ("SNAPSHOT", "TIME", "GROUPS", "FILES", "SIZE", "LEFT OUT"),
                [_row(stored.snapshot) for stored in snapshots],
                right=("SNAPSHOT", "FILES", "SIZE", "LEFT OUT"),
            )
            for text in damaged:
                say(text)
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


def _described(snapshot: Snapshot) -> SnapshotRow:
    return {
        "snapshot": snapshot.sequence,
        "time_ns": snapshot.time_ns,
        "left_out": snapshot.left_out,
        "groups": [
            {"alias": group.alias, "files": group.files, "size": group.size} for group in snapshot.groups
        ],
    }


def _row(snapshot: Snapshot) -> tuple[str, ...]:
    return (
        str(snapshot.sequence),
        time_text(snapshot.time_ns),
        ", ".join(group.alias for group in snapshot.groups[:_SHOWN_MAX]),
        str(sum(group.files for group in snapshot.groups)),
        size_text(sum(group.size for group in snapshot.groups)),
        str(snapshot.left_out),
    )


def _verified(target: str, verified: Verified) -> VerifiedRow:
    return {
        "target": target,
        "snapshots": verified.snapshots,
        "files": verified.files,
        "chunks": verified.chunks,
        "read_bytes": verified.read_bytes,
        "unused_packs": verified.unused_packs,
        "newest": verified.newest,
        "newest_ns": verified.newest_ns,
        "damages": verified.damages,
        "damage_count": verified.damage_count,
    }


SnapshotOption = Annotated[
    int | None, typer.Option("--snapshot", metavar="N", min=1, help="A snapshot; default: the newest.")
]


@app.command(epilog="\b\nExamples:\n  dios backup verify /mnt/backups\n  dios backup verify s3://b/f --key k")
def verify(
    target: TargetArgument,
    *,
    key: KeyOption = None,
    snapshot: Annotated[
        int | None, typer.Option("--snapshot", metavar="N", min=1, help="Only this snapshot; default: all.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read everything that a backup has, and compare all digests. The exit status 1 means damage."""
    with reporting("dios backup verify", as_json=as_json):
        repository = open_repository(open_target(target), _private(key))
        with waiting("reading the lists of files"):
            verification = Verification(repository, only=snapshot)
        with transfer("verify", verification.total, steps=verification.chunks) as moved:
            verified = verification.read(moved)
        if as_json:
            write_json(_verified(repository.target.place, verified))
        else:
            newest = f"{verified.newest}, {time_text(verified.newest_ns)}" if verified.newest else "none"
            facts(
                [
                    ("snapshots", str(verified.snapshots)),
                    ("newest", newest),
                    ("files", str(verified.files)),
                    ("read", f"{counted(verified.chunks, 'chunk')} ({size_text(verified.read_bytes)})"),
                    ("unused", f"{counted(verified.unused_packs, 'pack')}, of runs that broke off"),
                    ("damages", str(verified.damage_count)),
                ]
            )
            say_first("damaged", verified.damages, verified.damage_count)
        if verified.damage_count:
            raise typer.Exit(FAILED)


@app.command(
    epilog="\b\nExamples:\n  dios backup restore /mnt/backups --key backup.key\n"
    "  dios backup restore /mnt/backups --key backup.key --group papers --as papers-monday --snapshot 3\n"
    "  dios backup restore /mnt/backups --key backup.key --names     (only the keyring was lost)"
)
def restore(
    target: TargetArgument,
    *,
    key: KeyOption = None,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", metavar="ALIAS", help="Only this group.")
    ] = None,
    new_alias: Annotated[
        str, typer.Option("--as", metavar="ALIAS", help="Restore a single group under this alias.")
    ] = "",
    snapshot: SnapshotOption = None,
    names: Annotated[
        bool, typer.Option("--names", help="Restore no bytes, only the names in your keyring.")
    ] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Restore groups of a snapshot as new groups with the same files, and add them to your keyring.

    Objects and groups get new names, because nobody may choose a name. A group is visible when it is
    complete; an alias that your keyring has is refused before anything is stored. --names is for a keyring
    that was lost while its cluster lives: it adds the old names, and finds what is there.

    Files and groups that are damaged in the backup are left out and listed, and make the exit status 1.
    """
    with reporting("dios backup restore", as_json=as_json):
        if new_alias and (names or group is None or len(group) != 1):
            raise InvalidError("--as is for a single group; name it with --group")
        repository = open_repository(open_target(target), _private(key))
        with waiting("reading the snapshot"):
            chosen = _chosen(repository, snapshot)
        for sign in [] if snapshot else _signs(repository, chosen):
            say(sign)
        if names:
            _restore_names(chosen.snapshot, as_json=as_json)
            return
        records = _records(chosen.snapshot, group)
        if new_alias:
            check_group_alias(new_alias)
        wanted = [(record, new_alias or record.alias) for record in records]
        try:
            with stopped_by_signals():
                failures = Failures("not restored")
                done = _restore_all(repository, wanted, node, failures)
        except Stopped as stopped:
            raise typer.Exit(stopped.exit_status) from None
        _show_restored(chosen.snapshot, done, failures, as_json=as_json)
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


def _restore_names(snapshot: Snapshot, *, as_json: bool) -> None:
    added, taken = restore_names(snapshot, Keyring.load())
    if as_json:
        row: RestoredNamesRow = {"snapshot": snapshot.sequence, "added": added, "taken": taken}
        write_json(row)
    else:
        say(f"{added} names were added to your keyring; next: dios group ls")
        for alias in taken[:_SHOWN_MAX]:
            say(f"{alias} was left alone: your keyring has another name under it")
    if taken:
        raise typer.Exit(FAILED)


def _show_restored(snapshot: Snapshot, done: list[Restored], failures: Failures, *, as_json: bool) -> None:
    if as_json:
        row: RestoredRow = {
            "snapshot": snapshot.sequence,
            "time_ns": snapshot.time_ns,
            "left_out": snapshot.left_out,
            "groups": done,
            "failed": dict(failures.reasons),
        }
        write_json(row)
        return
    say(f"snapshot {snapshot.sequence} of {time_text(snapshot.time_ns)}")
    table(
        ("GROUP", "FILES", "SIZE"),
        [(restored.alias, str(restored.files), size_text(restored.size)) for restored in done],
        right=("FILES", "SIZE"),
    )
    for notice in (notice for restored in done for notice in restored.notices):
        say(notice)
    if snapshot.left_out:
        say(
            f"the snapshot lacks {counted(snapshot.left_out, 'file')} that could not be read when it was made"
        )


@app.command(epilog="\b\nExamples:\n  dios backup prune /mnt/backups --keep 30")
def prune(
    target: TargetArgument,
    *,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=1, help="The newest snapshots that stay.")],
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove all but the newest N snapshots, and the packs that none of these needs.

    Run it on the machine that makes the backup: a snapshot that another machine makes at the same time could
    lose its packs.
    """
    with reporting("dios backup prune", as_json=as_json):
        place = open_target(target)
        with StateFile(place.place).locked(), waiting("reading the snapshots"):
            done = prune_repository(open_repository(place, _private(key)), keep)
        if as_json:
            row: PrunedRow = {
                "snapshots": done.snapshots,
                "packs": done.packs,
                "snapshots_left": done.snapshots_left,
                "packs_left": done.packs_left,
            }
            write_json(row)
        else:
            say(
                f"removed {counted(done.snapshots, 'snapshot')} and {counted(done.packs, 'pack')}; kept "
                f"{counted(done.snapshots_left, 'snapshot')} and {counted(done.packs_left, 'pack')}"
            )
