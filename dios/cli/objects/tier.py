"""``dios tier``: cold files of a group in another store, from which reading brings them back."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CataloguedFile, CommandContext, opened
from dios.cli.common.failures import Failures
from dios.cli.common.output import (
    InGroupOption,
    JsonOption,
    NodeOption,
    YesOption,
    confirm,
    counted,
    facts,
    reporting,
    say,
    size_text,
    table,
    transfer,
    waiting,
    write_json,
)
from dios.cli.common.signals import Stopped, stopped_by_signals
from dios.cli.nodes.setting_options import seconds_of
from dios.errors import InvalidError
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.paths import stored_path
from dios.lib.files.tier.entries import forget as forget_store
from dios.lib.files.tier.inward import bring_back, leave_store
from dios.lib.files.tier.outward import Moved, chosen, tier_out
from dios.lib.files.tier.removal import prune as prune_store
from dios.lib.packs.keys import load_private, load_recipient
from dios.lib.packs.tier_store import begin_store, open_store
from dios.node.limit_text import parse_size

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Cold files: their bytes in another store, encrypted, and back when they are read.",
)

StoreArgument = Annotated[
    str, typer.Argument(metavar="STORE", help="A directory, or a URL such as s3://bucket/folder.")
]
GroupOption = Annotated[str, typer.Option("--group", "-g", metavar="ALIAS", help="The group of the files.")]
FilesArgument = Annotated[
    list[str], typer.Argument(metavar="NAME...", help="Paths group/FILE, files as put, or fingerprints.")
]


class TieredOutRow(TypedDict):
    """The result of `dios tier out`: ``refused`` has the files that stay, each with the reason."""

    store: str
    moved: list[str]
    size: int
    before: list[str]
    refused: dict[str, str]


class TieredInRow(TypedDict):
    """A file that is local now, and True if it was in a store before.

    ``in_store`` is True if it is still there, too, because it is on fewer nodes than promised.
    """

    path: str
    size: int
    brought_back: bool
    in_store: bool


class TieredFileRow(TypedDict):
    """A file with bytes in a store.

    ``state`` is "stored", "both" if the file was brought back and is on fewer nodes than promised, or
    "leftover" if a run broke off: the file is local, and its bytes in the store are of no use. ``local_left``
    is True if local objects of a stored file may remain.
    """

    group: str
    file: str
    path: str
    size: int
    store: str
    state: str
    local_left: bool


class OpenedStoreRow(TypedDict):
    """A store that this machine can use from now on."""

    store: str


class PrunedStoreRow(TypedDict):
    """The number of packs that were removed from a store."""

    store: str
    packs: int


class ForgottenRow(TypedDict):
    """A file whose store was forgotten; a tiered one is no longer in its group."""

    path: str
    store: str


@app.command(
    "out",
    epilog="\b\nExamples:\n  dios backup keygen ./tier.key\n"
    "  dios tier out july.csv --group papers --to /mnt/cold --recipient ./tier.key.pub\n"
    "  dios tier out --older 90d --larger 100MiB --group papers --to s3://bucket/papers",
)
def out(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH]...", help="Files of the group.")
    ] = None,
    *,
    group: GroupOption,
    to: Annotated[
        str,
        typer.Option("--to", metavar="STORE", help="A directory, or a URL such as s3://bucket/folder."),
    ],
    older: Annotated[
        str, typer.Option("--older", metavar="SPAN", help="All files that were put before: 12h, 90d.")
    ] = "",
    larger: Annotated[
        str, typer.Option("--larger", metavar="SIZE", help="All files of at least this size: 100MiB.")
    ] = "",
    recipient: Annotated[
        Path | None,
        typer.Option("--recipient", metavar="FILE", help="The recipient's file; needed for a new store."),
    ] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move the bytes of files into a store, encrypted, and keep their paths.

    The bytes are stored, read back and compared before the local ones are destroyed. A command that was
    interrupted loses nothing, and the same command finishes. Reading a file brings it back. With --older and
    --larger, files must fit both. Files with a secrecy label are refused.

    `dios backup keygen` makes the key pair of a new store. Without the private key, and without this machine,
    nobody can read the files.
    """
    with reporting("dios tier out", as_json=as_json):
        if bool(files) is bool(older or larger):
            raise InvalidError("give the files, or choose them with --older SPAN and --larger SIZE")
        reader = None if recipient is None else load_recipient(recipient)
        try:
            with stopped_by_signals(), opened(node, [group]) as place:
                here = place.files(group)
                paths = (
                    [_in_group(here, group, text) for text in files]
                    if files
                    else chosen(
                        here,
                        older_ns=seconds_of(older, "--older") * 10**9 if older else None,
                        larger=_size(larger) if larger else None,
                        now_ns=time.time_ns(),
                    )
                )
                total = sum(here.entry(path).size for path in paths)
                store = begin_store(to, reader, here.group)
                with transfer("tier out", total, steps=len(paths)) as moved:
                    outcome = tier_out(here, store, paths, moved)
        except Stopped as stopped:
            raise typer.Exit(stopped.exit_status) from None
        _show_out(group, store.place, outcome, as_json=as_json)


