"""``dios``: objects, groups and tasks of a node, from the command line.

Not for: the commands themselves (one module for each family) or the node's process (``dios.cli.node``).
"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from dios.cli import (
    audit,
    cluster,
    debug,
    describe,
    doctor,
    fair,
    groups,
    log,
    nf,
    nodes,
    objects,
    pack,
    quotas,
    replicas,
    repro,
    run,
    sched,
    shares,
    shell,
    solve,
    tasks,
)

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
app.add_typer(nodes.app, name="node")
app.add_typer(log.app, name="log")
app.add_typer(audit.app, name="audit")
app.add_typer(quotas.app, name="limits")
app.add_typer(sched.app, name="sched")
app.add_typer(fair.app, name="fair")
app.add_typer(pack.app, name="pack")
app.add_typer(nf.app, name="nf")
app.add_typer(shares.quota_app, name="quota")
app.add_typer(repro.app, name="repro")
for family in (cluster, objects, replicas, run, tasks, describe, debug, doctor, shell, solve, shares):
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
