"""Hostile sessions that can be forked: nothing is shared with a fork, and none is made without an order."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

import dios
from dios.host.confinement import policy
from dios.host.confinement.mechanisms import Mechanism
from dios.host.confinement.notifications import FORKS
from dios.host.process.session_families import REFUSED_MAX
from dios.host.process.task_process import TaskProcess
from dios.host.process.zygote_pool import ZygotePool
from dios.wire.messages import Limits
from dios.wire.types import Brand, Cause
from tests.security import test_sandbox
from tests.support.node.confinement import (
    AS_ORDINARY_USER,
    attempt,
    children_of,
    mechanisms_or_skip,
    passes_as_nobody,
    pool_with_templates,
)

MEMORY = 96 * 2**20


@pytest.fixture(scope="module")
def mechanisms() -> dict[str, Mechanism]:
    """What the machine has; where no listener can decide about forks there is nothing to test here."""
    probed = mechanisms_or_skip()
    if not probed[FORKS].available:
        pytest.skip(f"sessions cannot be forked here: {probed[FORKS].detail}")
    return probed


@asynccontextmanager
async def forkable(mechanisms: dict[str, Mechanism]) -> AsyncIterator[tuple[ZygotePool, TaskProcess]]:
    """A session that can be forked and makes attempts."""
    async with pool_with_templates(mechanisms, entry="forkable_entry:main") as pool:
        await pool.prepare("", forkable=True)
        task = await pool.spawn(Brand.PURE, Limits(memory_bytes=MEMORY), forkable=True)
        yield pool, task
        task.close()


async def fork(pool: ZygotePool, task: TaskProcess, cheat: str = "none") -> TaskProcess:
    """Order a fork and have the session make it. Raises DiosError with the supervisor's reason."""
    outcomes: list[TaskProcess | dios.DiosError] = []

    async def order() -> None:
        try:
            outcomes.append(await pool.fork(Limits(memory_bytes=MEMORY), task))
        except dios.DiosError as error:
            outcomes.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(order)
        await attempt(task, f"fork_session {cheat}")
    if isinstance(outcomes[0], dios.DiosError):
        raise outcomes[0]
    return outcomes[0]


def processes(pool: ZygotePool) -> set[int]:
    """Every process below the supervisor."""
    return children_of(pool.pids[-1])


