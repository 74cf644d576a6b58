"""The kernel of notebooks: the state of typed code, and texts of a session that a frontend shows."""

from __future__ import annotations

import pytest

pytest.importorskip("ipykernel", reason="the package ipykernel is not installed")

from dios.bridges.jupyter_kernel import is_complete, shown


@pytest.mark.parametrize(
    ("code", "status", "indent"),
    [
        ("", "complete", None),
        ("1 + 1", "complete", None),
        ("x = 1\ny = 2", "complete", None),
        ("for x in y:", "incomplete", "    "),
        ("for x in y:\n    pass", "incomplete", "    "),
        ("for x in y:\n    if x:", "incomplete", "        "),
        ("for x in y:\n    pass\n", "complete", None),
        ("f(1,", "incomplete", ""),
        ("'''text", "incomplete", ""),
        ("1 +", "invalid", None),
        ("\0", "invalid", None),
        ("(" * 10_000, "invalid", None),
    ],
)
def test_typed_code_is_complete_or_goes_on(code: str, status: str, indent: str | None) -> None:
    """A block goes on until an empty line, with the indentation of its next line."""
    expected = {"status": status} if indent is None else {"status": status, "indent": indent}
    assert is_complete(code) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n\tb", "a\n\tb"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("\u202eright", r"\u202eright"),
        ("\ud800", r"\ud800"),
        ("10 %\r\x1b[2J\r\n", "10 %\r\\x1b[2J\r\n"),
    ],
)
def test_texts_control_nothing(text: str, expected: str) -> None:
    """Control characters are escaped, except for those of lines, tabs and progress bars."""
    assert shown(text) == expected
