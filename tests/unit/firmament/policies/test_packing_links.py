"""What jobs over time are promised of links, in a coordinator without any node (Packer paper, II-C)."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from dios.limits import GUARANTEES_MAX
from dios.wire.messages import Asked, HeldPart, Meter, Metered, Work
from dios.wire.types import Traffic
from tests.support.firmament.packing_coordinator import (
    LINK,
    ME,
    NODES,
    OTHER,
    PAIR,
    Yard,
    board,
    job,
    listed,
    occupant,
    places,
)


def test_tasks_of_a_job_count_once() -> None:
    """A member that runs takes what is promised to it, and nothing else; a stranger is none of it."""
    yard = Yard()
    told = yard.bring(PAIR)
    hosts, number = places(told), int(str(told["number"]))
    member = occupant(10, Work(reservation=number, member="b", restartable=True))
    stranger = occupant(11, Work(reservation=number, member="a"), OTHER)
    yard.office.read(hosts["b"], board(hosts["b"], (member,)), 1.0)
    yard.office.read(hosts["a"], board(hosts["a"], (stranger,)), 1.0)
    yard.at(1.0)
    assert yard.reserved()[hosts["b"]] == 4.0
    (row,) = listed(yard)
    assert [entry.member for entry in row.members if entry.running] == ["b"]
    question = json.dumps({"ask": "explain", "task": f"{10:012x}"}).encode()
    (line,) = json.loads(yard.office.answer(Asked(1, ME, ruler=False, question=question)))["lines"]
    assert f"it is b of the job job, which was admitted as a whole: Packer chose {hosts['b']}" in line


def test_guarantees_are_told_while_both_ends_run() -> None:
    """An edge between nodes is promised its bandwidth at its source's node, step by step, and no longer."""
    yard = Yard()
    text = job("flows", 4, 1, a="cpu = 4", b="cpu = 4") + (
        'weight = 0.25\n[[edges]]\nfrom = "a"\nto = "b"\nbandwidth = {0 = 8, 2 = 80}\n'
    ).replace("weight = 0.25\n", "")
    told = yard.bring(text)
    hosts, number = places(told), int(str(told["number"]))
    assert yard.office.bandwidth(0.0, 2.0) == {}

    def runs(member: str, task: int, now: float) -> None:
        work = Work(reservation=number, member=member, restartable=True)
        yard.office.read(hosts[member], board(hosts[member], (occupant(task, work),)), now)
        yard.at(now)

    runs("a", 10, 0.25)
    assert not any(plan.guarantees for plan in yard.office.bandwidth(0.25, 2.0).values())
    runs("b", 11, 0.5)
    assert yard.changed()
    plans = {node: plan for node, plan in yard.office.bandwidth(0.5, 2.0).items() if plan.guarantees}
    assert list(plans) == [hosts["a"]]
    (guarantee,) = plans[hosts["a"]].guarantees
    assert (guarantee.principal, guarantee.source, guarantee.target, guarantee.weight_milli) == (
        ME,
        10,
        11,
        500,
    )
    assert guarantee.steps == ((0, 1_000_000), (1500, 10_000_000))
    assert not yard.changed()
    (guarantee,) = yard.office.bandwidth(3.0, 2.0)[hosts["a"]].guarantees
    assert guarantee.steps == ((0, 10_000_000), (1000, 0))
    assert yard.office.bandwidth(4.5, 2.0) == {}


