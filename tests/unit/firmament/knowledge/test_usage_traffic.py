"""What went between nodes for tasks of admitted jobs, as all nodes' meters tell who governs."""

from __future__ import annotations

from msgspec.structs import replace

from dios.firmament.coordinator.job_traffic import JobTraffic
from dios.firmament.knowledge.knowledge_base import KnowledgeBase
from dios.firmament.knowledge.usage_profile import UsageChannel
from dios.wire.messages import Meter, Occupant, QueueRows, Work
from dios.wire.types import TaskState, Traffic
from tests.support.firmament.usage_profiles import course

WALL = 1_000.0
SENDER, READER = 1, 2


def row(task: int, member: str, age_ms: int = 0) -> Occupant:
    """A task of an admitted job."""
    return Occupant(
        task, f"{task:012x}", f"words/{member}", "uid:1", TaskState.RUNNING, 77, age_ms,
        Work(reservation=5, member=member, equivalence=f"words/{member}"), 0, 0, completed=False,
    )  # fmt: skip


def board(name: str, *tasks: Occupant) -> QueueRows:
    """A node's board."""
    return QueueRows(
        1, 1, name, "", 2, 2**30, 16, (), draining=False, coordinated=True,
        waiting=(), tasks=tasks, asked=(), reports=(), partial=False,
    )  # fmt: skip


def out(task: int, moved: int, traffic: Traffic = Traffic.OUT) -> Meter:
    """What went on a task's account."""
    return Meter("uid:1", traffic, moved, 0, task)


def taken(base: KnowledgeBase) -> dict[str, dict[UsageChannel, list[int]]]:
    """What is known of tasks whose nodes have told of them, too."""
    for number, member in ((SENDER, "map.0"), (READER, "reduce")):
        base.add_usage_profile(
            course(member, run=5, task=number, began_s=WALL, length_ms=4_000, cpu_milli=[1] * 4)
        )
    return {usage.name: usage.highest.values for usage in base.usage_profiles.members("uid:1", "words")}


def test_what_others_send_for_a_task_is_received_by_it() -> None:
    """Bytes are of the task on whose account they are: from its own node sent, from others received."""
    base = KnowledgeBase("n1", 1)
    flows = JobTraffic(base, WALL)
    sender, reader = row(SENDER, "map.0"), row(READER, "reduce")
    flows.seen(board("a", sender), 0.0)
    flows.seen(board("b", reader), 0.0)
    for host in ("a", "b", "c"):
        flows.metered(host, (), 0.0)
    flows.metered("a", (out(SENDER, 300), out(READER, 1_000), out(READER, 10**9, Traffic.STORE)), 1.0)
    flows.metered("c", (out(READER, 50),), 1.0)
    flows.metered("b", (out(0, 10**9),), 1.0)
    flows.metered("a", (out(SENDER, 300), out(READER, 5_000)), 2.0)
    flows.metered("c", (out(READER, 50),), 2.0)
    # The account was closed at one node, and opened again at the other.
    flows.metered("a", (), 3.0)
    flows.metered("c", (out(READER, 7),), 4.0)
    flows.metered("a", (), 4.0)
    flows.seen(board("a", replace(sender, state=TaskState.ENDED, age_ms=4_000)), 4.1)
    flows.seen(board("b", replace(reader, state=TaskState.ENDED, age_ms=4_000)), 4.1)
    assert base.usage_profiles.jobs("uid:1") == [], "whether it ran is what its node tells"
    courses = taken(base)
    assert courses["map.0"] == {
        UsageChannel.CPU_MILLI: [1] * 4, UsageChannel.SENT: [300, 0, 0, 0], UsageChannel.RECEIVED: [0] * 4,
    }  # fmt: skip
    assert courses["reduce"][UsageChannel.RECEIVED] == [1_050, 4_050, 4, 4]
    assert courses["reduce"][UsageChannel.SENT] == [0, 0, 0, 0]


def test_its_course_begins_when_the_task_did() -> None:
    """Ages on a board are of the moment at which it was read."""
    base = KnowledgeBase("n1", 1)
    flows = JobTraffic(base, WALL)
    flows.metered("a", (), 0.0)
    flows.seen(board("b", row(READER, "reduce", age_ms=1_500)), 2.0)
    flows.metered("a", (out(READER, 100),), 2.5)
    flows.metered("a", (out(READER, 400),), 3.5)
    flows.seen(board("b", replace(row(READER, "reduce"), state=TaskState.ENDED, age_ms=3_000)), 4.0)
    (entry,) = base.usage_profiles.entries()
    assert getattr(entry.content, "began_ns", 0) == round((WALL + 0.5) * 10**9)
    assert getattr(entry.content, "values", {})[UsageChannel.RECEIVED] == (40, 40, 300)


def test_tasks_on_no_account_have_no_course() -> None:
    """Of a task that no guarantee names, or whose node is gone, nothing is said."""
    base = KnowledgeBase("n1", 1)
    flows = JobTraffic(base, WALL)
    flows.seen(board("a", row(SENDER, "map.0")), 0.0)
    flows.seen(board("b", row(READER, "reduce")), 0.0)
    for at in range(3):
        flows.metered("a", (out(READER, at * 1_000), out(77, at)), float(at))
    flows.forget("b")
    flows.seen(board("b", replace(row(READER, "reduce"), state=TaskState.ENDED)), 3.0)
    flows.seen(board("a", replace(row(SENDER, "map.0"), state=TaskState.ENDED)), 3.0)
    assert base.usage_profiles.entries() == []


def test_a_task_that_its_board_shows_no_more_is_forgotten() -> None:
    """Nothing is kept of it, nor is it looked for again."""
    base = KnowledgeBase("n1", 1)
    flows = JobTraffic(base, WALL)
    flows.metered("a", (), 0.0)
    flows.seen(board("b", row(READER, "reduce")), 0.0)
    flows.metered("a", (out(READER, 5),), 1.0)
    flows.seen(board("b"), 1.0)
    flows.metered("a", (out(READER, 9),), 2.0)
    assert base.usage_profiles.entries() == []
