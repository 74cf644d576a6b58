"""Each cell of the table of hostile nodes in docs/threat-model.md, attacked: a role gets that and no more.

A row without an attack, a role without a column and a cell without a word fail when the tests are collected.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from unittest.mock import ANY

import pytest

from dios import limits
from dios.core.calls import admission, delegation, groups, rights, run_orders
from dios.core.membership import member_table
from dios.core.remote import authority, granted_leases, keepers, lease_table, mandate_table, peers, proxies
from dios.core.remote.peers import Peer
from dios.core.step import Step
from dios.host.audit import signing
from dios.ids import NodeId
from dios.transport.identity import certificates, tokens
from dios.transport.identity.certificates import CertificateDetails
from dios.transport.identity.principals import PrincipalRegister
from dios.transport.identity.trust import Trust
from dios.transport.tcp import border, tls
from dios.wire import dcp
from dios.wire.node_roles import NodeRight, NodeRole
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


def _yes(*_: object, **__: object) -> bool:
    return True


def _no_reason(*_: object, **__: object) -> str:
    return ""


class _Check(NamedTuple):
    """A function that refuses an attack, and one that does not."""

    owner: object
    name: str
    broken: object


FRIEND: Final = NodeId(2)
_END: Final = lease_table.LeaseTable.end
_PUBLISHED: Final = proxies.published


def _published(step: Step, _: Peer, message: dcp.Published) -> None:
    """Believe a node what it says of the objects of a third one."""
    _PUBLISHED(step, step.require_cluster().peer(FRIEND), message)


def _villain_may(card: CertificateDetails, right: NodeRight) -> bool:
    """Let the hostile node do all that its role does not."""
    return card.name == "n3" or right in card.node_role.rights


_SIGNS: Final = (
    _Check(CertificateDetails, "may", _villain_may),
    _Check(certificates, "_room", lambda _: limits.CHAIN_CERTIFICATES_MAX),
)

BROKEN: Final[Mapping[str, tuple[_Check, ...]]] = {
    "use a mandate that names another node": (_Check(authority, "_require_for", _nothing),),
    "use a mandate of one user for another": (_Check(authority, "why_not", _no_reason),),
    "use a mandate for what it is not for": (_Check(authority, "why_not", _no_reason),),
    "use a mandate after its end, with a clock that is behind": (_Check(mandate_table, "is_timely", _yes),),
    "enrol users, or remove them from the register": (_Check(PrincipalRegister, "_check", _nothing),),
    "use a lent reference after its end, with a clock that is behind": (
        _Check(delegation, "end_of", lambda *_: 0),
    ),
    "be expected to schedule for other nodes": (_Check(peers, "has_right", _yes),),
    "forge or replace the kept head of another node's log": (_Check(signing, "digest_of", lambda _: ANY),),
    "change the list or records of an enrolled user elsewhere": (_Check(authority, "why_not", _no_reason),),
    "admit a machine": _SIGNS,
    "give itself another role": _SIGNS,
    "renew certificates": _SIGNS,
    "remove another node": (_Check(CertificateDetails, "may", _villain_may),),
    "undo its own removal": (_Check(Trust, "_why_refused", _no_reason),),
    "start limbo tasks elsewhere": (_Check(run_orders, "brand_for", lambda _step, _task, wanted: wanted),),
    "have an authority admit a machine by an invitation of its own": (
        _Check(tls, "for_another", _no_reason),
        _Check(tokens, "check", lambda *_: NodeRole.MEMBER),
        _Check(tokens, "use", _nothing),
    ),
    "state those of another node so that it lasts": (
        _Check(member_table.MemberTable, "_merge_own", _nothing),
    ),
    "end or forge leases between other nodes": (
        _Check(lease_table.LeaseTable, "end", lambda leases, _, target: _END(leases, FRIEND, target)),
    ),
    "change what others see of a third node's replica": (_Check(proxies, "published", _published),),
    "act for an enrolled user without a mandate": (_Check(authority, "require", _nothing),),
    "schedule for other nodes": (_Check(rights, "_why_not", lambda *_: ""),),
    "label and drain other nodes": (_Check(rights, "_why_not", lambda *_: ""),),
    "start limbo tasks where they are let in": (_Check(rights, "_why_not", lambda *_: ""),),
    "pass the quota of a user on one node": (_Check(admission, "require_quota", _nothing),),
    "get durable copies from other nodes": (_Check(keepers, "require", _nothing),),
    "destroy groups whose names follow from the secret": (_Check(groups, "_is_home", lambda *_: False),),
    "make a stranger the owner of a group": (_Check(groups, "_proven_owner", lambda _, group: group.owner),),
    "have a living node taken for dead": (_Check(member_table.MemberTable, "_is_believed", lambda *_: True),),
    "speak at the border of a trusted cluster": (_Check(border, "_require_border", _nothing),),
    "delay a write for longer": (_Check(granted_leases, "time_passed", _nothing),),
}
"""The checks without which each of these attempts succeeds for a runner."""


BY_AN_AUTHORITY: Final[Mapping[str, str]] = {
    # TLS refuses the machine that a runner has invited before the invitation is looked up.
    "have an authority admit a machine by an invitation of its own": "authority",
}
"""The columns of those that succeed for an authority only."""


def test_each_row_that_says_no_has_a_check() -> None:
    """So no attack is one that cannot succeed: those of the other rows do, with the roles that say yes."""
    assert {row.attempt for row in ROWS if row.cells["runner"] == "no"} == BROKEN.keys()


@pytest.mark.parametrize("attempt", BROKEN)
async def test_an_attack_notices_that_its_check_is_missing(
    attempt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack can succeed: that it does not is the work of the check."""
    column = BY_AN_AUTHORITY.get(attempt, "runner")
    assert not await succeeds(attempt, column, tmp_path / "whole")
    for check in BROKEN[attempt]:
        monkeypatch.setattr(check.owner, check.name, check.broken)
    assert await succeeds(attempt, column, tmp_path / "broken")


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
