"""Tests which releases of DIOS the running node, the installed program and the other nodes have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dios.client.sync.node import connect
from dios.errors import DiosError
from dios.installation import version
from dios.node import daemon
from dios.node.doctor.finding import DoctorFinding, DoctorTest
from dios.node.settings import load

_ASKED_MAX: Final = 64
_NAMED_MAX: Final = 4


_TEST: Final = DoctorTest("releases", "the node has the installed release, and so have the other nodes")


def examine_releases(data: Path) -> DoctorFinding | None:
    """Ask the node in ``data`` and at most 64 others for their releases; None without a running node."""
    try:
        socket = load(data).socket
        if daemon.find(socket) is None:
            return None
        with connect(str(socket), groups=()) as node:
            own = node.info().version
            others: dict[str, str] = {}
            for member in [peer for peer in node.nodes() if peer.usable and not peer.here][:_ASKED_MAX]:
                try:
                    others[member.name] = node.info(host=member.name).version
                except DiosError:
                    continue  # other tests show which nodes do not answer
    except DiosError:
        return None
    return compare(own, version(), others)


def compare(own: str, installed: str, others: Mapping[str, str]) -> DoctorFinding:
    """Return the result for the running node, the installed program, and other nodes by name."""
    if own != installed:
        return _TEST.result(
            f"the node runs {own}, and {installed} is installed", "run `dios-node restart`: its tasks go on"
        )
    counted = Counter((own, *others.values()))
    if len(counted) == 1:
        return _TEST.result(f"{own} on {len(others) + 1} nodes")
    older = [f"{name} ({release})" for name, release in sorted(others.items()) if release != own]
    named = ", ".join(older[:_NAMED_MAX]) + (", …" if len(older) > _NAMED_MAX else "")
    return _TEST.result(
        f"{own} here and on {counted[own] - 1} of {len(others)} other nodes; not on {named}",
        "finish the upgrade: install one release everywhere, then run `dios-node restart` on each machine",
    )
