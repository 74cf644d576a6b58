"""``dios template``: lists the templates of a node, loads them in advance, and shows their use."""

from __future__ import annotations

from typing import Annotated, Final, TypedDict

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.output import (
    JsonOption,
    NodeOption,
    facts,
    reporting,
    say,
    size_text,
    span_text,
    table,
    waiting,
    write_json,
)
from dios.client.plain_text import plain
from dios.errors import InvalidError
from dios.wire.messages import TemplateRow

_WARMS: Final = b"pass"
_NS_PER_MS: Final = 1_000_000

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Templates: sets of modules that are loaded once, and shared by the tasks that start from them.",
)

NamesArgument = Annotated[list[str] | None, typer.Argument(metavar="[TEMPLATE]...", help="By default all.")]


@app.command("ls", epilog="\b\nExamples:\n  dios template ls\n  dios template ls --json")
def list_templates(*, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """List the templates that the settings of a node name, and if they are loaded."""
    with reporting("dios template ls", as_json=as_json), opened(node) as place:
        rows = place.node.info().templates
        if as_json:
            write_json([_document(row) for row in rows])
        elif not rows:
            say('the node has no templates; [templates.NAME] with modules = ["..."] in node.toml makes one')
        else:
            head = ("NAME", "STATE", "MODULES", "MEMORY")
            table(head, [(row.name, row.state, " ".join(row.modules), _memory(row)) for row in rows])


@app.command(epilog="\b\nExamples:\n  dios template warm\n  dios template warm data --json")
def warm(names: NamesArgument = None, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Load templates now, so that the first task does not wait for it. An error shows the reason."""
    with reporting("dios template warm", as_json=as_json), opened(node) as place:
        chosen = [row.name for row in _chosen(place, names)]
        for name in chosen:
            with waiting(f"loading {plain(name)}"):
                place.node.run(_WARMS, label="warm", template=name, local=True).wait()
        rows = [row for row in place.node.info().templates if row.name in chosen]
        if as_json:
            write_json([_document(row) for row in rows])
        else:
            for row in rows:
                say(f"{plain(row.name)}: {row.state} in {span_text(row.load_ms * _NS_PER_MS)}")


@app.command(epilog="\b\nExamples:\n  dios template stat data\n  dios template stat data --json")
def stat(names: NamesArgument = None, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Show the memory of templates, how often they were loaded, and how many tasks started from them."""
    with reporting("dios template stat", as_json=as_json), opened(node) as place:
        rows = _chosen(place, names)
        if as_json:
            write_json([_document(row) for row in rows])
            return
        for row in rows:
            pairs = [
                ("template", plain(row.name)),
                ("modules", " ".join(row.modules)),
                ("state", row.state),
                ("memory", _memory(row)),
                ("loaded in", span_text(row.load_ms * _NS_PER_MS) if row.starts else "-"),
                ("times loaded", f"{row.starts:,}"),
                ("tasks started", f"{row.tasks:,}"),
                ("prepared", f"{row.prepared:,}"),
            ]
            facts([*pairs, *([("failed", plain(row.why))] if row.why else [])])


def _chosen(place: CommandContext, names: list[str] | None) -> list[TemplateRow]:
    """Return the templates of these names, or all. Raise InvalidError for one that does not exist."""
    rows = {row.name: row for row in place.node.info().templates}
    for name in names or ():
        if name not in rows:
            known = ", ".join(map(plain, rows)) or "none"
            raise InvalidError(f"the node has no template {name!r}; its templates: {known}")
    return [rows[name] for name in names] if names else list(rows.values())


def _memory(row: TemplateRow) -> str:
    return f"{size_text(row.used_bytes)} of {size_text(row.memory_bytes)}"


class LoadedTemplateRow(TypedDict):
    """A template: its state, the memory of its process and its limit, and the numbers of starts and tasks.

    ``prepared`` processes wait for a task; ``why`` is the reason of a failed start.
    """

    name: str
    modules: list[str]
    state: str
    memory_bytes: int
    used_bytes: int
    load_ms: int
    starts: int
    tasks: int
    why: str
    prepared: int


def _document(row: TemplateRow) -> LoadedTemplateRow:
    return {
        "name": row.name,
        "modules": list(row.modules),
        "state": row.state,
        "memory_bytes": row.memory_bytes,
        "used_bytes": row.used_bytes,
        "load_ms": row.load_ms,
        "starts": row.starts,
        "tasks": row.tasks,
        "why": row.why,
        "prepared": row.prepared,
    }