def _in_group(files: GroupFiles, group: str, text: str) -> str:
    """Return the path of a file in the group; the alias of the group may stand before it."""
    inner = stored_path(f"./{text}")
    if files.tree().is_file(inner):
        return inner
    path = stored_path(f"./{text.removeprefix('dios://').removeprefix(f'{group}/')}")
    if not files.tree().is_file(path):
        raise InvalidError(f"there is no file {text!r} in group {group}. `dios ls {group}` lists its files.")
    return path


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise InvalidError(f"--larger must be {error}, not {text!r}") from None


def _show_out(group: str, store: str, outcome: Moved, *, as_json: bool) -> None:
    size = sum(entry.size for entry in outcome.moved)
    refused = Failures("refused")
    for path, why in outcome.refused.items():
        refused.note(f"{group}/{path}", why)
    if as_json:
        row: TieredOutRow = {
            "store": store,
            "moved": [f"{group}/{stored_path(entry.file)}" for entry in outcome.moved],
            "size": size,
            "before": [f"{group}/{path}" for path in outcome.before],
            "refused": dict(refused.reasons),
        }
        write_json(row)
        refused.end()
        return
    facts(
        [
            ("store", store),
            ("moved", f"{counted(len(outcome.moved), 'file')} ({size_text(size)})"),
            ("there before", str(len(outcome.before))),
            ("refused", str(len(outcome.refused))),
        ]
    )
    refused.end()


@app.command(
    "in", epilog="\b\nExamples:\n  dios tier in papers/july.csv\n  dios tier in july.csv --group papers"
)
def bring_in(
    names: FilesArgument,
    *,
    group: InGroupOption = "",
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring files back without reading them: `dios get`, dios:// paths and inputs of tasks do it, too.

    The bytes are compared with their digest before the path has them. The command makes the replicas that are
    promised, and removes from the store the files whose replicas have the right bytes.
    """
    with reporting("dios tier in", as_json=as_json), opened(node) as place:
        listed = [_found(place, text, group) for text in names]
        failures = Failures("failed")
        rows: list[TieredInRow] = []
        staying: dict[str, dict[str, str]] = {}
        with transfer(
            "tier in", sum(listed_file.entry.size for listed_file in listed), steps=len(listed)
        ) as moved:
            for file in listed:
                path, files = f"{file.group}/{file.path}", place.files(file.group)
                with failures.going_on(path):
                    reasons = leave_store(files, [bring_back(files, file.path, moved)])
                    staying.setdefault(file.group, {}).update(reasons)
                    rows.append(
                        {
                            "path": path,
                            "size": file.entry.size,
                            "brought_back": file.entry.tiered,
                            "in_store": bool(reasons),
                        }
                    )
        if as_json:
            write_json([*rows, *failures.rows()])
            failures.end()
            return
        back_again = [row for row in rows if row["brought_back"]]
        size = size_text(sum(row["size"] for row in back_again))
        say(f"local again: {counted(len(back_again), 'file')} ({size})")
        for alias, reasons in staying.items():
            if reasons:
                why = next(iter(reasons.values()))
                say(
                    f"in the store, too: {counted(len(reasons), 'file')} of {alias} ({why}). The next `dios "
                    "tier prune` or `dios tier in` removes them there when their promise of replicas is met."
                )
        failures.end()


def _found(place: CommandContext, text: str, group: str) -> CataloguedFile:
    file = place.find(text, group)[1]
    if file is None:
        raise InvalidError(f"{text!r} is in no catalogue of yours. `dios ls` lists the files.")
    return file


@app.command("ls", epilog="\b\nExamples:\n  dios tier ls\n  dios tier ls --group papers --json")
def list_tiered(
    *,
    group: Annotated[
        list[str] | None, typer.Option("--group", "-g", metavar="ALIAS", help="Only this group.")
    ] = None,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the files whose bytes are in a store, and what runs that broke off have left there.

    Files that were brought back and are not on as many nodes as promised yet are in "both" places.
    """
    with reporting("dios tier ls", as_json=as_json), opened(node, group or ()) as place:
        rows = list(_rows(place.catalogued(group)))
        if as_json:
            write_json([*rows, *place.unlisted.rows()])
        elif rows:
            table(
                ("FILE", "SIZE", "STATE", "STORE"),
                [
                    (
                        row["path"],
                        size_text(row["size"]),
                        f"{row['state']}, local left" if row["local_left"] else row["state"],
                        row["store"],
                    )
                    for row in rows
                ],
                right=("SIZE",),
            )
            if any(row["state"] == "leftover" or row["local_left"] for row in rows):
                say("a run broke off; next: the same `dios tier out` again, or `dios tier in` for a leftover")
            if any(row["state"] == "both" for row in rows):
                say("`dios tier prune` removes from the store what is on as many nodes as promised")
        elif not place.unlisted.reasons:
            say("no file of yours is tiered")
        place.unlisted.end()


def _rows(files: Iterable[CataloguedFile]) -> Iterable[TieredFileRow]:
    for file in files:
        tier = file.entry.tier
        if tier is not None:
            yield {
                "group": file.group,
                "file": file.path,
                "path": f"{file.group}/{file.path}",
                "size": file.entry.size,
                "store": tier.place,
                "state": "stored" if tier.stored else "both" if tier.manifest else "leftover",
                "local_left": tier.stored and tier.left,
            }


@app.command("open", epilog="\b\nExamples:\n  dios tier open s3://bucket/papers --key ./tier.key")
def open_command(
    store: StoreArgument,
    *,
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="The private key of the recipient.")],
    as_json: JsonOption = False,
) -> None:
    """Let this machine read and write a store that another one began: it keeps the key of the store.

    A machine uses no other store, whatever a catalogue says, because every member of a group can write the
    catalogue.
    """
    with reporting("dios tier open", as_json=as_json):
        opened_store = open_store(store, load_private(key))
        if as_json:
            row: OpenedStoreRow = {"store": opened_store.place}
            write_json(row)
            return
        say(f"this machine can read the files in {opened_store.place} now")


