"""With one layer of the sandbox taken away the next one holds; where none is behind it, the table says so.

Not for: the sandbox as it is (``test_sandbox``, ``test_escape_*``). A layer is taken away by telling the
zygote that the machine has none, as a node on such a machine would with ``--accept-weaker-sandbox``.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from dios import limits
from dios.host.confinement import landlock, linux_calls
from dios.host.confinement.mechanisms import Availability, Mechanism
from dios.host.process.task_process import TaskProcess
from dios.host.process.zygote_pool import ZygotePool, open_zygote
from dios.wire.messages import Limits
from dios.wire.types import Brand, Cause
from tests.support.node.confinement import library_open_to_all_or_skip, mechanisms_or_skip, passes_as_nobody
from tests.support.security.escape import Witness

pytestmark = pytest.mark.long

SUPPORT = str(Path(__file__).resolve().parents[1] / "support" / "programs")
ANSWER_S_MAX = 20
FIXED_SIGNALS_ABI = 6
NOTHING = "nothing"
"""What stands behind a layer where another would have to be added: each is a word for the threat model."""

FILTER = "seccomp"
VIEW = "the view"
RULES = "Landlock"
NUMBERS = "pid namespace"
NETWORK = "network namespace"
USER = "user namespace"
RIGHTS = "no capabilities"


class Try(NamedTuple):
    """An attempt with a layer off: the command of ``hostile_entry``, its answers, and what gives them."""

    command: str
    answers: str
    behind: str


NO_FILTER = (
    Try("read_file /etc/passwd", "ENOENT", VIEW),
    Try("read_file {secret}", "ENOENT", VIEW),
    Try("read_file /proc/self/mem", "ENOENT", VIEW),
    Try("read_file /dev/mem", "ENOENT", VIEW),
    Try("read_file /dev/zero", "ENOENT", VIEW),
    Try("list_directory /", "EACCES", RULES),
    Try("list_directory /dev", "EACCES", RULES),
    Try("write_own_library", "EACCES EROFS", f"{VIEW} and {RULES}"),
    Try("create_beside_library", "EROFS EACCES", VIEW),
    Try("write_file {drop}", "ENOENT EROFS EACCES", VIEW),
    Try("make_directory", "EROFS EACCES", VIEW),
    Try("remove_library", "EROFS EACCES", f"{VIEW} and {RULES}"),
    Try("execute /bin/sh", "ENOENT", VIEW),
    Try(f"execute {sys.executable}", "ENOENT EACCES", f"{VIEW} and {RULES}"),
    Try("connect_tcp {tcp}", "ENETUNREACH EACCES", f"{NETWORK} and {RULES}"),
    Try("send_datagram {udp}", "ENETUNREACH", NETWORK),
    Try("connect_unix {unix}", "ENOENT", VIEW),
    Try("connect_unix @{abstract}", "ECONNREFUSED EPERM", f"{NETWORK} and {RULES}"),
    Try("open_socket 17 3", "EPERM", RIGHTS),
    Try("send_signal {victim}", "ESRCH", NUMBERS),
    Try("send_signal -1", "ESRCH", NUMBERS),
    Try("open_pidfd {victim}", "ESRCH", NUMBERS),
    Try("signal_peer", "EINVAL ENOPROTOOPT", NUMBERS),
    Try("system_call ptrace 16 {victim} 0 0", "ESRCH", NUMBERS),
    Try("system_call kcmp {victim} {victim} 0 0 0", "ESRCH", NUMBERS),
    Try("become_root", "EINVAL EPERM", USER),
    Try("set_groups", "EPERM", USER),
    Try("take_capabilities", "EPERM", RIGHTS),
    Try("rename_host", "EPERM", RIGHTS),
    Try("raise_priority", "EACCES EPERM", RIGHTS),
    Try(f"system_call unshare {0x10000000}", "EPERM", USER),
    Try(f"system_call unshare {0x40000000}", "EPERM", RIGHTS),
    Try(f"system_call unshare {0x00020000}", "EPERM", RIGHTS),
    Try("bind_mount", "EPERM", RIGHTS),
    Try("change_root", "EPERM", RIGHTS),
    Try("system_call bpf 5 0 0", "EPERM EFAULT E2BIG ENOSYS", "the machine's settings"),
    Try("system_call userfaultfd 0", "EPERM did ENOSYS", "the machine's settings"),
    Try("system_call perf_event_open 0 0 0 0 0", "EFAULT EACCES EPERM ENOSYS", "the machine's settings"),
    # Reached: the kernel looks at the arguments, or does as told.
    Try("open_socket 2 1", "did", "nothing, but there is nobody to reach"),
    Try("open_socket 16 3", "did", "nothing, but it shows an empty network"),
    Try("open_socket 40 1", "did EAFNOSUPPORT", NOTHING),
    Try("system_call io_uring_setup 4 0", "EFAULT EPERM ENOSYS", NOTHING),
    Try("system_call keyctl 0 -3 0", "did ENOSYS", "a keyring of the zygote's own"),
    Try("system_call personality 0", "did", NOTHING),
    Try("memory_file", "did", "a control group, where there is one"),
)
NO_RULES = (
    Try("read_file /dev/zero", "ENOENT", VIEW),
    Try("write_file /dev/planted", "EROFS", VIEW),
    Try("read_file /etc/passwd", "ENOENT", VIEW),
    Try("read_file {secret}", "ENOENT", VIEW),
    Try("list_directory /proc", "ENOENT", VIEW),
    Try("list_directory /", "did", "nothing, but it holds only the names of what may be read"),
    Try("write_own_library", "EROFS EACCES", VIEW),
    Try("create_beside_library", "EROFS EACCES", VIEW),
    Try("make_directory", "EROFS", VIEW),
    Try("remove_library", "EROFS EACCES", VIEW),
    Try("execute /bin/sh", "EPERM", FILTER),
    Try("connect_unix @{abstract}", "EPERM", FILTER),
    Try("connect_tcp {tcp}", "EPERM", FILTER),
    Try("send_signal {victim}", "EPERM", FILTER),
)
NO_RULES_NO_FILTER = (
    Try("read_file {secret}", "ENOENT", VIEW),
    Try("write_own_library", "EROFS EACCES", VIEW),
    Try("create_beside_library", "EROFS EACCES", VIEW),
    Try("execute /bin/sh", "ENOENT", VIEW),
    Try("connect_tcp {tcp}", "ENETUNREACH", NETWORK),
    Try("connect_unix @{abstract}", "ECONNREFUSED", NETWORK),
    Try("send_signal {victim}", "ESRCH", NUMBERS),
    Try("bind_mount", "EPERM", RIGHTS),
)
NO_VIEW = (
    Try("read_file /etc/passwd", "EACCES", RULES),
    Try("read_file {secret}", "EACCES", RULES),
    Try("read_file /proc/self/mem", "EACCES", RULES),
    Try("list_directory /", "EACCES", RULES),
    Try("read_file /dev/zero", "EACCES", RULES),
    Try("write_file /dev/null", "EPERM", FILTER),
    Try("write_file {drop}", "EPERM", FILTER),
    Try("write_own_library", "EPERM", FILTER),
    Try("make_directory", "EPERM", FILTER),
    Try("remove_library", "EPERM", FILTER),
    Try("make_temporary", "FileNotFoundError ENOENT EPERM", FILTER),
    Try("execute /bin/sh", "EPERM", FILTER),
)
NO_VIEW_NO_FILTER = (
    Try("read_file /etc/passwd", "EACCES", RULES),
    Try("read_file /proc/self/mem", "EACCES", RULES),
    Try("write_file /dev/null", "EACCES", RULES),
    Try("write_file {drop}", "EACCES", RULES),
    Try("make_directory", "EACCES", RULES),
    Try("write_own_library", "EACCES", RULES),
    Try("execute /bin/sh", "EACCES", RULES),
    Try("bind_mount", "EPERM", f"{RIGHTS}, and {RULES}"),
)
NO_NUMBERS = (
    Try("send_signal {victim}", "EPERM", FILTER),
    Try("send_signal -1", "EPERM", FILTER),
    Try("open_pidfd {victim}", "EPERM", FILTER),
    Try("signal_peer", "EPERM", FILTER),
)
NO_NUMBERS_NO_FILTER = (
    Try("send_signal {victim}", "EPERM", RULES),
    Try("signal_peer", "EPERM ENOPROTOOPT", RULES),
    Try("system_call ptrace 16 {victim} 0 0", "EPERM", f"{RULES}, and a user namespace of its own"),
    Try("system_call kcmp {victim} {victim} 0 0 0", "EPERM", f"{RULES}, and a user namespace of its own"),
    Try("open_pidfd {victim}", "did", "nothing, but no signal can be sent by it"),
)
NO_NETWORK = (
    Try("connect_tcp {tcp}", "EPERM", FILTER),
    Try("send_datagram {udp}", "EPERM", FILTER),
    Try("connect_unix @{abstract}", "EPERM", FILTER),
)
NO_NETWORK_NO_FILTER = (
    Try("connect_tcp {tcp}", "EACCES", RULES),
    Try("connect_unix @{abstract}", "EPERM", RULES),
    Try("connect_unix {unix}", "ENOENT", VIEW),
    Try("open_socket 17 3", "EPERM", RIGHTS),
    Try("send_datagram {nowhere}", "did ECONNREFUSED", "nothing: Landlock does not know UDP"),
)
NO_USER = (
    Try("become_root", "EPERM", FILTER),
    Try("take_capabilities", "EPERM", FILTER),
    Try("rename_host", "EPERM", FILTER),
)
NO_USER_NO_FILTER = (
    Try("become_root", "EPERM", RIGHTS),
    Try("set_groups", "EPERM", RIGHTS),
    Try("take_capabilities", "EPERM", RIGHTS),
    Try("rename_host", "EPERM", RIGHTS),
    Try("bind_mount", "EPERM", RIGHTS),
    Try("system_call unshare {new_net}", "EPERM", RIGHTS),
    Try(
        "system_call unshare {new_user}", "did EPERM ENOSPC", "nothing: in one of its own it has every right"
    ),
)
NO_IPC = (Try("shared_memory_segment", "EPERM", FILTER),)
NO_IPC_NO_FILTER = (Try("shared_memory_segment", "did", NOTHING),)
NO_HOST_NAME = (Try("rename_host", "EPERM", FILTER),)
NO_HOST_NAME_NO_FILTER = (Try("rename_host", "EPERM", RIGHTS),)

TABLES = {
    "seccomp": NO_FILTER,
    "landlock": NO_RULES,
    "landlock+seccomp": NO_RULES_NO_FILTER,
    "mount": NO_VIEW,
    "mount+seccomp": NO_VIEW_NO_FILTER,
    "pid": NO_NUMBERS,
    "pid+seccomp": NO_NUMBERS_NO_FILTER,
    "net": NO_NETWORK,
    "net+seccomp": NO_NETWORK_NO_FILTER,
    "user": NO_USER,
    "user+seccomp": NO_USER_NO_FILTER,
    "ipc": NO_IPC,
    "ipc+seccomp": NO_IPC_NO_FILTER,
    "uts": NO_HOST_NAME,
    "uts+seccomp": NO_HOST_NAME_NO_FILTER,
}
SESSION_KEYRING = -3
GROUPS = ("cgroup_memory", "cgroup_pids")
SMALL = Limits(memory_bytes=limits.TASK_MEMORY_BYTES_MIN, processes=16)
LARGE = Limits(memory_bytes=64 * limits.GIB, processes=1_000)
TOO_MUCH = 4 * limits.TASK_MEMORY_BYTES_MIN


@pytest.fixture(scope="module")
def mechanisms() -> dict[str, Mechanism]:
    """What the machine has; where a layer is missing anyway there is nothing to take away."""
    return mechanisms_or_skip()


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """What no attempt may touch."""
    with ExitStack() as stack:
        yield Witness(tmp_path_factory.mktemp("layers"), stack)


@asynccontextmanager
async def without(mechanisms: dict[str, Mechanism], *layers: str) -> AsyncIterator[ZygotePool]:
    """A zygote that believes the machine to be without some layers."""
    left = {
        name: dataclasses.replace(mechanism, availability=Availability.MISSING)
        if name in layers
        else mechanism
        for name, mechanism in mechanisms.items()
    }
    async with open_zygote(
        entry="hostile_entry:main", paths=(SUPPORT,), pool_size=0, mechanisms=left, accept_weaker=True
    ) as zygote:
        yield zygote


@asynccontextmanager
async def task_of(zygote: ZygotePool, bounds: Limits) -> AsyncIterator[TaskProcess]:
    """One pure task, ended when the block is left."""
    task = await zygote.spawn(Brand.PURE, bounds)
    try:
        with trio.fail_after(ANSWER_S_MAX):
            yield task
    finally:
        task.close()


async def answer_of(task: TaskProcess, command: str) -> str:
    """What a task answers to a command: ``did``, an errno's name, or the cause of its death."""
    await task.socket.send(command.encode())
    try:
        said = (await task.socket.recv(65536)).decode()
    except ConnectionResetError:
        said = ""
    if not said:
        return (await task.wait()).cause.name
    verdict, _, detail = said.partition(":")
    return detail if verdict == "refused" else verdict


