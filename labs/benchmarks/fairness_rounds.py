"""Algorithm 1 of the DC-DRF paper as printed, compiled: the baseline for exact EDRF by events.

Each round sums again the demands of all tenants that still rise. ``fairness.py`` measures it.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from dios.kernels import kernel

Csr: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], npt.NDArray[np.float32], int]
Floats: TypeAlias = npt.NDArray[np.float64]

DRY = 1e-12
"""A resource with at most this much left is exhausted."""


def algorithm_1(demands: Csr, rounds: int) -> tuple[Floats, int, int]:
    """Run at most ``rounds``; return each tenant's z, the rounds made, and the demands that they summed."""
    offsets, resources, values, count = demands
    z = np.zeros(offsets.size - 1)
    completed, summed = rise_by_rounds(offsets, resources, values, rounds, z, np.ones(count))
    return z, int(completed), int(summed)


@kernel
def rise_by_rounds(
    offsets: npt.NDArray[np.int64],
    resources: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32],
    rounds: int,
    z: Floats,
    left: Floats,
) -> tuple[int, int]:
    """Run lines 3 to 10 with all weights 1. Tenants that have left are not examined again."""
    there, count, completed, summed = np.arange(len(z)), len(z), 0, 0
    scale = np.zeros(len(z))
    for i in range(len(z)):
        scale[i] = 1.0 / values[offsets[i] : offsets[i + 1]].max()
    mu = np.zeros(len(left))
    while count > 0 and completed < rounds:
        mu[:] = 0.0
        for k in range(count):
            i = there[k]
            for p in range(offsets[i], offsets[i + 1]):
                mu[resources[p]] += values[p] * scale[i]
            summed += offsets[i + 1] - offsets[i]
        x = np.inf
        for r in range(len(left)):
            if mu[r] > 0.0:
                x = min(x, left[r] / mu[r])
        for r in range(len(left)):
            left[r] -= x * mu[r]
        staying = 0
        for k in range(count):
            i = there[k]
            z[i] += x
            stays = True
            for p in range(offsets[i], offsets[i + 1]):
                stays &= left[resources[p]] > DRY
            if stays:
                there[staying] = i
                staying += 1
        count = staying
        completed += 1
    return completed, summed


@kernel
def one_pass(resources: npt.NDArray[np.int32], values: npt.NDArray[np.float32], sums: Floats) -> None:
    """Make one scatter pass over the demands: the unit of measurement for exact EDRF."""
    for p in range(resources.size):
        sums[resources[p]] += values[p]
