"""``dios config`` and ``dios-node config``: show each setting, and the place that its value came from."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.json_rows import SettingRow
from dios.cli.common.output import JsonOption, NodeOption, reporting, table, write_json
from dios.cli.nodes.setting_options import own_options, settings_given
from dios.client.locate import client_settings, resolve_node
from dios.node.settings import KEYS, load_with_origins

app: Final = CommandApplication()
node_app: Final = CommandApplication()


@app.command(epilog="\b\nExamples:\n  dios config\n  DIOS_NODE=./node1 dios config --json")
def config(*, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Show the settings of commands and programs: their values, and where each came from.

    An option of a command comes before the environment, which comes before ~/.config/dios/client.toml and the
    default. An unknown key in the file is refused. `dios-node config` shows the settings of a node.
    """
    with reporting("dios config", as_json=as_json):
        _show(client_settings(node), as_json=as_json)


@node_app.command(
    "config",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="\b\nExamples:\n  dios-node config --data ./node0\n"
    "  dios-node config --data ./node0 --pool-size 8     (as a start with this option)\n"
    "  dios-node config --json | jq '.[] | select(.source != \"default\")'",
)
def node_config(
    context: typer.Context,
    *,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="DIR", help="The node's data directory; default: the default node's."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Read FILE instead of DIR/node.toml.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the settings with which a node would start: their values, and where each came from.

    Give the options of its start to see their effect. Unknown keys are refused, as at a start.
    """
    with reporting("dios-node config", as_json=as_json):
        folder = resolve_node(None).resolve().parent if data is None else data
        flags = settings_given(context.args, "dios-node config", own_options(context))
        settings, origins = load_with_origins(folder, config=file, flags=flags)
        rows = [("data", str(settings.data), "--data" if data else "default")]
        rows += [(key, _text(getattr(settings, key)), str(origins.get(key, "default"))) for key in KEYS]
        _show(rows, as_json=as_json)


def _text(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ",".join(
            "=".join(map(str, entry)) if isinstance(entry, tuple) else str(entry) for entry in value
        )
    return str(value)


def _show(rows: Iterable[tuple[str, str, str]], *, as_json: bool) -> None:
    if as_json:
        shown: list[SettingRow] = [
            {"key": key, "value": value, "source": source} for key, value, source in rows
        ]
        write_json(shown)
    else:
        table(("KEY", "VALUE", "FROM"), [(key, value or "-", source) for key, value, source in rows])
