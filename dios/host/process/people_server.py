"""The socket for people's processes: who may connect, how many, and as which principal.

Not for: what they may do then (the core), or tasks, whose connections are inherited.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

import trio

from dios import limits
from dios.errors import Code, DiosError
from dios.host.process.task_host import DEFECT, TaskHost
from dios.ids import Principal, TaskId
from dios.transport.unix.server import Peer, TaskChannel, accept
from dios.wire.codec import encode_reply
from dios.wire.messages import Failure

_log: Final = logging.getLogger(__name__)
_POSITIVE_63_BITS: Final = 63


def principal_of(uid: int) -> Principal:
    """Who a process of this user acts for (§3.2.2.1)."""
    return Principal(f"uid:{uid}")


def fresh_task_id() -> TaskId:
    """A random id for a session's task object."""
    return TaskId(secrets.randbits(_POSITIVE_63_BITS) or 1)


class PeopleServer:
    """Accepts people's processes on ``listener`` and serves each in a task of its own.

    The node's own user and root may connect, and ``allowed_uids`` beside them; who is turned away is told
    to ``denied`` with the reason, and to ``broken`` whose connection a defect ended. No other user has more
    than half of the places, so that none can lock the node's own out.
    """

    def __init__(
        self,
        listener: socket.socket,
        tasks: TaskHost,
        *,
        denied: Callable[[Principal, str], None],
        broken: Callable[[Principal, str], None],
        allowed_uids: Collection[int] = (),
    ) -> None:
        self._listener: Final = listener
        self._tasks: Final = tasks
        self._denied: Final = denied
        self._broken: Final = broken
        self._own: Final = frozenset({0, os.geteuid()})
        self._allowed: Final = self._own | frozenset(allowed_uids)
        self._open: Final[Counter[int]] = Counter()

    async def run(self) -> None:
        """Serve until the listener is closed; then everybody still connected until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    sock, peer = await accept(self._listener)
                except (trio.ClosedResourceError, OSError):
                    return
                refusal = self._refusal(peer)
                if refusal is not None:
                    self._denied(principal_of(peer.uid), refusal.message)
                    _turn_away(sock, refusal)
                    continue
                self._open[peer.uid] += 1
                nursery.start_soon(self._serve, sock, peer, name="session")

    def _refusal(self, peer: Peer) -> Failure | None:
        if peer.uid not in self._allowed:
            _log.warning("a connection was refused", extra={"uid": peer.uid, "pid": peer.pid})
            return Failure(
                int(Code.EPERM), f"user {peer.uid} may not connect; the node's settings name who may"
            )
        if self._open.total() >= limits.CONNECTIONS_MAX:
            return Failure(
                int(Code.EDQUOT), f"{limits.CONNECTIONS_MAX} processes are connected already; try again later"
            )
        if peer.uid not in self._own and self._open[peer.uid] >= limits.CONNECTIONS_OF_OTHERS_MAX:
            return Failure(
                int(Code.EDQUOT),
                f"{limits.CONNECTIONS_OF_OTHERS_MAX} processes of user {peer.uid} are connected; close some",
            )
        return None

    async def _serve(self, sock: socket.socket, peer: Peer) -> None:
        try:
            async with trio.open_nursery() as senders:
                channel = TaskChannel(sock, senders)
                try:
                    await self._tasks.serve_session(
                        fresh_task_id(), principal_of(peer.uid), peer.pid, channel
                    )
                finally:
                    channel.close()
                    senders.cancel_scope.cancel()
        except Exception as error:
            if not self._tasks.sound:
                raise
            if _expected(error):
                _log.warning("a session ended early", extra={"why": str(error)})
            else:
                _log.exception("a defect ended a session", exc_info=error)
                self._broken(principal_of(peer.uid), DEFECT)
        finally:
            self._open[peer.uid] -= 1
            if not self._open[peer.uid]:
                del self._open[peer.uid]


def _expected(error: Exception) -> bool:
    """Whether there is nothing in it but what can happen to a connection."""
    if isinstance(error, ExceptionGroup):
        return all(_expected(each) for each in error.exceptions)
    return isinstance(error, DiosError | OSError)


def _turn_away(sock: socket.socket, failure: Failure) -> None:
    """Say why, as far as the socket takes it at once, and close."""
    with sock:
        try:
            sock.send(encode_reply(0, failure))
        except OSError:
            return
