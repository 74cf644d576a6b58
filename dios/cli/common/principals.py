"""Principals as text: a user's name, or ``uid:1000``."""

from __future__ import annotations

import pwd


def principal_of(text: str) -> str:
    """Return the principal that a text names, or "" if it names none on this machine."""
    kind, colon, rest = text.partition(":")
    if colon:
        return f"uid:{int(rest)}" if kind == "uid" and rest.isascii() and rest.isdecimal() else ""
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
