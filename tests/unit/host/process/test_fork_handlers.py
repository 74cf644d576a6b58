"""The fork handlers that a zygote spares its children, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from dios.host.process import fork_handlers

ran = []

def handler(module, when):
    def run():
        ran.append(f"{module} {when}")
    run.__module__ = module
    return run

fork_handlers.watch()
for module in ("threading", "random"):
    os.register_at_fork(
        **{when: handler(module, when) for when in ("before", "after_in_parent", "after_in_child")}
    )
for alone in (True, False):
    del ran[:]
    fork_handlers.alone(alone)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    print("parent" if pid else "child", alone, sorted(ran), flush=True)
    if not pid:
        os._exit(0)
"""


def test_only_handlers_for_threads_are_spared_and_only_where_there_are_none() -> None:
    """All others run at each fork, on both sides; those of threads run where there may be some."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    both = ["random", "threading"]
    assert done.stdout.splitlines() == [
        f"{side} {alone} {[f'{module} {when}' for module in modules for when in sorted(('before', after))]}"
        for alone, modules in ((True, ["random"]), (False, both))
        for side, after in (("child", "after_in_child"), ("parent", "after_in_parent"))
    ]
