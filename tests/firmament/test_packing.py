"""Jobs over time beside the flow network, in a coordinator without any node (Packer paper, II and III)."""

from __future__ import annotations

import base64
import json
import random
import zlib

import pytest
from msgspec import Struct, convert

from dios.firmament.columns import ABSENT
from dios.firmament.coordinator.duty import Duty, SetUp
from dios.firmament.coordinator.office import Office
from dios.firmament.coordinator.orders import Orders
from dios.firmament.knowledge import KnowledgeBase
from dios.limits import GUARANTEES_MAX, PACKED_INSTANT_S, PACKED_LEASE_S
from dios.wire.messages import Asked, BoardRows, Meter, Metered, Occupant, Submission, Work
from dios.wire.types import TaskState, Traffic

CPUS = 4
NODES = ("n1", "n2", "n3")
ALL = frozenset(NODES)
WALL = 1.7e9
"""Seconds since 1970 at time 0."""
LINK = 100_000_000 // 8
"""Bytes a second: 100 Mbit/s."""
ME, OTHER = "uid:7", "uid:8"


def board(node: str, tasks: tuple[Occupant, ...] = (), waiting: tuple[Submission, ...] = ()) -> BoardRows:
    """A node's board."""
    return BoardRows(
        1, int(node[1:]), node, "r1", CPUS, 2**30, 16, (), draining=False, coordinated=True,
        waiting=waiting, tasks=tasks, asked=(), reports=(), partial=False,
    )  # fmt: skip


def occupant(task: int, work: Work, principal: str = ME) -> Occupant:
    """A task that runs."""
    return Occupant(
        task, f"{task:012x}", "t", principal, TaskState.RUNNING, 1, 0, work, 0, 0, completed=False
    )


def submission(task: int, work: Work, principal: str = ME) -> Submission:
    """A run that waits on the first node."""
    return Submission(task, f"{task:012x}", "t", principal, 0, work, "n1")


class Yard:
    """An office of three nodes whose links carry 100 Mbit/s."""

    def __init__(
        self, set_up: SetUp = SetUp.CENTRALISED, capacity: int = LINK, *, metered: bool = True
    ) -> None:
        self.office = Office(Orders(set_up, "spread"), "n1", KnowledgeBase("n1", 1), WALL)
        self.office.changed_duty(Duty(), Duty(ALL, ALL, leader="n1", governs=ALL), 0.0)
        for node in NODES:
            self.office.read(node, board(node), 0.0)
            if metered:
                self.office.metered(node, Metered(int(node[1:]), (), (capacity, 0, 10**7), 0, b""), 0.0)
        self.now = 0.0
        self.office.round(0.0)

    def at(self, now: float) -> None:
        """Time goes on, and a round is made."""
        self.now = now
        self.office.round(now)

    def changed(self) -> bool:
        """Whether nodes are to be told of guarantees at once."""
        return self.office.links_changed

    def ask(self, do: str, *, principal: str = ME, ruler: bool = False, **more: object) -> dict[str, object]:
        """What the desk answers."""
        question = json.dumps({"ask": "pack", "do": do, **more}).encode()
        found: dict[str, object] = json.loads(self.office.answer(Asked(1, principal, ruler, question)))
        return found

    def bring(self, text: str, do: str = "admit", *, principal: str = ME) -> dict[str, object]:
        """Bring a job; the answer."""
        packed = base64.b64encode(zlib.compress(text.encode())).decode()
        return self.ask(do, principal=principal, job=packed)

    def reserved(self) -> dict[str, float]:
        """Processors that are given away, by node."""
        rows = json.loads(self.office.answer(Asked(1, "uid:0", ruler=True, question=b'{"ask": "status"}')))
        return {row["node"]: row["cpus_set_aside"] for row in rows["nodes"]}


class Member(Struct):
    """A member of a job, as it is told of."""

    member: str
    node: str
    running: bool


class Flow(Struct):
    """An edge, as it is told of."""

    guaranteed_bytes_s: int
    moving_bytes_s: float


