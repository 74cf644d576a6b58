"""The stored form of weights, quotas, commitments and admitted jobs, which coordinators hand to each other.

This module needs no NumPy. The live form of the same facts is in ``policies.principal_accounts`` and
``policies.packing``.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

from dios.errors import InvalidError
from dios.firmament.descriptors import Resources
from dios.limits import SHARES_BYTES_MAX

RESOURCES: Final = ("tasks", *Resources._fields)
"""What is shared: slots for tasks, and the dimensions of machines."""


class StoredAccount(msgspec.Struct, frozen=True, array_like=True):
    """One principal."""

    principal: str
    weight: float
    quota: tuple[float, ...]
    """The most that it may hold at once, for each of ``RESOURCES``; infinity for no limit."""
    set_at: float
    """When weight or quota were set, in seconds since 1970; the later setting is the valid one."""
    seen_at: float
    """When it last had tasks, in seconds since 1970."""
    commitments: tuple[float, ...]


class StoredJob(msgspec.Struct, frozen=True, array_like=True):
    """A job over time that was admitted (``policies.packing``)."""

    number: int
    principal: str
    packed: bytes
    """Its description in TOML, compressed."""
    began: float
    """In seconds since 1970."""
    places: tuple[tuple[str, str], ...]
    """Members and nodes."""


class StoredShares(msgspec.Struct, frozen=True, array_like=True):
    """All accounts and admitted jobs; ``at`` is the time of the snapshot in seconds since 1970."""

    at: float
    accounts: tuple[StoredAccount, ...] = ()
    jobs: tuple[StoredJob, ...] = ()


def encode(shares: StoredShares) -> bytes:
    """Return the shares as bytes, at most SHARES_BYTES_MAX: the accounts at the end are left out first."""
    while True:
        data = msgspec.msgpack.encode(shares)
        if len(data) <= SHARES_BYTES_MAX:
            return data
        shares = StoredShares(shares.at, shares.accounts[: len(shares.accounts) // 2], shares.jobs)


def decode(data: bytes) -> StoredShares:
    """Return the shares that :func:`encode` wrote.

    Raises:
        InvalidError: the bytes are nothing that :func:`encode` writes.
    """
    try:
        shares = msgspec.msgpack.decode(data, type=StoredShares)
    except msgspec.DecodeError as error:
        raise InvalidError(f"stored shares are invalid: {error}") from None
    numbers = [shares.at]
    for row in shares.accounts:
        if len(row.quota) != len(RESOURCES) or len(row.commitments) != len(RESOURCES) or row.weight <= 0:
            raise InvalidError(f"stored shares are invalid: the account of {row.principal}")
        numbers += [row.weight, row.set_at, row.seen_at, *row.commitments]
        if any(not value >= 0 for value in row.quota):
            raise InvalidError(f"stored shares are invalid: the quota of {row.principal}")
    if not all(math.isfinite(number) for number in numbers):
        raise InvalidError("stored shares are invalid: a number is not finite")
    return shares
