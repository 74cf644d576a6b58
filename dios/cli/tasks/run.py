"""``dios run``: runs a program as a task or as a gang of tasks."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from dios import limits
from dios.cli.common.application import CommandApplication
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.json_rows import TaskRow
from dios.cli.common.output import (
    RUN_FAILED,
    BytesOutput,
    JsonOption,
    NodeOption,
    bytes_output,
    facts,
    reporting,
    say,
    size_text,
    write_json,
)
from dios.cli.common.signals import Stopped, stopped_by_signals
from dios.cli.common.streams import INTERRUPTED
from dios.cli.nodes.setting_options import seconds_of
from dios.cli.scheduling.live import ask_at, rows_of
from dios.cli.scheduling.waiting_runs import telling_why
from dios.cli.tasks import job as jobs
from dios.cli.tasks import kept_jobs
from dios.cli.tasks.control import described, pour
from dios.cli.tasks.endings import EndRow, ends_of, explain, sentence_of_move
from dios.cli.tasks.gang import BeginTask, EnforcementRow, run_gang
from dios.cli.tasks.predecessors import AfterAnyOption, AfterOkOption, AfterOption, named_runs, wait_for_runs
from dios.cli.tasks.run_files import files_of_run
from dios.cli.tasks.work_options import PLACE, MayWaitOption, TaskNeeds, needs_of, with_needs
from dios.client.enforcement import lines_of, sorted_out, wanted_of
from dios.client.program import NATIVE_NAME, Program, with_trace
from dios.client.tracing.active import context_for_others
from dios.errors import DiosError, InvalidError, UnreachableError
from dios.firmament.models.considered import options_for_models, warnings
from dios.lib.movable import MovableRun
from dios.lib.supervised.arrays import parse_array
from dios.lib.supervised.services import ServiceProgram
from dios.node.limit_text import limits_of_run, parse_size
from dios.wire.messages import Work
from dios.wire.nametext import format_name
from dios.wire.types import Brand

if TYPE_CHECKING:
    from dios.client.ops.attributes import Handed
    from dios.client.ops.status import Status
    from dios.client.sync.node import Task

# The sections of `--help-all`.
_RIGHTS: Final = "Its rights and limits"
_PROGRAM: Final = "Its program"
_KEPT: Final = "Kept jobs"

app: Final = CommandApplication()

FileArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="FILE",
        help="A Python program in one file, a WebAssembly module, or a job description (.toml).",
    ),
]
ArgumentsArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ARGS...]", help="Arguments of the program.")
]
TitleOption = Annotated[
    str, typer.Option("--title", metavar="TEXT", help="Its title in `dios ps`; default: FILE.")
]
MemoryOption = Annotated[
    str, typer.Option("--memory", metavar="SIZE", help="Its memory limit, like '512 MiB'.")
]
CpuSecondsOption = Annotated[
    float, typer.Option("--cpu-seconds", metavar="N", min=0, help="Its CPU time.", rich_help_panel=_RIGHTS)
]
GroupOption = Annotated[
    list[str] | None, typer.Option("--group", "-g", metavar="ALIAS", help="A group the task is a member of.")
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input",
        "-i",
        metavar="[FILE=]NAME",
        help="An object the task may read, in node.inputs; with FILE also as the file /inputs/FILE.",
    ),
]
OutputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE=PATH",
        help="Store the task's file /outputs/FILE as PATH in the group, if the task ends with 0.",
    ),
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="WORD=VALUE",
        help="Limit of it and all it starts: tasks=10, cpu=5min.",
        rich_help_panel=_RIGHTS,
    ),
]
TemplateOption = Annotated[
    str,
    typer.Option(
        "--template",
        metavar="NAME",
        help="Start it with the modules of a template; see: dios template ls.",
        rich_help_panel=_PROGRAM,
    ),
]
ProgramOption = Annotated[
    str,
    typer.Option(
        "--program",
        metavar="NAME",
        help="Run a native program of the node's settings, in place of FILE.",
        rich_help_panel=_PROGRAM,
    ),
]
OnOption = Annotated[
    str, typer.Option("--on", metavar="NODE", help="Run it on this node; default: the scheduler chooses.")
]


@app.command(
    epilog="\b\nExamples:\n  dios run job.py --group analytics -- --top 20\n"
    "  dios run job.py --group analytics --input a.txt --input b.txt\n"
    "  dios run etl.py -g analytics --input csv=t.csv --output out.parquet=result.parquet\n"
    "  dios run job.py --detach        (then: dios logs, dios ps, dios kill)\n"
    "  dios run job.py --keep          (survives its node; then: dios attach job)\n"
    "\f"
    "  dios run job.py --array 1-100%8 (kept runs; each has its index in sys.argv[-1])\n"
    "  dios run report.py --keep --after-ok job   (begins when job has succeeded)\n"
    "  dios run job.py --time 10min    (is ended after this time)\n"
    "  dios run tool.wasm -g analytics --input csv=t.csv --output out=result   (WebAssembly)\n"
    "  dios run --program sort --input csv=t.csv -g analytics -- -n /inputs/csv   (a native program)\n"
    "  dios run report.py -g hr --input pay.csv --output sum.csv=sum.csv --secrecy payroll\n"
    "  dios run --limbo tool.py          (outside the sandbox, as the node's user)\n"
    "  dios run job.py --limit tasks=10 --limit objects=100   (with all it starts)\n"
    "  dios run job.py --on n2           (--here: on the asked node)\n"
    "  dios run job.py --cpus 2 --reserve-memory 1GiB --constraint gpu=yes   (then: dios explain)\n"
    "  dios run job.py --gang 3/4        (four tasks; three at least start together)\n"
    "  dios run job.toml --group analytics   (a job over time; first: dios pack check job.toml)\n"
    "  dios run job.toml --may-wait 1h       (at its earliest start, which is promised)\n\n"
    "\b\nA program, whole:\n  import dios, sys\n  with dios.connect() as node:\n"
    "      print(sys.argv[1:], [len(item.read_bytes()) for item in node.inputs])\n\n"
    "The program is in Python, or a WebAssembly module: a command of WASI preview 1. A module finds its "
    "inputs and outputs as files, and needs the package wasmtime on its node. With --program it is a native "
    "program in the settings of its node. It finds its inputs as files, and its result is its standard "
    "output.\n\n"
    "The standard input of a task is always empty. A task is killed, too, when this command ends by SIGTERM "
    "or a closed terminal.\n\n"
    "With --keep it becomes a kept job: it is started again on another node if its node dies, and goes on "
    "when this command or its terminal ends. Ctrl-C detaches. `dios attach` follows it again.\n\n"
    "In a cluster the scheduler chooses the node, unless you do; the task waits until its resources are "
    "free.\n\n"
    "A job description (FILE.toml) lists several tasks with their needs and times. Either all of them get "
    "their places, from now until the job's end, or the job is refused."
)
@with_needs
def run(
    file: FileArgument = None,
    arguments: ArgumentsArgument = None,
    *,
    group: GroupOption = None,
    inputs: InputOption = None,
    outputs: OutputOption = None,
    secrecy: Annotated[
        list[str] | None,
        typer.Option(
            "--secrecy",
            metavar="TAG",
            help="Give its outputs this tag: they may have what the tag has.",
            rich_help_panel=_RIGHTS,
        ),
    ] = None,
    may_declassify: Annotated[
        list[str] | None,
        typer.Option(
            "--may-declassify",
            metavar="TAG",
            help="Let it write what has this tag of yours to places without it.",
            rich_help_panel=_RIGHTS,
        ),
    ] = None,
    limbo: Annotated[bool, typer.Option("--limbo", help="Run it unconfined, as the node's user.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Print the task and return; it goes on.")] = False,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Let the cluster keep it running until it is done; see: dios attach."),
    ] = False,
    attempts: Annotated[
        int | None,
        typer.Option(
            "--attempts",
            metavar="N",
            min=1,
            max=limits.KEPT_JOB_ATTEMPTS_MAX,
            help=f"With --keep: its runs in all if it fails; default: {limits.KEPT_JOB_ATTEMPTS}.",
            rich_help_panel=_KEPT,
        ),
    ] = None,
    array: Annotated[
        str,
        typer.Option(
            "--array",
            metavar="INDICES",
            help="Keep one run for each index, its last argument: 1-100%8 (8 at once), 1,3,10-20:2.",
            rich_help_panel=_KEPT,
        ),
    ] = "",
    after: AfterOption = None,
    after_ok: AfterOkOption = None,
    after_any: AfterAnyOption = None,
    title: TitleOption = "",
    memory: MemoryOption = "",
    cpu_seconds: CpuSecondsOption = 0.0,
    limit: LimitOption = None,
    on: OnOption = "",
    here: Annotated[
        bool, typer.Option("--here", help="Run it on the asked node.", rich_help_panel=PLACE)
    ] = False,
    template: TemplateOption = "",
    program: ProgramOption = "",
    may_wait: MayWaitOption = "",
    needs: Callable[[], TaskNeeds],
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a program as a task. The command shows its output and ends with its exit status.

    A task is pure by default: it has its inputs, its groups and its memory, but no files, network or other
    programs. --limbo runs it unconfined. Ctrl-C kills it; with --detach it goes on.
    """
    with (
        reporting("dios run", as_json=as_json, status=RUN_FAILED),
        contextlib.nullcontext(needs()) as wanted,
        opened(node, group or ()) as place,
    ):
        opening = partial(opened, node, group or ())
        keep = keep or bool(array)
        runs = named_runs(place, after, after_ok, after_any)
        if runs and detach and not keep:
            raise InvalidError(
                "with --detach no command would start it after the other run: add --keep, so that the "
                "cluster does, or leave out --detach"
            )
        chosen = _chosen(file, arguments or (), program, template, limbo=limbo)
        if chosen.path is not None and chosen.path.suffix == jobs.SUFFIX:
            said = {
                "--output": outputs,
                "--title": title,
                "--memory": memory,
                "--cpu-seconds": cpu_seconds,
                "--limit": limit,
                "--template": template,
                "--secrecy": secrecy,
                "--may-declassify": may_declassify,
            }
            said |= {"--keep": keep and not array, "--array": array, "--attempts": attempts}
            _refuse_for_jobs(wanted, said | {"--on": on, "--here": here})
            wait_s = seconds_of(may_wait, "--may-wait") if may_wait else 0
            wait_for_runs(place, chosen.name, runs)
            options = jobs.JobRunOptions(
                tuple(group or ()), tuple(inputs or ()), chosen.arguments, limbo, wait_s
            )
            status = jobs.run_job(chosen.path, opening, place, options, detach=detach, as_json=as_json)
            raise typer.Exit(status)
        if may_wait:
            raise InvalidError(
                "--may-wait is for jobs over time (JOB.toml). Leave it out: other runs wait for their place "
                "until Ctrl-C withdraws them"
            )
        _check(wanted, on, local=here, detach=detach)
        files = files_of_run(place, group or (), inputs or (), outputs or (), secrecy)
        if files.outputs and (detach or wanted.gang is not None):
            raise InvalidError("--output needs this command to store it: leave out --detach and --gang")
        name = title or chosen.name
        near = [place.object(text) for text in wanted.near]
        work = wanted.of(name, near, _original(place, wanted.copy_of))
        enforcement = _note_enforcement(place, work, on, limbo=limbo)
        bounds = limits_of_run(limit or (), memory_bytes=_memory(memory), cpu_ms=round(cpu_seconds * 1000))
        trace = context_for_others()
        if keep:
            # The supervisor names the node, and stores what the task has printed.
            gang = wanted.gang is not None
            unfit = {"--output": outputs, "--limbo": limbo, "--program": program, "--gang": gang}
            unfit |= {"--may-declassify": may_declassify}
            _refuse_for_kept(unfit | {"--on": on, "--here": here})
            job = ServiceProgram(
                Path(file or "") if trace is None else with_trace(Path(file or ""), trace.traceparent),
                chosen.arguments,
                {task_input.label: place.object(task_input.name) for task_input in files.inputs},
                files.labels,
                tuple(place.group(alias) for alias in group or ()),
                work,
                bounds,
                template=template,
                label=chosen.name,
            )
            named = kept_jobs.start(
                place,
                job,
                title,
                file or "",
                attempts=attempts or limits.KEPT_JOB_ATTEMPTS,
                after=runs,
                array=parse_array(array) if array else None,
            )
            raise typer.Exit(kept_jobs.show_started(place, named, detach=detach, as_json=as_json))
        if attempts is not None:
            raise InvalidError("--attempts is for kept jobs: add --keep")
        wait_for_runs(place, name, runs)

        def begin(at: CommandContext, work: Work, more: Sequence[Handed]) -> Task:
            return at.node.run(
                chosen.program if trace is None else with_trace(chosen.program, trace.traceparent),
                groups=[at.group(alias) for alias in group or ()],
                inputs=[*files.inputs_at(at), *_rights_to(at, may_declassify)],
                outputs=[*files.outputs_at(), *more],
                files=files.labels,
                args=chosen.arguments,
                label=name,
                brand=Brand.LIMBO if limbo else Brand.PURE,
                limits=bounds,
                host=on,
                local=here,
                work=work,
                detach=detach,
                template=template,
            )

        _go(
            place,
            opening,
            begin,
            wanted,
            work,
            name,
            files.store,
            enforcement,
            detach=detach,
            as_json=as_json,
        )


