"""``dios group``: make groups and list those of the keyring.

Not for: what is in them (``dios.cli.objects``).
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from dios.cli.output import JsonOption, NodeOption, facts, reporting, say, table, write_json
from dios.cli.place import groups_of_keyring, opened
from dios.wire.nametext import format_name

app: Final = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Groups: the namespaces that objects are in."
)


@app.command(epilog="\b\nExamples:\n  dios group create analytics\n  dios put data/*.txt --group analytics")
def create(
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="What you will call it.")],
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a group, and keep its name in your keyring under ALIAS.

    Whoever has the keyring is a member of the group: the file has mode 0600, keep it so.
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
    """List the groups of your keyring, and whether this node knows them."""
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
