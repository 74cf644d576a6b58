"""The surroundings of the library in a run: virtual time, random bytes by the seed, small limits, a store.

They replace names of modules for the time of a run, in ``dios.lib`` alone where possible. The event loop and
the simulator itself are not affected.
"""

from __future__ import annotations

import os
import random as standard_random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Final
from unittest.mock import patch

from dios import limits
from dios.client import buffers
from dios.lib.files.tier import entries, inward
from dios.lib.packs import tier_store as stores
from dios.lib.packs.configuration import REPOSITORY_BYTES
from dios.lib.packs.keys import KEY_BYTES
from dios.lib.packs.sealing import DataKey
from dios.lib.packs.tier_store import TierStore
from labs.sim.kept.links import present_program

_BEGIN_NS: Final = 1_000_000 * 10**9
"""The time of day at which a run begins."""
_LIBRARY: Final = "dios.lib."


class VirtualTime:
    """The module ``time`` of a run, in which ``now`` returns the seconds since its begin."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.monotonic: Final = now
        self.perf_counter: Final = now

    @staticmethod
    def sleep(seconds: float) -> None:
        """Let the calling program sleep."""
        program = present_program()
        if program is None:
            raise AssertionError("the event loop must not sleep")
        program.sleep(seconds)

    def time_ns(self) -> int:
        """Return the time of day by the clock of the calling program's machine."""
        program = present_program()
        error_s = 0.0 if program is None else program.clock_s
        return _BEGIN_NS + int((self.monotonic() + error_s) * 1e9)

    def time(self) -> float:
        """Return ``time_ns`` in seconds."""
        return self.time_ns() / 1e9


class MemoryTarget:
    """A store of tiered files in memory, which loses nothing."""

    place: Final = "memory://tier"

    def __init__(self) -> None:
        self.files: Final[dict[str, bytes]] = {}

    def read(self, path: str, size_max: int) -> bytes:
        """Return a whole file."""
        del size_max
        if path not in self.files:
            raise FileNotFoundError(2, "there is no such file", path)
        return self.files[path]

    def write(self, path: str, data: bytes) -> None:
        """Store a new file."""
        if path in self.files:
            raise FileExistsError(17, "the file exists already", path)
        self.files[path] = bytes(data)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        return [path.rpartition("/")[2] for path in self.files if path.startswith(f"{folder}/")]

    def remove(self, path: str) -> None:
        """Remove a file."""
        if self.files.pop(path, None) is None:
            raise FileNotFoundError(2, "there is no such file", path)


class ModelTierStore(TierStore):
    """A store in memory. ``removed`` is called with the mark of a file before its bytes are removed."""

    removed: Callable[[bytes], None] = staticmethod(lambda _: None)

    def require_group(self, group: object) -> None:
        """Accept the only group."""

    def require_present(self) -> None:
        """Accept the only store."""

    def remove(self, mark: bytes, size: int) -> None:
        """Remove whatever is stored under a mark."""
        self.removed(mark)
        super().remove(mark, size)


def tier_store(random: Random) -> ModelTierStore:
    """Return an empty store in memory."""
    key = DataKey(random.randbytes(KEY_BYTES), random.randbytes(REPOSITORY_BYTES))
    return ModelTierStore(MemoryTarget(), key, compress=False, group="")


@contextmanager
def surroundings(
    random: Random, now: Callable[[], float], store: TierStore, small: dict[str, int]
) -> Iterator[None]:
    """Let the library see virtual time, random bytes of ``random``, a store, and other limits."""
    virtual = VirtualTime(now)
    with ExitStack() as stack:

        def replace(owner: object, name: str, value: object) -> None:
            stack.enter_context(patch.object(owner, name, value))

        modules = [loaded for name, loaded in list(sys.modules.items()) if name.startswith("dios.")]
        for module in modules:
            names: dict[str, object] = vars(module)
            if module.__name__.startswith(_LIBRARY) and names.get("time") is time:
                replace(module, "time", virtual)
            for name, value in small.items():
                if module is not limits and names.get(name) == getattr(limits, name):
                    replace(module, name, value)
        for name, value in small.items():
            replace(limits, name, value)
        # The model sends all bytes in messages.
        replace(buffers, "INLINE_BYTES_MAX", limits.BLOB_BYTES_MAX)
        replace(os, "urandom", random.randbytes)
        replace(standard_random, "_urandom", random.randbytes)
        for module in (entries, inward, stores):
            replace(module, "known_store", lambda _place, _group: store)
        # Programs are processes of their own, which share no locks.
        replace(inward, "_lock_of", lambda _mark: threading.Lock())
        yield
