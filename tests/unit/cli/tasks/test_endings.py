from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from dios.cli.tasks.endings import advice_for, cause_text, explain, reason_lines
from dios.client.ops.status import Status
from dios.wire.types import Cause, TaskState


def row(cause: Cause, exit_code: int = 0, signal_number: int = 0, detail: str = "") -> Status:
    """A task that ended so."""
    return Status(
        "00aa11bb22cc",
        "job.py",
        TaskState.ENDED,
        cause=cause,
        exit_code=exit_code,
        signal=signal_number,
        detail=detail,
    )


@pytest.mark.parametrize(
    ("ended", "status"),
    [
        (row(Cause.EXITED), 0),
        (row(Cause.EXITED, 7), 7),
        (row(Cause.EXCEPTION, 1), 1),
        (row(Cause.EXCEPTION), 1),
        (row(Cause.SIGNAL, 0, signal.SIGSEGV), 139),
        (row(Cause.SANDBOX), 159),
        (row(Cause.MEMORY), 137),
        (row(Cause.CPU), 152),
        (row(Cause.KILLED), 137),
        (row(Cause.SPAWN), 126),
    ],
)
def test_a_status_is_what_a_shell_would_give(ended: Status, status: int) -> None:
    """The program's own status is passed on; a signal gives 128 and its number."""
    assert ended.exit_status == status


def test_success_needs_no_words() -> None:
    """Nothing is said about a task that ended well."""
    assert explain(row(Cause.EXITED)) == []


def test_a_failure_tells_cause_and_what_to_try() -> None:
    """The sentences name the task, why it ended, a remedy, and where its console is, which was just seen."""
    ended = row(Cause.SANDBOX, detail="not allowed\n\nLast lines:\none\n  two\n")
    told = explain(ended)
    assert told[0] == "task job.py (00aa11bb22cc): stopped by the sandbox: not allowed"
    assert "--limbo" in told[1]
    assert told[2] == "  logs: dios logs 00aa11bb22cc"
    assert told[3:] == ["  more: dios describe 00aa11bb22cc, dios debug 00aa11bb22cc"]


def test_what_went_with_its_node_is_not_offered() -> None:
    """A task whose node was lost has no log and no description any more: only running it again is advised."""
    told = explain(row(Cause.NODE_LOST, detail="node n2, which ran it, is dead"))
    assert "run it again" in told[-1]
    assert len(told) == 2


@pytest.mark.parametrize(
    ("detail", "word"),
    [
        ("MemoryError", "--memory"),
        ("PermissionError: [Errno 1] Operation not permitted", "--input"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'x'", "--input"),
        ("ModuleNotFoundError: No module named 'numpy'", "install"),
        ("ValueError: 3", "traceback"),
    ],
)
def test_an_exception_decides_what_to_try(detail: str, word: str) -> None:
    """What the sandbox, a limit or a missing package causes is told apart from a mistake in the program."""
    assert word in explain(row(Cause.EXCEPTION, 1, detail=detail))[1]


def test_what_a_task_chose_cannot_garble_the_terminal() -> None:
    """A control character in a label or in an exception's text is spelled out."""
    ended = row(Cause.EXCEPTION, 1, detail="ValueError: \x1b[31m")
    assert "\x1b" not in "".join(explain(ended))


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.NONE])
def test_every_cause_is_explained(cause: Cause) -> None:
    """Each way to end has a sentence of its own, before what the node says of it; success needs no advice."""
    ended = row(cause, 0, signal.SIGKILL, detail="the node's word\n\nLast lines:\nprinted")
    others = {reason_lines(row(other, 0, signal.SIGKILL))[0] for other in Cause if other is not cause}
    first, *rest = reason_lines(ended)
    assert first not in others
    assert ended.ok or rest == ["the node's word"]
    assert bool(advice_for(ended)) == (cause not in {Cause.EXITED, Cause.KILLED})


@pytest.mark.parametrize("cause", list(Cause))
def test_every_cause_has_words(cause: Cause) -> None:
    """Each way to end has a text of its own kind for tables."""
    assert cause_text(row(cause, 0, signal.SIGKILL))


def test_an_unknown_signal_has_its_number() -> None:
    """A signal that Python has no name for is told by number."""
    assert cause_text(row(Cause.SIGNAL, 0, 200)) == "died of signal 200"


@pytest.mark.parametrize("queue", ["submission", "start"])
def test_a_waiting_run_shows_its_place(queue: str) -> None:
    """The state of a run in a queue has its place; one whose place is not known only waits."""
    waiting = Status(
        "00aa11bb22cc", "job.py", TaskState.WAITING, detail=f"place 2 of 30 in the {queue} queue"
    )
    assert cause_text(waiting) == "waiting, place 2 of 30"
    assert cause_text(Status("00aa11bb22cc", "job.py", TaskState.WAITING)) == "waiting"


def test_a_running_task_shows_its_progress() -> None:
    """The state has it as soon as the task reports it; an end has none."""
    running = Status("00aa11bb22cc", "job.py", TaskState.RUNNING)
    assert cause_text(running) == "running"
    assert cause_text(replace(running, progress=0.0)) == "running, 0%"
    assert cause_text(replace(running, progress=0.425)) == "running, 42%"
    assert cause_text(replace(running, progress=0.5, leave_ns=1)) == "moving, 50%"
    ended = replace(running, state=TaskState.ENDED, cause=Cause.EXITED, progress=1.0)
    assert cause_text(ended) == "exited 0"
