"""The plays: what a user does on a starved machine, and the process that is stopped meanwhile.

Everything has to work, however late. After the load has ended, nothing may be broken any more.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests.starved.starvation import Stop, busy_loops, find

COMMAND_S_MAX: Final = 900.0
"""A command that takes longer counts as one that never ends."""
_RECOVERY_S_MAX: Final = 120.0
_PROBE: Final = ("confinement.mechanisms import main",)
_ZYGOTE: Final = ("zygote_start",)
_DAEMON: Final = ("dios.node.daemon",)
_TASKS: Final = 200


class WrongError(Exception):
    """Something did not work, or stayed broken."""


class Outcome(NamedTuple):
    """The end of a command."""

    status: int
    output: str
    seconds: float


class Stage:
    """A home directory with commands, and what was typed there."""

    def __init__(self, home: Path, stop_s: float) -> None:
        self.home: Final = home
        self.stop_s: Final = stop_s
        self.notes: Final[list[str]] = []
        self.environment: Final = {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": str(home / "run"),
            "TMPDIR": str(home / "tmp"),  # private nodes have their directories there
            "COLUMNS": "120",
        }
        (home / "run").mkdir(mode=0o700)
        (home / "tmp").mkdir()
        (home / "x.py").write_text("print('ran')\n")

    def types(self, *words: object) -> Outcome:
        """Run a command to its end, and note how long that took."""
        began = time.monotonic()
        command = [str(word) for word in words]
        try:
            done = subprocess.run(
                command,
                cwd=self.home,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=COMMAND_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise WrongError(f"{' '.join(command)}: no end in {COMMAND_S_MAX:.0f} s") from error
        outcome = Outcome(done.returncode, done.stdout, time.monotonic() - began)
        self.notes.append(f"{' '.join(command)}: {outcome.seconds:.0f} s")
        return outcome

    def works(self, *words: object) -> str:
        """Run a command that has to succeed; return its output."""
        outcome = self.types(*words)
        if outcome.status:
            raise WrongError(f"{' '.join(map(str, words))}: status {outcome.status}: {outcome.output[-600:]}")
        return outcome.output

    def stopped(self, words: tuple[str, ...], place: str = "") -> Stop:
        """Stop the first process with these words for some time; ``place`` is a folder of this stage."""
        return Stop(words, self.home / place if place else self.home, self.stop_s)

    def stopped_process(self, pid: int) -> Stop:
        """Stop this process for some time."""
        return Stop((), self.home, self.stop_s, pid)

    def recovers(self, *words: object, shows: str = "") -> None:
        """Require that a command succeeds soon, now that the load has ended."""
        until = time.monotonic() + _RECOVERY_S_MAX
        while True:
            outcome = self.types(*words)
            if not outcome.status and re.search(shows, outcome.output):
                return
            if time.monotonic() > until:
                raise WrongError(f"{' '.join(map(str, words))} stays broken: {outcome.output[-600:]}")
            time.sleep(1)

    def all_are_well(self, number: int) -> None:
        """Require that all nodes of the cluster are soon alive and fit."""
        until = time.monotonic() + _RECOVERY_S_MAX
        while True:
            outcome = self.types("dios", "node", "ls", "--json")
            rows = [] if outcome.status else json.loads(outcome.output)
            if [(row["status"], row["fitness"]) for row in rows] == [("alive", "fit")] * number:
                return
            if time.monotonic() > until:
                raise WrongError(f"the nodes stay broken: {outcome.output[-600:]}")
            time.sleep(1)


class Play(NamedTuple):
    """One play: what happens under load, and what has to hold afterwards."""

    name: str
    under_load: Callable[[Stage], None]
    afterwards: Callable[[Stage], None]


def _runs(stage: Stage) -> None:
    stage.recovers("dios", "run", "x.py", shows="ran")


def _require_stopped(stop: Stop) -> None:
    if not stop.pid:
        raise WrongError("no process was stopped: the play shows nothing")


def _start(words: tuple[str, ...]) -> Callable[[Stage], None]:
    def play(stage: Stage) -> None:
        with stage.stopped(words) as stop:
            stage.works("dios-node", "start", "--data", stage.home / "n", "--detach")
        _require_stopped(stop)
        stage.works("dios", "run", "x.py")

    return play


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def _join(stage: Stage) -> None:
    address, other = _free_address(), _free_address()
    stage.works("dios-node", "init", "--data", stage.home / "a", "--name", "a", "--listen", address)
    stage.works("dios-node", "start", "--data", stage.home / "a", "--detach")
    invitation = json.loads(stage.works("dios-node", "invite", "--data", stage.home / "a", "--json"))
    (stage.home / "invitation").write_text(invitation["token"])
    (stage.home / "invitation").chmod(0o600)
    with stage.stopped((*_DAEMON, f"{stage.home}/a"), "a") as stop:
        stage.works(
            *("dios-node", "start", "--data", stage.home / "b", "--name", "b", "--detach"),
            *("--listen", other, "--join", address),
            *("--invitation-file", stage.home / "invitation"),
        )
    _require_stopped(stop)


def _promotion(stage: Stage) -> None:
    stage.works("dios", "up", "--nodes", "3", "--dir", stage.home / "cluster")
    stage.works("dios", "run", "x.py", "--cpus", "0.5")
    rows = json.loads(stage.works("dios", "ps", "--all", "--json"))
    coordinators = {row["node"]: row["pid"] for row in rows if row["label"] == "coordinator"}
    if len(coordinators) < 2:
        raise WrongError(f"not two coordinators run: {coordinators}")
    leader, successor, *_ = (coordinators[name] for name in sorted(coordinators))
    os.kill(leader, signal.SIGKILL)
    with stage.stopped_process(successor):
        stage.works("dios", "run", "x.py", "--cpus", "0.5")


def _first_run(stage: Stage) -> None:
    stage.works("dios-node", "start", "--data", stage.home / "n", "--pool-size", "0", "--detach")
    with stage.stopped(_ZYGOTE) as stop:
        stage.works("dios", "run", "x.py")
    _require_stopped(stop)


_EXECUTOR: Final = """
import dios
with dios.Executor() as executor:
    print("sum", sum(executor.map(abs, range(-20, 0))))
