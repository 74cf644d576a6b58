"""Clusters in virtual time: seeds keep every promise, repeat themselves, and find what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from dios import limits
from dios.core.membership import swim
from dios.errors import Code
from labs.sim.cluster.network import DeliveryPolicy
from labs.sim.cluster.world import simulate_cluster
from labs.sim.event_queue import S
from labs.sim.node.checker import BrokenPromiseError
from tests.support.core import broken_cores as broken

pytestmark = pytest.mark.long

SHORT_NS = 5 * S
SEEDS_TO_FIND = 60
ROUGH = DeliveryPolicy(loss=0.1, doubled=0.1, late=0.1, ordered=False)

FOUND = {
    2: "the end of a task was reported as lost, and again when the task ended",
    3: "remote tasks of ended tasks remained on nodes that were unreachable at the end",
    16: "a proxy remained for ever as the program of a task that had failed",
    8: "a destroyed group survived on a node that had been unreachable",
    37: "after a reconciliation round in which no node could be asked, no further round followed",
    19: "a repeated copy had bytes of a later value, cut to the length of the first value",
    246: "a copy was created for a task that had ended, and was kept for it",
    224: "a repeated request after the release opened a buffer again, for ever",
    18: "a node that was dead for a moment, but connected, was never notified of a task's end",
    309: "a client that had dropped its reference to a task was not notified that the task was lost",
    36: "a copy made a node a remote task of itself, for a session that had ended",
    465: "a commit was repeated when its buffer was closed",
    414: "the writes of a vector that was answered again were reported as refused, but had been made",
    470: "a node that connected after a group was destroyed was not notified of it",
    1482: "while one request waited, the answers to all later requests were cached",
    621: "an answer that waited for the disk reached a later start of its node, where the number matched",
}


@pytest.mark.extended(keep=3)
@pytest.mark.parametrize("seed", range(6))
def test_seed_keeps_every_promise(seed: int) -> None:
    """Nodes that are cut off, frozen and killed under load keep every promise, and agree in the end."""
    report = simulate_cluster(seed)
    assert report.faults
    assert report.calls > 100


@pytest.mark.extended(keep=2)
@pytest.mark.parametrize("seed", range(100, 106))
def test_connections_on_demand_keep_every_promise(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that probe few others connect when they need to, and close what is not used, keep promises."""
    monkeypatch.setattr(swim, "ALL_PROBED", 0)
    monkeypatch.setattr(limits, "GOSSIP_PARTNERS", 1)
    report = simulate_cluster(seed, rests=True)
    assert report.calls > 100
    assert report.network["rests"]


@pytest.mark.extended(keep=5)
@pytest.mark.parametrize("seed", FOUND)
def test_seed_that_found_a_defect_keeps_every_promise(seed: int) -> None:
    """Seeds that found a defect in the core pass now."""
    simulate_cluster(seed)


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("seed", range(3))
def test_slow_clusters_are_never_wrong(seed: int) -> None:
    """With slow nodes and links every call ends, and no living node is called out of reach."""
    report = simulate_cluster(seed, SHORT_NS, slow=True)
    assert report.calls > 50
    assert Code.EHOSTUNREACH not in report.refusals


def test_rough_network_keeps_every_promise() -> None:
    """All promises hold if every tenth message is lost, every tenth doubled, and every tenth late."""
    report = simulate_cluster(7, SHORT_NS, policy=ROUGH)
    assert report.network["lost"] > 50
    assert report.network["doubled"] > 50


def test_same_seed_same_trace() -> None:
    """A cluster's trace digest is the same under different hash seeds."""

    def digest(hash_seed: str) -> str:
        code = f"from labs.sim.cluster.world import simulate_cluster as run; print(run(4, {SHORT_NS}).digest)"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert digest("1") == digest("2")


@pytest.mark.parametrize(
    ("breaks", "first"),
    [
        (broken.acts_twice, 0),  # the first seeds find each of them as well, but later
        (broken.waits_for_ever, 12),
        (broken.compares_nothing, 1),
        (broken.gives_everything, 2),
        (broken.takes_nothing_back, 4),
        (broken.tells_twice, 4),
        (broken.two_have_the_lock, 8),
        (broken.keeps_silent, 0),
        (broken.keeps_what_the_dead_held, 12),
        (broken.serves_unchecked, 18),
        (broken.confirms_old_versions, 18),
        (broken.forgets_waiting_readers, 5),
        (broken.calls_nothing_back, 0),
        (broken.reads_after_the_end, 5),
        (broken.takes_late_grants, 8),
        (broken.forgets_its_leases, 8),
    ],
)
@pytest.mark.extended(keep=1)
def test_broken_core_is_caught(
    breaks: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A core with one broken rule breaks a promise within a few seeds."""
    breaks(monkeypatch)

    def many() -> None:
        for seed in range(first, first + SEEDS_TO_FIND):
            simulate_cluster(seed)

    with pytest.raises(BrokenPromiseError):
        many()


def test_failing_seed_says_how_to_repeat_it() -> None:
    """A failing seed prints the command that repeats it, and the command fails, too."""
    code = (
        "import sys; from dios.core.calls import lifecycle;"
        "lifecycle._notify_parent = lambda step, task: None;"
        "from labs.sim.__main__ import main; "
        "sys.argv[1:] = ['--cluster', '--seeds', '60', '--processes', '1']; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "python -m labs.sim --cluster --first" in done.stdout
