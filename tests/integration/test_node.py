"""A real daemon, spoken to in bare frames: what a client may rely on, and what an evil one cannot do."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios import limits
from dios.errors import ClosedError, Code
from dios.transport.rings.waiting import RingReader, RingWriter
from dios.wire import messages
from dios.wire.codec import PROTOCOL_VERSION, decode_status
from dios.wire.messages import Buffer, Committed, Created, Failure, References
from dios.wire.page import read_slot
from dios.wire.types import Cause, Flag, Mode, NameKind, ObjectType, Permission
from tests.support.node.raw_client import LARGE, NodeProcess, RawClient, create, pattern, read, write


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for all tests that only talk to it."""
    started = NodeProcess(tmp_path_factory.mktemp("node") / "data", pool_size="1")
    yield started
    assert started.stop() == 0


@pytest.fixture
def client(node: NodeProcess) -> Iterator[RawClient]:
    """A session on it."""
    with node.client() as connected:
        yield connected


# -- connections ------------------------------------------------------------------------------------
def test_welcome(client: RawClient) -> None:
    """A session is told who it is, and maps a page that shows its own task."""
    assert client.welcome.version == PROTOCOL_VERSION
    page = mmap.mmap(client.page_fd, limits.PUBLIC_PAGE_BYTES, prot=mmap.PROT_READ)
    with page, memoryview(page) as view:
        shown = read_slot(view, client.welcome.self_ref.slot)
    assert (shown.used, shown.ref) == (True, client.welcome.self_ref.ref)


def test_page_cannot_be_written(client: RawClient) -> None:
    """The page cannot be mapped for writing through its descriptor, and nobody can change size or seals."""
    with pytest.raises(OSError, match=r"permitted|denied"):
        mmap.mmap(client.page_fd, limits.PUBLIC_PAGE_BYTES)
    if os.geteuid():
        with pytest.raises(PermissionError):
            os.open(f"/proc/self/fd/{client.page_fd}", os.O_RDWR)
        return
    # Root may open everything, and so the memory that only its own session reads.
    again = os.open(f"/proc/self/fd/{client.page_fd}", os.O_RDWR)
    try:
        for size in (0, 2 * limits.PUBLIC_PAGE_BYTES):
            with pytest.raises(PermissionError):
                os.ftruncate(again, size)
        with pytest.raises(PermissionError):
            fcntl.fcntl(again, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    finally:
        os.close(again)


def test_other_version_is_refused(node: NodeProcess) -> None:
    """A client of another version gets a sentence with both versions, then the end."""
    with RawClient(node.socket, hello=False) as stranger:
        failure = stranger.ask(messages.Hello(99), Failure)
        assert failure.code == Code.EPROTO
        assert "99" in failure.message
        assert str(PROTOCOL_VERSION) in failure.message
        with pytest.raises(ClosedError):
            stranger.receive()


def test_hello_comes_first(node: NodeProcess) -> None:
    """Whoever begins with something else is told so and dropped."""
    with RawClient(node.socket, hello=False) as stranger:
        failure = stranger.ask(messages.Stat(1), Failure)
        assert "Hello" in failure.message
        with pytest.raises(ClosedError):
            stranger.receive()


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(struct.pack("<I", 2**31), id="oversized"),
        pytest.param(struct.pack("<I", 3) + b"\xc1\xc1\xc1", id="malformed"),
        pytest.param(struct.pack("<I", 3) + b"\x92\x01\xc0", id="unknown-call"),
    ],
)
def test_bad_bytes_end_one_connection(node: NodeProcess, client: RawClient, garbage: bytes) -> None:
    """Bytes that are no message cost their sender its connection, with a reason, and nobody else."""
    with node.client() as evil:
        evil.sock.sendall(garbage)
        _, result, _ = evil.receive()
        assert isinstance(result, Failure)
        assert result.code == Code.EPROTO
        with pytest.raises(ClosedError):
            evil.receive()
    assert client.ask(messages.Stat(client.welcome.self_ref.ref), References).references


def test_truncated_frame(node: NodeProcess, client: RawClient) -> None:
    """A frame cut short by its sender's end harms nobody."""
    evil = node.client()
    evil.sock.sendall(struct.pack("<I", 100) + b"abc")
    evil.close()
    assert client.ask(messages.Stat(client.welcome.self_ref.ref), References).references


