"""``dios group``: makes groups, and lists and forgets groups of the keyring."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from dios.cli.common.context import groups_of_keyring, opened
from dios.cli.common.output import FAILED, JsonOption, NodeOption, facts, reporting, say, table, write_json
from dios.client.keyring import Keyring
from dios.errors import InvalidError
from dios.lib.files.catalogue_places import CATALOGUE_ALIAS
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
    epilog="\b\nExamples:\n  dios group forget analytics\n"
    "  dios group forget analytics --yes     (asks nothing)"
)
def forget(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="Your name for the group.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Remove a group and its catalogue from your keyring, so that ALIAS is free again. No node is asked.

    Use this for groups of nodes that no longer exist. Nothing is destroyed, but without a group's name you
    cannot find its objects.
    """
    with reporting("dios group forget", as_json=as_json):
        keyring = Keyring.load()
        mark = fingerprint(keyring.name_of(alias)) if alias in keyring.groups else ""
        if mark and not yes:
            if not sys.stdin.isatty():
                raise InvalidError(f"this removes {alias} from your keyring for good; confirm with --yes")
            say(f"If group {alias} still exists, you will not find its objects any more.")
            if not typer.confirm(f"forget {alias}?", err=True):
                raise typer.Exit(FAILED)
        keyring.remove(alias)
        if CATALOGUE_ALIAS + alias in keyring.objects:
            keyring.remove(CATALOGUE_ALIAS + alias, section="objects")
        if as_json:
            write_json({"alias": alias, "fingerprint": mark})
        else:
            say(f"{alias} was removed from your keyring")
