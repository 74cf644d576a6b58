"""``dios put``, ``ls``, ``du``, ``get``, ``sync`` and ``rm``: files as durable objects of groups."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import groupby, islice
from pathlib import Path
from typing import Final

from msgspec import UNSET, UnsetType

from dios.cli.common.application import CommandApplication, Output
from dios.cli.common.context import CataloguedFile, CommandContext, opened
from dios.cli.common.failures import FailedRow, Failures
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    BytesOutput,
    Cells,
    Number,
    bytes_output,
    confirm,
    counted,
    progress,
    say,
    size_text,
    time_text,
    transfer,
    waiting,
    write_json,
    write_line,
)
from dios.cli.common.results import IN_GROUP_OPTION, YES_OPTION, CommonOptions
from dios.cli.common.rows import Row
from dios.cli.objects.removal import (
    Target,
    all_targets,
    destroy_targets,
    file_target,
    show_later,
    unfinished_target,
)
from dios.client.written_files import naming
from dios.core.model.names import KEPT, SERVICES, special_name
from dios.errors import DamagedError, DiosError, ExistsError, InvalidError, UnreachableError
from dios.lib.catalogue import CatalogueEntry, shown_path
from dios.lib.files import downloads, synchronize
from dios.lib.files.disks import FileDisks, file_disks
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.paths import checked_path, path_of_local, stored_path
from dios.lib.files.sources import Moved
from dios.lib.files.staging import StagedFiles
from dios.lib.files.synchronize import LocalFile
from dios.lib.files.tree import is_directory
from dios.lib.kept.promises import Promises
from dios.wire.nametext import fingerprint, format_name
from dios.wire.types import ObjectType, Semantics

_STANDARD_INPUT: Final = Path("-")
_LABEL_CHARACTERS: Final = 100
_FILES_AT_ONCE: Final = 1_024

app: Final = CommandApplication()

NAMES_OPTION: Final[bool] = option("--names", "Also show the names, which are secret.")
SECRECY_OPTION: Final[list[str] | None] = option(
    "--secrecy TAG", "Label the objects: tasks that read them write only where the tag may go."
)


class FileRow(Row, kw_only=True):
    """A file of a group. ``put`` is the time of its storage in nanoseconds; ``name`` comes with --names.

    ``ls`` adds ``group_secrecy``, the tags of the group's label, if the group has one.
    A tiered file has the ``store`` where its bytes are. With --long it adds the number of ``disks`` that have
    each object of the file, and the number that is ``promised``, null without a promise.
    """

    group: str
    file: str
    path: str
    fingerprint: str
    size: int
    put: int
    name: str | UnsetType = UNSET
    group_secrecy: list[str] | UnsetType = UNSET
    store: str | UnsetType = UNSET
    disks: int | UnsetType = UNSET
    promised: int | UnsetType | None = UNSET

    def cells(self) -> Cells:
        """Return the line of the table; DISKS and NAME are columns if they are known."""
        size = size_text(self.size)
        return {
            "FILE": self.file,
            "SIZE": size if self.store is UNSET else Number(f"{size} (tiered)"),
            "PUT": time_text(self.put),
            **({} if self.disks is UNSET else {"DISKS": self._disks_text()}),
            "GROUP": self.group,
            "FINGERPRINT": self.fingerprint,
            **({} if self.name is UNSET else {"NAME": self.name}),
        }

    def _disks_text(self) -> str:
        if self.store is not UNSET:
            return self.store
        return str(self.disks) if self.promised is None else f"{self.disks} of {self.promised}"


class DirectoryRow(Row):
    """A directory of a group."""

    group: str
    directory: str
    path: str


class OrphanRow(Row):
    """A stored object that no catalogue lists (``ls --orphans``)."""

    fingerprint: str
    size: int


class UseRow(Row):
    """The number of files at or below a path, and of their bytes.

    ``tiered`` is the number of further bytes, which are in stores outside of the cluster, if there are any.
    """

    path: str
    files: int
    size: int
    tiered: int | UnsetType = UNSET


class WrittenRow(Row):
    """A local file that was written, with the fingerprint of its object unless a directory was fetched."""

    file: str
    size: int
    fingerprint: str | UnsetType = UNSET


class RemovedRow(Row):
    """A name to destroy: ``incomplete`` if a node that may have a replica did not answer."""

    argument: str
    destroyed: bool
    replicas: int
    incomplete: bool


class UnfinishedRow(Row):
    """A file of which some bytes are ``stored``; ``size`` is null if it is not known."""

    group: str
    file: str
    path: str
    stored: int
    size: int | None
    begun: int


class SyncRow(Row):
    """The differences that were, or with ``dry_run`` would be, carried over; ``failed`` has the reasons."""

    copied: list[str]
    size: int
    directories: list[str]
    deleted: list[str]
    unchanged: int
    dry_run: bool
    failed: dict[str, str]


@app.command(
    examples="dios put data/*.txt --group analytics\n"
    "dios put report.pdf --group analytics --as july/report.pdf\n"
    "dios put data --recursive --group analytics\ndios put report.pdf --group analytics --replace\n"
    "pg_dump shop | dios put - --group backups --as shop.sql\n"
    "dios put results.csv --group analytics --acknowledge 2\n"
    "dios put pay.csv --group hr --secrecy payroll\n"
    "dios put big.csv --group analytics --json | jq -r .[].fingerprint",
    json=[FileRow, FailedRow],
)
def put(
    files: list[Path] = argument("FILE...", "Files to store; - is standard input."),
    *,
    group: str = option("-g --group ALIAS", "The group of the objects.", required=True),
    label: str = option("--as PATH", "Store a single file or directory under this path."),
    recursive: bool = option("-r --recursive", "Store directories with everything in them."),
    replace: bool = option("--replace", "Replace files that have these paths, when the new ones are kept."),
    acknowledge: int | None = option("--acknowledge N", "End when N nodes have the files.", min=1),
    replicas: int | None = option("--replicas N", "Promise N replicas of each of these files.", min=1),
    secrecy: list[str] | None = SECRECY_OPTION,
    names: bool = NAMES_OPTION,
    common: CommonOptions,
) -> None:
    """Store files as durable objects, and add them to the group's catalogue.

    They become visible together, each under its path as you typed it. If a file has one of these paths,
    nothing is stored, unless --replace is given; `dios sync` stores only what differs.

    After success files and list are on the disks of as many nodes as are promised for the group, or of N.
    With 1 the command is faster, and the replicas follow. If fewer nodes take them, nothing is stored.

    A file of more than 256 MiB is stored in parts. If the command is interrupted, the same command continues
    after the parts that are stored.

    With --recursive, what cannot be stored is left out and named, with exit status 1: names that are no UTF-8
    text, devices, pipes, sockets, links to nothing, and what you may not read.
    """
    if label and len(files) != 1:
        raise InvalidError("--as is for a single file or directory; put the others separately")
    with opened(common.node, [group]) as place:
        left_out = Failures("left out")
        local = [
            local_file
            for path in files
            for local_file in _local_files(path, label, left_out, recursive=recursive)
        ]
        staged = StagedFiles(place.files(group), secrecy=secrecy, disks=acknowledge)
        if not replace:
            _require_new(staged, group, local)
        total = sum(local_file.size or 0 for local_file in local)
        try:
            with transfer("put", total, steps=len(local)) as moved:
                for path, stored, size in local:
                    if size is None:
                        staged.add_directory(stored)
                        continue
                    if path == _STANDARD_INPUT:
                        staged.add_pipe(stored, sys.stdin.buffer, moved)
                        continue
                    with path.open("rb", buffering=0) as file:
                        staged.add_file(stored, file, size, moved)
            if replicas is not None:
                # A promise for objects that are discarded ends with them.
                labels = {
                    name: entry.file[-_LABEL_CHARACTERS:] for entry in staged.stored() for name in entry.names
                }
                Promises(place.node).keep_objects(place.group(group), labels, replicas=replicas)
        except BaseException:
            kept = staged.suspend()
            if kept:
                say(
                    f"{size_text(kept)} of large files stay stored. The same command continues with "
                    "them; `dios ls --unfinished` shows them, and `dios rm` removes them."
                )
            raise
        stored_entries = [entry for entry in staged.publish() if entry.name]
        if common.as_json:
            described = [_file_row(CataloguedFile(group, entry), names=names) for entry in stored_entries]
            write_json([*described, *left_out.rows()])
        else:
            for entry in stored_entries:
                shown = f"  {format_name(entry.name)}" if names else ""
                write_line(f"{fingerprint(entry.name)}{shown}  {group}/{entry.file}")
    left_out.end()


def _require_new(staged: StagedFiles, group: str, local: list[LocalFile]) -> None:
    """Refuse paths that files have, before anything is stored, and again when everything becomes visible."""
    paths = [file.path for file in local if file.size is not None]
    likely = staged.files.likely_tree()
    taken = [path for path in paths if likely.is_file(path)]
    if taken:
        known = staged.files.tree()
        taken = [path for path in taken if known.is_file(path)]
    if taken:
        more = f" and {len(taken) - 1} more" if len(taken) > 1 else ""
        raise ExistsError(
            f"{group}/{taken[0]}{more} exists already, and nothing was stored. Add --replace to replace it, "
            "or choose another path with --as."
        )
    for path in paths:
        staged.require_new(path)


def _note_local(failures: Failures) -> synchronize.LeftOut:
    """Return a function that notes a local file that cannot be stored."""
    return lambda path, why: failures.note(shown_path(str(path)), why)


def _local_files(path: Path, label: str, left_out: Failures, *, recursive: bool) -> Iterator[LocalFile]:
    """Yield a file, or everything in a directory: symbolic links to directories are not followed."""
    if path == _STANDARD_INPUT:
        if not label:
            raise InvalidError("standard input has no path; choose one with --as PATH")
        yield LocalFile(path, checked_path(label), 0)
        return
    stored = checked_path(label) if label else _path_of_local(path)
    if not path.is_dir():
        yield LocalFile(path, stored, synchronize.size_of(path))
        return
    if not recursive:
        raise InvalidError(f"{path} is a directory; add --recursive to put everything in it")
    yield LocalFile(path, stored, None)
    yield from synchronize.local_tree(path, _note_local(left_out), stored)


def _path_of_local(path: Path) -> str:
    try:
        return path_of_local(str(path))
    except InvalidError as error:
        raise InvalidError(f"{error.message}. Put it alone, under another path: --as PATH.") from None


def _file_row(
    file: CataloguedFile, *, names: bool, disks: FileDisks | None = None, secrecy: Sequence[str] = ()
) -> FileRow:
    entry = file.entry
    return FileRow(
        group=file.group,
        file=file.path,
        path=f"{file.group}/{file.path}",
        fingerprint=file.fingerprint,
        size=entry.size,
        put=entry.put_ns,
        name=format_name(entry.name) if names else UNSET,
        group_secrecy=list(secrecy) or UNSET,
        store=entry.tier.place if entry.tier is not None and entry.tiered else UNSET,
        disks=UNSET if disks is None else disks.disks,
        promised=UNSET if disks is None else disks.promised,
    )


@app.command(
    "ls",
    examples="dios ls\ndios ls analytics/data\ndios ls --group analytics --json\ndios ls analytics --long",
    json=[FileRow, DirectoryRow, OrphanRow, UnfinishedRow, FailedRow],
)
def list_objects(
    path: str = argument("[PATH]", "A group, or group/DIRECTORY: list what is in it."),
    *,
    group: list[str] | None = option("-g --group ALIAS", "Only this group."),
    orphans: bool = option("--orphans", "List your stored objects that no catalogue or keyring has."),
    unfinished: bool = option("--unfinished", "List large files whose storing was interrupted, or goes on."),
    long: bool = option("-l --long", "Also show on how many disks each file is, of those promised."),
    names: bool = NAMES_OPTION,
    common: CommonOptions,
) -> None:
    """List the files that were put into your groups, from the groups' catalogues.

    Without PATH it lists all files, and with one the files and directories that are directly there. A node
    itself never lists names, so that only users who know a name can find its object.

    After the table it shows the secrecy labels of the groups that have one; `dios stat` shows that of a file.

    With --long the column DISKS shows the number of nodes that have each object of a file, and the promised
    number: "1 of 2" is a file whose other replica has yet to be made. Of a tiered file it shows the store.

    If the list of a group is in conflict or cannot be read, the others are shown, that one is named with the
    reason, and the exit status is 1.

    --orphans lists objects of the asked node by fingerprint; the node's own user and root may see them.
    Programs may have their names. Objects in use are not listed. Those that an interrupted `dios put` left
    are of no use: `dios-node orphans` removes objects from a stopped node.
    """
    with opened(common.node, group or ()) as place:
        if orphans:
            _list_orphans(place, common)
        elif unfinished:
            _list_unfinished(place, group or ([path] if path else None), common)
        elif path:
            _list_directory(place, path, common, names=names, long=long)
        else:
            for alias in group or ():
                place.group(alias)
            aliases = place.reachable_groups() if group is None else group
            catalogued = place.catalogued(aliases)
            items = _with_disks(place, catalogued) if long else ((item, None) for item in catalogued)
            common.print_rows(
                (_listed(place, item, disks, names=names) for item, disks in items),
                FileRow.cells,
                empty="there are no files yet; next: dios put FILE --group ALIAS",
                failures=place.unlisted,
                remarks=_labels(place, aliases),
                whole=names,
            )


def _with_disks(
    place: CommandContext, items: Iterable[CataloguedFile]
) -> Iterator[tuple[CataloguedFile, FileDisks | None]]:
    """Yield files with the number of disks that have each; many are looked up at a time."""
    try:
        promises = Promises(place.node).known()
    except UnreachableError as error:
        say(f"the promised numbers are not known: {error.message}")
        promises = []
    listed = iter(items)
    count = 0
    while some := list(islice(listed, _FILES_AT_ONCE)):
        with progress("looking replicas up") as show:
            disks: list[FileDisks] = []
            for alias, several in groupby(some, lambda item: item.group):
                show(f"{count + len(disks):,} files")
                entries = [item.entry for item in several]
                disks += file_disks(place.node, place.group(alias), entries, promises)
        yield from zip(some, disks, strict=True)
        count += len(some)


def _listed(place: CommandContext, file: CataloguedFile, disks: FileDisks | None, *, names: bool) -> FileRow:
    return _file_row(file, names=names, disks=disks, secrecy=place.files(file.group).secrecy)


def _labels(place: CommandContext, groups: Iterable[str]) -> Iterator[str]:
    """Yield a line about each group that has a label; its files have these tags, too."""
    for alias in groups:
        with suppress(UnreachableError, DamagedError):  # a notice has said so
            if secrecy := place.files(alias).secrecy:
                yield f"group {alias} is labelled {' '.join(secrecy)}, and so are its files"


def _list_unfinished(place: CommandContext, groups: list[str] | None, common: CommonOptions) -> None:
    """List the large files of groups that are not stored completely, with what is stored of them."""
    rows: list[UnfinishedRow] = []
    for alias in place.reachable_groups() if groups is None else groups:
        with place.unlisted.going_on(alias):
            rows += [
                UnfinishedRow(
                    alias,
                    file.file,
                    f"{alias}/{file.file}",
                    file.stored_bytes,
                    file.size or None,
                    file.begun_ns,
                )
                for file in place.files(alias).tree().unfinished.values()
            ]
    common.print_rows(
        rows,
        lambda row: {
            "FILE": row.file,
            "STORED": size_text(row.stored),
            "SIZE": Number("-") if row.size is None else size_text(row.size),
            "BEGUN": time_text(row.begun),
            "GROUP": row.group,
        },
        ["put a file again to continue it, or remove it: dios rm GROUP/FILE"],
        empty="no file of yours is unfinished",
        failures=place.unlisted,
    )


def _list_orphans(place: CommandContext, common: CommonOptions) -> None:
    """List this user's durable blobs on this node that nobody uses and no catalogue or alias leads to."""
    known = {fingerprint(name) for name in place.catalogued_names()}
    known |= {fingerprint(name) for name in place.keyring.objects.values()}
    for records in (SERVICES, KEPT):
        known |= {record.fingerprint for record in place.node.lookup(special_name(records))}
    owner = f"uid:{os.getuid()}"
    rows = [
        OrphanRow(str(row["fingerprint"]), int(row["size"]))
        for row in place.node.read_table("objects")
        if row["type"] == ObjectType.DURABLE_BLOB.name
        and row["owner"] == owner
        and row["fingerprint"] not in known
        and not row["references"]
    ]
    common.print_rows(
        rows,
        lambda row: {"FINGERPRINT": row.fingerprint, "SIZE": size_text(row.size)},
        empty="every stored object of yours on this node is in a catalogue or in your keyring",
    )


