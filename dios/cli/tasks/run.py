"""``dios run``: runs a program as a task, as a gang of tasks, as a kept job, or as a job over time."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import typer
from msgspec import UNSET, UnsetType

from dios import limits
from dios.cli.common.application import CommandApplication, Output
from dios.cli.common.context import CommandContext, opened
from dios.cli.common.options import argument, option
from dios.cli.common.output import RUN_FAILED, BytesOutput, bytes_output, counted, say, size_text
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.cli.common.signals import Stopped, stopped_by_signals
from dios.cli.common.streams import INTERRUPTED
from dios.cli.nodes.setting_options import seconds_of, size_of
from dios.cli.scheduling.live import ask_at, rows_of
from dios.cli.scheduling.waiting_runs import telling_why
from dios.cli.tasks import job as jobs
from dios.cli.tasks import kept_jobs
from dios.cli.tasks.control import pour
from dios.cli.tasks.endings import EndRow, ends_of, explain, sentence_of_move
from dios.cli.tasks.gang import EndedMemberRow, FailedMemberRow, GangMember, StartedMemberRow, run_members
from dios.cli.tasks.kept_jobs import JobNameRow, JobRow
from dios.cli.tasks.predecessors import PredecessorOptions, wait_for_runs
from dios.cli.tasks.run_files import FilesOfRun, files_of_run
from dios.cli.tasks.task_row import TaskRow
from dios.cli.tasks.work_options import MAY_WAIT_OPTION, GangSize, NeedsOptions
from dios.client.enforcement import lines_of, sorted_out, wanted_of
from dios.client.program import NATIVE_NAME, Program, ProgramText, with_trace
from dios.client.tracing.active import context_for_others
from dios.errors import DiosError, InvalidError, UnreachableError
from dios.firmament.models.considered import options_for_models, warnings
from dios.lib.movable import MovableRun
from dios.lib.supervised.arrays import parse_array
from dios.lib.supervised.records import Predecessor
from dios.lib.supervised.services import ServiceProgram
from dios.node.limit_text import limits_of_run
from dios.wire.messages import Limits, Work
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
_FOR_JOBS_OVER_TIME: Final = frozenset(
    {"--group", "--input", "--limbo", "--detach", "--may-wait", "--after", "--after-ok", "--after-any"}
)
"""The options that a job over time may have; its file has all others."""
_NOT_FOR_KEPT_JOBS: Final = frozenset(
    {"--output", "--limbo", "--program", "--gang", "--may-declassify", "--on", "--here"}
)

app: Final = CommandApplication()


class RunOptions(PredecessorOptions):
    """The options of `dios run`, without those of its needs."""

    group: list[str] | None = option("-g --group ALIAS", "A group the task is a member of.")
    inputs: list[str] | None = option(
        "-i --input [FILE=]NAME",
        "An object the task may read, in node.inputs; with FILE also as the file /inputs/FILE.",
    )
    outputs: list[str] | None = option(
        "-o --output FILE=PATH",
        "Store the task's file /outputs/FILE as PATH in the group, if the task ends with 0.",
    )
    secrecy: list[str] | None = option(
        "--secrecy TAG", "Give its outputs this tag: they may have what the tag has.", section=_RIGHTS
    )
    may_declassify: list[str] | None = option(
        "--may-declassify TAG",
        "Let it write what has this tag of yours to places without it.",
        section=_RIGHTS,
    )
    limbo: bool = option("--limbo", "Run it unconfined, as the node's user.")
    detach: bool = option("--detach", "Print the task and return; it goes on.")
    keep: bool = option("--keep", "Let the cluster keep it running until it is done; see: dios attach.")
    attempts: int | None = option(
        "--attempts N",
        f"With --keep: its runs in all if it fails; default: {limits.KEPT_JOB_ATTEMPTS}.",
        section=_KEPT,
        min=1,
        max=limits.KEPT_JOB_ATTEMPTS_MAX,
    )
    array: str = option(
        "--array INDICES",
        "Keep one run for each index, its last argument: 1-100%8 (8 at once), 1,3,10-20:2.",
        section=_KEPT,
    )
    title: str = option("--title TEXT", "Its title in `dios ps`; default: FILE.")
    memory: str = option("--memory SIZE", "Its memory limit, like '512 MiB'.")
    cpu_seconds: float = option("--cpu-seconds N", "Its CPU time.", default=0.0, section=_RIGHTS, min=0)
    limit: list[str] | None = option(
        "--limit WORD=VALUE", "Limit of it and all it starts: tasks=10, cpu=5min.", section=_RIGHTS
    )
    on: str = option("--on NODE", "Run it on this node; default: the scheduler chooses.")
    here: bool = option("--here", "Run it on the asked node.", section="Its place")
    template: str = option(
        "--template NAME",
        "Start it from a template or in an environment; see: dios template ls, dios env ls.",
        section=_PROGRAM,
    )
    packages: list[str] | None = option(
        "--packages PACKAGE",
        "Install it for the task, as in pandas==2.3; may be repeated. See: dios env build.",
        section=_PROGRAM,
    )
    wheels: str = option(
        "--wheels PLACE",
        "Install --packages from the .whl files in a folder, or in dios://GROUP/PATH.",
        section=_PROGRAM,
    )
    program: str = option(
        "--program NAME", "Run a native program of the node's settings, in place of FILE.", section=_PROGRAM
    )
    may_wait: str = MAY_WAIT_OPTION


class RunRow(TaskRow, kw_only=True):
    """A task that has ended, and the ends of the tasks before it, if the run was moved or restarted."""

    enforced: list[str] | UnsetType = UNSET
    advisory: dict[str, str] | UnsetType = UNSET
    ends: list[EndRow]


class StartedRunRow(Row, kw_only=True):
    """A task that was started with --detach, with its secret name."""

    enforced: list[str] | UnsetType = UNSET
    advisory: dict[str, str] | UnsetType = UNSET
    fingerprint: str
    label: str
    name: str | None
    node: str


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
    "  dios run stats.py --packages pandas==2.3   (installed once; see: dios env ls)\n"
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
    "their places, from now until the job's end, or the job is refused.",
    failure_status=RUN_FAILED,
    json=Output(
        (RunRow, StartedRunRow, JobRow, JobNameRow, EndedMemberRow, StartedMemberRow, FailedMemberRow),
        None,
        "A list for --gang and for jobs over time. A job name comes from --keep with --detach.",
    ),
)
def run(
    file: str | None = argument(
        "FILE",
        "A Python program in one file, a WebAssembly module, or a job description (.toml).",
        default=None,
    ),
    arguments: list[str] | None = argument("[-- ARGS...]", "Arguments of the program."),
    *,
    options: RunOptions,
    needs: NeedsOptions,
    common: CommonOptions,
) -> None:
    """Run a program as a task. The command shows its output and ends with its exit status.

    A task is pure by default: it has its inputs, its groups and its memory, but no files, network or other
    programs. --limbo runs it unconfined. Ctrl-C kills it; with --detach it goes on.
    """
    needs.work()  # mistakes are reported before a node is asked
    with opened(common.node, options.group or ()) as place:
        runs = options.runs(place)
        chosen = _chosen(file, arguments or (), options)
        run = _Run(place, chosen, options, needs, common, runs)
        if chosen.path is not None and chosen.path.suffix == jobs.SUFFIX:
            status = _run_job_over_time(run, chosen.path)
        elif options.keep or options.array:
            status = _run_kept_job(run)
        else:
            gang = needs.gang_size()
            status = _run_task(run) if gang is None else _run_gang(run, gang)
    raise typer.Exit(status)


class _Run(NamedTuple):
    """A run of the command line: its program, its options, and the runs before it."""

    place: CommandContext
    chosen: _Chosen
    options: RunOptions
    needs: NeedsOptions
    common: CommonOptions
    after: tuple[Predecessor, ...]

    @property
    def label(self) -> str:
        """The title of its task."""
        return self.options.title or self.chosen.name

    def opened(self) -> AbstractContextManager[CommandContext]:
        """Open a further connection."""
        return opened(self.common.node, self.options.group or ())

    def refuse(self, options: frozenset[str], why: str) -> None:
        """Raise InvalidError if one of these options was given."""
        given = self.options.given() | self.needs.given()
        if named := ", ".join(name for name in given if name in options):
            raise InvalidError(f"{why}: leave out {named}")


# -- jobs over time ---------------------------------------------------------------------------------
def _run_job_over_time(run: _Run, file: Path) -> int:
    options = run.options
    _refuse_lost_wait(run)
    given = frozenset(options.given() | run.needs.given())
    run.refuse(given - _FOR_JOBS_OVER_TIME, "the needs of a job are in its file")
    wait_s = seconds_of(options.may_wait, "--may-wait") if options.may_wait else 0
    wait_for_runs(run.place, run.chosen.name, run.after)
    groups, inputs = tuple(options.group or ()), tuple(options.inputs or ())
    job = jobs.JobRunOptions(groups, inputs, run.chosen.arguments, options.limbo, wait_s)
    return jobs.run_job(file, run.opened, run.place, job, run.common, detach=options.detach)


def _refuse_lost_wait(run: _Run) -> None:
    if run.after and run.options.detach:
        raise InvalidError(
            "with --detach no command would start it after the other run: add --keep, so that the "
            "cluster does, or leave out --detach"
        )


# -- kept jobs --------------------------------------------------------------------------------------
def _run_kept_job(run: _Run) -> int:
    """Start a job that the cluster keeps: its supervisor names the node, and stores what it has printed."""
    place, options = run.place, run.options
    run.refuse(
        _NOT_FOR_KEPT_JOBS,
        "a kept job is a pure task on a node that its supervisor chooses, and stores its results in its "
        "group",
    )
    task = _prepared(run)
    job = ServiceProgram(
        task.program,
        args=run.chosen.arguments,
        inputs={task_input.label: place.object(task_input.name) for task_input in task.files.inputs},
        files=task.files.labels,
        groups=tuple(place.group(alias) for alias in options.group or ()),
        work=task.work,
        bounds=task.bounds,
        template=task.template,
        label=run.chosen.name,
    )
    name = kept_jobs.start(
        place,
        job,
        options.title,
        Path(run.chosen.name),
        attempts=options.attempts or limits.KEPT_JOB_ATTEMPTS,
        after=run.after,
        array=parse_array(options.array) if options.array else None,
    )
    return kept_jobs.show_started(place, name, run.common, detach=options.detach)


# -- tasks ------------------------------------------------------------------------------------------
class _Prepared(NamedTuple):
    """The program of a run, its files, work and limits, and what nodes enforce of them."""

    program: ProgramText
    files: FilesOfRun
    work: Work
    bounds: Limits
    enforcement: _Enforcement
    template: str


def _prepared(run: _Run) -> _Prepared:
    place, options, needs = run.place, run.options, run.needs
    if options.may_wait:
        raise InvalidError(
            "--may-wait is for jobs over time (JOB.toml). Leave it out: other runs wait for their place "
            "until Ctrl-C withdraws them"
        )
    if options.detach and needs.work().restartable:
        raise InvalidError("--restartable needs this command to run the task again: leave out --detach")
    if options.on and options.here:
        raise InvalidError("give only one of --on and --here")
    if needs.gang and (options.on or options.here):
        raise InvalidError("a gang is scheduled as a whole: leave out --on and --here")
    if options.outputs and (options.detach or needs.gang):
        raise InvalidError("--output needs this command to store it: leave out --detach and --gang")
    bounds = limits_of_run(
        options.limit or (), memory_bytes=_memory(options.memory), cpu_ms=round(options.cpu_seconds * 1000)
    )
    files = files_of_run(
        place, options.group or (), options.inputs or (), options.outputs or (), options.secrecy
    )
    near = [place.object(text) for text in needs.near or ()]
    work = needs.work_of(run.label, near, _original(place, needs.copy_of))
    # The context is that of this thread.
    program, trace = run.chosen.program, context_for_others()
    traced = program if trace is None else with_trace(program, trace.traceparent)
    return _Prepared(traced, files, work, bounds, _note_enforcement(run, work), _template(run))


def _template(run: _Run) -> str:
    """Return the template of the run, or the environment with its packages on the nodes that may start it."""
    options = run.options
    if not options.packages:
        if options.wheels:
            raise InvalidError("--wheels is for packages: add --packages, or leave it out")
        return options.template
    if options.limbo:
        raise InvalidError("packages are for tasks in the sandbox: leave out --limbo or --packages")
    # Most runs need none.
    from dios.lib.environments.environments import environment_on, hosts_for  # noqa: PLC0415 - see above

    node, template = run.place.node, options.template
    hosts = hosts_for(node, options.on, scheduled=not options.here)
    return environment_on(
        node, options.packages, wheels=options.wheels or None, hosts=hosts, template=template
    )


def _begin(run: _Run, task: _Prepared, at: CommandContext, work: Work, more: Sequence[Handed]) -> Task:
    """Start a task over a connection, with this work and further outputs."""
    options, tags = run.options, run.options.may_declassify
    rights = [at.node.declassifier(tags).restrict("declassify", label="declassify")] if tags else []
    return at.node.run(
        task.program,
        groups=[at.group(alias) for alias in options.group or ()],
        inputs=[*task.files.inputs_at(at), *rights],
        outputs=[*task.files.outputs_at(), *more],
        files=task.files.labels,
        args=run.chosen.arguments,
        label=run.label,
        brand=Brand.LIMBO if options.limbo else Brand.PURE,
        limits=task.bounds,
        host=options.on,
        local=options.here,
        work=work,
        detach=options.detach,
        template=task.template,
    )


def _ready(run: _Run) -> _Prepared:
    """Return what is to be started now, when the runs before it have done what they have to."""
    _refuse_lost_wait(run)
    if run.options.attempts is not None:
        raise InvalidError("--attempts is for kept jobs: add --keep")
    task = _prepared(run)
    wait_for_runs(run.place, run.label, run.after)
    return task


def _run_gang(run: _Run, gang: GangSize) -> int:
    """Run the tasks of a gang, and return their largest exit status."""
    task = _ready(run)
    members = [GangMember(number, partial(_begin, run, task), task.work) for number in range(gang.tasks)]
    return run_members(
        run.opened,
        members,
        run.common,
        f"waiting until at least {gang.least} of {counted(gang.tasks, 'task')} can start",
        least=gang.least,
        detach=run.options.detach,
        node_facts=task.enforcement.at,
        telling_why=partial(telling_why, run.opened, run.label),
    )


def _run_task(run: _Run) -> int:
    """Run a task, store the outputs of a success, and return its exit status."""
    task, common = _ready(run), run.common

    def placed(needed: Work, more: Sequence[Handed]) -> Task:
        with telling_why(run.opened, run.label):
            return _begin(run, task, run.place, needed, more)

    moving = MovableRun(run.place.node, placed, task.work)
    started = moving.start()
    if run.options.detach:
        name, mark = started.name, started.fingerprint
        secret = format_name(name) if name else None
        facts = task.enforcement.at(started.node)
        common.print_row(
            StartedRunRow.of(started, label=run.label, name=secret, **facts),
            f"next: dios logs {mark} --follow",
            facts={"task": mark, "title": run.label, "node": started.node or None},
        )
        return 0
    # With --json only the result goes to standard output.
    output = bytes_output(sys.stderr if common.as_json else sys.stdout)
    with moving:
        ended = attend(started, output)
        while (following := moving.again(ended)) is not None:
            say(sentence_of_move(ended, moving.history[-1], following))
            ended = attend(following, output)
    if ended.ok:
        task.files.store()
    row = RunRow.of_task(ended, ends=ends_of(moving), **task.enforcement.at(ended.node))
    common.print_row(row, *explain(ended))
    return ended.exit_status


class _Chosen(NamedTuple):
    """The program of a command line: a file, or the name of a native program."""

    path: Path | None
    name: str
    arguments: tuple[str, ...]

    @property
    def program(self) -> Path | Program:
        """The program as a task gets it."""
        return Program("", native=self.name) if self.path is None else self.path


def _chosen(file: str | None, arguments: Sequence[str], options: RunOptions) -> _Chosen:
    program = options.program
    if not program:
        if file is None:
            raise InvalidError("give a FILE, or a native program of the node with --program NAME")
        return _Chosen(Path(file), Path(file).name, tuple(arguments))
    if options.limbo or options.template or options.packages:
        raise InvalidError(
            "a native program is a pure task of its own: leave out --limbo, --template and --packages"
        )
    if not re.match(NATIVE_NAME, program):
        raise InvalidError(f"{program!r} cannot be the name of a program in a node's settings")
    # The word that would be the file is the first argument here.
    return _Chosen(None, program, (*([] if file is None else [file]), *arguments))


class _Enforcement(NamedTuple):
    """The resources that a run names, and what each node reports about enforcing them."""

    wanted: tuple[str, ...]
    nodes: Mapping[str, Mapping[str, object]]
    limbo: bool

    def at(self, node: str) -> dict[str, object]:
        """Return the resources that the node enforces and those that are advisory, for JSON."""
        if not self.wanted or node not in self.nodes:
            return {}
        enforced, advisory = sorted_out(self.wanted, self.nodes[node], limbo=self.limbo)
        return {"enforced": enforced, "advisory": advisory}


def _note_enforcement(run: _Run, work: Work) -> _Enforcement:
    """Report which of the run's needs are enforced, and which ones change nothing in this cluster."""
    limbo = run.options.limbo
    wanted, judged = wanted_of(work), options_for_models(work)
    nodes: list[dict[str, object]] = []
    # Without a scheduler the run itself is refused, or waits for one, with the reason.
    with contextlib.suppress(DiosError):
        if wanted or judged:
            question: dict[str, object] = {"ask": "enforcement"} | ({"model": True} if judged else {})
            answer = ask_at(run.place, question)
            nodes = rows_of(answer, "nodes") if wanted else []
            for line in warnings(judged, str(answer["model"])) if judged and not answer.get("custom") else ():
                say(line)
    for line in lines_of(wanted, nodes, run.options.on, limbo=limbo):
        say(line)
    for amount, name, key in ((work.disk_io, "--disk-io", "disk_io"), (work.network, "--net", "network")):
        if amount:
            unknown = [str(row["node"]) for row in nodes if not row[key]]
            if unknown:
                names = ", ".join(unknown)
                say(f"{name} sets nothing aside on {names}: the capacity is unknown (`dios node describe`)")
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
    size = size_of(text, "--memory")
    least, most = limits.TASK_MEMORY_BYTES_MIN, limits.TASK_MEMORY_BYTES_MAX
    if text and not least <= size <= most:
        raise InvalidError(f"--memory must be from {size_text(least)} to {size_text(most)}, not {text!r}")
    return size


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
