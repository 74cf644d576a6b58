from __future__ import annotations

from dios.host.confinement import lockdown
from tests.support.node.subprocess_lines import lines_of

PLACED = """
import fcntl, os, socket
from dios.host.confinement import lockdown

ours, theirs = socket.socketpair()
read_end, write_end = os.pipe()
high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (lockdown.open_empty_stdin(), write_end,
theirs.fileno())]
report = fcntl.fcntl(1, fcntl.F_DUPFD, 100)
out = os.fdopen(os.dup(report), "w")
keep = os.dup(read_end)
copy = os.fork()
if copy == 0:
    lockdown.place_descriptors(*high)
    os.write(1, b"to the console")
    os.write(3, b"to the node")
    found = []
    for number in range(200):
        try:
            os.fstat(number)
        except OSError:
            continue
        found.append(str(number))
    os.write(1, (" open " + ",".join(found) + " stdin " + repr(os.read(0, 10))).encode())
    os._exit(0)
os.waitpid(copy, 0)
print(os.read(read_end, 1000).decode(), file=out)
print(ours.recv(1000).decode(), file=out)
"""


def test_four_descriptors_are_left_and_each_in_its_place() -> None:
    """Console, socket and an empty input are where a program looks for them, and nothing else is open."""
    console, node = lines_of(PLACED)
    assert console == "to the console open 0,1,2,3 stdin b''"
    assert node == "to the node"


def test_each_input_is_a_file_of_its_own() -> None:
    """Flags set on one task's standard input are not seen on another's: they share no open file."""
    program = """
import fcntl, os
from dios.host.confinement import lockdown
one, other = lockdown.open_empty_stdin(), lockdown.open_empty_stdin()
before = fcntl.fcntl(other, fcntl.F_GETFL)
fcntl.fcntl(one, fcntl.F_SETFL, os.O_NONBLOCK)
print(fcntl.fcntl(other, fcntl.F_GETFL) == before, os.read(one, 1))
"""
    assert lines_of(program) == ["True b''"]


def test_who_has_lost_its_zygote_ends() -> None:
    """A child that finds its zygote gone does not run on."""
    program = """
import os, sys
from dios.host.confinement import lockdown
gone = os.fork()
if gone == 0:
    os._exit(0)
hold = os.pidfd_open(gone)
os.waitid(os.P_PID, gone, os.WEXITED | os.WNOWAIT)
child = os.fork()
if child == 0:
    lockdown.die_with_the_zygote(hold)
    os._exit(77)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert lines_of(program) == ["1"]


def test_who_has_its_zygote_lives() -> None:
    """A child whose zygote lives runs on, and is told of its end by the kernel."""
    program = """
import os
from dios.host.confinement import linux_calls, lockdown
child = os.fork()
if child == 0:
    lockdown.die_with_the_zygote(os.pidfd_open(os.getppid()))
    os._exit(77)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert lines_of(program) == ["77"]


def test_the_places_are_what_programs_expect() -> None:
    """Input, console and socket have the numbers that the client and the C library use."""
    assert (lockdown.STDIN, lockdown.CONSOLE, lockdown.SOCKET) == (0, (1, 2), 3)
