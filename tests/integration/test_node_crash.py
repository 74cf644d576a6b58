"""A daemon killed under load, its disk damaged, its events recorded: what is left must be whole."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from blake3 import blake3
from node_process import LARGE, NodeProcess, RawClient, create, pattern, read, write

from dios import limits
from dios.errors import Code, DiosError
from dios.sim.replay import replay
from dios.wire import messages
from dios.wire.messages import Buffer, Committed, Created, Failure, References
from dios.wire.types import Flag, ObjectType

ROUNDS = 20
LOAD_S_MAX = 0.15


def value(name: bytes, version: int) -> bytes:
    """The bytes of a version: some small, some large, each told apart from every other."""
    seed = blake3(name + version.to_bytes(8, "big")).digest()
    return seed * (2 + seed[0] % 8 * 300)


class Writer(threading.Thread):
    """Writes objects again and again until its node is killed; remembers what was acknowledged."""

    def __init__(self, client: RawClient) -> None:
        super().__init__()
        self.client = client
        self.acknowledged: dict[bytes, int] = {}
        self.attempted: dict[bytes, int] = {}

    def run(self) -> None:
        """Create, then write new versions, until the connection breaks."""
        try:
            while True:
                made = create(self.client, ObjectType.DURABLE_BLOB)
                assert made.name is not None
                for version in range(1, 6):
                    self.attempted[made.name] = version
                    data = value(made.name, version)
                    write(self.client, made.reference.ref, data, flags=int(Flag.REPLACE))
                    self.acknowledged[made.name] = version
        except (DiosError, OSError):
            return


def test_kill_under_load(tmp_path: Path) -> None:
    """Killed again and again while writing, a node loses no acknowledged commit and tears no object."""
    rng = random.Random(4)  # noqa: S311 - moments, no secrets
    node = NodeProcess(tmp_path / "data", pool_size="0")
    promised: dict[bytes, tuple[int, int]] = {}
    for _ in range(ROUNDS):
        writers = [Writer(node.client()) for _ in range(2)]
        for writer in writers:
            writer.start()
        time.sleep(rng.uniform(0.01, LOAD_S_MAX))  # the moment of the kill is what is random here
        node.kill()
        for writer in writers:
            writer.join()
            writer.client.close()
            for name, version in writer.acknowledged.items():
                promised[name] = (version, writer.attempted[name])
        node.start()
    with node.client() as client:
        for name, (acknowledged, attempted) in promised.items():
            found = client.ask(messages.Lookup(name), References).references
            assert len(found) == 1
            data = read(client, found[0].ref)
            assert data in {value(name, version) for version in range(acknowledged, attempted + 1)}
    assert node.stop() == 0
    assert len(promised) > ROUNDS


def test_damage_is_reported_and_never_served(tmp_path: Path) -> None:
    """A large value whose file was changed is refused by fingerprint; everything else is served."""
    node = NodeProcess(tmp_path / "data", pool_size="0")
    with node.client() as client:
        made = [create(client, ObjectType.DURABLE_BLOB) for _ in range(2)]
        for number, one in enumerate(made):
            write(client, one.reference.ref, pattern(LARGE + number))
    assert node.stop() == 0
    (victim,) = [path for path in (tmp_path / "data" / "extents").rglob("*") if size_of(path) == LARGE]
    victim.chmod(0o600)
    with victim.open("r+b") as file:
        file.seek(LARGE // 2)
        file.write(b"\xff\x00\xff")
    node.start()
    try:
        with node.client() as client:
            first, second = (look_up(client, one) for one in made)
            for _ in range(2):
                refused = client.any(messages.AcquireRead(first.ref))
                assert isinstance(refused, Failure)
                assert refused.code == Code.EIO
                assert first.fingerprint in refused.message + refused.fingerprint
            assert read(client, second.ref) == pattern(LARGE + 1)
            client.ask(messages.Delete(first.ref), messages.Done)
    finally:
        node.stop()


def size_of(path: Path) -> int:
    """Bytes of a file; nothing of a folder."""
    return path.stat().st_size if path.is_file() else -1


def look_up(client: RawClient, made: Created) -> messages.Reference:
    """A fresh reference to an object made in an earlier session."""
    assert made.name is not None
    return client.ask(messages.Lookup(made.name), References).references[0]


def test_recording_replays(tmp_path: Path) -> None:
    """The recorded events of a real node give the same outcomes in a fresh core."""
    recording = tmp_path / "events"
    node = NodeProcess(tmp_path / "data", pool_size="1", record=str(recording))
    with node.client() as client:
        ref = create(client, ObjectType.DURABLE_BLOB, b"recorded").reference.ref
        client.ask(messages.WriteOnce(ref, b"again"), Committed)
        client.ask(messages.ReadOnce(ref), Buffer)
        code = create(client, ObjectType.SHMEM_BLOB, b"print('hello')\n").reference.ref
        started = client.any(messages.Run(code))
        if isinstance(started, Created):
            client.ask(messages.Select((started.reference.ref,)), messages.Selected)
    assert node.stop() == 0
    result = replay(recording)
    assert result.first_difference is None
    assert result.events > 8


@pytest.mark.slow
def test_a_thousand_tasks_leave_nothing(tmp_path: Path) -> None:
    """After a thousand tasks the node has the descriptors and children that it began with."""
    node = NodeProcess(tmp_path / "data", pool_size="2")
    try:
        with node.client() as client:
            code = create(client, ObjectType.SHMEM_BLOB, b"pass\n").reference.ref
            run_many(client, code, 8)
            # The zygote and the two children that wait in its pool.
            before = wait_until(node, lambda state: state.processes == 3)
            run_many(client, code, 1_000)
            assert wait_until(node, lambda state: state == before) == before
    finally:
        node.stop()


def run_many(client: RawClient, code: int, count: int) -> None:
    """Start tasks, a few at a time, and wait for each to end."""
    running: list[int] = []
    for _ in range(count):
        started = client.any(messages.Run(code))
        if isinstance(started, Failure) and started.code == Code.ENOSYS:
            pytest.skip(f"no pure tasks here: {started.message}")
        assert isinstance(started, Created), started
        running.append(started.reference.ref)
        if len(running) == 8:
            for ref in running:
                client.ask(messages.Select((ref,)), messages.Selected)
                client.ask(messages.Delete(ref, int(Flag.HANDLE_ONLY)), messages.Done)
            running.clear()


class Held(NamedTuple):
    """What a daemon holds: its descriptors, and processes below it."""

    descriptors: int
    processes: int


def settled(node: NodeProcess) -> Held:
    """What it holds now."""
    pid = node.process.pid
    return Held(len(os.listdir(f"/proc/{pid}/fd")), descendants(pid))  # noqa: PTH208 - entries come and go


def descendants(pid: int) -> int:
    """Processes below ``pid``, its pool's children among them."""
    count = 0
    # Processes end while they are counted.
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children = (thread / "children").read_text().split()
            count += len(children) + sum(descendants(int(child)) for child in children)
    return count


def wait_until(node: NodeProcess, reached: Callable[[Held], bool]) -> Held:
    """Wait until the daemon holds what it should, twice in a row; its pool refills meanwhile."""
    deadline = time.monotonic() + limits.NODE_STOP_MS_MAX / 1000
    while time.monotonic() < deadline:
        state = settled(node)
        time.sleep(0.05)
        if reached(state) and settled(node) == state:
            break
    return settled(node)
