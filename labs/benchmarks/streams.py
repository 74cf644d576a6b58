"""SHMEM_STREAM between two processes on two processors, compared with a framed pipe and ZeroMQ.

Rates are of payload bytes; a MB is a million bytes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import dios
from labs.benchmarks.measure import CLIENT_CPU, SERVER_CPU, clock, forked, median, pin, unpin
from labs.benchmarks.nodes import running_node, workspace
from labs.benchmarks.peers.pipes import Contender, FramedPipe, ZeroMq
from labs.benchmarks.peers.redis_server import MissingPeerError
from labs.benchmarks.report import Row, Section, judge, number, times

MESSAGES: Final = {64: 150_000, 1024: 100_000, 4096: 60_000, 65536: 8_000, 1 << 20: 600}
"""The number of messages of each size in one turn, for about a fifth of a second."""

ROUNDS: Final = 7
ROUNDS_OF_OTHERS: Final = 3
_IDLE_SECONDS: Final = 1.0
_SIZE_NAMES: Final = {64: "64 B", 1024: "1 KB", 4096: "4 KB", 65536: "64 KB", 1 << 20: "1 MB"}
_BATCH: Final = 64


class Ring:
    """A stream of a node, with a connection for each process; ``batched`` moves several messages per call."""

    def __init__(self, data: Path, group: bytes, name: bytes, *, batched: bool = False) -> None:
        self._data: Final = data
        self._group: Final = group
        self._name: Final = name
        self._batched: Final = batched

    @contextlib.contextmanager
    def _stream(self) -> Iterator[dios.Stream]:
        with dios.connect(self._data, groups=[self._group]) as node:
            stream = node.find(self._name)
            if not isinstance(stream, dios.Stream):
                raise TypeError("the stream was not found")
            yield stream
            stream.close()

    def write(self, data: bytes, count: int) -> None:
        """Send messages."""
        with self._stream() as stream:
            if self._batched:
                batch = [data] * _BATCH
                for _ in range(count // _BATCH):
                    stream.writer.send_many(batch)
                stream.writer.send_many(batch[: count % _BATCH])
                return
            send = stream.writer.send
            for _ in range(count):
                send(data)

    def read(self, count: int) -> float:
        """Receive messages; return the seconds from the first to the last message."""
        with self._stream() as stream:
            receive, receive_many = stream.reader.receive, stream.reader.receive_many
            receive()
            began = clock()
            if self._batched:
                left = count - 1
                while left > 0:
                    left -= len(receive_many())
            else:
                for _ in range(count - 1):
                    receive()
            return (clock() - began) / 1e9


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    with running_node() as bench, dios.connect(bench.data, groups=[]) as node, workspace() as folder:
        group = node.create_group()

        def ring(*, batched: bool) -> Contender:
            stream = node.create_stream(groups=[group])
            return Ring(bench.data, _known(group.name), _known(stream.name), batched=batched)

        contenders: dict[str, Callable[[], Contender]] = {
            "dios": lambda: ring(batched=False),
            "pipe": FramedPipe.opened,
            "dios, batched": lambda: ring(batched=True),
        }
        zero = ZeroMq(folder / "zmq")
        try:
            zero.check()
        except MissingPeerError as missing:
            section.trouble.append(str(missing))
        else:
            contenders["zeromq"] = lambda: zero
        rates_by_size = {size: _one_size(contenders, size) for size in MESSAGES}
        _idle(section, ring(batched=False))
    _report(section, rates_by_size)


def _known(name: bytes | None) -> bytes:
    assert name is not None
    return name


def _one_size(contenders: dict[str, Callable[[], Contender]], size: int) -> dict[str, float]:
    """Return the MB per second of each contender, measured in turns."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(ROUNDS):
        for name, make in contenders.items():
            if turn >= ROUNDS_OF_OTHERS and name not in {"dios", "pipe"}:
                continue
            rates[name].append(_transfer(make(), size, MESSAGES[size]))
    return {name: median(values) for name, values in rates.items()}


def _transfer(contender: Contender, size: int, count: int) -> float:
    """Return the MB per second from the arrival of the first message to that of the last."""
    data = os.urandom(size)

    def work() -> None:
        pin(CLIENT_CPU)
        contender.write(data, count)

    with forked(work):
        pin(SERVER_CPU)
        seconds = contender.read(count)
    unpin()
    if isinstance(contender, FramedPipe):
        contender.close()
    return size * (count - 1) / seconds / 1e6


def _idle(section: Section, contender: Contender) -> None:
    """Measure the processor time of a reader that waits for a message."""

    def work() -> None:
        time.sleep(_IDLE_SECONDS)
        contender.write(b"late", 1)

    with forked(work):
        before = time.process_time()
        contender.read(1)
        used = time.process_time() - before
    section.figure("a waiting reader, processor time per second", used * 1000 / _IDLE_SECONDS, "ms")


def _report(section: Section, rates_by_size: dict[int, dict[str, float]]) -> None:
    for size, rates in rates_by_size.items():
        for name, rate in rates.items():
            section.figure(f"{name}, {_SIZE_NAMES[size]}", rate, "MB/s")
    for size, rates in rates_by_size.items():
        ours, pipe = rates["dios"], rates["pipe"]
        section.rows.append(
            Row(
                f"SHMEM_STREAM, {_SIZE_NAMES[size]} messages",
                f"{number(ours)} MB/s; {number(rates['dios, batched'])} in batches",
                f"framed os.pipe {number(pipe)} MB/s; ZeroMQ {number(rates.get('zeromq', float('nan')))}",
                times(ours / pipe),
                judge("as fast as a framed os.pipe", ours / pipe, 1, below=False),
                judge("1.9 x", ours / pipe, 1.9, below=False),
                "message by message; ring and pipe hold 1 MiB" if size == min(rates_by_size) else "",
            )
        )
