"""Starting work: from the call to the first line of a pure task, cold and from the pool, and alternatives.

Each program records the system's monotonic clock in its first line.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Protocol, cast

import dios
from labs.benchmarks.measure import clock, median
from labs.benchmarks.nodes import running_node
from labs.benchmarks.peers.ray_session import Ray, ray_session
from labs.benchmarks.peers.redis_server import MissingPeerError
from labs.benchmarks.report import Row, Section, judge, number, times

STARTS = 25
_REFILL_SECONDS = 0.08
_FIRST_LINE = b"import time; now = time.perf_counter_ns()\nprint(now)\n"
NAN = float("nan")


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    pool, pool_call, ended = first_lines("4", at_work=True)
    paused, _, _ = first_lines("4", at_work=False)
    cold, cold_call, _ = first_lines("0", at_work=True)
    section.figure("pure task from the pool, call to first line", pool, "ms")
    section.figure("pure task from the pool after a pause, call to first line", paused, "ms")
    section.figure("pure task from the pool, call to its return", pool_call, "ms")
    section.figure("pure task from the pool, call to its known end", ended, "ms")
    section.figure("pure task cold, call to first line", cold, "ms")
    section.figure("pure task cold, call to its return", cold_call, "ms")
    spawns = _others(section)
    worker = ray_worker(section)
    section.rows.append(
        Row(
            "start of a pure task, cold: call to first line",
            f"{number(cold)} ms",
            ", ".join(f"{name} {number(value)} ms" for name, value in spawns.items()),
            "",
            judge("2 ms", cold, 2),
        )
    )
    section.rows.append(
        Row(
            "start of a pure task, from the pool: call to first line",
            f"{number(pool * 1000)} µs",
            f"new Ray worker {number(worker)} ms",
            f"{times(worker / pool)} faster than Ray's new worker",
            judge("0.4 ms", pool, 0.4),
            judge("100 µs", pool, 0.1),
            f"without pauses between calls; {number(paused * 1000)} µs after a pause of client and node",
        )
    )
    section.rows.append(
        Row(
            "start of a pure task compared with a new Ray worker",
            f"{number(pool)} ms from the pool, {number(cold)} ms cold",
            f"new Ray worker {number(worker)} ms",
            f"{times(worker / pool)} from the pool, {times(worker / cold)} cold",
            judge("300 x faster", worker / pool, 300, below=False),
            note="judged from the pool; an existing Ray worker is in the figures",
        )
    )


def first_lines(pool_size: str, *, at_work: bool) -> tuple[float, float, float]:
    """Return the milliseconds to the first line, to the return of ``run``, and to the known end.

    Between two starts the client makes other calls (``at_work``) or sleeps.
    """
    first: list[float] = []
    returned: list[float] = []
    ended: list[float] = []
    with running_node(pool_size=pool_size) as bench, dios.connect(bench.data, groups=[]) as node:
        program = node.create_program(_FIRST_LINE)
        for turn in range(STARTS + 3):
            # The next child of the pool must be ready, otherwise the start would be cold.
            until = time.monotonic() + _REFILL_SECONDS
            while time.monotonic() < until:
                if at_work:
                    program.stat()
                else:
                    time.sleep(_REFILL_SECONDS)
            began = clock()
            task = node.run(program, wait=False)
            back = clock()
            status = task.wait(10)
            over = clock()
            if not status.ok:
                raise RuntimeError(f"a task failed: {status.detail}")
            line = int(task.console().read_bytes())
            task.close()
            if turn >= 3:
                first.append((line - began) / 1e6)
                returned.append((back - began) / 1e6)
                ended.append((over - began) / 1e6)
    return median(first), median(returned), median(ended)


# -- alternatives -------------------------------------------------------------------------------------
class _Sender(Protocol):
    def send(self, value: int) -> None: ...


def _note(sender: _Sender) -> None:
    sender.send(clock())


def _others(section: Section) -> dict[str, float]:
    costs: dict[str, float] = {}
    for method in ("fork", "forkserver", "spawn"):
        costs[f"multiprocessing {method}"] = _times(lambda method=method: _multiprocessing(method))  # type: ignore[misc]
    costs["new interpreter"] = _times(lambda: _interpreter(["-I"]))
    costs["new interpreter -I -S"] = _times(lambda: _interpreter(["-I", "-S"]))
    for name, value in costs.items():
        section.figure(f"{name}, call to first line", value, "ms")
    return costs


def _times(start: Callable[[], float], count: int = 9) -> float:
    return median([start() for _ in range(count + 1)][1:])


def _multiprocessing(method: str) -> float:
    context = multiprocessing.get_context(method)
    near, far = context.Pipe(duplex=False)
    began = clock()
    process = cast("multiprocessing.Process", context.Process(target=_note, args=(far,)))  # type: ignore[attr-defined]
    process.start()
    line = int(near.recv())
    process.join()
    near.close()
    far.close()
    return (line - began) / 1e6


def _interpreter(flags: list[str]) -> float:
    began = clock()
    line = subprocess.check_output([sys.executable, *flags, "-c", _FIRST_LINE.decode()])
    return (int(line) - began) / 1e6


def _first_line() -> int:
    return time.perf_counter_ns()


def ray_worker(section: Section) -> float:
    """Return the milliseconds from the call to the first line on a new Ray worker, NaN without Ray."""
    try:
        with ray_session() as (ray, _):
            remote = ray.remote(_first_line)
            warm = [_ray_start(ray, remote.remote) for _ in range(60)]
            section.figure("Ray task on an existing worker, call to first line", median(warm[10:]), "ms")
            fresh: list[float] = []
            for turn in range(4):
                # A worker serves one environment, so another variable needs another worker.
                own = remote.options(runtime_env={"env_vars": {"TURN": f"{os.getpid()}-{turn}"}})
                fresh.append(_ray_start(ray, own.remote))
            return section.figure("Ray task on a new worker, call to first line", median(fresh[1:]), "ms")
    except MissingPeerError as missing:
        section.trouble.append(str(missing))
        return NAN


def _ray_start(ray: Ray, call: Callable[[], object]) -> float:
    began = clock()
    line = ray.get(call())
    assert isinstance(line, int)
    return (line - began) / 1e6
