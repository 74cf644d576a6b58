"""Text of others with its control characters escaped, so that it cannot control what displays it."""

from __future__ import annotations


def plain(text: str) -> str:
    """Return text from others for one line of a terminal; control characters are escaped."""
    return text if text.isprintable() else "".join(map(_harmless, text))


def plain_lines(text: str) -> str:
    """Return text from others for a terminal; control characters except tabs and line ends are escaped."""
    return text if text.isprintable() else "".join(map(_harmless_in_lines, text))


def _harmless(letter: str) -> str:
    return letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode()


def _harmless_in_lines(letter: str) -> str:
    return letter if letter in "\n\t" else _harmless(letter)
