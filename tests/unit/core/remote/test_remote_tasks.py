"""Tasks on other nodes: handed what is anywhere, told of, controlled, lost with their node, and listed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dios import limits
from dios.core import effects, events
from dios.errors import Code
from dios.ids import NodeId, Principal
from dios.wire import dcp, messages
from dios.wire.codec import decode_status
from dios.wire.types import (
    Brand,
    Cause,
    Fitness,
    Flag,
    NameKind,
    NodeStatus,
    NodeWish,
    ObjectType,
    Permission,
    Resource,
    TaskState,
)
from tests.support.core.cluster import Citizen, Cluster, ClusterNode, Parcel

READ = int(Permission.READ)


class Workshop:
    """A parent on the first node, and an object on each that it has a reference to."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.nodes = self.cluster.nodes
        self.parent = self.cluster.session(self.nodes[0])
        self.keepers = [self.cluster.session(node) for node in self.nodes]
        blobs = [keeper.create(data=b"of %d" % (place + 1)) for place, keeper in enumerate(self.keepers)]
        self.refs = [self.parent.lookup(blob.name)[0].ref for blob in blobs]
        self.program = self.parent.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
        self.cluster.settle()

    def call(self, host: str, inputs: list[int]) -> messages.Run:
        """A run on a node with these inputs."""
        handed = tuple(messages.Handed(ref, READ) for ref in inputs)
        flags = int(Flag.NON_BLOCKING | (Flag.SPAWN_LOCAL if not host else Flag.NONE))
        return messages.Run(self.program, inputs=handed, host=host, flags=flags, label="job")

    def run(self, host: str, inputs: list[int] | None = None) -> tuple[messages.Reference, Citizen]:
        """A task that runs on a node, as its parent refers to it, and as itself."""
        created = self.parent.ask(messages.Created, self.call(host, inputs or []))
        (job,) = self.cluster.start_spawned()
        return created.reference, job

    def counts(self) -> list[tuple[int, int, int, int]]:
        """References, tasks and deputies of each node."""
        self.cluster.settle()
        rows = []
        for node in self.nodes:
            state = node.core.state
            held = sum(len(physical.references) for physical in state.objects.values())
            rows.append((held, len(state.tasks), len(state.remote_tasks), len(state.objects)))
        return rows


@pytest.fixture
def shop() -> Workshop:
    """Three nodes."""
    return Workshop()