def _rights_to(at: CommandContext, tags: Sequence[str] | None) -> list[Handed]:
    """Return a reference by which a task may declassify these tags; none without tags."""
    return [at.node.declassifier(tags).restrict("declassify", label="declassify")] if tags else []


class _Chosen(NamedTuple):
    """The program of a command line: a file, or the name of a native program."""

    path: Path | None
    name: str
    arguments: tuple[str, ...]

    @property
    def program(self) -> Path | Program:
        """The program as a task gets it."""
        return Program("", native=self.name) if self.path is None else self.path


def _chosen(
    file: str | None, arguments: Sequence[str], program: str, template: str, *, limbo: bool
) -> _Chosen:
    if not program:
        if file is None:
            raise InvalidError("give a FILE, or a native program of the node with --program NAME")
        return _Chosen(Path(file), Path(file).name, tuple(arguments))
    if limbo or template:
        raise InvalidError("a native program is a pure task of its own: leave out --limbo and --template")
    if not re.match(NATIVE_NAME, program):
        raise InvalidError(f"{program!r} cannot be the name of a program in a node's settings")
    # The word that would be the file is the first argument here.
    return _Chosen(None, program, (*([] if file is None else [file]), *arguments))


def _refuse_for_jobs(needs: TaskNeeds, said: Mapping[str, object]) -> None:
    said = {**said, "--cpus and the like": needs != needs_of()}
    named = ", ".join(option for option, value in said.items() if value)
    if named:
        raise InvalidError(f"the needs of a job are in its file: leave out {named}")


