"""HTML tables for notebooks. All text is escaped, because tasks and other users choose some of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

_ROWS_MAX: Final = 50
_CHARS_MAX: Final = 200


def escaped(value: object) -> str:
    """Return a value's text for HTML: escaped, on one line, and cut if it is long."""
    import html  # noqa: PLC0415 - programs outside notebooks do not need it

    text = str(value)
    if len(text) > _CHARS_MAX:
        text = text[: _CHARS_MAX - 1] + "…"
    # Letters that change the direction of text, or that a terminal obeys, are written as escapes.
    text = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )
    return html.escape(text, quote=True)


def properties(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a table with a row for each property that has a value; None and "" are left out."""
    body = "".join(
        f"<tr><th style='text-align:left'>{escaped(name)}</th>"
        f"<td style='text-align:left'>{escaped(value)}</td></tr>"
        for name, value in rows
        if value is not None and value != ""
    )
    return f"<table><caption>{escaped(title)}</caption>{body}</table>"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table with these columns, and at most 50 of the rows."""
    head = "".join(f"<th>{escaped(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escaped(value)}</td>' for value in row)}</tr>" for row in rows[:_ROWS_MAX]
    )
    more = f" ({len(rows) - _ROWS_MAX} more rows)" if len(rows) > _ROWS_MAX else ""
    return (
        f"<table><caption>{escaped(title + more)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )
