"""The protocol of a client without I/O: it numbers requests, matches replies, and raises refusals.

An *operation* is a generator that yields calls and receives their answers. It is written once, and each
client runs it in its own way (``dios.client.sync.connection``, ``dios.client.aio.connection``).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from dios.client.tracing import active
from dios.errors import DiosError, InvalidError, ProtocolError, error_for
from dios.limits import DESCRIPTORS_PER_FRAME_MAX, FRAME_BYTES_MAX, VECTOR_CALLS_MAX
from dios.transport.unix.client import close_all
from dios.wire import messages
from dios.wire.call_table import CALLS, Exemption, kinds
from dios.wire.codec import decode_reply, decode_request, encode_request
from dios.wire.messages import AnyCall, AnyResult, Failure, PlainCall, Reply
from dios.wire.types import Flag

if TYPE_CHECKING:
    from dios.client.tracing.recorder import OpenSpan, Recorder

T = TypeVar("T")

Answer: TypeAlias = tuple[AnyResult, tuple[int, ...]]
"""A result that is not a Failure, and the descriptors next to it, which the receiver closes."""

Operation: TypeAlias = Generator[AnyCall, Answer, T]
"""One operation of a handle, as the calls that it needs; a Failure is thrown into it as its exception."""

_DESCRIPTORS_OF_STREAM: Final = 3
_SENT_UNVALIDATED: Final[frozenset[type]] = kinds(lambda row: Exemption.VALID in row.exemptions)
_DESCRIPTORS: Final[dict[type, int]] = {kind: row.descriptors for kind, row in CALLS.items()}

_OF_NO_REQUEST: Final = 0
"""The number of a reply to no request; requests are numbered from 1."""

_CALL_OVERHEAD_BYTES: Final = 128
"""An upper estimate for calls without inline bytes, text or lists, used to split vectors."""


class Session:
    """The numbers of one connection's requests, and the abandoned ones."""

    __slots__ = ("_given_up", "_seq", "_spans", "answers_traces")

    def __init__(self) -> None:
        self._seq = 0
        self._spans: Final[dict[int, OpenSpan]] = {}
        """The traced calls without an answer."""
        self.answers_traces = False
        """True if the node answers traced calls with the times of their parts."""
        self._given_up: Final[dict[int, AnyCall]] = {}

    def request(self, call: AnyCall) -> tuple[int, bytes]:
        """Number a call and frame it; InvalidError if the node would not accept it as a message.

        The node would close the connection, which is too much for a wrong argument.
        """
        self._seq = seq = self._seq + 1
        try:
            trace = None if active.recorder is None else self._begin_span(active.recorder, seq, call)
            frame = encode_request(seq, call, trace)
            if type(call) not in _SENT_UNVALIDATED:
                decode_request(memoryview(frame)[4:])
        except (ProtocolError, TypeError, OverflowError, UnicodeEncodeError) as error:
            self._spans.pop(seq, None)
            # Imported late, because every task loads this module, and only a mistake needs the words.
            from dios.client.refused_arguments import in_words  # noqa: PLC0415 - see above

            raise InvalidError(in_words(error, call), call=type(call).__name__.lower()) from None
        return seq, frame

    def reply(self, body: bytes, fds: tuple[int, ...]) -> tuple[int, AnyResult]:
        """Read a reply; on ProtocolError its descriptors are closed."""
        try:
            reply = decode_reply(body)
        except ProtocolError:
            close_all(fds)
            raise
        if self._spans:
            self._end_span(reply)
        return reply.seq, reply.result

    def _begin_span(self, recorder: Recorder, seq: int, call: AnyCall) -> bytes | None:
        """Begin the span of a call. Return the context that goes with it, or None if none does."""
        span = recorder.begin(type(call).__name__)
        if span is None:
            return None
        self._spans[seq] = span
        return span.context.packed if self.answers_traces else None

    def _end_span(self, reply: Reply) -> None:
        span = self._spans.pop(reply.seq, None)
        if span is not None and active.recorder is not None:
            active.recorder.end(span, failed=isinstance(reply.result, Failure), parts=reply.spans)

    def give_up(self, seq: int, call: AnyCall) -> None:
        """Abandon a call: what it grants is given back."""
        self._given_up[seq] = call

    def late(self, seq: int, result: AnyResult, fds: tuple[int, ...]) -> list[PlainCall]:
        """Handle the reply to an abandoned call; return the calls that undo its effect.

        Raises ProtocolError if no such request was made, and the node's own reason if the reply is about the
        connection as a whole, which the node refuses.
        """
        close_all(fds)
        call = self._given_up.pop(seq, None)
        if seq == _OF_NO_REQUEST and isinstance(result, Failure):
            raise error_for(result.code, result.message, call="connect", fingerprint=result.fingerprint)
        if call is None:
            raise ProtocolError(f"the node answered request {seq}, which was not made")
        if isinstance(call, messages.Vector) and isinstance(result, messages.Results):
            pairs = zip(call.calls, result.results, strict=False)
            return [undo for inner, part in pairs for undo in undoing(inner, part)]
        return undoing(call, result)


