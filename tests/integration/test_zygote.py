from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from dios import limits
from dios.errors import InvalidError, NotSupportedError, OutOfMemoryError
from dios.host.confinement.mechanisms import Availability, Mechanism, obstacle_to_pure, probe
from dios.host.process import zygote_link
from dios.host.process.lineages import Lineage
from dios.host.process.task_process import ProcessLimits, TaskProcess
from dios.host.process.zygote_messages import LowerLimits, ZygoteModules, decode_from_zygote, encode
from dios.host.process.zygote_pool import ZygotePool, open_zygote
from dios.host.process.zygote_process import StartedZygote, start_zygote
from dios.wire.messages import Limits
from dios.wire.types import Brand, Cause
from tests.support.host.harness import no_descriptors
from tests.support.node.confinement import library_open_to_all_or_skip

SUPPORT = str(Path(__file__).resolve().parents[1] / "support" / "programs")
ENTRY = "hostile_entry:main"
TRIVIAL = "hostile_entry:trivial"
WAIT_S_MAX = 120
BRANDS = [Brand.PURE, Brand.LIMBO]


@pytest.fixture(scope="module")
def mechanisms() -> dict[str, Mechanism]:
    """What the machine has; without what pure tasks need there is nothing to test here."""
    probed = probe()
    missing = obstacle_to_pure(probed)
    if missing:
        pytest.skip(f"pure tasks cannot be confined here: {missing}")
    return probed


@asynccontextmanager
async def zygote_of(
    mechanisms: dict[str, Mechanism], *, entry: str = ENTRY, pool_size: int = 1, accept_weaker: bool = False
) -> AsyncIterator[ZygotePool]:
    """A zygote whose tasks make attempts, with a deadline over all."""
    with trio.fail_after(WAIT_S_MAX):
        async with open_zygote(
            entry=entry,
            paths=(SUPPORT,),
            pool_size=pool_size,
            mechanisms=mechanisms,
            accept_weaker=accept_weaker,
        ) as zygote:
            yield zygote


async def attempt(task: TaskProcess, command: str) -> str:
    """Have a task make one attempt."""
    await task.socket.send(command.encode())
    return (await task.socket.recv(65536)).decode()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds; the test's deadline ends it otherwise."""
    while not condition():  # noqa: ASYNC110 - the kernel has no event for what is waited for here
        await trio.sleep(0.002)


def console_of(task: TaskProcess) -> str:
    """What an ended task wrote."""
    text = b""
    with contextlib.suppress(BlockingIOError):
        while more := os.read(task.console_fd, 65536):
            text += more
    return text.decode()


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def status_of(pid: int) -> str:
    """The kernel's own account of a process."""
    return Path(f"/proc/{pid}/status").read_text()


@pytest.mark.parametrize("brand", BRANDS)
@pytest.mark.parametrize(
    ("command", "cause", "code", "number"),
    [
        ("end_with 0", Cause.EXITED, 0, 0),
        ("end_with 7", Cause.EXITED, 7, 0),
        ("fail", Cause.EXCEPTION, 1, 0),
        ("spin", Cause.CPU, 0, signal.SIGKILL),
        ("crash", Cause.SIGNAL, 0, signal.SIGSEGV),
    ],
)
async def test_an_end_is_reported_with_its_cause(
    mechanisms: dict[str, Mechanism], brand: Brand, command: str, cause: Cause, code: int, number: int
) -> None:
    """Exit codes, exceptions, signals and the CPU limit are told apart for both brands; use is told."""
    async with zygote_of(mechanisms) as zygote:
        await zygote.wait_pool_full()
        task = await zygote.spawn(brand, Limits(cpu_ms=1000))
        await task.socket.send(command.encode())
        end = await task.wait()
        assert (end.cause, end.exit_code) == (cause, code), end
        assert end.memory_bytes > 0
        if cause is Cause.CPU:
            assert end.signal in {signal.SIGKILL, signal.SIGXCPU}
            assert end.cpu_ms > 0
        else:
            assert end.signal == number
        assert bool(end.detail) == ((cause, code) != (Cause.EXITED, 0))
        assert ("LookupError" in console_of(task)) == (cause is Cause.EXCEPTION)
        task.close()


