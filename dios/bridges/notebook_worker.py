"""The worker's side of ``%%task``: runs the code of one cell, and reports its exception as text."""

from __future__ import annotations

import linecache
import sys
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import TypeAlias

_REPORT_CHARS_MAX = 65_536

CellResult: TypeAlias = tuple[dict[str, object], str]
"""The outputs of a cell by name, and the text of its exception, which is empty if none left it."""


def run_cell(source: str, title: str, inputs: Mapping[str, object], outputs: tuple[str, ...]) -> CellResult:
    """Run the code of a cell with its inputs as variables, and return the variables named ``outputs``."""
    linecache.cache[title] = (len(source), None, source.splitlines(keepends=True), title)
    variables: dict[str, object] = {"__name__": "__main__", **inputs}
    try:
        exec(compile(source, title, "exec"), variables)  # noqa: S102 - the cell of the task's owner
    except BaseException as error:  # noqa: BLE001 - whatever leaves the cell is reported
        return {}, _report(error, title)
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    missing = [name for name in outputs if name not in variables]
    if missing:
        return {}, f"NameError: the cell did not set its outputs: {', '.join(missing)}"
    return {name: variables[name] for name in outputs}, ""


def _report(error: BaseException, title: str) -> str:
    """Return the traceback from the cell's own first line on."""
    trace: TracebackType | None = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != title:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))[-_REPORT_CHARS_MAX:]
