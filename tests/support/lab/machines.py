"""The lab: machines with their own addresses on a network of their own, and all that goes wrong with them.

Not for: what the machines do (``lab_echo`` for trying the lab itself, ``lab_daemons`` for real nodes), or for
tests that need no network. A lab is made in some tens of milliseconds and leaves nothing, also when
it is killed: its namespaces are held by pipes, its processes are killed with the thread that started them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Protocol, Self

from labs.benchmarks.measure import descendants
from tests.support.lab.namespaces import (
    MachineNamespaces,
    NotHereError,
    clean_environment,
    killed_with_parent,
    run,
)
from tests.support.lab.network import Network, address
from tests.support.node.running_node import exists, wait_until

START_SECONDS: Final = 90.0
END_SECONDS: Final = 15.0
SHORT_SECONDS: Final = 5.0
FAKETIME_PLACES: Final = (
    "/usr/lib/x86_64-linux-gnu/faketime",
    "/usr/lib/aarch64-linux-gnu/faketime",
    "/usr/lib64/faketime",
    "/usr/lib/faketime",
)


class Program(Protocol):
    """What runs on the machines."""

    def command(self, machine: Machine, lab: Lab) -> list[str]:
        """The process to start; it is called before each start."""
        ...

    def ready(self, machine: Machine) -> bool:
        """Whether a started process serves."""
        ...


class Machine:
    """One machine: a name, an address, a folder, and at most one running program."""

    def __init__(self, number: int, folder: Path, disk_bytes: int) -> None:
        self.number: Final = number
        self.name: Final = f"n{number + 1}"
        self.rack: Final = f"r{number % 2 + 1}"
        self.address: Final = address(number)
        self.folder: Final = folder / self.name
        self.data: Final = self.folder / "data"
        self.socket: Final = self.folder / "node.sock"
        self.log: Final = self.folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.clock_offset_s = 0
        self.data.mkdir(parents=True)
        self.space: Final = MachineNamespaces(self.name)
        if disk_bytes:
            self.space.mount_memory(self.data, disk_bytes)

    @property
    def seen_data(self) -> Path:
        """The data directory with the machine's own mounts, from outside."""
        return Path(f"{self.space.root}{self.data.absolute()}")

    @property
    def pid(self) -> int:
        """The running program."""
        assert self.process is not None, f"{self.name} runs nothing"
        return self.process.pid

    def processes(self) -> list[int]:
        """The program and all below it, the program first."""
        return [self.pid, *descendants(self.pid)]

    def environment(self) -> dict[str, str]:
        """Of the machine's programs."""
        variables = clean_environment(self.folder)
        if self.clock_offset_s:
            variables |= {
                "LD_PRELOAD": str(faketime()),
                "FAKETIME": f"{self.clock_offset_s:+d}",
                # Only what a person would set wrong: intervals stay true.
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        return variables

    def runs(self, *command: str, typed: str = "") -> str:
        """What a short command prints on this machine; NotHereError with its words when it fails."""
        return run(self.space.inside("env", "-i", *_assignments(self.environment()), *command), typed=typed)

    def said(self) -> str:
        """The end of the program's log."""
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""

    def open_log(self) -> IO[bytes]:
        """The log, to write to."""
        return self.log.open("ab")

    def close(self) -> None:
        """Let its namespaces go."""
        self.space.close()


class Lab:
    """``count`` machines that run ``program``; a context manager. All waiting has a deadline."""

    def __init__(
        self, folder: Path, program: Program, count: int = 3, *, disk_bytes: int = 0, seed: int = 1
    ) -> None:
        self.program: Final = program
        self.nodes: Final[list[Machine]] = []
        self._stack: Final = contextlib.ExitStack()
        self._frozen: Final[list[int]] = []
        self._ballast: Final[list[Path]] = []
        with contextlib.ExitStack() as stack:
            for number in range(count):
                machine = Machine(number, folder, disk_bytes)
                self.nodes.append(machine)
                stack.callback(machine.close)
            self._network: Final = Network([machine.space for machine in self.nodes], seed=seed)
            stack.callback(self._network.close)
            stack.callback(self._end_all)
            self._stack.push(stack.pop_all())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    # -- programs -----------------------------------------------------------------------------------
    def start(self, *machines: Machine) -> None:
        """Start the program on machines (all without an argument), one after the other, until each serves."""
        for machine in machines or self.nodes:
            self.begin(machine)
            self.wait_ready(machine)

    def begin(self, machine: Machine) -> None:
        """Start the program without waiting for it."""
        assert machine.process is None, f"{machine.name} runs already"
        command = machine.space.inside(*self.program.command(machine, self))
        with machine.open_log() as log:
            machine.process = subprocess.Popen(
                killed_with_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=machine.environment(),
                cwd=machine.folder,
            )

    def wait_ready(self, machine: Machine) -> None:
        """Wait until a started program serves."""

        def ready() -> bool:
            assert machine.process is not None
            assert machine.process.poll() is None, f"{machine.name} ended:\n{machine.said()}"
            return self.program.ready(machine)

        wait_until(ready, f"{machine.name} serves; its log:\n{machine.said()}", START_SECONDS)

    def kill(self, machine: Machine) -> None:
        """End the program as a power cut would, and wait until all of it is gone."""
        family = machine.processes()
        os.kill(machine.pid, signal.SIGKILL)
        self._gone(machine, family)

    def stop(self, machine: Machine) -> None:
        """End the program in an orderly way."""
        family = machine.processes()
        os.kill(machine.pid, signal.SIGTERM)
        self._gone(machine, family)

    def _gone(self, machine: Machine, family: list[int]) -> None:
        process, machine.process = machine.process, None
        assert process is not None
        process.wait(END_SECONDS)
        wait_until(lambda: not any(map(exists, family)), f"all of {machine.name} is gone", END_SECONDS)

    def restart(self, machine: Machine, *, clock_offset_s: int | None = None) -> None:
        """Start a program that ended again, or one that runs: kill it first."""
        if machine.process is not None:
            self.kill(machine)
        if clock_offset_s is not None:
            machine.clock_offset_s = clock_offset_s
        self.start(machine)

    def freeze(self, machine: Machine) -> None:
        """Stop every process of a machine where it stands."""
        frozen: set[int] = set()
        # What is born between looking and stopping is found by looking again.
        while fresh := [pid for pid in machine.processes() if pid not in frozen]:
            for pid in fresh:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            frozen.update(fresh)
        self._frozen.extend(sorted(frozen))

    def thaw(self) -> None:
        """Let every stopped process go on."""
        while self._frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._frozen.pop(), signal.SIGCONT)

    # -- the network --------------------------------------------------------------------------------
    def cut(self, first: Machine, second: Machine) -> None:
        """Nothing passes between the two."""
        self._network.cut([(first.number, second.number), (second.number, first.number)])

    def cut_one_way(self, sender: Machine, receiver: Machine) -> None:
        """Nothing that ``sender`` sends reaches ``receiver``; the other way all does."""
        self._network.cut([(sender.number, receiver.number)])

    def isolate(self, machine: Machine) -> None:
        """Nothing passes between a machine and all others."""
        here = machine.number
        others = [other.number for other in self.nodes if other.number != here]
        self._network.cut([(here, other) for other in others] + [(other, here) for other in others])

    def delay(self, milliseconds: float) -> None:
        """Every frame arrives late; a round trip takes twice as long."""
        self._network.delay(milliseconds)

    def loss(self, percent: float) -> None:
        """So many of a hundred frames never arrive."""
        self._network.loss(percent)

    # -- disks --------------------------------------------------------------------------------------
    def fill_disk(self, machine: Machine) -> None:
        """Use up a machine's disk to its last byte; only for a lab with ``disk_bytes``."""
        path = machine.seen_data / "ballast"
        self._ballast.append(path)
        with path.open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(b"\0" * size)

    def heal(self) -> None:
        """Everything works again that was not killed: network, stopped processes, disks."""
        self._network.heal()
        self.thaw()
        while self._ballast:
            self._ballast.pop().unlink(missing_ok=True)

    def _end_all(self) -> None:
        self.thaw()
        family = [pid for machine in self.nodes if machine.process for pid in machine.processes()]
        for machine in self.nodes:
            if machine.process is not None:
                machine.process.kill()
        for machine in self.nodes:
            if machine.process is not None:
                machine.process.wait(END_SECONDS)
                machine.process = None
        wait_until(lambda: not any(map(exists, family)), "all machines' processes are gone", END_SECONDS)


def faketime() -> Path:
    """The library that shifts one process' clock; NotHereError when this machine has none.

    A time namespace shifts no clock that people read, and a clock shifted inside Python would leave the
    checks of certificates alone, which are made in C and are what a wrong clock breaks first.
    """
    for place in FAKETIME_PLACES:
        path = Path(place) / "libfaketime.so.1"
        if path.exists():
            return path
    raise NotHereError("libfaketime is not installed (on Debian or Ubuntu: apt install libfaketime)")


def _assignments(environment: dict[str, str]) -> Iterator[str]:
    return (f"{key}={value}" for key, value in environment.items())
