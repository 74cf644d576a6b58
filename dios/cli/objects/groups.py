"""``dios group``: makes groups, sets the replicas of their files, and lists, destroys and forgets them."""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Final

import typer

from dios.cli.common.context import groups_of_keyring, opened
from dios.cli.common.output import (
    JsonOption,
    NodeOption,
    YesOption,
    confirm,
    facts,
    reporting,
    say,
    size_text,
    table,
    time_text,
    write_json,
)
from dios.cli.objects.kept import kept_text, why_text
from dios.cli.objects.removal import all_targets, destroy_targets, require_none_left
from dios.client.keyring import Keyring
from dios.errors import InvalidError
from dios.lib.files.catalogue_places import CATALOGUE_ALIAS, KeyringCatalogue
from dios.lib.files.tree import is_directory
from dios.lib.kept.promises import KeptStatus, Promises, ShortObject
from dios.wire.nametext import fingerprint, format_name

app: Final = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Groups: the namespaces that objects are in."
)


@app.command(epilog="\b\nExamples:\n  dios group create analytics\n  dios put data/*.txt --group analytics")
def create(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a group, and keep its name in your keyring under ALIAS.

    Everybody who can read your keyring is a member of the group. The file has mode 0600; keep it that way.
    """
    with reporting("dios group create", as_json=as_json), opened(node) as place:
        group = place.make_group(alias)
        name = place.keyring.groups[alias]
        if as_json:
            write_json({"alias": alias, "fingerprint": group.fingerprint, "name": format_name(name)})
            return
        facts([("group", alias), ("fingerprint", group.fingerprint), ("keyring", str(place.keyring.path))])
        say(f"next: dios put FILE --group {alias}")


class Apart(StrEnum):
    """Things that fail together."""

    NODE = "node"
    RACK = "rack"


@app.command(
    "set",
    epilog="\b\nExamples:\n  dios group set papers --replicas 3 --apart rack\n"
    "  dios group set papers --replicas 0     (no promise any more; nothing is removed)",
)
def set_group(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    replicas: Annotated[
        int,
        typer.Option("--replicas", metavar="N", help="Durable replicas of a file; 0 ends this."),
    ],
    apart: Annotated[
        Apart, typer.Option("--apart", help="Spread them over nodes, or over racks where there are several.")
    ] = Apart.NODE,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Promise a number of replicas for all files of a group, those that are put later included.

    The cluster makes them, restores their number when a node is lost, and moves them off nodes that drain.
    They count with you on the nodes where they are. `dios group describe` shows if the promise is kept.
    """
    with reporting("dios group set", as_json=as_json), opened(node, [alias]) as place:
        group = place.group(alias)
        promises = Promises(place.node)
        if replicas:
            catalogue = KeyringCatalogue(place.node, place.keyring, alias, group).create()
            promises.keep_group(group, catalogue, label=alias, replicas=replicas, apart=apart is Apart.RACK)
        else:
            promises.end(group.fingerprint)
        if as_json:
            write_json({"alias": alias, "fingerprint": group.fingerprint, "replicas": replicas})
        elif replicas:
            say(f"{replicas} replicas of each file of {alias}; next: dios group describe {alias}")
        else:
            say(f"no number of replicas is promised for {alias} any more; existing replicas stay")


@app.command(
    "describe", epilog="\b\nExamples:\n  dios group describe papers\n  dios group describe papers --json"
)
def describe_group(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a group: its files, its promised replicas, and the files that are short of them and since when."""
    with reporting("dios group describe", as_json=as_json), opened(node, [alias]) as place:
        group = place.group(alias)
        entries = [entry for entry in place.entries(alias) if not is_directory(entry)]
        promises = Promises(place.node)
        promise = promises.promise(group)
        files = {fingerprint(entry.name): entry.file for entry in entries}
        short = [] if promise is None else _short_of(promises, files, promise)
        if as_json:
            write_json(
                {
                    "alias": alias,
                    "fingerprint": group.fingerprint,
                    "files": len(entries),
                    "size": sum(entry.size for entry in entries),
                    "promise": None if promise is None else asdict(promise),
                    "short": [{"file": file, **asdict(one)} for file, one in short],
                }
            )
            return
        size = size_text(sum(entry.size for entry in entries))
        shown = [
            ("group", alias),
            ("fingerprint", group.fingerprint),
            ("files", f"{len(entries)} ({size})"),
            ("replicas", "no number is promised" if promise is None else _wish_text(promise)),
        ]
        if promise is not None:
            shown += [("kept", kept_text(promise)), ("keeper", promise.leader or "none yet")]
        facts(shown)
        if short:
            table(
                ("FILE", "REPLICAS", "SINCE", "WHY"),
                [
                    (file, f"{one.current} of {one.wanted}", time_text(one.since * 10**9), why_text(one))
                    for file, one in short
                ],
            )


def _short_of(
    promises: Promises, files: dict[str, str], promise: KeptStatus
) -> list[tuple[str, ShortObject]]:
    found = [one for one in promises.short_objects() if one.promise == promise.key]
    return sorted((files.get(one.fingerprint, "(the list of the files)"), one) for one in found)


def _wish_text(promise: KeptStatus) -> str:
    return (
        f"{promise.replicas} of each file, {'in different racks' if promise.apart else 'on different nodes'}"
    )


@app.command("ls", epilog="\b\nExamples:\n  dios group ls\n  dios group ls --json")
def list_groups(*, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """List the groups of your keyring, and show which of them this node knows."""
    with reporting("dios group ls", as_json=as_json):
        rows = [(alias, mark, here) for alias, (mark, here) in groups_of_keyring(node).items()]
        if as_json:
            write_json([{"alias": alias, "fingerprint": mark, "here": here} for alias, mark, here in rows])
        elif rows:
            table(
                ("GROUP", "FINGERPRINT", "ON THIS NODE"),
                [(alias, mark, "yes" if here else "no") for alias, mark, here in rows],
            )
        else:
            say("your keyring has no groups; next: dios group create ALIAS")


@app.command(
    "rm",
    epilog="\b\nExamples:\n  dios group rm papers          (only if it has no files)\n"
    "  dios group rm papers --all    (asks, then destroys its files, too)",
)
def remove_group(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    everything: Annotated[bool, typer.Option("--all", help="Destroy its files, too.")] = False,
    yes: YesOption = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Destroy a group, with its catalogue and the promise of its replicas, and remove it from your keyring.

    A group with files is refused without --all. Objects of programs, which no catalogue lists, are not
    destroyed, but nobody finds them any more. If a node does not answer, the group stays.
    """
    with reporting("dios group rm", as_json=as_json), opened(node, [alias]) as place:
        group = place.group(alias)
        targets = all_targets(place, alias)
        files = sum(bool(each.name) for each in targets)
        if files and not everything:
            raise InvalidError(f"group {alias} has {files} files. Add --all to destroy them, too.")
        confirm(f"destroy group {alias} and its {files} files", yes=yes)
        _, left = destroy_targets(place, targets)
        require_none_left(place, left)
        if place.here() is not None and Promises(place.node).promise(group) is not None:
            Promises(place.node).end(group.fingerprint)
        for catalogue in KeyringCatalogue(place.node, place.keyring, alias, group).replicas():
            catalogue.destroy()
        mark = group.fingerprint
        group.destroy()
        _remove_alias(place.keyring, alias)
        if as_json:
            write_json({"alias": alias, "fingerprint": mark, "files": files})
        else:
            say(f"group {alias} and its {files} files were destroyed")


def _remove_alias(keyring: Keyring, alias: str) -> None:
    keyring.remove(alias)
    if CATALOGUE_ALIAS + alias in keyring.objects:
        keyring.remove(CATALOGUE_ALIAS + alias, section="objects")


@app.command(
    epilog="\b\nExamples:\n  dios group forget analytics\n"
    "  dios group forget analytics --yes     (asks nothing)"
)
def forget(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a group and its catalogue from your keyring, so that ALIAS is free again. No node is asked.

    Use this for groups of nodes that no longer exist. Nothing is destroyed, but without a group's name you
    cannot find its objects.
    """
    with reporting("dios group forget", as_json=as_json):
        keyring = Keyring.load()
        mark = fingerprint(keyring.name_of(alias)) if alias in keyring.groups else ""
        if mark:
            say(f"If group {alias} still exists, you will not find its objects any more.")
            confirm(f"remove {alias} from your keyring", yes=yes)
        _remove_alias(keyring, alias)
        if as_json:
            write_json({"alias": alias, "fingerprint": mark})
        else:
            say(f"{alias} was removed from your keyring")
