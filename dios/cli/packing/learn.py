"""``dios pack learn``: a job with the demands over time that were measured in its earlier runs.

Not for: measuring and keeping, which the cluster's coordinators do
(``dios.firmament.coordinator.task_tracer``),
nor for the text of the job (``dios.packer.job.learned``), which is loaded when the command runs.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from dios.cli.common.extras import needing_cluster
from dios.cli.common.output import JsonOption, NodeOption, reporting, say, write_json
from dios.cli.common.principals import principal_of
from dios.cli.scheduling.live import ask
from dios.errors import InvalidError

DOING: Final = "dios pack learn"
EXAMPLES: Final = (
    "\b\nExamples:\n"
    "  dios pack learn words                                      # what its tasks took, as a job in TOML\n"
    "  dios pack learn words --from words.toml --out tighter.toml # the same job, asking for what it takes\n"
    "  dios pack check tighter.toml && dios run tighter.toml\n"
    "  dios pack learn words --margin 1.3 --instant-s 5           # more to spare, in fewer steps\n"
    "  dios pack learn words --json"
)
_STDOUT: Final = "-"
_MARGIN: Final = "Ask for so many times what was measured; 1 or more."
_INSTANT: Final = "The length of one instant of the job, in seconds."
_SPARE: Final = (
    "How much longer than it was measured a task may take: a job is stopped when its time is over. "
    "Default: a tenth of the longest run, and 2 at least."
)
_SPARE_PART: Final = 0.1
_SPARE_S_MIN: Final = 2.0
_FROM: Final = "Keep this job's graph, programs and weight, and replace its demands."
_OF: Final = "Whose runs, as uid:1000 or a user's name; for whoever runs the nodes. Default: your own."


def learn(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The name that the job's description gives it.")],
    *,
    margin: Annotated[float, typer.Option("--margin", min=1.0, metavar="TIMES", help=_MARGIN)] = 1.1,
    instant_s: Annotated[float, typer.Option("--instant-s", metavar="SECONDS", help=_INSTANT)] = 1.0,
    spare_s: Annotated[
        float | None, typer.Option("--spare-s", min=0.0, metavar="SECONDS", help=_SPARE)
    ] = None,
    source: Annotated[Path | None, typer.Option("--from", metavar="JOB.toml", help=_FROM)] = None,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Where to; - is the output.")] = _STDOUT,
    principal: Annotated[str, typer.Option("--principal", metavar="WHO", help=_OF)] = "",
    node: NodeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the job as its earlier runs took it: demands over time for `dios pack check` and `dios run`.

    While tasks of an admitted job run, what they take is measured each second, and the last 8 runs are kept.
    The most of all runs at each instant counts. Without --from there is no graph, as nobody measures who
    waits for whom. Comments in the file say in how many runs it was measured, and what was not.
    """
    with reporting(DOING, as_json=as_json):
        with needing_cluster("jobs over time"):
            from dios.packer.job.ti_mra import JobError  # noqa: PLC0415 - it loads numpy

        found = measured(job, principal, node)
        try:
            text = described(found, margin=margin, instant_s=instant_s, spare_s=spare_s, source=source)
        except JobError as error:
            raise InvalidError(str(error)) from None
        if out != _STDOUT:
            Path(out).write_text(text, encoding="utf-8")
            say(f"written: {out}; `dios pack check {out}` says whether it fits")
            if source is not None and source.resolve().parent != Path(out).resolve().parent:
                say("its programs are looked for beside it, not where they were: put it there, or change it")
        if as_json:
            write_json({**found, "margin": margin, "toml": text})
        elif out == _STDOUT:
            typer.echo(text, nl=False)


def measured(job: str, principal: str, node: str | None) -> dict[str, object]:
    """All that the cluster's coordinator knows of a job's runs.

    Raises:
        InvalidError: it knows none; the message names those that it knows.
    """
    whose = principal_of(principal) if principal else ""
    if principal and not whose:
        raise InvalidError(f"{principal!r} is no principal: say uid:1000, or a user's name")
    members: list[object] = []
    begin: object = 0
    while True:
        found = ask(node, {"ask": "learn", "job": job, "principal": whose, "begin": begin})
        some = found.get("members")
        members += some if isinstance(some, list) else []
        begin = found.pop("next", None)
        if begin is None:
            return {**found, "members": members}


def described(
    found: dict[str, object],
    *,
    margin: float = 1.1,
    instant_s: float = 1.0,
    spare_s: float | None = None,
    source: Path | None = None,
) -> str:
    """The text of the job, with comments that say where its numbers come from.

    Raises:
        JobError: the job in ``source`` makes no sense, or there would be too many instants.
    """
    # It loads numpy, which only this command needs.
    from dios.packer.job.learned import fresh_job, job_from  # noqa: PLC0415 - see above
    from dios.packer.job.ti_mra import TiMra  # noqa: PLC0415 - see above
    from dios.packer.job.timeline import convert_measurements  # noqa: PLC0415 - see above

    members = convert_measurements(found["members"])
    name = str(found["job"])
    if spare_s is None:
        length_s = max((one.start_s + one.length_s for one in members), default=0.0)
        spare_s = max(_SPARE_S_MIN, _SPARE_PART * length_s)
    if source is None:
        text = fresh_job(name, members, instant_s=instant_s, margin=margin, spare_s=spare_s)
    else:
        text = job_from(source, members, instant_s=instant_s, margin=margin, spare_s=spare_s)
    whole = "\n".join([*_head(found, margin, spare_s, source), text])
    # What cannot be read back is told here, and not when it is run.
    TiMra.from_toml(whole)
    return whole


def _head(found: dict[str, object], margin: float, spare_s: float, source: Path | None) -> list[str]:
    runs = int(str(found["runs"]))
    counted = "its last run" if runs == 1 else f"its last {runs} runs"
    # A name may hold what would end the comment.
    name = str(found["job"]).encode("unicode_escape").decode()
    head = [
        f"# What the tasks of {name} took in {counted}, times {margin:g}; from `{DOING}`.",
        "# cpu in cores, memory in MiB, disks in MB/s, bandwidth in Mbit/s; the most of all runs counts.",
        f"# Each task may take {spare_s:g} s longer than it did.",
    ]
    if source is None:
        head += [
            "# Nobody measures who waits for whom, and who sends to whom. Give each task its `program`,",
            "# `after` and [[edges]] before you run it, or take `--from` a job that has them.",
        ]
    else:
        told = os.fspath(source).encode("unicode_escape").decode()
        head.append(f"# Graph, programs and weight are those of {told}.")
    return head
