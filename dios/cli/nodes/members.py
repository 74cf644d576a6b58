"""``dios node``: the nodes of the cluster, as the asked node sees them.

``dios-node`` and ``dios up`` start and join nodes.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace as changed
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import typer
from msgspec import field

from dios.cli.common.application import LINES, CommandApplication
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    FAILED,
    Cells,
    Number,
    counted,
    progress,
    say,
    size_text,
    span_text,
    table_of,
    time_text,
    write_json_line,
)
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.cli.nodes import node_logs
from dios.cli.nodes.cluster_secret import ROTATION_SECONDS, outcome_of, wait_for_secret, without_secret
from dios.cli.nodes.setting_options import seconds_of
from dios.client.ops.cluster import Member
from dios.client.sync.node import Node, connect
from dios.errors import DiosError, InvalidError
from dios.wire.messages import Info
from dios.wire.node_labels import text_of
from dios.wire.node_roles import NodeRight, NodeRole, roles_of
from dios.wire.replies import KeepersReport
from dios.wire.types import NodeStatus

WATCH_SECONDS: Final = 0.5
TIME_IS_OVER: Final = 4
_VALID: Final = "1h"
_CLEAR: Final = "\x1b[H\x1b[J"

app: Final = CommandApplication(
    no_args_is_help=True,
    help="The nodes of the cluster: list, describe, label, drain, replace and forget them, read their logs.",
)

app.command(
    "logs",
    examples="dios node logs --follow --level warning\ndios node logs n2 --lines 20\n"
    "dios node logs --json | jq 'select(.fields.peer == \"n3\")'",
    json=node_logs.NodeLogRow,
    note=LINES,
)(node_logs.node_logs)

NAME_ARGUMENT: Final[str] = argument("NODE", "A node's name, as `dios node ls` shows it.")


class NodeRow(Row, kw_only=True):
    """A node as the asked node sees it. ``since`` is when its status began, in nanoseconds since 1970.

    ``fitness`` is its ability to run pure tasks: fit, unknown or unfit. ``roles`` are those of its
    certificate; there are none for a node that never connected.
    ``secret`` says if it has the present secret of the cluster: current, waiting or unknown.
    """

    name: str
    rack: str
    address: str
    status: str
    since_ns: int = field(name="since")
    draining: bool
    fitness: str
    roles: list[str]
    secret: str
    here: bool
    epoch: int
    tasks: int
    cpus: int
    memory_bytes: int = field(name="memory")
    id: str
    labels: dict[str, str]
    clock_offset_ns: int | None
    clock_error_ns: int | None


class NodeCapacityRow(Row):
    """The capacity of a node's disk or network, null if it is unknown, and its source."""

    bytes_s: int | None
    source: str
    detail: str


class NodeDetailsRow(NodeRow, kw_only=True):
    """A node with its version, contents, guarantees and capacities, which are empty if it does not answer."""

    capacities: dict[str, NodeCapacityRow]
    version: str
    counts: dict[str, int]
    guarantees: dict[str, str]


class DrainedNodeRow(NodeRow, kw_only=True):
    """A node after a wait (``node drain --wait``), and what has to leave it still."""

    empty: bool
    tasks_left: int
    replicas_left: int
    bytes_left: int


class ReplacedNodeRow(Row):
    """A removed node, or null if it was removed before, and the line to type on the new machine."""

    replaced: NodeRow | None
    token: str
    address: str
    join: str


def described(member: Member) -> NodeRow:
    """Return a node for JSON."""
    return NodeRow.of(member, id=f"{member.node:016x}")


def silent(members: list[Member]) -> str:
    """Return the names of the nodes that did not answer, for a sentence."""
    return ", ".join(member.name for member in members if not member.usable) or "a node"


def warn_of_silent(node: Node, subject: str, *, incomplete: bool) -> None:
    """Say which nodes did not answer, so that these subjects are not shown."""
    if incomplete:
        say(f"{silent(node.nodes())} did not answer, so {subject} there are not shown; see `dios node ls`")