def test_never_reading_costs_bounded_memory(node: NodeProcess, client: RawClient) -> None:
    """A client that sends and never reads is dropped or held back, while others are served."""
    with node.client() as deaf:
        ref = create(deaf, ObjectType.SHMEM_BLOB, b"x" * limits.INLINE_BYTES_MAX).reference.ref
        deaf.sock.settimeout(0.5)
        call = messages.ReadOnce(ref)
        try:
            for _ in range(2_000):
                deaf.send(call)
        except (TimeoutError, OSError, ClosedError):
            pass
        assert client.ask(messages.Stat(client.welcome.self_ref.ref), References).references


def test_pipelined_calls_are_all_answered(client: RawClient) -> None:
    """Calls sent without waiting are answered each, durable ones too."""
    assert client.welcome.home is not None
    calls = [
        messages.Create(
            ObjectType.DURABLE_BLOB if number % 2 else ObjectType.SHMEM_BLOB,
            (client.welcome.home.ref,),
            data=b"%d" % number,
        )
        for number in range(100)
    ]
    sent = [client.send(call) for call in calls]
    answered = {}
    for _ in sent:
        seq, result, _ = client.receive()
        assert isinstance(result, Created), result
        answered[seq] = result.reference.ref
    for number, seq in enumerate(sent):
        assert read(client, answered[seq]) == b"%d" % number


# -- time, streams, tasks ---------------------------------------------------------------------------
def test_select_with_time_limit(client: RawClient) -> None:
    """A select with a limit ends by it, and one on a timer when that is due."""
    console = client.welcome.console.ref
    assert client.ask(messages.Select((console,), timeout_ns=1_000_000), messages.Selected).index == -1
    timer = client.ask(
        messages.Create(ObjectType.TIMER_BLOB, name_kind=NameKind.ANONYMOUS, size=2_000_000), Created
    )
    assert client.ask(messages.Select((timer.reference.ref,)), messages.Selected).index == 0


def test_stream_between_two_sessions(node: NodeProcess, client: RawClient) -> None:
    """Bytes pass between two ends through a ring, and the end of one is told to the other."""
    created = create(client, ObjectType.SHMEM_STREAM)
    assert created.name is not None
    ring_bytes = client.ask(messages.Attach(created.reference.ref, Mode.WRITE), messages.Attached).ring_bytes
    with node.client() as other:
        reference = other.ask(messages.Lookup(created.name), References).references[0]
        other.ask(messages.Attach(reference.ref, Mode.READ), messages.Attached)
        sender, receiver = RingWriter(client.fds[-3:], ring_bytes), RingReader(other.fds[-3:], ring_bytes)
        del client.fds[-3:], other.fds[-3:]
        try:
            sender.send(b"through the ring")
            assert receiver.receive() == b"through the ring"
        finally:
            receiver.close()
            sender.close()


def test_console_of_a_session(client: RawClient) -> None:
    """What is written to a console is read from it."""
    console = client.welcome.console.ref
    client.ask(messages.WriteOnce(console, b"line one\n"), Committed)
    assert client.ask(messages.ReadOnce(console), Buffer).data == b"line one\n"


def run(client: RawClient, program: bytes, *arguments: str) -> messages.TaskRow:
    """Run a program as a pure task and wait for its end."""
    code = create(client, ObjectType.SHMEM_BLOB, program).reference.ref
    started = client.any(messages.Run(code, arguments=arguments))
    if isinstance(started, Failure) and started.code == Code.ENOSYS:
        pytest.skip(f"no pure tasks here: {started.message}")
    assert isinstance(started, Created), started
    ref = started.reference.ref
    client.ask(messages.Select((ref,)), messages.Selected)
    row = decode_status(client.ask(messages.ReadOnce(ref), Buffer).data or b"")
    client.ask(messages.Delete(ref, int(Flag.HANDLE_ONLY)), messages.Done)
    return row


def test_task_runs_and_ends(client: RawClient) -> None:
    """A task gets its arguments, its console is kept, and its exit status is told."""
    row = run(client, b"import sys\nprint('to', sys.argv[1])\nsys.exit(7)\n", "whom")
    assert (row.cause, row.exit_code) == (Cause.EXITED, 7)
    assert "to whom" in row.detail


