"""What tests of confined tasks ask for first: a machine that has what it takes, and an ordinary user."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from dios.errors import NotSupportedError
from dios.host.confinement import view
from dios.host.confinement.mechanisms import Mechanism, obstacle_to_pure, probe
from dios.host.containers.runtimes import ANY, GVISOR, find_gvisor, known_runtimes, lacking
from dios.host.process.task_process import TaskProcess
from dios.host.process.template_setting import TemplateSetting
from dios.host.process.zygote_pool import NO_LIMITS, ZygotePool, open_zygote
from dios.node.doctor.images import obstacle_to
from dios.wire.messages import Limits
from dios.wire.types import Brand

NOBODY = 65534
PROGRAMS = str(Path(__file__).resolve().parents[1] / "programs")
AS_ORDINARY_USER = "DIOS_TEST_AS_ORDINARY_USER"
ANSWER_S_MAX = 30
TEMPLATES_S_MAX = 120
ENVIRONMENT = [
    *("HOME", "JOBLIB_MULTIPROCESSING", "LANG", "MPLCONFIGDIR", "PATH"),
    *("POLARS_OOC_SPILL_DIR", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
]
"""The names of all variables of a pure task: of its private folder, and of nothing outside."""


def mechanisms_or_skip() -> dict[str, Mechanism]:
    """What the machine has; skips, with the reasons, where it cannot hold a pure task."""
    mechanisms = probe()
    missing = obstacle_to_pure(mechanisms)
    if missing:
        pytest.skip(f"pure tasks cannot be confined here: {missing}")
    return mechanisms


def library_open_to_all_or_skip() -> None:
    """Skip where Python is in a private folder of root, which tasks of a node of root reach by their view."""
    if os.geteuid() == 0 and not view.are_open_to_all(view.library_trees(())):
        pytest.skip(f"without a view, tasks cannot enter the folder of Python: {sys.prefix}")


@asynccontextmanager
async def pure_task(
    mechanisms: dict[str, Mechanism], bounds: Limits = NO_LIMITS, *, pooled: bool = False
) -> AsyncIterator[TaskProcess]:
    """One pure task that makes attempts; ``pooled`` means that it waited with the limits of the pool."""
    async with open_zygote(
        entry="hostile_entry:main", paths=(PROGRAMS,), pool_size=int(pooled), mechanisms=mechanisms
    ) as zygote:
        await zygote.wait_pool_full()
        task = await zygote.spawn(Brand.PURE, bounds)
        try:
            with trio.fail_after(ANSWER_S_MAX):
                yield task
        finally:
            task.close()


@asynccontextmanager
async def pool_with_templates(
    mechanisms: dict[str, Mechanism],
    *templates: TemplateSetting,
    entry: str = "hostile_entry:main",
    folder: Path | None = None,
    pool_size: int = 0,
) -> AsyncIterator[ZygotePool]:
    """A pool for tasks that make attempts, whose templates find the programs of the tests.

    They find the modules in ``folder``, too. By default no process waits for a task.
    """
    with trio.fail_after(TEMPLATES_S_MAX):
        async with open_zygote(
            entry=entry,
            paths=(PROGRAMS,) if folder is None else (PROGRAMS, str(folder)),
            pool_size=pool_size,
            mechanisms=mechanisms,
            templates=templates,
        ) as pool:
            yield pool


async def prepared_task(pool: ZygotePool, template: str, bounds: Limits = NO_LIMITS) -> TaskProcess:
    """A task in a process that was confined before there was a task; ``pool`` keeps one such process."""

    def waiting() -> int:
        return next(row.prepared for row in pool.templates.rows() if row.name == template)

    # The use of a template is what makes the node prepare others.
    (await pool.spawn(Brand.PURE, NO_LIMITS, template)).close()
    while waiting() != 1:  # noqa: ASYNC110 - the caller's deadline ends it
        await trio.sleep(0.01)
    before = children_of(pool.pids[-1])
    task = await pool.spawn(Brand.PURE, bounds, template)
    assert task.pid in before
    return task


async def attempt(task: TaskProcess, command: str) -> str:
    """Have a task make one attempt; an empty answer means that it died of it."""
    await task.socket.send(command.encode())
    try:
        return (await task.socket.recv(65536)).decode()
    except ConnectionResetError:
        raise AssertionError(f"it ended before it read {command}: {await task.wait()}") from None


def children_of(pid: int) -> set[int]:
    """The running children of a process."""
    children = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(words[1]) == pid and words[0] != "Z":
                children.add(int(entry.name))
    return children


def passes_as_nobody(file: str, **environment: str) -> None:
    """Run a file of tests as an ordinary user, which only root can; fails with what they print."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    try:
        done = subprocess.run(
            command,
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", **environment},
            cwd=Path(__file__).resolve().parents[3],
            capture_output=True,
            text=True,
            check=False,
        )
    except PermissionError as error:
        pytest.skip(f"user {NOBODY} cannot run the interpreter: errno {error.errno}")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


def runtimes_or_skip() -> list[str]:
    """The paths of the OCI runtimes that start containers here; skips, with the reasons, if none does."""
    mechanisms_or_skip()
    mechanisms = probe()
    missing = lacking(name for name, mechanism in mechanisms.items() if mechanism.available)
    if missing:
        pytest.skip(f"images need {', '.join(missing)}, which is not here")
    try:
        runtimes = known_runtimes(ANY)
    except NotSupportedError as error:
        pytest.skip(error.message)
    reasons = {path: obstacle_to(path) for path in runtimes}
    if all(reasons.values()):
        pytest.skip(f"no OCI runtime starts a container here: {'; '.join(reasons.values())}")
    return [path for path, reason in reasons.items() if not reason]


def gvisor_or_skip() -> str:
    """The path of gVisor's runtime, if it starts containers here; skips, with the reason, if not."""
    mechanisms = mechanisms_or_skip()
    available = (name for name, mechanism in mechanisms.items() if mechanism.available)
    missing = lacking(available, own_kernel=True)
    if missing:
        pytest.skip(f"gVisor needs {', '.join(missing)}, which is not here")
    try:
        path = find_gvisor(GVISOR)
    except NotSupportedError as error:
        pytest.skip(error.message)
    reason = obstacle_to(path)
    if reason:
        pytest.skip(f"gVisor starts no container here: {reason}")
    return path
