"""The table of operations, and the tables of the page that follow from it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dios.lib.sandbox_server import rest
from dios.lib.sandbox_server.failures import Kind, RequestError
from dios.lib.sandbox_server.operations import Interface, Operation
from dios.lib.sandbox_server.routes import OPERATIONS

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "sandbox-server.md"


def rows_of(operations: list[Operation]) -> list[str]:
    """The rows of a table of the page, in which calls of the same effect share one."""
    rows = []
    for (name, effect), same in itertools.groupby(operations, lambda row: (row.name, row.effect)):
        routes = ", ".join(f"`{row.method} {row.path}`" for row in same)
        rows.append(f"| {', '.join(f'`{part}`' for part in name.split(', '))} | {routes} | {effect} |")
    return rows


@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.parametrize("interface", list(Interface))
def test_the_page_has_a_row_for_each_operation(interface: Interface, *, supported: bool) -> None:
    """Its tables say what the table of operations says, also of calls that are not supported."""
    page = PAGE.read_text(encoding="utf-8").splitlines()
    chosen = [
        row for row in OPERATIONS if row.interface is interface and (row.handler is not None) is supported
    ]
    missing = [row for row in rows_of(chosen) if row not in page]
    assert not missing, "\n".join(missing)


def test_the_page_has_no_other_rows() -> None:
    """A row of the page with a route is one of the table."""
    known = set(rows_of(list(OPERATIONS)))
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `") and any(f"`{verb} /" in line for verb in VERBS)]
    assert rows
    assert [row for row in rows if row not in known] == []


VERBS = ("GET", "POST", "PUT", "DELETE")


def test_no_two_operations_have_a_path_in_common() -> None:
    """Each request has at most one operation."""
    for operation in OPERATIONS:
        path = operation.path.replace("{id}", "abc")
        fitting = [
            other
            for other in OPERATIONS
            if other.method == operation.method and other.pattern.fullmatch(path)
        ]
        assert fitting == [operation]


def test_the_document_has_each_operation_of_the_rest_interface() -> None:
    """With the answer, and the schema of its request."""
    document = rest.openapi()
    paths = document["paths"]
    assert isinstance(paths, dict)
    listed = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert listed == {(row.method, row.path) for row in OPERATIONS if row.interface is Interface.REST}
    names = [row.name for row in rest.OPERATIONS]
    assert len(names) == len(set(names))


def test_a_request_of_another_form_is_refused() -> None:
    """Every operation with a request reads JSON objects alone."""
    for operation in OPERATIONS:
        if operation.handler is None or operation.has_raw_body or operation.request.__name__ == "NoRequest":
            continue
        for body in (b"[]", b"1", b"{", b'"x"', b"\xff", b"[" * 100_000):
            with pytest.raises(RequestError) as refused:
                operation.read(body)
            assert refused.value.kind is Kind.INVALID