def _list_directory(
    place: CommandContext, text: str, common: CommonOptions, *, names: bool, long: bool
) -> None:
    alias, inner = _path(place, text)
    tree = place.files(alias).tree()
    shown = [inner] if tree.is_file(inner) else tree.children(inner)
    files = [CataloguedFile(alias, tree.files[path]) for path in shown if tree.is_file(path)]
    items = _with_disks(place, files) if long else ((file, None) for file in files)
    listed = {file.path: _listed(place, file, disks, names=names) for file, disks in items}
    place.note_conflict(alias)
    # A directory has an empty line with the columns of the files.
    columns: Cells = {"FILE": "", "SIZE": Number(), "PUT": "", "FINGERPRINT": ""}
    columns = next((row.cells() for row in listed.values()), columns)
    blank: Cells = {
        heading: Number() if isinstance(cell, Number) else "" for heading, cell in columns.items()
    }

    def cells(row: FileRow | DirectoryRow) -> Cells:
        name = row.path.rpartition("/")[2]
        line = row.cells() if isinstance(row, FileRow) else blank
        whole = {**line, "FILE": name if isinstance(row, FileRow) else f"{name}/"}
        return {heading: cell for heading, cell in whole.items() if heading != "GROUP"}

    common.print_rows(
        [listed.get(path) or DirectoryRow(alias, path, f"{alias}/{path}") for path in shown],
        cells,
        empty=f"{text} is empty",
        failures=place.unlisted,
        remarks=_labels(place, [alias]),
        whole=names,
    )


