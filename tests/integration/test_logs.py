"""DURABLE_STREAM on a real node: many writers and readers, following, kill -9, and damaged files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from tests.support.node.running_node import RunningNode, running_node

PATIENCE_S = 20
WRITERS = 4
EACH = 50

FOLLOWER = b"""
import dios
node = dios.connect()
for entry in node.inputs[0].follow():
    node.outputs[0].append(entry.data.upper())
    if entry.data == b"last":
        break
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A running node."""
    with running_node(tmp_path_factory.mktemp("logs") / "node") as node:
        yield node


@pytest.fixture
def node(started: RunningNode) -> Iterator[dios.Node]:
    """A session."""
    with dios.connect(started.place, groups=()) as node:
        yield node


def test_a_log_is_read_from_any_place_that_was_told(node: dios.Node) -> None:
    """Entries come in order, each tells where the next begins, and no reader moves another."""
    log = node.create_log()
    assert log.append(b"one") == 1
    assert log.append_all([b"two", b"", b"four"]) == 4
    there = list(log)
    assert [entry.data for entry in there] == [b"one", b"two", b"", b"four"]
    assert [entry.data for entry in log.entries(there[1].next)] == [b"", b"four"]
    assert log.read_entries(there[-1].next) == []
    assert (log.v_w, log.size) == (4, there[-1].next)


def test_long_logs_take_many_messages(node: dios.Node) -> None:
    """More than one message holds is read as one log."""
    log = node.create_log()
    sent = [b"%05d" % number * 200 for number in range(300)]
    log.append_all(sent)
    assert [entry.data for entry in log] == sent


def test_writers_at_once_lose_nothing(started: RunningNode, node: dios.Node) -> None:
    """Entries of many writers are all there, whole, and in each writer's order."""
    assert node.home is not None
    log = node.create_log(groups=[node.home])

    def write(number: int) -> None:
        with dios.connect(started.place, groups=()) as own:
            mine = own.find(log.name or b"")
            assert isinstance(mine, dios.Log)
            for count in range(EACH):
                mine.append(b"%d %d" % (number, count))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    there = [entry.data.split() for entry in log]
    for number in range(WRITERS):
        mine = [int(count) for who, count in there if int(who) == number]
        assert mine == list(range(EACH))
    assert len(there) == WRITERS * EACH
    log.delete()


def test_followers_get_what_comes(node: dios.Node) -> None:
    """Tasks follow one log from its beginning while it grows, with no right but to read it."""
    log, out = node.create_log(), node.create_log()
    log.append(b"first")
    task = node.run(FOLLOWER, inputs=[log.restrict("read")], outputs=[out.restrict("write")])
    assert out.read_entries(0, wait=True, timeout=PATIENCE_S)[0].data == b"FIRST"
    log.append(b"last")
    assert task.wait(PATIENCE_S).ok
    assert [entry.data for entry in out] == [b"FIRST", b"LAST"]


def test_select_waits_for_entries(node: dios.Node) -> None:
    """A log is ready when there is something that this reader did not read, as other objects are."""
    log = node.create_log()
    assert node.select([log], timeout=0) is None
    log.append(b"one")
    assert node.select([node.self, log], timeout=PATIENCE_S) is log
    (entry,) = list(log)
    assert node.select([log], timeout=0) is None
    with pytest.raises(dios.TimeLimitError):
        log.read_entries(entry.next, wait=True, timeout=0.05)


def test_a_place_that_nobody_told_is_refused(node: dios.Node) -> None:
    """Between entries nothing is read, nor behind the end."""
    log = node.create_log()
    log.append(b"one")
    with pytest.raises(dios.DamagedError, match="position 1 "):
        log.read_entries(1)
    with pytest.raises(dios.InvalidError, match="after the log's end"):
        log.read_entries(log.size + 1)


def test_kill_9_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    """After kill -9 with appends running a log holds each writer's acknowledged entries and at most the one
    that was on its way, in order, and goes on from there.
    """
    with running_node(tmp_path / "node") as started:
        with dios.connect(started.place, groups=()) as node:
            assert node.home is not None
            name = node.create_log(groups=[node.home]).name
        assert name is not None
        acknowledged = dict.fromkeys(range(WRITERS), 0)
        enough = threading.Event()

        def write(number: int) -> None:
            try:
                with dios.connect(started.place, groups=()) as own:
                    mine = own.find(name)
                    assert isinstance(mine, dios.Log)
                    while True:
                        mine.append(b"%d %d" % (number, acknowledged[number]))
                        acknowledged[number] += 1
                        if min(acknowledged.values()) >= EACH:
                            enough.set()
            except dios.DiosError:
                pass

        threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
        for thread in threads:
            thread.start()
        assert enough.wait(PATIENCE_S)
        started.kill()
        for thread in threads:
            thread.join(PATIENCE_S)
        started.restart()
        with dios.connect(started.place, groups=()) as node:
            again = node.find(name)
            assert isinstance(again, dios.Log)
            there = [entry.data.split() for entry in again]
            for number, count in acknowledged.items():
                mine = [int(serial) for who, serial in there if int(who) == number]
                assert mine == list(range(len(mine)))
                assert count <= len(mine) <= count + 1
            assert again.append(b"goes on") == len(there) + 1