def test_members_are_held_to_their_demands_at_each_time() -> None:
    """Their nodes are told the processors and disks of running members, the next step in advance."""
    yard = Yard()
    steps = "cpu = {0 = 1, 3 = 2.5, 6 = 0}\ndisk_read = {0 = 0, 3 = 2}\ndisk_write = {0 = 0, 3 = 1}"
    told = yard.bring(job("parts", 8, 2, a=steps, b="memory = 1"))
    hosts, number = places(told), int(str(told["number"]))
    assert yard.office.bandwidth(0.0, 2.0) == {}
    for node in NODES:
        rows = tuple(
            occupant(task, Work(reservation=number, member=member, restartable=True))
            for task, member in ((10, "a"), (11, "b"))
            if hosts[member] == node
        )
        yard.office.read(node, board(node, rows), 0.5)
    yard.at(0.5)

    def held(now: float) -> tuple[HeldPart, ...]:
        return tuple(part for plan in yard.office.bandwidth(now, 2.0).values() for part in plan.parts)

    assert held(0.5) == (HeldPart(10, 1000, 0),)
    assert held(4.5) == (HeldPart(10, 2500, 3_000_000),), "the step at 6 s is near"
    assert held(9.0) == (HeldPart(10, 2500, 3_000_000),)
    assert held(12.5) == (HeldPart(10, 0, 3_000_000),)
    assert held(16.5) == ()
    endless = yard.bring(job("endless", 1, c="cpu = 0.5"))
    work = Work(reservation=int(str(endless["number"])), member="c", restartable=True)
    place = places(endless)["c"]
    yard.office.read(place, board(place, (occupant(12, work),)), 17.0)
    yard.at(17.0)
    assert held(1000.0) == (HeldPart(12, 500, 0),)


def test_guarantees_are_nobody_elses() -> None:
    """What edges are promised and use is taken from what principals divide, at both ends."""
    yard = Yard()
    told = yard.bring(PAIR)
    hosts, number = places(told), int(str(told["number"]))
    for member, task in (("a", 10), ("b", 11)):
        work = Work(reservation=number, member=member, restartable=True)
        yard.office.read(hosts[member], board(hosts[member], (occupant(task, work),)), 1.0)
    yard.at(1.0)
    (source,) = [node for node in NODES if node == hosts["a"]]
    for second in (1, 2):
        meters = (
            Meter(ME, Traffic.OUT, second * 4_000_000, 1_000_000, 11),
            Meter(OTHER, Traffic.OUT, second * 8_000_000, 50_000_000),
        )
        yard.office.record_traffic(source, Metered(1, meters, (LINK, 0, 0), 0, b""), float(second))
    links = yard.office.bandwidth(2.0, 2.0)[source]
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
    assert "The capacities of n1, n2, n3 are unknown: give them the setting link_rate" in str(
        refused["error"]
    )
    assert blind.bring(both.replace("cpu = 3", "cpu = 2"))["ok"]
    early = Yard(metered=False)
    asked = Asked(1, ME, ruler=False, question=b'{"ask": "pack", "do": "list"}')
    assert early.office.must_wait(asked)
    assert not yard.office.must_wait(asked)
    assert not early.office.must_wait(Asked(1, ME, ruler=False, question=b'{"ask": "status"}'))
    assert "The capacities of n1, n2, n3 were not reported yet: try again" in str(early.bring(both)["error"])


def in_racks(yard: Yard, **labels: str) -> None:
    """Put n1 into rack r1 and the others into r2, whose nodes have these labels."""
    told = tuple((key.replace("_", "-"), value) for key, value in labels.items())
    for node in NODES:
        rack = "r1" if node == "n1" else "r2"
        yard.office.read(
            node, replace(board(node), version=2, rack=rack, labels=told if rack == "r2" else ()), 0.5
        )
    yard.at(0.5)


def flow(source: str, target: str, mbps: int, instants: int = 1) -> str:
    """A job with one edge between the stores of two nodes, and one small task."""
    return (
        job(f"{source}{target}{mbps}", instants, a="cpu = 0.1")
        + f'[services.from]\nservice = "{source}"\n[services.to]\nservice = "{target}"\n'
        + f'[[edges]]\nfrom = "from"\nto = "to"\nbandwidth = {mbps}\n'
    )


@pytest.mark.parametrize("instants", [1, 10])
def test_uplinks_of_racks_are_booked(instants: int) -> None:
    """Edges between racks are refused when the racks' links are full, in each direction for itself."""
    yard = Yard()
    in_racks(yard, rack_link="10000000B")
    assert yard.bring(flow("n1", "n2", 50, instants))["ok"]
    refused = yard.bring(flow("n1", "n3", 40, instants))
    assert "the link down of rack r2 has too little bandwidth" in str(refused["error"])
    assert yard.bring(flow("n1", "n3", 30, instants))["ok"], "80 Mbit/s in all"
    assert yard.bring(flow("n3", "n1", 20, instants))["ok"], "the other direction"
    assert yard.bring(flow("n2", "n3", 40, instants))["ok"], "within the rack"