def _path(place: CommandContext, text: str) -> tuple[str, str]:
    """Return the group and the path of an existing file or directory; InvalidError without one."""
    location = _group_of(place, text)
    tree = place.files(location[0]).tree()
    if not tree.is_file(location[1]) and not tree.is_directory(location[1]):
        raise _no_such_path(text)
    return location


def _group_of(place: CommandContext, text: str) -> tuple[str, str]:
    """Return the group and the path in it; InvalidError if the user has no such group."""
    location = place.split(text)
    if location is None:
        raise InvalidError(f"{text!r} begins with no group of yours. `dios group ls` lists them.")
    return location


def _no_such_path(text: str) -> InvalidError:
    return InvalidError(f"there is no file or directory {text!r}. `dios ls` lists all files.")


@app.command(examples="dios du\ndios du analytics\ndios du analytics/data --json", json=[UseRow, FailedRow])
def du(
    paths: list[str] | None = argument("[PATH]...", "Groups, directories or files; default: all groups."),
    *,
    common: CommonOptions,
) -> None:
    """Show the number of files and of bytes in groups and directories, from the groups' catalogues.

    The bytes of tiered files are counted apart.
    """
    with opened(common.node) as place:
        rows: list[UseRow] = []
        for text in paths or place.reachable_groups():
            with place.unlisted.going_on(text):
                rows.append(_use_below(place, text))
        anywhere = any(row.tiered for row in rows)
        common.print_rows(
            rows,
            lambda row: {
                "PATH": row.path,
                "FILES": row.files,
                "SIZE": size_text(row.size),
                **({"TIERED": size_text(row.tiered or 0)} if anywhere else {}),
            },
            failures=place.unlisted,
        )


