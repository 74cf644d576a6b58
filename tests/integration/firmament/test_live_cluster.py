"""A cluster of three nodes on this machine whose runs are scheduled, as a person sees it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.node.command_user import Person
from tests.support.node.running_node import wait_until
from tests.support.node.scheduled_cluster import CPUS, LOADED_S, NODES, Site

# The first test waits for the cluster.
pytestmark = [pytest.mark.timeout(LOADED_S + 100), pytest.mark.long]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three nodes in two racks, scheduled."""
    someone = Person(tmp_path_factory.mktemp("home"))
    del someone.environment["DIOS_COORDINATOR"]
    someone.types("dios up --nodes 3 --racks 2 --pool-size 1")
    try:
        live_site = Site(someone)
        wait_until(live_site.is_whole, "one coordinator attends to all nodes and has read them", LOADED_S)
        someone.types("dios group create analytics")
        yield live_site
    finally:
        someone.types("dios down")


@pytest.fixture(autouse=True)
def _cleared(site: Site) -> Iterator[None]:
    yield
    site.clear()


def test_one_coordinator_schedules_for_all(site: Site) -> None:
    """`dios sched status` names it, what it attends to, and what each node has."""
    told = site.ask("dios sched status")
    assert told["attends"] == NODES
    nodes = told["nodes"]
    assert isinstance(nodes, list)
    assert [(row["node"], row["cpus"], row["coordinator"]) for row in nodes] == [
        (name, CPUS, True) for name in NODES
    ]
    assert told["model"] == "spread"
    assert told["problems"] == []


def test_runs_are_spread_and_nobody_is_overfull(site: Site) -> None:
    """Runs that set whole processors aside fill every node, no node more than it has; the next one waits."""
    runs = [site.person.starts(f"dios run long.py --cpus {CPUS} --title big") for _ in range(4)]
    try:
        rows = site.until("big", "waiting", 1)
        assert sorted(str(row["node"]) for row in rows if row["state"] == "running") == NODES
        (waits,) = [row for row in rows if row["state"] == "waiting"]
        why = site.person.types(f"dios explain {waits['fingerprint']}").stdout
        assert "waits" in why
        assert "not enough free" in why
        ended = next(row for row in rows if row["state"] == "running")
        site.person.types(f"dios kill {ended['fingerprint']}")
        wait_until(lambda: len(site.until("big", "running", 3)) == 3, "the one that waited runs", 60)
    finally:
        for run in runs:
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=60)


def test_a_constraint_says_where(site: Site) -> None:
    """A run with a label's value goes to the node that has it, and `dios explain` says that it is there."""
    site.person.types("dios run long.py --detach --constraint node=n2 --title there")
    (row,) = site.until("there", "running")
    assert row["node"] == "n2"
    assert "on n2" in site.person.types("dios explain there").stdout


def test_a_constraint_that_nothing_meets_is_explained(site: Site) -> None:
    """A run that fits nowhere waits, and the explanation counts what is missing, on how many nodes."""
    run = site.person.starts("dios run short.py --constraint gpu=yes --title picky")
    try:
        site.until("picky", "waiting")
        assert "3 of 3 machines: lack gpu=yes" in site.person.types("dios explain picky").stdout
        told = site.ask("dios explain picky")
        assert told["phase"] == "waiting"
        assert run.stderr is not None
        assert "picky waits: " in (line := run.stderr.readline())
        assert "lack gpu=yes" in line
    finally:
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
    wait_until(lambda: not site.tasks("picky"), "what was given up is withdrawn", 30)


def test_a_run_goes_near_its_input(site: Site) -> None:
    """With an object named, an idle cluster places the run on the node that has it."""
    site.person.writes("data.txt", "a b c\n")
    site.person.types("dios put data.txt --group analytics --node n3")
    told = json.loads(site.person.types("dios run short.py --near data.txt --json").stdout)
    assert told["node"] == "n3"


