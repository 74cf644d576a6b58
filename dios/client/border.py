"""The client of a node's border: calls with sealed tokens, on the node's socket for them (ADR 0101)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dios import limits
from dios.client.locate import BORDER_SOCKET_NAME, accepted_users, resolve_node
from dios.client.node_socket import connect
from dios.errors import ProtocolError, UnreachableError, error_for
from dios.wire.border import (
    AnswerCheck,
    BorderAnswer,
    BorderCall,
    FilePart,
    Refusal,
    WriteFile,
    WrittenFile,
    decode_answer,
    encode_frame,
)
from dios.wire.codec import FrameSplitter

if TYPE_CHECKING:
    import socket


class BorderConnection:
    """A blocking connection to the border of a node; one thread makes one call after the other."""

    def __init__(self, node: str | Path | None = None) -> None:
        """Connect to the border of ``node``, which has the meaning that it has in ``dios.connect``.

        Raise UnreachableError if the node has no border, NotPermittedError if this user may not use it.
        """
        # The default node is a link, and its border is next to the socket that it leads to.
        path = resolve_node(node).resolve().with_name(BORDER_SOCKET_NAME)
        if not path.exists():
            raise UnreachableError(
                f"the node has no border: there is no {path}. Start it with --border HOST:PORT, the address "
                "for other clusters."
            )
        self._sock: Final[socket.socket] = connect(path, partial(accepted_users, None))
        self._sock.settimeout(2 * limits.BORDER_IDLE_MS_MAX / 1000)
        self._splitter: Final = FrameSplitter(limits.BORDER_FRAME_BYTES_MAX)
        self._bodies: Final[list[bytes]] = []

    def call(self, call: BorderCall) -> Iterator[BorderAnswer]:
        """Yield the answers of a call. Raise the error of a refusal, and UnreachableError at an early end."""
        check = AnswerCheck(call)
        try:
            self._sock.sendall(encode_frame(call))
            while not check.is_complete:
                answer = decode_answer(self._receive())
                check.take(answer)
                if isinstance(answer, Refusal):
                    raise error_for(answer.code, answer.message)
                yield answer
        except OSError as error:
            if isinstance(error, UnreachableError):
                raise
            raise UnreachableError(f"the border of the node ended the connection: {error}") from None

    def write(self, call: WriteFile, parts: Iterable[bytes]) -> WrittenFile:
        """Send a file in parts of at most BORDER_PART_BYTES, and return its entry. Raise as ``call`` does."""
        for answer in self.call(call):
            if isinstance(answer, WrittenFile):
                return answer
            for part in parts:
                self._sock.sendall(encode_frame(FilePart(part)))
        raise ProtocolError("the border gave no answer")

    def ask(self, call: BorderCall) -> BorderAnswer:
        """Return the only answer of a call. Raise the errors of ``call``."""
        for answer in self.call(call):
            return answer
        raise ProtocolError("the border gave no answer")

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _receive(self) -> bytes:
        while not self._bodies:
            data = self._sock.recv(limits.RECEIVE_BYTES)
            if not data:
                raise UnreachableError("the border of the node ended the connection")
            self._bodies.extend(self._splitter.feed(data))
        return self._bodies.pop(0)
