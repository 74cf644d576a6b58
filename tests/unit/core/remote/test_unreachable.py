"""Objects that nobody can reach."""

from __future__ import annotations

import pytest

from dios.core import events
from dios.wire import messages
from dios.wire.types import Deletion, NameKind, ObjectType
from tests.support.core.harness import Node


@pytest.mark.parametrize("kind", [ObjectType.SHMEM_BLOB, ObjectType.DURABLE_BLOB])
@pytest.mark.parametrize("naming", [NameKind.ANONYMOUS, NameKind.RANDOM])
def test_without_a_name_the_last_reference_is_all(node: Node, kind: ObjectType, naming: NameKind) -> None:
    """An immediate object outlives its last holder if it has a name, and is gone and uncounted if not."""
    session = node.session()
    call = messages.Create(kind, name_kind=naming, deletion=Deletion.IMMEDIATE, data=b"x")
    reference = session.ask(messages.Created, call).reference
    node.step(events.Disconnected(node.now, session.task))
    kept = naming is not NameKind.ANONYMOUS
    assert (reference.object in node.core.state.objects) is kept
    assert (reference.object in node.stored) is (kept and kind is ObjectType.DURABLE_BLOB)
    assert sum(account.used[0] for account in node.core.state.principals.values()) == int(kept)
