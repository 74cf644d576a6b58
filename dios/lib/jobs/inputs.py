"""A job's inputs: references unchanged, and files copied once into shared memory.

Small files are packed together, so that ten thousand of them do not become ten thousand objects; each stays a
document of its own, with its path as label. ``dios.lib.jobs.records`` divides the inputs among mappers.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from dios.client.sync.node import Node, Reference
from dios.errors import DiosError, InvalidError
from dios.lib.counters import show_counters
from dios.lib.jobs.records import Document
from dios.lib.pickers import pick_input
from dios.limits import JOB_INPUT_BYTES_MAX, JOB_PACK_BYTES
from dios.wire.types import NameKind, ObjectType

Source: TypeAlias = "Reference | Sequence[Reference] | Path | str | bytes"
"""An object, several replicas of it, a file or a directory of files, or the bytes themselves."""

Sources: TypeAlias = "Sequence[Source] | Mapping[str, Source]"

_PACKED_BYTES_MAX: Final = JOB_PACK_BYTES // 8


class Inputs:
    """The objects that a job reads, and the documents in them. ``close`` drops those created here.

    With ``compared`` the bytes of files are hashed, for ``digests``.
    """

    def __init__(self, node: Node, *, compared: bool = False) -> None:
        self._node: Final = node
        self._compared: Final = compared
        self._digests: Final[dict[int, bytes]] = {}
        self._own: Final[list[Reference]] = []
        self.blobs: Final[list[Reference]] = []
        self.documents: Final[list[Document]] = []
        self._pack = bytearray()
        self._packed: list[tuple[int, int, str]] = []

    def add_all(self, sources: Sources) -> None:
        """Add inputs; a mapping has their labels as keys. Raises InvalidError for invalid ones."""
        labelled = sources.items() if isinstance(sources, Mapping) else (("", source) for source in sources)
        for label, source in labelled:
            self._add(source, label)
        self._seal_pack()

    def digests(self) -> list[tuple[bytes, int, int]]:
        """Return what distinguishes each input from another: a digest, or the size and version of an object.

        The version is the same at each replica, so that it does not matter which one is the input.
        """
        return [
            (self._digests[number], 0, 0) if number in self._digests else (b"", blob.size, blob.v_w)
            for number, blob in enumerate(self.blobs)
        ]

    def _add(self, source: Source, label: str) -> None:
        if isinstance(source, Reference):
            self._add_blob(source, label or source.label or source.fingerprint)
        elif isinstance(source, bytes):
            self._add_bytes(source, label)
        elif isinstance(source, str | Path):
            self._add_path(Path(source), label)
        else:
            self._add(pick_input(source), label)

    def _add_blob(self, blob: Reference, label: str, size: int | None = None) -> None:
        show_counters(blob)
        self.blobs.append(blob)
        self.documents.append(Document(len(self.blobs) - 1, 0, blob.size if size is None else size, label))

    def _add_bytes(self, data: bytes, label: str) -> None:
        if len(data) > _PACKED_BYTES_MAX:
            self._make(memoryview(data), label)
            return
        if len(self._pack) + len(data) > JOB_PACK_BYTES:
            self._seal_pack()
        self._packed.append((len(self._pack), len(self._pack) + len(data), label))
        self._pack += data

    def _seal_pack(self) -> None:
        """Create an object of the waiting small documents."""
        pack, self._pack = self._pack, bytearray()
        packed, self._packed = self._packed, []
        if not pack:
            return
        self._own.append(self._create(memoryview(pack)))
        self.blobs.append(self._own[-1])
        number = len(self.blobs) - 1
        self._note_digest(memoryview(pack))
        self.documents.extend(Document(number, start, end, label) for start, end, label in packed)

    def _create(self, data: memoryview) -> Reference:
        return self._node.create(ObjectType.SHMEM_BLOB, data=data, naming=NameKind.ANONYMOUS)

    def _make(self, data: memoryview, label: str) -> None:
        self._own.append(self._create(data))
        self._add_blob(self._own[-1], label, len(data))
        self._note_digest(data)

    def _note_digest(self, data: memoryview) -> None:
        """Hash the bytes of the last input, if inputs are compared."""
        if self._compared:
            self._digests[len(self.blobs) - 1] = hashlib.sha256(data).digest()

    def _add_path(self, path: Path, label: str) -> None:
        try:
            if path.is_dir():
                for file in _files_below(path):
                    self._add_file(file, f"{label}{file.relative_to(path)}")
            else:
                self._add_file(path, label or path.name)
        except OSError as error:
            raise InvalidError(f"the input {path} cannot be read: {error.strerror}") from None

    def _add_file(self, path: Path, label: str) -> None:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= _PACKED_BYTES_MAX:
                self._add_bytes(file.read(), label)
                return
            # The file's pages are copied directly into the object's, inside the kernel.
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                for start, end in _pieces(mapped):
                    with memoryview(mapped)[start:end] as piece:
                        self._make(piece, label)

    def close(self) -> None:
        """Drop the objects that were created here; tasks that still read them keep them."""
        for blob in self._own:
            try:
                blob.delete()
            except DiosError:
                # The node is gone, and the object with it.
                break
        self._own.clear()


def _pieces(mapped: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield a file as parts of at most JOB_INPUT_BYTES_MAX, cut after newlines."""
    start, size = 0, len(mapped)
    while start < size:
        end = min(size, start + JOB_INPUT_BYTES_MAX)
        if end < size:
            end = mapped.rfind(b"\n", start, end) + 1 or end
            if end <= start:
                raise InvalidError(f"a record is longer than {JOB_INPUT_BYTES_MAX} bytes")
        yield start, end
        start = end


def _files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
