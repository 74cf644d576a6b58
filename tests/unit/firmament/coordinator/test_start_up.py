"""The first minutes after an installation: runs are placed while the scheduler's kernels are compiled."""

from __future__ import annotations

import json
import math
import random

import pytest

from dios.firmament.coordinator.assignment import Assignment, SetUp, StartOptions
from dios.firmament.coordinator.cluster_state import Phase, TrackedCluster
from dios.firmament.coordinator.first_fit import FirstFitScheduler
from dios.firmament.coordinator.kernel_compilation import KernelProgress
from dios.firmament.coordinator.start_up_service import StartUpService
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.policies.stored_shares import StoredAccount, StoredJob, StoredShares, encode
from dios.wire.messages import Asked, Work
from tests.support.firmament.answers import require_described
from tests.support.firmament.coordinated_nodes import CoordinatedNodes

NO_LIMIT = math.inf


class FakeCompiler:
    """A compilation that is never done."""

    progress = KernelProgress(12, 150)

    def is_ready(self) -> bool:
        """Return False."""
        return False

    async def compile(self, *, again: bool = False) -> None:
        """Do nothing."""


class StartUpNodes(CoordinatedNodes):
    """Three nodes whose runs are placed by first fit; ``switch`` continues with a fresh scheduler."""

    def __init__(self) -> None:
        first_fit = FirstFitScheduler()
        super().__init__(first_fit, first_fit.round)

    def switch(self) -> None:
        """Do what a coordinator does when the kernels are compiled."""
        fresh = FirstFitScheduler()
        cluster = TrackedCluster(fresh)
        cluster.adopt(self.cluster, self.now)
        self.cluster, self.place = cluster, fresh.round


@pytest.fixture
def service() -> StartUpService:
    """A service that is responsible for two nodes."""
    options = StartOptions(SetUp.CENTRALISED, "spread")
    start_up = StartUpService(options, "n1", KnowledgeBase("n1", 1), FakeCompiler())
    both = frozenset({"n1", "n2"})
    start_up.change_assignment(Assignment(), Assignment(both, both, leader="n1"), 0.0)
    return start_up


def ask(service: StartUpService, question: object, *, ruler: bool = True) -> dict[str, object]:
    """Return the service's answer."""
    asked = Asked(1, "uid:0", ruler, json.dumps(question).encode())
    reply: dict[str, object] = json.loads(service.answer(asked))
    require_described(question, reply)
    return reply


def read(service: StartUpService, nodes: StartUpNodes, *names: str) -> None:
    """Let a service read the queues of nodes."""
    for name in names:
        service.read(name, nodes.nodes[name].queue(), nodes.now)


def test_a_run_with_needs_is_placed_at_once(service: StartUpService) -> None:
    """The first round sends it to the node that has room, as the flow scheduler would."""
    nodes = StartUpNodes()
    task = nodes.submit("n1", Work(cpus_milli=2000, memory_bytes=2**20))
    other = nodes.submit("n1", Work(cpus_milli=2000))
    read(service, nodes, "n1", "n2")
    (action,) = service.round(0.0)
    assert (action.host, action.placements, action.preempted) == ("n1", [(task, "n1"), (other, "n2")], [])
    assert service.round(0.0) == []


def test_status_and_explanation_name_the_compilation(service: StartUpService) -> None:
    """Both say how far it is, and that a simple rule places runs meanwhile."""
    nodes = StartUpNodes()
    task = nodes.submit("n1", Work(cpus_milli=64_000))
    read(service, nodes, "n1", "n2")
    service.round(0.0)
    status = ask(service, {"ask": "status"})
    assert status["placed_by"] == "first-fit"
    assert status["kernels"] == {"state": "compiling", "compiled": 12, "total": 150, "problem": ""}
    assert status["attends"] == ["n1", "n2"]
    assert (status["waiting"], status["running"], status["model"]) == (1, 0, "spread")
    explanation = ask(service, {"ask": "explain", "task": f"job {task}"})
    assert explanation["phase"] == "waiting"
    lines = explanation["lines"]
    assert isinstance(lines, list)
    assert lines[1] == "  2 of 2 machines: too small: 64 CPUs wanted"
    assert "kernels are being compiled (12 of 150)" in lines[-1]
    assert "simple rule" in lines[-1]


def test_other_questions_say_when_they_can_be_answered(service: StartUpService) -> None:
    """A quota cannot be set before the flow scheduler is there, and the error says why."""
    answer = ask(service, {"ask": "quota", "principal": "uid:1", "weight": 2})
    assert not answer["ok"]
    assert "kernels are being compiled (12 of 150)" in str(answer["error"])


