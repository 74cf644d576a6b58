"""Requests between nodes when messages are lost, doubled, late and out of order (thesis §4.6, §4.8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dios import limits
from dios.core import effects, events
from dios.errors import Code, ProtocolError
from dios.ids import Name, PayloadId
from dios.wire import dcp, messages
from dios.wire.types import Cause, Flag, NameKind, NodeWish, ObjectType, Permission
from tests.support.core.cluster import Citizen, Cluster, Parcel
from tests.support.core.two_nodes import Two

BODIES = (
    dcp.Forward, dcp.Resolve, dcp.Offer, dcp.Delegate, dcp.ReferenceGiven, dcp.Start, dcp.CreateReplica,
    dcp.Release, dcp.TasksEnded, dcp.DeliverEvent, dcp.ReconcileReferences, dcp.Disband, dcp.Rows,
    dcp.KeepOutput, dcp.ConfirmRemoval, dcp.CallBack,
)  # fmt: skip


class Story:
    """Something of everything, with every kind of request in it; and how everything stands then."""

    def __init__(self, drop: Callable[[Parcel], bool], again: Callable[[Parcel], int]) -> None:
        self.cluster = cluster = Cluster()
        self.again = again
        self.asked: set[type] = set()
        self.late: list[Parcel] = []
        cluster.drop = drop
        self._double()
        self.first, self.second, self.third = (cluster.session(node) for node in cluster.nodes)
        self.tell()
        for number, node in enumerate(cluster.nodes):
            # Every node takes in each of these once more, long after it was answered.
            for parcel in [delayed for delayed in self.late if delayed.to == node.node]:
                node.take(parcel)
            assert number < 3
        cluster.settle()
        cluster.drop = lambda parcel: False  # noqa: ARG005 - what is told from now on arrives
        cluster.advance(1_000, 250)
        cluster.check()

    def _double(self) -> None:
        """Put whatever is said into the wire as often as ``again`` says."""
        post = self.cluster.post

        def many(sender: object, to: object, message: dcp.Message, beside: bytes = b"") -> None:
            before = len(self.cluster.wire)
            post(sender, to, message, beside)  # type: ignore[arg-type]
            for parcel in self.cluster.wire[before:]:
                if isinstance(message, dcp.Ask):
                    self.asked.add(type(message.body))
                copies = self.again(parcel)
                self.cluster.wire += [parcel] * copies
                self.late += [parcel] * bool(copies)

        self.cluster.post = many  # type: ignore[method-assign, assignment]

    def ask(self, who: Citizen, call: messages.AnyCall) -> object:
        """A call that must be done, whatever happens to messages."""
        answer = self.cluster.call(who, call)
        assert not isinstance(answer, messages.Failure), answer
        return answer

    def tell(self) -> None:
        """Something of everything."""
        first, two, three, cluster = self.first, self.second, self.third, self.cluster
        created = two.create(data=b"of two")
        (reference,) = first.lookup(created.name)
        self.ask(first, messages.WriteOnce(reference.ref, b"ONE"))
        two.node.inline_bytes = 64
        for _ in range(3):
            self.ask(first, messages.ReadOnce(reference.ref))  # the last time with a lease
        self.ask(two, messages.WriteOnce(created.reference.ref, b"TWO"))
        two.node.inline_bytes = 0
        self.ask(first, messages.Create(ObjectType.SHMEM_BLOB, (first.groups[0],), host="n3", data=b"placed"))
        (of_three,) = first.lookup(three.welcome.name) or (None,)
        if of_three is None:
            raise AssertionError("the third node's session is not found")
        self.ask(
            first, messages.Copy(reference.ref, of_three.ref, int(Permission.READ | Permission.DELEGATE))
        )
        self.ask(first, messages.Copy(reference.ref, first.self_ref, host="n3"))
        group = self.ask(two, messages.Create(ObjectType.GROUP, (two.groups[0],)))
        assert isinstance(group, messages.Created)
        self.ask(two, messages.Delete(group.reference.ref, int(Flag.DESTROY)))
        program = first.create(name_kind=NameKind.ANONYMOUS, data=b"pass")
        handed = (messages.Handed(reference.ref, int(Permission.READ)),)
        run = messages.Run(program.reference.ref, inputs=handed, host="n3", flags=int(Flag.NON_BLOCKING))
        child = self.ask(first, run)
        assert isinstance(child, messages.Created)
        (job,) = cluster.start_spawned()
        self.ask(job, messages.ReadOnce(job.welcome.inputs[0].ref))
        cluster.nodes[2].payloads[9] = b"said"
        cluster.nodes[2].step(events.TaskEnded(cluster.now, job.task, Cause.EXITED))
        cluster.nodes[2].step(events.LogLeft(cluster.now, job.task, PayloadId(9), 4))
        self.ask(first, messages.ReadOnce(child.reference.ref))
        self.ask(first, messages.Retire(reference.ref))
        self.ask(first, messages.ListTasks())
        self.ask(first, messages.Delete(of_three.ref, int(Flag.HANDLE_ONLY)))
        cluster.connect(cluster.nodes[0], cluster.nodes[1])  # anew: they say what they hold
        last = cluster.session(cluster.nodes[0])
        last.lookup(created.name)
        last.node.step(events.Disconnected(cluster.now, last.task))
        cluster.advance(1_000, 250)
        self.ask(first, messages.SetNode("n3", NodeWish.FORGET))

    def ending(self) -> list[object]:
        """How everything stands, without ids."""
        summary: list[object] = []
        for node in self.cluster.nodes:
            state = node.core.state
            summary.append(
                sorted(
                    (str(physical.type), physical.size, physical.v_r, physical.v_w)
                    for physical in state.objects.values()
                )
            )
            summary.append(
                sorted((task.label, str(task.cause), len(task.events)) for task in state.tasks.values())
            )
            summary += [
                sorted(len(task.table) for task in table.values())
                for table in (state.tasks, state.remote_tasks)
            ]
            summary.append(sorted(account.used for account in state.principals.values()))
            summary.append(sorted(node.contents.values()))
        return summary


def never(parcel: Parcel) -> bool:
    """Nothing is lost."""
    del parcel
    return False


def once(parcel: Parcel) -> int:
    """Nothing is doubled."""
    del parcel
    return 0


@pytest.fixture(scope="module")
def undisturbed() -> Story:
    """The story with every message said once and heard."""
    return Story(never, once)


def test_the_story_has_every_kind_of_request(undisturbed: Story) -> None:
    """What is claimed of the story is claimed of every kind of request."""
    # The index of names needs more nodes; test_name_index.py has its requests.
    in_large_clusters = {dcp.Register, dcp.FindNames}
    assert undisturbed.asked == set(BODIES) == set(dcp.RequestBody.__args__) - in_large_clusters


def is_of(parcel: Parcel, kind: type) -> bool:
    """Whether it is a request of this kind."""
    return isinstance(parcel.message, dcp.Ask) and isinstance(parcel.message.body, kind)


@pytest.mark.parametrize("kind", BODIES)
def test_a_repeat_never_acts_twice(undisturbed: Story, kind: type) -> None:
    """Each request comes three times at once, and once more after everything: it is acted on once."""
    story = Story(never, lambda parcel: 2 * is_of(parcel, kind))
    assert story.ending() == undisturbed.ending()


@pytest.mark.parametrize("kind", BODIES)
def test_a_lost_request_is_made_again(undisturbed: Story, kind: type) -> None:
    """The first of two copies of each request is lost: what is asked for is done all the same."""
    seen: dict[tuple[int, int, int], int] = {}

    def first(parcel: Parcel) -> bool:
        if not is_of(parcel, kind):
            return False
        assert isinstance(parcel.message, dcp.Ask)
        key = (parcel.sender, parcel.to, parcel.message.number)
        seen[key] = seen.get(key, 0) + 1
        return seen[key] == 1

    assert Story(first, once).ending() == undisturbed.ending()


@pytest.mark.parametrize("kind", BODIES)
def test_a_lost_answer_is_given_again(undisturbed: Story, kind: type) -> None:
    """The first answer to each request is lost: the repeat is answered from memory, and acts on nothing."""
    kinds: dict[tuple[int, int, int], int] = {}

    def answers(parcel: Parcel) -> bool:
        message = parcel.message
        if isinstance(message, dcp.Ask) and isinstance(message.body, kind):
            kinds.setdefault((parcel.to, parcel.sender, message.number), 0)
        if not isinstance(message, dcp.PeerReply):
            return False
        key = (parcel.sender, parcel.to, message.number)
        if key in kinds:
            kinds[key] += 1
        return kinds.get(key) == 1

    assert Story(answers, once).ending() == undisturbed.ending()


# -- the memory of answers ----------------------------------------------------------------------------
@pytest.fixture
def two() -> Two:
    """Two nodes."""
    return Two()


def test_answers_are_forgotten_once_they_arrived(two: Two) -> None:
    """However many requests were made, the memory has the answers of the last ones only."""
    for _ in range(50):
        two.me.read(two.ref)
    mine, theirs = two.books()
    assert not mine.asked
    assert len(theirs.answers) <= 2


def test_more_requests_than_may_be_open_wait(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls beyond DCP_REQUESTS_MAX wait here, and are made when others are over."""
    monkeypatch.setattr(limits, "DCP_REQUESTS_MAX", 6)
    (job,) = two.me.lookup(two.keeper.run().welcome.name)
    mine, _ = two.books()
    waiting = [two.me.send(messages.Select((job.ref,))) for _ in range(10)]
    two.cluster.settle()
    assert (len(mine.asked), len(mine.unsent_lasting)) == (3, 7)
    assert two.me.read(two.ref) == b"content"  # brief calls have room
    for seq in waiting[5:]:
        assert two.me.ask(messages.Done, messages.Cancel(seq)).value == 1
    assert len(mine.unsent_lasting) == 2
    for seq in waiting[:5]:
        assert two.me.ask(messages.Done, messages.Cancel(seq)).value == 1
    assert (len(mine.asked), len(mine.unsent_lasting), mine.lasting) == (0, 0, {})


