"""Messages between two processes: streams in shared memory, pipes, sockets and Redis (Figure 5.3)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Final, NamedTuple

import dios
from dios.errors import DiosError
from labs.papers.dios.clusters import running_nodes
from labs.papers.dios.redis_peer import REDIS, RedisServer, redis_if_present, redis_note
from labs.papers.dios.runs import DiosRuns, clock, size_text
from labs.papers.dios.senders import BUFFER_BYTES, CLOCK, LENGTH
from labs.papers.figures import Figure, FigureTable, PublishedClaim
from labs.papers.judgements import OURS, judged
from labs.plotting import Lines

STREAM, BATCHED = "SHMEM_STREAM", "SHMEM_STREAM, 64 at once"
PIPE, UNIX, TCP = "pipe", "Unix socket", "TCP on this machine"
CONNECTION: Final = "multiprocessing.Pipe"
WAYS: Final = (STREAM, BATCHED, PIPE, UNIX, TCP, CONNECTION)
PAUSE_US: Final = 500
"""The pause between two messages whose delay is measured, so that none waits for another."""
_DELAYS_MAX: Final = 1000
_SENDER: Final = b"""
import os, sys, time
import dios

size, count, pause_us, batch = map(int, sys.argv[1:])
writer = dios.connect().outputs[0].writer
rest = os.urandom(size - 8)
def message():
    return time.perf_counter_ns().to_bytes(8, "little") + rest
if batch:
    while count:
        several = min(batch, count)
        writer.send_many([message() for _ in range(several)])
        count -= several
for _ in range(count):
    if pause_us:
        time.sleep(pause_us / 1e6)
    writer.send(message())
"""

Receive = Callable[[], Sequence[bytes]]
"""Waits for messages and returns those that came."""
Series = dict[str, dict[int, list[float]]]
"""Numbers by way and size."""


class _Receiver(NamedTuple):
    """The systems of the receiving end: a node, and Redis if it is present."""

    node: dios.Node
    redis: RedisServer | None

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways of messages that can be measured."""
        return (*WAYS, REDIS) if self.redis is not None else WAYS


