from __future__ import annotations

import pytest

from dios.errors import InvalidError
from dios.node.limit_text import WORDS, bounds_of, limits_of_run, read_bounds
from dios.wire.messages import Bound, Limits
from dios.wire.types import Resource


def test_every_resource_has_a_word() -> None:
    """Whatever can be limited can be written."""
    assert sorted(WORDS.values()) == sorted(Resource)


@pytest.mark.parametrize(
    ("given", "resource", "value"),
    [
        ("objects=1_000", Resource.OBJECTS, 1000),
        ("bytes=1GiB", Resource.BYTES, 2**30),
        ("bytes = 3 KiB", Resource.BYTES, 3072),
        ("MEMORY=7", Resource.MEMORY_BYTES, 7),
        ("cpu=250ms", Resource.CPU_MS, 250),
        ("cpu=90s", Resource.CPU_MS, 90_000),
        ("cpu=5 min", Resource.CPU_MS, 300_000),
        ("cpu=10h", Resource.CPU_MS, 36_000_000),
        ("cpu=2d", Resource.CPU_MS, 172_800_000),
        ("tasks=0", Resource.TASKS, 0),
        ("requests=None", Resource.REQUESTS, None),
        ({"references": 5}, Resource.REFERENCES, 5),
        ({"bytes": "2 MiB"}, Resource.BYTES, 2**21),
        ({"bytes": 17}, Resource.BYTES, 17),
    ],
)
def test_a_limit_is_read_as_it_is_written(given: object, resource: Resource, value: int | None) -> None:
    """Numbers, sizes, times and none, in a text or a table, are what a person means by them."""
    assert read_bounds(given) == (Bound(resource, value),)


def test_many_limits_stand_in_one_text() -> None:
    """Limits are parted by space or comma, also where a value has a space of its own."""
    wanted = (Bound(Resource.OBJECTS, 3), Bound(Resource.BYTES, 1024), Bound(Resource.TASKS, None))
    assert read_bounds("objects=3, bytes=1 KiB  tasks=none") == wanted
    assert read_bounds("") == ()
    assert bounds_of(["objects=3", "bytes=1", "KiB", "tasks=none"]) == wanted


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("objecte=3", "did you mean objects?"),
        ("zzzz=3", "known: objects, bytes"),
        ("objects", "Write it like objects=1000"),
        ("objects=many", "objects must be a whole number"),
        ("objects=3KiB", "objects must be a whole number"),
        ("objects=-1", "objects must be a whole number"),
        ("bytes=1 GB", "bytes must be bytes, or a size like"),
        ("cpu=10", "cpu must be a time with its unit"),
        ({"cpu": 10}, "cpu must be a time with its unit"),
        ({"tasks": True}, "tasks must be a whole number"),
        ({"tasks": 2.5}, "tasks must be a whole number"),
        ("tasks=99999999999999999999", "tasks must be smaller than"),
        ("tasks=1 tasks=2", "given twice"),
        (7, "a table, or text like"),
    ],
)
def test_a_mistake_is_told_with_what_was_meant(given: object, says: str) -> None:
    """Each mistake has a sentence that names the word and what would be right."""
    with pytest.raises(InvalidError) as caught:
        read_bounds(given)
    assert says in caught.value.message


def test_a_command_without_limits_is_told_how() -> None:
    """No words at all are answered with an example."""
    with pytest.raises(InvalidError, match="objects=1000"):
        bounds_of([])


def test_a_run_call_holds_every_limit() -> None:
    """Each word becomes its own field, beside what the process itself may use; none and 0 are refused."""
    words = ["objects=1 bytes=2", "references=3", "requests=4", "tasks=5", "cpu=6ms", "memory=7"]
    assert limits_of_run(words, memory_bytes=8, cpu_ms=9) == Limits(8, 9, 0, 1, 2, 3, 4, 5, 6, 7)
    for word in ("tasks=0", "tasks=none"):
        with pytest.raises(InvalidError, match="Leave the limit out"):
            limits_of_run([word])
