"""``dios limits``: shows and sets limits.

``dios.node.limit_text`` parses limits.
"""

from __future__ import annotations

from typing import Annotated, Final, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.output import (
    JsonOption,
    NodeOption,
    reporting,
    say,
    size_text,
    span_text,
    table,
    write_json,
)
from dios.cli.common.principals import principal_of, principal_text
from dios.client.ops.usage import Subject, Usage
from dios.errors import InvalidError
from dios.node.limit_text import NONE, WORD_OF, bounds_of
from dios.wire.nametext import fingerprint
from dios.wire.types import Resource, Scope

BAR_CELLS: Final = 10
_BYTES: Final = frozenset({Resource.BYTES, Resource.MEMORY_BYTES, Resource.VOLATILE_BYTES})
_SUBJECTS: Final = "uid:1000, a user's name, group:ALIAS or task:FINGERPRINT"
_HEAD: Final = ("WHO", "WHAT", "USED", "LIMIT", "SHARE", "")

app: Final = CommandApplication()


def amount_text(resource: Resource, amount: int | None) -> str:
    """Format an amount of a resource."""
    if amount is None:
        return NONE
    if resource in _BYTES:
        return size_text(amount)
    return span_text(amount * 1_000_000) if resource is Resource.CPU_MS else f"{amount:,}"


def bar_text(used: int, limit: int) -> str:
    """Draw a bar: any use shows at least one cell, and only a full one has no gap."""
    full = min(BAR_CELLS, used * BAR_CELLS // limit) if limit else BAR_CELLS
    return f"[{'#' * max(full, 1 if used else 0):<{BAR_CELLS}}]"


def usage_rows(who: str, usage: Usage) -> list[tuple[str, ...]]:
    """Return the lines of one subject: its limits and use, without resources that have neither."""
    rows: list[tuple[str, ...]] = []
    for resource, used in usage.used.items():
        limit = usage.limits.get(resource)
        if not used and limit is None:
            continue
        share = "" if limit is None else f"{100 * used // limit if limit else 100} %"
        bar = "" if limit is None else bar_text(used, limit)
        first = "" if rows else who
        rows.append(
            (
                first,
                WORD_OF[resource],
                amount_text(resource, used),
                amount_text(resource, limit),
                share,
                bar,
            )
        )
    return rows


def who_text(usage: Usage, aliases: dict[str, str]) -> str:
    """Return a subject in the form that ``dios limits set`` accepts; ``aliases`` has those of groups."""
    if usage.scope is Scope.NODE:
        return "node"
    if usage.scope is Scope.PRINCIPAL:
        return principal_text(usage.subject)
    if usage.scope is Scope.GROUP:
        return f"group:{aliases.get(usage.subject, usage.label or usage.subject)}"
    return f"task:{usage.subject} {usage.label}".strip()


class UsageRow(TypedDict):
    """The use and the limits of a subject by resource: bytes, milliseconds, counts; null is no limit."""

    scope: str
    subject: str
    label: str
    used: dict[str, int]
    limits: dict[str, int | None]


def usage_json(usage: Usage) -> UsageRow:
    """Return one subject for JSON."""
    return {
        "scope": usage.scope.name.lower(),
        "subject": usage.subject,
        "label": usage.label,
        "used": {resource.name.lower(): used for resource, used in usage.used.items()},
        "limits": {resource.name.lower(): limit for resource, limit in usage.limits.items()},
    }


def _show(place: CommandContext, usages: list[Usage], *, as_json: bool) -> None:
    if as_json:
        write_json([usage_json(usage) for usage in usages])
        return
    aliases = {fingerprint(name): alias for alias, name in place.keyring.groups.items()}
    rows = [row for usage in usages for row in usage_rows(who_text(usage, aliases), usage)]
    if rows:
        table(_HEAD, rows, right=("USED", "LIMIT", "SHARE"))
    else:
        say("nothing is used, and there are no limits")


@app.callback(
    invoke_without_command=True,
    epilog="\b\nExamples:\n  dios limits\n  dios limits --json\n"
    "  dios limits set uid:1000 objects=10000 bytes=5GiB\n"
    "  dios limits set group:analytics bytes=none",
)
def limits(context: typer.Context, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Show the use and the limits of you, your groups and your running tasks; the node's user sees all users.

    A task's line includes the tasks that it started; a user's line includes everything done for that user.
    Lines without use and without limit are left out.
    """
    with reporting("dios limits", as_json=as_json):
        if context.invoked_subcommand is not None:
            if node is not None or as_json:
                raise InvalidError("put options after the subcommand: dios limits set ... --json")
            return
        with opened(node) as place:
            _show(place, place.node.limits(), as_json=as_json)


@app.command(
    "set",
    epilog="\b\nExamples:\n  dios limits set uid:1000 objects=10000 bytes=5GiB memory=8GiB\n"
    "  dios limits set alice tasks=20 cpu=10h\n  dios limits set group:analytics bytes=1GiB\n"
    "  dios limits set task:3f9a requests=none          (none lifts a limit)",
)
def set_limits(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help=f"Whose: {_SUBJECTS}.")],
    bounds: Annotated[
        list[str],
        typer.Argument(
            metavar="WORD=VALUE...",
            help="objects, bytes, references, requests, tasks, cpu or memory: a number, a size (1GiB), "
            "a time (90s, 5min, 10h), or none.",
        ),
    ],
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set limits. Only the node's user may do this.

    The limits hold at once. Use above a new limit is kept. Limits of users and of durable groups survive a
    restart of the node.
    """
    with reporting("dios limits set", as_json=as_json):
        # Before connecting: a mistyped word is an error without any node.
        wanted = {bound.resource.name.lower(): bound.value for bound in bounds_of(bounds)}
        principal = _principal_of(subject)
        with opened(node) as place:
            target: Subject = principal or _object_of(place, subject)
            _show(place, place.node.set_limits(target, **wanted), as_json=as_json)
            if not as_json:
                say("`dios limits` shows all limits")


def _principal_of(subject: str) -> str:
    """Return the principal that a subject names; empty for a group or a task."""
    kind, colon, rest = subject.partition(":")
    if colon:
        if principal := principal_of(subject):
            return principal
        if kind in {"group", "task"} and rest:
            return ""
        raise InvalidError(f"{subject!r} is not a subject; give {_SUBJECTS}")
    if principal := principal_of(subject):
        return principal
    raise InvalidError(f"there is no user {subject!r} on this machine; give {_SUBJECTS}")


def _object_of(place: CommandContext, subject: str) -> Subject:
    kind, _, rest = subject.partition(":")
    return place.group(rest) if kind == "group" else place.task(rest)[0]
