"""The common options and statistics of the engines for Linux.

The sockets are in ``af_packet.py`` and ``af_xdp.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from dios.errors import InvalidError
from dios.limits import (
    SPRAYER_CORES_MAX,
    SPRAYER_INTERFACES_MAX,
    SPRAYER_PLACES_MAX,
    SPRAYER_WAIT_LONG_US,
    SPRAYER_WAIT_US,
)
from dios.sprayer.linux import wait_kernels as waiting
from dios.sprayer.linux.fanout import Steering, steering

AUTO: Final = "auto"


@dataclass(frozen=True)
class CoreStatistics:
    """The statistics of the sockets of one core, over all interfaces."""

    arrived: int
    """Frames that the kernel gave to this core."""
    no_place: int
    """Those among them that found its ring full."""
    cut: int
    """Frames longer than a place: the sender's segmentation offload is on. AF_XDP never sees such frames."""
    tagged: int
    """VLAN tags put back into their frames, if the kernel had removed them."""
    finished: int
    """Checksums computed because the sender had left them to its hardware, as reported by the kernel."""
    refused: int
    """Frames that the kernel did not accept for sending."""
    waits: int


def check_options(pairs: Sequence[tuple[str, str]], cores: int, places: int, pin: Sequence[int]) -> None:
    """Raise InvalidError for options that no engine supports."""
    names = [name for pair in pairs for name in pair]
    if not 0 < len(names) <= SPRAYER_INTERFACES_MAX or len(set(names)) < len(names):
        raise InvalidError(
            f"interfaces {', '.join(names)}: give pairs of different ones, at most {SPRAYER_INTERFACES_MAX}"
        )
    if not 0 < cores <= SPRAYER_CORES_MAX:
        raise InvalidError(f"{cores} cores: choose from 1 to {SPRAYER_CORES_MAX}")
    if not 32 <= places <= SPRAYER_PLACES_MAX or places & (places - 1):
        raise InvalidError(
            f"{places} places in a ring: choose a power of two from 32 to {SPRAYER_PLACES_MAX}"
        )
    if pin and len(pin) != cores:
        raise InvalidError(f"{len(pin)} processors for {cores} cores: give one for each core, or none")


def parse_steering(text: str, quic_ports: Sequence[int] = ()) -> Steering:
    """Parse a kind of steering; raise InvalidError if it is unknown. ``auto`` begins with ``rss``."""
    try:
        return replace(steering("rss" if text == AUTO else text), quic_ports=tuple(quic_ports))
    except ValueError as error:
        raise InvalidError(str(error)) from None


def fill_waiting(
    words: npt.NDArray[np.int64], files: Sequence[int], processor: int | None
) -> list[npt.NDArray[np.int64]]:
    """Fill in a core's words for waiting on sockets; return the arrays that they point to."""
    polled = np.array([file | 1 << 32 for file in files], np.int64)  # POLLIN
    short, long = (np.array([0, us * 1000], np.int64) for us in (SPRAYER_WAIT_US, SPRAYER_WAIT_LONG_US))
    mask = np.zeros(1024 // 64, np.uint64)
    words[waiting.PORTS], words[waiting.POLLED] = len(polled), polled.ctypes.data
    words[waiting.SHORT], words[waiting.LONG] = short.ctypes.data, long.ctypes.data
    if processor is not None:
        mask[processor // 64] = np.uint64(1 << processor % 64)
        words[waiting.SET], words[waiting.SET_BYTES] = mask.ctypes.data, mask.nbytes
    return [polled, short, long, mask.view(np.int64)]
