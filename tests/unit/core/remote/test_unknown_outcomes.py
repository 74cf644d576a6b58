"""An outcome that is not known is never reported as known: calls through another node that fails (§4.6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from dios import limits
from dios.core import effects, events
from dios.errors import Code
from dios.wire import dcp, messages
from dios.wire.types import Flag, ObjectType, Permission, Semantics
from tests.support.core.cluster import Cluster, Parcel, record_of

Call = Callable[["Away"], messages.AnyCall]

MAYBE: Final = "may have been made"


class Away:
    """A session on the first of two nodes, with a durable object and a buffer of it on the second."""

    def __init__(self) -> None:
        self.cluster = Cluster(("r1", "r1"))
        self.here, self.there = self.cluster.nodes
        self.me = self.cluster.session(self.here)
        self.keeper = self.cluster.session(self.there)
        created = self.keeper.create(ObjectType.DURABLE_BLOB, data=b"content!")
        self.object = created.reference.object
        (reference,) = self.me.lookup(created.name)
        self.ref = reference.ref
        (self.keeper_ref,) = (
            keeper_reference.ref for keeper_reference in self.me.lookup(self.keeper.welcome.name)
        )
        acquired = self.me.ask(messages.Buffer, messages.AcquireWrite(self.ref, 8))
        self.buffer = acquired.buffer
        self.acquired = acquired.v_w

    def restart(self) -> None:
        """Start the second node again, with what is durable."""
        self.cluster.wire.clear()
        self.there.crash()
        self.cluster.connect(self.here, self.there)
        self.cluster.connect(self.there, self.here)

    def silence(self) -> None:
        """Let the second node be silent until the first gives up."""
        self.cluster.part(self.here, self.there)
        self.cluster.advance(limits.DCP_UNCONFIRMED_MS + limits.DCP_PATIENCE_MS, 200)

    def answers_lost(self, parcel: Parcel) -> bool:
        """Lose every answer of the second node."""
        return parcel.sender == self.there.node and isinstance(parcel.message, dcp.PeerReply)


def commit(away: Away) -> messages.AnyCall:
    """A commit."""
    return messages.CommitWrite(away.ref, away.buffer, data=b"changed!")


CHANGES: Final[dict[str, Call]] = {
    "commit": commit,
    "release": lambda away: messages.ReleaseWrite(away.ref, away.buffer, int(Flag.RELEASE_COMMIT)),
    "vector": lambda away: messages.Vector(
        (
            messages.CommitWrite(away.ref, away.buffer, data=b"changed!"),
            messages.ReleaseWrite(away.ref, away.buffer),
        )
    ),
    "commit and acquire": lambda away: messages.CommitAcquireWrite(away.ref, away.buffer, data=b"changed!"),
    "write": lambda away: messages.WriteOnce(away.ref, b"changed!"),
    "create": lambda away: messages.Create(
        ObjectType.DURABLE_BLOB, (away.me.groups[0],), host="n2", data=b"new"
    ),
    "delete": lambda away: messages.Delete(away.ref),
    "destroy": lambda away: messages.Delete(away.ref, int(Flag.DESTROY)),
    "delegate": lambda away: messages.Copy(away.ref, away.keeper_ref, int(Permission.READ)),
    "replicate": lambda away: messages.Copy(away.ref, away.me.self_ref, host="n1"),
    "retire": lambda away: messages.Retire(away.ref),
    "run": lambda away: messages.Run(away.ref, host="n2", flags=int(Flag.NON_BLOCKING)),
}


def failures(answer: object) -> list[messages.Failure]:
    """The failures in an answer, which must not contain anything else."""
    parts = answer.parts if isinstance(answer, effects.AnswerVector) else (answer,)
    results = [part.result if isinstance(part, effects.Answer) else part for part in parts]
    assert all(isinstance(part, messages.Failure) for part in results), results
    return results  # type: ignore[return-value]


@pytest.mark.parametrize("end", [Away.restart, Away.silence])
@pytest.mark.parametrize("call", CHANGES)
def test_a_change_whose_answer_is_lost_may_have_been_made(call: str, end: Callable[[Away], None]) -> None:
    """If the node fails after it has made a change, the caller learns that it may have been made."""
    away = Away()
    away.cluster.drop = away.answers_lost
    seq = away.me.send(CHANGES[call](away))
    away.cluster.settle()
    assert away.me.answer(seq) is None
    away.cluster.drop = lambda parcel: False  # noqa: ARG005 - nothing is lost any more
    end(away)
    outcomes = failures(away.cluster.wait(away.me, seq))
    assert {failure.code for failure in outcomes} == {Code.EHOSTUNREACH}
    assert all(MAYBE in failure.message for failure in outcomes)


@pytest.mark.parametrize("call", CHANGES)
def test_a_change_that_was_never_sent_has_changed_nothing(call: str) -> None:
    """Without a connection from the call to its end, the caller learns that nothing was changed."""
    away = Away()
    away.cluster.part(away.here, away.there)
    seq = away.me.send(CHANGES[call](away))
    away.cluster.advance(limits.DCP_UNCONFIRMED_MS + limits.DCP_PATIENCE_MS, 200)
    outcomes = failures(away.cluster.wait(away.me, seq))
    assert {failure.code for failure in outcomes} == {Code.EHOSTUNREACH}
    assert all("nothing was changed" in failure.message for failure in outcomes)


@pytest.mark.parametrize("call", CHANGES)
def test_a_cancelled_change_may_have_been_made(call: str) -> None:
    """A cancelled call is no conflict if another node has its request: it may have been made."""
    away = Away()
    away.cluster.drop = away.answers_lost
    seq = away.me.send(CHANGES[call](away))
    away.cluster.settle()
    away.me.ask(messages.Done, messages.Cancel(seq))
    (failure,) = failures(away.me.answer(seq))
    assert failure.code == Code.EHOSTUNREACH
    assert MAYBE in failure.message


def test_a_cancelled_read_has_changed_nothing() -> None:
    """A cancelled read on another node answers as one on this node."""
    away = Away()
    away.cluster.drop = away.answers_lost
    seq = away.me.send(messages.ReadOnce(away.ref))
    away.me.ask(messages.Done, messages.Cancel(seq))
    (failure,) = failures(away.me.answer(seq))
    assert failure.code == Code.ECANCELED


@pytest.mark.parametrize("own_call", [False, True], ids=["all refused", "with a local call"])
@pytest.mark.parametrize("end", [Away.restart, Away.silence])
def test_a_vector_on_a_lost_buffer_is_answered(end: Callable[[Away], None], *, own_call: bool) -> None:
    """No request of the vector can be sent, so no other node's answer would end it."""
    away = Away()
    end(away)
    calls: tuple[messages.PlainCall, ...] = (
        messages.CommitWrite(away.ref, away.buffer),
        messages.ReleaseWrite(away.ref, away.buffer),
        *((messages.Stat(away.me.self_ref),) if own_call else ()),
    )
    answer = away.me.call(messages.Vector(calls))
    assert isinstance(answer, effects.AnswerVector)
    results = [part.result for part in answer.parts if isinstance(part, effects.Answer)]
    assert [isinstance(outcome, messages.Failure) for outcome in results] == [True, True, False][: len(calls)]


