"""Each cell of the table of hostile nodes in docs/threat-model.md, attacked: a role gets that and no more.

A row without an attack, a role without a column and a cell without a word fail when the tests are collected.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from dios.core.calls import admission, groups, rights
from dios.core.membership import member_table
from dios.core.remote import authority, granted_leases, keepers
from dios.transport.identity import certificates
from dios.transport.tcp import border
from tests.support.security.hostile_attacks import ATTACKS, COLUMNS, succeeds

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "threat-model.md").read_text()
HEAD: Final = "| resource or lie | attempt |"
SUITES: Final = (
    "test_hostile_node.py",
    "test_hostile_node_wire.py",
    "test_hostile_member.py",
    "test_joining.py",
    "test_kept_replicas_of_others.py",
    "test_mandates.py",
    "test_roles.py",
    "test_workers.py",
)
"""The suites of attacks by nodes that are not cells of the table."""


class Row(NamedTuple):
    """An attempt on a resource, the words of its cells by column, and further tests that attack it."""

    resource: str
    attempt: str
    cells: Mapping[str, str]
    tests: tuple[str, ...]


def rows() -> list[Row]:
    """Return the table of the page. Raise ValueError if it, the attacks and the roles do not agree."""
    head, _, *lines = (HEAD + PAGE.partition(HEAD)[2]).partition("\n\n")[0].splitlines()
    columns = [cell.strip() for cell in head.strip("|").split("|")][2:-1]
    if tuple(columns) != COLUMNS:
        raise ValueError(f"the columns of the table are {columns}, and the roles {COLUMNS}")
    table = []
    for line in lines:
        resource, attempt, *words, tests = (cell.strip() for cell in line.strip("|").split("|"))
        if len(words) != len(columns) or not set(words) <= {"yes", "no"}:
            raise ValueError(f"a cell of {attempt!r} says neither yes nor no")
        named = tuple(re.findall(r"`(tests/[\w/.]+(?:::\w+)?)`", tests))
        table.append(Row(resource, attempt, dict(zip(columns, words, strict=True)), named))
    missing = {row.attempt for row in table} ^ ATTACKS.keys()
    if missing or len({row.attempt for row in table}) < len(table):
        raise ValueError(f"these rows have no attack, or these attacks no row: {sorted(missing)}")
    return table


ROWS: Final = rows()
CELLS: Final = [
    pytest.param(row.attempt, column, word, id=f"{column}: {row.attempt}")
    for row in ROWS
    for column, word in row.cells.items()
]


@pytest.mark.parametrize(("attempt", "column", "word"), CELLS)
async def test_a_role_gets_what_its_cell_says_and_no_more(
    attempt: str, column: str, word: str, tmp_path: Path
) -> None:
    """The attack of the row succeeds where the page says yes, and nowhere else."""
    assert await succeeds(attempt, column, tmp_path) is (word == "yes")


def _nothing(*_: object, **__: object) -> None:
    """Check nothing."""


BROKEN: Final[Mapping[str, tuple[object, str, object]]] = {
    "act for an enrolled user without a mandate": (authority, "require", _nothing),
    "schedule for other nodes": (rights, "_why_not", lambda *_: ""),
    "label and drain other nodes": (rights, "_why_not", lambda *_: ""),
    "start limbo tasks where they are let in": (rights, "_why_not", lambda *_: ""),
    "pass the quota of a user on one node": (admission, "require_quota", _nothing),
    "get durable copies from other nodes": (keepers, "require", _nothing),
    "destroy groups whose names follow from the secret": (groups, "_is_home", lambda *_: False),
    "make a stranger the owner of a group": (groups, "_proven_owner", lambda _, group: group.owner),
    "have a living node taken for dead": (member_table.MemberTable, "_is_believed", lambda *_: True),
    "speak at the border of a trusted cluster": (border, "_require_border", _nothing),
    "delay a write for longer": (granted_leases, "time_passed", _nothing),
    "invite a machine": (certificates, "_room", lambda _: 1),
}
"""A check without which each of these attempts succeeds for a runner."""


@pytest.mark.parametrize("attempt", BROKEN)
async def test_an_attack_notices_that_its_check_is_missing(
    attempt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack can succeed: that it does not is the work of the check."""
    owner, name, broken = BROKEN[attempt]
    assert not await succeeds(attempt, "runner", tmp_path / "whole")
    monkeypatch.setattr(owner, name, broken)
    assert await succeeds(attempt, "runner", tmp_path / "broken")


def test_the_suites_of_hostile_nodes_are_in_the_table() -> None:
    """Each of their tests stands in a row; what a row names exists."""
    named = {test for row in ROWS for test in row.tests}
    tests = {
        f"tests/security/{suite}::{function.name}"
        for suite in SUITES
        for function in ast.parse((ROOT / "tests" / "security" / suite).read_text()).body
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name.startswith("test_")
    }
    whole = {test for test in tests if test.partition("::")[0] in named}
    assert not {test for test in named if "::" in test} - tests
    assert not tests - named - whole
