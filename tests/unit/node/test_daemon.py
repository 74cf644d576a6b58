from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios import limits, start_watch
from dios.errors import DiosError, ExistsError
from dios.node import daemon
from dios.node.settings import SettingsError
from dios.start_watch import Activity, activity_of
from dios.transport.unix.path import socket_address


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Path]:
    """A socket on which this process listens, at a path longer than a socket address."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    path = folder / "node.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server, socket_address(path) as address:
        server.bind(address)
        server.listen()
        yield path


def child(program: str) -> subprocess.Popen[bytes]:
    """A Python process that says a line on its output once it is ready."""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return process


PATIENT = "import time; print('ready', flush=True); time.sleep(600)"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + PATIENT


def test_who_listens_is_found_by_pid(listening: Path) -> None:
    """A node that answers is found with the pid of its process, however long the path."""
    assert daemon.find(listening) == daemon.DaemonProcess(os.getpid(), listening)


def test_nobody_is_found_where_nobody_listens(tmp_path: Path) -> None:
    """No folder, no socket, and a socket left behind all mean that no node runs."""
    assert daemon.find(tmp_path / "nowhere" / "node.sock") is None
    assert daemon.find(tmp_path / "node.sock") is None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(tmp_path / "node.sock"))
    assert daemon.find(tmp_path / "node.sock") is None


def test_the_default_link_leads_to_the_node(listening: Path, tmp_path: Path) -> None:
    """The link is made with its folder, found through, and removed only when it is ours."""
    link = tmp_path / "run" / "default.sock"
    assert daemon.claim_link(link, listening)
    assert daemon.find(link) == daemon.DaemonProcess(os.getpid(), listening)
    daemon.drop_link(link, tmp_path / "other.sock")
    assert link.is_symlink()
    daemon.drop_link(link, listening)
    assert not link.is_symlink()


def test_a_living_nodes_link_is_not_taken(listening: Path, tmp_path: Path) -> None:
    """A second node leaves the link to a first that still answers, and takes it from a dead one."""
    link = tmp_path / "default.sock"
    link.symlink_to(listening)
    assert not daemon.claim_link(link, tmp_path / "second.sock")
    link.unlink()
    link.symlink_to(tmp_path / "dead.sock")
    assert daemon.claim_link(link, listening)


def test_one_node_at_a_time_holds_the_pid_file(tmp_path: Path) -> None:
    """While the file is held a second holder is refused with the pid of the first; then it is gone."""
    path = tmp_path / "node.pid"
    with daemon.pid_file(path):
        assert path.read_text() == f"{os.getpid()}\n"
        with pytest.raises(ExistsError, match=str(os.getpid())), daemon.pid_file(path):
            pass
        assert path.exists()
    assert not path.exists()


def test_the_pid_file_has_the_progress_of_a_recovery(tmp_path: Path) -> None:
    """While objects are left to do others read how many; without a holder the file says nothing."""
    path = tmp_path / "node.pid"
    assert daemon.find_recovery(path) is None
    with daemon.pid_file(path) as held:
        assert daemon.find_recovery(path) is None
        held.note(20_000, 1_000_000)
        assert daemon.find_recovery(path) == daemon.Recovery(os.getpid(), 20_000, 1_000_000)
        with pytest.raises(ExistsError, match=f"as process {os.getpid()}$"), daemon.pid_file(path):
            pass
        left_behind = path.read_bytes()
        held.note(1_000_000, 1_000_000)
        assert daemon.find_recovery(path) is None
        assert path.read_text() == f"{os.getpid()}\n"
    path.write_bytes(left_behind)
    assert daemon.find_recovery(path) is None


class Hours:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        """The seconds."""
        return self.seconds


def starting(monkeypatch: pytest.MonkeyPatch, program: str) -> Hours:
    """Make ``start_detached`` start a program, which has the pipe ``ready``, and return its clock."""
    clock = Hours()

    def command(data: Path, *, ready: int, **others: object) -> list[str]:
        del data, others
        return [sys.executable, "-c", f"import os; ready = {ready}; {program}"]

    monkeypatch.setattr("dios.node.daemon.time", clock)
    monkeypatch.setattr("dios.node.daemon.command", command)
    return clock


def test_a_node_that_reports_its_progress_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each report is passed on, also if it comes in two parts, however long the start takes."""
    parts = "[b'recovering 1 4\\nrecov', b'ering 2 4\\n', b'recovering 3 4\\nrecovering 4 4\\n', b'ready\\n']"
    clock = starting(monkeypatch, f"[os.write(ready, part) for part in {parts}]")
    seen: list[tuple[int, int]] = []

    def recovering(done: int, every: int) -> None:
        seen.append((done, every))
        clock.seconds += 100_000

    running = daemon.start_detached(tmp_path / "data", recovering=recovering)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert running.socket == tmp_path / "data" / "node.sock"


