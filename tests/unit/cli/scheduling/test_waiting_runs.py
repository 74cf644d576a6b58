"""The reason of a run that waits."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import msgspec
import pytest

from dios.cli.common.context import CommandContext
from dios.cli.scheduling import waiting_runs
from dios.cli.scheduling.waiting_runs import telling_why, waiting_reason
from dios.client.ops.status import Status
from dios.errors import UnreachableError
from dios.firmament.explain.explanation import ExcludedMachines, Explanation
from dios.wire.types import TaskState

SUBMITTED = Status("ab12", "job.py", TaskState.WAITING, detail="place 1 of 1 in the submission queue")
QUEUED = Status(
    "cd34", "job.py", TaskState.WAITING, detail="place 1 of 1 in the start queue: no core is free"
)
LIMIT_S = 30


class Coordinator:
    """The connection of a command to a coordinator that gives these answers, the last one for ever."""

    def __init__(self, task: Status, *answers: list[str], explanation: object = None) -> None:
        self.node = self
        self._explanation = explanation
        self._task = task
        self._answers = list(answers)
        self.asked = threading.Semaphore(0)

    def tasks(self) -> list[Status]:
        """Return the one task that waits."""
        return [self._task]

    def ask_scheduler(self, question: bytes) -> bytes:
        """Answer as `dios explain` is answered."""
        assert json.loads(question) == {"ask": "explain", "task": "ab12"}
        self.asked.release()
        if not self._answers:
            raise UnreachableError("no scheduler")
        lines = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        return json.dumps({"ok": True, "lines": lines, "explanation": self._explanation}).encode()


def reason_from(place: Coordinator) -> str:
    """Return the reason that a command shows."""
    context = cast("CommandContext", place)
    return waiting_reason(context, place.tasks(), place.tasks()[0])


def test_the_reason_is_the_coordinators() -> None:
    """A run in the submission queue has the reason that the coordinator explains, without its fingerprint."""
    lines = ["ab12 waits: no machine can take it now", "  1 of 1 machines: not enough free: 2 CPUs wanted"]
    told = reason_from(Coordinator(SUBMITTED, lines))
    assert told == "no machine can take it now; 1 of 1 machines: not enough free: 2 CPUs wanted"


def test_the_reason_of_the_flow_scheduler_has_no_costs() -> None:
    """Of an explanation with paths and costs, the sentence and the excluded machines are shown."""
    excluded = [ExcludedMachines(3, "lack gpu=yes")]
    explanation = Explanation(
        7, 1, "waits", "no machine can take it", None, 1, "spread", 5, [], [], 3, excluded
    )
    place = Coordinator(SUBMITTED, explanation.lines(), explanation=msgspec.to_builtins(explanation))
    assert reason_from(place) == "no machine can take it; 3 of 3 machines: lack gpu=yes"


def test_a_reason_is_shown_once_with_the_promised_start() -> None:
    """The machines that have it are not listed again."""
    excluded = [ExcludedMachines(2, "not enough free: 4 CPUs are needed")]
    explanation = Explanation(
        7,
        1,
        "waits",
        "no machine can take it now: not enough free: 4 CPUs are needed",
        None,
        1,
        "spread",
        5,
        excluded=excluded,
        promised="kept for it: room on n1; it is expected to start there in 28 s",
    )
    place = Coordinator(SUBMITTED, explanation.lines(), explanation=msgspec.to_builtins(explanation))
    assert reason_from(place) == f"{explanation.reason}; {explanation.promised}"


def test_a_brief_reason_is_kept_whole() -> None:
    """A reason that does not begin with the name of the task is shown as it is."""
    assert reason_from(Coordinator(SUBMITTED, ["it cannot be placed: no such node"])) == (
        "it cannot be placed: no such node"
    )


def test_the_reason_of_a_start_queue_needs_no_coordinator() -> None:
    """A run in the start queue of a node has the reason of that node."""
    assert "no core is free" in reason_from(Coordinator(QUEUED))


def test_that_nobody_knows_is_a_reason() -> None:
    """If the coordinator does not answer, that is what the command says."""
    assert reason_from(Coordinator(SUBMITTED)) == "no scheduler"


def test_a_command_says_why_and_again_when_that_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal, too, each reason is said once while the run waits."""
    monkeypatch.setattr(waiting_runs, "FIRST_S", 0.001)
    place = Coordinator(SUBMITTED, ["ab12 waits: full"], ["ab12 waits: full"], ["ab12 waits: its turn"])

    @contextmanager
    def opening() -> Iterator[CommandContext]:
        yield cast("CommandContext", place)

    with telling_why(opening, "job.py"):
        for _ in range(5):
            assert place.asked.acquire(timeout=LIMIT_S)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "job.py waits: full (`dios explain job.py` shows more; Ctrl-C withdraws it)",
        "job.py waits: its turn",
    ]
