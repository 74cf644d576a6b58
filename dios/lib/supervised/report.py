"""The report of the leading supervisor, which the user's commands read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from msgspec import Struct


class ReplicaNote(Struct, frozen=True):
    """The leader's knowledge of a replica: its starts, and why it ended last or could not be started.

    ``starts`` is the node on which it is being started, and it ``waits`` before the next start.
    """

    slot: int = 0
    generation: int = 0
    restarts: int = 0
    reason: str = ""
    starts: str = ""
    waits: bool = False


class ServicesReport(Struct, frozen=True):
    """The report of the leading supervisor."""

    leader: str = ""
    services: dict[str, list[ReplicaNote]] = {}

    def notes(self, name: str) -> Mapping[tuple[int, int], ReplicaNote]:
        """Return what is reported of a service or job, by slot and generation."""
        notes = {(note.slot, note.generation): note for note in self.services.get(name, ())}
        return defaultdict(ReplicaNote, notes)