def test_a_node_that_does_nothing_more_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that hangs after a report is killed when it has used no processor at some looks in a row."""
    monkeypatch.setattr(limits, "START_QUIET_MAX", 3)
    program = "os.write(ready, b'recovering 1 4\\n'); import time; time.sleep(600)"
    clock = starting(monkeypatch, program)
    seen: list[int] = []

    def waiting(_: float) -> None:
        clock.seconds += 1

    with pytest.raises(daemon.StartError, match="hung at its start"):
        daemon.start_detached(
            tmp_path / "data", waiting=waiting, recovering=lambda done, _: seen.append(done)
        )
    assert seen == [1]


def test_a_node_that_is_stopped_or_slow_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late it is, a node that wants to go on has not failed: it is neither killed nor reported so."""
    monkeypatch.setattr(limits, "START_QUIET_MAX", 3)
    program = "import signal; os.kill(os.getpid(), signal.SIGSTOP); os.write(ready, b'ready\\n')"
    clock = starting(monkeypatch, program)
    looks: list[Activity] = []

    def activity(session: int) -> Activity:
        looks.append(activity_of(session))
        if len(looks) == 6:
            os.kill(session, signal.SIGCONT)
        return looks[-1]

    monkeypatch.setattr(start_watch, "activity_of", activity)

    def waiting(_: float) -> None:
        clock.seconds += 1

    daemon.start_detached(tmp_path / "data", waiting=waiting)
    assert len(looks) >= 6


def test_stopping_asks_first() -> None:
    """A node that ends when asked gets no signal."""
    process = child(PATIENT)
    said: list[str] = []
    running = daemon.DaemonProcess(process.pid, Path("node.sock"))
    assert daemon.stop(running, ask=process.kill, say=said.append) == "asked"
    assert not said
    process.wait()


@pytest.mark.parametrize(("program", "how"), [(PATIENT, "terminated"), (STUBBORN, "killed")])
def test_stopping_escalates(program: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that cannot be asked gets SIGTERM, one that ignores it SIGKILL, and each step is told."""
    monkeypatch.setattr("dios.limits.NODE_SIGNAL_MS_MAX", 300)
    process = child(program)
    said: list[str] = []

    def ask() -> None:
        raise DiosError("it is deaf")

    assert daemon.stop(daemon.DaemonProcess(process.pid, Path("node.sock")), ask=ask, say=said.append) == how
    assert "it is deaf" in said[0]
    assert any("SIGTERM" in line for line in said)
    process.wait()


def test_stopping_what_is_gone_says_so() -> None:
    """A process that ended meanwhile is no error."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert daemon.stop(daemon.DaemonProcess(process.pid, Path("node.sock")), ask=lambda: None) == "gone"


def test_a_bad_setting_starts_no_process(tmp_path: Path) -> None:
    """Settings are checked before anything is made."""
    with pytest.raises(SettingsError):
        daemon.start_detached(tmp_path / "data", flags={"pool_sise": "4"})
    assert not (tmp_path / "data").exists()


def test_a_node_that_fails_to_start_says_why(tmp_path: Path) -> None:
    """What stops the daemon from starting reaches who started it, with the place of the log."""
    data = tmp_path / "data"
    data.mkdir()
    with (
        daemon.pid_file(data / "node.pid"),
        pytest.raises(daemon.StartError, match=r"a node already runs in .*as process.*node\.log"),
    ):
        daemon.start_detached(data)


def test_early_work_is_waited_for() -> None:
    """What early work gives is there for whoever asks, however often."""
    result = daemon.early(lambda: 42)
    assert (result(), result()) == (42, 42)
