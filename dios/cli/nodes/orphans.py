"""``dios-node orphans``: lists and removes stored objects that nobody can reach any more.

``dios.store.orphans`` does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.output import JsonOption, counted, reporting, say, size_text, table, write_json
from dios.client.keyring import Keyring
from dios.client.locate import resolve_node
from dios.ids import Name
from dios.node.settings import load

app: Final = CommandApplication()


class StoredOrphanRow(TypedDict):
    """A stored object that nobody can reach: the fingerprints of its groups, and the reason."""

    fingerprint: str
    type: str
    owner: str
    size: int
    groups: list[str]
    reason: str
    removed: bool


@app.command(
    epilog="\b\nExamples:\n"
    "  dios-node orphans --data ./node0\n"
    "  dios-node orphans --data ./node0 --remove 3f2a90c1b7de\n"
    "  dios-node orphans --data ./node0 --keyring ~/backup/keyring.toml --json"
)
def orphans(
    *,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="The node's data directory; default: the default node's."),
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option("--remove", metavar="FINGERPRINT", help="Delete this orphaned object for good."),
    ] = None,
    keyring: Annotated[
        list[Path] | None,
        typer.Option("--keyring", metavar="FILE", help="Another keyring with names that are not lost."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the stored objects of a stopped node that nobody can reach, or remove some of them.

    An object is listed if it is in no group, if this node has none of its groups, or, for your own objects,
    if no keyring has the name of one of its groups. Names that are kept elsewhere are not known here: give
    other keyrings with --keyring. Fingerprints are shown and never names. Stop the node first.
    """
    # Imported late, so that commands that start or stop a node load no database.
    from dios.store.check import hold_directory  # noqa: PLC0415 - see above
    from dios.store.orphans import chosen_orphans, find_orphans, remove_orphans  # noqa: PLC0415 - see above

    with reporting("dios-node orphans", as_json=as_json):
        settings = load(resolve_node(None).resolve().parent if data is None else data, environ={})
        known: set[Name] = set(Keyring.load().groups.values())
        for path in keyring or ():
            known |= set(Keyring.load(path).groups.values())
        with hold_directory(settings.data):
            stored = find_orphans(settings.data, known, f"uid:{settings.data.stat().st_uid}")
        removed = chosen_orphans(stored, remove or ())
        if removed:
            remove_orphans(settings.data, removed, map_bytes=settings.map_bytes)
        shown = removed if remove else stored
        if as_json:
            listed: list[StoredOrphanRow] = [
                {
                    "fingerprint": orphan.fingerprint,
                    "type": orphan.type.name,
                    "owner": orphan.owner,
                    "size": orphan.size,
                    "groups": list(orphan.groups),
                    "reason": orphan.reason,
                    "removed": bool(remove),
                }
                for orphan in shown
            ]
            write_json(listed)
            return
        if not shown:
            say("every stored object can be reached, as far as the keyrings show")
            return
        rows = [
            [orphan.fingerprint, orphan.type.name, orphan.owner, size_text(orphan.size), orphan.reason]
            for orphan in shown
        ]
        table(("object", "type", "owner", "size", "why"), rows, right=("size",))
        if remove:
            say(f"removed {len(removed)} of {counted(len(stored), 'orphaned object')} for good")
        else:
            say("next: dios-node orphans --remove FINGERPRINT deletes one for good")
