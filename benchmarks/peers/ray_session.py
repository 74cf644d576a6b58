"""A Ray of our own on this machine, with two processors.

Not for: a Ray cluster that somebody else runs: none is looked for. Functions are given to ``remote`` as
calls, because the library has no types.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Protocol, cast

from benchmarks.measure import once
from benchmarks.peers.redis_server import MissingPeerError


class Remote(Protocol):
    """A remote function or class."""

    def remote(self, *arguments: object) -> object: ...  # noqa: D102 - theirs
    def options(self, **options: object) -> Remote: ...  # noqa: D102 - theirs


class Actor(Protocol):
    """An actor with the one method that we call."""

    @property
    def read(self) -> Remote: ...  # noqa: D102 - theirs


class Ray(Protocol):
    """What we use of Ray."""

    def remote(self, function: Callable[[], object] | type) -> Remote: ...  # noqa: D102 - theirs
    def put(self, value: object) -> object: ...  # noqa: D102 - theirs
    def get(self, reference: object) -> object: ...  # noqa: D102 - theirs


def prepare() -> None:
    """Set what every Ray of ours is to find in the environment."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # What workers import comes from here, and they start in a folder of their own.
    os.environ["PYTHONPATH"] = os.getcwd()  # noqa: PTH109 - a string for the environment


@contextlib.contextmanager
def ray_session(store_bytes: int = 400_000_000) -> Iterator[tuple[Ray, float]]:
    """Ray, started, and the seconds that took; it is ended with the body."""
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
