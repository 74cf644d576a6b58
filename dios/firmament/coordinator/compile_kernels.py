"""The process that compiles the scheduler's kernels in the background: ``main()``.

It prints a line with two numbers, those of the compiled and of all kernels, whenever the first one grows.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol, runtime_checkable

from dios.firmament.coordinator import kernel_compilation, warm_up

_REPORT_S: Final = 0.5
_LOWEST_PRIORITY: Final = 19
_UNUSED: Final = (
    "dios.fairness.dc_drf",
    "dios.fairness.drf",
    "dios.fairness.simulate",
    "dios.firmament.solvers.incremental",
    "dios.packer.share_bandwidth",
)
"""Modules that are loaded with the scheduler, and whose kernels no coordinator calls."""


@runtime_checkable
class _Kernel(Protocol):
    """The part of a Numba function that is used here."""

    overloads: Mapping[object, object]
    """The machine code by types of arguments."""
    targetoptions: Mapping[str, object]
    __module__: str


def compile_all(report: Callable[[int, int], None]) -> None:
    """Compile every kernel that a coordinator uses, and keep it in Numba's cache.

    Args:
        report: called from another thread with the numbers of compiled kernels and of all.
    """
    done = threading.Event()
    reporter = threading.Thread(target=_report, args=(report, done), daemon=True)
    reporter.start()
    try:
        warm_up.exercise_all()
    finally:
        done.set()
        reporter.join()
    total = len(_kernels())
    report(total, total)


def main() -> None:
    """Compile at the lowest priority, unless another process does it at this time or has done it."""
    os.nice(_LOWEST_PRIORITY)
    folder = kernel_compilation.cache_folder()
    if folder is None:
        sys.exit("no folder for compiled kernels can be written; set NUMBA_CACHE_DIR or HOME to one")
    with (folder / "dios-kernels.lock").open("w") as lock:
        # Several coordinators of one machine share the cache: the second one waits and finds it complete.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kernel_compilation.is_complete():
            compile_all(lambda compiled, total: print(compiled, total, flush=True))  # noqa: T201 - the coordinator reads it
            kernel_compilation.mark_complete(folder)


def _report(report: Callable[[int, int], None], done: threading.Event) -> None:
    last = -1
    while not done.wait(_REPORT_S):
        kernels = _kernels()
        compiled = sum(bool(kernel.overloads) for kernel in kernels)
        if compiled != last:
            last = compiled
            report(compiled, len(kernels))


def _kernels() -> list[_Kernel]:
    """Return the kernels of the loaded modules that are compiled by themselves."""
    found: dict[int, _Kernel] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("dios."):
            kernels = [value for value in vars(module).values() if isinstance(value, _Kernel)]
            found.update((id(kernel), kernel) for kernel in kernels if _is_counted(kernel))
    return list(found.values())


def _is_counted(kernel: _Kernel) -> bool:
    inlined = kernel.targetoptions.get("inline") == "always"
    return not inlined and not kernel.__module__.startswith(_UNUSED)
