"""TCP frames for measurements, with correct checksums, so that the checksums differ from frame to frame.

A message is passed to the kernel as a whole: one frame, or a burst of one flow that the kernel cuts into
frames, as it does for its own TCP if a card cannot. This halves the sender's processor time, which on a small
machine the network function would lack.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from dios.errors import InvalidError

HEAD: Final = 54
"""Bytes of the headers of a frame."""
NUMBER: Final = 38
"""The offset of TCP's sequence number: the frame's position in its flow in bytes."""
FLOW: Final = 42
"""The offset of TCP's acknowledgement number, which holds the number of the flow."""
CHECKSUM: Final = 50
ABOVE: Final = 10
"""Bytes before each message that control the kernel's cutting (``struct virtio_net_hdr``)."""
BYTES_MAX: Final = 65_535
_SYN: Final = 2
_ACK: Final = 16
_WANTS_CHECKSUM: Final = 1
_CUT_TCP: Final = 1

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


class Frames:
    """Frames of ``length`` bytes of ``flows`` flows in turn, in messages of ``burst``, and SYNs.

    There are about ``count`` of them, to be sent repeatedly, and a SYN of each flow. Addresses, ports and
    payload are drawn by ``seed``. Raises InvalidError for impossible sizes.
    """

    def __init__(
        self,
        flows: int,
        length: int,
        seed: int,
        *,
        target: bytes,
        source: bytes,
        burst: int = 1,
        count: int = 8192,
    ) -> None:
        self.flows: Final = flows
        self.length: Final = length
        self.burst: Final = burst
        self.payload: Final = length - HEAD
        if flows < 1 or burst < 1 or self.payload < 1 or HEAD + burst * self.payload > BYTES_MAX:
            raise InvalidError(
                f"{flows} flows, {length} bytes, bursts of {burst}: choose at least 1 flow, {HEAD + 1} bytes "
                f"and 1 frame, and bursts up to {BYTES_MAX} bytes"
            )
        turns = max(count // (flows * burst), 4)
        self.per_flow: Final = turns * burst
        """The number of frames of each flow."""
        chance = np.random.default_rng(seed)
        ends = chance.integers(0, 256, (flows, 12), np.uint8)
        ends[:, 0] = ends[:, 4] = 10  # addresses as 10.x.y.z, ports from 32768 on
        ends[:, 8] |= 0x80
        ends[:, 10] |= 0x80
        self._links: Final = np.frombuffer(target + source + b"\x08\x00", np.uint8)
        which, turn = np.tile(np.arange(flows), turns), np.repeat(np.arange(turns), flows)
        data = chance.integers(0, 256, (flows * turns, HEAD + burst * self.payload), np.uint8)
        self._head(data, ends[which], which, turn * burst * self.payload, _ACK)
        above = b"\0" * ABOVE
        if burst > 1:
            above = struct.pack("=BBHHHH", _WANTS_CHECKSUM, _CUT_TCP, HEAD, self.payload, 34, 16)
        self.messages: Final = np.hstack([_rows(above, len(data)), data])
        """(messages, ABOVE + bytes) uint8; message ``i`` is of flow ``i % flows``."""
        opening = np.zeros((flows, HEAD), np.uint8)
        self._head(opening, ends, np.arange(flows), np.full(flows, 2**32 - 1), _SYN)
        self.opening: Final = np.hstack([_rows(b"\0" * ABOVE, flows), opening])
        """(flows, ABOVE + HEAD) uint8"""

    @property
    def checksums(self) -> Numbers:
        """(messages,) TCP checksums, if each message is one frame."""
        return _words(self.messages[:, ABOVE + CHECKSUM : ABOVE + CHECKSUM + 2])[:, 0]

    def _head(self, data: Bytes, ends: Bytes, flows: Numbers, sequence: Numbers, flags: int) -> None:
        """Write headers into rows of bytes, one row for each message."""
        count, length = data.shape
        data[:, :14] = self._links
        data[:, 14:26] = _row(0x4500, length - 14, 0, 0x4000, 64 << 8 | 6, 0)
        data[:, 26:34] = ends[:, :8]
        data[:, 24:26] = _sum(data[:, 14:34])
        data[:, 34:NUMBER] = ends[:, 8:]
        for at, numbers in ((NUMBER, sequence), (FLOW, flows)):
            data[:, at : at + 4] = numbers.astype(">u4")[:, np.newaxis].view(np.uint8)
        data[:, 46:HEAD] = _row(5 << 12 | flags, 1000, 0, 0)
        pseudo = np.hstack([data[:, 26:34], _rows(struct.pack(">HH", 6, length - 34), count)])
        if self.burst > 1 and flags != _SYN:
            # The kernel completes the checksum in each piece.
            data[:, CHECKSUM : CHECKSUM + 2] = ~_sum(pseudo)
            return
        odd = np.zeros((count, length & 1), np.uint8)
        data[:, CHECKSUM : CHECKSUM + 2] = _sum(np.hstack([pseudo, data[:, 34:], odd]))


def _row(*words: int) -> Bytes:
    return np.frombuffer(np.array(words, ">u2").tobytes(), np.uint8)


def _rows(text: bytes, count: int) -> Bytes:
    return np.broadcast_to(np.frombuffer(text, np.uint8), (count, len(text)))


def _words(data: Bytes) -> Numbers:
    """Return rows of bytes as rows of 16-bit numbers."""
    return np.ascontiguousarray(data).view(">u2").astype(np.int64)


def _sum(data: Bytes) -> Bytes:
    """Return the Internet checksum of each row, (N, 2)."""
    total = _words(data).sum(axis=1)
    while (total >> 16).any():
        total = (total & 0xFFFF) + (total >> 16)
    checksum: Bytes = (~total & 0xFFFF).astype(">u2")[:, np.newaxis].view(np.uint8)
    return checksum
