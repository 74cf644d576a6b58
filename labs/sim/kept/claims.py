"""The claims about files and replicas, checked when the faults of a run have ended and keepers had time."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Final, cast

import trio

from dios.errors import DiosError
from dios.lib.catalogue import CatalogueEntry
from dios.lib.files.group_files import GroupFiles
from dios.lib.kept import records
from dios.lib.kept.records import KEPT_NAME, KeptPromise, KeptState
from dios.lib.packs import tier_store
from dios.wire.nametext import fingerprint
from dios.wire.types import ObjectType
from labs.sim.kept.calls import ModelSession
from labs.sim.kept.links import ModelProgram
from labs.sim.kept.nodes import ModelCluster, StoredReplica
from labs.sim.kept.safety import Fault, decoded, objects_of
from labs.sim.kept.users import Users, _OneProgram, shown

_BROUGHT_BACK_S: Final = 30.0
"""The time in which the keepers make replicas of a file that the last reader brought back from its store."""


class Claims:
    """The claims of one run."""

    def __init__(self, users: Users) -> None:
        self._users: Final = users
        self._cluster: Final = users.cluster
        self._safety: Final = users.safety

    async def check(self) -> tuple[list[Fault], Counter[str]]:
        """Return the claims that do not hold, and counts.

        Nothing is claimed about files whose list was lost with as many disks as had it: the user repairs it.
        """
        faults = list(self._safety.faults)
        counts: Counter[str] = Counter()
        faults += self._check_single(counts)
        if self._safety.list_is_lost:
            counts["lost lists"] += 1
            return faults, counts
        before = {replica.data for replica, _ in self._safety.lists()}
        contents = await self._contents(faults)
        if any(replica.data not in before for replica, _ in self._safety.lists()):
            await trio.sleep(_BROUGHT_BACK_S)
        faults += self._check_contents(contents)
        promise = self._promise(faults)
        if promise is not None:
            faults += self._check_list(promise)
            faults += self._check_files(promise, counts)
        faults += self._check_strays(counts)
        return faults, counts

    def _promise(self, faults: list[Fault]) -> KeptPromise | None:
        key = fingerprint(self._users.group)
        promise = promises_of(self._cluster).promises.get(key)
        if promise is None or promise.replicas not in self._users.promised:
            faults.append(Fault("promise", f"it is {promise}, and a user made it {self._users.promised}"))
        return promise

    async def _contents(self, faults: list[Fault]) -> dict[str, bytes | Exception | None]:
        """Return the contents of all files as a program reads them, or the errors."""
        contents: dict[str, bytes | Exception | None] = {}
        node = self._cluster.random.choice([node for node in self._cluster.nodes if node.is_up])

        def work(program: ModelProgram) -> None:
            session = ModelSession(self._cluster, node.number, self._users.group)
            _, files = self._users.open(program, session)
            try:
                tree = files.tree()
            except (DiosError, OSError) as error:
                faults.append(Fault("list", f"it cannot be read on {node.name}: {error}"))
                return
            for path in self._users.files.paths:
                entry = tree.files.get(path)
                try:
                    contents[path] = None if entry is None else _content(files, entry)
                except (DiosError, OSError) as error:
                    contents[path] = error
            unknown = tree.files.keys() - set(self._users.files.paths)
            faults.extend(Fault("listed", f"nobody has put {path}") for path in sorted(unknown))
            session.close()

        await ModelProgram(work).run()
        return contents

    def _check_contents(self, contents: dict[str, bytes | Exception | None]) -> Iterator[Fault]:
        now, files = self._cluster.now(), self._users.files
        for path, content in contents.items():
            if files.is_excused(path, now):
                continue
            allowed = files.allowed(path, now, now)
            expected = " or ".join(sorted(map(shown, allowed)))
            if isinstance(content, Exception):
                # An interrupted removal destroys the objects first, and the file stays in the list.
                if None not in allowed and not self._safety.has_former(path):
                    yield Fault(
                        "readable", f"{path} should be {expected}: {type(content).__name__} {content}"
                    )
            elif content not in allowed:
                claim = "listed" if content is None else "removed" if allowed == {None} else "current"
                yield Fault(claim, f"{path} is {shown(content)} and should be {expected}")

    def _check_list(self, promise: KeptPromise) -> Iterator[Fault]:
        replicas = self._cluster.living(self._users.list_name)
        nodes = sorted(replica.node for replica in replicas)
        up = sum(node.is_up for node in self._cluster.nodes)
        if len(set(nodes)) < min(promise.replicas, up):
            yield Fault("list", f"it is on the nodes {nodes}, and {promise.replicas} replicas are promised")
        if len(set(nodes)) < len(nodes):
            yield Fault("list", f"it is on the nodes {nodes}, more than once on one")
        if len({decoded(replica.data) for replica in replicas}) > 1:
            versions = ", ".join(f"n{replica.node} version {replica.v_w}" for replica in replicas)
            yield Fault("list", f"its replicas differ: {versions}")
        if fingerprint(self._users.list_name) in self._shown():
            yield Fault("conflict", "the list is in conflict")

    def _entries(self) -> list[CatalogueEntry]:
        """Return the entries of all lists, which are equal if the claims hold."""
        rows = {
            (entry.file, entry.name): entry for _, listed in self._safety.lists() for entry in listed.entries
        }
        return list(rows.values())

    def _check_files(self, promise: KeptPromise, counts: Counter[str]) -> Iterator[Fault]:
        """Check the places of the replicas of all files."""
        conflicts, now = self._shown(), self._cluster.now()
        for entry in self._entries():
            if self._users.files.is_excused(entry.file, now):
                continue
            for name, digest in objects_of(entry).items():
                text = f"{fingerprint(name)[:20]} of {entry.file}"
                if fingerprint(name) in conflicts and name not in self._users.strayed:
                    yield Fault("conflict", f"{text} is in conflict, and nobody wrote to it")
                good = self._safety.sound(name, digest)
                every = self._cluster.living(name)
                if not good:
                    continue  # it cannot be read, or an interrupted removal is left
                if len(every) > len(good) and name not in self._users.strayed:
                    yield Fault("bytes", f"{text} has other bytes on {len(every) - len(good)} disks")
                yield from self._places(text, promise, good)
                counts["restored"] += 1

    def _places(self, text: str, promise: KeptPromise, replicas: list[StoredReplica]) -> Iterator[Fault]:
        usable = [node for node in self._cluster.nodes if node.is_up]
        number = min(promise.replicas, len(usable))
        there = [self._cluster.nodes[replica.node] for replica in replicas]
        nodes = sorted(node.number for node in there)
        if len(nodes) != number or len(set(nodes)) != number:
            yield Fault("number", f"{text} is on the nodes {nodes}, and {number} replicas are promised")
        racks = {node.rack or node.name for node in there}
        possible = min(number, len({node.rack or node.name for node in usable}))
        if promise.apart and len(racks) < possible:
            yield Fault("number", f"{text} is in {len(racks)} fault domains, and {possible} are promised")

    def _check_single(self, counts: Counter[str]) -> Iterator[Fault]:
        """Check the objects to which programs write."""
        cluster, history, conflicts = self._cluster, self._cluster.history, self._shown()
        promises = {promise.target: promise for promise in promises_of(cluster).living() if promise.is_single}
        for name in sorted(history.acknowledged):
            replicas = cluster.living(name)
            mark = fingerprint(name)
            gone = history.missing(name, [replica.write for replica in replicas])
            if gone:
                yield Fault("written", f"the acknowledged writes {gone} of {mark[:20]} are gone")
            heads = history.heads(replica.write for replica in replicas)
            if len(heads) > 1:
                counts["conflicts"] += 1
                if mark not in conflicts:
                    yield Fault(
                        "conflict", f"{len(heads)} versions of {mark[:20]} conflict, and none is shown"
                    )
            elif mark in conflicts:
                counts["cautious"] += 1
            elif heads and name in promises and not all(replica.damaged for replica in replicas):
                counts["restored"] += 1
                if any(replica.write not in heads for replica in replicas):
                    yield Fault("bytes", f"a replica of {mark[:20]} is behind, and was not replaced")
                yield from self._places(mark[:20], promises[name], replicas)

    def _check_strays(self, counts: Counter[str]) -> Iterator[Fault]:
        """Check that each object is that of a file, a promise, or a program that failed or was killed.

        The objects of a file that was acknowledged are no leftovers of a program, whatever became of it.
        """
        needed = {self._users.list_name, KEPT_NAME, *self._users.created}
        for _, listed in self._safety.lists():
            for entry in listed.entries:
                needed.update(entry.local_names)
            for unfinished in listed.unfinished:
                needed.update(part.name for part in unfinished.parts)
            for note in getattr(listed, "notes", ()):
                needed.update(note.former.local_names)
        names = {
            stray.name: stray
            for node in self._cluster.nodes
            if not node.lost
            for stray in node.replicas.values()
            if stray.type is ObjectType.DURABLE_BLOB and stray.name not in needed
        }
        for name, replica in sorted(names.items()):
            creator = self._cluster.creators.get(name)
            if name not in self._users.stored and (creator is None or creator.killed or creator.in_doubt):
                counts["leftovers"] += 1
                continue
            holders = sorted(holder.node for holder in self._cluster.living(name))
            text = f"{fingerprint(name)[:20]} ({shown(replica.data)}) on the nodes {holders}"
            yield Fault("stray", f"no file and no promise needs {text}")

    def _shown(self) -> set[str]:
        """Return the fingerprints of the objects that a leading keeper shows as conflicts."""
        boards = [
            replica
            for node in self._cluster.nodes
            for replica in node.replicas.values()
            if replica.name == KEPT_NAME and replica.type is ObjectType.SHMEM_BLOB and replica.data
        ]
        return {
            mark
            for board in boards
            for mark, row in cast("dict[str, dict[str, object]]", json.loads(board.data)["objects"]).items()
            if row["conflict"]
        }


def _content(files: GroupFiles, entry: CatalogueEntry) -> bytes:
    if entry.tiered:
        return b"".join(tier_store.stored_pieces(files.group, entry))
    return _OneProgram.content_of(files, entry)


def promises_of(cluster: ModelCluster) -> KeptState:
    """Return the promises that living nodes have."""
    copies = [replica for replica in cluster.living(KEPT_NAME) if replica.data]
    return records.merged(KeptState(records.decode(replica.data).promises) for replica in copies)
