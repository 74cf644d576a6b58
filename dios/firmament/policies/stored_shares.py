"""The stored form of weights, quotas, commitments, admitted jobs and the chosen policy.

Coordinators hand it to each other.

This module needs no NumPy. The live form of the same facts is in ``policies.principal_accounts`` and
``policies.packing``.
"""

from __future__ import annotations

import math
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from dios.errors import InvalidError
from dios.firmament.descriptors import Resources
from dios.limits import (
    PACKED_JOBS_MAX,
    PACKED_MEMBERS_MAX,
    SCHED_MODEL_BYTES_MAX,
    SHARES_BYTES_MAX,
    SHARES_PRINCIPALS_MAX,
)
from dios.wire.fields import Identifier, Label, Text

RESOURCES: Final = ("tasks", *Resources._fields)
"""What is shared: slots for tasks, and the dimensions of machines."""


_LENGTH_BEFORE_DEVICES: Final = len(RESOURCES) - 1
"""The number of columns that shares have which were stored before devices were counted."""

_Amount: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e300)]
_Quota: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
_FIELDS: Final = msgspec.Meta(max_length=64)


class StoredAccount(msgspec.Struct, frozen=True, array_like=True):
    """One principal."""

    principal: Text
    weight: _Amount
    quota: Annotated[tuple[_Quota, ...], _FIELDS]
    """The most that it may hold at once, for each of ``RESOURCES``; infinity for no limit."""
    set_at: _Amount
    """When weight or quota were set, in seconds since 1970; the later setting is the valid one."""
    seen_at: _Amount
    """When it last had tasks, in seconds since 1970."""
    commitments: Annotated[tuple[_Amount, ...], _FIELDS]


class StoredJob(msgspec.Struct, frozen=True, array_like=True):
    """A job over time that was admitted (``policies.packing``)."""

    number: Identifier
    principal: Text
    packed: Annotated[bytes, msgspec.Meta(max_length=SHARES_BYTES_MAX)]
    """Its description in TOML, compressed."""
    began: _Amount
    """In seconds since 1970."""
    places: Annotated[tuple[tuple[Text, Label], ...], msgspec.Meta(max_length=PACKED_MEMBERS_MAX)]
    """Members and nodes."""


class StoredPolicy(msgspec.Struct, frozen=True, array_like=True):
    """The cost model and the settings that were chosen while the cluster ran, as words.

    An empty ``model`` and no settings mean those of the nodes' settings.
    """

    model: Label
    parameters: Annotated[tuple[tuple[Label, Label], ...], _FIELDS]
    settings: Annotated[tuple[tuple[Label, Label], ...], _FIELDS]
    set_at: _Amount
    """In seconds since 1970; the later choice is the valid one."""
    source: Annotated[str, msgspec.Meta(max_length=SCHED_MODEL_BYTES_MAX)] = ""
    """The text of an operator's own model; empty for a model of the catalogue."""


class StoredShares(msgspec.Struct, frozen=True, array_like=True):
    """All accounts and admitted jobs; ``at`` is the time of the snapshot in seconds since 1970."""

    at: _Amount
    accounts: Annotated[tuple[StoredAccount, ...], msgspec.Meta(max_length=SHARES_PRINCIPALS_MAX)] = ()
    jobs: Annotated[tuple[StoredJob, ...], msgspec.Meta(max_length=PACKED_JOBS_MAX)] = ()
    policy: StoredPolicy | None = None


def encode(shares: StoredShares) -> bytes:
    """Return the shares as bytes, at most SHARES_BYTES_MAX: the accounts at the end are left out first."""
    while True:
        data = msgspec.msgpack.encode(shares)
        if len(data) <= SHARES_BYTES_MAX:
            return data
        shares = replace(shares, accounts=shares.accounts[: len(shares.accounts) // 2])


def decode(data: bytes) -> StoredShares:
    """Return the shares that :func:`encode` wrote.

    Raises:
        InvalidError: the bytes are nothing that :func:`encode` writes.
    """
    try:
        shares = msgspec.msgpack.decode(data, type=StoredShares)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidError(f"stored shares are invalid: {error}") from None
    shares = replace(shares, accounts=tuple(map(_with_devices, shares.accounts)))
    numbers = [shares.at]
    if shares.policy is not None:
        numbers.append(shares.policy.set_at)
    for row in shares.accounts:
        if len(row.quota) != len(RESOURCES) or len(row.commitments) != len(RESOURCES) or row.weight <= 0:
            raise InvalidError(f"stored shares are invalid: the account of {row.principal}")
        numbers += [row.weight, row.set_at, row.seen_at, *row.commitments]
        if any(not value >= 0 for value in row.quota):
            raise InvalidError(f"stored shares are invalid: the quota of {row.principal}")
    if not all(math.isfinite(number) for number in numbers):
        raise InvalidError("stored shares are invalid: a number is not finite")
    return shares


def _with_devices(account: StoredAccount) -> StoredAccount:
    """Return an account with a column for devices, also if it was stored before they were counted."""
    if not len(account.quota) == len(account.commitments) == _LENGTH_BEFORE_DEVICES:
        return account
    return replace(account, quota=(*account.quota, math.inf), commitments=(*account.commitments, 0.0))
