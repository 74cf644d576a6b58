"""A TCP socket with TLS whose records pass through memory: one system call moves many of them.

TLS on the socket itself would make a system call for each record of 16 KB that it writes, and two for each
that it reads.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, Final

from dios import limits

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_block = memoryview(bytearray(limits.TLS_PIECE_BYTES))
"""The memory in which the event loop receives bytes of all sockets. Each socket passes them on at once."""


class TlsSocket(socket.socket):
    """A socket that takes over ``sock``; it blocks if that did.

    A socket that does not block is for the event loop, and one that blocks for one thread. Received bytes
    that are not decrypted yet, and encrypted ones that the kernel has not accepted, are at most
    TLS_PIECE_BYTES and one record each.
    """

    def __init__(self, context: ssl.SSLContext, sock: socket.socket, *, server: bool) -> None:
        self._incoming: Final = ssl.MemoryBIO()
        self._outgoing: Final = ssl.MemoryBIO()
        self.tls: Final = context.wrap_bio(self._incoming, self._outgoing, server_side=server)
        self._block = _block
        self._plain = self._unsent = memoryview(b"")
        timeout = sock.gettimeout()
        super().__init__(sock.family, sock.type, sock.proto, sock.detach())
        self.settimeout(timeout)

    def block(self) -> None:
        """Wait in all methods from now on, for one thread."""
        # A timeout would add a system call and an acquisition of the interpreter lock to every read.
        self.settimeout(None)
        self._block = memoryview(bytearray(limits.TLS_PIECE_BYTES))

    def do_handshake(self) -> None:
        """Shake hands as far as that is possible without waiting.

        Raises ssl.SSLWantReadError and ssl.SSLWantWriteError if it must go on later, ssl.SSLError, OSError.
        """
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush_handshake()
                if not self.fetch():
                    raise
            except ssl.SSLError:
                self._send_alert()
                raise
            else:
                self._flush_handshake()
                return

    def _flush_handshake(self) -> None:
        if not self.flush():
            raise ssl.SSLWantWriteError("the kernel accepts no more bytes")

    def _send_alert(self) -> None:
        """Let the peer know the reason of an error."""
        with contextlib.suppress(OSError):
            self.flush()

    # -- receiving ------------------------------------------------------------------------------------
    def fetch(self) -> bool:
        """Receive encrypted bytes, or the end. Return False if nothing is here. Raises OSError."""
        try:
            count = super().recv_into(self._block)
        except BlockingIOError:
            return False
        if count:
            self._incoming.write(self._block[:count])
        else:
            self._incoming.write_eof()
        return True

    def pending(self) -> int:
        """Return a number above 0 if bytes were fetched and not read; they may be a part of a record."""
        return self._incoming.pending or self.tls.pending()

    def read_record(self) -> bytes | None:
        """Return the content of the next fetched record, b"" at the end, or None if no whole one is here.

        Raises ssl.SSLError for bytes that are not TLS.
        """
        incoming = self._incoming
        if not (incoming.pending or incoming.eof):
            return None
        try:
            return self.tls.read(limits.BATCHED_BYTES_MAX)
        except ssl.SSLWantReadError:
            return None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b""
        except ssl.SSLError:
            self._send_alert()
            raise

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        """Wait for bytes, and return their number; 0 at the end. For a socket that blocks."""
        del flags
        size = nbytes or memoryview(buffer).nbytes
        while True:
            if not self.pending():
                self.fetch()
            try:
                return int(self.tls.read(size, buffer))  # its declared type is that without a buffer
            except ssl.SSLWantReadError:
                self.fetch()
            except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
                return 0

    # -- sending --------------------------------------------------------------------------------------
    def write(self, data: ReadableBuffer) -> bool:
        """Encrypt and send bytes. Return False if the kernel has not accepted all: then ``flush`` them.

        Everything before must have been accepted. ``data`` must not change before the end. Raises OSError.
        """
        self._plain = memoryview(data)
        return self.flush()

    def sendall(self, data: ReadableBuffer, flags: int = 0, /) -> None:
        """Send all bytes. For a socket that blocks."""
        del flags
        self.write(data)

    def flush(self) -> bool:
        """Go on sending; return True if the kernel has accepted everything. Raises OSError."""
        while self._plain or self._unsent or self._outgoing.pending:
            if not self._unsent:
                if self._plain:
                    encrypted = self.tls.write(self._plain[: limits.TLS_PIECE_BYTES])
                    self._plain = self._plain[encrypted:]
                self._unsent = memoryview(self._outgoing.read())
            try:
                sent = super().send(self._unsent)
            except BlockingIOError:
                return False
            self._unsent = self._unsent[sent:]
        return True

    def say_end(self) -> None:
        """Let the peer know that nothing is missing, if the kernel accepts that at once."""
        with contextlib.suppress(OSError, ValueError):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.unwrap()
            self.flush()
