"""A program for trying the lab itself: it stands in for a node, and knows nothing of the product.

Not for: tests of the product (``lab_daemons``).
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Final

from tests.support.lab.machines import Lab, Machine

NODE: Final = Path(__file__).parents[1] / "programs" / "lab_echo_node.py"


class EchoProgram:
    """Runs ``lab_echo_node`` on a machine."""

    def command(self, machine: Machine, lab: Lab) -> list[str]:
        """The process to start."""
        del lab
        return [sys.executable, str(NODE), machine.address, machine.socket.name]

    def ready(self, machine: Machine) -> bool:
        """Whether it answers itself."""
        return machine.socket.exists() and asked(machine, machine).startswith("ok")


def asked(machine: Machine, peer: Machine, seconds: float = 1.0) -> str:
    """What a machine says of a round trip to another."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(seconds + 30)
        try:
            client.connect(str(machine.socket))
        except ConnectionRefusedError:
            return "nobody is there"
        client.sendall(f"{peer.address} {seconds}\n".encode())
        return client.makefile().readline().strip()


def reaches(machine: Machine, peer: Machine, seconds: float = 1.0) -> bool:
    """Whether a round trip from a machine to another comes to its end in time."""
    return asked(machine, peer, seconds).startswith("ok")