def test_uplinks_of_pods_are_booked() -> None:
    """A link that only pods share is a bound of its own; a label that cannot be read is no bandwidth."""
    yard = Yard()
    in_racks(yard, pod="p2", pod_link="1000000B")
    assert yard.bring(flow("n2", "n1", 6))["ok"]
    assert "the link up of pod p2 has too little" in str(yard.bring(flow("n3", "n1", 6))["error"])
    in_racks(yard, pod="p2", pod_link="much")
    assert not yard.bring(flow("n3", "n1", 1))["ok"]


def test_what_many_send_to_one_is_booked() -> None:
    """The link of a receiver is full when its senders together fill it, although theirs are not."""
    yard = Yard()
    assert yard.bring(flow("n1", "n3", 60))["ok"]
    refused = yard.bring(flow("n2", "n3", 60))
    assert "the link down of n3 has too little bandwidth" in str(refused["error"])
    assert yard.bring(flow("n2", "n3", 40))["ok"]


def test_a_refusal_names_the_job_as_its_user_does() -> None:
    """A name that reads like a place of Packer's stays as it is."""
    error = str(Yard().bring(job("server 0 of rack 1 at instant 5 ", 2, a="cpu = 1000"))["error"])
    assert "'server 0 of rack 1 at instant 5 ' has no place: 0 s after its beginning 'a' needs 1000" in error


def test_runs_with_reserved_bandwidth_count_on_uplinks() -> None:
    """The other end of a run is unknown: what it reserves is set aside on its rack's links, too."""
    yard = Yard()
    in_racks(yard, rack_link="10000000B")
    run = occupant(5, Work(network=5_000_000))
    rows = replace(board("n2", (run,)), version=3, rack="r2", labels=(("rack-link", "10000000B"),))
    yard.office.read("n2", replace(rows, network=LINK), 1.0)
    yard.at(1.0)
    assert not yard.bring(flow("n1", "n3", 50))["ok"]
    assert yard.bring(flow("n1", "n3", 40))["ok"]


def test_the_timeline_has_demands_guarantees_and_use() -> None:
    """Owners see when their jobs want how much, what is guaranteed and used; others see no jobs."""
    yard = Yard()
    told = yard.bring(
        job("flows", 4, 1, a="cpu = 4", b="cpu = 4")
        + '[[edges]]\nfrom = "a"\nto = "b"\nbandwidth = {0 = 8, 2 = 80}\n'
    )
    timeline = json.loads(json.dumps(yard.ask("timeline")))
    (admitted,) = timeline["jobs"]
    began, ends = admitted["began_s"], admitted["ends_s"]
    assert (admitted["job"], admitted["principal"], timeline["ruler"], timeline["cut"]) == (
        told["job"],
        ME,
        False,
        False,
    )
    assert ends - began == pytest.approx(float(str(told["length_s"])))
    for member in admitted["members"]:
        assert member["node"] == places(told)[member["member"]]
        assert member["steps"][0][0] == began
        assert member["steps"][-1] == [ends, 0, 0]
    (edge,) = admitted["edges"]
    assert [(at - began, bytes_s) for at, bytes_s in edge["steps"]] == [
        (pytest.approx(0), 1_000_000),
        (pytest.approx(2), 10_000_000),
        (pytest.approx(4), 0),
    ]
    assert edge["moving_bytes_s"] == 0
    assert {node["node"] for node in timeline["nodes"]} == set(NODES)
    assert json.loads(json.dumps(yard.ask("timeline", principal=OTHER)))["jobs"] == []


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
    (guarantee,) = yard.office.bandwidth(1.0, 2.0)["n2"].guarantees
    assert (guarantee.source, guarantee.target, guarantee.steps) == (0, 10, ((0, 2_000_000),))
    refused = yard.bring(text.replace('"n2"', '"n9"'))
    assert "services.input.service is 'n9'; services are nodes: n1, n2, n3" in str(refused["error"])
