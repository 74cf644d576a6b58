"""A campaign: one node, rounds of attackers, and checks after each round.

A failed check is a ``Finding``: it is stored with the frames of the last rounds, and with the seed that
repeats the campaign. The command line is in ``run``.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final, Self

from dios.client.program import Program, encode_program
from dios.host.audit.reader import verify
from dios.wire.types import Cause
from tests.fuzz.attack import STRANGER_UID, Attacker, Gang, Told, acting
from tests.fuzz.neighbour import Janitor, Neighbour
from tests.fuzz.story import Story
from tests.fuzz.watch import Figures, LogReader, figures, settled
from tests.support.node.running_node import RunningNode, exists, running_node

HERE: Final = Path(__file__).parent
SHIPPED: Final = ("known", "frames", "bending")
"""The modules that a hostile task takes with it."""

GANG: Final = 12
BURST: Final = 30
BURSTS_PER_ROUND: Final = 10
TASK_FRAMES: Final = 400
TASKS_MAX: Final = 8
WARM_ROUNDS: Final = 10
DYING_S: Final = 3.0

MEMORY_SLACK_KIB: Final = 48 * 1024
MEMORY_PER_OBJECT_KIB: Final = 16
"""The allowed memory of an object that attackers left behind; unreachable objects remain, too."""

DESCRIPTORS_SLACK: Final = 80
THREADS_SLACK: Final = 8


class Finding(Exception):  # noqa: N818 - it is what a fuzzer looks for
    """A check has failed."""


@dataclass
class Result:
    """The counts of a campaign."""

    seed: int
    foreign: bool
    frames: int = 0
    task_frames: int = 0
    connections: int = 0
    rounds: int = 0
    neighbour_calls: int = 0
    neighbour_runs: int = 0
    hostile_tasks: int = 0
    audit_records: int = 0
    objects_before: int = 0
    objects_after: int = 0
    seconds: float = 0.0
    before: Figures = field(default_factory=lambda: Figures(0, 0, 0, 0, 0))
    after: Figures = field(default_factory=lambda: Figures(0, 0, 0, 0, 0))


class Campaign:
    """Attackers on one node; with ``foreign`` they run as another user of the machine."""

    def __init__(
        self, node: RunningNode, path: Path, seed: int, *, foreign: bool, bursts: int = BURSTS_PER_ROUND
    ) -> None:
        self.result: Final = Result(seed, foreign)
        self.story: Final = Story()
        self._node: Final = node
        self._path: Final = path
        self._rng: Final = Random(seed)  # noqa: S311 - repeatable dice, nothing secret
        self._foreign: Final = foreign
        self._bursts: Final = bursts
        self._log: Final = LogReader(node.data / "node.log")
        self._neighbour: Final = Neighbour(path)
        with acting(foreign=foreign):
            self._janitor: Final = Janitor(path)
        names = self._neighbour.names if foreign else []
        self._told: Final = Told(self._neighbour.refs, names)
        self._count = 0
        self._quiet = Figures(0, 0, 0, 0, 0)
        brought = {f"tests.fuzz.{name}": (HERE / f"{name}.py").read_text() for name in SHIPPED}
        self._program: Final = encode_program(Program((HERE / "hostile_task.py").read_text(), brought))

    def run(self, frames: int, progress: Callable[[Result], None] = lambda _: None) -> Result:
        """Send at least this number of frames; raise Finding if a check fails."""
        began = time.monotonic()
        result = self.result
        while result.frames < frames:
            self.story.next_round()
            try:
                self._round()
            except Finding:
                raise
            except Exception as error:
                told = "".join(f"\n{lines}" for lines in self._last_words())
                raise Finding(f"round {result.rounds}: {type(error).__name__}: {error}{told}") from error
            result.rounds += 1
            result.seconds = time.monotonic() - began
            if result.rounds == WARM_ROUNDS:
                result.before = self._quiet = settled(self._node, 2**31)
                result.objects_before = self._neighbour.objects()
            progress(result)
        result.after = settled(self._node, self._quiet.descriptors)
        result.objects_after = self._neighbour.objects()
        self._flat(result.before, result.after)
        self._audit()
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._janitor.close()
        self._neighbour.close()

    # -- one round ----------------------------------------------------------------------------------
    def _round(self) -> None:
        result = self.result
        created: list[bytes] = []
        task = self._hostile_task() if result.rounds % 5 == 0 else 0
        with Gang(self._attacker, GANG) as gang:
            for number in range(self._bursts):
                sent, opened, names = gang.burst(BURST)
                result.frames += sent
                result.connections += opened
                created += names
                if number % 4 == 1:
                    # While all of them are connected, with calls waiting.
                    self._neighbour.turn()
        if task:
            self._task_ended(task)
        if result.rounds % 10 == 0:
            self._neighbour.run()
        self._neighbour.turn()
        self._janitor.sweep(created)
        result.neighbour_calls = self._neighbour.calls
        result.neighbour_runs = self._neighbour.runs
        if not exists(self._node.running.pid):
            raise Finding("the daemon has ended")
        if bad := self._log.bad_lines():
            raise Finding("its log says:\n" + "\n".join(bad))
        if result.rounds % 50 == 0:
            self._audit()

    def _last_words(self) -> list[str]:
        """Return the log lines after a failure; a daemon that dies of it needs a moment."""
        deadline = time.monotonic() + DYING_S
        said: list[str] = []
        while time.monotonic() < deadline and exists(self._node.running.pid):
            time.sleep(0.05)
            said += self._log.bad_lines()
        return said + self._log.bad_lines()

    def _attacker(self) -> Attacker:
        self._count += 1
        dice = Random(self._rng.getrandbits(64))  # noqa: S311 - the same
        return Attacker(self._count, dice, self._path, self._told, self.story, foreign=self._foreign)

    def _hostile_task(self) -> int:
        if not self._neighbour.runs_possible:
            return 0
        seed = str(self._rng.getrandbits(32))
        return self._neighbour.start(self._program, seed, str(TASK_FRAMES))

    def _task_ended(self, ref: int) -> None:
        row = self._neighbour.outcome(ref)
        if row.cause not in {Cause.EXITED, Cause.PROTOCOL, Cause.KILLED}:
            raise Finding(f"a hostile task ended unexpectedly: {row.cause}: {row.detail}")
        self.result.hostile_tasks += 1
        self.result.task_frames += TASK_FRAMES
        self.result.frames += TASK_FRAMES

    # -- checks -------------------------------------------------------------------------------------
    def _flat(self, before: Figures, after: Figures) -> None:
        if not before.memory_kib:
            return  # the campaign is too short for a warm-up
        left = max(0, self.result.objects_after - self.result.objects_before)
        grown = [
            name
            for name, slack in (
                ("memory_kib", MEMORY_SLACK_KIB + left * MEMORY_PER_OBJECT_KIB),
                ("descriptors", DESCRIPTORS_SLACK),
                ("threads", THREADS_SLACK),
                ("children", TASKS_MAX),
            )
            if getattr(after, name) > getattr(before, name) + slack
        ]
        if grown:
            raise Finding(f"{', '.join(grown)} grew: {before} to {after}")

    def _audit(self) -> None:
        verdict = verify(self._node.data / "audit")
        if not verdict.ok:
            raise Finding(f"the audit log does not verify: {verdict.problem}")
        self.result.audit_records = verdict.records

    def figures(self) -> Figures:
        """Return the current figures of the daemon."""
        return figures(self._node)


def can_be_another() -> bool:
    """Return True if this process may act as another user of the machine."""
    try:
        with acting(foreign=True):
            return True
    except PermissionError:
        return False


@contextlib.contextmanager
def fuzzed_node(
    *, foreign: bool, record: Path | None = None, limits: str = ""
) -> Iterator[tuple[RunningNode, Path]]:
    """Start a node, with a socket that attackers of another user can reach, for the length of a context.

    ``limits`` are those of each principal; without them, attackers can keep all objects that they create.
    """
    folder = Path(tempfile.mkdtemp(prefix="dios-fuzz-"))
    folder.chmod(0o711)
    path = folder / "open.sock"
    flags = {"socket": str(path), "pool_size": "1", "tasks_max": str(TASKS_MAX)}
    if foreign:
        flags["allowed_uids"] = str(STRANGER_UID)
    if limits:
        flags["principal_limits"] = limits
    if record is not None:
        flags["record"] = str(record)
    try:
        with running_node(folder / "data", **flags) as node:
            yield node, path
    finally:
        shutil.rmtree(folder)
