"""Writing by a token: the file is stored by a session of the issuer, whom the node acts for (ADR 0101).

The bytes are received and compared with their digest before anything is stored. They wait in memory without a
name. The pool "writes at a border" of ``dios.limits`` bounds the number of calls that do so at once.
"""

from __future__ import annotations

import io
import os
import socket

import trio
from blake3 import blake3

from dios import limits
from dios.errors import DamagedError, ExistsError, InvalidError, NotPermittedError, ProtocolError
from dios.ids import Name
from dios.node.border.connections import CallConnection
from dios.wire.border import FileRow, WriteFile, WriteReady
from dios.wire.sealed_tokens import TokenGrant


async def receive_file(call: WriteFile, caller: CallConnection) -> io.FileIO:
    """Return a file in memory with the bytes that the caller sends, at its beginning.

    Raise ProtocolError for more bytes than announced, DamagedError if they do not have the announced digest,
    BrokenPipeError if they do not arrive in time.
    """
    file = io.FileIO(os.memfd_create("written by a token", os.MFD_CLOEXEC), "r+b")
    try:
        await caller.send(WriteReady())
        with trio.move_on_after(limits.BORDER_WRITE_MS_MAX / 1000) as receiving:
            await _receive_into(file, call, caller)
        if receiving.cancelled_caught:
            raise BrokenPipeError("the file did not arrive in time")  # noqa: TRY301 - the file is closed
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


async def _receive_into(file: io.FileIO, call: WriteFile, caller: CallConnection) -> None:
    left, digest = call.size, blake3()
    while left:
        data = (await caller.receive_part()).data
        if len(data) > left:
            raise ProtocolError("more bytes of a file arrived than were announced")
        left -= len(data)
        digest.update(data)
        file.write(data)
    if digest.digest() != call.digest:
        raise DamagedError("the bytes that arrived do not have the digest of the file. Write it again.")


def store_file(sock: socket.socket, grant: TokenGrant, call: WriteFile, file: io.FileIO) -> FileRow:
    """Store a received file in the group of a token, by a session of its issuer at ``sock``. It may block.

    Raise ExistsError if there is a file and the call does not replace it, InvalidError for a path that is a
    directory or below a file, and the errors of the node, such as LimitError.
    """
    # Imported late, because only a border that writes needs the blocking client.
    from dios.client.sync.connection import Connection  # noqa: PLC0415 - see above
    from dios.client.sync.node import Node  # noqa: PLC0415 - the same
    from dios.lib.files.catalogue_places import SharedCatalogue  # noqa: PLC0415 - the same
    from dios.lib.files.group_files import GroupFiles  # noqa: PLC0415 - the same
    from dios.lib.files.staging import StagedFiles  # noqa: PLC0415 - the same
    from dios.transport.unix.client import ClientChannel  # noqa: PLC0415 - the same

    connection = Connection(ClientChannel(sock))
    try:
        with Node(connection, connection.hello((Name(grant.group),), "border, for a token")) as node:
            group = node.group(grant.group)
            if group is None:
                raise NotPermittedError("the issuer of the token has lost the group")
            staged = StagedFiles(GroupFiles(node, group, SharedCatalogue(node, group, grant.catalogue)))
            try:
                staged.add_file(call.path, file, call.size)
                if not call.replace:
                    staged.require_new(call.path)
                (entry,) = [staged_entry for staged_entry in staged.publish() if staged_entry.name]
            except BaseException:
                staged.discard()
                raise
    except FileExistsError:
        raise ExistsError(
            f"there is a file {call.path!r} already. Choose another path, or let the call replace it."
        ) from None
    except (IsADirectoryError, NotADirectoryError):
        raise InvalidError(f"{call.path!r} is a directory, or below a file") from None
    finally:
        connection.close()
    return FileRow(call.path, entry.size, entry.put_ns, entry.digest)
