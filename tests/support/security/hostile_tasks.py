"""A node with an innocent user, a partner at the other end of a hostile task's streams, and what must hold.

The hostile program is ``hostile_hands``, inside a pure task with real memory and real descriptors. A seed
decides a play, but the processor decides how its threads interleave: a finding may need several repetitions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from hostile_hands import ACTS

import dios
from dios.client.sync.node import Node, Stream
from dios.errors import DiosError
from dios.host.audit.reader import verify
from tests.fuzz.neighbour import Neighbour
from tests.fuzz.watch import Figures, LogReader, figures, settled
from tests.support.node.confinement import mechanisms_or_skip
from tests.support.node.running_node import RunningNode, exists, running_node, wait_until

HERE: Final = Path(__file__).parents[1] / "programs"
PROGRAM: Final = b"""import sys, hostile_hands
hostile_hands.main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
"""
PLAYS: Final = tuple(ACTS)
MOMENT_S: Final = 0.02
ENDED_S: Final = 20.0
PLAY_S: Final = 3.0
"""A task that lives longer is killed, as a user would do it."""

SECRET: Final = b"kept" * 30_000
DESCRIPTORS_SLACK: Final = 4
"""Descriptors of the daemon that may come and go with its sessions and the pool."""


class Played(NamedTuple):
    """The ends of the hostile tasks, and the work of the others meanwhile."""

    ends: tuple[str, ...]
    neighbour_calls: int
    partner_turns: int


class Partner(threading.Thread):
    """An innocent program at the other end of both streams of a hostile task."""

    def __init__(self, to: Stream, back: Stream) -> None:
        super().__init__(daemon=True)
        self._to: Final = to
        self._back: Final = back
        self.stop: Final = threading.Event()
        self.turns = 0
        self.problem: BaseException | None = None

    def run(self) -> None:
        """Send and receive with time limits; every wait must come back, with bytes or an error of DIOS."""
        try:
            while not self.stop.is_set():
                with suppress(DiosError):
                    self._to.send(b"m" * (1 + self.turns % 5_000), MOMENT_S)
                with suppress(DiosError):
                    self._back.receive(MOMENT_S)
                self.turns += 1
                time.sleep(0.001)
        except BaseException as error:  # noqa: BLE001 - whatever else it is, it is the finding
            self.problem = error


class Attack:
    """One hostile task, its partner, and an object that it may only read."""

    def __init__(
        self, node: Node, program: dios.Reference, play: str, seed: int, steps: int, stack: ExitStack
    ) -> None:
        to = stack.enter_context(node.create_stream())
        back = stack.enter_context(node.create_stream())
        self._secret: Final = node.create(dios.SHMEM_BLOB, data=SECRET)
        self.task: Final = node.run(
            program,
            inputs={"orders": to.restrict("read"), "secret": self._secret.restrict("read")},
            outputs={"answers": back.restrict("write")},
            args=[play, str(seed), str(steps)],
            limits=dios.Limits(memory_bytes=256 * 2**20, processes=64),
            label=f"{play}-{seed}",
        )
        self.partner: Final = Partner(to, back)
        self.partner.start()

    @property
    def runs(self) -> bool:
        """Return True until the task has ended."""
        return self.task.status().cause is dios.Cause.NONE

    def ended(self) -> str:
        """Wait for the task's end and check what it could have harmed; return its cause."""
        status = self.task.wait(timeout=ENDED_S)
        partner = self.partner
        partner.stop.set()
        partner.join(ENDED_S)
        assert not partner.is_alive(), "the partner waits in a call that has a time limit"
        assert partner.problem is None, f"the partner failed: {partner.problem!r}"
        assert bytes(self._secret.read_bytes()) == SECRET, "an object that could only be read has changed"
        self._secret.destroy()
        self.task.close()
        return status.cause.name


class Stage:
    """The node, its innocent user, and its director, who starts hostile tasks."""

    def __init__(self, running: RunningNode) -> None:
        self.running: Final = running
        self.neighbour: Final = Neighbour(running.running.socket)
        self.director: Final = dios.connect(running.place, groups=())
        self._program: Final = self.director.create_program(
            PROGRAM, modules={"hostile_hands": HERE / "hostile_hands.py"}
        )
        self._log: Final = LogReader(running.data / "node.log")
        self.neighbour.run()
        assert self.neighbour.runs_possible
        self._before: Final[Figures] = settled(running, 2**31)

    def play(self, name: str, seed: int, steps: int, *, tasks: int = 1) -> Played:
        """Run hostile tasks to their ends, several at once; AssertionError if anybody else is harmed."""
        calls = self.neighbour.calls
        with ExitStack() as stack:
            attacks = [
                Attack(self.director, self._program, name, seed + number, steps, stack)
                for number in range(tasks)
            ]
            deadline = time.monotonic() + PLAY_S
            while any(attack.runs for attack in attacks):
                self.neighbour.turn()
                if time.monotonic() > deadline:
                    for attack in attacks:
                        attack.task.kill()
                    break
            self.neighbour.turn()
            ends = tuple(attack.ended() for attack in attacks)
        self.neighbour.run()
        self._is_as_before()
        return Played(ends, self.neighbour.calls - calls, sum(attack.partner.turns for attack in attacks))

    def _is_as_before(self) -> None:
        assert exists(self.running.running.pid), "the daemon has ended"
        bad = self._log.bad_lines()
        assert not bad, "\n".join(bad)
        before = self._before
        try:
            wait_until(lambda: _grown(before, figures(self.running)) is None, "the node is what it was")
        except AssertionError as error:
            error.add_note(f"{before} became {figures(self.running)}")
            raise

    def stops(self, *, lingering: int = 0, seed: int = 0) -> None:
        """Stop the node as a service manager does, while hostile tasks run; nothing of it may be left."""
        with ExitStack() as stack:
            attacks = [
                Attack(self.director, self._program, "all", seed + number, 10**6, stack)
                for number in range(lingering)
            ]
            for _ in range(5):
                self.neighbour.turn()
            below = self.running.descendants()
            self.running.stop()
            for attack in attacks:
                attack.partner.stop.set()
                attack.partner.join(ENDED_S)
                assert not attack.partner.is_alive(), "the partner waits for a node that has ended"
            with suppress(DiosError):
                stack.close()
        wait_until(lambda: not any(exists(pid) for pid in below), "its processes are gone")
        left = groups_of(self.running.running.pid)
        assert not left, f"control groups are left: {left}"
        bad = self._log.bad_lines()
        assert not bad, "\n".join(bad)
        verdict = verify(self.running.data / "audit")
        assert verdict.ok, verdict.problem

    def close(self) -> None:
        """Leave."""
        self.neighbour.close()
        with suppress(DiosError):
            self.director.close()


def _grown(before: Figures, now: Figures) -> str | None:
    """Return the name of a figure that has grown, or None."""
    if now.descriptors > before.descriptors + DESCRIPTORS_SLACK:
        return "descriptors"
    return "processes" if now.children > before.children else None


def groups_of(pid: int) -> list[Path]:
    """Return the control groups that a daemon has made."""
    return [path for path in Path("/sys/fs/cgroup").rglob(f"dios-{pid}*") if path.is_dir()]


@contextmanager
def open_stage(folder: Path) -> Iterator[Stage]:
    """A node that confines its tasks, for the length of a context; the test is skipped where none can."""
    mechanisms_or_skip()
    with running_node(folder / "data", accept_weaker_sandbox="no", pool_size="1") as running:
        stage = Stage(running)
        try:
            yield stage
        finally:
            stage.close()
