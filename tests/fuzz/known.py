"""The kinds of calls, and the values that an attacker has learned and can use in them.

It imports only the wire format, because it also runs in sandboxed tasks. Frames are made in ``frames``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import inspect

from dios.wire import messages
from dios.wire.messages import AnyResult
from dios.wire.types import Deletion, ObjectType

Plain: TypeAlias = list[object]
"""An encoded message: its tag, then its fields."""

KEPT: Final = 96
"""The number of references, names and buffers of each sort that an attacker stores."""

PROGRAMS: Final = (
    b"pass",
    b"import time; time.sleep(0.05)",
    b"raise SystemExit(3)",
    b"1/0",
    b"\xff\0not a program",
)
"""Programs that attackers write to be run."""


class Kind:
    """One class of call: its tag and its fields, from the definition of the wire format."""

    def __init__(self, call: type[msgspec.Struct]) -> None:
        described = inspect.type_info(call)
        assert isinstance(described, inspect.StructType)
        self.call: Final = call
        self.tag: Final = described.tag
        self.fields: Final = described.fields
        self.required: Final = sum(field.required for field in described.fields)
        names = {field.name for field in described.fields}
        self.paired: Final = ({"ref", "buffer"} <= names and "iov" not in names) or call in _COMMITS


_COMMITS: Final = (messages.CommitRead, messages.CommitWrite)
_WRITING: Final = (
    messages.CommitWrite,
    messages.ReleaseWrite,
    messages.CommitAcquireWrite,
    messages.AcquireWrite,
)


def _members(alias: object) -> tuple[type[msgspec.Struct], ...]:
    members: tuple[type[msgspec.Struct], ...] = getattr(alias, "__args__", ())
    return members


KINDS: Final = tuple(Kind(call) for call in _members(messages.PlainCall))
WEIGHTS: Final = [
    {"Create": 5, "Run": 2, "Shutdown": 1, "SetLimits": 1}.get(kind.call.__name__, 3) for kind in KINDS
]
GRAVE: Final = frozenset({"Shutdown", "SetLimits"})
"""Rights that the node's own user may have, so that asking for them is not an attack."""
CREATE: Final = next(kind for kind in KINDS if kind.call is messages.Create)
_WRITING_TAGS: Final = frozenset(kind.tag for kind in KINDS if kind.call in _WRITING)
_DELETE_TAG: Final = next(kind.tag for kind in KINDS if kind.call is messages.Delete)


class Known:
    """The values that one attacker has learned, and those it was given about others."""

    def __init__(self, foreign: Sequence[int] = (), foreign_names: Sequence[bytes] = ()) -> None:
        self.foreign: Final = list(foreign)
        self.names: deque[bytes] = deque(foreign_names, KEPT)
        self.groups: deque[int] = deque(maxlen=KEPT)
        self.refs: deque[int] = deque(maxlen=KEPT)
        self.tasks: deque[int] = deque(maxlen=KEPT)
        self.code: deque[int] = deque(maxlen=KEPT)
        self.dead: deque[int] = deque(maxlen=KEPT)
        self.buffers: deque[tuple[int, int, bool]] = deque(maxlen=KEPT)
        self.created: list[bytes] = []

    def learn(self, sent: Sequence[Plain], result: AnyResult) -> None:
        """Learn from a reply; ``sent`` are the answered calls, several for a vector."""
        if isinstance(result, messages.Results):
            for call, part in zip(sent, result.results, strict=False):
                self._take(call, part)
        elif sent:
            self._take(sent[0], result)

    def welcome(self, result: messages.Welcome) -> None:
        """Learn from the welcome of a task or session."""
        self.names.append(result.name)
        for reference in (result.self_ref, result.console, *result.groups, *result.inputs, *result.outputs):
            self._reference(reference)

    def _take(self, call: Plain, result: AnyResult) -> None:
        match result:
            case messages.Created(name, reference):
                self._reference(reference)
                if name is not None:
                    self.names.append(name)
                    if reference.deletion is not Deletion.REFERENCE_COUNTED:
                        self.created.append(name)
                if call and call[-1] in PROGRAMS:
                    self.code.append(reference.ref)
            case messages.References(references):
                for reference in references:
                    self._reference(reference)
            case messages.Buffer() if len(call) > 1 and isinstance(call[1], int):
                self.buffers.append((call[1], result.buffer, call[0] in _WRITING_TAGS))
            case messages.Done() if call and call[0] == _DELETE_TAG and isinstance(call[1], int):
                self.dead.append(call[1])
            case _:
                pass

    def _reference(self, reference: messages.Reference) -> None:
        self.refs.append(reference.ref)
        if reference.type is ObjectType.GROUP:
            self.groups.append(reference.ref)
        elif reference.type is ObjectType.TASK:
            self.tasks.append(reference.ref)