# -- commit and acquire ---------------------------------------------------------------------------------
def test_a_commit_stands_if_the_request_after_it_is_not_admitted() -> None:
    """The other node answers that the commit was made, which is no fault of that node."""
    away = Away()
    away.keeper.ask(messages.Buffer, messages.AcquireRead(_keepers_ref(away), semantics=Semantics.ANY))
    call = messages.CommitAcquireWrite(away.ref, away.buffer, semantics=Semantics.EXCL, data=b"changed!")
    committed = away.me.ask(messages.Committed, call)
    assert committed.v_w == away.acquired + 1
    assert away.me.read(away.ref) == b"changed!"


@pytest.mark.parametrize("lost", ["buffer", "bytes"])
def test_a_commit_stands_if_the_answer_cannot_be_repeated(lost: str) -> None:
    """The answer to a commit-and-acquire is lost, and what it brought is gone: the commit stands.

    In place of a conflict, which would mean that nothing was changed, the caller learns the new versions; no
    request of its stays active.
    """
    away = Away()
    away.cluster.drop = away.answers_lost
    call = messages.CommitAcquireWrite(away.ref, away.buffer, semantics=Semantics.ANY, data=b"changed!")
    seq = away.me.send(call)
    away.cluster.settle()
    target = away.there.core.state.objects[away.object]  # type: ignore[index]
    if lost == "buffer":
        record = record_of(away.me, away.there)
        for buffer in list(record.buffers):
            away.there.step(events.EffectFailed(away.there.now, record.id, buffer, target.id, 12, ""))
    else:
        away.keeper.call(messages.WriteOnce(_keepers_ref(away), b"in between", semantics=Semantics.ANY))
    away.cluster.drop = lambda parcel: False  # noqa: ARG005 - nothing is lost any more
    answer = away.cluster.wait(away.me, seq)
    assert isinstance(answer, messages.Committed), answer
    assert answer.v_w == away.acquired + 1
    assert target.a_w == 0


