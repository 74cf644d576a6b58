"""``dios describe``: all about one task: its inputs, limits and use, and the reason for its end."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

from msgspec import field

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import opened
from dios.cli.common.options import option
from dios.cli.common.output import say, size_text, span_text, time_text, write_facts, write_json
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.audit import entry_line, log_folder, records_about
from dios.cli.nodes.limits import UsageRow, usage_lines, usage_row
from dios.cli.tasks.control import TASK_ARGUMENT
from dios.cli.tasks.endings import advice_for, cause_text, reason_lines
from dios.cli.tasks.task_row import TaskRow
from dios.client.ops.attributes import rights_text
from dios.client.ops.usage import Description, GivenReference
from dios.client.plain_text import plain
from dios.client.sync.node import Task
from dios.errors import DiosError, EndOfStreamError, TimeLimitError
from dios.host.audit.reader import AuditEntry
from dios.node.limit_text import NONE
from dios.wire.nametext import fingerprint
from dios.wire.types import Permission

LAST_LINES: Final = 10
RECORDS: Final = 8

app: Final = CommandApplication()


def _given_line(given: GivenReference) -> str:
    rights = rights_text(Permission(given.permissions))
    state = "  GONE" if given.gone else "  changed since" if given.changed else ""
    kind = given.type.name.lower()
    label = f"{given.label}  " if given.label else ""
    return f"  {given.fingerprint}  {rights}  {label}{kind}, {size_text(given.size)}{state}"


class GivenRow(Row):
    """An input or output of a task: ``gone`` if it was deleted, ``changed`` if it was written since."""

    fingerprint: str
    label: str
    type: str
    rights: str
    size: int
    gone: bool
    changed: bool


class TaskRecordRow(Row):
    """A record of the audit log about a task."""

    index: int
    action: str
    outcome: str
    subject: str
    detail: str


class TaskDetailsRow(TaskRow, kw_only=True):
    """A task with what it has and had. ``audit`` is null if the user may not read the audit log."""

    secrecy: list[str]
    why: list[str]
    advice: str
    executable: str
    groups: list[str]
    inputs: list[GivenRow]
    outputs: list[GivenRow]
    arguments: list[str]
    memory_limit_bytes: int
    cpu_limit_ms: int
    time_ms: int = field(name="time_limit_ms")
    cpu_ms: int
    memory_bytes: int
    usage: UsageRow
    not_repeatable: str
    processors: list[int]
    devices: dict[str, list[str]]
    last_lines: list[str]
    audit: list[TaskRecordRow] | None


def console_tail(task: Task) -> tuple[list[str], bool]:
    """Return the last lines of a task's output, and True if there are more."""
    text = bytearray()
    with contextlib.suppress(EndOfStreamError, TimeLimitError):
        console = task.console()
        while True:
            text += console.receive(timeout=0)
    lines = text.decode(errors="replace").splitlines()
    return lines[-LAST_LINES:], len(lines) > LAST_LINES


def _records(data: Path | None, node: str | None, task: str) -> list[AuditEntry] | None:
    """Return the last audit records about a task, or None if the user may not read the log."""
    try:
        return list(deque(records_about(log_folder(data, node), task), maxlen=RECORDS))
    except (DiosError, OSError):
        return None


def _show_identity(description: Description, groups: dict[str, str]) -> None:
    status = description.status
    until = status.ended_ns or time.time_ns()
    began = time_text(status.started_ns)
    ran = span_text(until - status.started_ns) if status.started_ns else "-"
    fact: dict[str, str | None] = {
        "task": status.fingerprint,
        "title": status.label or "-",
        "state": cause_text(status),
        "brand": status.brand.name.lower(),
        "for": status.principal,
        "started by": status.parent or "-",
        "program": description.executable,
        "groups": ", ".join(groups.get(mark, mark) for mark in description.groups) or "none but its own",
        "arguments": " ".join(map(repr, description.arguments)) or "none",
        "began": f"{began}, {'ran' if status.ended else 'runs for'} {ran}",
        "secrecy": f"has read {', '.join(status.secrecy)}" if status.secrecy else None,
        "processors": ", ".join(map(str, description.processors)) or None,
        "devices": " ".join(f"{kind}={','.join(names)}" for kind, names in description.devices.items())
        or None,
        "process": str(status.pid) if status.pid and not status.ended else None,
    }
    if status.moves or status.restarts:
        kept = f", from a checkpoint of {size_text(status.kept_bytes)}" if status.kept_bytes else ""
        fact["earlier"] = f"moves: {status.moves}, restarts: {status.restarts}{kept}"
    if status.ended:
        fact["used"] = f"{span_text(description.cpu_ms * 1_000_000)} of CPU time, {_peak(description)}"
    write_facts(fact)
    for title, handed in (("inputs", description.inputs), ("outputs", description.outputs)):
        _section(title, [_given_line(given) for given in handed])