def test_a_gang_starts_together(site: Site) -> None:
    """A gang that does not fit waits as a whole; once there is room all of it runs, spread as it asked."""
    site.person.types(f"dios run long.py --detach --cpus {CPUS} --constraint node=n1 --title filler")
    gang = site.person.starts(
        f"dios run short.py --gang 3/3 --cpus {CPUS} --affinity spread-nodes --title crew"
    )
    try:
        rows = site.until("crew", "waiting", 3)
        assert len(rows) == 3
        (filler,) = site.tasks("filler")
        site.person.types(f"dios kill {filler['fingerprint']}")
        out, said = gang.communicate(timeout=60)
    finally:
        gang.kill()
    assert gang.returncode == 0, said
    assert sorted(line for line in out.splitlines() if line.startswith("[")) == [
        f"[{number}] ran" for number in range(3)
    ]
    assert all(name in out for name in NODES)


def test_a_gang_in_json(site: Site) -> None:
    """With JSON the standard output is the gang's result alone; what its tasks print goes beside it."""
    done = site.person.types("dios run short.py --gang 2/2 --json --title pair")
    rows = json.loads(done.stdout)
    assert [(row["number"], row["exit_status"]) for row in rows] == [(0, 0), (1, 0)]
    assert sorted(line for line in done.stderr.splitlines() if "ran" in line) == ["[0] ran", "[1] ran"]


def test_the_more_important_preempts(site: Site) -> None:
    """A restartable task makes room for one of higher priority, is run again by itself, and says so."""
    low = [site.person.starts(f"dios run long.py --cpus {CPUS} --restartable --title low") for _ in range(3)]
    try:
        site.until("low", "running", 3)
        told = json.loads(
            site.person.types(f"dios run short.py --cpus {CPUS} --priority 5 --json --title high").stdout
        )
        assert told["exit_status"] == 0
        site.until("low", "running", 3)
    finally:
        for run in low:
            run.send_signal(signal.SIGINT)
        said = [run.communicate(timeout=60)[1] for run in low]
    assert sum("or has a better one); the run continues" in text for text in said) == 1


def test_the_nearer_deadline_goes_first(site: Site) -> None:
    """Under Jockey, a run with a deadline gets the next place before one that has waited longer."""
    site.person.types("dios sched set-model jockey")
    runs = []
    try:
        for node in NODES:
            line = f"dios run long.py --detach --cpus {CPUS} --constraint node={node} --title full-{node}"
            site.person.types(line)
        for label, more in (("patient", ""), ("dated", "--deadline 30s")):
            runs.append(site.person.starts(f"dios run long.py --cpus {CPUS} --title {label} {more}"))
            site.until(label, "waiting")
        site.person.types("dios kill full-n2")
        site.until("dated", "running")
        assert [row["state"] for row in site.tasks("patient")] == ["waiting"]
    finally:
        for run in runs:
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=60)
        site.person.types("dios sched reset")


def test_services_are_placed_apart_from_batch_work(site: Site) -> None:
    """Under Hawk, with two nodes for short tasks alone, services are all on the third one."""
    site.person.types("dios sched set-model hawk reserved=0.67")
    try:
        nodes: dict[str, set[object]] = {"--long-running": set(), "--batch": set()}
        for kind, names in nodes.items():
            for number in range(3):
                line = f"dios run long.py --detach --title {kind[2:]}{number} {kind}"
                site.person.types(line)
                names |= {row["node"] for row in site.until(f"{kind[2:]}{number}", "running")}
        assert len(nodes["--long-running"]) == 1
        assert nodes["--batch"] - nodes["--long-running"]
    finally:
        site.person.types("dios sched reset")


def test_a_job_runs_its_maximum_at_most(site: Site) -> None:
    """Two of five runs of a job run although every node is empty, and another job is not kept waiting."""
    runs = [
        site.person.starts(
            f"dios run long.py --series crowd --series-maximum 2 --title crowd --cpus {CPUS / 2}"
        )
        for _ in range(5)
    ]
    try:
        site.until("crowd", "running", 2)
        rows = site.until("crowd", "waiting", 3)
        waits = next(row for row in rows if row["state"] == "waiting")
        why = site.person.types(f"dios explain {waits['fingerprint']}").stdout
        assert "its series runs as many tasks as it may at once: 2 of 2" in why
        done = site.person.types(f"dios run short.py --cpus {CPUS / 2} --title other")
        assert done.stdout == "ran\n"
        ended = next(row for row in site.tasks("crowd") if row["state"] == "running")
        site.person.types(f"dios kill {ended['fingerprint']}")
        site.until("crowd", "waiting", 2)
        site.until("crowd", "running", 2)
    finally:
        for run in runs:
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=60)


