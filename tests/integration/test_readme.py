"""The README, typed as a newcomer would: in its order, in an empty directory."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docs.typed_page import blocks, processes_in, type_page
from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


@pytest.fixture
def newcomer(tmp_path: Path) -> Iterator[Person]:
    """A user with nothing but a home directory; whatever runs there is stopped at the end."""
    someone = Person(tmp_path)
    someone.environment["DIOS_POOL_SIZE"] = "1"
    del someone.environment["DIOS_COORDINATOR"]
    yield someone
    someone.pastes("dios down; dios-node stop")


@pytest.mark.timeout(600)
def test_the_readme_works_as_typed(newcomer: Person) -> None:
    """Each command succeeds after those above it, prints what is shown, and nothing runs at the end."""
    outputs = type_page(newcomer, README)
    assert len(outputs) == sum(block.language == "sh" for block in blocks(README))
    wait_until(lambda: not processes_in(newcomer.home), "nothing of the README runs any more", 60)


def test_the_install_line_names_extras_that_exist() -> None:
    """The line installs this clone, with extras of this clone."""
    extras = re.findall(r"^pip install '\.\[(.*)\]'$", README, re.MULTILINE)
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras
    assert {name for line in extras for name in line.split(",")} <= set(known)