def clock_text(member: Member) -> str:
    """Return how far a node's clock is ahead of the asked node's, with the error: ``+0.2 ±0.1 ms``."""
    if member.clock_offset_ns is None or member.clock_error_ns is None:
        return "-"
    offset, error = member.clock_offset_ns, member.clock_error_ns
    unit, unit_ns = ("s", 1e9) if abs(offset) >= 1e9 else ("ms", 1e6)
    return f"{offset / unit_ns:+.1f} ±{error / unit_ns:.1f} {unit}"


def _capacities(info: Info | None) -> dict[str, NodeCapacityRow]:
    return {
        capacity.resource: NodeCapacityRow(capacity.bytes_s or None, capacity.source, capacity.detail)
        for capacity in (() if info is None else info.capacities)
    }


def capacity_text(row: NodeCapacityRow) -> str:
    """Return a capacity with its source: ``110.4 MiB/s (interface eth0)``."""
    if row.bytes_s is None:
        return f"capacity unknown: {row.detail}"
    more = f", {row.detail}" if row.detail else ""
    return f"{size_text(row.bytes_s)}/s ({row.source}{more})"


def _cells(member: Member) -> Cells:
    return {
        "NODE": member.name + (" *" if member.here else ""),
        "RACK": member.rack or None,
        "ROLE": _role(member),
        "STATUS": member.condition,
        "FOR": str(span_text(time.time_ns() - member.since_ns)) if member.since_ns else None,
        "TASKS": member.tasks,
        "CPUS": Number(member.cpus or "-"),
        "FREE": size_text(member.memory_bytes) if member.memory_bytes else Number("-"),
        "CLOCK": Number(clock_text(member)),
        "ADDRESS": member.address or None,
    }


def _role(member: Member) -> str | None:
    """Return the roles of a node, or None for the ordinary one, and for unknown ones."""
    text = ",".join(member.roles)
    return None if text == str(NodeRole.MEMBER) else text or None


def _role_text(member: Member) -> str:
    return roles_of(",".join(member.roles)).text if member.roles else "unknown: it has not connected so far"


def _absences(members: list[Member]) -> list[str]:
    return [
        f"{member.name} is {member.status.name.lower()}{_since(member)}"
        for member in members
        if not member.usable
    ]


def _since(member: Member) -> str:
    return f" since {time_text(member.since_ns)}" if member.since_ns else ""


def _connected(common: CommonOptions) -> AbstractContextManager[Node]:
    return connect(common.node, groups=(), start=False)


@app.command(
    "ls",
    examples="dios node ls\ndios node ls --watch\ndios node ls --json | jq -r .[].name\n"
    "dios node ls --node n2          (as n2 sees it)",
    json=[NodeRow],
    note="With --watch each line is such a document.",
)
def list_nodes(
    *, watch: bool = option("-w --watch", "Show changes until Ctrl-C."), common: CommonOptions
) -> None:
    """List the nodes, as the asked node sees them; `*` marks that node itself.

    A node that does not answer is first suspect and then dead; it comes back by itself. Tasks, processors and
    free memory are those that each node reported last. CLOCK is how far a node's clock is ahead of the asked
    node's, measured with the pings between them. With --watch --json each change is one line.
    """
    with _connected(common) as connected:
        if watch:
            _watch(connected, as_json=common.as_json)
        members = connected.nodes()
        common.print_rows(
            members,
            _cells,
            _absences(members),
            described=described,
            empty="this node is in no cluster. `dios up` makes one here, `dios-node init` one of more "
            "machines.",
        )


def _watch(connected: Node, *, as_json: bool) -> None:
    """Show the nodes until Ctrl-C."""
    seen: list[Member] = []
    while True:
        members = connected.nodes()
        terminal = sys.stdout.isatty() and not as_json
        if terminal:
            sys.stdout.write(_CLEAR)
        # The error of a clock grows all the time; it is shown with the next change of anything else.
        if as_json and _steady(members) != _steady(seen):
            write_json_line(list(map(described, members)))
        elif terminal or (not as_json and _steady(members) != _steady(seen)):
            table_of(map(_cells, members))
        sys.stdout.flush()
        seen = members
        time.sleep(WATCH_SECONDS)


def _steady(members: list[Member]) -> list[Member]:
    return [changed(member, clock_offset_ns=None, clock_error_ns=None) for member in members]


