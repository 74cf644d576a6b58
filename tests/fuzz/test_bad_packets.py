"""Network functions before frames that nobody should send: a few of those that ``make fuzz-frames`` has."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from dios.sprayer.pcap import read_pcap
from tests.fuzz.bad_packets import frames, seeds
from tests.fuzz.packets_play import FUNCTIONS, through_a_file, through_memory, write

SEED = 8
FRAMES = 20_000


def dice(seed: int) -> Random:
    """Dice that fall the same way every time."""
    return Random(seed)  # noqa: S311 - repeatable, nothing secret


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of bad frames."""
    path = tmp_path_factory.mktemp("bad") / "in.pcap"
    rng = dice(SEED)
    write(path, frames(rng, FRAMES, seeds(rng)), FRAMES)
    return path


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_bad_frame_is_accounted_for(bad: Path, tmp_path: Path, name: str) -> None:
    """A file goes through: what was received was sent or dropped for one cause, and causes are many."""
    told = through_a_file(bad, tmp_path / "out.pcap", name, FRAMES)
    with (tmp_path / "out.pcap").open("rb") as file:
        assert sum(1 for _ in read_pcap(file, "out")) == told["sent"] > 0
    wanted = {"truncated", "too_long", "tags", "bad_version", "bad_header", "bad_flags", "to_itself"}
    wanted |= {"fragment", "extensions", "routed", "protocol"}
    wanted |= {"NAT": {"no_flow", "no_port", "table_full"}, "firewall": {"refused"}}.get(name, set())
    assert wanted <= set(told), f"seed {SEED}: {told}"


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_every_bad_frame_is_given_back_once(bad: Path, name: str) -> None:
    """Whatever becomes of a frame, its place is free again, once; what goes out has its length."""
    with bad.open("rb") as file:
        told = through_memory(read_pcap(file, "bad"), name)
    assert told["frames"] == FRAMES
    assert told["as it was"] > 0
    assert (told["changed"] > 0) == (name in ("NAT", "balancer")), told


def test_the_same_seed_makes_the_same_frames() -> None:
    """A finding is repeated by its seed alone."""
    made = []
    for _ in range(2):
        rng = dice(3)
        made.append(list(frames(rng, 500, seeds(rng, 100))))
    assert made[0] == made[1]
    assert len(set(made[0])) > 300
