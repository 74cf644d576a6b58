from __future__ import annotations

import pytest
from typer.main import get_command

from dios.cli.main import app
from dios.cli.tasks.shell import _found_command, shown_bytes


@pytest.mark.parametrize("text", ["", "hello", "two\nlines\twith tab", "grün"])
def test_text_is_shown_as_text(text: str) -> None:
    """Printable UTF-8 is shown as it is."""
    assert shown_bytes(text.encode()) == text


@pytest.mark.parametrize("data", [b"\x1b[2J", b"\xff\xfe", b"\x00", b"a\rb"])
def test_what_could_garble_the_terminal_is_shown_in_hex(data: bytes) -> None:
    """Control sequences and bytes that are no text appear as hex only."""
    shown = shown_bytes(data)
    assert shown == f"00000000  {data.hex(' ')}"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ls", 1),
        ("audit", 1),
        ("audit --last 3", 1),
        ("audit grep limits", 2),
        ("limits set uid:1 bytes=1", 2),
        ("node drain n2", 2),
    ],
)
def test_a_command_of_two_words_is_one(line: str, words: int) -> None:
    """The node that the shell is on is named behind all words of a command, before its own options."""
    assert _found_command(get_command(app), line.split()) == (words, True)


def test_a_command_that_asks_no_node_is_told_of_none() -> None:
    """What works on the keyring alone has no option for a node."""
    assert _found_command(get_command(app), ["group", "forget", "old"]) == (2, False)
