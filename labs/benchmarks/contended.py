"""Calls, remote reads and starts of tasks while every processor is busy, compared with bare echoes.

Each figure is measured twice in one run, on the quiet machine and next to one program for each processor that
only computes, in turns with a bare peer of the same kind: an echo between two processes, TLS over loopback, a
new process. The ratios say what DIOS adds; the times themselves are mostly the waits for a processor.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import dios
from dios.limits import KIB
from labs.benchmarks.cluster import blobs, lookup_all, running_cluster
from labs.benchmarks.measure import cpus, forked, interleaved, median, once, pin
from labs.benchmarks.nodes import running_node, workspace
from labs.benchmarks.peers.echo import echo_server, raw_call
from labs.benchmarks.peers.tls_stream import echo_round_trips, ends, tls_echo
from labs.benchmarks.report import Row, Section, judge, number, times

Calls = Mapping[str, Callable[[], object]]

ROUNDS: Final = {"quiet": 10, "busy": 10}
CALLS: Final = {"quiet": 100, "busy": 30}
STARTS: Final = {"quiet": 20, "busy": 12}
_PAUSE_S: Final = 0.3
_TLS: Final = "bare TLS echo"
_SMALL: Final = 100
_FRESH: Final = 64
"""Objects of the other node that are read in turn, each without a kept version."""


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    _local(section)
    _remote(section)
    _starts(section)


@contextlib.contextmanager
def _load(kind: str) -> Iterator[None]:
    """Keep every processor busy in the body, if this is the kind of load."""
    with contextlib.ExitStack() as stack:
        if kind == "busy":
            for cpu in range(len(cpus())):
                stack.enter_context(forked(lambda cpu=cpu: _compute(cpu)))  # type: ignore[misc]
            time.sleep(_PAUSE_S)
        yield


def _compute(cpu: int) -> None:
    pin(cpu)
    for _ in itertools.count():
        pass


def _in_turns(
    section: Section, calls: Calls, echo: Callable[[int], list[float]] | None = None
) -> dict[str, dict[str, float]]:
    """Return the median microseconds of each call, quiet and busy.

    ``echo`` returns the microseconds of a number of round trips of the bare TLS echo, which takes turns.
    """
    taken: dict[str, dict[str, float]] = {}
    for kind, rounds in ROUNDS.items():
        samples: dict[str, list[float]] = {}
        with _load(kind):
            for _ in range(rounds):
                for name, value in interleaved(calls, rounds=1, calls=CALLS[kind]).items():
                    samples.setdefault(name, []).append(value)
                if echo is not None:
                    samples.setdefault(_TLS, []).append(median(echo(CALLS[kind])))
        taken[kind] = {name: median(values) for name, values in samples.items()}
        for name, value in taken[kind].items():
            section.figure(f"{name}, {kind}", value, "µs")
    return taken


def _rows(
    section: Section,
    taken: Mapping[str, Mapping[str, float]],
    peer: str,
    goals: Mapping[str, tuple[float, float]],
    unit: str = "µs",
) -> None:
    """Add a row for each call and load: ``goals`` are the highest ratios, quiet and busy."""
    for name, (quiet, busy) in goals.items():
        for kind, most in (("quiet", quiet), ("busy", busy)):
            ratio = section.figure(
                f"{name}, {kind}: ratio to {peer}", taken[kind][name] / taken[kind][peer], ""
            )
            section.rows.append(
                Row(
                    f"{name}, {'both processors busy' if kind == 'busy' else 'quiet machine'}",
                    f"{number(taken[kind][name])} {unit}",
                    f"{peer} {number(taken[kind][peer])} {unit}",
                    times(ratio),
                    judge(f"{number(most)} x {peer}", ratio, most) if most else judge("", ratio, most),
                )
            )


# -- one node -----------------------------------------------------------------------------------------
def _local(section: Section) -> None:
    with contextlib.ExitStack() as stack:
        bench = stack.enter_context(running_node())
        echo = stack.enter_context(echo_server(None, raw=True))
        node = stack.enter_context(dios.connect(bench.data, groups=[]))
        blob = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=bytes(_SMALL))
        calls: Calls = {
            "bare echo": raw_call(echo, _SMALL),
            "stat": blob.stat,
            "read of 100 B by a call": lambda: blob.read_bytes(semantics=dios.EXCL),
            "create and delete": lambda: node.create(
                dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=bytes(_SMALL)
            ).close(),
        }
        taken = _in_turns(section, calls)
    goals = {"stat": (1.2, 1.2), "read of 100 B by a call": (1.6, 1.6), "create and delete": (0.0, 0.0)}
    _rows(section, taken, "bare echo", goals)


# -- two nodes ----------------------------------------------------------------------------------------
def _remote(section: Section) -> None:
    size = 4 * KIB
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(running_cluster(2, pool_size="0", remote_cache_bytes="0"))
        other, node = stack.enter_context(cluster.at(1)), stack.enter_context(cluster.at(0))
        shown = ends(stack.enter_context(workspace()))
        port = stack.enter_context(tls_echo(shown, None))
        there = itertools.cycle(lookup_all(node, blobs(other, [os.urandom(size) for _ in range(_FRESH)])))
        calls: Calls = {
            "remote read of 4 KB": lambda: next(there).read_bytes(),
            "remote stat": lambda: next(there).stat(),
        }
        taken = _in_turns(section, calls, lambda count: echo_round_trips(shown, port, size, count, warm=5))
    _rows(section, taken, _TLS, {"remote read of 4 KB": (2.0, 4.0), "remote stat": (2.0, 4.0)})


# -- tasks --------------------------------------------------------------------------------------------
def _starts(section: Section) -> None:
    """Measure a pure task from the pool until its end is known, and a new interpreter."""
    taken: dict[str, dict[str, float]] = {}
    with running_node() as bench, dios.connect(bench.data, groups=[]) as node:
        program = node.create_program(b"pass\n")
        for kind, count in STARTS.items():
            samples: dict[str, list[float]] = {"pure task": [], "new interpreter": []}
            with _load(kind):
                for _ in range(count):
                    # The pool makes the next child meanwhile.
                    time.sleep(_PAUSE_S)
                    samples["pure task"].append(once(lambda: _ended(node, program)) * 1e3)
                    samples["new interpreter"].append(once(_interpreter) * 1e3)
            taken[kind] = {name: median(values) for name, values in samples.items()}
            for name, value in taken[kind].items():
                section.figure(f"{name}, {kind}", value, "ms")
    _rows(section, taken, "new interpreter", {"pure task": (0.5, 1.0)}, "ms")


def _ended(node: dios.Node, program: dios.Reference) -> None:
    with_end = node.run(program, wait=False)
    if not with_end.wait(60).ok:
        raise RuntimeError("a task failed")
    with_end.close()


def _interpreter() -> None:
    subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)