def test_a_job_gets_its_minimum(site: Site) -> None:
    """One run of the job takes the place of a restartable run of the same priority, and only one."""
    low = [site.person.starts(f"dios run long.py --cpus {CPUS} --restartable --title low") for _ in range(3)]
    high = []
    try:
        site.until("low", "running", 3)
        line = f"dios run long.py --cpus {CPUS} --series web --series-minimum 1 --title web"
        high = [site.person.starts(line) for _ in range(2)]
        site.until("web", "running", 1)
        site.until("web", "waiting", 1)
        site.until("low", "waiting", 1)
        assert len(site.until("low", "running", 2)) == 3
    finally:
        for run in high:
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=60)
        site.until("low", "running", 3)
        for run in low:
            run.send_signal(signal.SIGINT)
        said = [run.communicate(timeout=60)[1] for run in low]
    assert any("or has a better one); the run continues" in text for text in said)


def test_fair_shares_bound_the_wait_of_a_job(site: Site) -> None:
    """With F_j = A_j a job that is alone gets every processor, and gives half of them to the next one."""
    runs = []
    site.person.types("dios sched set fairness=bounded")
    try:
        for label, shares in (("first", {"first": 6}), ("second", {"first": 3, "second": 3})):
            line = f"dios run long.py --gang 1/6 --cpus {CPUS / 2} --restartable --title {label}"
            runs.append(site.person.starts(line))
            for job, count in shares.items():
                site.until(job, "running", count)
    finally:
        for run in runs:
            run.send_signal(signal.SIGINT)
            run.communicate(timeout=60)
        site.person.types("dios sched reset")


def test_needs_that_contradict_each_other_are_refused(site: Site) -> None:
    """Options that cannot both hold are refused before anything is asked of a node, each by its name."""
    for line, named in (
        ("--detach --restartable", "--restartable"),
        ("--gang 3/2", "--gang"),
        ("--gang 2/2 --on n1", "--on"),
        ("--cpus 1 --constraint =", "constraint"),
        ("--deadline soon", "--deadline"),
        ("--reserve-memory much", "--reserve-memory"),
        ("--class cat", "class"),
        ("--affinity close", "affinity"),
    ):
        assert named in site.person.types(f"dios run short.py {line}", status=125).stderr, line


def test_a_killed_coordinator_loses_nothing(site: Site) -> None:
    """With the coordinator killed, what runs runs on, and what waits is placed once by the next one."""
    running = [site.person.types(f"dios run long.py --detach --cpus {CPUS} --title stays") for _ in range(2)]
    assert len(running) == 2
    before = site.until("stays", "running", 2)
    leader = str(site.ask("dios sched status")["coordinator"])
    (process,) = [int(str(row["pid"])) for row in site.tasks("coordinator") if row["node"] == leader]
    runs = [site.person.starts(f"dios run short.py --cpus {CPUS} --title later") for _ in range(4)]
    os.kill(process, signal.SIGKILL)
    said = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0] * 4, said
    assert [out for out, _ in said] == ["ran\n"] * 4
    after = site.until("stays", "running", 2)
    assert {row["fingerprint"] for row in after} == {row["fingerprint"] for row in before}
    wait_until(site.is_whole, "somebody attends to all", 120)


def test_a_node_that_starts_anew_is_scheduled_again(site: Site) -> None:
    """A node that is killed and comes back counts its board from the beginning, and is read all the same."""
    site.ask("dios sched status --node n3")
    cluster = site.person.home / ".local" / "state" / "dios" / "cluster"
    os.kill(int((cluster / "n3" / "node.pid").read_text()), signal.SIGKILL)
    site.person.types("dios up")
    told = json.loads(site.person.types("dios run short.py --constraint node=n3 --node n3 --json").stdout)
    assert told["node"] == "n3"
    assert site.ask("dios sched status --node n3")["attends"]
    wait_until(site.is_whole, "all are attended to again", 120)


