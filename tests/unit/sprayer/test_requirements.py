"""Each requirement of the RFCs on translators has a state, and what is met has a test that exists.

``python -m tests.unit.sprayer.test_requirements`` writes ``docs/translation.md`` from ``requirements.toml``,
and its last section from ``tests/fuzz/differences.toml``.
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final, Literal

import msgspec
import pytest

from tests.fuzz.against_linux import differences

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parents[2] / "docs" / "translation.md"
STATES: Final = ("met", "by option", "not met", "not for us")
NUMBERS: Final = {"RFC 4787": 14, "RFC 5382": 10, "RFC 5508": 11, "RFC 6888": 15}
"""The number of requirements of the documents that count them."""
COLUMNS: Final = 100

INTRODUCTION: Final = """\
This page compares [network functions](sprayer.md) that translate addresses with the requirements of RFCs,
one by one. `python -m tests.unit.sprayer.test_requirements` writes it from
`tests/unit/sprayer/requirements.toml`. Tests are in the folder `tests/unit/sprayer`, and a test checks that
each of them exists.

The last section has the [differences from Linux](#differences-from-linux) that a comparison knows.

A requirement is `met`, met `by option` if a setting is needed for it, `not met`, or `not for us` if it asks
for nothing from such a function."""

COMPARISON: Final = """\
`make fuzz-linux` gives the same random datagrams to a function and to Linux: to nftables for `nat` and
`firewall`, and for `nat64` and `siit` to TAYGA, with nftables behind it. A receiver must get the same from
both ([results](../labs/benchmarks/results/fuzz-linux.md)), but for these differences. Those of `nat64` and
`siit` are differences from TAYGA and the kernel around it.

A function `passes` what Linux drops, or `drops` what Linux passes, if the datagram has one of the features,
by their names in `tests/fuzz/scapy_packets.py`."""


class Requirement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A requirement, its state, and the tests that show it."""

    number: str
    subject: str
    state: Literal["met", "by option", "not met", "not for us"]
    tests: tuple[str, ...] = ()
    note: str = ""


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An RFC, the functions that it concerns, and its requirements."""

    name: str
    title: str
    function: str
    requirements: tuple[Requirement, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    documents: tuple[Document, ...]


@cache
def documents() -> tuple[Document, ...]:
    """Return the documents with their requirements."""
    text = (HERE / "requirements.toml").read_text()
    return msgspec.convert(tomllib.loads(text), _File).documents


ALL: Final = [(row.name, requirement) for row in documents() for requirement in row.requirements]


@cache
def names_in(name: str) -> frozenset[str]:
    """Return the names of the tests of a module of this folder."""
    tree = ast.parse((HERE / f"{name}.py").read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def page() -> str:
    """Return the text of the page."""
    lines = ["# Requirements of address translation"]
    for part in INTRODUCTION.split("\n\n"):
        lines += ["", *textwrap.wrap(part, COLUMNS, break_on_hyphens=False)]
    lines += ["", f"| document | function | {' | '.join(STATES)} |", "|---|---|" + "--:|" * len(STATES)]
    for row in documents():
        counts = Counter(requirement.state for requirement in row.requirements)
        cells = " | ".join(str(counts[state]) for state in STATES)
        lines.append(f"| [{row.name}]({link(row.name)}), {row.title} | {row.function} | {cells} |")
    for row in documents():
        lines += [
            "",
            f"## {row.name}: {row.title}",
            "",
            "| number | requirement | state | shown by, or why |",
        ]
        lines.append("|---|---|---|---|")
        for requirement in row.requirements:
            shown = [f"`{test}`" for test in requirement.tests]
            reason = "; ".join([*([", ".join(shown)] if shown else []), *filter(None, [requirement.note])])
            lines.append(f"| {requirement.number} | {requirement.subject} | {requirement.state} | {reason} |")
    lines += ["", "## Differences from Linux"]
    for part in COMPARISON.split("\n\n"):
        lines += ["", *textwrap.wrap(part, COLUMNS, break_on_hyphens=False)]
    lines += ["", "| function | datagrams with | it | because |", "|---|---|---|---|"]
    for difference in differences():
        verdict = " or ".join(difference.verdict)
        names, features = ", ".join(difference.functions), ", ".join(difference.features)
        lines.append(f"| {names} | {features} | {verdict} | {difference.reason} |")
    return "\n".join(lines) + "\n"


def link(name: str) -> str:
    """Return the address of an RFC."""
    return f"https://www.rfc-editor.org/rfc/{name.lower().replace(' ', '')}"


@pytest.mark.parametrize(("name", "requirement"), ALL, ids=lambda value: str(getattr(value, "number", value)))
def test_tests_of_a_requirement_exist(name: str, requirement: Requirement) -> None:
    """What is met names tests, unless there is nothing to run; each is a test of this folder."""
    for test in requirement.tests:
        module, _, function = test.partition("::")
        assert function.startswith("test_")
        assert function in names_in(module), f"{name} {requirement.number}: {test}"
    if requirement.state in {"met", "by option"}:
        assert requirement.tests or requirement.note
    else:
        assert len(requirement.note.split()) > 1, f"{name} {requirement.number} has no reason"


@pytest.mark.parametrize(("name", "count"), NUMBERS.items())
def test_all_numbers_are_there(name: str, count: int) -> None:
    """The documents that number their requirements are complete."""
    (document,) = (row for row in documents() if row.name == name)
    numbers = {re.sub(r"[a-z]$", "", requirement.number) for requirement in document.requirements}
    assert numbers == {f"REQ-{number}" for number in range(1, count + 1)}


def test_the_page_shows_the_requirements() -> None:
    """The page is the one that is written from the file."""
    assert PAGE.read_text() == page(), "run python -m tests.unit.sprayer.test_requirements"


if __name__ == "__main__":
    PAGE.write_text(page())