def is_running(pid: int) -> bool:
    """Return True for a process that has not ended."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def until_processes(pool: ZygotePool, wanted: set[int]) -> None:
    """Wait until exactly these processes are left."""
    while processes(pool) != wanted:  # noqa: ASYNC110 - the kernel reports no such event
        await trio.sleep(0.02)


def known_children(pool: ZygotePool) -> set[int]:
    """The numbers of all children that the daemon has in its tables."""
    return {number for link in pool._all_links() for number in link.children}


def mounts_of(pid: int) -> int:
    """The number of mounts that a process has."""
    return len(Path(f"/proc/{pid}/mountinfo").read_text().splitlines())


DIFFERENT = {
    # The working directory alone: it can be read there no more than elsewhere.
    "change_directory",
    # To itself alone, see below.
    "send_signal 0",
}
"""The attempts that a session that can be forked may make."""


async def test_a_fork_is_confined_like_any_other_task(mechanisms: dict[str, Mechanism]) -> None:
    """Every way out is refused to a session that can be forked, to its fork, and to the fork of that."""
    wrong: dict[str, str] = {}
    async with forkable(mechanisms) as (pool, task):
        child = await fork(pool, task)
        grandchild = await fork(pool, child)
        for process in (task, grandchild):
            for command, expected in test_sandbox.REFUSED:
                if command in DIFFERENT:
                    continue
                answer = await attempt(process, command)
                assert answer, f"{command!r} ended the task: {await process.wait()}"
                if answer not in {f"refused:{word}" for word in expected.split()}:
                    wrong[command] = answer
            for command, expected in test_sandbox.WORKS:
                if command in {"identity", "environment", "interrupt_itself"}:
                    continue  # it has a number in a larger pid namespace, and numeric libraries one thread
                answer = await attempt(process, command)
                if answer != f"did:{expected}":
                    wrong[command] = answer
        child.close()
        grandchild.close()
    assert not wrong


async def test_the_kernel_says_the_same_of_a_fork(mechanisms: dict[str, Mechanism]) -> None:
    """It has one capability, in a user namespace without mappings, and no namespace of the daemon."""
    async with forkable(mechanisms) as (pool, task):
        child = await fork(pool, task)
        for process in (task, child):
            status = test_sandbox.status_of(process.pid)
            for name in ("CapPrm", "CapEff", "CapBnd"):
                assert int(status[name], 16) == 1 << 21, name
            assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
            if os.geteuid() == 0:
                for name in ("user", "mnt", "net", "ipc", "uts", "pid"):
                    theirs = test_sandbox.namespace_of(str(process.pid), name)
                    assert theirs != test_sandbox.namespace_of("self", name), name
        if os.geteuid() == 0:
            for name in ("mnt", "net", "ipc", "uts"):
                assert test_sandbox.namespace_of(str(child.pid), name) != test_sandbox.namespace_of(
                    str(task.pid), name
                )
        child.close()


CHEATS = {
    "descriptor": "kept descriptors",
    "directory": "kept descriptors",
    "folder": "in a folder of its origin",
    "memory": "maps memory",
    "private memory": "maps memory",
    "thread": "started threads",
    "threads of the session": "has threads",
}


@pytest.mark.parametrize("cheat", CHEATS)
async def test_a_fork_that_keeps_something_of_its_origin_is_ended(
    mechanisms: dict[str, Mechanism], cheat: str
) -> None:
    """No descriptor, folder or mapping is left to it; the session goes on, and can be forked again."""
    async with forkable(mechanisms) as (pool, task):
        before = processes(pool)
        with pytest.raises(dios.DiosError, match=CHEATS[cheat]):
            await fork(pool, task, cheat)
        await until_processes(pool, before)
        child = await fork(pool, task)
        assert await attempt(child, "import_library") == "did:True"
        assert await attempt(task, "import_library") == "did:True"
        child.close()


@pytest.mark.long
@pytest.mark.parametrize("cheat", ["silence", "report once"])
async def test_a_fork_that_never_becomes_a_task_ends_with_its_order(
    mechanisms: dict[str, Mechanism], cheat: str
) -> None:
    """When nobody waits for it any more, no process is left of it."""
    async with forkable(mechanisms) as (pool, task):
        before = processes(pool)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.fork, Limits(memory_bytes=MEMORY), task)
            assert await attempt(task, f"fork_session {cheat}") == "did:fork"
            while len(processes(pool)) == len(before):  # noqa: ASYNC110 - as above
                await trio.sleep(0.02)
            # While it is there, the session cannot make another process with the same order.
            await task.socket.send(b"fork_session none")
            nursery.cancel_scope.cancel()
        await until_processes(pool, before)
        with trio.fail_after(60):
            assert (await task.socket.recv(100)).startswith(b"refused")


async def test_the_daemon_forgets_forks_that_were_cancelled(mechanisms: dict[str, Mechanism]) -> None:
    """Nothing is left of orders that a session never obeyed."""
    async with forkable(mechanisms) as (pool, task):
        before = known_children(pool)
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pool.fork, Limits(memory_bytes=MEMORY), task)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
        child = await fork(pool, task)  # its report comes after those of the cancelled ones
        assert known_children(pool) == before | {child.number}
        child.close()


@pytest.mark.parametrize("kind", ["deep", "wide", "sparse", "closed", "removed"])
async def test_what_cannot_be_copied_costs_the_fork_alone(
    mechanisms: dict[str, Mechanism], kind: str
) -> None:
    """A fork of a session with such a folder is a task or none; the session goes on."""
    async with forkable(mechanisms) as (pool, task):
        before = processes(pool)
        assert await attempt(task, f"make_folder {kind}") == f"did:{kind}"
        try:
            child = await fork(pool, task)
        except dios.DiosError:
            await until_processes(pool, before)
        else:
            assert await attempt(child, "import_library") == "did:True"
            child.close()
        assert await attempt(task, "remove_folder") == "did:removed"
        child = await fork(pool, task)
        assert await attempt(child, "import_library") == "did:True"
        child.close()


async def test_only_the_first_thread_of_a_session_is_forked(mechanisms: dict[str, Mechanism]) -> None:
    """Another thread gets no process, also while there is an order."""
    async with forkable(mechanisms) as (pool, task):
        before = processes(pool)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pool.fork, Limits(memory_bytes=MEMORY), task)
            await trio.testing.wait_all_tasks_blocked()
            assert await attempt(task, "ask_in_a_thread") == "did:refused:EPERM"
            assert processes(pool) == before
            nursery.cancel_scope.cancel()


async def test_no_process_is_made_without_an_order(mechanisms: dict[str, Mechanism]) -> None:
    """Other flags, reports of what is no fork, and forks that nobody ordered are refused."""
    async with forkable(mechanisms) as (pool, task):
        child = await fork(pool, task)
        before = processes(pool)
        for process in (task, child):
            for command in (
                *(f"namespaces_of_forks {flag}" for flag in (0x10000000, 0x20000000, 0x100)),
                f"clone_process {policy.CLONE_OF_FORKS}",
                f"clone_process {policy.CLONE_OF_FORKABLE}",
                f"clone_process {policy.CLONE_OF_SESSIONS}",
                "report",
            ):
                assert await attempt(process, command) == "refused:EPERM", command
        # It waits for an order until it ends.
        await task.socket.send(b"fork_session none")
        assert await attempt(child, "import_library") == "did:True"
        assert processes(pool) == before
        child.close()


async def test_a_session_that_asks_without_end_is_ended(mechanisms: dict[str, Mechanism]) -> None:
    """No limit of a task counts the work of the supervisor. Others of its family ask nothing, and go on."""
    async with forkable(mechanisms) as (pool, task):
        child = await fork(pool, task)
        for _ in range(REFUSED_MAX):
            assert await attempt(child, "report") == "refused:EPERM"
        assert await attempt(child, "report") == ""
        assert (await child.wait()).signal == signal.SIGKILL
        child.close()
        again = await fork(pool, task)
        assert await attempt(again, "import_library") == "did:True"
        again.close()


async def test_a_session_reaches_no_process_by_its_number(mechanisms: dict[str, Mechanism]) -> None:
    """The members of a family are in one pid namespace, and no call names one of them."""
    async with forkable(mechanisms) as (pool, task):
        child = await fork(pool, task)
        for process in (task, child):
            for number in range(1, 12):
                for command, error in (
                    (f"send_signal {number}", "EPERM"),
                    (f"send_signal_by_thread {number}", "EPERM"),
                    (f"system_call prlimit64 {number} 7 0 0", "EPERM"),
                    (f"system_call sched_getaffinity {number} 0 0", "ENOSYS"),
                ):
                    assert await attempt(process, command) == f"refused:{error}", command
            assert await attempt(process, "interrupt_group 0") == "did:1"
        assert await attempt(child, "send_signal 0") == ""
        assert (await child.wait()).signal == signal.SIGKILL
        assert await attempt(task, "import_library") == "did:True"
        child.close()


async def test_attacks_on_the_kernel_end_the_fork_alone(mechanisms: dict[str, Mechanism]) -> None:
    """The calls that its one capability is for otherwise end it."""
    async with forkable(mechanisms) as (pool, task):
        for command in ("bind_mount", "change_root", "system_call unshare 131072", "system_call setns 0 0"):
            child = await fork(pool, task)
            assert await attempt(child, command) == "", command
            end = await child.wait()
            assert (end.cause, end.signal) == (Cause.SANDBOX, signal.SIGSYS), command
            child.close()
        assert await attempt(task, "import_library") == "did:True"


async def test_forks_outlive_their_origin_and_end_with_the_node(mechanisms: dict[str, Mechanism]) -> None:
    """The end of a session does not end its forks, and nothing is left in the end."""
    async with forkable(mechanisms) as (pool, task):
        child = await fork(pool, task)
        grandchild = await fork(pool, child)
        for process in (task, child):
            process.kill()
            await process.wait()
            process.close()
        assert await attempt(grandchild, "import_library") == "did:True"
        pid = grandchild.pid
    grandchild.close()
    while is_running(pid):  # noqa: ASYNC110 - as above
        await trio.sleep(0.02)


async def test_a_chain_of_forks_keeps_nothing_of_its_ancestors(mechanisms: dict[str, Mechanism]) -> None:
    """Each fork has one private folder: those of its ancestors are unmounted, and end with them."""
    async with forkable(mechanisms) as (pool, task):
        present = task
        mounts: list[int] = []
        for _ in range(12):
            child = await fork(pool, present)
            if present is not task:
                present.kill()
                await present.wait()
                present.close()
            present = child
            mounts.append(mounts_of(child.pid))
        assert len(set(mounts)) == 1
        present.close()


@pytest.mark.extended
@pytest.mark.skipif(
    os.geteuid() != 0 or AS_ORDINARY_USER in os.environ, reason="needs root to become another"
)
def test_the_same_holds_for_a_node_of_an_ordinary_user() -> None:
    """All of the above passes when an ordinary user runs the daemon."""
    passes_as_nobody(__file__, **{AS_ORDINARY_USER: "1"})
