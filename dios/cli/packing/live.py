"""``dios pack check``, ``dios pack ls`` and ``dios pack release``: jobs over time in a cluster.

The cluster's coordinator answers (``dios.firmament.coordinator.admissions``). ``dios.cli.tasks.job`` runs
jobs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

import msgspec
import typer

from dios.cli.common.context import opened
from dios.cli.common.output import (
    JsonOption,
    NodeOption,
    reporting,
    say,
    size_text,
    span_text,
    table,
    write_json,
)
from dios.cli.nodes.setting_options import seconds_of
from dios.cli.scheduling.live import ask
from dios.cli.tasks.job import described
from dios.cli.tasks.work_options import MayWaitOption
from dios.errors import InvalidError
from dios.lib import reservations

if TYPE_CHECKING:
    from dios.lib.reservations import JobMember

CHECK: Final = (
    "\b\nFor example:\n  dios pack check job.toml\n  dios pack check job.toml --may-wait 1h\n"
    "  dios pack check job.toml --json"
)
LS: Final = "\b\nFor example:\n  dios pack ls\n  dios pack ls --json"
RELEASE: Final = "\b\nFor example:\n  dios pack release words"
_S: Final = 1e9

FileArgument = Annotated[Path, typer.Argument(metavar="JOB.toml", help="A job description.")]


def check(
    file: FileArgument,
    *,
    may_wait: MayWaitOption = "",
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where a job would run now, or which resource is short and when. Nothing is reserved.

    With --may-wait it shows the earliest start within that time.

    docs/packing.md describes the format. `dios run JOB.toml` runs the job.
    """
    with reporting("dios pack check", as_json=as_json), opened(node) as place:
        wait_s = seconds_of(may_wait, "--may-wait") if may_wait else 0.0
        plan = reservations.check(place.node, described(file), str(file), wait_s=wait_s)
        if as_json:
            write_json(msgspec.to_builtins(plan))
            return
        table(
            ("MEMBER", "NODE", "FROM", "TO", "CPUS", "MEMORY"),
            [_row(member) for member in plan.members],
            right=("FROM", "TO", "CPUS", "MEMORY"),
        )
        length = "as long as its tasks" if plan.length_s is None else span_text(round(plan.length_s * _S))
        if plan.waits_s:
            late = span_text(round(plan.waits_s * _S))
            say(f"{plan.job} fits in {late}, for {length}; next: dios run {file} --may-wait {may_wait}")
            return
        say(f"{plan.job} fits, for {length}; next: dios run {file}")


def _row(member: JobMember) -> tuple[str, ...]:
    if member.service:
        return member.name, member.node, "-", "-", "its store", "-"
    end = "its end" if member.end_s is None else f"{member.end_s:g} s"
    memory = size_text(member.memory_bytes) if member.memory_bytes else "-"
    return member.name, member.node, f"{member.start_s:g} s", end, f"{member.cpus:g}", memory


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


class ReleasedRow(TypedDict):
    """The number of the job whose reservation was released."""

    released: int


def ls(*, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Show the admitted jobs over time, their running tasks, and the traffic on their edges.

    SINCE is the age of a job, or the time until its promised start.

    GUARANTEED is the present guarantee of an edge, MOVING its present traffic. The nodes' own user sees all
    jobs, other users their own.
    """
    with reporting("dios pack ls", as_json=as_json):
        told = ask(node, {"ask": "pack", "do": "list"})["jobs"]
        if as_json:
            write_json(told)
            return
        jobs = msgspec.convert(told, list[_Job])
        if not jobs:
            say("no job over time is admitted; `dios run JOB.toml` submits one")
            return
        table(
            ("JOB", "WHOSE", "SINCE", "LENGTH", "RUNNING", "NODES"),
            [_job_row(job) for job in jobs],
            right=("SINCE", "LENGTH", "RUNNING"),
        )
        flows = [_flow_row(job, flow) for job in jobs for flow in job.edges if not flow.inside]
        if flows:
            table(("JOB", "EDGE", "NODE", "GUARANTEED", "MOVING"), flows, right=("GUARANTEED", "MOVING"))
        for job in jobs:
            if job.problem:
                say(f"problem: {job.problem}")


def _job_row(job: _Job) -> tuple[str, ...]:
    tasks = [member for member in job.members if not member.service]
    return (
        job.job,
        job.principal,
        f"in {span_text(round(job.waits_s * _S))}" if job.waits_s else span_text(round(job.age_s * _S)),
        "-" if job.length_s is None else span_text(round(job.length_s * _S)),
        f"{sum(task.running for task in tasks)} of {len(tasks)}",
        " ".join(sorted({member.node for member in job.members})),
    )


def _flow_row(job: _Job, flow: _Flow) -> tuple[str, ...]:
    guaranteed = f"{size_text(flow.guaranteed_bytes_s)}/s" if flow.guaranteed_bytes_s else "-"
    moving = f"{size_text(round(flow.moving_bytes_s))}/s" if flow.moving_bytes_s else "-"
    return job.job, f"{flow.source} -> {flow.target}", flow.node, guaranteed, moving


def release(
    name: Annotated[str, typer.Argument(metavar="JOB", help="The job's name, or its number in `--json`.")],
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Release the reservation of a job; its tasks go on without it.

    A job releases it by itself when it ends, or when its command ends.
    """
    with reporting("dios pack release", as_json=as_json):
        jobs = msgspec.convert(ask(node, {"ask": "pack", "do": "list"})["jobs"], list[_Job])
        fitting = [job for job in jobs if name in {job.job, str(job.number)}]
        if not fitting:
            raise InvalidError(f"you have no admitted job {name!r}; `dios pack ls` lists them")
        if len(fitting) > 1:
            some = ", ".join(str(job.number) for job in fitting)
            raise InvalidError(f"{len(fitting)} jobs have the name {name!r}; give one of the numbers {some}")
        ask(node, {"ask": "pack", "do": "release", "number": fitting[0].number})
        if as_json:
            row: ReleasedRow = {"released": fitting[0].number}
            write_json(row)
        else:
            say(f"the reservation of {fitting[0].job} is released")
