from __future__ import annotations

import pytest

from dios.cli.shell import shown_bytes


@pytest.mark.parametrize("text", ["", "hello", "two\nlines\twith tab", "grün"])
def test_text_is_shown_as_text(text: str) -> None:
    """Printable UTF-8 is shown as it is."""
    assert shown_bytes(text.encode()) == text


@pytest.mark.parametrize("data", [b"\x1b[2J", b"\xff\xfe", b"\x00", b"a\rb"])
def test_what_could_garble_the_terminal_is_shown_in_hex(data: bytes) -> None:
    """Control sequences and bytes that are no text appear as hex only."""
    shown = shown_bytes(data)
    assert shown == f"00000000  {data.hex(' ')}"
