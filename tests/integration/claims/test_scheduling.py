"""What a running coordinator decides under the thesis' policies, which settings and needs switch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dios
from dios.firmament.coordinator.best_effort import NodeLoad
from tests.support.firmament.live_scheduler import WAITING, LiveScheduler, live_scheduler
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import CPUS, LOADED_S, NODES

pytestmark = [pytest.mark.timeout(LOADED_S + 100), pytest.mark.long]

MOST = CPUS * 0.8
"""The processors of a run of which a node has room for one."""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveScheduler]:
    """Three nodes in two racks."""
    with live_scheduler(tmp_path_factory.mktemp("scheduling")) as live:
        yield live


@pytest.fixture
def scheduler(started: LiveScheduler) -> Iterator[LiveScheduler]:
    """The same, empty, with the model and the settings of the nodes."""
    yield started
    started.clear()


def fill(scheduler: LiveScheduler, *names: str, **work: object) -> None:
    """Let a run take most of each of these nodes; its label is the node's name."""
    for name in names:
        scheduler.runs(f"at {name}", cpus=MOST, constraints=[f"node={name}"], **work)


def test_every_model_of_the_catalogue_schedules(scheduler: LiveScheduler) -> None:
    """Each listed model makes a network in which all flow ends at the sink, and places a run by it."""
    rows = scheduler.ask("models")["models"]
    assert isinstance(rows, list)
    names = [row["model"] for row in rows]
    assert len(names) > 25
    for name in names:
        network = scheduler.model(name)
        assert network.supply["sink"] == -sum(network.supply[task] for task in network.tasks)
        scheduler.submits("small", cpus=0.01)
        wait_until(lambda: scheduler.states("small") == ["running"], f"{name} places a run")
        assert scheduler.rounds()[-1]["model"] == name
        scheduler.kill("small")
        wait_until(lambda: not scheduler.states("small"), "it has ended")


def test_a_run_waits_for_room_and_gets_it(scheduler: LiveScheduler) -> None:
    """Its flow goes through the vertex of waiting while all nodes are full, and to a node when one is not."""
    fill(scheduler, *NODES)
    scheduler.submits("wants", cpus=MOST)
    scheduler.waits("wants")

    def heads() -> set[object]:
        links = scheduler.ask("export", **{"as": "links"})["links"]
        assert isinstance(links, list)
        return {head for _, head, _, _ in links}

    assert f"{WAITING} (wants)" in heads()
    scheduler.kill("at n3")
    wait_until(lambda: scheduler.places("wants") == ["n3"], "it runs")
    assert f"{WAITING} (wants)" not in heads()


def test_a_placement_that_does_not_fit_is_held_back(scheduler: LiveScheduler) -> None:
    """Two runs for which there are slots but processors for one: a round places one, and later the other."""
    fill(scheduler, "n1", "n2")
    both = [("first", "node=n3"), ("second", "node=n3")]
    for label, constraint in both:
        scheduler.submits(label, cpus=MOST, constraints=[constraint])
    wait_until(
        lambda: sorted(scheduler.states("first") + scheduler.states("second")) == ["running", "waiting"],
        "one runs and one waits",
    )
    running = next(label for label, _ in both if scheduler.states(label) == ["running"])
    (waits,) = {label for label, _ in both} - {running}
    assert "not enough free" in str(scheduler.ask("explain", task=waits)["lines"])
    scheduler.kill(running)
    wait_until(lambda: scheduler.places(waits) == ["n3"], "the other one runs")


def test_preemption_for_processors_can_be_off(scheduler: LiveScheduler) -> None:
    """A run of higher priority waits while preemption is off, and takes a place when it is on."""
    scheduler.ask("set", settings={"preemption": "false"})
    fill(scheduler, *NODES, restartable=True)
    scheduler.submits("high", cpus=MOST, priority=5)
    scheduler.waits("high")
    number = scheduler.rounds()[-1]["number"]
    wait_until(lambda: scheduler.rounds()[-1]["number"] != number, "another round is over")
    assert scheduler.states("high") == ["waiting"]
    scheduler.ask("set", settings={"preemption": "true"})
    wait_until(lambda: scheduler.states("high") == ["running"], "it has a place")
    kinds = [row["kinds"] for row in scheduler.rounds()]
    assert any("preempt" in kind for kind in kinds), kinds  # type: ignore[operator] # a mapping