def _member(members: list[Member], name: str) -> Member:
    for member in members:
        if member.name == name:
            return member
    known = ", ".join(member.name for member in members) or "the asked node is in no cluster"
    raise InvalidError(f"there is no node {name!r}. `dios node ls` lists them: {known}")


@app.command(examples="dios node describe n2\ndios node describe n2 --json", json=NodeDetailsRow)
def describe(name: str = NAME_ARGUMENT, *, common: CommonOptions) -> None:
    """Show details of one node: its address, contents and guarantees."""
    with _connected(common) as connected:
        member = _member(connected.nodes(), name)
        info = connected.info(host="" if member.here else name) if member.usable else None
        capacities = _capacities(info)
        counts, guarantees = ({}, {}) if info is None else (info.counts, info.guarantees)
        common.print_row(
            NodeDetailsRow.of(
                member,
                id=f"{member.node:016x}",
                capacities=capacities,
                version="" if info is None else info.version,
                counts=counts,
                guarantees=guarantees,
            ),
            *(() if info else (f"{name} does not answer, so its contents are unknown",)),
            facts={
                "node": f"{member.name}{', the asked node' if member.here else ''}",
                "id": f"{member.node:016x}, epoch {member.epoch}",
                "role": _role_text(member),
                "rack": member.rack or "-",
                "labels": ", ".join(f"{key}={value}" for key, value in member.labels.items()) or "-",
                "clock": "of the asked node" if member.here else clock_text(member),
                "address": member.address or "-",
                "status": member.condition + _since(member),
                "tasks": f"{member.tasks} on {counted(member.cpus, 'processor')}",
                "memory": f"{size_text(member.memory_bytes)} free",
                **{resource: capacity_text(capacity) for resource, capacity in capacities.items()},
                "version": None if info is None else info.version,
                **dict(sorted(counts.items())),
                **{f"{key}:": text for key, text in sorted(guarantees.items())},
            },
        )


@app.command(
    examples="dios node label n2 rack=r7 ssd=yes\ndios node label n2 ssd-        (removes it)\n"
    "dios node label n2             (shows them)",
    json=NodeRow,
)
def label(
    name: str = NAME_ARGUMENT,
    changes: list[str] | None = argument("[KEY=VALUE | KEY-]...", "Labels to set and remove."),
    *,
    common: CommonOptions,
) -> None:
    """Change labels of a running node, or its rack: the label `rack` is the node's fault domain.

    The change counts at once for constraints of tasks (`dios run --constraint`), for replicas that are kept
    apart, and on all nodes. It is stored, and from then on counts more than the node's settings, also after
    restarts. Only the user who runs the nodes may do this.
    """
    with _connected(common) as connected:
        wanted = dict(_change(text) for text in changes or ())
        if wanted:
            connected.label_node(name, wanted)
        member = _member(connected.nodes(), name)
        while wanted and _may_answer(member) and not _has(member, wanted):
            # The asked node learns the new labels of another one a moment later.
            time.sleep(WATCH_SECONDS / 5)
            member = _member(connected.nodes(), name)
        common.print_row(
            described(member), facts={"node": member.name, "rack": member.rack or "-", **dict(member.labels)}
        )


def _change(text: str) -> tuple[str, str | None]:
    """Return a change of a label: KEY=VALUE, or KEY- to remove it."""
    key, equals, value = text.partition("=")
    if equals:
        return key, value
    if len(text) > 1 and text.endswith("-"):
        return text[:-1], None
    raise InvalidError(
        f"{text[:80]!r} is no change of a label. Write KEY=VALUE to set it, KEY- to remove it."
    )


def _has(member: Member, wanted: dict[str, str | None]) -> bool:
    held = {**member.labels, "rack": member.rack or None}
    return all(held.get(key) == (value or None if key == "rack" else value) for key, value in wanted.items())


class _Left(NamedTuple):
    """The tasks and replicas that have to leave a node; ``settled`` means that this includes every object."""

    tasks: int
    moving: int
    replicas: int
    size: int
    settled: bool

    @property
    def done(self) -> bool:
        return self.settled and not self.tasks and not self.replicas

    def __str__(self) -> str:
        replicas = f"{counted(self.replicas, 'replica')} ({size_text(self.size)})"
        looking = "" if self.settled else ", still looking"
        leave = f", {self.moving} of them must leave" if self.moving else ""
        return f"{counted(self.tasks, 'task')} to end or leave{leave}; {replicas} to move{looking}"


