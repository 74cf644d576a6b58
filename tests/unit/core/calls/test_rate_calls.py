"""Rates and shares: told to a node by its own user alone, handed on, and kept where they are newer."""

from __future__ import annotations

import pytest

from dios.core import effects
from dios.errors import Code
from dios.ids import Principal, TaskId
from dios.wire import messages
from dios.wire.messages import Govern, Guarantee, HeldPart, Metered, Rate, Work
from dios.wire.types import NameKind, Traffic
from tests.support.core.cluster import Cluster, ClusterNode, record_of
from tests.support.core.harness import Node

RATES = (Rate("uid:1", Traffic.OUT, 1_000_000), Rate("uid:2", Traffic.STORE, 5))
EDGES = (Guarantee("uid:1", 5, 6, 500, ((0, 7), (1_000, 0))), Guarantee("uid:1", 0, 6))


class Hall:
    """Three nodes; whoever schedules is on the second."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.nodes = self.cluster.nodes
        self.scheduler = self.cluster.session(self.nodes[1])

    def govern(self, call: Govern) -> Metered:
        """Have a node keep to rates."""
        return self.scheduler.ask(Metered, call)

    def setter(self, at: ClusterNode) -> TaskId:
        """The id that the scheduler's task has at a node."""
        here = at is self.scheduler.node
        return self.scheduler.task if here else record_of(self.scheduler, at).id

    def own(self, since: int = 0, *, own: bool = True) -> messages.QueueRows:
        """The first node's board, as its own coordinator reads it."""
        reader = self.cluster.session(self.nodes[0])
        return reader.ask(messages.QueueRows, messages.ReadQueue(since=since, own=own))


@pytest.fixture
def hall() -> Hall:
    """Three nodes of a cluster."""
    return Hall()


def set_on(node: Node) -> list[effects.SetRates]:
    """The rates that the host of a node was told."""
    return [effect for effect in node.effects if isinstance(effect, effects.SetRates)]


@pytest.mark.parametrize("host", ["", "n1"])
def test_guarantees_reach_the_host_of_the_node_that_is_named(hall: Hall, host: str) -> None:
    """They are told with the rates, whole, and to no other host."""
    hall.govern(Govern(host, RATES, 3_000, guarantees=EDGES))
    there, other = (hall.nodes[0], hall.nodes[1]) if host else (hall.nodes[1], hall.nodes[0])
    assert set_on(there) == [effects.SetRates(RATES, 3_000, hall.setter(there), EDGES)]
    assert not set_on(other)


@pytest.mark.parametrize(
    ("edges", "lease_ms"),
    [
        (EDGES, 0),
        ((Guarantee("uid:1", 5, 6, 500, ((0, 7), (0, 8))),), 1_000),
        ((*EDGES, Guarantee("uid:1", 5, 6, 500, ((9, 7), (8, 8)))), 1_000),
        ((Guarantee("uid:1", 0, 0, 500, ((0, 7),)),), 1_000),
    ],
)
def test_guarantees_that_make_no_sense_are_refused(
    hall: Hall, edges: tuple[Guarantee, ...], lease_ms: int
) -> None:
    """Without a lease, with steps that go back in time, or of no task; and nothing is set."""
    hall.govern(Govern("n1"))
    assert hall.scheduler.refused(Govern("n1", (), lease_ms, guarantees=edges)) == Code.EINVAL
    assert not set_on(hall.nodes[0])


def test_parts_hold_members_of_jobs_and_nobody_else(hall: Hall) -> None:
    """The host is told the shares of running tasks that name a job; other numbers are left out."""
    node = hall.nodes[0]
    person = hall.cluster.session(node)
    member = person.run(host="n1", work=Work(reservation=7, member="a")).task
    plain = person.run(host="n1").task
    parts = tuple(HeldPart(task, 1500, 2_000) for task in (member, plain, 123_456))
    hall.govern(Govern("n1", (), 3_000, parts=parts))
    (told,) = set_on(node)
    here = node.core.state.cluster
    assert here is not None
    share = effects.TaskShare(
        min(1500, here.here.cpus * 1000), here.here.cpus * 1000, 2_000, here.here.disk_io, replaces=True
    )
    assert told.shares == ((member, share),)
    assert hall.scheduler.refused(Govern("n1", parts=parts)) == Code.EINVAL


