"""The report of the leading keeper, which the user's commands read: the state of promises and objects."""

from __future__ import annotations

from msgspec import Struct


class PromiseReport(Struct, frozen=True):
    """The state of a promise; ``KeptStatus`` has the same fields."""

    objects: int = 0
    short: int = 0
    conflicts: int = 0
    unverified: int = 0
    since: int = 0
    reason: str = ""


class ShortObject(Struct, frozen=True):
    """An object with fewer current replicas than promised, or with replicas in ``conflict``.

    Or a replica of it has, or had within the last day, other bytes than those that were put. ``since`` is
    when the leader noticed it, in seconds since 1970.
    """

    fingerprint: str = ""
    promise: str = ""
    wanted: int = 0
    current: int = 0
    since: int = 0
    reason: str = ""
    conflict: tuple[str, ...] = ()


class KeptReport(Struct, frozen=True):
    """The report, with promises by key and objects by fingerprint.

    It is not ``checked`` while objects have not been looked at since nodes or promises changed.
    """

    leader: str = ""
    checked: bool = False
    promises: dict[str, PromiseReport] = {}
    objects: dict[str, ShortObject] = {}
