"""Programs that run next to the cells of an image sandbox, under every runtime: handles, lists, records."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import dios
import dios.aio
from dios.errors import ClosedError, InvalidError, TimeLimitError
from dios.host.audit.reader import AuditReader
from dios.lib.sandbox.errors import ProgramDetachedError, SandboxCodeError, SandboxEndedError
from dios.lib.sandbox.port_forward import PortForward
from dios.lib.sandbox.result import ProgramResult
from dios.lib.sandbox.watch import FileWatch
from dios.limits import FORWARDED_CONNECTIONS_MAX, KIB
from tests.support.layouts import busybox_layout
from tests.support.node.confinement import gvisor_or_skip, runtimes_or_skip
from tests.support.node.running_node import RunningNode, running_node, wait_until

PATIENCE_S = 60.0
PART_BYTES = 64 * KIB


class Place:
    """A node whose image sandboxes are made by one runtime."""

    def __init__(self, node: RunningNode, image: str, isolation: str) -> None:
        self.node = node
        self.has_own_kernel = isolation == "gvisor"
        self._given = {"image": image, "isolation": isolation, "memory": "256 MiB", "timeout": PATIENCE_S}

    def sandbox(self) -> dios.Sandbox:
        """A sandbox."""
        return dios.Sandbox(node=self.node.place, **self._given)  # type: ignore[arg-type]

    def async_sandbox(self) -> dios.aio.Sandbox:
        """A sandbox for an event loop."""
        return dios.aio.Sandbox(node=self.node.place, **self._given)  # type: ignore[arg-type]

    def records(self, sandbox: str) -> list[tuple[str, str, str]]:
        """The action, outcome and text of the records about programs of a sandbox."""
        records = [entry.record for entry in AuditReader(self.node.data / "audit").poll()]
        return [
            (record.action, record.outcome, record.detail)
            for record in records
            if record.action in {"exec", "forward"} and record.subject == sandbox
        ]


@pytest.fixture(scope="module", params=["crun", "runc", "gvisor"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One node for each runtime."""
    if request.param == "gvisor":
        gvisor_or_skip()
        path, isolation = "none", "gvisor"
    else:
        fitting = [path for path in runtimes_or_skip() if Path(path).name == request.param]
        if not fitting:
            pytest.skip(f"{request.param} is not here")
        path, isolation = fitting[0], "kernel"
    image = f"oci-layout:{busybox_layout(tmp_path_factory.mktemp('layout') / 'tiny')}:tiny"
    with running_node(tmp_path_factory.mktemp("node") / "data", container_runtime=path) as running:
        yield Place(running, image, isolation)


@pytest.fixture(scope="module")
def box(place: Place) -> Iterator[dios.Sandbox]:
    """One sandbox for the tests that leave it as it was."""
    with place.sandbox() as sandbox:
        yield sandbox


def test_a_program_is_talked_to(box: dios.Sandbox) -> None:
    """Input goes in and output comes while it runs, and next to cells."""
    with box.start("sh", "-c", "read line; echo got $line; cat >&2; exit 4", env={"A": "b"}) as process:
        process.stdin.write("hello\n")
        assert process.read(PATIENCE_S) == ("stdout", b"got hello\n")
        assert box.run("1 + 1").value_repr == "2"
        assert repr(process).endswith("open>")
        process.stdin.write(b"more")
        process.stdin.close()
        assert list(process) == [("stderr", b"more")]
        assert process.wait(PATIENCE_S) == process.returncode == process.wait() == 4
    assert box.processes() == []


def test_many_programs_run_at_once(box: dios.Sandbox) -> None:
    """Each has its own streams; they are listed with their ids."""
    processes = [box.start("cat", "-") for _ in range(8)]
    listed = box.processes()
    assert [row.id for row in listed] == [process.id for process in processes]
    assert {(row.program, row.argument_count, row.exit_code, row.is_attached) for row in listed} == {
        ("cat", 1, None, True)
    }
    for number, process in enumerate(processes):
        process.stdin.write(f"{number}")
    results = [process.communicate(timeout=PATIENCE_S) for process in processes]
    assert results == [ProgramResult(0, str(number), "") for number in range(8)]


