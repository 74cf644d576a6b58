"""Mapped memory that keeps no descriptor: each mapping of the ``mmap`` module has one of its own."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_int64,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED: Final = ctypes.c_void_p(-1).value


def map_memory(
    fd: int, size: int, *, start: int = 0, writable: bool = True, private: bool = False
) -> memoryview:
    """Map ``size`` bytes from ``start`` on, and return them; the caller may close the descriptor.

    The bytes stay mapped until the last view of them is released. Changes of a ``private`` mapping belong to
    this process alone. A file must not become shorter meanwhile. Raise OSError.
    """
    skip = start % mmap.ALLOCATIONGRANULARITY
    flags = mmap.MAP_PRIVATE if private else mmap.MAP_SHARED
    rights = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    address = _libc.mmap(None, skip + size, rights, flags, fd, start - skip)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_ubyte * size).from_address(address + skip)
    weakref.finalize(memory, _libc.munmap, address, skip + size).atexit = False
    view = memoryview(memory).cast("B")
    return view if writable else view.toreadonly()
