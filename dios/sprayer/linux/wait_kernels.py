"""How a worker waits for frames, and goes to its processor: for engines of sockets; compiled.

Not for: taking frames (``ring_kernels.py``, ``xdp_kernels.py``).

A core's context is an array of words, of which the first are what is named here. A worker that has nothing to
do looks a few times, since another core may hand something over, and then lets its processor go: for a
millisecond at most at once, so that nothing that another core hands over waits for longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from numba import types

from dios.kernels import no_refcount_kernel
from dios.limits import SPRAYER_LONG_WAIT_SPINS, SPRAYER_NICE, SPRAYER_SPINS_MAX

if TYPE_CHECKING:
    import numpy.typing as npt

    Context = npt.NDArray[np.int64]

PORTS: Final = 0
"""So many sockets."""
POLLED: Final = 1
SHORT: Final = 2
LONG: Final = 3
"""Addresses of what ``ppoll`` reads: sockets, and two times."""
SET: Final = 4
SET_BYTES: Final = 5
"""The processors that the thread may run on, or 0; it is told once."""
EMPTY: Final = 6
"""Receptions of nothing in a row."""
WAITS: Final = 7
WOKEN: Final = 8
"""At which reception of nothing the last wait ended early."""
WAIT_WORDS: Final = 9

_int, _long = types.int32, types.int64
Integer = int | np.int32 | np.uint32 | np.int64
_ppoll: Final = cast(
    "Callable[[Integer, Integer, Integer, Integer], int]",
    types.ExternalFunction("ppoll", _int(_long, _long, _long, _long)),
)
_nanosleep: Final = cast(
    "Callable[[Integer, Integer], int]", types.ExternalFunction("nanosleep", _int(_long, _long))
)
_sched_setaffinity: Final = cast(
    "Callable[[Integer, Integer, Integer], int]",
    types.ExternalFunction("sched_setaffinity", _int(_int, _long, _long)),
)
_setpriority: Final = cast(
    "Callable[[Integer, Integer, Integer], int]",
    types.ExternalFunction("setpriority", _int(_int, types.uint32, _int)),
)


@no_refcount_kernel
def pin_thread(words: Context) -> None:
    """At a thread's first reception: where it was told to run, and before others if it may.

    Packets that wait behind another process are overtaken by those that other workers have.
    """
    if words[SET]:
        _sched_setaffinity(np.int32(0), words[SET_BYTES], words[SET])
        _setpriority(np.int32(0), np.uint32(0), np.int32(SPRAYER_NICE))
        words[SET] = 0


@no_refcount_kernel
def wait_if_idle(words: Context, received: int) -> None:
    """Let the processor go when nothing comes: shortly at first, since others may hand something over."""
    if received:
        words[EMPTY] = words[WOKEN] = 0
        return
    words[EMPTY] += 1
    if words[EMPTY] <= SPRAYER_SPINS_MAX:
        return
    words[WAITS] += 1
    long = words[LONG] if words[EMPTY] > SPRAYER_LONG_WAIT_SPINS else words[SHORT]
    if _ppoll(words[POLLED], words[PORTS], long, 0) > 0:
        if words[WOKEN] == words[EMPTY] - 1:
            # So says an interface that is down, and a ring whose last frame another core has.
            _nanosleep(long, 0)
        words[WOKEN] = words[EMPTY]