class Listed(Struct):
    """A job, as it is told of."""

    number: int
    job: str
    principal: str
    members: list[Member]
    edges: list[Flow]


def listed(yard: Yard, *, principal: str = ME, ruler: bool = False) -> list[Listed]:
    """The jobs that are told of."""
    return convert(yard.ask("list", principal=principal, ruler=ruler)["jobs"], list[Listed])


def places(told: dict[str, object]) -> dict[str, str]:
    """Members and their nodes."""
    assert told["ok"], told
    members = told["members"]
    assert isinstance(members, list)
    return {row["member"]: row["node"] for row in members}


def job(name: str = "job", instants: int = 10, instant_s: float = 2, **tasks: str) -> str:
    """A description in TOML; each task's lines."""
    head = f'name = "{name}"\n' + (
        f"instants = {instants}\ninstant_s = {instant_s}\n" if instants > 1 else ""
    )
    return head + "".join(f"[tasks.{task}]\n{lines}\n" for task, lines in tasks.items())


PAIR = job(instants=1, a="cpu = 1", b="cpu = 4") + '[[edges]]\nfrom = "a"\nto = "b"\nbandwidth = 40\n'


def test_a_job_is_admitted_as_a_whole_or_not_at_all() -> None:
    """Each member has a place when all have; one too many, and nothing is held."""
    yard = Yard()
    told = yard.bring(job(a="count = 3\ncpu = 4"))
    assert set(places(told).values()) == ALL
    assert yard.reserved() == dict.fromkeys(NODES, 4.0)
    number = told["number"]
    refused = yard.bring(job("more", a="cpu = 0.5"))
    assert refused["ok"] is False
    assert "needs 0.5 cores of cpu, and of 3 possible places none has that" in str(refused["error"])
    assert yard.ask("release", number=number)["ok"]
    assert yard.reserved() == dict.fromkeys(NODES, 0.0)
    assert not yard.bring(job(a="count = 4\ncpu = 3"))["ok"]
    assert yard.reserved() == dict.fromkeys(NODES, 0.0)


def test_a_check_holds_nothing() -> None:
    """What would be is told, and what is held stays as it was."""
    yard = Yard()
    told = yard.bring(job(a="count = 3\ncpu = 4"), "check")
    assert set(places(told).values()) == ALL
    assert "number" not in told
    assert listed(yard) == []
    assert yard.reserved() == dict.fromkeys(NODES, 0.0)


def test_jobs_share_a_machine_at_different_times() -> None:
    """Two whose peaks lie apart have the same machines; the flow network keeps off the worst instant only."""
    yard = Yard()
    assert yard.bring(job("one", a="count = 3\ncpu = {0 = 4, 5 = 0.5}"))["ok"]
    assert not yard.bring(job("same", a="count = 3\ncpu = {0 = 4, 5 = 0.5}"))["ok"]
    assert yard.bring(job("late", a="count = 3\ncpu = {0 = 0, 6 = 3}"))["ok"]
    assert yard.reserved() == dict.fromkeys(NODES, 4.0)
    yard.at(14.0)
    assert yard.reserved() == dict.fromkeys(NODES, 3.5)
    yard.at(30.0)
    assert yard.reserved() == dict.fromkeys(NODES, 0.0)
    assert listed(yard) == []


def test_packer_leaves_what_the_flow_network_gave_away() -> None:
    """What runs by the flow network has no known end: a job gets what is left at all instants."""
    yard = Yard()
    runs = occupant(1, Work(cpus_milli=3000))
    yard.office.read("n2", board("n2", (runs,)), 1.0)
    yard.at(1.0)
    assert not yard.bring(job(a="count = 3\ncpu = 2.5"))["ok"]
    assert "n2" not in places(yard.bring(job(a="count = 2\ncpu = 2.5"))).values()
    assert yard.reserved() == {"n1": 2.5, "n2": 3.0, "n3": 2.5}