"""


def _executor(words: tuple[str, ...]) -> Callable[[Stage], None]:
    def play(stage: Stage) -> None:
        (stage.home / "calls.py").write_text(_EXECUTOR)
        with stage.stopped(words) as stop:
            output = stage.works("python", "calls.py")
        _require_stopped(stop)
        if "sum 210" not in output:
            raise WrongError(output)

    return play


def _sandbox(stage: Stage) -> None:
    (stage.home / "cell.py").write_text("print(6 * 7)\n")
    stage.works("dios-node", "start", "--data", stage.home / "n", "--pool-size", "0", "--detach")
    with stage.stopped(_ZYGOTE) as stop:
        output = stage.works("dios", "sandbox", "run", "cell.py")
    _require_stopped(stop)
    if "42" not in output:
        raise WrongError(output)


def _restart(words: tuple[str, ...]) -> Callable[[Stage], None]:
    def play(stage: Stage) -> None:
        stage.works("dios-node", "start", "--data", stage.home / "n", "--detach")
        stage.works("dios", "group", "create", "g")
        stage.works("dios", "put", "x.py", "--group", "g")
        with stage.stopped(words) as stop:
            stage.works("dios-node", "restart", "--within", "10min")
        _require_stopped(stop)
        stage.works("dios", "get", "x.py", "--output", "fetched.py")

    return play


def _up(stage: Stage) -> None:
    with stage.stopped((*_DAEMON, "/n2")) as stop:
        stage.works("dios", "up", "--nodes", "3", "--dir", stage.home / "cluster")
    _require_stopped(stop)


def _down(stage: Stage) -> None:
    stage.works("dios", "up", "--nodes", "3", "--dir", stage.home / "cluster")
    with stage.stopped((*_DAEMON, "/n2")) as stop:
        stage.works("dios", "down", "--dir", stage.home / "cluster")
    _require_stopped(stop)


def _nothing_runs(stage: Stage) -> None:
    if find(_DAEMON, stage.home) is not None:
        raise WrongError("a node runs after `dios down`")


_MANY: Final = f"""
import dios, sys
with dios.connect() as node:
    tasks = [node.run("x.py") for _ in range({_TASKS})]
    codes = [task.wait().exit_code for task in tasks]
    print("succeeded", codes.count(0))
"""


def _cluster(stage: Stage) -> None:
    """A cluster that is started under load runs many tasks, a service and a kept job."""
    stage.works("dios", "up", "--nodes", "3", "--dir", stage.home / "cluster")
    (stage.home / "many.py").write_text(_MANY)
    output = stage.works("python", "many.py")
    if f"succeeded {_TASKS}" not in output:
        raise WrongError(output[-600:])
    (stage.home / "web.py").write_text("import time\nprint('up', flush=True)\ntime.sleep(1e6)\n")
    stage.works("dios", "service", "create", "web.py", "--replicas", "3", "--cpus", "0.1")
    output = stage.works("dios", "run", "--keep", "x.py")
    if "ran" not in output:
        raise WrongError(output[-600:])
    stage.recovers("dios", "service", "ls", shows=r"3/3|3 of 3|\b3\b.*\b3\b")


def _cluster_is_well(stage: Stage) -> None:
    stage.all_are_well(3)
    _runs(stage)


PLAYS: Final = (
    Play("start: its process stops", _start(_DAEMON), _runs),
    Play("start: the probe stops", _start(_PROBE), _runs),
    Play("start: the zygote stops", _start(_ZYGOTE), _runs),
    Play("join: the admitting node stops", _join, lambda stage: stage.all_are_well(2)),
    Play("promotion: the next coordinator stops", _promotion, _cluster_is_well),
    Play("first run: the zygote stops", _first_run, _runs),
    Play("executor: its private node stops", _executor(_DAEMON), lambda _: None),
    Play("executor: the zygote stops", _executor(_ZYGOTE), lambda _: None),
    Play("sandbox: the zygote stops", _sandbox, _runs),
    Play("restart: the trial stops", _restart((*_DAEMON, "--try")), _runs),
    Play("restart: the successor stops", _restart((*_DAEMON, "--continue")), _runs),
    Play("up: one node stops", _up, _cluster_is_well),
    Play("down: one node stops", _down, _nothing_runs),
    Play("cluster: 200 tasks, a service and a kept job", _cluster, _cluster_is_well),
)


@contextmanager
def staged(home: Path, stop_s: float) -> Iterator[Stage]:
    """Yield a stage; at the end all its nodes are killed."""
    stage = Stage(home, stop_s)
    try:
        yield stage
    finally:
        while (pid := find(_DAEMON, home)) is not None:
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


def perform(play: Play, home: Path, *, busy: int, stop_s: float) -> list[str]:
    """Perform a play, and return its notes. Raise WrongError if something did not work or stays broken."""
    with staged(home, stop_s) as stage:
        with busy_loops(busy):
            play.under_load(stage)
        stage.notes.append("the load ended")
        play.afterwards(stage)
        return stage.notes
