"""``dios stat`` and ``dios replicate``: show the physical objects of a name, and make another one."""

from __future__ import annotations

from typing import Final

from dios.cli.common.application import CommandApplication, Output
from dios.cli.common.context import CataloguedFile, CommandContext, opened
from dios.cli.common.failures import FailedRow, Failures
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    Cells,
    counted,
    size_text,
    time_text,
    transfer,
    waiting,
)
from dios.cli.common.results import IN_GROUP_OPTION, CommonOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.members import silent
from dios.cli.objects.kept import why_text
from dios.client.ops.cluster import Gathered
from dios.client.sync.node import Reference
from dios.errors import DiosError
from dios.lib.kept.promises import Promises
from dios.lib.kept.records import ShortObject
from dios.wire.nametext import fingerprint
from dios.wire.types import Persistence

app: Final = CommandApplication()

NAME_ARGUMENT: Final[str] = argument("NAME", "A name, a file as put, or a fingerprint.")


class AttributesRow(Row):
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


class PartsPlaceRow(Row):
    """The parts of a large file that a node has, with the bytes of their replicas."""

    node: str
    rack: str
    parts: int
    size: int


class PartsRow(Row):
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


class TieredRow(Row):
    """A tiered file, which has no object in the cluster: the store where its bytes are."""

    type: str
    path: str
    fingerprint: str
    size: int
    store: str
    local_left: bool


def _replica_row(replica: Reference) -> ReplicaRow:
    return ReplicaRow.of(replica, id=f"{replica.object_id:016x}")


@app.command(
    examples="dios stat a.txt\ndios stat dios1… --json | jq .replicas", json=(StatRow, PartsRow, TieredRow)
)
def stat(
    name: str = NAME_ARGUMENT,
    *,
    group: str = IN_GROUP_OPTION,
    verbose: bool = option("-v --verbose", "Also show how often it was read and written."),
    common: CommonOptions,
) -> None:
    """Show the public attributes of an object, and in a cluster each of its replicas.

    A replica is a physical object of the same name: on some node, in memory or durable, with its own
    versions. The first is the nearest, which other commands use. For a large file, which is stored in parts,
    it shows how many of them each node has, and for a tiered one the store where its bytes are.

    With --verbose the versions follow: v_r and v_w count the committed reads and writes of the replica, and
    a_r and a_w those that are active now.
    """
    with opened(common.node) as place:
        listed = place.find(name, group)[1]
        if listed is not None and listed.entry.tiered:
            _stat_tiered(listed, common)
        elif listed is not None and listed.entry.in_parts:
            _stat_parts(place, listed, common)
        else:
            _stat_object(place, place.replicas(name, group), common, verbose=verbose)


def _stat_object(
    place: CommandContext, replicas: Gathered[Reference], common: CommonOptions, *, verbose: bool
) -> None:
    """Show an object and its replicas."""
    nearest = replicas[0]
    short = next((short for short in _all_short(place) if short.fingerprint == nearest.fingerprint), None)
    row = StatRow.of(
        nearest,
        type=nearest.type.name,
        permissions=[right.name.lower() for right in nearest.permissions if right.name],
        replicas=[_replica_row(replica) for replica in replicas],
        incomplete=replicas.incomplete,
        short=short,
    )
    notices = []
    if short is not None:
        since, why = time_text(short.since * 10**9), why_text(short.reason, short.conflict)
        promised = counted(short.wanted, "promised replica")
        notices.append(f"{short.current} of {promised}, since {since}: {why}")
    if replicas.incomplete and not common.as_json:
        notices.append(_incomplete_text(place))
    several = bool(nearest.node) or len(replicas) > 1
    common.print_row(
        row,
        *notices,
        facts={
            "type": row.type,
            "fingerprint": row.fingerprint,
            "permissions": " ".join(row.permissions),
            "secrecy": " ".join(row.secrecy) or "none",
            "persistence": row.persistence,
            "proximity": row.proximity,
            "size": _size_text(row.size),
            "reads": f"committed (v_r): {row.v_r}, active (a_r): {row.a_r}" if verbose else None,
            "writes": f"committed (v_w): {row.v_w}, active (a_w): {row.a_w}" if verbose else None,
        },
        table=(_replica_cells(replica, verbose=verbose) for replica in row.replicas if several),
    )


def _replica_cells(row: ReplicaRow, *, verbose: bool) -> Cells:
    versions: Cells = {"V_R": row.v_r, "V_W": row.v_w, "ID": row.id}
    return {
        "NODE": row.node or None,
        "RACK": row.rack or None,
        "PERSISTENCE": row.persistence,
        "PROXIMITY": row.proximity,
        "SIZE": row.size,
        **(versions if verbose else {}),
    }


