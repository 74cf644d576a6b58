"""Demands of admitted jobs are curves over the same times, and malformed answers give none."""

from __future__ import annotations

from dios.web.dashboard.pages.shares import turn_text
from dios.web.observation.packing import MEMORY, PROCESSORS, TRAFFIC, UsedOverTime, demands

GIB = 2**30
ANSWER = {
    "now_s": 100.0,
    "nodes": [
        {"node": "n1", "cpus": 4.0, "memory_bytes": 8 * GIB},
        {"node": "n2", "cpus": 2.0, "memory_bytes": 4 * GIB},
    ],
    "jobs": [
        {
            "job": "a\x1b",
            "principal": "uid:1",
            "members": [
                {
                    "member": "x",
                    "node": "n1",
                    "steps": [[90.0, 1.0, GIB], [110.0, 3.0, GIB], [120.0, 0.0, 0]],
                },
                {"member": "y", "node": "n2", "steps": [[90.0, 1.0, 0], [120.0, 0.0, 0], "broken"]},
            ],
            "edges": [
                {"source_node": "n1", "target_node": "n2", "moving_bytes_s": 3e6, "steps": [[90.0, 5e6]]},
                {"source_node": "n1", "target_node": "n1", "moving_bytes_s": 9e6, "steps": [[90.0, 9e6]]},
            ],
        },
        {"job": 7, "members": "none"},
    ],
}


def test_demands_are_sums_of_members_by_job() -> None:
    """Members of a job are added at each change, for all nodes or one, next to the capacity."""
    totals = demands(ANSWER, PROCESSORS)
    assert totals.times == [90.0, 100.0, 110.0, 120.0, 160.0]
    assert totals.by_job == {"a\\x1b (uid:1)": [2, 2, 4, 0, 0], "7 (None)": [0] * 5}
    assert totals.capacity == 6
    assert demands(ANSWER, MEMORY, "n1").by_job["a\\x1b (uid:1)"] == [1, 1, 1, 0, 0]
    assert demands(ANSWER, MEMORY, "n1").capacity == 8


def test_edges_within_a_node_need_no_guarantee() -> None:
    """Traffic counts at the node that sends, in MB/s, if it leaves the node."""
    assert demands(ANSWER, TRAFFIC, "n1").by_job["a\\x1b (uid:1)"][0] == 5
    assert demands(ANSWER, TRAFFIC, "n2").by_job["a\\x1b (uid:1)"] == [0, 0]


def test_use_is_remembered_as_far_as_it_is_measured() -> None:
    """Traffic comes with the jobs, processors and memory with the nodes; nothing is invented."""
    used = UsedOverTime()
    used.add(ANSWER, {"n1": {"cpus_used": 1.5, "memory_used": None}})
    assert used.line(TRAFFIC) == [(100.0, 3.0)]
    assert used.line(PROCESSORS, "n1") == [(100.0, 1.5)]
    assert used.line(PROCESSORS, "n2") == []
    assert used.line(MEMORY) == []


def test_turns_are_words() -> None:
    """A turn is known only with an order, and its time only while priorities meet."""
    assert turn_text({"waiting": 0, "turn": 1}) == "nothing waits"
    assert turn_text({"waiting": 2, "turn": None}) == "unknown"
    assert turn_text({"waiting": 2, "turn": 1, "next_in_s": 0.0}) == "next"
    assert turn_text({"waiting": 2, "turn": 3, "next_in_s": 12.4}) == "place 3, next in 12 s"
    assert turn_text({"waiting": 2, "turn": 2, "next_in_s": None}) == "place 2, not before a task ends"