def test_models_are_chosen_by_name(site: Site) -> None:
    """`models` lists them, `set-model` changes them, and an unknown one is refused with the known ones."""
    names = [row["model"] for row in site.ask("dios sched models")["models"]]  # type: ignore[attr-defined] # rows
    assert {"spread", "trivial", "quincy", "coco", "whare-mcs", "green"} <= set(names)
    refused = site.person.types("dios sched set-model nosuch", status=1).stderr
    assert "coco" in refused
    try:
        for name in ("coco", "trivial"):
            assert name in site.person.types(f"dios sched set-model {name}").stderr
            assert json.loads(site.person.types("dios run short.py --json").stdout)["exit_status"] == 0
            assert site.ask("dios sched status")["model"] == name
    finally:
        site.person.types("dios sched set-model spread")


def test_a_choice_of_the_policy_outlives_coordinators(site: Site) -> None:
    """The model's parameters and the settings hold when the coordinator is killed, until they are reset."""
    assert "true or false" in site.person.types("dios sched set fit=perhaps", status=1).stderr
    try:
        site.person.types("dios sched set-model spread near=8000")
        site.person.types("dios sched set migration=false solver=network_simplex")
        leader = str(site.ask("dios sched status")["coordinator"])
        (process,) = [int(str(row["pid"])) for row in site.tasks("coordinator") if row["node"] == leader]
        os.kill(process, signal.SIGKILL)
        wait_until(site.is_whole, "somebody attends to all", 120)
        rows = site.ask("dios sched settings")["settings"]
        chosen = {row["setting"]: row["value"] for row in rows if row["from"] == "chosen"}  # type: ignore[attr-defined] # rows
        assert chosen == {
            "model": "spread",
            "spread.near": "8000",
            "migration": "false",
            "solver": "network_simplex",
        }
        assert json.loads(site.person.types("dios run short.py --json").stdout)["exit_status"] == 0
        last = site.ask("dios sched history")["rounds"][-1]  # type: ignore[index] # rows
        assert last["algorithm"] == "network_simplex"
    finally:
        reset = site.ask("dios sched reset")["settings"]
    assert {row["from"] for row in reset} == {"settings of the node", "default"}  # type: ignore[attr-defined] # rows


CUSTOM_MODEL = """
from dios.firmament.models.spread import SpreadModel

class Mine(SpreadModel):
    name = "mine"
    summary = "even load, until it meets a task that it does not like"

    def task_options(self, state, tasks):
        while "unwanted" in state.equivalences.names:
            pass
        return super().task_options(state, tasks)
"""


def model_tasks(site: Site) -> list[dict[str, object]]:
    """The tasks in which operators' cost models run."""
    return site.tasks("cost model")


def test_a_custom_model_schedules(site: Site) -> None:
    """It is checked, runs in a confined task, outlives its coordinator, and ends when it is reset."""
    site.person.writes("mine.py", CUSTOM_MODEL)
    assert "mine keeps the contract" in site.person.types("dios sched check-model mine.py").stderr
    try:
        assert "by mine" in site.person.types("dios sched set-model mine.py near=7000").stderr
        assert json.loads(site.person.types("dios run short.py --json").stdout)["exit_status"] == 0
        last = site.ask("dios sched history")["rounds"][-1]  # type: ignore[index] # rows
        assert last["model"] == "mine"
        (task,) = model_tasks(site)
        assert task["brand"] == "pure"
        leader = str(site.ask("dios sched status")["coordinator"])
        (process,) = [int(str(row["pid"])) for row in site.tasks("coordinator") if row["node"] == leader]
        os.kill(process, signal.SIGKILL)
        wait_until(site.is_whole, "somebody attends to all", 120)
        wait_until(lambda: site.ask("dios sched status")["model"] == "mine", "the model is open again", 120)
        assert json.loads(site.person.types("dios run short.py --json").stdout)["exit_status"] == 0
    finally:
        site.person.types("dios sched reset")
    assert site.ask("dios sched status")["model"] == "spread"
    wait_until(lambda: not model_tasks(site), "its task has ended", 60)


