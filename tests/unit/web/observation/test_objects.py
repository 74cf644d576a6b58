"""Waiting calls are told with the tasks that can end the wait."""

from __future__ import annotations

from dios.web.observation.objects import Wait, waits


def _reference(task: str, permissions: int, buffers: int = 0) -> dict[str, object]:
    return {"task": task, "object": "blob", "permissions": permissions, "buffers": buffers}


def _waiting(objects: str, requests: int = 0) -> dict[str, object]:
    return {"task": "reader", "call": "Select", "objects": objects, "requests": requests}


def test_a_task_is_awaited_for_its_end() -> None:
    """A call that watches a task waits for that task, whoever else has references to it."""
    waiting = waits([_waiting("other blob")], [_reference("writer", 2)], {"other": "TASK"})
    assert waiting[0] == Wait("reader", "Select", "other", ("other",), "it has to end")
    assert waiting[1].awaited == ("writer",)


def test_open_requests_come_before_mere_rights() -> None:
    """Only tasks with open requests on the object are named, or without any those that may write it."""
    references = [_reference("reader", 3, 1), _reference("writer", 2), _reference("other", 1)]
    assert waits([_waiting("blob")], references, {})[0].awaited == ("writer",)
    references.append(_reference("busy", 1, buffers=2))
    (wait,) = waits([_waiting("blob")], references, {})
    assert wait.awaited == ("busy",)
    assert "open request" in wait.reason


def test_the_number_of_awaited_tasks_is_bounded() -> None:
    """Of many tasks that may end a wait the first are named, and the number of the others."""
    (wait,) = waits([_waiting("blob")], [_reference(f"{n}", 2) for n in range(100)], {})
    assert len(wait.awaited) == 5
    assert "95 more" in wait.reason


def test_calls_without_objects_wait_for_a_node() -> None:
    """A call that watches nothing waits for another node, or for this one."""
    assert "another node" in waits([_waiting("", 1)], [], {})[0].reason
    assert "by itself" in waits([_waiting("")], [], {})[0].reason
    assert "nobody" in waits([_waiting("blob")], [], {})[0].reason
