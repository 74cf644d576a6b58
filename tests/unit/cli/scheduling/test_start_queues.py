"""``dios explain`` of runs that wait on a node until it has room."""

from __future__ import annotations

import pytest

from dios.cli.scheduling.start_queues import explanation
from dios.client.ops.status import Status
from dios.errors import InvalidError
from dios.wire.types import TaskState

FULL = "the limit of 3 tasks for this node is reached"


def waiting(fingerprint: str, label: str, detail: str, node: str = "") -> Status:
    """A run that waits."""
    return Status(fingerprint, label, TaskState.WAITING, detail=detail, node=node)


FIRST = waiting("aa11", "first.py", f"place 1 of 2 in the start queue: {FULL}")
SECOND = waiting("bb22", "second.py", "place 2 of 2 in the start queue")
ELSEWHERE = waiting("cc33", "third.py", "place 1 of 1 in the start queue: it starts in a moment", "n2")
SUBMITTED = waiting("dd44", "fourth.py", "place 1 of 1 in the submission queue")
TASKS = [Status("ee55", "first.py", TaskState.RUNNING), FIRST, SECOND, ELSEWHERE, SUBMITTED]


def test_the_first_run_waits_for_its_reason() -> None:
    """The lines have the place and the reason."""
    reason = explanation(TASKS, "first.py")
    assert reason is not None
    assert reason["lines"] == [
        "first.py waits until this node has room for it: place 1 of 2 in the start queue",
        FULL,
    ]


def test_a_later_run_waits_for_the_first_one_of_its_node() -> None:
    """The lines name the first run, and its reason."""
    reason = explanation(TASKS, "bb")
    assert reason is not None
    assert reason["lines"] == [
        "second.py waits until this node has room for it: place 2 of 2 in the start queue",
        "your runs start in their order there; the first of them is aa11",
        f"the first of them waits because {FULL}",
    ]


def test_a_run_on_another_node_names_it() -> None:
    """The node where it waits is in the first line."""
    reason = explanation(TASKS, "third.py")
    assert reason is not None
    assert reason["node"] == "n2"
    assert str(reason["lines"]).count("node n2") == 1


@pytest.mark.parametrize("word", ["fourth.py", "ee55", "no such", ""])
def test_other_tasks_are_left_to_the_scheduler(word: str) -> None:
    """A run that waits for the scheduler, a running task and an unknown word have no explanation here."""
    assert explanation(TASKS, word) is None


def test_several_runs_of_one_label_are_named() -> None:
    """The error has their fingerprints."""
    with pytest.raises(InvalidError, match="aa11, ff66"):
        explanation([*TASKS, waiting("ff66", "first.py", "place 3 of 3 in the start queue")], "first.py")
