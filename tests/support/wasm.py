"""Builds WebAssembly modules for tests: programs that make host calls and report their error codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

wasmtime = pytest.importorskip("wasmtime")

from dios.client.wasm.host_calls import MODULE, SIGNATURES, WITHOUT_RESULT  # noqa: E402

CODES = 512
DATA = 4_096
ROOM = 32_768
INPUTS, TEMPORARY, HERE, OUTPUTS = 3, 4, 5, 6
"""The descriptors of the directories with which a module starts."""
READ, WRITE = 1 << 1, 1 << 6
CREATE, TRUNCATE = 1, 8
BAD_ADDRESS = 0xFFFF_FF00


@dataclass(frozen=True)
class Word:
    """The number of 32 bits that an earlier call left at an address."""

    at: int


@dataclass(frozen=True)
class Call:
    """One host call; a text among its arguments stands for its address and length."""

    name: str
    arguments: tuple[int | bytes | Word, ...] = ()


def opening(directory: int, path: bytes, at: int, *, flags: int = 0, rights: int = READ) -> Call:
    """A ``path_open``, whose descriptor is left at ``at``."""
    return Call("path_open", (directory, 0, path, flags, rights, rights, 0, at))


def put(address: int, value: int | Word) -> Call:
    """Store a number in the module's memory."""
    return Call("", (address, value))


def built(text: str) -> bytes:
    """Return the module for a text in WAT."""
    return bytes(wasmtime.wat2wasm(text))


def program(calls: Sequence[Call], *, show: Sequence[tuple[int, int]] = (), body: str = "") -> bytes:
    """Return a module that makes the calls, then writes their error codes, one byte each, to the console.

    ``show`` are addresses and lengths of memory that it writes behind them; ``body`` runs at the end.
    """
    data: list[tuple[int, bytes]] = []
    free = DATA
    lines: list[str] = []
    for index, call in enumerate(calls):
        words = ""
        signature = list(SIGNATURES.get(call.name, "ii"))
        for argument in call.arguments:
            parts: list[int | Word] = [argument] if not isinstance(argument, bytes) else [free, len(argument)]
            if isinstance(argument, bytes):
                data.append((free, argument))
                free += len(argument)
            for part in parts:
                kind = "i64" if signature.pop(0) == "I" else "i32"
                words += (
                    f" (i32.load (i32.const {part.at}))"
                    if isinstance(part, Word)
                    else f" ({kind}.const {part})"
                )
        assert not signature, call
        if not call.name:
            lines.append(f"(i32.store {words})")
        elif call.name == WITHOUT_RESULT:
            lines.append(f"(call ${call.name} {words})")
        else:
            lines.append(f"(i32.store8 (i32.const {CODES + index}) (call ${call.name} {words}))")
    for at, size in [(CODES, len(calls)), *show] if calls else list(show):
        lines += [
            f"(i32.store (i32.const 0) (i32.const {at}))",
            f"(i32.store (i32.const 4) (i32.const {size}))",
        ]
        lines.append("(drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))")
    return built(_module(lines, data, body))


def _module(lines: list[str], data: list[tuple[int, bytes]], body: str) -> str:
    imports = []
    for name, signature in SIGNATURES.items():
        kinds = " ".join("i64" if letter == "I" else "i32" for letter in signature)
        result = "" if name == WITHOUT_RESULT else "(result i32)"
        imports.append(f'(import "{MODULE}" "{name}" (func ${name} (param {kinds}) {result}))')
    segments = [f'(data (i32.const {at}) "{_escaped(text)}")' for at, text in data]
    return "\n".join(
        [
            "(module",
            *imports,
            '(memory (export "memory") 2)',
            *segments,
            '(func (export "_start")',
            *lines,
            body,
            "))",
        ]
    )


def _escaped(text: bytes) -> str:
    return "".join(f"\\{byte:02x}" for byte in text)
