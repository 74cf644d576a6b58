"""What a node remembers of another's requests while some of them wait for long (thesis §4.6, §4.8)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dios import limits
from dios.core.remote.peers import Peer, PendingRequest
from dios.core.remote.watermark import Watermark
from dios.errors import Code
from dios.ids import NodeId, Principal, TaskId
from dios.wire import dcp, messages
from dios.wire.types import Brand
from tests.support.core.cluster import Parcel, record_of
from tests.support.core.two_nodes import Two

FEW = 64
BODY = dcp.TasksEnded(())


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Two:
    """Two nodes, where FEW requests at once are many."""
    monkeypatch.setattr(limits, "DCP_REQUESTS_MAX", FEW)
    return Two()


def asks(parcels: list[Parcel]) -> list[dcp.Ask]:
    """The requests among what was said."""
    return [parcel.message for parcel in parcels if isinstance(parcel.message, dcp.Ask)]


def question(peer: Peer, number: int) -> PendingRequest:
    """A request that waits."""
    pending = PendingRequest(peer, BODY, None, None, 0)
    pending.number = number
    return pending


def waits(two: Two) -> int:
    """Let a call of the session's wait for the end of a task, to which it returns the reference."""
    _, job = two.job()
    two.me.send(messages.Select((job,)))
    two.cluster.settle()
    return job


