"""The results of commands: rows that are printed as text or as JSON, and the options that say so."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from dios.cli.common.failures import Failures
from dios.cli.common.options import Options, option
from dios.cli.common.output import Cells, say, table_of, write_facts, write_json, write_json_list

R = TypeVar("R")

NODE_OPTION: Final[str | None] = option(
    "--node PATH",
    "Data directory or socket of the node to ask, or its name in your local cluster; "
    "default: DIOS_NODE, else the first that runs.",
)
YES_OPTION: Final[bool] = option("-y --yes", "Do not ask for confirmation.")
IN_GROUP_OPTION: Final[str] = option("-g --group ALIAS", "Look for NAME in this group only.")


class OutputOptions(Options):
    """The option of all commands that print a result, as text or as JSON."""

    as_json: bool = option("--json", "Print JSON instead of text.")

    def print_row(
        self, row: object, *notices: str, facts: Cells | None = None, table: Iterable[Cells] = ()
    ) -> None:
        """Print a result: as JSON, or as facts and a table. Of text the notices follow on standard error.

        A fact without a value is left out.
        """
        if self.as_json:
            write_json(row)
            return
        write_facts(facts or {})
        table_of(table)
        for notice in notices:
            say(notice)

    def print_rows(
        self,
        rows: Iterable[R],
        cells: Callable[[R], Cells],
        notices: Iterable[str] = (),
        *,
        described: Callable[[R], object] | None = None,
        empty: str = "",
        failures: Failures | None = None,
        whole: bool = False,
        remarks: Iterable[str] = (),
    ) -> None:
        """Print a list: as JSON, or as a table. Of text the notices follow on standard error.

        Args:
            rows: the list, which may be long: one row is in memory at a time.
            cells: returns the line of a row. All rows have the same columns.
            notices: lines that follow a table on standard error.
            described: returns the JSON of a row; None if rows are what JSON has.
            empty: the notice instead of an empty table.
            failures: what could not be listed. It ends the command with status 1, and JSON has it, too.
            whole: False to fold the first column on a narrow terminal.
            remarks: lines that follow also an empty list.
        """
        if self.as_json:
            write_json_list(_documents(rows, described, failures))
        elif table_of(map(cells, rows), whole=whole):
            for notice in notices:
                say(notice)
        elif empty and not (failures and failures.reasons):
            say(empty)
        if not self.as_json:
            for remark in remarks:
                say(remark)
        if failures is not None:
            failures.end()


class CommonOptions(OutputOptions):
    """The options of all commands that ask a node."""

    node: str | None = NODE_OPTION


def _documents(
    rows: Iterable[R], described: Callable[[R], object] | None, failures: Failures | None
) -> Iterator[object]:
    """Yield the JSON of rows, and then of what failed while they were made."""
    yield from rows if described is None else map(described, rows)
    if failures is not None:
        yield from failures.rows()
