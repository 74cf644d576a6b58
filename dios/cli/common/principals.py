"""Principals as text: a user's name, or ``uid:1000``."""

from __future__ import annotations

import pwd
from typing import Final

_UID_DIGITS: Final = 10


def principal_of(text: str) -> str:
    """Return the principal that a text names, or "" if it names none on this machine."""
    kind, colon, rest = text.partition(":")
    if colon:
        known = kind == "uid" and rest.isascii() and rest.isdecimal() and len(rest) <= _UID_DIGITS
        return f"uid:{int(rest)}" if known else ""
    try:
        return f"uid:{pwd.getpwnam(text).pw_uid}"
    except KeyError:
        return ""


def principal_text(principal: str) -> str:
    """Return a principal with the user's name, if this machine knows it."""
    kind, _, number = principal.partition(":")
    try:
        return f"{principal} ({pwd.getpwuid(int(number)).pw_name})" if kind == "uid" else principal
    except (KeyError, ValueError, OverflowError):
        return principal
