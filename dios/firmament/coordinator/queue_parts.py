"""The queue of a node with many tasks, which a coordinator reads in parts."""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from dios.wire.messages import Occupant, QueueRows


class QueueMark(NamedTuple):
    """The place in a node's queue up to which a coordinator has read it."""

    since: int = 0
    listed: int = 0
    tasks_listed: int = 0

    @classmethod
    def behind(cls, queue: QueueRows) -> QueueMark:
        """Return the mark for the call after this answer."""
        return cls(queue.version, queue.listed, queue.tasks_listed)

    def precedes(self, queue: QueueRows) -> bool:
        """Return True if this answer to a call with the mark may have rows."""
        return queue.version > self.since or self.listed > 0 or self.tasks_listed > 0


def joined(whole: QueueRows, part: QueueRows) -> QueueRows:
    """Return the first parts of a whole answer together with the next one.

    Its tasks and waiting runs are those that the node has at the moment of the last part.
    """
    tasks: dict[int, Occupant] = {row.id: row for row in whole.tasks}
    waiting = {row.id: row for row in whole.waiting}
    for gone in part.gone:
        tasks.pop(gone, None)
        waiting.pop(gone, None)
    tasks.update((row.id, row) for row in part.tasks)
    waiting.update((row.id, row) for row in part.waiting)
    is_newer = part.version > whole.version
    return replace(
        part,
        waiting=tuple(waiting.values()),
        tasks=tuple(tasks.values()),
        asked=part.asked if is_newer else whole.asked,
        reports=(*whole.reports, *part.reports),
        shares=part.shares or (whole.shares if part.shares_version == whole.shares_version else b""),
        whole=True,
        threads=part.threads or whole.threads,
        gone=(),
        kept=whole.kept if part.kept is None else part.kept,
    )
