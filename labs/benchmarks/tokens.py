"""Sealed tokens between two clusters of one node each: bytes per second, and small calls.

Run it with ``python -m labs.benchmarks.tokens``. It is not in the table of all benchmarks, because two nodes,
two borders and the reader share the processors of one machine: the figures are for the costs of a border.
"""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from blake3 import blake3

import dios
from dios.lib import catalogue, tokens
from dios.lib.catalogue import CatalogueEntry
from dios.node import cluster
from dios.node.settings import load
from dios.transport.identity.identity import Identity
from dios.transport.identity.trusted_clusters import add_trusted
from dios.wire.types import ObjectType
from tests.support.node.running_node import RunningNode, wait_until

MIB: Final = 2**20
LARGE: Final = 64 * MIB
SMALL: Final = 1024
ROUNDS: Final = 5
CALLS: Final = 40
HOUR_NS: Final = 3600 * 10**9


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return f"127.0.0.1:{probe.getsockname()[1]}"


def _seconds(action: Callable[[], object], rounds: int) -> float:
    """Return the median time of an action."""
    spans = []
    for _ in range(rounds):
        began = time.perf_counter()
        action()
        spans.append(time.perf_counter() - began)
    return statistics.median(spans)


def main() -> int:
    """Measure, and print one line for each figure; return 0."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places: list[tuple[RunningNode, Identity, str]] = []
        for name in ("home", "abroad"):
            border = _free_address()
            flags = {"listen": _free_address(), "border": border, "name": name, "coordinator": "off"}
            own = cluster.create(load(root / name, flags=flags))
            node = RunningNode(root / name, flags)
            stack.callback(node.kill)
            places.append((node, own, border))
        for node, _, _ in places:
            wait_until(node.running.socket.with_name("border.sock").exists, "the border listens")
        (home, home_id, home_border), (abroad, abroad_id, abroad_border) = places
        add_trusted(home_id, "abroad", (abroad_id.folder / "authority.pem").read_bytes(), abroad_border)
        add_trusted(abroad_id, "home", (home_id.folder / "authority.pem").read_bytes(), home_border)
        session = stack.enter_context(dios.connect(home.place))
        group = session.create_group()
        entries = []
        for path, data in (("large", os.urandom(LARGE)), ("small", os.urandom(SMALL))):
            blob = session.create(ObjectType.DURABLE_BLOB, groups=[group], data=data)
            entries.append(CatalogueEntry(path, blob.name or b"", len(data), 1, blake3(data).digest()))
        listed = session.create(ObjectType.DURABLE_BLOB, groups=[group], data=catalogue.encode(entries))
        token, _ = tokens.issue_token(
            session,
            group,
            listed,
            cluster=home_id.cluster,
            issuer=f"uid:{os.getuid()}",
            expires_ns=time.time_ns() + HOUR_NS,
            write=True,
        )
        say = sys.stdout.write
        say(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} processors\n")
        for place, node in (("same cluster", home), ("other cluster", abroad)):
            with tokens.import_token(token, node.place) as files:
                read = _seconds(lambda files=files: files.read_bytes("large"), ROUNDS)  # type: ignore[misc]
                small = _seconds(lambda files=files: files.read_bytes("small"), CALLS)  # type: ignore[misc]
                data = os.urandom(LARGE // 2)
                write = _seconds(
                    lambda files=files, data=data: files.write_bytes("new", data, replace=True),  # type: ignore[misc]
                    ROUNDS,
                )
            say(f"{place}: read {LARGE / MIB / read:.0f} MiB/s, write {LARGE / 2 / MIB / write:.0f} MiB/s,")
            say(f" a small file {small * 1000:.0f} ms\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