def test_unsent_requests_end_with_their_node(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls that wait to be sent fail with the others when their node does not answer any more."""
    monkeypatch.setattr(limits, "DCP_REQUESTS_MAX", 4)
    mine, _ = two.books()
    two.cluster.drop = lambda parcel: isinstance(parcel.message, dcp.Ask)
    waiting = [two.me.send(messages.ReadOnce(two.ref)) for _ in range(9)]
    assert len(mine.unsent_brief) == 5
    for seq in waiting:
        answer = two.cluster.wait(two.me, seq, limits.DCP_UNCONFIRMED_MS + 2_500)
        assert isinstance(answer, messages.Failure)
        assert answer.code == Code.EHOSTUNREACH
    assert not mine.unsent_brief


def test_who_asks_without_end_is_cut_off(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that never says that answers arrived cannot fill the other's memory."""
    monkeypatch.setattr(limits, "DCP_REQUESTS_MAX", 8)
    _, theirs = two.books()
    first = theirs.settled.below + 1_000
    asked = [dcp.Ask(number, 0, dcp.Disband(Name(bytes(32)))) for number in range(first, first + 100)]
    with pytest.raises(ProtocolError, match="at once"):
        two.hear(*asked)
    assert len(theirs.answers) <= 16


def test_a_late_answer_is_nothing(two: Two) -> None:
    """An answer that comes when the call was given up, or was answered before, changes nothing."""
    seq, held = two.held_back(messages.ReadOnce(two.ref))
    assert two.me.ask(messages.Done, messages.Cancel(seq)).value == 1
    for parcel in held:
        two.there.take(parcel)
    replies = list(two.cluster.wire)
    two.cluster.settle()
    for parcel in replies:
        before = two.cluster.snapshot()
        two.here.take(parcel)
        assert two.cluster.snapshot() == before
    assert isinstance(two.me.answer(seq), messages.Failure)


def test_an_answer_to_what_was_never_asked(two: Two) -> None:
    """It costs the connection, and changes nothing."""
    before = two.cluster.snapshot()
    mine, _ = two.books()
    with pytest.raises(ProtocolError, match="never made"):
        two.here.take(
            Parcel(two.there.node, two.here.node, 1, dcp.PeerReply(mine.next_number, messages.Done()), b"")
        )
    assert two.cluster.snapshot() == before


def test_silence_ends_in_an_error(two: Two) -> None:
    """Who gets no answer gets EHOSTUNREACH within the patience, though the connection stands."""
    two.cluster.drop = lambda parcel: isinstance(parcel.message, dcp.Ask)
    answer = two.cluster.wait(
        two.me, two.me.send(messages.ReadOnce(two.ref)), limits.DCP_UNCONFIRMED_MS + 2_500
    )
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EHOSTUNREACH


def test_who_works_on_it_is_waited_for(two: Two) -> None:
    """A call that takes longer than the patience is answered, for the other node says that it is at it."""
    job = two.keeper.run()
    (reference,) = two.me.lookup(job.welcome.name)
    seq = two.me.send(messages.Select((reference.ref,)))
    two.cluster.advance(3 * limits.DCP_UNCONFIRMED_MS, 200)
    assert two.me.answer(seq) is None
    two.cluster.end(job)
    assert two.me.answer(seq) == messages.Selected(0)


def test_a_repeat_reads_what_the_first_one_read(two: Two) -> None:
    """Where the answer was lost and the object written since, the caller is told to ask again."""
    two.cluster.drop = lambda parcel: isinstance(parcel.message, dcp.PeerReply)
    seq = two.me.send(messages.ReadOnce(two.ref))
    two.cluster.settle()
    two.keeper.ask(messages.Committed, messages.WriteOnce(two.ref_there, b"other"))
    two.cluster.drop = never
    answer = two.cluster.wait(two.me, seq)
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.ECANCELED


def test_a_new_start_is_another_node(two: Two) -> None:
    """What was asked of the start before is unreachable; what that start said, and comes late, is nothing."""
    seq, held = two.held_back(messages.ReadOnce(two.ref))
    for parcel in held:
        two.there.take(parcel)
    late, two.cluster.wire = list(two.cluster.wire), []
    two.there.crash()
    two.cluster.connect(two.here, two.there)
    two.cluster.connect(two.there, two.here)
    answer = two.cluster.wait(two.me, seq)
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EHOSTUNREACH
    before = two.cluster.snapshot()
    for parcel in late:
        two.here.take(parcel)
    assert two.cluster.snapshot() == before


def test_an_earlier_start_is_hung_up_on(two: Two) -> None:
    """Two starts of one node at once: who comes with the earlier number is not served."""
    two.there.crash()
    two.cluster.connect(two.here, two.there)
    two.here.step(events.PeerUp(two.here.now, two.there.node, 1, "n2", "r1", "10.0.0.2:7117"))
    assert any(isinstance(effect, effects.HangUp) for effect in two.here.outcome.after)