@pytest.mark.parametrize("layers", TABLES, ids=str)
async def test_what_is_behind_a_layer_holds(
    mechanisms: dict[str, Mechanism], witness: Witness, layers: str
) -> None:
    """With the layers of a table off, each attempt is answered by what the table says is behind them."""
    off = layers.split("+")
    if "user" in off and os.geteuid() != 0:
        pytest.skip("without a user namespace only root can make the others")
    if "mount" in off:
        library_open_to_all_or_skip()
    if {"pid", "net"} & set(off) and "seccomp" in off and landlock.abi() < FIXED_SIGNALS_ABI:
        pytest.skip(f"Landlock ABI {landlock.abi()} knows no signals and abstract sockets")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unread:
        unread.bind(("127.0.0.1", 0))
        loot = {
            **witness.traps.loot,
            "victim": witness.victim.pid,
            "secret": witness.traps.secret_file,
            "nowhere": unread.getsockname()[1],
            "new_user": 0x10000000,
            "new_net": 0x40000000,
        }
        wrong: dict[str, str] = {}
        async with without(mechanisms, *off) as zygote:
            for attempt in TABLES[layers]:
                async with task_of(zygote, Limits()) as task:
                    answer = await answer_of(task, attempt.command.format(**loot))
                if answer not in attempt.answers.split():
                    wrong[attempt.command] = f"{answer}, where {attempt.behind} should have answered"
                witness.unharmed()
    assert not wrong, wrong


