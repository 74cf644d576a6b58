"""``dios pack check``, ``dios pack ls`` and ``dios pack release``: jobs over time in a cluster.

The cluster's coordinator answers (``dios.firmament.coordinator.admissions``). ``dios.cli.tasks.job`` runs
jobs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from dios.cli.common.application import CommandApplication
from dios.cli.common.context import opened
from dios.cli.common.options import argument
from dios.cli.common.output import Cells, Number, say, size_text, span_text, table_of, write_json
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.cli.nodes.setting_options import seconds_of
from dios.cli.packing import learn
from dios.cli.scheduling.live import ask
from dios.cli.tasks.job import described
from dios.cli.tasks.work_options import MAY_WAIT_OPTION
from dios.errors import InvalidError
from dios.lib import reservations

if TYPE_CHECKING:
    from dios.lib.reservations import JobMember

app: Final = CommandApplication(
    no_args_is_help=True, help="Jobs with demands over time: check, run and learn them."
)

_S: Final = 1e9


@app.command(
    examples="dios pack check job.toml\ndios pack check job.toml --may-wait 1h\n"
    "dios pack check job.toml --json",
    json="dios.lib.reservations:ReservationPlan",
)
def check(
    file: Path = argument("JOB.toml", "A job description."),
    *,
    may_wait: str = MAY_WAIT_OPTION,
    common: CommonOptions,
) -> None:
    """Show where a job would run now, or which resource is short and when. Nothing is reserved.

    With --may-wait it shows the earliest start within that time.

    docs/packing.md describes the format. `dios run JOB.toml` runs the job.
    """
    with opened(common.node) as place:
        wait_s = seconds_of(may_wait, "--may-wait") if may_wait else 0.0
        plan = reservations.check(place.node, described(file), str(file), wait_s=wait_s)
        length = "as long as its tasks" if plan.length_s is None else span_text(round(plan.length_s * _S))
        outcome = f"{plan.job} fits, for {length}; next: dios run {file}"
        if plan.waits_s:
            late = span_text(round(plan.waits_s * _S))
            outcome = f"{plan.job} fits in {late}, for {length}; next: dios run {file} --may-wait {may_wait}"
        common.print_row(plan, outcome, table=map(_cells, plan.members))


def _cells(member: JobMember) -> Cells:
    end = "its end" if member.end_s is None else f"{member.end_s:g} s"
    store, memory = member.service, member.memory_bytes
    return {
        "MEMBER": member.name,
        "NODE": member.node,
        "FROM": Number("-" if store else f"{member.start_s:g} s"),
        "TO": Number("-" if store else end),
        "CPUS": Number("its store" if store else f"{member.cpus:g}"),
        "MEMORY": size_text(memory) if memory and not store else Number("-"),
    }


class _Flow(msgspec.Struct):
    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    node: str
    inside: bool
    guaranteed_bytes_s: int
    moving_bytes_s: float


class _Place(msgspec.Struct):
    member: str
    node: str
    service: bool
    running: bool


class _Job(msgspec.Struct):
    number: int
    principal: str
    job: str
    length_s: float | None
    waits_s: float
    age_s: float
    problem: str
    members: list[_Place]
    edges: list[_Flow]


class ReleasedRow(Row):
    """The number of the job whose reservation was released."""

    released: int


@app.command(
    examples="dios pack ls\ndios pack ls --json",
    json=["dios.firmament.coordinator.answers:AdmittedJobAnswer"],
)
def ls(common: CommonOptions) -> None:
    """Show the admitted jobs over time, their running tasks, and the traffic on their edges.

    SINCE is the age of a job, or the time until its promised start.

    GUARANTEED is the present guarantee of an edge, MOVING its present traffic. The nodes' own user sees all
    jobs, other users their own.
    """
    told = ask(common.node, {"ask": "pack", "do": "list"})["jobs"]
    if common.as_json:
        write_json(told)
        return
    jobs = msgspec.convert(told, list[_Job])
    if not table_of(map(_job_cells, jobs)):
        say("no job over time is admitted; `dios run JOB.toml` submits one")
    table_of(_flow_cells(job, flow) for job in jobs for flow in job.edges if not flow.inside)
    for job in jobs:
        if job.problem:
            say(f"problem: {job.problem}")


def _job_cells(job: _Job) -> Cells:
    tasks = [member for member in job.members if not member.service]
    waits, age = span_text(round(job.waits_s * _S)), span_text(round(job.age_s * _S))
    return {
        "JOB": job.job,
        "WHOSE": job.principal,
        "SINCE": Number(f"in {waits}" if job.waits_s else age),
        "LENGTH": Number("-") if job.length_s is None else span_text(round(job.length_s * _S)),
        "RUNNING": Number(f"{sum(task.running for task in tasks)} of {len(tasks)}"),
        "NODES": " ".join(sorted({member.node for member in job.members})),
    }


def _flow_cells(job: _Job, flow: _Flow) -> Cells:
    guaranteed, moving = flow.guaranteed_bytes_s, round(flow.moving_bytes_s)
    return {
        "JOB": job.job,
        "EDGE": f"{flow.source} -> {flow.target}",
        "NODE": flow.node,
        "GUARANTEED": Number(f"{size_text(guaranteed)}/s" if guaranteed else "-"),
        "MOVING": Number(f"{size_text(moving)}/s" if flow.moving_bytes_s else "-"),
    }


@app.command(examples="dios pack release words", json=ReleasedRow)
def release(
    name: str = argument("JOB", "The job's name, or its number in `--json`."), *, common: CommonOptions
) -> None:
    """Release the reservation of a job; its tasks go on without it.

    A job releases it by itself when it ends, or when its command ends.
    """
    jobs = msgspec.convert(ask(common.node, {"ask": "pack", "do": "list"})["jobs"], list[_Job])
    fitting = [job for job in jobs if name in {job.job, str(job.number)}]
    if not fitting:
        raise InvalidError(f"you have no admitted job {name!r}; `dios pack ls` lists them")
    if len(fitting) > 1:
        some = ", ".join(str(job.number) for job in fitting)
        raise InvalidError(f"{len(fitting)} jobs have the name {name!r}; give one of the numbers {some}")
    ask(common.node, {"ask": "pack", "do": "release", "number": fitting[0].number})
    common.print_row(ReleasedRow(fitting[0].number), f"the reservation of {fitting[0].job} is released")


app.add_typer(learn.app)
