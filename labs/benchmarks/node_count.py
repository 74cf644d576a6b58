"""Costs of a cluster against its number of nodes n, each with the exponent of n that fits it.

Idle clusters run in a network namespace of their own, so that its counters count nothing else. Without the
right to make one, the counters include the other traffic of this machine.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from labs.benchmarks.cluster import BenchCluster, blobs, running_cluster
from labs.benchmarks.measure import descendants, pss_kib, tree_cpu_seconds
from labs.benchmarks.report import Row, Section, judge, number

SIZES: Final = tuple(int(text) for text in os.environ.get("BENCH_NODES", "3,8,16").split(","))
IDLE_S: Final = 20.0
SETTLE_S: Final = 20.0
SETTLE_S_MAX: Final = 90.0
"""The longest time until the coordinator that schedules has started."""
LOOKUPS: Final = 200
_STEP_S: Final = 0.5
_CLONE_NEWNET: Final = 0x40000000
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP: Final = 1


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    if not _own_network():
        section.trouble.append("no network namespace could be made: packets of other programs are counted")
    idle = {count: _idle(section, count) for count in SIZES}
    _judge_idle(section, idle)
    lookups = {count: _lookups(section, count) for count in SIZES}
    for name in ("of a new name", "of an absent name"):
        costs = {count: taken[name] for count, taken in lookups.items()}
        power = _exponent(section, f"lookup {name}, processor time of all nodes", costs)
        section.rows.append(
            Row(
                f"lookup {name}, processor time of all nodes",
                _listed(costs, "ms"),
                "",
                f"n^{number(power)}",
                judge("n^0.5", power, 0.5),
                judge("n^0.1", power, 0.1),
            )
        )


def _own_network() -> bool:
    """Move this process into a new network namespace with nothing but a loopback device."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    return True


def _packets() -> int:
    """Return the packets that the loopback device has sent; an acknowledgement is a packet."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "lo":
            return int(rest.split()[9])
    raise RuntimeError("there is no loopback device")


# -- idle clusters ------------------------------------------------------------------------------------
def _idle(section: Section, count: int) -> dict[str, float]:
    """Return the costs of an idle cluster with coordinators."""
    with running_cluster(count, coordinator="on") as cluster:
        leader = _wait_settled(cluster)
        parts = _processes(cluster)
        before, packets = {pid: _run_s(pid) for pid in parts}, _packets()
        began = time.monotonic()
        time.sleep(IDLE_S)
        elapsed = time.monotonic() - began
        packets = _packets() - packets
        spent = {pid: (_run_s(pid) - before[pid]) / elapsed * 1000 for pid in parts}
        daemons = [spent[pid] for pid, role in parts.items() if role == "daemon"]
        others = [spent[pid] for pid, role in parts.items() if role == "coordinator" and pid != leader]
        figures = {
            "daemon": sum(daemons) / len(daemons),
            "coordinator": sum(others) / max(1, len(others)),
            "leading coordinator": spent[leader],
            "per node": sum(spent.values()) / count,
            "all": sum(spent.values()),
        }
        for name, value in figures.items():
            section.figure(f"idle, {count} nodes: processor time, {name}", value, "ms/s")
        figures["packets"] = section.figure(
            f"idle, {count} nodes: packets of a node", packets / elapsed / count, "1/s"
        )
        figures["memory"] = section.figure(
            f"idle, {count} nodes: leading coordinator, PSS", pss_kib(leader) * 1024 / 1e6, "MB"
        )
        section.figure(f"idle, {count} nodes: leading coordinator, RSS", _rss_mb(leader), "MB")
    return figures


def _judge_idle(section: Section, idle: Mapping[int, Mapping[str, float]]) -> None:
    goals = {
        "per node": ("ms/s", 20.0, 5.0),
        "leading coordinator": ("ms/s", 100.0, 20.0),
        "packets": ("1/s", 60.0, 30.0),
        "memory": ("MB", 150.0, 90.0),
    }
    names = {
        "per node": "idle cluster with coordinators: processor time of a node",
        "leading coordinator": "idle cluster: processor time of the coordinator that schedules",
        "packets": "idle cluster: packets of a node in a second",
        "memory": "idle cluster: memory of the coordinator that schedules",
    }
    for key, (unit, least, wanted) in goals.items():
        costs = {count: figures[key] for count, figures in idle.items()}
        power = _exponent(section, names[key], costs)
        worst = max(costs.values())
        section.rows.append(
            Row(
                names[key],
                _listed(costs, unit),
                "",
                f"n^{number(power)}",
                judge(f"{number(least)} {unit}", worst, least),
                judge(f"{number(wanted)} {unit}", worst, wanted),
            )
        )
    share = idle[max(idle)]["all"] / 10
    section.rows.append(
        Row(
            f"idle cluster of {max(idle)} nodes: share of one processor",
            f"{number(share)} %",
            "",
            "",
            judge("30 %", share, 30),
            judge("10 %", share, 10),
        )
    )


def _listed(costs: Mapping[int, float], unit: str) -> str:
    return ", ".join(f"{count} nodes {number(value)}" for count, value in costs.items()) + f" {unit}"


def _exponent(section: Section, name: str, costs: Mapping[int, float]) -> float:
    """Return the exponent of n in the power law that fits costs best, by least squares of the logarithms."""
    points = [(math.log(count), math.log(max(cost, 1e-9))) for count, cost in costs.items()]
    middle_x = sum(x for x, _ in points) / len(points)
    middle_y = sum(y for _, y in points) / len(points)
    slope = sum((x - middle_x) * (y - middle_y) for x, y in points) / sum(
        (x - middle_x) ** 2 for x, _ in points
    )
    return section.figure(f"{name}: exponent of n", slope, "")


def _processes(cluster: BenchCluster) -> dict[int, str]:
    """Return the kind of each process of the cluster: daemon, coordinator or other."""
    roles: dict[int, str] = {}
    for number_ in range(len(cluster.local.nodes)):
        daemon = cluster.pid(number_)
        roles[daemon] = "daemon"
        coordinator = _coordinator(cluster, number_)
        for pid in descendants(daemon):
            roles[pid] = "coordinator" if pid == coordinator else "other"
    return roles


def _coordinator(cluster: BenchCluster, number_: int) -> int:
    """Return the process of a node's coordinator, 0 if it has none yet."""
    with cluster.at(number_) as node:
        rows = [row for row in node.tasks(local_only=True) if row.label == "coordinator"]
        return next((row.pid for row in rows if row.pid), 0)