def test_task_with_an_exception(client: RawClient) -> None:
    """An exception that ends a task is its cause, and its last line is told."""
    row = run(client, b"def f():\n    raise ValueError('of no use')\nf()\n")
    assert row.cause is Cause.EXCEPTION
    assert row.detail.startswith("ValueError: of no use")


def test_killed_task(client: RawClient) -> None:
    """A task that is destroyed ends, whatever it does."""
    code = create(client, ObjectType.SHMEM_BLOB, b"while True: pass\n").reference.ref
    started = client.any(messages.Run(code))
    if isinstance(started, Failure):
        pytest.skip(f"no pure tasks here: {started.message}")
    assert isinstance(started, Created)
    ref = started.reference.ref
    copied = client.ask(
        messages.Copy(ref, client.welcome.self_ref.ref, int(Permission.READ)), References
    ).references[0]
    client.ask(messages.Delete(ref, int(Flag.DESTROY)), messages.Done)
    client.ask(messages.Select((copied.ref,)), messages.Selected)
    row = decode_status(client.ask(messages.ReadOnce(copied.ref), Buffer).data or b"")
    assert row.cause is Cause.KILLED


def test_node_info(client: RawClient) -> None:
    """The node describes itself and what its machine can hold."""
    info = client.ask(messages.NodeInfo(), messages.Info)
    assert info.version
    assert "pure tasks" in info.guarantees


# -- nodes of their own -------------------------------------------------------------------------------
@pytest.mark.parametrize("orderly", [True, False])
def test_durable_objects_survive(tmp_path: Path, orderly: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Acknowledged durable objects are there after the node's end, orderly or by kill -9."""
    node = NodeProcess(tmp_path / "data", pool_size="0")
    names: dict[bytes, bytes] = {}
    with node.client() as client:
        for size in (0, 10, limits.INLINE_BYTES_MAX + 1, LARGE):
            created = create(client, ObjectType.DURABLE_BLOB)
            if size:
                write(client, created.reference.ref, pattern(size))
            assert created.name is not None
            names[created.name] = pattern(size)
        create(client, ObjectType.SHMEM_BLOB, b"volatile")
        if not orderly:
            node.kill()
    assert orderly is False or node.stop() == 0
    assert orderly is False or not node.socket.exists()
    node.start()
    try:
        with node.client() as client:
            for name, data in names.items():
                references = client.ask(messages.Lookup(name), References).references
                assert read(client, references[0].ref) == data
    finally:
        node.stop()


def test_full_store_refuses_and_goes_on(tmp_path: Path) -> None:
    """On a full store a write is refused with ENOSPC and changes nothing; reading and deleting go on."""
    node = NodeProcess(tmp_path / "data", pool_size="0", map_bytes=str(limits.STORE_MAP_BYTES_MIN))
    try:
        with node.client() as client:
            assert client.welcome.home is not None
            refs: list[int] = []
            refused: Failure | None = None
            while refused is None and len(refs) < 1_000:
                call = messages.Create(
                    ObjectType.DURABLE_BLOB, (client.welcome.home.ref,), data=pattern(8_000)
                )
                result = client.any(call)
                if isinstance(result, Failure):
                    refused = result
                else:
                    assert isinstance(result, Created)
                    refs.append(result.reference.ref)
            assert refused is not None
            assert refused.code == Code.ENOSPC
            assert read(client, refs[0]) == pattern(8_000)
            for ref in refs:
                client.ask(messages.Delete(ref), messages.Done)
            create(client, ObjectType.DURABLE_BLOB, b"room again")
    finally:
        node.stop()


def test_shutdown_by_call(tmp_path: Path) -> None:
    """Its owner can end the node by a call; tasks end with it and the socket is gone."""
    node = NodeProcess(tmp_path / "data", pool_size="1")
    with node.client() as client:
        code = create(client, ObjectType.SHMEM_BLOB, b"while True: pass\n").reference.ref
        client.any(messages.Run(code))
        client.ask(messages.Shutdown(), messages.Done)
    assert node.process.wait(20) == 0
    assert not node.socket.exists()


def test_second_node_on_the_same_data(tmp_path: Path) -> None:
    """A second node on the same directory is refused, and the first goes on."""
    node = NodeProcess(tmp_path / "data", pool_size="0")
    try:
        with pytest.raises(AssertionError, match="already runs in"):
            NodeProcess(tmp_path / "data", pool_size="0")
        node.client().close()
    finally:
        node.stop()
