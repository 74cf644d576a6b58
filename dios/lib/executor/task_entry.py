"""The entry point of a task: that of ``dios.client.task_main``, with the modules of a worker loaded.

The zygote imports this module, and tasks share its memory. A worker that imported its modules itself would
start tens of milliseconds later, and would have a copy of its own.
"""

import sys

from dios.client import task_main, warm_up
from dios.lib.executor import map_calls, worker

__all__ = ["main", "map_calls", "worker"]

_SESSIONS = "dios.lib.sandbox.session_warm_up"


def main() -> int:
    """Run as a task, as ``task_main.main`` does."""
    return task_main.main(_rehearse)


def _rehearse() -> None:
    warm_up.rehearse()
    # Templates have loaded it.
    sessions = sys.modules.get(_SESSIONS)
    if sessions is not None:
        sessions.rehearse()
