"""The clock, the entropy, and how an end is described."""

from __future__ import annotations

from dios import limits
from dios.host.content.consoles import TaskConsole
from dios.host.loop.clock import Clock
from dios.host.loop.entropy import Entropy
from dios.host.process.session_server import fresh_task_id
from dios.host.process.task_host import TaskHost, principal_of
from dios.host.process.task_process import Exit
from dios.wire.types import Cause


def test_clock_never_runs_backwards() -> None:
    """Each moment is at or after the one before."""
    clock = Clock()
    moments = [clock.now() for _ in range(1_000)]
    assert moments == sorted(moments)


def test_entropy_is_given_out_once() -> None:
    """Bytes are of the size asked for and never repeat, over many refills."""
    entropy = Entropy()
    drawn = [entropy(32) for _ in range(1_000)]
    assert {len(part) for part in drawn} == {32}
    assert len(set(drawn)) == len(drawn)
    assert len(entropy(limits.ENTROPY_BYTES * 3)) == limits.ENTROPY_BYTES * 3


def test_ids_of_sessions() -> None:
    """A session's id fits 63 bits and is not 0; a principal says its user."""
    assert all(0 < fresh_task_id() < 2**63 for _ in range(100))
    assert principal_of(1000) == "uid:1000"


def described(end: Exit, console: bytes) -> tuple[Cause, str]:
    """The description of an end with this console."""
    tail = TaskConsole()
    tail.append(console)
    return TaskHost._described(end, tail)


def test_traceback_is_the_cause() -> None:
    """An exit with code 1 after a traceback is an exception, told by its last line."""
    trace = b'noise\nTraceback (most recent call last):\n  File "x", line 1\nmod.Error: what was wrong\n'
    cause, detail = described(Exit(Cause.EXITED, 1), trace)
    assert cause is Cause.EXCEPTION
    assert detail.splitlines()[0] == "mod.Error: what was wrong"


def test_other_ends_keep_their_cause() -> None:
    """A chosen exit code stays one, with the last lines; an orderly end needs no words."""
    cause, detail = described(Exit(Cause.EXITED, 1, detail="chosen"), b"usage: job FILE\n")
    assert cause is Cause.EXITED
    assert detail == "chosen\nLast lines:\nusage: job FILE"
    assert described(Exit(Cause.EXITED, 0), b"a lot\n") == (Cause.EXITED, "")
