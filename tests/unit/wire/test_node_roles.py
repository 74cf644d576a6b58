"""The roles of nodes: their words, their rights, and the page that shows them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dios.errors import InvalidError
from dios.wire.node_roles import (
    ROLE_WORDS,
    ROLES,
    NodeRight,
    NodeRole,
    has_right,
    may_be_chosen,
    refusal,
    roles_of,
)

PAGE = (Path(__file__).parents[3] / "docs" / "clusters.md").read_text()
RIGHTS_BY_ACT = {
    "start tasks, and use objects": NodeRight.NONE,
    "invite and admit machines": NodeRight.SIGN,
    "remove nodes": NodeRight.REMOVE,
    "drain and label other nodes": NodeRight.ADMINISTER,
    "schedule": NodeRight.SCHEDULE,
    "hold durable copies": NodeRight.KEEP,
    "open a border": NodeRight.BORDER,
}
"""The right of each row of the page, by the beginning of the row."""


def test_the_page_shows_the_rights_of_each_role() -> None:
    """The table of docs/clusters.md has a row for each right and a column for each role."""
    head, _, *lines = re.search(r"\| act of a node \|(?:.*\n\|)+.*", PAGE)[0].splitlines()  # type: ignore[index] # it is there
    assert tuple(cell.strip() for cell in head.strip("|").split("|")[1:]) == ROLE_WORDS
    assert {*RIGHTS_BY_ACT.values()} == {NodeRight.NONE, *NodeRight}
    for line, (act, right) in zip(lines, RIGHTS_BY_ACT.items(), strict=True):
        words, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        assert words.startswith(act)
        assert cells == ["yes" if right in row.rights else "no" for row in ROLES.values()]


@pytest.mark.parametrize("word", ROLE_WORDS)
def test_a_role_is_the_word_in_its_certificate(word: str) -> None:
    """Reading a word and writing the role give the same word, and each right is judged by the table."""
    role = roles_of(word)
    assert str(role) == word
    for right in NodeRight:
        assert has_right(word, right) is may_be_chosen(word, right) is (right in ROLES[role].rights)


def test_several_roles_are_the_union_of_their_rights() -> None:
    """In any order, and in the order of the table when they are written."""
    roles = roles_of("keeper,scheduler")
    assert roles == NodeRole.SCHEDULER | NodeRole.KEEPER
    assert str(roles) == "scheduler,keeper"
    assert roles.rights == NodeRight.SCHEDULE | NodeRight.KEEP
    assert roles.text == f"{ROLES[NodeRole.SCHEDULER].text}; {ROLES[NodeRole.KEEPER].text}"


@pytest.mark.parametrize(
    "text", ["", "boss", "Member", "member,", "worker,worker", "worker,keeper", "runner,border"]
)
def test_words_that_are_no_roles_are_refused(text: str) -> None:
    """Unknown words, a word twice, and a role whose rights the others have."""
    with pytest.raises(InvalidError, match="role"):
        roles_of(text)


def test_a_node_with_unknown_roles_is_chosen_and_has_no_right() -> None:
    """A node that was never connected is not left out, and nothing is done at its word."""
    assert all(may_be_chosen("", right) and not has_right("", right) for right in NodeRight)


def test_a_refusal_names_the_role_and_those_that_may() -> None:
    """The reader learns which node to ask."""
    assert refusal("n3", "runner", NodeRight.SCHEDULE) == (
        "n3 has the role runner and schedules for no other node. Nodes with one of these roles may: "
        "authority, member, scheduler"
    )
