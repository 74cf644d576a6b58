"""Clusters in virtual time: seeds keep every promise, repeat themselves, and find what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import broken_cores as broken
import pytest

from dios.sim.cluster.network import DeliveryPolicy
from dios.sim.cluster.world import simulate_cluster
from dios.sim.event_queue import S
from dios.sim.node.checker import BrokenPromiseError

SHORT_NS = 5 * S
SEEDS_TO_FIND = 60
ROUGH = DeliveryPolicy(loss=0.1, doubled=0.1, late=0.1, ordered=False)

FOUND = {
    2: "the end of a task was told once as lost, and once more when it ended",
    3: "deputies of tasks that were over stayed on nodes that were out of reach",
    16: "a stand-in stayed for ever as the program of a task that had failed",
    8: "a group that was destroyed lived on where a node had been out of reach",
    37: "after a round of claims in which nobody could be asked there was no other",
    19: "a copy that was repeated had bytes of a later value, cut to the length of the first",
    246: "a copy was made for a task that had ended, and held for it",
    224: "a repeat after the release opened a buffer again, for ever",
    18: "a node that was dead for a moment, but connected, was never told of a task's end",
    309: "who had dropped its reference to a task never heard that it was lost",
    36: "a copy made a node a deputy of its own, for a session that was over",
    465: "a commit was repeated when its buffer was closed",
    414: "of a vector that was answered again the writes were said to be refused, and had been done",
    470: "a node that was met after a group was destroyed was not told of it",
    1482: "while one request waited, the answers to all that came after it were remembered",
    621: "an answer that waited for the disk came to a later start of the asker, whose number fitted",
}


@pytest.mark.parametrize("seed", range(6))
def test_seed_keeps_every_promise(seed: int) -> None:
    """Nodes that are cut, frozen and killed under load lose, mix up and forget nothing, and agree at last."""
    report = simulate_cluster(seed)
    assert report.faults
    assert report.calls > 100


@pytest.mark.parametrize("seed", FOUND)
def test_seed_that_found_a_defect_keeps_every_promise(seed: int) -> None:
    """The seeds that found something in the core find nothing any more."""
    simulate_cluster(seed)


def test_rough_network_keeps_every_promise() -> None:
    """Where every tenth message is lost, doubled and late, all promises hold as well."""
    report = simulate_cluster(7, SHORT_NS, policy=ROUGH)
    assert report.network["lost"] > 100
    assert report.network["doubled"] > 100


def test_same_seed_same_trace() -> None:
    """A cluster's trace digest is the same under different hash seeds."""

    def digest(hash_seed: str) -> str:
        code = f"from dios.sim.cluster.world import simulate_cluster as run; print(run(4, {SHORT_NS}).digest)"
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert digest("1") == digest("2")


@pytest.mark.parametrize(
    ("breaks", "first"),
    [
        (broken.answers_early, 44),  # the first seeds find the others as well, but not so soon
        (broken.acts_twice, 0),
        (broken.waits_for_ever, 0),
        (broken.compares_nothing, 0),
        (broken.gives_everything, 0),
        (broken.takes_nothing_back, 138),
        (broken.tells_twice, 0),
        (broken.two_have_the_lock, 0),
        (broken.keeps_silent, 0),
        (broken.keeps_what_the_dead_held, 12),
    ],
)
@pytest.mark.extended(keep=1)
def test_broken_core_is_caught(
    breaks: Callable[[pytest.MonkeyPatch], None], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A core with one rule broken breaks a promise within a few seeds."""
    breaks(monkeypatch)

    def many() -> None:
        for seed in range(first, first + SEEDS_TO_FIND):
            simulate_cluster(seed)

    with pytest.raises(BrokenPromiseError):
        many()


def test_failing_seed_says_how_to_repeat_it() -> None:
    """A seed that fails prints the command that runs it again, and the command fails."""
    code = (
        "import sys; from dios.core.calls import lifecycle; lifecycle._tell_parent = lambda step, task: None;"
        "from dios.sim.__main__ import main; sys.argv[1:] = ['--cluster', '--seeds', '60']; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "python -m dios.sim --cluster --first" in done.stdout
