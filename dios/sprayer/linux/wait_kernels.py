"""Waiting for frames and pinning to a processor, for engines on sockets; compiled.

A core's context is an array of words that begins with the fields listed here. A worker without work polls a
few times, because another core may hand something over, and then sleeps: for at most a millisecond at a time,
so that packets that another core hands over do not wait longer.
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
"""The number of sockets."""
POLLED: Final = 1
SHORT: Final = 2
LONG: Final = 3
"""Addresses of the arguments of ``ppoll``: sockets, and two times."""
SET: Final = 4
SET_BYTES: Final = 5
"""The processors on which the thread may run, or 0; applied once."""
EMPTY: Final = 6
"""The number of receptions of nothing in a row."""
WAITS: Final = 7
WOKEN: Final = 8
"""The reception of nothing at which the last wait ended early."""
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
    """Pin the thread at its first reception, and raise its priority if permitted.

    Packets that wait behind another process would be overtaken by those of other workers.
    """
    if words[SET]:
        _sched_setaffinity(np.int32(0), words[SET_BYTES], words[SET])
        _setpriority(np.int32(0), np.uint32(0), np.int32(SPRAYER_NICE))
        words[SET] = 0


@no_refcount_kernel
def wait_if_idle(words: Context, received: int) -> None:
    """Sleep if nothing arrives: shortly at first, because others may hand something over."""
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
            # An interface that is down reports this, and a ring whose last frame another core uses.
            _nanosleep(long, 0)
        words[WOKEN] = words[EMPTY]
