"""``dios template``: lists the templates of a node, loads them in advance, and shows their use."""

from __future__ import annotations

from typing import Final

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.options import argument
from dios.cli.common.output import size_text, span_text, waiting, write_json
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.client.plain_text import plain
from dios.errors import InvalidError
from dios.wire.messages import TemplateRow

_WARMS: Final = b"pass"
_NS_PER_MS: Final = 1_000_000

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Templates: sets of modules that are loaded once, and shared by the tasks that start from them.",
)

NAMES_ARGUMENT: Final[list[str] | None] = argument("[TEMPLATE]...", "By default all.")


class LoadedTemplateRow(Row):
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


@app.command("ls", examples="dios template ls\ndios template ls --json", json=[LoadedTemplateRow])
def list_templates(common: CommonOptions) -> None:
    """List the templates that the settings of a node name, and if they are loaded."""
    with opened(common.node) as place:
        common.print_rows(
            place.node.info().templates,
            lambda row: {
                "NAME": row.name,
                "STATE": row.state,
                "MODULES": " ".join(row.modules),
                "MEMORY": _memory(row),
            },
            described=LoadedTemplateRow.of,
            empty='the node has no templates; [templates.NAME] with modules = ["..."] in node.toml makes one',
        )


@app.command(examples="dios template warm\ndios template warm data --json", json=[LoadedTemplateRow])
def warm(names: list[str] | None = NAMES_ARGUMENT, *, common: CommonOptions) -> None:
    """Load templates now, so that the first task does not wait for it. An error shows the reason."""
    with opened(common.node) as place:
        chosen = [row.name for row in _chosen(place, names)]
        for name in chosen:
            with waiting(f"loading {plain(name)}"):
                place.node.run(_WARMS, label="warm", template=name, local=True).wait()
        rows = [row for row in place.node.info().templates if row.name in chosen]
        common.print_row(
            list(map(LoadedTemplateRow.of, rows)),
            *(f"{plain(row.name)}: {row.state} in {span_text(row.load_ms * _NS_PER_MS)}" for row in rows),
        )


@app.command(examples="dios template stat data\ndios template stat data --json", json=[LoadedTemplateRow])
def stat(names: list[str] | None = NAMES_ARGUMENT, *, common: CommonOptions) -> None:
    """Show the memory of templates, how often they were loaded, and how many tasks started from them."""
    with opened(common.node) as place:
        rows = _chosen(place, names)
        if common.as_json:
            write_json(list(map(LoadedTemplateRow.of, rows)))
            return
        for row in rows:
            common.print_row(
                row,
                facts={
                    "template": plain(row.name),
                    "modules": " ".join(row.modules),
                    "state": row.state,
                    "memory": _memory(row),
                    "loaded in": span_text(row.load_ms * _NS_PER_MS) if row.starts else "-",
                    "times loaded": f"{row.starts:,}",
                    "tasks started": f"{row.tasks:,}",
                    "prepared": f"{row.prepared:,}",
                    "failed": plain(row.why) or None,
                },
            )


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
