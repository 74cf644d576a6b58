"""Every field of an answer has the party that chose it, and what others may not see is replaced."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_type_hints

import pytest
from msgspec import Struct

from dios.core.model import disclosure, origins
from dios.core.model.origins import BLANKS, NODE, ORIGINS, Origin
from dios.errors import InvariantError

PAGE = (Path(__file__).parents[4] / "docs" / "labels.md").read_text()


@pytest.mark.parametrize("kind", ORIGINS)
def test_a_field_without_an_origin_is_an_error_at_import(kind: type[Struct]) -> None:
    """Whichever field of whichever answer has none, or two, or whichever answer has none: nothing starts."""
    table = origins._ORIGINS
    fields = " ".join(kind.__struct_fields__)
    first, _, others = fields.partition(" ")
    assert origins._complete({**table, kind: {NODE: fields}}).keys() == ORIGINS.keys()
    for wrong in ({NODE: others}, {NODE: fields, Origin.HIDDEN: first}, {NODE: f"{fields} added"}):
        with pytest.raises(InvariantError, match=f"of {kind.__name__} needs one origin"):
            origins._complete({**table, kind: wrong})
    with pytest.raises(InvariantError, match=f"{kind.__name__} is shown and has no origins"):
        origins._complete({other: fields for other, fields in table.items() if other is not kind})


@pytest.mark.parametrize("kind", BLANKS)
def test_a_hidden_field_without_a_value_for_others_is_an_error_at_import(kind: type[Struct]) -> None:
    """What is hidden is replaced, and nothing else."""
    others = {row: fields for row, fields in BLANKS.items() if row is not kind}
    hidden = set(BLANKS[kind])
    origins.require_all_hidden({**others, kind: hidden})
    for wrong in (*(hidden - {field} for field in hidden), hidden | {"added"}):
        with pytest.raises(InvariantError, match=f"the hidden fields of {kind.__name__}"):
            origins.require_all_hidden({**others, kind: wrong})


def test_the_page_has_every_origin() -> None:
    """docs/labels.md has all fields that are hidden or a signal, no others, and what each origin means."""
    shown = [Origin.HIDDEN, Origin.SIGNAL]
    rows = [
        f"| {' | '.join((kind.__name__, *(fields.get(origin, '') for origin in shown)))} |"
        for kind, fields in origins._ORIGINS.items()
        if any(origin in fields for origin in shown)
    ]
    table = PAGE.partition("| answer or part | hidden | signal |\n|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == rows, "the rows of the answers are:\n" + "\n".join(rows)
    assert all(f"*{origin.name.lower()}*: {origin.value}" in " ".join(PAGE.split()) for origin in Origin)


@pytest.mark.parametrize("kind", disclosure.LISTS)
def test_each_list_of_rows_is_blanked(kind: type[Struct]) -> None:
    """All fields of an answer that have rows about tasks are listed, and no others."""
    rows = {row.__name__ for row in BLANKS if "secrecy" in row.__struct_fields__}
    with_rows = {
        name for name, hint in get_type_hints(kind).items() if rows & set(re.findall(r"\w+", str(hint)))
    }
    assert with_rows == set(disclosure.LISTS[kind])
