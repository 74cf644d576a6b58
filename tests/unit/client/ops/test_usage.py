"""What both faces make of limits, retirement and expiry, against a node that answers as told."""

from __future__ import annotations

import time

import pytest
from msgspec.structs import replace

from dios.client.ops.status import Retired
from dios.errors import Code, InvalidError, LimitError
from dios.wire import messages
from dios.wire.codec import encode_event
from dios.wire.messages import AnyCall, AnyResult
from dios.wire.types import Flag, ObjectType, Resource, Scope
from tests.support.client.fake_node import FakeNode, reference

ROW = messages.LimitRow(Scope.TASK, "0a0b", "job", tuple(range(len(Resource))), (None,) * len(Resource))


def asked(*answers: AnyResult) -> tuple[FakeNode, list[AnyCall]]:
    """A node that gives these answers, and the calls that it was made."""
    calls: list[AnyCall] = []
    left = list(answers)

    def script(call: AnyCall) -> AnyResult:
        calls.append(call)
        return left.pop(0)

    return FakeNode(script), calls


def test_a_limit_is_its_own_exception() -> None:
    """EDQUOT is a LimitError, which a program can tell from a lack of rights and of memory."""
    with FakeNode(lambda _: messages.Failure(int(Code.EDQUOT), "enough", "")) as fake:
        node = fake.connect()
        with pytest.raises(LimitError, match="enough"):
            node.create(ObjectType.SHMEM_BLOB)


@pytest.mark.parametrize("everyone", [False, True])
def test_retire_says_from_whom(*, everyone: bool) -> None:
    """One call, which says whether everybody's are meant; its answer is how many."""
    node, calls = asked(messages.Done(3))
    with node as fake:
        assert fake.connect().handle(reference(9)).retire(everyone=everyone) == 3
    assert calls == [messages.Retire(9, int(Flag.EVERYONE) if everyone else 0)]


def test_seconds_are_sent_as_a_lifetime() -> None:
    """Seconds of delegation and of what is handed at start become nanoseconds; none at all becomes 0."""
    node, calls = asked(messages.Done(1), messages.Done(1))
    with node as fake:
        connected = fake.connect()
        blob, task = connected.handle(reference(9)), connected.handle(reference(11, ObjectType.TASK))
        blob.delegate(task, "read", expires=1.5)
        blob.delegate(task, "read")
        assert blob.restrict("read", expires=2).message().lifetime_ns == 2_000_000_000
        assert blob.restrict("read").message().lifetime_ns == 0
    assert [call.lifetime_ns for call in calls if isinstance(call, messages.Copy)] == [1_500_000_000, 0]


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_delegation_that_is_over_before_it_began_is_refused(seconds: float) -> None:
    """No time, less than none, and no end said as a number are refused before anything is sent."""
    node, calls = asked()
    with node as fake:
        blob = fake.connect().handle(reference(9))
        with pytest.raises(InvalidError, match="cannot expire after"):
            blob.restrict("read", expires=seconds)
    assert calls == []


def test_a_handle_says_how_long_it_lasts() -> None:
    """None for ever, the seconds that are left, and never less than 0."""
    node, _ = asked()
    with node as fake:
        connected = fake.connect()
        ends = (0, time.time_ns() + 10**12, 1)
        forever, long, over = (
            connected.handle(replace(reference(9), expires_ns=end)).expires for end in ends
        )
    assert forever is None
    assert long is not None
    assert 900 < long <= 1000
    assert over == 0


def test_what_was_taken_back_is_an_event() -> None:
    """The event names the reference by its number, its label and its fingerprint, and why."""
    data = encode_event(messages.Retired(9, 1009, "0a0b", "text", expired=True))
    node, _ = asked(messages.Buffer(0, len(data), 1, 0, data=data))
    with node as fake:
        assert fake.connect().next_event() == Retired(9, 1009, "0a0b", "text", expired=True)


def test_a_subject_is_a_user_a_task_or_a_group() -> None:
    """Text is a principal, a handle of a task or group itself; words become resources, None lifts."""
    rows = messages.LimitRows((ROW,))
    node, calls = asked(rows, rows, rows)
    with node as fake:
        connected = fake.connect()
        (usage,) = connected.set_limits("uid:7", objects=5, cpu_ms=None)
        connected.set_limits(connected.handle(reference(9, ObjectType.TASK)), tasks=1)
        connected.set_limits(connected.handle(reference(11, ObjectType.GROUP)), tasks=1)
    assert usage.used == dict(zip(Resource, range(len(Resource)), strict=True))
    assert calls == [
        messages.SetLimits(
            Scope.PRINCIPAL,
            (messages.Bound(Resource.OBJECTS, 5), messages.Bound(Resource.CPU_MS, None)),
            principal="uid:7",
        ),
        messages.SetLimits(Scope.TASK, (messages.Bound(Resource.TASKS, 1),), 9),
        messages.SetLimits(Scope.GROUP, (messages.Bound(Resource.TASKS, 1),), 11),
    ]


def test_a_mistake_in_limits_is_told_before_it_is_sent() -> None:
    """No limit, a misspelled one, and an object that has none are refused with what was meant."""
    node, calls = asked()
    with node as fake:
        connected = fake.connect()
        for subject, words, says in (
            ("uid:7", {}, "known: objects"),
            ("uid:7", {"objecte": 3}, "did you mean objects"),
            (connected.handle(reference(9)), {"objects": 3}, "SHMEM_BLOB has no limits"),
        ):
            with pytest.raises(InvalidError, match=says):
                connected.set_limits(subject, **words)
    assert calls == []


def test_a_run_needs_a_program_or_a_task() -> None:
    """Neither is told before anything is sent; a task alone is sent with no program."""
    node, calls = asked(messages.Created(b"n" * 32, reference(12, ObjectType.TASK)))
    with node as fake:
        connected = fake.connect()
        with pytest.raises(InvalidError, match="give a program"):
            connected.run()
        connected.run(like=connected.handle(reference(9, ObjectType.TASK)), detach=True)
    assert calls == [messages.Run(0, like=9)]
