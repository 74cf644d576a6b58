"""``dios run JOB.toml``: a job over time, admitted as a whole, its tasks begun where and when it says.

Not for: what it needs and when, which the coordinator reads of the same file (``dios.packer``); here are its
programs. Nothing numeric is loaded.
"""

from __future__ import annotations

import contextlib
import difflib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dios.cli.common.output import say, span_text
from dios.cli.tasks.gang import Member, OpenPlace, run_members
from dios.errors import DiosError, InvalidError
from dios.lib import reservations
from dios.lib.reservations import Reservation, label_of
from dios.wire.types import Brand

if TYPE_CHECKING:
    from dios.cli.common.context import Place
    from dios.client.sync.node import Task

SUFFIX: Final = ".toml"
_RENEWALS: Final = 3
"""In each lease."""


@dataclass(frozen=True)
class _Program:
    """What one entry of a job's tasks runs."""

    path: Path
    args: tuple[str, ...]
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class Options:
    """What the command line says for all tasks of a job."""

    groups: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    limbo: bool = False


def run_job(
    file: Path, open_place: OpenPlace, place: Place, options: Options, *, detach: bool, as_json: bool
) -> int:
    """Have a job admitted and run it; the largest exit status of its tasks.

    Raises InvalidError: the description makes no sense, or the job has no place.
    """
    text = described(file)
    programs = _programs(file, text)
    for path in {program.path for program in programs.values()}:
        if not path.is_file():
            raise InvalidError(f"{file}: there is no program {path}")
    with contextlib.ExitStack() as stack:
        job = stack.enter_context(reservations.reserve(place.node, text, str(file)))
        members = [
            Member(
                member.name,
                partial(_begin, job, member, _of(programs, member.name), options),
                after_s=member.start_s,
            )
            for member in job.tasks
        ]
        late = max(member.after_s for member in members)
        if detach and late:
            raise InvalidError(
                f"some of its tasks begin {span_text(round(late * 1e9))} from now, and nobody would start "
                "them: leave out --detach"
            )
        length = "as long as its tasks" if job.length_s is None else span_text(round(job.length_s * 1e9))
        say(f"{job.job} is admitted, for {length}; `dios pack ls` shows it")
        status = run_members(
            open_place,
            members,
            detach=detach,
            as_json=as_json,
            keep=partial(_renew, job),
            keep_s=job.lease_s / _RENEWALS,
        )
        if detach:
            # What runs keeps it.
            stack.pop_all()
        return status


def _renew(job: Reservation) -> None:
    # Its time may be over, or its coordinator be just another one; what runs is told otherwise.
    with contextlib.suppress(DiosError):
        job.renew()


def described(file: Path) -> str:
    """The text of a job's description; InvalidError where it cannot be read."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(f"{file} cannot be read: {error}") from None


def _begin(
    job: Reservation, member: reservations.JobMember, program: _Program, options: Options, at: Place
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
        work=job.work(member),
    )


def _of(programs: dict[str, _Program], member: str) -> _Program:
    """The program of a member: copies of a task have its name, a dot and their number."""
    return programs[member] if member in programs else programs[member.rpartition(".")[0]]


def _programs(file: Path, text: str) -> dict[str, _Program]:
    """What each task of a description runs; paths count from its folder."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidError(f"{file}: {error}") from None
    tasks = table.get("tasks")
    if not isinstance(tasks, dict) or not tasks:
        near = difflib.get_close_matches("tasks", table, n=1)
        hint = f"; did you mean that by {near[0]!r}?" if near else ""
        raise InvalidError(f"{file}: there are no tasks: write [tasks.NAME]{hint}")
    found = {}
    for name, given in tasks.items():
        place = f"{file}: tasks.{name}"
        if not isinstance(given, dict) or not isinstance(given.get("program"), str):
            raise InvalidError(f'{place}.program is missing: say what it runs, as in program = "work.py"')
        found[name] = _Program(
            file.parent / given["program"],
            _texts(f"{place}.args", given.get("args", [])),
            _texts(f"{place}.inputs", given.get("inputs", [])),
        )
    return found


def _texts(place: str, given: object) -> tuple[str, ...]:
    if (
        not isinstance(given, Sequence)
        or isinstance(given, str)
        or not all(isinstance(one, str) for one in given)
    ):
        raise InvalidError(f'{place} is no list of texts: write ["one", "two"]')
    return tuple(given)