def test_a_custom_model_that_hangs_is_replaced(site: Site) -> None:
    """It gets the time of the setting; then the model of the nodes places what waits, as `status` says."""
    site.person.writes("mine.py", CUSTOM_MODEL)
    try:
        site.person.types("dios sched set model_time_limit_s=2")
        site.person.types("dios sched set-model mine.py")
        told = json.loads(site.person.types("dios run short.py --title unwanted --json").stdout)
        assert told["exit_status"] == 0
        status = site.ask("dios sched status")
        assert status["model"] == "spread"
        assert "mine failed (did not answer within 2 s)" in str(status["problems"])
        assert "mine was chosen" in site.person.types("dios sched settings").stdout
        wait_until(lambda: not model_tasks(site), "its task has ended", 60)
    finally:
        site.person.types("dios sched reset")


@pytest.mark.parametrize(
    "attempt",
    [
        "open('/etc/passwd')",
        "import socket; socket.socket()",
        "import os; os.fork()",
        "import os; os.listdir('/home')",
        "import dios; dios.connect().network()",
        "bytearray(1 << 31)",
    ],
)
def test_a_custom_model_reaches_nothing(site: Site, attempt: str) -> None:
    """What a stranger's model tries is refused, and the choice stays as it was."""
    site.person.writes("evil.py", CUSTOM_MODEL + f"\n{attempt}\n")
    refused = site.person.types("dios sched set-model evil.py", status=1).stderr
    assert "line 13" in refused or "the task of the model ended" in refused
    assert site.ask("dios sched status")["model"] == "spread"
    wait_until(lambda: not model_tasks(site), "its task has ended", 60)


def test_the_network_can_be_solved_elsewhere(site: Site, tmp_path: Path) -> None:
    """The exported network is DIMACS, and `dios lab solve` finds it feasible."""
    file = tmp_path / "network.dimacs"
    site.person.types(f"dios sched export --dimacs {file}")
    assert "c vertex" in file.read_text()
    told = json.loads(site.person.types(f"dios lab solve {file} --json").stdout)
    assert told["status"] == "optimal"
    assert "digraph" in site.person.types("dios sched export --dot -").stdout


def test_history_tells_of_rounds(site: Site) -> None:
    """Each round is there with its model, its changes and its times."""
    site.person.types("dios run short.py")
    rounds = site.ask("dios sched history")["rounds"]
    assert isinstance(rounds, list)
    assert any(delta[0] == "place" for row in rounds for delta in row["deltas"])
    assert all(row["total_s"] >= row["solve_s"] for row in rounds)


@pytest.mark.parametrize("how", ["hierarchical", "distributed"])
@pytest.mark.extended(keep=1)
def test_the_other_set_ups_place_each_run_once(tmp_path: Path, how: str) -> None:
    """With a coordinator for each rack, or each node, every run runs once, and no node is overfull."""
    someone = Person(tmp_path)
    del someone.environment["DIOS_COORDINATOR"]
    someone.types(f"dios up --nodes 3 --racks 2 --pool-size 0 --scheduling {how}")
    try:
        site = Site(someone)
        leaders = {str(site.ask(f"dios sched status --node {name}")["coordinator"]) for name in NODES}
        assert len(leaders) == (3 if how == "distributed" else 2)
        runs = [
            someone.starts(f"dios run short.py --cpus {CPUS} --node {name}")
            for name in NODES
            for _ in range(2)
        ]
        said = [run.communicate(timeout=120) for run in runs]
        assert [out for out, _ in said] == ["ran\n"] * len(runs), said
        rows = json.loads(someone.types("dios ps --all --json").stdout)
        ended = [row for row in rows if row["label"] == "short.py"]
        assert len(ended) == len(runs)
    finally:
        someone.types("dios down")
