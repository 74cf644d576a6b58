"""Runs several tasks of one job in one command, each with a connection and a thread of its own.

`dios run --gang` and `dios run JOB.toml` use it. The scheduler treats the tasks as one job (thesis §6.3.3;
Packer paper, section III).
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec import UNSET, UnsetType

from dios.cli.common.output import (
    BytesOutput,
    Cells,
    bytes_output,
    counted,
    say,
    table_of,
    waiting,
    write_json,
)
from dios.cli.common.results import CommonOptions
from dios.cli.common.rows import Row
from dios.cli.common.signals import Stopped, stopped_by_signals
from dios.cli.common.streams import INTERRUPTED
from dios.cli.tasks.endings import cause_text, sentence_of_move
from dios.cli.tasks.task_row import TaskRow
from dios.client.plain_text import plain
from dios.errors import DiosError, EndOfStreamError, UnreachableError
from dios.lib.movable import MovableRun
from dios.limits import CONSOLE_READ_BYTES
from dios.wire.types import Cause

if TYPE_CHECKING:
    from dios.cli.common.context import CommandContext
    from dios.client.ops.attributes import Handed
    from dios.client.ops.status import Status
    from dios.client.sync.node import Task
    from dios.wire.messages import Work

_FAILED: Final = 125

OpenPlace = Callable[[], AbstractContextManager["CommandContext"]]
BeginTask = Callable[["CommandContext", "Work", Sequence["Handed"]], "Task"]
"""Starts a task over a connection, with these needs and further outputs."""


NodeFacts = Callable[[str], Mapping[str, object]]
"""Returns the fields that the JSON of a task on this node has besides its own."""


class EndedMemberRow(TaskRow, kw_only=True):
    """A task of a gang or job that has ended."""

    enforced: list[str] | UnsetType = UNSET
    advisory: dict[str, str] | UnsetType = UNSET
    number: int | UnsetType = UNSET
    member: str | UnsetType = UNSET
    error: str | UnsetType = UNSET


class StartedMemberRow(Row, kw_only=True):
    """A task of a gang or job that was started."""

    enforced: list[str] | UnsetType = UNSET
    advisory: dict[str, str] | UnsetType = UNSET
    number: int | UnsetType = UNSET
    member: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    fingerprint: str
    node: str


class FailedMemberRow(Row, kw_only=True):
    """A task of a gang or job that was not started, and why."""

    number: int | UnsetType = UNSET
    member: str | UnsetType = UNSET
    error: str


MemberRow = EndedMemberRow | StartedMemberRow | FailedMemberRow


@dataclass
class GangMember:
    """One task of the job, and the result that its thread waits for.

    ``mark`` is the number of a task of a gang, or the name of a member of a job over time. It begins
    the lines of output. The task is started in ``after_s`` seconds, and again as ``work`` permits.
    """

    mark: int | str
    begin: BeginTask
    work: Work
    after_s: float = 0.0
    task: Task | None = None
    status: Status | None = None
    error: DiosError | None = None
    placed: threading.Event = field(default_factory=threading.Event)


def run_members(
    open_place: OpenPlace,
    members: Sequence[GangMember],
    common: CommonOptions,
    waits: str = "",
    *,
    least: int = 0,
    detach: bool,
    keep: Callable[[], None] | None = None,
    keep_s: float = 1.0,
    node_facts: NodeFacts = lambda _: {},
    telling_why: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> int:
    """Run tasks, and return their largest exit status.

    Their output appears in whole lines with the task's mark as prefix; with JSON only the result goes to
    standard output. Ctrl-C ends all running tasks and withdraws waiting ones. While fewer than ``least``
    tasks have started, the text ``waits`` is shown within ``telling_why``. ``keep`` is called every
    ``keep_s`` seconds.
    """
    output = bytes_output(sys.stderr if common.as_json else sys.stdout)
    lock, stopping = threading.Lock(), threading.Event()

    def work(member: GangMember) -> None:
        try:
            if stopping.wait(member.after_s):
                return
            with open_place() as place:
                run = MovableRun(place.node, partial(member.begin, place), member.work)
                member.task = run.start()
                member.placed.set()
                if detach:
                    return
                with run:
                    while True:
                        _stream(member.task, member.mark, output, lock)
                        ended = member.task.wait()
                        following = run.again(ended)
                        if following is None:
                            member.status = ended
                            break
                        say(sentence_of_move(ended, run.history[-1], following))
                        member.task = following
        except DiosError as error:
            member.error = error
        finally:
            member.placed.set()

    threads = [threading.Thread(target=work, args=(member,), daemon=True) for member in members]
    for thread in threads:
        thread.start()
    try:
        with stopped_by_signals():
            if least:
                with telling_why(), waiting(waits):
                    for member in members[:least]:
                        member.placed.wait()
            _join(threads, keep, keep_s)
    except (KeyboardInterrupt, Stopped) as stopped:
        stopping.set()
        _kill(open_place, members)
        return stopped.exit_status if isinstance(stopped, Stopped) else INTERRUPTED
    if common.as_json:
        write_json([_row(member, node_facts) for member in members])
    else:
        table_of(map(_cells, members))
    return max(map(_status, members))


def _join(threads: Sequence[threading.Thread], keep: Callable[[], None] | None, keep_s: float) -> None:
    if keep is None:
        for thread in threads:
            thread.join()
        return
    due = time.monotonic() + keep_s
    for thread in threads:
        while thread.is_alive():
            thread.join(max(0.0, due - time.monotonic()))
            if time.monotonic() >= due:
                due = time.monotonic() + keep_s
                keep()


def _stream(task: Task, name: int | str, output: BytesOutput, lock: threading.Lock) -> None:
    """Write a task's output in whole lines with its mark as prefix, until it has ended."""
    rest, mark = b"", f"[{name}] ".encode()
    with contextlib.suppress(EndOfStreamError, UnreachableError):
        console = task.console()
        while True:
            *lines, rest = (rest + console.receive()).split(b"\n")
            with lock:
                output.write(b"".join(mark + line + b"\n" for line in lines))
                if len(rest) > CONSOLE_READ_BYTES:
                    output.write(mark + rest + b"\n")
                    rest = b""
                output.flush()
    if rest:
        with lock:
            output.write(mark + rest + b"\n")
            output.flush()


