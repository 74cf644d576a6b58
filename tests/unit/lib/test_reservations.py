"""Asking for places of a job's tasks: the questions, their answers, and what is done with refusals."""

from __future__ import annotations

import base64
import json
import secrets
import zlib
from typing import TYPE_CHECKING, cast

import pytest

from dios.errors import InvalidError
from dios.lib.reservations import check, label_of, reserve
from dios.limits import NODE_NAME_BYTES_MAX, SCHEDULER_QUESTION_BYTES_MAX

if TYPE_CHECKING:
    from dios.client.sync.node import Node

TEXT = 'name = "words"\n[tasks.map]\ncpu = 1\n'
MEMBERS = [
    {
        "member": "map",
        "node": "n2",
        "service": False,
        "start_s": 0,
        "end_s": None,
        "cpus": 1,
        "memory_bytes": 0,
    },
    {
        "member": "in",
        "node": "n1",
        "service": True,
        "start_s": 0,
        "end_s": None,
        "cpus": 0,
        "memory_bytes": 0,
    },
]


class Scheduler:
    """Answers questions as a coordinator does, and remembers them."""

    def __init__(self, **answer: object) -> None:
        self.answer = answer
        self.asked: list[dict[str, object]] = []

    def ask_scheduler(self, question: bytes) -> bytes:
        """One question."""
        assert len(question) <= SCHEDULER_QUESTION_BYTES_MAX
        self.asked.append(json.loads(question))
        return json.dumps(self.answer).encode()

    @property
    def node(self) -> Node:
        """As whoever asks sees it."""
        return cast("Node", self)


def admitting() -> Scheduler:
    """One that has a place for everything."""
    return Scheduler(ok=True, job="words", number=7, lease_s=30, length_s=None, members=MEMBERS)


def test_a_job_is_released_at_its_end() -> None:
    """Within the block it is admitted, with its places; after it, it is given back."""
    scheduler = admitting()
    with reserve(scheduler.node, TEXT) as job:
        assert (job.number, job.lease_s, job.length_s) == (7, 30, None)
        assert [member.name for member in job.tasks] == ["map"]
        work = job.work(job.tasks[0])
        assert (work.reservation, work.member, work.equivalence) == (7, "map", "words/map")
        assert work.restartable, "it is stopped when its time is over"
        assert not work.particular, "what it needs is set aside already"
        job.renew()
    assert [(request["do"], request.get("number")) for request in scheduler.asked] == [
        ("admit", None),
        ("renew", 7),
        ("release", 7),
    ]
    assert zlib.decompress(base64.b64decode(str(scheduler.asked[0]["job"]))).decode() == TEXT


def test_a_check_asks_for_nothing_else() -> None:
    """Where a job would go is told, and nothing is released for nothing was kept."""
    scheduler = admitting()
    assert [member.node for member in check(scheduler.node, TEXT).members] == ["n2", "n1"]
    assert [request["do"] for request in scheduler.asked] == ["check"]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        ("the job:3: tasks.map.cpu is -1", "words.toml:3: tasks.map.cpu is -1"),
        ("the job: tasks are 0", "words.toml: tasks are 0"),
        ("'words' has no place", "'words' has no place"),
    ],
)
def test_refusals_name_the_file(error: str, told: str) -> None:
    """Where the description itself is at fault, its file and line are named."""
    scheduler = Scheduler(ok=False, error=error)
    for asks in (check, reserve):
        with pytest.raises(InvalidError) as caught:
            asks(scheduler.node, TEXT, "words.toml")
        assert caught.value.message == told


def test_a_job_that_is_over_is_released_in_silence() -> None:
    """Its time may have ended before its user came to the end."""
    scheduler = admitting()
    with reserve(scheduler.node, TEXT):
        scheduler.answer = {"ok": False, "error": "no such job"}
    assert scheduler.asked[-1]["do"] == "release"


def test_what_does_not_fit_into_a_question_is_refused() -> None:
    """A description that is too long even compressed is refused here, with what to do."""
    scheduler = admitting()
    with pytest.raises(InvalidError, match="copies of a task with `count`"):
        reserve(scheduler.node, TEXT + f"# {secrets.token_hex(SCHEDULER_QUESTION_BYTES_MAX)}\n")
    assert scheduler.asked == []


def test_an_answer_that_makes_no_sense_is_told() -> None:
    """A coordinator of another release may say something else."""
    with pytest.raises(InvalidError, match="is malformed"):
        check(Scheduler(answer=3).node, TEXT)


def test_labels_fit_into_their_field() -> None:
    """A long name is cut, never within a letter."""
    member = check(admitting().node, TEXT).members[0]
    assert len(label_of("ä" * NODE_NAME_BYTES_MAX, member).encode()) <= NODE_NAME_BYTES_MAX
