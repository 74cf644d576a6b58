"""The zygote of tasks, started first, so that it loads its modules while the daemon loads its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from dios.host.process.zygote_messages import ZygoteModules
from dios.host.process.zygote_process import StartedZygote, start_zygote
from dios.node.settings import Settings
from dios.wire.types import Brand

_TASK_ENTRY: Final = "dios.lib.executor.task_entry:main"

_WARM_UP_OF_ZYGOTES: Final = "dios.client.warm_up:rehearse_in_zygote"

BASE_OF_TEMPLATES: Final = ("dios.lib.sandbox.session", "dios.lib.sandbox.session_warm_up")
"""The modules of sessions, which each template loads before its own."""

WARM_UP_OF_TEMPLATES: Final = "dios.lib.sandbox.session_warm_up:rehearse_in_template"
"""The function that each template calls when it has loaded its modules."""


def modules_of_tasks(settings: Settings) -> ZygoteModules:
    """Return the entry point of tasks with its warm-up, and the modules that the settings name."""
    return ZygoteModules(_TASK_ENTRY, settings.preload, (), _WARM_UP_OF_ZYGOTES)


@contextlib.contextmanager
def started_first(settings: Settings) -> Iterator[StartedZygote | None]:
    """Start the zygote for pure tasks; it has ended after the block.

    Yield None if the machine cannot start it now; the daemon tries it again and reports the reason.
    """
    try:
        started = start_zygote(Brand.PURE, modules_of_tasks(settings))
    except OSError:
        yield None
        return
    try:
        yield started
    finally:
        started.close()
