"""``dios node``: the nodes of the cluster, as the asked node sees them.

``dios-node`` and ``dios up`` start and join nodes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Annotated, Final

import typer

from dios.cli.common.output import (
    FAILED,
    JsonOption,
    NodeOption,
    facts,
    progress,
    reporting,
    say,
    size_text,
    span_text,
    table,
    time_text,
    write_json,
)
from dios.client.ops.cluster import Member
from dios.client.sync.node import Node, connect
from dios.errors import DiosError, InvalidError
from dios.wire.types import NodeStatus

WATCH_SECONDS: Final = 0.5
_CLEAR: Final = "\x1b[H\x1b[J"

app: Final = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The nodes of the cluster: list, describe, drain and forget them.",
)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="A node's name, as `dios node ls` shows it.")
]


def described(member: Member) -> dict[str, object]:
    """Return a node for JSON."""
    return {
        "name": member.name,
        "rack": member.rack,
        "address": member.address,
        "status": member.status.name.lower(),
        "since": member.since_ns,
        "draining": member.draining,
        "here": member.here,
        "epoch": member.epoch,
        "tasks": member.tasks,
        "cpus": member.cpus,
        "memory": member.memory_bytes,
        "id": f"{member.node:016x}",
    }


def status_text(member: Member) -> str:
    """Return a node's status for tables."""
    status = member.status.name.lower()
    if member.draining and member.status is NodeStatus.ALIVE:
        return "draining"
    return f"{status}, draining" if member.draining else status


def silent(members: list[Member]) -> str:
    """Return the names of the nodes that did not answer, for a sentence."""
    return ", ".join(member.name for member in members if not member.usable) or "a node"


def _since(member: Member) -> str:
    return span_text(time.time_ns() - member.since_ns) if member.since_ns else "-"


def _show(members: list[Member], *, as_json: bool) -> None:
    if as_json:
        write_json([described(member) for member in members])
        return
    table(
        ("NODE", "RACK", "STATUS", "FOR", "TASKS", "CPUS", "FREE", "ADDRESS"),
        [
            (
                member.name + (" *" if member.here else ""),
                member.rack or "-",
                status_text(member),
                _since(member),
                str(member.tasks),
                str(member.cpus or "-"),
                size_text(member.memory_bytes) if member.memory_bytes else "-",
                member.address or "-",
            )
            for member in members
        ],
        right=("TASKS", "CPUS", "FREE"),
    )


def _tell_absent(members: list[Member]) -> None:
    for member in members:
        if not member.usable:
            when = f" since {time_text(member.since_ns)}" if member.since_ns else ""
            say(f"{member.name} is {member.status.name.lower()}{when}")


