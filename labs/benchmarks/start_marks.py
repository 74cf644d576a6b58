"""The times of the steps of one start in the zygote and its child: a module for the setting ``preload``.

The steps of the node are in ``labs.benchmarks.traced_node``.
"""

from __future__ import annotations

import resource
import sys
import time
from functools import partial
from typing import Final

from dios.client import task_main
from dios.host.confinement import landlock, linux_calls, lockdown, private_folder, privileges
from labs.benchmarks.step_marks import after, before

MARKS: Final[list[tuple[str, int, int]]] = []
"""Names of steps, when they ended, and the page faults of the process until then."""

_STEPS: Final = (
    (private_folder, "make", "private folder, made"),
    (linux_calls, "clone3", "fork"),
    (private_folder, "enter", "private folder, attached"),
    (lockdown, "_limit", "limits"),
    (landlock, "restrict_self", "Landlock"),
    (lockdown, "place_descriptors", "descriptors"),
    (privileges, "drop_everything", "capabilities"),
    (lockdown.LockdownState, "install_filter", "seccomp"),
    (task_main, "receive_welcome", "welcome"),
)


def page_faults() -> int:
    """Return the number of page faults of this process that needed no disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _mark(name: str) -> None:
    MARKS.append((name, time.perf_counter_ns(), page_faults()))


def _begin(name: str) -> None:
    """Mark the first step of a start."""
    MARKS.clear()
    _mark(name)


def install(zygote: type) -> None:
    """Wrap the steps of a zygote and of its children."""
    for place, function, name in _STEPS:
        setattr(place, function, after(partial(_mark, name), getattr(place, function)))
    for owner, function, mark in (
        (zygote, "_make", partial(_begin, "order")),
        (task_main, "_welcome_is_near", partial(_mark, "interpreter")),
    ):
        setattr(owner, function, before(mark, getattr(owner, function)))


if (_zygote_main := sys.modules.get("dios.host.process.zygote_main")) is not None:
    install(_zygote_main.ZygoteProcess)