def _wait_settled(cluster: BenchCluster) -> int:
    """Wait until one coordinator has loaded the scheduler; return its process."""
    deadline = time.monotonic() + SETTLE_S_MAX
    leader = 0
    while not leader and time.monotonic() < deadline:
        time.sleep(_STEP_S)
        coordinators = [_coordinator(cluster, index) for index in range(len(cluster.local.nodes))]
        if not all(coordinators):
            continue
        with cluster.at(0) as node:
            smallest = min(node.nodes(), key=lambda row: row.node).name
        names = [node.name for node in cluster.local.nodes]
        leader = coordinators[names.index(smallest)]
    if not leader:
        raise RuntimeError("the coordinators did not start")
    time.sleep(SETTLE_S)
    return leader


def _run_s(pid: int) -> float:
    """Return the processor seconds of one process, with its ended children."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")
    return 0.0


def _rss_mb(pid: int) -> float:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


# -- names --------------------------------------------------------------------------------------------
def _lookups(section: Section, count: int) -> dict[str, float]:
    """Return the processor time of all nodes for one lookup, in milliseconds, without idle costs."""
    with running_cluster(count) as cluster, cluster.at(0) as node, cluster.at(count - 1) as other:
        there = blobs(other, [b"x"] * LOOKUPS)
        absent = [os.urandom(len(there[0])) for _ in range(LOOKUPS)]
        time.sleep(2.0)
        idle = _spent(cluster, lambda: time.sleep(5.0)) / 5.0
        taken: dict[str, float] = {}
        for name, names in (("of a new name", there), ("of an absent name", absent)):

            def look(names: Sequence[bytes] = names) -> None:
                for object_name in names:
                    node.lookup(object_name)

            began = time.monotonic()
            spent = _spent(cluster, look)
            elapsed = time.monotonic() - began
            taken[name] = (spent - idle * elapsed) / LOOKUPS * 1000
            section.figure(f"lookup {name}, {count} nodes: processor time of all nodes", taken[name], "ms")
            section.figure(f"lookup {name}, {count} nodes", elapsed / LOOKUPS * 1000, "ms")
    return taken


def _spent(cluster: BenchCluster, work: Callable[[], object]) -> float:
    before = sum(tree_cpu_seconds(pid) for pid in cluster.pids())
    work()
    return sum(tree_cpu_seconds(pid) for pid in cluster.pids()) - before
