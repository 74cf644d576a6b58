"""Templates: tasks that start with modules loaded, from a process of their own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import trio

import dios
from dios.errors import NotSupportedError
from dios.host.confinement.mechanisms import Mechanism
from dios.host.process.template_setting import TemplateSetting
from dios.host.process.zygote_pool import ZygotePool
from dios.limits import MIB
from dios.wire.messages import Limits, TemplateRow
from dios.wire.types import Brand, Cause
from tests.support.node.command_user import Person
from tests.support.node.confinement import (
    attempt,
    children_of,
    mechanisms_or_skip,
    pool_with_templates,
    prepared_task,
)
from tests.support.node.running_node import RunningNode, running_node

WAIT_S = 60.0
SPECS = (
    TemplateSetting("plain", ("colorsys",)),
    TemplateSetting("missing", ("colorsys", "module_that_nobody_has")),
    TemplateSetting("threads", ("starts_thread",)),
    TemplateSetting("shares", ("shares_memory",)),
    TemplateSetting("large", ("takes_memory",), 256 * MIB),
    TemplateSetting("liar", ("lies_at_import",)),
    TemplateSetting("forks", ("forks_at_import",)),
    TemplateSetting("stays", ("forks_and_stays",)),
)


@pytest.fixture(scope="module")
def mechanisms() -> dict[str, Mechanism]:
    """What the machine has; without what pure tasks need there is nothing to test here."""
    return mechanisms_or_skip()


def pool_of(mechanisms: dict[str, Mechanism]) -> AbstractAsyncContextManager[ZygotePool]:
    """A pool with templates, some of which cannot be loaded."""
    return pool_with_templates(mechanisms, *SPECS)


def row_of(pool: ZygotePool, name: str) -> TemplateRow:
    """What the node says of a template."""
    return next(row for row in pool.templates.rows() if row.name == name)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds; the test's deadline ends it otherwise."""
    while not condition():  # noqa: ASYNC110 - the kernel has no event for what is waited for here
        await trio.sleep(0.01)


async def test_a_template_is_loaded_once_at_its_first_use(mechanisms: dict[str, Mechanism]) -> None:
    """Nothing runs before; then many ask at once, one process loads the modules, and all fork from it."""
    async with pool_of(mechanisms) as pool:
        assert row_of(pool, "plain").state == "idle"
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(pool.prepare, "plain")
        row = row_of(pool, "plain")
        assert (row.state, row.starts, row.tasks, row.why) == ("loaded", 1, 0, "")
        for _ in range(2):
            task = await pool.spawn(Brand.PURE, Limits(), "plain")
            assert await attempt(task, "import_library") == "did:True"
            task.kill()
            assert (await task.wait()).cause is Cause.KILLED
            task.close()
        row = row_of(pool, "plain")
        assert (row.starts, row.tasks) == (1, 2)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing", "cannot import module_that_nobody_has: ModuleNotFoundError: No module named"),
        ("threads", "its modules start threads ("),
        ("shares", "map memory that all its tasks would share (/"),
        ("large", "cannot import takes_memory: MemoryError"),
        ("forks", "cannot import forks_at_import: ValueError: started by"),
    ],
)
async def test_a_template_that_cannot_be_loaded_says_why(
    mechanisms: dict[str, Mechanism], name: str, why: str
) -> None:
    """The reason has the last line of the traceback. It is kept until the next attempt is due."""
    async with pool_of(mechanisms) as pool:
        for _ in range(2):
            with pytest.raises(NotSupportedError) as raised:
                await pool.prepare(name)
            assert why in str(raised.value)
        row = row_of(pool, name)
        assert (row.state, row.starts) == ("failed", 0)
        assert why in row.why
        # Other templates do not mind, and nobody is left of this one.
        await pool.prepare("plain")
        supervisor = pool.pids[-1]
        await until(lambda: len(children_of(supervisor)) == 2)


