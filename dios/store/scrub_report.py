"""The file ``scrub.json`` of a data directory: the position of the present pass, and the damaged objects.

The file is written without a sync, and a file that cannot be read is as good as none: then a new pass begins,
and finds the damage again. ``docs/formats.md`` describes it. Names of objects are not in it.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.ids import ObjectId
from dios.store import schema
from dios.store.scrubbing import Damage

FILE_NAME: Final = "scrub.json"
VERSION: Final = 1

_Id: TypeAlias = Annotated[str, Meta(max_length=16, pattern="^[0-9a-f]{16}$")]
_IdOrNone: TypeAlias = Annotated[str, Meta(max_length=16, pattern="^([0-9a-f]{16})?$")]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**62)]
_Text: TypeAlias = Annotated[str, Meta(max_length=limits.SCRUB_PROBLEM_CHARS_MAX)]


class DamagedObject(Struct):
    """A damaged object; times in seconds since 1970.

    ``mark`` is the fingerprint of its name, or its id if it has none or its row is damaged. ``extent`` is the
    id of its file, empty without one. ``seen`` is when a pass found the damage last, ``repaired`` is 0 until
    it was repaired, and ``failure`` says why it could not be.
    """

    object: _Id
    mark: _Text
    extent: _IdOrNone
    size: _Count
    problem: _Text
    first_seen: _Count = msgspec.field(name="found")
    seen: _Count
    repaired: _Count = 0
    failure: _Text = ""

    @property
    def object_id(self) -> ObjectId:
        """The id of the object."""
        return ObjectId(int(self.object, 16))


class ScrubReport(Struct):
    """The state of scrubbing; ``after`` is the last object that the pass compared, empty before the first.

    ``began`` and ``finished`` are the times of the present pass, ``finished`` 0 while it runs, and ``last``
    is when the last complete pass ended. ``unlisted`` is the number of damaged objects beyond the bound of
    the list.
    """

    version: _Count = VERSION
    after: _IdOrNone = ""
    began: _Count = 0
    finished: _Count = 0
    last: _Count = 0
    unlisted: _Count = 0
    damaged: Annotated[list[DamagedObject], Meta(max_length=limits.SCRUB_DAMAGED_MAX)] = []

    @property
    def position(self) -> ObjectId | None:
        """The last object that the pass compared."""
        return ObjectId(int(self.after, 16)) if self.after else None

    @property
    def open_damage(self) -> list[DamagedObject]:
        """The damaged objects that were not repaired."""
        return [entry for entry in self.damaged if not entry.repaired]

    def begin(self, now: int) -> None:
        """Begin a pass."""
        self.after, self.began, self.finished, self.unlisted = "", now, 0, 0

    def end(self, now: int) -> None:
        """End the pass: forget objects that it found sound or gone, and old repairs."""
        self.after, self.finished, self.last = "", now, now
        oldest = now - limits.SCRUB_REPAIRED_KEPT_MS // 1000
        self.damaged = [
            entry
            for entry in self.damaged
            if (entry.repaired > oldest if entry.repaired else entry.seen >= self.began)
        ]

    def note(self, damage: Damage, now: int) -> DamagedObject | None:
        """Note a damaged object. Return it if it is new, None if it was known or the list is full."""
        target = f"{damage.object:016x}"
        known = next((entry for entry in self.open_damage if entry.object == target), None)
        if known is not None:
            known.seen = now
            return None
        row = damage.row
        record = DamagedObject(
            target,
            schema.object_text(damage.object) if row is None else schema.describe(row.record),
            f"{row.payload.extent:016x}" if row is not None and row.payload.extent else "",
            0 if row is None else row.payload.size,
            damage.problem[: limits.SCRUB_PROBLEM_CHARS_MAX],
            now,
            now,
        )
        if len(self.damaged) >= limits.SCRUB_DAMAGED_MAX:
            oldest = next((entry for entry in self.damaged if entry.repaired), None)
            if oldest is None:
                self.unlisted += 1
                return None
            self.damaged.remove(oldest)
        self.damaged.append(record)
        return record


def load(data: Path) -> ScrubReport | None:
    """Return the report in a data directory; None if there is none that this program can read."""
    try:
        with (data / FILE_NAME).open("rb") as file:
            text = file.read(limits.SCRUB_REPORT_BYTES_MAX + 1)
        if len(text) > limits.SCRUB_REPORT_BYTES_MAX:
            return None
        report = msgspec.json.decode(text, type=ScrubReport)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return report if report.version == VERSION else None


def save(report: bytes, data: Path) -> None:
    """Write an encoded report into a data directory, in one step. Raise OSError."""
    fresh = data / f"{FILE_NAME}.new"
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(report)
    fresh.replace(data / FILE_NAME)


def encode(report: ScrubReport) -> bytes:
    """Return the stored form of a report."""
    return msgspec.json.encode(report)
