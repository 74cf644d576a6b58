"""``dios-node orphans``: lists and removes stored objects that nobody can reach any more.

``dios.store.orphans`` does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import option
from dios.cli.common.output import counted, size_text
from dios.cli.common.results import OutputOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.target import DATA_OPTION, data_or_default
from dios.client.keyring import Keyring
from dios.ids import Name
from dios.node.settings import load

app: Final = CommandApplication()


class StoredOrphanRow(Row):
    """A stored object that nobody can reach: the fingerprints of its groups, and the reason."""

    fingerprint: str
    type: str
    owner: str
    size: int
    groups: list[str]
    reason: str
    removed: bool


@app.command(
    examples="dios-node orphans --data ./node0\ndios-node orphans --data ./node0 --remove 3f2a90c1b7de\n"
    "dios-node orphans --data ./node0 --keyring ~/backup/keyring.toml --json",
    json=[StoredOrphanRow],
)
def orphans(
    *,
    data: Path | None = DATA_OPTION,
    remove: list[str] | None = option("--remove FINGERPRINT", "Delete this orphaned object for good."),
    keyring: list[Path] | None = option("--keyring FILE", "Another keyring with names that are not lost."),
    output: OutputOptions,
) -> None:
    """List the stored objects of a stopped node that nobody can reach, or remove some of them.

    An object is listed if it is in no group, if this node has none of its groups, or, for your own objects,
    if no keyring has the name of one of its groups. Names that are kept elsewhere are not known here: give
    other keyrings with --keyring. Fingerprints are shown and never names. Stop the node first.
    """
    # Imported late, so that commands that start or stop a node load no database.
    from dios.store.check import hold_directory  # noqa: PLC0415 - see above
    from dios.store.orphans import chosen_orphans, find_orphans, remove_orphans  # noqa: PLC0415 - see above

    settings = load(data_or_default(data), environ={})
    known: set[Name] = set(Keyring.load().groups.values())
    for path in keyring or ():
        known |= set(Keyring.load(path).groups.values())
    with hold_directory(settings.data):
        stored = find_orphans(settings.data, known, f"uid:{settings.data.stat().st_uid}")
    removed = chosen_orphans(stored, remove or ())
    if removed:
        remove_orphans(settings.data, removed, map_bytes=settings.map_bytes)
    output.print_rows(
        [
            StoredOrphanRow.of(orphan, type=orphan.type.name, removed=bool(remove))
            for orphan in (removed if remove else stored)
        ],
        lambda row: {
            "object": row.fingerprint,
            "type": row.type,
            "owner": row.owner,
            "size": size_text(row.size),
            "why": row.reason,
        },
        [
            f"removed {len(removed)} of {counted(len(stored), 'orphaned object')} for good"
            if remove
            else "next: dios-node orphans --remove FINGERPRINT deletes one for good"
        ],
        empty="every stored object can be reached, as far as the keyrings show",
    )
