"""Network functions between real interfaces, in namespaces of their own.

They are skipped, with the reason, if this machine cannot create network namespaces.
"""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from dios.errors import InvalidError
from dios.sprayer.linux.af_packet import AfPacketEngine, open_engine
from dios.sprayer.linux.packet_socket import interface
from dios.sprayer.runtime.workers import jain
from tests.support.lab.function_machines import (
    CHECKSUMS,
    PYTHON,
    RIGHT,
    SEGMENTS,
    FunctionLab,
    Told,
    features,
    offloads,
)
from tests.support.lab.namespaces import NotHereError, run
from tests.support.sprayer.steering_frames import expected, make

pytestmark = pytest.mark.long

SEED = 8
PAGE_BYTES = 4_000_000
PORT = "8000"
OUTSIDE = "10.214.0.9"
RIGHT_SIX = "fd00:214::2"
BOTH = pytest.mark.parametrize("lab", ["af_packet", "af_xdp"], indirect=True)
"""For what holds with either kind of sockets."""


@pytest.fixture(params=["af_packet"])
def lab(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FunctionLab]:
    """Left, right, and nothing between them yet."""
    try:
        bench = FunctionLab(tmp_path, request.param)
    except NotHereError as error:
        pytest.skip(str(error))
    yield bench
    bench.close()


def fetch(lab: FunctionLab, host: str = RIGHT) -> str:
    """Bring a page from the right to the left with curl, the same; what the server said of it."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed (on Debian or Ubuntu: apt install curl)")
    page = lab.folder / "page"
    page.write_bytes(random.Random(SEED).randbytes(PAGE_BYTES))  # noqa: S311 - test data
    server = [sys.executable, "-u", "-m", "http.server", PORT, "--directory", str(lab.folder), "--bind", "::"]
    with lab.serving(lab.right, server, "Serving") as said:
        got = lab.folder / "got"
        run(
            lab.left.inside(
                *("curl", "-sS", "--max-time", "30", "-o", str(got), f"http://{host}:{PORT}/page")
            )
        )
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (page, got)]
    assert digests[0] == digests[1]
    return "".join(said)


def regular(told: Told) -> list[int]:
    """The packets that each core's handlers saw."""
    return [core["counts"]["regular_packets"] + core["counts"]["connection_packets"] for core in told]


@BOTH
def test_a_page_comes_through_and_one_flow_uses_every_core(lab: FunctionLab) -> None:
    """Under spraying, one TCP flow is spread evenly over the sockets, and what arrives is what was sent."""
    with lab.running(steer="spray") as told:
        fetch(lab)
    assert sum(regular(told)) > PAGE_BYTES // 1500
    assert jain(regular(told)) > 0.95, told


@BOTH
def test_without_spraying_one_flow_stays_on_one_core(lab: FunctionLab) -> None:
    """Under rss, both directions of one TCP flow meet the same socket."""
    with lab.running(steer="rss") as told:
        fetch(lab)
    busy = [count for count in regular(told) if count]
    assert len(busy) == 1, told
    assert busy[0] > PAGE_BYTES // 1500


def test_a_page_comes_through_over_ipv6(lab: FunctionLab) -> None:
    """IPv6 is sprayed as IPv4 is, its discovery of neighbours passes, and both cores have a half."""
    with lab.running(steer="spray") as told:
        fetch(lab, f"[{RIGHT_SIX}]")
    assert sum(core["causes"]["neighbour"] for core in told) > 0
    assert jain(regular(told)) > 0.95, told


@BOTH
@pytest.mark.parametrize("function", ["", f"dios.sprayer.functions.nat:Nat(['{OUTSIDE}'])"])
def test_iperf3_comes_through(lab: FunctionLab, function: str) -> None:
    """iperf3 measures through what sprays, with a NAT and without, both ways, with TCP and UDP."""
    lab.right.batch([f"neigh add {OUTSIDE} lladdr 02:d1:05:02:00:01 dev e0"])
    if shutil.which("iperf3") is None:
        pytest.skip("iperf3 is not installed (on Debian or Ubuntu: apt install iperf3)")
    with lab.running(function=function) as told:
        for way in ((), ("-R",), ("-u", "-b", "20M", "-n", "1M")):
            # A server closes its socket between two clients, and with it whoever came meanwhile.
            with lab.serving(lab.right, ["iperf3", "-s", "--forceflush"], "listening"):
                text = run(lab.left.inside("iperf3", "-c", RIGHT, "-n", "8M", *way))
            assert "iperf Done" in text, text
    assert sum(regular(told)) > 10_000


