"""``dios-node dump`` and ``dios-node replay``: the tables of a running node, and of a recorded one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import typer
from msgspec.structs import asdict

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import argument, option
from dios.cli.common.output import (
    FAILED,
    NOT_RUNNING,
    Cells,
    counted,
    progress,
    say,
    table_of,
    write_facts,
    write_json,
    write_line,
)
from dios.cli.common.results import CommonOptions, OutputOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.target import MAYBE_DATA, socket_of, time_limit
from dios.client.node_socket import start_command
from dios.client.sync.node import connect
from dios.errors import InvalidError
from dios.node import daemon

if TYPE_CHECKING:
    from dios.core.machine import Core
    from dios.core.model.state import State
    from dios.core.replay import ReplayedStep

app: Final = CommandApplication()

TableRow: TypeAlias = dict[str, int | str]
StateTables: TypeAlias = dict[str, list[TableRow]]
"""The rows of each table of a node's core."""

_PROGRESS_STEPS: Final = 1_000


class StoryRow(Row):
    """A call or event of a recorded node that touched the task or object: its step and its time."""

    step: int
    now_ns: int
    event: str
    task: str
    object: str
    seq: int


class ChangeRow(Row):
    """A row of a table before (-) or after (+) the last step."""

    table: str
    sign: str
    row: dict[str, int | str]


class ReplayRow(Row):
    """A replayed recording. ``difference`` is empty if every step was as recorded, else that of the last."""

    steps: int
    difference: str
    tables: dict[str, list[dict[str, int | str]]]
    changes: list[ChangeRow]
    story: list[StoryRow]


@app.command(
    examples="dios-node dump\ndios-node dump tasks\ndios-node dump 3f2a90c1b7de\ndios-node dump story --json",
    json=StateTables,
)
def dump(
    subject: str = argument("[TABLE|ID]", "A table, or the fingerprint or number of anything."),
    *,
    data: Path | None = MAYBE_DATA,
    common: CommonOptions,
) -> None:
    """Show the tables of a running node: fingerprints, counts and states, never names.

    For the node's own user and root. Without TABLE or ID the number of rows of each table is printed, or
    with --json every row. With the fingerprint of a task or object, or the number of a node or request, the
    rows of all tables that have it are shown. The table `story` has the newest calls and events. Exit status
    3 when no node runs.
    """
    from dios.core.calls.tables import TABLES  # noqa: PLC0415 - starting a node's process loads no core

    path = socket_of(data, common.node)
    if daemon.find(path) is None:
        say(f"no node runs at {path}; next: {start_command(path)}")
        raise typer.Exit(NOT_RUNNING)
    with time_limit(), connect(str(path), groups=()) as connected:
        if subject in TABLES:
            tables = {subject: connected.read_table(subject)}
        else:
            tables = connected.read_state()
    if subject and subject not in TABLES:
        tables = _mentioning(tables, subject)
        if not tables:
            raise InvalidError(f"no table has {subject}. The tables are {', '.join(TABLES)}.")
    if common.as_json:
        write_json(tables)
    elif subject:
        _show(tables)
    else:
        write_facts({name: counted(len(rows), "row") for name, rows in tables.items()})


@app.command(
    examples="dios-node start --data ./node0 --record ./steps --detach\ndios-node replay ./steps\n"
    "dios-node replay ./steps --until 120 --show 3f2a90c1b7de --diff\n"
    "dios-node replay ./steps --story 3f2a90c1b7de",
    json=ReplayRow,
)
def replay(
    recording: Path = argument("RECORD", "The file of the setting `record`."),
    *,
    until: int = option(
        "--until N", "Stop after this step; 0 is the end.", default=0, min=0, show_default=False
    ),
    show: str = option("--show TABLE|ID", "Show these rows as they are after the last step."),
    diff: bool = option("--diff", "Show the rows of all tables that the last step changed."),
    story: str = option("--story ID", "Show all steps that touched a task or object."),
    prompt: bool = option("--prompt", "Open a Python prompt on the node as it is after the last step."),
    output: OutputOptions,
) -> None:
    """Run the recorded events of a node again, and say if each step does what it did.

    Nothing is started, stored or sent: the events of the recording go through the core of a node that
    exists only in this command. It stops at the first step that differs, and ends with status 1 then. A
    recording has the names and small values of objects: keep it as secret as these.

    At the prompt `state` has the tables of the node, `step()` takes the next event, `show("tasks")` shows a
    table, and `show("3f2a90c1b7de")` the rows that have this fingerprint.
    """
    from dios.core.replay import Replay  # noqa: PLC0415 - see above

    if prompt and output.as_json:
        raise InvalidError("a prompt has no JSON form. Leave out --json or --prompt.")
    content = _content(recording)
    replayed = Replay(content)
    steps = replayed.steps()
    rows: list[StoryRow] = []
    last: ReplayedStep | None = None
    with progress("replaying") as tell:
        for step in steps:
            last = step
            rows += _story_rows(step, story)
            if step.number == until:
                break
            if not step.number % _PROGRESS_STEPS:
                tell(f"step {step.number}")
    if last is None or (until and last.number < until and not last.difference):
        count = counted(0 if last is None else last.number, "step")
        raise InvalidError(f"the recording has {count}. Choose an earlier one.")
    after = _tables_of(replayed.core.state) if show or diff else {}
    result = ReplayRow(
        last.number,
        last.difference,
        _chosen(after, show) if show else {},
        list(_changes(_tables_before(content, last), after)) if diff else [],
        rows,
    )
    if output.as_json:
        write_json(result)
    else:
        _show_replay(result, last)
        if show and not result.tables:
            say(f"no table has {show} after step {last.number}")
    if prompt:
        _open_prompt(replayed.core, steps)
    if last.difference:
        raise typer.Exit(FAILED)


