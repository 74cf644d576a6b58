"""A process that holds the lock of a memory for as long as a test likes.

It writes from a page whose contents never come, as a user with a file system of their own could.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import signal
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_API, _REGISTER = 0xC018AA3F, 0xC020AA00


def _page_that_never_comes() -> tuple[mmap.mmap, int]:
    """A page for whose first use this process waits, and its address; it needs root."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(_USERFAULTFD.get(platform.machine(), -1), os.O_CLOEXEC)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "userfaultfd")
    fcntl.ioctl(fd, _API, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    fcntl.ioctl(fd, _REGISTER, bytearray(struct.pack("QQQQ", address, mmap.PAGESIZE, 1, 0)))
    return memory, address


@contextmanager
def stuck_writer(memory: int) -> Iterator[None]:
    """Let another process hold the lock of ``memory``, a descriptor for writing."""
    into, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            kept, address = _page_that_never_comes()
            os.write(out, b"\0\0")
            libc = ctypes.CDLL(None)
            libc.pwrite(memory, ctypes.c_void_p(address), ctypes.c_size_t(8), ctypes.c_int64(0))
            kept.close()
        except OSError as error:
            os.write(out, struct.pack("<H", error.errno or 1))
        finally:
            os._exit(1)
    os.close(out)
    try:
        (failed,) = struct.unpack("<H", os.read(into, 2))
        if failed:
            pytest.skip(f"no page can be kept waiting here (userfaultfd: errno {failed})")
        while "userfault" not in Path(f"/proc/{pid}/wchan").read_text():
            assert not os.waitpid(pid, os.WNOHANG)[0], "the writer did not wait"
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(into)