@app.command(
    epilog="\b\nExamples:\n  dios node drain n2 --wait --timeout 10min\n  dios node drain n2 --undo\n\n"
    "The exit status is 4 if --timeout ended the wait.",
    json=(NodeRow, DrainedNodeRow),
)
def drain(
    name: str = NAME_ARGUMENT,
    *,
    undo: bool = option("--undo", "Accept new tasks again."),
    wait: bool = option("--wait", "Return when no task runs there, and no kept replica has to leave it."),
    timeout: str = option("--timeout SPAN", "Wait at most this long: 90s, 10min, 1h."),
    common: CommonOptions,
) -> None:
    """Place no new tasks on a node, for example before work on its machine, and move away what can move.

    Tasks that were started with --grace save their state, leave it, and go on elsewhere; so do the calls of
    executors. Replicas that a promise keeps (`dios group set --replicas`) are copied to other nodes and then
    dropped there. Its other running tasks go on, and its other objects stay usable there. Only the user who
    runs the nodes may do this.

    A wait that ends early, by --timeout or Ctrl-C, leaves the node draining.
    """
    with _connected(common) as connected:
        if undo and wait:
            raise InvalidError("--wait has no meaning with --undo; leave out one of them")
        if timeout and not wait:
            raise InvalidError("--timeout bounds the time of --wait; add that, or leave it out")
        seconds = seconds_of(timeout, "--timeout") if timeout else None
        member = _member(connected.set_node(name, "undrain" if undo else "drain"), name)
        while _may_answer(member) and member.draining is undo:
            # The asked node learns the new state of another one a moment later.
            time.sleep(WATCH_SECONDS)
            member = _member(connected.nodes(), name)
        left = None
        if wait:
            with progress(f"draining {name}") as report:
                left = _wait_empty(connected, name, report, seconds)
            member = _member(connected.nodes(), name)
        late = left is not None and not left.done
        row = described(member)
        if left is not None:
            row = DrainedNodeRow.of(
                member,
                id=row.id,
                empty=left.done,
                tasks_left=left.tasks,
                replicas_left=left.replicas,
                bytes_left=left.size,
            )
        if late:
            outcome = (
                f"{name} is not empty after {timeout}: {left}. It keeps draining; `dios node drain {name} "
                f"--wait` waits again, `dios node drain {name} --undo` ends that."
            )
        elif left is not None:
            outcome = f"{name} takes no new tasks; none run there now, and no kept replica has to leave it"
        else:
            moving = 0 if undo else _moving(connected, member)
            leave = f", of which {moving} must leave" if moving else ""
            takes = "tasks again" if undo else "no new tasks"
            outcome = f"{name} takes {takes}; {member.tasks} run there now{leave}"
        common.print_row(row, outcome)
        if late:
            raise typer.Exit(TIME_IS_OVER)


def _may_answer(member: Member) -> bool:
    """Return True unless the node is dead or has left; a suspect is dead or alive soon."""
    return member.here or member.status in {NodeStatus.ALIVE, NodeStatus.SUSPECT}


def _info_of(connected: Node, member: Member) -> Info | None:
    """Return the description of a node; None if it does not answer."""
    try:
        return connected.info(host="" if member.here else member.name)
    except DiosError:
        return None


def _moving(connected: Node, member: Member) -> int:
    """Return how many tasks have to leave a node; 0 if the node does not answer."""
    info = _info_of(connected, member)
    return 0 if info is None else info.counts.get("moving", 0)


def _wait_empty(connected: Node, name: str, report: Callable[[str], None], seconds: int | None) -> _Left:
    """Wait until nothing has to leave a draining node any more, or the time is over; return what is left."""
    end = None if seconds is None else time.monotonic() + seconds
    try:
        while True:
            members = connected.nodes()
            member = _member(members, name)
            left = _left(connected, members, member)
            if left.done or (end is not None and time.monotonic() >= end):
                return left
            if not _may_answer(member) and left.tasks:
                raise InvalidError(
                    f"{name} is {member.status.name.lower()} now and still has "
                    f"{counted(left.tasks, 'task')}. Start it again, or give its place to another machine "
                    f"with `dios node replace {name}`."
                )
            report(str(left))
            time.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        say(f"{name} keeps draining; `dios node drain {name} --undo` lets it accept tasks again")
        raise