def test_a_read_that_cannot_be_repeated_stays_not_active() -> None:
    """A lost answer to an acquire, whose bytes have changed since, leaves no request that blocks others."""
    away = Away()
    away.me.ask(messages.Done, messages.ReleaseWrite(away.ref, away.buffer))
    away.cluster.drop = away.answers_lost
    seq = away.me.send(messages.AcquireRead(away.ref, semantics=Semantics.ANY))
    away.cluster.settle()
    away.keeper.call(messages.WriteOnce(_keepers_ref(away), b"in between", semantics=Semantics.ANY))
    away.cluster.drop = lambda parcel: False  # noqa: ARG005 - nothing is lost any more
    (failure,) = failures(away.cluster.wait(away.me, seq))
    assert failure.code == Code.ECANCELED
    assert away.there.core.state.objects[away.object].a_r == 0  # type: ignore[index]


def test_a_commit_stands_if_the_reference_was_dropped_meanwhile() -> None:
    """The caller drops the reference while its commit is under way: the answer is that of the commit."""
    away = Away()
    away.cluster.drop = away.answers_lost
    seq = away.me.send(commit(away))
    away.me.send(messages.Delete(away.ref, int(Flag.HANDLE_ONLY)))
    away.cluster.drop = lambda parcel: False  # noqa: ARG005 - nothing is lost any more
    answer = away.cluster.wait(away.me, seq)
    assert isinstance(answer, messages.Committed), answer


# -- messages that are late -------------------------------------------------------------------------------
def test_messages_are_for_one_start_of_a_node() -> None:
    """A request or an answer names the start that it is for: later numbers mean other requests."""
    away = Away()
    away.me.send(commit(away))
    away.cluster.settle()
    sent = [
        effect for node in away.cluster.nodes for effect in node.effects if isinstance(effect, effects.Send)
    ]
    numbered = [effect for effect in sent if isinstance(effect.message, dcp.Ask | dcp.PeerReply)]
    assert numbered
    assert all(effect.epoch == 1 for effect in numbered)


def test_a_repeat_is_known_before_it_is_handled() -> None:
    """The host learns that a request was handled before, so that it does not refuse the repeat."""
    away = Away()
    peer = away.here.core.state.cluster.peer(away.there.node)  # type: ignore[union-attr]
    number = peer.next_number
    assert not away.there.core.has_request(away.here.node, number)
    away.cluster.drop = away.answers_lost
    away.me.send(commit(away))
    away.cluster.settle()
    assert away.there.core.has_request(away.here.node, number)
    assert not away.here.core.has_request(away.there.node, 10**6)


def _name_of(away: Away) -> bytes | None:
    return away.there.core.state.objects[away.object].name  # type: ignore[index]


def _keepers_ref(away: Away) -> int:
    (reference,) = away.keeper.lookup(_name_of(away))
    return reference.ref


@pytest.mark.parametrize("call", CHANGES)
def test_a_change_may_have_been_made_when_its_callers_node_stops(call: str) -> None:
    """A node that stops knows nothing about the calls that wait for others, and refuses new ones."""
    away = Away()
    away.cluster.drop = away.answers_lost
    seq = away.me.send(CHANGES[call](away))
    away.cluster.settle()
    away.here.step(events.ShutdownBegan(away.here.now))
    (failure,) = failures(away.me.answer(seq))
    assert failure.code == Code.EHOSTUNREACH
    assert MAYBE in failure.message
    (refused,) = failures(away.me.answer(away.me.send(CHANGES[call](away))))
    assert "nothing was changed" in refused.message


def test_a_change_on_a_dead_node_is_not_made() -> None:
    """A call that names a dead node is refused before anything is sent."""
    away = Away()
    away.cluster.part(away.here, away.there)
    away.cluster.advance(60_000, 500)
    (failure,) = failures(away.cluster.call(away.me, CHANGES["create"](away)))
    assert failure.code == Code.EHOSTUNREACH
    assert "nothing was changed" in failure.message
