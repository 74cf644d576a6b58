"""The command ``dios nf``: files of packets, and interfaces in namespaces of their own."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from typer.testing import CliRunner, Result

from dios.cli import main
from dios.sprayer.linux.offloads import RECORDS
from dios.sprayer.pcap import PcapWriter, read_pcap
from tests.support.lab.function_machines import PYTHON, RIGHT, FunctionLab, features
from tests.support.lab.namespaces import NotHereError, run
from tests.support.node.command_user import require_schema
from tests.support.sprayer.frames import ACK, SYN, UDP, Made, read

pytestmark = pytest.mark.long

PAGE_BYTES = 2_000_000
INSIDE, NAT, SERVER = "10.0.0.5", "203.0.113.7", "192.0.2.9"
# As a person would write it, by the documents.
MINE = """
from dios.sprayer import NetworkFunction, drop

class Odd(NetworkFunction):
    stateless = True

    def prepare(self, cores):
        self.counts = self.counters(cores, "odd")

    def regular_packets(self, batch, flows):
        for packet in batch:
            if packet.source_port % 2:
                self.counts[flows.core, 0] += 1
                drop(packet, 16)
"""


def dios(*words: str) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(main.app, ["nf", *words])


def write(path: Path, frames: list[bytes]) -> str:
    """A file of packets; its path."""
    with path.open("wb") as file:
        writer = PcapWriter(file)
        for number, data in enumerate(frames):
            writer.write(1_700_000_000 * 10**9 + number, data)
    return str(path)


def frames_in(path: Path) -> list[bytes]:
    """The packets of a file."""
    with path.open("rb") as file:
        return [frame.data for frame in read_pcap(file, str(path))]


def test_a_function_of_ones_own_is_replayed(tmp_path: Path) -> None:
    """A file's class drops what it drops, and the count is in the JSON."""
    mine = tmp_path / "odd.py"
    mine.write_text(MINE)
    source = write(tmp_path / "in.pcap", [Made(source_port=port).frame() for port in range(1000, 1020)])
    target = tmp_path / "out.pcap"
    result = dios("replay", source, str(target), str(mine), "--cores", "2", "--json")
    assert result.exit_code == 0, result.stderr
    require_schema("dios nf replay", result.stdout)
    told = json.loads(result.stdout)
    assert (told["counts"]["received"], told["counts"]["sent"]) == (20, 10)
    assert (told["dropped"], told["counters"]) == ({"function": 10}, {"odd": 10})
    assert [read(frame).source_port for frame in frames_in(target)] == list(range(1000, 1020, 2))


def test_the_side_is_told_by_networks(tmp_path: Path) -> None:
    """With --inside a NAT knows what comes back, and lets nothing in that nobody asked for."""
    out = Made(source=INSIDE, source_port=4000, target=SERVER, flags=SYN)
    opened = dios_nat(tmp_path, [out.frame()])
    port = read(opened[0]).source_port
    back = Made(source=SERVER, source_port=80, target=NAT, target_port=port, flags=SYN | ACK)
    stranger = Made(source=SERVER, source_port=53, target=NAT, target_port=9, protocol=UDP)
    tagged = Made(source=INSIDE, source_port=4000, target=SERVER, tags=(5,))
    frames = dios_nat(tmp_path, [out.frame(), back.frame(), stranger.frame(), tagged.frame()])
    assert [read(frame).target for frame in frames] == [SERVER, INSIDE, SERVER]
    assert read(frames[2]).source == NAT


def dios_nat(folder: Path, frames: list[bytes]) -> list[bytes]:
    """Return the frames after a NAT."""
    target = folder / "out.pcap"
    words = ("nat", "--set", f"addresses={NAT}", "--inside", "10.0.0.0/8", "--inside", "fd00::/8")
    result = dios("replay", write(folder / "in.pcap", frames), str(target), *words)
    assert result.exit_code == 0, result.stderr
    assert f"packets  {len(frames)} from" in result.stdout
    return frames_in(target)


def test_a_network_that_is_none_is_told(tmp_path: Path) -> None:
    """--inside with something else is an error, and nothing is written."""
    target = tmp_path / "out.pcap"
    result = dios("replay", write(tmp_path / "in.pcap", []), str(target), "monitor", "--inside", "10.0.0.1/8")
    assert (result.exit_code, target.exists()) == (1, False)
    assert "--inside: 10.0.0.1/8 has host bits set" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("replay", "none.pcap", "out.pcap", "monitor"), "none.pcap: No such file"),
        (("run", "monitor", "--in", "nowhere0", "--out", "nowhere1"), "interface 'nowhere0'"),
        (("run", "monitor", "--in", "lo", "--in", "x", "--out", "y"), "2 interfaces inside and 1 outside"),
        (("run", "monitor", "--in", "lo", "--out", "lo", "--steer", "sideways"), "choose auto, spray, rss"),
        (("replay", "IN", "out.pcap", "monitor", "--cores", "65"), "65 cores: choose from 1 to 64"),
        (("replay", "IN", "out.pcap", "firewall", "--set", "flows_max=900000000"), "1800000000 flows"),
        (("replay", "IN", "out.pcap", "monitor", "--set", "flows_max=9000000000000"), "Unable to allocate"),
        (("stats", "no-such-function"), "no function named no-such-function is running"),
    ],
)
def test_errors_name_what_is_wrong(tmp_path: Path, words: tuple[str, ...], told: str) -> None:
    """An invalid argument gives one line with its cause, before anything is compiled."""
    source = write(tmp_path / "in.pcap", [Made().frame()])
    result = dios(*(source if word == "IN" else word for word in words))
    assert result.exit_code == 1
    assert told in result.stderr
    assert "Traceback" not in result.stderr


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[FunctionLab]:
    """Left, right, and nothing between them yet."""
    try:
        bench = FunctionLab(tmp_path)
    except NotHereError as error:
        pytest.skip(str(error))
    yield bench
    bench.close()


