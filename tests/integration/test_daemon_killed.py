"""The daemon is killed under load: nothing acknowledged is lost, nothing torn, nothing left running.

Not for: the store alone (``test_store_crash``), or power cuts.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from running_node import RunningNode, exists, running_node, wait_until

import dios
from dios.sim.replay import replay

ROUNDS = 20
WRITERS = 3
SIZES = (64, 5_000, 200_000)


def _value(number: int, version: int) -> bytes:
    """A value that tells its version everywhere, so that a torn one shows."""
    size = SIZES[(number + version) % len(SIZES)]
    return (b"%08d%08d" % (number, version)) * (size // 16)


class Writer:
    """One client that creates and replaces objects, and notes what it was told is safe."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.names: list[bytes] = []
        self.safe: dict[bytes, int] = {}
        self.trying: dict[bytes, int] = {}
        self.version = 0

    def write_until_killed(self, place: str, acknowledged: Callable[[], None]) -> None:
        """Write as fast as it goes, until the node is gone."""
        rng = random.Random(self.number)  # noqa: S311 - which object is written next is no secret
        try:
            with dios.connect(place, groups=()) as node:
                while True:
                    self.version += 1
                    if len(self.names) < 6:
                        made = node.create(
                            dios.DURABLE_BLOB, groups=node.groups[:1], data=_value(self.number, self.version)
                        )
                        name = made.name
                        assert name is not None
                        self.names.append(name)
                    else:
                        name = rng.choice(self.names)
                        self.trying[name] = self.version
                        (made, *_) = node.lookup(name)
                        made.write_bytes(_value(self.number, self.version))
                    made.close()
                    self.safe[name] = self.version
                    self.trying.pop(name, None)
                    acknowledged()
        except (dios.DiosError, OSError):
            return  # killed, as announced

    def check(self, place: str) -> None:
        """Every name holds its last acknowledged value, or the one that was on its way, whole."""
        with dios.connect(place, groups=()) as node:
            for name in self.names:
                (found, *_) = node.lookup(name)
                held = bytes(found.read_bytes())
                version = int(held[8:16])
                assert held == _value(self.number, version), "torn"
                assert version in {self.safe.get(name), self.trying.get(name)}, "lost or invented"
                self.safe[name] = version
                self.trying.pop(name, None)
                found.close()


def _one_round(node: RunningNode, writers: list[Writer], writes: int) -> None:
    enough = threading.Semaphore(0)
    threads = [
        threading.Thread(target=writer.write_until_killed, args=(node.place, enough.release))
        for writer in writers
    ]
    for thread in threads:
        thread.start()
    for _ in range(writes):
        assert enough.acquire(timeout=30)
    node.kill()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive(), "a client of a killed node hangs"


@pytest.mark.slow
def test_killed_daemon_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Kill -9 under a writing load, 20 rounds: no acknowledged commit lost, no torn object."""
    writers = [Writer(number) for number in range(WRITERS)]
    rng = random.Random(7)  # noqa: S311 - when to kill is no secret
    with running_node(tmp_path / "node", pool_size="0") as node:
        for _ in range(ROUNDS):
            _one_round(node, writers, rng.randint(1, 40))
            node.restart()
            for writer in writers:
                writer.check(node.place)


def test_killed_daemon_leaves_no_process(tmp_path: Path) -> None:
    """When the daemon is killed, its zygote, its pool and every task go too."""
    with running_node(tmp_path / "node") as node, dios.connect(node.place, groups=()) as session:
        session.run(b"import time\nwhile True: time.sleep(1)")
        below = node.descendants()
        assert len(below) >= 2
        node.kill()
        wait_until(lambda: not any(exists(pid) for pid in below), "every descendant is gone")


def test_recorded_daemon_replays(tmp_path: Path) -> None:
    """A real daemon's recorded events go through a fresh core with the same outcomes."""
    record = tmp_path / "record"
    with running_node(tmp_path / "node", record=str(record)) as node:
        with dios.connect(node.place, groups=()) as session:
            blob = session.create(dios.DURABLE_BLOB, groups=session.groups[:1], data=b"abc")
            blob.write_bytes(b"defg")
            task = session.run(b"print('hello')")
            assert task.wait(timeout=30).exit_code == 0
        node.stop()
    replayed = replay(record)
    assert replayed.first_difference is None
    assert replayed.events > 8
