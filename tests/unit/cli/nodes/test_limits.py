"""How use and limits are worded; what they are is the node's."""

from __future__ import annotations

import pytest

from dios.cli.nodes.limits import amount_text, bar_text, usage_lines, who_text
from dios.client.ops.usage import Usage
from dios.wire.types import Resource, Scope

HOUR_MS = 3_600_000


def usage(scope: Scope = Scope.TASK, subject: str = "0a0b", label: str = "", **numbers: int | None) -> Usage:
    """Use and limits: ``objects`` is what is used, ``objects_max`` the limit."""
    used = {resource: numbers.get(resource.name.lower()) or 0 for resource in Resource}
    limits = {resource: numbers.get(f"{resource.name.lower()}_max") for resource in Resource}
    return Usage(scope, subject, label, used, limits)


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        (Resource.OBJECTS, 12_345, "12,345"),
        (Resource.BYTES, 3 * 2**20, "3.0 MiB"),
        (Resource.MEMORY_BYTES, 2**33, "8.0 GiB"),
        (Resource.CPU_MS, 90_000, "1 min 30 s"),
        (Resource.CPU_MS, 10 * HOUR_MS, "10 h 00 min"),
        (Resource.TASKS, None, "none"),
    ],
)
def test_amounts_have_their_units(resource: Resource, amount: int | None, text: str) -> None:
    """Counts, sizes and times are told as people say them."""
    assert amount_text(resource, amount) == text


@pytest.mark.parametrize(
    ("used", "limit", "bar"),
    [
        (0, 100, "[          ]"),
        (1, 100, "[#         ]"),
        (50, 100, "[#####     ]"),
        (99, 100, "[######### ]"),
        (100, 100, "[##########]"),
        (300, 100, "[##########]"),
        (0, 0, "[##########]"),
    ],
)
def test_a_bar_is_never_wrong_at_its_ends(used: int, limit: int, bar: str) -> None:
    """Only nothing looks empty, and only what is full looks full."""
    assert bar_text(used, limit) == bar


def test_only_what_is_used_or_limited_is_shown() -> None:
    """The subject stands before its first line only; what is neither used nor limited has none."""
    rows = usage_lines("me", usage(objects=1, objects_max=4, tasks_max=0, bytes=5))
    assert [tuple(row.values())[:5] for row in rows] == [
        ("me", "objects", "1", "4", "25 %"),
        ("", "bytes", "5 B", "none", ""),
        ("", "tasks", "0", "0", "100 %"),
    ]
    assert usage_lines("me", usage()) == []


def test_a_line_is_named_as_it_can_be_set() -> None:
    """What stands in the first column is what `dios limits set` takes, and more for people behind it."""
    assert who_text(usage(Scope.PRINCIPAL, "uid:0"), {}) == "uid:0 (root)"
    assert who_text(usage(Scope.PRINCIPAL, "uid:4294967290"), {}) == "uid:4294967290"
    assert who_text(usage(Scope.PRINCIPAL, "other"), {}) == "other"
    assert who_text(usage(Scope.GROUP, "0a0b"), {"0a0b": "papers"}) == "group:papers"
    assert who_text(usage(Scope.GROUP, "0a0b"), {}) == "group:0a0b"
    assert who_text(usage(Scope.TASK, "0a0b", "job.py"), {}) == "task:0a0b job.py"
