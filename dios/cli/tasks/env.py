"""``dios env``: builds environments, and lists, shows and removes those of a node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.options import argument, option
from dios.cli.common.output import counted, size_text, span_text
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.setting_options import seconds_of
from dios.core.calls.tables import ENVIRONMENTS
from dios.errors import InvalidError
from dios.lib.environments.environments import environment_on
from dios.wire.environments import PREFIX

_PAUSE_S: Final = 0.05
_REMOVAL_S_MAX: Final = 10.0

app: Final = CommandApplication(
    no_args_is_help=True,
    help="Environments: packages that are installed once, and seen by the tasks that name them alone.",
)


class EnvironmentRow(Row):
    """An environment of a node: its packages, the bytes that it takes on the disk, and its last use.

    ``environment`` is what ``--template`` takes. Times are in nanoseconds since 1970.
    """

    environment: str
    principal: str
    bytes: int
    files: int
    created_ns: int
    used_ns: int
    in_use: bool
    packages: list[str]


class EnvironmentNameRow(Row):
    """The name of an environment, which ``--template`` takes."""

    environment: str


class PrunedRow(Row):
    """The environments that were removed, and their bytes on the disk."""

    removed: list[str]
    bytes: int


@app.command(
    examples="dios env build pandas==2.3 pyarrow\ndios env build fruit --wheels ./wheels",
    json=EnvironmentNameRow,
)
def build(
    packages: list[str] = argument("PACKAGE...", "Requirements, such as pandas==2.3 or 'numpy>=2,<3'."),
    *,
    wheels: str = option(
        "--wheels PLACE", "Install from the .whl files in a folder, or in dios://GROUP/PATH."
    ),
    on: str = option("--on NODE", "Bring it to this node; default: the asked one."),
    again: bool = option("--again", "Install the packages again, even if they are there."),
    common: CommonOptions,
) -> None:
    """Install packages for your tasks on a node, and print the name for --template.

    pip installs them here, as you, from wheels alone: no code of a package runs. Without --wheels it uses the
    package index that it is configured for.
    """
    with opened(common.node) as place:
        name = environment_on(place.node, packages, wheels=wheels or None, hosts=(on,), again=again)
    common.print_row(
        EnvironmentNameRow(name), f"next: dios run FILE --template {name}", facts={"environment": name}
    )


@app.command("ls", examples="dios env ls\ndios env ls --json", json=[EnvironmentRow])
def list_environments(common: CommonOptions) -> None:
    """List the environments of the asked node, the one that was used last at the end."""
    now = time.time_ns()
    with opened(common.node) as place:
        common.print_rows(
            _rows(place),
            lambda row: {
                "ENVIRONMENT": _short(row.environment),
                "USER": row.principal,
                "DISK": size_text(row.bytes),
                "USED": "now" if row.in_use else f"{span_text(max(0, now - row.used_ns))} ago",
                "PACKAGES": " ".join(row.packages),
            },
            described=lambda row: row,
            empty="the node has no environments; `dios env build` makes one",
        )


@app.command(examples="dios env show environment:5c2f\ndios env show 5c2f --json", json=EnvironmentRow)
def show(
    environment: str = argument("ENVIRONMENT", "Its name or the beginning of its digest."),
    *,
    common: CommonOptions,
) -> None:
    """Show the packages, the size and the last use of an environment of the asked node."""
    with opened(common.node) as place:
        row = _chosen(_rows(place), environment)
    age = span_text(max(0, time.time_ns() - row.used_ns))
    common.print_row(
        row,
        facts={
            "environment": row.environment,
            "user": row.principal,
            "disk": f"{size_text(row.bytes)} in {counted(row.files, 'file')}",
            "used": "now" if row.in_use else f"{age} ago",
            "packages": " ".join(row.packages) or None,
        },
    )


@app.command(
    examples="dios env prune --unused 30d\ndios env prune 5c2f\ndios env prune --unused 0s", json=PrunedRow
)
def prune(
    environment: str = argument("[ENVIRONMENT]", "Its name or the beginning of its digest.", default=""),
    *,
    unused: str = option("--unused TIME", "All that were not used for this time, such as 30d."),
    common: CommonOptions,
) -> None:
    """Remove environments of the asked node from its disk. One in which a task runs stays."""
    if bool(environment) == bool(unused):
        raise InvalidError("give an environment, or --unused TIME for all that were not used for it")
    unused_s = seconds_of(unused, "--unused") if unused else 0
    with opened(common.node) as place:
        before = _rows(place)
        digest = _chosen(before, environment).environment.removeprefix(PREFIX) if environment else ""
        place.node.prune_environments(digest, unused_s=unused_s)
        gone = _wait_removed(place, before, digest, unused_s)
    size = sum(row.bytes for row in gone)
    common.print_row(
        PrunedRow([row.environment for row in gone], size),
        f"removed {counted(len(gone), 'environment')}: {size_text(size)}",
    )


def _rows(place: CommandContext) -> list[EnvironmentRow]:
    return [_row(values) for values in place.node.read_table(ENVIRONMENTS)]


def _row(values: Mapping[str, int | str]) -> EnvironmentRow:
    return EnvironmentRow(
        str(values["environment"]),
        str(values["principal"]),
        int(values["bytes"]),
        int(values["files"]),
        int(values["created_ns"]),
        int(values["used_ns"]),
        bool(values["in_use"]),
        str(values["packages"]).split(),
    )


def _chosen(rows: list[EnvironmentRow], text: str) -> EnvironmentRow:
    """Return the environment with this name or beginning. Raise InvalidError for none, and for several."""
    start = PREFIX + text.removeprefix(PREFIX)
    matching = [row for row in rows if row.environment.startswith(start)]
    if len({row.environment for row in matching}) != 1:
        number = "several" if matching else "no"
        raise InvalidError(f"the node has {number} environments that begin with {text!r}. See: dios env ls")
    return matching[0]


def _wait_removed(
    place: CommandContext, before: list[EnvironmentRow], digest: str, unused_s: float
) -> list[EnvironmentRow]:
    """Return the environments that the node has removed. It does so after its answer."""
    latest = time.time_ns() - round(unused_s * 1_000_000_000)
    wanted = [
        row
        for row in before
        if not row.in_use and row.used_ns <= latest and digest in {"", row.environment.removeprefix(PREFIX)}
    ]
    end = time.monotonic() + _REMOVAL_S_MAX
    while True:
        present = {(row.principal, row.environment) for row in _rows(place)}
        gone = [row for row in wanted if (row.principal, row.environment) not in present]
        if len(gone) == len(wanted) or time.monotonic() > end:
            return gone
        time.sleep(_PAUSE_S)


def _short(name: str) -> str:
    return name.removeprefix(PREFIX)[:12]
