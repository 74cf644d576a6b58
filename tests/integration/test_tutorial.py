"""The tutorial, typed in its order in an empty directory."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.docs.typed_page import SERVER, blocks, processes_in, type_page
from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until

pytestmark = pytest.mark.long

TUTORIAL = (Path(__file__).resolve().parents[2] / "docs" / "tutorial.md").read_text()
MISSING = [name for name in ("numba", "fsspec", "nicegui") if importlib.util.find_spec(name) is None]


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Person]:
    """A user with nothing but a home directory; whatever runs there is stopped at the end."""
    someone = Person(tmp_path)
    del someone.environment["DIOS_COORDINATOR"]
    yield someone
    someone.pastes("dios down; dios-node stop")


@pytest.mark.skipif(bool(MISSING), reason=f"the tutorial needs these packages: {', '.join(MISSING)}")
@pytest.mark.timeout(600)
def test_the_tutorial_works_as_typed(learner: Person) -> None:
    """Each step succeeds after those above it and prints what is shown; the dashboard has a page."""
    outputs = type_page(learner, TUTORIAL)
    typed = [block.text for block in blocks(TUTORIAL) if block.language == "sh"]
    assert "<title>" in outputs[next(at for at, text in enumerate(typed) if text.startswith(SERVER))]
    wait_until(lambda: not processes_in(learner.home), "nothing of the tutorial runs any more", 60)
