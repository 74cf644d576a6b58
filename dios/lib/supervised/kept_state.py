"""The state that a kept job saves for its next attempt: a few bytes, with a copy on every node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dios import limits
from dios.client.sync.node import Group, Node, Reference
from dios.errors import DamagedError, DiosError, InvalidError, TooLargeError, UnreachableError
from dios.lib.decoding import decoded
from dios.lib.supervised.records import STATE_LABEL
from dios.wire.fields import U63, NameBytes

_FORMAT_VERSION: Final = 1
_WITH_SECTIONS: Final = 2
"""The version of a state that has sections; any other is stored as version 1."""

Names: TypeAlias = Annotated[tuple[NameBytes, ...], Meta(max_length=limits.KEPT_JOB_OBJECTS_MAX)]
SectionName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=limits.KEPT_JOB_SECTION_NAME_MAX)]


class SectionContent(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The saved bytes of one section, and the names of the objects that end with the job."""

    data: Annotated[bytes, Meta(max_length=limits.KEPT_JOB_STATE_BYTES_MAX)] = b""
    objects: Names = ()

    def __repr__(self) -> str:
        """Return a text without the names, which are secrets."""
        return f"SectionContent({len(self.data)} bytes, {len(self.objects)} objects)"


class StateContent(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The saved bytes. The copy with the highest ``number`` is the latest.

    ``objects`` are the names of the objects in the job's group that are destroyed when the job is removed.
    """

    format: int
    number: U63 = 0
    data: Annotated[bytes, Meta(max_length=limits.KEPT_JOB_STATE_BYTES_MAX)] = b""
    objects: Names = ()
    sections: Annotated[dict[SectionName, SectionContent], Meta(max_length=limits.KEPT_JOB_SECTIONS_MAX)] = {}

    def all_objects(self) -> tuple[bytes, ...]:
        """Return the names of the objects of the program and of all sections."""
        return (*self.objects, *(name for section in self.sections.values() for name in section.objects))

    def __repr__(self) -> str:
        """Return a text without the names, which are secrets."""
        return f"StateContent(number {self.number}, {len(self.data)} bytes, {len(self.objects)} objects)"


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(StateContent).decode


def encode_state(content: StateContent) -> bytes:
    """Return the stored form. Raise TooLargeError if it is too large."""
    parts = (SectionContent(content.data, content.objects), *content.sections.values())
    if (
        any(len(part.objects) > limits.KEPT_JOB_OBJECTS_MAX for part in parts)
        or sum(len(part.data) for part in parts) > limits.KEPT_JOB_STATE_BYTES_MAX
    ):
        raise TooLargeError(
            f"the state of a job has at most {limits.KEPT_JOB_STATE_BYTES_MAX} bytes and "
            f"{limits.KEPT_JOB_OBJECTS_MAX} objects. Save larger data as an object, and its name here."
        )
    if len(content.sections) > limits.KEPT_JOB_SECTIONS_MAX:
        raise TooLargeError(
            f"the state of a job has at most {limits.KEPT_JOB_SECTIONS_MAX} sections. "
            "Write an empty content for a section that is not needed any more."
        )
    if content.sections:
        return _encode(replace(content, format=_WITH_SECTIONS))
    return _encode((_FORMAT_VERSION, content.number, content.data, content.objects))


def decode_state(data: bytes) -> StateContent:
    """Return the content of a copy; no bytes are an empty one. Raise DamagedError for anything else."""
    if not data:
        return StateContent(_FORMAT_VERSION)
    content = decoded(_decode, data, "the state of the job cannot be read")
    if content.format != (_WITH_SECTIONS if content.sections else _FORMAT_VERSION):
        raise DamagedError(
            f"the state of the job has version {content.format}, and this program reads {_FORMAT_VERSION} "
            f"to {_WITH_SECTIONS}"
        )
    return content


def latest_state(copies: Sequence[Reference]) -> StateContent:
    """Return the latest content of the copies that answer. Raise the last error if none does."""
    contents: list[StateContent] = []
    failure: DiosError = UnreachableError("no copy of the job's state is on a node that answers")
    for reference in copies:
        try:
            contents.append(decode_state(reference.read_bytes()))
        except DiosError as error:
            failure = error
    if not contents:
        raise failure
    return max(contents, key=lambda content: content.number)


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
        return self._latest().data

    def write(self, data: bytes, *, objects: Sequence[bytes] = ()) -> None:
        """Replace the state on every node that answers.

        ``objects`` are names of objects in ``group`` that end with the job: `dios job rm` destroys them.

        Raises TooLargeError, and UnreachableError if no copy could be written.
        """
        self._write(lambda last: replace(last, data=bytes(data), objects=tuple(objects)))

    def section(self, name: str) -> StateSection:
        """Return a part of the state, with its own bytes and objects, that a library in the program may use.

        Raises InvalidError for an empty or a long name.
        """
        if not 1 <= len(name) <= limits.KEPT_JOB_SECTION_NAME_MAX:
            raise InvalidError(
                f"the name of a section has 1 to {limits.KEPT_JOB_SECTION_NAME_MAX} characters, "
                f"not {len(name)}"
            )
        return StateSection(self, name)

    def read_section(self, name: str) -> SectionContent:
        """Return the latest content of a section; an empty one if none was written."""
        return self._latest().sections.get(name, SectionContent())

    def write_section(self, name: str, section: SectionContent) -> None:
        """Replace a section on every node that answers; an empty one is left out."""

        def changed(last: StateContent) -> StateContent:
            sections = {**last.sections, name: section}
            if section == SectionContent():
                del sections[name]
            return replace(last, sections=sections)

        self._write(changed)

    def _latest(self) -> StateContent:
        content = latest_state(self._copies)
        self._number = max(self._number, content.number)
        return content

    def _write(self, change: Callable[[StateContent], StateContent]) -> None:
        last = self._latest()
        self._number += 1
        content = encode_state(replace(change(last), number=self._number))
        written = 0
        failure: DiosError | None = None
        for reference in self._copies:
            try:
                reference.write_bytes(content, replace=True)
                written += 1
            except DiosError as error:
                failure = error
        if not written:
            raise UnreachableError(
                f"the state of the job could not be written to any node ({failure}). Try again."
            ) from failure


class StateSection:
    """One section of a job's state, and ``group``, the group of the job's own objects."""

    def __init__(self, state: KeptState, name: str) -> None:
        self._state: Final = state
        self._name: Final = name

    @property
    def group(self) -> Group:
        """Return the group of the job's own objects."""
        return self._state.group

    def read(self) -> SectionContent:
        """Return what was written last; UnreachableError if no copy is on a node that answers."""
        return self._state.read_section(self._name)

    def write(self, data: bytes, objects: Sequence[bytes] = ()) -> None:
        """Replace the section, as KeptState.write does."""
        self._state.write_section(self._name, SectionContent(data, tuple(objects)))


def kept_state(node: Node) -> KeptState | None:
    """Return the state of the kept job of which this task is the program; None in any other task."""
    copies = [output for output in node.outputs if output.label == STATE_LABEL]
    return KeptState(copies, node.groups[-1]) if copies else None
