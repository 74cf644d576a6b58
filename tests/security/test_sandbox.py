from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from dios.errors import OutOfMemoryError
from dios.host.confinement import policy
from dios.host.confinement.mechanisms import Mechanism
from dios.host.process.zygote_pool import open_zygote
from dios.wire.messages import Limits
from dios.wire.types import Brand, Cause
from tests.support.node.confinement import (
    ANSWER_S_MAX,
    AS_ORDINARY_USER,
    ENVIRONMENT,
    NOBODY,
    PROGRAMS,
    attempt,
    mechanisms_or_skip,
    passes_as_nobody,
    pure_task,
)

AF_BLUETOOTH = 31
"""Its number in the kernel; an interpreter built without the library's headers has no name for it."""

FDS_OF_MESSAGE_MAX = 253
"""The kernel's limit of descriptors in one message."""


@pytest.fixture(scope="module")
def mechanisms() -> dict[str, Mechanism]:
    """What the machine has; without what pure tasks need there is nothing to test here."""
    return mechanisms_or_skip()


REFUSED = [
    # files outside the view are not there at all
    ("read_file /etc/passwd", "ENOENT"),
    ("read_file /proc/self/mem", "ENOENT"),
    ("read_file /proc/1/environ", "ENOENT"),
    ("read_file /dev/mem", "ENOENT"),
    ("read_file /dev/zero", "ENOENT"),
    ("write_file /dev/planted", "EROFS"),
    ("read_file /sys/kernel/notes", "ENOENT"),
    ("read_file ../../../../etc/shadow", "ENOENT"),
    ("list_directory /proc", "ENOENT"),
    ("list_directory /", "EACCES"),
    ("list_directory /usr", "EACCES"),
    # the view is read, never written
    ("write_own_library", "EACCES EROFS"),
    ("create_beside_library", "EROFS EACCES"),
    ("write_file /planted", "EROFS"),
    ("remove_library", "EROFS EACCES"),
    ("rename_library", "EROFS EACCES"),
    ("link_library", "EPERM"),
    ("chmod_library", "EROFS EPERM"),
    ("touch_library", "EROFS EACCES"),
    ("truncate_library", "EPERM"),
    ("make_directory", "EROFS"),
    ("make_symlink", "EPERM"),
    ("make_device", "EPERM"),
    ("write_file /private/planted", "EROFS"),
    ("change_directory", "EPERM"),
    ("watch_files", "EPERM"),
    ("memory_file", "EPERM"),
    ("truncate_console", "EINVAL"),
    # no network
    *(
        (f"open_socket {int(family)} {int(kind)}", "EPERM")
        for family in (
            *(socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET),
            *(socket.AF_VSOCK, socket.AF_ALG, AF_BLUETOOTH, socket.AF_CAN, socket.AF_TIPC),
        )
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW)
    ),
    ("datagram_pair", "EPERM"),
    ("connect_own_socket", "EPERM"),
    ("bind_own_socket", "EPERM"),
    ("set_option_of_own_socket", "EPERM"),
    # no descriptors on their way, which count for all processes of the user
    ("send_descriptors", "EPERM"),
    ("send_by_message", "EPERM"),
    # no programs, no processes
    (f"execute {sys.executable}", "EPERM"),
    ("execute /bin/sh", "EPERM"),
    ("execute_descriptor", "EPERM"),
    ("fork", "EPERM"),
    ("clone_process 0", "EPERM"),
    (f"clone_process {0x10000000}", "EPERM"),
    (f"clone_process {0x10000000 | 0x10000}", "EPERM"),
    ("clone_by_structure", "ENOSYS"),
    ("run_program", "EPERM"),
    ("spawn_program", "EPERM"),
    # no signals to others, in no way
    ("send_signal -1", "EPERM"),
    ("send_signal 0", "EPERM"),
    ("send_signal 2", "EPERM"),
    (f"send_signal {os.getpid()}", "EPERM"),
    (f"send_signal_by_thread {os.getpid()}", "EPERM"),
    (f"queue_signal {os.getpid()}", "EPERM"),
    # nor does a number inside of an argument name one
    *(
        (f"system_call {call} {(~number << 3) | kind} 0 0 0", "EPERM")
        for call in ("clock_gettime", "clock_getres", "clock_nanosleep")
        for number in (1, 2, 7, os.getpid())
        for kind in (2, 3, 6)
    ),
    ("system_call futex 4096 6 0 0 0 0", "ENOSYS"),
    ("open_pidfd 1", "EPERM"),
    # nothing of the sandbox is undone
    ("raise_limit", "EPERM"),
    ("forget_parent", "EPERM"),
    ("become_dumpable", "EPERM"),
    ("become_root", "EPERM"),
    ("set_groups", "EPERM"),
    ("take_capabilities", "EPERM"),
    ("rename_host", "EPERM"),
    ("set_personality", "EPERM"),
    ("add_filter", "EPERM"),
    ("add_seals", "EPERM"),
    ("own_descriptor_signals", "EPERM"),
    ("type_into_terminal", "EPERM"),
    ("shared_memory_segment", "EPERM"),
    ("raise_priority", "EPERM"),
]
WORKS = [
    ("import_library", "True"),
    ("use_threads", "285"),
    ("use_event_loop", "42"),
    ("use_trio", "42"),
    ("use_memory", "hello"),
    ("interrupt_itself", "True"),
    ("read_own_library", "b'r'"),
    ("make_temporary", "None"),
    ("read_file /dev/null", "b''"),
    ("write_file /dev/null", "1"),
    ("environment", str(ENVIRONMENT)),
    ("descriptors", "[0, 1, 2, 3]"),
    ("identity", "(1, 0, 'task', 'task', 'task', '/private/task/tmp', 1)"),
]


