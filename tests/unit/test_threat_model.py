"""The threat model is complete: each claim has a test that exists, each test of security its claim."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from dios.host.confinement.mechanisms import all_unknown
from dios.node.doctor.diagnosis import examine
from dios.node.doctor.finding import DoctorLevel
from dios.node.doctor.promises import promises

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text()
PROMISED = PAGE.partition("## Promises")[2].partition("## What is not promised")[0]
CLAIMS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PROMISED.splitlines()
    if line.startswith("| ") and not line.startswith("| claim")
]
TEST = re.compile(r"`(tests/[\w/.]+)(?:::(\w+))?`")


def names_of_tests(path: Path) -> set[str]:
    """Return the names of the tests in a file, hypothesis machines included."""
    tests: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign):
            names = [node.name] if not isinstance(node, ast.Assign) else [ast.unparse(node.targets[0])]
            tests.update(name for name in names if re.match(r"test_|Test", name))
    return tests


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim[0][:60])
def test_a_claim_has_tests_that_exist(claim: list[str]) -> None:
    """Each promise names its mechanism, and tests that exist."""
    assert len(claim) == 5
    assert claim[1]
    named = TEST.findall(claim[2])
    assert named, "no test tries to break it"
    for file, test in named:
        tests = names_of_tests(ROOT / file)
        assert tests, f"{file} has no tests"
        assert not test or test in tests, f"{file} has no {test}"


def test_the_tests_of_security_have_their_claims() -> None:
    """Every file of tests/security is named on the page."""
    files = {path.name for path in (ROOT / "tests" / "security").glob("test_*.py")}
    assert files
    assert {name for name in files if name not in PAGE} == set()


def falls_away(needs: tuple[str, ...], without: Mapping[str, str]) -> str:
    """Return the last cell of a row."""
    parts = [f"all of it without {' or '.join(f'`{name}`' for name in needs)}"] if needs else []
    parts += [f"without `{name}`: {text}" for name, text in without.items()]
    return "; ".join(parts) or "-"


def test_the_doctor_knows_the_rows_of_the_page() -> None:
    """``dios doctor`` reads the claims of the page, and what is left or falls away, as they are there."""
    page = [(re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", row[0]), *row[3:]) for row in CLAIMS]
    table = [
        (promise.claim, promise.left or "-", falls_away(promise.needs, promise.without))
        for promise in promises()
    ]
    assert [(claim, re.sub(r"[*`]", "", left), rest) for claim, left, rest in page] == table


def test_the_mechanisms_of_the_page_are_those_that_the_doctor_knows() -> None:
    """No row depends on a mechanism that the doctor would always take for missing."""
    known = {*all_unknown(), "landlock_net", "landlock_scope", "store", "daemon share", "daemon slice"}
    assert {name for promise in promises() for name in (*promise.needs, *promise.without)} <= known


def test_a_page_that_cannot_be_read_takes_nothing_else_from_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is missing, cut or malformed is a finding of its own."""
    cut = tmp_path / "cut.md"
    for content in (b"# no promises", b"\n## Promises\n\n| a | b |\n", b"\xff"):
        cut.write_bytes(content)
        monkeypatch.setattr("dios.node.doctor.promises._PAGES", (cut,))
        diagnosis = examine(tmp_path, mechanisms=all_unknown())
        assert diagnosis.guarantees == ()
        (unread,) = (finding for finding in diagnosis.findings if finding.name == "promises")
        assert unread.level is DoctorLevel.MISSING
        assert "install it again" in unread.detail