@app.command(
    "ls",
    epilog="\b\nExamples:\n  dios node ls\n  dios node ls --watch\n  dios node ls --json | jq -r .[].name\n"
    "  dios node ls --node n2          (as n2 sees it)",
)
def list_nodes(
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show changes until Ctrl-C.")] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the nodes, as the asked node sees them; `*` marks that node itself.

    A node that does not answer is first suspect and then dead; it comes back by itself. Tasks, processors and
    free memory are those that each node reported last. With --watch --json each change is one line.
    """
    with reporting("dios node ls", as_json=as_json), connect(node, groups=()) as connected:
        if watch:
            _watch(connected, as_json=as_json)
        members = connected.nodes()
        if not members and not as_json:
            say(
                "this node is in no cluster. `dios up` makes one here, `dios-node init` one of more machines."
            )
            return
        _show(members, as_json=as_json)
        if not as_json:
            _tell_absent(members)


def _watch(connected: Node, *, as_json: bool) -> None:
    """Show the nodes until Ctrl-C."""
    seen: list[Member] = []
    while True:
        members = connected.nodes()
        terminal = sys.stdout.isatty() and not as_json
        if terminal:
            sys.stdout.write(_CLEAR)
        if as_json and members != seen:
            sys.stdout.write(json.dumps([described(member) for member in members]) + "\n")
        elif terminal or members != seen:
            _show(members, as_json=False)
        sys.stdout.flush()
        seen = members
        time.sleep(WATCH_SECONDS)


def _member(members: list[Member], name: str) -> Member:
    for member in members:
        if member.name == name:
            return member
    known = ", ".join(member.name for member in members) or "the asked node is in no cluster"
    raise InvalidError(f"there is no node {name!r}. `dios node ls` lists them: {known}")


@app.command(epilog="\b\nExamples:\n  dios node describe n2\n  dios node describe n2 --json")
def describe(name: NameArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Show details of one node: its address, contents and guarantees."""
    with reporting("dios node describe", as_json=as_json), connect(node, groups=()) as connected:
        member = _member(connected.nodes(), name)
        info = connected.info(host="" if member.here else name) if member.usable else None
        if as_json:
            held = {"version": "", "counts": {}, "guarantees": {}}
            if info is not None:
                held = {"version": info.version, "counts": info.counts, "guarantees": info.guarantees}
            write_json({**described(member), **held})
            return
        when = f" since {time_text(member.since_ns)}" if member.since_ns else ""
        facts(
            [
                ("node", f"{member.name}{', the asked node' if member.here else ''}"),
                ("id", f"{member.node:016x}, epoch {member.epoch}"),
                ("rack", member.rack or "-"),
                ("address", member.address or "-"),
                ("status", status_text(member) + when),
                ("tasks", f"{member.tasks} on {member.cpus} processors"),
                ("memory", f"{size_text(member.memory_bytes)} free"),
                *(() if info is None else (("version", info.version),)),
                *sorted((key, str(count)) for key, count in ({} if info is None else info.counts).items()),
                *sorted((f"{key}:", text) for key, text in ({} if info is None else info.guarantees).items()),
            ]
        )
        if info is None:
            say(f"{name} does not answer, so its contents are unknown")


@app.command(epilog="\b\nExamples:\n  dios node drain n2 --wait\n  dios node drain n2 --undo")
def drain(
    name: NameArgument,
    *,
    undo: Annotated[bool, typer.Option("--undo", help="Accept new tasks again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Return when no task runs there any more.")] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Place no new tasks on a node, for example before work on its machine.

    Tasks that were started with --grace save their state, leave it, and go on elsewhere; so do the calls of
    executors. Its other running tasks go on, and its objects stay usable. Only the user who runs the nodes
    may do this.
    """
    with reporting("dios node drain", as_json=as_json), connect(node, groups=()) as connected:
        if undo and wait:
            raise InvalidError("--wait has no meaning with --undo; leave out one of them")
        member = _member(connected.set_node(name, "undrain" if undo else "drain"), name)
        while _may_answer(member) and member.draining is undo:
            # The asked node learns the new state of another one a moment later.
            time.sleep(WATCH_SECONDS)
            member = _member(connected.nodes(), name)
        if wait:
            with progress(f"waiting for the tasks on {name}") as report:
                member = _wait_empty(connected, name, report)
        if as_json:
            write_json(described(member))
        else:
            moving = 0 if undo else _moving(connected, member)
            leave = f", of which {moving} must leave" if moving else ""
            takes = "tasks again" if undo else "no new tasks"
            say(f"{name} takes {takes}; {member.tasks} run there now{leave}")


def _may_answer(member: Member) -> bool:
    """Return True unless the node is dead or has left; a suspect is dead or alive soon."""
    return member.here or member.status in {NodeStatus.ALIVE, NodeStatus.SUSPECT}


def _moving(connected: Node, member: Member) -> int:
    """Return how many tasks have to leave a node; 0 if the node does not answer."""
    try:
        return connected.info(host="" if member.here else member.name).counts.get("moving", 0)
    except DiosError:
        return 0


def _wait_empty(connected: Node, name: str, report: Callable[[str], None]) -> Member:
    while (member := _member(connected.nodes(), name)).tasks and _may_answer(member):
        report(f"{member.tasks} run, {_moving(connected, member)} of them must leave")
        time.sleep(WATCH_SECONDS)
    if member.tasks:
        raise InvalidError(f"{name} is {member.status.name.lower()} now and still has {member.tasks} tasks")
    return member


@app.command(epilog="\b\nExamples:\n  dios node forget n2\n  dios node forget n2 --yes     (asks nothing)")
def forget(
    name: NameArgument,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    taken_over: Annotated[
        bool, typer.Option("--taken-over", help="Make the nodes that it had removed members again.")
    ] = False,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a node from the cluster for good: all nodes refuse its certificate from now on.

    It fails if a node that lives has not stored the removal; repeat it then.

    Use this for a node that is lost or no longer trusted. Its objects cannot be reached any more; nothing is
    deleted on its disk. Its machine can come back as a new node, with a token and an empty data directory.
    """
    with reporting("dios node forget", as_json=as_json), connect(node, groups=()) as connected:
        members = connected.nodes()
        # A node that is removed here, but not on every other node, is not among them.
        member = next((each for each in members if each.name == name), None)
        if member is not None and member.here:
            raise InvalidError(f"{name} is the asked node itself; ask another node with --node PATH")
        if not yes and not _confirmed(member or _member(members, name)):
            raise typer.Exit(FAILED)
        left = connected.set_node(name, "restore" if taken_over else "forget")
        if as_json:
            write_json([described(each) for each in left])
        else:
            say(f"{name} is forgotten; remaining nodes: {', '.join(each.name for each in left)}")


def _confirmed(member: Member) -> bool:
    if not sys.stdin.isatty():
        raise InvalidError(f"this removes {member.name} from the cluster for good; confirm with --yes")
    say(f"{member.name} is {status_text(member)}. Once forgotten, it can never come back under its identity.")
    return typer.confirm(f"forget {member.name}?", err=True)