def _refuse_for_kept(said: Mapping[str, object]) -> None:
    named = ", ".join(option for option, value in said.items() if value)
    if named:
        raise InvalidError(
            f"a kept job is a pure task on a node that its supervisor chooses, and stores its results in its "
            f"group: leave out {named}"
        )


def _check(needs: TaskNeeds, host: str, *, local: bool, detach: bool) -> None:
    if detach and needs.restartable:
        raise InvalidError("--restartable needs this command to run the task again: leave out --detach")
    if host and local:
        raise InvalidError("give only one of --on and --here")
    if needs.gang is not None and (host or local):
        raise InvalidError("a gang is scheduled as a whole: leave out --on and --here")


def _go(
    place: CommandContext,
    opening: Callable[[], AbstractContextManager[CommandContext]],
    begin: BeginTask,
    needs: TaskNeeds,
    work: Work,
    label: str,
    store: Callable[[], None],
    enforcement: _Enforcement,
    *,
    detach: bool,
    as_json: bool,
) -> None:
    """Run the task or the gang, ``store`` the outputs of a success, and exit with the task's status."""
    if needs.gang is not None:
        raise typer.Exit(
            run_gang(
                opening,
                begin,
                work,
                needs.gang,
                detach=detach,
                as_json=as_json,
                node_facts=enforcement.at,
                telling_why=partial(telling_why, opening, label),
            )
        )

    def placed(needed: Work, more: Sequence[Handed]) -> Task:
        with telling_why(opening, label):
            return begin(place, needed, more)

    run = MovableRun(place.node, placed, work)
    task = run.start()
    if detach:
        _show_started(task, label, enforcement, as_json=as_json)
        return
    # With --json only the result goes to standard output.
    output = bytes_output(sys.stderr if as_json else sys.stdout)
    with run:
        ended = attend(task, output)
        while (following := run.again(ended)) is not None:
            say(sentence_of_move(ended, run.history[-1], following))
            ended = attend(following, output)
    if ended.ok:
        store()
    if as_json:
        row: RunRow = {**described(ended), **enforcement.at(ended.node), "ends": ends_of(run)}
        write_json(row)
    else:
        for line in explain(ended):
            say(line)
    raise typer.Exit(ended.exit_status)


