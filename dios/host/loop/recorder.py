"""Records every step of a node's core, so that ``dios.core.replay`` can run it again.

Off by default: a recording contains names and small values. Only the node's user can read the file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from blake3 import blake3
from msgspec import msgpack

from dios.core import snapshot
from dios.core.effects import Outcome
from dios.core.events import Event
from dios.core.machine import Core
from dios.core.model.accounts import Defaults
from dios.core.model.state import State
from dios.core.recording import RECORDING_VERSION, Recorded, RecordingHeader
from dios.core.remote.peers import Here
from dios.ids import NodeId, Principal, TaskId

_LENGTH: Final = struct.Struct("<I")
DIGEST_EVERY: Final = 16
"""Steps from one digest of the state to the next; a digest takes milliseconds in a node with many objects."""


class Recorder:
    """A core that records its steps in a file; used in place of the core itself."""

    def __init__(
        self,
        path: Path,
        entropy: Callable[[int], bytes],
        owner: Principal,
        *,
        restricted: bool,
        defaults: Defaults,
        here: Here = Here(),  # noqa: B008 - it is frozen
        forgotten: tuple[NodeId, ...] = (),
        digest_every: int = DIGEST_EVERY,
    ) -> None:
        self._entropy: Final = entropy
        self._drawn = bytearray()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        # The steps before a kill are wanted most, so nothing is buffered.
        self._file: Final = os.fdopen(descriptor, "wb", buffering=0)
        self._core: Final = Core(
            self._draw, owner, restricted=restricted, defaults=defaults, here=here, forgotten=forgotten
        )
        header = RecordingHeader(
            RECORDING_VERSION, owner, restricted, defaults, here, forgotten, digest_every
        )
        self._digest_every: Final = digest_every
        self._steps = 0
        self._write(msgpack.encode(header))

    @property
    def state(self) -> State:
        """The core's tables, for inspection."""
        return self._core.state

    def step(self, event: Event) -> Outcome:
        """Process one event, then record it with the entropy drawn and a digest of the outcome."""
        self._drawn.clear()
        outcome = self._core.step(event)
        digest = blake3(msgpack.encode(outcome)).digest()
        self._steps += 1
        state = b"" if self._steps % self._digest_every else snapshot.digest(self._core.state)
        self._write(msgpack.encode(Recorded(event, bytes(self._drawn), digest, state)))
        return outcome

    def has_request(self, node: NodeId, number: int) -> bool:
        """Return True if a request of another node was handled before."""
        return self._core.has_request(node, number)

    def holder_id(self, node: NodeId, task: TaskId) -> TaskId:
        """Return the id here of a task of another node; 0 if no such task has a record here."""
        return self._core.holder_id(node, task)

    def close(self) -> None:
        """Close the file of the recording."""
        self._file.close()

    def _draw(self, size: int) -> bytes:
        drawn = self._entropy(size)
        self._drawn += drawn
        return drawn

    def _write(self, frame: bytes) -> None:
        with memoryview(_LENGTH.pack(len(frame)) + frame) as data:
            done = 0
            while done < len(data):
                done += self._file.write(data[done:])
