"""The orders of a coordinator to the task of a model, in MessagePack. The task trusts them."""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from dios.firmament.custom_model.knowledge_changes import KnowledgeChange
from dios.firmament.descriptors import JobDescriptor, TaskDescriptor

LANE_BYTES: Final = 1 << 20
"""The size of each of the two streams."""
LABEL: Final = "orders"
"""The label of the stream of orders among the inputs of the task."""


class ColumnChange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The new values of some rows of a column, or of all: then ``rows`` is None."""

    name: str
    length: int
    rows: bytes | None
    values: bytes


class TreeTexts(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The parts of the table of resources that are no columns."""

    names: dict[int, str]
    labels: dict[int, dict[str, str]]
    children: dict[int, list[int]]
    machine_ids: dict[int, int]


class StateChange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The difference between the cluster and what was sent of it before."""

    now: float
    tasks: list[ColumnChange]
    jobs: list[ColumnChange]
    resources: list[ColumnChange]
    sums: list[ColumnChange]
    """The columns ``held`` and ``promised``."""
    names: dict[str, list[str]]
    """The further names of each table of names."""
    task_descriptors: dict[int, TaskDescriptor]
    job_descriptors: dict[int, JobDescriptor]
    tree: TreeTexts | None
    waiting_principals: list[str] | None
    knowledge: KnowledgeChange | None = None
    """The measured profiles."""


class Open(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1):
    """The first order: make the model of a file, and check its contract."""

    source: str
    parameters: dict[str, str]


class Ask(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """A call of the model's method with vectors of int64; ``change`` is applied before it."""

    method: str
    arrays: list[bytes]
    change: StateChange | None = None


class Explain(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3):
    """A call of the model's ``explain``."""

    task: int
    resource: int
    change: StateChange | None = None


Order: TypeAlias = Open | Ask | Explain


encode: Final = msgspec.msgpack.Encoder().encode
_orders: Final = msgspec.msgpack.Decoder(Order)


def decode_order(data: bytes) -> Order:
    """Return an order of the coordinator."""
    order: Order = _orders.decode(data)
    return order