@pytest.mark.parametrize("brand", BRANDS)
async def test_kill_suspend_and_resume(mechanisms: dict[str, Mechanism], brand: Brand) -> None:
    """A suspended task stands still, a resumed one answers, a killed one ends with cause KILLED."""
    async with zygote_of(mechanisms) as zygote:
        task = await zygote.spawn(brand, Limits())
        await attempt(task, "identity")
        task.suspend()
        stat = Path(f"/proc/{task.pid}/stat")
        await until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
        task.resume()
        assert (await attempt(task, "use_memory")) == "did:hello"
        task.kill()
        end = await task.wait()
        assert (end.cause, end.signal) == (Cause.KILLED, signal.SIGKILL)
        task.kill()
        task.suspend()
        task.close()
        task.close()


async def test_a_pooled_child_gets_the_limits_it_is_asked_for(mechanisms: dict[str, Mechanism]) -> None:
    """Lower limits are set on a child of the pool before it begins, and hold."""
    async with zygote_of(mechanisms) as zygote:
        await zygote.wait_pool_full()
        assert zygote.ready == 1
        memory = 128 * limits.MIB
        task = await zygote.spawn(Brand.PURE, Limits(memory_bytes=memory, processes=3))
        files = limits.TASK_MEMORY_BYTES_DEFAULT
        assert await attempt(task, "limits_of") == f"did:[{memory}, 0, {files}, 3]"
        assert await attempt(task, f"take_memory {2 * memory}") == "did:MemoryError"
        assert await attempt(task, "count_threads 10") == "did:2"
        task.close()


async def test_the_pool_has_the_nodes_own_defaults(mechanisms: dict[str, Mechanism]) -> None:
    """A task that asks for nothing has the node's limits; one that asks for more gets it, started cold."""
    small, large = 256 * limits.MIB, 512 * limits.MIB
    defaults = Limits(memory_bytes=small, processes=5)
    async with open_zygote(entry=ENTRY, paths=(SUPPORT,), mechanisms=mechanisms, defaults=defaults) as zygote:
        await zygote.wait_pool_full()
        for asked, memory in ((0, small), (large, large)):
            task = await zygote.spawn(Brand.PURE, Limits(memory_bytes=asked))
            assert await attempt(task, "limits_of") == f"did:[{memory}, 0, {memory}, 5]"
            task.close()


async def test_memory_beyond_the_group_ends_the_task(mechanisms: dict[str, Mechanism]) -> None:
    """Shared memory, which no limit of a process counts, ends a task at its group's limit: cause MEMORY."""
    if not mechanisms["cgroup_memory"].available:
        pytest.skip(f"no memory controller to write: {mechanisms['cgroup_memory'].detail}")
    async with zygote_of(mechanisms) as zygote:
        task = await zygote.spawn(Brand.PURE, Limits(memory_bytes=64 * limits.MIB))
        assert await attempt(task, f"share_memory {256 * limits.MIB}") == ""
        end = await task.wait()
        assert end.cause is Cause.MEMORY
        task.close()


async def test_uncounted_memory_is_refused(mechanisms: dict[str, Mechanism]) -> None:
    """Where no group counts memory, a pure task gets no anonymous shared memory but all private memory."""
    missing = {"cgroup_memory": Mechanism(Availability.MISSING, "EROFS", needed_for_pure=False)}
    missing |= {"cgroup_pids": Mechanism(Availability.MISSING, "EROFS", needed_for_pure=False)}
    async with zygote_of(mechanisms | missing) as zygote:
        task = await zygote.spawn(Brand.PURE, Limits())
        assert await attempt(task, f"share_memory {limits.MIB}") == "refused:EPERM"
        assert await attempt(task, "use_memory") == "did:hello"
        assert await attempt(task, "use_threads") == "did:285"
        task.close()


async def test_limbo_is_an_ordinary_process_that_gains_nothing(mechanisms: dict[str, Mechanism]) -> None:
    """A limbo task has files, network and programs, the daemon's user, and no descriptor but its own."""
    async with zygote_of(mechanisms) as zygote:
        task = await zygote.spawn(Brand.LIMBO, Limits())
        assert await attempt(task, "read_file /etc/passwd") == "did:b'r'"
        assert await attempt(task, "run_program") != "refused:EPERM"
        assert (
            await attempt(task, f"open_socket {int(socket.AF_INET)} {int(socket.SOCK_STREAM)}") == "did:None"
        )
        assert await attempt(task, "descriptors") == "did:[0, 1, 2, 3]"
        assert f"{os.geteuid()}" in await attempt(task, "user")
        assert "NoNewPrivs:\t1" in status_of(task.pid)
        task.close()


