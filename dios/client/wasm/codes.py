"""The numbers of WASI preview 1: error codes, types of files, rights and flags."""

from __future__ import annotations

import enum
import errno
from typing import Final


class WasiCode(enum.IntEnum):
    """The error codes that host calls return."""

    SUCCESS = 0
    ACCESS = 2
    AGAIN = 6
    BAD_DESCRIPTOR = 8
    BUSY = 10
    EXISTS = 20
    FAULT = 21
    FILE_TOO_LARGE = 22
    ILLEGAL_BYTES = 25
    INTERRUPTED = 27
    INVALID = 28
    IO = 29
    IS_DIRECTORY = 31
    LOOP = 32
    TOO_MANY_FILES = 33
    NAME_TOO_LONG = 37
    NO_ENTRY = 44
    NO_MEMORY = 48
    NO_SPACE = 51
    NO_SUCH_CALL = 52
    NOT_DIRECTORY = 54
    NOT_EMPTY = 55
    NOT_SOCKET = 57
    NOT_SUPPORTED = 58
    NOT_PERMITTED = 63
    PIPE = 64
    READ_ONLY = 69
    NOT_SEEKABLE = 70
    OTHER_DEVICE = 75


class WasiError(Exception):
    """A host call that fails with an error code, which the module receives."""

    def __init__(self, code: WasiCode) -> None:
        super().__init__(code.name)
        self.code: Final = code


_OF_SYSTEM: Final = {
    errno.EACCES: WasiCode.ACCESS,
    errno.EAGAIN: WasiCode.AGAIN,
    errno.EBADF: WasiCode.BAD_DESCRIPTOR,
    errno.EBUSY: WasiCode.BUSY,
    errno.EEXIST: WasiCode.EXISTS,
    errno.EFBIG: WasiCode.FILE_TOO_LARGE,
    errno.EINTR: WasiCode.INTERRUPTED,
    errno.EINVAL: WasiCode.INVALID,
    errno.EISDIR: WasiCode.IS_DIRECTORY,
    errno.ELOOP: WasiCode.LOOP,
    errno.EMFILE: WasiCode.TOO_MANY_FILES,
    errno.ENAMETOOLONG: WasiCode.NAME_TOO_LONG,
    errno.ENOENT: WasiCode.NO_ENTRY,
    errno.ENOMEM: WasiCode.NO_MEMORY,
    errno.ENOSPC: WasiCode.NO_SPACE,
    errno.ENOTDIR: WasiCode.NOT_DIRECTORY,
    errno.ENOTEMPTY: WasiCode.NOT_EMPTY,
    errno.EPERM: WasiCode.NOT_PERMITTED,
    errno.EPIPE: WasiCode.PIPE,
    errno.EROFS: WasiCode.READ_ONLY,
    errno.ESPIPE: WasiCode.NOT_SEEKABLE,
    errno.EXDEV: WasiCode.OTHER_DEVICE,
}


def code_of(error: OSError) -> WasiCode:
    """Return the error code for an error of the operating system."""
    return _OF_SYSTEM.get(error.errno or 0, WasiCode.IO)


class FileType(enum.IntEnum):
    """The types of files that a module can meet."""

    UNKNOWN = 0
    CHARACTER_DEVICE = 2
    DIRECTORY = 3
    REGULAR = 4


class WasiPermission(enum.IntFlag):
    """The rights of a descriptor that this host distinguishes."""

    READ = 1 << 1
    SEEK = 1 << 2
    SET_FLAGS = 1 << 3
    TELL = 1 << 5
    WRITE = 1 << 6
    ALLOCATE = 1 << 8
    READ_DIRECTORY = 1 << 14
    SET_SIZE = 1 << 22


ALL_RIGHTS: Final = (1 << 30) - 1
TO_READ: Final = WasiPermission.READ | WasiPermission.READ_DIRECTORY
TO_WRITE: Final = WasiPermission.WRITE | WasiPermission.ALLOCATE | WasiPermission.SET_SIZE
STREAM_RIGHTS: Final = WasiPermission.READ | WasiPermission.WRITE | WasiPermission.SET_FLAGS
"""The rights to the console. Because SEEK and TELL are missing, C libraries write to it line by line."""


class OpenFlag(enum.IntFlag):
    """The flags with which a path is opened."""

    CREATE = 1
    DIRECTORY = 2
    EXCLUSIVE = 4
    TRUNCATE = 8


class DescriptorFlag(enum.IntFlag):
    """The flags of a descriptor that have an effect here."""

    APPEND = 1
