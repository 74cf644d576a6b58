"""Answers reads of logs (DURABLE_STREAM) with whole entries.

The writer thread (``dios.host.loop.persister``) writes entries; the core knows the length of each log.
"""

from __future__ import annotations

from typing import Final

from dios.core.effects import AnswerLog
from dios.host.loop.outbox import Outbox
from dios.host.loop.vectors import with_data
from dios.store.log_files import LogStore, whole_entries


class LogReader:
    """A reader of logs that replies to tasks."""

    def __init__(self, logs: LogStore, outbox: Outbox) -> None:
        self._logs: Final = logs
        self._outbox: Final = outbox

    def answer(self, effect: AnswerLog) -> None:
        """Reply with the whole entries of the range. Raise DamagedError if no entry begins at its start."""
        data = self._logs.read(effect.object, effect.position, effect.length)
        whole = whole_entries(effect.object, effect.position, data)
        self._outbox.reply(effect.task, effect.seq, with_data(effect.result, data[:whole]))
