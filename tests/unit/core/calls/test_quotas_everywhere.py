"""The quota of the cluster holds for each way in which a task can start, with and without a scheduler."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dios import limits
from dios.core import effects, events
from dios.errors import Code
from dios.ids import Principal, TaskId
from dios.wire import messages
from dios.wire.messages import Holding, Placement, Quota, SetAdmission, Work
from dios.wire.types import Brand, Flag, NameKind, Resource, Scope, TaskState
from tests.support.core.cluster import Citizen, Cluster
from tests.support.core.harness import OWNER

USER = Principal("uid:7")
OTHER = Principal("uid:8")
ONE_TASK = (Quota(USER, tasks=1),)


@dataclass
class Way:
    """The options of a run, beyond its program."""

    host: str = ""
    flags: int = 0
    brand: Brand = Brand.PURE
    like: int = 0

    def call(self, program: int, work: Work = Work()) -> messages.Run:  # noqa: B008 - it is frozen
        """Return the call."""
        return messages.Run(
            0 if self.like else program,
            label="job",
            host=self.host,
            flags=self.flags,
            brand=self.brand,
            like=self.like,
            work=work,
        )


PLACED_BY_CALLER = {
    "host": Way(host="n1"),
    "local": Way(flags=int(Flag.SPAWN_LOCAL)),
    "without waiting": Way(flags=int(Flag.NON_BLOCKING)),
    "sandbox": Way(flags=int(Flag.SPAWN_LOCAL | Flag.SANDBOX | Flag.FORKABLE)),
    "service": Way(host="n1", flags=int(Flag.SANDBOX)),
    "executor": Way(flags=int(Flag.SPAWN_LOCAL | Flag.WITH_SESSION)),
}
"""The ways in which the client libraries start tasks without naming needs."""


class Site:
    """Three nodes, a user on the first of them, and a scheduler on the second."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.nodes = self.cluster.nodes
        self.user = self.nodes[0].session(USER)
        self.scheduler = self.cluster.session(self.nodes[1])
        self.program = self.user.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
        self.cluster.settle()

    def admit(self, *quotas: Quota, waiting: tuple[str, ...] = ()) -> None:
        """Send all nodes quotas."""
        for node in self.nodes:
            call = SetAdmission(f"n{node.node}", quotas, waiting)
            self.scheduler.ask(messages.Done, call)

    def attend(self) -> messages.QueueRows:
        """Read the queue of the first node, as a scheduler does."""
        return self.scheduler.ask(messages.QueueRows, messages.ReadQueue("n1", attend=True))

    def send(self, call: messages.Run, caller: Citizen | None = None) -> int:
        """Make a run call."""
        seq = (caller or self.user).send(call)
        self.cluster.settle()
        return seq

    def place(self, submission: int, node: str) -> messages.Placed:
        """Place a run of the first node."""
        call = messages.Place("n1", (Placement(submission, node),))
        return self.scheduler.ask(messages.Placed, call)

    def running(self, principal: Principal = USER) -> int:
        """Return the number of living tasks of a principal on all nodes."""
        return sum(
            task.principal == principal for node in self.nodes for task in node.core.state.living_tasks()
        )

    def start(self, way: Way) -> tuple[Citizen, messages.Created]:
        """Start a task in this way, which nothing prevents."""
        seq = self.send(way.call(self.program))
        (job,) = self.cluster.start_spawned()
        answer = self.cluster.wait(self.user, seq)
        assert isinstance(answer, messages.Created), answer
        return job, answer


@pytest.fixture
def site() -> Site:
    """A cluster."""
    return Site()


@pytest.mark.parametrize("way", PLACED_BY_CALLER.values(), ids=PLACED_BY_CALLER)
def test_with_a_scheduler_a_run_beyond_the_quota_waits_in_its_queue(site: Site, way: Way) -> None:
    """It waits in the same queue as all others, for the node that its caller chose, and starts there."""
    first, _ = site.start(Way(host="n1"))
    site.admit(*ONE_TASK)
    site.attend()
    site.send(way.call(site.program))
    (row,) = site.attend().waiting
    assert site.running() == 1
    if way.host or way.flags & Flag.SPAWN_LOCAL:
        assert row.work.constraints == (messages.Constraint("node", value="n1"),)
        ((refused, _),) = site.place(row.id, "n2").refused
        assert refused == row.id
    site.place(row.id, "n1")
    assert site.running() == 1, "the node enforces the quota against its scheduler, too"
    site.cluster.end(first)
    (row,) = site.attend().waiting
    assert site.place(row.id, "n1").refused == ()
    assert site.running() == 1
    (second,) = site.cluster.start_spawned()
    assert second.node is site.nodes[0]
    site.cluster.check()


