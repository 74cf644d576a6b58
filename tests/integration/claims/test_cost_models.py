"""The flow networks of the thesis' cost models, as a running coordinator makes them of running tasks.

Each test chooses a model and reads the network that the coordinator would solve now; the parameters of the
model are the switches.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dios
from tests.support.firmament.live_scheduler import (
    WAITING,
    Arc,
    FlowNetwork,
    LiveScheduler,
    live_scheduler,
)
from tests.support.firmament.samples import sample
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import CPUS, LOADED_S, NODES

pytestmark = [pytest.mark.timeout(LOADED_S + 100), pytest.mark.long]

SIZE = 1 << 28
GB = SIZE / 10**9
FAST, SLOW = "fast", "slow"
TASKS_MAX = 16
"""Places for tasks on a machine, a setting of the nodes."""
HELD = 10**9
"""The cost of leaving a place, so that no model moves a task of the scene."""


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveScheduler]:
    """n2 is a fast machine, n3 a slow and frugal one that has the input of `data`; `wants` waits.

    `data` and `noisy` can be moved. On the fast machine a task of the class burn was measured alone three
    times, and once next to one of the class noise.
    """
    with live_scheduler(tmp_path_factory.mktemp("models")) as live:
        alone = [sample("burn", FAST, "n2", at, ps_per_instruction=500) for at in (1, 2, 3)]
        beside = sample("burn", FAST, "n2", 4, ("noise",), ps_per_instruction=1500)
        live.report("n2", FAST, *alone, beside, sample("noise", FAST, "n2", 1, ps_per_instruction=100))
        live.report("n3", SLOW, sample("burn", SLOW, "n3", ps_per_instruction=1000))
        live.node.label_node("n2", {"power": "10:30:2:2"})
        live.node.label_node("n3", {"power": "5:6:2:0.5"})
        assert live.node.home is not None
        data = live.node.create(dios.SHMEM_BLOB, groups=[live.node.home], data=bytes(SIZE), host="n3")
        movable = {"cpus": 0.1, "restartable": True}
        live.runs(
            "data",
            equivalence="burn",
            time=100,
            deadline=10_000,
            inputs=[data],
            **movable,
        )
        live.runs("noisy", equivalence="noise", interference="devil", constraints=["node=n2"], **movable)
        for node in NODES:
            live.runs("fill", cpus=CPUS * 0.8, constraints=[f"node={node}"])
        live.submits("wants", cpus=CPUS * 0.5, priority=2, equivalence="burn")
        live.waits("wants")
        live.ask("set", settings={"migration_hysteresis": str(HELD), "preemption_hysteresis": str(HELD)})
        yield live
        live.clear()


@pytest.fixture(autouse=True)
def _as_before(scheduler: LiveScheduler) -> Iterator[None]:
    yield
    scheduler.model("spread")
    assert scheduler.states("wants") == ["waiting"]
    assert scheduler.places("data") == ["n3"]


# -- the network (§6.2, §6.2.4, Figures 6.1 to 6.4, Table 6.2, Table C.1, §C.1.1) ---------------------
def test_tasks_are_flow_to_a_place_or_to_waiting(scheduler: LiveScheduler) -> None:
    """Each task supplies a unit, the sink takes all of them, and nothing is lost in between."""
    network = scheduler.model("trivial")
    tasks = 1 + 2 + 3 + 1
    assert len(network.tasks) == tasks
    assert {network.supply[task] for task in network.tasks} == {1}
    assert network.supply["sink"] == -tasks
    links = scheduler.ask("export", **{"as": "links"})["links"]
    assert isinstance(links, list)
    out: dict[str, int] = {}
    into: dict[str, int] = {}
    for tail, head, units, _ in links:
        out[tail] = out.get(tail, 0) + units
        into[head] = into.get(head, 0) + units
    assert into.pop("sink") == tasks
    inner = {vertex for vertex in into if not vertex.startswith("task")}
    assert {vertex: out[vertex] for vertex in inner} == {vertex: into[vertex] for vertex in inner}
    assert into["waiting (wants)"] == 1
    assert sum(into[node] for node in NODES) == tasks - 1


def test_capacities_are_those_of_the_table(scheduler: LiveScheduler) -> None:
    """Arcs of tasks take one, those down the tree the slots below, those of waiting the room of the job."""
    network = scheduler.model("trivial")
    for task in ("data", "noisy", "wants"):
        assert {arc.capacity for arc in network.arcs[task].values()} == {1}
    slots = {node: network.arcs[node]["sink"].capacity for node in NODES}
    assert len(set(slots.values())) == 1
    assert network.to_machines("r1") == {"n1": Arc(slots["n1"], 0), "n3": Arc(slots["n3"], 0)}
    assert network.to_machines("r2") == {"n2": Arc(slots["n2"], 0)}
    racks = network.arcs["cluster"]
    assert racks == {"r1": Arc(slots["n1"] + slots["n3"], 0), "r2": Arc(slots["n2"], 0)}
    assert network.arcs["waiting (wants)"]["sink"].capacity == 1


def test_costs_are_of_places_of_waiting_and_of_the_present_place(scheduler: LiveScheduler) -> None:
    """The scopes of costs: task to cluster, task to waiting, task to its place, class to machine."""
    network = scheduler.model("quincy", theta=1000)
    data = network.arcs["data"]
    assert data["cluster"].cost > 0 > data["n3"].cost
    assert data["n3"].cost < network.arcs["wants"]["cluster"].cost < network.arcs["wants"][WAITING].cost
    spread = scheduler.model("spread")
    (shared,) = spread.options("noisy")
    (machines,) = spread.arcs[shared]
    assert sorted(spread.to_machines(machines)) == NODES


def test_tasks_of_a_class_share_the_arcs_to_machines(scheduler: LiveScheduler) -> None:
    """A task has an arc to its class and the class one to each type, so that numbers add up."""
    network = scheduler.model("whare-m")
    same = [next(iter(network.options(task))) for task in ("data", "wants")]
    assert same[0] == same[1]
    (other,) = network.options("noisy")
    assert other != same[0]
    for number in (same[0], other):
        assert len([head for head in network.arcs[number] if head.startswith("class")]) == len(NODES)


# -- priorities (§C.4.1) ------------------------------------------------------------------------------
def test_a_step_of_priority_outweighs_all_else(scheduler: LiveScheduler) -> None:
    """Under spread the cost of waiting has a step for each priority, and all seconds are less than a step."""
    step = 4_000_000
    slow = scheduler.model("spread", per_second=0).arcs["wants"][WAITING].cost
    assert slow == 3 * step
    fast = scheduler.model("spread", per_second=1_000_000).arcs["wants"][WAITING].cost
    assert 3 * step < fast <= 3 * step + step // 4


# -- Quincy (§7.1, Figures 7.1 and C.3, Tables C.2 and C.3) --------------------------------------------
def test_quincy_weighs_moved_data_by_distance(scheduler: LiveScheduler) -> None:
    """To the rack of the input psi for each GB, to the cluster xi; on the machine that has it nothing."""
    for psi, xi in ((1000, 2000), (500, 2000), (1000, 8000)):
        arcs = scheduler.model("quincy", psi=psi, xi=xi, theta=0).arcs["data"]
        assert {head: arc.cost % HELD for head, arc in arcs.items() if head != WAITING} == {
            "r1": round(psi * GB),
            "cluster": round(xi * GB),
            "n3": 0,
        }
    bare = scheduler.model("quincy", rack_arcs=0)
    assert "r1" not in bare.arcs["data"]
    assert bare.arcs["noisy"]["cluster"].cost == HELD


def test_quincy_weighs_waiting_and_lost_work_by_the_second(scheduler: LiveScheduler) -> None:
    """Omega for a second of waiting, theta off for each second of running; both are off at 0."""
    off = scheduler.model("quincy", omega=0, theta=0)
    assert (off.arcs["wants"][WAITING].cost, off.arcs["data"]["n3"].cost) == (0, 0)
    on = scheduler.model("quincy", omega=10**6, theta=10**6)
    assert on.arcs["wants"][WAITING].cost > 10**5
    assert on.arcs["data"]["n3"].cost < -(10**5)


# -- Whare-Map (§7.2, Figure 7.2, Table 7.1) -------------------------------------------------------------
BEST, MEAN, BESIDE, SLOWER = 500, 750, 1500, 1000
"""Picoseconds per instruction of the class burn: alone on n2, there in the mean, next to noise, and on n3."""


def scores(network: LiveScheduler, model: str, **parameters: object) -> tuple[dict[str, int], dict[str, int]]:
    """The costs of the class burn by the machine of each type, and by machine without a type, with X."""
    arcs = network.model(model, **parameters)
    (burn,) = arcs.options("data")
    types = {
        next(iter(machines)): arc.cost
        for head, arc in arcs.arcs[burn].items()
        if (machines := arcs.to_machines(head))
    }
    direct = {head: arc.cost for head, arc in arcs.to_machines(burn).items()}
    return types, direct | {"cluster": arcs.arcs[burn]["cluster"].cost}


def test_whare_map_has_arcs_by_type_and_by_neighbours(scheduler: LiveScheduler) -> None:
    """Whare-M has means of types, Whare-C neighbours without types, Whare-Cs and -MCs neighbours by type."""
    types, direct = scores(scheduler, "whare-m", relative=False)
    assert (types["n2"], types["n3"]) == (MEAN, SLOWER)
    assert direct == {"cluster": SLOWER}
    # The one that waits gets an arc to the best machine: not to that of noise, whatever its type.
    for model, cost in (("whare-c", (MEAN + SLOWER) // 2), ("whare-cs", (BEST + SLOWER) // 2)):
        types, direct = scores(scheduler, model, relative=False, mutual=0)
        assert not types
        (place,) = direct.keys() - {"cluster"}
        assert place != "n2"
        assert direct[place] == cost
    types, direct = scores(scheduler, "whare-mcs", relative=False, mutual=0)
    assert (types["n2"], types["n3"]) == (MEAN, SLOWER)
    assert direct == {"n3": SLOWER, "cluster": BESIDE}


def test_whare_map_counts_instructions_and_tells_slow_downs(scheduler: LiveScheduler) -> None:
    """Costs are picoseconds per instruction, or in thousandths of the class's best; means lie in between."""
    types, _ = scores(scheduler, "whare-m", relative=False)
    assert BEST <= types["n2"] <= BESIDE
    types, _ = scores(scheduler, "whare-m", relative=True)
    assert (types["n2"], types["n3"]) == (1000 * MEAN // BEST, 1000 * SLOWER // BEST)


def test_whare_map_weighs_waiting_running_and_load(scheduler: LiveScheduler) -> None:
    """Waiting costs omega by the second and the mean at least, staying less theta; types have loads."""
    low = scheduler.model("whare-m", omega=0, theta=0, load=0, relative=False)
    assert low.arcs["wants"][WAITING].cost == (MEAN + SLOWER) // 2 + 1
    assert low.arcs["noisy"]["n2"].cost == 100
    high = scheduler.model("whare-m", omega=10**6, theta=10**6, load=16_000, relative=False)
    assert high.arcs["wants"][WAITING].cost > 10**5
    assert high.arcs["noisy"]["n2"].cost < -(10**5)

    def loads(network: object) -> set[int]:
        assert isinstance(network, type(low))
        (noise,) = network.options("noisy")
        types = [head for head in network.arcs[noise] if head.startswith("class")]
        return {arc.cost for head in types for arc in network.to_machines(head).values()}

    assert loads(low) == {0}
    assert min(loads(high)) >= 1_000


# -- CoCo (§7.3, Figures 6.8 and 7.3, Listing 7.1) -------------------------------------------------------
def coco(scheduler: LiveScheduler, **parameters: object) -> FlowNetwork:
    """The network of CoCo, once the machines are described with their parts."""
    networks: list[FlowNetwork] = []

    def is_deep() -> bool:
        networks.append(scheduler.network())
        return (
            any("/" in head for head in networks[-1].arcs["data"]) and "sink" not in networks[-1].arcs["n1"]
        )

    scheduler.model("coco", **parameters)
    wait_until(is_deep, "machines have parts")
    return networks[-1]


def inside(network: FlowNetwork, node: str) -> list[str]:
    """The parts of a machine on the way from it to its first thread, and to the sink."""
    path = [node]
    while path[-1] != "sink":
        path.append(min(head for head in network.arcs[path[-1]]))
    return path


def test_coco_schedules_caches_and_threads(scheduler: LiveScheduler) -> None:
    """The tree of a machine goes down to its threads, whose places for tasks make up the machine's."""
    network = coco(scheduler)
    *_, core, thread, sink = inside(network, "n1")
    assert (core.partition("/")[2][:4], thread.partition("/")[2][:3], sink) == ("core", "cpu", "sink")
    threads = [tail for tail in network.arcs if tail.startswith("n1/cpu")]
    assert len(threads) == CPUS
    assert sum(network.arcs[name]["sink"].capacity for name in threads) == TASKS_MAX


def test_coco_puts_services_and_priorities_first(scheduler: LiveScheduler) -> None:
    """A task's arc costs the steps of its priority, and waiting costs more than all of them."""
    network = coco(scheduler, weights="0,0,0,0,0,0,0", per_second=0)
    ((_, entry),) = network.options("wants").items()
    present = network.arcs["data"]["n3/" + thread_of(network, "data")]
    step = 5 * 8 * 8 * 1000
    assert present.cost - entry.cost == 2 * step
    assert network.arcs["wants"][WAITING].cost > 511 * step


def thread_of(network: FlowNetwork, job: str) -> str:
    """The thread on which a task runs."""
    (place,) = (head for head in network.arcs[job] if "/" in head)
    return place.partition("/")[2]


def test_coco_flattens_demands_and_disturbance_by_weights(scheduler: LiveScheduler) -> None:
    """Half of the processors cost half of Ω in their dimension, times its weight, which may be 0."""
    whole = 1000
    costs = {}
    for cpu in (0, 0.5, 1):
        network = coco(scheduler, weights=f"{cpu},0,0,0,0,0,0")
        ((_, entry),) = network.options("wants").items()
        costs[cpu] = entry.cost
    assert costs[0.5] - costs[0] == whole // 4
    assert costs[1] - costs[0] == whole // 2


def test_coco_expects_less_of_a_disturbance_farther_up(scheduler: LiveScheduler) -> None:
    """A task costs its neighbours most on its own thread, less in the parts above, and nothing if off."""
    network = coco(scheduler, weights="0,0,0,0,0,1,0")
    thread = "n3/" + thread_of(network, "data")
    costs = {head: arc.cost for arcs in network.arcs.values() for head, arc in arcs.items() if head != "sink"}
    upward = [costs[name] for name in (thread, *parents(network, thread)) if name not in {"r1", "cluster"}]
    assert len(upward) > 3
    assert upward[0] > upward[-1]
    assert upward == sorted(upward, reverse=True)
    quiet = coco(scheduler, weights="0,0,0,0,0,0,0")
    assert {arc.cost for tail, arcs in quiet.arcs.items() if tail[:2] in NODES for arc in arcs.values()} == {
        0
    }


def parents(network: FlowNetwork, name: str) -> list[str]:
    """The vertices above a part of a machine."""
    above = [tail for tail, arcs in network.arcs.items() if name in arcs and tail not in {"data", "noisy"}]
    resources = [tail for tail in above if tail[:2] in NODES or tail in {"r1", "r2"}]
    return [*resources, *(parents(network, resources[0]) if resources else [])]


def test_coco_starts_tasks_in_waves(scheduler: LiveScheduler) -> None:
    """In a round each machine of an aggregate takes one task more, or the aggregate as a whole."""
    for wave, most in (("machine", 2), ("aggregate", 1)):
        network = coco(scheduler, wave=wave)
        assert network.arcs["cluster"]["r1"].capacity == most
        assert {arc.capacity for arc in network.to_machines("r1").values()} == {1}
    assert scheduler.model("trivial").arcs["cluster"]["r1"].capacity == 2 * TASKS_MAX


def test_coco_offers_no_place_in_which_a_task_does_not_fit(scheduler: LiveScheduler) -> None:
    """No subtree has room for the one that waits, so that its class has no arc."""
    network = coco(scheduler)
    ((group, _),) = network.options("wants").items()
    assert group not in network.arcs
    assert group in coco(scheduler).arcs["wants"]


# -- Green (§7.4, Figures 7.4 and 7.5, Tables 8.3 and 8.4) -------------------------------------------------
def kinds_of(network: FlowNetwork, job: str) -> dict[str, Arc]:
    """A task's arcs to aggregators of types, by the machine of the type."""
    return {
        next(iter(network.to_machines(head))): arc
        for head, arc in network.options(job).items()
        if head.startswith("class") and network.to_machines(head)
    }


def test_green_costs_the_energy_of_a_run_by_type(scheduler: LiveScheduler) -> None:
    """Watts above idle of a core, divided by its speed, for the seconds of the run, in tenths of a joule."""
    arcs = kinds_of(scheduler.model("green"), "data")
    seconds, share = 100, 0.1
    joules = {"n2": (30 - 10) / 2 * share * seconds / 2, "n3": (6 - 5) / 2 * share * seconds / 0.5}
    assert {node: arcs[node].cost % HELD for node in joules} == {
        node: round(10 * energy) for node, energy in joules.items()
    }
    times = kinds_of(scheduler.model("green", objective="performance"), "data")
    assert {node: times[node].cost % HELD for node in joules} == {"n2": 500, "n3": 2000}


def test_green_knows_watts_by_the_label_of_a_node(scheduler: LiveScheduler) -> None:
    """With other watts in the label the costs are others, and back with the old ones."""
    before = kinds_of(scheduler.model("green"), "data")["n2"].cost
    for label, factor in (("10:50:2:2", 2), ("10:30:2:2", 1)):
        scheduler.node.label_node("n2", {"power": label})
        wait_until(
            lambda factor=factor: (
                kinds_of(scheduler.network(), "data")["n2"].cost - HELD == factor * (before - HELD)
            ),
            f"the cost is that of {label}",
        )


# -- Apollo (§8.3) -----------------------------------------------------------------------------------------
def test_apollo_adds_input_waiting_and_run_time(scheduler: LiveScheduler) -> None:
    """Of places with equal waits the input costs xi for each GB; a longer run time makes waiting dearer."""
    for xi in (2000, 8000):
        network = scheduler.model("apollo", xi=xi)
        ((_, entry),) = network.options("data").items()
        assert entry.cost % HELD == round(xi * GB)
    short = scheduler.model("apollo", unknown=10).arcs["wants"][WAITING].cost
    long = scheduler.model("apollo", unknown=1000).arcs["wants"][WAITING].cost
    assert long > short