@pytest.mark.parametrize(("affinity", "racks"), [("same-rack", 1), ("spread-racks", 2)])
def test_a_gang_is_near_or_far_by_rack(scheduler: LiveScheduler, affinity: str, racks: int) -> None:
    """Two tasks that do not fit on one node are in one rack or in two, as they ask."""
    for _ in range(2):
        scheduler.submits("pair", cpus=MOST, gang=(2, 2), job=f"pair {affinity}", affinity=affinity)
    wait_until(lambda: scheduler.states("pair") == ["running"] * 2, "both run")
    places = scheduler.places("pair")
    assert len(set(places)) == 2
    assert len({place == "n2" for place in places}) == racks


def test_a_round_is_solved_from_the_last_solution(scheduler: LiveScheduler) -> None:
    """Rounds change the last flow a little, and their costs are certified like those of a fresh solver."""
    scheduler.ask("set", settings={"certify_every": "1"})
    for number in range(6):
        scheduler.runs(f"task {number}", cpus=0.1, restartable=True)
    last = scheduler.rounds()[-1]
    assert (last["algorithm"], last["certified"]) == ("warm", True)
    assert 0 < int(str(last["changes"])) < int(str(last["arcs"]))
    scheduler.ask("set", settings={"solver": "network_simplex"})
    scheduler.runs("one more", cpus=0.1)
    fresh = scheduler.rounds()[-1]
    assert (fresh["algorithm"], fresh["certified"]) == ("network_simplex", True)


def test_coco_serves_priorities_and_then_those_that_wait_longest(scheduler: LiveScheduler) -> None:
    """Of three that wait the most important runs first, and of equals the one that came first."""
    scheduler.model("coco")
    fill(scheduler, *NODES)
    for label, priority in (("early", 0), ("late", 0), ("high", 3)):
        scheduler.submits(label, cpus=MOST, priority=priority)
        scheduler.waits(label)
    for node, label in (("n1", "high"), ("n2", "early"), ("n3", "late")):
        scheduler.kill(f"at {node}")
        wait_until(lambda label=label: scheduler.states(label) == ["running"], f"{label} runs")
        later = {"high": ["early", "late"], "early": ["late"], "late": []}[label]
        assert all(scheduler.states(other) == ["waiting"] for other in later)


def test_reserved_and_idle_processors_run_what_reserves_nothing(scheduler: LiveScheduler) -> None:
    """With all processors set aside by tasks that sleep, best effort runs, and a reservation waits."""
    scheduler.model("coco")
    for node in NODES:
        scheduler.runs(f"owner {node}", cpus=CPUS, service=True, constraints=[f"node={node}"])
    scheduler.submits("reserves", cpus=CPUS * 0.5)
    scheduler.waits("reserves")
    scheduler.submits("spare", best_effort=True)
    wait_until(lambda: scheduler.states("spare") == ["running"], "best effort runs")
    assert scheduler.states("reserves") == ["waiting"]


def test_green_moves_a_task_that_would_miss_its_deadline(scheduler: LiveScheduler) -> None:
    """On a machine that turns out to be slow it costs more than everything else, and goes to a fast one."""
    scheduler.report("n2", "fast")
    scheduler.report("n3", "frugal")
    scheduler.node.label_node("n2", {"power": "10:90:2:1"})
    scheduler.node.label_node("n3", {"power": "5:6:2:1"})
    scheduler.model("green")
    scheduler.submits("dated", cpus=0.5, restartable=True, time=300, deadline=900, constraints=["node!=n1"])
    wait_until(lambda: scheduler.places("dated") == ["n3"], "it is where it takes least energy")
    scheduler.node.label_node("n3", {"power": "5:6:2:0.1"})
    numbers = {member.name: member.node for member in scheduler.node.nodes()}

    def moves() -> list[tuple[int, int]]:
        deltas = [delta for row in scheduler.rounds() for delta in row["deltas"]]  # type: ignore[attr-defined] # rows
        return [(source, target) for change, _, source, target in deltas if change == "migrate"]

    wait_until(lambda: moves() == [(numbers["n3"], numbers["n2"])], "it is moved to the one that is in time")
    wait_until(lambda: not scheduler.places("dated"), "it has left")


