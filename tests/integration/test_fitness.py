"""What a user sees of a node that cannot run pure tasks, and of one that can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.node.command_user import Person
from tests.support.node.confinement import mechanisms_or_skip
from tests.support.node.unconfined_node import unconfined_node


@pytest.fixture
def person(tmp_path: Path) -> Person:
    """A user who accepts no weaker sandbox."""
    someone = Person(tmp_path)
    del someone.environment["DIOS_ACCEPT_WEAKER_SANDBOX"]
    someone.writes("x.py", "print('ran')\n")
    return someone


def test_an_unfit_node_says_so_once_and_names_the_remedy(person: Person) -> None:
    """Its status, its health and the refusal of a run agree; nobody is told to weaken anything."""
    with unconfined_node(person.home / "n"):
        status = person.types("dios-node status --data n --fit", status=1).stdout
        doctor = person.types("dios doctor --data n").stdout
        refused = person.types("dios run x.py --node n", status=125).stderr
        person.types("dios-node status --data n")
    assert "refused: this machine cannot confine them: mount missing" in status
    assert "says of pure tasks: refused: this machine cannot confine them" in " ".join(doctor.split())
    assert "mount missing" in refused
    assert len(refused.splitlines()) <= 5
    assert "dios doctor" in refused
    assert "weaker" not in refused


def test_a_fit_node_says_so_from_its_start_on(person: Person) -> None:
    """The start waits for the answer, and health checks agree with it."""
    mechanisms_or_skip()
    try:
        started = person.types("dios-node start --data n --detach").stdout
        assert "confined" in started
        person.types("dios-node status --data n --fit")
    finally:
        person.types("dios-node stop --data n")