def _left(connected: Node, members: list[Member], member: Member) -> _Left:
    """Ask all nodes what has to leave a draining one: it knows its tasks, keepers on any node its replicas.

    Replicas are counted for all draining nodes together.
    """
    draining = sum(other.draining and other.usable for other in members)
    infos = {node.name: _info_of(connected, node) for node in members if node.usable}
    own = infos.get(member.name)
    counts = {} if own is None else own.counts
    reports = [msgspec.convert(info.counts, KeepersReport) for info in infos.values() if info is not None]
    leading = [report for report in reports if report.keepers_leading]
    return _Left(
        # The node's row has the tasks of up to a second ago.
        tasks=counts.get("tasks_of_users", member.tasks),
        moving=counts.get("moving", 0),
        replicas=sum(report.leaving_replicas for report in reports),
        size=sum(report.leaving_bytes for report in reports),
        settled=None not in infos.values()
        and all(report.leaving_nodes >= draining and not report.leaving_unchecked for report in leading)
        and sum(report.keepers_leading for report in leading)
        >= max((report.keepers for report in reports), default=0),
    )


@app.command(
    "rotate-secret",
    epilog="\b\nExamples:\n  dios node rotate-secret\n  dios node rotate-secret --wait 5min\n"
    "  dios node rotate-secret --json | jq -r '.[] | select(.secret != \"current\") | .name'\n\n"
    "The exit status is 4 if a node that answers does not have the new secret after --wait.",
    json=[NodeRow],
)
def rotate_secret(
    *,
    wait: str = option("--wait SPAN", "Wait at most this long: 30s, 5min.", default=f"{ROTATION_SECONDS}s"),
    common: CommonOptions,
) -> None:
    """Change the secret with which the nodes seal new groups and tokens.

    `dios node forget` does it by itself. Use this if the secret of a node may have been copied without the
    node. What was sealed before stays valid. A node that is away gets the new secret when it comes back.
    """
    with _connected(common) as connected:
        seconds = seconds_of(wait, "--wait")
        here = next((member.name for member in connected.nodes() if member.here), "")
        if not here:
            raise InvalidError("this node is in no cluster, so it has no secret; `dios up` makes one")
        connected.set_node(here, "rotate")
        _await_secret(connected, common, seconds, "")


def _await_secret(connected: Node, common: CommonOptions, seconds: float, before: str) -> None:
    """Wait until the nodes have the new secret, and print them with a sentence after ``before``."""
    with progress("handing out the new secret") as report:
        members = wait_for_secret(connected, seconds, report)
    common.print_row(list(map(described, members)), f"{before}{outcome_of(members)}")
    if without_secret(members):
        raise typer.Exit(TIME_IS_OVER)


@app.command(
    epilog="\b\nExamples:\n  dios node forget n2\n  dios node forget n2 --yes     (asks nothing)\n\n"
    "The exit status is 4 if a node that answers does not have the new secret after 30 seconds.",
    json=[NodeRow],
)
def forget(
    name: str = NAME_ARGUMENT,
    *,
    yes: bool = option("-y --yes", "Do not ask for confirmation."),
    taken_over: bool = option("--taken-over", "Make the nodes that it had removed members again."),
    common: CommonOptions,
) -> None:
    """Remove a node from the cluster for good: all nodes refuse its certificate from now on.

    It fails if a node that lives has not stored the removal; repeat it then. The cluster's secret changes, so
    that the node seals nothing any more.

    Use this for a node that is lost or no longer trusted. Its objects cannot be reached any more; nothing is
    deleted on its disk. Its machine can come back as a new node, with an invitation and an empty data
    directory. A cluster that loses its last authority so cannot renew its certificates: see `dios node ls`.
    """
    with _connected(common) as connected:
        members = connected.nodes()
        # A node that is removed here, but not on every other node, is not among them.
        member = next((candidate for candidate in members if candidate.name == name), None)
        if member is not None and member.here:
            raise InvalidError(f"{name} is the asked node itself; ask another node with --node PATH")
        if warning := last_authority(members, name):
            say(warning)
        if not yes and not _confirmed(member or _member(members, name), "forget"):
            raise typer.Exit(FAILED)
        left = connected.set_node(name, "restore" if taken_over else "forget")
        remaining = ", ".join(other.name for other in left)
        before = f"{name} is forgotten; remaining nodes: {remaining}; "
        _await_secret(connected, common, ROTATION_SECONDS, before)


