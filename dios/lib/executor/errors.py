"""The errors of executors, in addition to those of the calls."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor

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


class CallEndedError(WorkerEndedError):
    """The program ended the call by ``kill()``, or gave it up in an event loop. Submit it again if needed."""


class CallTimeLimitError(CallEndedError, TimeoutError):
    """The call did not end within its time limit, which counts from its submission.

    Give it more time, or divide its work. It is a ``TimeoutError`` as well.
    """

    code = Code.ETIMEDOUT


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