@app.command("prune", epilog="\b\nExamples:\n  dios tier prune s3://bucket/papers --group papers")
def prune(
    store: StoreArgument, *, group: GroupOption, node: NodeOption = None, as_json: JsonOption = False
) -> None:
    """Remove what the store of a group has, and no file of the group needs any more.

    These are the rests of runs that broke off, and files that were brought back and are on as many nodes as
    promised now. The bytes of their replicas are compared with the digest before.
    """
    with reporting("dios tier prune", as_json=as_json), opened(node, [group]) as place:
        files = place.files(group)
        tier_store = begin_store(store, None, files.group)
        with waiting("removing packs"):
            files.sweep()
            removed = prune_store(files, tier_store)
        if as_json:
            row: PrunedStoreRow = {"store": tier_store.place, "packs": removed}
            write_json(row)
            return
        say(f"removed {counted(removed, 'pack')} from {tier_store.place}")


@app.command("forget", epilog="\b\nExamples:\n  dios tier forget papers/july.csv --yes")
def forget(
    names: FilesArgument,
    *,
    group: InGroupOption = "",
    yes: YesOption = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove tiered files from their group without their store, which may be lost: nobody can read them then.

    A local file stays, with its bytes, and only what a broken run noted of the store goes. `dios rm` removes
    a file with its bytes. Whatever the store has stays there, encrypted, until `dios tier prune`.
    """
    with reporting("dios tier forget", as_json=as_json), opened(node) as place:
        listed = [_found(place, text, group) for text in names]
        for file in listed:
            if file.entry.tier is None:
                raise InvalidError(f"no store has {file.group}/{file.path}. `dios rm` removes it.")
        confirm(
            f"forget {counted(sum(listed_file.entry.tiered for listed_file in listed), 'tiered file')} "
            "for good",
            yes=yes,
        )
        failures = Failures("failed")
        rows: list[ForgottenRow] = []
        for file in listed:
            path, store = f"{file.group}/{file.path}", file.entry.tier.place if file.entry.tier else ""
            with failures.going_on(path):
                forget_store(place.files(file.group), file.entry)
                rows.append({"path": path, "store": store})
        if as_json:
            write_json([*rows, *failures.rows()])
        else:
            say(f"forgot the stores of {counted(len(rows), 'file')}; what they have is of no use")
        failures.end()
