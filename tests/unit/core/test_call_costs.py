"""The number of lines of the core that each kind of call executes, which grows only on purpose."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import FrameType

import pytest

import dios
from dios.core import events
from dios.ids import PayloadId
from dios.wire import messages
from dios.wire.types import AcquireIov, NameKind, ObjectType
from tests.support.core.harness import Client, Node

PACKAGE = str(Path(dios.__file__).parent)
COSTS = Path(__file__).with_name("call_costs.json")
VERSION = (3, 11)
"""The Python of which the file has the numbers; others count the lines of comprehensions differently."""


def lines_of(client: Client, call: messages.AnyCall) -> int:
    """Execute a call, and return the number of lines of the package that one step executes for it."""
    node, count = client.node, 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
        nonlocal count
        del argument
        count += event == "line" and frame.f_code.co_filename.startswith(PACKAGE)
        return trace

    node.seq += 1
    node.payload += 100
    event = events.Called(node.now, client.task, node.seq, call, PayloadId(node.payload))
    sys.settrace(trace)  # type: ignore[arg-type] # the function traces its own calls, too
    try:
        outcome = node.core.step(event)
    finally:
        sys.settrace(None)
    for effect in outcome.after:
        node._note(effect)
    assert not isinstance(client.answer(node.seq), messages.Failure), client.answer(node.seq)
    return count


def costs() -> dict[str, int]:
    """Return the lines of each call of a small history."""
    client = Node().session()
    named = client.create(data=b"x" * 100)
    ref = named.reference.ref
    assert named.name is not None
    lines: dict[str, int] = {}

    def make(name: str, call: messages.AnyCall) -> object:
        lines[name] = lines_of(client, call)
        return client.answer(client.node.seq)

    make("stat", messages.Stat(ref))
    make("read", messages.ReadOnce(ref))
    make("write", messages.WriteOnce(ref, b"y" * 100))
    make("create", messages.Create(ObjectType.SHMEM_BLOB, name_kind=NameKind.ANONYMOUS, data=b"z"))
    make("create, durable", messages.Create(ObjectType.DURABLE_BLOB, (client.groups[0],), data=b"z"))
    make("lookup", messages.Lookup(named.name))
    copied = make("copy", messages.Copy(ref, client.self_ref))
    assert isinstance(copied, messages.References)
    make("delete", messages.Delete(copied.references[0].ref))
    reading = make("acquire read", messages.AcquireRead(ref))
    assert isinstance(reading, messages.Buffer)
    make("commit read", messages.CommitRead(ref, reading.buffer))
    make("release read", messages.ReleaseRead(ref, reading.buffer))
    writing = make("acquire write", messages.AcquireWrite(ref, 4, iov=AcquireIov.CREATE))
    assert isinstance(writing, messages.Buffer)
    make("commit write", messages.CommitWrite(ref, writing.buffer, data=b"abcd"))
    make("release write", messages.ReleaseWrite(ref, writing.buffer))
    make("vector of 64", messages.Vector((messages.Stat(ref),) * 64))
    return lines


@pytest.mark.skipif(sys.version_info[:2] != VERSION, reason="the numbers are those of another Python")
@pytest.mark.skipif(sys.gettrace() is not None, reason="something else traces this process")
def test_a_call_executes_no_more_lines_than_it_did() -> None:
    """A commit that makes a call longer changes the file: ``python -m tests.unit.core.test_call_costs``."""
    known: dict[str, int] = json.loads(COSTS.read_text())
    longer = {name: lines for name, lines in costs().items() if lines > known[name]}
    assert not longer, f"these calls executed { ({name: known[name] for name in longer}) } lines before"


if __name__ == "__main__":
    COSTS.write_text(json.dumps(costs(), indent=1) + "\n")
