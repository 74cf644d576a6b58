"""``dios put``, ``ls``, ``du``, ``get``, ``sync`` and ``rm``: files as durable objects of groups."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Annotated, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CataloguedFile, CommandContext, opened
from dios.cli.common.failures import Failures
from dios.cli.common.json_rows import (
    DirectoryRow,
    FailedRow,
    FileRow,
    RemovedRow,
    SyncRow,
    UnfinishedRow,
    UseRow,
    WrittenRow,
)
from dios.cli.common.output import (
    BytesOutput,
    InGroupOption,
    JsonOption,
    NodeOption,
    YesOption,
    bytes_output,
    confirm,
    counted,
    progress,
    reporting,
    say,
    size_text,
    table,
    time_text,
    transfer,
    waiting,
    write_json,
    write_json_list,
    write_line,
)
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
from dios.lib.catalogue import CatalogueEntry, UnfinishedFile, shown_path
from dios.lib.files import downloads, synchronize
from dios.lib.files.disks import FileDisks, file_disks
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.paths import checked_path, path_of_local, stored_path
from dios.lib.files.sources import Moved
from dios.lib.files.staging import StagedFiles
from dios.lib.files.synchronize import LocalFile, SyncPlan
from dios.lib.files.tree import is_directory
from dios.lib.kept.promises import Promises
from dios.wire.nametext import fingerprint, format_name
from dios.wire.types import ObjectType, Semantics

_STANDARD_INPUT: Final = Path("-")
_LABEL_CHARACTERS: Final = 100
_FILES_AT_ONCE: Final = 1_024

app: Final = CommandApplication()

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="A path group/FILE, a file as put, a fingerprint or a name.")
]
NamesOption = Annotated[bool, typer.Option("--names", help="Also show the names, which are secret.")]


SecrecyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--secrecy",
        metavar="TAG",
        help="Label the objects: tasks that read them write only where the tag may go.",
    ),
]


@app.command(
    epilog="\b\nExamples:\n  dios put data/*.txt --group analytics\n"
    "  dios put report.pdf --group analytics --as july/report.pdf\n"
    "  dios put data --recursive --group analytics\n"
    "  dios put report.pdf --group analytics --replace\n"
    "  pg_dump shop | dios put - --group backups --as shop.sql\n"
    "  dios put results.csv --group analytics --acknowledge 2\n"
    "  dios put pay.csv --group hr --secrecy payroll\n"
    "  dios put big.csv --group analytics --json | jq -r .[].fingerprint"
)
def put(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Files to store; - is standard input.")
    ],
    *,
    group: Annotated[str, typer.Option("--group", "-g", metavar="ALIAS", help="The group of the objects.")],
    label: Annotated[
        str, typer.Option("--as", metavar="PATH", help="Store a single file or directory under this path.")
    ] = "",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Store directories with everything in them.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Replace files that have these paths, when the new ones are kept."),
    ] = False,
    acknowledge: Annotated[
        int | None,
        typer.Option(
            "--acknowledge",
            metavar="N",
            min=1,
            help="End when N nodes have the files.",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", metavar="N", min=1, help="Promise N replicas of each of these files."),
    ] = None,
    secrecy: SecrecyOption = None,
    names: NamesOption = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
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
    with reporting("dios put", as_json=as_json):
        if label and len(files) != 1:
            raise InvalidError("--as is for a single file or directory; put the others separately")
        with opened(node, [group]) as place:
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
                        name: entry.file[-_LABEL_CHARACTERS:]
                        for entry in staged.stored()
                        for name in entry.names
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
            _show_put(group, stored_entries, left_out, names=names, as_json=as_json)
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


def _show_put(
    group: str, stored: list[CatalogueEntry], left_out: Failures, *, names: bool, as_json: bool
) -> None:
    if as_json:
        described = [_described(CataloguedFile(group, entry), names=names) for entry in stored]
        write_json([*described, *left_out.rows()])
        return
    for entry in stored:
        shown = f"  {format_name(entry.name)}" if names else ""
        write_line(f"{fingerprint(entry.name)}{shown}  {group}/{entry.file}")


def _described(item: CataloguedFile, *, names: bool) -> FileRow:
    entry = item.entry
    described: FileRow = {
        "group": item.group,
        "file": item.path,
        "path": f"{item.group}/{item.path}",
        "fingerprint": item.fingerprint,
        "size": entry.size,
        "put": entry.put_ns,
    }
    if names:
        described["name"] = format_name(entry.name)
    if entry.tier is not None and entry.tiered:
        described["store"] = entry.tier.place
    return described


@app.command(
    "ls",
    epilog="\b\nExamples:\n  dios ls\n  dios ls analytics/data\n  dios ls --group analytics --json\n"
    "  dios ls analytics --long",
)
def list_objects(
    path: Annotated[
        str, typer.Argument(metavar="[PATH]", help="A group, or group/DIRECTORY: list what is in it.")
    ] = "",
    *,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", metavar="ALIAS", help="Only this group.")
    ] = None,
    orphans: Annotated[
        bool, typer.Option("--orphans", help="List your stored objects that no catalogue or keyring has.")
    ] = False,
    unfinished: Annotated[
        bool, typer.Option("--unfinished", help="List large files whose storing was interrupted, or goes on.")
    ] = False,
    long: Annotated[
        bool,
        typer.Option("--long", "-l", help="Also show on how many disks each file is, of those promised."),
    ] = False,
    names: NamesOption = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
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
    with reporting("dios ls", as_json=as_json), opened(node, group or ()) as place:
        if orphans:
            _list_orphans(place, as_json=as_json)
            return
        if unfinished:
            _list_unfinished(place, group or ([path] if path else None), as_json=as_json)
            return
        if path:
            _list_directory(place, path, names=names, long=long, as_json=as_json)
            return
        for alias in group or ():
            place.group(alias)
        aliases = place.reachable_groups() if group is None else group
        catalogued = place.catalogued(aliases)
        items = _with_disks(place, catalogued) if long else ((item, None) for item in catalogued)
        if as_json:
            write_json_list(_all_listed(place, items, names=names))
            place.unlisted.end()
            return
        rows = (_row(item, disks, names=names) for item, disks in items)
        first = next(rows, None)
        if first is not None:
            columns = ("FILE", "SIZE", "PUT", *(("DISKS",) if long else ()), "GROUP", "FINGERPRINT")
            head = (*columns, *(("NAME",) if names else ()))
            table(head, chain([first], rows), right=("SIZE",), whole=names)
        elif not place.unlisted.reasons:
            say("there are no files yet; next: dios put FILE --group ALIAS")
        _show_labels(place, aliases)
        place.unlisted.end()


def _all_listed(
    place: CommandContext, items: Iterable[tuple[CataloguedFile, FileDisks | None]], *, names: bool
) -> Iterator[FileRow | FailedRow]:
    """Yield the files of groups for JSON, and at the end the groups that could not be listed."""
    for item, disks in items:
        yield _listed(place, item, disks, names=names)
    yield from place.unlisted.rows()


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


def _listed(place: CommandContext, item: CataloguedFile, disks: FileDisks | None, *, names: bool) -> FileRow:
    """Return a file of `dios ls` for JSON."""
    described = _described(item, names=names)
    if disks is not None:
        described["disks"], described["promised"] = disks
    secrecy = place.files(item.group).secrecy
    if secrecy:
        described["group_secrecy"] = list(secrecy)
    return described


def _show_labels(place: CommandContext, groups: Iterable[str]) -> None:
    """Show the label of each group that has one; its files have these tags, too."""
    for alias in groups:
        try:
            secrecy = place.files(alias).secrecy
        except (UnreachableError, DamagedError):
            continue  # a notice has said so
        if secrecy:
            say(f"group {alias} is labelled {' '.join(secrecy)}, and so are its files")


def _list_unfinished(place: CommandContext, groups: list[str] | None, *, as_json: bool) -> None:
    """List the large files of groups that are not stored completely, with what is stored of them."""
    unfinished: list[tuple[str, UnfinishedFile]] = []
    for alias in place.reachable_groups() if groups is None else groups:
        with place.unlisted.going_on(alias):
            unfinished += [(alias, file) for file in place.files(alias).tree().unfinished.values()]
    if as_json:
        shown: list[UnfinishedRow] = [
            {
                "group": alias,
                "file": file.file,
                "path": f"{alias}/{file.file}",
                "stored": file.stored_bytes,
                "size": file.size or None,
                "begun": file.begun_ns,
            }
            for alias, file in unfinished
        ]
        write_json([*shown, *place.unlisted.rows()])
    elif unfinished:
        table(
            ("FILE", "STORED", "SIZE", "BEGUN", "GROUP"),
            [
                (
                    file.file,
                    size_text(file.stored_bytes),
                    size_text(file.size) if file.size else "-",
                    time_text(file.begun_ns),
                    alias,
                )
                for alias, file in unfinished
            ],
            right=("STORED", "SIZE"),
        )
        say("put a file again to continue it, or remove it: dios rm GROUP/FILE")
    elif not place.unlisted.reasons:
        say("no file of yours is unfinished")
    place.unlisted.end()


def _list_orphans(place: CommandContext, *, as_json: bool) -> None:
    """List this user's durable blobs on this node that nobody uses and no catalogue or alias leads to."""
    known = {fingerprint(name) for name in place.catalogued_names()}
    known |= {fingerprint(name) for name in place.keyring.objects.values()}
    for records in (SERVICES, KEPT):
        known |= {record.fingerprint for record in place.node.lookup(special_name(records))}
    owner = f"uid:{os.getuid()}"
    rows = [
        (str(row["fingerprint"]), int(row["size"]))
        for row in place.node.read_table("objects")
        if row["type"] == ObjectType.DURABLE_BLOB.name
        and row["owner"] == owner
        and row["fingerprint"] not in known
        and not row["references"]
    ]
    if as_json:
        write_json([{"fingerprint": mark, "size": size} for mark, size in rows])
    elif rows:
        table(("FINGERPRINT", "SIZE"), [(mark, size_text(size)) for mark, size in rows], right=("SIZE",))
    else:
        say("every stored object of yours on this node is in a catalogue or in your keyring")