def _size_text(size: int) -> str:
    return f"{counted(size, 'byte')} ({size_text(size)})"


def _incomplete_text(place: CommandContext) -> str:
    return f"{silent(place.node.nodes())} did not answer and may have more replicas; see `dios node ls`"


def _stat_tiered(listed: CataloguedFile, common: CommonOptions) -> None:
    """Show a tiered file: the place of its bytes."""
    tier, size = listed.entry.tier, listed.entry.size
    path, store = f"{listed.group}/{listed.path}", tier.place if tier else ""
    row = TieredRow("TIERED", path, listed.fingerprint, size, store, bool(tier and tier.left))
    left = ["local objects may remain, because a run broke off; next: the same `dios tier out` again"]
    common.print_row(
        row,
        *(left if row.local_left else ()),
        facts={
            "type": row.type,
            "path": path,
            "fingerprint": row.fingerprint,
            "size": _size_text(size),
            "store": store,
        },
    )


def _stat_parts(place: CommandContext, listed: CataloguedFile, common: CommonOptions) -> None:
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
    row = PartsRow(
        type="FILE",
        path=f"{listed.group}/{listed.path}",
        fingerprint=listed.fingerprint,
        size=entry.size,
        parts=len(marks),
        part_bytes=entry.part_bytes,
        replicas=[
            PartsPlaceRow(node, rack, len(sizes), sum(sizes)) for (node, rack), sizes in sorted(on.items())
        ],
        lost=lost,
        incomplete=incomplete,
        short=[short for short in _all_short(place) if short.fingerprint in marks],
    )
    notices = []
    if row.short:
        why = why_text(row.short[0].reason, row.short[0].conflict)
        notices.append(f"fewer replicas than promised: {counted(len(row.short), 'part')}, {why}")
    if lost:
        notices.append(f"on no node that answers: {counted(lost, 'part')}")
    if incomplete and not common.as_json:
        notices.append(_incomplete_text(place))
    common.print_row(
        row,
        *notices,
        facts={
            "type": row.type,
            "path": row.path,
            "fingerprint": row.fingerprint,
            "size": _size_text(row.size),
            "parts": f"{row.parts} of {size_text(row.part_bytes)}",
        },
        table=(
            {
                "NODE": holder.node or None,
                "RACK": holder.rack or None,
                "PARTS": holder.parts,
                "SIZE": size_text(holder.size),
            }
            for holder in row.replicas
        ),
    )


def _all_short(place: CommandContext) -> list[ShortObject]:
    """Return the objects that are short of their promises; none on a node of no cluster."""
    try:
        return Promises(place.node).short_objects() if place.here() is not None else []
    except DiosError:
        return []


@app.command(
    examples="dios replicate a.txt --on n2\ndios replicate a.txt --on n3 --durable",
    json=Output(
        (
            MadeReplicaRow,
            FailedRow,
        ),
        many=None,
    ),
)
def replicate(
    name: str = NAME_ARGUMENT,
    *,
    on: str = option("--on NODE", "The node of the new replica.", required=True),
    durable: bool = option("--durable", "Store it on disk; default: like the copied object."),
    group: str = IN_GROUP_OPTION,
    common: CommonOptions,
) -> None:
    """Make a replica of an object on another node: same name, same groups, same bytes.

    The bytes come from a replica that can be read, and are verified on arrival. The replicas are independent:
    a write to one does not change the others.
    """
    with opened(common.node) as place:
        persistence = Persistence.DURABLE if durable else None
        listed = place.find(name, group)[1]
        if listed is not None and listed.entry.in_parts:
            _replicate_parts(place, listed, on, persistence, common)
            return
        source = place.object(name, group)
        with waiting(f"copying {size_text(source.size)} to {on}"):
            copy = source.copy(host=on, persistence=persistence)
        common.print_row(
            _copy_row(copy),
            f"{size_text(copy.size)} {copy.persistence.name.lower()} on {copy.node or on}; "
            f"next: dios stat {copy.fingerprint}",
        )


def _copy_row(copy: Reference) -> MadeReplicaRow:
    return MadeReplicaRow.of(copy, id=f"{copy.object_id:016x}")


def _replicate_parts(
    place: CommandContext,
    listed: CataloguedFile,
    to: str,
    persistence: Persistence | None,
    common: CommonOptions,
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
                        copies.append(_copy_row(copy))
            moved(entry.size_of_part(number))
    size = sum(row.size for row in copies)
    common.print_row(
        [*copies, *failures.rows()],
        f"copied {counted(len(copies), 'part')} ({size_text(size)}) to {to}; "
        f"next: dios stat {listed.fingerprint}",
    )
    failures.end()
