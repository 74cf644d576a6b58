from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from dios.wire.schema_words import fault_in_words


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    """A table within a table."""

    word: Annotated[str, msgspec.Meta(max_length=3)] = ""


class Table(msgspec.Struct, forbid_unknown_fields=True):
    """A table as users write them."""

    cpus: Annotated[float, msgspec.Meta(ge=0.5)]
    inner: list[Inner] = []
    kind: Literal["a", "b"] = "a"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "cpus is missing"),
        ({"cpus": "2"}, "cpus must be a number, not text"),
        ({"cpus": 0.25}, "cpus must be at least 0.5"),
        ({"cpus": 1, "cpu": 1}, "cpu is unknown"),
        ({"cpus": 1, "kind": "c"}, "kind cannot be 'c'"),
        ({"cpus": 1, "inner": {}}, "inner must be a list, not a table"),
        ({"cpus": 1, "inner": [{"word": "long"}]}, "inner[0].word must have at most 3 characters"),
        ({"cpus": 1, "inner": [{"sentence": ""}]}, "inner[0].sentence is unknown"),
        ([], "it must be a table, not a list"),
    ],
)
def test_a_fault_names_the_entry_and_the_rule(given: object, told: str) -> None:
    """Each kind of fault is a sentence about the entry that the user wrote."""
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(given, Table)
    assert fault_in_words(refused.value) == told
