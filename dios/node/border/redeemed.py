"""A token of this cluster that a session of the node has redeemed, and the files that it opens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING, Final, TypeAlias

import trio
from blake3 import blake3

from dios import limits
from dios.errors import DamagedError, InvalidError, NotPermittedError, StaleError, UnreachableError
from dios.lib.files.paths import checked_path
from dios.wire.border import BorderAnswer, FileHead, FileList, FilePart, FileRow, ReadFile
from dios.wire.sealed_tokens import SealedToken, TokenHolder, TokenTerms, terms_of, token_mark
from dios.wire.types import ObjectType, Permission

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncNode, AsyncReference
    from dios.client.ops.cluster import Gathered
    from dios.lib.catalogue import CatalogueEntry
    from dios.lib.files.sound_replicas import BadReplica

Send: TypeAlias = Callable[[BorderAnswer], Awaitable[None]]
"""Sends an answer to the caller, and waits until the connection has taken most of it."""

_BLOBS: Final = frozenset({ObjectType.DURABLE_BLOB, ObjectType.SHMEM_BLOB, ObjectType.PRIVMEM_BLOB})


class RedeemedToken:
    """A session of the node that has redeemed a token, for one call."""

    def __init__(self, node: AsyncNode, group: AsyncGroup, token: SealedToken, holder: TokenHolder) -> None:
        self._node: Final = node
        self._group: Final = group
        self.grant: Final = token.grant
        # The core has compared the time, with its own clock.
        self.terms: Final[TokenTerms] = terms_of(token, holder, 0)
        of_cluster = (("cluster", holder.cluster),) if holder.cluster else ()
        self.holders: Final[tuple[Hashable, ...]] = (
            *of_cluster,
            ("user", holder.cluster, holder.user),
            ("token", token_mark(token.grant)),
        )
        """The holders of the places of a call: another cluster, its user, and a grant with all its tokens."""

    @property
    def issuer_uid(self) -> int:
        """The number of the user who issued the token."""
        return int(self.grant.issuer.removeprefix("uid:"))

    def require_writing(self, path: str) -> None:
        """Raise NotPermittedError if the token gives no right to write there, InvalidError for its form."""
        if not self.terms.rights & Permission.WRITE:
            raise NotPermittedError("the token gives the right to read alone. Ask its giver for another one.")
        self._require_path(path)
        if checked_path(path) != path:
            raise InvalidError(f"{path!r} is not the path of a file in a group")

    def _require_path(self, path: str) -> None:
        if not self.terms.admits(path):
            raise NotPermittedError(
                f"the token is not for {path!r}, but for {' and '.join(self.terms.paths)} alone"
            )

    async def require_valid(self) -> None:
        """Raise BadReferenceError if the token was revoked or is over since it was redeemed.

        Raise NotPermittedError if the group has a secrecy label: an answer about a path would show a part of
        its list.
        """
        for replica in await self._node.lookup(self.grant.catalogue, group=self._group):
            _require_unlabelled(replica)

    async def files(self) -> dict[str, CatalogueEntry]:
        """Return the entries of the files that the token is for, by path in their order."""
        from dios.lib import catalogue  # noqa: PLC0415 - as above
        from dios.lib.files.paths import stored_path  # noqa: PLC0415 - as above
        from dios.lib.files.tree import is_directory  # noqa: PLC0415 - as above
        from dios.lib.replicated_record import protocol  # noqa: PLC0415 - as above
        from dios.lib.replicated_record.asynchronous import AsyncReplicas  # noqa: PLC0415 - as above

        async with AsyncReplicas(self._node, self.grant.catalogue, self._group) as record:
            await record.look()
            if not record.references:
                if not record.complete:
                    raise UnreachableError(
                        "the group's catalogue is on a node that does not answer. Try again later."
                    )
                raise DamagedError("the list of the files of the group is lost. Ask its owner.")
            for reference in record.references.values():
                _require_unlabelled(reference)
            reading = await record.run(protocol.read_record())
        data = reading.value.content or b""
        entries = await trio.to_thread.run_sync(catalogue.decode, data)
        files = {stored_path(entry.file): entry for entry in entries if not is_directory(entry)}
        return {path: files[path] for path in sorted(files) if self.terms.admits(path)}

    async def read(self, call: ReadFile, send: Send) -> None:
        """Send a file. Raise InvalidError if it is missing.

        Raise NotPermittedError if the token is not for it, or if it has a secrecy label.
        """
        self._require_path(call.path)
        entry = (await self.files()).get(call.path)
        if entry is None:
            raise InvalidError(f"there is no file {call.path!r} in the group of the token")
        if entry.tiered:
            raise InvalidError(
                f"{call.path!r} is tiered: its bytes are in a store outside of the cluster. Ask its owner to "
                "bring it back with `dios tier in`."
            )
        first = await self._replicas(call.path, entry.name)
        size = entry.size if entry.digest else first[0].size
        unchanged = bool(entry.digest) and call.known == entry.digest
        await send(FileHead(FileRow(call.path, size, entry.put_ns, entry.digest), unchanged))
        if unchanged:
            return
        if not entry.in_parts:
            await send_object(call.path, first, size, entry.digest, send)
            return
        for number, part in enumerate(entry.parts()):
            replicas = await self._replicas(call.path, part.name) if number else first
            await send_object(call.path, replicas, entry.size_of_part(number), part.digest, send)

    async def _replicas(self, path: str, name: bytes) -> Gathered[AsyncReference]:
        """Return the replicas of the object with the bytes of a file, or of a part of it; nearest first."""
        replicas = await self._node.lookup(name, group=self._group)
        if not replicas:
            why = "is on a node that does not answer" if replicas.incomplete else "was destroyed"
            raise UnreachableError(f"the file {path!r} {why}")
        for replica in replicas:
            if replica.type not in _BLOBS:
                raise InvalidError(f"{path!r} is a {replica.type.name}, not a file")
            if replica.secrecy:
                raise NotPermittedError(
                    f"{path!r} is labelled {', '.join(replica.secrecy)}, and no token gives what has a "
                    "label. "
                    "Ask its owner for a copy without it."
                )
        replicas.sort(key=lambda candidate: candidate.proximity)
        return replicas


def _require_unlabelled(catalogue: AsyncReference) -> None:
    if catalogue.secrecy:
        raise NotPermittedError(
            f"the group is labelled {', '.join(catalogue.secrecy)}, and no token gives what has a label"
        )


async def send_object(
    path: str, replicas: Gathered[AsyncReference], size: int, digest: bytes, send: Send
) -> None:
    """Send the bytes of an object from a sound replica, and go on at the next one if that fails.

    The reader compares all bytes with the digest. Raise DamagedError or UnreachableError without a sound
    replica, as ``dios.lib.files.sound_replicas`` does.
    """
    from dios.lib.files import sound_replicas  # noqa: PLC0415 - as above

    at = 0
    bad: list[BadReplica] = []
    silent = replicas.incomplete
    for replica in replicas:
        try:
            why = await _other_bytes(replica, size, digest)
            while at < size and not why:
                data = await replica.read_bytes(min(limits.BORDER_PART_BYTES, size - at), at)
                if not data:
                    raise StaleError("the file became shorter while it was read. Read again.")
                await send(FilePart(data))
                at += len(data)
        except DamagedError:
            why = "is damaged"
        except UnreachableError:
            why, silent = "does not answer", True
        if not why:
            if bad:
                sound_replicas.log_notice(
                    sound_replicas.BadReplicas(replica.fingerprint, tuple(bad), replica.node)
                )
            return
        bad.append(sound_replicas.BadReplica(replica.node, why))
    raise sound_replicas.no_sound_replica(path, bad, is_silent=silent)


async def _other_bytes(replica: AsyncReference, size: int, digest: bytes) -> str:
    """Return why a replica has, or may have, other bytes than those of the file; empty if it has not."""
    from dios.lib.files.sound_replicas import version_of_put  # noqa: PLC0415 - as above

    other = "has other bytes than the file"
    if not digest:
        return ""
    if replica.size != size:
        return other
    if replica.v_w == version_of_put(size):
        return ""
    hasher = blake3()
    for at in range(0, size, limits.BORDER_PART_BYTES):
        hasher.update(await replica.read_bytes(min(limits.BORDER_PART_BYTES, size - at), at))
    return "" if hasher.digest() == digest else other


def page_of(files: dict[str, CatalogueEntry], after: str) -> FileList:
    """Return the files whose paths come after ``after``, as many as fit one frame."""
    rows: list[FileRow] = []
    size = 0
    for path, entry in files.items():
        if path <= after:
            continue
        size += len(path.encode()) + 128
        if size > limits.BORDER_LIST_BYTES:
            return FileList(tuple(rows), more=True)
        rows.append(FileRow(path, entry.size, entry.put_ns, entry.digest))
    return FileList(tuple(rows), more=False)
