"""Real TCP connections through a network function: iperf3 between two machines in namespaces.

TCP is that of Linux, untuned; its counters give the resent segments and those out of order.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypedDict, cast

from dios.sprayer.linux.engine_options import AUTO
from dios.sprayer.network_function import NetworkFunction
from dios.sprayer.runtime.auto_steering import steering_automatically
from dios.sprayer.runtime.workers import Workers, jain
from labs.papers.sprayer.lab.measure import MeasurementSetting
from labs.papers.sprayer.lab.namespaces import (
    MachineNamespaces,
    NotHereError,
    killed_with_parent,
    not_started,
)
from labs.papers.sprayer.lab.veth_pairs import RIGHT, VethPairs

IPERF: Final = "iperf3"
FLOWS_MAX: Final = 128
"""iperf3's own limit."""
GRACE_S: Final = 20


class Throughput(NamedTuple):
    """The throughput of connections from left to right."""

    bits_s: float
    jain: float
    """Jain's index of the connections' throughput."""
    again: float
    """The resent fraction of the sender's segments."""
    late: float
    """The fraction of the receiver's segments that arrived before an earlier one."""
    answers: float
    """Segments that the receiver sent for each arriving one: half of one in order, one if out of order."""
    steer: str
    """The steering at the end: with ``auto`` the one that it chose."""


class _Rate(TypedDict):
    bits_per_second: float


class _Stream(TypedDict):
    receiver: _Rate


class _End(TypedDict):
    streams: list[_Stream]


class _Report(TypedDict, total=False):
    end: _End
    error: str


def missing() -> str:
    """Return a message with the command that installs what is missing, or an empty text."""
    return (
        "" if shutil.which(IPERF) else f"{IPERF} is not installed (on Debian or Ubuntu: apt install {IPERF})"
    )


def throughput(
    veth_pairs: VethPairs,
    function: NetworkFunction | None,
    setting: MeasurementSetting,
    *,
    settle_s: int = 1,
    first: bool = True,
) -> Throughput:
    """Measure ``setting.flows`` connections at the same time for whole seconds, after ``settle_s`` seconds.

    With ``first`` the workers have priority on their processors, otherwise their default priority.
    """
    seconds = max(1, round(setting.seconds))
    with veth_pairs.engine(setting.cores, setting.steer, secret=setting.seed, how=setting.how) as engine:
        workers = Workers(function, engine, seed=setting.seed)
        workers.turn(0, 0)
        with workers, _serving(veth_pairs.right), contextlib.ExitStack() as stack:
            choice = None
            if setting.steer == AUTO:
                choice = stack.enter_context(steering_automatically(workers, engine))
            if first:
                workers.use_realtime_priority()
            before = _counters(veth_pairs)
            words = ["-c", RIGHT, "-P", str(setting.flows), "-t", str(seconds), "-O", str(settle_s), "-J"]
            report = _client(veth_pairs.left, words, seconds + settle_s + GRACE_S)
            after = _counters(veth_pairs)
            steer = choice.steer if choice else setting.steer
    if "end" not in report or not report["end"].get("streams"):
        raise NotHereError(f"{IPERF}: {report.get('error', 'no result')}")
    shares = [round(stream["receiver"]["bits_per_second"]) for stream in report["end"]["streams"]]
    sent, again, come, late, answers = (new - old for new, old in zip(after, before, strict=True))
    return Throughput(
        bits_s=float(sum(shares)),
        jain=jain(shares),
        again=again / max(sent + again, 1),
        late=late / max(come, 1),
        answers=answers / max(come, 1),
        steer=steer,
    )


def _client(space: MachineNamespaces, words: list[str], limit_s: float) -> _Report:
    try:
        done = subprocess.run(
            killed_with_parent(space.inside(IPERF, *words)),
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        raise NotHereError(f"{IPERF} did not end within {limit_s:g} s") from None
    except OSError as error:
        raise not_started(IPERF, error) from None
    try:
        return cast("_Report", json.loads(done.stdout))
    except ValueError:
        raise NotHereError(f"{IPERF}: {done.stderr.strip() or done.stdout.strip()[:200]}") from None


@contextlib.contextmanager
def _serving(space: MachineNamespaces) -> Iterator[None]:
    """Run the server of iperf3 while the context is active."""
    command = killed_with_parent(space.inside(IPERF, "-s", "--forceflush"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said = ""
            for line in process.stdout or ():
                said = line
                if "listening" in line:
                    break
            else:
                raise NotHereError(f"{IPERF}: {said.strip()}; {missing()}")
            yield
        finally:
            process.kill()


def _counters(veth_pairs: VethPairs) -> tuple[int, int, int, int, int]:
    """Return the left's segments and resent ones; the right's segments, those that waited, its answers."""
    left, right = _table(veth_pairs.left, "snmp"), _table(veth_pairs.right, "snmp")
    waited = _table(veth_pairs.right, "netstat")["TcpExt.TCPOFOQueue"]
    return left["Tcp.OutSegs"], left["Tcp.RetransSegs"], right["Tcp.InSegs"], waited, right["Tcp.OutSegs"]


def _table(space: MachineNamespaces, name: str) -> dict[str, int]:
    """Return the kernel's counters of one machine, by names such as ``Tcp.InSegs``."""
    lines = Path(f"/proc/{space.pid}/net/{name}").read_text().splitlines()
    counters: dict[str, int] = {}
    for heads, numbers in zip(lines[::2], lines[1::2], strict=True):
        kind, *names = heads.split()
        for key, number in zip(names, numbers.split()[1:], strict=True):
            counters[f"{kind.rstrip(':')}.{key}"] = int(number)
    return counters
