"""The advice for an unknown word: the known word that is nearly the same, or all known words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

_NEAR: Final = 0.75
"""The least similarity of a word that is suggested; a word with one mistake has more."""


def near_word(word: str, known: Iterable[str]) -> str:
    """Return the known word that ``word`` nearly is, or ""."""
    # Every task loads modules that use this module, and only a mistake needs the import.
    import difflib  # noqa: PLC0415 - see above

    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), folded, n=1, cutoff=_NEAR)
    return folded[close[0]] if close else ""


def suggestion(word: str, known: Iterable[str], spell: Callable[[str], str] = str) -> str:
    """Return a question for the word that was probably meant, or the list of all; ``spell`` writes a word."""
    words = list(known)
    near = near_word(word, words)
    return f"did you mean {spell(near)}?" if near else f"known: {', '.join(map(spell, words))}"