@pytest.mark.parametrize("host", ["", "n2", "n1"])
def test_rates_reach_the_host_of_the_node_that_is_named(hall: Hall, host: str) -> None:
    """They are told to that node's host and to no other, whole, and that node answers."""
    answer = hall.govern(Govern(host, RATES, 3_000))
    target: ClusterNode = hall.nodes[int((host or "n2")[1]) - 1]
    assert answer.node == target.node
    for node in hall.nodes:
        assert set_on(node) == ([effects.SetRates(RATES, 3_000, hall.setter(node))] if node is target else [])


def test_no_lease_changes_no_rate(hall: Hall) -> None:
    """Who only asks lifts nothing that others told; rates without a lease are refused."""
    hall.govern(Govern("n1"))
    assert set_on(hall.nodes[0]) == []
    assert hall.scheduler.refused(Govern("n1", RATES)) == Code.EINVAL
    hall.govern(Govern("n1", (), 1_000))
    assert set_on(hall.nodes[0]) == [effects.SetRates((), 1_000, hall.setter(hall.nodes[0]))]


def test_a_node_that_is_alone_keeps_to_rates_too() -> None:
    """The store of a lone node is shared as well."""
    person = Node(1).session()
    assert person.ask(Metered, Govern(rates=RATES, lease_ms=1)).node == 0


@pytest.mark.parametrize("host", ["", "n1"])
def test_only_the_nodes_own_user_tells_rates(hall: Hall, host: str) -> None:
    """Anybody else is refused, which their node audits, and no host hears of it."""
    stranger = hall.nodes[1].session(Principal("uid:77"))
    assert stranger.refused(Govern(host, RATES, 1_000)) == Code.EPERM
    denied = [
        effect
        for effect in hall.nodes[1].effects
        if isinstance(effect, effects.Audit) and (effect.action, effect.outcome) == ("govern", "denied")
    ]
    assert [audit.principal for audit in denied] == ["uid:77"]
    assert not any(map(set_on, hall.nodes))


def test_a_pure_task_tells_no_rates(hall: Hall) -> None:
    """Not even one of the node's own user."""
    created = hall.scheduler.create(name_kind=NameKind.ANONYMOUS, data=b"pass")
    seq = hall.scheduler.send(messages.Run(created.reference.ref))
    hall.cluster.settle()
    (job,) = hall.cluster.start_spawned()
    hall.cluster.wait(hall.scheduler, seq)
    assert job.refused(Govern("", RATES, 1_000)) == Code.EPERM


def test_the_newest_shares_stay(hall: Hall) -> None:
    """Of shares with several versions a node keeps the highest, whoever tells the others when."""
    hall.govern(Govern("n1", shares_version=7, shares=b"seven"))
    for version, said in ((3, b"three"), (7, b"other"), (0, b"")):
        answer = hall.govern(Govern("n1", shares_version=version, shares=said))
        assert answer.shares_version == 7
        assert answer.shares == (b"" if version == 7 else b"seven"), "only what is newer is told"
    hall.govern(Govern("n1", shares_version=9))
    assert hall.govern(Govern("n1")).shares == b"seven", "a version alone is no news"
    assert hall.govern(Govern("n2")).shares_version == 0, "they are that node's"
    assert hall.scheduler.refused(Govern("n1", shares=b"none")) == Code.EINVAL


def test_a_nodes_own_coordinator_hears_of_new_shares(hall: Hall) -> None:
    """New shares wake who waits for the board, and are on it once, for the node's own coordinator alone."""
    before = hall.own()
    assert (before.shares_version, before.shares) == (0, b"")
    reader = hall.cluster.session(hall.nodes[0])
    seq = reader.send(messages.ReadQueue(since=before.version, wait_ms=5_000, own=True))
    hall.cluster.settle()
    assert reader.answer(seq) is None
    hall.govern(Govern("n1", shares_version=2, shares=b"two"))
    woken = hall.cluster.wait(reader, seq, 100)
    assert isinstance(woken, messages.QueueRows)
    assert (woken.shares_version, woken.shares) == (2, b"two")
    assert hall.own(own=False).shares == b""
    assert hall.own(own=False).shares_version == 0
    seen = hall.own(woken.version)
    assert (seen.shares_version, seen.shares) == (2, b""), "what was seen is not told again"
    hall.govern(Govern("n1", shares_version=2, shares=b"two"))
    assert hall.own().version == woken.version, "the same again is nothing new"


def test_telling_rates_stands_alone(hall: Hall) -> None:
    """In a vector it is refused."""
    ((answer, _),) = hall.scheduler.many(Govern("", RATES, 1_000))
    assert isinstance(answer, messages.Failure)
    assert answer.code == Code.EINVAL
    assert not any(map(set_on, hall.nodes))