async def test_every_way_out_is_refused_and_the_task_lives(mechanisms: dict[str, Mechanism]) -> None:
    """A pure task is refused files, network, programs, processes, others' signals and its release."""
    wrong: dict[str, str] = {}
    async with pure_task(mechanisms) as task:
        for command, expected in REFUSED:
            answer = await attempt(task, command)
            if answer not in {f"refused:{word}" for word in expected.split()}:
                wrong[command] = answer
            assert answer, f"{command!r} ended the task: {await task.wait()}"
    assert not wrong


async def test_what_programs_need_works(mechanisms: dict[str, Mechanism]) -> None:
    """Imports, threads, event loops, memory and own signals work in a pure task, and it sees only itself."""
    wrong: dict[str, str] = {}
    async with pure_task(mechanisms) as task:
        for command, expected in WORKS:
            answer = await attempt(task, command)
            if answer != f"did:{expected}":
                wrong[command] = answer
    assert not wrong


ATTACKS = [name for name in policy.KILLED if name not in {"iopl", "ioperm", "modify_ldt"}]


async def test_calls_that_only_an_attack_makes_end_the_task(mechanisms: dict[str, Mechanism]) -> None:
    """Each call of the policy's list of attacks kills the task, and its exit says that the sandbox did."""
    wrong: dict[str, str] = {}
    async with open_zygote(
        entry="hostile_entry:main", paths=(PROGRAMS,), pool_size=0, mechanisms=mechanisms
    ) as zygote:
        for name in ATTACKS:
            with trio.fail_after(ANSWER_S_MAX):
                task = await zygote.spawn(Brand.PURE, Limits())
                answer = await attempt(task, f"system_call {name} 0 0 0 0 0")
                if answer == "refused:ENOSYS":
                    task.close()  # this architecture has no such call
                    continue
                end = await task.wait()
                task.close()
            if answer or end.cause is not Cause.SANDBOX or end.signal != signal.SIGSYS or not end.detail:
                wrong[name] = f"{answer} {end}"
    assert not wrong


async def test_the_other_abi_of_the_processor_is_closed(mechanisms: dict[str, Mechanism]) -> None:
    """A call numbered as the x32 ABI numbers it ends the task, so that no refused call has a second name."""
    if os.uname().machine != "x86_64":
        pytest.skip("only x86_64 has a second ABI with the same architecture mark")
    async with pure_task(mechanisms) as task:
        assert await attempt(task, f"foreign_call {0x40000000 | 59}") == ""
        assert (await task.wait()).cause is Cause.SANDBOX


