"""``dios stat`` and ``dios replicate``: show the physical objects of a name, and make another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypedDict

import typer

from dios.cli.common.context import CommandContext, opened
from dios.cli.common.output import (
    InGroupOption,
    JsonOption,
    NodeOption,
    facts,
    reporting,
    say,
    size_text,
    table,
    time_text,
    waiting,
    write_json,
)
from dios.cli.nodes.members import silent
from dios.cli.objects.kept import why_text
from dios.client.sync.node import Reference
from dios.errors import DiosError
from dios.lib.kept.promises import Promises, ShortObject
from dios.wire.types import Persistence

app: Final = typer.Typer(rich_markup_mode=None)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A name, a file as put, or a fingerprint.")]


class AttributesRow(TypedDict):
    """The attributes of a physical object. v_r and v_w count commits, a_r and a_w active reads and writes."""

    persistence: str
    proximity: str
    size: int
    v_r: int
    v_w: int
    a_r: int
    a_w: int


class ReplicaRow(AttributesRow):
    """A replica: its node, its rack, and its id there."""

    node: str
    rack: str
    id: str


class MadeReplicaRow(ReplicaRow):
    """A replica that was made."""

    fingerprint: str


class StatRow(AttributesRow):
    """An object: the attributes of its nearest replica, and all replicas.

    ``incomplete`` if a node that may have more did not answer; ``short`` says how a promise is not kept.
    """

    type: str
    fingerprint: str
    permissions: list[str]
    replicas: list[ReplicaRow]
    incomplete: bool
    short: ShortObject | None


def _attributes(replica: Reference) -> AttributesRow:
    return {
        "persistence": replica.persistence.name.lower(),
        "proximity": replica.proximity.name.lower(),
        "size": replica.size,
        "v_r": replica.v_r,
        "v_w": replica.v_w,
        "a_r": replica.a_r,
        "a_w": replica.a_w,
    }


def _where(replica: Reference) -> ReplicaRow:
    return {
        "node": replica.node,
        "rack": replica.rack,
        **_attributes(replica),
        "id": f"{replica.object_id:016x}",
    }


@app.command(epilog="\b\nExamples:\n  dios stat a.txt\n  dios stat dios1… --json | jq .replicas")
def stat(
    name: NameArgument, *, group: InGroupOption = "", node: NodeOption = None, as_json: JsonOption = False
) -> None:
    """Show the public attributes of an object, and in a cluster each of its replicas.

    A replica is a physical object of the same name: on some node, in memory or durable, with its own
    versions. The first is the nearest, which other commands use. v_r and v_w count committed reads and
    writes, a_r and a_w the active ones.
    """
    with reporting("dios stat", as_json=as_json), opened(node) as place:
        replicas = place.replicas(name, group)
        nearest = replicas[0]
        where = [_where(replica) for replica in replicas]
        short = _short(place, nearest.fingerprint) if nearest.node else None
        found: StatRow = {
            "type": nearest.type.name,
            "fingerprint": nearest.fingerprint,
            "permissions": [right.name.lower() for right in nearest.permissions if right.name],
            **_attributes(nearest),
            "replicas": where,
            "incomplete": replicas.incomplete,
            "short": short,
        }
        if as_json:
            write_json(found)
            return
        size = f"{nearest.size} bytes ({size_text(nearest.size)})"
        facts(
            [
                ("type", found["type"]),
                ("fingerprint", found["fingerprint"]),
                ("permissions", " ".join(found["permissions"])),
                *((key, str(value)) for key, value in {**_attributes(nearest), "size": size}.items()),
            ]
        )
        if nearest.node or len(replicas) > 1:
            _show_replicas(where)
        if short is not None:
            since = time_text(short.since * 10**9)
            say(f"{short.current} of {short.wanted} promised replicas, since {since}: {why_text(short)}")
        if replicas.incomplete:
            say(f"{silent(place.node.nodes())} did not answer and may have more replicas; see `dios node ls`")


def _short(place: CommandContext, mark: str) -> ShortObject | None:
    """Return how the object is short of its promise, as far as the keeper says so."""
    try:
        return next((one for one in Promises(place.node).short_objects() if one.fingerprint == mark), None)
    except DiosError:
        return None


def _show_replicas(rows: Sequence[Mapping[str, object]]) -> None:
    shown = ("node", "rack", "persistence", "proximity", "size", "v_r", "v_w", "id")
    table(
        tuple(key.upper() for key in shown),
        [tuple(str(row[key]) or "-" for key in shown) for row in rows],
        right=("SIZE", "V_R", "V_W"),
    )


@app.command(epilog="\b\nExamples:\n  dios replicate a.txt --to n2\n  dios replicate a.txt --to n3 --durable")
def replicate(
    name: NameArgument,
    *,
    to: Annotated[str, typer.Option("--to", metavar="NODE", help="The node of the new replica.")],
    durable: Annotated[
        bool, typer.Option("--durable", help="Store it on disk; default: like the copied object.")
    ] = False,
    group: InGroupOption = "",
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a replica of an object on another node: same name, same groups, same bytes.

    The bytes are verified on arrival. The replicas are independent: a write to one does not change the
    others.
    """
    with reporting("dios replicate", as_json=as_json), opened(node) as place:
        source = place.object(name, group)
        with waiting(f"copying {size_text(source.size)} to {to}"):
            made = source.copy(host=to, persistence=Persistence.DURABLE if durable else None)
        if as_json:
            row: MadeReplicaRow = {"fingerprint": made.fingerprint, **_where(made)}
            write_json(row)
        else:
            say(
                f"{size_text(made.size)} {made.persistence.name.lower()} on {made.node or to}; "
                f"next: dios stat {made.fingerprint}"
            )
