"""Reading a file's object from a sound replica, the nearest first, and naming those that were passed over.

A replica is sound if it can be read and its bytes have the digest of the catalogue. Comparing all bytes for
each read would cost more than the read, so bytes in place are trusted if the replica has the size and the
version that storing the file gave it: its node compares them with its own digest, and a later write raises
the version. Bytes that come from another node as a whole are compared, and so are all bytes of a replica
with another version, and those that ``checked_view`` returns.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeVar

from blake3 import blake3

from dios import limits
from dios.client.blob_file import BlobFile, PositionFile
from dios.client.sync.node import Group, Node, Reference
from dios.errors import BadReferenceError, DamagedError, DiosError, InvalidError, StaleError, UnreachableError
from dios.lib.counters import show_counters
from dios.wire.types import ObjectType, Proximity

if TYPE_CHECKING:
    from typing import Self

    from typing_extensions import Buffer

T = TypeVar("T")

RANGE_BYTES: Final = 1 * limits.MIB
_RANGES_BYTES_MIN: Final = 16 * limits.MIB
_BLOBS: Final = frozenset({ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB, ObjectType.PRIVMEM_BLOB})
_log: Final = logging.getLogger(__name__)


class WantedObject(NamedTuple):
    """An object with bytes of a file, as the catalogue lists it. ``digest`` is empty if it is not known."""

    label: str
    name: bytes
    size: int
    digest: bytes

    def __repr__(self) -> str:
        """Return a text without the name, which is a secret."""
        return f"WantedObject({self.label!r}, {self.size} bytes)"


class BadReplica(NamedTuple):
    """A replica that is not sound: its node, and the reason as the end of a sentence."""

    node: str
    why: str


class BadReplicas(NamedTuple):
    """The replicas of an object that a reader passed over, and the node of the sound one that it read."""

    label: str
    bad: tuple[BadReplica, ...]
    sound: str

    def __str__(self) -> str:
        """Return a sentence."""
        return f"the replica of {self.label} {_reasons(self.bad)}; it was read from {_node(self.sound)}"


Notice: TypeAlias = Callable[[BadReplicas], object]
"""A function that reports the replicas that a reader passed over."""


def log_notice(bad_replicas: BadReplicas) -> None:
    """Log the replicas that a reader passed over, as a warning."""
    _log.warning("%s", bad_replicas)


def version_of_put(size: int) -> int:
    """Return the version of an object of this size that nobody has written to since it was stored."""
    return 1 if size > limits.INLINE_BYTES_MAX else 0


def no_sound_replica(label: str, bad: Sequence[BadReplica], *, is_silent: bool) -> DiosError:
    """Return the error for an object without a sound replica; ``is_silent`` if a node does not answer."""
    if not bad and not is_silent:
        return StaleError(f"the object of {label} was destroyed")
    if not bad:
        return UnreachableError(f"{label} is on a node that does not answer", call="lookup")
    text = f"no replica of {label} is sound: the replica {_reasons(bad)}"
    if is_silent:
        return UnreachableError(
            f"{text}; a node that may have another one does not answer. `dios node ls` shows which; read "
            "the file again when that node is back."
        )
    return DamagedError(f"{text}. Restore the file from a backup (`dios backup restore`), or put it again.")


class SoundReplicas:
    """The replicas of one object, for one reader; ``notice`` is called when a bad one was passed over.

    Every method that reads raises StaleError if the object was destroyed, InvalidError if it is no blob,
    UnreachableError if no replica is sound and a node does not answer, and DamagedError if none is sound.
    The last two name each bad replica's node and the reason.
    """

    def __init__(self, node: Node, group: Group, wanted: WantedObject, notice: Notice = log_notice) -> None:
        self._node: Final = node
        self._group: Final = group
        self._wanted: Final = wanted
        self._notice: Final = notice
        self._found: list[Reference] = []
        """The replicas that were found and not passed over; the first one is read."""
        self._tried: Final[set[int]] = set()
        self._bad: Final[list[BadReplica]] = []
        self._noticed = 0
        self._limits: Final = [limits.LOOKUP_REFERENCES_MAX, 1]
        """The numbers of replicas that the next lookups ask for, the next one at the end."""
        self._silent = False
        """True if a node that may have a replica does not answer."""
        self._checked: tuple[int, int] | None = None
        """The object id and the version of the replica that is known to be sound."""

    def view(self) -> memoryview:
        """Return a view of the object's bytes, without a copy."""
        with self:
            return self.read(self._view)

    def checked_view(self) -> memoryview:
        """Return a view of the object's bytes, all of which were compared with the digest."""
        with self:
            return self.read(self._checked_view)

    def open(self, path: str) -> BlobFile | io.BufferedReader:
        """Open the bytes for reading: in place, or in ranges if they are many and on another node."""

        def opened(reference: Reference) -> BlobFile | io.BufferedReader:
            if reference.proximity <= Proximity.NODE or reference.size < _RANGES_BYTES_MIN:
                return BlobFile(self._view(reference), path)
            _probe(reference)
            return io.BufferedReader(_RangeFile(self, reference.size), RANGE_BYTES)

        try:
            file = self.read(opened)
        except BaseException:
            self.close()
            raise
        if isinstance(file, BlobFile):
            self.close()
        return file

    def reference(self) -> Reference:
        """Return a reference to a replica that can be read. The caller closes it."""
        with self:
            self.read(_probe)
            return self._found.pop(0)

    def read(self, action: Callable[[Reference], T]) -> T:
        """Return the result of an action on a sound replica; the next call begins with the same replica.

        An action that raises DamagedError or UnreachableError is done again on the next replica.
        """
        while True:
            reference = self._next()
            try:
                self._require_sound(reference)
                result = action(reference)
            except (StaleError, BadReferenceError):
                self._drop(reference)
            except _OtherBytesError:
                self._pass_over(reference, "has other bytes than the file")
            except DamagedError:
                self._pass_over(reference, "is damaged")
            except UnreachableError:
                self._pass_over(reference, "does not answer")
                self._silent = True
            else:
                if len(self._bad) > self._noticed:
                    self._notice(
                        BadReplicas(self._wanted.label, tuple(self._bad[self._noticed :]), reference.node)
                    )
                    self._noticed = len(self._bad)
                return result

    def close(self) -> None:
        """Close the references that are open."""
        references, self._found = self._found, []
        for reference in references:
            reference.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- finding --------------------------------------------------------------------------------------
    def _next(self) -> Reference:
        """Return the replica to read. The nearest one is looked up first, and all others if that is bad."""
        while not self._found:
            if not self._limits:
                raise no_sound_replica(self._wanted.label, self._bad, is_silent=self._silent)
            references = self._node.lookup(self._wanted.name, group=self._group, limit=self._limits.pop())
            if not references or references.incomplete:
                self._silent = references.incomplete
            if not references:
                # This lookup has asked all nodes.
                self._limits.clear()
            for reference in sorted(references, key=lambda candidate: candidate.proximity):
                if reference.object_id in self._tried:
                    reference.close()
                else:
                    self._tried.add(reference.object_id)
                    self._found.append(reference)
        return self._found[0]

    def _drop(self, reference: Reference) -> None:
        self._found.remove(reference)
        reference.close()

    def _pass_over(self, reference: Reference, why: str) -> None:
        self._bad.append(BadReplica(reference.node, why))
        self._drop(reference)

    # -- checking -------------------------------------------------------------------------------------
    def _require_sound(self, reference: Reference) -> None:
        """Raise an error if the bytes of a replica are, or may be, other ones than those of the file."""
        wanted = self._wanted
        if reference.type not in _BLOBS:
            raise InvalidError(f"{wanted.label!r} is a {reference.type.name}, not a file")
        if not wanted.digest:
            return
        show_counters(reference)
        version = reference.v_w
        if reference.size != wanted.size:
            raise _OtherBytesError
        if version == version_of_put(wanted.size):
            return
        if self._checked != (reference.object_id, version):
            self._require_digest(reference.view_bytes())
            self._checked = reference.object_id, version

    def _require_digest(self, view: memoryview) -> None:
        if self._wanted.digest and blake3(view).digest() != self._wanted.digest:
            raise _OtherBytesError

    # -- reading --------------------------------------------------------------------------------------
    def _view(self, reference: Reference) -> memoryview:
        """View the bytes and close the reference, in one message."""
        with self._node.batch() as batch:
            viewed = batch.add(reference.view_bytes)
            batch.add(reference.close)
        view = viewed.result()
        if reference.proximity > Proximity.NODE:
            self._require_digest(view)
        return view

    def _checked_view(self, reference: Reference) -> memoryview:
        view = self._view(reference)
        if reference.proximity <= Proximity.NODE:
            self._require_digest(view)
        return view


class _OtherBytesError(Exception):
    """The bytes of a replica are not those of the file."""

    def __init__(self) -> None:
        super().__init__("the bytes are not those of the file")


def _probe(reference: Reference) -> None:
    """Read a byte, so that the node loads the object and compares its bytes with its own digest."""
    reference.read_bytes(1)


def _node(name: str) -> str:
    return name or "this node"


def _reasons(bad: Iterable[BadReplica]) -> str:
    return ", ".join(f"on {_node(replica.node)} {replica.why}" for replica in bad)


class _RangeFile(PositionFile, io.RawIOBase):
    """A file on another node, of which only the ranges that are read come here."""

    def __init__(self, replicas: SoundReplicas, size: int) -> None:
        self._replicas: Final = replicas
        self._size: Final = size

    @property
    def size(self) -> int:
        return self._size

    def readinto(self, buffer: Buffer, /) -> int:
        with memoryview(buffer) as given, given.cast("B") as target:
            size = min(target.nbytes, self.size - self._at)
            if size <= 0:
                return 0
            part = self._replicas.read(lambda reference: reference.read_bytes(size, self._at))
            target[: len(part)] = part
            self._at += len(part)
            return len(part)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._replicas.close()
