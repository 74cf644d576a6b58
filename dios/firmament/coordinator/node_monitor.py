"""The regular measurements of a coordinator's own node: reported to the scheduler, and stored.

Every coordinator has a node monitor. ``observer`` and ``task_tracer`` measure.
"""

from __future__ import annotations

import os
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
    from dios.client.aio.node import AsyncNode
    from dios.wire.messages import QueueRows

KNOWLEDGE: Final = "knowledge"
"""The label of the durable object in which a node keeps its coordinator's measurements."""

_LOOK_S: Final = 2.0
_IDLE_LOOK_S: Final = 60.0
"""The time between two measurements while no task runs but the coordinator itself, and nothing changes."""
_KEEP_S: Final = 60.0
"""Measurements of the last minute may be lost with the node."""
_KEEP_COURSES_S: Final = 5.0
"""Usage profiles are stored sooner: each run of a job makes them only once."""


class NodeMonitor:
    """Observes one node and stores the measurements.

    The scheduler uses the same knowledge base: ``lock`` is held while it is changed.
    """

    def __init__(self, node: AsyncNode, knowledge: KnowledgeBase, lock: trio.Lock) -> None:
        self._node = node
        self._knowledge = knowledge
        self._lock = lock
        self._observer = Observer(knowledge, os.getpid())
        self._tracer = TaskTracer(knowledge)
        self._board: QueueRows | None = None
        self._kept = b""
        self._news = trio.Event()

    @property
    def unmeasured(self) -> dict[str, str]:
        """The measurements that this machine cannot make, and the reasons."""
        return self._observer.unmeasured

    def use(self, board: QueueRows) -> None:
        """Use a new queue of the node."""
        self._board = board
        self._news.set()
        self._tracer.heard(board, time.monotonic_ns())

    def close(self) -> None:
        """Close all counters."""
        self._observer.close()

    async def run(self) -> None:
        """Observe until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tracer.run, self._node, self._lock)
            nursery.start_soon(self._observe)

    async def _observe(self) -> None:
        """Measure this node's tasks regularly, report the measurements, and store them."""
        keep_at = trio.current_time() + _KEEP_S
        while True:
            board = self._board
            self._news = trio.Event()
            if board is None:
                await self._news.wait()
                continue
            async with self._lock:
                await trio.to_thread.run_sync(self._observer.look, board)
                report = self._observer.report(board.name)
            if report is not None:
                await log_failure("cannot report the measurements", self._node.report(report))
            if self._tracer.fresh:
                self._tracer.fresh = False
                keep_at = min(keep_at, trio.current_time() + _KEEP_COURSES_S)
            if trio.current_time() >= keep_at:
                keep_at = trio.current_time() + _KEEP_S
                await self._keep()
            await trio.sleep(_LOOK_S)
            if not self._observer.follows_tasks and self._observer.load is not None:
                with trio.move_on_after(min(_IDLE_LOOK_S, max(0.0, keep_at - trio.current_time()))):
                    await self._news.wait()

    async def _keep(self) -> None:
        stored = [reference for reference in self._node.inputs if reference.label == KNOWLEDGE]
        if not stored:
            return
        async with self._lock:
            data = await trio.to_thread.run_sync(self._knowledge.to_bytes)
        if data != self._kept:
            self._kept = data
            await log_failure("cannot store the measurements", stored[0].write_bytes(data))


async def log_failure(problem: str, doing: Awaitable[object]) -> None:
    """Run an operation whose failure does no harm to the scheduling; write its error to the console."""
    try:
        await doing
    except DiosError as error:
        sys.stderr.write(f"coordinator: {problem}: {error}\n")
