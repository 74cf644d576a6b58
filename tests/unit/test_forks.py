"""The fork handlers that a zygote spares its children, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from dios import forks

ran = []

def handler(module, when):
    def run():
        ran.append(f"{module} {when}")
    run.__module__ = module
    return run

forks.watch_threads()
for module in ("threading", "random"):
    os.register_at_fork(
        **{when: handler(module, when) for when in ("before", "after_in_parent", "after_in_child")}
    )
forks.give_up_in_child(handler("connections", "after_in_child"))
for alone in (True, False):
    del ran[:]
    forks.alone(alone)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    print("parent" if pid else "child", alone, sorted(ran), flush=True)
    if not pid:
        os._exit(0)
"""


def test_a_process_without_threads_and_connections_spares_its_children_their_handlers() -> None:
    """All others run at each fork on both sides, and these at every other fork."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    others = {
        side: [f"random {when}" for when in ("before", after)]
        for side, after in (("child", "after_in_child"), ("parent", "after_in_parent"))
    }
    threads = {side: [text.replace("random", "threading") for text in others[side]] for side in others}
    assert set(done.stdout.splitlines()) == {
        f"child True {sorted(others['child'])}",
        f"parent True {sorted(others['parent'])}",
        f"child False {sorted([*others['child'], *threads['child'], 'connections after_in_child'])}",
        f"parent False {sorted([*others['parent'], *threads['parent']])}",
    }
