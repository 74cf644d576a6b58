"""Processes below the first one of a task: they stop and go on together."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from dios.host.process.descendants import continue_descendants, stop_descendants
from tests.support.node.confinement import children_of
from tests.support.node.running_node import wait_until

CODE = """
import subprocess, sys
below = [sys.executable, '-c', 'import sys; print(flush=True); sys.stdin.read()']
if sys.argv[1] != '0':
    below = [sys.executable, '-c', sys.argv[2], str(int(sys.argv[1]) - 1), sys.argv[2]]
children = [subprocess.Popen(below, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
for child in children:
    child.stdout.readline()
print(flush=True)
sys.stdin.read()
"""


def below(pid: int) -> set[int]:
    """All processes below one."""
    children = children_of(pid)
    return children.union(*map(below, children))


def states(pids: set[int]) -> set[str]:
    """The states of processes, as the kernel names them."""
    return {
        Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] for pid in pids
    }


def test_a_tree_of_processes_stops_and_continues() -> None:
    """Each generation, and not the first process itself."""
    with subprocess.Popen(
        [sys.executable, "-c", CODE, "1", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tree = below(process.pid)
        assert len(tree) == 6
        os.kill(process.pid, signal.SIGSTOP)
        own = os.pidfd_open(process.pid)
        with subprocess.Popen([sys.executable, "-c", ""]) as ended:
            stale = os.pidfd_open(ended.pid)
        # Not if the descriptor is of another process, which has ended.
        stop_descendants(process.pid, stale)
        assert "T" not in states(tree)
        stop_descendants(process.pid, own)
        wait_until(lambda: states(tree) == {"T"}, "all are stopped")
        continue_descendants(process.pid, stale)
        assert states(tree) == {"T"}
        continue_descendants(process.pid, own)
        wait_until(lambda: "T" not in states(tree), "all continue")
        os.kill(process.pid, signal.SIGCONT)
        os.close(own)
        os.close(stale)


def test_a_process_without_children_is_no_error() -> None:
    """Nor one that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        ended = os.pidfd_open(process.pid)
    stop_descendants(process.pid, ended)
    own = os.pidfd_open(os.getpid())
    continue_descendants(os.getpid(), own)
    os.close(ended)
    os.close(own)