def _list_directory(place: CommandContext, text: str, *, names: bool, long: bool, as_json: bool) -> None:
    alias, inner = _path(place, text)
    tree = place.files(alias).tree()
    shown = [inner] if tree.is_file(inner) else tree.children(inner)
    items = {
        file_path: CataloguedFile(alias, tree.files[file_path])
        for file_path in shown
        if tree.is_file(file_path)
    }
    counted_disks = {item.path: disks for item, disks in _with_disks(place, items.values())} if long else {}
    place.note_conflict(alias)
    if as_json:
        described: list[FileRow | DirectoryRow] = [
            _listed(place, items[listed_path], counted_disks.get(listed_path), names=names)
            if listed_path in items
            else {"group": alias, "directory": listed_path, "path": f"{alias}/{listed_path}"}
            for listed_path in shown
        ]
        write_json([*described, *place.unlisted.rows()])
        place.unlisted.end()
        return
    rows = []
    columns = ("FILE", "SIZE", "PUT", *(("DISKS",) if long else ()), "FINGERPRINT")
    head = (*columns, *(("NAME",) if names else ()))
    for path in shown:
        name = path.rpartition("/")[2]
        if path in items:
            row = _row(items[path], counted_disks.get(path), names=names)
            group = 4 if long else 3
            rows.append((name, *row[1:group], *row[group + 1 :]))
        else:
            rows.append((f"{name}/", *("" for _ in head[1:])))
    if rows:
        table(head, rows, right=("SIZE",), whole=names)
    else:
        say(f"{text} is empty")
    _show_labels(place, [alias])
    place.unlisted.end()


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


