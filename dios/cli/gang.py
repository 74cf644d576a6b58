"""A gang of `dios run`: several tasks of one job, each with a connection and a thread of its own.

Not for: what makes them a gang, which the scheduler sees to (thesis §6.3.3).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, BinaryIO, Final

from dios.cli.endings import cause_text
from dios.cli.output import INTERRUPTED, err, say, table, write_json
from dios.cli.stopping import Stopped, stopped_by_signals
from dios.cli.tasks import described
from dios.errors import DiosError, EndOfStreamError, UnreachableError
from dios.wire.types import Cause

if TYPE_CHECKING:
    from dios.cli.place import Place
    from dios.cli.work import Gang, Needs
    from dios.client.blocking import Task
    from dios.client.status import Status

_FAILED: Final = 125


class _Member:
    """One task of the gang, and the thread that waits for it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.task: Task | None = None
        self.status: Status | None = None
        self.error: DiosError | None = None
        self.placed = threading.Event()


def run_gang(
    open_place: Callable[[], AbstractContextManager[Place]],
    begin: Callable[[Place], Task],
    needs: Needs,
    gang: Gang,
    *,
    detach: bool,
    as_json: bool,
) -> int:
    """Run the tasks of a gang, and return the largest of their exit statuses.

    Their output comes line by line with the task's number before it; with JSON the result alone goes to the
    standard output. Ctrl-C ends all that run, and withdraws those that wait.
    """
    output = sys.stderr.buffer if as_json else sys.stdout.buffer
    members = [_Member(number) for number in range(gang.tasks)]
    lock = threading.Lock()

    def work(member: _Member) -> None:
        try:
            with open_place() as place:
                member.task = begin(place)
                member.placed.set()
                while not detach:
                    _stream(member.task, member.number, output, lock)
                    ended = member.task.wait()
                    if not (needs.restartable and ended.cause is Cause.PREEMPTED):
                        member.status = ended
                        break
                    say(f"task {ended.fingerprint} was preempted; it is run again")
                    member.task = begin(place)
        except DiosError as error:
            member.error = error
        finally:
            member.placed.set()

    threads = [threading.Thread(target=work, args=(member,), daemon=True) for member in members]
    for thread in threads:
        thread.start()
    try:
        with stopped_by_signals():
            with err().status(f"waiting until at least {gang.least} of {gang.tasks} tasks have their places"):
                for member in members[: gang.least]:
                    member.placed.wait()
            for thread in threads:
                thread.join()
    except (KeyboardInterrupt, Stopped) as stopped:
        _kill(open_place, members)
        return stopped.exit_status if isinstance(stopped, Stopped) else INTERRUPTED
    return _told(members, as_json=as_json)


def _stream(task: Task, number: int, output: BinaryIO, lock: threading.Lock) -> None:
    """What a task prints, whole lines with its number before them, until it has ended."""
    rest, mark = b"", f"[{number}] ".encode()
    with contextlib.suppress(EndOfStreamError, UnreachableError):
        console = task.console()
        while True:
            *lines, rest = (rest + console.receive()).split(b"\n")
            with lock:
                output.write(b"".join(mark + line + b"\n" for line in lines))
                output.flush()
    if rest:
        with lock:
            output.write(mark + rest + b"\n")
            output.flush()


def _kill(open_place: Callable[[], AbstractContextManager[Place]], members: list[_Member]) -> None:
    running = [member.task for member in members if member.task is not None and member.status is None]
    say(f"killing the gang's {len(running)} tasks that run")
    with contextlib.suppress(DiosError), open_place() as place:
        for task in running:
            with contextlib.suppress(DiosError):
                place.task(task.fingerprint)[0].kill()


def _told(members: list[_Member], *, as_json: bool) -> int:
    """Say how each ended."""
    if as_json:
        write_json([_row(member) for member in members])
    else:
        rows = [
            (
                str(member.number),
                member.task.fingerprint if member.task is not None else "-",
                member.task.node if member.task is not None else "-",
                cause_text(member.status) if member.status is not None else _why(member),
            )
            for member in members
        ]
        table(("#", "TASK", "NODE", "END"), rows, right=("#",))
    return max(_status(member) for member in members)


def _why(member: _Member) -> str:
    return "runs" if member.error is None else member.error.message


def _status(member: _Member) -> int:
    if member.error is not None:
        return _FAILED
    return 0 if member.status is None else member.status.exit_status


def _row(member: _Member) -> dict[str, object]:
    found: dict[str, object] = {"number": member.number}
    if member.status is not None:
        found |= described(member.status)
    elif member.task is not None:
        found |= {"fingerprint": member.task.fingerprint, "node": member.task.node}
    if member.error is not None:
        found["error"] = member.error.message
    return found