def test_every_layer_has_its_table() -> None:
    """Each mechanism that confines a task is taken away once alone, and once together with the filter."""
    confining = {"seccomp", "landlock", "mount", "pid", "net", "user", "ipc", "uts"}
    assert set(TABLES) == confining | {f"{name}+seccomp" for name in confining - {"seccomp"}}


async def test_without_a_filter_the_keys_of_who_started_the_node_stay_away(
    mechanisms: dict[str, Mechanism],
) -> None:
    """A task that may ask the kernel for its session's keys gets a ring of the zygote's, not the daemon's."""
    try:
        own = linux_calls.syscall("keyctl", 0, SESSION_KEYRING, 0)
    except OSError as error:
        pytest.skip(f"no keyrings here: errno {error.errno}")
    async with without(mechanisms, "seccomp") as zygote, task_of(zygote, Limits()) as task:
        await task.socket.send(f"system_call keyctl 0 {SESSION_KEYRING} 0".encode())
        said = (await task.socket.recv(100)).decode()
    assert said.startswith("did:")
    assert int(said.removeprefix("did:")) != own


async def test_without_groups_the_limits_of_a_process_hold(mechanisms: dict[str, Mechanism]) -> None:
    """Where no group counts, memory, threads and shared memory end at the process's own limits."""
    async with without(mechanisms, *GROUPS) as zygote, task_of(zygote, SMALL) as task:
        assert not zygote._groups
        await task.socket.send(f"take_memory {TOO_MUCH}".encode())
        assert (await task.socket.recv(100)).decode() == "did:MemoryError"
        assert await answer_of(task, f"share_memory {TOO_MUCH}") == "EPERM"
        await task.socket.send(b"count_threads 64")
        said = (await task.socket.recv(100)).decode()
        assert 0 < int(said.partition(":")[2]) < SMALL.processes