def _peak(description: Description) -> str:
    return (
        f"{size_text(description.memory_bytes)} of memory at its peak"
        if description.memory_bytes
        else "memory unknown"
    )


def _section(title: str, lines: list[str]) -> None:
    if lines:
        sys.stdout.write("\n".join([title, *map(plain, lines)]) + "\n")


def _show_use(description: Description) -> None:
    own = [
        ("memory", size_text(description.memory_limit_bytes) if description.memory_limit_bytes else "none"),
        ("CPU time", span_text(description.cpu_limit_ms * 1_000_000) if description.cpu_limit_ms else "none"),
        ("time", span_text(description.time_ms * 1_000_000) if description.time_ms else "none"),
    ]
    lines = [f"  of its process: {name} {value}" for name, value in own]
    for line in usage_lines("", description.usage):
        used, limit, share, bar = (line[key] for key in ("USED", "LIMIT", "SHARE", ""))
        use = f"{used} used, no limit" if limit == NONE else f"{used} of {limit}, {share}  {bar}"
        lines.append(f"  with all it starts: {line['WHAT']:<10} {use}")
    _section("limits", lines)


def _next_commands(description: Description) -> list[str]:
    mark = description.status.fingerprint
    told = [f"next: dios logs {mark}"]
    if description.status.ended:
        told.append(
            f"      dios debug {mark}   (cannot: {plain(description.not_repeatable)})"
            if description.not_repeatable
            else f"      dios debug {mark}"
        )
    else:
        told.append(f"      dios pause {mark}, dios kill {mark}")
    return told


@app.command(examples="dios describe job.py\ndios describe 3f9a --json | jq .cause", json=TaskDetailsRow)
def describe(
    task: str = TASK_ARGUMENT,
    *,
    data: Path | None = option("--data DIR", "The node's data directory, for its audit log."),
    common: CommonOptions,
) -> None:
    """Show details of a task: its inputs, limits and use, why it ended, and what to do next.

    Also its last lines, and its records in the audit log if you may read that. Arguments are shown
    unchanged.
    """
    with opened(common.node) as place:
        handle, _ = place.task(task)
        description = place.node.describe(handle)
        lines, more = console_tail(handle)
        records = _records(data, common.node, description.status.fingerprint)
        if common.as_json:
            write_json(_row(description, lines, records))
            return
        groups = {fingerprint(name): alias for alias, name in place.keyring.groups.items()}
        _show_identity(description, groups)
        _show_use(description)
        if description.status.ended:
            lines_of_end = [f"  {line}" for line in reason_lines(description.status)]
            advice = advice_for(description.status)
            _section("why it ended", [*lines_of_end, *([f"  try: {advice}"] if advice else [])])
        _section(f"last lines{' (dios logs shows all)' if more else ''}", [f"  {line}" for line in lines])
        _section("audit log", [entry_line(entry) for entry in records or ()])
        if records is None:
            say("you may not read the node's audit log")
        for line in _next_commands(description):
            say(line)


def _row(description: Description, lines: list[str], records: list[AuditEntry] | None) -> TaskDetailsRow:
    values = {
        name: getattr(description, name)
        for name in TaskDetailsRow.__struct_fields__
        if hasattr(description, name)
    }
    values |= {
        "why": reason_lines(description.status),
        "advice": advice_for(description.status),
        "inputs": [_given_row(given) for given in description.inputs],
        "outputs": [_given_row(given) for given in description.outputs],
        "usage": usage_row(description.usage),
        "last_lines": lines,
        "audit": None
        if records is None
        else [TaskRecordRow.of(entry.record, index=entry.index) for entry in records],
    }
    return TaskDetailsRow.of_task(description.status, **values)


def _given_row(given: GivenReference) -> GivenRow:
    return GivenRow.of(given, rights=rights_text(Permission(given.permissions)))
