"""``dios stat`` and ``dios replicate``: show the physical objects of a name, and make another one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CataloguedFile, CommandContext, opened
from dios.cli.common.failures import Failures
from dios.cli.common.output import (
    InGroupOption,
    JsonOption,
    NodeOption,
    counted,
    facts,
    reporting,
    say,
    size_text,
    table,
    time_text,
    transfer,
    waiting,
    write_json,
)
from dios.cli.nodes.members import silent
from dios.cli.objects.kept import why_text
from dios.client.sync.node import Reference
from dios.errors import DiosError
from dios.lib.kept.promises import Promises
from dios.lib.kept.report import ShortObject
from dios.wire.nametext import fingerprint
from dios.wire.types import Persistence

app: Final = CommandApplication()

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
    secrecy: list[str]
    replicas: list[ReplicaRow]
    incomplete: bool
    short: ShortObject | None


class PartsPlaceRow(TypedDict):
    """The parts of a large file that a node has, with the bytes of their replicas."""

    node: str
    rack: str
    parts: int
    size: int


class PartsRow(TypedDict):
    """A file in parts: their number, and the nodes that have some of them.

    ``lost`` is the number of parts that no node has which answered; ``short`` lists the parts with fewer
    replicas than promised.
    """

    type: str
    path: str
    fingerprint: str
    size: int
    parts: int
    part_bytes: int
    replicas: list[PartsPlaceRow]
    lost: int
    incomplete: bool
    short: list[ShortObject]


class TieredRow(TypedDict):
    """A tiered file, which has no object in the cluster: the store where its bytes are."""

    type: str
    path: str
    fingerprint: str
    size: int
    store: str
    local_left: bool


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
    name: NameArgument,
    *,
    group: InGroupOption = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also show how often it was read and written.")
    ] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the public attributes of an object, and in a cluster each of its replicas.

    A replica is a physical object of the same name: on some node, in memory or durable, with its own
    versions. The first is the nearest, which other commands use. For a large file, which is stored in parts,
    it shows how many of them each node has, and for a tiered one the store where its bytes are.

    With --verbose the versions follow: v_r and v_w count the committed reads and writes of the replica, and
    a_r and a_w those that are active now.
    """
    with reporting("dios stat", as_json=as_json), opened(node) as place:
        listed = place.find(name, group)[1]
        if listed is not None and listed.entry.tiered:
            _stat_tiered(listed, as_json=as_json)
            return
        if listed is not None and listed.entry.in_parts:
            _stat_parts(place, listed, as_json=as_json)
            return
        replicas = place.replicas(name, group)
        nearest = replicas[0]
        replica_rows = [_where(replica) for replica in replicas]
        short = _short(place, nearest.fingerprint)
        row: StatRow = {
            "type": nearest.type.name,
            "fingerprint": nearest.fingerprint,
            "permissions": [right.name.lower() for right in nearest.permissions if right.name],
            "secrecy": list(nearest.secrecy),
            **_attributes(nearest),
            "replicas": replica_rows,
            "incomplete": replicas.incomplete,
            "short": short,
        }
        if as_json:
            write_json(row)
            return
        size = f"{counted(nearest.size, 'byte')} ({size_text(nearest.size)})"
        facts(
            [
                ("type", row["type"]),
                ("fingerprint", row["fingerprint"]),
                ("permissions", " ".join(row["permissions"])),
                ("secrecy", " ".join(row["secrecy"]) or "none"),
                ("persistence", replica_rows[0]["persistence"]),
                ("proximity", replica_rows[0]["proximity"]),
                ("size", size),
                *(_versions(nearest) if verbose else ()),
            ]
        )
        if nearest.node or len(replicas) > 1:
            _show_replicas(replica_rows, verbose=verbose)
        if short is not None:
            since = time_text(short.since * 10**9)
            say(
                f"{short.current} of {counted(short.wanted, 'promised replica')}, since {since}: "
                f"{why_text(short)}"
            )
        if replicas.incomplete:
            say(f"{silent(place.node.nodes())} did not answer and may have more replicas; see `dios node ls`")


def _stat_tiered(listed: CataloguedFile, *, as_json: bool) -> None:
    """Show a tiered file: the place of its bytes."""
    entry = listed.entry
    row: TieredRow = {
        "type": "TIERED",
        "path": f"{listed.group}/{listed.path}",
        "fingerprint": listed.fingerprint,
        "size": entry.size,
        "store": entry.tier.place if entry.tier else "",
        "local_left": entry.tier is not None and entry.tier.left,
    }
    if as_json:
        write_json(row)
        return
    facts(
        [
            ("type", "TIERED"),
            ("path", row["path"]),
            ("fingerprint", row["fingerprint"]),
            ("size", f"{counted(entry.size, 'byte')} ({size_text(entry.size)})"),
            ("store", row["store"]),
        ]
    )
    if row["local_left"]:
        say("local objects may remain, because a run broke off; next: the same `dios tier out` again")


