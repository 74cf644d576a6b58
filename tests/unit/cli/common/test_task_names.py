"""The words that name tasks: titles, kept jobs and elements of arrays."""

from __future__ import annotations

import pytest

from dios.cli.common.context import tasks_called
from dios.client.ops.status import Status
from dios.wire.types import TaskState

LABELS = (
    "count.py",
    "count.0/1/ab12",
    "count.0/2/ab12",
    "sweep.0/1/cd34",
    "sweep.7/1/cd34",
    "account.0/1/ef56",
    "count.0 check",
    "c.nt.0/1/ab12",
)


@pytest.mark.parametrize(
    ("word", "labels"),
    [
        ("count.py", ["count.py"]),
        ("count", ["count.0/1/ab12", "count.0/2/ab12"]),
        ("count.0", ["count.0/1/ab12", "count.0/2/ab12"]),
        ("sweep.0", ["sweep.0/1/cd34"]),
        ("sweep.7", ["sweep.7/1/cd34"]),
        ("sweep", []),
        ("c.nt", ["c.nt.0/1/ab12"]),
        ("coun", []),
        ("", []),
    ],
)
def test_a_name_means_the_attempts_of_a_job_or_of_an_element(word: str, labels: list[str]) -> None:
    """That of an array means none of its elements, whatever is running."""
    tasks = [Status(str(number), label, TaskState.RUNNING) for number, label in enumerate(LABELS)]
    assert [task.label for task in tasks_called(tasks, word)] == labels
