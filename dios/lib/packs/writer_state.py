"""The local state of a machine that makes backups: the data key of a target, and its last snapshot.

The key saves the machine the recipient's private key. The last snapshot shows if the target was rolled back.
A second file lists the packs of the present run, so that the next one continues if it breaks off.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

from dios import limits
from dios.client.locate import config_directory
from dios.client.written_files import make_folder, sync_folder
from dios.errors import Busy, InvalidError, NotPermittedError
from dios.lib.packs.chunks import StoredChunk
from dios.lib.packs.keys import KEY_BYTES, write_private
from dios.trusted_files import require_trusted

_VERSION: Final = 1
_NAME_BYTES: Final = 16
_PACKS_BYTES_MAX: Final = 256 * limits.MIB


class WriterState(msgspec.Struct, frozen=True):
    """The repository of a target with its data key, and the last snapshot that this machine knows in it."""

    repository: bytes
    key: bytes
    sequence: int = 0
    time_ns: int = 0
    digest: bytes = b""

    def __repr__(self) -> str:
        """Return a text without the key."""
        return f"<WriterState of {self.repository.hex()[:12]}, snapshot {self.sequence}>"


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    target: str
    repository: str
    key: str
    sequence: int
    time_ns: int
    digest: str


class _PackLine(msgspec.Struct, array_like=True):
    pack: str
    chunks: list[tuple[str, int, int]]


class StateFile:
    """The file of the state of one target."""

    def __init__(self, place: str) -> None:
        mark = blake3(f"dios backup target 1 {place}".encode()).digest(_NAME_BYTES).hex()
        self._place: Final = place
        self.path: Final = config_directory() / "backups" / f"{mark}.json"

    def load(self) -> WriterState | None:
        """Return the state, or None. Raises NotPermittedError if others may read it, InvalidError."""
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_mode & 0o077:
                    raise NotPermittedError(
                        f"others may read the key of a backup. Run: chmod 600 {self.path}"
                    )
                require_trusted(self.path, "the state of a backup")
                stored = msgspec.json.decode(file.read(), type=_Stored)
            key, repository, digest = map(bytes.fromhex, (stored.key, stored.repository, stored.digest))
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise self._damaged(str(error)) from None
        if stored.version != _VERSION or len(key) != KEY_BYTES:
            raise self._damaged(f"version {stored.version}")
        return WriterState(repository, key, stored.sequence, stored.time_ns, digest)

    def save(self, state: WriterState) -> None:
        """Replace the state in one step, and sync it: without its key nobody could read what follows."""
        make_folder(self.path.parent)
        told = _Stored(
            _VERSION,
            self._place,
            state.repository.hex(),
            state.key.hex(),
            state.sequence,
            state.time_ns,
            state.digest.hex(),
        )
        temporary = self.path.with_suffix(".new")
        # Written under the lock: an existing file of that name is left over from a crash.
        temporary.unlink(missing_ok=True)
        write_private(temporary, msgspec.json.encode(told).decode() + "\n")
        temporary.replace(self.path)
        sync_folder(self.path.parent)

    # -- the packs of a run -------------------------------------------------------------------------
    @property
    def _packs(self) -> Path:
        return self.path.with_suffix(".packs")

    def add_pack(self, chunks: list[StoredChunk]) -> None:
        """Record the chunks of a pack that was just stored."""
        rows = [(chunk.digest.hex(), chunk.offset, chunk.size) for chunk in chunks]
        line = msgspec.json.encode(_PackLine(chunks[0].pack.hex(), rows)) + b"\n"
        fd = os.open(self._packs, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(line)

    def stored_packs(self) -> list[StoredChunk]:
        """Return the chunks that a run stored which broke off. A line that it did not end is left out."""
        chunks: list[StoredChunk] = []
        with contextlib.suppress(FileNotFoundError), self._packs.open("rb") as file:
            require_trusted(self._packs, "the list of packs of a backup")
            for line in file.read(_PACKS_BYTES_MAX).splitlines():
                try:
                    read = msgspec.json.decode(line, type=_PackLine)
                    pack = bytes.fromhex(read.pack)
                    chunks += [StoredChunk(bytes.fromhex(mark), pack, *place) for mark, *place in read.chunks]
                except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
                    continue
        return chunks

    def remove_packs(self) -> None:
        """Forget the packs of the run, because a snapshot names them now."""
        self._packs.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands of this user from changing the same target. Raises Busy."""
        make_folder(self.path.parent)
        fd = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy(f"another command of this user is changing the backup in {self._place}") from None
            yield
        finally:
            os.close(fd)

    def _damaged(self, why: str) -> InvalidError:
        return InvalidError(
            f"{self.path} is damaged ({why}). Remove it, and give the private key with --key once."
        )