def _use_below(place: CommandContext, text: str) -> UseRow:
    """Return the use of a path; of two entries with one path the later counts. Raise InvalidError."""
    alias, inner = _group_of(place, text)
    sizes: dict[str, tuple[int, int]] = {}
    exists = not inner
    for entry in place.files(alias).entries():
        path = stored_path(entry.file)
        if not inner or path == inner or path.startswith(f"{inner}/"):
            exists = True
            if not is_directory(entry):
                sizes[path] = (0, entry.size) if entry.tiered else (entry.size, 0)
    if not exists:
        raise _no_such_path(text)
    place.note_conflict(alias)
    tiered = sum(size for _, size in sizes.values())
    return UseRow(text, len(sizes), sum(size for size, _ in sizes.values()), tiered or UNSET)


@app.command(
    examples="dios sync ./data analytics/data\ndios sync analytics/data ./copy\n"
    "dios sync ./data analytics/data --delete --dry-run\n"
    "dios sync ./site dios://web/site --delete --json | jq .copied",
    json=SyncRow,
)
def sync(
    source: str = argument("FROM", "A local directory, or group[/DIRECTORY]."),
    target: str = argument("TO", "The directory to change: a group's if FROM is local, else a local one."),
    *,
    delete: bool = option("--delete", "Also delete what is in TO and not in FROM, except journals."),
    dry_run: bool = option("-n --dry-run", "Only show what would be copied and deleted."),
    secrecy: list[str] | None = SECRECY_OPTION,
    common: CommonOptions,
) -> None:
    """Make one directory equal to another: copy the files whose size or BLAKE3 digest differs.

    Local paths begin with "./", "../", "~" or "/", and dios:// may stand before a group. Files become visible
    in portions of a gibibyte, so a run that was interrupted is continued by the next one. Without --delete
    nothing is deleted, but files that differ are replaced.

    A file that cannot be read is left out and named, and the exit status is 1. Then nothing is deleted.
    """
    with opened(common.node) as place:
        local = [_is_local(text) for text in (source, target)]
        if local[0] is local[1]:
            raise InvalidError(
                "one of FROM and TO is a local directory, which begins with ./ or /, and the other "
                "group/DIRECTORY. For example: dios sync ./data analytics/data"
            )
        root = Path(source if local[0] else target).expanduser()
        if secrecy and not local[0]:
            raise InvalidError(
                "--secrecy labels objects of a group, and TO is a local directory: leave it out"
            )
        alias, inner = _group_of(place, target if local[0] else source)
        files = place.files(alias)
        if local[0] and not root.is_dir():
            raise InvalidError(f"{source} is not a directory. `dios put` stores single files.")
        if not local[0] and not files.tree().is_directory(inner):
            raise _no_such_path(source)
        failures = Failures("left out")
        note = _note_local(failures)
        with waiting("comparing"):
            if local[0]:
                plan = synchronize.plan_put(root, files, inner, note, delete=delete)
            else:
                plan = synchronize.plan_get(files, inner, root, note, delete=delete)
        if not dry_run:
            with transfer("sync", plan.size, steps=len(plan.copied)) as moved:
                if local[0]:
                    plan = synchronize.put(root, files, inner, plan, note, moved, secrecy=secrecy)
                else:
                    plan = synchronize.get(files, inner, root, plan, moved, going_on=failures.going_on)
        would = "would be " if dry_run else ""
        if dry_run and not common.as_json:
            for path in plan.copied:
                write_line(f"copy    {path}")
            for path in plan.deleted:
                write_line(f"delete  {path}")
        common.print_row(
            SyncRow.of(plan, copied=list(plan.copied), dry_run=dry_run, failed=failures.reasons),
            f"{counted(len(plan.copied), 'file')} ({size_text(plan.size)}) {would}copied, "
            f"{len(plan.deleted)} {would}deleted, {plan.unchanged} unchanged",
        )
        failures.end()


