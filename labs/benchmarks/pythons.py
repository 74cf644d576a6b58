"""What a version of Python changes: memory of idle tasks, starts, and sessions, on the running interpreter.

``make test-pythons MEASURE=3`` runs this in turns on several versions and compares them
(``tests.lab.pythons``). Figures are written as JSON to the file of the command line.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path
from typing import Final

import dios
from dios.limits import KIB
from labs.benchmarks.measure import descendants, median, pss_kib, tree_pss_mb
from labs.benchmarks.nodes import running_node
from labs.benchmarks.sandbox import MODULES, lives, private_bytes
from labs.benchmarks.tasks import first_lines

TASKS: Final = 12
_SETTLE_S: Final = 2.0
_MB: Final = 1e6
_PROGRAM: Final = b"import time\nprint('here')\ntime.sleep(100_000)\n"


def measure() -> dict[str, float]:
    """Return the figures of this interpreter by name and unit."""
    figures = _idle()
    pool, _, _ = first_lines("4", at_work=True)
    cold, _, _ = first_lines("0", at_work=True)
    figures |= {"start of a pure task from the pool, ms": pool, "start of a pure task, cold, ms": cold}
    with running_node(templates=f"data={MODULES}", pool_size="4", tasks_max="64") as node:
        with dios.connect(str(node.data)) as client:
            client.run(b"", template="data").wait()
        figures["sessions of a template opened, used and closed, /s"] = lives(str(node.data))
    return figures


def _idle() -> dict[str, float]:
    """Return the memory of a node that does nothing, and of tasks that sleep."""
    with running_node(pool_size="0", tasks_max="64") as bench, dios.connect(bench.data, groups=[]) as node:
        time.sleep(_SETTLE_S)
        alone, before = tree_pss_mb(bench.pid), set(descendants(bench.pid))
        program = node.create_program(_PROGRAM)
        tasks = [node.run(program, wait=False) for _ in range(TASKS)]
        for task in tasks:
            task.console().receive()
        time.sleep(_SETTLE_S)
        pids = sorted(set(descendants(bench.pid)) - before)
        return {
            "start of a node, s": bench.start_seconds,
            "memory of an idle node without a pool (PSS), MB": alone,
            "memory of an idle task (PSS), MB": median([pss_kib(pid) * KIB / _MB for pid in pids]),
            "pages of an idle task that it alone has, MB": median([private_bytes(pid) / _MB for pid in pids]),
        }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps({"version": platform.python_version(), "figures": measure()}))
