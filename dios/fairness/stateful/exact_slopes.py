"""Slopes of commitments as exact sums, for comparisons however long the past is.

A slope is a sum of PARTS floats of falling size that do not overlap, each with an integer exponent. So a sum
of what a user owes from yesterday and from 5,000 time constants ago keeps both: the first rounds nothing of
the second away, and the second does not underflow. The leading part decides nearly every comparison.

The sums are Dekker's and Knuth's, as in Shewchuk's expansions.
"""

from __future__ import annotations

import math
from typing import Final

from dios.fairness.allocation import Floats, Ints
from dios.kernels import force_inlined_kernel, no_refcount_kernel

PARTS: Final = 6
"""The number of parts of a slope: what differs in the seventh is equal."""
BLOCK: Final = 512
"""The exponent of a part counts in steps of 2^512."""
LEAST: Final = 2.0 ** -(BLOCK // 2)
"""The size of a part is from this number up to, and excluding, ``MOST``; 0 has the exponent 0."""
MOST: Final = 2.0 ** (BLOCK // 2)
UP: Final = 2.0**BLOCK
DOWN: Final = 2.0**-BLOCK


@force_inlined_kernel
def in_range(part: float, power: int) -> tuple[float, int]:
    """Return the same number with its part in the range; the part is at most 2^512 out of it."""
    if part == 0.0:
        return 0.0, 0
    if abs(part) < LEAST:
        return part * UP, power - 1
    if abs(part) >= MOST:
        return part * DOWN, power + 1
    return part, power


@no_refcount_kernel
def two_sum(a: float, at: int, b: float, bt: int) -> tuple[float, int, float, int]:
    """Return the rounded sum of two numbers (part, power), and exactly what the rounding lost."""
    if b == 0.0 or (a != 0.0 and at > bt + 1):
        return a, at, b, bt
    if a == 0.0 or bt > at + 1:
        return b, bt, a, at
    power = max(at, bt)
    if at < power:
        a *= DOWN
    if bt < power:
        b *= DOWN
    total = a + b
    virtual = total - a
    lost = (a - (total - virtual)) + (b - virtual)
    total, high = in_range(total, power)
    lost, low = in_range(lost, power)
    return total, high, lost, low


@no_refcount_kernel
def add_part(parts: Floats, powers: Ints, amount: float) -> None:
    """Add a float to a slope (PARTS,), in place."""
    part, power = in_range(amount, 0)
    for at in range(PARTS):
        if part == 0.0:
            break
        parts[at], powers[at], part, power = two_sum(parts[at], powers[at], part, power)
    # From the smallest to the largest, then without gaps, twice: then no two parts overlap.
    for _ in range(2):
        for at in range(PARTS - 1, 0, -1):
            if parts[at] != 0.0:
                parts[at - 1], powers[at - 1], parts[at], powers[at] = two_sum(
                    parts[at - 1], powers[at - 1], parts[at], powers[at]
                )
        kept = 0
        for at in range(PARTS):
            if parts[at] != 0.0:
                parts[kept], powers[kept] = parts[at], powers[at]
                kept += 1
        for at in range(kept, PARTS):
            parts[at], powers[at] = 0.0, 0


@no_refcount_kernel
def halve_parts(parts: Floats, powers: Ints, halvings: int) -> None:
    """Divide a slope (PARTS,) by 2^halvings, exactly, in place."""
    blocks, rest = halvings // BLOCK, halvings % BLOCK
    for at in range(PARTS):
        if parts[at] != 0.0:
            # One step could leave the range of floats; the next part is in range again.
            half = math.ldexp(parts[at], -(rest // 2))
            part, power = in_range(half, powers[at] - blocks)
            parts[at], powers[at] = in_range(math.ldexp(part, -(rest - rest // 2)), power)


@force_inlined_kernel
def leading(parts: Floats, powers: Ints) -> float:
    """Return a slope (PARTS,) as one float; 0 if it is too small for one."""
    return parts[0] if powers[0] == 0 else 0.0


@no_refcount_kernel
def compare_parts(parts: Floats, powers: Ints, others: Floats, other_powers: Ints) -> int:
    """Return -1, 0 or 1: a slope (PARTS,) is less than another one, equal or more."""
    for at in range(PARTS):
        a, b = parts[at], others[at]
        if a == b and powers[at] == other_powers[at]:
            continue
        if a == 0.0 or b == 0.0 or powers[at] == other_powers[at]:
            return 1 if a > b else -1
        if powers[at] > other_powers[at]:
            return 1 if a > 0.0 else -1
        return 1 if b < 0.0 else -1
    return 0
