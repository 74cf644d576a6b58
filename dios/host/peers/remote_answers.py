"""Sends answers to remote tasks: as for local ones, but with bytes instead of descriptors (thesis §4.8).

The core answers a remote task like a local one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from dios import limits
from dios.core.effects import AnswerRead, AnswerVector, AnswerWrite
from dios.errors import Code, DamagedError
from dios.host.content.contents import Contents
from dios.host.content.memories import ContentMemory
from dios.host.peers.bulk import FileRange
from dios.host.peers.links import PeerLinks
from dios.ids import NodeId, TaskId
from dios.transport.memory.memfd import close_all, copies_of
from dios.wire import dcp
from dios.wire.messages import AnyResult, Buffer, Failure, Mapping, Results, Welcome

_NOBODY: Final = TaskId(0)


class RemoteTaskRoute:
    """The route for answers to one remote task."""

    __slots__ = ("_links", "_node", "task")

    def __init__(self, task: TaskId, node: NodeId, links: PeerLinks) -> None:
        self.task: Final = task
        self._node: Final = node
        self._links: Final = links

    @property
    def node(self) -> NodeId:
        """The node of the task."""
        return self._node

    def reply(self, seq: int, result: AnyResult, fds: Sequence[int]) -> None:
        """Send one answer. The caller keeps the descriptors. Raise OSError if descriptors are exhausted."""
        if not fds:
            self._send(seq, result)
        elif isinstance(result, Buffer):
            pieces = _pieces((result,), fds)
            self._send_beside(seq, _without_mapping(result, came=bool(pieces)), pieces, fds)
        elif isinstance(result, Results):
            mapped = [part for part in result.results if isinstance(part, Buffer) and part.mapping]
            pieces_by_part = [_pieces((part,), (fd,)) for part, fd in zip(mapped, fds, strict=True)]
            came = {id(part) for part, some in zip(mapped, pieces_by_part, strict=True) if some}
            parts = tuple(
                _without_mapping(part, came=id(part) in came) if isinstance(part, Buffer) else part
                for part in result.results
            )
            self._send_beside(
                seq, Results(parts), tuple(piece for some in pieces_by_part for piece in some), fds
            )

    def _send(self, seq: int, result: AnyResult, attached: bytes | None = None) -> None:
        if not isinstance(result, Welcome):
            # Answers without object bytes are not counted as traffic of the task.
            task = self.task if isinstance(result, Buffer | Results) else _NOBODY
            self._links.send(self.node, dcp.PeerReply(seq, result), attached, task)

    def _send_beside(
        self, seq: int, result: Buffer | Results, pieces: tuple[FileRange, ...], fds: Sequence[int]
    ) -> None:
        size = sum(piece.length for piece in pieces)
        if size > limits.DCP_RECEIVING_BYTES_MAX:
            self._send(seq, _too_many(size))
        elif size <= self._links.inline_bytes_max:
            self._send(seq, result, b"".join([_bytes_of(piece) for piece in pieces]) or None)
        else:
            copies = copies_of(fds)
            own = tuple(piece._replace(fd=copies[fds.index(piece.fd)]) for piece in pieces)
            self._links.send_bulk(
                self.node, self.task, dcp.PeerReply(seq, result), own, lambda: close_all(copies)
            )


def _without_mapping(result: Buffer, *, came: bool) -> Buffer:
    """Return the buffer without its mapping; all its bytes are attached to the message, or none."""
    if not result.mapping:
        return result
    length = result.size if came else 0
    return Buffer(result.buffer, result.size, result.v_r, result.v_w, length=length)


def _pieces(results: Sequence[Buffer], fds: Sequence[int]) -> tuple[FileRange, ...]:
    """Return the ranges of these buffers' bytes, without fresh memory, which is zero."""
    return tuple(
        FileRange(fd, result.start, result.size)
        for result, fd in zip(results, fds, strict=True)
        if result.size and not (result.mapping is Mapping.WRITABLE and _is_blank(fd, result))
    )


def _is_blank(fd: int, result: Buffer) -> bool:
    try:
        return os.lseek(fd, result.start, os.SEEK_DATA) >= result.start + result.size
    except OSError:
        return True


def _bytes_of(piece: FileRange) -> bytes:
    data = os.pread(piece.fd, piece.length, piece.start)
    if len(data) < piece.length:
        raise DamagedError(f"cannot send {piece.length} bytes to a node: only {len(data)} are there")
    return data


def _too_many(size: int) -> Failure:
    return Failure(
        int(Code.EFBIG),
        f"{size} bytes are too many: another node answers with at most {limits.DCP_RECEIVING_BYTES_MAX}. "
        "Read them in parts.",
    )


def for_remote_task(
    effect: AnswerRead | AnswerWrite | AnswerVector, contents: Contents
) -> AnswerRead | AnswerWrite | AnswerVector:
    """Return the answer for a remote task, which cannot rely on seeing changes through a shared mapping."""
    if isinstance(effect, AnswerVector):
        if not any(isinstance(part, AnswerRead | AnswerWrite) and part.reuse for part in effect.parts):
            return effect
        parts = [
            for_remote_task(part, contents) if isinstance(part, AnswerRead | AnswerWrite) else part
            for part in effect.parts
        ]
        return replace(effect, parts=tuple(parts))
    if isinstance(effect, AnswerRead):
        return for_remote_read(effect, contents)
    return replace(effect, reuse=False) if effect.reuse else effect


def for_remote_read(effect: AnswerRead, contents: Contents) -> AnswerRead:
    """Return the answer to a read of a remote task, whose mapping of raw bytes is not valid any more."""
    if not effect.reuse:
        return effect
    content = contents.peek(effect.object)
    return replace(effect, reuse=False) if isinstance(content, ContentMemory) and content.raw else effect
