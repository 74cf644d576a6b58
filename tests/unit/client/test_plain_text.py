"""Text of others: nothing in it controls what displays it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dios.client.plain_text import plain, plain_lines


def test_control_characters_are_escaped() -> None:
    """Escape sequences, C1 controls, and characters that change the direction are written as escapes."""
    assert plain_lines("a\x1b[2J\x9b\x07\r\u202eb") == "a\\x1b[2J\\x9b\\x07\\r\\u202eb"
    assert plain("two\nlines\t.") == "two\\nlines\\t."
    assert plain_lines("two\nlines\t.") == "two\nlines\t."
    assert plain("Zürich, 東京, 1 + 1 = 2") == "Zürich, 東京, 1 + 1 = 2"


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters()))
def test_any_text_becomes_printable(text: str) -> None:
    """The result has no control character, also for lone surrogates, and printable text stays as it is."""
    assert plain(text).isprintable()
    assert plain_lines(text).replace("\n", "").replace("\t", "").isprintable()
    assert plain(plain(text)) == plain(text)
