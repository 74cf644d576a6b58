"""Outside the task: a node with a cage to break out of, neighbours, and witnesses; for the escape suite.

Not for: the attempts (``escape_files`` and its neighbours, which run inside the task).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import dios
from dios.client.ops.nodes import HandedOver
from dios.wire.types import ObjectType
from examples.evil_traps import Traps
from tests.support.node.confinement import NOBODY, mechanisms_or_skip
from tests.support.node.raw_client import RawClient, create, read
from tests.support.node.running_node import RunningNode, running_node

SUPPORT: Final = Path(__file__).parents[1] / "programs"
SECRET: Final = b"what no task may read"
WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt: what it claims, and what may answer it.

    ``answers`` are words of ``escape_tools.outcome``, or the name of the signal that ended the task.
    ``plainly`` is what an ordinary program gets: ``did`` shows that the attempt is real, None that it is not
    made outside, because it would need or change too much. ``is_greed`` means that it wants all of something.
    """

    name: str
    claim: str
    answers: tuple[str, ...]
    plainly: str | None = None
    is_greed: bool = False

    def __str__(self) -> str:
        return self.name


def row(name: str, answers: str, claim: str, plainly: str | None = None) -> Attempt:
    """A row of a table of attempts; ``answers`` are words."""
    return Attempt(name, claim, tuple(answers.split()), plainly)


def name_of(attempt: Attempt) -> str:
    """How pytest calls it."""
    return attempt.name


class Witness:
    """Things outside that an attempt may not change: files, listeners, another process of the same user."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.traps = stack.enter_context(Traps(folder, SECRET))
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}
        # The user that tasks have: nothing but the sandbox keeps them from it.
        self.victim: subprocess.Popen[bytes] = stack.enter_context(
            subprocess.Popen(["sleep", "1000"], **user)  # type: ignore[call-overload] # one table, three keywords
        )
        stack.callback(self.victim.kill)
        self._before = self._files()

    def _files(self) -> list[tuple[int, int, int, int]]:
        paths = (self.traps.secret_file, Path(os.__file__), Path(os.__file__).parent, Path("/etc/passwd"))
        stats = [path.stat() for path in paths]
        return [(status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode) for status in stats]

    def unharmed(self) -> None:
        """Fail if anything was touched since the start."""
        assert self._files() == self._before, "a file was changed"
        assert self.traps.caught() == [], "something got out"
        assert self.victim.poll() is None, "the other process was ended"
        assert self.traps.secret_file.read_bytes() == SECRET


class Neighbour:
    """Somebody else's session, whose calls must be answered whatever happens in the cage."""

    def __init__(self, node: RunningNode) -> None:
        self.client = RawClient(node.running.socket)
        self.ref = create(self.client, ObjectType.SHMEM_BLOB, b"neighbour").reference.ref

    def is_answered(self) -> None:
        """Make a call; it must be answered in time, with what is there."""
        assert read(self.client, self.ref) == b"neighbour"


class Cage:
    """A running node, a session that starts hostile tasks on it, a neighbour and the witnesses."""

    def __init__(
        self, folder: Path, module: str, stack: ExitStack, template: str = "", **settings: str
    ) -> None:
        self.module = module
        self.template = template
        self.running = stack.enter_context(
            running_node(folder / "data", **{"accept_weaker_sandbox": "no", **settings})
        )
        place = folder / "witness"
        place.mkdir()
        self.witness = Witness(place, stack)
        self.node = stack.enter_context(dios.connect(self.running.place))
        self.neighbour = Neighbour(self.running)
        stack.callback(self.neighbour.client.close)
        sources = {name: SUPPORT / f"{name}.py" for name in ("escape_tools", module)}
        main = f"import escape_tools, {module}\nescape_tools.run({module!r})\n"
        self.program = self.node.create_program(main.encode(), modules=sources)

    @property
    def loot(self) -> str:
        """What hostile programs know."""
        outside = {
            "store": str(self.running.data),
            "victim": self.witness.victim.pid,
            "node": self.running.running.pid,
        }
        return json.dumps({**self.witness.traps.loot, **outside})

    def run(
        self, *names: str, limits: dios.Limits | None = None, inputs: HandedOver = ()
    ) -> tuple[list[str], dios.Status]:
        """Run attempts in one pure task: its answers, and how it ended."""
        arguments = (self.loot, *names)
        with self.node.run(
            self.program, args=arguments, limits=limits, inputs=inputs, template=self.template
        ) as task:
            try:
                status = task.wait(timeout=WAIT_S)
            except TimeoutError:
                task.kill()
                raise
            with task.console() as console:
                return b"".join(console).decode(errors="replace").splitlines(), status

    def refuses(self, attempt: Attempt) -> None:
        """Make an attempt in a pure task; it must be answered as it says, and nobody else be touched."""
        said, status = self.run(attempt.name)
        ended = signal.Signals(status.signal).name if status.signal else ""
        told = f"{attempt.claim}: {said} {status}"
        if ended:
            assert ended in attempt.answers, told
            assert not said, told
            assert status.cause is dios.Cause.SANDBOX, told
            assert "the sandbox ended it" in status.detail, told
        else:
            assert len(said) == 1, told
            assert said[0] in attempt.answers, told
            assert status.ok, told
        self.neighbour.is_answered()
        self.witness.unharmed()

    def plainly(self, attempts: tuple[Attempt, ...]) -> dict[str, str]:
        """What an ordinary program gets for the attempts that may be made outside; attempt by attempt."""
        names = [attempt.name for attempt in attempts if attempt.plainly]
        main = f"import escape_tools, {self.module}; escape_tools.apart({self.module!r})"
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{SUPPORT}:{SUPPORT.parents[2]}"}
        done = subprocess.run(
            [sys.executable, "-c", main, self.loot, *names],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=True,
            env=environment,
            cwd="/",
        )
        said = done.stdout.splitlines()
        assert len(said) == len(names), (said, names, done.stderr)
        return dict(zip(names, said, strict=True))


def check_plainly(cage: Cage, attempts: tuple[Attempt, ...]) -> None:
    """Each attempt that may be made outside gets there what its row says: the sandbox is what stops it."""
    answers = cage.plainly(attempts)
    cage.witness.traps.caught()
    wrong = {
        attempt.name: answers[attempt.name]
        for attempt in attempts
        if attempt.plainly and answers[attempt.name].partition(":")[0] not in attempt.plainly.split("|")
    }
    assert not wrong, wrong


@contextmanager
def open_cage(folder: Path, module: str, *, template: str = "", **settings: str) -> Iterator[Cage]:
    """A cage for the programs in ``module``, gone at the end with all that it started.

    Hostile tasks start from ``template``, if there is one.

    Skips where the machine cannot hold a pure task.
    """
    mechanisms_or_skip()
    with ExitStack() as stack:
        yield Cage(folder, module, stack, template, **settings)