def test_the_flow_network_leaves_what_packer_promised() -> None:
    """A run waits where only promised processors are free, although nobody uses them yet."""
    yard = Yard()
    assert yard.bring(job("later", a="count = 3\ncpu = {0 = 0, 8 = 3}"))["ok"]
    waits = submission(5, Work(cpus_milli=2000))
    yard.office.read("n1", board("n1", waiting=(waits,)), 1.0)
    assert yard.office.round(1.0) == []
    small = submission(6, Work(cpus_milli=1000))
    yard.office.read("n1", board("n1", waiting=(waits, small)), 2.0)
    (order,) = yard.office.round(2.0)
    assert [task for task, _ in order.placements] == [6]


@pytest.mark.parametrize("seed", range(30))
def test_nothing_is_given_away_twice(seed: int) -> None:
    """In random histories no machine is promised beyond what it has, at any instant."""
    chance = random.Random(seed)  # noqa: S311 - drawn histories
    yard = Yard()
    running: dict[str, dict[int, Occupant]] = {node: {} for node in NODES}
    held: list[object] = []
    for step in range(40):
        now = yard.now + chance.random() * 6
        waiting: list[Submission] = []
        if chance.random() < 0.4:
            work = Work(cpus_milli=chance.choice((500, 1000, 3000)))
            waiting.append(submission(1000 + step, work, chance.choice((ME, OTHER))))
        for node in NODES:
            if running[node] and chance.random() < 0.3:
                running[node].pop(next(iter(running[node])))
            rows = tuple(waiting) if node == "n1" else ()
            yard.office.read(node, board(node, tuple(running[node].values()), rows), now)
        yard.now = now
        for order in yard.office.round(now):
            for task, node in order.placements:
                row = next(one for one in waiting if one.id == task)
                running[node][task] = occupant(task, row.work, row.principal)
                yard.office.read(node, board(node, tuple(running[node].values())), now)
        if chance.random() < 0.6:
            steps = (
                f"{{0 = {chance.choice((0, 1, 2))}, {chance.randrange(1, 9)} = {chance.choice((0, 1, 3))}}}"
            )
            instants = chance.choice((1, 10))
            cpu = steps if instants > 1 else str(chance.choice((1, 2)))
            told = yard.bring(job(f"j{step}", instants, a=f"count = {chance.randrange(1, 4)}\ncpu = {cpu}"))
            if told["ok"]:
                held.append(told["number"])
        if held and chance.random() < 0.3:
            yard.ask("release", number=held.pop(0))
        state = yard.office._books.scheduler.state
        for number in (1, 2, 3):
            machine = state.machine_row(number)
            assert machine != ABSENT
            taken = state.resources.reserved[machine, 0]
            assert taken <= CPUS + 1e-6, f"seed {seed}, step {step}, node {number}"
        books = yard.office._packing._datacenter
        if books is not None:
            assert books.site.free.min() >= 0, f"seed {seed}, step {step}"


def test_tasks_of_a_job_count_once() -> None:
    """A member that runs takes what is promised to it, and nothing else; a stranger is none of it."""
    yard = Yard()
    told = yard.bring(PAIR)
    where, number = places(told), int(str(told["number"]))
    member = occupant(10, Work(reservation=number, member="b", restartable=True))
    stranger = occupant(11, Work(reservation=number, member="a"), OTHER)
    yard.office.read(where["b"], board(where["b"], (member,)), 1.0)
    yard.office.read(where["a"], board(where["a"], (stranger,)), 1.0)
    yard.at(1.0)
    assert yard.reserved()[where["b"]] == 4.0
    (row,) = listed(yard)
    assert [one.member for one in row.members if one.running] == ["b"]
    question = json.dumps({"ask": "explain", "task": f"{10:012x}"}).encode()
    (line,) = json.loads(yard.office.answer(Asked(1, ME, ruler=False, question=question)))["lines"]
    assert f"it is b of the job job, which was admitted as a whole: Packer chose {where['b']}" in line


