"""Fair divisions the slow way, in fractions: what the fast ones are compared with.

Not for: speed. Each works on whole usage curves or whole rounds, and shares no step with the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Rows: TypeAlias = list[list[Fraction]]
Floats: TypeAlias = npt.NDArray[np.float64]


def exact(rows: npt.ArrayLike) -> Rows:
    """The same numbers as fractions, row by row."""
    return [[Fraction(float(value)) for value in row] for row in np.asarray(rows)]


def algorithm_1(demands: npt.ArrayLike, weights: npt.ArrayLike) -> tuple[Floats, Floats, int]:
    """EDRF as printed in the DC-DRF paper, with every sum done anew: amounts, z and rounds.

    ``demands`` and ``weights`` are (n, m). Tenants that demand nothing are left out of the rounds.
    """
    asked, owed = exact(demands), exact(weights)
    d = [[value / max(row) if max(row, default=0) else Fraction(0) for value in row] for row in asked]
    rho = [
        min((w / v for w, v in zip(ws, ds, strict=True) if v), default=Fraction(0))
        for ws, ds in zip(owed, d, strict=True)
    ]
    columns = range(len(asked[0]) if asked else 0)
    left = [Fraction(1) for _ in columns]
    there = {i for i, row in enumerate(d) if any(row)}
    z = [Fraction(0)] * len(d)
    rounds = 0
    while there:
        sums = [sum((rho[i] * d[i][r] for i in there), Fraction(0)) for r in columns]
        x = min(left[r] / sums[r] for r in columns if sums[r])
        for i in there:
            z[i] += x
        left = [left[r] - x * sums[r] for r in columns]
        there = {i for i in there if all(left[r] > 0 for r in columns if d[i][r])}
        rounds += 1
    amounts = [[float(v * rho[i] * z[i]) for v in row] for i, row in enumerate(d)]
    return np.array(amounts).reshape(np.shape(demands)), np.array([float(value) for value in z]), rounds


def _full_at(curve: Sequence[tuple[Fraction, Fraction]]) -> Fraction | None:
    """The highest level at which a usage curve (level, use) is not over 1; None where it never is."""
    if curve[-1][1] <= 1:
        return None
    at = max(k for k, (_, use) in enumerate(curve) if use <= 1)
    (low, before), (high, after) = curve[at], curve[at + 1]
    return low + (1 - before) * (high - low) / (after - before)


def filled(demands: npt.ArrayLike, commitments: npt.ArrayLike, weights: npt.ArrayLike) -> Floats:
    """Equation 10 of the SDRF paper by whole curves, with weights, and again for those not stopped.

    ``demands`` (n, m), ``commitments`` and ``weights`` (n,). With commitments of 0 this is DRF.
    """
    asked = exact(demands)
    base = [Fraction(float(c)) for c in np.asarray(commitments)]
    rate = [Fraction(float(w)) for w in np.asarray(weights)]
    peak = [max(row, default=Fraction(0)) for row in asked]
    fixed: dict[int, Fraction] = {i: Fraction(0) for i, top in enumerate(peak) if not top}

    def share(i: int, level: Fraction) -> Fraction:
        return fixed[i] if i in fixed else min(peak[i], max(Fraction(0), (level - base[i]) * rate[i]))

    while open_users := [i for i in range(len(asked)) if i not in fixed]:
        levels = sorted(
            {Fraction(0)} | {base[i] for i in open_users} | {base[i] + peak[i] / rate[i] for i in open_users}
        )
        dry: dict[int, Fraction] = {}
        for r in range(len(asked[0])):
            users = [i for i, row in enumerate(asked) if row[r]]
            curve = [
                (x, sum((share(i, x) * asked[i][r] / peak[i] for i in users), Fraction(0))) for x in levels
            ]
            if (full := _full_at(curve)) is not None:
                dry[r] = full
        stop = min(dry.values(), default=levels[-1])
        tight = [r for r, level in dry.items() if level == stop]
        held = {i: share(i, stop) for i in open_users}
        fixed |= {i: s for i, s in held.items() if not dry or s == peak[i] or any(asked[i][r] for r in tight)}
    amounts = [[float(v / peak[i] * fixed[i]) if v else 0.0 for v in row] for i, row in enumerate(asked)]
    return np.array(amounts).reshape(np.shape(demands))


def drawn(seed: int) -> tuple[Floats, Floats, Floats]:
    """Demands (n, m), weights (n, m) and commitments (n,) on a coarse grid, so that much ties and is zero."""
    rng = np.random.default_rng(seed)
    users, resources = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    demands = rng.integers(0, 20, (users, resources)) / 16.0
    demands[rng.random(demands.shape) < rng.choice([0.0, 0.3, 0.7])] = 0.0
    demands[rng.random(users) < 0.1] = 0.0
    weights = rng.integers(1, 9, demands.shape) / 4.0
    commitments = rng.integers(0, 9, users) / 16.0
    if seed % 3 == 0:
        # Every third case without a grid: nothing ties there.
        demands, commitments = demands * rng.random(demands.shape), commitments * rng.random(users)
    return demands, weights, commitments
