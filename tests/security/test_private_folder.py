"""Hostile programs with a private folder: nothing runs from it, nobody meets there, and it has a bound."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import dios
from dios import limits
from dios.host.confinement import private_folder
from dios.host.confinement.mechanisms import Availability, Mechanism
from dios.wire.messages import Limits
from tests.support.node.confinement import attempt, mechanisms_or_skip, pure_task
from tests.support.security.escape import Attempt, Cage, name_of, open_cage, row

RUNNING = (
    row("run_written_program", "EPERM", "a written program does not run"),
    row("load_written_library", "OSError", "a written library is not loaded"),
    row("map_written_code", "EPERM", "a written file is not mapped as code"),
    row("unprotect_written_code", "EACCES", "nor made code after it was mapped"),
    row("set_special_bits", "EPERM", "no file gets the set-user bit"),
)
MEETING = (
    row("make_pipe_file", "EPERM", "no named pipe is made"),
    row("make_device", "EPERM", "no device is made"),
    row("make_socket", "EPERM", "no socket is made"),
    row("hard_link", "EPERM", "no hard link is made"),
    row("symlink", "EPERM", "no symbolic link is made"),
    row("nameless_file", "EPERM", "no file without a name is made"),
    row("rename_into_library", "EXDEV EROFS EACCES", "no file is moved into the library"),
    row("rename_library_here", "EXDEV EROFS EACCES", "nor the library into the folder"),
    row("write_beside", "EROFS", "nothing is written next to the folder"),
    row("replace_the_link", "EROFS EACCES", "the link to the folder stays"),
    row("climb_out", "ENOENT", "no number of .. leads out of it"),
    row("watch", "EPERM", "it is not watched"),
    row("attribute", "EPERM", "no attributes are set, which no limit would count"),
)
GREEDY = (
    row("fill", "ENOSPC", "a large file ends where the folder does"),
    row("fill_with_many", "ENOSPC", "so do many files"),
    row("fill_with_empty_files", "ENOSPC", "empty files have a bound, with the longest names"),
    row("fill_with_directories", "ENOSPC", "and so have directories"),
    row("sparse_file", "EFBIG", "no file is larger than the folder, even if it is empty"),
    row("removed_files_that_are_open", "ENOSPC", "removed files count while they are open"),
)
SMALL = limits.TASK_MEMORY_BYTES_MIN
KEEPER = b"""
import os, signal, sys
open(os.environ["TMPDIR"] + "/kept", "w").write("mine")
open(os.environ["TMPDIR"] + "/kept too", "w").write("mine")
print("written", flush=True)
signal.pause()
"""
LISTER = b"""
import os
print(os.listdir(os.environ["TMPDIR"]), sorted(os.listdir("/private")), os.listdir("/private/next"))
"""


@pytest.fixture(scope="module")
def cage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cage]:
    """One node, neighbour and set of witnesses for all attempts."""
    with open_cage(
        tmp_path_factory.mktemp("folder"), "escape_folder", task_memory_bytes=str(SMALL)
    ) as opened:
        yield opened


@pytest.mark.parametrize("attempt", [*RUNNING, *MEETING], ids=name_of)
def test_escape(cage: Cage, attempt: Attempt) -> None:
    """Each attempt is answered as its row says, nothing outside is touched, and the neighbour is served."""
    cage.refuses(attempt)


@pytest.mark.parametrize("attempt", GREEDY, ids=name_of)
def test_it_has_a_bound(cage: Cage, attempt: Attempt) -> None:
    """A task that fills its folder is told so, and goes on."""
    said, status = cage.run(attempt.name)
    assert status.ok, (attempt.claim, said, status)
    assert said == list(attempt.answers), attempt.claim
    cage.neighbour.is_answered()


def test_a_task_with_a_lower_limit_than_its_folder_is_ended(tmp_path: Path) -> None:
    """A child of the pool has the folder of the default limit; what it keeps there counts as its memory."""
    with open_cage(tmp_path, "escape_folder", task_memory_bytes=str(16 * SMALL)) as cage:
        said, status = cage.run("fill", limits=dios.Limits(memory_bytes=SMALL))
        assert not said
        assert status.cause is dios.Cause.MEMORY, status
        cage.neighbour.is_answered()


def test_no_other_task_and_no_user_sees_it(cage: Cage) -> None:
    """A task finds nothing in its folder that a running one wrote into its own; nor does the machine."""
    with cage.node.run(KEEPER) as keeper, keeper.console() as console:
        assert next(iter(console)) == b"written\n"
        with cage.node.run(LISTER) as lister:
            assert lister.wait().ok
            with lister.console() as chunks:
                # The place of a fork's folder is empty in others.
                assert b"".join(chunks) == b"[] ['next', 'task'] []\n"
        assert not Path("/tmp/kept").exists(), "the machine's own"
        keeper.kill()


def test_the_folder_grows_with_the_limit_of_memory() -> None:
    """Half of the memory, and a number of files that no limit of memory makes endless."""
    assert private_folder.size_for(SMALL) == SMALL // 2
    least, most = private_folder.files_for(SMALL), private_folder.files_for(limits.TASK_MEMORY_BYTES_MAX)
    assert 1024 <= least <= most <= 65_536


@pytest.mark.parametrize("pooled", [False, True], ids=["fresh", "from the pool"])
async def test_nothing_is_left_of_it(pooled: bool) -> None:  # noqa: FBT001 - a table's column
    """Where the daemon counts the folder, its descriptor is closed with the task."""
    without = Mechanism(Availability.MISSING, "the test has none", needed_for_pure=False)
    mechanisms = mechanisms_or_skip() | {"cgroup_memory": without, "cgroup_pids": without}
    before = _descriptors()
    async with pure_task(mechanisms, Limits(memory_bytes=SMALL), pooled=pooled) as task:
        assert os.fstatvfs(task.folder).f_blocks
        assert await attempt(task, "make_temporary") == "did:None"
        task.kill()
        await task.wait()
        assert task.folder < 0
    with trio.fail_after(10):
        while _descriptors() > before:  # noqa: ASYNC110 - a thread closes it
            await trio.sleep(0.01)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - called in an event loop
