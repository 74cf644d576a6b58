"""A token of this cluster that a session of the node has redeemed, and the files that it opens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from dios import limits
from dios.errors import InvalidError, NotPermittedError, StaleError, UnreachableError
from dios.lib.files.paths import checked_path
from dios.wire.border import BorderAnswer, FileHead, FileList, FilePart, FileRow, ReadFile
from dios.wire.sealed_tokens import SealedToken, TokenHolder, TokenTerms, terms_of
from dios.wire.types import ObjectType, Permission

if TYPE_CHECKING:
    from dios.client.aio.node import AsyncGroup, AsyncNode, AsyncReference
    from dios.lib.catalogue import CatalogueEntry

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
        for one in await self._node.lookup(self.grant.catalogue, group=self._group):
            _require_unlabelled(one)

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
                return {}
            for one in record.references.values():
                _require_unlabelled(one)
            reading = await record.run(protocol.read_record(record.writer))
        data = reading.value.content or b""
        entries = await trio.to_thread.run_sync(catalogue.decode, data)
        files = {stored_path(one.file): one for one in entries if not is_directory(one)}
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
        first = await self._object(call.path, entry.name)
        head = FileRow(call.path, entry.size if entry.in_parts else first.size, entry.put_ns, entry.digest)
        unchanged = bool(entry.digest) and call.known == entry.digest
        await send(FileHead(head, unchanged))
        if unchanged:
            return
        await _send_bytes(first, send)
        for part in entry.parts()[1:] if entry.in_parts else ():
            await _send_bytes(await self._object(call.path, part.name), send)

    async def _object(self, path: str, name: bytes) -> AsyncReference:
        """Return the object with the bytes of a file, or of a part of it."""
        found = await self._node.lookup(name, group=self._group, limit=1)
        if not found:
            why = "is on a node that does not answer" if found.incomplete else "was destroyed"
            raise UnreachableError(f"the file {path!r} {why}")
        reference = found[0]
        if reference.type not in _BLOBS:
            raise InvalidError(f"{path!r} is a {reference.type.name}, not a file")
        if reference.secrecy:
            raise NotPermittedError(
                f"{path!r} is labelled {', '.join(reference.secrecy)}, and no token gives what has a label. "
                "Ask its owner for a copy without it."
            )
        return reference


def _require_unlabelled(catalogue: AsyncReference) -> None:
    if catalogue.secrecy:
        raise NotPermittedError(
            f"the group is labelled {', '.join(catalogue.secrecy)}, and no token gives what has a label"
        )


async def _send_bytes(reference: AsyncReference, send: Send) -> None:
    at, size = 0, reference.size
    while at < size:
        data = await reference.read_bytes(min(limits.BORDER_PART_BYTES, size - at), at)
        if not data:
            raise StaleError("the file became shorter while it was read. Read again.")
        await send(FilePart(data))
        at += len(data)


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
