"""Rows as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from msgspec import UNSET, UnsetType, field

from dios.cli.common.failures import Failures
from dios.cli.common.output import Cells, Number
from dios.cli.common.results import OutputOptions
from dios.cli.common.rows import Row


class State(Enum):
    """A state of a node."""

    ALIVE = 1


class NodeRow(Row, kw_only=True):
    """A row."""

    name: str
    state: str
    began_ns: int = field(name="began")
    places: list[str]
    note: str | UnsetType = UNSET


NODE = SimpleNamespace(state=State.ALIVE, began_ns=5, places=(Path("/a"),))
ROW = NodeRow.of(NODE, name="n1")


def cells(row: NodeRow) -> Cells:
    """Return the line of a row."""
    return {"NAME": row.name, "BEGAN": row.began_ns, "SIZE": Number("2 B"), "NOTE": row.note or None}


def test_a_row_takes_what_it_is_not_given_from_a_source(capsys: pytest.CaptureFixture[str]) -> None:
    """An enumeration's member is its name, a path is text, and a field without a value is left out."""
    OutputOptions(as_json=True).print_row(ROW)
    assert json.loads(capsys.readouterr().out) == {
        "name": "n1",
        "state": "alive",
        "began": 5,
        "places": ["/a"],
    }


def test_numbers_are_at_the_right_and_nothing_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    """A table takes its columns from the first line, and notices follow on standard error."""
    rows = [NodeRow.of(NODE, name="n1", note=""), NodeRow.of(NODE, name="node2", began_ns=70, note="x")]
    OutputOptions().print_rows(rows, cells, ["that is all"])
    written = capsys.readouterr()
    assert written.out.splitlines() == [
        "NAME   BEGAN  SIZE  NOTE",
        "n1         5   2 B  -",
        "node2     70   2 B  x",
    ]
    assert written.err == "that is all\n"


def test_facts_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Facts are lines of text, and a notice follows them."""
    OutputOptions().print_row(ROW, "next: look", facts={"node": "n1", "rack": None, "tasks": 2})
    assert capsys.readouterr() == ("node   n1\ntasks  2\n", "next: look\n")


@pytest.mark.parametrize("as_json", [True, False])
def test_what_fails_while_rows_are_made_is_reported(
    capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    """A failure of the last row is in the JSON and on standard error, and ends the command with status 1."""
    failures = Failures("not listed")

    def rows() -> Iterator[NodeRow]:
        yield ROW
        failures.note("papers", "it is damaged")

    with pytest.raises(typer.Exit) as ended:
        OutputOptions(as_json=as_json).print_rows(rows(), cells, failures=failures)
    written = capsys.readouterr()
    assert ended.value.exit_code == 1
    assert written.err == "not listed: papers: it is damaged\n"
    if as_json:
        assert json.loads(written.out)[1:] == [{"path": "papers", "failure": "it is damaged"}]


def test_an_empty_list_has_a_notice(capsys: pytest.CaptureFixture[str]) -> None:
    """Instead of an empty table there is a line; JSON is an empty list."""
    OutputOptions().print_rows([], cells, ["not this"], empty="there is nothing", remarks=["but this"])
    assert capsys.readouterr() == ("", "there is nothing\nbut this\n")
    OutputOptions(as_json=True).print_rows([], cells, empty="there is nothing")
    assert capsys.readouterr() == ("[]\n", "")