def _row(item: CataloguedFile, disks: FileDisks | None, *, names: bool) -> tuple[str, ...]:
    entry = item.entry
    size = f"{size_text(entry.size)} (tiered)" if entry.tiered else size_text(entry.size)
    on = () if disks is None else (_disks_text(entry, disks),)
    row = (item.path, size, time_text(entry.put_ns), *on, item.group, item.fingerprint)
    return (*row, format_name(entry.name)) if names else row


def _disks_text(entry: CatalogueEntry, disks: FileDisks) -> str:
    if entry.tier is not None and entry.tiered:
        return entry.tier.place
    return str(disks.disks) if disks.promised is None else f"{disks.disks} of {disks.promised}"


@app.command(epilog="\b\nExamples:\n  dios du\n  dios du analytics\n  dios du analytics/data --json")
def du(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="Groups, directories or files; default: all groups."),
    ] = None,
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the number of files and of bytes in groups and directories, from the groups' catalogues.

    The bytes of tiered files are counted apart.
    """
    with reporting("dios du", as_json=as_json), opened(node) as place:
        rows: list[tuple[str, int, int, int]] = []
        for text in paths or place.reachable_groups():
            with place.unlisted.going_on(text):
                rows.append((text, *_use_below(place, text)))
        if as_json:
            used: list[UseRow | FailedRow] = []
            for path, files, size, tiered in rows:
                row: UseRow = {"path": path, "files": files, "size": size}
                if tiered:
                    row["tiered"] = tiered
                used.append(row)
            write_json([*used, *place.unlisted.rows()])
            place.unlisted.end()
            return
        anywhere = any(tiered for *_, tiered in rows)
        table(
            ("PATH", "FILES", "SIZE", *(("TIERED",) if anywhere else ())),
            [
                (path, str(files), size_text(size), *((size_text(tiered),) if anywhere else ()))
                for path, files, size, tiered in rows
            ],
            right=("FILES", "SIZE", "TIERED") if anywhere else ("FILES", "SIZE"),
        )
        place.unlisted.end()


def _use_below(place: CommandContext, text: str) -> tuple[int, int, int]:
    """Return the number of files below a path, and of their bytes here and in stores.

    Raise InvalidError without such a path.
    """
    alias, inner = _group_of(place, text)
    use = _use_of(place.files(alias).entries(), inner)
    if use is None:
        raise _no_such_path(text)
    place.note_conflict(alias)
    return use


def _use_of(entries: Iterable[CatalogueEntry], inner: str) -> tuple[int, int, int] | None:
    """Return the number of files at or below a path, and of their bytes here and in stores.

    None if nothing is there.
    """
    sizes: dict[str, tuple[int, int]] = {}
    exists = not inner
    for entry in entries:
        path = stored_path(entry.file)
        if not inner or path == inner or path.startswith(f"{inner}/"):
            exists = True
            if not is_directory(entry):
                # Of two entries with one path the later counts.
                sizes[path] = (0, entry.size) if entry.tiered else (entry.size, 0)
    local, tiered = (sum(column) for column in zip(*sizes.values(), strict=True)) if sizes else (0, 0)
    return (len(sizes), local, tiered) if exists else None


@app.command(
    epilog="\b\nExamples:\n  dios sync ./data analytics/data\n  dios sync analytics/data ./copy\n"
    "  dios sync ./data analytics/data --delete --dry-run\n"
    "  dios sync ./site dios://web/site --delete --json | jq .copied"
)
def sync(
    source: Annotated[str, typer.Argument(metavar="FROM", help="A local directory, or group[/DIRECTORY].")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TO", help="The directory to change: a group's if FROM is local, else a local one."
        ),
    ],
    *,
    delete: Annotated[
        bool, typer.Option("--delete", help="Also delete what is in TO and not in FROM, except journals.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", "-n", help="Only show what would be copied and deleted.")
    ] = False,
    secrecy: SecrecyOption = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make one directory equal to another: copy the files whose size or BLAKE3 digest differs.

    Local paths begin with "./", "../", "~" or "/", and dios:// may stand before a group. Files become visible
    in portions of a gibibyte, so a run that was interrupted is continued by the next one. Without --delete
    nothing is deleted, but files that differ are replaced.

    A file that cannot be read is left out and named, and the exit status is 1. Then nothing is deleted.
    """
    with reporting("dios sync", as_json=as_json), opened(node) as place:
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
        _show_plan(plan, failures, dry_run=dry_run, as_json=as_json)
        failures.end()