async def test_without_limits_of_the_process_its_group_holds(mechanisms: dict[str, Mechanism]) -> None:
    """Where the process's own limits are far away, its control group ends it, or refuses it threads."""
    if not all(mechanisms[name].available for name in GROUPS):
        pytest.skip("; ".join(f"{name}: {mechanisms[name].detail}" for name in GROUPS))
    async with without(mechanisms) as zygote:
        async with task_of(zygote, LARGE) as task:
            assert task.group is not None
            task.group.limit(memory_bytes=limits.TASK_MEMORY_BYTES_MIN, processes=SMALL.processes)
            await task.socket.send(b"count_threads 64")
            said = (await task.socket.recv(100)).decode()
            assert 0 < int(said.partition(":")[2]) < SMALL.processes
        for command in ("take_memory", "share_memory"):
            async with task_of(zygote, LARGE) as task:
                assert task.group is not None
                task.group.limit(memory_bytes=limits.TASK_MEMORY_BYTES_MIN, processes=SMALL.processes)
                assert await answer_of(task, f"{command} {TOO_MUCH}") == Cause.MEMORY.name, command


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another")
def test_the_same_holds_for_a_daemon_without_privileges() -> None:
    """All of this file passes when an ordinary user runs the zygote."""
    passes_as_nobody(__file__)