class RunRow(TaskRow, EnforcementRow):
    """A task that has ended, and the ends of the tasks before it, if the run was moved or restarted."""

    ends: list[EndRow]


class StartedRunRow(EnforcementRow):
    """A task that was started with --detach, with its secret name."""

    fingerprint: str
    label: str
    name: str | None
    node: str


class _Enforcement(NamedTuple):
    """The resources that a run names, and what each node reports about enforcing them."""

    wanted: tuple[str, ...]
    nodes: Mapping[str, Mapping[str, object]]
    limbo: bool

    def at(self, node: str) -> EnforcementRow:
        """Return the resources that the node enforces and those that are advisory, for JSON."""
        if not self.wanted or node not in self.nodes:
            return {}
        enforced, advisory = sorted_out(self.wanted, self.nodes[node], limbo=self.limbo)
        return {"enforced": enforced, "advisory": advisory}


def _note_enforcement(place: CommandContext, work: Work, host: str, *, limbo: bool) -> _Enforcement:
    """Report which of the run's needs are enforced, and which ones change nothing in this cluster."""
    wanted, judged = wanted_of(work), options_for_models(work)
    nodes: list[dict[str, object]] = []
    # Without a scheduler the run itself is refused, or waits for one, with the reason.
    with contextlib.suppress(DiosError):
        if wanted or judged:
            question: dict[str, object] = {"ask": "enforcement"} | ({"model": True} if judged else {})
            answer = ask_at(place, question)
            nodes = rows_of(answer, "nodes") if wanted else []
            for line in warnings(judged, str(answer["model"])) if judged and not answer.get("custom") else ():
                say(line)
    for line in lines_of(wanted, nodes, host, limbo=limbo):
        say(line)
    for amount, option, key in ((work.disk_io, "--disk-io", "disk_io"), (work.network, "--net", "network")):
        if amount:
            unknown = [str(row["node"]) for row in nodes if not row[key]]
            if unknown:
                names = ", ".join(unknown)
                say(f"{option} sets nothing aside on {names}: the capacity is unknown (`dios node describe`)")
    reported = {str(row["node"]): row.get("enforcement") for row in nodes}
    known = {name: enforcement for name, enforcement in reported.items() if isinstance(enforcement, Mapping)}
    return _Enforcement(wanted, known, limbo)


