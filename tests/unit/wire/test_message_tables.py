"""The tables of calls and of requests are complete: what is missing in one is an error at import."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dios.errors import InvariantError
from dios.wire import call_table, dcp, dcp_table
from dios.wire.call_table import CALLS
from dios.wire.dcp_table import REQUESTS, for_each_request
from tests.support.wire import descriptions as described

PAGE = (Path(__file__).parents[3] / "docs" / "calls.md").read_text()
TABLES = {"CallRow": call_table, "RequestRow": dcp_table}
ROWS = {"CallRow": len(CALLS), "RequestRow": len(REQUESTS)}
COLUMNS = {"CallRow": len(call_table.CallRow._fields), "RequestRow": len(dcp_table.RequestRow._fields)}


def _parsed(row: str) -> ast.Module:
    return ast.parse(Path(str(TABLES[row].__file__)).read_text())


def _rows(tree: ast.Module, row: str) -> list[ast.Call]:
    """The rows in the source of the table."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == row
    ]


def _import(tree: ast.Module) -> None:
    """Execute a changed source of a table, as its import would."""
    exec(compile(tree, "table.py", "exec"), {"__name__": "dios.wire.changed_table"})  # noqa: S102 - our own


@pytest.mark.parametrize("row", TABLES)
def test_the_source_as_it_is_can_be_imported(row: str) -> None:
    """Otherwise the errors of the other tests would mean nothing."""
    tree = _parsed(row)
    assert [len(cells.args) for cells in _rows(tree, row)] == [COLUMNS[row]] * ROWS[row]
    _import(tree)


@pytest.mark.parametrize(
    ("row", "column"),
    [(row, column) for row in TABLES for column in range(COLUMNS[row])],
)
def test_a_row_without_a_cell_is_an_error_at_import(row: str, column: int) -> None:
    """Whichever cell of whichever row is missing, nothing starts."""
    for place in range(ROWS[row]):
        tree = _parsed(row)
        del _rows(tree, row)[place].args[column]
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            _import(tree)


def _cell(tree: ast.Module, row: str, message: str, column: int, value: str | None) -> None:
    cells = next(cells for cells in _rows(tree, row) if ast.unparse(cells.args[0]) == message)
    cells.args[column] = ast.copy_location(ast.Constant(value), cells)


@pytest.mark.parametrize(
    ("row", "message", "column", "value"),
    [
        ("CallRow", "c.WriteOnce", 1, None),  # its rules need a reference
        ("CallRow", "s.Place", 1, "reference"),  # which is no field of it
        ("RequestRow", "dcp.Release", 2, None),  # it has no call whose rule holds
        ("RequestRow", "dcp.Forward", 1, "(r.Done,)"),  # its call has them
    ],
)
def test_a_row_that_contradicts_its_message_is_an_error_at_import(
    row: str, message: str, column: int, value: str | None
) -> None:
    """A cell must agree with the fields of the message and with the other cells."""
    tree = _parsed(row)
    _cell(tree, row, message, column, value)
    with pytest.raises(InvariantError, match="no row that fits"):
        _import(tree)


@pytest.mark.parametrize("row", TABLES)
@pytest.mark.parametrize("times", [0, 2])
def test_a_message_without_a_row_of_its_own_is_an_error_at_import(row: str, times: int) -> None:
    """Each message has exactly one row."""
    tree = _parsed(row)
    rows = next(
        node.value.elts
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "_ROWS"
        and isinstance(node.value, ast.Tuple)
    )
    rows[-1:] = rows[-1:] * times
    with pytest.raises(InvariantError, match="no row that fits"):
        _import(tree)


def test_a_request_without_a_function_is_an_error_at_import() -> None:
    """What serves requests has a function for each row, and for nothing else."""
    functions = dict.fromkeys(REQUESTS, len)
    assert for_each_request(functions) is functions
    with pytest.raises(InvariantError, match="and these have not: Disband"):
        for_each_request({kind: len for kind in REQUESTS if kind is not dcp.Disband})
    with pytest.raises(InvariantError, match="and these have not: Gossip"):
        for_each_request({**functions, dcp.Gossip: len})


def test_the_page_has_every_row_and_every_word() -> None:
    """docs/calls.md is the table, with the meaning of its words."""
    words = (call_table.Route, call_table.Flow, call_table.AuditRule, call_table.Effect, call_table.Closing)
    calls = re.findall(r"^\| [A-Z]\w+ \|.*$", PAGE, re.MULTILINE)
    expected = [described.call_row(call) for call in CALLS]
    assert calls == expected, "the rows of the calls are:\n" + "\n".join(expected)
    missing = [line for kind in words for line in described.word_rows(kind) if line not in PAGE]
    assert not missing, "bring these rows up to date:\n" + "\n".join(missing)
    assert all(
        f"\n| {exemption.name.lower()} | " in PAGE for exemption in call_table.Exemption if exemption.name
    )
