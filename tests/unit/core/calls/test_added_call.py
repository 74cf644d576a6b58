"""One message, one row and one function are a new call; none of the three can be forgotten."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dios.core.calls import handlers
from dios.errors import Code, InvariantError
from dios.wire import messages
from dios.wire.call_table import CALLS
from dios.wire.types import ObjectType, Permission
from tests.support.core.harness import Client, Node
from tests.support.wire import descriptions

SEEN = """\
client and codec True
descriptors 0
payload b'abc'
rates True
audit True
fuzzer True
page | Append | ref, write | Committed | object | write | recorded | stores | right | vector |
here Committed(v_r=0, v_w=3)
vector Committed(v_r=0, v_w=3)
leases 1
before a read Committed(v_r=0, v_w=3)
after it EPERM
message to the other node True
forwarded Committed(v_r=0, v_w=3)
"""


def test_an_added_call_is_treated_by_its_row_everywhere() -> None:
    """Client, codec, core, labels, leases, forwarding, audit, rates, fuzzers and the page know the call."""
    program = [sys.executable, "-m", "tests.support.core.added_call"]
    assert subprocess.run(program, capture_output=True, check=True, text=True).stdout == SEEN


def test_a_row_without_a_function_is_an_error_at_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a function for a call without a row, and a second function for one call."""
    with pytest.raises(InvariantError, match="two functions execute Stat"):
        handlers.handles(messages.Stat)(lambda step, task, seq, call: None)  # noqa: ARG005 - it does nothing
    function = handlers._bound[messages.Stat]
    monkeypatch.delitem(handlers._bound, messages.Stat)
    with pytest.raises(InvariantError, match="Stat"):
        handlers.handlers()
    monkeypatch.setitem(handlers._bound, messages.Stat, function)
    monkeypatch.setitem(handlers._bound, messages.Hello, function)
    with pytest.raises(InvariantError, match="Hello"):
        handlers.handlers()


RIGHTS = [kind for kind, row in CALLS.items() if row.right]


@pytest.fixture
def owner() -> Client:
    """A session of the node's user."""
    return Node().session()


@pytest.mark.parametrize("kind", RIGHTS, ids=lambda kind: kind.__name__)
def test_a_call_needs_the_right_of_its_row(owner: Client, kind: type[messages.PlainCall]) -> None:
    """Without it, the call is refused before anything else about it matters."""
    row = CALLS[kind]
    wide = owner.create(ObjectType.SHMEM_BLOB, data=b"x").reference.ref
    copy = messages.Copy(wide, owner.self_ref, int(Permission.ALL & ~row.right))
    (narrow,) = owner.ask(messages.References, copy).references
    sample = descriptions.sample_message(kind)
    values = {name: getattr(sample, name) for name in kind.__struct_fields__}
    assert row.reference is not None
    call = kind(**{**values, **({"flags": 0} if "flags" in values else {}), row.reference: narrow.ref})
    assert owner.refused(call) == Code.EPERM