# -- starting -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("host", ["", "n1", "n2", "n3"])
@pytest.mark.parametrize("inputs", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_a_task_reads_what_it_is_handed(shop: Workshop, host: str, inputs: tuple[int, ...]) -> None:
    """Wherever it runs and wherever its inputs are, it has exactly them, with the rights it was given."""
    _, job = shop.run(host, [shop.refs[place] for place in inputs])
    assert job.node.node == int(host[1:] or 1)
    assert [job.read(reference.ref) for reference in job.welcome.inputs] == [
        b"of %d" % (place + 1) for place in inputs
    ]
    assert {reference.permissions for reference in job.welcome.inputs} == {READ}
    assert job.welcome.executable is not None
    assert job.read(job.welcome.executable.ref) == b"pass"
    shop.cluster.end(job)
    shop.cluster.advance(100)
    shop.cluster.check()


@pytest.mark.parametrize(
    ("source", "home", "taken"),
    [(b"pass", 1, True), (b"pass more", 1, False), (b"of 3", 3, False)],
    ids=["of its node", "of another size", "of another node"],
)
def test_a_task_gets_the_program_from_the_node_of_it_alone(
    shop: Workshop, source: bytes, home: int, *, taken: bool
) -> None:
    """The content comes with the start, if it has the size of the program and is from the program's node."""
    program = shop.program if home == 1 else shop.refs[2]
    posted = shop.cluster.post

    def post(sender: ClusterNode, to: NodeId, message: dcp.Message, beside: bytes = b"") -> None:
        if isinstance(message, dcp.Ask) and isinstance(message.body, dcp.Start):
            message = replace(message, body=replace(message.body, source=source))
        posted(sender, to, message, beside)

    shop.cluster.post = post  # type: ignore[method-assign, assignment] # as the host of the sending node adds it
    shop.parent.ask(messages.Created, messages.Run(program, host="n2", flags=int(Flag.NON_BLOCKING)))
    (job,) = shop.cluster.start_spawned()
    assert job.welcome.program == (source if taken else None)


@pytest.mark.parametrize("host", ["", "n2", "n3"])
def test_a_run_that_fails_takes_everything_back(shop: Workshop, host: str) -> None:
    """Where a node that has an input does not answer, no task is started and nothing handed remains."""
    before = shop.counts()
    others = [node for node in shop.nodes[1:] if f"n{node.node}" != host]
    victim = others[-1]
    shop.cluster.drop = lambda parcel: parcel.to == victim.node
    answer = shop.parent.call(shop.call(host, shop.refs))
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EHOSTUNREACH
    assert not shop.cluster.spawned
    shop.cluster.drop = lambda parcel: False  # noqa: ARG005 - all is well again
    shop.cluster.advance(3_000, 100)  # before the nodes compare what they hold
    assert [counts[0] for counts in shop.counts()] == [counts[0] for counts in before]
    shop.cluster.check()


@pytest.mark.parametrize("inputs", [(0,), (1,), (0, 1, 2)])
def test_a_run_that_is_refused_over_there_takes_everything_back(
    shop: Workshop, inputs: tuple[int, ...]
) -> None:
    """A limit of the principal on the node that would run it holds, and what was offered is taken back."""
    run = shop.run("n2")[1]
    shop.cluster.end(run)
    state = shop.nodes[1].core.state
    state.account_of(Principal("uid:1000")).bind((messages.Bound(Resource.TASKS, 0),))
    before = shop.counts()
    failure = shop.parent.ask(messages.Failure, shop.call("n2", [shop.refs[place] for place in inputs]))
    assert failure.code == Code.EDQUOT
    assert [row[0] for row in shop.counts()] == [row[0] for row in before]
    # An empty deputy of a task that never was goes when the nodes compare.
    shop.cluster.advance(limits.RECONCILE_PERIOD_MS + limits.RECONCILE_YOUNG_MS + 1_000, 1_000)
    assert shop.counts() == before


def test_a_right_that_is_not_had_is_not_handed(shop: Workshop) -> None:
    """An input that may not be delegated is EPERM, and nothing changes on any node."""
    copy = messages.Copy(shop.refs[1], shop.parent.self_ref, READ)
    (narrow,) = shop.parent.ask(messages.References, copy).references
    assert shop.parent.refused(shop.call("n3", [narrow.ref])) == Code.EPERM


def test_unknown_and_dead_hosts(shop: Workshop) -> None:
    """A run on a node that nobody knows, or that is dead, is EHOSTUNREACH, and nothing changes."""
    assert shop.parent.refused(shop.call("n9", [])) == Code.EHOSTUNREACH
    for node in shop.nodes[:2]:
        shop.cluster.part(node, shop.nodes[2])
    shop.cluster.advance(6_000, 100)
    assert shop.parent.refused(shop.call("n3", [])) == Code.EHOSTUNREACH


# -- control and ends ---------------------------------------------------------------------------------
def test_its_end_is_told_once_with_its_cause(shop: Workshop) -> None:
    """The parent finds one event, which says how it ended, and on which node; its end can be read."""
    reference, job = shop.run("n3")
    shop.cluster.end(job, Cause.MEMORY)
    event = shop.parent.event()
    assert isinstance(event, messages.ChildEnded)
    assert event.object == reference.object
    assert (event.status.cause, event.status.node, event.status.label) == (Cause.MEMORY, "n3", "job")
    assert shop.parent.read(reference.ref)
    shop.cluster.advance(limits.RECONCILE_PERIOD_MS + 100, 1_000)
    assert not shop.nodes[0].core.state.tasks[shop.parent.task].events


def test_it_is_ended_from_afar(shop: Workshop) -> None:
    """DESTROY ends the task over there, as killed by who had the right."""
    reference, job = shop.run("n2")
    shop.parent.ask(messages.Done, messages.Delete(reference.ref, int(Flag.DESTROY)))
    shop.cluster.end(job, Cause.SIGNAL)
    event = shop.parent.event()
    assert isinstance(event, messages.ChildEnded)
    assert event.status.cause is Cause.KILLED


def test_it_is_suspended_from_afar(shop: Workshop) -> None:
    """Pause and resume reach the task on its node, and its state says so."""
    reference, job = shop.run("n2")
    task = job.node.core.state.tasks[job.task]
    states = []
    for call in (messages.Pause(reference.ref), messages.Resume(reference.ref)):
        shop.parent.ask(messages.Done, call)
        states.append(task.state)
    assert states == [TaskState.PAUSED, TaskState.RUNNING]


def test_its_console_is_seen_from_afar(shop: Workshop) -> None:
    """A reference to the console of a task on another node is to read only, and ends with the task."""
    reference, job = shop.run("n2")
    (console,) = shop.parent.ask(messages.References, messages.ConsoleOf(reference.ref)).references
    assert (console.type, console.permissions) == (ObjectType.CONSOLE_STREAM, READ)
    assert shop.parent.refused(messages.WriteOnce(console.ref, b"x")) == Code.EPERM
    detail = shop.parent.ask(messages.TaskDetail, messages.Describe(reference.ref))
    assert (detail.status.label, detail.status.node) == ("job", "n2")
    shop.cluster.end(job)


@pytest.mark.parametrize("host", ["n1", "n3"])
def test_a_child_ends_with_its_session(shop: Workshop, host: str) -> None:
    """A child that a session did not detach ends with it, on this node and on another one."""
    parent = shop.parent
    flags = int(Flag.NON_BLOCKING | Flag.WITH_SESSION)
    call = messages.Run(shop.program, (), (messages.Handed(shop.refs[1], READ),), host=host, flags=flags)
    parent.ask(messages.Created, call)
    (child,) = shop.cluster.start_spawned()
    parent.node.step(events.Disconnected(shop.cluster.now, parent.task))
    shop.cluster.settle()
    assert shop.nodes[int(host[1:]) - 1].core.state.tasks[child.task].cause is Cause.KILLED


@pytest.mark.parametrize("brand", [Brand.PURE, Brand.LEGACY])
def test_children_of_who_ends(shop: Workshop, brand: Brand) -> None:
    """A task's child on another node ends with it; what a person's process detached lives on."""
    parent = shop.parent
    if brand is Brand.PURE:
        _, parent = shop.run("n1")
    program = parent.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    call = messages.Run(program, host="n3", label="child", flags=int(Flag.NON_BLOCKING))
    parent.ask(messages.Created, call)
    (child,) = shop.cluster.start_spawned()
    if brand is Brand.PURE:
        shop.cluster.end(parent)
    else:
        parent.node.step(events.Disconnected(shop.cluster.now, parent.task))
    shop.cluster.settle()
    cause = shop.nodes[2].core.state.tasks[child.task].cause
    assert cause is (Cause.KILLED if brand is Brand.PURE else Cause.NONE)


# -- lost ---------------------------------------------------------------------------------------------
def lose(shop: Workshop, node: ClusterNode) -> None:
    """Nobody reaches the node any more, until all know that it is dead."""
    for other in shop.nodes:
        if other is not node:
            shop.cluster.part(other, node)
    shop.cluster.advance(6_000, 100)


def test_a_lost_child_is_told_once_and_ended(shop: Workshop) -> None:
    """When its node is dead the parent is told NODE_LOST, once; when that is back, the task is ended."""
    reference, job = shop.run("n3")
    lose(shop, shop.nodes[2])
    event = shop.parent.event()
    assert isinstance(event, messages.ChildEnded)
    assert (event.status.cause, event.status.node) == (Cause.NODE_LOST, "n3")
    assert shop.parent.ask(messages.Selected, messages.Select((reference.ref,))).index == 0
    assert shop.parent.read(reference.ref)
    shop.cluster.heal()
    shop.cluster.advance(1_000, 100)
    assert job.node.core.state.tasks[job.task].cause is Cause.KILLED
    shop.cluster.end(job, Cause.SIGNAL)
    shop.cluster.advance(limits.RECONCILE_PERIOD_MS + 100, 1_000)
    assert not shop.nodes[0].core.state.tasks[shop.parent.task].events


def test_a_child_that_ended_while_its_parent_was_away(shop: Workshop) -> None:
    """Its end is told when the parent's node is back in time, as it was and not as lost, if that is all."""
    _, job = shop.run("n3")
    shop.cluster.part(shop.nodes[0], shop.nodes[2])
    job.node.step(events.TaskEnded(shop.cluster.now, job.task, Cause.EXITED, 3))
    shop.cluster.advance(500, 100)
    shop.cluster.heal()
    shop.cluster.advance(1_000, 100)
    event = shop.parent.event()
    assert isinstance(event, messages.ChildEnded)
    assert (event.status.cause, event.status.exit_code) == (Cause.EXITED, 3)


def test_a_node_that_started_anew_has_lost_its_tasks(shop: Workshop) -> None:
    """A restart of the node that ran it is the end of the child, told as NODE_LOST."""
    shop.run("n3")
    shop.nodes[2].crash()
    for other in shop.nodes[:2]:
        shop.cluster.connect(other, shop.nodes[2])
        shop.cluster.connect(shop.nodes[2], other)
    shop.cluster.settle()
    event = shop.parent.event()
    assert isinstance(event, messages.ChildEnded)
    assert event.status.cause is Cause.NODE_LOST


# -- nodes for people ---------------------------------------------------------------------------------
def anywhere(shop: Workshop, brand: Brand = Brand.PURE) -> int:
    """On which node a task runs that names none."""
    call = messages.Run(shop.program, label="job", brand=brand, flags=int(Flag.NON_BLOCKING))
    shop.parent.ask(messages.Created, call)
    (job,) = shop.cluster.start_spawned()
    return int(job.node.node)


def test_limbo_tasks_stay_until_the_owner_lets_in_those_of_others(shop: Workshop) -> None:
    """Without a scheduler, too, a run that names no node goes only where it is let in."""
    for node in shop.nodes:
        node.step(events.LoadMeasured(node.now, 1 << 30))
    shop.cluster.advance(2_000, 100)
    assert {anywhere(shop, Brand.LIMBO) for _ in range(3)} == {1}
    elsewhere = messages.Run(shop.program, host="n2", brand=Brand.LIMBO, flags=int(Flag.NON_BLOCKING))
    refusal = shop.parent.ask(messages.Failure, elsewhere)
    assert (refusal.code, "n2 starts tasks" in refusal.message) == (Code.EPERM, True)
    for node in shop.nodes:
        node.let_limbo_in()
    assert {anywhere(shop, Brand.LIMBO) for _ in range(6)} == {1, 2, 3}


def test_tasks_spread_over_the_nodes(shop: Workshop) -> None:
    """Runs that name no node go to the least loaded one, counting what was sent there already."""
    for node in shop.nodes:
        node.step(events.LoadMeasured(node.now, 1 << 30))
    shop.cluster.advance(2_000, 100)
    assert sorted(anywhere(shop) for _ in range(6)) == [1, 1, 2, 2, 3, 3]


def test_a_draining_node_gets_no_task(shop: Workshop) -> None:
    """Drained from anywhere, a node is given nothing that names no node, until that is taken back."""
    for node in shop.nodes:
        node.step(events.LoadMeasured(node.now, 1 << 30))
    shop.parent.ask(messages.Nodes, messages.SetNode("n3", NodeWish.DRAIN))
    shop.cluster.advance(2_000, 100)
    assert 3 not in {anywhere(shop) for _ in range(5)}
    assert shop.run("n3")[1].node is shop.nodes[2]
    shop.parent.ask(messages.Nodes, messages.SetNode("n3", NodeWish.UNDRAIN))
    shop.cluster.advance(2_000, 100)
    assert 3 in {anywhere(shop) for _ in range(5)}


def test_an_unfit_node_gets_no_pure_task(shop: Workshop) -> None:
    """All nodes see that it is unfit; a caller that insists is refused; the node may recover."""
    for node in shop.nodes:
        node.step(events.LoadMeasured(node.now, 1 << 30))
    unfit = shop.nodes[2]
    unfit.step(events.FitnessChanged(unfit.now, Fitness.UNFIT, "it lacks landlock"))
    shop.cluster.advance(2_000, 100)
    rows = shop.parent.ask(messages.Nodes, messages.ListNodes()).nodes
    assert {row.name: row.fitness for row in rows}["n3"] is Fitness.UNFIT
    assert 3 not in {anywhere(shop) for _ in range(5)}
    run = messages.Run(shop.program, host="n3", flags=int(Flag.NON_BLOCKING))
    refused = shop.parent.ask(messages.Failure, run)
    assert (refused.code, "it lacks landlock" in refused.message) == (Code.ENOSYS, True)
    unfit.let_limbo_in()
    shop.parent.ask(messages.Created, replace(run, brand=Brand.LIMBO))
    shop.cluster.start_spawned()
    unfit.step(events.FitnessChanged(unfit.now, Fitness.FIT))
    shop.cluster.advance(2_000, 100)
    assert shop.run("n3")[1].node is unfit


def test_a_node_that_does_not_know_yet_is_the_second_choice(shop: Workshop) -> None:
    """It gets no task while others are fit, and the run of a caller that insists waits there."""
    for node in shop.nodes:
        node.step(events.LoadMeasured(node.now, 1 << 30))
    shop.nodes[2].step(events.FitnessChanged(shop.nodes[2].now, Fitness.UNKNOWN, "the probe runs"))
    shop.cluster.advance(2_000, 100)
    assert 3 not in {anywhere(shop) for _ in range(5)}
    assert shop.run("n3")[1].node is shop.nodes[2]


def test_a_forgotten_node_is_nobody(shop: Workshop) -> None:
    """After forget its references are gone, it is in no list, and it is hung up on, everywhere."""
    shop.run("n3")
    shop.parent.ask(messages.Nodes, messages.SetNode("n3", NodeWish.FORGET))
    shop.cluster.advance(1_000, 100)
    for node in shop.nodes[:2]:
        book = node.core.state.cluster
        assert book is not None
        assert not book.peer(shop.nodes[2].node).remote_tasks
        rows = shop.cluster.session(node).ask(messages.Nodes, messages.ListNodes()).nodes
        assert "n3" not in {row.name for row in rows if row.status is NodeStatus.ALIVE}


def test_a_removal_that_a_live_node_did_not_store_is_reported(shop: Workshop) -> None:
    """`forget` fails, and names the node, unless all live nodes confirmed; later it succeeds."""
    shop.nodes[1].refuses_removals = True
    answer = shop.cluster.call(shop.parent, messages.SetNode("n3", NodeWish.FORGET))
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EHOSTUNREACH
    assert "not stored at: n2 (it has not stored the removal" in answer.message
    book = shop.nodes[0].core.state.cluster
    assert book is not None
    assert book.membership.is_forgotten(shop.nodes[2].node)
    shop.nodes[1].refuses_removals = False
    shop.nodes[1].step(events.NodesRemoved(shop.nodes[1].now, (shop.nodes[2].node,)))
    for name in ("n3", f"{shop.nodes[2].node:x}"):
        assert isinstance(
            shop.cluster.call(shop.parent, messages.SetNode(name, NodeWish.FORGET)), messages.Nodes
        )


def test_a_removal_is_reported_that_a_silent_node_did_not_confirm(shop: Workshop) -> None:
    """A live node that does not answer is named; a dead one is not asked, and learns it when it returns."""
    shop.cluster.drop = lambda parcel: parcel.to == shop.nodes[1].node
    seq = shop.parent.send(messages.SetNode("n3", NodeWish.FORGET))
    answer = shop.cluster.wait(shop.parent, seq, limits.DCP_UNCONFIRMED_MS + 4_000)
    assert isinstance(answer, messages.Failure), answer
    assert "n2 (" in answer.message
    lose(shop, shop.nodes[1])
    again = shop.cluster.call(shop.parent, messages.SetNode("n3", NodeWish.FORGET))
    assert isinstance(again, messages.Nodes), again


def test_a_removal_that_cannot_be_stored_is_refused(shop: Workshop) -> None:
    """Where this node cannot store it, nothing is removed and the reason is given."""
    node = shop.nodes[0]
    seq = shop.parent.send(messages.SetNode("n3", NodeWish.FORGET))
    (asked,) = [effect for effect in node.effects if isinstance(effect, effects.RemoveNode)]
    shop.cluster.wire.clear()
    node.step(events.NodesRemoved(node.now, (), asked.call, "the disk is full"))
    answer = shop.parent.answer(seq)
    assert isinstance(answer, messages.Failure)
    assert (answer.code, answer.message) == (
        Code.EIO, "cannot remove n3 from the cluster: the disk is full",
    )  # fmt: skip
    assert not asked.restore


def test_a_restored_node_is_a_member_again(shop: Workshop) -> None:
    """When a removal became void the node connects again, and is a member like any other."""
    shop.parent.ask(messages.Nodes, messages.SetNode("n3", NodeWish.FORGET))
    for node in shop.nodes[:2]:
        node.step(events.NodesRemoved(node.now, ()))
        node.removed.clear()
        shop.cluster.connect(node, shop.nodes[2])
        shop.cluster.connect(shop.nodes[2], node)
    shop.cluster.advance(1_000, 100)
    rows = shop.parent.ask(messages.Nodes, messages.ListNodes()).nodes
    assert [row.name for row in rows if row.status is NodeStatus.ALIVE] == ["n1", "n2", "n3"]
    shop.run("n3")


def test_lists_say_what_is_missing(shop: Workshop) -> None:
    """Tasks of all nodes stand in one list; with a node dead it says that it is not complete, and if a living
    node was silent, too.
    """
    shop.run("n2")
    shop.run("n3")
    rows = shop.parent.ask(messages.Tasks, messages.ListTasks())
    assert sorted(row.node for row in rows.tasks) == ["n2", "n3"]
    assert not rows.incomplete
    lose(shop, shop.nodes[2])
    rows = shop.parent.ask(messages.Tasks, messages.ListTasks())
    assert [row.node for row in rows.tasks] == ["n2"]
    assert (rows.incomplete, rows.dead_only) == (True, True)
    nodes = shop.parent.ask(messages.Nodes, messages.ListNodes()).nodes
    assert [(row.name, row.status) for row in nodes] == [
        ("n1", NodeStatus.ALIVE),
        ("n2", NodeStatus.ALIVE),
        ("n3", NodeStatus.DEAD),
    ]
    assert [row.here for row in nodes] == [True, False, False]
    shop.cluster.cut.add(frozenset(node.node for node in shop.nodes[:2]))
    partial = shop.cluster.call(shop.parent, messages.ListTasks())
    assert isinstance(partial, messages.Tasks)
    assert (partial.incomplete, partial.dead_only) == (True, False)


def test_a_run_is_listed_once_while_another_node_starts_it(shop: Workshop) -> None:
    """Before that node has the request the run waits on its caller's node; afterwards both know it."""
    watcher = shop.cluster.session(shop.nodes[2])
    held: list[Parcel] = []

    def hold(parcel: Parcel) -> bool:
        """Keep the request to start the task, and then the answer to it."""
        message = parcel.message
        is_start = isinstance(message, dcp.Ask) and isinstance(message.body, dcp.Start)
        is_reply = isinstance(message, dcp.PeerReply) and (parcel.sender, parcel.to) == (2, 1)
        if is_reply if held else is_start:
            held.append(parcel)
        return parcel in held

    def states() -> list[TaskState]:
        return [row.state for row in watcher.ask(messages.Tasks, messages.ListTasks()).tasks]

    shop.cluster.drop = hold
    seq = shop.parent.send(shop.call("n2", []))
    assert states() == [TaskState.WAITING]
    shop.nodes[1].take(held[0])
    assert states() == [TaskState.STARTING]
    assert shop.parent.answer(seq) is None
    shop.cluster.drop = lambda _: False
    shop.nodes[0].take(held[1])
    assert isinstance(shop.cluster.wait(shop.parent, seq), messages.Created)
    assert states() == [TaskState.STARTING]


def test_a_coordinator_is_no_load(shop: Workshop) -> None:
    """The node's own coordinator does not count, so that a drained node becomes empty."""
    (first, *_) = shop.nodes
    run = messages.Run(shop.program, brand=Brand.LIMBO, flags=int(Flag.NON_BLOCKING | Flag.SPAWN_LOCAL))
    shop.parent.ask(messages.Created, run)
    (coordinator,) = shop.cluster.start_spawned()
    coordinator.ask(messages.QueueRows, messages.ReadQueue(own=True))
    shop.run("n1")

    def load() -> int:
        first.step(events.LoadMeasured(first.now, 1 << 30))
        rows = shop.parent.ask(messages.Nodes, messages.ListNodes()).nodes
        return next(row.tasks for row in rows if row.name == "n1")

    assert load() == 1
    coordinator.call(messages.ReadQueue(own=True))
    assert load() == 1


# -- ends that are known ---------------------------------------------------------------------------------
def status_of(shop: Workshop, ref: int) -> messages.TaskRow:
    """The exit status that the parent reads."""
    seq = shop.parent.send(messages.ReadOnce(ref))
    shop.cluster.wait(shop.parent, seq)
    return decode_status(shop.parent.node.received[shop.parent.task, seq])


@pytest.mark.parametrize("fault", ["dead", "restarted", "forgotten"])
def test_an_end_that_was_reported_is_not_lost_with_the_node(shop: Workshop, fault: str) -> None:
    """Once the parent's node knows how a child has ended, the child's node may fail."""
    created, job = shop.run("n2")
    second = shop.nodes[1]
    second.end(job.task, Cause.EXITED, 3)
    shop.cluster.settle()
    fail(shop, second, fault)
    row = status_of(shop, created.ref)
    assert (row.cause, row.exit_code) == (Cause.EXITED, 3)


def test_an_end_that_was_not_reported_is_unknown(shop: Workshop) -> None:
    """If the child's node fails first, the cause is NODE_LOST: the child may have succeeded."""
    created, job = shop.run("n2")
    shop.cluster.cut.add(frozenset({shop.nodes[0].node, shop.nodes[1].node}))
    shop.nodes[1].end(job.task, Cause.EXITED, 0)
    fail(shop, shop.nodes[1], "dead")
    row = status_of(shop, created.ref)
    assert row.cause is Cause.NODE_LOST
    assert "may have succeeded" in row.detail


def test_an_end_during_the_start_is_known(shop: Workshop) -> None:
    """The end of a child may be reported before the answer to its start: it counts all the same."""
    second = shop.nodes[1]
    shop.cluster.drop = lambda parcel: (
        parcel.sender == second.node and isinstance(parcel.message, dcp.PeerReply)
    )
    seq = shop.parent.send(shop.call("n2", []))
    shop.cluster.settle()
    (job,) = shop.cluster.start_spawned()
    second.end(job.task, Cause.EXITED, 0)
    shop.cluster.settle()
    shop.cluster.drop = lambda parcel: False  # noqa: ARG005 - nothing is lost any more
    created = shop.cluster.wait(shop.parent, seq)
    assert isinstance(created, messages.Created), created
    fail(shop, second, "dead")
    assert status_of(shop, created.reference.ref).cause is Cause.EXITED


def fail(shop: Workshop, node: ClusterNode, how: str) -> None:
    """Let a node fail, and let the others notice."""
    if how == "forgotten":
        shop.parent.ask(messages.Nodes, messages.SetNode(f"n{node.node}", NodeWish.FORGET))
        shop.cluster.advance(1_000, 100)
        return
    for other in shop.nodes:
        if other is not node:
            shop.cluster.part(other, node)
    if how == "dead":
        shop.cluster.advance(60_000, 500)
        return
    node.crash()
    shop.cluster.heal()
