"""The heads of this node's own audit log: it publishes them, and does not start on a log that is behind.

``dios.host.audit.heads`` has the format, and ``dios.node.head_keepers`` asks other nodes for the heads that
they keep.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import trio

from dios import limits
from dios.core.effects import Audit
from dios.errors import DamagedError, DiosError
from dios.host.audit.heads import (
    FOLDER,
    OWN,
    AuditHead,
    HeadComparison,
    KnownHeads,
    LogDigests,
    PublishedHead,
    StoredHeads,
    append_head,
    compare_heads,
    read_heads,
    read_last_head,
    with_head,
    write_heads,
)
from dios.host.audit.log import AuditLog, LogPosition
from dios.host.audit.reader import difference_text, digests_after
from dios.node.settings import Settings

_log: Final = logging.getLogger(__name__)


def own_file(settings: Settings) -> Path:
    """Return the file in which the node keeps its own heads."""
    return settings.data / FOLDER / OWN


def local_heads(settings: Settings, files: Iterable[Path] = ()) -> KnownHeads:
    """Return the heads in this node's own files, and in further ``files``."""
    known = _heads_in(own_file(settings), "kept by this node", settings)
    chosen = () if settings.audit_heads is None else (settings.audit_heads,)
    for path in dict.fromkeys((*chosen, *files)):
        heads = _heads_in(path, f"kept in {path}", settings)
        if heads == KnownHeads():
            heads = KnownHeads(unknown=(f"{path}: it has no heads",))
        known = known.with_others(heads)
    return known


def newest_local_heads(settings: Settings) -> KnownHeads:
    """Return the heads in the node's own file, and the newest in the file of the operator's choice."""
    known, chosen = _heads_in(own_file(settings), "kept by this node", settings), settings.audit_heads
    if chosen is None:
        return known
    return known.with_others(_heads_in(chosen, f"kept in {chosen}", settings, read_last_head))


def _heads_in(
    path: Path, keeper: str, settings: Settings, read: Callable[[Path], StoredHeads] = read_heads
) -> KnownHeads:
    try:
        stored = read(path)
    except OSError as error:
        return KnownHeads(unknown=(f"{path}: {error.strerror}",))
    if not stored.heads and not stored.damaged:
        return KnownHeads()
    # Imported late: a node that has published nothing loads no cryptography at its start.
    from dios.node.head_keys import HeadKeys  # noqa: PLC0415 - see above

    keys = HeadKeys(settings)
    genuine = [PublishedHead(head, keeper) for head in stored.heads if keys.has_signed(head)]
    strange = stored.damaged + len(stored.heads) - len(genuine)
    unknown = (f"{path}: {strange} of its lines are no heads that this node signed",) if strange else ()
    return KnownHeads(tuple(genuine), unknown)


def compare_with_log(folder: Path, known: KnownHeads) -> tuple[HeadComparison, LogDigests]:
    """Compare the heads with the log in ``folder``. Raise OSError."""
    log = digests_after(folder, {kept.head.records for kept in known.published})
    return compare_heads(known.published, log), log


