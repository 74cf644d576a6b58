"""Reservations above a live node's capacity, in every dimension, and the neighbours and devices of a run."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import msgspec
import pytest

from dios.firmament.explain.explanation import Explanation
from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import CPUS, LOADED_S, NODES, Site

pytestmark = [pytest.mark.timeout(LOADED_S + 100), pytest.mark.long]

REFUSED = 125
DIMENSIONS = {
    # The options of half of a node and a little more, those of more than a node, and the word for it.
    "--disk-io": ("60MiB", "101MiB", "disk io"),
    "--net": ("30MiB", "51MiB", "network"),
    "--reserve-memory": ("", "900000GiB", "memory"),
    "--cpus": (f"{CPUS * 0.6}", f"{CPUS + 1}", "CPUs"),
    "--device": ("seat=2", "seat=4", "seat devices"),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three scheduled nodes that know the bandwidth of their disks and links, and have three seats each."""
    someone = Person(tmp_path_factory.mktemp("home"))
    del someone.environment["DIOS_COORDINATOR"]
    someone.environment |= {
        "DIOS_STORE_RATE": "100MiB",
        "DIOS_LINK_RATE": "50MiB",
        "DIOS_DEVICES": "seat=3",
    }
    someone.types("dios up --nodes 3 --pool-size 1")
    try:
        live_site = Site(someone)
        someone.writes(
            "where.py",
            "import os\nprint(sorted(os.sched_getaffinity(0)), os.environ['DIOS_TASK_DEVICES'], flush=True)\n"
            "import time\ntime.sleep(600)\n",
        )
        wait_until(live_site.is_whole, "one coordinator attends to all nodes and has read them", LOADED_S)
        yield live_site
    finally:
        someone.types("dios down")


@pytest.fixture(autouse=True)
def _cleared(site: Site) -> Iterator[None]:
    yield
    site.clear()


@pytest.mark.parametrize("option", DIMENSIONS)
def test_more_than_any_node_has_waits_or_is_refused(site: Site, option: str) -> None:
    """A named node refuses it with the sum; the scheduler lets it wait, and `explain` names the resource."""
    _, large, word = DIMENSIONS[option]
    refused = site.person.types(f"dios run short.py --on n1 {option} {large}", status=REFUSED).stderr
    assert "would be reserved" in refused
    run = site.person.starts(f"dios run short.py {option} {large} --title large")
    try:
        site.until("large", "waiting")
        why = site.person.types("dios explain large").stdout
        assert "3 of 3 machines: " in why
        assert word in why
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)


def test_processors_that_are_called_sufficient_start_the_run(site: Site) -> None:
    """A run with the amount that `explain` names for a larger one starts, while that one still waits."""
    run = site.person.starts(f"dios run short.py --cpus {CPUS + 1} --title large")
    try:
        site.until("large", "waiting")
        explanation = msgspec.convert(site.ask("dios explain large")["explanation"], Explanation)
        (change,) = [
            counterfactual
            for counterfactual in explanation.counterfactuals
            if set(counterfactual.amounts) == {"cpus"}
        ]
        assert {node.name for node in explanation.free} == set(NODES)
        site.person.types(f"dios run short.py --cpus {change.amounts['cpus']}")
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)


@pytest.mark.parametrize("option", [dimension for dimension, (half, _, _) in DIMENSIONS.items() if half])
def test_what_is_reserved_is_not_reserved_twice(site: Site, option: str) -> None:
    """Three runs that need most of a node fill three nodes; the fourth waits, and `explain` says for what."""
    half, _, word = DIMENSIONS[option]
    runs = [site.person.starts(f"dios run long.py {option} {half} --title half") for _ in range(4)]
    try:
        rows = site.until("half", "waiting")
        site.until("half", "running", 3)
        (waits,) = [str(row["fingerprint"]) for row in rows if row["state"] == "waiting"]
        assert sorted(str(row["node"]) for row in site.tasks("half") if row["state"] == "running") == NODES
        why = site.person.types(f"dios explain {waits}").stdout
        assert "not enough free" in why
        assert word.removeprefix("seat ") in why
    finally:
        for run in runs:
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=60)


def test_a_run_moves_no_more_than_its_bandwidth(site: Site) -> None:
    """It reads three objects of another node, of a second each: after the first one it waits."""
    site.person.types("dios group create crew")
    inputs = ""
    for number in range(3):
        site.person.writes(f"part{number}.txt", str(number) * (1 << 20))
        site.person.types(f"dios put part{number}.txt --group crew")
        inputs += f" --input part{number}=part{number}.txt"
    line = f"dios run short.py --on n2 --group crew --net 1MiB --json{inputs}"
    told = json.loads(site.person.types(line).stdout)
    assert (told["enforced"], told["advisory"]) == (["net"], {})
    assert (2 << 20) / ((told["ended"] - told["started"]) / 1e9) < 1.3 * (1 << 20)


def test_a_placement_names_threads_and_the_task_runs_there(site: Site) -> None:
    """Under CoCo the runs of a node have a thread each, and `describe` and `explain` name it."""
    site.person.types("dios sched set-model coco")
    try:
        processors = []
        for number in range(CPUS):
            label = f"bound{number}"
            site.person.types(f"dios run where.py --detach --constraint node=n2 --title {label}")
            site.until(label, "running")
            wait_until(lambda name=label: printed(site, name) != "", f"{label} has printed", 60)
            row = json.loads(site.person.types(f"dios describe {label} --json").stdout)
            assert printed(site, label).startswith(f"{row['processors']} ")
            processors += row["processors"]
            assert f"n2/cpu{row['processors'][0]}" in site.person.types(f"dios explain {label}").stdout
        assert len(set(processors)) == CPUS
    finally:
        site.person.types("dios sched reset")


@pytest.mark.parametrize(("devil", "turtle"), [("n1", "n2"), ("n2", "n1")])
def test_a_run_avoids_neighbours_of_a_harmful_class(site: Site, devil: str, turtle: str) -> None:
    """Under CoCo, a rabbit goes to the node of a turtle and not to that of a devil."""
    site.person.types("dios sched set-model coco")
    try:
        for name, node in (("devil", devil), ("turtle", turtle)):
            line = f"dios run long.py --detach --class {name} --constraint node={node} --title {name}"
            site.person.types(f"{line} --cpus 0.5")
        line = "dios run long.py --detach --class rabbit --cpus 0.5 --constraint node!=n3 --title rabbit"
        site.person.types(line)
        assert [row["node"] for row in site.until("rabbit", "running")] == [turtle]
    finally:
        site.person.types("dios sched reset")


def test_devices_of_all_nodes_are_given_out_once(site: Site) -> None:
    """Nine runs with a seat each have the nine seats of three nodes, and their variables name them."""
    for number in range(9):
        site.person.types(f"dios run where.py --detach --device seat=1 --title seat{number}")
    wait_until(lambda: all(printed(site, f"seat{number}") for number in range(9)), "all have printed", 100)
    rows = [row for row in site.rows() if str(row["label"]).startswith("seat")]
    taken = {(str(row["node"]), printed(site, str(row["label"])).split()[-1]) for row in rows}
    assert taken == {(node, f"seat={seat}") for node in NODES for seat in range(3)}
    used = {row["node"]: row["devices"] for row in site.ask("dios sched status")["nodes"]}  # type: ignore[attr-defined] # rows
    assert used == {node: {"seat": {"count": 3, "taken": ["0", "1", "2"]}} for node in NODES}


def printed(site: Site, label: str) -> str:
    """Return the output of a task so far."""
    return site.person.types(f"dios logs {label}").stdout
