"""Promises of replicas, and the versions that replicas were seen to have, as bytes that every node keeps."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.errors import DamagedError, InvalidError, LimitError
from dios.lib.decoding import decoded
from dios.lib.kept.versions import Seen, SeenVersions, trimmed
from dios.lib.user_records.kind import RecordKind
from dios.wire.fields import U63, Label, NameBytes
from dios.wire.nametext import fingerprint
from dios.wire.types import Flag

FORMAT_VERSION: Final = 1
KEPT_NAME: Final = bytes(31) + b"\x05"
"""The special name of the records of the caller's kept replicas."""

_Number = Annotated[int, Meta(ge=0, le=limits.KEPT_REPLICAS_MAX)]


class KeptPromise(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A promise for all files of a group, which are in its catalogue, or for a single object of the group.

    ``target`` is the name of the catalogue or of the object. With ``apart`` the replicas are in different
    racks as far as there are racks. ``replicas`` 0 is a promise that was taken back; it is kept for nodes
    that are away.
    """

    version: U63
    group: NameBytes
    target: NameBytes
    label: Label
    replicas: _Number
    apart: bool = False
    is_single: bool = False

    def __repr__(self) -> str:
        """Return a text without the names, which are secrets."""
        return f"KeptPromise({self.label!r}, {self.replicas} replicas)"

    @property
    def key(self) -> str:
        """Return what identifies the promise, and may be shown: the fingerprint of the group or object."""
        return fingerprint(self.target if self.is_single else self.group)


class KeptState(Struct, frozen=True):
    """The promises by key, and the versions that were seen by the fingerprint of the object."""

    promises: dict[str, KeptPromise] = {}
    seen: SeenVersions = {}

    def living(self) -> list[KeptPromise]:
        """Return the promises that were not taken back."""
        return [promise for promise in self.promises.values() if promise.replicas]


class _StoredKept(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    format: int
    promises: Annotated[
        tuple[KeptPromise, ...], Meta(max_length=2 * limits.KEPT_PROMISES_MAX + limits.KEPT_ENDED_KEPT)
    ]
    seen: Annotated[
        dict[
            Annotated[str, Meta(max_length=limits.TEXT_BYTES_MAX)],
            Annotated[tuple[Seen, ...], Meta(max_length=limits.KEPT_SEEN_MAX)],
        ],
        Meta(max_length=limits.KEPT_WRITTEN_MAX),
    ]


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
_decode: Final = msgspec.msgpack.Decoder(_StoredKept).decode


def encode(state: KeptState) -> bytes:
    """Return the stored form; the oldest ended promises are forgotten. Raise LimitError if it is too long.

    Ended promises for groups remain longer: the lists of these groups may have notes of former files.
    """
    living = state.living()
    ended = sorted(
        (promise for promise in state.promises.values() if not promise.replicas),
        key=lambda promise: promise.version,
    )
    if len(living) > limits.KEPT_PROMISES_MAX:
        raise LimitError(
            f"you have {limits.KEPT_PROMISES_MAX} promises of replicas, the maximum. Promise them for a "
            "group in place of single objects."
        )
    groups = [promise for promise in ended if not promise.is_single][-limits.KEPT_PROMISES_MAX :]
    objects = [promise for promise in ended if promise.is_single][-limits.KEPT_ENDED_KEPT :]
    kept = sorted([*living, *groups, *objects], key=lambda promise: promise.key)
    # Objects that were written often have more to lose than those of version 1.
    order = sorted(
        state.seen, key=lambda mark: (-max((version.v_w for version in state.seen[mark]), default=0), mark)
    )
    seen = {mark: state.seen[mark] for mark in sorted(order[: limits.KEPT_WRITTEN_MAX])}
    data = _encode(_StoredKept(FORMAT_VERSION, tuple(kept), seen))
    if len(data) > limits.KEPT_RECORDS_BYTES_MAX:
        raise LimitError(
            f"the records of your promises would have {len(data)} bytes, more than "
            f"{limits.KEPT_RECORDS_BYTES_MAX}. Promise replicas for a group in place of single objects."
        )
    return data


def decode(data: bytes) -> KeptState:
    """Return the promises and seen versions. Raise DamagedError if the bytes are none."""
    if not data:
        return KeptState()
    if len(data) > limits.KEPT_RECORDS_BYTES_MAX:
        raise DamagedError(f"the records of kept replicas have {len(data)} bytes, too many")
    stored = decoded(_decode, data, "the records of kept replicas cannot be read")
    if stored.format != FORMAT_VERSION:
        raise DamagedError(
            f"the records of kept replicas have version {stored.format}, this program reads "
            f"{FORMAT_VERSION}. "
            "Update it."
        )
    return KeptState({promise.key: promise for promise in stored.promises}, dict(stored.seen))


def merged(copies: Iterable[KeptState]) -> KeptState:
    """Return the latest version of each promise, and every version that any copy has seen."""
    promises: dict[str, KeptPromise] = {}
    seen: dict[str, frozenset[Seen]] = {}
    for copy in copies:
        for key, promise in copy.promises.items():
            known = promises.get(key)
            if known is None or _order(promise) > _order(known):
                promises[key] = promise
        for key, versions in copy.seen.items():
            seen[key] = seen.get(key, frozenset()) | frozenset(versions)
    latest = {key: trimmed(versions) for key, versions in seen.items()}
    return KeptState(promises, latest)


def _order(promise: KeptPromise) -> tuple[int, bytes]:
    return promise.version, _encode(promise)


KEPT_RECORDS: Final[RecordKind[KeptState]] = RecordKind(KEPT_NAME, Flag.KEPT, decode, encode, merged)


def checked(replicas: int) -> int:
    """Return a number of replicas. Raise InvalidError if it cannot be promised."""
    if not 1 <= replicas <= limits.KEPT_REPLICAS_MAX:
        raise InvalidError(f"the number of replicas is from 1 to {limits.KEPT_REPLICAS_MAX}, not {replicas}")
    return replicas


def with_promise(state: KeptState, promise: KeptPromise, *, now_ms: int | None = None) -> KeptState:
    """Return the state with a promise that replaces the one of the same key, whatever the clocks say.

    ``now_ms`` is the time in milliseconds since 1970, by default that of this machine.
    """
    former = state.promises.get(promise.key)
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    version = now if former is None else max(former.version + 1, now)
    later = msgspec.structs.replace(promise, version=version)
    return KeptState({**state.promises, promise.key: later}, state.seen)


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
    """The report of the leading keeper for commands, with promises by key and objects by fingerprint.

    It is not ``checked`` while objects have not been looked at since nodes or promises changed.
    """

    leader: str = ""
    checked: bool = False
    promises: dict[str, PromiseReport] = {}
    objects: dict[str, ShortObject] = {}
