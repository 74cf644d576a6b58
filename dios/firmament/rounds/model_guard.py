"""Calls to cost models, which are other people's code: errors are caught, and time is limited.

A model that raises or is too slow leads to a :class:`ModelError`, and the schedule stays as it is. The values
of its answers are checked in ``network.model_answers``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, Self, TypeVar

from dios.limits import SCHED_ABANDONED_THREADS_MAX

_T = TypeVar("_T")

_IDLE_S = 2.0
"""The time after which a worker without work ends, so that an unused scheduler leaves no thread behind."""


class ModelError(Exception):
    """A cost model raised, gave a wrong answer, or did not answer in time; the message says which."""


class _Call(Generic[_T]):
    """One call that a worker executes."""

    def __init__(self, question: Callable[[], _T]) -> None:
        self.question = question
        self.done = threading.Event()
        self.answer: _T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.answer = self.question()
        except BaseException as error:  # noqa: BLE001 - a model is responsible for all that it raises, SystemExit too
            self.error = error
        self.done.set()


class _Worker:
    """A thread that executes one call after the other; it is abandoned if it hangs."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._alive = True
        self._thread = threading.Thread(target=self._work, name="cost-model", daemon=True)
        self._thread.start()

    def give(self, run: Callable[[], None]) -> bool:
        """Queue a call; return False if the worker has ended."""
        with self._lock:
            if self._alive:
                self._calls.put(run)
            return self._alive

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _work(self) -> None:
        while True:
            try:
                run = self._calls.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if self._calls.empty():
                        self._alive = False
                        return
                continue
            run()
            if not self._alive:
                return

    def abandon(self) -> None:
        """Accept no further call; the thread ends after its present one."""
        with self._lock:
            self._alive = False


class ModelGuard:
    """Executes calls one after the other, each within ``limit_s`` seconds.

    A late call is abandoned with its thread. At most ``SCHED_ABANDONED_THREADS_MAX`` such threads may hang at
    once; then every call is refused until one of them ends or another model is set.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._worker: _Worker | None = None
        self._abandoned: list[_Worker] = []

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """Return the guard itself: copies of a scheduler share the bound on threads that hang."""
        return self

    def call(self, question: Callable[[], _T]) -> _T:
        """Return the result of ``question``; raise :class:`ModelError` if it raises or is late."""
        self._abandoned = [worker for worker in self._abandoned if worker.running]
        if len(self._abandoned) >= SCHED_ABANDONED_THREADS_MAX:
            raise ModelError(
                f"{len(self._abandoned)} earlier calls still hang; the model is called again when one ends"
            )
        call = _Call(question)
        worker = self._worker
        if worker is None or not worker.give(call.run):
            worker = self._worker = _Worker()
            worker.give(call.run)
        if not call.done.wait(self.limit_s):
            worker.abandon()
            self._abandoned.append(worker)
            self._worker = None
            raise ModelError(f"did not answer within {self.limit_s:g} s")
        if isinstance(call.error, ModelError):
            raise call.error
        if call.error is not None:
            raise ModelError(f"raised {type(call.error).__name__}: {call.error}") from call.error
        answer: _T = call.answer  # type: ignore[assignment]
        return answer
