"""The addresses at which a node looks for its cluster when it starts: one per line in ``DATA/seeds``.

An address where nobody answers, or a node of another cluster, costs a failed attempt to connect. One address
that works is enough, because gossip brings the others. Users may edit the file. The live table of nodes is
``dios.core.membership.swim``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dios import limits
from dios.node.addresses import checked_address
from dios.transport.identity import durable_files

NAME: Final = "seeds"
_HEAD: Final = "# Nodes to look for at the start, HOST:PORT each. The node keeps this up to date.\n"


def read(data: Path) -> tuple[str, ...]:
    """Return the addresses in a data directory, at most NODES_MAX, without duplicates; none without a file.

    Invalid lines are skipped, because they must not keep a node from starting.
    """
    try:
        text = (data / NAME).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ()
    return _checked(line.partition("#")[0] for line in text.splitlines())


def write(data: Path, addresses: Iterable[str]) -> None:
    """Replace the file durably. Do nothing if it has these addresses already."""
    wanted = _checked(addresses)
    if wanted != read(data) or not (data / NAME).exists():
        durable_files.write(data / NAME, (_HEAD + "".join(f"{address}\n" for address in wanted)).encode())


def _checked(addresses: Iterable[str]) -> tuple[str, ...]:
    unique: dict[str, None] = {}
    for address in addresses:
        try:
            unique[checked_address(address.strip(), advertised=True)] = None
        except ValueError:
            continue
    return tuple(unique)[: limits.NODES_MAX]
