"""Checks that the node still has everything that it acknowledged.

Each single answer is checked when it arrives, in ``labs.sim.node.workload``.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from dios.errors import DamagedError
from dios.ids import Name, ObjectId
from dios.wire.types import ObjectType
from labs.sim.disk.device import Device
from labs.sim.disk.faults import DiskFault
from labs.sim.disk.model_store import ModelStore
from labs.sim.node.contents import stored_content
from labs.sim.node.host import SimHost
from labs.sim.node.workload import KnownPromises, ObjectPromise


class BrokenPromiseError(AssertionError):
    """The node lost, tore or invented something that it had acknowledged."""


class Checker:
    """The checks of one run. ``damaged`` is the number of objects that a flipped bit has damaged."""

    def __init__(self, memory: KnownPromises, device: Device) -> None:
        self._memory: Final = memory
        self._device: Final = device
        self._strangers: Final[set[Name]] = set()
        self._spoilt: Final[set[Name | ObjectId]] = set()
        self._place = "the start"

    @property
    def damaged(self) -> int:
        """Return the number of damaged objects."""
        return len(self._spoilt)

    def broken(self, violation: str) -> BrokenPromiseError:
        """Return the error to raise."""
        return BrokenPromiseError(f"{self._place}: {violation}")

    # -- after a start ------------------------------------------------------------------------------
    def check_after_start(self, host: SimHost, store: ModelStore, *, place: str) -> None:
        """Check that nothing acknowledged is lost, torn or invented, and that damage is reported."""
        self._place = place
        with self._device.at_rest():
            values = self._found(host, store)
            left_out = {self._key(target) for target, record in store.records().items() if record is None}
            for name, promise in self._memory.promises.items():
                self._check_promise(name, promise, values, left_out)
            self._check_strangers(values)
        self._memory.creating.clear()

    def _found(self, host: SimHost, store: ModelStore) -> dict[Name, bytes | None]:
        """Return the value of every named durable blob; None for a blob that is refused as damaged."""
        values: dict[Name, bytes | None] = {}
        state = host.core.state
        every = [target.record() for target in state.objects.values()]
        every += [record for key, record in host.rows.records().items() if key not in state.objects]
        for target in every:
            if target.name is None or target.type is not ObjectType.DURABLE_BLOB:
                continue
            try:
                value = stored_content(store.content, target.object)
            except DamagedError:
                values[target.name] = None
                self._spoil(self._key(target.object))
                continue
            values[target.name] = value
            if target.size != len(value):
                raise self.broken(f"an object of {target.size} bytes has {len(value)}")
        return values

    def _spoil(self, key: Name | ObjectId) -> None:
        self._spoilt.add(key)
        flips = self._device.faults[DiskFault.FLIP]
        if len(self._spoilt) > flips:
            raise self.broken(f"{len(self._spoilt)} objects are damaged, but only {flips} bits were flipped")

    def _key(self, target: ObjectId) -> Name | ObjectId:
        return self._memory.named.get(target, target)

    def _check_promise(
        self,
        name: Name,
        promise: ObjectPromise,
        values: dict[Name, bytes | None],
        left_out: set[Name | ObjectId],
    ) -> None:
        value = values.get(name)
        if name in values and value is None:
            return  # damaged and refused: the promised value stays until the next write
        if name in left_out:
            self._spoil(name)
        elif value != promise.acknowledged and value not in promise.possible:
            raise self.broken(
                f"found {value!r}, acknowledged was {promise.acknowledged!r}, possible {promise.possible!r}"
            )
        promise.acknowledged, promise.possible = value, []

    def _check_strangers(self, values: dict[Name, bytes | None]) -> None:
        """Check that every object without a known name comes from a creation without an answer."""
        left = Counter(self._memory.creating)
        for name, value in values.items():
            if name in self._memory.promises or name in self._strangers:
                continue
            self._strangers.add(name)
            if value is None:
                continue
            left[value] -= 1
            if left[value] < 0:
                raise self.broken(f"an object with the value {value!r} exists, but no call creates it")

    # -- between two steps --------------------------------------------------------------------------
    def agree(self, host: SimHost, store: ModelStore) -> None:
        """Check that core, host and store have the same objects and bytes; nothing may wait for the disk."""
        with self._device.at_rest():
            stored = store.records()
            recorded = {
                target.id: target.recorded
                for target in host.core.state.objects.values()
                if target.recorded is not None
            }
            dormant = host.rows.records().keys() - recorded.keys()
            expected = host.core.state.dormant_count
            damaged = sum(record is None for record in stored.values())
            if not 0 <= expected - len(dormant) <= damaged:
                raise self.broken(f"{len(dormant)} objects are in the store only, not {expected}")
            for target in stored.keys() | recorded.keys():
                if target in dormant:
                    continue
                if stored.get(target, ...) is None:
                    self._spoil(self._key(target))
                elif stored.get(target) != recorded.get(target):
                    raise self.broken(
                        f"the store has {stored.get(target)!r}, the core {recorded.get(target)!r}"
                    )
            for target in host.contents.stored & host.contents.at_hand.keys() & recorded.keys():
                self._compare(host, store, target)

    def _compare(self, host: SimHost, store: ModelStore, target: ObjectId) -> None:
        try:
            value = stored_content(store.content, target)
        except DamagedError:
            self._spoil(self._key(target))
            return
        if value != host.contents.at_hand[target]:
            raise self.broken(f"the store has {value!r}, the host {host.contents.at_hand[target]!r}")
