"""The course of a soak: clients that start and end, kills, samples, and the quiet points in between.

The clients are in ``client``; ``verdict`` judges the samples.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dios
from dios.core.model.names import deterministic_name
from dios.ids import Name
from dios.limits import CONSOLE_ENDED_BYTES_MAX, CONSOLE_TAIL_BYTES
from labs.benchmarks.measure import descendants
from labs.benchmarks.nodes import BenchNode
from labs.benchmarks.soak.client import ClientLoad, fork_client
from labs.benchmarks.soak.data import Data, hex_digest
from labs.benchmarks.soak.sampler import Sampler, extents, stored
from labs.benchmarks.soak.shared_table import STOP, DeadSession, SharedTable, Troubles
from labs.benchmarks.soak.verdict import Point

SAMPLE_S: Final = 1.0
ANSWER_S: Final = 30
HANG_S: Final = 120.0
REST_S: Final = 90.0
SETTLE_S: Final = 30.0
QUIET_LOOKS: Final = 3
SHARED_SIZES: Final = (0, 10, 5_000, 16_384, 20_000, 40_000, 250_000, 3_000_000)
PRIME_AT_ONCE: Final = 24
FLOOD_PRINTS: Final = b"print('x' * 300_000)"
POOL: Final = 4


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """The options of a run; rates are averages per second over the whole run."""

    seconds: float
    interval_s: float
    clients: int
    tasks: int
    rate: float
    client_kills: float
    task_kills: float
    prime: int


class _TooLateError(Exception):
    """The node did not answer in time."""


class SoakRun:
    """One soak of one node."""

    def __init__(self, plan: SoakOptions, node: BenchNode, folder: Path, say: Callable[[str], None]) -> None:
        self.plan: Final = plan
        self.points: Final[list[Point]] = []
        self.disturbances: Final[Counter[str]] = Counter()
        self.trouble_lines: Final[list[str]] = []
        self.table: Final = SharedTable(plan.clients)
        self.troubles: Final = Troubles(folder / "troubles")
        temporary = folder / "tmp"
        self.sampler: Final = Sampler(node.pid, node.data, node.data.parent / "log", temporary)
        self._node: Final = node
        self._say: Final = say
        self._began: Final = time.monotonic()
        self._pids: Final[dict[int, int]] = {}
        self._killed: Final[set[int]] = set()
        self._dead: Final[list[DeadSession]] = []
        self._beats: Final[dict[int, tuple[int, float]]] = {}
        self._session: Final = dios.connect(node.data, groups=(), label="soak")
        self._shared: tuple[tuple[bytes, str], ...] = ()
        self._baseline: dict[str, float] = {}

    @property
    def passed_s(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self._began

    # -- phases -----------------------------------------------------------------------------------
    def prepare(self) -> None:
        """Create the permanent objects, and fill the node's memory of ended tasks."""
        home = self._session.home
        assert home is not None
        data = Data(random.Random(1))  # noqa: S311 - a load, no secret
        shared = []
        for size in SHARED_SIZES:
            content = data.of(size)
            blob = self._session.create(dios.DURABLE_BLOB, groups=[home], data=content)
            assert blob.name is not None
            shared.append((blob.name, hex_digest(content)))
            blob.close()
        self._shared = tuple(shared)
        self._baseline = stored(self._node.data)
        self._prime()
        if not self._wait(lambda: len(descendants(self._node.pid)) == 1 + POOL):
            self.troubles.add("the node", "its process pool was not full before the load began")

    def _prime(self) -> None:
        floods = min(self.plan.prime, CONSOLE_ENDED_BYTES_MAX // CONSOLE_TAIL_BYTES + 1)
        programs = [FLOOD_PRINTS] * floods + [b"pass"] * (self.plan.prime - floods)
        for start in range(0, len(programs), PRIME_AT_ONCE):
            self._say(f"{start} of {len(programs)} short tasks that fill the node's memory of ended tasks")
            self._run_each(programs[start : start + PRIME_AT_ONCE])

    def _run_each(self, programs: list[bytes]) -> None:
        with _answer_timeout():
            tasks = [self._session.run(source) for source in programs]
            for task in tasks:
                task.wait(timeout=ANSWER_S)
                task.close()

    def go(self) -> None:
        """Alternate load and rest until the time is over; ends early with KeyboardInterrupt."""
        phase = 0
        end = time.monotonic() + self.plan.seconds
        self._look()
        while time.monotonic() < end:
            self.table.phase = phase = phase + 2 - phase % 2
            until = min(end, time.monotonic() + self.plan.interval_s)
            self._work(until)
            self.table.phase = phase = phase + 1
            self._rest(phase)

    def finish(self) -> None:
        """Rest once more if the run was ended early, and stop the clients."""
        if not self.table.phase % 2:
            self.table.phase += 1
            self._rest(self.table.phase)
        self.table.phase = STOP
        if not self._wait(lambda: not self._reap_clients(again=False)):
            self.troubles.add("the run", "clients did not stop")
        self.end_clients()
        self._session.close()
        self._collect()

    def end_clients(self) -> None:
        """Kill the remaining clients."""
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in self._pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        self._pids.clear()

    # -- work -------------------------------------------------------------------------------------
    def _work(self, until: float) -> None:
        next_look = time.monotonic()
        while (now := time.monotonic()) < until:
            self._reap_clients(again=True)
            self._check_for_hangs()
            self._disturb()
            self._look()
            next_look = max(next_look + SAMPLE_S, now)
            time.sleep(max(0.0, min(next_look, until) - time.monotonic()))

    def _reap_clients(self, *, again: bool) -> int:
        """Record the clients that have ended and start others; return the number of clients."""
        for pid, number in list(self._pids.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del self._pids[pid]
            self._dead.extend(self.table.rows[number].take_dead())
            if os.WIFSIGNALED(status) and pid not in self._killed:
                self.troubles.add(f"client {number}", f"ended by signal {os.WTERMSIG(status)}")
            self._killed.discard(pid)
        if again:
            missing = set(range(self.plan.clients)) - set(self._pids.values())
            for number in missing:
                self._pids[self._fork(number)] = number
        return len(self._pids)

    def _fork(self, number: int) -> int:
        share, left = divmod(self.plan.tasks, self.plan.clients)
        load = ClientLoad(self._node.data, self._shared, share + (number < left), self.plan.rate)
        self._beats.pop(number, None)
        return fork_client(number, self.table.rows[number], self.troubles, lambda: self.table.phase, load)

    def _check_for_hangs(self) -> None:
        now = time.monotonic()
        for pid, number in self._pids.items():
            row = self.table.rows[number]
            beat, since = self._beats.get(number, (-1, now))
            if row.beat != beat:
                self._beats[number] = (row.beat, now)
            elif now - since > HANG_S and not self.table.phase % 2:
                self.troubles.add(f"client {number}", f"has hung for {HANG_S:.0f} s in {row.doing!r}")
                self._kill(pid)
                self._beats.pop(number)

    def _kill(self, pid: int) -> None:
        self._killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def _disturb(self) -> None:
        """Kill a client, the process of a task, or a task by a call, at random."""
        if self._pids and _randomly(self.plan.client_kills):
            self._kill(random.choice(list(self._pids)))  # noqa: S311 - a load
            self.disturbances["clients killed"] += 1
        kills = sum(_randomly(self.plan.task_kills / 4) for _ in range(4))
        if not kills:
            return
        running = [row for row in self._tasks() if not row.ended and row.pid]
        for row in random.sample(running, min(kills, len(running))):
            if random.random() < 0.5:  # noqa: S311 - a load
                self.disturbances["tasks killed by SIGKILL"] += self._kill_process(row.pid)
            else:
                self.disturbances["tasks killed by the call"] += self._kill_task(row)

    def _tasks(self) -> list[dios.Status]:
        with _answer_timeout():
            return self._session.tasks()

    def _kill_process(self, pid: int) -> bool:
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return False
        try:
            # With the pidfd open, its number cannot be reused by another process.
            if pid not in descendants(self._node.pid):
                return False
            signal.pidfd_send_signal(process, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(process)
        return True

    def _kill_task(self, row: dios.Status) -> bool:
        if row.name is None:
            return False
        with _answer_timeout():
            task = self._session.find(row.name)
            if task is None:
                return False
            assert isinstance(task, dios.Task)
            with contextlib.closing(task):
                task.kill()
        return True

    # -- samples ------------------------------------------------------------------------------------
    def _look(self, **more: float) -> Point:
        values = self.sampler.sample()
        with _answer_timeout():
            values |= {f"node: {name}": count for name, count in self._session.info().counts.items()}
        values["operations"] = sum(self.table.done().values())
        values["held durable bytes"] = sum(row.durable_bytes for row in self.table.rows) / 1e6
        point = Point(self.passed_s, quiet=False, values=values | more)
        self.points.append(point)
        self._collect()
        self._say(self._line(point))
        return point

    def _line(self, point: Point) -> str:
        v = point.values
        left = max(0.0, self.plan.seconds - self.passed_s)
        return (
            f"{'rest' if self.table.phase % 2 else 'load'}, about {left / 60:.1f} min left: "
            f"{v['operations']:.0f} operations, {v['node: tasks']:.0f} tasks, "
            f"{sum(self.disturbances.values())} kills, {v['processors at work']:.0f} % busy, "
            f"daemon {v['daemon own memory']:.1f} MB, "
            f"{v['daemon descriptors']:.0f} descriptors, {len(self.trouble_lines)} problems"
        )

    def _collect(self) -> None:
        self.report([*self.troubles.new(), *(f"node's log: {line}" for line in self.sampler.log_errors)])
        self.sampler.log_errors.clear()

    def report(self, troubles: list[str]) -> None:
        """Record and show problems."""
        self.trouble_lines.extend(troubles)
        for line in troubles:
            self._say(f"! {line}\n")

    # -- rest -------------------------------------------------------------------------------------
    def _rest(self, phase: int) -> None:
        """Wait until all temporary objects and tasks are gone, then take samples."""
        if not self._wait(lambda: self._all_rest(phase), REST_S):
            for pid, number in self._pids.items():
                row = self.table.rows[number]
                if row.rests != phase:
                    self.troubles.add(f"client {number}", f"does not reach the rest phase, in {row.doing!r}")
                    self._kill(pid)
            self._wait(lambda: self._all_rest(phase))
        self._clear_after_the_dead()
        # The node removes a control group with a dying process when it removes the next group.
        self._run_each([b"pass"])
        problem = ""

        def settled() -> bool:
            nonlocal problem
            problem = self._differences()
            return not problem

        if not self._wait(settled):
            self.troubles.add("a quiet point", f"{self.passed_s:.0f} s: {problem}")
        self._quiet_look()

    def _all_rest(self, phase: int) -> bool:
        self._reap_clients(again=True)
        self._say(f"rest: waiting for {sum(row.rests != phase for row in self.table.rows)} clients")
        return all(row.rests == phase for row in self.table.rows)

    def _clear_after_the_dead(self) -> None:
        """Delete what killed clients left: running tasks, and durable objects, whose names are known."""
        for row in self._tasks():
            if not row.ended:
                self._kill_task(row)
        dead = list(self._dead)
        self._dead.clear()
        for session in dead:
            for number in range(session.created + 1):
                with _answer_timeout():
                    self._destroy(deterministic_name(Name(session.name), number))

    def _destroy(self, name: Name) -> None:
        reference = self._session.find(name)
        if reference is None:
            return
        self.disturbances["objects of killed clients"] += 1
        if reference.type is not dios.GROUP:
            reference.destroy()
            return
        # Only a member can destroy a group, and a session becomes a member by connecting with its name.
        with contextlib.closing(reference), dios.connect(self._node.data, groups=(name,)) as member:
            for group in member.groups:
                if group.object_id == reference.object_id:
                    group.destroy()

    def _differences(self) -> str:
        """Return the differences from the state before the load; empty if there are none."""
        with _answer_timeout():
            counts = self._session.info().counts
        rows = stored(self._node.data)
        files, _ = extents(self._node.data)
        wanted = {
            "tasks": (counts["tasks"], 0),
            "sessions": (counts["sessions"], 1),
            "waiting calls": (counts["waiting"], 0),
            "buffers": (counts["buffers"], 0),
            "processes below the daemon": (len(descendants(self._node.pid)), 1 + POOL),
            "stored objects": (rows["rows"], self._baseline["rows"]),
            "extents of rows": (rows["extents of rows"], self._baseline["extents of rows"]),
            "extent files": (files, rows["extents of rows"]),
        }
        return ", ".join(
            f"{is_} {kind} instead of {due}" for kind, (is_, due) in wanted.items() if is_ != due
        )

    def _quiet_look(self) -> None:
        """Take several samples and store their lowest values, because garbage is removed after a while."""
        rows = stored(self._node.data)
        looks = []
        for _ in range(QUIET_LOOKS):
            looks.append(self._look(**rows))
            time.sleep(SAMPLE_S / 2)
        lowest = {name: min(look.values[name] for look in looks) for name in looks[-1].values}
        grown = {"operations", "processors at work", "audit bytes", "audit records", "log bytes"}
        lowest |= {name: looks[-1].values[name] for name in grown}
        self.points.append(Point(self.passed_s, quiet=True, values=lowest))

    def _wait(self, condition: Callable[[], bool], seconds: float = SETTLE_S) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            select.select([], [], [], 0.1)
        return True


def _randomly(rate: float) -> bool:
    return random.random() < rate * SAMPLE_S  # noqa: S311 - a load


@contextlib.contextmanager
def _answer_timeout() -> Iterator[None]:
    """Raise an error if the node does not answer in time."""

    def too_late(number: int, frame: object) -> None:
        del number, frame
        raise _TooLateError(f"the node did not answer within {ANSWER_S} s")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.setitimer(signal.ITIMER_REAL, ANSWER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
