"""Checked access to the memory of a WebAssembly instance, whose addresses and sizes come from the module."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from dios.client.wasm.codes import WasiCode, WasiError
from dios.limits import WASM_BUFFERS_MAX, WASM_PATH_BYTES_MAX

if TYPE_CHECKING:
    from wasmtime import Memory, Store

_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_BUFFER: Final = struct.Struct("<II")


class GuestMemory:
    """The memory of one instance. Each method raises ``WasiError`` for an address outside of it."""

    def __init__(self, store: Store, memory: Memory) -> None:
        self._store: Final = store
        self._memory: Final = memory

    def view(self, at: int, size: int) -> memoryview:
        """Return a writable view of ``size`` bytes; it is valid until the module runs again."""
        if at + size > self._memory.data_len(self._store):
            raise WasiError(WasiCode.FAULT)
        if not size:
            return memoryview(bytearray())
        return memoryview(self._memory.get_buffer_ptr(self._store, size, at)).cast("B")

    def views(self, at: int, count: int) -> list[memoryview]:
        """Return views of the buffers in an array of ``count`` addresses and sizes."""
        if count > WASM_BUFFERS_MAX:
            raise WasiError(WasiCode.INVALID)
        return [self.view(*buffer) for buffer in _BUFFER.iter_unpack(self.read(at, count * _BUFFER.size))]

    def read(self, at: int, size: int) -> bytes:
        """Return a copy of ``size`` bytes."""
        return bytes(self.view(at, size))

    def write(self, at: int, data: bytes) -> None:
        """Copy bytes into the memory."""
        self.view(at, len(data))[:] = data

    def path(self, at: int, size: int) -> str:
        """Return the text of a path."""
        if size > WASM_PATH_BYTES_MAX:
            raise WasiError(WasiCode.NAME_TOO_LONG)
        try:
            text = self.read(at, size).decode()
        except UnicodeDecodeError:
            raise WasiError(WasiCode.ILLEGAL_BYTES) from None
        if "\0" in text:
            raise WasiError(WasiCode.INVALID)
        return text

    def write_u32(self, at: int, value: int) -> None:
        """Write a number of 32 bits."""
        self.write(at, _U32.pack(value))

    def write_u64(self, at: int, value: int) -> None:
        """Write a number of 64 bits."""
        self.write(at, _U64.pack(value))

    def write_strings(self, pointers: int, at: int, texts: list[bytes]) -> None:
        """Write each text with a zero byte behind it from ``at`` on, and its address to ``pointers``."""
        for index, text in enumerate(texts):
            self.write_u32(pointers + index * _U32.size, at)
            self.write(at, text + b"\0")
            at += len(text) + 1


def sizes_of(texts: list[bytes]) -> tuple[int, int]:
    """Return the number of texts, and of the bytes that ``write_strings`` needs for them."""
    return len(texts), sum(len(text) + 1 for text in texts)
