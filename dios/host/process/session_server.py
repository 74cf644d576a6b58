"""The socket for users' programs: accepts connections, limits their number, determines the principal.

The core decides what a connection may do. Tasks do not connect: they inherit their socket.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import trio

from dios import limits
from dios.errors import Code, DiosError, unwrap_group
from dios.host.handover import format as form
from dios.host.process.task_host import DEFECT, TaskHost, principal_of, taken_channel
from dios.ids import Principal, TaskId
from dios.transport.unix.credentials import PeerCredentials
from dios.transport.unix.server import TaskChannel, UnreadDescriptors, accept
from dios.wire.codec import encode_reply
from dios.wire.messages import Failure

_log: Final = logging.getLogger(__name__)
_POSITIVE_63_BITS: Final = 63


def fresh_task_id() -> TaskId:
    """Return a random id for a session's task object."""
    return TaskId(secrets.randbits(_POSITIVE_63_BITS) or 1)


class SessionServer:
    """A server that accepts users' programs on ``listener`` and serves each in a trio task.

    The node's own user and root may connect, and the users in ``allowed_uids``. ``denied`` is called with
    the principal of a refused connection and the reason, ``broken`` with the principal of a connection that
    an internal error ended. The users in ``allowed_uids`` share the places that are not reserved
    (``limits.may_take``), so that none of them can lock out another, or the node's own user.
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
        self._unread_of_others: Final = UnreadDescriptors(tasks.unread.most // 2)

    @property
    def listener(self) -> int:
        """The descriptor on which users' programs connect."""
        return self._listener.fileno()

    async def run(
        self, sessions: Iterable[form.Session] = (), newcomers: Iterable[form.Newcomer] = ()
    ) -> None:
        """Serve until the listener is closed; then serve the open connections until cancelled.

        ``sessions`` and ``newcomers`` were connected to a predecessor of this process's program.
        """
        async with trio.open_nursery() as nursery:
            former: tuple[form.Session | form.Newcomer, ...] = (*sessions, *newcomers)
            for session in former:
                self._open[session.uid] += 1
                nursery.start_soon(self._continue, session, name="session")
            while True:
                try:
                    with self._tasks.gate.passing() as scope:
                        sock, peer = await accept(self._listener)
                    if scope.cancelled_caught:
                        await self._tasks.gate.wait_open()
                        continue
                except (trio.ClosedResourceError, OSError):
                    return
                refusal = self._refusal(peer)
                if refusal is not None:
                    self._denied(principal_of(peer.uid), refusal.message)
                    _turn_away(sock, refusal)
                    continue
                self._open[peer.uid] += 1
                nursery.start_soon(self._serve, sock, peer, name="session")

    def admits(self, uid: int) -> bool:
        """Return True if this user may connect."""
        return uid in self._allowed

    def open_for(self, uid: int, nursery: trio.Nursery) -> socket.socket | None:
        """Open a session of the node itself that acts for a user, and return its other end.

        Return None if that user may not connect. Only the node's own process can call this.
        """
        if uid not in self._allowed:
            return None
        inner, outer = socket.socketpair()
        inner.setblocking(False)
        self._open[uid] += 1
        nursery.start_soon(
            self._serve, inner, PeerCredentials(os.getpid(), uid, os.getegid()), name="session"
        )
        return outer

    def _refusal(self, peer: PeerCredentials) -> Failure | None:
        if peer.uid not in self._allowed:
            _log.warning("a connection was refused", extra={"uid": peer.uid, "pid": peer.pid})
            return Failure(
                int(Code.EPERM),
                f"user {peer.uid} may not connect to this node. "
                "Ask its owner to add the user to allowed_uids in the node's settings.",
            )
        if self._open.total() >= limits.CONNECTIONS_MAX:
            return Failure(
                int(Code.EDQUOT),
                f"cannot connect: {limits.CONNECTIONS_MAX} programs are connected already. Try again later.",
            )
        if peer.uid not in self._own and not self._leaves_room(peer.uid):
            return Failure(
                int(Code.EDQUOT),
                f"cannot connect: user {peer.uid} has {self._open[peer.uid]} connections, and no more are "
                "left for others. Close some.",
            )
        return None

    def _leaves_room(self, uid: int) -> bool:
        """Return True if a user other than the node's own may have one more connection."""
        used = sum(count for other, count in self._open.items() if other not in self._own)
        return limits.may_take(self._open[uid], used, limits.CONNECTIONS_MAX - limits.CONNECTIONS_RESERVED)

    async def _serve(self, sock: socket.socket, peer: PeerCredentials) -> None:
        """Serve a connection from its beginning."""
        await self._serve_on(
            peer.uid,
            lambda senders, unread: TaskChannel(sock, senders, unread),
            lambda channel: self._tasks.serve_session(fresh_task_id(), peer.uid, peer.pid, channel),
        )

    async def _continue(self, session: form.Session | form.Newcomer) -> None:
        """Serve a connection of a predecessor."""
        await self._serve_on(
            session.uid,
            lambda senders, unread: taken_channel(session.channel, senders, unread),
            lambda channel: (
                self._tasks.continue_session(session, channel)
                if isinstance(session, form.Session)
                else self._tasks.serve_session(fresh_task_id(), session.uid, session.pid, channel)
            ),
        )

    async def _serve_on(
        self,
        uid: int,
        connect: Callable[[trio.Nursery, UnreadDescriptors], TaskChannel],
        serve: Callable[[TaskChannel], Awaitable[None]],
    ) -> None:
        try:
            async with trio.open_nursery() as senders:
                unread = self._tasks.unread if uid in self._own else self._unread_of_others
                channel = connect(senders, unread)
                try:
                    await serve(channel)
                    await channel.wait_descriptors_read()
                finally:
                    channel.close()
                    senders.cancel_scope.cancel()
        except Exception as error:
            if not self._tasks.sound:
                raise
            if _expected(error):
                _log.warning("a session ended early", extra={"why": str(unwrap_group(error))})
            else:
                _log.exception("an internal error ended a session", exc_info=error)
                self._broken(principal_of(uid), DEFECT)
        finally:
            self._open[uid] -= 1
            if not self._open[uid]:
                del self._open[uid]


def _expected(error: Exception) -> bool:
    """Return True if the error can happen to any connection and is no internal error."""
    if isinstance(error, ExceptionGroup):
        return all(_expected(inner) for inner in error.exceptions)
    return isinstance(error, DiosError | OSError)


def _turn_away(sock: socket.socket, failure: Failure) -> None:
    """Send the reason, if the socket accepts it at once, and close the socket."""
    with sock:
        try:
            sock.send(encode_reply(0, failure))
        except OSError:
            return
