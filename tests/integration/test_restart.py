"""The program of a running node is replaced: everything that runs on the node goes on."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

import dios
from dios.cli.nodes import daemon as commands
from dios.errors import EndOfStreamError
from dios.node import restart_status
from dios.node.restart_status import RefusedError, RestartStatus
from tests.support.node.running_node import RunningNode, running_node, wait_until

LARGE = bytes(range(256)) * 4096
LIMIT_MS = 60_000
PROGRAM = b"""
import dios, sys
with dios.connect() as node:
    first, second = node.input("first"), node.input("second")
    print("up", flush=True)
    first.write_bytes(b"begun")
    while second.read_bytes() != b"end":
        pass
    print("down", flush=True)
sys.exit(7)
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node whose program is replaced by all tests."""
    with running_node(tmp_path_factory.mktemp("restart") / "node") as live_node:
        yield live_node


def named(reference: dios.Reference) -> bytes:
    """Return the name of an object that has one."""
    assert reference.name is not None
    return reference.name


def restart(node: RunningNode) -> RestartStatus:
    """Replace the program, by the same one."""
    return restart_status.request(node.running.pid, node.data, limit_ms=LIMIT_MS)


def test_objects_and_buffers_go_on(node: RunningNode) -> None:
    """Bytes in memory, an open read and write, rights, and the public attributes are as before."""
    with dios.connect(node.place, groups=()) as session, dios.connect(node.place, groups=()) as other:
        small = session.create(dios.SHMEM_BLOB, groups=session.groups[:1], data=b"small")
        large = session.create(dios.SHMEM_BLOB, groups=session.groups[:1], data=LARGE)
        stored = session.create(dios.DURABLE_BLOB, groups=session.groups[:1], data=LARGE)
        read = stored.read()
        same = other.find(named(large))
        assert same is not None
        same_small = other.find(named(small))
        assert same_small is not None
        with large.write(len(LARGE), dios.EXCL, blank=True) as writing:
            done = restart(node)
            assert (done.pid, done.sessions) == (node.running.pid, 2)
            with pytest.raises(dios.Busy):
                same.write_bytes(b"other", semantics=dios.EXCL)
            writing.view[:5] = b"first"
            writing.commit()
        assert same.read_bytes() == b"first" + bytes(len(LARGE) - 5)
        assert small.read_bytes() == b"small"
        assert bytes(read.view) == LARGE
        read.release()
        before = same_small.v_w
        small.write_bytes(b"changed")
        assert same_small.v_w == before + 1
        assert stored.read_bytes() == LARGE


def run_and_wait(node: RunningNode) -> int:
    """Run a task over a session of this thread, wait for it, and return its status."""
    with dios.connect(node.place, groups=()) as session:
        return session.run(b"import time; time.sleep(3)").wait(timeout=30).exit_code


def test_tasks_streams_and_waiting_calls_go_on(node: RunningNode) -> None:
    """A task computes on, prints, calls and ends with its own status; a stream loses no byte."""
    with (
        dios.connect(node.place, groups=()) as session,
        dios.connect(node.place, groups=()) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        first = session.create(dios.SHMEM_BLOB, groups=session.groups[:1], data=b"-")
        second = session.create(dios.SHMEM_BLOB, groups=session.groups[:1], data=b"-")
        stream = session.create_stream(groups=session.groups[:1])
        end = other.find(named(stream))
        assert isinstance(end, dios.Stream)
        task = session.run(PROGRAM, inputs={"first": first, "second": second})
        waiting = threads.submit(run_and_wait, node)
        writer, reader = stream.writer, end.reader
        writer.send(b"before")
        while first.read_bytes() != b"begun":
            pass
        wait_until(lambda: session.info().counts["waiting"] == 1, "a call waits for the end of a task")
        assert restart(node).tasks == 2
        assert restart(node).tasks == 2
        writer.send(b"after")
        assert [reader.receive(), reader.receive()] == [b"before", b"after"]
        assert waiting.result(30) == 0
        second.write_bytes(b"end")
        status = task.wait(timeout=30)
        assert (status.exit_code, status.signal) == (7, 0)
        assert task.console().read_bytes() == b"up\ndown\n"
        stream.delete()
        with pytest.raises(dios.DiosError):
            reader.receive()
        # The next task comes from a new zygote.
        assert session.run(b"print('hello')").wait(timeout=30).exit_code == 0


def test_network_streams_go_on(node: RunningNode) -> None:
    """A listener accepts before, during and after restarts; megabytes in both directions arrive in order."""
    data = bytes(range(251)) * 40_000
    with dios.connect(node.place, groups=()) as session, ThreadPoolExecutor(2) as threads:
        acceptor = session.listen_tcp("127.0.0.1:0")
        host, _, port = acceptor.address.rpartition(":")
        with socket.create_connection((host, int(port))) as first:
            connection = acceptor.accept(timeout=30)
            receiving = threads.submit(received, first, len(data))
            sending = threads.submit(first.sendall, data)
            connection.send(data[:100])
            with socket.create_connection((host, int(port))) as second:
                assert restart(node).pause_ms > 0
                connection.send(data[100:5_000_000])
                assert restart(node).pause_ms > 0
                other = acceptor.accept(timeout=30)
                other.send(b"late")
                assert received(second, 4) == b"late"
            connection.send(data[5_000_000:])
            arrived = bytearray()
            while len(arrived) < len(data):
                arrived += connection.receive(timeout=30)
            sending.result(30)
            assert arrived == data
            assert receiving.result(30) == data
        with pytest.raises(EndOfStreamError):
            connection.receive(timeout=30)


def received(sock: socket.socket, size: int) -> bytes:
    """Return this many bytes of a plain socket."""
    arrived = bytearray()
    while len(arrived) < size:
        part = sock.recv(65536)
        assert part
        arrived += part
    return bytes(arrived)


def test_a_busy_client_notices_nothing_but_a_pause(node: RunningNode) -> None:
    """A client that sends without waiting gets each answer once and in order, over three restarts."""
    stop = threading.Event()
    with dios.connect(node.place, groups=()) as session:
        blob = session.create(dios.DURABLE_BLOB, groups=session.groups[:1], data=b"0")

        def count() -> int:
            number = 0
            while not stop.is_set():
                number += 1
                blob.write_bytes(b"%d" % number)
                assert blob.read_bytes() == b"%d" % number
            return number

        with ThreadPoolExecutor(1) as threads:
            counting = threads.submit(count)
            for _ in range(3):
                restart(node)
            stop.set()
            number = counting.result(30)
        assert blob.v_w >= number


def test_a_program_that_cannot_continue_is_not_started(node: RunningNode) -> None:
    """Settings that need a new start, or that are wrong, are refused, and the node goes on."""
    settings = node.data / "node.toml"
    with dios.connect(node.place, groups=()) as session:
        blob = session.create(dios.SHMEM_BLOB, groups=session.groups[:1], data=b"kept")
        settings.write_text("tasks_max = 7\n")
        with pytest.raises(RefusedError, match="the settings tasks_max were changed"):
            restart(node)
        settings.write_text("no_such_setting = 7\n")
        with pytest.raises(RefusedError, match="no_such_setting"):
            restart(node)
        assert blob.read_bytes() == b"kept"
        settings.write_text('log_level = "debug"\n')
        answer = CliRunner().invoke(commands.app, ["restart", "--node", node.place, "--json"])
        assert answer.exit_code == 0, answer.output
        assert json.loads(answer.stdout)["restarted"]
        settings.unlink()
        assert blob.read_bytes() == b"kept"


def test_a_refused_exec_leaves_everything_as_it_was(tmp_path: Path) -> None:
    """When all is stopped and encoded, and the system refuses the program, the node goes on where it was."""
    with (
        running_node(tmp_path / "node", module="tests.support.node.refused_exec") as node,
        dios.connect(node.place, groups=()) as session,
    ):
        blob = session.create(dios.SHMEM_BLOB, groups=session.groups[:1], data=LARGE)
        task = session.run(b"import time; print('up', flush=True); time.sleep(1); print('down')")
        for _ in range(2):
            with pytest.raises(RefusedError, match="Cannot allocate memory"):
                restart(node)
            assert blob.read_bytes() == LARGE
        assert task.wait(timeout=30).exit_code == 0
        assert task.console().read_bytes() == b"up\ndown\n"
        assert session.run(b"print('hello')").wait(timeout=30).exit_code == 0
