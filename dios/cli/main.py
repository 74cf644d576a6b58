"""The command ``dios``: a table of its commands, each of which is imported when it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.lazy import CommandRow, LazyGroup, Section, section_rows
from dios.cli.common.options import option
from dios.cli.common.streams import run
from dios.installation import version


class Commands(LazyGroup):
    """The commands of ``dios``, in the order in which ``dios --help`` lists them."""

    open = True
    rows: ClassVar[Sequence[CommandRow]] = (
        *section_rows(
            Section.FILES,
            "dios.cli",
            ("group", "objects.groups:app*", "Make groups for your files, and share them with other users."),
            ("put", "objects.files:app", "Store files as durable objects in a group."),
            ("ls", "objects.files:app", "List your files, or those of a directory."),
            ("du", "objects.files:app", "Count the files and bytes of groups and directories."),
            ("get", "objects.files:app", "Write an object to a file or to standard output."),
            ("rm", "objects.files:app", "Destroy objects with all their replicas."),
            ("sync", "objects.files:app", "Make a directory equal to another; only differences are copied."),
            ("stat", "objects.replicas:app", "Show the attributes of an object, and its replicas."),
            ("replicate", "objects.replicas:app", "Make a replica of an object on another node."),
            ("journal", "objects.logs:app*", "Append entries to journals on disk; read and follow them."),
            ("store", "objects.stores:app*", "Create and repair key-value stores on several nodes."),
            (
                "backup",
                "objects.backup:app*",
                "Store encrypted copies of your groups elsewhere; restore them.",
            ),
            ("tier", "objects.tier:app*", "Move the bytes of cold files to another store, and back."),
        ),
        *section_rows(
            Section.RUN,
            "dios.cli",
            ("run", "tasks.run:app", "Run a program as a task."),
            (
                "attach",
                "tasks.kept_jobs:attach_app",
                "Follow a kept job: its output, its progress and its end.",
            ),
            ("job", "tasks.kept_jobs:app*", "List, describe, stop and remove your kept jobs."),
            ("service", "tasks.service:app*", "Keep a number of replicas of a program running."),
            ("ps", "tasks.listing:app", "List your tasks on all nodes."),
            ("logs", "tasks.control:app", "Print the output of a task."),
            ("pause", "tasks.control:app", "Suspend a task: it keeps its state and does nothing."),
            ("resume", "tasks.control:app", "Continue a paused task."),
            ("kill", "tasks.control:app", "End tasks at once."),
            ("debug", "tasks.debug:app", "Repeat a task under pdb, Python's debugger."),
            ("sandbox", "tasks.sandbox:app*", "Run code that nobody has read, confined."),
            (
                "template",
                "tasks.template:app*",
                "Load sets of modules once for all tasks that start from them.",
            ),
            ("env", "tasks.env:app*", "Install packages for tasks, and list, show and remove them."),
            ("mcp", "tasks.mcp_server:app", "Serve sandboxes to agents, over the Model Context Protocol."),
            ("kernel", "tasks.kernel:app*", "Run the cells of Jupyter notebooks in a sandbox."),
            ("pack", "packing.live:app*", "Check, list and learn jobs whose demands change over time."),
            ("nf", "network_functions:app*", "Run network functions on all cores, even for one flow."),
        ),
        *section_rows(
            Section.CLUSTER,
            "dios.cli",
            ("up", "nodes.local_cluster:app", "Start a cluster on this machine, or on other machines."),
            ("down", "nodes.local_cluster:app", "Stop the cluster that `dios up` started."),
            ("node", "nodes.members:app*", "List, describe, label, drain, replace and forget nodes."),
            ("user", "nodes.users:app*", "Enrol users by their keys, and let nodes act for you."),
            ("sched", "scheduling.live:app*", "Look at the cluster's scheduler, and change it."),
            ("doctor", "nodes.doctor:app", "Show what this machine can enforce, and what to change."),
            ("config", "nodes.config:app", "Show the settings of commands, and where they come from."),
        ),
        *section_rows(
            Section.LOOK,
            "dios.cli",
            ("top", "tasks.top:app", "Show nodes and tasks live, and control your tasks."),
            ("ui", "nodes.dashboard:app", "Show the cluster in a browser, until Ctrl-C."),
            ("describe", "tasks.describe:app", "Show a task: its inputs, its limits and use, why it ended."),
            (
                "explain",
                "scheduling.live:explain_app",
                "Explain why a task waits, or why it runs where it is.",
            ),
            ("report", "tasks.report:app", "Write a page about a task and all tasks that it started."),
            ("trace", "tasks.trace:app*", "Record what the calls of a command took, and where."),
            ("metrics", "nodes.metrics:app", "Show the metrics of a node."),
            ("audit", "nodes.audit:app*", "Show who did what to which object, when, and with what result."),
            ("shell", "tasks.shell:app", "Open a prompt for names, groups, references and tasks."),
            ("schema", "schema:app", "Print the JSON schema of what a command prints with --json."),
        ),
        *section_rows(
            Section.SHARE,
            "dios.cli",
            (
                "token",
                "objects.tokens:app*",
                "Give others a right to files that they can narrow and pass on.",
            ),
            ("shares", "scheduling.shares:app", "Show who shares the cluster, and who goes first."),
            (
                "quota",
                "scheduling.shares:quota_app*",
                "Set how much of the cluster each user may hold at once.",
            ),
            ("limits", "nodes.limits:app*", "Show and set the limits of users, groups and tasks."),
        ),
    )


app: Final = CommandApplication(
    name="dios",
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
    version: bool = option("--version", "Print the version and exit.", callback=_show_version, is_eager=True),
) -> None:
    """Objects, groups and tasks of a DIOS node."""
    del version


def main() -> None:
    """Run the command ``dios``."""
    run("dios", lambda: app)


if __name__ == "__main__":
    main()
