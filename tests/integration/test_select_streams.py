"""select over streams and other objects at once, on a real node."""

from __future__ import annotations

from pathlib import Path

import dios
from tests.support.node.running_node import running_node

ROUNDS = 30

ECHO = b"""
import dios
node = dios.connect()
for message in node.inputs[0]:
    node.outputs[0].send(message)
"""


def test_late_answers_hide_no_message(tmp_path: Path) -> None:
    """A message in a ring is seen although answers to selects given up before are still arriving."""
    with running_node(tmp_path / "node") as started, dios.connect(started.place, groups=()) as node:
        there, back = node.create_stream(), node.create_stream()
        task = node.run(ECHO, inputs=[there.restrict("read")], outputs=[back.restrict("write")])
        for number in range(ROUNDS):
            there.send(b"%d" % number)
            # With the defect this waits for ever: the node alone has nothing to say.
            assert node.select([back, task, node.self]) is back
            assert back.receive() == b"%d" % number
        there.detach()
        assert task.wait(timeout=30).ok
        back.detach()
