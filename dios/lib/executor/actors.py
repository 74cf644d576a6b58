"""Actors: an object in a worker of its own, which keeps its state between calls."""

from __future__ import annotations

import concurrent.futures
import inspect
import weakref
from typing import Final, NoReturn, Protocol

from dios.lib.executor import actor_calls
from dios.lib.executor.frames import Function
from dios.lib.executor.futures import CallFuture
from dios.lib.executor.pool import Call, Pool


class ActorOwner(Protocol):
    """The executor of an actor."""

    def require_sendable(self, fn: object) -> None:
        """Raise an error if a function says that it returns what the executor refuses."""


class Actor:
    """A handle of an object in a worker of its own: ``actor.method.submit(...)`` calls a method.

    Calls run in the order of their submission, one at a time. The worker ends with the executor, and when the
    handle is dropped and its calls have run. The executor, ``owner``, stays as long as the handle.
    """

    def __init__(self, owner: ActorOwner, pool: Pool, cls: Function[object]) -> None:
        self._owner: Final = owner
        self._pool: Final = pool
        self._class: Final = cls
        self._submit(actor_calls.wait_ready)
        weakref.finalize(self, pool.close, cancel=False).atexit = False

    def __getattr__(self, name: str) -> ActorMethod:
        """Return a method of the object, by its name."""
        if name.startswith("_"):
            raise AttributeError(f"{name!r} is no public method of an actor")
        return ActorMethod(self, name)

    def __repr__(self) -> str:
        return f"<Actor {getattr(self._class, '__name__', 'object')}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an actor cannot be pickled: it belongs to the process that made it")

    def _require_sendable(self, name: str) -> None:
        if isinstance(self._class, type):
            self._owner.require_sendable(inspect.getattr_static(self._class, name, None))

    def _submit(self, function: object, *args: object) -> concurrent.futures.Future[object]:
        future: CallFuture[object] = CallFuture()
        self._pool.submit(Call(future, function, args, {}))  # type: ignore[arg-type]
        return future


class ActorMethod:
    """A method of the object of an actor."""

    __slots__ = ("_actor", "_name")

    def __init__(self, actor: Actor, name: str) -> None:
        self._actor: Final = actor
        self._name: Final = name

    def __repr__(self) -> str:
        return f"<ActorMethod {self._name} of {self._actor!r}>"

    def submit(self, /, *args: object, **kwargs: object) -> concurrent.futures.Future[object]:
        """Queue a call of the method, and return its future at once.

        Raises ActorEndedError if the worker is gone, RuntimeError after the end of the executor, and what
        ``Executor.submit`` raises for a method whose result cannot be sent.
        """
        self._actor._require_sendable(self._name)  # noqa: SLF001 - the handle
        return self._actor._submit(actor_calls.call_method, self._name, args, kwargs)  # noqa: SLF001 - the handle
