"""Hostile modules in templates, and hostile programs in the tasks of a template: they get no further."""

from __future__ import annotations

import importlib
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import dios
from dios.host.confinement.mechanisms import Mechanism
from dios.host.confinement.notifications import FORKS
from dios.host.process.template_setting import TemplateSetting
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
    prepared_task,
)
from tests.support.security.escape import Attempt, Cage, open_cage

HOSTILE = "hostile"
WAIT_S = 60
FORKS_OF_CLINGING = 3
FIRST_CHEAT = 20
CHEATS_OF_LISTENERS = [
    *("what is always readable", "its link", "a number of nothing", "no number", "a number without end")
]
"""Those of ``loose_template``, in its order: a session's limit of processes chooses one."""


@pytest.fixture(scope="module")
def mechanisms() -> dict[str, Mechanism]:
    """What the machine has; without what pure tasks need there is nothing to test here."""
    return mechanisms_or_skip()


@asynccontextmanager
async def pool_with_template(
    mechanisms: dict[str, Mechanism], pool_size: int = 0
) -> AsyncIterator[ZygotePool]:
    """A pool whose template has loaded a hostile module."""
    setting = TemplateSetting(HOSTILE, ("hostile_template",))
    async with pool_with_templates(mechanisms, setting, pool_size=pool_size) as pool:
        await pool.prepare(HOSTILE)
        yield pool


EXPECTED = {
    "read_file /etc/passwd": "refused:ENOENT",
    "read_file /proc/self/mem": "refused:ENOENT",
    "read_file /dev/zero": "refused:ENOENT",
    "write_file /dev/null": "did:1",
    "open_pidfd 1": "refused:EPERM",
    "take_capabilities": "refused:EPERM",
    "rename_host": "refused:EPERM",
    "type_into_terminal": "refused:EPERM",
    "memory_file": "refused:EPERM",
    # standard input, which is empty; twice a console that nobody reads; and the way to the supervisor
    "descriptors": "did:[0, 1, 2, 3]",
}


async def test_a_hostile_import_gets_no_further_than_a_task(mechanisms: dict[str, Mechanism]) -> None:
    """While its modules are imported, a template has no file, network, process or right of the machine."""
    async with pool_with_template(mechanisms) as pool:
        task = await pool.spawn(Brand.PURE, Limits(), HOSTILE)
        answer = await attempt(task, "found_at_import")
        task.close()
    outcomes = json.loads(answer.removeprefix("did:"))
    assert {name: outcomes[name] for name in EXPECTED} == EXPECTED
    others = {name: outcome for name, outcome in outcomes.items() if name not in EXPECTED}
    assert len(others) > 10
    assert set(others.values()) <= {"refused:EPERM", "refused:EROFS", "refused:EACCES"}, others


async def test_the_kernel_says_the_same_of_a_template(mechanisms: dict[str, Mechanism]) -> None:
    """Its process has no capability, no new privileges, a filter, and another network than the daemon."""
    async with pool_with_template(mechanisms) as pool:
        supervisor = pool.pids[-1]
        template = max(children_of(supervisor))
        status = test_sandbox.status_of(template)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0, name
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        if os.geteuid() == 0:
            for name in ("user", "mnt", "net", "ipc", "uts", "pid"):
                theirs = test_sandbox.namespace_of(str(template), name)
                assert theirs != test_sandbox.namespace_of("self", name), name


