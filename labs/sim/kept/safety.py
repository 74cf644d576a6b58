"""The safety of acknowledged files while a run goes on: the disks that have them, and who takes them away.

A file is on a disk if the disk has all of its bytes, and listed on a disk if that has a list with its entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, NamedTuple

from blake3 import blake3

from dios.lib import catalogue
from dios.lib.catalogue import CatalogueEntry, Listed
from dios.lib.replicated_record import frame
from dios.lib.replicated_record.frame import Member
from dios.wire.nametext import fingerprint
from labs.sim.kept.file_history import Change, FileHistory, Outcome
from labs.sim.kept.nodes import ModelCluster, StoredReplica

SAFE_DISKS: Final = 2
"""The least number of replicas that a run promises: what was on as many disks stays on as many."""
_HARMED_S: Final = 12.0
"""A keeper that destroys a copy has compared the others not longer ago; see ``KEPT_COMPARED_MS``."""
_IN_STORE: Final = 100
"""The number of disks that count for a file in a store outside of the cluster."""


class Fault(NamedTuple):
    """A claim that does not hold, and how."""

    claim: str
    text: str


class _Disks(NamedTuple):
    """The numbers of disks that have the bytes of a file, and its list entry."""

    content: int
    listing: int


@lru_cache(4096)
def digest_of(data: bytes) -> bytes:
    """Return the digest of bytes."""
    return blake3(data).digest()


@lru_cache(1024)
def decoded(data: bytes) -> Listed:
    """Return the content of a list."""
    return catalogue.decode_all(data)


def objects_of(entry: CatalogueEntry) -> dict[bytes, bytes]:
    """Return the digests of the objects of a local file, by their names."""
    if entry.tiered or not entry.name:
        return {}
    if entry.in_parts:
        return {part.name: part.digest for part in entry.parts()}
    return {entry.name: entry.digest}


class Safety:
    """Follows the disks of acknowledged files through faults, and what programs and keepers destroy."""

    def __init__(self, cluster: ModelCluster, files: FileHistory) -> None:
        self._cluster: Final = cluster
        self._files: Final = files
        self.list_name = b""
        self.log: Callable[[str], None] = lambda _: None
        """Called with a line for each object of a file that is destroyed."""
        self.faults: Final[list[Fault]] = []
        self.lost = 0
        """The acknowledged contents that were lost with as many disks as had them."""
        self.list_is_lost = False
        """True if faults took away the list with as many disks as had it."""
        self._list_taken = 0
        self._last_fault = float("-inf")
        self._contents: Final[dict[tuple[bytes, bytes], set[tuple[str, bytes]]]] = {}
        """The paths and digests of the files that an object was part of, by its name and digest."""
        self._stored: Final[set[tuple[str, bytes]]] = set()
        """The paths and digests of files that were in a store: what these replaced need not wait any more."""
        self._removed: Final[set[bytes]] = set()
        """The marks of bytes that were removed from a store, which a list that is late may still name."""
        self._let_go: Final[set[bytes]] = set()
        """The marks of files that lists have as local ones that do not need their store any more."""

    # -- disks --------------------------------------------------------------------------------------
    def lists(self) -> Iterator[tuple[StoredReplica, Listed]]:
        """Yield the living replicas of the list that can be read, and their contents."""
        for replica in self._cluster.living(self.list_name):
            if not replica.damaged:
                yield replica, decoded(replica.data)

    def _latest_lists(self) -> set[int]:
        """Return the object ids of the sound members that have the latest version of the list."""
        versions: dict[int, set[int]] = {}
        for replica in self._cluster.living(self.list_name):
            here = Member(replica.object_id, "")
            value = frame.decode(replica.data, here, whole=False).value
            latest = versions.setdefault(value.version, set())
            if not replica.damaged and replica.object_id in value.object_ids:
                latest.add(replica.object_id)
        return versions[max(versions)] if versions else set()

    def sound(self, name: bytes, digest: bytes) -> list[StoredReplica]:
        """Return the replicas of an object that have the bytes of a digest."""
        living = self._cluster.living(name)
        return [replica for replica in living if not replica.damaged and digest_of(replica.data) == digest]

    def _disks(self, path: str, content: bytes, *, without: bytes = b"", compared: bool = False) -> _Disks:
        """Return where a content is, as a file or as a former one that a note keeps.

        Its bytes in a store under the mark ``without`` do not count. With ``compared`` those count that a
        fault has taken away so lately that they may have been compared before it.
        """
        digest = digest_of(content)
        variants: set[CatalogueEntry] = set()
        listing: set[int] = set()
        for replica, listed in self.lists():
            for entry in (*listed.entries, *(note.former for note in listed.notes if note.until)):
                if entry.file == path and entry.digest == digest:
                    variants.add(entry)
                    listing.add(replica.node)
        most = max((self._disks_of(entry, without, compared=compared) for entry in variants), default=0)
        return _Disks(most, len(listing))

    def _disks_of(self, entry: CatalogueEntry, without: bytes, *, compared: bool) -> int:
        if (
            entry.tier is not None
            and entry.tier.manifest
            and entry.tier.mark not in {without, *self._removed}
        ):
            return _IN_STORE
        if entry.tiered:
            return 0
        places = [{replica.node for replica in self.sound(*row)} for row in objects_of(entry).items()]
        if compared and all(places):
            since = self._cluster.now() - _HARMED_S
            for nodes, name in zip(places, objects_of(entry), strict=True):
                nodes.update(
                    replica.node for replica in self._cluster.named(name) if replica.harmed_at > since
                )
        return min(map(len, places))

    # -- faults -------------------------------------------------------------------------------------
    @contextmanager
    def fault(self) -> Iterator[None]:
        """Follow a fault, in the body, that takes bytes away.

        A content is excused if it is on no disk then. It had to be on as many disks as acknowledged it, at
        least on SAFE_DISKS; so as many faults must have taken it away. The same holds for a content whose
        change may have been made; one that was on no disk is not excused.
        """
        before = {
            (path, change): self._disks(path, change.contents[path] or b"")
            for path, change in self._files.present(self._cluster.now())
        }
        lists = self._latest_lists()
        yield
        self._last_fault = self._cluster.now()
        left = len(lists & self._latest_lists())
        self._list_taken = (0 if len(lists) >= SAFE_DISKS else self._list_taken) + len(lists) - left
        self.list_is_lost = self.list_is_lost or (not left and self._list_taken >= SAFE_DISKS)
        for (path, change), former in before.items():
            self._follow(path, change, former, self._disks(path, change.contents[path] or b""))

    def _follow(self, path: str, change: Change, former: _Disks, disks: _Disks) -> None:
        is_open = change.outcome is Outcome.OPEN
        least = SAFE_DISKS if is_open else min(change.disks, SAFE_DISKS)
        gone: list[int] = []
        taken = change.taken.setdefault(path, [0, 0])
        for number, (had, has) in enumerate(zip(former, disks, strict=True)):
            before = 0 if had >= least else taken[number]
            taken[number] = before + max(had - has, 0)
            if not has:
                gone.append(taken[number])
        if gone and is_open:
            if min(gone) >= least:
                change.excused.add(path)
        elif gone:
            change.excused.add(path)
            self.lost += 1
            if min(gone) < least and self._is_latest(path, change):
                subject = "the bytes" if not disks.content else "the list entry"
                self._note(
                    "safe",
                    f"{subject} of {path}, acknowledged by {change.disks} disks at {change.ended:.3f}, "
                    "were lost"
                    f" with {min(gone)} of them",
                )

    def note_acknowledged(self, change: Change) -> None:
        """Check that a content is on as many disks as have acknowledged it."""
        disturbed = self._last_fault >= change.begun
        for path, content in change.contents.items():
            if content is None or not change.disks:
                continue
            disks = self._disks(path, content)
            if disturbed:
                change.taken[path] = [max(change.disks - has, 0) for has in disks]
                if not min(disks):
                    change.excused.add(path)
                    self.lost += 1
            elif min(disks) < change.disks and self._is_latest(path, change):
                self._note(
                    "acknowledged",
                    f"{change.disks} disks acknowledged {path}, which is on {disks.content} and listed on"
                    f" {disks.listing}",
                )

    def has_former(self, path: str) -> bool:
        """Return True if a file was lost with the disks of a put that was not acknowledged.

        Fewer than SAFE_DISKS had its bytes, and the file before it stays as a former one.
        """
        now = self._cluster.now()
        changes = [change for change in self._files.candidates(path, now, now) if change is not None]
        careless = any(change.outcome is Outcome.OPEN and change.disks < SAFE_DISKS for change in changes)
        contents = [content for change in changes if (content := change.contents[path]) is not None]
        return careless and any(self._disks(path, content).content for content in contents)

    def _is_latest(self, path: str, change: Change) -> bool:
        now = self._cluster.now()
        return list(self._files.candidates(path, now, now)) == [change]

    # -- destruction --------------------------------------------------------------------------------
    def note_list(self, data: bytes) -> None:
        """Note the objects of the files in a list that is stored.

        A file that was brought back leaves its store when its entry does not say any more where its bytes
        are: nobody can read them from then on, so this is checked like a removal. They may go much later.
        """
        for entry in decoded(data).entries:
            for part in objects_of(entry).items():
                self._contents.setdefault(part, set()).add((entry.file, entry.digest))
            tier = entry.tier
            if tier is not None and tier.manifest:
                self._stored.add((entry.file, entry.digest))
            elif tier is not None and tier.left and tier.mark not in self._let_go:
                self._let_go.add(tier.mark)
                self._require_safe(entry.file, entry.digest, tier.mark, "it left its store")

    def note_destroyed(self, gone: StoredReplica, by: str) -> None:
        """Check that an object that is destroyed was not the last safe copy of a file.

        There must be another copy, a safe content that replaces it, or somebody who removed it.
        """
        part = gone.name, digest_of(gone.data)
        known = self._contents.get(part, set())
        for path, _ in sorted(known):
            self.log(f"{by} destroyed {fingerprint(gone.name)[:12]} of {path} on n{gone.node}")
        if not gone.damaged and not self.sound(*part):
            for path, digest in sorted(known):
                self._require_safe(path, digest, b"", f"{by} destroyed it")

    def note_removed(self, mark: bytes) -> None:
        """Check that bytes that are removed from a store were not the last safe copy of a file."""
        self.log(f"the bytes under {mark.hex()[:12]} were removed from the store")
        self._removed.add(mark)
        for _, listed in self.lists():
            for entry in listed.entries:
                tier = entry.tier
                if tier is not None and tier.mark == mark and tier.left and mark not in self._let_go:
                    self._require_safe(entry.file, entry.digest, mark, "it was removed from its store")

    def _require_safe(self, path: str, digest: bytes, mark: bytes, how: str) -> None:
        now = self._cluster.now()
        done = [change for change in self._files.of(path) if change.outcome is Outcome.DONE]
        safe = [edit for edit in done if edit.disks >= SAFE_DISKS and path not in edit.excused]
        own = [edit for edit in safe if digest_of(edit.contents[path] or b"") == digest]
        over = [edit for edit in done if edit in safe or edit.contents[path] is None]
        if not any(all(later.begun <= change.ended for later in over) for change in own):
            return  # it was not acknowledged, or removed or replaced since
        since = min(change.begun for change in own)
        later = [change for change in done if change.ended > since]
        for change in (*later, *self._files.candidates(path, now, now)):
            content = None if change is None else change.contents[path]
            if (
                content is None
                or self._disks(path, content, without=mark, compared=True).content >= SAFE_DISKS
            ):
                return
            other = digest_of(content)
            if other != digest and (path, other) in self._stored:
                return
        self._note("last copy", f"{path} has no other safe copy, and {how} at {now:.3f}")

    def _note(self, claim: str, text: str) -> None:
        self.faults.append(Fault(claim, text))
