"""Prints a digest of all outcomes of one long history: run it under several hash seeds and compare.

Not for: importing into tests; it is a program, started by ``tests/property/test_determinism.py``.
"""

from __future__ import annotations

import sys

from blake3 import blake3
from msgspec import msgpack

from dios.core import events
from dios.core.effects import Outcome
from tests.support.core.harness import Node


def main() -> None:
    """A random walk with its whole trace of events and outcomes hashed, and the state at its end."""
    from tests.support.core.random_walk import walk
    from tests.support.core.snapshot import digest

    trace = blake3()
    plain = Node.step

    def traced(node: Node, event: events.Event) -> Outcome:
        outcome = plain(node, event)
        trace.update(msgpack.encode(event))
        trace.update(msgpack.encode(outcome))
        return outcome

    Node.step = traced  # type: ignore[method-assign,assignment]
    machine = walk(int(sys.argv[1]), int(sys.argv[2]))
    trace.update(digest(machine.node.core.state).encode())
    sys.stdout.write(trace.hexdigest())


main()
