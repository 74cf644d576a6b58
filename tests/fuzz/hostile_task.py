"""The program of a hostile task: it floods its node through the inherited socket, with a given seed.

It also prints data that a console must handle. The exit status is 0 after all frames are sent, or when the
node has closed the connection. Escapes from the sandbox are tested in ``tests/security``.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
from random import Random

from dios.errors import ProtocolError
from dios.wire import messages
from dios.wire.codec import FrameSplitter, decode_reply
from tests.fuzz.bending import Bent
from tests.fuzz.frames import Frames, framed
from tests.fuzz.known import Known

RECEIVE_BYTES = 262_144


def main(seed: int, count: int) -> None:
    """Send ``count`` frames; end when all are read."""
    rng = Random(seed)  # noqa: S311 - repeatable dice, nothing secret
    known = Known()
    source = Frames(rng, known, grave=True, runs=0.02)
    bent = Bent(rng, source)
    splitter = FrameSplitter(2**32 - 1)
    with socket.socket(fileno=3) as sock:
        sock.setblocking(False)
        sent = 0
        while sent < count:
            frames = [framed(source.good()) for _ in range(min(50, count - sent))]
            if sent + 50 >= count:
                frames.append(bent.frame())
            sent += len(frames)
            if not exchange(sock, b"".join(frames), splitter, source):
                break
        sys.stdout.buffer.write(
            b"\n%d frames\n\x1b[2J\0\xff\xfe" % sent + b"Traceback (most recent call last):\n" * 3
        )
        sys.stdout.flush()


def exchange(sock: socket.socket, data: bytes, splitter: FrameSplitter, source: Frames) -> bool:
    """Send all data and read in between; return False when the node has closed the connection."""
    while data:
        readable, writable, _ = select.select([sock], [sock], [])
        if readable and not learn(sock, splitter, source):
            return False
        if writable:
            try:
                data = data[sock.send(data) :]
            except BlockingIOError:
                continue
            except OSError:
                return False
    return True


def learn(sock: socket.socket, splitter: FrameSplitter, source: Frames) -> bool:
    """Read available replies; return False at the end."""
    try:
        got = sock.recv(RECEIVE_BYTES)
    except BlockingIOError:
        return True
    except OSError:
        return False
    for body in splitter.feed(got):
        with contextlib.suppress(ProtocolError):
            reply = decode_reply(body)
            if isinstance(reply.result, messages.Welcome):
                source.known.welcome(reply.result)
            else:
                source.answered(reply.seq, reply.result)
    return bool(got)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