def _is_local(text: str) -> bool:
    return text.startswith(("/", "./", "../", "~")) or text in {".", ".."}


def _show_plan(plan: SyncPlan, failures: Failures, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        shown: SyncRow = {
            "copied": list(plan.copied),
            "size": plan.size,
            "directories": plan.directories,
            "deleted": plan.deleted,
            "unchanged": plan.unchanged,
            "dry_run": dry_run,
            "failed": dict(failures.reasons),
        }
        write_json(shown)
        return
    if dry_run:
        for path in plan.copied:
            write_line(f"copy    {path}")
        for path in plan.deleted:
            write_line(f"delete  {path}")
    would = "would be " if dry_run else ""
    say(
        f"{counted(len(plan.copied), 'file')} ({size_text(plan.size)}) {would}copied, "
        f"{len(plan.deleted)} {would}deleted, {plan.unchanged} unchanged"
    )


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
    epilog="\b\nExamples:\n  dios get a.txt\n  dios get analytics/data/a.txt --output copy.txt\n"
    "  dios get analytics/data --recursive --output ./data\n  dios get 3f9a1c | wc"
)
def get(
    name: NameArgument,
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to FILE; default: standard output."),
    ] = None,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Write a directory into the directory of --output.")
    ] = False,
    former: Annotated[
        bool, typer.Option("--former", help="Write the former version of group/FILE that is still stored.")
    ] = False,
    group: InGroupOption = "",
    node: NodeOption = None,
    as_json: JsonOption = False,
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
    with reporting("dios get", as_json=as_json):
        if as_json and output is None:
            raise InvalidError(
                "--json would mix with the object's bytes on standard output; add --output FILE"
            )
        with opened(node) as place, _showing_former(place, name, group):
            if recursive:
                failures = Failures("failed")
                written = _get_directory(place, f"{group}/{name}" if group else name, output, failures)
                if as_json:
                    rows: list[WrittenRow] = [{"file": str(file), "size": size} for file, size in written]
                    write_json([*rows, *failures.rows()])
                failures.end()
                return
            if former:
                entry = _get_former(place, f"{group}/{name}" if group else name, output)
                if as_json:
                    write_json(
                        {"file": str(output), "size": entry.size, "fingerprint": fingerprint(entry.name)}
                    )
                return
            listed = place.find(name, group)[1]
            if listed is not None and listed.entry.in_store:
                with waiting("bringing the file back"):
                    listed = place.brought_back(listed)
                name, group = listed.path, listed.group
            if listed is not None and listed.entry.digest:
                with transfer(output.name if output else "get", listed.entry.size) as moved:
                    _get_file(place.files(listed.group), listed.entry, output, moved)
                if as_json:
                    write_json(
                        {"file": str(output), "size": listed.entry.size, "fingerprint": listed.fingerprint}
                    )
                return
            reference = place.object(name, group)
            size = reference.size
            with (
                reference.read(Semantics.MRSW) as request,
                _destination(output) as file,
                transfer(output.name if output else "get", size) as moved,
            ):
                size = len(request.view)
                downloads.copy_view(request.view, file, moved)
            if as_json:
                write_json({"file": str(output), "size": size, "fingerprint": reference.fingerprint})


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
) -> list[tuple[Path, int]]:
    """Write the files below a directory; return the written files with their sizes, and note the others."""
    if output is None:
        raise InvalidError("--recursive writes several files; add --output DIRECTORY")
    alias, inner = _path(place, text)
    files = place.files(alias)
    tree = files.tree()
    below = list(tree.below(inner)) if tree.is_directory(inner) else [inner]
    start = len(inner) + 1 if inner and tree.is_directory(inner) else len(inner.rpartition("/")[0])
    total = sum(tree.files[file_path].size for file_path in below if tree.is_file(file_path))
    output.mkdir(parents=True, exist_ok=True)
    written: list[tuple[Path, int]] = []
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
                written.append((target, tree.files[path].size))
    return written


