"""The public page of references: the layout of the public attributes in shared memory (thesis §4.5.1).

The host creates the memory and the client maps it read-only. One node and its tasks share the page on one
machine, so numbers have the machine's byte order and never leave it.

Each slot is guarded by a sequence counter. The only writer makes it odd, writes, and makes it even again; a
reader that found an odd or a changed counter reads again. ``docs/semantics.md`` has the table.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from dios import limits
from dios.errors import UnreachableError
from dios.wire.messages import Reference
from dios.wire.types import Permission

PAGE_VERSION: Final = 2

FLAG_USED: Final = 1
FLAG_ZOMBIE: Final = 2

_SLOT: Final = struct.Struct("@IIQQ6B2xQQQIII4xQ")
_HEAD: Final = struct.Struct("@QQ6B2x")
_SEQUENCE: Final = struct.Struct("@I")
_COUNTERS: Final = struct.Struct("@QQQIII")
_HEAD_OFFSET: Final = 8
_COUNTERS_OFFSET: Final = 32
_COUNT_MAX: Final = 2**32 - 1
_CLEAR: Final = bytes(limits.PUBLIC_SLOT_BYTES - 4)
_WORDS_PER_SLOT: Final = limits.PUBLIC_SLOT_BYTES // 4
QUADS_PER_SLOT: Final = limits.PUBLIC_SLOT_BYTES // 8
_V_W_QUAD: Final = 48 // 8
STAMP_QUAD: Final = 72 // 8
"""The place of the stamp in a slot, in numbers of 64 bits."""
_VERSION_QUAD: Final = 80 // 8
_PERMISSIONS_OFFSET: Final = 25
_READ: Final = int(Permission.READ)  # with an int, ``&`` takes a twentieth of the time

_unpack_slot: Final = _SLOT.unpack_from
_unpack_sequence: Final = _SEQUENCE.unpack_from
_pack_counters: Final = _COUNTERS.pack_into


class PublicAttributes(NamedTuple):
    """The content of a slot; ``type`` and the fields after it are the numbers of ``dios.wire.types``.

    ``used`` is False for a slot that has no reference. A slot is later re-used for another reference:
    compare ``ref`` with the reference you hold. ``stamp`` is 0 while the object may not be read without a
    call, else a number that belongs to this version of the object in this slot.
    """

    used: bool
    zombie: bool
    ref: int
    object: int
    type: int
    permissions: int
    persistence: int
    proximity: int
    deletion: int
    buffering: int
    size: int
    v_r: int
    v_w: int
    a_r: int
    a_w: int
    dirty: int
    stamp: int


def _new_stamps(first: int) -> Iterator[int]:
    return itertools.count(first)


class PageWriter:
    """The node's writing end of one page; ``view`` is its writable mapping, which the caller owns.

    A slot's stamp is one aligned number of 64 bits, so that a reader needs no sequence counter for it. Stamps
    are never used twice in one page: ``next_stamp`` is above all that earlier writers of the page used.
    """

    __slots__ = ("_quads", "_stamps", "_view", "_words")

    def __init__(self, view: memoryview, next_stamp: int = 1) -> None:
        if view.nbytes != limits.PUBLIC_PAGE_BYTES:
            raise ValueError(f"a page has {limits.PUBLIC_PAGE_BYTES} bytes, not {view.nbytes}")
        self._view: Final = view
        # Stores of single aligned 32-bit words are atomic; packing into bytes does not promise that.
        self._words: Final = view.cast("I")
        self._quads: Final = view.cast("Q")
        self._stamps: Final = _new_stamps(next_stamp)

    def last_stamp(self) -> int:
        """Draw a stamp and return it: a writer that goes on with this page begins above it."""
        return next(self._stamps)

    def bind(self, reference: Reference, *, zombie: bool = False, dirty: int = 0) -> None:
        """Fill the slot of a reference with all its attributes."""
        offset = reference.slot * limits.PUBLIC_SLOT_BYTES
        words, word = self._words, reference.slot * _WORDS_PER_SLOT
        quads, quad = self._quads, reference.slot * QUADS_PER_SLOT
        quads[quad + STAMP_QUAD] = 0
        quads[quad + _VERSION_QUAD] = next(self._stamps)
        sequence = words[word] + 1 & 0xFFFF_FFFE
        words[word] = sequence + 1
        words[word + 1] = FLAG_USED | (FLAG_ZOMBIE if zombie else 0)
        _HEAD.pack_into(
            self._view,
            offset + _HEAD_OFFSET,
            reference.ref,
            reference.object,
            reference.type,
            reference.permissions,
            reference.persistence,
            reference.proximity,
            reference.deletion,
            reference.buffering,
        )
        _pack_counters(
            self._view,
            offset + _COUNTERS_OFFSET,
            reference.size,
            reference.v_r,
            reference.v_w,
            reference.a_r,
            reference.a_w,
            dirty & _COUNT_MAX,
        )
        words[word] = sequence + 2 & 0xFFFF_FFFF

    def publish(
        self,
        slot: int,
        size: int,
        v_r: int,
        v_w: int,
        a_r: int,
        a_w: int,
        dirty: int,
        *,
        zombie: bool,
        direct: bool = False,
    ) -> None:
        """Update the counters of a bound slot. This is a hot path of a few stores.

        With ``direct`` a holder with the right to read may read this version without a call.
        """
        words, word = self._words, slot * _WORDS_PER_SLOT
        quads, quad = self._quads, slot * QUADS_PER_SLOT
        if quads[quad + _V_W_QUAD] != v_w:
            quads[quad + STAMP_QUAD] = 0
            quads[quad + _VERSION_QUAD] = next(self._stamps)
        elif not direct:
            quads[quad + STAMP_QUAD] = 0
        sequence = words[word]
        words[word] = sequence + 1 & 0xFFFF_FFFF
        _pack_counters(
            self._view,
            slot * limits.PUBLIC_SLOT_BYTES + _COUNTERS_OFFSET,
            size,
            v_r,
            v_w,
            a_r,
            a_w,
            dirty & _COUNT_MAX,
        )
        if zombie:
            words[word + 1] = FLAG_USED | FLAG_ZOMBIE
        readable = self._view[slot * limits.PUBLIC_SLOT_BYTES + _PERMISSIONS_OFFSET] & _READ
        # An object whose deletion could not be stored is back, but not for the references that it had.
        if direct and readable and words[word + 1] == FLAG_USED:
            quads[quad + STAMP_QUAD] = quads[quad + _VERSION_QUAD]
        words[word] = sequence + 2 & 0xFFFF_FFFF

    def close(self, slot: int) -> None:
        """Let nobody read the object of a slot without a call, until the counters are published again."""
        self._quads[slot * QUADS_PER_SLOT + STAMP_QUAD] = 0

    def clear(self, slot: int) -> None:
        """Mark the slot as unused."""
        offset = slot * limits.PUBLIC_SLOT_BYTES
        words, word = self._words, slot * _WORDS_PER_SLOT
        self.close(slot)
        sequence = words[word]
        words[word] = sequence + 1 & 0xFFFF_FFFF
        self._view[offset + 4 : offset + limits.PUBLIC_SLOT_BYTES] = _CLEAR
        words[word] = sequence + 2 & 0xFFFF_FFFF

    def release(self) -> None:
        """Release the view, so that its mapping can be closed."""
        self._words.release()
        self._quads.release()


def read_slot(view: memoryview, slot: int) -> PublicAttributes:
    """Return a consistent copy of one slot of a mapped page.

    Raises UnreachableError when the slot stays half written because its writer was killed.
    """
    offset = slot * limits.PUBLIC_SLOT_BYTES
    for _ in range(limits.PUBLIC_SLOT_READS_MAX):
        fields = _unpack_slot(view, offset)
        sequence, flags = fields[0], fields[1]
        if not sequence & 1 and _unpack_sequence(view, offset)[0] == sequence:
            return PublicAttributes(bool(flags & FLAG_USED), bool(flags & FLAG_ZOMBIE), *fields[2:])
    raise UnreachableError("cannot read the public page: the node ended while writing. Start it again.")


assert _SLOT.size <= limits.PUBLIC_SLOT_BYTES, "a slot holds all its fields"  # noqa: S101 - a build-time relation
assert _SLOT.size == (STAMP_QUAD + 1) * 8, "the stamp is the last field"  # noqa: S101 - the same
assert _HEAD_OFFSET + _HEAD.size == _COUNTERS_OFFSET, "the head ends where the counters begin"  # noqa: S101 - the same
