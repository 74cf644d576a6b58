"""Vectors: many answers in one reply, within what one message can carry (§5.2.3).

Not for: the order of their effects; the core has handled the calls one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from dios import limits
from dios.core import effects as fx
from dios.errors import Code, DamagedError, DiosError, InvariantError
from dios.host.content.buffers import Answered, Buffers, Work
from dios.host.content.consoles import Consoles
from dios.host.content.contents import Content
from dios.host.content.memories import translated
from dios.host.content.received import answer_received
from dios.ids import PayloadId
from dios.transport.memory.memfd import close_all
from dios.wire.messages import Buffer, Failure, Info, PlainResult, Results, Welcome

Part: TypeAlias = (
    fx.Answer | fx.AnswerRead | fx.AnswerWrite | fx.AnswerBytes | fx.AnswerConsole | fx.AnswerReceived
)


class Vectors:
    """Answers vectors. ``effect_failed`` is told of each part whose buffer could not be had.

    ``payload_of`` tells the payloads of the step being done.
    """

    def __init__(
        self,
        buffers: Buffers,
        consoles: Consoles,
        info: Callable[[Info], Info],
        effect_failed: Callable[[fx.AnswerRead | fx.AnswerWrite, Failure], None],
        payload_of: Callable[[PayloadId], Content | None],
    ) -> None:
        self._buffers: Final = buffers
        self._consoles: Final = consoles
        self._info: Final = info
        self._effect_failed: Final = effect_failed
        self._payload_of: Final = payload_of

    def answer(self, effect: fx.AnswerVector) -> tuple[Results, list[int]]:
        """One result for each part, and their descriptors, which the caller closes.

        What no longer fits is refused by itself.
        """
        fds: list[int] = []
        try:
            return Results(tuple(self._results(effect, fds))), fds
        except BaseException:
            close_all(fds)
            raise

    def _results(self, effect: fx.AnswerVector, fds: list[int]) -> list[PlainResult]:
        results: list[PlainResult] = []
        room = limits.REPLY_BYTES_MAX - len(effect.parts) * limits.RESULT_BYTES_TYPICAL
        for part in effect.parts:
            try:
                answered = self._part(part, room)
            except (DiosError, OSError) as error:
                answered = Answered(self._refused(part, failure_of(error)))
            if len(fds) + len(answered.fds) > limits.DESCRIPTORS_PER_FRAME_MAX:
                close_all(answered.fds)
                answered = Answered(self._refused(part, _too_many()))
            result = answered.result
            if isinstance(result, Buffer) and result.data is not None:
                room -= len(result.data)
            results.append(result)
            fds += answered.fds
        return results

    def _part(self, part: Part, room: int) -> Answered:
        if isinstance(part, fx.Answer):
            result = part.result
            if isinstance(result, Results | Welcome):
                raise InvariantError(f"a {type(result).__name__} inside a vector")
            return Answered(self._info(result) if isinstance(result, Info) else result)
        if isinstance(part, fx.AnswerBytes):
            return Answered(with_data(part.result, part.data))
        if isinstance(part, fx.AnswerConsole):
            return Answered(
                with_data(part.result, self._consoles.read(part.console, part.position, part.length))
            )
        buffers = self._buffers
        if isinstance(part, fx.AnswerReceived):
            return answer_received(buffers, part, self._payload_of(part.payload), max(room, 0))
        answered = (
            buffers.read(part, max(room, 0)) if isinstance(part, fx.AnswerRead) else buffers.write(part)
        )
        return _at_once(answered) if isinstance(answered, Work) else answered

    def _refused(self, part: Part, failure: Failure) -> Failure:
        if isinstance(part, fx.AnswerRead | fx.AnswerWrite):
            self._effect_failed(part, failure)
        return failure


def do_at_once(work: Work) -> Answered | None:
    """Do a work here, where nothing else may come before it."""
    try:
        work.run()
    except BaseException:
        work.failed()
        raise
    return work.done()


def _at_once(work: Work) -> Answered:
    answered = do_at_once(work)
    if answered is None:
        raise DamagedError("the bytes were gone before they could be sent")
    return answered


def with_data(result: Buffer, data: bytes) -> Buffer:
    """A buffer reply completed with bytes that the host or the core made."""
    return Buffer(result.buffer, len(data), result.v_r, result.v_w, data=data, length=len(data))


def failure_of(error: Exception) -> Failure:
    """What a client is told of an error that met its effect."""
    if isinstance(error, OSError | DiosError):
        known = translated(error)
        return Failure(int(known.code), known.message, known.fingerprint)
    return Failure(int(Code.EIO), "the node could not carry this out; its log says why")


def _too_many() -> Failure:
    return Failure(
        int(Code.EFBIG),
        f"over {limits.DESCRIPTORS_PER_FRAME_MAX} large buffers in one message; ask in parts",
    )