def status_of(pid: int) -> dict[str, str]:
    """The kernel's own account of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


async def test_the_kernel_says_the_same(mechanisms: dict[str, Mechanism]) -> None:
    """The kernel shows no capability in any set, no_new_privs, a filter, no root and an own pid namespace."""
    async with pure_task(mechanisms) as task:
        await attempt(task, "identity")
        status = status_of(task.pid)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0, name
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert status["NSpid"].split()[-1] == "1"
        expected = NOBODY if os.geteuid() == 0 else os.geteuid()
        assert set(status["Uid"].split()) == {str(expected)}


def namespace_of(pid: str, name: str) -> int:
    """Which namespace a process is in."""
    return Path(f"/proc/{pid}/ns/{name}").stat().st_ino


async def test_every_namespace_is_its_own(mechanisms: dict[str, Mechanism]) -> None:
    """User, pid, mount, network, ipc and uts namespace of a pure task differ from the daemon's."""
    if os.geteuid() != 0:
        pytest.skip("the links of a process that is not dumpable are root's to read")
    async with pure_task(mechanisms) as task:
        await attempt(task, "identity")
        for name in ("user", "pid", "mnt", "net", "ipc", "uts"):
            try:
                theirs = namespace_of(str(task.pid), name)
            except PermissionError as error:
                pytest.skip(f"/proc/PID/ns cannot be read here: errno {error.errno}")
            assert theirs != namespace_of("self", name), name


async def test_a_forged_message_to_the_zygote_has_no_way(mechanisms: dict[str, Mechanism]) -> None:
    """The zygote's control socket, view mounts and ruleset are closed in the child: only 0 to 3 are open."""
    async with pure_task(mechanisms) as task:
        assert await attempt(task, "descriptors") == "did:[0, 1, 2, 3]"
        assert await attempt(task, "descriptors") == "did:[0, 1, 2, 3]"


async def test_a_received_descriptor_gives_only_itself(
    mechanisms: dict[str, Mechanism], tmp_path: Path
) -> None:
    """A directory's descriptor that a daemon handed over by mistake opens no file below it."""
    (tmp_path / "secret").write_text("x")
    async with pure_task(mechanisms) as task:
        directory = os.open(tmp_path, os.O_RDONLY)
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", directory))]
            await task.socket.sendmsg([b"read_below_received secret"], rights)
            answer = (await task.socket.recv(4096)).decode()
        finally:
            os.close(directory)
    assert answer == "refused:EACCES"


@contextmanager
def too_many_descriptors_on_their_way() -> Iterator[None]:
    """Let this user have as many as the kernel allows, so that none of its processes can send another."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    kept: list[tuple[socket.socket, socket.socket]] = [(ours, theirs)]
    try:
        while True:
            try:
                socket.send_fds(kept[-1][0], [b"x"], [0] * FDS_OF_MESSAGE_MAX)
            except BlockingIOError:
                kept.append(socket.socketpair())
                kept[-1][0].setblocking(False)
    except OSError as error:
        if error.errno != errno.ETOOMANYREFS:
            raise
        yield
    finally:
        for pair in kept:
            for end in pair:
                end.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_child_that_cannot_be_announced_costs_no_other(mechanisms: dict[str, Mechanism]) -> None:
    """Without room for descriptors on their way a start is refused; the zygote and its tasks stay."""
    if os.geteuid() == 0:
        pytest.skip("the kernel does not count the descriptors of root")
    async with open_zygote(
        entry="hostile_entry:main", paths=(PROGRAMS,), pool_size=0, mechanisms=mechanisms
    ) as zygote:
        with trio.fail_after(ANSWER_S_MAX):
            before = await zygote.spawn(Brand.PURE, Limits())
            with too_many_descriptors_on_their_way(), pytest.raises(OutOfMemoryError):
                await zygote.spawn(Brand.PURE, Limits())
            assert await attempt(before, "environment") == f"did:{ENVIRONMENT}"
            after = await zygote.spawn(Brand.PURE, Limits())
            assert await attempt(after, "environment") == f"did:{ENVIRONMENT}"
        before.close()
        after.close()


@pytest.mark.long
@pytest.mark.skipif(
    os.geteuid() != 0 or AS_ORDINARY_USER in os.environ, reason="needs root to become another"
)
def test_the_same_holds_for_a_daemon_without_privileges() -> None:
    """All of this file passes when an ordinary user runs the daemon."""
    passes_as_nobody(__file__, **{AS_ORDINARY_USER: "1"})
