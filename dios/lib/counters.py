"""The size and the counters of a labelled object, which a task sees from its first read on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dios.client.sync.node import Reference


def show_counters(reference: Reference) -> None:
    """Read a byte of a labelled blob if its size and counters may be hidden from this task.

    Afterwards they are right, and the task has the object's tags. Raises NotPermittedError if the label
    forbids the read, and the errors of reading.
    """
    if reference.secrecy and not reference.size:
        reference.read_bytes(1)
