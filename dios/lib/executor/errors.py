"""The errors of executors, in addition to those of the calls."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor
from typing import Final

from dios.client.plain_text import plain_lines
from dios.errors import Code, DiosError


class UntrustedResultError(DiosError):
    """A result contains something that a worker may not send.

    Return built-in types, permit the class with ``dios.allow``, or make the executor with ``trust=True``.
    """

    code = Code.EPERM


class WorkerEndedError(DiosError):
    """The worker ended in the call: it reached a limit, left its process, or its node was lost too often.

    Raise the limit that the message names, or correct the function.
    """

    code = Code.ECANCELED


class ActorEndedError(WorkerEndedError):
    """The worker of an actor ended, and the state of its object is lost.

    Remove the reason in the message, or allow restarts with ``max_restarts``, and make a new actor.
    """


class NoWorkerError(DiosError, BrokenExecutor):
    """No worker of the executor can be started, or each of them ended before its first call.

    The message has the last reason, and says whether further calls try again: they do if nodes refused the
    starts. Otherwise remove the reason, and make a new executor.
    """

    code = Code.ECANCELED


class InitializerError(DiosError, BrokenExecutor):
    """The initializer raised in a worker, so no call can run. Correct it; its exception is the cause."""

    code = Code.ECANCELED


class RemoteError(Exception):
    """An exception of a call, of a class that the caller has not imported, or that cannot be sent.

    It has the name, text and notes of the exception, and is an object of the nearest built-in class of it:
    ``except ValueError`` catches a ``json.JSONDecodeError``. Import the module of the class to get itself.
    """

    def __init__(self, text: str = "", bases: tuple[tuple[str, str], ...] = ()) -> None:
        self.args = (text,)
        self.text: Final = text
        self.bases: Final = bases
        """The module and the name of the class of the exception and of those above it, nearest first."""

    def __str__(self) -> str:
        return plain_lines(self.text)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    def __reduce__(self) -> tuple[object, ...]:
        from dios.lib.executor.remote_errors import restore_error  # noqa: PLC0415 - it uses this class

        return restore_error, (self.text, self.bases), self.__dict__
