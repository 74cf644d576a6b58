"""Changes of a node's trust, for tests without an event loop of their own."""

from __future__ import annotations

import functools
import threading
from queue import SimpleQueue

import trio

from dios.ids import NodeId
from dios.transport.identity.trust import Trust


@functools.cache
def _loop() -> trio.lowlevel.TrioToken:
    """Return the token of an event loop in a thread, which lasts as long as the process."""
    tokens = SimpleQueue[trio.lowlevel.TrioToken]()

    async def main() -> None:
        tokens.put(trio.lowlevel.current_trio_token())
        await trio.sleep_forever()

    threading.Thread(target=trio.run, args=(main,), daemon=True).start()
    return tokens.get()


def revoke(trust: Trust, node: NodeId, *, restore: bool = False) -> bytes:
    """Remove a node; return the new statement."""
    return trio.from_thread.run(functools.partial(trust.remove, node, restore=restore), trio_token=_loop())


def merge(trust: Trust, data: bytes) -> bool:
    """Accept a statement; return True if it changed anything."""
    return trio.from_thread.run(trust.accept, data, trio_token=_loop())
