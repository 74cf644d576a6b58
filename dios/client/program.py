"""The content of an executable object: Python source, a WebAssembly module, or a packet.

A packet has a program with its own modules, or with the labels of its files. It is MessagePack, whose first
byte cannot begin UTF-8 text; a WebAssembly module begins with a zero byte, which no source of Python has. So
the three forms are distinct.
``dios.client.task_main`` runs it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec

from dios.errors import InvalidError, NotExecutableError

FORMAT: Final = 1

ProgramText: TypeAlias = "str | Path | bytes | Program"
"""A path to a .py or .wasm file, the bytes of a source, module or packet, or a ``Program``."""

_WASM: Final = b"\0asm"
NATIVE_NAME: Final = r"^([A-Za-z0-9][A-Za-z0-9_.-]{0,63})?$"

TRACEPARENT: Final = r"^(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?$"

LABEL_BYTES_MAX: Final = 255
"""The greatest length of the name of a file."""


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The source of a main module, and modules that only this program can import.

    ``wasm`` is a WebAssembly module in place of Python source, and ``native`` the name of a native program in
    the node's settings; ``main`` is empty then. ``inputs`` and ``outputs`` are the labels of those inputs and
    outputs that the task finds as files. ``traceparent`` is the span of which the task is a part, which it
    finds in its environment as TRACEPARENT.
    """

    main: str
    modules: dict[str, str] = {}
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    wasm: bytes = b""
    native: Annotated[str, msgspec.Meta(pattern=NATIVE_NAME)] = ""
    traceparent: Annotated[str, msgspec.Meta(pattern=TRACEPARENT)] = ""
    format: Annotated[int, msgspec.Meta(ge=FORMAT, le=FORMAT)] = FORMAT


_decoder: Final = msgspec.msgpack.Decoder(Program)


def encode_program(program: ProgramText, modules: Mapping[str, str | Path] | None = None) -> bytes:
    """Return the bytes of an executable object.

    ``modules`` has sources, or paths to them, by the names under which they are imported. Raises
    InvalidError if a file cannot be read.
    """
    if isinstance(program, Program):
        if not modules:
            return msgspec.msgpack.encode(program)
        _require_python(program)
        merged = {**program.modules, **_sources(modules or {})}
        return msgspec.msgpack.encode(msgspec.structs.replace(program, modules=merged))
    source = program if isinstance(program, bytes) else _read_program(Path(program))
    if not modules:
        return source
    known = decode_program(source)
    _require_python(known)
    merged = {**known.modules, **_sources(modules)}
    return msgspec.msgpack.encode(msgspec.structs.replace(known, modules=merged))


def with_files(program: ProgramText, inputs: Iterable[str], outputs: Iterable[str]) -> Program:
    """Return the program for a task that finds these inputs and outputs as files. Raise ``InvalidError``."""
    known = decode_program(encode_program(program))
    outputs = tuple(outputs)
    if known.native and outputs:
        raise InvalidError(
            "a native program has no outputs as files: nothing is left of its task that could store them. It "
            "writes its result to standard output"
        )
    return msgspec.structs.replace(
        known,
        inputs=tuple(file_label(label) for label in inputs),
        outputs=tuple(file_label(label) for label in outputs),
    )


def with_trace(program: ProgramText, traceparent: str) -> Program:
    """Return the program for a task that is a part of a span. Raise ``InvalidError``."""
    return msgspec.structs.replace(decode_program(encode_program(program)), traceparent=traceparent)


def file_label(label: str) -> str:
    """Return a label that can be the name of a file. Raise ``InvalidError`` for any other."""
    try:
        encoded = label.encode()
    except UnicodeEncodeError:
        encoded = b""
    if not 0 < len(encoded) <= LABEL_BYTES_MAX or label in {".", ".."} or {"/", "\0"} & set(label):
        raise InvalidError(
            f"the label {label!r} cannot be the name of a file: it must have 1 to {LABEL_BYTES_MAX} bytes "
            "and no slash"
        )
    return label


def is_wasm(program: ProgramText) -> bool:
    """Return True for a WebAssembly module. Raise ``InvalidError`` for a file that cannot be read."""
    data = encode_program(program)
    return data.startswith(_WASM) or (_is_packet(data) and bool(decode_program(data).wasm))


def _require_python(program: Program) -> None:
    if program.wasm or program.native:
        raise InvalidError("only a program in Python imports modules of Python: leave out the modules")


def _sources(modules: Mapping[str, str | Path]) -> dict[str, str]:
    return {name: _read(text) if isinstance(text, Path) else text for name, text in modules.items()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidError(f"the program {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidError(f"the program {path} is not Python source in UTF-8") from None


def _read_program(path: Path) -> bytes:
    if "\n" in str(path):
        raise InvalidError("a str is the path of a program; give the text of a program as bytes")
    try:
        with path.open("rb") as file:
            if file.read(len(_WASM)) == _WASM:
                return _WASM + file.read()
    except OSError as error:
        raise InvalidError(f"the program {path} cannot be read: {error.strerror}") from None
    return _read(path).encode()


def _is_packet(data: bytes) -> bool:
    return bool(data) and 0x80 <= data[0] <= 0x8F


def decode_program(data: bytes) -> Program:
    """Read the bytes of an executable object; raises NotExecutableError."""
    if data.startswith(_WASM):
        return Program("", wasm=data)
    try:
        if _is_packet(data):
            return _decoder.decode(data)
        # Not the codec that removes the mark itself: a task would have to import it first.
        return Program(data.removeprefix(codecs.BOM_UTF8).decode())
    except UnicodeDecodeError:
        raise NotExecutableError(
            "the executable is no Python source in UTF-8, no WebAssembly module, and no packet"
        ) from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise NotExecutableError(f"the executable's packet is malformed: {error}") from None
