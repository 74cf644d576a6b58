"""The group of a kept round: made with a promise, looked at when the faults are over, and destroyed."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from blake3 import blake3

import dios
from dios import limits
from dios.client.keyring import Keyring
from dios.errors import DiosError
from dios.ids import Name
from dios.lib import catalogue
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.catalogue_places import CATALOGUE_ALIAS, KeyringCatalogue
from dios.lib.files.group_files import GroupFiles
from dios.lib.files.groups import ReachableGroups
from dios.lib.kept.promises import Promises
from dios.lib.kept.records import KEPT_RECORDS
from dios.lib.packs.keys import generate, save_pair
from dios.lib.replicated_record import frame
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType
from tests.chaos.kept.content import ABSENT, value_of
from tests.chaos.kept.verdict import NO_LIST, THE_LIST, Observation, Replica, Wanted

CONVERGE_S: Final = 40.0
CONFLICT_S: Final = 5.0
"""The time that a conflict must last to be a finding."""
_LOOK_S: Final = 0.2


class KeptGroup:
    """A group with a promise, of a user whose keyring is in the folder of the run."""

    def __init__(self, alias: str, replicas: int, nodes: int) -> None:
        self.alias: Final = alias
        self.wanted: Final = Wanted(replicas, min(nodes, max(replicas, limits.KEPT_LIST_REPLICAS)))

    def create(self, socket: Path) -> None:
        """Make the group, its list and its promise."""
        with dios.connect(str(socket), groups=(), start=False) as node:
            group = node.create_group()
            keyring = Keyring.load()
            keyring.add(self.alias, Name(group.name or b""))
            list_reference = KeyringCatalogue(node, keyring, self.alias, group).create()
            Promises(node).keep_group(group, list_reference, label=self.alias, replicas=self.wanted.files)
        with self.files(socket) as files:
            # Before that the list is on one disk, and programs that replace and remove leave no notes.
            if not settled(lambda: self._is_replicated(files), CONVERGE_S):
                told = Promises(files.node).promise(files.group)
                with _looked_up(files, self._list_name()) as several:
                    there = [(reference.node, reference.v_w) for reference in several]
                raise AssertionError(f"a new list is on {there} after {CONVERGE_S:g} s: {told}")

    def _is_replicated(self, files: GroupFiles) -> bool:
        with _looked_up(files, self._list_name()) as several:
            return len(several) == self.wanted.list and Promises(files.node).promised(files.group) > 0

    def _list_name(self) -> bytes:
        return bytes(Keyring.load().objects[CATALOGUE_ALIAS + self.alias])

    @contextlib.contextmanager
    def files(self, socket: Path) -> Iterator[GroupFiles]:
        """Open the files of the group on a node."""
        groups = ReachableGroups(str(socket))  # it closes the connection with its own end
        group_files = groups.files(self.alias)
        try:
            yield group_files
        finally:
            group_files.node.close()

    # -- convergence --------------------------------------------------------------------------------
    def wait_kept(self, socket: Path, seen: Observation) -> None:
        """Wait until the keeper says that the promise is kept and the number of replicas is exact."""
        deadline = time.monotonic() + CONVERGE_S
        conflict_since: float | None = None
        while True:
            seen.kept, seen.why, seen.conflicts = False, "", 0
            try:
                with self.files(socket) as files:
                    self._look(files, seen)
            except (DiosError, OSError) as error:
                seen.why = f"{type(error).__name__}: {error}"
            now = time.monotonic()
            if seen.kept:
                return
            conflict_since = None if not seen.conflicts else conflict_since or now
            if now > deadline or (conflict_since is not None and now - conflict_since > CONFLICT_S):
                return
            time.sleep(_LOOK_S)

    def _look(self, files: GroupFiles, seen: Observation) -> None:
        promise = Promises(files.node).promise(files.group)
        if promise is None:
            seen.why = "no node knows the promise"
            return
        seen.conflicts = promise.conflicts
        tree = files.tree()
        seen.replicas = self._replicas(files, tree.entries)
        # The keeper cannot use a store: a later change destroys what a store has of a former file.
        left = [note.former.file for note in tree.notes if note.former.tier is None]
        if not promise.checked or promise.short or left:
            seen.why = (
                f"leader {promise.leader or 'unknown'}, {promise.short} of {promise.objects} objects short "
                f"({promise.reason}), {len(left)} former files left {left[:3]}"
            )
            return
        uneven = [path for path, several in seen.replicas.items() if len(several) != self.wanted.of(path)]
        seen.kept = not uneven and all(
            replica.same for several in seen.replicas.values() for replica in several
        )
        if not seen.kept:
            seen.why = f"the keeper says yes, but {len(uneven)} objects have another number: {uneven[:3]}"

    def _replicas(self, files: GroupFiles, entries: tuple[CatalogueEntry, ...]) -> dict[str, list[Replica]]:
        replicas: dict[str, list[Replica]] = {}
        for entry in entries:
            for name in entry.names:
                with _looked_up(files, name) as several:
                    replicas[entry.file] = [
                        Replica(
                            reference.node,
                            reference.v_w,
                            blake3(reference.read_bytes()).digest() == entry.digest,
                        )
                        for reference in several
                    ]
        with _looked_up(files, self._list_name()) as several:
            lists = [catalogue.decode_all(frame.content_of(reference.read_bytes())) for reference in several]
            replicas[THE_LIST] = [
                Replica(reference.node, reference.v_w, decoded == lists[0])
                for reference, decoded in zip(several, lists, strict=True)
            ]
        return replicas

    # -- reading ------------------------------------------------------------------------------------
    def read_all(self, socket: Path, paths: set[str]) -> dict[str, int | str]:
        """Return what a node reads of all paths that it lists, and of others that were ever written."""
        try:
            with self.files(socket) as files:
                listed = set(files.tree().files)
                return {
                    path: _read(files, path) if path in listed else ABSENT for path in sorted(paths | listed)
                }
        except (DiosError, OSError) as error:
            return dict.fromkeys(paths, f"{NO_LIST}{type(error).__name__}: {error}")

    def orphans(self, socket: Path) -> list[str]:
        """Return the user's stored objects on a node that ``dios ls --orphans`` would show."""
        with self.files(socket) as files:
            node = files.node
            tree = files.tree()
            known = {fingerprint(name) for entry in tree.entries for name in entry.local_names}
            known |= {fingerprint(name) for note in tree.notes for name in note.former.local_names}
            known |= {fingerprint(bytes(name)) for name in Keyring.load().objects.values()}
            for record in node.lookup(KEPT_RECORDS.special_name):
                known.add(record.fingerprint)
                record.close()
            owner = f"uid:{os.getuid()}"
            return [
                str(row["fingerprint"])
                for row in node.read_table("objects")
                if row["type"] == ObjectType.DURABLE_BLOB.name
                and row["owner"] == owner
                and row["fingerprint"] not in known
                and not row["references"]
            ]

    # -- the end ------------------------------------------------------------------------------------
    def destroy(self, socket: Path) -> None:
        """Destroy the files, the promise, the list and the group, as far as that is possible."""
        with contextlib.suppress(DiosError, OSError, KeyError), self.files(socket) as files:
            with contextlib.suppress(DiosError, OSError, KeyError):
                files.remove(list(files.tree().files))
            with contextlib.suppress(DiosError):
                Promises(files.node).end(files.group.fingerprint)
            with _looked_up(files, self._list_name()) as several:
                for reference in several:
                    reference.destroy()
            files.group.destroy()
        keyring = Keyring.load()
        with contextlib.suppress(DiosError):
            keyring.remove(self.alias)
        with contextlib.suppress(DiosError):
            keyring.remove(CATALOGUE_ALIAS + self.alias, section="objects")


def _read(files: GroupFiles, path: str) -> int | str:
    try:
        data = bytes(files.view(path))
    except (DiosError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    value = value_of(data)
    return f"{len(data)} bytes that were never put" if value is None else value


@contextlib.contextmanager
def _looked_up(files: GroupFiles, name: bytes) -> Iterator[list[dios.Reference]]:
    references = files.node.lookup(name, group=files.group)
    try:
        yield [replica for replica in references if replica.type is ObjectType.DURABLE_BLOB]
    finally:
        for reference in references:
            with contextlib.suppress(DiosError):
                reference.close()


def make_recipient(folder: Path) -> Path:
    """Make the key pair of the stores of tiered files, and return the recipient's file."""
    return save_pair(folder / "tier.key", generate())


def settled(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for a condition for some time; return True if it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True