def undoing(call: AnyCall, result: AnyResult) -> list[PlainCall]:
    """Return the calls that give back the references and buffers that ``result`` granted for ``call``."""
    if isinstance(result, messages.Created):
        return [messages.Delete(result.reference.ref, int(Flag.HANDLE_ONLY))]
    if isinstance(result, messages.References) and not isinstance(call, messages.Stat):
        return [messages.Delete(reference.ref, int(Flag.HANDLE_ONLY)) for reference in result.references]
    if isinstance(result, messages.Buffer) and result.buffer:
        if isinstance(call, messages.AcquireRead):
            return [messages.ReleaseRead(call.ref, result.buffer)]
        if isinstance(call, messages.AcquireWrite):
            return [messages.ReleaseWrite(call.ref, result.buffer)]
    return []


def refusal(failure: Failure, call: AnyCall) -> DiosError:
    """Return the exception for a Failure, with the call and the object's fingerprint."""
    name = type(call).__name__.lower()
    return error_for(failure.code, failure.message, call=name, fingerprint=failure.fingerprint)


def expect(kind: type[T], answer: Answer) -> T:
    """Return the answer's result, which must be of one kind and have no descriptors."""
    result, fds = answer
    if fds or not isinstance(result, kind):
        close_all(fds)
        raise ProtocolError(f"the node answered with a {type(result).__name__}, not a {kind.__name__}")
    return result


def expect_buffer(answer: Answer) -> tuple[messages.Buffer, int | None]:
    """Return the answer as a buffer, and the descriptor of its memory if it has one."""
    result, fds = answer
    wanted = 0 if not isinstance(result, messages.Buffer) or not result.mapping else 1
    if not isinstance(result, messages.Buffer) or len(fds) != wanted:
        close_all(fds)
        raise ProtocolError(f"the node answered with a {type(result).__name__} and {len(fds)} descriptors")
    return result, fds[0] if fds else None


def expect_attached(answer: Answer) -> tuple[messages.Attached, tuple[int, int, int]]:
    """Return the answer as one end of a stream, and its three descriptors."""
    result, fds = answer
    if not isinstance(result, messages.Attached) or len(fds) != _DESCRIPTORS_OF_STREAM:
        close_all(fds)
        raise ProtocolError(f"the node answered with a {type(result).__name__} and {len(fds)} descriptors")
    return result, (fds[0], fds[1], fds[2])


# -- vectors --------------------------------------------------------------------------------------
def vector(calls: Iterable[PlainCall]) -> Operation[list[Answer | DiosError]]:
    """Make any number of independent calls in the smallest number of messages.

    Returns, for each call, its answer or the exception of its refusal (§5.2.3).
    """
    outcomes: list[Answer | DiosError] = []
    for group in _groups(calls):
        answer = yield messages.Vector(group)
        outcomes += split(group, answer)
    return outcomes


def _groups(calls: Iterable[PlainCall]) -> Iterable[tuple[PlainCall, ...]]:
    group: list[PlainCall] = []
    size = 0
    buffers = 0
    for call in calls:
        data = getattr(call, "data", None)
        own = _CALL_OVERHEAD_BYTES + (len(data) if data else 0)
        maps = _DESCRIPTORS[type(call)]
        full = len(group) == VECTOR_CALLS_MAX or size + own > FRAME_BYTES_MAX
        if group and (full or buffers + maps > DESCRIPTORS_PER_FRAME_MAX):
            yield tuple(group)
            group, size, buffers = [], 0, 0
        group.append(call)
        size += own
        buffers += maps
    if group:
        yield tuple(group)


def split(calls: tuple[PlainCall, ...], answer: Answer) -> list[Answer | DiosError]:
    """Split the answer to a vector, and give each part its own descriptors, in order."""
    result, fds = answer
    if not isinstance(result, messages.Results) or len(result.results) != len(calls):
        close_all(fds)
        raise ProtocolError("the node did not answer each call of a vector")
    parts: list[Answer | DiosError] = []
    start = 0
    for call, part in zip(calls, result.results, strict=True):
        if type(part) is Failure:
            parts.append(refusal(part, call))
            continue
        end = start + _descriptors_of(part)
        parts.append((part, fds[start:end]))
        start = end
    if start != len(fds):
        close_all(fds)
        raise ProtocolError(f"the node sent {len(fds)} descriptors for results with {start}")
    return parts


def _descriptors_of(part: messages.PlainResult) -> int:
    """Return the number of descriptors that come with a result."""
    if type(part) is messages.Buffer:
        return 1 if part.mapping else 0
    return _DESCRIPTORS_OF_STREAM if type(part) is messages.Attached else 0


def all_held(outcomes: list[Answer | DiosError]) -> list[Answer]:
    """Return the answers of a vector's calls; the first refusal is raised, after closing all descriptors."""
    answers = [outcome for outcome in outcomes if not isinstance(outcome, DiosError)]
    for outcome in outcomes:
        if isinstance(outcome, DiosError):
            for _, fds in answers:
                close_all(fds)
            raise outcome
    return answers


_PAUSE_FIRST_S: Final = 0.01
_PAUSE_LONGEST_S: Final = 1.0
_PAUSE_EACH_S: Final = 0.01


def pause_s(refused: int, held: int, *, others: bool) -> float:
    """Return the seconds after which a held call is made again if none of its client is answered before.

    A call waits for an answer to another one. But the node may have refused it because of the calls of other
    clients, whose answers this client does not see. The pause grows with the number of earlier refusals,
    unless ``others`` of this client wait at the node: then it has its full length. With ``held`` calls in the
    client, about a hundred of them are made again in a second.
    """
    grown = _PAUSE_LONGEST_S if others else min(_PAUSE_FIRST_S * 2 ** min(refused, 10), _PAUSE_LONGEST_S)
    return grown + _PAUSE_EACH_S * held
