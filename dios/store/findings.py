"""What a look at a stopped node can find: each kind, how bad it is, what it means, what to do.

Not for: finding it (``check``) or repairing it (``repair``). ``docs/recovery.md`` tells of each kind.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct


class FindingLevel(enum.StrEnum):
    """How bad a finding is."""

    DAMAGE = "damage"
    """Something that was acknowledged cannot be read, or the node would not start."""
    LEFTOVER = "left over"
    """What a crash leaves behind; the next start clears it away."""
    NOTE = "note"
    """Worth knowing; nothing is wrong with it."""


class FindingKind(enum.StrEnum):
    """What was found; the words stand in ``docs/recovery.md`` too, and never change meaning."""

    DATABASE = "database-damaged"
    SCHEMA_LOST = "schema-lost"
    SCHEMA_NEWER = "schema-newer"
    ROW = "row-damaged"
    CONTENT = "content-damaged"
    EXTENT_LOST = "extent-lost"
    EXTENT_SHARED = "extent-shared"
    SIZE = "size-differs"
    HOME_TWICE = "home-twice"
    AUDIT = "audit-damaged"
    ORPHAN = "extent-orphan"
    AUDIT_TORN = "audit-torn"
    UNNAMED = "object-unnamed"
    UNREACHABLE = "object-unreachable"
    STRANGER = "file-unknown"
    SET_ASIDE = "set-aside"


class Meaning(Struct, frozen=True):
    """What a kind of finding means, and what to do when ``--repair`` cannot."""

    level: FindingLevel
    text: str
    advice: str = ""


MEANINGS: Final[dict[FindingKind, Meaning]] = {
    FindingKind.DATABASE: Meaning(
        FindingLevel.DAMAGE,
        "the index of the store is damaged; no object can be looked at",
        "bring back the whole data directory from a back-up",
    ),
    FindingKind.SCHEMA_LOST: Meaning(
        FindingLevel.DAMAGE,
        "the store does not say its format any more; a node refuses it",
        "bring back a back-up",
    ),
    FindingKind.SCHEMA_NEWER: Meaning(
        FindingLevel.DAMAGE,
        "a newer program wrote the store; this one does not know its format",
        "use that program",
    ),
    FindingKind.ROW: Meaning(
        FindingLevel.DAMAGE,
        "what the index says of one object is damaged; a node leaves that object out",
        "`--repair` moves the row aside; the object comes back with a back-up only",
    ),
    FindingKind.CONTENT: Meaning(
        FindingLevel.DAMAGE,
        "an object's bytes are not those that were acknowledged; a node refuses to read it",
        "write the object again, or bring its file back from a back-up",
    ),
    FindingKind.EXTENT_LOST: Meaning(
        FindingLevel.DAMAGE,
        "the file with an object's bytes is gone; a node refuses to read it",
        "write the object again, or bring its file back from a back-up",
    ),
    FindingKind.EXTENT_SHARED: Meaning(
        FindingLevel.DAMAGE, "two objects name one file; who deletes one loses the other"
    ),
    FindingKind.SIZE: Meaning(FindingLevel.DAMAGE, "an object's size is told wrongly; its bytes are whole"),
    FindingKind.HOME_TWICE: Meaning(
        FindingLevel.DAMAGE,
        "a user has two home groups: a node uses one, and what is in the other is not found",
        "keep the data directory as it is, and report it as a defect",
    ),
    FindingKind.AUDIT: Meaning(
        FindingLevel.DAMAGE,
        "the chain of the audit log is broken: records were changed, lost or moved",
        "compare it with a copy; `dios audit --verify` says what the place means",
    ),
    FindingKind.ORPHAN: Meaning(
        FindingLevel.LEFTOVER, "a file that no object names: an old version, or one that was never finished"
    ),
    FindingKind.AUDIT_TORN: Meaning(
        FindingLevel.LEFTOVER, "the last audit record was being written when the node ended"
    ),
    FindingKind.UNNAMED: Meaning(
        FindingLevel.LEFTOVER, "an object without a name, which nobody can reach any more"
    ),
    FindingKind.UNREACHABLE: Meaning(
        FindingLevel.NOTE,
        "an object whose groups are all gone: nobody can look it up, and it still takes space",
    ),
    FindingKind.STRANGER: Meaning(FindingLevel.NOTE, "a file that is none of the node's; it is left alone"),
    FindingKind.SET_ASIDE: Meaning(
        FindingLevel.NOTE,
        "what earlier repairs moved aside",
        "delete it when you are sure that nothing is missed",
    ),
}


class StoreFinding(Struct, frozen=True):
    """One thing that was found.

    ``subject`` is an object by fingerprint or id, or a file below the data directory; ``repair`` is what
    ``--repair`` does about it, empty when it can do nothing.
    """

    kind: FindingKind
    subject: str
    detail: str
    repair: str = ""

    @property
    def level(self) -> FindingLevel:
        """How bad it is."""
        return MEANINGS[self.kind].level
