"""The entry point of a task: that of ``dios.client.task_main``, with the modules of a worker loaded.

The zygote imports this module, and tasks share its memory. A worker that imported its modules itself would
start tens of milliseconds later, and would have a copy of its own.
"""

from dios.client.task_main import main
from dios.lib.executor import map_calls, worker

__all__ = ["main", "map_calls", "worker"]
