"""The programs in the pages for Python programmers run as they stand, and print what the pages show."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.node.command_user import Person

pytestmark = pytest.mark.long

DOCS = Path(__file__).resolve().parents[2] / "docs"


class Block(NamedTuple):
    """A program of a page, and the output that stands below it."""

    code: str
    shown: str | None


def blocks(page: str) -> list[Block]:
    """Return the Python programs of a page."""
    text = (DOCS / f"{page}.md").read_text()
    matches = re.findall(r"^```python\n(.*?)^```$(?:\n\n```\n(.*?)^```$)?", text, re.MULTILINE | re.DOTALL)
    return [Block(code, shown or None) for code, shown in matches]


def commands_of(page: str) -> str:
    """Return the commands that a page has before its first program, or else those in its text for groups."""
    text = (DOCS / f"{page}.md").read_text()
    before = text.partition("```python\n")[0]
    typed = re.findall(r"^```\n(.*?)^```$", before, re.MULTILINE | re.DOTALL)[:1]
    return "\n".join(typed or re.findall(r"`(dios group create \w+)`", text))


def missing(code: str) -> list[str]:
    """Return the packages that a program imports and that are not installed."""
    imported = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.partition(".")[0])
    return [name for name in sorted(imported) if importlib.util.find_spec(name) is None]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Person]:
    """A user with a node, and no file of their own."""
    someone = Person(tmp_path)
    someone.types("dios-node start --data ./node0 --detach")
    yield someone
    someone.types("dios-node stop")


@pytest.mark.extended(keep=1)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["executor", "files"])
def test_the_programs_of_a_page_run(reader: Person, page: str) -> None:
    """Each program succeeds after those above it. One of a library that is not installed is compiled.

    Commands that create files or groups stand in the first block of commands of the page.
    """
    ran = 0
    commands = commands_of(page)
    if commands:
        done = reader.pastes(commands)
        assert done.returncode == 0, commands + done.stdout + done.stderr
    for number, (code, shown) in enumerate(blocks(page)):
        name = f"{page.replace('-', '_')}_{number}.py"
        if missing(code):
            assert "import dios" not in code
            compile(code, name, "exec")
            continue
        reader.writes(name, code)
        done = reader.pastes(f"{sys.executable} {name}")
        assert done.returncode == 0, code + done.stdout + done.stderr
        assert shown in {None, done.stdout}, code + done.stderr
        ran += 1
    assert ran
