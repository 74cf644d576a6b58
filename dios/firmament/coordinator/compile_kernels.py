"""The compilation of all kernels that a coordinator uses, with a count of those that are done."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol, runtime_checkable

from dios.firmament.coordinator import warm_up

_REPORT_S: Final = 0.5
_UNUSED: Final = (
    "dios.firmament.solvers.potentials",
    "dios.firmament.solvers.relaxation",
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
