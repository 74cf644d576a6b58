"""The program of a node's coordinator task: ``main()``, which ``dios.node.coordinator_supervisor`` starts.

Its arguments are the set-up, the cost model's name, the rule of fairness, and the memory of fairness in ms.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import trio

from dios import limits
from dios.client.aio.node import open_node
from dios.errors import DiosError
from dios.firmament.coordinator.assignment import SetUp, StartOptions
from dios.firmament.coordinator.coordinator import Coordinator
from dios.firmament.coordinator.node_monitor import KNOWLEDGE
from dios.firmament.knowledge.knowledge_base import KnowledgeBase

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncNode


def main() -> None:
    """Run the coordinator until the node ends this task."""
    set_up, model, fairness, memory_ms = sys.argv[1:5]
    trio.run(_coordinate, StartOptions(SetUp(set_up), model, fairness, int(memory_ms) / 1000))


async def _coordinate(orders: StartOptions) -> None:
    async with open_node() as node:
        knowledge = await _known(node)
        delegation_s = limits.RACK_DELEGATION_MS / 1000
        coordinator = Coordinator(node, orders, knowledge=knowledge, delegation_s=delegation_s)
        await coordinator.run()


async def _known(node: AsyncNode) -> KnowledgeBase:
    """Return the stored measurements; none if they cannot be read."""
    own = next(member for member in await node.nodes() if member.here)
    # Larger at each start, because no earlier start ended later than now.
    incarnation = time.time_ns()
    stored = [reference for reference in node.inputs if reference.label == KNOWLEDGE]
    data = await stored[0].read_bytes() if stored else b""
    if data:
        try:
            return KnowledgeBase.from_bytes(data, own.name, incarnation)
        except DiosError as error:
            sys.stderr.write(f"coordinator: the stored measurements are ignored: {error}\n")
    return KnowledgeBase(own.name, incarnation)
