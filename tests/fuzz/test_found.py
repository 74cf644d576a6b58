"""What fuzzing found, one test for each defect, in the smallest form that still shows it."""

from __future__ import annotations

import pytest

from dios.core import effects
from dios.errors import Code
from dios.wire import messages
from dios.wire.types import ObjectType, Persistence
from tests.support.core.harness import Node


@pytest.mark.parametrize("write_first", [True, False])
def test_a_vector_that_writes_and_copies_the_same_object_fails_alone(
    write_first: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """Copying to the store what another call of the vector writes is refused by the core, one call only.

    The host refused it, as a failure of the store: that undid what anybody else had stored meanwhile.
    """
    node = Node()
    client = node.session()
    ref = client.create(ObjectType.SHMEM_BLOB, data=b"old").reference.ref
    write = messages.WriteOnce(ref, b"new")
    copy = messages.Copy(ref, client.self_ref, persistence=Persistence.DURABLE)
    answer = client.call(messages.Vector((write, copy) if write_first else (copy, write)))
    assert isinstance(answer, effects.AnswerVector)
    results = [part.result for part in answer.parts]
    assert not isinstance(results[0], messages.Failure)
    assert isinstance(results[1], messages.Failure)
    assert results[1].code == Code.EINVAL
    written = {
        effect.object
        for effect in node.outcome.after
        if isinstance(effect, effects.ApplyWrite) and not effect.durable
    }
    copied = {
        change.source.content_of
        for change in node.outcome.persist
        if isinstance(change, effects.PutObject) and change.source is not None
    }
    assert not written & copied