def test_of_two_decisions_about_a_run_the_second_is_refused(scheduler: LiveScheduler) -> None:
    """Whoever places a run that was placed meanwhile is told so, and it runs once."""
    fill(scheduler, *NODES)
    scheduler.submits("wants", cpus=MOST)
    scheduler.waits("wants")
    board = scheduler.node.board(host="n1")
    (number,) = [row.id for row in board.waiting]
    scheduler.kill("at n2")
    wait_until(lambda: scheduler.places("wants") == ["n2"], "the coordinator has placed it")
    refused = dict(scheduler.node.place("n1", [(number, "n3")]).refused)
    assert number in refused
    assert scheduler.places("wants") == ["n2"]


def test_a_coordinator_measures_the_tasks_of_its_node(scheduler: LiveScheduler) -> None:
    """Without measurements every place of a class costs the same; after a run it costs what was measured."""
    unknown = 77_777

    def cost() -> int:
        network = scheduler.model("whare-m", unknown=unknown)
        (group,) = network.options("again")
        return network.arcs[group]["cluster"].cost

    movable = {"cpus": 0.01, "restartable": True, "equivalence": "measured"}
    scheduler.runs("again", constraints=["node=n1"], **movable)
    busy = b"import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass\n"
    before = cost()
    scheduler.model("spread")
    task = scheduler.node.run(busy, work=dios.work(equivalence="measured", constraints=["node=n1"]))
    assert task.wait(60).ok
    wait_until(lambda: cost() != unknown, "the run was measured", 60)
    assert before == unknown


def test_watts_above_idle_are_those_of_the_tasks(scheduler: LiveScheduler) -> None:
    """The power that a node reports is divided among the cores of its tasks, and makes Green's costs."""
    scheduler.report("n2", "metered")
    # Leaving a place costs more than any watts.
    held = {"migration_hysteresis": "1000000000", "preemption_hysteresis": "1000000000"}
    scheduler.ask("set", settings=held)
    for label, cpus in (("lit", 0.4), ("dim", 0.2)):
        scheduler.runs(label, cpus=cpus, restartable=True, equivalence=label, constraints=["node=n2"])

    def cost(label: str) -> int:
        return scheduler.network().arcs[label]["n2"].cost

    scheduler.model("green")
    before = cost("lit")
    for number in range(5):
        load = NodeLoad(0, 0, 0, 0, milliwatts=100_000 + number)
        scheduler.report("n2", "metered", load=load)
        wait_until(lambda load=load: watts_of(scheduler, "n2") == load.milliwatts / 1000, "it is shown")
    wait_until(lambda: cost("lit") > 3 * before, "the cost is what was measured")
    assert 1.5 < cost("lit") / cost("dim") < 2.5


def watts_of(scheduler: LiveScheduler, name: str) -> float | None:
    """The power of a node, as the coordinator knows it."""
    rows = scheduler.ask("status")["nodes"]
    assert isinstance(rows, list)
    (watts,) = [row["watts"] for row in rows if row["node"] == name]
    assert watts is None or isinstance(watts, float)
    return watts


def test_green_knows_the_machines_of_the_thesis(scheduler: LiveScheduler) -> None:
    """A node of a type in Tables 8.3 and 8.4 has its watts, cores and speed without any label."""
    held = {"migration_hysteresis": "1000000000"}
    scheduler.ask("set", settings=held)
    for node, machine in (("n2", "r415"), ("n3", "pandaboard")):
        scheduler.node.label_node(node, {"power": None})
        scheduler.report(node, machine)
    cpus, seconds = 0.2, 100
    scheduler.runs("movable", cpus=cpus, restartable=True, time=seconds, constraints=["node=n2"])
    marginal = {"n2": (238.02 - 70.60) / 12, "n3": (7.58 - 6.95) / 2 / 0.18}

    def energies() -> list[int]:
        network = scheduler.network()
        return sorted(arc.cost % 10**9 for head, arc in network.options("movable").items() if "class" in head)

    scheduler.model("green")
    wanted = {round(10 * watts * cpus * seconds) for watts in marginal.values()}
    wait_until(lambda: wanted <= set(energies()), "the costs are those of the tables")