@app.command(
    epilog="\b\nExamples:\n  dios rm a.txt b.txt\n  dios rm analytics/data --recursive\n  dios rm 3f9a1c\n"
    "  dios rm --group analytics --all"
)
def rm(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Paths group/FILE, files as put, fingerprints or names."),
    ] = None,
    *,
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Destroy everything below group/DIRECTORY.")
    ] = False,
    group: InGroupOption = "",
    everything: Annotated[
        bool, typer.Option("--all", help="Destroy all files and directories of the group of --group.")
    ] = False,
    yes: YesOption = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Destroy objects with all their replicas, for all users, and remove them from the catalogues.

    Holders of a reference get ESTALE from then on. If a node does not answer that may have replicas, the
    cluster destroys them when it is back. In a group whose catalogue is on one node nobody could do that, so
    that the object stays in the catalogue, to be destroyed later. The bytes of tiered files go from their
    store, and these files stay if it does not answer. Files that stay are listed at the end, and make the
    exit status 1. --all asks first.
    """
    with reporting("dios rm", as_json=as_json), opened(node, [group] if group else ()) as place:
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
        if as_json:
            removed: list[RemovedRow] = [
                {
                    "argument": target.text,
                    "destroyed": outcome.replicas > 0
                    or (target.file is not None and target.file.entry.tiered and outcome.complete),
                    "replicas": outcome.replicas,
                    "incomplete": not outcome.complete,
                }
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