def _is_local(text: str) -> bool:
    return text.startswith(("/", "./", "../", "~")) or text in {".", ".."}


@contextmanager
def _destination(output: Path | None) -> Iterator[BytesOutput]:
    """Open the output: a file that appears only when it is complete, or standard output."""
    target = _target_file(output)
    if target is not None:
        with downloads.replaced_file(target) as file:
            yield file
    elif output is None or str(output) == "-":
        shown = bytes_output(sys.stdout)
        yield shown
        shown.flush()
    else:
        # Write to a device or pipe directly: renaming a file over it would replace it for everybody.
        with naming(output), output.open("wb") as device:
            yield device


def _target_file(output: Path | None) -> Path | None:
    """Return the path that a complete file takes; None for standard output, a device or a pipe."""
    if output is None or str(output) == "-":
        return None
    # For a link, write the file that it points to.
    output = output.resolve()
    if output.is_dir():
        raise InvalidError(f"{output} is a directory; give a file in it")
    return None if output.exists() and not output.is_file() else output


def _get_file(files: GroupFiles, entry: CatalogueEntry, output: Path | None, moved: Moved) -> None:
    """Write a file of a group; a large one continues what an interrupted command has left."""
    target = _target_file(output)
    if target is not None:
        downloads.download(files, entry, target, moved)
        return
    with _destination(output) as file:
        downloads.copy_out(files, entry, file, moved)