def figure_3(runs: DiosRuns) -> Figure:
    """Return Figure 5.3: throughput (a) and delay (b) of messages, by size."""
    scope = runs.scope
    with ExitStack() as stack:
        nodes = stack.enter_context(running_nodes(1, coordinator="off"))
        node = stack.enter_context(nodes.connect(0))
        receiver = _Receiver(node, stack.enter_context(redis_if_present()))
        ways = receiver.ways
        rates: Series = {way: {} for way in ways}
        delays: Series = {way: {} for way in ways if way != BATCHED}
        for size in scope.message_sizes:
            count = max(10, min(scope.messages, scope.message_bytes // size))
            for way in ways:
                runs.progress(f"5.3: {way}, {size_text(size)}")
                rates[way][size] = [_rate(receiver, way, size, count) for _ in range(scope.repetitions)]
                if way in delays:
                    delays[way][size] = _delays(receiver, way, size, min(_DELAYS_MAX, count // 10 + 5))
    sizes = scope.message_sizes
    middle = {way: [statistics.median(rates[way][size]) for size in sizes] for way in ways}
    waits = {way: [statistics.median(delays[way][size]) for size in sizes] for way in delays}
    return runs.figure(
        "5.3",
        "Figure 5.3: messages between two processes, by size",
        (
            FigureTable(
                "MB per second (a MB is a million bytes), median",
                ("size", *ways),
                [(size_text(size), *(middle[way][at] for way in ways)) for at, size in enumerate(sizes)],
            ),
            FigureTable(
                "Microseconds from sending to receiving, median",
                ("size", *delays),
                [(size_text(size), *(waits[way][at] for way in delays)) for at, size in enumerate(sizes)],
            ),
        ),
        _claims(sizes, middle, waits),
        (
            Lines(
                "5.3a",
                "Throughput",
                "bytes of a message",
                "MB/s",
                {way: (sizes, middle[way]) for way in ways},
                log_x=True,
            ),
            Lines(
                "5.3b",
                "Delay of one message",
                "bytes of a message",
                "microseconds",
                {way: (sizes, waits[way]) for way in delays},
                log_x=True,
            ),
        ),
        (
            *nodes.notes,
            (
                f"At most {scope.messages:,} messages of a size, and {scope.repetitions} repetitions, "
                "instead of a million and ten. A sandboxed task writes to a stream; the other ways have a "
                "process without a sandbox. Reader and writer are Python on all sides, and pipes and "
                "sockets have a length before each message, as a stream has."
            ),
            (
                "With Redis, the sender adds each message to a list and waits for the answer, and the "
                "receiver waits for the next element; the server is a third process. Ray and Dask are not "
                "measured, because they pass results of tasks and not messages."
            ),
            *redis_note(),
        ),
    )


@contextlib.contextmanager
def _sending(receiver: _Receiver, way: str, size: int, count: int, pause_us: int) -> Iterator[Receive]:
    """Start a process that sends messages; return the function that receives them."""
    node, redis = receiver
    if redis is not None and way == REDIS:
        with redis.sending(size, count, pause_us):
            yield redis.receive
        return
    if way in {STREAM, BATCHED}:
        stream = node.create_stream(ring_bytes=max(BUFFER_BYTES, 4 * size))
        batch = 64 if way == BATCHED else 0
        words = [str(number) for number in (size, count, pause_us, batch)]
        task = node.run(_SENDER, outputs=[stream.restrict("write")], args=words)
        reader = stream.reader
        try:
            yield reader.receive_many if batch else lambda: (reader.receive(60),)
            status = task.wait(60)
            if not status.ok:
                raise DiosError(f"the sending task failed: {status.detail}")
        finally:
            task.close()
            stream.delete()
        return
    with ExitStack() as stack:
        receive, far, kind = _peer(stack, way)
        command = [sys.executable, "-m", "labs.papers.dios.senders", kind, str(far)]
        process = subprocess.Popen([*command, str(size), str(count), str(pause_us)], pass_fds=(far,))
        try:
            os.close(far)
            yield receive
        finally:
            # The reader is closed before the wait, so that a sender with messages left ends, too.
            stack.close()
            process.wait()


def _peer(stack: ExitStack, way: str) -> tuple[Receive, int, str]:
    """Return the receiving function, the sender's descriptor, and the sender's name for the way."""
    if way in {UNIX, TCP}:
        near, other = socket.socketpair() if way == UNIX else connected()
        stack.callback(near.close)
        for end in (near, other):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        file = near.makefile("rb", buffering=1 << 17)
        stack.callback(file.close)
        return _framed(file.read), other.detach(), "socket"
    descriptor, far = os.pipe()
    fcntl.fcntl(far, fcntl.F_SETPIPE_SZ, BUFFER_BYTES)
    if way == CONNECTION:
        connection = Connection(descriptor, writable=False)
        stack.callback(connection.close)
        return lambda: (connection.recv_bytes(),), far, "connection"
    return _framed(stack.enter_context(os.fdopen(descriptor, "rb", buffering=1 << 17)).read), far, "pipe"


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection on this machine, without waiting for more to send."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname())
        near, _ = listener.accept()
    for end in (near, other):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, other


def _framed(read: Callable[[int], bytes]) -> Receive:
    """Return the function that receives messages with a length before each."""
    return lambda: (read(LENGTH.unpack(read(LENGTH.size))[0]),)


def _rate(receiver: _Receiver, way: str, size: int, count: int) -> float:
    """Return the MB per second from the arrival of the first message to that of the last."""
    with _sending(receiver, way, size, count, 0) as receive:
        left = count - len(receive())
        began, rest = clock(), left
        while left > 0:
            left -= len(receive())
        taken = clock() - began
    return size * max(rest, 1) / max(taken, 1) * 1e3


def _delays(receiver: _Receiver, way: str, size: int, count: int) -> list[float]:
    """Return the microseconds from sending to receiving of each message but the first."""
    delays = []
    with _sending(receiver, way, size, count, PAUSE_US) as receive:
        for _ in range(count):
            (message,) = receive()
            delays.append((clock() - CLOCK.unpack_from(message)[0]) / 1e3)
    return delays[1:]


def _claims(
    sizes: Sequence[int], rates: dict[str, list[float]], waits: dict[str, list[float]]
) -> list[PublishedClaim]:
    gains = [own / other for own, other in zip(rates[STREAM], rates[PIPE], strict=True)]
    best = max(gains)
    quicker = [other / own for own, other in zip(waits[STREAM], waits[PIPE], strict=True)]
    least, most = min(gains), sizes[gains.index(best)]
    batched = [own / other for own, other in zip(rates[BATCHED], rates[PIPE], strict=True)]
    further = []
    if REDIS in rates:
        over = [own / other for own, other in zip(rates[STREAM], rates[REDIS], strict=True)]
        later = [other / own for own, other in zip(waits[STREAM], waits[REDIS], strict=True)]
        further = [
            PublishedClaim(
                "today",
                "a stream compared with a list of Redis",
                "",
                f"throughput from {min(over):.1f} x to {max(over):.1f} x; delay of Redis from "
                f"{min(later):.2g} x to {max(later):.2g} x that of a stream",
                OURS,
            )
        ]
    return [
        PublishedClaim(
            "section 5.2.3, Figure 5.3a",
            "a stream compared with a pipe, at every size",
            "higher",
            f"from {least:.2f} x to {best:.2f} x",
            judged(gains, 1, float("inf"), none=1.0, every=True),
        ),
        PublishedClaim(
            "section 5.2.3",
            "a stream compared with a pipe, at the best size",
            "up to 87.5 % more",
            f"{best:.2f} x at {size_text(most)}",
            judged(best, 1.7, 1.9, none=1.0),
        ),
        PublishedClaim(
            "section 5.2.3, Figure 5.3b",
            "delay of a pipe compared with that of a stream, at every size",
            "significantly longer",
            f"from {min(quicker):.2f} x to {max(quicker):.2f} x",
            judged(quicker, 1, float("inf"), none=1.0, every=True),
        ),
        PublishedClaim(
            "today",
            "a stream with 64 messages per call compared with a pipe",
            "",
            f"from {min(batched):.2f} x to {max(batched):.2f} x",
            OURS,
        ),
        *further,
    ]
