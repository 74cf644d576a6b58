"""``dios tier``: cold files of a group in another store, from which reading brings them back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CataloguedFile, CommandContext, opened
from dios.cli.common.failures import FailedRow, Failures
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    confirm,
    counted,
    say,
    size_text,
    transfer,
    waiting,
    write_json,
)
from dios.cli.common.results import IN_GROUP_OPTION, YES_OPTION, CommonOptions, OutputOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.setting_options import seconds_of, size_of
from dios.errors import InvalidError
from dios.lib.catalogue import Tiered
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.paths import stored_path
from dios.lib.files.tier.entries import forget as forget_store
from dios.lib.files.tier.entries import prune as prune_store
from dios.lib.files.tier.inward import bring_back, leave_store
from dios.lib.files.tier.outward import chosen, tier_out
from dios.lib.packs.keys import load_private, load_recipient
from dios.lib.packs.tier_store import begin_store, open_store

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Cold files: their bytes in another store, encrypted, and back when they are read.",
)

STORE_ARGUMENT: Final[str] = argument("STORE", "A directory, or a URL such as s3://bucket/folder.")
GROUP_OPTION: Final[str] = option("-g --group ALIAS", "The group of the files.", required=True)
FILES_ARGUMENT: Final[list[str]] = argument("NAME...", "Paths group/FILE, files as put, or fingerprints.")


class TieredOutRow(Row):
    """The result of `dios tier out`: ``refused`` has the files that stay, each with the reason."""

    store: str
    moved: list[str]
    size: int
    before: list[str]
    refused: dict[str, str]


class TieredInRow(Row):
    """A file that is local now, and True if it was in a store before.

    ``in_store`` is True if it is still there, too, because it is on fewer nodes than promised.
    """

    path: str
    size: int
    brought_back: bool
    in_store: bool


class TieredFileRow(Row):
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


class OpenedStoreRow(Row):
    """A store that this machine can use from now on."""

    store: str


class PrunedStoreRow(Row):
    """The number of packs that were removed from a store."""

    store: str
    packs: int


class ForgottenRow(Row):
    """A file whose store was forgotten; a tiered one is no longer in its group."""

    path: str
    store: str


@app.command(
    "out",
    examples="dios backup keygen ./tier.key\n"
    "dios tier out july.csv --group papers --to /mnt/cold --recipient ./tier.key.pub\n"
    "dios tier out --older 90d --larger 100MiB --group papers --to s3://bucket/papers",
    json=TieredOutRow,
)
def out(
    files: list[str] | None = argument("[PATH]...", "Files of the group."),
    *,
    group: str = GROUP_OPTION,
    to: str = option("--to STORE", "A directory, or a URL such as s3://bucket/folder.", required=True),
    older: str = option("--older SPAN", "All files that were put before: 12h, 90d."),
    larger: str = option("--larger SIZE", "All files of at least this size: 100MiB."),
    recipient: Path | None = option("--recipient FILE", "The recipient's file; needed for a new store."),
    common: CommonOptions,
) -> None:
    """Move the bytes of files into a store, encrypted, and keep their paths.

    The bytes are stored, read back and compared before the local ones are destroyed. A command that was
    interrupted loses nothing, and the same command finishes. Reading a file brings it back. With --older and
    --larger, files must fit both. Files with a secrecy label are refused.

    `dios backup keygen` makes the key pair of a new store. Without the private key, and without this machine,
    nobody can read the files.
    """
    if bool(files) is bool(older or larger):
        raise InvalidError("give the files, or choose them with --older SPAN and --larger SIZE")
    reader = None if recipient is None else load_recipient(recipient)
    with opened(common.node, [group]) as place:
        here = place.files(group)
        paths = (
            [_in_group(here, group, text) for text in files]
            if files
            else chosen(
                here,
                older_ns=seconds_of(older, "--older") * 10**9 if older else None,
                larger=size_of(larger, "--larger") or None,
                now_ns=time.time_ns(),
            )
        )
        total = sum(here.entry(path).size for path in paths)
        store = begin_store(to, reader, here.group)
        with transfer("tier out", total, steps=len(paths)) as moved:
            outcome = tier_out(here, store, paths, moved)
    size = sum(entry.size for entry in outcome.moved)
    refused = Failures("refused")
    for path, why in outcome.refused.items():
        refused.note(f"{group}/{path}", why)
    common.print_row(
        TieredOutRow(
            store.place,
            [f"{group}/{stored_path(entry.file)}" for entry in outcome.moved],
            size,
            [f"{group}/{path}" for path in outcome.before],
            dict(refused.reasons),
        ),
        facts={
            "store": store.place,
            "moved": f"{counted(len(outcome.moved), 'file')} ({size_text(size)})",
            "there before": len(outcome.before),
            "refused": len(outcome.refused),
        },
    )
    refused.end()


def _in_group(files: GroupFiles, group: str, text: str) -> str:
    """Return the path of a file in the group; the alias of the group may stand before it."""
    inner = stored_path(f"./{text}")
    if files.tree().is_file(inner):
        return inner
    path = stored_path(f"./{text.removeprefix('dios://').removeprefix(f'{group}/')}")
    if not files.tree().is_file(path):
        raise InvalidError(f"there is no file {text!r} in group {group}. `dios ls {group}` lists its files.")
    return path


@app.command(
    "in",
    examples="dios tier in papers/july.csv\ndios tier in july.csv --group papers",
    json=[TieredInRow, FailedRow],
)
def bring_in(
    names: list[str] = FILES_ARGUMENT, *, group: str = IN_GROUP_OPTION, common: CommonOptions
) -> None:
    """Bring files back without reading them: `dios get`, dios:// paths and inputs of tasks do it, too.

    The bytes are compared with their digest before the path has them. The command makes the replicas that are
    promised, and removes from the store the files whose replicas have the right bytes.
    """
    with opened(common.node) as place:
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
                    rows.append(TieredInRow(path, file.entry.size, file.entry.tiered, bool(reasons)))
        if common.as_json:
            write_json([*rows, *failures.rows()])
            failures.end()
            return
        back_again = [row for row in rows if row.brought_back]
        size = size_text(sum(row.size for row in back_again))
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


@app.command(
    "ls", examples="dios tier ls\ndios tier ls --group papers --json", json=[TieredFileRow, FailedRow]
)
def list_tiered(
    *, group: list[str] | None = option("-g --group ALIAS", "Only this group."), common: CommonOptions
) -> None:
    """List the files whose bytes are in a store, and what runs that broke off have left there.

    Files that were brought back and are not on as many nodes as promised yet are in "both" places.
    """
    with opened(common.node, group or ()) as place:
        rows = [_tiered_row(file.entry.tier, file) for file in place.catalogued(group) if file.entry.tier]
        notices = {
            "a run broke off; next: the same `dios tier out` again, or `dios tier in` for a leftover": any(
                row.state == "leftover" or row.local_left for row in rows
            ),
            "`dios tier prune` removes from the store what is on as many nodes as promised": any(
                row.state == "both" for row in rows
            ),
        }
        common.print_rows(
            rows,
            lambda row: {
                "FILE": row.path,
                "SIZE": size_text(row.size),
                "STATE": f"{row.state}, local left" if row.local_left else row.state,
                "STORE": row.store,
            },
            [notice for notice, fits in notices.items() if fits],
            empty="no file of yours is tiered",
            failures=place.unlisted,
        )


def _tiered_row(tier: Tiered, file: CataloguedFile) -> TieredFileRow:
    state = "stored" if tier.stored else "both" if tier.manifest else "leftover"
    path, left = f"{file.group}/{file.path}", tier.stored and tier.left
    return TieredFileRow(file.group, file.path, path, file.entry.size, tier.place, state, left)


@app.command("open", examples="dios tier open s3://bucket/papers --key ./tier.key", json=OpenedStoreRow)
def open_command(
    store: str = STORE_ARGUMENT,
    *,
    key: Path = option("--key FILE", "The private key of the recipient."),
    output: OutputOptions,
) -> None:
    """Let this machine read and write a store that another one began: it keeps the key of the store.

    A machine uses no other store, whatever a catalogue says, because every member of a group can write the
    catalogue.
    """
    opened_store = open_store(store, load_private(key))
    output.print_row(
        OpenedStoreRow(opened_store.place), f"this machine can read the files in {opened_store.place} now"
    )


@app.command("prune", examples="dios tier prune s3://bucket/papers --group papers", json=PrunedStoreRow)
def prune(store: str = STORE_ARGUMENT, *, group: str = GROUP_OPTION, common: CommonOptions) -> None:
    """Remove what the store of a group has, and no file of the group needs any more.

    These are the rests of runs that broke off, and files that were brought back and are on as many nodes as
    promised now. The bytes of their replicas are compared with the digest before.
    """
    with opened(common.node, [group]) as place:
        files = place.files(group)
        tier_store = begin_store(store, None, files.group)
        with waiting("removing packs"):
            files.sweep()
            removed = prune_store(files, tier_store)
        common.print_row(
            PrunedStoreRow(tier_store.place, removed),
            f"removed {counted(removed, 'pack')} from {tier_store.place}",
        )


@app.command("forget", examples="dios tier forget papers/july.csv --yes", json=[ForgottenRow, FailedRow])
def forget(
    names: list[str] = FILES_ARGUMENT,
    *,
    group: str = IN_GROUP_OPTION,
    yes: bool = YES_OPTION,
    common: CommonOptions,
) -> None:
    """Remove tiered files from their group without their store, which may be lost: nobody can read them then.

    A local file stays, with its bytes, and only what a broken run noted of the store goes. `dios rm` removes
    a file with its bytes. Whatever the store has stays there, encrypted, until `dios tier prune`.
    """
    with opened(common.node) as place:
        listed = [_found(place, text, group) for text in names]
        for file in listed:
            if file.entry.tier is None:
                raise InvalidError(f"no store has {file.group}/{file.path}. `dios rm` removes it.")
        tiered = sum(file.entry.tiered for file in listed)
        confirm(f"forget {counted(tiered, 'tiered file')} for good", yes=yes)
        failures = Failures("failed")
        rows: list[ForgottenRow] = []
        for file in listed:
            path, store = f"{file.group}/{file.path}", file.entry.tier.place if file.entry.tier else ""
            with failures.going_on(path):
                forget_store(place.files(file.group), file.entry)
                rows.append(ForgottenRow(path, store))
        if common.as_json:
            write_json([*rows, *failures.rows()])
        else:
            say(f"forgot the stores of {counted(len(rows), 'file')}; what they have is of no use")
        failures.end()
