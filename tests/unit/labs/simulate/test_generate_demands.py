"""Generated demands have the profiles of Table 3 of the DC-DRF paper."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from labs.simulate.fairness.generate_demands import generate_demands


@pytest.mark.parametrize("profile", ["U0", "U1", "U2", "G0", "G1", "G2"])
def test_generated_demands_are_of_table_3(profile: str) -> None:
    """Lengths lie in [2, 128] with the profile's mean, resources differ in a row, values in [1/C, 1]."""
    offsets, resources, values, count = generate_demands(profile, 4000, 2000, seed=7)
    lengths = np.diff(offsets)
    assert count == 2000
    assert lengths.min() >= 2
    assert lengths.max() <= 128
    assert abs(lengths.mean() - (65 if profile[0] == "U" else 27.5)) < 2
    rows = np.repeat(np.arange(4000), lengths)
    assert np.unique(rows * count + resources).size == resources.size
    assert values.min() >= 1e-4 * (1 - 1e-6)
    assert values.max() <= 1
    assert abs(values.mean() - 0.5) < 0.01
    used = np.bincount(resources, minlength=count)
    assert used.min() > 0
    again = generate_demands(profile, 4000, 2000, seed=7)
    assert np.array_equal(again[1], resources)
    assert np.array_equal(again[2], values)
    assert not np.array_equal(generate_demands(profile, 4000, 2000, seed=8)[0], offsets)


def test_pods_hold_what_their_profile_says() -> None:
    """Half of a row of profile 1 lies in one pod, and of profile 2 also three tenths in a second one."""
    for profile, most, second in (("U0", 0.1, 0.1), ("U1", 0.5, 0.1), ("U2", 0.5, 0.3)):
        offsets, resources, _, _ = generate_demands(profile, 400, 100_000, seed=2)
        shares = []
        for first, last in itertools.pairwise(offsets):
            if last - first >= 100:
                # Pods of 1,000 resources each.
                shares.append(np.sort(np.bincount(resources[first:last] // 1000))[::-1][:2] / (last - first))
        means = np.mean(shares, axis=0)
        assert abs(means[0] - most) < 0.08, (profile, means)
        assert abs(means[1] - second) < 0.08, (profile, means)


def test_few_resources_clip_the_lengths() -> None:
    """With fewer than 128 resources no row is longer than there are; bad arguments are refused."""
    for count in (1, 2, 3, 50):
        offsets, resources, _, _ = generate_demands("U2", 200, count, seed=4)
        assert np.diff(offsets).max() <= count
        assert resources.max() < count
    with pytest.raises(ValueError, match="profile"):
        generate_demands("X0", 10, 10, seed=1)
    with pytest.raises(ValueError, match="resources"):
        generate_demands("U0", 10, 0, seed=1)
    with pytest.raises(ValueError, match="tenants"):
        generate_demands("U0", -1, 10, seed=1)
