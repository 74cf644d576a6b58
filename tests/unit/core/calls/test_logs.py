"""Claims about what is kept of what tasks wrote."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core import effects, events
from dios.core.model.names import log_name
from dios.ids import Name, PayloadId, Principal
from dios.wire import messages
from dios.wire.types import Cause, ObjectType, Persistence, Resource
from tests.support.core.cluster import Cluster, ClusterNode
from tests.support.core.harness import Client, Node


def _ends(node: Node, task: Client, written: int, payload: int = 7) -> None:
    node.step(events.TaskEnded(node.now, task.task, Cause.EXITED))
    node.step(events.LogLeft(node.now, task.task, PayloadId(payload), written))


def test_what_a_task_wrote_is_a_durable_object_of_its_principal() -> None:
    """A session finds the log under the name that follows from the task's."""
    node = Node()
    session = node.session()
    task = session.run()
    _ends(node, task, 12)
    (reference,) = node.session().lookup(log_name(Name(task.welcome.name)))
    assert (reference.type, reference.persistence, reference.size) == (
        ObjectType.DURABLE_BLOB,
        Persistence.DURABLE,
        12,
    )


def test_a_silent_task_leaves_none() -> None:
    """Nothing is kept of a task that wrote nothing."""
    node = Node()
    task = node.session().run()
    _ends(node, task, 0)
    assert node.session().lookup(log_name(Name(task.welcome.name))) == ()


def test_another_principal_finds_none() -> None:
    """Logs are in a group of the principal's own."""
    node = Node()
    task = node.session().run()
    _ends(node, task, 3)
    stranger = node.session(Principal("uid:2000"))
    assert stranger.lookup(log_name(Name(task.welcome.name))) == ()


def test_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of LOGS_KEPT logs and one more the oldest is gone, also when the store brought the rest back."""
    monkeypatch.setattr(limits, "LOGS_KEPT", 5)
    node = Node()
    session = node.session()
    first = session.run()
    _ends(node, first, 1)
    names = []
    for _ in range(limits.LOGS_KEPT):
        task = session.run()
        names.append(log_name(Name(task.welcome.name)))
        _ends(node, task, 1)
    assert session.lookup(log_name(Name(first.welcome.name))) == ()
    assert len(session.lookup(names[0])) == 1
    again = Node(9)
    again.step(events.Recovered(again.now, tuple(node.stored.values())))
    assert len(again.core.state.logs) == limits.LOGS_KEPT


def test_a_principal_with_very_many_ended_tasks_pushes_out_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tasks of one principal end, another's ended task, its recipe and its log are kept."""
    for bound in ("ENDED_TASKS_KEPT", "ENDED_TASKS_KEPT_MAX", "LOGS_KEPT", "LOGS_KEPT_MAX", "RECIPES_KEPT"):
        monkeypatch.setattr(limits, bound, 20)
    node = Node()
    victim, greedy = node.session(), node.session(Principal("uid:2000"))
    mine = victim.run()
    _ends(node, mine, 4)
    for _ in range(30):
        _ends(node, greedy.run(), 4)
    state = node.core.state
    assert mine.task in state.tasks
    assert victim.ask(messages.TaskDetail, messages.Describe(mine.reference.ref)).executable
    assert len(victim.lookup(log_name(Name(mine.welcome.name)))) == 1
    assert (len(state.ended), len(state.logs), len(state.recipes)) == (20, 20, 20)


def test_a_job_with_very_many_ended_tasks_pushes_out_no_other_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children and grandchildren of one job leave the ended tasks of the same user's other jobs."""
    monkeypatch.setattr(limits, "ENDED_TASKS_KEPT", 20)
    monkeypatch.setattr(limits, "LOGS_KEPT", 20)
    node = Node()
    session = node.session()
    mine = [session.run() for _ in range(5)]
    for task in mine:
        _ends(node, task, 4)
    greedy = session.run()
    child = greedy.run()
    for starter in (greedy, child):
        for _ in range(30):
            _ends(node, starter.run(), 4)
    assert all(task.task in node.core.state.tasks for task in mine)
    assert all(len(session.lookup(log_name(Name(task.welcome.name)))) == 1 for task in mine)


def test_without_room_the_task_ends_all_the_same() -> None:
    """A principal's limit takes the log, never the end of the task."""
    node = Node()
    session = node.session()
    task = session.run()
    bound = messages.Bound(
        Resource.OBJECTS, session.node.core.state.account_of(Principal("uid:1000")).used[0]
    )
    node.core.state.account_of(Principal("uid:1000")).bind((bound,))
    _ends(node, task, 5)
    assert session.lookup(log_name(Name(task.welcome.name))) == ()
    assert node.core.state.tasks[task.task].cause is Cause.EXITED


def test_a_log_is_with_who_started_the_task_too() -> None:
    """When the node that ran it is gone for good, what the task wrote is read from the parent's."""
    cluster = Cluster()
    here, there, _ = cluster.nodes
    session = cluster.session(here)
    program = session.create(ObjectType.SHMEM_BLOB, data=b"pass")
    seq = session.send(messages.Run(program.reference.ref, host="n2"))
    cluster.settle()
    (child,) = cluster.start_spawned()
    assert isinstance(cluster.wait(session, seq), messages.Created)
    _wrote(there, child, b"what it said")
    cluster.settle()
    cluster.part(here, there)
    cluster.advance(3_000)
    answer = cluster.call(session, messages.Lookup(log_name(Name(child.welcome.name))))
    assert isinstance(answer, messages.References)
    (reference,) = answer.references
    assert here.contents[reference.object] == b"what it said"


def _wrote(node: ClusterNode, child: Client, data: bytes) -> None:
    node.payload += 1
    node.payloads[node.payload] = data
    _ends(node, child, len(data), node.payload)
    assert any(isinstance(effect, effects.ApplyWrite) for effect in node.outcome.after)
