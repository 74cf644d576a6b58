"""The attempts by calls find a node that breaks the rules, from every place in which they are made."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from pathlib import Path

import pytest

from dios.wire.types import Mode
from tests.security import test_escape_buffers, test_escape_names, test_escape_references
from tests.support.security.hostile_pair import Stage, open_stage
from tests.support.security.places import SESSION, SESSIONS, TASK, Place

WEAKENED = "tests.support.security.weakened_node"
FAMILIES: dict[str, Callable[[Stage], None]] = {
    "names": lambda stage: test_escape_names.test_a_name_opens_nothing(stage, "the-secrets"),
    "references": lambda stage: test_escape_references.test_a_number_is_no_reference(
        stage, "the-victims-exactly"
    ),
    "buffers": lambda stage: test_escape_buffers.test_buffers_of_another_task(
        stage, Mode.READ, "another-object"
    ),
}
"""One attempt of each file; what lets it through is the rule of that file alone."""
SUCCESSES = {
    "names": r"Reference\(",
    "references": r"ReadOnce\(.*data=b'what no other",
    "buffers": r"CommitRead\(.*Committed\(",
}
"""What the failures say: the name resolved, the secret was read, the buffer was committed."""
OTHERS = [pytest.param(place, marks=pytest.mark.extended) for place in (TASK, *SESSIONS) if place != SESSION]


@pytest.mark.parametrize("place", [SESSION, *OTHERS], ids=attrgetter("name"))
def test_a_node_without_its_rules_is_found(place: Place, tmp_path: Path) -> None:
    """On a node that takes groups, references and buffers of others for the caller's, an attempt succeeds."""
    with open_stage(tmp_path, place, module=WEAKENED) as stage:
        for family, attempt in FAMILIES.items():
            stage.begin()
            with pytest.raises(AssertionError, match=SUCCESSES[family]):
                attempt(stage)
