"""``dios pack check``, ``dios pack ls`` and ``dios pack release``: jobs over time in a cluster.

Not for: the answers, which the cluster's coordinator gives (``dios.firmament.coordinator.admissions``), nor
running jobs (``dios.cli.tasks.job``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

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
from dios.cli.scheduling.live import ask
from dios.cli.tasks.job import described
from dios.errors import InvalidError
from dios.lib import reservations

if TYPE_CHECKING:
    from dios.lib.reservations import JobMember

CHECK: Final = "\b\nFor example:\n  dios pack check job.toml\n  dios pack check job.toml --json"
LS: Final = "\b\nFor example:\n  dios pack ls\n  dios pack ls --json"
RELEASE: Final = "\b\nFor example:\n  dios pack release words"
_S: Final = 1e9

FileArgument = Annotated[Path, typer.Argument(metavar="JOB.toml", help="A job's description.")]


def check(file: FileArgument, *, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Say where a job would go now, or what is short, and when; nothing is kept for it.

    docs/packing.md has the format. `dios run JOB.toml` runs the job.
    """
    with reporting("dios pack check", as_json=as_json), opened(node) as place:
        plan = reservations.check(place.node, described(file), str(file))
        if as_json:
            write_json(msgspec.to_builtins(plan))
            return
        table(
            ("MEMBER", "NODE", "FROM", "TO", "CPUS", "MEMORY"),
            [_row(member) for member in plan.members],
            right=("FROM", "TO", "CPUS", "MEMORY"),
        )
        length = "as long as its tasks" if plan.length_s is None else span_text(round(plan.length_s * _S))
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
    age_s: float
    problem: str
    members: list[_Place]
    edges: list[_Flow]


def ls(*, node: NodeOption = None, as_json: JsonOption = False) -> None:
    """Show the jobs over time that are admitted, who of them runs, and what goes over their edges.

    GUARANTEED is what an edge may send at least now, MOVING what goes for its tasks. The nodes' own user sees
    everybody's jobs, others their own.
    """
    with reporting("dios pack ls", as_json=as_json):
        told = ask(node, {"ask": "pack", "do": "list"})["jobs"]
        if as_json:
            write_json(told)
            return
        jobs = msgspec.convert(told, list[_Job])
        if not jobs:
            say("no job over time is admitted; `dios run JOB.toml` brings one")
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
    tasks = [one for one in job.members if not one.service]
    return (
        job.job,
        job.principal,
        span_text(round(job.age_s * _S)),
        "-" if job.length_s is None else span_text(round(job.length_s * _S)),
        f"{sum(one.running for one in tasks)} of {len(tasks)}",
        " ".join(sorted({one.node for one in job.members})),
    )


def _flow_row(job: _Job, flow: _Flow) -> tuple[str, ...]:
    guaranteed = f"{size_text(flow.guaranteed_bytes_s)}/s" if flow.guaranteed_bytes_s else "-"
    moving = f"{size_text(round(flow.moving_bytes_s))}/s" if flow.moving_bytes_s else "-"
    return job.job, f"{flow.source} -> {flow.target}", flow.node, guaranteed, moving


def release(
    name: Annotated[str, typer.Argument(metavar="JOB", help="Its name, or its number in `--json`.")],
    *,
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give back what a job holds; its tasks run on, without it.

    A job that ends, or whose command ends, does so by itself.
    """
    with reporting("dios pack release", as_json=as_json):
        jobs = msgspec.convert(ask(node, {"ask": "pack", "do": "list"})["jobs"], list[_Job])
        fitting = [job for job in jobs if name in {job.job, str(job.number)}]
        if not fitting:
            raise InvalidError(f"no job {name!r} of yours is admitted; `dios pack ls` shows them")
        if len(fitting) > 1:
            some = ", ".join(str(job.number) for job in fitting)
            raise InvalidError(f"{len(fitting)} jobs are called {name!r}: say one of {some}")
        ask(node, {"ask": "pack", "do": "release", "number": fitting[0].number})
        if as_json:
            write_json({"released": fitting[0].number})
        else:
            say(f"{fitting[0].job} is released")
