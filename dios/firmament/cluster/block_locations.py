"""The machines that hold blocks of input, as reported by coordinators: Quincy's data (appendix C.3).

Its readers will be the data terms of cost models. Until coordinators report blocks, the places of a task's
inputs come with its submission: those of the objects that it is handed, or named by ``--near``. The node's
core finds and moves objects. An outdated entry here costs no more than a transfer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from dios import limits
from dios.firmament.knowledge.samples import KnowledgeEntry, Placing

GONE = -1
"""The size in a report that a machine no longer holds a block."""


class BlockLocations:
    """The machines that hold each block, by the newest report of each machine about it."""

    def __init__(self) -> None:
        self.blocks: OrderedDict[bytes, dict[str, KnowledgeEntry]] = OrderedDict()

    def take(self, entry: KnowledgeEntry, placing: Placing) -> None:
        """Record one report.

        Reports that a block is gone are kept like the others, because an older report may arrive after them.
        """
        holders = self.blocks.setdefault(placing.block, {})
        self.blocks.move_to_end(placing.block)
        known = holders.get(placing.machine)
        if known is None or known.identity < entry.identity:
            holders[placing.machine] = entry
        if len(holders) > limits.KNOWLEDGE_HOLDERS_MAX:
            # Drop a report that a block is gone first, then the oldest.
            del holders[
                min(holders, key=lambda machine: (_size(holders[machine]) >= 0, holders[machine].identity))
            ]
        if len(self.blocks) > limits.KNOWLEDGE_BLOCKS_MAX:
            self.blocks.popitem(last=False)

    def of(self, block: bytes) -> dict[str, int]:
        """Return the bytes of a block by machine; empty if it is not known on any machine."""
        holders = self.blocks.get(block, {})
        return {machine: size for machine, entry in holders.items() if (size := _size(entry)) >= 0}

    def local(self, blocks: Iterable[bytes]) -> dict[str, int]:
        """Return the bytes of these blocks by machine, summed: what a task need not fetch there."""
        bytes_by_machine: dict[str, int] = {}
        for block in blocks:
            for machine, size in self.of(block).items():
                bytes_by_machine[machine] = bytes_by_machine.get(machine, 0) + size
        return bytes_by_machine

    def forget(self, machine: str) -> None:
        """Drop all reports of a machine that has left."""
        for block in [block for block, holders in self.blocks.items() if machine in holders]:
            holders = self.blocks[block]
            del holders[machine]
            if not holders:
                del self.blocks[block]

    def entries(self) -> list[KnowledgeEntry]:
        """Return all reports, those of the most recently reported blocks last."""
        return [entry for holders in self.blocks.values() for entry in holders.values()]


def _size(entry: KnowledgeEntry) -> int:
    return entry.content.size if isinstance(entry.content, Placing) else GONE
