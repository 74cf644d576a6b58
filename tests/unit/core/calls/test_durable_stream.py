"""DURABLE_STREAM in the core: appending, readers' places, accounts, and what a failing disk leaves."""

from __future__ import annotations

import pytest

from dios import limits
from dios.core import effects, events
from dios.errors import Code
from dios.ids import Principal, Ticket
from dios.wire import messages
from dios.wire.types import Flag, Mode, ObjectType, Resource
from tests.support.core.harness import Client, Node

HEAD = limits.LOG_HEAD_BYTES
NOW = int(Flag.NON_BLOCKING)


@pytest.fixture
def client(node: Node) -> Client:
    """A session."""
    return node.session()


@pytest.fixture
def log(client: Client) -> int:
    """A reference of the session to a log."""
    return client.create(ObjectType.DURABLE_STREAM).reference.ref


def append(client: Client, log: int, data: bytes) -> int:
    """Append, and say the entry's number."""
    return client.ask(messages.Committed, messages.WriteOnce(log, data)).v_w


def delivered(node: Node) -> effects.AnswerLog:
    """The one answer to a reader in the last step."""
    (answer,) = [effect for effect in node.outcome.after if isinstance(effect, effects.AnswerLog)]
    return answer


def test_entries_follow_each_other(node: Node, client: Client, log: int) -> None:
    """Each append stands where the one before ended, with its head, and is stored with the record."""
    places = []
    for number, data in enumerate((b"one", b"", b"three"), 1):
        assert append(client, log, data) == number
        (stored,) = node.outcome.persist
        assert isinstance(stored, effects.AppendLog)
        assert (stored.record.v_w, stored.source.length) == (number, len(data))
        assert stored.record.size == stored.position + HEAD + len(data)
        assert node.outcome.wait_for == node.outcome.ticket
        places.append(stored.position)
    assert places == [0, HEAD + 3, 2 * HEAD + 3]


def test_a_reader_has_a_place_of_its_own(node: Node, client: Client, log: int) -> None:
    """The same bytes are read as often as somebody likes, from any place, and no reader moves another."""
    for data in (b"one", b"two"):
        append(client, log, data)
    for place, length in ((0, 2 * HEAD + 6), (HEAD + 3, HEAD + 3), (0, 2 * HEAD + 6)):
        client.send(messages.ReadOnce(log, offset=place))
        assert (delivered(node).position, delivered(node).length) == (place, length)
    client.send(messages.ReadOnce(log, offset=2 * HEAD + 6, flags=NOW))
    assert delivered(node).length == 0
    assert client.refused(messages.ReadOnce(log, offset=2 * HEAD + 7)) == Code.EINVAL


def test_one_answer_holds_what_a_message_takes(node: Node, client: Client, log: int) -> None:
    """However much there is, one answer has at most INLINE_BYTES_MAX, and the largest entry fits."""
    for _ in range(3):
        append(client, log, bytes(limits.LOG_ENTRY_BYTES_MAX))
    client.send(messages.ReadOnce(log))
    assert delivered(node).length == limits.INLINE_BYTES_MAX
    assert client.refused(messages.ReadOnce(log, size=100)) == Code.EINVAL


def test_a_reader_at_the_end_waits_for_the_next_entry(node: Node, client: Client, log: int) -> None:
    """Every reader that waits gets the entry, with the step that makes it durable."""
    append(client, log, b"one")
    waiting = [client.send(messages.ReadOnce(log, offset=HEAD + 3)) for _ in range(2)]
    node.step(events.Called(node.now, client.task, 999, messages.WriteOnce(log, b"two")))
    answers = [effect for effect in node.outcome.after if isinstance(effect, effects.AnswerLog)]
    assert [answer.seq for answer in answers] == waiting
    assert {(answer.position, answer.length) for answer in answers} == {(HEAD + 3, HEAD + 3)}
    assert node.outcome.wait_for == node.outcome.ticket


def test_select_finds_what_came_after_the_last_read(client: Client, log: int) -> None:
    """A log is ready when it has entries that the holder did not ask for yet."""
    look = messages.Select((log,), Mode.READ, flags=NOW)
    assert client.call(look) == messages.Selected(-1)
    for _ in range(3):
        append(client, log, bytes(20_000))
    assert client.call(look) == messages.Selected(0)
    client.send(messages.ReadOnce(log))
    assert client.call(look) == messages.Selected(0)
    client.send(messages.ReadOnce(log, offset=40_024))
    assert client.call(look) == messages.Selected(-1)


