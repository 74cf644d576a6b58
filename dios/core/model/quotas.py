"""The quotas of the cluster as a node knows them, and what its own tasks hold.

The scheduler sends them. Quotas hold until it sends others. What principals hold on other nodes counts for
ADMISSION_TOTALS_MS after the last news, then as nothing: without a scheduler each node enforces the quota by
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from dios import limits
from dios.core.model.records import Task
from dios.wire.admission import Holding, Quota
from dios.wire.messages import Work

_MS: Final = 1_000_000
_WORDS: Final[Mapping[str, str]] = {
    "tasks": "tasks",
    "cpus_milli": "thousandths of processors",
    "memory_bytes": "bytes of memory",
    "disk_io": "bytes per second of disks",
    "network": "bytes per second of networks",
    "devices": "devices",
}
"""The fields of holdings and quotas, in words."""
assert tuple(_WORDS) == Holding.__struct_fields__  # noqa: S101


class Admission(Struct, frozen=True):
    """The latest quotas of the scheduler, and the principals whose runs wait, with the time of the news."""

    quotas: dict[str, Quota] = field(default_factory=dict)
    known_ns: int = 0
    waiting: tuple[str, ...] = ()

    def others_wait(self, principal: str, now: int) -> bool:
        """Return True if runs of other principals wait for their turn."""
        fresh = now - self.known_ns < limits.ADMISSION_WAITING_MS * _MS
        return fresh and any(other != principal for other in self.waiting)

    def excess(self, principal: str, here: Holding, wanted: Holding, now: int, *, scheduled: bool) -> str:
        """Return why a principal may not have this much more on this node; empty if it may.

        The scheduler has counted a ``scheduled`` task on all nodes, with later figures than this node has.
        """
        quota = self.quotas.get(principal)
        if quota is None:
            return ""
        counts = not scheduled and now - self.known_ns < limits.ADMISSION_TOTALS_MS * _MS
        elsewhere = quota.elsewhere if counts else Holding()
        for name, words in _WORDS.items():
            most, more = getattr(quota, name), getattr(wanted, name)
            total = getattr(here, name) + getattr(elsewhere, name) + more
            if most is not None and more and total > most:
                return f"{principal} would hold {total} {words} of the cluster, and its quota is {most}"
        return ""


def holdings(tasks: Iterable[Task]) -> dict[str, Holding]:
    """Return what each principal holds through these living tasks of a node."""
    held: dict[str, Holding] = {}
    for task in tasks:
        work = Work() if task.recipe is None else task.recipe.work
        held[task.principal] = held.get(task.principal, Holding()).plus(Holding.of(work))
    return held
