from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dios.sprayer.compile.intrinsics import uint64
from dios.sprayer.flows.five_tuple import core_of_hash
from dios.sprayer.linux import bpf
from dios.sprayer.linux.fanout import program, steering
from dios.sprayer.packets.packet import PACKET, Packets
from dios.sprayer.packets.parse import parse
from tests.support.sprayer.bpf_machine import run
from tests.support.sprayer.kernels import fresh
from tests.support.sprayer.steering_frames import QUIC_PORT, Made, build, expected, flow_hash, make, seen

SEED = 8
STEERS = ["spray", "direct", "rss", "flowlet", "subset:1", "subset:2", "subset:60"]
FRAMES = 2000


def chosen(text: bytes, frame: bytes, cores: int) -> int:
    """The socket that the kernel would give a frame to."""
    packet, beside = seen(frame)
    return run(text, packet, beside) % cores


@pytest.mark.parametrize("steer", STEERS)
@pytest.mark.parametrize("cores", [1, 2, 3, 8])
def test_a_program_steers_frames_of_all_kinds_by_its_rule(steer: str, cores: int) -> None:
    """TCP that is whole goes by its checksum, clock or flow, and everything else by a hash of its ends."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    text = program(steering(steer), cores, 12_345)
    rules: Counter[str] = Counter()
    for number in range(FRAMES):
        frame = make(chance)
        rules[frame.rule] += 1
        core = chosen(text, frame.data, cores)
        assert core == expected(frame, steer, cores, 12_345), f"seed {SEED}, frame {number}: {frame}"
    assert min(rules[rule] for rule in ("first", "addresses", "ports", "tcp")) > FRAMES // 50, rules


@pytest.mark.parametrize("steer", ["spray", "rss", "flowlet", "subset:2"])
def test_quic_behind_its_handshake_is_sprayed_like_tcp(steer: str) -> None:
    """UDP of a QUIC port with a short header goes by its encrypted bytes, and all other UDP by its flow."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    text = program(replace(steering(steer), quic_ports=(80, QUIC_PORT)), 3, 12_345)
    short = 0
    for number in range(FRAMES):
        frame = make(chance, quic=True)
        short += frame.random_bytes is not None
        core = chosen(text, frame.data, 3)
        assert core == expected(frame, steer, 3, 12_345), f"seed {SEED}, frame {number}: {frame}"
    assert short > FRAMES // 200
    for size in range(60):
        packet, beside = seen(make(chance, quic=True).data)
        assert run(text, packet[:size], beside) >= 0


@pytest.mark.parametrize("steer", STEERS)
def test_a_frame_that_ends_too_early_goes_to_some_core(steer: str) -> None:
    """Whatever a frame is cut to, a program answers; it never reads beyond."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    text = program(steering(steer), 4, 1)
    for _ in range(40):
        packet, beside = seen(make(chance).data)
        for size in range(len(packet)):
            assert run(text, packet[:size], beside) >= 0


def test_both_directions_of_a_flow_meet_one_core() -> None:
    """Without spraying, what goes and what comes back are steered alike, of TCP, UDP and all else."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    text = program(steering("rss"), 8, 99)
    for number in range(500):
        there = make(chance, plain=True)
        same = there.data[23 if there.data[12:14] == b"\x08\x00" else 20]
        back = build(chance, (there.ends[1], there.ends[0]), plain=True)
        while back.data[23 if there.data[12:14] == b"\x08\x00" else 20] != same:
            back = build(chance, (there.ends[1], there.ends[0]), plain=True)
        assert chosen(text, there.data, 8) == chosen(text, back.data, 8), f"seed {SEED}, flow {number}"


@fresh
def core_at(packets: Packets, seed: int, cores: int) -> int:
    """The designated core of the only packet."""
    parse(packets[0], seed)
    return core_of_hash(packets[0].hash, cores)