async def test_what_a_limbo_task_started_ends_with_it(mechanisms: dict[str, Mechanism]) -> None:
    """Processes of an ended limbo task end too, even those in sessions of their own."""
    async with zygote_of(mechanisms) as zygote:
        task = await zygote.spawn(Brand.LIMBO, Limits())
        pids = [int(word) for word in (await attempt(task, "leave_processes 3")).split()]
        assert len(pids) == 3
        assert (await task.wait()).cause is Cause.EXITED
        await until(lambda: not any(alive(pid) for pid in pids))
        task.close()


@pytest.mark.extended
async def test_a_thousand_starts_leave_nothing(mechanisms: dict[str, Mechanism]) -> None:
    """After 1,000 pure tasks the daemon's descriptors, the zygote's children and the groups are as before."""
    async with zygote_of(mechanisms, entry=TRIVIAL, pool_size=2) as zygote:
        await zygote.wait_pool_full()

        async def start_task() -> None:
            task = await zygote.spawn(Brand.PURE, Limits())
            await task.socket.send(b".")
            assert (await task.wait()).cause is Cause.EXITED
            task.close()

        async def batch(size: int) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(size):
                    nursery.start_soon(start_task)

        def usage() -> tuple[int, int, int]:
            (pid,) = zygote.pids
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            folders = [folder for h in zygote._groups._hierarchies for folder in h.folder.glob("task-*")]
            return len(list(Path("/proc/self/fd").iterdir())), len(children), len(folders)

        def zygote_descriptors() -> int:
            try:
                return len(list(Path(f"/proc/{zygote.pids[0]}/fd").iterdir()))
            except PermissionError:
                return 0  # it is not dumpable; root alone may look

        await batch(8)
        # A group for each task that is ready; those of ended tasks are removed later.
        ready_groups = 2 * len(zygote._groups._hierarchies)
        await until(lambda: zygote.ready == 2 and usage()[2] == ready_groups)
        before, inside = usage(), zygote_descriptors()
        for _ in range(125):
            await batch(8)
        await until(lambda: zygote.ready == 2 and usage() == before)
        assert zygote_descriptors() == inside


async def test_a_machine_without_a_mechanism_refuses_pure_tasks(mechanisms: dict[str, Mechanism]) -> None:
    """Where Landlock is missing a pure task is refused with the reason, and limbo works."""
    poorer = mechanisms | {"landlock": Mechanism(Availability.MISSING, "ENOSYS", needed_for_pure=True)}
    async with zygote_of(poorer) as zygote:
        with pytest.raises(NotSupportedError, match=r"landlock missing \(ENOSYS\)"):
            await zygote.spawn(Brand.PURE, Limits())
        task = await zygote.spawn(Brand.LIMBO, Limits())
        assert await attempt(task, "use_memory") == "did:hello"
        task.close()


@pytest.mark.parametrize(
    "missing", [("landlock",), ("user", "pid", "net", "mount", "ipc", "uts"), ("seccomp",)]
)
async def test_a_weaker_sandbox_may_be_accepted(
    mechanisms: dict[str, Mechanism], missing: tuple[str, ...]
) -> None:
    """Told to accept less, the node starts pure tasks with all that is left."""
    if "mount" in missing:
        library_open_to_all_or_skip()
    poorer = mechanisms | {
        name: Mechanism(Availability.MISSING, "taken away", needed_for_pure=True) for name in missing
    }
    async with zygote_of(poorer, accept_weaker=True) as zygote:
        task = await zygote.spawn(Brand.PURE, Limits())
        assert await attempt(task, "use_threads") == "did:285"
        assert await attempt(task, "interrupt_itself") == "did:True"
        assert (await attempt(task, "write_file /planted")).startswith("refused:")
        task.close()


async def test_a_dead_zygote_takes_its_tasks_and_is_replaced(mechanisms: dict[str, Mechanism]) -> None:
    """When the zygote dies every task of it ends, busy ones too, and the next spawn starts another."""
    async with zygote_of(mechanisms) as zygote:
        task = await zygote.spawn(Brand.PURE, Limits())
        await task.socket.send(b"spin")
        os.kill(zygote.pids[0], signal.SIGKILL)
        end = await task.wait()
        assert end.cause is Cause.NODE
        await until(lambda: not alive(task.pid))
        task.close()
        task = await zygote.spawn(Brand.PURE, Limits())
        assert await attempt(task, "use_memory") == "did:hello"
        task.close()