@pytest.mark.parametrize("waiting", [1, 5, FEW // 2])
def test_what_waits_for_long_pins_no_answers(two: Two, waiting: int) -> None:
    """While calls wait, many others are served: remembered is what waits, and the last few answers."""
    _, job = two.job()
    for _ in range(waiting):
        two.me.send(messages.Select((job,)))
    mine, theirs = two.books()
    two.me.read(two.ref)
    for _ in range(4 * FEW):
        assert two.me.read(two.ref) == b"content"
        assert len(mine.asked) == waiting
        assert len(theirs.answers) <= waiting + waiting // limits.DCP_OPEN_NUMBERS_PER_REQUEST + 1


def test_what_waited_for_long_is_answered(two: Two) -> None:
    """A call that waits while others come and go gets its answer, and leaves nothing behind."""
    running, job = two.job()
    seq = two.me.send(messages.Select((job,)))
    for _ in range(3 * FEW):
        two.me.read(two.ref)
    two.cluster.drop = lambda parcel: isinstance(parcel.message, dcp.PeerReply)
    two.cluster.end(running)
    two.cluster.drop = lambda parcel: False  # noqa: ARG005 - the first answer was lost, the next one is not
    assert isinstance(two.cluster.wait(two.me, seq), messages.Selected)
    two.me.read(two.ref)
    assert len(two.books()[1].answers) <= 1


def test_a_settled_request_that_comes_late_is_not_acted_on(two: Two) -> None:
    """A request that was answered after one that still waits does nothing when it comes once more."""
    waits(two)
    seq, held = two.held_back(messages.WriteOnce(two.ref, b"earlier"))
    two.cluster.wire += held
    two.cluster.wait(two.me, seq)
    two.me.ask(messages.Committed, messages.WriteOnce(two.ref, b"another"))
    two.me.read(two.ref)
    before = two.cluster.snapshot()
    for parcel in held:
        two.there.take(parcel)
    assert not two.cluster.wire
    assert two.cluster.snapshot() == before
    assert two.me.read(two.ref) == b"another"


def test_a_request_that_is_overtaken_is_acted_on(two: Two) -> None:
    """A request that comes after later ones, which name it as waiting, is new."""
    waits(two)
    seq, held = two.held_back(messages.WriteOnce(two.ref, b"overdue"))
    assert two.me.read(two.ref) == b"content"
    assert two.me.read(two.ref) == b"content"
    two.cluster.wire += held
    assert isinstance(two.cluster.wait(two.me, seq), messages.Committed)
    assert two.me.read(two.ref) == b"overdue"


def test_what_was_lost_is_said_again(two: Two) -> None:
    """Of the requests that tell what is settled any may be lost: the next one tells as much."""
    waits(two)
    _, theirs = two.books()
    for _ in range(FEW):
        two.me.read(two.ref)
    known = len(theirs.answers)
    two.cluster.drop = lambda parcel: isinstance(parcel.message, dcp.Ask)
    for _ in range(20):
        two.me.send(messages.ReadOnce(two.ref))
        two.cluster.settle()
    two.cluster.drop = lambda parcel: False  # noqa: ARG005 - nothing is lost any more
    two.cluster.advance(2 * limits.DCP_REPEAT_MS_MAX)
    two.me.read(two.ref)
    two.me.read(two.ref)
    assert len(theirs.answers) <= known


def test_a_call_that_was_given_up_may_come_late(two: Two) -> None:
    """Who gave up a call that still waits over there is not cut off when the request comes once more."""
    job = waits(two)
    seq, held = two.held_back(messages.Select((job,)))
    two.hear(*asks(held))
    (late,) = asks(held)
    _, cancel = two.held_back(messages.Cancel(seq))
    assert two.me.read(two.ref) == b"content"
    deputy = record_of(two.me, two.there)
    assert late.number in deputy.pending
    two.hear(late)
    assert late.number not in two.books()[1].answers
    two.cluster.wire += cancel
    two.cluster.settle()
    assert late.number not in deputy.pending


def test_a_new_start_of_who_asks_counts_anew(two: Two) -> None:
    """What an earlier start of a node has settled says nothing of the requests of the next one."""
    waits(two)
    two.me.read(two.ref)
    two.me.read(two.ref)
    two.cluster.part(two.here, two.there)
    two.here.crash()
    two.cluster.heal()
    assert two.books()[1].settled.waiting == frozenset()
    me = two.cluster.session(two.here)
    assert me.refused(messages.ReadOnce(two.ref)) == Code.EBADF


def test_nothing_is_named_without_need(two: Two) -> None:
    """Where the oldest number says it all, requests name no others."""
    _, held = two.held_back(messages.ReadOnce(two.ref))
    assert [ask.waiting for ask in asks(held)] == [()]
    two.cluster.wire += held
    waits(two)
    two.me.read(two.ref)
    _, held = two.held_back(messages.ReadOnce(two.ref))
    mine, _ = two.books()
    assert [ask.waiting for ask in asks(held)] == [tuple(mine.asked)]


def test_long_lists_are_told_now_and_then() -> None:
    """A request names about DCP_OPEN_NUMBERS_PER_REQUEST numbers on average, however many requests wait."""
    peer = Peer(NodeId(1))
    peer.next_number = 2 * limits.DCP_REQUESTS_MAX + 1
    peer.asked = {number: question(peer, number) for number in range(1, peer.next_number, 2)}
    told = [len(peer.numbers_to_name()) for _ in range(1_000)]
    assert 0 < sum(told) / len(told) <= limits.DCP_OPEN_NUMBERS_PER_REQUEST
    assert max(told) == limits.DCP_REQUESTS_MAX


@settings(deadline=None)
@given(st.data())
def test_what_is_said_in_any_order_is_never_wrong(data: st.DataObject) -> None:
    """Lost, doubled and late, requests settle what was answered, never what waits, and soon all of it."""
    asker, known = Peer(NodeId(1)), Watermark()
    said: list[dcp.Ask] = []
    ever: set[int] = set()

    def toss() -> bool:
        return data.draw(st.booleans())

    for _ in range(data.draw(st.integers(1, 40))):
        if asker.asked and toss():
            del asker.asked[data.draw(st.sampled_from(sorted(asker.asked)))]
        else:
            number = asker.next_number
            asker.next_number += 1
            asker.asked[number] = question(asker, number)
        if asker.asked:
            repeated = data.draw(st.sampled_from(sorted(asker.asked)))
            said.append(dcp.Ask(repeated, next(iter(asker.asked)), BODY, asker.numbers_to_name()))
        if said and toss():
            heard = data.draw(st.sampled_from(said))
            known.learn(heard)
            until = max(heard.waiting, default=heard.settled)
            ever |= set(range(heard.settled)) | (set(range(until)) - set(heard.waiting))
        assert all(known.has(number) for number in ever)
        assert not any(known.has(number) for number in range(asker.next_number, asker.next_number + 3))
        assert not any(known.has(number) for number in asker.asked)
    last = asker.next_number
    asker.next_number += 1
    asker.asked[last] = question(asker, last)
    for _ in range(len(asker.asked) // limits.DCP_OPEN_NUMBERS_PER_REQUEST + 1):
        known.learn(dcp.Ask(last, next(iter(asker.asked)), BODY, asker.numbers_to_name()))
    assert [number for number in range(1, asker.next_number) if not known.has(number)] == list(asker.asked)


def selecting(peer: Peer, principal: str) -> PendingRequest:
    """A request of a principal that may wait for long."""
    caller = dcp.Caller(TaskId(1), Principal(principal), "", Brand.LEGACY, "")
    return PendingRequest(peer, dcp.Forward(caller, messages.Select((1,))), None, None, 0)


def test_principals_take_turns_for_open_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A principal with many waiting calls leaves room for others, whose turns come between its own."""
    monkeypatch.setattr(limits, "DCP_REQUESTS_MAX", 8)
    peer = Peer(NodeId(1))
    for principal in "aaaaaaaaaabbbc":
        request = selecting(peer, principal)
        if peer.may_open(request) and not peer.unsent_lasting.has(request.principal):
            peer.open(request)
        else:
            peer.unsent_lasting.put(request)
    assert peer.lasting == {"a": 4, "b": 2, "c": 1}
    order = []
    while peer.asked:
        peer.take(next(iter(peer.asked)))
        while (unsent := peer.next_to_open()) is not None:
            order.append(unsent.principal)
            peer.open(unsent)
    assert order.index(Principal("b")) < 6
    assert sorted(order) == ["a"] * 6 + ["b"]
    assert not peer.unsent_lasting
    assert not peer.lasting
