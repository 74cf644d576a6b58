"""Who keeps copying large objects keeps nobody else waiting, and holes cost nothing.

Not for: how much memory anybody may fill (limits of accounts), or the turns by themselves
(``tests/unit/host/loop/test_fair_queue.py``).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from dios import limits
from dios.transport.memory.memfd import close_all
from dios.wire import messages
from dios.wire.types import Buffering, Flag, NameKind, ObjectType
from tests.support.node.raw_client import NodeProcess, RawClient, create, pattern, read, write

EIGHT = 8 * limits.MIB
ROUNDS = 5
ATTACKERS = 3
WAIT_S = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node of this file's own."""
    started = NodeProcess(tmp_path_factory.mktemp("fair") / "data", pool_size="1")
    yield started
    assert started.stop() == 0


def _blob(client: RawClient, size: int, *, raw: bool = False) -> int:
    """A blob with ``size`` bytes, of which few are there."""
    call = messages.Create(
        ObjectType.SHMEM_BLOB,
        name_kind=NameKind.ANONYMOUS,
        buffering=Buffering.RAW if raw else Buffering.DOUBLE,
    )
    ref = client.ask(call, messages.Created).reference.ref
    buffer = client.ask(messages.AcquireWrite(ref, size, flags=int(Flag.BLANK)), messages.Buffer)
    os.pwrite(client.fds[-1], b"end", buffer.start + size - 3)
    client.ask(messages.CommitWrite(ref, buffer.buffer), messages.Committed)
    client.ask(messages.ReleaseWrite(ref, buffer.buffer), messages.Done)
    return ref


@contextmanager
def _copying(node: NodeProcess, size: int, *, full: bool) -> Iterator[None]:
    """Somebody who asks for copies as fast as answers come, several at once."""
    ended = threading.Event()
    at_it = threading.Barrier(ATTACKERS + 1)

    def attack() -> None:
        with node.client() as client:
            refs = [_blob(client, size) for _ in range(2)]
            if full:
                for ref in refs:
                    write(client, ref, pattern(size))
            at_it.wait(WAIT_S)
            while not ended.is_set():
                asked: dict[int, int] = {}
                for ref in refs:
                    # Each has its old bytes copied into a buffer, and then a new version made of them.
                    asked[client.send(messages.AcquireWrite(ref))] = ref
                    asked[client.send(messages.WriteOnce(ref, b"x", 5))] = ref
                for seq, result, _ in [client.receive() for _ in asked]:
                    assert isinstance(result, messages.Buffer | messages.Committed), result
                    if isinstance(result, messages.Buffer):
                        client.ask(messages.ReleaseWrite(asked[seq], result.buffer), messages.Done)
                close_all(client.fds[1:])
                del client.fds[1:]

    with ThreadPoolExecutor(ATTACKERS) as threads:
        attackers = [threads.submit(attack) for _ in range(ATTACKERS)]
        try:
            at_it.wait(WAIT_S)
            yield
        finally:
            ended.set()
        for attacker in attackers:
            attacker.result()


@pytest.mark.parametrize(
    ("size", "full"), [(2 * EIGHT, True), (limits.GIB // 2, False)], ids=["all-there", "holes"]
)
def test_a_neighbour_is_answered(node: NodeProcess, size: int, full: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Beside three who keep copying, small and large reads and writes of any kind are all answered."""
    with _copying(node, size, full=full), node.client() as neighbour:
        small = create(neighbour, ObjectType.SHMEM_BLOB, b"small").reference.ref
        large, durable = (
            create(neighbour, kind).reference.ref for kind in (ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB)
        )
        write(neighbour, durable, pattern(EIGHT))
        for number in range(ROUNDS):
            assert read(neighbour, small) == b"small"
            data = pattern(EIGHT, seed=number + 1)
            write(neighbour, large, data)
            # Another version, made of the old one by a copy.
            neighbour.ask(messages.WriteOnce(large, b"new", 9), messages.Committed)
            assert read(neighbour, large) == data[:9] + b"new" + data[12:]
            # Builds on a large stored content, and so waits for what was done before it.
            neighbour.ask(messages.WriteOnce(durable, b"kept", number), messages.Committed)
        expected = b"k" * (ROUNDS - 1) + b"kept" + pattern(EIGHT)[ROUNDS + 3 :]
        assert read(neighbour, durable) == expected


def test_copies_of_holes_cost_nothing(node: NodeProcess) -> None:
    """Objects of half a gigabyte with a few bytes in them are copied in every way there is."""
    size = limits.GIB // 2
    with node.client() as client:
        for raw in (False, True):
            ref = _blob(client, size, raw=raw)
            client.ask(messages.WriteOnce(ref, b"begin"), messages.Committed)
            assert read(client, ref, 0, 9) == b"begin" + bytes(4)
            assert read(client, ref, size - 5, 5) == bytes(2) + b"end"
            buffer = client.ask(messages.AcquireWrite(ref), messages.Buffer)
            assert os.pread(client.fds[-1], 5, 0) == b"begin"
            assert os.fstat(client.fds[-1]).st_blocks * 512 < limits.MIB
            client.ask(messages.ReleaseWrite(ref, buffer.buffer), messages.Done)
            other = Buffering.DOUBLE if raw else Buffering.RAW
            call = messages.Copy(ref, client.welcome.self_ref.ref, buffering=other)
            (copy,) = client.ask(call, messages.References).references
            client.ask(messages.AcquireWrite(copy.ref), messages.Buffer)
            assert os.pread(client.fds[-1], 5, 0) == b"begin"
            assert os.fstat(client.fds[-1]).st_blocks * 512 < limits.MIB
