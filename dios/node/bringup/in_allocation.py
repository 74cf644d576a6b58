"""Runs a node on one machine of an allocation of Slurm, until the job ends; ``slurm`` submits the job.

usage: python -m dios.node.bringup.in_allocation DIRECTORY PORT

The first machine makes the cluster and writes a join token into the shared directory, which only its user
can read. The token is deleted when all have joined. The data are on the machine's own disk, and are deleted
at the end: a store on a network file system would be slow and unsafe.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from dios import limits
from dios.client.sync.node import connect
from dios.errors import DiosError, TimeLimitError
from dios.node import cluster, daemon
from dios.node.bringup import first_start, slurm, supervise
from dios.node.settings import load
from dios.transport.identity import durable_files

_JOIN_NAME: Final = "join.json"
_TOKEN_S: Final = 900
_POLL_S: Final = 0.2


class Join(msgspec.Struct, forbid_unknown_fields=True):
    """A join token, and the address of the node that made it."""

    token: Annotated[str, Meta(max_length=16_384)]
    address: Annotated[str, Meta(max_length=512)]


def _data_directory(name: str) -> Path:
    """Return the node's data directory on a local disk."""
    base = os.environ.get("SLURM_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - of this job alone
    return Path(base) / f"dios-{os.geteuid()}-{os.environ['SLURM_JOB_ID']}-{name}"


def _own_address() -> str:
    """Return this machine's address on the way to the machine that launched the step, the first one."""
    first = os.environ["SLURM_LAUNCH_NODE_IPADDR"]
    family = socket.AF_INET6 if ":" in first else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((first, 9))
        return str(probe.getsockname()[0])


def _prepare(directory: Path, data: Path, name: str, port: int, rank: int) -> str:
    """Write the node's settings, with a free port; return its address."""
    # Nodes of Slurm on one machine begin at different ports.
    address = cluster.free_address(_own_address(), port + rank)
    chosen = {"name": name, "listen": address}
    own = "".join(f"{key} = {json.dumps(value)}\n" for key, value in chosen.items())
    common = (directory / "node.toml").read_text(encoding="utf-8")
    (data / "node.toml").write_text(own + common, encoding="utf-8")
    return address


def _become_member(directory: Path, data: Path, *, first: bool) -> None:
    if first:
        first_start.become_member(first_start.Request(str(data)))
        return
    deadline = time.monotonic() + _TOKEN_S
    while True:
        with contextlib.suppress(FileNotFoundError, msgspec.MsgspecError):
            join = msgspec.json.decode((directory / _JOIN_NAME).read_bytes(), type=Join)
            break
        if time.monotonic() > deadline:
            raise TimeLimitError(f"the first node wrote no token within {_TOKEN_S} s. See its log.")
        time.sleep(_POLL_S)
    first_start.become_member(first_start.Request(str(data), join.address, join.token))


def _report_ready(directory: Path, data: Path, row: slurm.Row, count: int, *, first: bool) -> None:
    """Wait until the node answers and sees all others; write its row."""
    path = load(data).socket
    while daemon.find(path) is None:
        time.sleep(_POLL_S)
    if first and count > 1:
        token, address = cluster.issue(data, uses=count - 1, valid_s=_TOKEN_S)
        durable_files.write(directory / _JOIN_NAME, msgspec.json.encode(Join(token, address)))
    told_at = time.monotonic() + limits.NODE_START_MS_MAX / 1000
    with connect(str(path), groups=()) as connected:
        while (seen := sum(member.usable for member in connected.nodes())) < count:
            if time.monotonic() > told_at:
                # The others may be slow: the row is written when they are there, however late that is.
                sys.stderr.write(f"{row.name} sees {seen} of {count} nodes so far\n")
                told_at = float("inf")
            time.sleep(_POLL_S)
    folder = directory / slurm.NODES_FOLDER
    if first:
        # Its row is the last one, so that the token is gone when the cluster is ready.
        while len(list(folder.glob("*.json"))) < count - 1:
            time.sleep(_POLL_S)
        (directory / _JOIN_NAME).unlink(missing_ok=True)
    durable_files.write(folder / f"{row.name}.json", msgspec.json.encode(row))


def main(arguments: list[str]) -> int:
    """Join, run the node until the job ends, and delete its data."""
    directory, port = Path(arguments[0]), int(arguments[1])
    rank, count = int(os.environ["SLURM_NODEID"]), int(os.environ["SLURM_JOB_NUM_NODES"])
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    data = _data_directory(name)
    signal.signal(signal.SIGTERM, supervise.stop)
    # Fails if another user has made it.
    data.mkdir(mode=0o700)
    try:
        address = _prepare(directory, data, name, port, rank)
        _become_member(directory, data, first=not rank)
        row = slurm.Row(name, name, address, str(data))
        work = functools.partial(_report_ready, directory, data, row, count, first=not rank)
        threading.Thread(target=work, daemon=True).start()
        return supervise.supervise(daemon.command(data, config=None, flags=None))
    except (DiosError, OSError) as error:
        sys.stderr.write(f"{name}: {error}\n")
        return 1
    except supervise.StoppedError:
        return 0
    finally:
        shutil.rmtree(data, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
