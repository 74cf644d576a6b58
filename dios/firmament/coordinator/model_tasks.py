"""Runs cost models of operators, each in a pure task that has two streams to the coordinator alone."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import trio

from dios.client.aio import rings
from dios.client.aio.handles import loop_of
from dios.errors import DiosError, InvalidError
from dios.firmament.custom_model import answers, orders
from dios.firmament.custom_model.program import PROGRAM
from dios.firmament.custom_model.remote_model import RemoteModel, opened_by
from dios.firmament.rounds.model_guard import ModelError
from dios.limits import SCHED_MODEL_MEMORY_BYTES
from dios.wire.messages import Limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from dios.client.aio.node import AsyncNode, AsyncTask
    from dios.firmament.policies.stored_shares import StoredPolicy
    from dios.transport.rings.waiting import RingReader, RingWriter

LABEL: Final = "cost model"
_OPEN_S: Final = 60.0
"""The time for starting the task, and for checking the model."""


async def open_model(node: AsyncNode, chosen: StoredPolicy, limit_s: Callable[[], float]) -> RemoteModel:
    """Start a pure task for the model of ``chosen``, and check the model there.

    Args:
        node: the coordinator's connection.
        chosen: the text of the model, and its parameters.
        limit_s: returns the time within which the model has to answer each later question, in seconds.

    Raises:
        InvalidError: the model cannot be used; the message has the reason.
        DiosError: its task cannot be started.
    """
    outgoing = await node.create_stream(ring_bytes=orders.LANE_BYTES)
    incoming = await node.create_stream(ring_bytes=orders.LANE_BYTES)
    task = await node.run(
        PROGRAM.encode(),
        inputs={orders.LABEL: outgoing.restrict("read"), answers.LABEL: incoming.restrict("write")},
        label=LABEL,
        limits=Limits(memory_bytes=SCHED_MODEL_MEMORY_BYTES),
        local=True,
    )
    link = _Link(node, task, await outgoing.writer(), await incoming.reader(), limit_s)
    try:
        order = orders.Open(chosen.source, dict(chosen.parameters))
        opened = opened_by(await link.exchange(orders.encode(order), _OPEN_S))
    except ModelError as error:
        await link.end()
        raise InvalidError(str(error)) from None
    except BaseException:
        with trio.CancelScope(shield=True):
            await link.end()
        raise
    return RemoteModel(link, opened)


class _Link:
    """The streams to the task of a model."""

    def __init__(
        self,
        node: AsyncNode,
        task: AsyncTask,
        writer: RingWriter,
        reader: RingReader,
        limit_s: Callable[[], float],
    ) -> None:
        self._node: Final = node
        self._task: Final = task
        self._writer: Final = writer
        self._reader: Final = reader
        self._token: Final = trio.lowlevel.current_trio_token()
        self._broken = ""
        self._limit_s: Final = limit_s

    def ask(self, order: bytes) -> bytes:
        """Send an order and return the answer; for other threads than the event loop's."""
        return trio.from_thread.run(self.exchange, order, self._limit_s(), trio_token=self._token)

    def close(self) -> None:
        """End the task soon; for any thread."""
        self._broken = self._broken or "another model is used"
        # The coordinator may be ending, and its tasks with it.
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(lambda: trio.lowlevel.spawn_system_task(self.end))

    async def exchange(self, order: bytes, limit_s: float) -> bytes:
        """Send an order and return the answer. Raise ModelError if the task ended, or is late."""
        if self._broken:
            raise ModelError(self._broken)
        loop = loop_of(self._node)
        # An exchange that was interrupted leaves half a message behind.
        self._broken = f"did not answer within {limit_s:g} s"
        try:
            with trio.fail_after(limit_s):
                await rings.send(loop, self._writer, order)
                steps = self._reader.receive_steps(answers.ANSWER_BYTES_MAX)
                answer = await rings.run_steps(loop, self._reader, steps)
        except trio.TooSlowError:
            raise ModelError(self._broken) from None
        except DiosError:
            self._broken = await self._why_ended()
            raise ModelError(self._broken) from None
        self._broken = ""
        return answer

    async def end(self) -> None:
        """End the task."""
        with contextlib.suppress(DiosError):
            await self._task.kill()
        with contextlib.suppress(DiosError):
            await self._task.close()

    async def _why_ended(self) -> str:
        why = "the task of the model broke the protocol"
        with contextlib.suppress(DiosError), trio.move_on_after(1.0):
            status = await self._task.wait()
            why = status.detail.strip().rpartition("\n")[2] or f"status {status.exit_status}"
        return f"the task of the model ended: {why}"