def test_guarantees_are_told_while_both_ends_run() -> None:
    """An edge between nodes is promised its bandwidth at its source's node, step by step, and no longer."""
    yard = Yard()
    text = job("flows", 4, 1, a="cpu = 4", b="cpu = 4") + (
        'weight = 0.25\n[[edges]]\nfrom = "a"\nto = "b"\nbandwidth = {0 = 8, 2 = 80}\n'
    ).replace("weight = 0.25\n", "")
    told = yard.bring(text)
    where, number = places(told), int(str(told["number"]))
    assert yard.office.rates(0.0, 2.0) == {}

    def runs(member: str, task: int, now: float) -> None:
        work = Work(reservation=number, member=member, restartable=True)
        yard.office.read(where[member], board(where[member], (occupant(task, work),)), now)
        yard.at(now)

    runs("a", 10, 0.25)
    assert yard.office.rates(0.25, 2.0) == {}
    runs("b", 11, 0.5)
    assert yard.changed()
    found = yard.office.rates(0.5, 2.0)
    assert list(found) == [where["a"]]
    (one,) = found[where["a"]].guarantees
    assert (one.principal, one.source, one.target, one.weight_milli) == (ME, 10, 11, 500)
    assert one.steps == ((0, 1_000_000), (1500, 10_000_000))
    assert not yard.changed()
    (one,) = yard.office.rates(3.0, 2.0)[where["a"]].guarantees
    assert one.steps == ((0, 10_000_000), (1000, 0))
    assert yard.office.rates(4.5, 2.0) == {}


def test_guarantees_are_nobody_elses() -> None:
    """What edges are promised and use is taken from what principals divide, at both ends."""
    yard = Yard()
    told = yard.bring(PAIR)
    where, number = places(told), int(str(told["number"]))
    for member, task in (("a", 10), ("b", 11)):
        work = Work(reservation=number, member=member, restartable=True)
        yard.office.read(where[member], board(where[member], (occupant(task, work),)), 1.0)
    yard.at(1.0)
    (source,) = [node for node in NODES if node == where["a"]]
    for second in (1, 2):
        meters = (
            Meter(ME, Traffic.OUT, second * 4_000_000, 1_000_000, 11),
            Meter(OTHER, Traffic.OUT, second * 8_000_000, 50_000_000),
        )
        yard.office.metered(source, Metered(1, meters, (LINK, 0, 0), 0, b""), float(second))
    links = yard.office.rates(2.0, 2.0)[source]
    (rate,) = links.rates
    assert (rate.principal, rate.traffic) == (OTHER, Traffic.OUT)
    assert rate.bytes_s == pytest.approx(LINK - 5_000_000, rel=1e-6)
    (row,) = listed(yard)
    assert row.edges[0].moving_bytes_s == pytest.approx(4e6)
    assert row.edges[0].guaranteed_bytes_s == 5_000_000


def test_links_are_booked_like_machines() -> None:
    """Edges between nodes are refused where links have no room, or nobody knows what they carry."""
    yard = Yard()
    both = job(instants=1, a="cpu = 3", b="cpu = 3") + '[[edges]]\nfrom = "a"\nto = "b"\nbandwidth = 60\n'
    assert len(set(places(yard.bring(both)).values())) == 2
    refused = yard.bring(both)
    assert refused["ok"] is False, "one processor is left on two of the nodes, and four on the third"
    assert not yard.bring(both.replace("cpu = 3", "cpu = 2.5"))["ok"]
    large = both.replace("= 60", "= 101").replace("cpu = 3", "cpu = 2")
    told = yard.bring(large)
    assert len(set(places(told).values())) == 1, "together on a node no link is needed"
    blind = Yard(capacity=0)
    refused = blind.bring(both)
    assert "What n1, n2, n3 can do is not known: give them the setting link_rate" in str(refused["error"])
    assert blind.bring(both.replace("cpu = 3", "cpu = 2"))["ok"]
    early = Yard(metered=False)
    assert "What n1, n2, n3 can do was not heard yet: try again" in str(early.bring(both)["error"])


def test_no_more_edges_are_promised_than_nodes_are_told_of() -> None:
    """Edges between nodes beyond what one node is told are refused, and nothing is held."""
    yard = Yard()
    crowd = "count = 60\ncpu = 0.1"
    edges = '[[edges]]\nfrom = "a"\nto = "b"\nbandwidth = 0.001\n'
    told = yard.bring(job("many", 1, a=crowd, b=crowd) + edges)
    assert told["ok"] is False
    assert "edges from" in str(told["error"])
    assert f"at most {GUARANTEES_MAX} are guaranteed" in str(told["error"])
    assert listed(yard) == []


