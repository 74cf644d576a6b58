"""Sets of replicas that suffice to read the latest value, and to decide the next one."""

from __future__ import annotations

from itertools import combinations

import pytest

from dios.lib.replicated_record.frame import ZERO, Member, Value
from dios.lib.replicated_record.quorums import is_decided, is_latest


def value(members: range, former: range = range(0)) -> Value:
    """Return a value with members of these object ids."""
    groups = [tuple(Member(number, f"n{number}") for number in ids) for ids in (members, former)]
    return Value(ZERO, groups[0], groups[1], 0, 0, bytes(32), b"")


@pytest.mark.parametrize("number", range(1, 6))
def test_each_read_quorum_meets_each_decision(number: int) -> None:
    """Each read quorum meets each decision."""
    record = value(range(number))
    sets = [set(ids) for size in range(number + 1) for ids in combinations(range(number), size)]
    decisions = [ids for ids in sets if is_decided(record, ids, None)]
    readers = [ids for ids in sets if is_latest(record, ids, None)]
    assert min(map(len, decisions)) == number // 2 + 1
    assert min(map(len, readers)) == (number + 1) // 2
    assert all(ids & others for ids in decisions for others in [*decisions, *readers])


def test_members_that_change_need_majorities_of_both_sets() -> None:
    """Members that change need majorities of both sets."""
    record = value(range(1, 4), former=range(3, 6))
    assert is_decided(record, {1, 2, 3, 4}, None)
    assert not is_decided(record, {1, 2, 3}, None), "one of three former members"
    assert not is_decided(record, {3, 4, 5}, None), "one of three members"
    assert not is_latest(record, {1, 2}, None)


def test_members_that_exist_suffice_if_all_nodes_have_answered() -> None:
    """Members that exist suffice if all nodes have answered."""
    record = value(range(1, 4))
    assert not is_decided(record, {1}, None)
    assert not is_decided(record, {1}, {1, 2})
    assert is_decided(record, {1}, {1, 7})
    assert not is_latest(record, set(), {7}), "no member is left"
