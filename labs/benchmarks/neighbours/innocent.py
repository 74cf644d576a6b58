"""The innocent client: it makes short calls and runs short tasks one after the other, and times each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from dios.wire import messages
from dios.wire.codec import decode_status
from dios.wire.messages import AnyCall, Created, Failure
from dios.wire.types import Cause, Flag, NameKind, ObjectType
from labs.benchmarks.neighbours.clients import Connection

_R = TypeVar("_R")
_PAUSE_S: Final = 0.005
_RUN_EVERY_S: Final = 1.0
_RUN_NS: Final = 60 * 10**9
_PROGRAM: Final = b"raise SystemExit(7)"
_DATA: Final = b"innocent" * 50


@dataclass
class Times:
    """The milliseconds of each call, and of each run of a task; the calls that the node refused."""

    calls: list[float] = field(default_factory=list)
    runs: list[float] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


class RefusedError(Exception):
    """The node refused a call, because neighbours have used up a resource."""


class Innocent:
    """A session of the node's own user."""

    def __init__(self, socket: Path) -> None:
        self._connection: Final = Connection(socket, "innocent")
        self._program: Final = self._ask(self._creation(_PROGRAM), Created).reference.ref

    def work(self, seconds: float) -> Times:
        """Work for some time; raise AssertionError for a wrong answer."""
        times = Times()
        end = time.monotonic() + seconds
        next_run = 0.0
        calls = self._calls(times.calls)
        while time.monotonic() < end:
            try:
                if time.monotonic() >= next_run:
                    try:
                        _time(self._run, times.runs)
                    finally:
                        next_run = time.monotonic() + _RUN_EVERY_S
                next(calls)
            except RefusedError as error:
                times.refused[str(error)] += 1
                calls = self._calls(times.calls)
            time.sleep(_PAUSE_S)
        return times

    def counts(self) -> dict[str, int]:
        """Return the node's counts."""
        return self._ask(messages.NodeInfo(), messages.Info).counts

    def close(self) -> None:
        """Leave."""
        self._connection.close()

    def _calls(self, times: list[float]) -> Iterator[None]:
        own = messages.Stat(self._connection.welcome.self_ref.ref)
        while True:
            for _ in range(4):
                self._timed(own, messages.References, times)
                yield
            ref = self._timed(self._creation(b""), Created, times).reference.ref
            yield
            self._timed(messages.WriteOnce(ref, _DATA), messages.Committed, times)
            yield
            got = self._timed(messages.ReadOnce(ref), messages.Buffer, times)
            assert got.data == _DATA, "the bytes that were written are not those that are read"
            yield
            self._timed(messages.Delete(ref), messages.Done, times)
            yield

    @staticmethod
    def _creation(data: bytes) -> messages.Create:
        return messages.Create(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, data=data)

    def _timed(self, call: AnyCall, kind: type[_R], times: list[float]) -> _R:
        return _time(lambda: self._ask(call, kind), times)

    def _run(self) -> None:
        task = self._ask(messages.Run(self._program), Created).reference.ref
        try:
            self._ask(messages.Select((task,), timeout_ns=_RUN_NS), messages.Selected)
            status = decode_status(self._ask(messages.ReadOnce(task), messages.Buffer).data or b"")
            assert (status.cause, status.exit_code) == (Cause.EXITED, 7), status.detail
        finally:
            self._ask(messages.Delete(task, int(Flag.HANDLE_ONLY)), messages.Done)

    def _ask(self, call: AnyCall, kind: type[_R]) -> _R:
        answer = self._connection.ask(call)
        if isinstance(answer, Failure):
            raise RefusedError(f"{type(call).__name__.lower()}: {answer.message}")
        assert isinstance(answer, kind), answer
        return answer


def _time(call: Callable[[], _R], times: list[float]) -> _R:
    began = time.perf_counter()
    result = call()
    times.append((time.perf_counter() - began) * 1_000)
    return result