def test_a_log_is_not_written_elsewhere(client: Client, log: int) -> None:
    """Entries are appended in one message and never replaced; one that is too long is refused."""
    assert client.refused(messages.WriteOnce(log, b"x", offset=1)) == Code.EINVAL
    assert client.refused(messages.WriteOnce(log, b"x", flags=int(Flag.REPLACE))) == Code.EINVAL
    assert client.refused(messages.AcquireWrite(log)) == Code.EINVAL
    assert client.refused(messages.WriteOnce(log, bytes(limits.LOG_ENTRY_BYTES_MAX + 1))) == Code.EFBIG
    assert client.refused(messages.Create(ObjectType.DURABLE_STREAM, data=b"x")) == Code.EINVAL


def test_rights_of_readers_and_writers(client: Client, log: int) -> None:
    """Who may read does not append, and who may append does not read."""
    for right, read, write in ((1, None, Code.EPERM), (2, Code.EPERM, None)):
        task = client.run(inputs=(messages.Handed(log, right),))
        own = task.welcome.inputs[0].ref
        for call, code in ((messages.ReadOnce(own, flags=NOW), read), (messages.WriteOnce(own, b"x"), write)):
            if code is None:
                task.send(call)
            else:
                assert task.refused(call) == code


def test_many_appends_in_one_message(node: Node, client: Client, log: int) -> None:
    """A vector of appends is one store operation after the other under one ticket; reads stay out of it."""
    calls = tuple(messages.WriteOnce(log, b"%d" % number) for number in range(3))
    client.ask(effects.AnswerVector, messages.Vector(calls))
    assert [type(effect) for effect in node.outcome.persist] == [effects.AppendLog] * 3
    answer = client.ask(effects.AnswerVector, messages.Vector((messages.ReadOnce(log),)))
    (part,) = answer.parts
    assert isinstance(part, effects.Answer)
    assert isinstance(part.result, messages.Failure)


def test_a_log_counts_with_its_bytes(node: Node, client: Client, log: int) -> None:
    """Entries are counted with their heads, as bytes on disk, and an account that is full refuses them."""
    account = node.core.state.account_of(Principal("uid:1000"))
    before = account.used[Resource.BYTES], account.used[Resource.VOLATILE_BYTES]
    append(client, log, b"abc")
    assert account.used[Resource.BYTES] == before[0] + HEAD + 3
    assert account.used[Resource.VOLATILE_BYTES] == before[1]
    task = client.run(limits=messages.Limits(bytes=100), groups=(client.groups[0],))
    own = task.create(ObjectType.DURABLE_STREAM).reference.ref
    append(task, own, bytes(80))
    assert task.refused(messages.WriteOnce(own, bytes(80))) == Code.EDQUOT


def test_what_the_disk_refused_is_no_entry(node: Node, client: Client, log: int) -> None:
    """After a failed append the log is as long as it was, for its readers and in the accounts."""
    append(client, log, b"one")
    node.step(events.Persisted(node.now, node.outcome.ticket))
    used = node.core.state.account_of(Principal("uid:1000")).used[Resource.BYTES]
    append(client, log, b"two")
    ticket = node.outcome.ticket
    node.step(events.PersistFailed(node.now, ticket, ticket, int(Code.ENOSPC), "full"))
    seen = client.stat(log)
    assert (seen.size, seen.v_w) == (HEAD + 3, 1)
    assert node.core.state.account_of(Principal("uid:1000")).used[Resource.BYTES] == used


def test_a_log_comes_back(node: Node, client: Client) -> None:
    """After a restart a log has its length and number of entries, and is found by its name."""
    created = client.create(ObjectType.DURABLE_STREAM)
    append(client, created.reference.ref, b"one")
    again = Node()
    again.step(events.Recovered(again.now, tuple(node.stored.values())))
    (reference,) = again.session().lookup(created.name)
    assert (reference.type, reference.size, reference.v_w) == (ObjectType.DURABLE_STREAM, HEAD + 3, 1)


def test_deletion_ends_a_log_and_its_readers(node: Node, client: Client, log: int) -> None:
    """A log stays until somebody deletes it; who waits there is told, and the store drops it."""
    waiting = client.send(messages.ReadOnce(log))
    other = client.ask(messages.References, messages.Copy(log, client.self_ref)).references[0].ref
    client.ask(messages.Done, messages.Delete(other))
    assert isinstance(client.answer(waiting), messages.Failure)
    assert any(isinstance(effect, effects.DropObject) for effect in node.outcome.persist)
    assert node.outcome.ticket > Ticket(0)
