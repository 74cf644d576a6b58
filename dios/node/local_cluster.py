"""A whole cluster on this machine (``dios up``): nodes as processes, with their data below one directory.

``dios.node.cluster`` is for clusters of several machines. The nodes of a local cluster are ordinary nodes:
each has its data directory, and ``dios-node`` works on it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dios import limits
from dios.client.locate import CLUSTER_FILE_NAME, SOCKET_NAME, default_socket
from dios.client.sync.node import connect
from dios.errors import DamagedError, DiosError, ExistsError, InvalidError, TimeLimitError
from dios.node import cluster, daemon, seeds
from dios.node.daemon import DaemonProcess
from dios.node.settings import KEYS, load
from dios.transport.identity import durable_files, identity
from dios.trusted_files import require_trusted
from dios.wire.addresses import join_address
from dios.wire.node_roles import NodeRole

HOST: Final = "127.0.0.1"
_VERSION: Final = 1
_POLL_S: Final = 0.02
_OWN_KEYS: Final = frozenset({*cluster.REMEMBERED, "socket", "log_file", "record"})
"""Settings that must differ between nodes of one machine; this module chooses them."""


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One node: its name, rack, address and data directory."""

    name: str
    rack: str
    address: str
    data: Path

    @property
    def socket(self) -> Path:
        """The socket for programs."""
        return self.data / SOCKET_NAME

    def flags(self) -> dict[str, str]:
        """Return the settings given to its process, which override the environment."""
        return {
            "name": self.name,
            "rack": self.rack,
            "listen": self.address,
            "advertise": "",
            "socket": str(self.socket),
        }


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """The nodes of a directory."""

    directory: Path
    nodes: tuple[LocalNode, ...]

    def forgotten(self) -> frozenset[str]:
        """Return the names of nodes that `dios node forget` has removed from the cluster."""
        owns = {node.name: identity.load(node.data) for node in self.nodes}
        revoked = {number for own in owns.values() if own is not None for number in own.revoked}
        return frozenset(name for name, own in owns.items() if own is not None and own.node in revoked)

    def running(self) -> dict[str, DaemonProcess]:
        """Return the nodes whose processes answer, by name."""
        processes = {node.name: daemon.find(node.socket) for node in self.nodes}
        return {name: running for name, running in processes.items() if running is not None}


# -- on the disk --------------------------------------------------------------------------------------
def read(directory: Path) -> LocalCluster | None:
    """Return the cluster of a directory, or None. Raise DamagedError if its file cannot be read."""
    path = directory / CLUSTER_FILE_NAME
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        require_trusted(path, "the file of the local cluster")
        nodes = tuple(
            LocalNode(str(row["name"]), str(row["rack"]), str(row["address"]), directory / str(row["name"]))
            for row in told["nodes"]
        )
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedError(f"{path} is damaged ({error}). Stop its nodes with `dios-node stop`.") from None
    if any(Path(node.name).name != node.name for node in nodes):
        raise DamagedError(f"{path} names nodes that are not below {directory}")
    return LocalCluster(directory, nodes)


def make(
    directory: Path,
    *,
    nodes: int,
    racks: int = 0,
    keep: bool = True,
    settings: Mapping[str, str] | None = None,
) -> LocalCluster:
    """Create the directory of a cluster with an identity for each node, completely or not at all.

    It starts nothing. ``racks`` of 0 means no racks; ``settings`` are for every node, as text. ``keep`` has
    no effect: data are kept until ``remove``. Raise ExistsError if the directory is not empty, InvalidError
    for invalid numbers, SettingsError.
    """
    del keep  # accepted for programs that were written for earlier releases
    if not 1 <= nodes <= limits.LOCAL_NODES_MAX:
        raise InvalidError(f"a local cluster must have 1 to {limits.LOCAL_NODES_MAX} nodes, not {nodes}")
    if not 0 <= racks <= nodes:
        raise InvalidError(f"{nodes} nodes can be in 1 to {nodes} racks, not in {racks}")
    if directory.exists() and any(directory.iterdir()):
        raise ExistsError(f"{directory} is not empty. Choose another directory with --dir.")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return _fill(directory, nodes, racks, settings or {})
    except BaseException:
        for entry in directory.iterdir():
            shutil.rmtree(entry, ignore_errors=True)
        raise


