"""Real nodes on the lab's machines, started as a person starts them, and what their clients see.

Not for: the network and its faults (``lab_rig``).
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

import dios
from dios.node.daemon import find
from dios.wire.types import NodeStatus
from tests.support.lab.machines import Lab, Machine
from tests.support.lab.namespaces import NotHereError
from tests.support.node.running_node import wait_until

T = TypeVar("T")

PORT: Final = 7400
ANSWER_SECONDS: Final = 30.0
"""Longer than any deadline of a node's: what takes longer hangs."""
AGREE_SECONDS: Final = 60.0
_PROGRAM: Final = (sys.executable, "-m", "dios.cli.nodes.daemon")


class DaemonProgram:
    """Runs ``dios-node start``; the lab's first machine makes the cluster, all others join at it."""

    def __init__(self, **settings: str) -> None:
        self._settings: Final = {"pool-size": "1", **settings}

    def command(self, machine: Machine, lab: Lab) -> list[str]:
        """The process to start, with a cluster made or a token got where one is needed."""
        place = f"{machine.address}:{PORT}"
        about = [
            "--data",
            str(machine.data),
            "--name",
            machine.name,
            "--rack",
            machine.rack,
            "--listen",
            place,
        ]
        command = [*_PROGRAM, "start", *about, "--socket", str(machine.socket)]
        command += [word for key, value in self._settings.items() for word in (f"--{key}", value)]
        if (machine.seen_data / "identity").exists():
            return command
        first = lab.nodes[0]
        if machine is first:
            machine.runs(*_PROGRAM, "init", *about)
            return command
        told = first.runs(*_PROGRAM, "token", "--data", str(first.data), "--json")
        token = machine.folder / "token"
        token.touch(mode=0o600)
        token.write_text(str(json.loads(told)["token"]))
        return [*command, "--join", f"{first.address}:{PORT}", "--token-file", str(token)]

    def ready(self, machine: Machine) -> bool:
        """Whether it takes connections of people."""
        return find(machine.socket) is not None


def clusters_are_here() -> None:
    """Raise NotHereError while this version knows no clusters."""
    done = subprocess.run([*_PROGRAM, "token", "--help"], capture_output=True, check=False)
    if done.returncode:
        raise NotHereError("this version has no `dios-node token`")


# -- what clients see -------------------------------------------------------------------------------
def within(seconds: float, work: Callable[[], T]) -> T:
    """What ``work`` returns or raises; AssertionError when it does neither in time: it hangs."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again by whoever waits
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"no answer and no error within {seconds:g} s"
    if errors:
        raise errors[0]
    return results[0]


@contextmanager
def person(machine: Machine, seconds: float = ANSWER_SECONDS) -> Iterator[dios.Node]:
    """A session of the machine's user with its node, which answers within ``seconds``."""
    session = within(seconds, lambda: dios.connect(str(machine.socket), groups=()))
    try:
        yield session
    finally:
        within(seconds, session.close)


def seen_by(machine: Machine, seconds: float = ANSWER_SECONDS) -> dict[str, str]:
    """The nodes of the cluster and how they are, as a machine's node sees them."""
    with person(machine, seconds) as session:
        members = within(seconds, session.nodes)
    return {member.name: "alive" if member.here else member.status.name.lower() for member in members}


def all_agree(lab: Lab, *, dead: tuple[Machine, ...] = ()) -> bool:
    """Whether every node that lives sees exactly the dead as dead, and all others alive."""
    expected = {
        machine.name: "dead" if machine in dead else NodeStatus.ALIVE.name.lower() for machine in lab.nodes
    }
    return all(seen_by(machine) == expected for machine in lab.nodes if machine not in dead)


def wait_agreement(lab: Lab, *, dead: tuple[Machine, ...] = ()) -> None:
    """Wait until all that live agree on who lives."""
    gone = " and ".join(machine.name for machine in dead)
    goal = f"all nodes see all others{f', and {gone} dead' if gone else ''}"
    try:
        wait_until(lambda: all_agree(lab, dead=dead), goal, AGREE_SECONDS)
    except AssertionError:
        views = {machine.name: seen_by(machine) for machine in lab.nodes if machine not in dead}
        raise AssertionError(f"not within {AGREE_SECONDS:g} s: {goal}; they see {views}") from None


def answer(work: Callable[[], T]) -> T | None:
    """What a call gives, or None when it says in time that it cannot: it must do one of the two."""
    try:
        return within(ANSWER_SECONDS, work)
    except (dios.UnreachableError, dios.TimeLimitError, dios.StaleError):
        return None


def logs(lab: Lab) -> str:
    """The end of every node's log."""
    return "\n".join(f"--- {machine.name}\n{machine.said()}" for machine in lab.nodes)