@pytest.mark.extended(keep=1)
@BOTH
@pytest.mark.parametrize("steer", ["spray", "rss", "direct"])
def test_a_nat_carries_curl(lab: FunctionLab, steer: str) -> None:
    """With a NAT in between, the page arrives, and the server sees the address of the NAT.

    Packets that open or close connections are handed over, unless they are steered by flow.
    """
    lab.right.batch([f"neigh add {OUTSIDE} lladdr 02:d1:05:02:00:01 dev e0"])
    with lab.running(steer=steer, function=f"dios.sprayer.functions.nat:Nat(['{OUTSIDE}'])") as told:
        # Half of all connections would be on the wrong core, if that were left to chance.
        said = "".join(fetch(lab) for _ in range(4))
    assert sum(core["counts"]["connection_packets"] for core in told) >= 12, told
    assert (sum(core["counts"]["handed_over"] for core in told) == 0) == (steer != "spray"), told
    assert said.startswith(f"::ffff:{OUTSIDE} - - "), said


@pytest.mark.parametrize("steer", ["spray", "direct", "rss", "flowlet", "subset:1"])
@pytest.mark.extended(keep=1)
def test_the_kernel_steers_as_the_interpreter_does(lab: FunctionLab, steer: str) -> None:
    """Each core gets exactly the frames that the program gives it when it is run in the test."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    frames = [make(chance, plain=True) for _ in range(600)]
    with lab.running(steer=steer, cores=3, secret=12_345) as told:
        lab.carried([frame.data for frame in frames])
    counts = Counter(expected(frame, steer, 3, 12_345) for frame in frames)
    assert regular(told) == [counts[core] for core in range(3)], told


@BOTH
def test_frames_come_out_as_they_went_in(lab: FunctionLab) -> None:
    """Untagged and with one or two VLAN tags, every byte is the same at the other end."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    frames = []
    for number in range(300):
        data = make(chance, plain=True).data
        tags = b"".join(b"\x81\x00" + chance.randbytes(2) for _ in range(number % 3))
        frames.append(data[:12] + tags + data[12:])
    with lab.running(steer="rss") as told:
        arrived = lab.carried(frames)
    assert sorted(arrived) == sorted(frames)
    # AF_XDP has them in the frame.
    assert sum(core["engine"]["tagged"] for core in told) == (200 if lab.how == "af_packet" else 0), told


@BOTH
def test_every_frame_is_counted_where_it_ended(lab: FunctionLab) -> None:
    """With few places, what came is what was received and what found no place, and nothing else."""
    chance = random.Random(SEED)  # noqa: S311 - test data
    frames = [make(chance, plain=True).data for _ in range(20_000)]
    with lab.running(places=32) as told:
        lab.send(frames)
    for core in told:
        engine = core["engine"]
        assert engine["arrived"] == core["counts"]["received"] + engine["no_place"] + engine["cut"], core
    assert sum(core["engine"]["arrived"] for core in told) >= len(frames)
    assert sum(core["engine"]["no_place"] for core in told) > 0, told


def test_checksums_that_the_sender_left_out_are_made(lab: FunctionLab) -> None:
    """With the sender's checksum offload on, as on a virtual cable it is, the page still arrives."""
    for space in (lab.left, lab.right):
        offloads(space, "e0", CHECKSUMS, on=True)
    with lab.running(steer="rss") as told:
        fetch(lab)
    assert sum(core["engine"]["finished"] for core in told) > PAGE_BYTES // 1500, told


