"""Runs scrubbing in a node: compares stored objects with their digests at a rate, and repairs damaged ones.

All reading is in a thread, in steps of ``dios.store.scrubbing``. A damaged object is repaired with the bytes
of another replica, which a session of its owner reads; ``dios.lib.kept.repair`` finds one.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable
from functools import partial
from socket import socket
from typing import Final, NamedTuple

import trio

from dios import limits
from dios.errors import DamagedError, DiosError, unwrap_group
from dios.ids import Name, ObjectId
from dios.node.settings import Settings
from dios.store import schema, scrub_report
from dios.store.lmdb_store import LmdbStore
from dios.store.protocol import FilePayload
from dios.store.schema import ContentKind, ObjectRow
from dios.store.scrub_report import DamagedObject, ScrubReport
from dios.store.scrubbing import Damage, Pace, Scrubber, ScrubStep

_log: Final = logging.getLogger(__name__)


class ScrubbedNode(NamedTuple):
    """The parts of a node that scrubbing needs.

    ``distrust`` lets each reader of an object open its file again, ``audit`` writes an audit record of an
    outcome, the object's mark and a detail, and ``open_for`` opens a session of the node that acts for a
    user, None if that user may not connect.
    """

    distrust: Callable[[ObjectId], None]
    audit: Callable[[str, str, str], None]
    open_for: Callable[[int, trio.Nursery], socket | None]


class Scrubbing:
    """The scrubbing of one node; it continues the pass of an earlier start. ``now`` is the time in s."""

    def __init__(self, settings: Settings, store: LmdbStore, now: Callable[[], float] = time.time) -> None:
        self._settings: Final = settings
        self._store: Final = store
        self._now: Final = now
        self._report = ScrubReport()
        self._scrubber: Final = Scrubber(store)
        self._bytes = 0
        self._saved_at = float("-inf")
        self._saving: Final = trio.Lock()
        self._attempts: Final[dict[str, tuple[float, float]]] = {}
        """The time of the next attempt to repair each object, and the pause after that, in seconds."""
        self._has_damage = trio.Event()

    @property
    def counts(self) -> dict[str, int]:
        """The bytes that were compared since the start, and the damaged and repaired objects."""
        damaged = len(self._report.open_damage)
        return {
            "scrub_bytes": self._bytes,
            "scrub_damaged": damaged + self._report.unlisted,
            "scrub_repaired": len(self._report.damaged) - damaged,
        }

    async def run(self, node: ScrubbedNode) -> None:
        """Scrub until cancelled; do nothing if the setting is off."""
        if not self._settings.scrub_rate:
            return
        report = await trio.to_thread.run_sync(scrub_report.load, self._settings.data)
        self._report = report or ScrubReport()
        self._scrubber.after = self._report.position
        # The start of a node has other work.
        await trio.sleep(min(limits.SCRUB_SAVE_MS, self._settings.scrub_every) / 1000)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._repair_all, node)
                await self._compare(node)
        finally:
            self._scrubber.close()
            self._save_at_end()

    # -- comparing ------------------------------------------------------------------------------------
    async def _compare(self, node: ScrubbedNode) -> None:
        pace = Pace(self._settings.scrub_rate)
        failure = ""
        while True:
            pause = self._pause()
            if pause:
                await trio.sleep(min(pause, limits.SCRUB_SAVE_MS / 1000))
                continue
            if self._report.finished or not self._report.began:
                self._report.begin(int(self._now()))
            try:
                step = await trio.to_thread.run_sync(self._scrubber.step)
                failure = ""
            except Exception as error:  # noqa: BLE001 - a defect here must not end the node
                if str(error) != failure:
                    failure = str(error)
                    expected = isinstance(error, DiosError | OSError)
                    _log.warning(
                        "cannot compare stored objects",
                        extra={"why": failure},
                        exc_info=None if expected else error,
                    )
                await trio.sleep(limits.SCRUB_RETRY_MS_MIN / 1000)
                continue
            await self._take(step, node)
            await trio.sleep(pace.delay(step.cost, trio.current_time()))

    def _pause(self) -> float:
        """Return the seconds until the next pass, 0 while a pass runs or when the clock was set back."""
        report = self._report
        passed = self._now() - report.began
        return max(self._settings.scrub_every / 1000 - passed, 0) if report.finished and passed >= 0 else 0

    async def _take(self, step: ScrubStep, node: ScrubbedNode) -> None:
        report = self._report
        now = int(self._now())
        self._bytes += step.cost
        after = self._scrubber.after
        report.after = "" if after is None else f"{after:016x}"
        if step.damage is not None:
            self._note(step.damage, node)
        if step.is_end:
            report.end(now)
        due = trio.current_time() - self._saved_at >= limits.SCRUB_SAVE_MS / 1000
        if due or step.damage is not None or step.is_end:
            await self._save()

    def _note(self, damage: Damage, node: ScrubbedNode) -> None:
        node.distrust(damage.object)
        new = self._report.note(damage, int(self._now()))
        if new is not None:
            _log.error("a stored object is damaged", extra={"what": f"{new.mark}: {new.problem}"})
            node.audit("damaged", new.mark, new.problem)
            self._has_damage.set()

    async def _save(self) -> None:
        self._saved_at = trio.current_time()
        async with self._saving:
            text = scrub_report.encode(self._report)
            try:
                await trio.to_thread.run_sync(scrub_report.save, text, self._settings.data)
            except OSError as error:
                _log.warning("cannot write the report of scrubbing", extra={"why": str(error)})

    def _save_at_end(self) -> None:
        try:
            scrub_report.save(scrub_report.encode(self._report), self._settings.data)
        except OSError as error:
            _log.warning("cannot write the report of scrubbing", extra={"why": str(error)})

    # -- repairing ------------------------------------------------------------------------------------
    async def _repair_all(self, node: ScrubbedNode) -> None:
        """Try to repair damaged objects, one after the other, each again after longer and longer pauses."""
        while True:
            self._has_damage = trio.Event()
            now = trio.current_time()
            open_damage = self._report.open_damage
            for gone in self._attempts.keys() - {entry.object for entry in open_damage}:
                del self._attempts[gone]
            for damaged in open_damage:
                at, pause = self._attempts.get(damaged.object, (now, limits.SCRUB_RETRY_MS_MIN / 1000))
                if at <= now:
                    self._attempts[damaged.object] = (
                        now + pause,
                        min(2 * pause, limits.SCRUB_RETRY_MS_MAX / 1000),
                    )
                    await self._attempt(damaged, node)
            with trio.move_on_after(limits.SCRUB_RETRY_MS_MIN / 1000):
                await self._has_damage.wait()

    async def _attempt(self, entry: DamagedObject, node: ScrubbedNode) -> None:
        try:
            await self._repair(entry, node)
        except* Exception as group:  # noqa: BLE001 - a defect here must not end the node
            entry.failure = str(unwrap_group(group))[: limits.SCRUB_PROBLEM_CHARS_MAX]
            expected = group.split((DiosError, OSError))[1] is None
            _log.warning(
                "a damaged object could not be repaired",
                extra={"what": entry.mark, "why": entry.failure},
                exc_info=None if expected else group,
            )
        await self._save()

    async def _repair(self, entry: DamagedObject, node: ScrubbedNode) -> None:
        """Repair an object, or note why it cannot be repaired; forget it if it was written or dropped."""
        row = await trio.to_thread.run_sync(self._row_of, entry)
        if row is None:
            self._forget(entry)
            return
        failure = await self._replace(row, node)
        entry.failure = failure[: limits.SCRUB_PROBLEM_CHARS_MAX]
        if not failure:
            entry.repaired = int(self._now())
            node.distrust(entry.object_id)
            _log.warning("a damaged object was repaired from a replica", extra={"what": entry.mark})
            node.audit("repaired", entry.mark, "")

    def _row_of(self, entry: DamagedObject) -> ObjectRow | None:
        """Return the row of a damaged object; None if it has other bytes now, or is gone.

        Raise DamagedError if its row is damaged.
        """
        stored = self._store.stored(entry.object_id)
        if stored is None:
            return None
        row = schema.decode_row(entry.object_id, stored)
        if row.payload.kind is ContentKind.EXTENT:
            return row if entry.extent == f"{row.payload.extent:016x}" else None
        try:
            schema.check_inline(row, bytes(schema.inline_part(stored)))
        except DamagedError:
            return row
        return None

    def _forget(self, entry: DamagedObject) -> None:
        if entry in self._report.damaged:
            self._report.damaged.remove(entry)

    async def _replace(self, row: ObjectRow, node: ScrubbedNode) -> str:
        """Replace the bytes of an object by those of a replica. Return "", or why that is not possible."""
        if row.record.name is None:
            return "it has no name, by which a replica could be found"
        file = await trio.to_thread.run_sync(partial(tempfile.TemporaryFile, dir=self._settings.data))
        try:
            reason = await self._fetch(row, row.record.name, node, file.fileno())
            if reason:
                return reason
            payload = FilePayload(file.fileno(), row.payload.size)
            done = await trio.to_thread.run_sync(self._store.restore, row, payload)
        finally:
            # The file system frees the blocks of a large file then, which takes long.
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(file.close)
        return "" if done else "it was written meanwhile"

    async def _fetch(self, row: ObjectRow, name: Name, node: ScrubbedNode, fd: int) -> str:
        """Write the right bytes of an object into a file, as its owner. Return "", or why there are none."""
        # Imported late, because a node without damage needs no client in its process.
        from dios.client.aio.node import open_session  # noqa: PLC0415 - see above
        from dios.lib.kept.repair import Wanted, fetch  # noqa: PLC0415 - see above

        record, payload = row.record, row.payload
        wanted = Wanted(record.object, name, record.groups, payload.size, payload.digest)
        kind, _, uid = record.owner.partition(":")
        rate = self._settings.replica_rate
        pace = Pace(rate)
        reason = "replicas of it did not answer in time"
        async with trio.open_nursery() as nursery:
            sock = node.open_for(int(uid), nursery) if kind == "uid" and uid.isdecimal() else None
            if sock is None:
                return "its owner may not connect to this node"
            with trio.move_on_after(limits.SCRUB_FETCH_MS_MAX / 1000 + 8 * payload.size / rate):
                async with open_session(sock, label="repairs a damaged object") as session:
                    reason = await fetch(
                        session, wanted, fd, lambda count: pace.delay(count, trio.current_time())
                    )
            nursery.cancel_scope.cancel()
        return reason
