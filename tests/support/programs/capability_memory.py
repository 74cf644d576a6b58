"""Source text for hostile tasks: reaching for memory that they may only read; for the escape suite."""

from __future__ import annotations

from typing import Final

_LIBC: Final = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for call, count in (("mprotect", 3), ("mmap", 6), ("mremap", 4), ("madvise", 3), ("fallocate", 4)):
    getattr(libc, call).argtypes = [ctypes.c_size_t] * count
    getattr(libc, call).restype = ctypes.c_ssize_t
def refuse():
    raise OSError(ctypes.get_errno(), "refused")
def checked(result):
    return refuse() if result in (-1, 2**32 - 1) else result
class Buffer(ctypes.Structure):
    _fields_ = [("place", ctypes.c_void_p), ("rest", ctypes.c_void_p * 16)]
def place_of(view):
    found = Buffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(found), 0)
    return found.place
"""


def address_of(view: str) -> str:
    """Where the bytes of a view stand, as ``place``; and what calls to the system take."""
    return f"{_LIBC}place = place_of({view})\n"


def attempt(action: str) -> str:
    """Try something: ``said`` is ``refused`` and why, or that it went through."""
    return (
        "try:\n"
        f"    {action}\n"
        "    said = 'went through'\n"
        "except (OSError, TypeError, ValueError) as error:\n"
        "    said = f'refused {error}'\n"
    )
