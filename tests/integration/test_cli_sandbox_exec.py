"""``dios sandbox exec`` and ``forward``: a program with the streams or the terminal of a command; a port."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from tests.support.layouts import busybox_layout
from tests.support.node.confinement import runtimes_or_skip
from tests.support.node.running_node import RunningNode, running_node, wait_until

PATIENCE_S = 60.0
DIOS = str(Path(sys.executable).with_name("dios"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for the tests of this module."""
    runtimes_or_skip()
    with running_node(tmp_path_factory.mktemp("node") / "data", container_runtime="any") as running:
        yield running


@pytest.fixture(scope="module")
def box(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dios.Sandbox]:
    """One sandbox."""
    image = f"oci-layout:{busybox_layout(tmp_path_factory.mktemp('layout') / 'tiny')}:tiny"
    with dios.Sandbox(node=node.place, image=image, memory="256 MiB") as sandbox:
        yield sandbox


def command(node: RunningNode, box: dios.Sandbox, *rest: str, options: tuple[str, ...] = ()) -> list[str]:
    """The arguments of a command."""
    return [DIOS, "sandbox", "exec", *options, "--node", str(node.place), box.fingerprint[:12], *rest]


def test_streams_and_status_are_those_of_the_program(node: RunningNode, box: dios.Sandbox) -> None:
    """The input only with an option; a signal is a status, as in a shell."""
    done = subprocess.run(
        command(node, box, "sh", "-c", "echo out; echo err >&2; pwd; exit 5", options=("-w", "/etc")),
        capture_output=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (5, b"out\n/etc\n", b"err\n")
    for options, expected in (((), b""), (("-i",), b"x" * 300_000)):
        done = subprocess.run(
            command(node, box, "cat", options=options),
            input=b"x" * 300_000, capture_output=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (0, expected)
    done = subprocess.run(
        command(node, box, "sh", "-c", "kill -9 $$"), capture_output=True, check=False, timeout=PATIENCE_S
    )
    assert done.returncode == 137


def test_a_session_and_a_program_that_do_not_exist_are_errors(node: RunningNode, box: dios.Sandbox) -> None:
    """The message says what to do."""
    for wrong in (
        [*command(node, box)[:-1], "ffffffffffff", "cat"],
        command(node, box, "nonesuch"),
        command(node, box, "cat", options=("-t",)),
    ):
        done = subprocess.run(
            wrong, capture_output=True, check=False, timeout=PATIENCE_S, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 1
        assert b"ffffffffffff" in done.stderr or b"nonesuch" in done.stderr or b"terminal" in done.stderr


class Terminal:
    """A command with a terminal."""

    def __init__(self, arguments: list[str]) -> None:
        self.pid, self.descriptor = pty.fork()
        if not self.pid:
            os.execv(arguments[0], arguments)  # noqa: S606 - the command
        self.before = self.settings()

    def settings(self) -> object:
        """The settings of the terminal."""
        return termios.tcgetattr(self.descriptor)

    def read_until(self, text: bytes) -> None:
        """Read until a text comes."""
        data, deadline = b"", time.monotonic() + PATIENCE_S
        while text not in data:
            assert time.monotonic() < deadline, data
            if select.select([self.descriptor], [], [], 0.1)[0]:
                data += os.read(self.descriptor, 4096)

    def type(self, text: bytes) -> None:
        """Type."""
        os.write(self.descriptor, text)

    def ended(self) -> int:
        """The exit status, when the command has ended."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(node: RunningNode, box: dios.Sandbox) -> Iterator[Terminal]:
    """A shell of the sandbox in a terminal, at its prompt."""
    own = Terminal(command(node, box, "sh", options=("-it",)))
    own.read_until(b"# ")
    yield own
    os.close(own.descriptor)
    wait_until(lambda: box.processes() == [], "its program has ended")


def test_a_terminal_passes_letters_and_sizes_on(terminal: Terminal) -> None:
    """Ctrl-C interrupts the program and not the command; the settings are those of before at the end."""
    terminal.type(b"tty\n")
    terminal.read_until(b"/dev/pts/")
    terminal.type(b"echo begun; sleep 1000\n")
    terminal.read_until(b"begun\r\n")
    terminal.type(b"\x03")
    terminal.read_until(b"# ")
    fcntl.ioctl(terminal.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 55, 0, 0))
    terminal.type(b"while [ \"$(stty size)\" != '44 55' ]; do :; done; echo resi''zed\n")
    terminal.read_until(b"resized")
    assert terminal.settings() != terminal.before
    terminal.type(b"exit 7\n")
    assert terminal.ended() == 7
    assert terminal.settings() == terminal.before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_killed_restores_the_terminal(terminal: Terminal, number: int) -> None:
    """The program gets the signal of a terminal that ends."""
    os.kill(terminal.pid, number)
    assert terminal.ended() == 128 + number
    assert terminal.settings() == terminal.before


def test_ctrl_c_without_a_terminal_goes_to_the_program(node: RunningNode, box: dios.Sandbox) -> None:
    """A program may catch it."""
    process = subprocess.Popen(
        command(
            node, box, "sh", "-c", "trap 'echo caught; exit 3' INT; echo begun; while :; do sleep 0.1; done"
        ),
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == b"caught\n"
    assert process.wait(PATIENCE_S) == 3
    process.stdout.close()


def test_a_port_is_forwarded_until_ctrl_c(node: RunningNode, box: dios.Sandbox) -> None:
    """The command says where."""
    box.run("import socket; server = socket.create_server(('127.0.0.1', 8000))")
    arguments = [DIOS, "sandbox", "forward", "--node", str(node.place), box.fingerprint[:12], "8000"]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    place = process.stderr.readline().split()[0].partition(":")
    with socket.create_connection((place[0], int(place[2])), PATIENCE_S) as link:
        assert box.run("link, _ = server.accept(); link.sendall(b'x'); server.close()").ok
        assert link.recv(1) == b"x"
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 0
    process.stderr.close()