def test_more_than_the_streams_hold(box: dios.Sandbox) -> None:
    """The bound of output holds for the result, and all of the input is read."""
    result = box.start("cat").communicate(bytes(5_000_000), timeout=PATIENCE_S)
    assert result.exit_code == 0
    assert "is cut" in result.stdout
    counted = box.start("sh", "-c", "cat | sort | head -n 1").communicate("b\na\n", timeout=PATIENCE_S)
    assert counted.stdout == "a\n"


def test_exec_takes_pieces_of_input(box: dios.Sandbox, tmp_path: Path) -> None:
    """A generator, and an open file; output comes while input goes."""
    parts: list[str] = []
    done = box.exec(
        "cat", stdin=iter([b"a", b"", b"b"]), on_output=lambda name, text: parts.append(name + text)
    )
    assert (done.exit_code, done.stdout, "".join(parts).replace("stdout", "")) == (0, "ab", "ab")
    path = tmp_path / "input"
    path.write_bytes(b"x" * 3_000_000)
    with path.open("rb") as file:
        assert box.exec("sh", "-c", "cat >/tmp/copy", stdin=file).ok
    assert len(box.files.read("/tmp/copy")) == 3_000_000
    box.files.remove("/tmp/copy")
    late = box.exec("sh", "-c", "echo begun; sleep 1000", stdin=iter([]), timeout=1)
    assert (late.exit_code, late.stdout) == (None, "begun\n")
    assert late.error is not None
    assert late.error.type == "TimeoutError"
    assert box.processes() == []


