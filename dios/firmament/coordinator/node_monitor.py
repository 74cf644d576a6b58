"""A coordinator's eyes on its own node: what is measured there is told to whoever schedules, and kept.

For: ``coordinator.loop``, in every coordinator, whoever schedules. Not for: measuring
(``coordinator.observer``, ``coordinator.tracing``), nor for what is made of it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

import trio

from dios.errors import DiosError
from dios.firmament.coordinator.observer import Observer
from dios.firmament.coordinator.task_tracer import TaskTracer
from dios.firmament.knowledge.knowledge_base import KnowledgeBase

if TYPE_CHECKING:
    from dios.client.trio.node import AsyncNode
    from dios.wire.messages import QueueRows

KNOWLEDGE: Final = "knowledge"
"""The label of the durable object in which a node keeps what its coordinator has measured."""

_LOOK_S: Final = 2.0
_NO_BOARD_S: Final = 0.25
_KEEP_S: Final = 60.0
"""Measurements of the last minute may go with the node."""
_KEEP_COURSES_S: Final = 5.0
"""Courses are few, and each run of a job makes them once."""


class NodeMonitor:
    """What one coordinator sees of its node.

    Whoever schedules reads and adds to the same knowledge: ``lock`` is held while anything is seen.
    """

    def __init__(self, node: AsyncNode, knowledge: KnowledgeBase, lock: trio.Lock) -> None:
        self._node = node
        self._knowledge = knowledge
        self._lock = lock
        self._observer = Observer(knowledge)
        self._tracer = TaskTracer(knowledge)
        self._board: QueueRows | None = None
        self._kept = b""

    @property
    def unmeasured(self) -> dict[str, str]:
        """What this machine cannot measure, and why."""
        return self._observer.unmeasured

    def use(self, board: QueueRows) -> None:
        """The node has a new board."""
        self._board = board
        self._tracer.heard(board, time.monotonic_ns())

    def close(self) -> None:
        """Let go of all counters."""
        self._observer.close()

    async def run(self) -> None:
        """Look until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tracer.run, self._node, self._lock)
            nursery.start_soon(self._observe)

    async def _observe(self) -> None:
        """Look at this node's tasks now and then; tell whoever schedules, and keep it on the node."""
        keep_at = trio.current_time() + _KEEP_S
        while True:
            board = self._board
            if board is None:
                await trio.sleep(_NO_BOARD_S)
                continue
            async with self._lock:
                await trio.to_thread.run_sync(self._observer.look, board)
                report = self._observer.report(board.name)
            if report is not None:
                await log_failure("its measurements are not told", self._node.report(report))
            if self._tracer.fresh:
                self._tracer.fresh = False
                keep_at = min(keep_at, trio.current_time() + _KEEP_COURSES_S)
            if trio.current_time() >= keep_at:
                keep_at = trio.current_time() + _KEEP_S
                await self._keep()
            await trio.sleep(_LOOK_S)

    async def _keep(self) -> None:
        stored = [reference for reference in self._node.inputs if reference.label == KNOWLEDGE]
        if not stored:
            return
        async with self._lock:
            data = await trio.to_thread.run_sync(self._knowledge.to_bytes)
        if data != self._kept:
            self._kept = data
            await log_failure("its measurements are not kept", stored[0].write_bytes(data))


async def log_failure(what: str, doing: Awaitable[object]) -> None:
    """Do what may fail without harm to the scheduling; its failures stand in the task's console."""
    try:
        await doing
    except DiosError as error:
        sys.stderr.write(f"coordinator: {what}: {error}\n")
