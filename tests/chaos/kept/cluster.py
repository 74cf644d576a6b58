"""The nodes of a kept round: machines with a network, a clock and a disk of their own, which can be lost.

As root, each node is in network namespaces (the lab's), so that partitions are possible; else all are on the
loopback address, and ``can_cut`` is False.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

import dios
from dios import limits
from dios.errors import DiosError
from dios.node import daemon
from dios.wire.types import NodeStatus
from labs.benchmarks.measure import descendants
from tests.chaos.cluster import repeat_until
from tests.chaos.kept import impatient_daemon, power
from tests.chaos.kept.machine import Machinery, NoCompilerError, shim
from tests.support.lab.namespaces import (
    MachineNamespaces,
    NotHereError,
    clean_environment,
    killed_with_parent,
)
from tests.support.lab.network import Network, address
from tests.support.node.running_node import exists, wait_until

PORT: Final = 7400
GRACE: Final = "1s"
START_S: Final = 90.0
AGREE_S: Final = 60.0
END_S: Final = 20.0
_FORGET_S: Final = 2.0
_STALLED_STOP_S: Final = 1.0
"""The time for which a node that is stopped may have a stalled disk."""
_PROGRAM: Final = (sys.executable, "-m", impatient_daemon.__name__)
_SETTINGS: Final = {
    "pool-size": "0",
    "accept-weaker-sandbox": "yes",
    "coordinator": "off",
    "replica-grace": GRACE,
}


class KeptNode:
    """One machine with the node that runs on it. A lost node is followed by another one with another name."""

    def __init__(self, number: int, folder: Path, space: MachineNamespaces | None, *, shimmed: bool) -> None:
        self.number: Final = number
        self.folder: Final = folder / f"m{number + 1}"
        self.folder.mkdir(parents=True)
        self.space: Final = space
        self.generation = 0
        self.distance = 0
        """The number of nodes from the first one to this one, each of which has admitted the next."""
        self.invited_at = float("-inf")
        """When it invited another node, which nobody else has admitted for a moment."""
        self.process: subprocess.Popen[bytes] | None = None
        self.data: Final = self.folder / "data"
        self.socket: Final = self.folder / "node.sock"
        self.log: Final = self.folder / "log"
        self.machinery: Final = Machinery(self.folder / "machine", self.data) if shimmed else None
        self.data.mkdir()

    @property
    def name(self) -> str:
        """The name of the present node."""
        return f"n{self.number + 1}" + ("" if not self.generation else f"-{self.generation}")

    @property
    def address(self) -> str:
        """The address at which other nodes reach it."""
        if self.space is None:
            return f"127.0.0.1:{PORT + 100 + os.getpid() % 20_000 + self.number}"
        return f"{address(self.number)}:{PORT}"

    @property
    def is_member(self) -> bool:
        """True if its node has joined the cluster."""
        return (self.data / "identity").exists()

    @property
    def running(self) -> bool:
        """True if its process runs."""
        return self.process is not None and self.process.poll() is None

    @property
    def is_stalled(self) -> bool:
        """True if its disk is stalled."""
        return self.machinery is not None and self.machinery.is_stalled

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs on this machine."""
        return list(command) if self.space is None else self.space.inside(*command)

    def environment(self) -> dict[str, str]:
        """Return the environment of the node."""
        variables = clean_environment(self.folder)
        return variables if self.machinery is None else variables | self.machinery.environment()

    def end_of_log(self, lines: int = 12) -> str:
        """Return the end of the node's log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


class KeptCluster:
    """Some nodes in a folder; a context manager, after which nothing of them runs."""

    def __init__(self, folder: Path, count: int, *, say: Callable[[str], None] = lambda _: None) -> None:
        self._stack: Final = contextlib.ExitStack()
        self._say: Final = say
        self._losses: Final[list[threading.Thread]] = []
        self.failures: Final[list[str]] = []
        try:
            shim()
            shimmed = True
        except NoCompilerError as error:
            say(str(error))
            shimmed = False
        spaces: list[MachineNamespaces | None] = [None] * count
        self._network: Network | None = None
        try:
            machines = [MachineNamespaces(f"n{number + 1}") for number in range(count)]
            for machine in machines:
                self._stack.callback(machine.close)
            self._network = Network(machines)
            self._stack.callback(self._network.close)
            spaces = [*machines]
        except NotHereError as error:
            say(f"no partitions: {error}")
        self.nodes: Final = [
            KeptNode(number, folder, space, shimmed=shimmed) for number, space in enumerate(spaces)
        ]
        self.can_cut: Final = self._network is not None
        self.has_machinery: Final = shimmed

    def __enter__(self) -> Self:
        try:
            self._stack.callback(self._end_all)
            first, *others = self.nodes
            self._run(first, "init", *self._about(first))
            self.begin(first)
            self.wait_serves(first)
            for node in others:
                self.follow(node)
            self.wait_agreed()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    # -- processes ----------------------------------------------------------------------------------
    def _about(self, node: KeptNode) -> list[str]:
        return ["--data", str(node.data), "--name", node.name, "--listen", node.address]

    def _run(self, node: KeptNode, *words: str) -> str:
        # With the machine's clock: by another one an invitation may have expired.
        done = subprocess.run(
            node.inside([*_PROGRAM, *words]),
            capture_output=True,
            text=True,
            check=False,
            env=node.environment(),
        )
        if done.returncode:
            raise NotHereError(f"dios-node {words[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def begin(self, node: KeptNode, *more: str) -> None:
        """Start a node without waiting for it."""
        settings = [word for key, value in _SETTINGS.items() for word in (f"--{key}", value)]
        command = [*_PROGRAM, "start", *self._about(node), "--socket", str(node.socket), *settings, *more]
        with node.log.open("ab") as log:
            node.process = subprocess.Popen(
                killed_with_parent(node.inside(command)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=node.environment(),
                cwd=node.folder,
            )

    def wait_serves(self, node: KeptNode) -> None:
        """Wait until a started node answers."""

        def serves() -> bool:
            assert node.running, f"{node.name} ended:\n{node.end_of_log()}"
            return daemon.find(node.socket) is not None

        wait_until(serves, f"{node.name} serves", START_S)

    def end(self, node: KeptNode, *, orderly: bool = False) -> None:
        """End a node, by SIGKILL or in an orderly way, and wait until nothing of it runs."""
        process, node.process = node.process, None
        assert process is not None
        if orderly and node.machinery is not None:
            # It syncs what it has before it ends, and whoever ends it here ends a stall of its disk, too.
            threading.Timer(_STALLED_STOP_S, node.machinery.heal).start()
        family = [process.pid, *descendants(process.pid)]
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM if orderly else signal.SIGKILL)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.failures.append(f"{node.name} did not end within {END_S:g} s after SIGTERM")
            process.kill()
            process.wait(END_S)
        wait_until(lambda: not any(map(exists, family)), f"all of {node.name} has ended", END_S)

    def cut_power(self, node: KeptNode, rng: random.Random) -> power.Lost:
        """Kill a node that has recorded its writes, and revert a part of those that were not synced."""
        self.end(node)
        assert node.machinery is not None
        lost = power.cut_power(node.machinery.journal, rng)
        node.machinery.set(journal=0)
        node.machinery.heal()
        return lost

    def signal(self, node: KeptNode, number: int) -> None:
        """Send a signal to all processes of a node."""
        if node.process is not None:
            for pid in (node.process.pid, *descendants(node.process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    # -- losses for ever ----------------------------------------------------------------------------
    def lose(self, node: KeptNode) -> None:
        """End a node with its disk. A thread forgets it, and ``follow`` starts another node there."""
        self.end(node)
        shutil.rmtree(node.data)
        node.data.mkdir(mode=0o700)
        former = node.name
        node.generation += 1
        thread = threading.Thread(target=self._replace, args=(node, former), daemon=True)
        thread.start()
        self._losses.append(thread)

    def _replace(self, node: KeptNode, former: str) -> None:
        try:
            end = time.monotonic() + _FORGET_S
            assert repeat_until(
                lambda: self._forgotten(node, former, at_last=time.monotonic() > end),
                lambda: time.monotonic() > end + START_S,
            ), f"no node could forget {former}"
        except BaseException as error:  # noqa: BLE001 - it is reported by ``wait_whole``
            self.failures.append(f"no node could follow {former}: {error}")

    def _forgotten(self, node: KeptNode, former: str, *, at_last: bool) -> bool:
        for other in self.nodes:
            if other is not node and other.running:
                try:
                    with dios.connect(str(other.socket), groups=(), start=False) as session:
                        session.set_node(former, "forget")
                except (DiosError, OSError) as error:
                    # Nodes that have all started since then have not met it, and cannot forget it.
                    if at_last and "there is no node" in str(error):
                        return True
                    continue
                return True
        return False

    def follow(self, node: KeptNode) -> None:
        """Start a node that has no data, with an invitation of another one.

        Raises NotHereError, with the node as it was, if a fault ends the other one meanwhile, and if the
        disks of all others are stalled: whoever calls ends the stalls, too.
        """
        others = [other for other in self.nodes if other is not node]
        hosts = [other for other in others if other.running and not other.is_stalled]
        if not hosts:
            raise NotHereError("no other node can write an invitation")
        host = min(hosts, key=lambda other: other.distance)
        self.wait_serves(host)
        told = self._run(host, "invite", "--role", "authority", "--data", str(host.data), "--json")
        token = node.folder / "token"
        token.touch(mode=0o600)
        token.write_text(str(json.loads(told)["token"]))
        inviting = host.process
        self.begin(node, "--join", host.address, "--token-file", str(token))
        try:
            self.wait_serves(node)
        except AssertionError:
            if node.running or (host.running and host.process is inviting):
                raise
            node.process = None
            shutil.rmtree(node.data)
            node.data.mkdir(mode=0o700)
            raise NotHereError(f"{host.name}, which has invited it, was ended") from None
        host.invited_at = time.monotonic()
        node.distance = host.distance + 1

    @property
    def is_worn(self) -> bool:
        """True if so many nodes have followed others that some can soon admit no more of them."""
        return max(node.distance for node in self.nodes) > limits.CHAIN_CERTIFICATES_MAX // 2

    # -- the network --------------------------------------------------------------------------------
    def cut(self, side: Sequence[KeptNode], *, one_way: bool = False) -> None:
        """Cut some nodes off from the others, in both directions or in that from them."""
        assert self._network is not None
        there = {node.number for node in side}
        pairs = [(near, two) for near in there for two in range(len(self.nodes)) if two not in there]
        self._network.cut(pairs if one_way else [*pairs, *((two, near) for near, two in pairs)])

    def heal_network(self) -> None:
        """Let all nodes reach each other again."""
        if self._network is not None:
            self._network.heal()

    # -- the end of faults --------------------------------------------------------------------------
    def wait_whole(self) -> None:
        """End all faults, start every node that does not run, and wait until all see each other."""
        self.heal_network()
        for node in self.nodes:
            self.signal(node, signal.SIGCONT)
            if node.machinery is not None:
                node.machinery.heal()
        for node in self.nodes:
            if not node.running and node.is_member:
                self.begin(node)
        for node in self.nodes:
            if node.running:
                self.wait_serves(node)
        for thread in self._losses:
            thread.join()
        self._losses.clear()
        for node in self.nodes:
            if not node.running:
                self.follow(node)
        self.wait_agreed()

    def seen_by(self, node: KeptNode) -> dict[str, str]:
        """Return the nodes as a node sees them, with their status."""
        with dios.connect(str(node.socket), groups=(), start=False) as session:
            return {
                member.name: "alive" if member.here else member.status.name.lower()
                for member in session.nodes()
                if member.status is not NodeStatus.LEFT
            }

    def wait_agreed(self) -> None:
        """Wait until each node sees exactly the present nodes alive."""
        wanted = {node.name for node in self.nodes}

        def agreed() -> bool:
            try:
                seen = [self.seen_by(node) for node in self.nodes]
            except (DiosError, OSError):
                return False
            return all(
                {name for name, status in view.items() if status == "alive"} == wanted for view in seen
            )

        wait_until(agreed, f"all nodes see {sorted(wanted)}", AGREE_S)

    def _end_all(self) -> None:
        for node in self.nodes:
            self.signal(node, signal.SIGCONT)
            if node.machinery is not None:
                node.machinery.heal()
            if node.process is not None:
                with contextlib.suppress(AssertionError):
                    self.end(node)
