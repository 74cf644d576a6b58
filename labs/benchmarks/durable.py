"""Acknowledged durable creates of 4 KB: one client, and sixteen at once, compared with bare LMDB.

The disk may acknowledge from its own cache, so only ratios are meaningful.
"""

from __future__ import annotations

import contextlib
import os
import select
from pathlib import Path

import lmdb

import dios
from dios.transport.unix.client import ClientChannel, connect
from dios.wire import codec, messages
from dios.wire.types import NameKind, ObjectType
from labs.benchmarks.measure import CLIENT_CPU, clock, interleaved, pin, unpin
from labs.benchmarks.nodes import running_node, workspace
from labs.benchmarks.report import Row, Section, judge, number, times

SIZE = 4096
CLIENTS = 16
CREATES = 4000


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    payload = os.urandom(SIZE)
    with contextlib.ExitStack() as stack:
        bench = stack.enter_context(running_node(None))
        pin(CLIENT_CPU)
        bare = stack.enter_context(_BareStore.opened(stack.enter_context(workspace())))
        node = stack.enter_context(dios.connect(bench.data, groups=[]))
        group = node.create_group()
        costs = interleaved(
            {
                "lmdb": lambda: bare.put(payload),
                "dios": lambda: node.create(dios.DURABLE_BLOB, groups=[group], data=payload),
            },
            rounds=12,
            calls=100,
        )
        sixteen = _many_clients(bench.data, payload)
        unpin()
    own, lone = costs["dios"], costs["lmdb"]
    section.figure("bare LMDB put and synced commit, 4 KB", lone, "µs")
    section.figure("durable create, one client, 4 KB", own, "µs")
    section.figure("durable creates, sixteen clients, 4 KB", sixteen, "/s")
    section.figure("durable creates, one client, 4 KB", 1e6 / own, "/s")
    section.rows.append(
        Row(
            "durable 4 KB create, acknowledged, one client",
            f"{number(own)} µs",
            f"bare LMDB put and synced commit {number(lone)} µs",
            times(own / lone),
            judge("within 2 x of bare LMDB", own / lone, 2),
        )
    )
    section.rows.append(
        Row(
            "durable 4 KB creates, sixteen clients",
            f"{number(sixteen)} /s",
            f"one client {number(1e6 / own)} /s; bare LMDB, one commit each, {number(1e6 / lone)} /s",
            f"{times(sixteen * own / 1e6)} one client, {times(sixteen * lone / 1e6)} bare LMDB",
            judge("5 x one client (group commit)", sixteen * own / 1e6, 5, below=False),
        )
    )


class _BareStore:
    """A store as a careful user of LMDB would write it."""

    def __init__(self, environment: lmdb.Environment) -> None:
        self._begin = environment.begin
        self._next = 0

    @staticmethod
    @contextlib.contextmanager
    def opened(folder: Path):  # type: ignore[no-untyped-def]  # noqa: ANN205 - lmdb has no types
        """Open a store in ``folder`` that syncs every commit."""
        with lmdb.open(str(folder / "bare"), map_size=2**30, sync=True, metasync=True) as environment:
            yield _BareStore(environment)

    def put(self, payload: bytes) -> None:
        """Store one value in one synced commit."""
        self._next += 1
        with self._begin(write=True) as transaction:
            transaction.put(self._next.to_bytes(8, "big"), payload)


def _many_clients(data: Path, payload: bytes) -> float:
    """Return creates per second of CLIENTS connections with one outstanding create each, from one process."""
    with contextlib.ExitStack() as stack:
        channels = [
            stack.enter_context(contextlib.closing(ClientChannel(connect(data / "node.sock"))))
            for _ in range(CLIENTS)
        ]
        poll = select.poll()
        of_fd: dict[int, ClientChannel] = {}
        for channel in channels:
            channel.call(codec.encode_request(1, messages.Hello(codec.PROTOCOL_VERSION, ())))
            poll.register(channel.fileno(), select.POLLIN)
            of_fd[channel.fileno()] = channel
        create = messages.Create(ObjectType.DURABLE_BLOB, name_kind=NameKind.ANONYMOUS, data=payload)
        frame = codec.encode_request(2, create)
        for channel in channels:
            channel.send(frame)
        left, answered = CREATES - CLIENTS, 0
        began = clock()
        while answered < CREATES:
            for fd, _ in poll.poll():
                body, _ = of_fd[fd].receive()
                if isinstance(codec.decode_reply(body).result, messages.Failure):
                    raise RuntimeError("a durable create was refused")  # noqa: TRY004 - no type is wrong
                answered += 1
                if left:
                    of_fd[fd].send(frame)
                    left -= 1
        return CREATES / ((clock() - began) / 1e9)
