"""The kinds of findings about a stopped node: severity, meaning, and advice for each kind.

``check`` makes the findings and ``repair`` repairs them. ``docs/recovery.md`` explains each kind.
"""

from __future__ import annotations

import enum
from typing import Final

from msgspec import Struct


class FindingLevel(enum.StrEnum):
    """The severity of a finding."""

    DAMAGE = "damage"
    """Acknowledged data cannot be read, or the node would not start."""
    LEFTOVER = "left over"
    """Left behind by a crash; the next start removes it."""
    NOTE = "note"
    """For information; nothing is wrong."""


class FindingKind(enum.StrEnum):
    """The kinds of findings; the words are in ``docs/recovery.md`` too, and never change meaning."""

    DATABASE = "database-damaged"
    SCHEMA_LOST = "schema-lost"
    SCHEMA_NEWER = "schema-newer"
    ROW = "row-damaged"
    INDEX = "index-differs"
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
    """The meaning of a kind of finding, and the advice if ``--repair`` cannot repair it."""

    level: FindingLevel
    text: str
    advice: str = ""


MEANINGS: Final[dict[FindingKind, Meaning]] = {
    FindingKind.DATABASE: Meaning(
        FindingLevel.DAMAGE,
        "the index of the store is damaged, so no object can be read",
        "restore the whole data directory from a backup",
    ),
    FindingKind.SCHEMA_LOST: Meaning(
        FindingLevel.DAMAGE,
        "the store has lost its schema version, so no node starts on it",
        "restore the data directory from a backup",
    ),
    FindingKind.SCHEMA_NEWER: Meaning(
        FindingLevel.DAMAGE,
        "a newer program wrote the store, and this program does not know its format",
        "use the newer program",
    ),
    FindingKind.ROW: Meaning(
        FindingLevel.DAMAGE,
        "the row of one object in the index is damaged, so the node leaves that object out",
        "`--repair` moves the row aside; restore the object from a backup",
    ),
    FindingKind.INDEX: Meaning(
        FindingLevel.DAMAGE,
        "the index of the rows is not theirs: the node does not find some objects, or counts them wrongly",
    ),
    FindingKind.CONTENT: Meaning(
        FindingLevel.DAMAGE,
        "the bytes of an object differ from those that were acknowledged, so the node does not return them",
        "write the object again, or restore its file from a backup",
    ),
    FindingKind.EXTENT_LOST: Meaning(
        FindingLevel.DAMAGE,
        "the file with the bytes of an object is missing, so the object cannot be read",
        "write the object again, or restore its file from a backup",
    ),
    FindingKind.EXTENT_SHARED: Meaning(
        FindingLevel.DAMAGE, "two objects share one file; deleting one would delete the bytes of both"
    ),
    FindingKind.SIZE: Meaning(FindingLevel.DAMAGE, "the size of an object is wrong; its bytes are complete"),
    FindingKind.HOME_TWICE: Meaning(
        FindingLevel.DAMAGE,
        "a user has two home groups: the node uses one of them, and objects in the other are not found",
        "keep a copy of the data directory, and report this as a defect",
    ),
    FindingKind.AUDIT: Meaning(
        FindingLevel.DAMAGE,
        "the chain of the audit log is broken: records were changed, lost or moved",
        "compare it with a copy; `dios audit verify` explains the place",
    ),
    FindingKind.ORPHAN: Meaning(
        FindingLevel.LEFTOVER, "a file that no object uses: an old version, or a write that was interrupted"
    ),
    FindingKind.AUDIT_TORN: Meaning(
        FindingLevel.LEFTOVER, "the last audit record is incomplete: the node ended while writing it"
    ),
    FindingKind.UNNAMED: Meaning(FindingLevel.LEFTOVER, "an object without a name, which no task can reach"),
    FindingKind.UNREACHABLE: Meaning(
        FindingLevel.NOTE,
        "an object whose groups do not exist: no lookup finds it, and it still takes space",
    ),
    FindingKind.STRANGER: Meaning(FindingLevel.NOTE, "a file that is not the node's; it is left alone"),
    FindingKind.SET_ASIDE: Meaning(
        FindingLevel.NOTE,
        "files that earlier repairs moved aside",
        "delete them when you are sure that nothing is missing",
    ),
}


class StoreFinding(Struct, frozen=True):
    """One finding.

    ``subject`` is an object by fingerprint or id, or a file below the data directory; ``repair`` is the
    repair that ``--repair`` makes, empty if there is none.
    """

    kind: FindingKind
    subject: str
    detail: str
    repair: str = ""

    @property
    def level(self) -> FindingLevel:
        """Return the severity."""
        return MEANINGS[self.kind].level