def test_a_service_is_a_node() -> None:
    """What a job reads from a node's store is booked, and guaranteed, from that node."""
    yard = Yard()
    text = job(instants=1, a="cpu = 4") + (
        '[services.input]\nservice = "n2"\n[[edges]]\nfrom = "input"\nto = "a"\nbandwidth = 16\n'
    )
    told = yard.bring(text.replace("cpu = 4", "cpu = 4\nmemory = 600") + "")
    assert places(told)["input"] == "n2"
    number, place = int(str(told["number"])), places(told)["a"]
    if place == "n2":
        return
    work = Work(reservation=number, member="a", restartable=True)
    yard.office.read(place, board(place, (occupant(10, work),)), 1.0)
    yard.at(1.0)
    (one,) = yard.office.rates(1.0, 2.0)["n2"].guarantees
    assert (one.source, one.target, one.steps) == (0, 10, ((0, 2_000_000),))
    refused = yard.bring(text.replace('"n2"', '"n9"'))
    assert "services.input.service is 'n9'; services are nodes: n1, n2, n3" in str(refused["error"])


def test_a_job_is_stopped_when_its_time_is_over() -> None:
    """Members that still run at the job's end are told to stop, once; what it held is free."""
    yard = Yard()
    told = yard.bring(job("short", 5, 1, a="cpu = 4"))
    (node,), number = places(told).values(), int(str(told["number"]))
    work = Work(reservation=number, member="a", restartable=True)
    yard.office.read(node, board(node, (occupant(10, work),)), 1.0)
    assert yard.office.round(4.0) == []
    (order,) = yard.office.round(5.0)
    assert (order.host, order.preempted) == (node, [10])
    assert yard.office.round(5.5) == []
    assert listed(yard) == []


def test_who_is_gone_holds_nothing() -> None:
    """A job whose user is not heard of ends after its lease; one that is renewed, or runs, does not."""
    yard = Yard()
    gone, renewed, runs = (yard.bring(job(name, 1, a="cpu = 4")) for name in ("gone", "renewed", "runs"))
    node = places(runs)["a"]
    work = Work(reservation=int(str(runs["number"])), member="a", restartable=True)
    late = PACKED_LEASE_S * 0.9
    yard.office.read(node, board(node, (occupant(10, work),)), late)
    yard.at(late)
    assert yard.ask("renew", number=renewed["number"])["ok"]
    yard.at(PACKED_LEASE_S + 1)
    assert [one.job for one in listed(yard)] == ["renewed", "runs"]
    refused = yard.ask("renew", number=gone["number"])
    assert "its time is over, or it was released" in str(refused["error"])


def test_jobs_are_their_owners() -> None:
    """Nobody else sees, renews or releases a job, but the nodes' own user does."""
    yard = Yard()
    number = yard.bring(job(a="cpu = 1"))["number"]
    assert listed(yard, principal=OTHER) == []
    for do in ("renew", "release"):
        assert not yard.ask(do, principal=OTHER, number=number)["ok"]
    (row,) = listed(yard, principal="uid:0", ruler=True)
    assert row.principal == ME
    assert yard.ask("release", principal="uid:0", ruler=True, number=number)["ok"]


def test_quotas_and_rights_hold_for_jobs() -> None:
    """A quota is never exceeded; while others wait nobody takes more than its right by a job."""
    yard = Yard()
    question = json.dumps({"ask": "quota", "principal": ME, "quota": {"cpus": 5}}).encode()
    assert json.loads(yard.office.answer(Asked(1, "uid:0", ruler=True, question=question)))["ok"]
    assert yard.bring(job("fits", a="count = 2\ncpu = 2.5"))["ok"]
    refused = yard.bring(job("over", a="cpu = 1"))
    assert "it would hold 6 of cpus, and its quota is 5" in str(refused["error"])
    yard.office.read("n1", board("n1", waiting=(submission(5, Work(cpus_milli=9000), OTHER),)), 1.0)
    yard.at(1.0)
    third = "uid:9"
    assert "more than its right to" in str(
        yard.bring(job("x", a="count = 3\ncpu = 1.5"), principal=third)["error"]
    )
    assert yard.bring(job("y", a="count = 2\ncpu = 1.5"), principal=third)["ok"]