def test_stored_quotas_and_promised_room_are_respected(service: StartUpService) -> None:
    """A principal gets no more than its stored quota, and nothing goes where a job over time holds room."""
    nodes = StartUpNodes()
    tasks = [nodes.submit("n1", Work(cpus_milli=500)) for _ in range(3)]
    quota = (NO_LIMIT, 1.0, NO_LIMIT, NO_LIMIT, NO_LIMIT)
    account = StoredAccount("uid:0", 1.0, quota, 1.0, 1.0, (0.0,) * 5)
    job = StoredJob(1, "uid:9", b"", 0.0, (("worker", "n1"),))
    service.learn(encode(StoredShares(1.0, (account,), (job,))), 0.0, commitments=True)
    read(service, nodes, "n1", "n2")
    (action,) = service.round(0.0)
    assert action.placements == [(task, "n2") for task in tasks[:2]]


def test_members_of_jobs_over_time_wait(service: StartUpService) -> None:
    """Only the flow scheduler knows their places."""
    nodes = StartUpNodes()
    task = nodes.submit("n1", Work(reservation=5, member="a"))
    read(service, nodes, "n1", "n2")
    assert service.round(0.0) == []
    assert "job over time" in str(ask(service, {"ask": "explain", "task": f"job {task}"})["lines"])


def test_a_placement_under_way_survives_the_switch() -> None:
    """Its room stays taken, its answer is recorded, and it is not placed again."""
    nodes = StartUpNodes()
    first = nodes.submit("n1", Work(cpus_milli=2000))
    nodes.read()
    ((host, task, target),) = nodes.round()
    assert task == first
    nodes.switch()
    second = nodes.submit("n2", Work(cpus_milli=2000))
    nodes.read("n2", "n3")
    placed = nodes.round()
    assert [(task, target) for _, task, target in placed] == [(second, "n2")], "n1 is taken"
    nodes.cluster.record_answer(host, [first], nodes.carry_out(host, first, target), nodes.now)
    nodes.cluster.record_answer("n2", [second], nodes.carry_out("n2", second, "n2"), nodes.now)
    nodes.work_off()
    assert nodes.started == {first: 1, second: 1}
    assert {tracked.phase for tracked in nodes.cluster.tasks.values()} == {Phase.RUNNING}


def test_an_incomplete_gang_survives_the_switch() -> None:
    """Its tasks go on waiting for the last one, and start together."""
    nodes = StartUpNodes()
    work = Work(cpus_milli=1000, job=9, gang=3, tasks=3)
    tasks = [nodes.submit("n1", work) for _ in range(2)]
    nodes.work_off()
    nodes.switch()
    nodes.work_off()
    assert nodes.cluster.gang_of(tasks[0]) == (2, 3)
    tasks.append(nodes.submit("n2", work))
    nodes.work_off()
    assert nodes.started == dict.fromkeys(tasks, 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_switch_loses_and_doubles_nothing(seed: int) -> None:
    """With switches, lost answers, refusals and old queues at random times each run starts exactly once."""
    chance = random.Random(seed)  # noqa: S311 - a seed is wanted
    nodes = StartUpNodes()
    under_way: list[tuple[str, int, str]] = []
    submitted: list[int] = []
    for _ in range(80):
        nodes.now += chance.choice([0.1, 1.0, 4.0])
        act = chance.randrange(7)
        if act == 0:
            host, needs = chance.choice(["n1", "n2", "n3"]), chance.choice([0, 500, 1000])
            submitted.append(nodes.submit(host, Work(cpus_milli=needs)))
        elif act == 1 and (busy := [node for node in nodes.nodes.values() if node.running]):
            node = chance.choice(busy)
            nodes.end(node.name, chance.choice(list(node.running)))
        elif act == 2:
            nodes.switch()
        elif act == 3 and under_way:
            host, task, target = under_way.pop(chance.randrange(len(under_way)))
            answer = nodes.carry_out(host, task, target)
            nodes.cluster.record_answer(host, [task], answer if chance.random() < 0.8 else None, nodes.now)
        elif act == 4:
            under_way += nodes.round()
        else:
            nodes.read()
        nodes.cluster.expire_placements(nodes.now)
    for host, task, target in under_way:
        nodes.cluster.record_answer(host, [task], nodes.carry_out(host, task, target), nodes.now)
    for _ in range(40):
        nodes.now += 20.0
        nodes.cluster.expire_placements(nodes.now)
        nodes.work_off()
        for node in nodes.nodes.values():
            for task in list(node.running):
                nodes.end(node.name, task)
    assert set(nodes.started.values()) <= {1}, f"seed {seed}"
    assert set(nodes.started) == set(submitted), f"seed {seed}: some never ran"
