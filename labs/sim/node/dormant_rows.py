"""The rows of a simulated store as dormant rows, so that the core forgets objects all the time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from dios.core.events import ObjectRecord
from dios.core.model.names import internal_name
from dios.core.model.rows import NoRows, RowSource, is_dormant
from dios.errors import DamagedError
from dios.ids import InternalName, ObjectId
from dios.store.row_index import log_groups_of
from labs.sim.disk.device import Device
from labs.sim.disk.model_store import ModelStore

_IDLE_MAX: Final = 2


class SimRows(RowSource, Protocol):
    """A source of dormant rows that a checker can list."""

    def records(self) -> Mapping[ObjectId, ObjectRecord]:
        """Return the records of all sound dormant rows."""


class NoSimRows(NoRows):
    """No rows: the core keeps everything."""

    __slots__ = ()

    def records(self) -> Mapping[ObjectId, ObjectRecord]:
        """Return nothing."""
        return {}


class DormantRows:
    """The dormant rows of a model store. Their reads never fail, as those through a map."""

    def __init__(self, store: ModelStore, device: Device) -> None:
        self._store: Final = store
        self._device: Final = device
        self.idle_max: int | None = _IDLE_MAX

    def records(self) -> dict[ObjectId, ObjectRecord]:
        """Return the records of all sound dormant rows, in the order of object ids."""
        with self._device.at_rest():
            records = {key: record for key, record in self._store.records().items() if record is not None}
        groups = log_groups_of(records.values())
        return {key: records[key] for key in sorted(records) if is_dormant(records[key], groups)}

    def named(self, names: Sequence[InternalName]) -> Iterable[ObjectId]:
        """Return the objects with dormant rows under these names. Raises DamagedError in a panic."""
        self._refuse_in_panic()
        by_name: dict[InternalName, list[ObjectId]] = {}
        for key, record in self.records().items():
            for group in record.groups:
                by_name.setdefault(internal_name(record.name or b"", group), []).append(key)  # type: ignore[arg-type] # a dormant row has a name
        return [target for name in names for target in by_name.get(name, ())]

    def read(self, target: ObjectId) -> ObjectRecord | None:
        """Return the record in a dormant row. Raises DamagedError in a panic."""
        self._refuse_in_panic()
        return self.records().get(target)

    def _refuse_in_panic(self) -> None:
        if self._store.panicked:
            raise DamagedError("the store failed half-way through a commit: open it again")
