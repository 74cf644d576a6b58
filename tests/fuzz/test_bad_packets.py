"""Network functions before frames that nobody should send: a few of those that ``make fuzz-frames`` has."""

from __future__ import annotations

import contextlib
from itertools import islice
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dios.sprayer.functions.nat64 import Nat64
from dios.sprayer.functions.siit import Siit
from dios.sprayer.memory_engine import MemoryEngine
from dios.sprayer.packets.packet import CAUSES, DROP
from dios.sprayer.pcap import read_pcap
from dios.sprayer.runtime.workers import Workers
from tests.fuzz.bad_packets import frames, seeds
from tests.fuzz.packet_checks import FUNCTIONS, accounted, through_a_file, through_memory, write
from tests.support.lab.function_machines import FunctionLab
from tests.support.lab.namespaces import NotHereError

pytestmark = pytest.mark.long

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
@pytest.mark.extended(keep=1)
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


@pytest.mark.extended
@pytest.mark.parametrize("function", [Nat64(["198.51.100.1"], flows_max=2048), Siit("198.51.100.1")])
def test_bad_frames_are_translated_or_dropped(function: Nat64 | Siit) -> None:
    """A translator, whose frames change in length, gives each place back once and accounts for each frame."""
    rng = dice(SEED)
    data = [bytearray(frame) for frame in islice(frames(rng, FRAMES, seeds(rng)), FRAMES)]
    six = [len(frame) > 54 and frame[12:14] == b"\x86\xdd" for frame in data]
    for number, frame in enumerate(data):
        if six[number] and number % 2:
            frame[38:50] = bytes.fromhex("0064ff9b0000000000000000")
            if isinstance(function, Siit):
                frame[22:34] = frame[38:50]
    engine = MemoryEngine(
        [bytes(frame) for frame in data],
        2,
        sides=[int(not is_six) for is_six in six],
        steer=np.arange(FRAMES) % 2,
        grow=function.grows,
    )
    workers = Workers(function, engine, seed=SEED, now=100)
    workers.drain()
    assert (engine.released == 1).all()
    accounted(workers.statistics(), function, FRAMES)
    assert function.totals()["opened" if isinstance(function, Nat64) else "translated"] > 100
    assert isinstance(function, Nat64) or function.totals()["other_protocols"] > 100


@pytest.mark.parametrize("how", ["af_packet", "af_xdp"])
@pytest.mark.extended(keep=1)
def test_bad_frames_from_an_interface_are_accounted_for(bad: Path, tmp_path: Path, how: str) -> None:
    """Through sockets and the program that steers, what arrives is sent or dropped, and counted."""
    with bad.open("rb") as file:
        some = [frame.data for frame in islice(read_pcap(file, "bad"), FRAMES // 2)]
    try:
        lab = FunctionLab(tmp_path, how)
    except NotHereError as error:
        pytest.skip(str(error))
    with contextlib.closing(lab):
        with lab.running(function="dios.sprayer.functions.nat:Nat(['198.51.100.1'])") as told:
            lab.send([data for data in some if 14 <= len(data) <= 1514])
        for core in told:
            counts, causes, engine = core["counts"], core["causes"], core["engine"]
            lost = sum(causes[row.name] for row in CAUSES if row.stateful == DROP and row.name != "fine")
            assert engine["arrived"] == counts["received"] + engine["no_place"] + engine["cut"], core
            came = counts["received"] + counts["taken_over"] - counts["handed_over"]
            assert counts["sent"] + lost == came, core
            assert counts["sent"] > 0, core
            assert lost > 0, core


def test_the_same_seed_makes_the_same_frames() -> None:
    """A finding is repeated by its seed alone."""
    series = []
    for _ in range(2):
        rng = dice(3)
        series.append(list(frames(rng, 500, seeds(rng, 100))))
    assert series[0] == series[1]
    assert len(set(series[0])) > 300
