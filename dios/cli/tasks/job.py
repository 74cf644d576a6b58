"""``dios run JOB.toml``: submits a job over time, and starts its tasks where and when its reservation says.

The coordinator reads the needs of the job from the same file (``dios.packer``); this module reads the
programs. It loads no numeric code.
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dios.cli.common.output import say, span_text, waiting
from dios.cli.common.results import CommonOptions
from dios.cli.tasks.gang import GangMember, OpenPlace, run_members
from dios.errors import DiosError, InvalidError
from dios.lib import reservations
from dios.lib.reservations import Reservation, label_of
from dios.wire.suggestions import near_word
from dios.wire.types import Brand

if TYPE_CHECKING:
    from dios.cli.common.context import CommandContext
    from dios.client.ops.attributes import Handed
    from dios.client.sync.node import Task
    from dios.wire.messages import Work

SUFFIX: Final = ".toml"
_RENEWALS: Final = 3
"""The number of renewals per lease."""


@dataclass(frozen=True)
class _Program:
    """The program of one entry of a job's tasks."""

    path: Path
    args: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class JobRunOptions:
    """The command's options for all tasks of a job."""

    groups: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    limbo: bool = False
    wait_s: float = 0.0
    """The time for which the job may wait for its start."""


def run_job(
    file: Path,
    open_place: OpenPlace,
    place: CommandContext,
    options: JobRunOptions,
    common: CommonOptions,
    *,
    detach: bool,
) -> int:
    """Submit a job, run it if it is admitted, and return the largest exit status of its tasks.

    Raise InvalidError if the description is invalid or the job is refused.
    """
    text = described(file)
    programs = _programs(file, text)
    for path in {program.path for program in programs.values()}:
        if not path.is_file():
            raise InvalidError(f"{file}: the program {path} does not exist")
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(reservations.reserve(place.node, text, str(file), wait_s=options.wait_s))
        if job.waits_s and detach:
            raise InvalidError(
                f"the job would begin in {span_text(round(job.waits_s * 1e9))}, and with --detach no command "
                "would start it: leave out --detach or --may-wait"
            )
        if job.waits_s:
            say(
                f"{job.job} waits: it begins in {span_text(round(job.waits_s * 1e9))} at the latest; "
                f"`dios explain {job.job}` shows why; Ctrl-C withdraws it"
            )
            with waiting(f"waiting for the start of {job.job}"):
                job = job.wait()
        members = [
            GangMember(
                member.name,
                partial(_begin, job, member, _of(programs, member.name), options, detach=detach),
                job.work(member),
                after_s=member.start_s,
            )
            for member in job.tasks
        ]
        late = max(member.after_s for member in members)
        if detach and late:
            raise InvalidError(
                f"some of its tasks begin in {span_text(round(late * 1e9))}, and with --detach no command "
                "would start them: leave out --detach"
            )
        length = "as long as its tasks" if job.length_s is None else span_text(round(job.length_s * 1e9))
        say(f"{job.job} is admitted, for {length}; see `dios pack ls`")
        status = run_members(
            open_place,
            members,
            common,
            detach=detach,
            keep=partial(_renew, job),
            keep_s=job.lease_s / _RENEWALS,
        )
        if detach:
            # The running tasks keep the reservation.
            stack.pop_all()
        return status


def _renew(job: Reservation) -> None:
    # The reservation may have ended, or its coordinator may have changed; running tasks are informed
    # otherwise.
    with contextlib.suppress(DiosError):
        job.renew()


def described(file: Path) -> str:
    """Return the text of a job description. Raise InvalidError if it cannot be read."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"cannot read {file}: {error}") from None


def _begin(
    job: Reservation,
    member: reservations.JobMember,
    program: _Program,
    options: JobRunOptions,
    at: CommandContext,
    work: Work,
    more: Sequence[Handed],
    *,
    detach: bool,
) -> Task:
    return at.node.run(
        program.path,
        groups=[at.group(alias) for alias in options.groups],
        inputs=[
            at.object(text).restrict("read", "delegate", label=text)
            for text in (*options.inputs, *program.inputs)
        ],
        args=(*program.args, *options.args),
        label=label_of(job.job, member),
        brand=Brand.LIMBO if options.limbo else Brand.PURE,
        host=member.node,
        outputs=list(more),
        limits=job.limits(member),
        work=work,
        detach=detach,
    )


def _of(programs: dict[str, _Program], member: str) -> _Program:
    """Return the program of a member. Copies of a task have its name, a dot and a number."""
    return programs[member] if member in programs else programs[member.rpartition(".")[0]]


def _programs(file: Path, text: str) -> dict[str, _Program]:
    """Return the program of each task in a description; paths are relative to its folder."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidError(f"{file}: {error}") from None
    tasks = table.get("tasks")
    if not isinstance(tasks, dict) or not tasks:
        near = near_word("tasks", table)
        hint = f" instead of {near!r}" if near else ""
        raise InvalidError(f"{file}: it has no tasks. Add a section [tasks.NAME]{hint}.")
    programs = {}
    for name, given in tasks.items():
        place = f"{file}: tasks.{name}"
        if not isinstance(given, dict) or not isinstance(given.get("program"), str):
            raise InvalidError(f'{place}.program is missing: name its program, like program = "work.py"')
        programs[name] = _Program(
            file.parent / given["program"],
            _texts(f"{place}.args", given.get("args", [])),
            _texts(f"{place}.inputs", given.get("inputs", [])),
        )
    return programs


def _texts(place: str, given: object) -> tuple[str, ...]:
    if (
        not isinstance(given, Sequence)
        or isinstance(given, str)
        or not all(isinstance(text, str) for text in given)
    ):
        raise InvalidError(f'{place} must be a list of texts, like ["one", "two"]')
    return tuple(given)
