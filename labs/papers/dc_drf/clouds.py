"""Synthetic clouds, their exact shares, and the distance of other allocations from these."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from dios.fairness.allocation import Allocation, Floats
from dios.fairness.dc_drf.allocator import DcDrf
from dios.fairness.edrf import edrf
from labs.papers.dc_drf.algorithm_1 import RoundTimes, run
from labs.papers.figures import ProgressCallback
from labs.simulate.fairness.generate_demands import Csr, generate_demands

FAMILY: Final = "dc-drf"
PAPER: Final = "the paper"
PROFILES: Final = ("U0", "U1", "U2", "G0", "G1", "G2")
MAIN: Final = "G0"


class CloudSize(NamedTuple):
    """The size of a cloud, and the time for baselines."""

    tenants: int
    resources: int
    timeout_s: float
    """CPU seconds for Algorithm 1 in the main profile."""
    timeout_short_s: float
    """CPU seconds for Algorithm 1 in the other profiles; the rest is extrapolated."""
    intervals: int
    """Control intervals; after half of them the search for epsilon counts as settled."""
    scaling: tuple[int, ...]
    """Numbers of resources at which the growth of Algorithm 1's time is measured."""
    quick: bool = False
    options: str = ""
    """The command's option for this size."""


QUICK: Final = CloudSize(2_000, 200, 5.0, 0.2, 6, (50, 100), quick=True)
MEDIUM: Final = CloudSize(100_000, 10_000, 240.0, 60.0, 24, (1_000, 2_000, 4_000, 8_000))
LARGE: Final = CloudSize(
    1_000_000, 100_000, 60.0, 20.0, 16, (2_000, 5_000, 10_000, 20_000), options=" --large"
)


class Distance(NamedTuple):
    """An allocation compared with the exact one."""

    utilisation: float
    """The total allocation over all resources, as a fraction of the exact one."""
    deviation: float
    """The standard deviation over tenants of their allocation as a fraction of their exact one."""
    worst: float
    """The largest shortfall of a tenant, as a fraction of its exact allocation."""
    thousandth: float
    """The shortfall that one in a thousand tenants exceeds."""


@dataclass(frozen=True, eq=False)
class Cloud:
    """The demands of one profile, and their exact shares."""

    demands: Csr
    exact: Allocation
    exact_s: float
    """CPU seconds of the exact solution."""

    def distance(self, z: Floats) -> Distance:
        """Return the distance of levels ``z`` (n,) from the exact ones."""
        parts = z / self.exact.share
        offsets, _, values, _ = self.demands
        sums = np.add.reduceat(values, offsets[:-1], dtype=np.float64)
        peaks = np.maximum.reduceat(values, offsets[:-1]).astype(np.float64)
        weights = sums / peaks
        short = np.maximum(1.0 - parts, 0.0)
        return Distance(
            utilisation=float((weights * z).sum() / (weights * self.exact.share).sum()),
            deviation=float(parts.std()),
            worst=float(short.max()),
            thousandth=float(np.quantile(short, 0.999)),
        )


@dataclass
class Clouds:
    """The clouds that the figures share; only that of the main profile is kept in memory."""

    seed: int
    progress: ProgressCallback
    size: CloudSize
    _main: Cloud | None = None
    _timed_rounds: RoundTimes | None = None

    def cloud(self, profile: str) -> Cloud:
        """Return the cloud of a profile."""
        if profile == MAIN and self._main:
            return self._main
        cloud = self.generate(profile, self.size.tenants, self.size.resources)
        if profile == MAIN:
            self._main = cloud
        return cloud

    def generate(self, profile: str, tenants: int, resources: int) -> Cloud:
        """Return a new cloud of a profile with any size."""
        self.progress(f"{profile}: demands of {tenants:,} tenants for {resources:,} resources")
        demands = generate_demands(profile, tenants, resources, seed=self.seed)
        edrf(np.array([[1.0]]))
        edrf((np.array([0, 1]), np.zeros(1, np.int32), np.ones(1, np.float32), 1))
        began = time.process_time()
        exact = edrf(demands)
        return Cloud(demands, exact, time.process_time() - began)

    def timed_rounds(self) -> RoundTimes:
        """Return the timed rounds of Algorithm 1 on the main profile."""
        if self._timed_rounds is None:
            main = self.cloud(MAIN)
            self.progress(f"Algorithm 1, {main.exact.rounds:,} rounds, at most {self.size.timeout_s:.0f} s")
            self._timed_rounds = run(main.demands, self.size.timeout_s)
        return self._timed_rounds

    def setting(self) -> tuple[tuple[str, str], ...]:
        """Return the parameters of the experiment and the machine."""
        return (
            ("size", f"{self.size.tenants:,} tenants, {self.size.resources:,} resources"),
            ("seed", str(self.seed)),
            ("machine", f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the end"),
        )


def clock_for(threads: int | None) -> Callable[[], float]:
    """Return the clock: CPU time for one thread, which other load does not affect; real time for several."""
    return time.process_time if threads == 1 else time.perf_counter


def exact_s(demands: Csr, threads: int | None, changed: Callable[[], Csr | None] = lambda: None) -> float:
    """Return the seconds that an interval of DC-DRF takes with epsilon 0: the least of three.

    ``changed`` returns the demands for each of them; None keeps the last ones.
    """
    sharing, clock = DcDrf(demands, deadline_s=3600.0, threads=threads), clock_for(threads)
    spans = []
    for given in (changed(), changed(), changed()):
        began = clock()
        sharing.interval(given)
        spans.append(clock() - began)
    return min(spans)
