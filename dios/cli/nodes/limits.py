"""``dios limits``: shows and sets limits.

``dios.node.limit_text`` parses limits.
"""

from __future__ import annotations

from typing import Final

import typer

from dios.cli.common.application import CommandApplication, calls_group
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.options import argument
from dios.cli.common.output import Cells, Number, say, size_text, span_text, table_of, write_json
from dios.cli.common.principals import principal_of, principal_text
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.client.ops.usage import Subject, Usage
from dios.errors import InvalidError
from dios.node.limit_text import NONE, WORD_OF, bounds_of
from dios.wire.nametext import fingerprint
from dios.wire.types import Resource, Scope

BAR_CELLS: Final = 10
_BYTES: Final = frozenset({Resource.BYTES, Resource.MEMORY_BYTES, Resource.VOLATILE_BYTES})
_SUBJECTS: Final = "uid:1000, a user's name, group:ALIAS or task:FINGERPRINT"


app: Final = CommandApplication()


class UsageRow(Row):
    """The use and the limits of a subject by resource: bytes, milliseconds, counts; null is no limit."""

    scope: str
    subject: str
    label: str
    used: dict[str, int]
    limits: dict[str, int | None]


def amount_text(resource: Resource, amount: int | None) -> Number:
    """Format an amount of a resource."""
    if amount is None:
        return Number(NONE)
    if resource in _BYTES:
        return size_text(amount)
    return span_text(amount * 1_000_000) if resource is Resource.CPU_MS else Number(f"{amount:,}")


def bar_text(used: int, limit: int) -> str:
    """Draw a bar: any use shows at least one cell, and only a full one has no gap."""
    full = min(BAR_CELLS, used * BAR_CELLS // limit) if limit else BAR_CELLS
    return f"[{'#' * max(full, 1 if used else 0):<{BAR_CELLS}}]"


def usage_lines(who: str, usage: Usage) -> list[Cells]:
    """Return the lines of one subject: its limits and use, without resources that have neither."""
    lines: list[Cells] = []
    for resource, used in usage.used.items():
        limit = usage.limits.get(resource)
        if used or limit is not None:
            share = "" if limit is None else f"{100 * used // limit if limit else 100} %"
            lines.append(
                {
                    "WHO": "" if lines else who,
                    "WHAT": WORD_OF[resource],
                    "USED": amount_text(resource, used),
                    "LIMIT": amount_text(resource, limit),
                    "SHARE": Number(share),
                    "": "" if limit is None else bar_text(used, limit),
                }
            )
    return lines


def who_text(usage: Usage, aliases: dict[str, str]) -> str:
    """Return a subject in the form that ``dios limits set`` accepts; ``aliases`` has those of groups."""
    if usage.scope is Scope.NODE:
        return "node"
    if usage.scope is Scope.PRINCIPAL:
        return principal_text(usage.subject)
    if usage.scope is Scope.GROUP:
        return f"group:{aliases.get(usage.subject, usage.label or usage.subject)}"
    return f"task:{usage.subject} {usage.label}".strip()


def usage_row(usage: Usage) -> UsageRow:
    """Return one subject for JSON."""
    return UsageRow.of(usage)


def _show(place: CommandContext, usages: list[Usage], common: CommonOptions, *notices: str) -> None:
    aliases = {fingerprint(name): alias for alias, name in place.keyring.groups.items()}
    lines = (line for usage in usages for line in usage_lines(who_text(usage, aliases), usage))
    if common.as_json:
        write_json(list(map(usage_row, usages)))
    elif not table_of(lines):
        say("nothing is used, and there are no limits")
    for notice in () if common.as_json else notices:
        say(notice)


@app.callback(
    invoke_without_command=True,
    examples="dios limits\ndios limits --json\ndios limits set uid:1000 objects=10000 bytes=5GiB\n"
    "dios limits set group:analytics bytes=none",
    json=[UsageRow],
)
def limits(context: typer.Context, *, common: CommonOptions) -> None:
    """Show the use and the limits of you, your groups and your running tasks; the node's user sees all users.

    A task's line includes the tasks that it started; a user's line includes everything done for that user.
    Lines without use and without limit are left out.
    """
    if calls_group(context):
        with opened(common.node) as place:
            _show(place, place.node.limits(), common)


@app.command(
    "set",
    examples="dios limits set uid:1000 objects=10000 bytes=5GiB memory=8GiB\n"
    "dios limits set alice tasks=20 cpu=10h\ndios limits set group:analytics bytes=1GiB\n"
    "dios limits set task:3f9a requests=none          (none lifts a limit)",
    json=[UsageRow],
)
def set_limits(
    subject: str = argument("SUBJECT", f"Whose: {_SUBJECTS}."),
    bounds: list[str] = argument(
        "WORD=VALUE...",
        "objects, bytes, references, requests, tasks, cpu or memory: a number, a size (1GiB), "
        "a time (90s, 5min, 10h), or none.",
    ),
    *,
    common: CommonOptions,
) -> None:
    """Set limits. Only the node's user may do this.

    The limits hold at once. Use above a new limit is kept. Limits of users and of durable groups survive a
    restart of the node.
    """
    # Before connecting: a mistyped word is an error without any node.
    wanted = {bound.resource.name.lower(): bound.value for bound in bounds_of(bounds)}
    principal = _principal_of(subject)
    with opened(common.node) as place:
        target: Subject = principal or _object_of(place, subject)
        usages = place.node.set_limits(target, **wanted)
        _show(place, usages, common, "`dios limits` shows all limits")


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
