"""The bounds of simulations; those of the product are in ``dios.limits``."""

from __future__ import annotations

from typing import Final

SIMULATED_HOURS_MAX: Final = 100_000  # eleven years
SIMULATED_MACHINES_MAX: Final = 1_000_000
SIMULATED_LEVELS_MAX: Final = 720
SIMULATED_FAULTS_KEPT: Final = 100
TRACE_TASKS_MAX: Final = 5_000_000
TRACE_USAGE_MAX: Final = 1_000  # times the largest machine, in one measurement of a trace
FAIR_TRACE_TASKS_MAX: Final = 40_000_000  # a month of the 2011 trace has 32 million
SPRAYER_TRACE_PACKETS_MAX: Final = 100_000_000  # packets of a capture whose flows are counted
SPRAYER_TRACE_FLOWS_MAX: Final = 8_000_000
