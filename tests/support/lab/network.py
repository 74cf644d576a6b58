"""The lab's network: one bridge, one cable to each machine, and what can be wrong with them.

Not for: what runs on the machines (``lab_rig``). Everything lies in namespaces that the lab made; no device,
address or rule of the machine that runs it is touched.

How each fault is made, and why so:

* *cut*: the sender's table of neighbours gets an address that nobody has, so its frames to one machine go
  nowhere, in silence, as with a broken cable. It works one way and needs no packet filter.
* *delay and loss*: the machines are taken off the bridge, and a small program moves the frames
  (``lab_relay``). The kernel's emulation (netem) is missing in many, and two ways would want two suites.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tests.support.lab.namespaces import MachineNamespaces, NotHereError, killed_with_parent

MTU: Final = 1500
NOBODY: Final = 0xFF
MACHINES_MAX: Final = 200
RELAY_SECONDS: Final = 10.0
_RELAY: Final = Path(__file__).parents[1] / "programs" / "lab_relay.py"


def address(number: int) -> str:
    """The address of machine ``number``, counted from 0."""
    return f"10.213.0.{number + 1}"


def link(number: int) -> str:
    """The hardware address behind which machine ``number`` stands."""
    return f"02:d1:05:00:00:{number:02x}"


class Network:
    """A bridge with a cable to each of ``machines``."""

    def __init__(self, machines: list[MachineNamespaces], *, seed: int = 1) -> None:
        assert len(machines) <= MACHINES_MAX
        self._machines: Final = machines
        self._seed: Final = seed
        self._cut: set[tuple[int, int]] = set()
        self._relay: subprocess.Popen[str] | None = None
        self._delay_ms = 0.0
        self._loss_percent = 0.0
        self._hub: Final = MachineNamespaces("hub")
        try:
            self._lay_cables()
        except NotHereError:
            self.close()
            raise

    def _lay_cables(self) -> None:
        numbers = range(len(self._machines))
        lines = ["link add br0 type bridge mcast_snooping 0", "link set br0 up"]
        for number, machine in enumerate(self._machines):
            lines += [
                f"link add p{number} mtu {MTU} type veth peer name eth0 netns {machine.pid}",
                f"link set p{number} master br0 up",
            ]
        self._hub.batch(lines)
        for number, machine in enumerate(self._machines):
            machine.batch(
                [
                    f"link set eth0 address {link(number)} mtu {MTU}",
                    f"address add {address(number)}/24 broadcast + dev eth0",
                    "link set eth0 up",
                    *(_neighbour(other, link(other)) for other in numbers if other != number),
                ]
            )

    # -- cuts ---------------------------------------------------------------------------------------
    def cut(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Nothing that the first of each pair sends reaches the second, until ``heal``."""
        self._point(set(pairs) - self._cut, dead=True)

    def heal(self) -> None:
        """Everybody reaches everybody again, at once and without loss."""
        self._point(set(self._cut), dead=False)
        self._rough(0, 0)

    def _point(self, pairs: set[tuple[int, int]], *, dead: bool) -> None:
        for sender in sorted({first for first, _ in pairs}):
            others = sorted(second for first, second in pairs if first == sender)
            self._machines[sender].batch(
                [_neighbour(other, link(NOBODY if dead else other)) for other in others]
            )
        self._cut = self._cut | pairs if dead else self._cut - pairs

    # -- a bad network ------------------------------------------------------------------------------
    def delay(self, milliseconds: float) -> None:
        """Every frame arrives ``milliseconds`` late: a round trip takes twice that."""
        self._rough(milliseconds, self._loss_percent)

    def loss(self, percent: float) -> None:
        """So many of a hundred frames never arrive."""
        self._rough(self._delay_ms, percent)

    def _rough(self, delay_ms: float, loss_percent: float) -> None:
        self._delay_ms, self._loss_percent = delay_ms, loss_percent
        if not delay_ms and not loss_percent:
            self._smooth()
            return
        if self._relay is None:
            self._hub.batch([f"link set p{number} nomaster" for number in range(len(self._machines))])
            self._relay = self._started_relay()
        assert self._relay.stdin is not None
        self._relay.stdin.write(f"{delay_ms} {loss_percent}\n")
        self._relay.stdin.flush()
        self._hear(self._relay)

    def _started_relay(self) -> subprocess.Popen[str]:
        words = [sys.executable, "-S", "-E", str(_RELAY), str(self._seed), str(len(self._machines))]
        relay = subprocess.Popen(
            killed_with_parent(self._hub.inside(*words)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._relay = relay
        self._hear(relay)
        return relay

    @staticmethod
    def _hear(relay: subprocess.Popen[str]) -> None:
        assert relay.stdout is not None
        assert relay.stderr is not None
        if relay.stdout.readline() != "set\n":
            raise NotHereError(f"the slow switch ended: {relay.stderr.read().strip().splitlines()[-1:]}")

    def _smooth(self) -> None:
        """Back to the bridge."""
        if self._relay is not None:
            self._end_relay()
            self._hub.batch([f"link set p{number} master br0" for number in range(len(self._machines))])

    def _end_relay(self) -> None:
        relay, self._relay = self._relay, None
        if relay is not None:
            for stream in (relay.stdin, relay.stdout, relay.stderr):
                if stream is not None:
                    stream.close()
            relay.wait(RELAY_SECONDS)

    def close(self) -> None:
        """Take it down."""
        self._end_relay()
        self._hub.close()


def _neighbour(number: int, mac: str) -> str:
    return f"neighbour replace {address(number)} lladdr {mac} dev eth0 nud permanent"
