"""Replies to vectors: many answers in one message (§5.2.3).

The core has processed the calls one after another; this module only builds the reply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from dios import limits
from dios.core import effects as fx
from dios.errors import Code, DamagedError, DiosError, InvariantError
from dios.host.content.buffers import BackgroundWork, Buffers, CompletedReply
from dios.host.content.consoles import Consoles
from dios.host.content.contents import Content
from dios.host.content.memories import translate_os_error
from dios.host.content.received import answer_received
from dios.host.content.streams import Streams
from dios.ids import PayloadId
from dios.transport.memory.memfd import close_all
from dios.wire.codec import encode_reply
from dios.wire.messages import (
    Attached,
    Buffer,
    Committed,
    Created,
    Done,
    Failure,
    Info,
    PlainResult,
    Results,
    Selected,
    TableRows,
    Welcome,
)

VectorPart: TypeAlias = fx.Reply
Described: TypeAlias = Info | TableRows
"""Answers about the node, to which the host adds what the core does not know."""

_FRAME_BYTES: Final = 64
"""Reserved for the frame around the results."""
_CUT_CHARS: Final = 40
"""Characters, of at most four bytes each, of a failure that has no room for more."""
_SHORT: Final = frozenset({Attached, Committed, Done, Selected})
"""Results of a few numbers."""


class VectorReplies:
    """Builds the replies to vectors.

    ``effect_failed`` is called with each read or write whose buffer could not be opened. ``payload_of``
    returns a payload of the step that is being carried out.
    """

    def __init__(
        self,
        buffers: Buffers,
        consoles: Consoles,
        complete: Callable[[Described], Described],
        effect_failed: Callable[[fx.AnswerRead | fx.AnswerWrite, Failure], None],
        payload_of: Callable[[PayloadId], Content | None],
        streams: Streams,
    ) -> None:
        self._buffers: Final = buffers
        self._consoles: Final = consoles
        self._complete: Final = complete
        self._effect_failed: Final = effect_failed
        self._payload_of: Final = payload_of
        self._streams: Final = streams

    def answer(self, effect: fx.AnswerVector) -> tuple[Results, list[int]]:
        """Return one result per call and the descriptors of all results, which the caller closes.

        A result that does not fit into the message is replaced by a failure of its own.
        """
        fds: list[int] = []
        try:
            return Results(tuple(self._results(effect, fds))), fds
        except BaseException:
            close_all(fds)
            raise

    def _results(self, effect: fx.AnswerVector, fds: list[int]) -> list[PlainResult]:
        results: list[PlainResult] = []
        room = limits.REPLY_BYTES_MAX - _FRAME_BYTES - len(effect.parts) * limits.RESULT_BYTES_TYPICAL
        # An answer with a new object's reference always arrives: nothing else may name the object.
        room -= sum(
            _bytes_beyond_typical(part.result)
            for part in effect.parts
            if isinstance(part, fx.Answer) and isinstance(part.result, Created)
        )
        for part in effect.parts:
            try:
                answered = self._part(part, room)
            except (DiosError, OSError) as error:
                answered = CompletedReply(self._refused(part, failure_answer(error)))
            if len(fds) + len(answered.fds) > limits.DESCRIPTORS_PER_FRAME_MAX:
                close_all(answered.fds)
                answered = CompletedReply(self._refused(part, _too_many()))
            result = answered.result
            if not isinstance(result, Created):
                size = _bytes_beyond_typical(result)
                if size > room:
                    close_all(answered.fds)
                    cut = _cut(result)
                    result = cut if isinstance(result, Failure) else self._refused(part, cut)
                    size, answered = 0, CompletedReply(result)
                room -= size
            results.append(result)
            fds += answered.fds
        return results

    def _part(self, part: VectorPart, room: int) -> CompletedReply:
        if isinstance(part, fx.Answer):
            result = part.result
            if isinstance(result, Results | Welcome):
                raise InvariantError(f"a {type(result).__name__} inside a vector")
            return CompletedReply(self._complete(result) if isinstance(result, Info | TableRows) else result)
        if isinstance(part, fx.AnswerBytes):
            return CompletedReply(with_data(part.result, part.data))
        if isinstance(part, fx.AnswerConsole):
            return CompletedReply(
                with_data(part.result, self._consoles.read(part.console, part.position, part.length))
            )
        if isinstance(part, fx.AnswerAttach):
            attached, fds = self._streams.attach(part.object, part.mode, part.ring_bytes, duplex=part.duplex)
            return CompletedReply(attached, fds)
        buffers = self._buffers
        if isinstance(part, fx.AnswerReceived):
            return answer_received(buffers, part, self._payload_of(part.payload), max(room, 0))
        answered = (
            buffers.read(part, max(room, 0)) if isinstance(part, fx.AnswerRead) else buffers.write(part)
        )
        return _answer_now(answered) if isinstance(answered, BackgroundWork) else answered

    def _refused(self, part: VectorPart, failure: Failure) -> Committed | Failure:
        if isinstance(part, fx.AnswerRead | fx.AnswerWrite):
            self._effect_failed(part, failure)
        return without_buffer(part, failure)


def run_now(work: BackgroundWork) -> CompletedReply | None:
    """Do background work in the loop, for effects that must run in their order."""
    try:
        work.run()
    except BaseException:
        work.failed()
        raise
    return work.done()


def _answer_now(work: BackgroundWork) -> CompletedReply:
    answered = run_now(work)
    if answered is None:
        raise DamagedError("cannot send the object's bytes: they are no longer available. Try again.")
    return answered


def with_data(result: Buffer, data: bytes) -> Buffer:
    """Return a buffer reply with bytes that the host or the core produced."""
    return Buffer(result.buffer, len(data), result.v_r, result.v_w, data=data, length=len(data))


def is_expected(error: Exception) -> bool:
    """Return True for an error that an effect may raise; all others are defects."""
    return isinstance(error, DiosError | OSError)


def failure_answer(error: Exception) -> Failure:
    """Return the failure that a client receives for an error of one of its effects."""
    if isinstance(error, OSError | DiosError):
        known = translate_os_error(error)
        return Failure(int(known.code), known.message, known.fingerprint)
    return Failure(int(Code.EIO), "the node failed to carry out this call; see the node's log for the reason")


def without_buffer(effect: fx.Effect, failure: Failure) -> Committed | Failure:
    """Return the reply of an effect whose buffer could not be provided; a commit of the same call stands."""
    if isinstance(effect, fx.AnswerRead | fx.AnswerWrite | fx.AnswerReceived) and effect.committed:
        return Committed(effect.result.v_r, effect.result.v_w)
    return failure


def _bytes_beyond_typical(result: PlainResult) -> int:
    """Return the encoded bytes of a result above those that are reserved for each part of a vector."""
    if type(result) in _SHORT:
        return 0
    if isinstance(result, Buffer):
        return 0 if result.data is None else len(result.data)
    return max(len(encode_reply(0, result)) - limits.RESULT_BYTES_TYPICAL, 0)


def _cut(result: PlainResult) -> Failure:
    """Return the short failure that replaces a result for which the reply has no room."""
    if isinstance(result, Failure):
        return Failure(result.code, result.message[:_CUT_CHARS])
    return Failure(int(Code.EFBIG), "the vector's reply has no room for this answer. Split the vector.")


def _too_many() -> Failure:
    return Failure(
        int(Code.EFBIG),
        f"a message carries at most {limits.DESCRIPTORS_PER_FRAME_MAX} large buffers. Split the vector.",
    )
