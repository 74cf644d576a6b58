"""Programs that run next to the cells of an image sandbox, under every runtime: handles, lists, records."""

from __future__ import annotations

import signal
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
from dios.lib.sandbox.result import ProgramResult
from dios.limits import KIB
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