@pytest.mark.parametrize("cores", [1, 3, 8, 64])
def test_what_is_steered_by_flow_arrives_on_its_designated_core(cores: int) -> None:
    """TCP and UDP without extension headers meet the core that keeps their flow, under one secret.

    So do SYN, FIN and RST where the rest of TCP is sprayed.
    """
    chance = random.Random(SEED)  # noqa: S311 - test data
    packets = np.zeros(1, PACKET)
    for number in range(FRAMES // 2):
        frame, secret = make(chance, plain=True), chance.getrandbits(64)
        data = np.frombuffer(frame.data, np.uint8)
        packets["address"], packets["length"] = data.ctypes.data, data.size
        core = core_at(packets, uint64(secret), cores)
        assert chosen(program(steering("rss"), cores, secret), frame.data, cores) == core, number
        if frame.flags & 7 or frame.rule != "tcp":
            assert chosen(program(steering("direct"), cores, secret), frame.data, cores) == core, number


def test_flows_that_differ_little_are_spread() -> None:
    """Neighbouring ports and addresses fill eight cores alike, and another secret spreads them otherwise."""
    frame = Made(b"", "tcp")
    for ends in (
        [((bytes([10, 0, 0, 1]), 40_000 + number), (bytes([10, 0, 0, 2]), 80)) for number in range(4096)],
        [
            ((bytes([10, 0, number >> 8, number & 255]), 80), (bytes([10, 0, 0, 2]), 80))
            for number in range(4096)
        ],
    ):
        hashes = [flow_hash(replace(frame, ends=end), 7) % 8 for end in ends]
        others = [flow_hash(replace(frame, ends=end), 8) % 8 for end in ends]
        counts = Counter(hashes)
        assert max(counts.values()) < 1.25 * min(counts.values()), counts
        assert sum(a == b for a, b in zip(hashes, others, strict=True)) < 4096 * 0.2


def test_one_flow_is_sprayed_evenly_and_a_subset_uses_only_its_part() -> None:
    """One TCP flow meets all cores under spraying, two under subset:2, and one under rss."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    ends = ((bytes([10, 0, 0, 1]), 40_000), (bytes([10, 0, 0, 2]), 80))
    frames = [frame for _ in range(6000) if (frame := build(chance, ends, plain=True)).rule == "tcp"]
    used = {}
    for steer in ("spray", "subset:2", "rss"):
        text = program(steering(steer), 8, 5)
        used[steer] = Counter(chosen(text, sprayed.data, 8) for sprayed in frames)
    assert [len(used[steer]) for steer in ("spray", "subset:2", "rss")] == [8, 2, 1]
    assert max(used["spray"].values()) < 1.25 * min(used["spray"].values()), used


def test_packets_of_one_slice_of_time_stay_together() -> None:
    """Under flowlet the core of a flow changes with the sender's clock, and only then."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    text = program(steering("flowlet"), 8, 5)
    ends = ((bytes([10, 0, 0, 1]), 40_000), (bytes([10, 0, 0, 2]), 80))
    cores_by_slice: dict[int, set[int]] = {}
    while len(cores_by_slice) < 200:
        frame = build(chance, ends, plain=True)
        if frame.rule != "tcp" or frame.clock is None:
            continue
        at = frame.data.index((0x0101080A).to_bytes(4, "big")) + 4
        for clock in range(frame.clock & ~3, (frame.clock | 3) + 1):
            data = frame.data[:at] + clock.to_bytes(4, "big") + frame.data[at + 4 :]
            cores_by_slice.setdefault(frame.clock >> 2, set()).add(chosen(text, data, 8))
    assert all(len(cores) == 1 for cores in cores_by_slice.values())
    assert len({core for cores in cores_by_slice.values() for core in cores}) == 8


@pytest.mark.parametrize("text", ["", "Spray", "subset", "subset:0", "subset:65", "subset:x", "rss:2"])
def test_an_unknown_steering_is_refused_with_the_known_ones(text: str) -> None:
    """An unknown steering raises, and the message lists the known ones."""
    with pytest.raises(ValueError, match="choose auto, spray, rss, flowlet"):
        steering(text)


def test_the_assembler_refuses_what_the_kernel_would() -> None:
    """Jumps backwards, to nowhere or too far, labels that stand twice, and empty programs raise."""
    end = bpf.answer(0)
    wrong: list[tuple[bpf.Program, str]] = [
        ([bpf.BpfLabel("up"), end, bpf.go("up")], "is not defined below"),
        ([bpf.go("nowhere"), end], "is not defined below"),
        ([bpf.jump("equal", 1, "far"), *[end] * 256, bpf.BpfLabel("far"), end], "jumps over 256"),
        ([bpf.BpfLabel("one"), end, bpf.BpfLabel("one"), end], "is defined twice"),
        ([], "0 instructions"),
    ]
    for program_, reason in wrong:
        with pytest.raises(ValueError, match=reason):
            bpf.assemble(program_)
