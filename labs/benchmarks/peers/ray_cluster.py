"""A private Ray cluster on this machine with several nodes, of which the last creates objects.

A single Ray node is in ``labs.benchmarks.peers.ray_session``.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Iterator, Sized
from typing import Protocol, cast

from labs.benchmarks.measure import once
from labs.benchmarks.peers.ray_session import Actor, Ray, Remote, prepare
from labs.benchmarks.peers.redis_server import MissingPeerError

FAR, NEAR = "far", "near"
_NEAR_PLACES = 64


class _Cluster(Protocol):
    """The methods of Ray's local clusters that are used here."""

    address: str

    def add_node(self, **options: object) -> object: ...
    def shutdown(self) -> None: ...


class _Clusters(Protocol):
    def __call__(self, **options: object) -> _Cluster: ...


class _Maker(Protocol):
    @property
    def make(self) -> Remote: ...


class Maker:
    """An actor that puts objects into the store of its node."""

    def make(self, size: int, count: int, *, array: bool) -> list[object]:
        """Return references to ``count`` new objects."""
        ray = cast("Ray", importlib.import_module("ray"))
        if not array:
            return [ray.put(os.urandom(size)) for _ in range(count)]
        import numpy as np

        return [ray.put(np.frombuffer(os.urandom(size), dtype=np.uint8)) for _ in range(count)]


class Reader:
    """An actor that reads objects at the first node."""

    def read(self, references: list[object]) -> int:
        """Return the number of bytes of the one array in the list; Ray does not fetch it before the call."""
        ray = cast("Ray", importlib.import_module("ray"))
        return len(cast("Sized", ray.get(references[0])))


class RayNodes:
    """A running cluster, as seen from its first node."""

    def __init__(self, ray: Ray, start_seconds: float) -> None:
        self.ray = ray
        self.start_seconds = start_seconds
        self._maker: _Maker | None = None

    def fresh(self, size: int, count: int, *, array: bool = False) -> list[object]:
        """Return references to new objects of the last node, as numpy arrays with ``array``."""
        if self._maker is None:
            maker = self.ray.remote(Maker).options(resources={FAR: 1}).remote()
            self._maker = cast("_Maker", maker)
        return cast(
            "list[object]",
            self.ray.get(cast("_KeywordRemote", self._maker.make).remote(size, count, array=array)),
        )

    def readers(self, count: int) -> list[Actor]:
        """Start processes at the first node that read objects."""
        options = {"num_cpus": 0, "resources": {NEAR: 1}}
        return [cast("Actor", self.ray.remote(Reader).options(**options).remote()) for _ in range(count)]

    def read_all(self, readers: list[Actor], reference: object) -> list[int]:
        """Let all read the same array at once; return the numbers of bytes."""
        asked = [reader.read.remote([reference]) for reader in readers]
        return cast("list[int]", self.ray.get(asked))


class _KeywordRemote(Protocol):
    def remote(self, *arguments: object, array: bool) -> object: ...


@contextlib.contextmanager
def ray_cluster(nodes: int = 2, store_bytes: int = 300_000_000) -> Iterator[RayNodes]:
    """Start ``nodes`` Ray nodes with one processor each; stop them at the end of the context."""
    prepare()
    try:
        import ray
        from ray.cluster_utils import Cluster
    except ImportError:
        raise MissingPeerError("ray is not installed (pip install ray)") from None
    clusters: list[_Cluster] = []

    def start() -> None:
        head = {
            "num_cpus": 1,
            "object_store_memory": store_bytes,
            "include_dashboard": False,
            "resources": {NEAR: _NEAR_PLACES},
        }
        clusters.append(cast("_Clusters", Cluster)(initialize_head=True, head_node_args=head))
        for number in range(1, nodes):
            own = {FAR: 1} if number == nodes - 1 else {}
            clusters[0].add_node(num_cpus=1, resources=own, object_store_memory=store_bytes)
        ray.init(address=clusters[0].address, log_to_driver=False, logging_level=logging.ERROR)

    try:
        seconds = once(start)
        yield RayNodes(cast("Ray", ray), seconds)
    finally:
        ray.shutdown()
        for cluster in clusters:
            cluster.shutdown()
