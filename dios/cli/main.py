"""``dios``: objects, groups and tasks of a node, from the command line.

Not for: the commands themselves (one module for each family) or the node's process
(``dios.cli.nodes.daemon``).
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from dios.cli import experiments, network_functions
from dios.cli.nodes import audit, doctor, limits, local_cluster, members
from dios.cli.objects import files, groups, logs, replicas
from dios.cli.packing import pack
from dios.cli.scheduling import fair, sched, shares, solve
from dios.cli.tasks import control, debug, describe, run, shell

app: Final = typer.Typer(
    help="Objects, groups and tasks of a DIOS node.\n\nEach command explains itself: dios COMMAND --help.",
    epilog="\b\nA first round:\n  dios-node start --data ./node0 --detach\n  dios group create analytics\n"
    "  dios put data/*.txt --group analytics\n  dios ls\n  dios run job.py --group analytics -- --top 20\n"
    "  dios-node stop",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(groups.app, name="group")
app.add_typer(members.app, name="node")
app.add_typer(logs.app, name="log")
app.add_typer(audit.app, name="audit")
app.add_typer(limits.app, name="limits")
app.add_typer(sched.app, name="sched")
app.add_typer(fair.app, name="fair")
app.add_typer(pack.app, name="pack")
app.add_typer(network_functions.app, name="nf")
app.add_typer(shares.quota_app, name="quota")
app.add_typer(experiments.app, name="repro")
for family in (local_cluster, files, replicas, run, control, describe, debug, doctor, shell, solve, shares):
    app.add_typer(family.app)
app.add_typer(sched.explain_app)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it so
    if wanted:
        # Late: it reads the installed package's description, which nothing else needs.
        from importlib.metadata import version  # noqa: PLC0415 - see above

        typer.echo(f"dios {version('dios')}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and end.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Objects, groups and tasks of a DIOS node."""
    del version


def main() -> None:
    """The command ``dios``."""
    app(prog_name="dios")


if __name__ == "__main__":
    main()
