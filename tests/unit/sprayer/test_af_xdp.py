"""AF_XDP sockets and their programs; tests of both kinds of sockets are in test_af_packet.py.

They are skipped if this machine does not support AF_XDP.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dios.errors import InvalidError, NotPermittedError
from dios.limits import SPRAYER_QUEUES_MAX
from dios.sprayer.compile.intrinsics import Words, compare_and_swap, load_acquire, store_release
from dios.sprayer.linux import bpf_calls, ebpf
from dios.sprayer.linux.ebpf import EbpfRegister
from dios.sprayer.linux.fanout import steering
from dios.sprayer.linux.packet_socket import Interface
from dios.sprayer.linux.xdp_program import program
from dios.sprayer.linux.xdp_socket import place_bytes
from tests.support.lab.function_machines import PYTHON, FunctionLab
from tests.support.lab.namespaces import NotHereError, run
from tests.support.sprayer.kernels import fresh
from tests.support.sprayer.steering_frames import QUIC_PORT, expected, make

pytestmark = pytest.mark.long

SEED = 8
STEERS = ["spray", "direct", "rss", "flowlet", "subset:1", "subset:2", "subset:60"]
FRAMES = 500


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[FunctionLab]:
    """Left, right, and nothing between them yet; functions take frames by AF_XDP."""
    try:
        bench = FunctionLab(tmp_path, "af_xdp")
    except NotHereError as error:
        pytest.skip(str(error))
    yield bench
    bench.close()


@pytest.fixture
def programs() -> Iterator[list[int]]:
    """Files of programs that were loaded."""
    files: list[int] = []
    try:
        files.append(bpf_calls.load(program(steering("rss"), 1, 1)))
    except NotPermittedError as error:
        pytest.skip(str(error))
    yield files
    for file in files:
        os.close(file)


@pytest.mark.parametrize("steer", STEERS)
@pytest.mark.parametrize("cores", [1, 2, 3, 64])
def test_the_kernel_answers_the_core_by_the_rule(programs: list[int], steer: str, cores: int) -> None:
    """Tried in the kernel, a program gives frames of all kinds the core that packet sockets give them."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    programs.append(bpf_calls.load(program(steering(steer), cores, 12_345)))
    rules: Counter[str] = Counter()
    for number in range(FRAMES):
        frame = make(chance)
        rules[frame.rule] += 1
        core = bpf_calls.run_program(programs[-1], frame.data)
        assert core == expected(frame, steer, cores, 12_345), f"seed {SEED}, frame {number}: {frame}"
    assert min(rules[rule] for rule in ("first", "addresses", "ports", "tcp")) > FRAMES // 50, rules


@pytest.mark.parametrize("steer", ["spray", "flowlet", "subset:2"])
def test_the_kernel_sprays_quic(programs: list[int], steer: str) -> None:
    """UDP of a QUIC port with a short header goes by its encrypted bytes, as with packet sockets."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    how = replace(steering(steer), quic_ports=(80, QUIC_PORT))
    programs.append(bpf_calls.load(program(how, 3, 12_345)))
    for number in range(FRAMES):
        frame = make(chance, quic=True)
        core = bpf_calls.run_program(programs[-1], frame.data)
        assert core == expected(frame, steer, 3, 12_345), f"seed {SEED}, frame {number}: {frame}"


@pytest.mark.parametrize("steer", STEERS)
def test_a_frame_that_ends_too_early_goes_to_some_core(programs: list[int], steer: str) -> None:
    """A frame that is cut anywhere is given to an existing core."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    programs.append(bpf_calls.load(program(steering(steer), 4, 1)))
    for _ in range(20):
        data = make(chance).data
        for size in range(14, len(data)):
            assert bpf_calls.run_program(programs[-1], data[:size]) < 4


def test_what_the_verifier_says_is_told(programs: list[int]) -> None:
    """A program that the kernel does not take raises with the verifier's own words."""
    assert programs
    reads_beyond = ebpf.assemble([ebpf.load(EbpfRegister.R0, EbpfRegister.R1, 4096, 4), ebpf.leave()])
    with pytest.raises(InvalidError, match="invalid bpf_context access"):
        bpf_calls.load(reads_beyond)
    with pytest.raises(InvalidError, match="R0 !read_ok"):
        bpf_calls.load(ebpf.assemble([ebpf.leave()]))


def test_the_assembler_refuses_what_the_kernel_would() -> None:
    """Jumps backwards, to nowhere or too far, and labels that stand twice raise."""
    end = ebpf.leave()
    wrong: list[tuple[ebpf.Program, str]] = [
        ([ebpf.EbpfLabel("up"), end, ebpf.go("up")], "is not defined below"),
        ([ebpf.go("nowhere"), end], "is not defined below"),
        ([ebpf.go("far"), *[end] * 2**15, ebpf.EbpfLabel("far"), end], "jumps over 32768"),
        ([ebpf.EbpfLabel("one"), end, ebpf.EbpfLabel("one"), end], "is defined twice"),
    ]
    for program_, reason in wrong:
        with pytest.raises(ValueError, match=reason):
            ebpf.assemble(program_)


def shown(lab: FunctionLab, name: str = "in0") -> str:
    """Return the system's description of an interface."""
    return run(lab.middle.inside("ip", "-details", "link", "show", name))


