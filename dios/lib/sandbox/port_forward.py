"""A port of this machine that leads to a server in a sandbox; only this process's user can connect."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Final, Self

from dios.client.sync.node import Node
from dios.errors import DiosError, InvalidError
from dios.lib.sandbox.blocking_steps import finish
from dios.lib.sandbox.processes.channels import Channel
from dios.lib.sandbox.processes.handles import SandboxPrograms, check_port
from dios.lib.sandbox.processes.records import Control, EndInput, SendSignal
from dios.limits import FORWARDED_CONNECTIONS_MAX, KIB, PORT_MAX
from dios.transport.tcp.local_peers import LocalListener, own_users

if TYPE_CHECKING:
    from types import TracebackType

HOST: Final = "127.0.0.1"
_PIECE_BYTES: Final = 64 * KIB
_CONTROL_S: Final = 10.0
_ABORT: Final = SendSignal(9)


class PortForward:
    """A port at 127.0.0.1, whose connections lead to a port in a sandbox; ``close`` ends them.

    Connections of other users than this process's own and root are refused. The audit log has each connection
    before it is made.
    """

    def __init__(
        self, node: Node, programs: SandboxPrograms, port: int, local_port: int, timeout_s: float | None
    ) -> None:
        check_port(port)
        if type(local_port) is not int or not 0 <= local_port <= PORT_MAX:
            raise InvalidError(f"a local port is a number from 0, for any, to {PORT_MAX}, not {local_port!r}")
        self._node: Final = node
        self._programs: Final = programs
        self._remote_port: Final = port
        self._timeout_s: Final = timeout_s
        self._listener: Final = LocalListener(HOST, local_port, own_users())
        self._lock: Final = threading.Lock()
        self._connections: Final[set[_Connection]] = set()
        self._is_closed = False
        self.host: Final = HOST
        self.port: Final[int] = self._listener.getsockname()[1]
        self._thread: Final = threading.Thread(target=self._serve, name="forwarded port", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<PortForward {self.host}:{self.port} to port {self._remote_port} of a sandbox>"

    def close(self) -> None:
        """Listen no more, and end the connections; a second call does nothing."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections)
        # A thread that accepts is woken by this, and not by the end of the socket.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in connections:
            connection.abort()
        for connection in connections:
            connection.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except ConnectionAbortedError:
                continue  # of another user
            except OSError:
                return
            with self._lock:
                if self._is_closed or len(self._connections) >= FORWARDED_CONNECTIONS_MAX:
                    accepted.close()
                    continue
                connection = _Connection(self, accepted)
                self._connections.add(connection)
            connection.start()

    def open(self) -> Channel:
        """Connect to the port in the sandbox. Raise DiosError."""
        return finish(lambda: self._node, self._programs.connect(self._remote_port, self._timeout_s))

    def finish_close(self, connection: _Connection, channel: Channel | None) -> None:
        """Close the channel of a connection that has ended, and forget it."""
        if channel is not None:
            finish(lambda: self._node, channel.close())
        with self._lock:
            self._connections.discard(connection)

    def send(self, channel: Channel, control: Control) -> None:
        """Give an order about a connection."""
        finish(lambda: self._node, channel.send(control, _CONTROL_S))

    def read(self, channel: Channel) -> bytes | None:
        """Wait for bytes from the sandbox, and return them; None at their end."""
        part = finish(lambda: self._node, channel.part(None))
        return None if part is None else part.data


class _Connection:
    """One connection: a thread for each direction."""

    def __init__(self, forward: PortForward, accepted: socket.socket) -> None:
        self._forward: Final = forward
        self._socket: Final = accepted
        self._channel: Channel | None = None
        self._lock: Final = threading.Lock()
        self._is_aborted = False
        self._thread: Final = threading.Thread(target=self._run, name="forwarded connection", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def join(self) -> None:
        """Wait for its end."""
        self._thread.join()

    def abort(self) -> None:
        """End it in both directions."""
        self._is_aborted = True
        self._order(_ABORT)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _order(self, control: Control) -> None:
        with self._lock, contextlib.suppress(DiosError):
            if self._channel is not None:
                self._forward.send(self._channel, control)

    def _run(self) -> None:
        sending: threading.Thread | None = None
        try:
            channel = self._forward.open()
            with self._lock:
                self._channel = channel
            if self._is_aborted:
                self._order(_ABORT)
            sending = threading.Thread(
                target=self._send, args=(channel,), name="forwarded bytes", daemon=True
            )
            sending.start()
            while (data := self._forward.read(channel)) is not None:
                self._socket.sendall(data)
        except (DiosError, OSError):
            # The server refuses the connection, or the client has left.
            self._order(_ABORT)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if sending is not None:
            sending.join()
        self._socket.close()
        with self._lock:
            channel_to_close, self._channel = self._channel, None
        self._forward.finish_close(self, channel_to_close)

    def _send(self, channel: Channel) -> None:
        """Carry the bytes of the client to the sandbox."""
        try:
            while data := self._socket.recv(_PIECE_BYTES):
                channel.input.write(data)
        except DiosError:
            return  # the server reads no more
        except OSError:
            self._order(_ABORT)
            return
        self._order(EndInput())
