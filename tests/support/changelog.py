"""Wrap the newest section of CHANGELOG.md, and let its links begin where the file is.

Fragments are one folder below, so that their links begin with ``../``. ``make changelog FOLD=1`` runs this.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from typing import Final

CHANGELOG: Final = Path(__file__).parents[2] / "CHANGELOG.md"
COLUMNS: Final = 100


def wrapped(text: str) -> str:
    """Return the text of the file with its newest section wrapped; other sections stay."""
    before, title, rest = re.split(r"(?m)^(# dios .*)$", text, maxsplit=1)
    section, *older = re.split(r"(?m)^(?=# dios )", rest, maxsplit=1)
    blocks = []
    for block in re.split(r"\n(?=- |\n|#)", section):
        if block.startswith("- "):
            words = " ".join(line.strip() for line in block.split("\n"))
            block = textwrap.fill(  # noqa: PLW2901 - the same block, wrapped
                words, COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
            )
        blocks.append(block)
    newest = "\n".join(blocks).replace("](../", "](")
    return before + title + newest + "".join(older)


def main() -> int:
    """Rewrite the file."""
    CHANGELOG.write_text(wrapped(CHANGELOG.read_text()).rstrip("\n") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