@pytest.mark.extended
def test_a_killed_function_leaves_no_program_behind(lab: FunctionLab) -> None:
    """While it runs both interfaces have a program, which goes with it, as the promiscuous mode does."""
    process = subprocess.Popen(lab.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        assert all("prog/xdp" in shown(lab, name) for name in ("in0", "out0"))
        os.kill(process.pid, signal.SIGKILL)
    assert not any("prog/xdp" in shown(lab, name) for name in ("in0", "out0"))
    assert "promiscuity 0" in shown(lab)


def test_an_engine_follows_another_at_once(lab: FunctionLab) -> None:
    """A queue that the kernel releases a little later is waited for, repeatedly."""
    text = "from dios.sprayer.linux.af_xdp import *\n"
    text += "for _ in range(4):\n"
    text += "    with AfXdpEngine([('in0', 'out0')], 2, places=256) as engine:\n"
    text += "        print(engine.native)\n"
    # A driver that would copy each frame for the program leaves it to the kernel.
    told = "{'in0': False, 'out0': False}\n"
    assert run(lab.middle.inside(*PYTHON, "-c", text)) == 4 * told


def test_an_interface_with_another_program_is_refused(lab: FunctionLab) -> None:
    """Somebody else's program stays where it is; the message says how it goes, and nothing is left open."""
    make_one = "import os, sys, time\n"
    make_one += "from dios.sprayer.linux import bpf_calls\n"
    make_one += "from dios.sprayer.linux.fanout import steering\n"
    make_one += "from dios.sprayer.linux.packet_socket import interface\n"
    make_one += "from dios.sprayer.linux.xdp_program import program\n"
    make_one += "file = bpf_calls.load(program(steering('rss'), 1, 1))\n"
    make_one += "bpf_calls.link(file, interface('out0').index, 'out0')\n"
    make_one += "print('there', flush=True)\n"
    make_one += "time.sleep(1000)\n"
    with lab.serving(lab.middle, [*PYTHON, "-c", make_one], "there"):
        done = subprocess.run(
            lab.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode
        reason = (
            "'out0' has another XDP program; if nothing uses it, remove it with `ip link set out0 xdp off`"
        )
        assert reason in done.stderr, done.stderr
        assert "prog/xdp" in shown(lab, "out0")
        assert "prog/xdp" not in shown(lab, "in0")


def test_frames_of_all_queues_come_through(lab: FunctionLab) -> None:
    """Interfaces with several queues have sockets on each, and every frame passes, in both directions."""
    for name in ("in1", "out1"):
        lab.middle.batch(
            [f"link add {name} numrxqueues 3 numtxqueues 3 type veth peer name far-{name} numtxqueues 3"]
        )
        lab.middle.batch([f"link set {name} up", f"link set far-{name} up"])
    chance = random.Random(SEED)  # noqa: S311 - test data
    there, back = ([make(chance, plain=True).data for _ in range(400)] for _ in range(2))
    with lab.running(more=["--pair", "in1", "out1"]) as told:
        assert sorted(lab.carried(there, lab.middle, ("far-in1", "far-out1"))) == sorted(there)
        assert sorted(lab.carried(back, lab.middle, ("far-out1", "far-in1"))) == sorted(back)
    assert sum(core["counts"]["sent"] for core in told) >= 800, told
    assert sum(core["engine"]["refused"] for core in told) == 0, told


def test_places_are_used_over_and_over(lab: FunctionLab) -> None:
    """After many times more frames than there are places, those that come then find as many as before."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    frames = [make(chance, plain=True).data for _ in range(10_000)]
    few = frames[:200]
    with lab.running(places=256, cores=3):
        lab.send(frames)
        lab.send(frames, lab.right)
        assert sorted(lab.carried(few)) == sorted(few)


def test_more_queues_than_there_may_be_are_refused(lab: FunctionLab) -> None:
    """With more receive queues than sockets are made for, the message says how they become fewer."""
    count = SPRAYER_QUEUES_MAX + 1
    lab.middle.batch([f"link add in1 numrxqueues {count} type veth peer name far1", "link set in1 up"])
    lab.middle.batch(["link add out1 type veth peer name far2", "link set out1 up"])
    command = [word.replace("in0", "in1").replace("out0", "out1") for word in lab.command()]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert f"`ethtool -L in1 combined {SPRAYER_QUEUES_MAX}`" in done.stderr, done.stderr


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("left", ["-all", "-all,+net_raw"])
def test_without_the_right_it_is_refused_with_what_to_do(lab: FunctionLab, left: str) -> None:
    """Without capabilities nothing is attached, and the message says which are wanted."""
    text = "from dios.sprayer.linux.af_xdp import *\nAfXdpEngine([('in0', 'out0')])"
    bare = ["setpriv", f"--bounding-set={left}", "--inh-caps=-all", "--", *PYTHON, "-c", text]
    done = subprocess.run(lab.middle.inside(*bare), capture_output=True, text=True, check=False)
    assert done.returncode
    assert "needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW" in done.stderr, done
    assert "prog/xdp" not in shown(lab)


def test_frames_larger_than_a_page_are_refused() -> None:
    """A place is a page at most, and the message says which MTU has room in it."""
    assert place_bytes(Interface("a", 1, 1500)) == 2048
    assert place_bytes(Interface("a", 1, 3000)) == 4096
    with pytest.raises(InvalidError, match="ip link set a mtu 3818"):
        place_bytes(Interface("a", 1, 9000))


@fresh
def count_up(shared: Words, times: int) -> int:
    """Add 1 in two steps, under a lock."""
    for _ in range(times):
        while not compare_and_swap(shared, 0, 0, 1):
            pass
        shared[16] += 1
        store_release(shared, 0, 0)
    return int(load_acquire(shared, 16))


def test_a_lock_by_swapping_keeps_others_out() -> None:
    """Two threads that count under it lose nothing."""
    shared = np.zeros(32, np.int64)
    count_up(shared, 0)
    threads = [threading.Thread(target=count_up, args=(shared, 200_000)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared[16] == 400_000