@app.command(
    examples="dios get a.txt\ndios get analytics/data/a.txt --output copy.txt\n"
    "dios get analytics/data --recursive --output ./data\ndios get 3f9a1c | wc",
    json=Output((WrittenRow, FailedRow), many=None),
)
def get(
    name: str = argument("NAME", "A path group/FILE, a file as put, a fingerprint or a name."),
    *,
    output: Path | None = option("-o --output FILE", "Write to FILE; default: standard output."),
    recursive: bool = option("-r --recursive", "Write a directory into the directory of --output."),
    former: bool = option("--former", "Write the former version of group/FILE that is still stored."),
    group: str = IN_GROUP_OPTION,
    common: CommonOptions,
) -> None:
    """Write the bytes of an object to a file or to standard output.

    With --output the file appears when it is complete, and the same command continues an interrupted one of
    a large file. A tiered file is brought back first. --json describes the written file, and needs --output.
    With --recursive NAME is group/DIRECTORY, and its files are written into the directory of --output. Those
    that cannot be read are listed at the end, and make the exit status 1.

    A damaged replica is passed over, and named: the bytes come from another node then.

    With --former it writes the latest version before the present one: it stays until the present one has the
    promised replicas.
    """
    if common.as_json and output is None:
        raise InvalidError("--json would mix with the object's bytes on standard output; add --output FILE")
    with opened(common.node) as place, _showing_former(place, name, group):
        if recursive:
            failures = Failures("failed")
            written = _get_directory(place, f"{group}/{name}" if group else name, output, failures)
            if common.as_json:
                write_json([*written, *failures.rows()])
            failures.end()
        elif former:
            entry = _get_former(place, f"{group}/{name}" if group else name, output)
            common.print_row(WrittenRow(str(output), entry.size, fingerprint(entry.name)))
        else:
            common.print_row(_get_one(place, name, group, output))