async def test_an_entry_point_that_cannot_be_loaded_is_named(mechanisms: dict[str, Mechanism]) -> None:
    """A wrong entry point fails the start with the import's own words."""
    with pytest.raises(NotSupportedError, match="no_such_module"):
        async with zygote_of(mechanisms, entry="no_such_module:main"):
            pass


async def test_an_entry_point_that_does_not_wait_is_reported(mechanisms: dict[str, Mechanism]) -> None:
    """Children that end by themselves are not pooled for ever; a spawn reports such an end."""
    async with zygote_of(mechanisms, entry="hostile_entry:at_once", pool_size=2) as zygote:
        task = await zygote.spawn(Brand.PURE, Limits())
        end = await task.wait()
        assert (end.cause, end.exit_code) == (Cause.EXITED, 3)
        task.close()


@pytest.mark.parametrize(
    "asked",
    [Limits(memory_bytes=1), Limits(memory_bytes=1 << 60), Limits(cpu_ms=1 << 60), Limits(processes=1 << 40)],
)
async def test_a_limit_out_of_range_is_refused(mechanisms: dict[str, Mechanism], asked: Limits) -> None:
    """A limit that makes no sense is EINVAL and starts nothing."""
    async with zygote_of(mechanisms, pool_size=0) as zygote:
        with pytest.raises(InvalidError):
            await zygote.spawn(Brand.PURE, asked)


async def test_a_legacy_program_is_not_started_here(mechanisms: dict[str, Mechanism]) -> None:
    """The legacy brand has no DIOS socket, so the zygote refuses it (Table 4.7)."""
    async with zygote_of(mechanisms, pool_size=0) as zygote:
        with pytest.raises(NotSupportedError):
            await zygote.spawn(Brand.LEGACY, Limits())


DAEMON = """
import sys, trio
from dios.host.process.zygote_pool import open_zygote
from dios.wire.messages import Limits
from dios.wire.types import Brand

async def main():
    async with open_zygote(entry="hostile_entry:main", paths=(sys.argv[1],), pool_size=2) as zygote:
        pure = await zygote.spawn(Brand.PURE, Limits())
        limbo = await zygote.spawn(Brand.LIMBO, Limits())
        for task in (pure, limbo):
            await task.socket.send(b"spin")
        await zygote.wait_pool_full()
        pooled = [child.pid for child in zygote._pool]
        print(*zygote.pids, pure.pid, limbo.pid, *pooled, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


async def test_nothing_outlives_a_killed_daemon(mechanisms: dict[str, Mechanism]) -> None:
    """A kill -9 of the daemon ends zygotes, pooled children and busy tasks of both brands."""
    with trio.fail_after(WAIT_S_MAX):
        daemon = subprocess.Popen([sys.executable, "-c", DAEMON, SUPPORT], stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220 - a test
        with daemon:
            assert daemon.stdout is not None
            pids = [int(word) for word in (await trio.to_thread.run_sync(daemon.stdout.readline)).split()]
            assert len(pids) == 6
            assert all(alive(pid) for pid in pids)
            daemon.kill()
        await until(lambda: not any(alive(pid) for pid in pids))


async def test_leaving_the_block_ends_every_task(mechanisms: dict[str, Mechanism]) -> None:
    """Tasks that nobody closed are gone when the zygote's block is left, and waiting for them ends."""
    async with zygote_of(mechanisms) as zygote:
        tasks = [await zygote.spawn(brand, Limits()) for brand in BRANDS]
        for task in tasks:
            await task.socket.send(b"spin")
        pids = [task.pid for task in tasks]
    for task in tasks:
        assert (await task.wait()).cause in {Cause.KILLED, Cause.NODE}
        task.close()
    await until(lambda: not any(alive(pid) for pid in pids))
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(tasks[0].console_fd)


BAD_MESSAGES = {
    "no message": b"\x00",
    "a message of another kind": encode(LowerLimits(1, 0, 0, 0)),
    "a defect in handling it": b"",
}


