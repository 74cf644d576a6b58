"""The command ``dios``: a table of its commands, each of which is imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.lazy import CommandRow, LazyGroup, Section
from dios.cli.common.streams import run
from dios.installation import version


class Commands(LazyGroup):
    """The commands of ``dios``, in the order in which ``dios --help`` lists them."""

    open = True
    rows: ClassVar[Sequence[CommandRow]] = (
        CommandRow(
            Section.FILES,
            "group",
            "dios.cli.objects.groups:app*",
            "Make groups for your files, and share them with other users.",
        ),
        CommandRow(
            Section.FILES, "put", "dios.cli.objects.files:app", "Store files as durable objects in a group."
        ),
        CommandRow(
            Section.FILES, "ls", "dios.cli.objects.files:app", "List your files, or those of a directory."
        ),
        CommandRow(
            Section.FILES,
            "du",
            "dios.cli.objects.files:app",
            "Count the files and bytes of groups and directories.",
        ),
        CommandRow(
            Section.FILES,
            "get",
            "dios.cli.objects.files:app",
            "Write an object to a file or to standard output.",
        ),
        CommandRow(
            Section.FILES, "rm", "dios.cli.objects.files:app", "Destroy objects with all their replicas."
        ),
        CommandRow(
            Section.FILES,
            "sync",
            "dios.cli.objects.files:app",
            "Make a directory equal to another; only differences are copied.",
        ),
        CommandRow(
            Section.FILES,
            "stat",
            "dios.cli.objects.replicas:app",
            "Show the attributes of an object, and its replicas.",
        ),
        CommandRow(
            Section.FILES,
            "replicate",
            "dios.cli.objects.replicas:app",
            "Make a replica of an object on another node.",
        ),
        CommandRow(
            Section.FILES,
            "journal",
            "dios.cli.objects.logs:app*",
            "Append entries to journals on disk; read and follow them.",
        ),
        CommandRow(
            Section.FILES,
            "store",
            "dios.cli.objects.stores:app*",
            "Create and repair key-value stores on several nodes.",
        ),
        CommandRow(
            Section.FILES,
            "backup",
            "dios.cli.objects.backup:app*",
            "Store encrypted copies of your groups elsewhere; restore them.",
        ),
        CommandRow(
            Section.FILES,
            "tier",
            "dios.cli.objects.tier:app*",
            "Move the bytes of cold files to another store, and back.",
        ),
        CommandRow(Section.RUN, "run", "dios.cli.tasks.run:app", "Run a program as a task."),
        CommandRow(
            Section.RUN,
            "attach",
            "dios.cli.tasks.kept_jobs:attach_app",
            "Follow a kept job: its output, its progress and its end.",
        ),
        CommandRow(
            Section.RUN,
            "job",
            "dios.cli.tasks.kept_jobs:app*",
            "List, describe, stop and remove your kept jobs.",
        ),
        CommandRow(
            Section.RUN,
            "service",
            "dios.cli.tasks.service:app*",
            "Keep a number of replicas of a program running.",
        ),
        CommandRow(Section.RUN, "ps", "dios.cli.tasks.listing:app", "List your tasks on all nodes."),
        CommandRow(Section.RUN, "logs", "dios.cli.tasks.control:app", "Print the output of a task."),
        CommandRow(
            Section.RUN,
            "pause",
            "dios.cli.tasks.control:app",
            "Suspend a task: it keeps its state and does nothing.",
        ),
        CommandRow(Section.RUN, "resume", "dios.cli.tasks.control:app", "Continue a paused task."),
        CommandRow(Section.RUN, "kill", "dios.cli.tasks.control:app", "End tasks at once."),
        CommandRow(
            Section.RUN, "debug", "dios.cli.tasks.debug:app", "Repeat a task under pdb, Python's debugger."
        ),
        CommandRow(
            Section.RUN, "sandbox", "dios.cli.tasks.sandbox:app*", "Run code that nobody has read, confined."
        ),
        CommandRow(
            Section.RUN,
            "template",
            "dios.cli.tasks.template:app*",
            "Load sets of modules once for all tasks that start from them.",
        ),
        CommandRow(
            Section.RUN,
            "mcp",
            "dios.cli.tasks.mcp_server:app",
            "Serve sandboxes to agents, over the Model Context Protocol.",
        ),
        CommandRow(
            Section.RUN,
            "kernel",
            "dios.cli.tasks.kernel:app*",
            "Run the cells of Jupyter notebooks in a sandbox.",
        ),
        CommandRow(
            Section.RUN,
            "pack",
            "dios.cli.packing.pack:app*",
            "Check, list and learn jobs whose demands change over time.",
        ),
        CommandRow(
            Section.RUN,
            "nf",
            "dios.cli.network_functions:app*",
            "Run network functions on all cores, even for one flow.",
        ),
        CommandRow(
            Section.CLUSTER,
            "up",
            "dios.cli.nodes.local_cluster:app",
            "Start a cluster on this machine, or on other machines.",
        ),
        CommandRow(
            Section.CLUSTER,
            "down",
            "dios.cli.nodes.local_cluster:app",
            "Stop the cluster that `dios up` started.",
        ),
        CommandRow(
            Section.CLUSTER,
            "node",
            "dios.cli.nodes.members:app*",
            "List, describe, label, drain, replace and forget nodes.",
        ),
        CommandRow(
            Section.CLUSTER,
            "sched",
            "dios.cli.scheduling.sched:app*",
            "Look at the cluster's scheduler, and change it.",
        ),
        CommandRow(
            Section.CLUSTER,
            "doctor",
            "dios.cli.nodes.doctor:app",
            "Show what this machine can enforce, and what to change.",
        ),
        CommandRow(
            Section.CLUSTER,
            "config",
            "dios.cli.nodes.config:app",
            "Show the settings of commands, and where they come from.",
        ),
        CommandRow(
            Section.LOOK,
            "top",
            "dios.cli.tasks.top:app",
            "Show nodes and tasks live, and control your tasks.",
        ),
        CommandRow(
            Section.LOOK, "ui", "dios.cli.nodes.dashboard:app", "Show the cluster in a browser, until Ctrl-C."
        ),
        CommandRow(
            Section.LOOK,
            "describe",
            "dios.cli.tasks.describe:app",
            "Show a task: its inputs, its limits and use, why it ended.",
        ),
        CommandRow(
            Section.LOOK,
            "explain",
            "dios.cli.scheduling.sched:explain_app",
            "Explain why a task waits, or why it runs where it is.",
        ),
        CommandRow(
            Section.LOOK,
            "report",
            "dios.cli.tasks.report:app",
            "Write a page about a task and all tasks that it started.",
        ),
        CommandRow(
            Section.LOOK,
            "trace",
            "dios.cli.tasks.trace:app*",
            "Record what the calls of a command took, and where.",
        ),
        CommandRow(Section.LOOK, "metrics", "dios.cli.nodes.metrics:app", "Show the metrics of a node."),
        CommandRow(
            Section.LOOK,
            "audit",
            "dios.cli.nodes.audit:app*",
            "Show who did what to which object, when, and with what result.",
        ),
        CommandRow(
            Section.LOOK,
            "shell",
            "dios.cli.tasks.shell:app",
            "Open a prompt for names, groups, references and tasks.",
        ),
        CommandRow(
            Section.LOOK,
            "schema",
            "dios.cli.schema:app",
            "Print the JSON schema of what a command prints with --json.",
        ),
        CommandRow(
            Section.SHARE,
            "token",
            "dios.cli.objects.tokens:app*",
            "Give others a right to files that they can narrow and pass on.",
        ),
        CommandRow(
            Section.SHARE,
            "shares",
            "dios.cli.scheduling.shares:app",
            "Show who shares the cluster, and who goes first.",
        ),
        CommandRow(
            Section.SHARE,
            "quota",
            "dios.cli.scheduling.shares:quota_app*",
            "Set how much of the cluster each user may hold at once.",
        ),
        CommandRow(
            Section.SHARE,
            "limits",
            "dios.cli.nodes.limits:app*",
            "Show and set the limits of users, groups and tasks.",
        ),
    )


app: Final = CommandApplication(
    cls=Commands,
    help="Objects, groups and tasks of a DIOS node.\n\nEach command explains itself: dios COMMAND --help.",
    epilog="\b\nA first round:\n  dios-node start --data ./node0 --detach\n  dios group create analytics\n"
    "  dios put data/*.txt --group analytics\n  dios ls\n  dios run job.py --group analytics -- --top 20\n"
    "  dios-node stop",
    no_args_is_help=True,
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
    run("dios", lambda: app)


if __name__ == "__main__":
    main()
