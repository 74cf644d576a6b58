"""A program in which the package has one more call, made of one message, one row and one function.

It imports the package with the three texts added to their modules, makes the call wherever a call is treated
by its kind, and prints what it saw. ``tests/unit/core/calls/test_added_call.py`` runs it.
"""

from __future__ import annotations

import importlib.machinery
import sys
from importlib.abc import MetaPathFinder
from types import CodeType

MESSAGE = '''
class Append(Call, frozen=True, tag=99):
    """Write at the end of an object."""

    ref: Identifier
    data: Inline
'''
ROW = """
    CallRow(c.Append, "ref", Permission.WRITE, Route.OBJECT, (r.Committed,), 0,
        Flow.WRITE, AuditRule.RECORDED, Effect.STORES, Closing.RIGHT, Exemption.VECTOR),
"""
FUNCTION = """
@handles(messages.Append)
def append(step: Step, task: Holder, seq: int, call: messages.Append) -> None:
    target = rights.for_io(task, call.ref, Mode.WRITE).object
    step.answer(task, seq, messages.Committed(target.v_r, step.payload_size))
"""
ADDED = {
    "dios.wire.calls": lambda text: text + MESSAGE,
    "dios.wire.call_table": lambda text: text.replace("\n)\n# fmt: on", ROW + ")\n# fmt: on"),
    "dios.core.calls.compound_calls": lambda text: text + FUNCTION,
}


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module with its addition."""

    def get_code(self, fullname: str) -> CodeType:
        source = ADDED[fullname](self.get_data(self.path).decode())
        return compile(source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds the modules with additions before others do."""

    @staticmethod
    def find_spec(name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name not in ADDED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)  # type: ignore[arg-type]
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(name, spec.origin)
        return spec


def report(place: str, value: object) -> None:
    """Print what was seen in one place."""
    sys.stdout.write(f"{place} {value}\n")


def main() -> None:
    """Make the call in all places, and print one line for each."""
    sys.meta_path.insert(0, _Finder())
    from dios.client.session import _DESCRIPTORS, Session
    from dios.core.calls import entrance
    from dios.errors import Code
    from dios.host.audit.admission import refusal
    from dios.host.audit.log import BacklogLevel
    from dios.host.content.stored_bytes import may_store
    from dios.wire import messages
    from dios.wire.call_table import carried_bytes
    from dios.wire.codec import decode_request
    from dios.wire.types import Permission
    from tests.fuzz.known import KINDS
    from tests.support.core.harness import Node
    from tests.support.core.two_nodes import Two
    from tests.support.wire import descriptions

    kind = messages.Append  # type: ignore[attr-defined] # the program adds it

    class Full:
        """A log of audit records that cannot be written."""

        pressure, trouble = BacklogLevel.SOME, "the disk is full"

    seq, frame = Session().request(kind(7, b"abc"))
    report("client and codec", decode_request(frame[4:]) == messages.Request(seq, kind(7, b"abc")))
    report("descriptors", _DESCRIPTORS[kind])
    report("payload", carried_bytes(kind(7, b"abc")))
    report("rates", may_store(kind(7, b"abc")))
    report("audit", refusal(Full(), kind(7, b"abc")) is not None)  # type: ignore[arg-type]
    report("fuzzer", any(known.call is kind for known in KINDS))
    report("page", descriptions.call_row(kind))

    node = Node()
    owner = node.session()
    blob = owner.create(data=b"x").reference.ref
    report("here", owner.call(kind(blob, b"abc")))
    report("vector", owner.call(messages.Vector((kind(blob, b"abc"),))).parts[0].result)  # type: ignore[attr-defined]
    report("leases", len(entrance.closed_by(node.core.state.tasks[owner.task], [kind(blob, b"abc")])))
    secret = messages.CreateLabelled(
        owner.create().reference.type, (owner.groups[0],), data=b"s", secrecy=("payroll",)
    )
    read = int(Permission.READ)
    hidden = owner.ask(messages.Created, secret).reference.ref
    task = owner.run(inputs=(messages.Handed(hidden, read), messages.Handed(blob, int(Permission.ALL))))
    hidden, public = (reference.ref for reference in task.welcome.inputs)
    report("before a read", task.call(kind(public, b"abc")))
    task.call(messages.ReadOnce(hidden))
    report("after it", Code(task.refused(kind(public, b"abc"))).name)

    two = Two()
    seq, held = two.held_back(kind(two.ref, b"abc"))
    report("message to the other node", held[0].message.body.call == kind(two.ref, b"abc"))  # type: ignore[union-attr]
    two.cluster.wire = held
    report("forwarded", two.cluster.wait(two.me, seq))


if __name__ == "__main__":
    main()
