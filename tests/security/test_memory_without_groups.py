"""Attacks on the memory limit where no control group counts memory, as on an ordinary user's machine."""

from __future__ import annotations

import os

import pytest
import trio

from dios import limits
from dios.host.confinement import limits_of_task
from dios.host.confinement.mechanisms import Availability, Mechanism
from dios.wire.messages import Limits
from dios.wire.types import Cause
from tests.support.node.confinement import (
    AS_ORDINARY_USER,
    ENVIRONMENT,
    attempt,
    mechanisms_or_skip,
    passes_as_nobody,
    pure_task,
)

SMALL = limits.TASK_MEMORY_BYTES_MIN
BOUNDS = Limits(memory_bytes=SMALL, processes=32)
NO_GROUP = Mechanism(Availability.MISSING, "the test has none", needed_for_pure=False)


@pytest.fixture(scope="module")
def mechanisms() -> dict[str, Mechanism]:
    """What the machine has, without control groups."""
    return mechanisms_or_skip() | {"cgroup_memory": NO_GROUP, "cgroup_pids": NO_GROUP}


@pytest.mark.parametrize(
    "name",
    [
        "keep_pages_that_are_read_only",
        "keep_pages_without_the_first_thread",
        "fill_page_tables",
        "fill_folder_and_memory",
    ],
)
async def test_memory_that_no_limit_of_a_process_counts_ends_the_task(
    mechanisms: dict[str, Mechanism], name: str
) -> None:
    """A task that keeps four times its limit out of the kernel's sight is ended because of its memory."""
    async with pure_task(mechanisms, BOUNDS) as task:
        assert await attempt(task, f"{name} {4 * SMALL}") == ""
        end = await task.wait()
    assert end.cause is Cause.MEMORY, end
    assert str(SMALL) in end.detail


async def test_a_stack_that_grows_by_itself_is_refused(mechanisms: dict[str, Mechanism]) -> None:
    """No mapping grows downwards, which no limit of data would count."""
    async with pure_task(mechanisms, BOUNDS) as task:
        assert await attempt(task, "map_growing_stack") == "refused:EPERM"


@pytest.mark.parametrize("pooled", [False, True], ids=["fresh", "from the pool"])
async def test_full_sockets_keep_no_more_than_the_limit_again(
    mechanisms: dict[str, Mechanism],
    pooled: bool,  # noqa: FBT001 - a table's column
) -> None:
    """The kernel's memory behind all sockets that a task can have is bounded like the task's own."""
    async with pure_task(mechanisms, BOUNDS, pooled=pooled) as task:
        said = await attempt(task, "fill_sockets")
    assert said.startswith("did:"), said
    descriptors, buffered = map(int, said.removeprefix("did:").split())
    assert descriptors <= limits_of_task.descriptors_for(SMALL)
    assert buffered <= SMALL


async def test_all_threads_share_one_table_of_descriptors(mechanisms: dict[str, Mechanism]) -> None:
    """A thread with a table of its own, for which the limit would count anew, is refused."""
    async with pure_task(mechanisms, BOUNDS) as task:
        assert await attempt(task, "thread_with_own_descriptors") == "refused:EPERM"


async def test_what_a_small_task_may_use_does_not_end_it(mechanisms: dict[str, Mechanism]) -> None:
    """Half of the limit in use, next to an address space of a large blob, is no reason to end a task."""
    async with pure_task(mechanisms, BOUNDS) as task:
        assert await attempt(task, f"use_and_hold {SMALL // 4}") == "did:held"
        for _ in range(4):
            assert await attempt(task, "environment") == f"did:{ENVIRONMENT}"
            await trio.sleep(limits.TASK_MEMORY_WATCH_MS / 1000)


@pytest.mark.long
@pytest.mark.skipif(
    os.geteuid() != 0 or AS_ORDINARY_USER in os.environ, reason="needs root to become another"
)
def test_the_same_holds_for_a_daemon_without_privileges() -> None:
    """All of this file passes when an ordinary user runs the daemon."""
    passes_as_nobody(__file__, **{AS_ORDINARY_USER: "1"})
