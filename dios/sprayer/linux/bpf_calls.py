"""The system call bpf(): maps, programs, and their link to an interface, without a library.

A program stays on its interface while its link is open, so it disappears with this process, however that
ends. Programs are written with ``ebpf.py``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import struct
from typing import Final

from dios.errors import InvalidError, NotPermittedError

_NUMBERS: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
_LIBC: Final = ctypes.CDLL(None, use_errno=True)

_MAP_CREATE: Final = 0
_MAP_UPDATE: Final = 2
_LOAD: Final = 5
_TRY: Final = 10
_LINK: Final = 28
_LINK_UPDATE: Final = 29
_XSK_MAP: Final = 17
_XDP: Final = 6
_ON_XDP: Final = 37
_GENERIC: Final = 2
_NATIVE: Final = 4
_LOG_BYTES: Final = 2**16
_SHOWN: Final = 600


def _call(command: int, attributes: bytes) -> int:
    """Return the result of the call. Raises OSError and NotPermittedError."""
    return _call_with_output(command, attributes)[0]


def _call_with_output(command: int, attributes: bytes) -> tuple[int, bytes]:
    """Return the result of the call, and the attributes after it."""
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise InvalidError(
            f"bpf() is not supported here on {platform.machine()}; choose packet sockets (af_packet)"
        )
    memory = ctypes.create_string_buffer(attributes.ljust(144, b"\0"), 144)
    outcome = int(_LIBC.syscall(number, command, memory, len(memory)))
    if outcome >= 0:
        return outcome, memory.raw
    code = ctypes.get_errno()
    if code == errno.EPERM:
        raise NotPermittedError(
            "loading programs into the kernel needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_NET_RAW"
        )
    if code == errno.ENOSYS:
        raise InvalidError("this kernel has no bpf(); choose packet sockets (af_packet)")
    raise OSError(code, os.strerror(code))


def socket_map(places: int) -> int:
    """Return the file of a new map of AF_XDP sockets by number; raise InvalidError if it is not supported."""
    try:
        return _call(_MAP_CREATE, struct.pack("=4I", _XSK_MAP, 4, 4, places))
    except OSError as error:
        raise InvalidError(
            f"this kernel has no maps of AF_XDP sockets ({error.strerror}): it needs CONFIG_XDP_SOCKETS; "
            "choose packet sockets (af_packet)"
        ) from None


def put(file: int, place: int, socket: int) -> None:
    """Store a socket at a place of a map. Raises OSError."""
    key, value = struct.pack("=I", place), struct.pack("=I", socket)
    texts = [ctypes.create_string_buffer(content, 4) for content in (key, value)]
    _call(_MAP_UPDATE, struct.pack("=IIQQQ", file, 0, *map(ctypes.addressof, texts), 0))


def load(text: bytes) -> int:
    """Load an XDP program; return its file. Raises InvalidError with the message of the kernel's verifier."""
    code = ctypes.create_string_buffer(text, len(text))
    rights = ctypes.create_string_buffer(b"Apache-2.0")
    log = ctypes.create_string_buffer(_LOG_BYTES)
    attributes = struct.pack("=IIQQ", _XDP, len(text) // 8, ctypes.addressof(code), ctypes.addressof(rights))
    try:
        return _call(_LOAD, attributes)
    except OSError as error:
        # Load it again to get the verifier's message.
        with contextlib.suppress(OSError):
            os.close(_call(_LOAD, attributes + struct.pack("=IIQ", 1, len(log), ctypes.addressof(log))))
        words = log.value.decode(errors="replace").strip()[-_SHOWN:]
        raise InvalidError(f"the kernel refuses the program: {error.strerror}; {words}") from None


def link(program: int, index: int, name: str, *, native: bool = True) -> tuple[int, bool]:
    """Attach a program to an interface; return the link's file, and True if the driver runs the program.

    If the driver cannot run it, or ``native`` is False, the kernel does. Raises InvalidError if neither is
    possible, or if the interface has another program.
    """
    for mode in (_NATIVE, _GENERIC) if native else (_GENERIC,):
        try:
            return _call(_LINK, struct.pack("=4I", program, index, _ON_XDP, mode)), mode == _NATIVE
        except OSError as error:
            if error.errno in (errno.EBUSY, errno.EEXIST):
                raise InvalidError(
                    f"interface {name!r} has another XDP program; if nothing uses it, remove it with "
                    f"`ip link set {name} xdp off`"
                ) from None
            if mode == _GENERIC:
                raise InvalidError(
                    f"interface {name!r} accepts no XDP program: {error.strerror}; "
                    "choose packet sockets (af_packet)"
                ) from None
    raise AssertionError  # the loop returns or raises


def replace(link: int, program: int) -> None:
    """Replace the program of a link by another one, without a gap. Raises OSError."""
    _call(_LINK_UPDATE, struct.pack("=4I", link, program, 0, 0))


def run_program(program: int, frame: bytes) -> int:
    """Return the result of a program for a frame, in a test run of the kernel. Raises OSError."""
    data = ctypes.create_string_buffer(frame, len(frame))
    attributes = struct.pack("=4IQQ", program, 0, len(frame), 0, ctypes.addressof(data), 0)
    (verdict,) = struct.unpack_from("=I", _call_with_output(_TRY, attributes)[1], 4)
    return int(verdict)
