"""Which machines hold which blocks of input, as far as coordinators have told: Quincy's data (appendix C.3).

For: the data terms of cost models, one day: a task's inputs come with its submission (``--near``) until a
coordinator tells of blocks. Not for: finding or moving an object, which the node's core does; what stands
here may be out of date, and then costs a transfer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from dios import limits
from dios.firmament.knowledge.samples import Entry, Placing

GONE = -1
"""The size of a block that is there no longer."""


class Places:
    """For each block its holders; of what a machine says of one block the newest statement counts."""

    def __init__(self) -> None:
        self.blocks: OrderedDict[bytes, dict[str, Entry]] = OrderedDict()

    def take(self, entry: Entry, placing: Placing) -> None:
        """Take in one statement.

        Statements that a block is gone are kept like others: an older one may come after them.
        """
        holders = self.blocks.setdefault(placing.block, {})
        self.blocks.move_to_end(placing.block)
        known = holders.get(placing.machine)
        if known is None or known.identity < entry.identity:
            holders[placing.machine] = entry
        if len(holders) > limits.KNOWLEDGE_HOLDERS_MAX:
            # First those that are gone, then the oldest.
            del holders[
                min(holders, key=lambda machine: (_size(holders[machine]) >= 0, holders[machine].identity))
            ]
        if len(self.blocks) > limits.KNOWLEDGE_BLOCKS_MAX:
            self.blocks.popitem(last=False)

    def of(self, block: bytes) -> dict[str, int]:
        """Bytes of a block by machine; empty when nobody is known to hold it."""
        holders = self.blocks.get(block, {})
        return {machine: size for machine, entry in holders.items() if (size := _size(entry)) >= 0}

    def local(self, blocks: Iterable[bytes]) -> dict[str, int]:
        """Bytes of these blocks by machine, summed up: what a task would not have to fetch there."""
        found: dict[str, int] = {}
        for block in blocks:
            for machine, size in self.of(block).items():
                found[machine] = found.get(machine, 0) + size
        return found

    def forget(self, machine: str) -> None:
        """The machine is gone for good, with all that it held."""
        for block in [block for block, holders in self.blocks.items() if machine in holders]:
            holders = self.blocks[block]
            del holders[machine]
            if not holders:
                del self.blocks[block]

    def entries(self) -> list[Entry]:
        """All statements, the blocks touched last at the end."""
        return [entry for holders in self.blocks.values() for entry in holders.values()]


def _size(entry: Entry) -> int:
    return entry.what.size if isinstance(entry.what, Placing) else GONE