def test_a_page_comes_through_from_a_far_end_that_leaves_cutting_to_others(lab: FunctionLab) -> None:
    """With all offloads of the far ends on, as on a new virtual cable, no frame is longer than a place."""
    for space in (lab.left, lab.right):
        offloads(space, "e0", f"{SEGMENTS} {CHECKSUMS}", on=True)
    with lab.running(steer="rss") as told:
        assert not features(lab.left, "e0")["tx-tcp-segmentation"]
        fetch(lab)
    assert sum(core["engine"]["cut"] for core in told) == 0, told
    assert features(lab.left, "e0")["tx-tcp-segmentation"]


def test_frames_longer_than_a_place_are_counted_and_shown(lab: FunctionLab) -> None:
    """Where the kernel accepts no program, frames that the sender did not cut are reported as dropped."""
    for space, far, ours in ((lab.left, "e0", "in0"), (lab.right, "e0", "out0")):
        space.batch([f"link set {far} mtu 9000"])
        lab.middle.batch([f"link set {ours} mtu 9000"])
        offloads(space, far, f"{SEGMENTS} {CHECKSUMS}", on=True)
    text = f"import socket; end = socket.create_connection(('{RIGHT}', {PORT})); "
    text += "end.settimeout(1); end.sendall(bytes(10**6))"
    server = [sys.executable, "-u", "-m", "http.server", PORT, "--directory", str(lab.folder)]
    with lab.running() as told, lab.serving(lab.right, server, "Serving"):
        subprocess.run(
            lab.left.inside(sys.executable, "-c", text), stderr=subprocess.DEVNULL, check=False, timeout=30
        )
    for core in told:
        assert core["dropped"].get("cut", 0) == core["engine"]["cut"], core
    assert sum(core["engine"]["cut"] for core in told) > 0, told


@BOTH
def test_two_pairs_of_interfaces_are_kept_apart(lab: FunctionLab) -> None:
    """Frames from one interface of a pair leave by its other interface only, in both directions."""
    for name in ("in1", "out1"):
        lab.middle.batch([f"link add {name} type veth peer name far-{name}"])
        lab.middle.batch([f"link set {name} up", f"link set far-{name} up"])
    chance = random.Random(SEED)  # noqa: S311 - test data
    here, there, back = ([make(chance, plain=True).data for _ in range(100)] for _ in range(3))
    with lab.running(steer="rss", more=["--pair", "in1", "out1"]):
        assert sorted(lab.carried(here)) == sorted(here)
        assert sorted(lab.carried(there, lab.middle, ("far-in1", "far-out1"))) == sorted(there)
        assert sorted(lab.carried(back, lab.middle, ("far-out1", "far-in1"))) == sorted(back)


@BOTH
def test_an_interface_that_was_down_is_used_again(lab: FunctionLab) -> None:
    """When an interface goes down and comes back while a function runs, frames pass again."""
    with lab.running() as told:
        fetch(lab)
        lab.middle.batch(["link set in0 down", "link set out0 down", "link set in0 up", "link set out0 up"])
        fetch(lab)
    assert sum(regular(told)) > 2 * PAGE_BYTES // 1500


@BOTH
def test_stopping_gives_everything_back(lab: FunctionLab) -> None:
    """While it runs offloads are off and frames of others are read; after it all is as it was."""
    names = ("in0", "out0")
    before = {name: features(lab.middle, name) for name in names}
    with lab.running():
        during = {name: features(lab.middle, name) for name in names}
        shown = run(lab.middle.inside("ip", "-details", "link", "show", "in0"))
        assert re.search(r"promiscuity [1-9]", shown), shown
    for name in names:
        off = [feature for feature in before[name] if before[name][feature] and not during[name][feature]]
        assert {"tx-tcp-segmentation", "tx-generic-segmentation"} <= set(off), off
    assert {name: features(lab.middle, name) for name in names} == before
    assert "promiscuity 0" in run(lab.middle.inside("ip", "-details", "link", "show", "in0"))
    assert run(lab.middle.inside("cat", "/proc/self/net/packet")).count("\n") == 1
    assert list(lab.records.iterdir()) == []


