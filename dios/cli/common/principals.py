"""Principals as people write and read them: a user's name, or ``uid:1000``.

Not for: groups and tasks, which a keyring or a node has to look up.
"""

from __future__ import annotations

import pwd


def principal_of(text: str) -> str:
    """The principal that a text names; empty when it names none here."""
    kind, colon, rest = text.partition(":")
    if colon:
        return f"uid:{int(rest)}" if kind == "uid" and rest.isascii() and rest.isdecimal() else ""
    try:
        return f"uid:{pwd.getpwnam(text).pw_uid}"
    except KeyError:
        return ""


def principal_text(principal: str) -> str:
    """A principal with the user's name, where this machine knows it."""
    kind, _, number = principal.partition(":")
    try:
        return f"{principal} ({pwd.getpwuid(int(number)).pw_name})" if kind == "uid" else principal
    except (KeyError, ValueError, OverflowError):
        return principal
