"""One connection of the blocking client in several threads, and in forked children."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

import dios
from dios import limits
from dios.wire.types import ObjectType
from tests.support.node.running_node import RunningNode, running_node, wait_until

SECONDS_MAX = 60


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this file."""
    with running_node(tmp_path_factory.mktemp("threads") / "node") as node:
        yield node


@pytest.fixture
def node(started: RunningNode) -> Iterator[dios.Node]:
    """A session."""
    with dios.connect(started.place, groups=()) as session:
        yield session


def test_a_waiting_thread_holds_up_nobody(node: dios.Node) -> None:
    """While threads wait for tasks that run, another thread makes calls; the ends reach the right threads."""
    programs = [
        f"import dios; dios.connect().inputs[0].reader.receive(); raise SystemExit({n})" for n in range(4)
    ]
    streams = [node.create_stream() for _ in programs]
    tasks = [
        node.run(text.encode(), inputs=[stream.restrict("read")])
        for text, stream in zip(programs, streams, strict=True)
    ]
    with ThreadPoolExecutor(4) as threads:
        ended = [threads.submit(task.wait, SECONDS_MAX) for task in tasks]
        blob = node.create(ObjectType.SHMEM_BLOB, data=b"0")
        for number in range(100):
            blob.write_bytes(b"%d" % number)
            assert blob.read_bytes() == b"%d" % number
        assert not any(future.done() for future in ended)
        for stream in streams:
            stream.send(b"end")
        assert [future.result().exit_code for future in ended] == [0, 1, 2, 3]


def test_more_calls_than_may_wait_at_once(node: dios.Node) -> None:
    """Calls beyond those that may wait at the node wait in the client, and all are answered."""
    stream = node.create_stream()
    program = b"import dios; dios.connect().inputs[0].reader.receive()"
    task = node.run(program, inputs=[stream.restrict("read")])
    count = limits.PENDING_PER_TASK_MAX + 20
    with ThreadPoolExecutor(count) as threads:
        ended = [threads.submit(task.wait) for _ in range(count)]
        wait_until(lambda: node.held_calls == 20, "the client holds back those beyond", SECONDS_MAX)
        blob = node.create(ObjectType.SHMEM_BLOB, data=b"0")
        assert blob.read_bytes() == b"0"
        assert not any(future.done() for future in ended)
        stream.send(b"end")
        assert all(future.result(SECONDS_MAX).ok for future in ended)
    assert node.held_calls == 0


def test_each_thread_gets_its_own_answers(node: dios.Node) -> None:
    """Many calls of many threads at once: nobody gets the answer of another one."""

    def work(own: int) -> int:
        with node.create(ObjectType.SHMEM_BLOB, data=b"") as blob:
            for turn in range(150):
                blob.write_bytes(b"%d of %d" % (turn, own))
                assert blob.read_bytes() == b"%d of %d" % (turn, own)
        return own

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == list(range(8))


def test_select_among_threads(node: dios.Node) -> None:
    """A thread that selects among streams and other objects gets its answer also if another thread reads."""
    stopped = threading.Event()

    def busy() -> None:
        blob = node.create(ObjectType.SHMEM_BLOB, data=b"x")
        while not stopped.is_set():
            blob.stat()

    with ThreadPoolExecutor(3) as threads:
        others = [threads.submit(busy) for _ in range(2)]
        try:
            for _ in range(20):
                with node.create_timer(0.001) as timer, node.create_stream() as silent:
                    future = threads.submit(node.select, [silent, timer], "read", SECONDS_MAX)
                    assert future.result(SECONDS_MAX) is timer
        finally:
            stopped.set()
        for other in others:
            other.result(SECONDS_MAX)


def test_closing_ends_the_calls_of_other_threads(started: RunningNode) -> None:
    """A thread that waits when the connection is closed gets ClosedError."""
    session = dios.connect(started.place, groups=())
    task = session.run(b"import time; time.sleep(600)")
    console = task.console()
    with ThreadPoolExecutor(2) as threads:
        waiting: list[Future[object]] = [threads.submit(task.wait), threads.submit(console.receive)]
        session.info()
        session.close()
        for future in waiting:
            with pytest.raises(dios.ClosedError):
                future.result(SECONDS_MAX)


def _in_child(work: Callable[[], object]) -> str:
    """Return what came of ``work`` in a forked child."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            told = f"did: {work()}"
        except BaseException as error:  # noqa: BLE001 - the parent reads it
            told = f"{type(error).__name__}: {error}"
        os.write(write_end, told.encode())
        os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as file:
        told = file.read()
    os.waitpid(pid, 0)
    return told


def test_a_forked_child_is_told_to_connect_again(started: RunningNode, node: dios.Node) -> None:
    """A child refuses calls on the inherited node, connects anew, and disturbs the parent in no way."""
    stream = node.create_stream()
    stream.send(b"before")
    blob = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=b"kept")
    assert blob.read_bytes() == blob.read_bytes() == b"kept"
    assert _in_child(blob.read_bytes).startswith("ClosedError"), "also what would take no call"
    told = _in_child(node.info)
    assert told.startswith("ClosedError")
    assert "dios.connect()" in told

    def anew() -> int:
        node.close()
        with dios.connect(started.place, groups=()) as own:
            return len(own.nodes())

    assert _in_child(anew).startswith("did: ")
    assert node.info().version
    stream.send(b"after")
    assert stream.receive() == b"before"


def test_a_fork_while_another_thread_waits(started: RunningNode, node: dios.Node) -> None:
    """A thread of the parent receives at the fork: the child gets its error, the thread its answer."""
    program = b"import dios; dios.connect().inputs[0].reader.receive()"
    task = node.run(program, inputs=[node.create_stream()])
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(task.wait, SECONDS_MAX)
        node.info()
        assert _in_child(node.info).startswith("ClosedError")
        task.kill()
        assert ended.result(SECONDS_MAX).ended