def _kill(open_place: OpenPlace, members: Sequence[GangMember]) -> None:
    running = [member.task for member in members if member.task is not None and member.status is None]
    say(f"killing {counted(len(running), 'running task')}")
    with contextlib.suppress(DiosError), open_place() as place:
        for task in running:
            with contextlib.suppress(DiosError):
                place.task(task.fingerprint)[0].kill()


def _cells(member: GangMember) -> Cells:
    return {
        "#": str(member.mark),
        "TASK": member.task.fingerprint if member.task is not None else None,
        "NODE": member.task.node if member.task is not None else None,
        "END": _end(member.status) if member.status is not None else _why(member),
    }


def _end(status: Status) -> str:
    text = cause_text(status)
    return f"{text}: {plain(status.detail)}" if status.cause is Cause.PREEMPTED and status.detail else text


def _why(member: GangMember) -> str:
    return "runs" if member.error is None else member.error.message


def _status(member: GangMember) -> int:
    if member.error is not None:
        return _FAILED
    return 0 if member.status is None else member.status.exit_status


def _row(member: GangMember, node_facts: NodeFacts) -> MemberRow:
    task, error = member.task, member.error
    values: dict[str, object] = {"number" if isinstance(member.mark, int) else "member": member.mark}
    values |= {} if task is None else node_facts(task.node)
    values |= {} if error is None else {"error": error.message}
    if member.status is not None:
        return EndedMemberRow.of_task(member.status, **values)
    if task is not None:
        return StartedMemberRow.of(task, **values)
    return FailedMemberRow.of(None, **({"error": ""} | values))
