"""``dios pack learn``: writes a job with the demands over time that were measured in its earlier runs.

The cluster's coordinators measure (``dios.firmament.coordinator.task_tracer``); ``dios.packer.job.learned``
writes the text.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec
import typer

from dios.cli.common.application import CommandApplication
from dios.cli.common.extras import needing_extra
from dios.cli.common.options import argument, option
from dios.cli.common.output import say, write_file, write_json
from dios.cli.common.principals import principal_of
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.cli.scheduling.live import ask
from dios.errors import InvalidError

DOING: Final = "dios pack learn"
_STDOUT: Final = "-"
_MARGIN: Final = "Demand this multiple of the measured use; 1 or more."
_INSTANT: Final = "The length of one instant of the job, in seconds."
_SPARE: Final = (
    "How much longer than measured a task may run, in seconds: a job is stopped when its time is over. "
    "Default: a tenth of the longest run, at least 2."
)
_SPARE_PART: Final = 0.1
_SPARE_S_MIN: Final = 2.0
_FROM: Final = "Keep the graph, programs and weight of this job, and replace its demands."
_OF: Final = "Runs of this principal (uid:1000 or a user's name), for the nodes' user. Default: your own."


app: Final = CommandApplication()


class LearnedMemberRow(Row):
    """A task in the last runs of its job: by channel, positions at which its use changes, and new values."""

    member: str
    runs: int
    completed: int
    start_s: float
    length_s: float
    instant_s: float
    machines: list[str]
    values: dict[str, list[tuple[int, int]]]
    unmeasured: list[str]


class LearnedJobRow(Row):
    """The measured runs of a job, and the job with these demands as TOML."""

    job: str
    principal: str
    runs: int
    members: list[LearnedMemberRow]
    margin: float
    toml: str


@app.command(
    examples="dios pack learn words                                      # the measured use, as TOML\n"
    "dios pack learn words --from words.toml --out tighter.toml # the same job with measured demands\n"
    "dios pack check tighter.toml && dios run tighter.toml\n"
    "dios pack learn words --margin 1.3 --instant-s 5           # larger margin, fewer steps\n"
    "dios pack learn words --json",
    json=LearnedJobRow,
)
def learn(
    job: str = argument("JOB", "The job's name in its description."),
    *,
    margin: float = option("--margin TIMES", _MARGIN, default=1.1, min=1.0),
    instant_s: float = option("--instant-s SECONDS", _INSTANT, default=1.0),
    spare_s: float | None = option("--spare-s SECONDS", _SPARE, min=0.0),
    source: Path | None = option("--from JOB.toml", _FROM),
    out: str = option("--out FILE", "Output file; - is standard output.", default=_STDOUT),
    principal: str = option("--principal WHO", _OF),
    common: CommonOptions,
) -> None:
    """Write a job with the measured demands of its earlier runs, for `dios pack check` and `dios run`.

    While tasks of an admitted job run, their use is measured each second; the last 8 runs are kept. The
    maximum of all runs at each instant counts. Without --from the job has no graph, because waiting between
    tasks is not measured. Comments in the file give the number of measured runs, and list what was not
    measured.
    """
    with needing_extra("cluster", "jobs over time"):
        from dios.packer.job.ti_mra import JobError  # noqa: PLC0415 - it loads numpy

    learned = measured(job, principal, common.node)
    try:
        text = described(learned, margin=margin, instant_s=instant_s, spare_s=spare_s, source=source)
    except JobError as error:
        raise InvalidError(str(error)) from None
    if out != _STDOUT:
        write_file(Path(out), text)
        say(f"wrote {out}; `dios pack check {out}` shows if it fits")
        if source is not None and source.resolve().parent != Path(out).resolve().parent:
            say("its programs are looked for in its folder: move them there, or correct the paths")
    if common.as_json:
        write_json(msgspec.convert({**learned, "margin": margin, "toml": text}, type=LearnedJobRow))
    elif out == _STDOUT:
        typer.echo(text, nl=False)


def measured(job: str, principal: str, node: str | None) -> dict[str, object]:
    """Return everything that the cluster's coordinator knows of a job's runs.

    Raises:
        InvalidError: it knows no runs of this job; the message has the known names.
    """
    whose = principal_of(principal) if principal else ""
    if principal and not whose:
        raise InvalidError(f"{principal!r} is not a principal; give uid:1000, or a user's name")
    members: list[object] = []
    begin: object = 0
    while True:
        answer = ask(node, {"ask": "learn", "job": job, "principal": whose, "begin": begin})
        some = answer.get("members")
        members += some if isinstance(some, list) else []
        begin = answer.pop("next", None)
        if begin is None:
            return {**answer, "members": members}


def described(
    learned: dict[str, object],
    *,
    margin: float = 1.1,
    instant_s: float = 1.0,
    spare_s: float | None = None,
    source: Path | None = None,
) -> str:
    """Return the text of the job, with comments about the origin of its numbers.

    Raises:
        JobError: the job in ``source`` is invalid, or there would be too many instants.
    """
    # Imported late: it loads numpy, which only this command needs.
    from dios.packer.job.learned import fresh_job, job_from  # noqa: PLC0415 - see above
    from dios.packer.job.ti_mra import TiMra  # noqa: PLC0415 - see above
    from dios.packer.job.timeline import convert_measurements  # noqa: PLC0415 - see above

    members = convert_measurements(learned["members"])
    name = str(learned["job"])
    if spare_s is None:
        length_s = max((member.start_s + member.length_s for member in members), default=0.0)
        spare_s = max(_SPARE_S_MIN, _SPARE_PART * length_s)
    if source is None:
        text = fresh_job(name, members, instant_s=instant_s, margin=margin, spare_s=spare_s)
    else:
        text = job_from(source, members, instant_s=instant_s, margin=margin, spare_s=spare_s)
    whole = "\n".join([*_head(learned, margin, spare_s, source), text])
    # Report a text that cannot be parsed now, and not when it is run.
    TiMra.from_toml(whole)
    return whole


def _head(learned: dict[str, object], margin: float, spare_s: float, source: Path | None) -> list[str]:
    runs = int(str(learned["runs"]))
    counted = "its last run" if runs == 1 else f"its last {runs} runs"
    # The name may contain a line break, which would end the comment.
    name = str(learned["job"]).encode("unicode_escape").decode()
    head = [
        f"# The use of the tasks of {name} in {counted}, times {margin:g}; from `{DOING}`.",
        "# cpu in cores, memory in MiB, disks in MB/s, bandwidth in Mbit/s; the maximum of all runs counts.",
        f"# Each task may run {spare_s:g} s longer than measured.",
    ]
    if source is None:
        head += [
            "# Waiting and traffic between tasks are not measured. Add to each task its `program` and",
            "# `after`, and [[edges]], before you run it; or use `--from` with a job that has them.",
        ]
    else:
        told = os.fspath(source).encode("unicode_escape").decode()
        head.append(f"# The graph, programs and weight are those of {told}.")
    return head
