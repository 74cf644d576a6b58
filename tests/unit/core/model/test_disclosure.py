"""Every field of an answer is chosen by the node, or is shown to readers with the label alone."""

from __future__ import annotations

import re
from typing import get_args, get_type_hints

import pytest
from msgspec import Struct

from dios.core.model import disclosure
from dios.wire import messages

BY_NODE: dict[type[Struct], str] = {
    messages.TaskRow: "name fingerprint state brand principal pid started_ns ended_ns cause parent node "
    "leave_ns secrecy",
    messages.LimitRow: "scope subject secrecy",
    messages.Submission: "id fingerprint principal waited_ms node pure work secrecy",
    messages.Occupant: "id fingerprint principal state pid age_ms cpu_ms memory_bytes moving "
    "devices processors work secrecy",
    messages.KeptRoom: "submission node in_ms waited_ms work secrecy",
}
"""The fields of rows about tasks that nodes choose; ``work`` is blanked in part."""

NEEDS = (
    "cpus_milli memory_bytes disk_io network priority deadline_ms interference service restartable job gang "
    "tasks affinity near constraints reservation pinned best_effort grace_ms devices threads job_minimum "
    "job_maximum time_ms"
)
"""The fields of a run by which a scheduler finds its place."""

WITHOUT_OTHERS: dict[type[Struct], str] = {
    messages.Failure: "says why the caller's own call failed",
    messages.Done: "counts what the call did",
    messages.Created: "the caller's own new object",
    messages.References: "objects that the caller may find, whose labels nobody coins",
    messages.Buffer: "bytes, after the rule OBSERVE",
    messages.Committed: "versions of an object that the caller holds",
    messages.Selected: "which of the caller's references is ready",
    messages.Attached: "a ring, after the rule ATTACH",
    messages.Info: "counts of the node",
    messages.TaskDetail: "a task, after the rule OBSERVE",
    messages.Nodes: "nodes, which no labelled task may change",
    messages.Placed: "the node's reasons",
    messages.Advice: "of the coordinator, which no labelled task may ask",
    messages.Metered: "bytes that principals moved",
    messages.TableRows: "for the nodes' own user, not for tasks of a node with labels",
    messages.Results: "one of the other answers for each call",
    messages.Welcome: "what the parent chose for the caller itself, which has its label",
}
"""The answers that need no blank: why they show nothing that a labelled task chose for others."""


def test_each_field_of_a_row_has_its_rule() -> None:
    """A new field of a row about a task is chosen by the node, or blank for others."""
    assert BY_NODE.keys() == disclosure.CHOSEN.keys()
    for kind, chosen in disclosure.CHOSEN.items():
        assert set(kind.__struct_fields__) == {*chosen, *BY_NODE[kind].split()}, kind
    assert set(messages.Work.__struct_fields__) == {*disclosure._OF_WORK, *NEEDS.split()}


def test_each_answer_has_its_rule() -> None:
    """A new kind of answer has rows that are blanked, or a reason to need no blank."""
    assert set(get_args(messages.AnyResult)) == disclosure.LISTS.keys() | WITHOUT_OTHERS.keys()


@pytest.mark.parametrize("kind", disclosure.LISTS)
def test_each_list_of_rows_is_blanked(kind: type[Struct]) -> None:
    """All fields of an answer that have rows about tasks are listed, and no others."""
    rows = {row.__name__ for row in disclosure.CHOSEN}
    with_rows = {
        name for name, hint in get_type_hints(kind).items() if rows & set(re.findall(r"\w+", str(hint)))
    }
    assert with_rows == set(disclosure.LISTS[kind])
