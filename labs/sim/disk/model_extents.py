"""Extents on a simulated disk, with the order of operations of ``dios.store.extents``.

Like the real extents, it removes its own files when one of its operations fails. Rows are in
``labs.sim.disk.model_store``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from blake3 import blake3

from labs.sim.disk.device import Device, File

FOLDER: Final = "extents"


class ModelExtents:
    """The extent files of one model store; its methods raise OSError."""

    def __init__(self, device: Device, rng: Random) -> None:
        self._device: Final = device
        self._rng: Final = rng

    def write_all(self, contents: Sequence[bytes]) -> list[tuple[int, bytes]]:
        """Write one extent for each content, make all durable, and return their ids and digests."""
        done: list[tuple[int, File, int]] = []
        try:
            for content in contents:
                extent = self._rng.getrandbits(64)
                file = self._device.create(_name(extent))
                done.append((extent, file, len(content)))
                self._device.allocate(file, len(content))
                written = 0
                while written < len(content):
                    written += self._device.write(file, written, content[written:])
            for _, file, _ in done:
                self._sync(file)
            self._sync_folder()
            return [
                (extent, blake3(self._device.read_unchecked(file, 0, size)).digest())
                for extent, file, size in done
            ]
        except BaseException:
            self.remove(extent for extent, _, _ in done)
            raise

    def read(self, extent: int, size: int) -> bytes:
        """Return the first ``size`` bytes of an extent; raise FileNotFoundError if it does not exist."""
        return self._device.read(self._device.open(_name(extent)), 0, size)

    def size(self, extent: int) -> int | None:
        """Return the size of an extent's file in bytes, or None if there is none."""
        try:
            return self._device.open(_name(extent)).size
        except FileNotFoundError:
            return None

    def stored(self) -> list[int]:
        """Return every extent that has a file."""
        return [
            int(name.rpartition("/")[2], 16) for name in self._device.names() if name.startswith(f"{FOLDER}/")
        ]

    def remove(self, extents: Iterable[int]) -> None:
        """Remove extents that no row names; an extent that cannot be removed waits for the next start."""
        for extent in extents:
            with contextlib.suppress(OSError):
                self._device.unlink(_name(extent))

    def _sync(self, file: File) -> None:
        self._device.sync(file)

    def _sync_folder(self) -> None:
        self._device.sync_folder(FOLDER)


def _name(extent: int) -> str:
    return f"{FOLDER}/{extent:016x}"