def test_jobs_outlive_their_coordinator() -> None:
    """The next coordinator knows jobs with their places and times, and books them first."""
    yard = Yard()
    told = yard.bring(job("stays", 20, 2, a="count = 3\ncpu = {0 = 1, 10 = 3}"))
    endless = yard.bring(job("endless", 1, a="cpu = 1"))
    assert yard.office.terms_changed()
    shares = yard.office.shares(1.0)
    assert shares is not None
    yard.office.handed_on()
    assert not yard.office.terms_changed()
    heir = Yard()
    heir.office = Office(Orders(SetUp.CENTRALISED, "spread"), "n2", KnowledgeBase("n2", 1), WALL)
    heir.office.changed_duty(Duty(), Duty(ALL, ALL, leader="n2", governs=ALL), 6.0)
    heir.office.learn(shares, 6.0, commitments=True)
    heir.at(6.0)
    for node in NODES:
        heir.office.read(node, board(node), 7.0)
    heir.at(7.0)
    assert sum(heir.reserved().values()) == 3 * 3 + 1
    jobs = listed(heir)
    assert [one.number for one in jobs] == [told["number"], endless["number"]]
    assert {one.member: one.node for one in jobs[0].members} == places(told)
    assert not heir.bring(job("second", 20, 2, a="count = 3\ncpu = 1"))["ok"]
    heir.at(40.0 + PACKED_INSTANT_S)
    assert heir.ask("release", number=endless["number"])["ok"] is False, "nobody renewed it"
    assert sum(heir.reserved().values()) == 0


def test_a_job_that_cannot_be_stored_is_not_admitted() -> None:
    """What the next coordinator would not know of is taken back before its user is told."""
    yard = Yard()
    assert yard.bring(job(a="cpu = 1"))["ok"]
    told = json.loads(yard.office.not_kept("the disk is full", 1.0))
    assert "is not admitted" in told["error"]
    assert listed(yard) == []


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ({"do": "admit", "job": "!"}, "cannot be read"),
        ({"do": "admit", "job": base64.b64encode(b"x").decode()}, "cannot be read"),
        ({"do": "nosuch"}, "no such question about jobs"),
        ({"do": 3}, "makes no sense"),
        ({"do": "renew", "number": 3}, "no such job"),
    ],
)
def test_questions_that_make_no_sense_are_refused(question: dict[str, object], why: str) -> None:
    """Nothing is held, and the answer says what is wrong."""
    yard = Yard()
    asked = json.dumps({"ask": "pack", **question}).encode()
    told = json.loads(yard.office.answer(Asked(1, ME, ruler=False, question=asked)))
    assert told["ok"] is False
    assert why in str(told["error"])
    assert listed(yard) == []


def test_descriptions_are_checked_by_field() -> None:
    """What makes no sense in a description is named; several coordinators at once admit nothing."""
    yard = Yard()
    for text, why in (
        (job(a="cpu = -1"), "tasks.a.cpu is -1"),
        (job(a='after = ["a"]'), "circle"),
        (job("long", 4000, 10, a="cpu = 1"), "a job that ends takes at most 2.3 h; without instants"),
        (job("crowd", 1, a="count = 600\ncpu = 0"), "tasks are too many for a cluster: 512 at most"),
        (job("crowd", 4000, a="count = 200\ncpu = 0"), "for so long fewer"),
        ("name = 3", "name"),
    ):
        told = yard.bring(text)
        assert told["ok"] is False
        assert why in str(told["error"]), told
    many = Yard(SetUp.DISTRIBUTED)
    assert "need one coordinator for all nodes" in str(many.bring(job(a="cpu = 1"))["error"])
