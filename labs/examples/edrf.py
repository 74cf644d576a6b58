"""EDRF: exact shares in a cloud whose many tenants each use a few of very many resources.

A tenant stops as soon as one of its resources is used up, and leaves the others to tenants that can use them.
This cascades; it is computed exactly, in one pass over the order in which tenants stop.
"""

import time

import numpy as np

from dios.fairness import edrf
from labs.simulate.fairness.generate_demands import generate_demands

NAMES = ("disk 1", "disk 2", "the link")


def main() -> None:
    """Divide for three tenants, then for 20,000."""
    demands = np.array([(0.80, 0.00, 0.40), (0.80, 0.20, 0.00), (0.00, 0.20, 0.20)])
    allocation = edrf(demands)
    for row, (amounts, stop) in enumerate(zip(allocation.amounts, allocation.bottleneck, strict=True)):
        shown = ", ".join(f"{part:.3g} of {name}" for part, name in zip(amounts, NAMES, strict=True) if part)
        print(f"tenant {row} gets {shown}; stopped by {NAMES[stop]}")

    cloud = generate_demands("G0", 20_000, 2_000, seed=1)
    edrf(cloud)  # the first call compiles
    began = time.perf_counter()
    allocation = edrf(cloud)
    spent = time.perf_counter() - began
    used = np.bincount(cloud[1], allocation.amounts, minlength=2_000)
    print(f"20,000 tenants, 2,000 resources, {cloud[2].size:,} demands: {allocation.rounds:,} rounds")
    print(f"took {1000 * spent:.0f} ms; {(used > 1 - 1e-9).sum():,} resources are used up, none beyond")
    # Except for rounding, no resource is divided twice.
    assert used.max() < 1 + 1e-9  # noqa: S101 - what the example shows


if __name__ == "__main__":
    main()
