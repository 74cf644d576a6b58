"""Makes a data directory a member of a cluster before the node's first start; nothing is started.

Standard input has JSON: ``data``, and for a node that joins ``join``, the address of a member, and ``token``.
The token comes through this pipe, because other users see arguments, and files outlive their use. The
directory's ``node.toml`` has the name and the addresses.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec
import trio
from msgspec import Meta

from dios.errors import DiosError
from dios.node import cluster
from dios.node.settings import load
from dios.transport.identity import joining, tokens

REQUEST_BYTES_MAX: Final = 65_536


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """The data directory, and for a node that joins the address and the token."""

    data: Annotated[str, Meta(max_length=4_096)]
    join: Annotated[str, Meta(max_length=512)] = ""
    token: Annotated[str, Meta(max_length=16_384)] = ""


def become_member(request: Request) -> None:
    """Create a cluster, or join one. Raise the errors of ``cluster`` and of ``joining.join``."""
    settings = load(Path(request.data), environ={})
    if not request.join:
        cluster.create(settings)
        return
    wanted = cluster.prepare_join(settings, request.join, tokens.read(request.token))
    if wanted is None:
        return
    trio.run(
        functools.partial(joining.join, request.join, request.token, name=wanted.name, directory=wanted.data)
    )
    cluster.joined(wanted, request.join)


def main() -> int:
    """Serve the request on standard input; print the reason of a failure."""
    try:
        become_member(msgspec.json.decode(sys.stdin.buffer.read(REQUEST_BYTES_MAX), type=Request))
    except DiosError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