class HeadPublisher:
    """The publisher of the heads of this node's log: in its own file, in the operator's, and by ``send``."""

    def __init__(self, settings: Settings, audit: AuditLog) -> None:
        self._settings: Final = settings
        self._audit: Final = audit
        self._era = 0
        self._since = 0
        self._published = LogPosition(0, b"")
        self._head: AuditHead | None = None
        self._places: Final[dict[Path, Callable[[Path, AuditHead], None]]] = {own_file(settings): _keep_head}
        if settings.audit_heads is not None:
            self._places[settings.audit_heads] = append_head
        self._unstored: Final[set[Path]] = set()
        self._writing: Final = trio.Lock()
        self._failing: Final[dict[str, str]] = {}
        self._returned: Final[dict[AuditHead, str]] = {}
        self.send: Callable[[AuditHead], None] = _ignore
        self._error: DamagedError | None = None

    async def run(self, stop: Callable[[], None]) -> None:
        """Publish the newest head every AUDIT_HEAD_MS if there are new records, until cancelled.

        Call ``stop`` when the log is behind a head that another node returned.
        """
        while True:
            await self.publish()
            await trio.sleep(limits.AUDIT_HEAD_MS / 1000)
            await self._examine_returned()
            if self._error is not None:
                stop()

    async def publish(self) -> None:
        """Sync the log and publish its head, unless that was done."""
        with contextlib.suppress(DiosError):  # the log's own writer reports a full disk
            self._audit.flush()
        async with self._writing:
            head = await trio.to_thread.run_sync(self._write)
        if head is not None:
            self.send(head)

    def close(self) -> None:
        """Write the last head of this process to the files."""
        with contextlib.suppress(DiosError):
            self._audit.flush()
        self._write()

    def raise_error(self) -> None:
        """Raise DamagedError if the log turned out to be behind a head that another node returned."""
        if self._error is not None:
            raise self._error

    def _write(self) -> AuditHead | None:
        """Write the newest head of the records on disk to the files that lack it. Return it if it is new."""
        with contextlib.suppress(DiosError):
            self._audit.sync()
        head = self._sign_newest()
        if head is not None:
            self._head = head
            self._unstored.update(self._places)
        failures = [why for path in sorted(self._unstored) if (why := self._store(path))]
        self._log_failure("cannot keep the head of the audit log in a file", ", ".join(failures))
        return head

    def _sign_newest(self) -> AuditHead | None:
        """Return the signed head of the records that are on disk; None if there is no new one."""
        position = self._audit.durable
        if position == self._published or not position.records:
            return None
        from dios.node.head_keys import HeadKeys  # noqa: PLC0415 - as above

        unsigned = AuditHead(
            0, self._era, self._since, position.records, position.digest, time.time_ns(), b"", b""
        )
        try:
            head = HeadKeys(self._settings).sign(unsigned)
        except (DiosError, OSError) as error:
            self._log_failure("cannot sign the head of the audit log", str(error))
            return None
        self._log_failure("cannot sign the head of the audit log", "")
        self._published = position
        return head

    def _store(self, path: Path) -> str:
        """Write the newest head to a file. Return the reason of a failure; a later call tries again."""
        assert self._head is not None, "the caller checks it"  # noqa: S101 - a broken promise of ours
        try:
            self._places[path](path, self._head)
        except (DiosError, OSError) as error:
            return str(error)
        self._unstored.discard(path)
        return ""

    def _log_failure(self, message: str, why: str) -> None:
        """Log a failure unless it is known already; ``why`` is empty if there is none."""
        if why and why != self._failing.get(message):
            _log.error(message, extra={"why": why})
        self._failing[message] = why

    def examine(self, head: AuditHead, keeper: str) -> None:
        """Compare a head that another node has kept with the log soon."""
        if len(self._returned) < limits.AUDIT_HEADS_KEPT_MAX:
            self._returned[head] = f"kept by {keeper}"

    async def _examine_returned(self) -> None:
        """Compare the returned heads with the log; those that cannot be compared now are compared later."""
        returned = tuple(PublishedHead(head, keeper) for head, keeper in self._returned.items())
        if not returned:
            return
        try:
            known = await trio.to_thread.run_sync(newest_local_heads, self._settings)
            known = KnownHeads(returned).with_others(known).newest
            self._error = self._error or await trio.to_thread.run_sync(self._loss, known)
        except (DiosError, OSError) as error:
            self._log_failure("cannot compare returned heads with the audit log", str(error))
            return
        self._log_failure("cannot compare returned heads with the audit log", "")
        for kept in returned:
            self._returned.pop(kept.head, None)

    def _loss(self, known: KnownHeads) -> DamagedError | None:
        """Return the error of a log that is behind one of the heads. Raise OSError."""
        compared, log = compare_with_log(self._settings.audit, known)
        if compared.difference is None:
            return None
        return DamagedError(
            f"{difference_text(compared, log.records)}. Restore the log in {self._settings.audit}, or "
            "start with `dios-node start --accept-lost-audit`, which other nodes record."
        )

    def begin(self, known: KnownHeads, *, accept_lost: bool) -> None:
        """Continue from the newest known head.

        Raise DamagedError if the log is behind a head, unless ``accept_lost`` is set: then a new era begins.
        """
        self._era, self._since = max(
            ((kept.head.era, kept.head.since) for kept in known.published), default=(0, 0)
        )
        if not accept_lost:
            if loss := self._loss(known.newest):
                raise loss
            return
        compared, log = compare_with_log(self._settings.audit, known)
        if compared.difference is None:
            return
        self._era, self._since = self._era + 1, compared.agreed
        detail = f"era {self._era}: {difference_text(compared, log.records)}"
        self._audit.append(Audit(time.time_ns(), "audit", "lost", "node", "", str(self._since), detail))
        self._audit.flush()
        self._audit.sync()


async def open_heads(
    settings: Settings, audit: AuditLog, *, accept_lost: bool, continued: bool
) -> HeadPublisher:
    """Compare the log with all known heads, and return the publisher of further heads.

    Ask no other nodes if this process was ``continued``. Raise DamagedError as ``begin`` does.
    """
    known = await trio.to_thread.run_sync(local_heads if accept_lost else newest_local_heads, settings)
    if settings.identity.exists() and not continued:
        from dios.node.head_keepers import ask_known_nodes  # noqa: PLC0415 - needed in a cluster only

        known = known.with_others(await ask_known_nodes(settings.data, limits.AUDIT_HEADS_ASKED_MS_MAX))
    for reason in known.unknown:
        _log.info("the audit log cannot be compared with all heads", extra={"why": reason})
    publisher = HeadPublisher(settings, audit)
    if known.published:
        await trio.to_thread.run_sync(lambda: publisher.begin(known, accept_lost=accept_lost))
    return publisher


def _keep_head(path: Path, head: AuditHead) -> None:
    """Add a head to the node's own file. Raise OSError."""
    write_heads(path, with_head(read_heads(path).heads, head))


def _ignore(head: AuditHead) -> None:
    del head