def _open_prompt(core: Core, steps: Iterator[ReplayedStep]) -> None:
    """Let a person look at a replayed core and take further steps, until the end of the input."""
    import code  # noqa: PLC0415 - a prompt is rare

    def step() -> ReplayedStep | None:
        return next(steps, None)

    def show(subject: str) -> None:
        _show(_chosen(_tables_of(core.state), subject))

    with suppress(ImportError):
        import readline  # noqa: F401, PLC0415 - editing and history, where Python has it
    names = {"core": core, "state": core.state, "step": step, "show": show}
    code.interact("core, state, step(), show(TABLE or ID); Ctrl-D ends", local=names, exitmsg="")


def _content(recording: Path) -> bytes:
    try:
        return recording.read_bytes()
    except OSError as error:
        raise InvalidError(f"cannot read {recording}: {error.strerror}") from None


def _show_replay(result: ReplayRow, last: ReplayedStep) -> None:
    verdict = f"{result.difference} differs" if result.difference else "each is as recorded"
    write_facts({"steps": f"{result.steps}, {verdict}", "last": type(last.event).__name__})
    if result.story:
        write_line("")
        table_of((_text_cells(asdict(row)) for row in result.story), whole=True)
    _show(result.tables)
    for change in result.changes:
        cells = "  ".join(f"{name}={value}" for name, value in change.row.items())
        write_line(f"{change.sign} {change.table}: {cells}")


def _text_cells(row: TableRow) -> Cells:
    return {name: str(value) for name, value in row.items()}


def _show(tables: Mapping[str, list[TableRow]]) -> None:
    """Write tables with their names."""
    for name, rows in tables.items():
        if rows:
            write_line(f"\n{name}")
            table_of(map(_text_cells, rows), whole=True)


def _tables_before(content: bytes, last: ReplayedStep) -> StateTables:
    """Return all tables of a recorded node as they are before a step."""
    from dios.core.replay import Replay  # noqa: PLC0415 - see above

    replayed = Replay(content)
    for _ in islice(replayed.steps(), last.number - 1):
        pass
    return _tables_of(replayed.core.state)


def _tables_of(state: State) -> StateTables:
    """Return all tables of a core, without the story of its last step."""
    from dios.core.calls.tables import TABLES  # noqa: PLC0415 - see above

    return {
        name: [dict(zip(of.columns, row, strict=True)) for row in of.rows(state, 0)]
        for name, of in TABLES.items()
        if name != "story"
    }


def _chosen(tables: StateTables, subject: str) -> StateTables:
    return {subject: tables[subject]} if subject in tables else _mentioning(tables, subject)


def _mentioning(tables: Mapping[str, list[TableRow]], subject: str) -> StateTables:
    """Return the rows that have a fingerprint or number, by their table."""
    chosen = {
        name: [row for row in rows if any(subject in str(value).split() for value in row.values())]
        for name, rows in tables.items()
    }
    return {name: rows for name, rows in chosen.items() if rows}


def _changes(before: StateTables, after: StateTables) -> Iterator[ChangeRow]:
    """Yield the rows that are only in one of two states of the tables."""
    for name, rows in after.items():
        former = before.get(name, [])
        for sign, first, second in (("-", former, rows), ("+", rows, former)):
            others = {tuple(row.values()) for row in second}
            for row in first:
                if tuple(row.values()) not in others:
                    yield ChangeRow(name, sign, row)


def _story_rows(step: ReplayedStep, subject: str) -> Iterable[StoryRow]:
    if not subject:
        return
    for now, event, task, object_, seq in step.story:
        if subject in {task, object_}:
            yield StoryRow(step.number, now, event, task, object_, seq)
