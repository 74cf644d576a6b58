"""``dios-node check``: verifies all data of a stopped node, and repairs them on request.

The store refuses to be checked while the node runs. ``dios.cli.nodes.check`` shows the result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from dios import limits
from dios.host.audit.log import segments
from dios.host.audit.reader import verify
from dios.node.audit_heads import local_heads
from dios.node.settings import Settings, load
from dios.store.check import LOST_AND_FOUND, Inventory, hold_directory, read_index, verify_contents
from dios.store.findings import FindingKind, FindingLevel, StoreFinding
from dios.store.repair import repair

Waiting: TypeAlias = Callable[[str], contextlib.AbstractContextManager[None]]
Moving: TypeAlias = Callable[[str, int], contextlib.AbstractContextManager[Callable[[int], None]]]


class CheckResult(Struct, frozen=True):
    """The findings in a data directory, after the repair if there was one.

    ``repaired`` has a sentence for each change; ``audit_head`` is the digest of the last good audit record.
    ``findings`` has at most FINDINGS_PER_KIND_MAX of each kind, and ``counts`` the number of all of them.
    """

    data: str
    objects: int
    bytes: int
    extents: int
    audit_records: int
    audit_head: str
    findings: list[StoreFinding]
    counts: dict[FindingKind, int]
    repaired: list[str]

    @property
    def ok(self) -> bool:
        """True if everything that was acknowledged can be read."""
        return not any(finding.level is FindingLevel.DAMAGE for finding in self.findings)


def check_node(data: Path, *, mend: bool, waiting: Waiting, moving: Moving) -> CheckResult:
    """Check the data of the stopped node in ``data``; with ``mend`` first repair what can be repaired.

    ``waiting`` and ``moving`` show progress: a text, and a text with a number of bytes. Raise InvalidError if
    there is no store, DiosError with the process id while a node runs, NoSpaceError or DamagedError if the
    disk fails.
    """
    settings = load(data, environ={})
    with hold_directory(settings.data):
        inventory = _look(settings.data, waiting, moving)
        repaired: list[str] = []
        if mend:
            with waiting("repairing"):
                repaired = repair(
                    inventory, map_bytes=max(settings.map_bytes, limits.STORE_MAP_BYTES_DEFAULT)
                )
            if repaired:
                inventory = _look(settings.data, waiting, moving)
        with waiting("checking the audit log"):
            records, head = _look_at_audit(settings, inventory)
    _look_at_lost_and_found(inventory)
    return CheckResult(
        str(settings.data),
        len(inventory.rows),
        inventory.content_bytes,
        inventory.extents,
        records,
        head,
        sorted(inventory.findings, key=lambda finding: _ORDER[finding.level]),
        dict(inventory.counts),
        repaired,
    )


_ORDER = {level: place for place, level in enumerate(FindingLevel)}


def _look(data: Path, waiting: Waiting, moving: Moving) -> Inventory:
    with waiting("reading the index"):
        inventory = read_index(data)
    with moving("comparing contents with their digests", inventory.content_bytes) as progress:
        verify_contents(inventory, progress)
    return inventory


def _look_at_audit(settings: Settings, inventory: Inventory) -> tuple[int, str]:
    folder = settings.audit
    verdict = verify(folder, published=local_heads(settings).published)
    if not segments(folder) and inventory.rows:
        inventory.add(FindingKind.AUDIT, "audit", "there are objects but no audit log: it was removed")
    elif not verdict.ok:
        inventory.add(
            FindingKind.AUDIT,
            f"audit/{verdict.segment}",
            f"record {verdict.index} at byte {verdict.offset}: {verdict.problem}"
            if verdict.segment
            else verdict.problem,
        )
    elif verdict.torn_bytes:
        inventory.add(
            FindingKind.AUDIT_TORN,
            "audit",
            f"{verdict.torn_bytes} bytes; the next start moves them to a file",
        )
    return verdict.records, verdict.head


def _look_at_lost_and_found(inventory: Inventory) -> None:
    files = [path for path in (inventory.path / LOST_AND_FOUND).rglob("*") if path.is_file()]
    if files:
        total = sum(path.stat().st_size for path in files)
        inventory.add(FindingKind.SET_ASIDE, LOST_AND_FOUND, f"{len(files)} files, {total} bytes")