def last_authority(members: list[Member], name: str) -> str:
    """Return a warning if the node of this name is the only known authority, else an empty text."""
    if [member.name for member in members if member.roles and member.may(NodeRight.SIGN)] != [name]:
        return ""
    return (
        f"{name} is the only known authority: without one nobody admits nodes or renews "
        "certificates. Make another one first with `dios-node invite --role authority`, or with "
        "`dios-node authorize` and the key of the cluster's root."
    )


def _confirmed(member: Member, action: str) -> bool:
    if not sys.stdin.isatty():
        raise InvalidError(f"this removes {member.name} from the cluster for good; confirm with --yes")
    say(f"{member.name} is {member.condition}. Once forgotten, it can never come back under its identity.")
    return typer.confirm(f"{action} {member.name}?", err=True)


@app.command(
    examples="dios node replace n3\ndios node replace n3 --yes --json | jq -r .join", json=ReplacedNodeRow
)
def replace(
    name: str = NAME_ARGUMENT,
    *,
    force: bool = option(
        "--force",
        "Also if it lives: its tasks end, and objects without a replica elsewhere are lost to the cluster.",
    ),
    yes: bool = option("-y --yes", "Do not ask for confirmation."),
    valid: str = option(
        "--valid SPAN", "The invitation is valid for this time: 10min, 1h, 2d.", default=_VALID
    ),
    role: str = option(
        "--role ROLES", "The roles of the new node; default: the known roles of the lost one."
    ),
    common: CommonOptions,
) -> None:
    """Give the place of a node that is lost to a new machine: print the line to type on that machine.

    The new node gets the name, the rack and the labels of the lost one. The lost one is removed for good, as
    by `dios node forget`: all nodes refuse its certificate, also if its machine comes back. Replicas that a
    promise keeps are made again at once. A node that lives is not replaced: drain it, and stop it, before.

    The command can be repeated, for example when the invitation has expired. The asked node makes it,
    and the new machine joins there.
    """
    with _connected(common) as connected:
        from dios.node import cluster  # noqa: PLC0415 - certificates take a tenth of a second

        members = connected.nodes()
        member = next((candidate for candidate in members if candidate.name == name), None)
        if member is not None:
            _refuse_living(member, force=force)
            if not yes and not _confirmed(member, "replace"):
                raise typer.Exit(FAILED)
        # The invitation comes first: without it nothing is removed.
        token, address = cluster.issue(
            Path(connected.info().node),
            uses=1,
            valid_s=seconds_of(valid, "--valid"),
            role=roles_of(role or ",".join(() if member is None else member.roles) or str(NodeRole.MEMBER)),
        )
        connected.set_node(name, "forget")
        settings = {"name": name}
        if member is not None:
            settings |= {"rack": member.rack, "labels": text_of(member.labels.items())}
        words = [f"--{key} {shlex.quote(value)}" for key, value in settings.items() if value]
        join = " ".join([cluster.join_command(address, token), *words])
        before = (
            f"{name} was removed before. If it had a rack and labels, add --rack NAME --labels KEY=VALUE."
        )
        common.print_row(
            ReplacedNodeRow(None if member is None else described(member), token, address, join),
            *((before,) if member is None else ()),
            f"{name} is removed for good. On the machine that takes its place, within {valid}; the "
            "invitation is secret:",
        )
        if not common.as_json:
            typer.echo(join)


def _refuse_living(member: Member, *, force: bool) -> None:
    if member.here:
        raise InvalidError(f"{member.name} is the asked node itself; ask another node with --node PATH")
    if _may_answer(member) and not force:
        raise InvalidError(
            f"cannot replace {member.name}: it is {member.condition}, with "
            f"{counted(member.tasks, 'task')}. Drain it (`dios node drain {member.name} --wait`) and stop "
            "it, then repeat the command. With --force it is removed now: its tasks end, and objects without "
            "a replica on another node cannot be reached any more."
        )
