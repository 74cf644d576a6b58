"""Programs that a session runs: their streams, their ends, and what interrupts them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from dios.lib.sandbox.programs import run_program
from dios.lib.sandbox.protocol import STDERR, STDOUT, RunProgram
from dios.limits import MIB


def ran(code: str, data: bytes = b"", variables: dict[str, str] | None = None) -> tuple[int, bytes, bytes]:
    """The status, the standard output and the standard error of a program in Python."""
    streams = {STDOUT: bytearray(), STDERR: bytearray()}
    order = RunProgram([sys.executable, "-c", code], data, "", variables)
    status = run_program(order, lambda stream, part: streams[stream].extend(part))
    return status, bytes(streams[STDOUT]), bytes(streams[STDERR])


def test_a_program_gets_its_input_and_shows_both_streams() -> None:
    """More than a pipe holds, in both directions at once."""
    code = (
        "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data); sys.stderr.write('e'); "
        "sys.exit(7)"
    )
    data = os.urandom(4 * MIB)
    assert ran(code, data) == (7, data, b"e")


def test_a_program_that_reads_nothing_ends() -> None:
    """Its input is dropped."""
    assert ran("pass", bytes(4 * MIB)) == (0, b"", b"")


def test_variables_are_added() -> None:
    """Those of the session stay."""
    os.environ["DIOS_TEST_KEPT"] = "1"
    try:
        code = "import os; print(os.environ['DIOS_TEST_KEPT'], os.environ['MORE'])"
        assert ran(code, variables={"MORE": "2"})[1] == b"1 2\n"
    finally:
        del os.environ["DIOS_TEST_KEPT"]


def test_a_program_that_leaves_a_process_with_its_streams_ends() -> None:
    """Its last output is shown, although the streams stay open."""
    code = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])
print(child.pid)
"""
    status, out, _ = ran(code)
    assert status == 0
    os.kill(int(out), signal.SIGKILL)


def test_the_last_output_is_read_whole() -> None:
    """As much as the pipe holds, which the program may have enlarged."""
    code = """
import fcntl, os
size = fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 1 << 18)
os.write(1, b'x' * size)
os.write(2, str(size).encode())
os._exit(0)
"""
    status, out, size = ran(code)
    assert (status, len(out)) == (0, int(size))


def test_a_program_ends_although_what_it_left_writes_for_ever() -> None:
    """Here each output that is shown is followed by more in the same pipe."""
    code = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])
os.write(1, f'{os.getpid()} {child.pid}'.encode())
"""
    pids: list[int] = []
    later: list[bytes] = []

    def show(_stream: int, part: bytes) -> None:
        if not pids:
            pids.extend(map(int, part.split()))
        if not _runs_now(pids[0]):
            later.append(part)
            assert len(later) < 100
        with Path(f"/proc/{pids[1]}/fd/1").open("wb") as pipe:
            pipe.write(b"x")

    try:
        assert run_program(RunProgram([sys.executable, "-c", code], b"", "", None), show) == 0
    finally:
        os.kill(pids[1], signal.SIGKILL)
    assert later


@pytest.mark.parametrize("change", ["os.setpgid(0, os.getppid())", "os.setpgid(0, 0)"])
def test_an_interrupt_ends_a_program_in_another_group(change: str) -> None:
    """It may have joined that of its parent."""
    code = f"""
import os, time
{change.replace("os.getppid()", "os.getpgid(os.getppid())")}
os.write(1, str(os.getpid()).encode())
time.sleep(1000)
"""
    pids: list[int] = []

    def show(_stream: int, part: bytes) -> None:
        pids.append(int(part))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program(RunProgram([sys.executable, "-c", code], b"", "", None), show)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_an_interrupt_ends_a_program_and_its_children() -> None:
    """The exception goes on."""
    pids: list[int] = []
    code = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])
os.write(1, f'{os.getpid()} {child.pid}'.encode())
time.sleep(1000)
"""

    def show(_stream: int, part: bytes) -> None:
        pids.extend(map(int, part.split()))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_program(RunProgram([sys.executable, "-c", code], b"", "", None), show)
    first, second = pids
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert not _runs(second)


def _runs_now(pid: int) -> bool:
    """True unless a process has ended."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"


def _runs(pid: int) -> bool:
    """True until a process that was killed is gone; another one than its parent removes it."""
    ended = threading.Event()
    for _ in range(1000):
        try:
            if not _runs_now(pid):
                return False
        except (FileNotFoundError, ProcessLookupError):
            return False
        ended.wait(0.01)
    return True


def test_a_program_that_is_not_there_is_an_error() -> None:
    """It is that of the operating system."""
    with pytest.raises(FileNotFoundError):
        run_program(RunProgram(["/nothing"], b"", "", None), lambda _stream, _part: None)
