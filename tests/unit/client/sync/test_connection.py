"""Operations that a connection runs next to each other, against a node that answers as told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dios.client.sync.connection import Connection
from dios.client.sync.node import Node
from dios.errors import ClosedError, Code, DiosError, StaleError
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult
from tests.support.client.fake_node import FakeNode, reference

BUSY = messages.Failure(int(Code.ENOBUFS), "256 calls of this task wait already")
GONE = messages.Failure(int(Code.ESTALE), "the object was deleted", "abcabcabcabc")


def connection_of(node: Node) -> Connection:
    """The connection of a node's session."""
    assert isinstance(node.link, Connection)
    return node.link


def test_operations_are_under_way_together() -> None:
    """The node has all calls, each in a message of its own, before it answers the first one."""
    with FakeNode(lambda _: None) as fake:
        node = fake.connect()

        def answer_all_at_last(_: AnyCall) -> AnyResult | None:
            if len(fake.calls) == 3:
                # The answers come in another order than the calls.
                for seq, ref in ((4, 40), (2, 20), (3, 30)):
                    fake.send(seq, messages.References((reference(ref),)))
            return None

        fake.script = answer_all_at_last
        blobs = [node.handle(reference(number)) for number in (11, 12, 13)]
        copies = connection_of(node).run_each(handle.copy_op(host="n2") for handle in blobs)
        assert [copied.ref for copied in copies if not isinstance(copied, DiosError)] == [20, 30, 40]
        assert [type(call) for call in fake.calls] == [messages.Copy] * 3


def test_each_operation_has_an_error_of_its_own() -> None:
    """One refusal is the outcome of its operation alone, and one for want of room is made again."""
    copied = [messages.References((reference(number),)) for number in (20, 30)]
    answers: Iterator[AnyResult] = iter([GONE, BUSY, *copied])
    with FakeNode(lambda _: next(answers)) as fake:
        node = fake.connect()
        blobs = [node.handle(reference(number)) for number in (11, 12, 13)]
        first, second, third = connection_of(node).run_each(handle.copy_op(host="n2") for handle in blobs)
        assert isinstance(first, StaleError)
        assert {outcome.ref for outcome in (second, third) if not isinstance(outcome, DiosError)} == {20, 30}
        assert len(fake.calls) == 4


def test_the_end_of_the_connection_ends_all_operations() -> None:
    """Operations without an answer end with the error of the connection."""
    with FakeNode(lambda _: None) as fake:
        node = fake.connect()

        def hang_up(_: AnyCall) -> None:
            if len(fake.calls) == 2:
                fake.hang_up()

        fake.script = hang_up
        blobs = [node.handle(reference(number)) for number in (11, 12)]
        outcomes = connection_of(node).run_each(handle.copy_op(host="n2") for handle in blobs)
        assert all(isinstance(outcome, ClosedError) for outcome in outcomes)
        with pytest.raises(ClosedError):
            blobs[0].read_bytes()
