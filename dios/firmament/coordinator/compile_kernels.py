"""A process that loads all kernels that a coordinator uses, and compiles those that are missing.

It prints lines of two numbers, those of the compiled and of all kernels. The last line names the kernels that
it had to compile.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol, runtime_checkable

from dios.firmament.compile_kernels import end_with_input
from dios.firmament.coordinator import warm_up

_REPORT_S: Final = 0.5
_UNUSED: Final = (
    "dios.firmament.solvers.potentials",
    "dios.fairness.drf",
    "dios.packer.share_bandwidth",
)
"""Modules that are loaded with the scheduler, and whose kernels no coordinator calls."""


class _Statistics(Protocol):
    """Numba's counts for one function."""

    cache_misses: Mapping[object, int]


@runtime_checkable
class _Kernel(Protocol):
    """The part of a Numba function that is used here."""

    overloads: Mapping[object, object]
    """The machine code by types of arguments."""
    targetoptions: Mapping[str, object]
    stats: _Statistics
    __module__: str
    __name__: str


def main() -> None:
    """Load or compile, and print the progress; end when the standard input closes."""
    end_with_input()

    def report(compiled: int, total: int) -> None:
        sys.stdout.write(f"{compiled} {total}\n")
        sys.stdout.flush()

    compiled = load_all(report)
    sys.stdout.write(f"compiled {' '.join(compiled)}\n")
    sys.stdout.flush()
    # The thread that reads the input would be waited for.
    os._exit(0)


def load_all(report: Callable[[int, int], None]) -> list[str]:
    """Load every kernel that a coordinator uses, or compile and keep it; return the names of the latter.

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
    kernels = _kernels()
    report(len(kernels), len(kernels))
    return [f"{kernel.__module__}.{kernel.__name__}" for kernel in kernels if kernel.stats.cache_misses]


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
    counted: dict[int, _Kernel] = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("dios."):
            kernels = [value for value in vars(module).values() if isinstance(value, _Kernel)]
            counted.update((id(kernel), kernel) for kernel in kernels if _is_counted(kernel))
    return list(counted.values())


def _is_counted(kernel: _Kernel) -> bool:
    inlined = kernel.targetoptions.get("inline") == "always"
    return not inlined and not kernel.__module__.startswith(_UNUSED)
