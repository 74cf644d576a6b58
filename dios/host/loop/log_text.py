"""Text for the node's log: bounded, and without secrets.

Log records are written with fingerprints, and never with names. This module is the second barrier, for
messages of errors that repeat a value which somebody sent: it replaces everything that looks like a secret.
"""

from __future__ import annotations

import json
import re
from typing import Final

from dios import limits

HIDDEN: Final = "(hidden)"

_SECRETS: Final = re.compile(
    r"""
    (?i: dios1 [0-9a-z]{8,}              # the text of a name
       | diosgrant1 [0-9a-z=]+           # a grant of a group
       | dios-join-1\. [0-9A-Za-z_=-]* ) # a token for joining
    | \bb'(?:[^'\\]|\\.)*(?:'|$)         # bytes as Python shows them
    | \bb"(?:[^"\\]|\\.)*(?:"|$)
    | (?<![0-9A-Za-z]) [0-9A-Fa-f]{64,}  # a name in hexadecimal digits
    """,
    re.VERBOSE,
)


def harmless(text: str) -> str:
    """Return at most ``NODE_LOG_TEXT_CHARS_MAX`` characters of a text, with every secret replaced."""
    most = limits.NODE_LOG_TEXT_CHARS_MAX
    if len(text) >= most:
        # The last word may be a part of a secret, which is not recognized.
        text = text[: most - 1].rpartition(" ")[0] + "…"
    return _SECRETS.sub(HIDDEN, text).encode(errors="backslashreplace").decode()


def one_word(value: object) -> str:
    """Return the value as text without spaces or control characters, quoted as JSON if it has any."""
    text = str(value)
    return text if text and text.isprintable() and " " not in text else json.dumps(text)
