"""The interface for users' programs: promise replicas of files or of an object, and show the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Final

import msgspec
from msgspec.structs import asdict, replace

from dios.client.sync.node import Group, Node, Reference
from dios.errors import InvalidError
from dios.lib.kept import records
from dios.lib.kept.records import KEPT_RECORDS, KeptPromise, KeptReport, KeptState, PromiseReport, ShortObject
from dios.lib.user_records.records import UserRecords


@dataclass(frozen=True, slots=True)
class KeptStatus:
    """A promise, and how far it is kept.

    ``checked`` is False while objects have not been looked at since nodes or promises changed; ``leader`` is
    the node that keeps the replicas, "" if it is not known. ``short`` objects are fewer than promised or in
    conflict, since ``since`` (seconds since 1970). ``unverified`` objects have replicas that count because
    their versions say so: the keeper has not read their bytes yet.
    """

    key: str
    label: str
    replicas: int
    apart: bool
    is_single: bool
    objects: int = 0
    short: int = 0
    conflicts: int = 0
    unverified: int = 0
    since: int = 0
    reason: str = ""
    leader: str = ""
    checked: bool = False


class Promises:
    """The promises of a user; ``node`` is a session of that user, on a node of a cluster.

    A change is on the disks of the nodes that could store it when its method returns, of at least one.
    """

    def __init__(self, node: Node) -> None:
        self._records: Final = UserRecords(node, KEPT_RECORDS)

    def keep_group(
        self, group: Group, catalogue: Reference, *, label: str, replicas: int, apart: bool = False
    ) -> None:
        """Promise ``replicas`` durable replicas of the catalogue of a group, and of every file in it.

        With ``apart`` they are in different racks, as far as there are racks. Raises InvalidError.
        """
        name, target = bytes(group.read_name()), _name_of(catalogue)
        self._add(KeptPromise(0, name, target, label, records.checked(replicas), apart))

    def keep_objects(
        self, group: Group, objects: Mapping[bytes, str], *, replicas: int, apart: bool = False
    ) -> None:
        """Promise ``replicas`` durable replicas of single objects of a group, whatever its own promise is.

        ``objects`` are their labels by their names. Raises InvalidError, and LimitError for too many.
        """
        records.checked(replicas)
        owner = bytes(group.read_name())
        promised = [
            KeptPromise(0, owner, name, label, replicas, apart, is_single=True)
            for name, label in objects.items()
        ]
        self._records.edit(lambda state: reduce(records.with_promise, promised, state))

    def end(self, key: str) -> None:
        """Take a promise back, by the fingerprint of its group or object. Replicas stay where they are."""

        def changed(state: KeptState) -> KeptState:
            known = state.promises.get(key)
            if known is None or not known.replicas:
                raise InvalidError(f"there is no promise of replicas for {key[:60]}")
            ended = KeptPromise(0, known.group, known.target, known.label, 0, is_single=known.is_single)
            return records.with_promise(state, ended)

        self._records.edit(changed)

    def statuses(self) -> list[KeptStatus]:
        """Return every promise with what the leader reports of it, groups first."""
        report = self._report()
        promises = sorted(
            self._records.read().living(), key=lambda promise: (promise.is_single, promise.label, promise.key)
        )
        return [
            KeptStatus(
                promise.key,
                promise.label,
                promise.replicas,
                promise.apart,
                promise.is_single,
                **asdict(report.promises.get(promise.key, PromiseReport())),
                leader=report.leader,
                checked=report.checked and promise.key in report.promises,
            )
            for promise in promises
        ]

    def promise(self, group: Group) -> KeptStatus | None:
        """Return the promise of a group, or None."""
        key = group.fingerprint
        return next(
            (status for status in self.statuses() if status.key == key and not status.is_single), None
        )

    def promised(self, group: Group) -> int:
        """Return the number of replicas that is promised for a group as this node knows it, 1 without one."""
        promise = self._records.read_near().promises.get(group.fingerprint)
        return 1 if promise is None or promise.is_single else max(promise.replicas, 1)

    def known(self) -> list[KeptPromise]:
        """Return the promises that were not taken back, without a report of the leader.

        Raise UnreachableError if they are on no node that answers, so that it is not known if there are some.
        """
        return self._records.read_known().living()

    def short_objects(self) -> list[ShortObject]:
        """Return the first objects that are short of their promise, in conflict, or had other bytes."""
        # A leader of version 0.2 writes the fingerprint as the key only.
        return [replace(row, fingerprint=mark) for mark, row in self._report().objects.items()]

    def _report(self) -> KeptReport:
        return self._records.report(_decode_report, KeptReport())

    def _add(self, promise: KeptPromise) -> None:
        self._records.edit(lambda state: records.with_promise(state, promise))


_decode_report: Final = msgspec.json.Decoder(KeptReport).decode


def _name_of(reference: Reference) -> bytes:
    if reference.name is None:
        raise InvalidError(
            f"{reference.fingerprint} has no name here; look it up by its name, so that the nodes can find it"
        )
    return reference.name