@contextmanager
def running(lab: FunctionLab, *words: str) -> Iterator[subprocess.Popen[str]]:
    """``dios nf run`` between left and right, at work."""
    command = [*PYTHON, "-m", "dios.cli.main", "nf", "run", *words, "--in", "in0", "--out", "out0"]
    with subprocess.Popen(
        lab.middle.inside(*command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert "Ctrl-C ends it" in line(process.stderr)
            yield process
        finally:
            process.kill()


def line(stream: IO[str] | None) -> str:
    """Return the first lines of the output."""
    assert stream is not None
    return stream.readline()


def in_middle(lab: FunctionLab, *words: str) -> str:
    """Return the rest of the output of ``dios nf``."""
    return run(lab.middle.inside(*PYTHON, "-m", "dios.cli.main", "nf", *words))


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("engine", ["af_packet", "af_xdp"])
def test_a_function_runs_is_asked_and_ends(lab: FunctionLab, engine: str) -> None:
    """A page comes through, stats show all cores at it, Ctrl-C ends it, and offloads are as they were."""
    before = features(lab.middle, "in0"), features(lab.middle, "out0")
    name = f"test-{lab.folder.name}"
    words = ("--cores", "2", "--steer", "spray", "--engine", engine, "--name", name, "--json")
    with running(lab, "monitor", *words) as process:
        during = features(lab.middle, "in0")
        fetch(lab)
        told = json.loads(in_middle(lab, "stats", name, "--json"))
        shown = in_middle(lab, "stats", name)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    assert process.returncode == 0, errors
    require_schema("dios nf run", output)
    last = json.loads(output)
    assert len(told["cores"]) == 2
    assert min(core["packets"] for core in told["cores"]) > PAGE_BYTES // 1500 // 4
    assert told["jain"] > 0.9
    assert last["packets"] >= told["packets"]
    assert last["counters"]["connections"] == 2, "one for each way"
    assert "Jain's index" in shown
    assert shown.count("\n") > 5
    assert during != before[0]
    assert (features(lab.middle, "in0"), features(lab.middle, "out0")) == before


def fetch(lab: FunctionLab) -> None:
    """Bring a page from the right to the left, with Python alone."""
    page = random.Random(8).randbytes(PAGE_BYTES)  # noqa: S311 - test data
    (lab.folder / "page").write_bytes(page)
    server = [sys.executable, "-u", "-m", "http.server", "8000", "--directory", str(lab.folder)]
    get = (
        "import hashlib, sys, urllib.request as r;"
        "print(hashlib.sha256(r.urlopen(sys.argv[1]).read()).hexdigest())"
    )
    with lab.serving(lab.right, server, "Serving"):
        got = run(lab.left.inside(sys.executable, "-c", get, f"http://{RIGHT}:8000/page"))
    assert got.strip() == hashlib.sha256(page).hexdigest()


WAITING = """
import sys
from pathlib import Path
from dios.sprayer.linux.af_packet import open_engine
with open_engine([("in0", "out0")], 2, how=sys.argv[1], steer="rss", records=Path(sys.argv[2])) as engine:
    print("ready", flush=True)
    sys.stdin.readline()
    print(*[engine.waiting(core) for core in range(2)])
"""


@pytest.mark.parametrize(("words", "first"), [((), 0), (("--realtime",), 2)])
def test_workers_go_first_where_that_is_wanted(lab: FunctionLab, words: tuple[str, ...], first: int) -> None:
    """With --realtime the two workers are before everything else, and nobody is without it."""
    name = f"first-{lab.folder.name}"
    with running(lab, "monitor", "--cores", "2", "--name", name, *words) as process:
        tasks = [int(path.name) for path in Path(f"/proc/{process.pid}/task").iterdir()]
        assert len(tasks) > 2
        assert [os.sched_getscheduler(task) for task in tasks].count(os.SCHED_FIFO) == first
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize("engine", ["af_packet", "af_xdp"])
def test_what_waits_at_an_interface_is_counted(lab: FunctionLab, engine: str) -> None:
    """Frames that no worker received yet are its core's queue."""
    command = lab.middle.inside(*PYTHON, "-c", WAITING, engine, str(lab.records))
    frames = [Made(source_port=number, protocol=UDP).frame() for number in range(1000, 1040)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert line(process.stdout) == "ready\n"
        lab.send(frames)
        output, _ = process.communicate("go\n", timeout=30)
    told = [int(word) for word in output.split()]
    assert sum(told) >= len(frames), "discovery of neighbours may come with them"
    assert min(told) > 0


def test_an_interface_that_goes_ends_the_function(lab: FunctionLab) -> None:
    """A function whose interface is gone says which one it was, and leaves no record of its offloads."""
    network = int(run(lab.middle.inside("stat", "-Lc", "%i", "/proc/self/ns/net")))
    with running(lab, "monitor", "--cores", "1", "--name", f"gone-{lab.folder.name}") as process:
        lab.middle.batch(["link delete in0"])
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "interface 'in0' was removed or replaced" in errors
    assert not list(RECORDS.glob(f"{network}-*"))