def test_a_signal_ends_a_program(box: dios.Sandbox) -> None:
    """By default SIGKILL; a time limit of a call does not end it."""
    process = box.start("sleep", "1000")
    with pytest.raises(TimeLimitError):
        process.wait(0.05)
    with pytest.raises(TimeLimitError):
        process.read(0.05)
    with pytest.raises(TimeLimitError):
        process.communicate(timeout=0.05)
    process.kill(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == -signal.SIGTERM
    process.kill()
    other = box.start("sleep", "1000")
    other.kill()
    assert other.wait(PATIENCE_S) == -signal.SIGKILL


def test_threads_share_a_handle(box: dios.Sandbox) -> None:
    """One writes, one reads and one waits."""
    process = box.start("cat")
    read: list[bytes] = []
    codes: list[int] = []
    threads = [
        threading.Thread(target=lambda: read.extend(part.data for part in process)),
        threading.Thread(target=lambda: codes.append(process.wait())),
    ]
    for thread in threads:
        thread.start()
    for _ in range(50):
        process.stdin.write(bytes(PART_BYTES))
    process.stdin.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert (len(b"".join(read)), codes) == (50 * PART_BYTES, [0])


def test_a_program_outlives_its_handle(box: dios.Sandbox) -> None:
    """Its output stays in it; another handle takes it, and the former one learns that."""
    first = box.start("sh", "-c", "echo one; read line; echo $line")
    second = box.attach(first.id)
    with pytest.raises(ProgramDetachedError):
        first.wait(PATIENCE_S)
    second.close()
    wait_until(lambda: [row.is_attached for row in box.processes()] == [False], "it has no handle")
    third = box.attach(first.id)
    third.stdin.write("two\n")
    assert third.wait(PATIENCE_S) == 0
    assert b"".join(part.data for part in third).endswith(b"two\n")
    with pytest.raises(SandboxCodeError, match="no such program"):
        box.attach(first.id)


@pytest.mark.parametrize("id", ["", "xyz", "1" * 9, 5])
def test_an_id_is_that_of_a_program(box: dios.Sandbox, id: str) -> None:  # noqa: A002 - as it is called
    """Others are refused."""
    with pytest.raises((InvalidError, SandboxCodeError)):
        box.attach(id)


def test_a_program_that_does_not_exist_is_an_error(box: dios.Sandbox) -> None:
    """The sandbox goes on."""
    with pytest.raises(SandboxCodeError, match="nonesuch"):
        box.start("nonesuch")
    with pytest.raises(SandboxCodeError, match="nofolder"):
        box.start("cat", cwd="/nofolder")
    for wrong in ((), ("a\0b",), (1,)):
        with pytest.raises(InvalidError):
            box.start(*wrong)
    with pytest.raises(InvalidError):
        box.start("cat", env={"A": 1})  # type: ignore[dict-item]
    with pytest.raises(InvalidError):
        box.start("cat", pty=(0, 1))
    assert not box.ended


def test_a_terminal(place: Place, box: dios.Sandbox) -> None:
    """It has a size that changes, and Ctrl-C interrupts."""
    process = box.start("sh", "-c", "stty size; read x; stty size; sleep 1000", pty=(20, 30))
    assert box.processes()[0].has_terminal
    text = b""
    while not text.endswith(b"20 30\r\n"):
        part = process.read(PATIENCE_S)
        assert part is not None
        text += part.data
    process.resize(40, 50)
    process.stdin.write("\n")
    while not text.endswith(b"40 50\r\n"):
        part = process.read(PATIENCE_S)
        assert part is not None
        text += part.data
    if place.has_own_kernel:
        # Releases of gVisor make no signals of letters.
        process.kill(signal.SIGINT)
    else:
        process.stdin.write(b"\x03")
    assert process.wait(PATIENCE_S) in {-signal.SIGINT, 130}


def test_programs_end_with_their_sandbox(place: Place) -> None:
    """The handles say so; nothing of them is left on the node."""
    with place.sandbox() as own:
        process = own.start("sleep", "7654322")
        if not place.has_own_kernel:
            wait_until(lambda: any("7654322" in line for line in _commands(place.node)), "it runs")
    with pytest.raises((SandboxEndedError, ClosedError)):
        process.wait(PATIENCE_S)
    wait_until(lambda: not any("7654322" in line for line in _commands(place.node)), "it has ended")
    with pytest.raises(SandboxEndedError):
        own.start("cat")


def _commands(node: RunningNode) -> list[str]:
    lines = []
    for pid in node.descendants():
        try:
            lines.append(Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8"))
        except OSError:
            continue
    return lines


def test_the_audit_log_has_each_program(place: Place) -> None:
    """With its name, the number of its arguments and its end, and without their texts."""
    with place.sandbox() as own:
        assert own.exec("sh", "-c", "exit 3 # secret").exit_code == 3
        process = own.start("cat", "secret", "secret")
        process.wait(PATIENCE_S)
        with pytest.raises(SandboxCodeError):
            own.start("nonesuch", "secret")
        link = own._link
        assert link is not None
        assert link.task is not None
        fingerprint = link.task.fingerprint
        wait_until(lambda: len(place.records(fingerprint)) >= 6, "they are written")
        records = place.records(fingerprint)
    assert [(action, outcome, detail[9:]) for action, outcome, detail in records] == [
        ("exec", "ok", "sh, arguments: 2"),
        ("exec", "ended", "with status 3"),
        ("exec", "ok", "cat, arguments: 2"),
        ("exec", "ended", "with status 1"),
        ("exec", "ok", "nonesuch, arguments: 1"),
        ("exec", "ended", ""),
    ]
    assert records[2][2].split()[0] == process.id


SERVER = """
import socket, threading
def serve(answer, port):
    server = socket.create_server(("127.0.0.1", port))
    def each(link):
        with link:
            answer(link)
    def accept():
        while True:
            threading.Thread(target=each, args=(server.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
def echo(link):
    while data := link.recv(65536):
        link.sendall(data)
def flood(link):
    while True:
        link.sendall(bytes(65536))
serve(echo, 8080)
serve(flood, 8081)
serve(lambda link: link.sendall(b"bye"), 8082)
"""


@pytest.fixture(scope="module")
def server(box: dios.Sandbox) -> dios.Sandbox:
    """The sandbox with servers on its loopback."""
    assert box.run(SERVER).ok
    return box


def received(link: socket.socket, count: int) -> bytes:
    """This number of bytes, or all until the end."""
    data = b""
    while len(data) < count and (part := link.recv(65536)):
        data += part
    return data


def connected(forward: PortForward) -> socket.socket:
    """A connection to a forwarded port."""
    return socket.create_connection((forward.host, forward.port), PATIENCE_S)


def test_a_port_leads_to_a_server_in_the_sandbox(server: dios.Sandbox) -> None:
    """Several connections at once, more than the streams hold, and half-closed ones."""
    data = bytes(1_000_000)
    with server.forward(8080) as forward, contextlib.ExitStack() as stack:
        links = [stack.enter_context(connected(forward)) for _ in range(4)]
        for link in links:
            sending = threading.Thread(target=link.sendall, args=(data,))
            sending.start()
            assert len(received(link, len(data))) == len(data)
            sending.join()
        links[0].shutdown(socket.SHUT_WR)
        assert received(links[0], 1) == b""
        links[1].sendall(b"still there")
        assert received(links[1], 11) == b"still there"
    assert server.processes() == []
    with server.forward(8082) as forward, connected(forward) as link:
        assert received(link, 100) == b"bye"


def test_a_connection_that_is_not_read_stays_in_the_sandbox(server: dios.Sandbox) -> None:
    """A server that sends for ever fills no memory, and the end of the port ends it."""
    with server.forward(8081) as forward, connected(forward) as link:
        assert received(link, 10)
        assert server.run("1 + 1").value_repr == "2"
    forward.close()


def test_a_port_without_a_server_and_too_many_connections_end(server: dios.Sandbox) -> None:
    """A client sees the end of its connection; a place is free again when another one ends."""
    with server.forward(9) as forward, connected(forward) as link:
        assert received(link, 1) == b""
    with server.forward(8080) as forward, contextlib.ExitStack() as stack:
        links = [stack.enter_context(connected(forward)) for _ in range(FORWARDED_CONNECTIONS_MAX)]
        for link in links:
            link.sendall(b"x")
            assert received(link, 1) == b"x"
        with connected(forward) as one_more, contextlib.suppress(ConnectionResetError):
            assert received(one_more, 1) == b""
        links[0].close()

        def works() -> bool:
            with connected(forward) as again, contextlib.suppress(OSError):
                again.sendall(b"y")
                return received(again, 1) == b"y"
            return False

        wait_until(works, "the place is free")
    for wrong in (0, 65_536, "80"):
        with pytest.raises(InvalidError):
            server.forward(wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidError):
            server.forward(8080, local_port=-1)
    assert server.processes() == []


def test_the_audit_log_has_each_connection(place: Place) -> None:
    """Also one that no server accepts; another connection of the owner forwards, too."""
    with place.sandbox() as own, dios.RunningSandbox(own.fingerprint, node=place.node.place) as other:
        fingerprint = own.fingerprint
        with other.forward(8080) as forward, connected(forward) as link:
            assert received(link, 1) == b""
        wait_until(lambda: place.records(fingerprint) != [], "it is written")
        assert [(action, outcome, detail[9:]) for action, outcome, detail in place.records(fingerprint)] == [
            ("forward", "ok", "port 8080")
        ]


def test_a_sandbox_that_ends_ends_its_connections(place: Place) -> None:
    """The port is closed by its owner."""
    with place.sandbox() as own:
        assert own.run(SERVER).ok
        forward = own.forward(8080)
        link = connected(forward)
        link.sendall(b"x")
        assert received(link, 1) == b"x"
    with link, contextlib.suppress(ConnectionResetError):
        assert received(link, 1) == b""
    forward.close()


async def _forward(place: Place) -> None:
    async with place.async_sandbox() as own:
        assert (await own.run(SERVER)).ok
        async with await own.forward(8080) as forward:
            link = await anyio.connect_tcp(forward.host, forward.port)
            await link.send(b"x")
            assert await link.receive(1) == b"x"
            await link.aclose()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_port_on_event_loops(place: Place, backend: str) -> None:
    """Threads serve it."""
    anyio.run(_forward, place, backend=backend)


def test_another_connection_has_the_programs(place: Place, box: dios.Sandbox) -> None:
    """It starts, lists and takes them by the fingerprint of the session; the sandbox outlives it."""
    own = box.start("cat")
    with dios.RunningSandbox(box.fingerprint[:16], node=place.node.place) as other:
        assert [row.id for row in other.processes()] == [own.id]
        taken = other.attach(own.id)
        taken.stdin.write("taken")
        taken.stdin.close()
        assert list(taken) == [("stdout", b"taken")]
        kept = other.start("sleep", "1000")
    again = box.attach(kept.id)
    again.kill()
    assert again.wait(PATIENCE_S) == -signal.SIGKILL
    for wrong in ("", "zz", "f" * 64):
        with pytest.raises(InvalidError):
            dios.RunningSandbox(wrong, node=place.node.place)
    wait_until(lambda: box.processes() == [], "both have ended")


def test_a_sandbox_that_is_closed_ends_the_calls_of_other_threads(place: Place) -> None:
    """A thread that reads and one that waits return, whoever opened the connection."""
    own = place.sandbox()
    process = own.start("cat")
    ended: list[object] = []

    def wait() -> None:
        try:
            process.wait()
        except SandboxEndedError as error:
            ended.append(error)

    threads = [threading.Thread(target=lambda: ended.append(list(process))), threading.Thread(target=wait)]
    for thread in threads:
        thread.start()
    wait_until(lambda: all(process._locks[name].locked() for name in ("output", "status")), "both wait")
    own.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(ended) == 2


@pytest.mark.parametrize("watches", [False, True])
def test_a_handle_that_is_closed_ends_the_calls_of_other_threads(box: dios.Sandbox, *, watches: bool) -> None:
    """A reader without a time limit returns, and the program of the handle goes on."""
    box.files.make_folder("/tmp/quiet")
    handle = box.files.watch("/tmp/quiet") if watches else box.start("sleep", "1000")
    lock = handle._turn if isinstance(handle, FileWatch) else handle._locks["output"]
    parts: list[object] = []
    reader = threading.Thread(target=lambda: parts.append(handle.read()))
    reader.start()
    wait_until(lock.locked, "it reads")
    for limit in ((0.05,), (0,)):
        with pytest.raises(TimeLimitError):
            handle.read(*limit)
    handle.close()
    handle.close()
    reader.join(PATIENCE_S)
    assert parts == [None]
    for row in box.processes():
        box.attach(row.id).kill()
    wait_until(lambda: not any(row.exit_code is None for row in box.processes()), "it has ended")
    for row in box.processes():
        list(box.attach(row.id))
    box.files.remove("/tmp/quiet")


def test_a_program_is_killed_while_another_thread_communicates(box: dios.Sandbox) -> None:
    """Orders wait for no stream."""
    process = box.start("sh", "-c", "echo begun; exec sleep 1000")
    results: list[ProgramResult] = []
    talk = threading.Thread(target=lambda: results.append(process.communicate()))
    talk.start()
    wait_until(process._locks["output"].locked, "it communicates")
    process.kill()
    talk.join(PATIENCE_S)
    assert [result.exit_code for result in results] == [-signal.SIGKILL]
    assert box.processes() == []


async def _wait_and_close(place: Place) -> None:
    async with place.async_sandbox() as own:
        process = await own.start("sleep", "1000")
        results: list[object] = []

        async def read() -> None:
            results.append(await process.read())

        async with anyio.create_task_group() as group:
            group.start_soon(read)
            while not process._turns["output"].is_taken:  # noqa: ASYNC110 - a turn has no event
                await anyio.sleep(0.01)
            with pytest.raises(TimeLimitError):
                await process.read(0.05)
            await process.close()
        assert results == [None]
        again = await own.attach(process.id)
        async with anyio.create_task_group() as group:
            group.start_soon(again.communicate)
            while not again._turns["output"].is_taken:  # noqa: ASYNC110 - a turn has no event
                await anyio.sleep(0.01)
            await again.kill()
        assert await again.wait() == -signal.SIGKILL


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_handle_is_closed_and_its_program_killed_on_event_loops(place: Place, backend: str) -> None:
    """The same for tasks that wait."""
    anyio.run(_wait_and_close, place, backend=backend)


async def _talk_from_elsewhere(place: Place, session: str) -> None:
    async with dios.aio.RunningSandbox(session, node=place.node.place) as other:
        process = await other.start("cat")
        assert [row.id for row in await other.processes()] == [process.id]
        result = await (await other.attach(process.id)).communicate(b"x", timeout=PATIENCE_S)
        assert result == ProgramResult(0, "x", "")
    with pytest.raises(InvalidError):
        await dios.aio.RunningSandbox(session).start("cat")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_another_connection_on_an_event_loop(place: Place, box: dios.Sandbox, backend: str) -> None:
    """With the same methods."""
    anyio.run(_talk_from_elsewhere, place, box.fingerprint, backend=backend)


async def _talk(place: Place) -> None:
    async with place.async_sandbox() as own:
        async with await own.start("sh", "-c", "read line; echo got $line; cat") as process:
            await process.stdin.write("hello\n")
            assert await process.read(PATIENCE_S) == ("stdout", b"got hello\n")
            assert [row.id for row in await own.processes()] == [process.id]
            await process.stdin.close()
            assert [part async for part in process] == []
            assert await process.wait(PATIENCE_S) == 0
        other = await own.start("cat")
        result = await other.communicate(bytes(500_000), timeout=PATIENCE_S)
        assert (result.exit_code, len(result.stdout)) == (0, 500_000)
        third = await own.start("sleep", "1000")
        with anyio.move_on_after(0.1) as scope:
            await third.wait()
        assert scope.cancelled_caught
        await third.kill()
        assert await third.wait(PATIENCE_S) == -signal.SIGKILL
        again = await own.start("cat")
        async with anyio.create_task_group() as group:
            group.start_soon(again.wait)
            group.start_soon(again.stdin.close)
        assert again.returncode == 0
        assert (await own.exec("cat", stdin=iter([b"a", b"b"]))).stdout == "ab"


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_same_on_event_loops(place: Place, backend: str) -> None:
    """With cancellation."""
    anyio.run(_talk, place, backend=backend)


def test_changes_of_files_are_events(place: Place, box: dios.Sandbox) -> None:
    """Those that exist already have none; the end of the watch is that of its handle."""
    box.files.make_folder("/tmp/watched/inner")
    box.files.write("/tmp/watched/old", "1")
    with box.files.watch("/tmp/watched") as watch:
        assert box.exec("sh", "-c", "cd /tmp/watched; echo 22 >old; echo >inner/new; echo >'a\tb'").ok
        events = sorted(
            (event.kind, event.path) for event in (watch.read(PATIENCE_S) for _ in range(3)) if event
        )
        assert events == [
            ("changed", "/tmp/watched/old"),
            ("created", "/tmp/watched/a\\tb"),
            ("created", "/tmp/watched/inner/new"),
        ]
        box.files.remove("/tmp/watched/inner")
        removed = [watch.read(PATIENCE_S) for _ in range(2)]
        assert removed == [
            dios.FileEvent("removed", f"/tmp/watched/{name}") for name in ("inner", "inner/new")
        ]
        with pytest.raises(TimeLimitError):
            watch.read(0)
    box.files.remove("/tmp/watched")
    with pytest.raises(SandboxCodeError, match="No such file"):
        box.files.watch("/tmp/watched")
    with place.sandbox() as own:
        watch = own.files.watch("/etc")
        own.files.write("/etc/new", "")
        assert watch.read(PATIENCE_S) == dios.FileEvent("created", "/etc/new")
    assert list(watch) == []


async def _watch(place: Place) -> None:
    async with place.async_sandbox() as own, await own.files.watch("/etc") as watch:
        await own.files.write("/etc/new", "")
        async for event in watch:
            assert event == dios.FileEvent("created", "/etc/new")
            break


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_changes_of_files_on_event_loops(place: Place, backend: str) -> None:
    """With the same methods."""
    anyio.run(_watch, place, backend=backend)
