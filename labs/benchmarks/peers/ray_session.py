"""A private Ray on this machine, with two processors; an existing Ray cluster is not used.

Functions are passed to ``remote`` as calls, because the library has no types.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from labs.benchmarks.measure import once
from labs.benchmarks.peers.redis_server import MissingPeerError


class Remote(Protocol):
    """A remote function or class."""

    def remote(self, *arguments: object) -> object: ...  # noqa: D102 - theirs
    def options(self, **options: object) -> Remote: ...  # noqa: D102 - theirs


class Actor(Protocol):
    """An actor with the one method that is called."""

    @property
    def read(self) -> Remote: ...  # noqa: D102 - theirs


class Ray(Protocol):
    """The functions of Ray that are used here."""

    def remote(self, function: Callable[[], object] | type) -> Remote: ...  # noqa: D102 - theirs
    def put(self, value: object) -> object: ...  # noqa: D102 - theirs
    def get(self, reference: object) -> object: ...  # noqa: D102 - theirs


def prepare() -> None:
    """Set the environment for every Ray process."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Workers start in another folder, but import modules from here.
    os.environ["PYTHONPATH"] = os.getcwd()  # noqa: PTH109 - a string for the environment


@contextlib.contextmanager
def ray_session(store_bytes: int = 400_000_000) -> Iterator[tuple[Ray, float]]:
    """Start Ray; return it and the seconds of its start; stop it at the end of the context."""
    prepare()
    try:
        import ray
    except ImportError:
        raise MissingPeerError("ray is not installed (pip install ray)") from None
    seconds = once(
        lambda: ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=store_bytes,
        )
    )
    try:
        yield cast("Ray", ray), seconds
    finally:
        ray.shutdown()
