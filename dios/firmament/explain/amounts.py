"""Amounts of resources in explanations: their steps, and their text."""

from __future__ import annotations

import math
from typing import Final

from dios.firmament.descriptors import Resources

_MIB: Final = 2.0**20
STEPS: Final = Resources(cpus=0.01, memory=_MIB, disk_io=1024.0, network=1024.0, devices=1.0)
"""The steps in which a demand is changed to find the smallest sufficient change."""
LEAST: Final = Resources(cpus=STEPS.cpus, memory=STEPS.memory)
"""The smallest demands that are tried: a task needs some processor time and memory."""

_UNITS: Final = ((2.0**40, "TiB"), (2.0**30, "GiB"), (_MIB, "MiB"), (1024.0, "KiB"), (1.0, "B"))


def in_steps(name: str, amount: float) -> float:
    """Return the largest number of whole steps that does not exceed an amount."""
    step = float(getattr(STEPS, name))
    return round(math.floor(amount / step * (1 + 1e-12)) * step, 2)


def amount_text(name: str, amount: float) -> str:
    """Return an amount with its unit, rounded to three digits."""
    if name in {"cpus", "devices"}:
        return f"{amount:g}"
    size, unit = next((scale for scale in _UNITS if amount >= scale[0]), _UNITS[-1])
    return f"{amount / size:.3g} {unit}{'' if name == 'memory' else '/s'}"


def exact_text(name: str, amount: float) -> str:
    """Return an amount with the largest unit of which it is a multiple, and the name of the resource."""
    if name == "cpus":
        return f"{amount:g} CPUs"
    if name == "devices":
        return f"{amount:g} devices"
    size, unit = next(
        (scale for scale in _UNITS if amount >= scale[0] and amount % scale[0] == 0), _UNITS[-1]
    )
    return f"{amount / size:.12g} {unit}{'' if name == 'memory' else '/s'} of {name.replace('_', ' ')}"


def needed_text(name: str, amount: float) -> str:
    """Return that an amount is needed."""
    if name in {"cpus", "devices"}:
        return f"{exact_text(name, amount)} are needed"
    return f"{amount_text(name, amount)} of {name.replace('_', ' ')} are needed"
