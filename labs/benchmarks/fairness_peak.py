"""The peak memory of a process that computes exact shares of a large cloud.

``python -m labs.benchmarks.fairness_peak G0`` generates the demands, divides, and prints GB.
"""

from __future__ import annotations

import resource
import sys

from dios.fairness import edrf
from labs.simulate.fairness.generate_demands import generate_demands


def main(profile: str, tenants: int, resources: int) -> None:
    """Print the peak after generating the demands, and at the end; the kernel counts KiB."""
    demands = generate_demands(profile, tenants, resources, seed=1)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)
    edrf(demands)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