async def test_the_end_of_a_node_starts_no_zygote(
    mechanisms: dict[str, Mechanism], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool, which loses its children at the end, is not filled again."""
    started = []

    def noted(brand: Brand, modules: ZygoteModules) -> StartedZygote:
        started.append(brand)
        return start_zygote(brand, modules)

    monkeypatch.setattr("dios.host.process.zygote_link.start_zygote", noted)
    async with zygote_of(mechanisms, pool_size=2) as zygote:
        await zygote.wait_pool_full()
    assert started == [Brand.PURE]


@pytest.mark.parametrize("case", BAD_MESSAGES)
async def test_an_internal_error_ends_a_zygote_and_not_the_node(
    mechanisms: dict[str, Mechanism], case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task is reported as lost and is dead, the other zygote's goes on, and a new one is started."""
    async with zygote_of(mechanisms, pool_size=2) as zygote:
        await zygote.wait_pool_full()
        task, other = [await zygote.spawn(brand, Limits()) for brand in BRANDS]
        first = zygote.pids[0]
        if "defect" in case:
            monkeypatch.setattr(TaskProcess, "ended", broken)
        else:
            data = BAD_MESSAGES[case]
            monkeypatch.setattr(zygote_link, "decode_from_zygote", lambda _: decode_from_zygote(data))
        task.kill()  # its zygote reports the end, and the daemon meets something else
        end = await task.wait()
        assert end.cause in {Cause.NODE, Cause.KILLED}
        monkeypatch.undo()
        assert await attempt(other, "use_memory") == "did:hello"
        await until(lambda: zygote.ready == 2)
        assert zygote.pids[0] != first
        assert not alive(first)
        assert not alive(task.pid)
        again = await zygote.spawn(Brand.PURE, Limits())
        assert await attempt(again, "use_memory") == "did:hello"
        for started_task in (task, other, again):
            started_task.close()


def broken(*_: object) -> None:
    """What nothing in the daemon should do."""
    raise ZeroDivisionError("nobody thought of it")


async def test_without_descriptors_a_start_is_refused_and_the_pool_survives(
    mechanisms: dict[str, Mechanism],
) -> None:
    """A daemon that has no descriptors left refuses new tasks; when it has some, they start again."""
    async with zygote_of(mechanisms, pool_size=1) as zygote:
        started = [await zygote.spawn(Brand.LIMBO, Limits())]
        await zygote.wait_pool_full()
        # With four, both ends of socket and console can be made, and the new process has none.
        for spare in range(5):
            with no_descriptors(spare):
                if not spare:
                    started.append(await zygote.spawn(Brand.PURE, Limits()))
                # The pool refills itself in a task of its own, which fails here and goes on.
                await trio.testing.wait_all_tasks_blocked()
                for brand in BRANDS:
                    with pytest.raises(OutOfMemoryError):
                        await zygote.spawn(brand, Limits())
        started.append(await zygote.spawn(Brand.PURE, Limits()))
        for task in started:
            assert (await attempt(task, "identity")).startswith("did:")
            task.close()


async def test_a_pool_that_could_not_be_filled_is_tried_again(
    mechanisms: dict[str, Mechanism], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures while the machine had no room do not leave the node without prepared tasks."""
    monkeypatch.setattr(limits, "POOL_RETRY_MS_MIN", 1)
    original = ZygotePool._make
    failures: list[int] = []

    async def make(self: ZygotePool, brand: Brand, bounds: ProcessLimits, lineage: Lineage) -> TaskProcess:
        if len(failures) < 2 * limits.POOL_FAILURES_MAX:
            failures.append(1)
            raise OutOfMemoryError("no memory")
        return await original(self, brand, bounds, lineage)

    monkeypatch.setattr(ZygotePool, "_make", make)
    async with zygote_of(mechanisms, pool_size=1) as zygote:
        await until(lambda: zygote.ready == 1)


async def test_module_that_starts_a_thread_is_not_preloaded(mechanisms: dict[str, Mechanism]) -> None:
    """A process with threads cannot be forked safely, so the zygote names the module and is not set up."""
    with pytest.raises(NotSupportedError, match="the module starts_thread starts threads"):
        async with open_zygote(
            entry=TRIVIAL, preload=("starts_thread",), paths=(SUPPORT,), mechanisms=mechanisms
        ):
            pass


async def test_preloaded_numpy_computes_in_tasks(mechanisms: dict[str, Mechanism]) -> None:
    """The library for matrices waits for no thread that only the zygote had."""
    with trio.fail_after(WAIT_S_MAX):
        async with open_zygote(
            entry="numeric_entry:main",
            preload=("numpy",),
            paths=(SUPPORT,),
            pool_size=0,
            mechanisms=mechanisms,
        ) as zygote:
            child = await zygote.spawn(Brand.PURE, Limits())
            assert (await child.wait()).exit_code == 7
            child.close()