def _original(place: CommandContext, text: str) -> str:
    """Return the fingerprint of the task of `--copy-of`. Raise InvalidError if it has ended."""
    if not text:
        return ""
    _, status = place.task(text)
    if status.ended:
        raise InvalidError(f"cannot copy task {status.fingerprint}: it has ended")
    return status.fingerprint


def _memory(text: str) -> int:
    if not text:
        return 0
    try:
        size = parse_size(text)
    except ValueError as error:
        raise InvalidError(f"--memory must be {error}, not {text!r}") from None
    least, most = limits.TASK_MEMORY_BYTES_MIN, limits.TASK_MEMORY_BYTES_MAX
    if not least <= size <= most:
        raise InvalidError(f"--memory must be from {size_text(least)} to {size_text(most)}, not {text!r}")
    return size


def _show_started(task: Task, label: str, enforcement: _Enforcement, *, as_json: bool) -> None:
    if as_json:
        row: StartedRunRow = {
            "fingerprint": task.fingerprint,
            "label": label,
            "name": format_name(task.name) if task.name else None,
            "node": task.node,
            **enforcement.at(task.node),
        }
        write_json(row)
    else:
        node_facts = [("node", task.node)] if task.node else []
        facts([("task", task.fingerprint), ("title", label), *node_facts])
        say(f"next: dios logs {task.fingerprint} --follow")


def attend(task: Task, output: BytesOutput) -> Status:
    """Show the output until the task has ended; kill the task first if this command is ended."""
    try:
        with stopped_by_signals():
            # If its node dies, the status says so; the console only reports that nobody answers.
            with contextlib.suppress(UnreachableError):
                pour(task.console(), output)
            return task.wait()
    except DiosError:
        raise
    except (KeyboardInterrupt, Stopped, OSError) as stopped:
        with contextlib.suppress(OSError):
            say(f"killing task {task.fingerprint}")
        with contextlib.suppress(DiosError):
            task.kill()
        if isinstance(stopped, OSError):
            raise
        status = stopped.exit_status if isinstance(stopped, Stopped) else INTERRUPTED
        raise typer.Exit(status) from None
