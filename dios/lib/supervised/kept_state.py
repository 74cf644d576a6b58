"""The state that a kept job saves for its next attempt: a few bytes, with a copy on every node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from dios import limits
from dios.client.sync.node import Group, Node, Reference
from dios.errors import DamagedError, DiosError, TooLargeError, UnreachableError
from dios.lib.supervised.records import STATE_LABEL
from dios.wire.fields import U63, NameBytes

_FORMAT_VERSION: Final = 1


class StateContent(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The saved bytes. The copy with the highest ``number`` is the latest.

    ``objects`` are the names of the objects in the job's group that are destroyed when the job is removed.
    """

    format: int
    number: U63 = 0
    data: Annotated[bytes, Meta(max_length=limits.KEPT_JOB_STATE_BYTES_MAX)] = b""
    objects: Annotated[tuple[NameBytes, ...], Meta(max_length=limits.KEPT_JOB_OBJECTS_MAX)] = ()

    def __repr__(self) -> str:
        """Return a text without the names, which are secrets."""
        return f"StateContent(number {self.number}, {len(self.data)} bytes, {len(self.objects)} objects)"


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(StateContent).decode


def encode_state(content: StateContent) -> bytes:
    """Return the stored form. Raise TooLargeError if it is too large."""
    data = _encode(content)
    if (
        len(content.objects) > limits.KEPT_JOB_OBJECTS_MAX
        or len(content.data) > limits.KEPT_JOB_STATE_BYTES_MAX
    ):
        raise TooLargeError(
            f"the state of a job has at most {limits.KEPT_JOB_STATE_BYTES_MAX} bytes and "
            f"{limits.KEPT_JOB_OBJECTS_MAX} objects. Save larger data as an object, and its name here."
        )
    return data


def decode_state(data: bytes) -> StateContent:
    """Return the content of a copy; no bytes are an empty one. Raise DamagedError for anything else."""
    if not data:
        return StateContent(_FORMAT_VERSION)
    try:
        content = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"the state of the job cannot be read: {error}") from None
    if content.format != _FORMAT_VERSION:
        raise DamagedError(
            f"the state of the job has version {content.format}, and this program reads {_FORMAT_VERSION}"
        )
    return content


def latest_state(copies: Sequence[Reference]) -> StateContent:
    """Return the latest content of the copies that answer. Raise the last error if none does."""
    found: list[StateContent] = []
    failure: DiosError = UnreachableError("no copy of the job's state is on a node that answers")
    for one in copies:
        try:
            found.append(decode_state(one.read_bytes()))
        except DiosError as error:
            failure = error
    if not found:
        raise failure
    return max(found, key=lambda content: content.number)


class KeptState:
    """The saved bytes of a kept job, and ``group``, the group of the job's own objects.

    For the job's program, one thread at a time. After a partition two attempts may run for some seconds. Then
    the state is that of the one that wrote last.
    """

    def __init__(self, copies: Sequence[Reference], group: Group) -> None:
        self.group: Final = group
        self._copies: Final = copies
        self._number = 0

    def read(self) -> bytes:
        """Return what this attempt or the one before has written last; no bytes if none has written.

        Raises UnreachableError if no copy is on a node that answers.
        """
        content = latest_state(self._copies)
        self._number = max(self._number, content.number)
        return content.data

    def write(self, data: bytes, *, objects: Sequence[bytes] = ()) -> None:
        """Replace the state on every node that answers.

        ``objects`` are names of objects in ``group`` that end with the job: `dios job rm` destroys them.

        Raises TooLargeError, and UnreachableError if no copy could be written.
        """
        self._number = max(self._number, latest_state(self._copies).number) + 1
        content = encode_state(StateContent(_FORMAT_VERSION, self._number, bytes(data), tuple(objects)))
        written = 0
        failure: DiosError | None = None
        for one in self._copies:
            try:
                one.write_bytes(content, replace=True)
                written += 1
            except DiosError as error:
                failure = error
        if not written:
            raise UnreachableError(
                f"the state of the job could not be written to any node ({failure}). Try again."
            ) from failure


def kept_state(node: Node) -> KeptState | None:
    """Return the state of the kept job of which this task is the program; None in any other task."""
    copies = [one for one in node.outputs if one.label == STATE_LABEL]
    return KeptState(copies, node.groups[-1]) if copies else None
