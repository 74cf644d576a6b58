"""The resources of which a task can be held to its part on this machine, and the reasons for the others."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from dios.host.confinement.mechanisms import Mechanism

CPU: Final = "cpu"
MEMORY: Final = "memory"
DISK_IO: Final = "disk-io"
NET: Final = "net"
PIN: Final = "pin"
DEVICE: Final = "device"


def enforcement(held: Collection[str], mechanisms: Mapping[str, Mechanism]) -> tuple[tuple[str, str], ...]:
    """Return each resource with the reason why no task is held to its part of it; empty if tasks are.

    ``held`` are the controllers of control groups that the node can use (``ControlGroups.held``).
    """
    mechanism = mechanisms.get("seccomp")
    # A task that may set its affinity can leave its processors.
    fixed = mechanism is not None and mechanism.available
    return (
        (CPU, "" if "cpu" in held else "no cpu controller"),
        (MEMORY, "" if "memory" in held else "no memory controller: for each process alone"),
        (DISK_IO, "" if "io" in held else "no io controller"),
        (NET, ""),
        (PIN, "" if fixed else "no filter of system calls"),
        (DEVICE, "tasks in limbo can open the files of others"),
    )
