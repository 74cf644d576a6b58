"""Claims about messages that concern several other nodes at once, with real ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import cast

import pytest

import dios
from dios.client.session import split
from dios.client.sync.connection import Connection
from dios.node import local_cluster
from dios.transport.unix.client import close_all
from dios.wire import messages
from dios.wire.types import Flag

SIZE = 300_000


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dios.Node]]:
    """A session at each of three nodes."""
    folder = tmp_path_factory.mktemp("three") / "cluster"
    settings = {"accept_weaker_sandbox": "yes", "limbo_from_nodes": "yes"}
    live_cluster = local_cluster.make(folder, nodes=3, settings=settings)
    try:
        local_cluster.start(live_cluster)
        with ExitStack() as stack:
            yield [
                stack.enter_context(dios.connect(str(member.socket), groups=()))
                for member in live_cluster.nodes
            ]
    finally:
        local_cluster.stop(live_cluster)


def _everywhere(nodes: list[dios.Node]) -> list[tuple[dios.Reference, bytes]]:
    """An object on each node, as the first one's session refers to it, and its bytes."""
    pairs = []
    for node in nodes:
        data = os.urandom(SIZE)
        assert node.home is not None
        blob = node.create(dios.SHMEM_BLOB, data=data, groups=[node.home])
        assert blob.name is not None
        (reference,) = nodes[0].lookup(blob.name, limit=1)
        pairs.append((reference, data))
    return pairs


def test_a_vector_over_all_nodes_brings_each_its_own_bytes(nodes: list[dios.Node]) -> None:
    """Reads too large for a message, of objects on three nodes, in one vector, come each with its bytes."""
    objects = _everywhere(nodes)
    for order in (objects, objects[::-1], [*objects, *objects]):
        calls = tuple(messages.ReadOnce(reference.ref) for reference, _ in order)
        assert _bytes_of(nodes[0], calls) == [data for _, data in order]


def test_owners_let_in_limbo_tasks_of_other_nodes(nodes: list[dios.Node]) -> None:
    """With the setting on all nodes, such a task starts where its caller wants."""
    for name in ("n1", "n2", "n3"):
        assert nodes[0].run(b"", host=name, brand=dios.Brand.LIMBO).wait(30).ok


def test_what_begins_blank_takes_no_others_bytes(nodes: list[dios.Node]) -> None:
    """Beside a read of the same node, a buffer that was asked for blank is blank, and the read is right."""
    _, (reference, data), _ = _everywhere(nodes)
    calls = (
        messages.AcquireWrite(reference.ref, SIZE, flags=int(Flag.BLANK)),
        messages.ReadOnce(reference.ref),
    )
    assert _bytes_of(nodes[0], calls) == [bytes(SIZE), data]


def _bytes_of(node: dios.Node, calls: tuple[messages.PlainCall, ...]) -> list[bytes]:
    """Make the calls in one vector; the bytes that each was answered with."""
    contents: list[bytes] = []
    for outcome in split(calls, cast("Connection", node.link).call(messages.Vector(calls))):
        assert not isinstance(outcome, dios.DiosError), outcome
        result, fds = outcome
        assert isinstance(result, messages.Buffer)
        contents.append(result.data if result.data is not None else os.pread(fds[0], SIZE, result.start))
        close_all(fds)
    return contents
