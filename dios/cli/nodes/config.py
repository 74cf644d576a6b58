"""``dios config`` and ``dios-node config``: show each setting, and the place that its value came from."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.options import option
from dios.cli.common.results import CommonOptions, OutputOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.setting_options import own_options, settings_given
from dios.cli.nodes.target import DATA_OPTION, data_or_default
from dios.client.locate import client_settings
from dios.node.settings import KEYS, load_with_origins

app: Final = CommandApplication()
node_app: Final = CommandApplication()


class SettingRow(Row):
    """A setting, and the option, variable or file from which its value came, or "default"."""

    key: str
    value: str
    source: str


@app.command(examples="dios config\nDIOS_NODE=./node1 dios config --json", json=[SettingRow])
def config(common: CommonOptions) -> None:
    """Show the settings of commands and programs: their values, and where each came from.

    An option of a command comes before the environment, which comes before ~/.config/dios/client.toml and the
    default. An unknown key in the file is refused. `dios-node config` shows the settings of a node.
    """
    _show(client_settings(common.node), common)


@node_app.command(
    "config",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    examples="dios-node config --data ./node0\n"
    "dios-node config --data ./node0 --pool-size 8     (as a start with this option)\n"
    "dios-node config --json | jq '.[] | select(.source != \"default\")'",
    json=[SettingRow],
)
def node_config(
    context: typer.Context,
    *,
    data: Path | None = DATA_OPTION,
    file: Path | None = option("--config FILE", "Read FILE instead of DIR/node.toml."),
    output: OutputOptions,
) -> None:
    """Show the settings with which a node would start: their values, and where each came from.

    Give the options of its start to see their effect. Unknown keys are refused, as at a start.
    """
    folder = data_or_default(data)
    flags = settings_given(context.args, "dios-node config", own_options(context))
    settings, origins = load_with_origins(folder, config=file, flags=flags)
    rows = [("data", str(settings.data), "--data" if data else "default")]
    rows += [(key, _text(getattr(settings, key)), str(origins.get(key, "default"))) for key in KEYS]
    _show(rows, output)


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


def _show(rows: Iterable[tuple[str, str, str]], output: OutputOptions) -> None:
    output.print_rows(
        [SettingRow(*row) for row in rows],
        lambda row: {"KEY": row.key, "VALUE": row.value or None, "FROM": row.source},
    )