@pytest.mark.parametrize("host", ["n1", "n2"])
def test_without_a_scheduler_the_node_that_would_run_it_lets_it_wait(site: Site, host: str) -> None:
    """The start queue of that node keeps the run until the principal holds less."""
    first, _ = site.start(Way(host=host))
    site.admit(*ONE_TASK)
    seq = site.send(Way(host=host).call(site.program))
    assert site.user.answer(seq) is None
    assert site.running() == 1
    rows = site.user.ask(messages.Tasks, messages.ListTasks()).tasks
    assert [row.state for row in rows].count(TaskState.WAITING) == 1
    assert any("quota" in row.detail for row in rows)
    site.cluster.end(first)
    site.cluster.settle()
    site.cluster.start_spawned()
    assert isinstance(site.cluster.wait(site.user, seq), messages.Created)
    assert site.running() == 1


def test_a_run_that_cannot_wait_is_refused(site: Site) -> None:
    """A repeated task, a run in a vector and a task of a task have no place to wait, and no way round."""
    job, created = site.start(Way(host="n1"))
    site.admit(*ONE_TASK)
    again = Way(like=created.reference.ref, flags=int(Flag.NON_BLOCKING)).call(site.program)
    assert site.user.refused(again) == Code.EDQUOT
    inside = messages.Vector((Way(host="n1", flags=int(Flag.NON_BLOCKING)).call(site.program),))
    ((answer, _),) = site.user.many(*inside.calls)
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EDQUOT
    own = job.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    assert job.refused(Way(flags=int(Flag.SPAWN_LOCAL)).call(own)) == Code.EDQUOT
    assert site.running() == 1


@pytest.mark.parametrize("attended", [True, False])
def test_a_limbo_run_has_the_quota_of_its_user_and_a_coordinator_none(site: Site, *, attended: bool) -> None:
    """The nodes' own user cannot pass a quota by a brand; their coordinators start all the same."""
    owner = site.cluster.session(site.nodes[0])
    program = owner.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    site.admit(Quota(OWNER, tasks=0))
    if attended:
        site.attend()
    local = Way(flags=int(Flag.SPAWN_LOCAL), brand=Brand.LIMBO).call(program)
    site.send(local, owner)
    assert site.running(OWNER) == 0
    coordinator = messages.Run(program, label="coordinator", brand=Brand.LIMBO, flags=int(Flag.SPAWN_LOCAL))
    site.send(coordinator, owner)
    assert site.running(OWNER) == 1


def test_other_nodes_count_until_nothing_is_heard_of_them(site: Site) -> None:
    """What the principal holds elsewhere counts for a while; then each node enforces the quota by itself."""
    site.admit(Quota(USER, tasks=1, elsewhere=Holding(1)))
    seq = site.send(Way(host="n1").call(site.program))
    assert site.running() == 0
    here = site.nodes[0]
    for milliseconds, running in ((limits.ADMISSION_TOTALS_MS - 2_000, 0), (4_000, 1)):
        site.cluster.advance(milliseconds, 1_000)
        here.step(events.LoadMeasured(here.now, 1 << 30))
        site.cluster.settle()
        assert site.running() == running
    site.cluster.start_spawned()
    assert isinstance(site.cluster.wait(site.user, seq), messages.Created)


def test_a_scheduled_run_counts_as_its_scheduler_counts_it(site: Site) -> None:
    """The scheduler knows of ends elsewhere before this node does, so only what runs here counts then."""
    site.admit(Quota(USER, tasks=1, elsewhere=Holding(1)))
    site.attend()
    site.send(messages.Run(site.program))
    (row,) = site.attend().waiting
    assert site.place(row.id, "n2").refused == ()
    site.cluster.start_spawned()
    assert site.running() == 1


def test_a_run_that_no_scheduler_has_placed_counts_everywhere(site: Site) -> None:
    """When the lease of the scheduler is over, the chosen node counts what the principal holds elsewhere."""
    quota = Quota(USER, tasks=1, elsewhere=Holding(1))
    site.start(Way(host="n1"))
    site.attend()
    site.send(messages.Run(site.program))
    for name in ("n2", "n3"):
        site.scheduler.ask(messages.Done, SetAdmission(name, (quota,)))
    site.cluster.advance(3 * limits.QUEUE_LEASE_MS, 500)
    assert not site.nodes[0].core.state.queue.waiting, "it was placed without a scheduler"
    assert site.running() == 1


def test_a_placed_run_that_waits_on_its_node_counts_everywhere(site: Site) -> None:
    """The figures of its scheduler are from the time of its placement, those of the node are later."""
    there = site.cluster.session(site.nodes[1])
    bound = messages.Bound(Resource.TASKS, 1)
    there.ask(messages.LimitRows, messages.SetLimits(Scope.PRINCIPAL, (bound,), principal=str(USER)))
    first, _ = site.start(Way(host="n2"))
    site.attend()
    site.send(messages.Run(site.program))
    (row,) = site.attend().waiting
    assert site.place(row.id, "n2").refused == ()
    assert not site.attend().waiting
    site.scheduler.ask(messages.Done, SetAdmission("n2", (Quota(USER, tasks=1, elsewhere=Holding(1)),)))
    site.cluster.end(first)
    site.cluster.settle()
    assert site.running() == 0
    site.scheduler.ask(messages.Done, SetAdmission("n2", (Quota(USER, tasks=1),)))
    site.cluster.settle()
    assert site.running() == 1


