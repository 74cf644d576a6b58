"""Demands of a synthetic datacenter from a seed: the profiles of Table 3 of the DC-DRF paper.

One call generates the demands of one control interval.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dios.kernels import kernel

Csr: TypeAlias = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32], int]

PROFILES: Final = {"0": (0.0, 0.0), "1": (0.5, 0.0), "2": (0.5, 0.3)}
"""By the second letter of a profile: the fractions of a row in the tenant's first and second pod."""

LENGTH_MIN, LENGTH_MAX, LENGTH_SPREAD = 2, 128, 32.0
CAPACITY_MIN, CAPACITY_MAX = 100.0, 10_000.0

PODS: Final = 100
"""The number of pods. The paper gives no size for its clusters; here each is a hundredth of the resources."""

POD_DRAWS_MAX: Final = 16
"""The number of draws of a resource within a pod before drawing from the whole datacenter."""


def generate_demands(profile: str, tenants: int, resources: int, *, seed: int) -> Csr:
    """Return Table 3's demands as CSR ``(indptr, indices, values, m)``, which `edrf` and `DcDrf` take.

    ``profile`` is two characters. The first is U or G for the lengths of rows: uniform in [2, 128], or normal
    with mean 2 and deviation 32, truncated to [2, 128]. The second is 0, 1 or 2 for the place of the
    entries: everywhere; half in one pod; half in one pod and three tenths in a second one. Pods are drawn for
    each tenant. Resources do not repeat in a row and have no order. Capacities are uniform in [100, 10,000]
    (our choice), demands uniform in [1, capacity]; values are the quotients in single precision.
    ``ValueError`` for an unknown profile or a wrong size.
    """
    if len(profile) != 2 or profile[0] not in "UG" or profile[1] not in PROFILES:
        raise ValueError(f"profile is {profile!r}; it must be one of U0, U1, U2, G0, G1, G2")
    if not 0 <= tenants < 2**31:
        raise ValueError(f"tenants is {tenants}; it must lie between 0 and 2**31 - 1")
    if not 1 <= resources < 2**31:
        raise ValueError(f"resources is {resources}; it must lie between 1 and 2**31 - 1")
    rng = np.random.default_rng(seed)
    capacities = rng.uniform(CAPACITY_MIN, CAPACITY_MAX, resources)
    lengths = np.minimum(_lengths(profile[0], tenants, rng), resources)
    offsets = np.zeros(tenants + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    first, second = PROFILES[profile[1]]
    start = rng.integers(2**63, dtype=np.uint64)
    chosen = np.empty(offsets[-1], np.int32)
    choose_resources(offsets, resources, max(1, resources // PODS), first, second, start, chosen)
    values = rng.random(chosen.size, dtype=np.float32)
    least = (1.0 / capacities).astype(np.float32)[chosen]
    values *= 1 - least
    values += least
    return offsets, chosen, values, resources


def _lengths(kind: str, tenants: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the lengths of the rows. About half of the normal draws lie below the mean and are repeated."""
    if kind == "U":
        return rng.integers(LENGTH_MIN, LENGTH_MAX + 1, tenants)
    lengths = np.zeros(tenants)
    missing = np.arange(tenants)
    while missing.size:
        lengths[missing] = rng.normal(LENGTH_MIN, LENGTH_SPREAD, missing.size)
        missing = missing[(lengths[missing] < LENGTH_MIN) | (lengths[missing] > LENGTH_MAX)]
    return np.rint(lengths).astype(np.int64)


@kernel
def choose_resources(
    offsets: NDArray[np.int64],
    resources: int,
    pod: int,
    first: float,
    second: float,
    start: np.uint64,
    chosen: NDArray[np.int32],
) -> None:
    """Choose distinct resources for every row. The generator is a counter through a mixing function."""
    seen = np.full(resources, -1, np.int64)
    pods = resources // pod
    state = start
    for tenant in range(offsets.size - 1):
        state += np.uint64(1)
        home = np.int64(random_unit(state) * pods)
        state += np.uint64(1)
        # The second pod differs from the first if there are two.
        other = (home + 1 + np.int64(random_unit(state) * max(1, pods - 1))) % pods
        for k in range(offsets[tenant], offsets[tenant + 1]):
            state += np.uint64(1)
            place = random_unit(state)
            base, width = np.int64(0), np.int64(resources)
            if place < first:
                base, width = home * pod, np.int64(pod)
            elif place < first + second:
                base, width = other * pod, np.int64(pod)
            tries = 0
            resource = np.int64(-1)
            while resource < 0 or seen[resource] == tenant:
                if tries == POD_DRAWS_MAX:
                    base, width = np.int64(0), np.int64(resources)
                tries += 1
                state += np.uint64(1)
                resource = base + np.int64(random_unit(state) * width)
            seen[resource] = tenant
            chosen[k] = resource


@kernel
def random_unit(state: np.uint64) -> float:
    """Return a number in [0, 1) from a counter; multiplications and shifts mix all of its bits."""
    bits = state * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return float((bits ^ (bits >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53
