"""Sessions of ``dios.Sandbox``, with and without a template: their start, their use and their memory.

The template has numpy and Polars. Two rows are the start of a pure task, which is what sessions begin with;
more about starts is in ``labs.benchmarks.tasks``.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

import dios
from dios.limits import KIB
from labs.benchmarks import isolation, start_steps
from labs.benchmarks.measure import clock, median
from labs.benchmarks.nodes import running_node
from labs.benchmarks.peers import containers
from labs.benchmarks.report import Row, Section, judge, number, times
from labs.benchmarks.tasks import first_lines, ray_worker

MODULES: Final = "numpy,polars"
USE: Final = f"import {MODULES}"
STARTS: Final = 25
PEER_STARTS: Final = 7
MANY: Final = 2_000
MANY_S: Final = 200.0
ALONE: Final = "python -I -c"
_PAUSE_S: Final = 0.08
RUNS: Final = 200
LIFE_S: Final = 5.0
THREADS: Final = 2
FORKS: Final = 25
STATE_BYTES: Final = 200_000_000
NAN: Final = float("nan")
_MB: Final = 1e6
ARRAYS: Final = f"import numpy\nstate = numpy.ones({STATE_BYTES // 8})"
BYTES: Final = f"state = bytearray(b'x') * {STATE_BYTES}"


def run(section: Section) -> None:
    """Measure, and compare with the goals."""
    with running_node(templates=f"data={MODULES}", pool_size="4", tasks_max="64") as node:
        place = str(node.data)
        with dios.connect(place) as client:
            client.run(b"", template="data").wait()
            loaded = client.info().templates[0]
            section.figure("template: time to load it", loaded.load_ms, "ms")
            section.figure("template: memory of its process", loaded.used_bytes / _MB, "MB")
        plain = section.figure("session with the imports, open to first result", _opens(place, ""), "ms")
        forked = section.figure("session of a template, open to first result", _opens(place, "data"), "ms")
        run_us, private = _open_session(place)
        section.figure('run("1+1") in an open session', run_us, "µs")
        section.figure("private memory of an idle session of a template", private, "MB")
        arrays = section.figure("fork() of a session with 200 MB in arrays", _forks(place, ARRAYS), "ms")
        objects = section.figure("fork() of a session with 200 MB in small pages", _forks(place, BYTES), "ms")
        lifetimes = section.figure("sessions of a template opened, used and closed", lives(place), "/s")
    many = _many(section)
    peers = _others(section)
    section.rows += _starts(section)
    interpreter = peers.get(ALONE, NAN)
    beside = ", ".join(f"{name} {number(value)} ms" for name, value in peers.items())
    section.rows += [
        Row(
            "session of a template with numpy and Polars: open to first result",
            f"{number(forked)} ms",
            f"{beside}, all with the imports; a session without the template {number(plain)} ms",
            f"{times(interpreter / forked)} faster than a new interpreter",
            judge("5 ms", forked, 5),
            judge("1.5 ms", forked, 1.5),
        ),
        Row(
            'one run("1+1") in an open session',
            f"{number(run_us)} µs",
            "",
            "",
            judge("150 µs", run_us, 150),
            judge("60 µs", run_us, 60),
        ),
        Row(
            "sessions of a template opened, used and closed, by two threads",
            f"{number(lifetimes)}/s",
            "",
            "",
            judge("400/s", lifetimes, 400, below=False),
            judge("1,500/s", lifetimes, 1500, below=False),
        ),
        Row(
            "fork() of a session with 200 MB of numpy arrays, to the answer of the fork",
            f"{number(arrays)} ms",
            f"200 MB without large pages {number(objects)} ms",
            "",
            judge("15 ms", arrays, 15),
            judge("5 ms", arrays, 5),
        ),
        Row(
            "private memory of an idle session of a template",
            f"{number(private)} MB",
            "",
            "",
            judge("6 MB", private, 6),
            judge("3 MB", private, 3),
        ),
        Row(
            "open sessions of a template at once",
            number(many.number),
            "",
            "",
            judge("2,000", many.number, 2_000, below=False),
            judge("4,000", many.number, 4_000, below=False),
            f"each with {number(many.megabytes)} MB of the machine and {number(many.descriptors)} "
            f"descriptors of the node; at the end: {many.stopped}",
        ),
        isolation.measured(section),
    ]


def _starts(section: Section) -> list[Row]:
    """Measure the start of a pure task from the pool and cold, with its steps, and Ray's new worker."""
    pool, _, _ = first_lines("4", at_work=True)
    cold, _, _ = first_lines("0", at_work=True)
    section.figure("pure task from the pool, run to its first line", pool, "ms")
    section.figure("pure task cold, run to its first line", cold, "ms")
    steps = start_steps.in_words(start_steps.pool(section)), start_steps.in_words(start_steps.cold(section))
    worker = ray_worker(section)
    bare = section.figure("python -I -c pass", _spawns(lambda: [sys.executable, "-I", "-c", "pass"]), "ms")
    ray = "Ray is not installed" if math.isnan(worker) else f"Ray's new worker {number(worker)} ms"
    peer = f"{ray}, python -I -c pass {number(bare)} ms to its end"

    def faster(ours: float) -> str:
        return "" if math.isnan(worker) else f"{times(worker / ours)} faster than Ray's new worker"

    return [
        Row(
            f"pure task {how}, run to its first line",
            f"{number(ours)} ms",
            peer,
            faster(ours),
            judge(f"{least:g} ms", ours, least),
            judge(f"{wanted:g} ms", ours, wanted),
            note,
        )
        for how, ours, least, wanted, note in (
            ("from the pool", pool, 0.4, 0.1, steps[0]),
            ("cold", cold, 4.0, 2.0, steps[1]),
        )
    ]


