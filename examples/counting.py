"""Count to a number, on whichever node has room: each number is printed once, however often the task moves.

dios run counting.py --grace 10s -- 1000
dios node drain NODE        (in another terminal: the node where it counts)
"""

import json
import sys

import dios

state = {"next": 1}


def save() -> bytes:
    """Return the state; called only within a safe point."""
    return json.dumps(state).encode()


def restore(data: bytes) -> None:
    """Continue from a state."""
    state.update(json.loads(data))


last = int(sys.argv[1])
with dios.checkpointed(save, restore, every=60) as checkpoint:
    while state["next"] <= last:
        print(state["next"], flush=True)
        state["next"] += 1
        checkpoint.sleep(0.1)  # a safe point: the task may save its state here, and go on elsewhere
