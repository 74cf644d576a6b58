"""Admission of a job that may wait: the earliest start at which the whole job has places.

A start in the future is reserved like one now, so it is a promise: later jobs cannot move it. Each of several
jobs that wait has the earliest start that leaves the promises of earlier ones as they are. Batch systems call
this conservative backfilling.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dios.limits import PACKER_STARTS_MAX
from dios.packer.allocate import Placement, Refusal, allocate
from dios.packer.datacenter import Datacenter
from dios.packer.job.ti_mra import Floats, Ints, TiMra
from dios.packer.policies import FIXED, Policy


def allocate_earliest(
    datacenter: Datacenter,
    job: TiMra,
    *,
    begin: int = 0,
    last: int | None = None,
    policy: Policy | str = FIXED,
    pinned: Mapping[str, int] | None = None,
) -> Placement | Refusal:
    """Admit a job at the earliest start from ``begin`` to ``last``, counted in instants from now.

    If a job fits at some start and not one instant earlier, then a free amount rises there, or at an instant
    at which a demand of the job rises. So only such starts are tried, the first PACKER_STARTS_MAX at which
    all machines together have enough. Without ``last`` the job has to end within the horizon. Return the
    refusal at ``begin`` if no start has places.

    Raises the errors of ``allocate``.
    """
    fitting = job.resampled(datacenter.instant_s)
    bound = datacenter.horizon - fitting.instants
    last = bound if last is None else min(last, bound)
    first = allocate(datacenter, job, policy=policy, pinned=pinned, after=begin)
    if isinstance(first, Placement):
        return first
    starts = _starts(datacenter.rises(), _rises_of(fitting), begin + 1, last)
    room, wanted = _room(datacenter), _wanted(datacenter, fitting)
    tries = 0
    for start in starts.tolist():
        if (room[start : start + fitting.instants] < wanted).any():
            continue
        outcome = allocate(datacenter, job, policy=policy, pinned=pinned, after=start)
        if isinstance(outcome, Placement):
            return outcome
        tries += 1
        if tries == PACKER_STARTS_MAX:
            break
    return first


def _starts(rises: Ints, offsets: Ints, begin: int, last: int) -> Ints:
    """Return the starts at which an offset of the job meets a rise of the free amounts, in order."""
    starts = np.unique(rises[:, None] - offsets[None, :])
    return starts[(starts >= begin) & (starts <= last)]


def _rises_of(job: TiMra) -> Ints:
    """Return the instants of a job at which a demand or bandwidth is larger than before; the first is one."""
    rises = np.zeros(job.instants, np.bool_)
    rises[0] = True
    for amounts in (job.demand, job.bandwidth[:, :, None]):
        rises[1:] |= (amounts[:, 1:] > amounts[:, :-1]).any(axis=(0, 2))
    return np.flatnonzero(rises)


def _room(datacenter: Datacenter) -> Floats:
    """Return (horizon, 4): the free resources of all places together, in units, from now on."""
    slots = np.arange(datacenter.now, datacenter.now + datacenter.horizon) % datacenter.horizon
    sums: Floats = datacenter.site.free[:, :4].sum(axis=2, dtype=np.float64)
    return sums[slots]


def _wanted(datacenter: Datacenter, job: TiMra) -> Floats:
    """Return (instants, 4): the resources that a job needs in all, in the same units."""
    sums: Floats = datacenter.quanta.up(job.demand).sum(axis=0)
    return sums
