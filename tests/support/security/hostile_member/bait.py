"""A user whose calls reach the hostile member, so that it has questions to answer falsely.

Every call must be answered, with whatever result; none may harm the node.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from dios.wire import messages
from dios.wire.types import Flag, Mode, ObjectType
from tests.support.node.raw_client import RawClient

KEPT: Final = 24
MS: Final = 1_000_000


class Bait:
    """A session on an honest node that works with objects which the member says that it has."""

    def __init__(self, path: Path, liar: str, rng: Random) -> None:
        self._client: Final = RawClient(path)
        self._rng: Final = rng
        self._liar: Final = liar
        self._refs: Final[deque[int]] = deque(maxlen=KEPT)
        self._buffers: Final[deque[tuple[int, int]]] = deque(maxlen=KEPT)
        home = self._client.welcome.home
        assert home is not None
        self._home: Final = home.ref
        created = self._client.ask(
            messages.Create(ObjectType.SHMEM_BLOB, (home.ref,), data=b"pass"), messages.Created
        )
        self._program: Final = created.reference.ref
        self.calls = 0

    def turn(self) -> None:
        """Make one call and wait for its answer; an answer must come."""
        call = self._call()
        try:
            result = self._client.any(call)
        except Exception as error:
            error.add_note(f"the call was {call}")
            raise
        self.calls += 1
        for part in result.results if isinstance(result, messages.Results) else (result,):
            self._learn(part, call)

    def _learn(self, result: object, call: messages.AnyCall) -> None:
        match result:
            case messages.References(references):
                self._refs.extend(public.ref for public in references)
            case messages.Created(_, reference):
                self._refs.append(reference.ref)
            case messages.Buffer(buffer) if buffer:
                self._buffers.append((getattr(call, "ref", 0), buffer))
            case _:
                pass

    def _call(self) -> messages.AnyCall:
        rng = self._rng
        if not self._refs or rng.random() < 0.15:
            return messages.Lookup(rng.randbytes(32), self._home, rng.choice((1, 5)))
        ref = rng.choice(self._refs)
        own = self._client.welcome.self_ref.ref
        bref, buffer = rng.choice(self._buffers or [(ref, 1)])
        soon = rng.choice((0, 10 * MS))
        makers: tuple[Callable[[], messages.AnyCall], ...] = (
            lambda: messages.Stat(ref),
            lambda: messages.ReadOnce(ref, rng.choice((0, 1, 4_096)), flags=int(Flag.NON_BLOCKING)),
            lambda: messages.WriteOnce(ref, b"some"),
            lambda: messages.AcquireRead(ref, flags=int(Flag.NON_BLOCKING)),
            lambda: messages.AcquireWrite(ref, rng.choice((0, 10, 100_000)), flags=int(Flag.NON_BLOCKING)),
            lambda: messages.CommitRead(bref, buffer),
            lambda: messages.CommitWrite(bref, buffer),
            lambda: messages.CommitAcquireWrite(bref, buffer),
            lambda: messages.ReleaseRead(bref, buffer),
            lambda: messages.ReleaseWrite(bref, buffer),
            lambda: messages.Select((ref, own), timeout_ns=soon),
            lambda: messages.Attach(ref, rng.choice(list(Mode)), flags=int(Flag.NON_BLOCKING)),
            lambda: messages.Copy(ref, own),
            lambda: messages.Copy(ref, own, host=self._liar),
            lambda: messages.Copy(self._program, own, host=self._liar),
            lambda: messages.Retire(ref),
            lambda: messages.Delete(ref, rng.choice((0, int(Flag.DESTROY)))),
            lambda: messages.ConsoleOf(ref),
            lambda: messages.Describe(ref),
            lambda: messages.Pause(ref),
            lambda: messages.Create(ObjectType.SHMEM_BLOB, (self._home,), host=self._liar),
            lambda: messages.Create(ObjectType.SHMEM_STREAM, (self._home,), host=self._liar),
            lambda: messages.Run(self._program, host=self._liar, flags=int(Flag.NON_BLOCKING)),
            lambda: messages.NodeInfo(self._liar),
            messages.ListTasks,
            lambda: messages.Vector(
                (messages.Stat(ref), messages.ReadOnce(ref), messages.WriteOnce(ref, b"x"))
            ),
        )
        return rng.choice(makers)()

    def close(self) -> None:
        """Leave."""
        self._client.close()