def _stat_parts(place: CommandContext, listed: CataloguedFile, *, as_json: bool) -> None:
    """Show a file in parts: the nodes with the number of parts that each has."""
    entry, files = listed.entry, place.files(listed.group)
    on: dict[tuple[str, str], list[int]] = {}
    lost, incomplete = 0, False
    with waiting("looking up the parts"):
        for name in entry.names:
            replicas = place.node.lookup(name, group=files.group)
            lost += not replicas
            incomplete = incomplete or replicas.incomplete
            for replica in replicas:
                on.setdefault((replica.node, replica.rack), []).append(replica.size)
                replica.close()
    marks = {fingerprint(name) for name in entry.names}
    row: PartsRow = {
        "type": "FILE",
        "path": f"{listed.group}/{listed.path}",
        "fingerprint": listed.fingerprint,
        "size": entry.size,
        "parts": len(marks),
        "part_bytes": entry.part_bytes,
        "replicas": [
            {"node": node, "rack": rack, "parts": len(sizes), "size": sum(sizes)}
            for (node, rack), sizes in sorted(on.items())
        ],
        "lost": lost,
        "incomplete": incomplete,
        "short": [short_object for short_object in _all_short(place) if short_object.fingerprint in marks],
    }
    if as_json:
        write_json(row)
        return
    facts(
        [
            ("type", "FILE"),
            ("path", row["path"]),
            ("fingerprint", row["fingerprint"]),
            ("size", f"{counted(entry.size, 'byte')} ({size_text(entry.size)})"),
            ("parts", f"{len(marks)} of {size_text(entry.part_bytes)}"),
        ]
    )
    table(
        ("NODE", "RACK", "PARTS", "SIZE"),
        [
            (
                node_row["node"] or "-",
                node_row["rack"] or "-",
                str(node_row["parts"]),
                size_text(node_row["size"]),
            )
            for node_row in row["replicas"]
        ],
        right=("PARTS", "SIZE"),
    )
    if row["short"]:
        parts = counted(len(row["short"]), "part")
        say(f"fewer replicas than promised: {parts}, {why_text(row['short'][0])}")
    if lost:
        say(f"on no node that answers: {counted(lost, 'part')}")
    if incomplete:
        say(f"{silent(place.node.nodes())} did not answer and may have more replicas; see `dios node ls`")


def _short(place: CommandContext, mark: str) -> ShortObject | None:
    """Return how the object is short of its promise, as far as the keeper says so."""
    return next(
        (short_object for short_object in _all_short(place) if short_object.fingerprint == mark), None
    )


def _all_short(place: CommandContext) -> list[ShortObject]:
    """Return the objects that are short of their promises; none on a node of no cluster."""
    try:
        return Promises(place.node).short_objects() if place.here() is not None else []
    except DiosError:
        return []


def _versions(replica: Reference) -> list[tuple[str, str]]:
    return [
        ("reads", f"committed (v_r): {replica.v_r}, active (a_r): {replica.a_r}"),
        ("writes", f"committed (v_w): {replica.v_w}, active (a_w): {replica.a_w}"),
    ]


def _show_replicas(rows: Sequence[Mapping[str, object]], *, verbose: bool) -> None:
    shown = ("node", "rack", "persistence", "proximity", "size", *(("v_r", "v_w", "id") if verbose else ()))
    table(
        tuple(key.upper() for key in shown),
        [tuple(str(row[key]) or "-" for key in shown) for row in rows],
        right=("SIZE", "V_R", "V_W") if verbose else ("SIZE",),
    )


@app.command(epilog="\b\nExamples:\n  dios replicate a.txt --on n2\n  dios replicate a.txt --on n3 --durable")
def replicate(
    name: NameArgument,
    *,
    on: Annotated[str, typer.Option("--on", metavar="NODE", help="The node of the new replica.")],
    durable: Annotated[
        bool, typer.Option("--durable", help="Store it on disk; default: like the copied object.")
    ] = False,
    group: InGroupOption = "",
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a replica of an object on another node: same name, same groups, same bytes.

    The bytes come from a replica that can be read, and are verified on arrival. The replicas are independent:
    a write to one does not change the others.
    """
    with reporting("dios replicate", as_json=as_json), opened(node) as place:
        persistence = Persistence.DURABLE if durable else None
        listed = place.find(name, group)[1]
        if listed is not None and listed.entry.in_parts:
            _replicate_parts(place, listed, on, persistence, as_json=as_json)
            return
        source = place.object(name, group)
        with waiting(f"copying {size_text(source.size)} to {on}"):
            copy = source.copy(host=on, persistence=persistence)
        if as_json:
            row: MadeReplicaRow = {"fingerprint": copy.fingerprint, **_where(copy)}
            write_json(row)
        else:
            say(
                f"{size_text(copy.size)} {copy.persistence.name.lower()} on {copy.node or on}; "
                f"next: dios stat {copy.fingerprint}"
            )


def _replicate_parts(
    place: CommandContext,
    listed: CataloguedFile,
    to: str,
    persistence: Persistence | None,
    *,
    as_json: bool,
) -> None:
    """Make a replica of each part of a large file that the node does not have yet."""
    entry, files = listed.entry, place.files(listed.group)
    parts, failures = files.parts(entry), Failures("failed")
    copies: list[MadeReplicaRow] = []
    with transfer("replicate", entry.size) as moved:
        for number, name in enumerate(entry.names):
            with failures.going_on(f"part {number + 1} of {listed.group}/{listed.path}"):
                replicas = place.node.lookup(name, group=files.group)
                for replica in replicas:
                    replica.close()
                if all(existing.node != to for existing in replicas):
                    with (
                        parts.reference(number) as source,
                        source.copy(host=to, persistence=persistence) as copy,
                    ):
                        copies.append({"fingerprint": copy.fingerprint, **_where(copy)})
            moved(entry.size_of_part(number))
    if as_json:
        write_json([*copies, *failures.rows()])
    else:
        size = sum(row["size"] for row in copies)
        say(
            f"copied {counted(len(copies), 'part')} ({size_text(size)}) to {to}; "
            f"next: dios stat {listed.fingerprint}"
        )
    failures.end()