def _get_one(place: CommandContext, name: str, group: str, output: Path | None) -> WrittenRow:
    """Write a file, or an object that no catalogue has."""
    listed = place.find(name, group)[1]
    if listed is not None and listed.entry.in_store:
        with waiting("bringing the file back"):
            listed = place.brought_back(listed)
        name, group = listed.path, listed.group
    if listed is not None and listed.entry.digest:
        with transfer(output.name if output else "get", listed.entry.size) as moved:
            _get_file(place.files(listed.group), listed.entry, output, moved)
        return WrittenRow(str(output), listed.entry.size, listed.fingerprint)
    reference = place.object(name, group)
    with (
        reference.read(Semantics.MRSW) as request,
        _destination(output) as file,
        transfer(output.name if output else "get", reference.size) as moved,
    ):
        downloads.copy_view(request.view, file, moved)
        return WrittenRow(str(output), len(request.view), reference.fingerprint)


@contextmanager
def _showing_former(place: CommandContext, text: str, group: str) -> Iterator[None]:
    """Say how to get the former version of a file that cannot be read, if it is still stored."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (DiosError, OSError):
        with suppress(DiosError, OSError):
            listed = place.find(text, group)[1]
            if listed is not None and place.files(listed.group).formers(listed.path):
                say(
                    "the version before this one is still stored: "
                    f"dios get {listed.group}/{listed.path} --former"
                )
        raise


def _get_former(place: CommandContext, text: str, output: Path | None) -> CatalogueEntry:
    """Write the latest former version of a file that is still stored, and return its entry."""
    alias, inner = _group_of(place, text)
    files = place.files(alias)
    formers = files.formers(inner)
    if not formers:
        raise InvalidError(
            f"no former version of {text} is stored. `dios group describe {alias}` shows those that are."
        )
    with _destination(output) as file, transfer("get", formers[0].size) as moved:
        downloads.copy_former(files, formers[0], file, moved)
    return formers[0]


def _get_directory(
    place: CommandContext, text: str, output: Path | None, failures: Failures
) -> list[WrittenRow]:
    """Write the files below a directory; return the written files, and note the others."""
    if output is None:
        raise InvalidError("--recursive writes several files; add --output DIRECTORY")
    alias, inner = _path(place, text)
    files = place.files(alias)
    tree = files.tree()
    below = list(tree.below(inner)) if tree.is_directory(inner) else [inner]
    start = len(inner) + 1 if inner and tree.is_directory(inner) else len(inner.rpartition("/")[0])
    total = sum(tree.files[file_path].size for file_path in below if tree.is_file(file_path))
    output.mkdir(parents=True, exist_ok=True)
    written: list[WrittenRow] = []
    with transfer("get", total, steps=len(below)) as moved:
        for path in below:
            # A path of the catalogue has no "..": it stays inside of the directory.
            target = output / path[start:].lstrip("/")
            with failures.going_on(f"{alias}/{path}"):
                if tree.is_directory(path):
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                _get_file(files, tree.files[path], target, moved)
                written.append(WrittenRow(str(target), tree.files[path].size))
    return written


@app.command(
    examples="dios rm a.txt b.txt\ndios rm analytics/data --recursive\ndios rm 3f9a1c\n"
    "dios rm --group analytics --all",
    json=[RemovedRow, FailedRow],
)
def rm(
    names: list[str] | None = argument("[NAME]...", "Paths group/FILE, files as put, fingerprints or names."),
    *,
    recursive: bool = option("-r --recursive", "Destroy everything below group/DIRECTORY."),
    group: str = IN_GROUP_OPTION,
    everything: bool = option("--all", "Destroy all files and directories of the group of --group."),
    yes: bool = YES_OPTION,
    common: CommonOptions,
) -> None:
    """Destroy objects with all their replicas, for all users, and remove them from the catalogues.

    Holders of a reference get ESTALE from then on. If a node does not answer that may have replicas, the
    cluster destroys them when it is back. In a group whose catalogue is on one node nobody could do that, so
    that the object stays in the catalogue, to be destroyed later. The bytes of tiered files go from their
    store, and these files stay if it does not answer. Files that stay are listed at the end, and make the
    exit status 1. --all asks first.
    """
    with opened(common.node, [group] if group else ()) as place:
        # Look up all names first, so that an error in the last one destroys nothing.
        if everything:
            if not group or names:
                raise InvalidError("--all is for the files of a whole group: give --group ALIAS and no NAME")
            targets = all_targets(place, group)
            files = sum(bool(target.names) and target.former is None for target in targets)
            confirm(f"destroy all {counted(files, 'file')} of group {group}", yes=yes)
        elif not names:
            raise InvalidError("give the files to destroy, or --group ALIAS --all for those of a whole group")
        else:
            targets = [
                target for text in names for target in _targets(place, text, group, recursive=recursive)
            ]
        failures = Failures("not removed")
        gone, later = destroy_targets(place, targets, failures)
        if common.as_json:
            removed = [
                RemovedRow(
                    target.text,
                    outcome.replicas > 0
                    or (target.file is not None and target.file.entry.tiered and outcome.complete),
                    outcome.replicas,
                    not outcome.complete,
                )
                for target, outcome in gone
            ]
            write_json([*removed, *failures.rows()])
        show_later(place, later)
        failures.end()


def _targets(place: CommandContext, text: str, group: str, *, recursive: bool) -> list[Target]:
    path = (group, stored_path(f"./{text}")) if group else place.split(text)
    tree = None if path is None else place.files(path[0]).tree()
    if path is None or tree is None or tree.is_file(path[1]) or not tree.is_directory(path[1]):
        if path is not None and tree is not None and path[1] in tree.unfinished.keys() - tree.files.keys():
            return [unfinished_target(path[0], tree.unfinished[path[1]])]
        name, listed = place.find(text, group)
        return [Target(text, [name]) if listed is None else file_target(listed)._replace(text=text)]
    if not recursive:
        raise InvalidError(f"{text} is a directory; add --recursive to destroy everything in it")
    below = [path[1], *tree.below(path[1])]
    entries = [tree.files.get(inner) or tree.explicit_directories.get(inner) for inner in below]
    begun = [
        unfinished
        for file, unfinished in tree.unfinished.items()
        if not path[1] or file.startswith(f"{path[1]}/")
    ]
    return [unfinished_target(path[0], unfinished) for unfinished in begun] + [
        file_target(CataloguedFile(path[0], entry)) for entry in entries if entry is not None
    ]