@BOTH
def test_offloads_of_a_killed_function_come_back(lab: FunctionLab) -> None:
    """A killed function leaves its offloads off; the next one puts them right, and so does its end."""
    before = features(lab.middle, "in0")
    process = subprocess.Popen(lab.command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        os.kill(process.pid, signal.SIGKILL)
    assert features(lab.middle, "in0") != before
    with lab.running():
        pass
    assert features(lab.middle, "in0") == before


@BOTH
def test_a_second_function_on_the_same_interfaces_is_refused(lab: FunctionLab) -> None:
    """One interface belongs to one function; a second function on it is refused."""
    with lab.running():
        done = subprocess.run(
            lab.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        assert done.returncode
        assert "is in use by a running network function" in done.stderr
        fetch(lab)


@pytest.mark.parametrize(("version", "address"), [(4, "10.215.0.1/24"), (6, "fd00:215::1/64")])
def test_an_interface_that_the_kernel_forwards_from_is_refused(
    lab: FunctionLab, version: int, address: str
) -> None:
    """With an address and forwarding on, the message names the setting, and that setting alone helps."""

    def setting(name: str, value: int) -> None:
        text = f"echo {value} > /proc/sys/net/ipv{version}/conf/{name}/forwarding"
        run(lab.middle.inside("sh", "-c", text))

    setting("all", 1)
    with lab.running():
        pass
    lab.middle.batch([f"address add {address} dev out0"])
    done = subprocess.run(
        lab.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode
    said = rf"'out0' has the address {address[:-3]}, .*`sysctl -w net.ipv{version}.conf.out0.forwarding=0`"
    assert re.search(said, done.stderr), done.stderr
    setting("out0", 0)
    with lab.running():
        pass


@pytest.mark.parametrize(
    ("left", "part"),
    [
        ("-all", "af_packet:AfPacketEngine([('in0', 'out0')])"),
        ("-all,+net_raw", "af_packet:AfPacketEngine([('in0', 'out0')])"),
        ("-all", "offloads:change_features('in0', {'tx-generic-segmentation': False})"),
    ],
)
def test_without_the_right_it_is_refused_with_what_to_do(lab: FunctionLab, left: str, part: str) -> None:
    """Without capabilities neither sockets nor offloads are had, and the message says whose they are."""
    module, _, expression = part.partition(":")
    text = f"from dios.sprayer.linux.{module} import *\n{expression}"
    bare = ["setpriv", f"--bounding-set={left}", "--inh-caps=-all", "--", *PYTHON, "-c", text]
    done = subprocess.run(lab.middle.inside(*bare), capture_output=True, text=True, check=False)
    assert done.returncode
    assert re.search(r"NotPermittedError: .* needs root.*CAP_NET_ADMIN", done.stderr), done.stderr
    assert run(lab.middle.inside("cat", "/proc/self/net/packet")).count("\n") == 1


def test_interfaces_that_cannot_be_are_refused() -> None:
    """No such interface, no Ethernet, twice the same, odd sizes: each says what is wrong."""
    with pytest.raises(InvalidError, match=r"the interfaces are .*lo"):
        interface("nothere0")
    with pytest.raises(InvalidError, match=r"is not Ethernet|is down"):
        interface("lo")
    for pairs, options, reason in (
        ([], {}, "give pairs"),
        ([("a", "a")], {}, "give pairs of different ones"),
        ([("a", "b")], {"cores": 0}, "choose from 1"),
        ([("a", "b")], {"places": 33}, "a power of two"),
        ([("a", "b")], {"pin": [0, 1]}, "one for each"),
    ):
        with pytest.raises(InvalidError, match=reason):
            AfPacketEngine(pairs, **options)
    with (
        pytest.raises(InvalidError, match="choose af_packet or af_xdp"),
        open_engine([("a", "b")], how="dpdk"),
    ):
        pass
    with pytest.raises(InvalidError, match="choose auto, spray, rss"):
        AfPacketEngine([("a", "b")], steer="all")