@pytest.mark.parametrize("prepared", [False, True])
async def test_a_task_of_a_template_is_confined_like_any_other(
    mechanisms: dict[str, Mechanism],
    prepared: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Every way out is refused, and what programs need works, also in a process that waited for the task."""
    wrong: dict[str, str] = {}
    async with pool_with_template(mechanisms, int(prepared)) as pool:
        if prepared:
            task = await prepared_task(pool, HOSTILE)
        else:
            task = await pool.spawn(Brand.PURE, Limits(), HOSTILE)
        for command, expected in test_sandbox.REFUSED:
            answer = await attempt(task, command)
            assert answer, f"{command!r} ended the task: {await task.wait()}"
            if answer not in {f"refused:{word}" for word in expected.split()}:
                wrong[command] = answer
        for command, expected in test_sandbox.WORKS:
            answer = await attempt(task, command)
            if answer != f"did:{expected}":
                wrong[command] = answer
        status = test_sandbox.status_of(task.pid)
        assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
        assert status["NSpid"].split()[-1] == "1"
        task.close()
    assert not wrong


async def test_calls_of_a_template_are_not_those_of_its_tasks(mechanisms: dict[str, Mechanism]) -> None:
    """What the template may do in addition, above all fork, its tasks may not; attacks end them."""
    async with pool_with_template(mechanisms) as pool:
        task = await pool.spawn(Brand.PURE, Limits(), HOSTILE)
        for command in (
            f"clone_process {0x7C028000}",
            "become_dumpable",
            "forget_parent",
            "system_call setsid",
            "system_call umask 0",
            "system_call close_range 9 9 0",
        ):
            assert await attempt(task, command) == "refused:EPERM", command
        task.close()
        task = await pool.spawn(Brand.PURE, Limits(), HOSTILE)
        assert await attempt(task, "system_call setns 0 0") == ""
        end = await task.wait()
        assert (end.cause, end.signal) == (Cause.SANDBOX, signal.SIGSYS)
        task.close()


async def test_tasks_of_a_template_do_not_see_each_other(mechanisms: dict[str, Mechanism]) -> None:
    """What one writes to memory, files or variables, neither the template nor another task has."""
    async with pool_with_template(mechanisms) as pool:
        tasks = [await pool.spawn(Brand.PURE, Limits(), HOSTILE) for _ in range(2)]
        for number, task in enumerate(tasks):
            # Not even the file that the template left in its own folder.
            assert await attempt(task, f"mark_the_template by{number}") == "did:('template', [])"
        for task in tasks:
            task.close()
        again = await pool.spawn(Brand.PURE, Limits(), HOSTILE)
        assert await attempt(again, "mark_the_template after") == "did:('template', [])"
        environment = await attempt(again, "environment")
        assert "by0" not in environment
        assert "by1" not in environment
        again.close()


async def test_a_stopped_template_costs_only_starts(mechanisms: dict[str, Mechanism]) -> None:
    """A template that never answers is ended; other tasks run on, and new ones of others start."""
    async with pool_with_template(mechanisms) as pool:
        task = await pool.spawn(Brand.PURE, Limits(), HOSTILE)
        _, template = sorted(children_of(pool.pids[-1]) - {task.pid})
        os.kill(template, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_refused, pool)
            other = await pool.spawn(Brand.PURE, Limits())
            assert await attempt(other, "import_library") == "did:True"
            assert await attempt(task, "import_library") == "did:True"
            os.kill(template, signal.SIGKILL)
        task.close()
        other.close()


async def test_nothing_of_a_hostile_module_outlives_its_supervisor(
    mechanisms: dict[str, Mechanism],
) -> None:
    """A killed supervisor takes a template with it that refused to end so, and the processes it forked."""
    setting = TemplateSetting("clinging", ("clinging_template",))
    async with pool_with_templates(mechanisms, setting) as pool:
        await pool.prepare("clinging")
        supervisor = pool.pids[-1]
        children = children_of(supervisor)
        assert len(children) == 1 + 1 + FORKS_OF_CLINGING
        os.kill(supervisor, signal.SIGKILL)
        with trio.fail_after(WAIT_S):
            while any(_runs(pid) for pid in children):  # noqa: ASYNC110 - the kernel tells nobody
                await trio.sleep(0.01)


@asynccontextmanager
async def beside_a_loose_template(
    mechanisms: dict[str, Mechanism],
) -> AsyncIterator[ZygotePool]:
    """A pool with a template whose sessions are not locked down; a session of another one lives on."""
    settings = TemplateSetting("loose", ("loose_template",)), TemplateSetting(HOSTILE, ("colorsys",))
    async with pool_with_templates(mechanisms, *settings) as pool:
        await pool.prepare(HOSTILE)
        other = await pool.spawn(Brand.PURE, Limits(), HOSTILE)
        yield pool
        assert await attempt(other, "import_library") == "did:True"
        other.close()


def hard_limits(pid: int) -> dict[str, str]:
    """Return the hard limits of a process, as the kernel shows them."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return {line[:25].strip(): line.split()[-2] for line in lines}


async def test_a_module_does_not_lift_the_limits_of_sessions(mechanisms: dict[str, Mechanism]) -> None:
    """Memory, processor time and processes of a session are limited, though its template leaves that out."""
    bounds = Limits(memory_bytes=96 << 20, cpu_ms=2000, processes=16)
    async with beside_a_loose_template(mechanisms) as pool:
        await pool.prepare("loose")
        task = await pool.spawn(Brand.PURE, bounds, "loose")
        hard = hard_limits(task.pid)
        task.close()
    assert [hard[name] for name in ("Max data size", "Max cpu time", "Max processes")] == [
        *(str(bounds.memory_bytes), "2", str(bounds.processes))
    ]


@pytest.mark.parametrize("cheat", CHEATS_OF_LISTENERS)
async def test_a_false_listener_costs_its_session_alone(mechanisms: dict[str, Mechanism], cheat: str) -> None:
    """A session that can be forked hands over what is no listener of a filter, and is ended."""
    if not mechanisms[FORKS].available:
        pytest.skip(f"sessions cannot be forked here: {mechanisms[FORKS].detail}")
    number = FIRST_CHEAT + CHEATS_OF_LISTENERS.index(cheat)
    async with beside_a_loose_template(mechanisms) as pool:
        await pool.prepare("loose", forkable=True)
        task = await pool.spawn(Brand.PURE, Limits(processes=number), "loose", forkable=True)
        with trio.fail_after(WAIT_S):
            assert (await task.wait()).signal == signal.SIGKILL
        task.close()


def _runs(pid: int) -> bool:
    try:
        return not test_sandbox.status_of(pid)["State"].startswith(("Z", "X"))
    except (FileNotFoundError, ProcessLookupError):
        return False


async def _refused(pool: ZygotePool) -> None:
    with pytest.raises(dios.DiosError):
        await pool.spawn(Brand.PURE, Limits(), HOSTILE)


@pytest.mark.extended
@pytest.mark.skipif(
    os.geteuid() != 0 or AS_ORDINARY_USER in os.environ, reason="needs root to become another"
)
def test_the_same_holds_for_a_node_of_an_ordinary_user() -> None:
    """All of the above passes when an ordinary user runs the daemon."""
    passes_as_nobody(__file__, **{AS_ORDINARY_USER: "1"})


# -- the escape suite in the tasks of a template -------------------------------------------------------
SUITES = ("files", "kernel", "network", "processes")


@pytest.fixture(scope="module", params=SUITES)
def suite(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Cage, list[Attempt]]]:
    """A cage with the attempts of one file of the escape suite."""
    tests = importlib.import_module(f"tests.security.test_escape_{request.param}")
    rows = list(tests.ALL)
    folder = tmp_path_factory.mktemp(request.param)
    with open_cage(folder, f"escape_{request.param}", template="caged", templates="caged=colorsys") as cage:
        yield cage, rows


@pytest.mark.extended
@pytest.mark.skipif(AS_ORDINARY_USER in os.environ, reason="its witnesses need the user that made the folder")
def test_no_attempt_gets_out_of_a_template(suite: tuple[Cage, list[Attempt]]) -> None:
    """Each attempt of the escape suite is answered as in a task that starts from the pool."""
    cage, rows = suite
    for row in rows:
        cage.refuses(row)
