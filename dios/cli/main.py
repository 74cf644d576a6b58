"""The command ``dios``: a table of its commands, each of which is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Final

import typer

from dios.cli.common.lazy import LazyGroup
from dios.cli.common.streams import open_standard_streams
from dios.installation import version


class _Commands(LazyGroup):
    """The commands of ``dios``, in the order in which ``dios --help`` lists them."""

    places: ClassVar[Mapping[str, str]] = {
        "put": "dios.cli.objects.files:app",
        "ls": "dios.cli.objects.files:app",
        "du": "dios.cli.objects.files:app",
        "get": "dios.cli.objects.files:app",
        "rm": "dios.cli.objects.files:app",
        "sync": "dios.cli.objects.files:app",
        "stat": "dios.cli.objects.replicas:app",
        "replicate": "dios.cli.objects.replicas:app",
        "group": "dios.cli.objects.groups:app*",
        "token": "dios.cli.objects.tokens:app*",
        "log": "dios.cli.objects.logs:app*",
        "backup": "dios.cli.objects.backup:app*",
        "tier": "dios.cli.objects.tier:app*",
        "store": "dios.cli.objects.stores:app*",
        "run": "dios.cli.tasks.run:app",
        "attach": "dios.cli.tasks.kept_jobs:attach_app",
        "job": "dios.cli.tasks.kept_jobs:app*",
        "service": "dios.cli.tasks.service:app*",
        "ps": "dios.cli.tasks.control:app",
        "logs": "dios.cli.tasks.control:app",
        "pause": "dios.cli.tasks.control:app",
        "resume": "dios.cli.tasks.control:app",
        "kill": "dios.cli.tasks.control:app",
        "top": "dios.cli.tasks.top:app",
        "report": "dios.cli.tasks.report:app",
        "describe": "dios.cli.tasks.describe:app",
        "debug": "dios.cli.tasks.debug:app",
        "sandbox": "dios.cli.tasks.sandbox:app*",
        "template": "dios.cli.tasks.template:app*",
        "mcp": "dios.cli.tasks.mcp_server:app",
        "kernel": "dios.cli.tasks.kernel:app*",
        "shell": "dios.cli.tasks.shell:app",
        "up": "dios.cli.nodes.local_cluster:app",
        "down": "dios.cli.nodes.local_cluster:app",
        "node": "dios.cli.nodes.members:app*",
        "schema": "dios.cli.schema:app",
        "config": "dios.cli.nodes.config:app",
        "doctor": "dios.cli.nodes.doctor:app",
        "audit": "dios.cli.nodes.audit:app*",
        "ui": "dios.cli.nodes.dashboard:app",
        "metrics": "dios.cli.nodes.metrics:app",
        "trace": "dios.cli.tasks.trace:app*",
        "limits": "dios.cli.nodes.limits:app*",
        "sched": "dios.cli.scheduling.sched:app*",
        "explain": "dios.cli.scheduling.sched:explain_app",
        "shares": "dios.cli.scheduling.shares:app",
        "quota": "dios.cli.scheduling.shares:quota_app*",
        "pack": "dios.cli.packing.pack:app*",
        "nf": "dios.cli.network_functions:app*",
        "fair": "dios.cli.scheduling.fair:app*",
        "solve": "dios.cli.scheduling.solve:app",
        "repro": "dios.cli.experiments:app*",
    }


app: Final = typer.Typer(
    cls=_Commands,
    help="Objects, groups and tasks of a DIOS node.\n\nEach command explains itself: dios COMMAND --help.",
    epilog="\b\nA first round:\n  dios-node start --data ./node0 --detach\n  dios group create analytics\n"
    "  dios put data/*.txt --group analytics\n  dios ls\n  dios run job.py --group analytics -- --top 20\n"
    "  dios-node stop",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        typer.echo(f"dios {version()}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Objects, groups and tasks of a DIOS node."""
    del version


def main() -> None:
    """Run the command ``dios``."""
    open_standard_streams()
    app(prog_name="dios")


if __name__ == "__main__":
    main()
