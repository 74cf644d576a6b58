"""The table of calls is complete: whatever is missing in it is an error when it is imported."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from dios.errors import InvariantError
from dios.wire import call_table
from dios.wire.call_table import CALLS
from tests.support.wire import descriptions as described

SOURCE = Path(call_table.__file__).read_text()
PAGE = (Path(__file__).parents[3] / "docs" / "calls.md").read_text()
COLUMNS = len(call_table.CallRow._fields)


def _rows(tree: ast.Module) -> list[ast.Call]:
    """The rows in the source of the table."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "CallRow"
    ]


def _import(tree: ast.Module) -> None:
    """Execute a changed source of the table, as its import would."""
    exec(compile(tree, "call_table.py", "exec"), {"__name__": "dios.wire.call_table"})  # noqa: S102 - our own


def test_the_source_as_it_is_can_be_imported() -> None:
    """Otherwise the errors of the other tests would mean nothing."""
    tree = ast.parse(SOURCE)
    assert len(_rows(tree)) == len(CALLS)
    assert all(len(row.args) == COLUMNS for row in _rows(tree))
    _import(tree)


@pytest.mark.parametrize("column", range(COLUMNS))
def test_a_row_without_a_cell_is_an_error_at_import(column: int) -> None:
    """Whichever cell of whichever row is missing, nothing starts."""
    for place in range(len(CALLS)):
        tree = ast.parse(SOURCE)
        del _rows(tree)[place].args[column]
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            _import(tree)


@pytest.mark.parametrize("change", ["missing", "twice", "of no field", "without what its rule needs"])
def test_a_call_without_its_own_row_is_an_error_at_import(change: str) -> None:
    """Each message has exactly one row, whose reference is one of its fields if the rules need one."""
    tree = ast.parse(SOURCE)
    rows = next(
        node.value.elts
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "_ROWS"
        and isinstance(node.value, ast.Tuple)
    )
    if change == "missing":
        del rows[-1]
    elif change == "twice":
        rows.append(rows[-1])
    elif change == "without what its rule needs":
        written = next(row for row in _rows(tree) if ast.unparse(row.args[0]) == "c.WriteOnce")
        written.args[1] = ast.copy_location(ast.Constant(None), written)
    else:
        _rows(tree)[-1].args[1] = ast.copy_location(ast.Constant("reference"), rows[-1])
    with pytest.raises(InvariantError, match="no row that fits"):
        _import(tree)


def test_the_page_has_every_row_and_every_word() -> None:
    """docs/calls.md is the table, with the meaning of its words."""
    words = (call_table.Route, call_table.Flow, call_table.AuditRule, call_table.Effect, call_table.Closing)
    calls = re.findall(r"^\| [A-Z]\w+ \|.*$", PAGE, re.MULTILINE)
    expected = [described.call_row(call) for call in CALLS]
    assert calls == expected, "the rows of the calls are:\n" + "\n".join(expected)
    missing = [line for kind in words for line in described.word_rows(kind) if line not in PAGE]
    assert not missing, "bring these rows up to date:\n" + "\n".join(missing)
    assert all(f"\n| {one.name.lower()} | " in PAGE for one in call_table.Exemption if one.name)