def test_a_placed_run_that_has_waited_for_room_may_be_placed_anew(site: Site) -> None:
    """The node that had no room for it is not one that its caller has chosen."""
    here = site.nodes[0]
    owner = site.cluster.session(here)
    bound = messages.Bound(Resource.TASKS, 1)
    owner.ask(messages.LimitRows, messages.SetLimits(Scope.PRINCIPAL, (bound,), principal=str(USER)))
    first, _ = site.start(Way(host="n1"))
    site.attend()
    needs = Work(cpus_milli=1_000)
    site.send(messages.Run(site.program, work=needs))
    (row,) = site.attend().waiting
    assert site.place(row.id, "n1").refused == ()
    assert not site.attend().waiting, "it waits in the start queue"
    program = owner.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    site.send(messages.Run(program, host="n1", work=Work(cpus_milli=2_000)), owner)
    site.attend()
    site.cluster.end(first)
    (row,) = site.attend().waiting
    assert row.work == needs
    assert site.place(row.id, "n2").refused == ()
    assert [node for node, _ in site.cluster.spawned][-1:] == [site.nodes[1]]


@pytest.mark.parametrize(
    ("quota", "work"),
    [
        (Quota(USER, cpus_milli=1_500), Work(cpus_milli=1_000)),
        (Quota(USER, memory_bytes=15), Work(memory_bytes=10)),
        (Quota(USER, network=15), Work(network=10)),
        (Quota(USER, disk_io=15), Work(disk_io=10)),
    ],
)
def test_each_resource_has_its_quota(site: Site, quota: Quota, work: Work) -> None:
    """The needs of a second task exceed the quota, and those of a task without that need do not."""
    site.send(messages.Run(site.program, host="n1", work=work))
    site.cluster.start_spawned()
    site.admit(quota)
    site.send(messages.Run(site.program, host="n1", work=work))
    assert site.running() == 1
    other = site.nodes[0].session(USER)
    program = other.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    site.send(messages.Run(program, flags=int(Flag.NON_BLOCKING | Flag.SPAWN_LOCAL)), other)
    assert site.running() == 2


def test_while_others_wait_for_their_turn_a_chosen_node_is_no_way_past_them(site: Site) -> None:
    """A run with a host waits for its turn if runs of others wait; if only its own user's wait, it starts."""
    site.attend()
    site.admit(waiting=(USER,))
    site.start(Way(host="n1"))
    site.admit(waiting=(OTHER, USER))
    for way in PLACED_BY_CALLER.values():
        site.send(way.call(site.program))
    assert site.running() == 1
    assert len(site.attend().waiting) == len(PLACED_BY_CALLER)
    site.cluster.advance(limits.QUEUE_LEASE_MS - 1_000, 1_000)
    assert site.attend().waiting


def test_until_the_quotas_are_known_only_the_nodes_own_user_passes_the_queue(site: Site) -> None:
    """A node that has just started lets the runs of users wait for the scheduler, which knows the quotas."""
    site.attend()
    site.send(Way(host="n1").call(site.program))
    assert site.running() == 0
    owner = site.cluster.session(site.nodes[0])
    program = owner.create(name_kind=NameKind.ANONYMOUS, data=b"pass").reference.ref
    site.send(Way(host="n1").call(program), owner)
    assert site.running(OWNER) == 1


def test_only_the_nodes_own_user_sets_quotas(site: Site) -> None:
    """All others are refused, and nothing changes."""
    assert site.user.refused(SetAdmission("", ())) == Code.EPERM


def test_a_run_whose_chosen_node_is_gone_is_refused(site: Site) -> None:
    """It does not wait for a node that does not exist any more."""
    site.admit(*ONE_TASK)
    site.attend()
    seq = site.send(Way(host="n3").call(site.program))
    site.cluster.part(site.nodes[0], site.nodes[2])
    site.cluster.part(site.nodes[1], site.nodes[2])
    site.cluster.advance(60_000, 500)
    answer = site.user.answer(seq)
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EHOSTUNREACH


def test_quotas_reach_the_host_queue_again_when_they_grow(site: Site) -> None:
    """A run that waits in the start queue starts as soon as a larger quota is known."""
    site.start(Way(host="n1"))
    site.admit(*ONE_TASK)
    seq = site.send(Way(host="n1").call(site.program))
    assert site.running() == 1
    site.admit(Quota(USER, tasks=2))
    assert site.running() == 2
    site.cluster.start_spawned()
    assert isinstance(site.cluster.wait(site.user, seq), messages.Created)
    spawned = [effect for effect in site.nodes[0].effects if isinstance(effect, effects.Spawn)]
    assert len({TaskId(spawn.task) for spawn in spawned}) == 2
