"""The times of the parts of traced calls, which go back to their callers with the answers.

Untraced calls cost one comparison here and there. A node keeps no trace: it knows a traced call until it has
answered it. Times of another node come with that node's answer, and are placed in the middle of the time that
the request took, so that clocks need not agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec.structs import replace

from dios import limits
from dios.ids import NodeId, TaskId
from dios.wire import dcp
from dios.wire.fields import TraceSpan

Key: TypeAlias = "tuple[TaskId, int] | tuple[NodeId, int, str]"

_SERVED: Final = "served"


class _Part:
    """A span that may not have ended."""

    __slots__ = ("begun", "length_ns", "name", "node", "parent")

    def __init__(self, name: str, node: str, parent: int, begun: int) -> None:
        self.name: Final = name
        self.node: Final = node
        self.parent: Final = parent
        self.begun: Final = begun
        self.length_ns = -1


class TracedCall:
    """A traced call that is not answered yet, and its parts; the first one is the whole call at this node."""

    __slots__ = ("context", "parts")

    def __init__(self, context: bytes, name: str, node: str, begun: int) -> None:
        self.context: Final = context
        self.parts: Final = [_Part(name, node, -1, begun)]

    @property
    def name(self) -> str:
        """The kind of the call."""
        return self.parts[0].name

    def add(self, name: str, node: str, parent: int, begun: int) -> _Part | None:
        """Begin a part. Return None if the call has TRACE_SPANS_MAX parts."""
        if len(self.parts) == limits.TRACE_SPANS_MAX:
            return None
        part = _Part(name, node, parent, begun)
        self.parts.append(part)
        return part

    def spans(self, now: int) -> tuple[TraceSpan, ...]:
        """Return all parts; those that have not ended do so now."""
        first = self.parts[0].begun
        return tuple(
            TraceSpan(
                part.name,
                part.node,
                part.parent,
                max(part.begun - first, 0),
                now - part.begun if part.length_ns < 0 else part.length_ns,
            )
            for part in self.parts
        )


class CallTracer:
    """The traced calls of one node, which is called ``node``. ``enabled`` is False if it answers none."""

    def __init__(
        self, node: str = "", *, enabled: bool = True, now: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.enabled: Final = enabled
        self.is_on = False
        """True while there are traced calls without an answer."""
        self.current: TracedCall | None = None
        """The call whose work is being done in this step."""
        self.tasks: Final[set[TaskId]] = set()
        """The tasks whose traced calls are answered with times, because their starters are traced."""
        self._node: Final = node
        self._now: Final = now
        self._calls: Final[dict[Key, TracedCall]] = {}
        self._asked: Final[dict[tuple[NodeId, int], tuple[TracedCall, _Part]]] = {}
        self._commits: Final[dict[int, tuple[TracedCall, _Part]]] = {}

    # -- the calls of this node's sessions ------------------------------------------------------------
    def begin(self, task: TaskId, seq: int, name: str, context: bytes) -> None:
        """Note the arrival of a traced call; its step follows."""
        self._begin((task, seq), name, context)

    def end(self, task: TaskId, seq: int) -> tuple[TraceSpan, ...]:
        """Return the parts of a call that is answered now, and forget it."""
        return self._end((task, seq))

    def forget(self, task: TaskId) -> None:
        """Forget a session or task that has ended, with its calls."""
        self.tasks.discard(task)
        for key in [key for key in self._calls if key[0] == task and len(key) == 2]:
            self._end(key)

    # -- between nodes --------------------------------------------------------------------------------
    def outgoing(self, node: NodeId, message: dcp.Message) -> dcp.Message:
        """Return a message as it is sent: a request with its call's context, an answer with its parts."""
        if type(message) is dcp.Ask:
            return self._asking(node, message)
        if type(message) is dcp.PeerReply and type(message.result) is not dcp.Working:
            spans = self._end((node, message.number, _SERVED))
            return replace(message, spans=spans) if spans else message
        return message

    def arrived(self, node: NodeId, message: dcp.Message) -> None:
        """Note a message of another node; its step follows."""
        if type(message) is dcp.Ask:
            if message.trace is not None and (node, message.number, _SERVED) not in self._calls:
                self._begin((node, message.number, _SERVED), _name_of(message.body), message.trace)
        elif type(message) is dcp.PeerReply and type(message.result) is not dcp.Working:
            self._answered(node, message)

    def _asking(self, node: NodeId, asked: dcp.Ask) -> dcp.Ask:
        pending = self._asked.get((node, asked.number))
        if pending is None:
            call = self.current
            if call is None:
                return asked
            part = call.add(f"ask: {_name_of(asked.body)}", self._node, 0, self._now())
            if part is None:
                return asked
            pending = self._asked[node, asked.number] = (call, part)
        return replace(asked, trace=pending[0].context)

    def _answered(self, node: NodeId, reply: dcp.PeerReply) -> None:
        pending = self._asked.pop((node, reply.number), None)
        if pending is None:
            return
        call, part = pending
        part.length_ns = self._now() - part.begun
        self.current = call
        if not reply.spans:
            return
        # The way to the other node and the way back are taken as equally long.
        start = part.begun + max(part.length_ns - reply.spans[0].length_ns, 0) // 2
        offset, above = len(call.parts), call.parts.index(part)
        for place, span in enumerate(reply.spans):
            parent = span.parent + offset if 0 <= span.parent < place else above
            # Nothing there can take longer than the request, whatever that node says.
            added = call.add(span.name, span.node, parent, start + min(span.start_ns, part.length_ns))
            if added is None:
                break
            added.length_ns = min(span.length_ns, part.length_ns)

    # -- the store ------------------------------------------------------------------------------------
    def staged(self, ticket: int) -> None:
        """Note that the present call waits for a commit."""
        if self.current is not None and ticket not in self._commits:
            part = self.current.add("store: commit", self._node, 0, self._now())
            if part is not None:
                self._commits[ticket] = (self.current, part)

    def durable(self, last: int) -> None:
        """Note the commit of all tickets up to ``last``."""
        for ticket in [ticket for ticket in self._commits if ticket <= last]:
            _, part = self._commits.pop(ticket)
            part.length_ns = self._now() - part.begun

    # -------------------------------------------------------------------------------------------------
    def _begin(self, key: Key, name: str, context: bytes) -> None:
        if not self.enabled:
            return
        if len(self._calls) >= limits.TRACED_CALLS_MAX:
            # The oldest one waits for long, or was answered by something that does not know of traces.
            self._end(next(iter(self._calls)))
        self.current = self._calls[key] = TracedCall(context, name, self._node, self._now())
        self.is_on = True

    def _end(self, key: Key) -> tuple[TraceSpan, ...]:
        call = self._calls.pop(key, None)
        if call is None:
            return ()
        for asked in [asked for asked, (other, _) in self._asked.items() if other is call]:
            del self._asked[asked]
        for ticket in [ticket for ticket, (other, _) in self._commits.items() if other is call]:
            del self._commits[ticket]
        if self.current is call:
            self.current = None
        self.is_on = bool(self._calls)
        return call.spans(self._now())


def _name_of(body: dcp.RequestBody) -> str:
    """Return the kind of a request, or of the call that it forwards."""
    return type(body.call if type(body) is dcp.Forward else body).__name__
