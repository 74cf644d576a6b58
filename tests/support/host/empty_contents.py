"""Contents and buffers of a host without a loop, and the work that its threads would do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dios.host.content.buffers import BackgroundWork, CompletedReply
from dios.host.content.contents import Contents
from dios.transport.memory.pool import MemoryPool
from labs.sim.memory_store import MemoryStore


@contextmanager
def empty_contents() -> Iterator[Contents]:
    """No contents; closed when the block is left."""
    contents = Contents(MemoryStore(), MemoryPool())
    yield contents
    contents.close()


def finish(work: CompletedReply | BackgroundWork | None) -> CompletedReply | None:
    """Do what the node would do in a thread."""
    if isinstance(work, BackgroundWork):
        work.run()
        return work.done()
    return work