async def test_a_template_that_lies_about_itself_ends(mechanisms: dict[str, Mechanism]) -> None:
    """It says more than a template says, so it is ended; its name is free for another attempt."""
    async with pool_of(mechanisms) as pool:
        failed = False
        while not failed:
            try:
                await pool.prepare("liar")
                (await pool.spawn(Brand.PURE, Limits(), "liar")).close()
            except dios.DiosError:
                failed = True
        assert row_of(pool, "plain").state == "idle"
        await pool.prepare("plain")


async def test_a_process_that_nobody_ordered_ends_with_the_next_task(
    mechanisms: dict[str, Mechanism],
) -> None:
    """A template may fork, and the supervisor ends what it did not order."""
    async with pool_of(mechanisms) as pool:
        await pool.prepare("stays")
        assert len(children_of(pool.pids[-1])) == 3
        task = await pool.spawn(Brand.PURE, Limits(), "stays")
        assert await attempt(task, "import_library") == "did:True"
        task.close()
        await until(lambda: len(children_of(pool.pids[-1])) == 2)
        assert row_of(pool, "stays").state == "loaded"


async def test_a_template_that_ends_leaves_its_tasks_alone(mechanisms: dict[str, Mechanism]) -> None:
    """Tasks go on without their template, and the next one loads it again."""
    async with pool_of(mechanisms) as pool:
        await pool.prepare("plain")
        task = await pool.spawn(Brand.PURE, Limits(), "plain")
        assert await attempt(task, "identity")
        first, template, _ = sorted(children_of(pool.pids[-1]))
        assert task.pid not in {first, template}
        os.kill(template, signal.SIGKILL)
        await until(lambda: row_of(pool, "plain").state == "idle")
        assert await attempt(task, "import_library") == "did:True"
        again = await pool.spawn(Brand.PURE, Limits(), "plain")
        assert await attempt(again, "import_library") == "did:True"
        assert row_of(pool, "plain").starts == 2
        task.close()
        again.close()


async def test_everything_ends_with_the_pool(mechanisms: dict[str, Mechanism]) -> None:
    """Templates, their tasks and their supervisor are gone after the node has stopped."""
    async with pool_of(mechanisms) as pool:
        await pool.prepare("plain")
        task = await pool.spawn(Brand.PURE, Limits(), "plain")
        supervisor = pool.pids[-1]
        pids = {supervisor, *children_of(supervisor)}
        assert len(pids) == 4
    task.close()
    with trio.fail_after(WAIT_S):
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


async def test_a_prepared_task_has_the_limits_that_its_caller_asks_for(
    mechanisms: dict[str, Mechanism],
) -> None:
    """The process waited with the default limits, and gets lower ones before it gets the task."""
    async with pool_with_templates(mechanisms, *SPECS, pool_size=1) as pool:
        await pool.prepare("plain")
        task = await prepared_task(pool, "plain", Limits(memory_bytes=64 * MIB))
        assert await attempt(task, f"take_memory {512 * MIB}") == "did:MemoryError"
        assert await attempt(task, "import_library") == "did:True"
        task.close()


async def test_prepared_tasks_end_with_their_template(mechanisms: dict[str, Mechanism]) -> None:
    """A template that is loaded again has none of the old processes."""
    async with pool_with_templates(mechanisms, *SPECS, pool_size=1) as pool:
        await pool.prepare("plain")
        (await prepared_task(pool, "plain")).close()
        await until(lambda: row_of(pool, "plain").prepared == 1)
        before = children_of(pool.pids[-1])
        template = sorted(before)[1]
        os.kill(template, signal.SIGKILL)
        await until(lambda: row_of(pool, "plain").state == "idle")
        await until(lambda: row_of(pool, "plain").prepared == 0)
        await pool.prepare("plain")
        task = await pool.spawn(Brand.PURE, Limits(), "plain")
        assert task.pid not in before
        assert await attempt(task, "import_library") == "did:True"
        task.close()