def _fill(directory: Path, count: int, racks: int, settings: Mapping[str, str]) -> LocalCluster:
    addresses = _free_addresses(count)
    local_cluster = LocalCluster(
        directory,
        tuple(
            LocalNode(
                f"n{number + 1}",
                f"r{number % racks + 1}" if racks else "",
                addresses[number],
                directory / f"n{number + 1}",
            )
            for number in range(count)
        ),
    )
    first: identity.Identity | None = None
    for node in local_cluster.nodes:
        _write_settings(node, settings)
        if first is None:
            first = identity.create_cluster(node.data, name=node.name)
        else:
            # All nodes have one owner and one machine, so that none of them is safer without the role.
            identity.admit_here(first, node.data, name=node.name, role=NodeRole.AUTHORITY)
        seeds.write(node.data, [other.address for other in local_cluster.nodes if other is not node])
    # Last, because this file makes the directory a complete cluster.
    _write(local_cluster)
    return local_cluster


def _write_settings(node: LocalNode, settings: Mapping[str, str]) -> None:
    for key in settings:
        if key in _OWN_KEYS and key in KEYS:
            raise InvalidError(f"{key} is chosen separately for each node of a local cluster. Leave it out.")
    node.data.mkdir(mode=0o700)
    # Check before anything is written, so that an error names the option.
    load(node.data, flags={**settings, **node.flags()}, environ={})
    chosen = {**settings, "name": node.name, "rack": node.rack, "listen": node.address}
    lines = (f"{key} = {json.dumps(value)}\n" for key, value in chosen.items() if value)
    (node.data / "node.toml").write_text("".join(lines), encoding="utf-8")


def _write(local_cluster: LocalCluster) -> None:
    rows = [
        {key: value for key, value in asdict(node).items() if key != "data"} for node in local_cluster.nodes
    ]
    # Earlier releases read "keep", and their `dios down` deletes the data without it.
    told = {"version": _VERSION, "keep": True, "nodes": rows}
    durable_files.write(
        local_cluster.directory / CLUSTER_FILE_NAME, (json.dumps(told, indent=2) + "\n").encode()
    )


def _free_addresses(count: int) -> list[str]:
    """Return free ports, below the range that the system uses for outgoing connections."""
    first, last = limits.LOCAL_PORT_FIRST, limits.LOCAL_PORT_LAST
    begin = int.from_bytes(os.urandom(4), "big")
    with contextlib.ExitStack() as taken:
        addresses: list[str] = []
        for step in range(last - first + 1):
            port = first + (begin + step) % (last - first + 1)
            probe = taken.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            addresses.append(join_address(HOST, port))
            if len(addresses) == count:
                return addresses
    raise InvalidError(
        f"fewer than {count} ports from {first} to {last} are free at {HOST}. Close some programs."
    )


def remove(directory: Path) -> None:
    """Delete the directory of a stopped cluster, except for files that the cluster did not create."""
    local_cluster = read(directory)
    if local_cluster is None:
        return
    for node in local_cluster.nodes:
        shutil.rmtree(node.data, ignore_errors=True)
    (directory / CLUSTER_FILE_NAME).unlink(missing_ok=True)


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a cluster's directory while it is created, started or stopped; wait for other commands."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with durable_files.locked(directory):
        try:
            yield
        finally:
            # Removes the directory only if it is empty.
            with contextlib.suppress(OSError):
                directory.rmdir()


