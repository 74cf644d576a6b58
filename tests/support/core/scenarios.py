"""Scenarios of the core as text: events, each followed by its outcome, which a run writes again.

    > a = session()                             a session; "a" is its client
    > a: Create(ObjectType.SHMEM_BLOB) as blob  a call; "blob" is the reference, or the buffer, of its answer,
                                              and "blob_name" the name of the new object
    > start job as run                          the process of the last run is there; "job" is its client
    > end job EXITED 3                          the process is gone
    > after 5                                   seconds pass, and the timer fires
    > TaskEnded(now, job.task, Cause.KILLED)    any other event

    > 2 nodes                                   a cluster in place of one node; "n1" and "n2" are its nodes
    > a = n1.session()                          a session at a node
    > cut n1 n2                                 the connection of two nodes ends
    > heal                                      all nodes are connected again
    > restart n2                                a node starts again, with what it had stored

In a cluster each line of an outcome begins with its node, and messages arrive before the next event.
Numbers that the core draws stand for themselves by the order in which they come: ``#1``. Fields with their
defaults are left out. A reference shows the first letters of its rights, and the counts of reads and writes:
of versions (v) and of active requests (a).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec import Struct, structs

from dios import limits
from dios.core import effects, events
from dios.wire import dcp, messages, types
from tests.support.core.cluster import Cluster, ClusterNode
from tests.support.core.harness import OWNER, Client, Node

_SECOND: Final = 1_000_000_000
_DRAWN_MIN: Final = 1 << 48
_FINGERPRINT: Final = re.compile(r"\b[0-9a-f]{12}\b")
_CALL: Final = re.compile(r"(\w+): (.*)")
_NAMED: Final = re.compile(r"(.*) as (\w+)")


class Scenario:
    """One node or a cluster, and the clients that a text names."""

    def __init__(self) -> None:
        self._node: Node = Node()
        self._cluster: Cluster | None = None
        self._history: list[tuple[Node, str, object]] = self._node.history
        self._names: Final[dict[str, object]] = {
            **vars(types), **vars(messages), **vars(events), "OWNER": OWNER
        }  # fmt: skip
        self._drawn: Final[dict[object, str]] = {}
        self._before: list[tuple[Node, str, object]] = []
        """What the last event did."""

    def play(self, text: str) -> str:
        """Execute the events of a text, and return the text with the outcomes as they are."""
        lines: list[str] = []
        for line in text.splitlines():
            if line.startswith("> "):
                lines += [line, *self._outcome(line[2:])]
            elif not line.startswith("    "):
                lines.append(line)
        return "\n".join(lines) + "\n"

    def _outcome(self, event: str) -> Iterator[str]:
        """Execute an event and yield the lines of its outcome."""
        self._before = list(self._history)
        self._history.clear()
        named = _NAMED.fullmatch(event)
        self._execute(named[1] if named else event)
        if self._cluster is not None:
            self._cluster.settle()
        if "session(" in event or event.endswith(" nodes"):
            return  # it is the same each time
        for node, prefix, value in self._history:
            if not (isinstance(value, effects.Send) and isinstance(value.message, dcp.Gossip)):
                place = f"n{node.node} " if isinstance(node, ClusterNode) else ""
                yield f"    {place}{prefix}{self._shown(value)}"
        if named:
            self._enter(named[2], [value for _, _, value in self._history])

    def _execute(self, event: str) -> None:
        node = self._node
        words = event.split()
        if words[1:] == ["nodes"]:
            self._form(int(words[0]))
        elif self._cluster is not None and words[0] in {"cut", "heal", "restart", "after"}:
            self._happen(self._cluster, *words)
        elif words[1:2] == ["="]:
            client = self._value(event.partition("=")[2], {"session": node.session})
            assert isinstance(client, Client)
            self._names[words[0]] = client
        elif words[0] == "start":
            self._names[words[1]] = self._started()
        elif words[0] == "end":
            client = self._client(words[1])
            client.node.end(client.task, types.Cause[words[2]], int(words[3]) if len(words) > 3 else 0)
        elif words[0] == "after":
            node.now += int(float(words[1]) * _SECOND)
            node.step(events.TimerFired(node.now))
        elif call := _CALL.fullmatch(event):
            message = self._value(call[2])
            assert isinstance(message, messages.Call | messages.Vector), message
            self._client(call[1]).send(message)
        else:
            other = self._value(event, {"now": node.now})
            assert isinstance(other, Struct), other
            node.step(other)  # type: ignore[arg-type] # an event, or the core refuses it

    def _form(self, number: int) -> None:
        """Connect this many nodes."""
        self._cluster = cluster = Cluster(("r1",) * number)
        self._history.clear()
        for node in cluster.nodes:
            node.history = self._history
            self._names[f"n{node.node}"] = node

    def _happen(self, cluster: Cluster, event: str, *arguments: str) -> None:
        """Let something happen to nodes."""
        if event == "after":
            cluster.advance(int(float(arguments[0]) * 1_000))
            return
        nodes = [cluster.nodes[int(name[1:]) - 1] for name in arguments]
        if event == "cut":
            cluster.part(*nodes)
        elif event == "heal":
            cluster.heal()
        else:
            (node,) = nodes
            node.crash()
            node.history = self._history
            for other in cluster.nodes:
                if other is not node:
                    cluster.connect(node, other)
                    cluster.connect(other, node)

    def _started(self) -> Client:
        node, task = next(
            (node, value.task) for node, _, value in self._before if isinstance(value, effects.Spawn)
        )
        welcome = node.answers[task, 0]
        assert isinstance(welcome, messages.Welcome)
        node.step(events.TaskStarted(node.now, task, 100))
        return Client(node, task, welcome)

    def _client(self, name: str) -> Client:
        client = self._names[name]
        assert isinstance(client, Client)
        return client

    def _value(self, expression: str, more: dict[str, object] | None = None) -> object:
        value: object = eval(expression, {}, {**self._names, **(more or {})})  # noqa: S307 - our own text
        return value

    def _enter(self, name: str, after: Iterable[object]) -> None:
        """Give a name to the reference or the buffer of the last answer, and to the name of a new object."""
        results = [getattr(effect, "result", None) for effect in after]
        result = next(answer for answer in reversed(results) if answer is not None)
        if isinstance(result, messages.Created):
            self._names[name], self._names[f"{name}_name"] = result.reference.ref, result.name
        elif isinstance(result, messages.References):
            self._names[name] = result.references[0].ref
        else:
            assert isinstance(result, messages.Buffer), result
            self._names[name] = result.buffer

    # -- text -----------------------------------------------------------------------------------------
    def _shown(self, value: object) -> str:
        """Return a value as text, with numbers in order in place of those that were drawn."""
        if isinstance(value, messages.Reference):
            return self._reference(value)
        if isinstance(value, effects.Audit):
            texts = (value.action, value.outcome, value.subject, value.detail)
            return f"Audit({', '.join(map(self._shown, texts))})"
        if isinstance(value, Struct):
            return f"{type(value).__name__}({', '.join(self._fields(value))})"
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(self._shown, value))}]"
        if isinstance(value, bool) or value is None:
            return str(value)
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, int):
            return self._number(value) if value >= _DRAWN_MIN else str(value)
        if isinstance(value, bytes) and len(value) >= limits.NAME_BYTES:
            return self._number(value)
        if isinstance(value, str):
            return _FINGERPRINT.sub(lambda mark: self._number(mark[0]), repr(value))
        return repr(value)

    def _fields(self, value: Struct) -> Iterator[str]:
        for field in structs.fields(value):
            content = getattr(value, field.name)
            if content != field.default:
                yield f"{field.name}={self._shown(content)}"

    def _reference(self, value: messages.Reference) -> str:
        rights = "".join(right.name[0] for right in types.Permission(value.permissions) if right.name)
        state = f"{value.size} bytes, v {value.v_r}/{value.v_w}, a {value.a_r}/{value.a_w}"
        tags = f", {' '.join(value.secrecy)}" if value.secrecy else ""
        place = f"{value.persistence} {value.type.name} {self._shown(value.object)}"
        return f"<{self._shown(value.ref)}: {rights} of {place}, {state}{tags}>"

    def _number(self, value: object) -> str:
        return self._drawn.setdefault(value, f"#{len(self._drawn) + 1}")
