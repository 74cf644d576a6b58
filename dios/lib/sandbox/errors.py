"""The errors of sandboxes, in addition to those of the calls and of the executor's results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dios.errors import Code, DiosError

if TYPE_CHECKING:
    from dios.lib.sandbox.result import SandboxFailure


class SandboxEndedError(DiosError):
    """The session ended: it reached a limit, left its process, or sent something that no session sends.

    Its variables are lost. Read the reason in the message, and call ``reset()`` for a fresh session.
    """

    code = Code.ECANCELED


class SessionForkError(DiosError):
    """The session cannot be forked now: the message has the reason. It keeps its state.

    End its threads, close its files, and copy what it maps, or start it with ``forkable=True``.
    """

    code = Code.ECANCELED


class SandboxCodeError(DiosError):
    """The code in the session raised in a ``put``, ``get`` or ``call``; ``failure`` describes the exception.

    The session keeps its state. Correct the code, or the arguments of the call.
    """

    code = Code.ECANCELED

    def __init__(self, message: str, failure: SandboxFailure) -> None:
        super().__init__(message)
        self.failure: Final = failure


class NotGrantedError(PermissionError):
    """The session may not reach this host. It is raised there, where code expects errors of sockets.

    Grant the origin that the message names with ``network=``.
    """


class ProgramDetachedError(DiosError):
    """Another handle of the sandbox's owner has attached itself to the program, which goes on.

    Attach again by its id to have it back.
    """

    code = Code.ECANCELED
