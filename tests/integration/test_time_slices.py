"""The daemon's loop has a short time slice, and its tasks have the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import dios
from dios import limits
from dios.host.confinement import linux_calls
from tests.support.node.running_node import running_node, wait_until


def slice_of(pid: int) -> int:
    """Return the nanoseconds of the slice of a process; 0 if the kernel does not say."""
    try:
        return linux_calls.time_slice(pid)
    except OSError:
        return 0


@pytest.fixture
def usual() -> int:
    """The slice of a new process; a kernel that does not keep another one has nothing to test."""
    # This process itself may have a short one: a zygote gives that to whoever has started it.
    result, child_end = os.pipe()
    pid = os.fork()
    if not pid:
        linux_calls.set_time_slice(0, 0)  # the kernel's
        os.write(child_end, str(slice_of(0)).encode())
        linux_calls.set_time_slice(0, limits.DAEMON_SLICE_NS)
        os._exit(int(slice_of(0) != limits.DAEMON_SLICE_NS))
    time_slice = int(os.read(result, 32))
    os.close(result)
    os.close(child_end)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        pytest.skip("this kernel has no slices of processes")
    return time_slice


def test_only_the_daemon_has_short_slices(usual: int, tmp_path: Path) -> None:
    """The first thread of the daemon has the short slice; zygote and children have the usual one."""
    with running_node(tmp_path / "node", pool_size="1") as node:
        pid = int((node.data / "node.pid").read_text())
        wait_until(lambda: slice_of(pid) == limits.DAEMON_SLICE_NS, "the daemon has a short slice")
        with dios.connect(node.place, groups=()) as session:
            task = session.run(b"import time; time.sleep(1000)", wait=False)
            slices = {slice_of(pid) for pid in node.descendants()}
            task.kill()
        assert usual != limits.DAEMON_SLICE_NS
        assert slices == {usual}