def _opens(place: str, template: str) -> float:
    """Return the median of the milliseconds from the opening of a session to its first result."""
    taken = []
    for _ in range(STARTS):
        # Otherwise this would measure how fast processes are prepared.
        time.sleep(_PAUSE_S)
        began = clock()
        with dios.Sandbox(node=place, template=template) as box:
            result = box.run(USE)
            taken.append((clock() - began) / 1e6)
        if not result.ok:
            raise RuntimeError(f"the session failed: {result.error}")
    return median(taken)


def _open_session(place: str) -> tuple[float, float]:
    """Return the microseconds of a run, and the megabytes that belong to an idle session alone."""
    with dios.Sandbox(node=place, template="data") as box, dios.connect(place) as client:
        # The session before, which was closed a moment ago, may be there still.
        session = max(
            (task for task in client.tasks() if task.label == "sandbox"), key=lambda task: task.started_ns
        )
        private = private_bytes(session.pid) / _MB
        taken = []
        for _ in range(RUNS):
            began = clock()
            box.run("1+1")
            taken.append((clock() - began) / 1e3)
        return median(taken), private


def _forks(place: str, source: str) -> float:
    """Return the median of the milliseconds that a fork takes, until it has answered; NaN without forks."""
    taken = []
    try:
        with dios.Sandbox(node=place, template="data", forkable=True) as box:
            box.run(source)
            for _ in range(FORKS):
                began = clock()
                fork = box.fork()
                taken.append((clock() - began) / 1e6)
                fork.close()
    except dios.DiosError:
        return NAN
    return median(taken)


def private_bytes(pid: int) -> float:
    """Return the bytes of pages that one process alone has, and NaN if this user may not see them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return NAN
    rows = {name: rest.split() for name, _, rest in (line.partition(":") for line in lines)}
    return float(sum(int(rows[name][0]) for name in ("Private_Clean", "Private_Dirty")) * KIB)


def lives(place: str) -> float:
    """Return the number of sessions that two threads open, use and close in a second."""
    counts = [0] * THREADS
    until = time.monotonic() + LIFE_S

    def live(number: int) -> None:
        with dios.connect(place) as client:
            while time.monotonic() < until:
                with dios.Sandbox(node=client, template="data") as box:
                    box.run("1+1")
                counts[number] += 1

    threads = [threading.Thread(target=live, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / LIFE_S


def _others(section: Section) -> dict[str, float]:
    """Return the milliseconds of a new interpreter with the same imports, alone and in other sandboxes."""
    command = [sys.executable, "-I", "-c", USE]
    spans = {ALONE: section.figure("python -I -c with the imports", _spawns(lambda: command), "ms")}
    with containers.commands(command) as commands:
        for name in (containers.BUBBLEWRAP, containers.RUNC, containers.GVISOR):
            start = commands.get(name)
            if start is None:
                section.trouble.append(f"{name} is not installed")
                continue
            taken = section.figure(f"{name} with python and the imports", _spawns(start), "ms")
            if math.isnan(taken):
                section.trouble.append(f"{name} does not start here")
            else:
                spans[name] = taken
    return spans


def _spawns(command: containers.Command) -> float:
    taken = []
    for _ in range(PEER_STARTS):
        line = command()
        began = clock()
        if subprocess.run(line, check=False, capture_output=True).returncode:
            return NAN
        taken.append((clock() - began) / 1e6)
    return median(taken)


class _Sessions(NamedTuple):
    """Many open sessions: their number, what each costs, and the reason why there are no more."""

    number: int
    megabytes: float
    descriptors: float
    stopped: str


def _many(section: Section) -> _Sessions:
    """Open sessions until something stops that, run a cell in each, and return their costs."""
    boxes: list[dios.Sandbox] = []
    stopped = "the number that was asked for"
    with (
        running_node(templates=f"data={MODULES}", tasks_max=str(MANY + 50)) as node,
        dios.connect(str(node.data)) as client,
        contextlib.ExitStack() as stack,
    ):
        client.run(b"", template="data").wait()
        free, began = _available(), clock()
        before, own = _descriptors(node.pid), _descriptors(os.getpid())
        try:
            while len(boxes) < MANY:
                boxes.append(stack.enter_context(dios.Sandbox(node=client, template="data")))
                boxes[-1].run("1+1")
                if clock() - began > MANY_S * 1e9:
                    stopped = f"{MANY_S:.0f} s of this measurement"
                    break
        except dios.DiosError as error:
            stopped = str(error)
        count = len(boxes)
        if not count:
            return _Sessions(0, NAN, NAN, stopped)
        taken = (clock() - began) / 1e6 / count
        megabytes = (free - _available()) / count
        descriptors = (_descriptors(node.pid) - before) / count
        section.figure("open sessions of a template at once", count, "")
        section.figure("memory of the machine for each of them", megabytes, "MB")
        section.figure("descriptors of the node for each of them", descriptors, "")
        section.figure(
            "descriptors of their caller for each of them", (_descriptors(os.getpid()) - own) / count, ""
        )
        section.figure("time for each of them to open and to run a cell, in a row", taken, "ms")
        return _Sessions(count, megabytes, descriptors, stopped)


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - one line for a count


def _available() -> float:
    """Return the megabytes that programs may still use on this machine."""
    rows = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(rows["MemAvailable"].split()[0]) * KIB / _MB
