"""What a coordinator's desk tells of a job's earlier runs, and to whom."""

from __future__ import annotations

import json

import pytest

from dios import limits
from dios.errors import InvalidError, NotPermittedError
from dios.firmament.coordinator.assignment import SetUp, StartOptions
from dios.firmament.coordinator.scheduler_service import SchedulerService
from dios.firmament.coordinator.usage_queries import learned, steps_of
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.wire.messages import Asked
from tests.support.firmament.usage_profiles import course


def asked(question: dict[str, object], *, principal: str = "uid:1", ruler: bool = False) -> Asked:
    """A question by somebody."""
    return Asked(1, principal, ruler, json.dumps(question).encode())


def ask(
    base: KnowledgeBase | None, question: dict[str, object], *, principal: str = "uid:1", ruler: bool = False
) -> dict[str, object]:
    """What is answered."""
    return learned(base, asked(question, principal=principal, ruler=ruler), question)


@pytest.fixture
def base() -> KnowledgeBase:
    """Two runs of a user's job, one of another user's of the same name."""
    knowledge = KnowledgeBase("n1", 1)
    for run in (1, 2):
        knowledge.add_usage_profile(
            course(run=run, task=run, began_s=100 * run, cpu_milli=[100, 100, 900 * run])
        )
    knowledge.add_usage_profile(course("reduce", run=2, task=3, began_s=203, memory=[5], completed=False))
    knowledge.add_usage_profile(course(principal="uid:2", cpu_milli=[7]))
    knowledge.add_usage_profile(course(principal="uid:2", job="secret", cpu_milli=[7]))
    return knowledge


def test_a_desk_answers_with_steps(base: KnowledgeBase) -> None:
    """The desk of a scheduler that has this knowledge tells runs, starts, and values where they change."""
    office = SchedulerService(StartOptions(SetUp.CENTRALISED, "spread"), "n1", base, 0.0)
    told = json.loads(office.answer(asked({"ask": "learn", "job": "words"})))
    assert told == {
        "ok": True,
        "job": "words",
        "principal": "uid:1",
        "runs": 2,
        "members": [
            {
                "member": "map.0",
                "runs": 2,
                "completed": 2,
                "start_s": 0,
                "length_s": 3,
                "instant_s": 1,
                "machines": ["n1"],
                "values": {"cpu_milli": [[0, 100], [2, 1800]]},
                "unmeasured": ["memory", "disk_write", "disk_read", "sent", "received"],
            },
            {
                "member": "reduce",
                "runs": 1,
                "completed": 0,
                "start_s": 3,
                "length_s": 1,
                "instant_s": 1,
                "machines": ["n1"],
                "values": {"memory": [[0, 5]]},
                "unmeasured": ["cpu_milli", "disk_write", "disk_read", "sent", "received"],
            },
        ],
        "next": None,
    }


def test_everybody_sees_his_own_jobs_alone(base: KnowledgeBase) -> None:
    """Of others' jobs not even the names are told; the nodes' own user may name anybody."""
    with pytest.raises(InvalidError, match=r"usage of 'secret'.*Jobs with measured runs: words$"):
        ask(base, {"job": "secret"})
    with pytest.raises(NotPermittedError, match="own user and root"):
        ask(base, {"job": "words", "principal": "uid:2"})
    mine, others = (
        ask(base, {"job": "words", "principal": who}, principal="uid:1", ruler=True)["members"]
        for who in ("", "uid:2")
    )
    assert mine != others
    assert isinstance(others, list)
    assert others[0]["values"] == {"cpu_milli": [(0, 7)]}
    assert ask(base, {"job": "words", "principal": "uid:2"}, principal="uid:2")["members"] == others


def test_an_unknown_job_is_answered_with_those_that_are_known(base: KnowledgeBase) -> None:
    """The error names jobs that were run, the last one first, not more than a person reads; or what to do."""
    for number in range(25):
        base.add_usage_profile(course(job=f"job{number}", cpu_milli=[1]))
    with pytest.raises(InvalidError, match=r"Jobs with measured runs: job24, job23, .*job5 and 6 others"):
        ask(base, {"job": "wrods"})
    for nothing in (base, None):
        with pytest.raises(InvalidError, match=r"Run the job with `dios run JOB\.toml`"):
            ask(nothing, {"job": "words"}, principal="uid:3")
    with pytest.raises(InvalidError, match="invalid question"):
        ask(base, {})


def test_a_large_job_is_told_in_parts(base: KnowledgeBase) -> None:
    """However much is known, each answer travels, and all of them together are everything, once."""
    count = 40
    for number in range(count):
        values = [10**9 + (number * at) % 1_000 * 10**6 for at in range(limits.USAGE_PROFILE_INSTANTS_MAX)]
        base.add_usage_profile(course(f"task.{number:02}", job="large", cpu_milli=values, memory=values))
    begin: object = 0
    names: list[str] = []
    parts = 0
    while begin is not None:
        told = ask(base, {"job": "large", "begin": begin})
        assert len(json.dumps(told)) < limits.ADVICE_BYTES_MAX
        members = told["members"]
        assert isinstance(members, list)
        names += [member["member"] for member in members]
        begin = told["next"]
        parts += 1
    assert names == [f"task.{number:02}" for number in range(count)]
    assert 1 < parts < count / 2


def test_steps_are_where_values_change() -> None:
    """The first stands always."""
    assert steps_of([0, 0, 4, 4, 0]) == [(0, 0), (2, 4), (4, 0)]
    assert steps_of([]) == []