async def test_limits_of_a_task_are_its_own(mechanisms: dict[str, Mechanism]) -> None:
    """A task may have more or less memory than its template."""
    async with pool_of(mechanisms) as pool:
        await pool.prepare("plain")
        for size, expected in ((64 * MIB, "did:MemoryError"), (2048 * MIB, f"did:{512 * MIB}")):
            task = await pool.spawn(Brand.PURE, Limits(memory_bytes=size), "plain")
            assert await attempt(task, f"take_memory {512 * MIB}") == expected
            task.close()


# -- through a node -----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, mechanisms: dict[str, Mechanism]) -> Iterator[RunningNode]:
    """One node for all tests below."""
    del mechanisms
    data = tmp_path_factory.mktemp("templates") / "data"
    with running_node(data, templates="data=colorsys,sched broken=module_that_nobody_has") as running:
        yield running


LOADED = "import sys; sorted({'colorsys', 'sched', 'wave'} & set(sys.modules))"


def test_a_sandbox_starts_from_a_template(node: RunningNode) -> None:
    """Its modules are there, also after a reset, and the variables of the session are not."""
    with dios.Sandbox(node=node.place, template="data", timeout=WAIT_S) as box:
        assert box.run(LOADED).value_repr == "['colorsys', 'sched']"
        assert box.run("import colorsys; colorsys.mine = 1; open('mine', 'w').close()").ok
        box.reset()
        result = box.run("import colorsys, os; hasattr(colorsys, 'mine'), os.listdir('.')")
        assert result.value_repr == "(False, [])"
        assert box.run(LOADED).value_repr == "['colorsys', 'sched']"
    with dios.Sandbox(node=node.place, timeout=WAIT_S) as box:
        assert box.run(LOADED).value_repr == "[]"


def test_tasks_and_executors_start_from_a_template(node: RunningNode) -> None:
    """A program and the workers of an executor find the modules loaded."""
    source = b"import sys; sys.exit(3 if 'colorsys' in sys.modules else 4)"
    with dios.connect(node.place) as client, client.run(source, template="data") as task:
        assert task.wait(WAIT_S).exit_code == 3
    with dios.Executor(1, node=node.place, template="data") as executor:
        assert executor.submit(_is_loaded, "colorsys").result(WAIT_S)
        assert not executor.submit(_is_loaded, "wave").result(WAIT_S)


def _is_loaded(name: str) -> bool:
    import sys

    return name in sys.modules


def test_a_start_without_its_template_is_refused(node: RunningNode) -> None:
    """The error has the reason: there is none of that name, it cannot be loaded, or the task is not pure."""
    with dios.connect(node.place) as client:
        with pytest.raises(dios.DiosError, match="this node has no template 'other'"):
            client.run(b"", template="other")
        with pytest.raises(dios.DiosError, match="No module named 'module_that_nobody_has'"):
            client.run(b"", template="broken")
        with pytest.raises(dios.DiosError, match="only a pure task"):
            client.run(b"", template="data", brand=dios.Brand.LIMBO)
    with pytest.raises(dios.DiosError, match="this node has no template 'other'"):
        dios.Sandbox(node=node.place, template="other")


def test_the_command_lists_loads_and_describes(node: RunningNode, tmp_path: Path) -> None:
    """``dios template`` shows the settings, loads what they name, and reports what cannot be loaded."""
    person = Person(tmp_path)
    place = f"--node={node.place}"
    assert "colorsys" in person.types("dios template ls", place).stdout
    (row,) = json.loads(person.types("dios template warm data --json", place).stdout)
    assert (row["name"], row["state"], row["modules"]) == ("data", "loaded", ["colorsys", "sched"])
    assert "tasks started" in person.types("dios template stat data", place).stdout
    assert "no template 'other'" in person.types("dios template warm other", place, status=1).stderr
