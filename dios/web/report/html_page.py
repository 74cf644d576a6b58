"""HTML without scripts, which loads nothing. Every text of others is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Final

from dios.client.plain_text import plain, plain_lines

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE: Final = """
:root { color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif; }
body { max-width: 75rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere; }
main > div { overflow-x: auto; }
table { border-collapse: collapse; } th, td { padding: .15rem .8rem .15rem 0; text-align: left; }
th { font-weight: 600; overflow-wrap: normal; } thead th { border-bottom: 1px solid; }
pre { white-space: pre-wrap; margin: 0 0 1rem; }
svg { width: 100%; } svg text { font-size: 11px; fill: currentColor; } svg line { stroke: #8886; }
.running { fill: #1976d2; } .exited { fill: #2e7d32; } .failed { fill: #c62828; }
.paused { fill: #b26a00; } .starting, .waiting { fill: #8e9aaf; }
.vertex { fill: none; stroke: currentColor; } .way { stroke: currentColor !important; }
.chosen { fill: #2e7d32; } .possible { fill: #1976d2; } .excluded { fill: #8e9aaf; }
svg .wide { font-size: 13px; }
"""


def whole_page(title: str, parts: Iterable[str]) -> str:
    """Return a page with a title and parts of HTML; empty parts are left out."""
    head = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{text(title)}</title><style>{_STYLE}</style></head><body><main><h1>{text(title)}</h1>",
    ]
    return "\n".join([*head, *(part for part in parts if part), "</main></body></html>\n"])


def text(value: object) -> str:
    """Return text for a line, without control characters."""
    return escape(plain(str(value)))


def preformatted(lines: Iterable[str]) -> str:
    """Return lines of text in a monospaced block."""
    return f"<pre>{escape(plain_lines(chr(10).join(lines)))}</pre>"


def pairs(facts: Mapping[str, object]) -> str:
    """Return a table of names and values."""
    cells = [
        f"<tr><th scope=row>{text(name)}</th><td>{text(value)}</td></tr>" for name, value in facts.items()
    ]
    return f"<div><table>{''.join(cells)}</table></div>"


def table(columns: Sequence[str], cells: Iterable[Sequence[object]]) -> str:
    """Return a table with a head."""
    head = "".join(f"<th scope=col>{text(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in cells)
    return f"<div><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