# -- processes ----------------------------------------------------------------------------------------
def start(local_cluster: LocalCluster, *, report: Callable[[str], None] = lambda _: None) -> list[str]:
    """Start the nodes that do not run, all at once, and wait until each sees all. Return the started names.

    Forgotten nodes are not started. ``report`` is called with a text for each step, from any thread. If a
    node cannot start, or on interruption, the nodes that this call started are stopped again. Raise the
    errors of ``daemon.start_detached``, and TimeLimitError if they run but have not found each other yet.
    """
    running = local_cluster.running()
    forgotten = local_cluster.forgotten()
    wanted = [node for node in local_cluster.nodes if node.name not in forgotten]
    absent = [node for node in wanted if node.name not in running]

    def begin(node: LocalNode) -> None:
        daemon.start_detached(node.data, flags=node.flags())
        report(f"{node.name} runs")

    try:
        _all_at_once(begin, absent)
        wait_ready(wanted, report=report)
        _claim_default(local_cluster)
    except TimeLimitError:
        raise  # on a busy machine they find each other later
    except BaseException:
        _all_at_once(lambda node: _stop_one(node, lambda _: None), absent)
        raise
    return [node.name for node in absent]


def wait_ready(nodes: Sequence[LocalNode], *, report: Callable[[str], None] = lambda _: None) -> None:
    """Wait until each of these nodes sees all others.

    Raise TimeLimitError if none has found another one for NODE_START_MS_MAX.
    """
    names = {node.name for node in nodes}
    for node in nodes:
        seen, since = -1, time.monotonic()
        with connect(str(node.socket), groups=()) as connected:
            while missing := names - {member.name for member in connected.nodes() if member.usable}:
                if len(missing) != seen:
                    seen, since = len(missing), time.monotonic()
                if time.monotonic() - since > limits.NODE_START_MS_MAX / 1000:
                    raise TimeLimitError(
                        f"the nodes run, but {node.name} has not found {', '.join(sorted(missing))} yet. "
                        "They go on looking: `dios node ls` shows when they have found each other. See the "
                        f"log {node.data / daemon.LOG_NAME}."
                    )
                report(f"{node.name} looks for {', '.join(sorted(missing))}")
                time.sleep(_POLL_S)


def _claim_default(local_cluster: LocalCluster) -> None:
    """Make the first node the default node, unless another cluster's node is."""
    link = default_socket()
    with contextlib.suppress(OSError):
        for node in local_cluster.nodes[1:]:
            daemon.drop_link(link, node.socket)
        daemon.claim_link(link, local_cluster.nodes[0].socket)


def is_default(local_cluster: LocalCluster) -> bool:
    """Return True if commands without a node go to the first node of this cluster."""
    return default_socket().resolve() == local_cluster.nodes[0].socket.resolve()


def stop(local_cluster: LocalCluster, *, say: Callable[[str], None] = lambda _: None) -> list[str]:
    """Stop all running nodes at once and return their names. Raise TimeLimitError if a node does not end."""
    running = local_cluster.running()
    there = [node for node in local_cluster.nodes if node.name in running]
    _all_at_once(lambda node: _stop_one(node, say), there)
    return [node.name for node in there]


def _stop_one(node: LocalNode, say: Callable[[str], None]) -> None:
    running = daemon.find(node.socket)
    if running is None:
        return

    def ask() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGTERM)

    daemon.stop(running, ask=ask, say=lambda text: say(f"{node.name}: {text}"))


def _all_at_once(work: Callable[[LocalNode], None], nodes: Sequence[LocalNode]) -> None:
    """Call a function for each node, each in a thread; raise the first error at the end."""
    if not nodes:
        return
    failed: list[Exception] = []
    lock = threading.Lock()

    def guarded(node: LocalNode) -> None:
        try:
            work(node)
        except (DiosError, OSError) as error:
            with lock:
                failed.append(error)

    with ThreadPoolExecutor(max_workers=len(nodes)) as pool:
        list(pool.map(guarded, nodes))
    if failed:
        raise failed[0]
