"""Where a node looks for its cluster when it starts: addresses of nodes, one a line, in ``DATA/seeds``.

Not for: who those nodes are, which only their certificates say (``dios.transport.identity.identity``), or
the live
table of nodes (``dios.core.membership.swim``). An address that nobody answers at, or somebody of another
cluster,
costs a failed dial and nothing else; one that works is enough, the rest comes by gossip. People may edit it.
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
    """The addresses in a data directory, at most NODES_MAX, without doubles; none when there is no file.

    A line that is no address is left out: it must not keep a node from starting.
    """
    try:
        text = (data / NAME).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ()
    return _checked(line.partition("#")[0] for line in text.splitlines())


def write(data: Path, addresses: Iterable[str]) -> None:
    """Replace the file; durable when it returns. Does nothing when it says this already."""
    wanted = _checked(addresses)
    if wanted != read(data) or not (data / NAME).exists():
        durable_files.write(data / NAME, (_HEAD + "".join(f"{each}\n" for each in wanted)).encode())


def _checked(addresses: Iterable[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for each in addresses:
        try:
            found[checked_address(each.strip(), advertised=True)] = None
        except ValueError:
            continue
    return tuple(found)[: limits.NODES_MAX]
