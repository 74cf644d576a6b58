"""The content of an executable object: Python source, or a packet of it with its own modules.

The packet is MessagePack, whose first byte cannot begin UTF-8 text, so that the two forms are distinct.
``dios.client.task_main`` runs it.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec

from dios.errors import InvalidError, NotExecutableError

FORMAT: Final = 1

ProgramText: TypeAlias = "str | Path | bytes | Program"
"""A path to a .py file, the bytes of a source or packet, or a ``Program``."""


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The source of a main module, and modules that only this program can import."""

    main: str
    modules: dict[str, str] = {}
    format: Annotated[int, msgspec.Meta(ge=FORMAT, le=FORMAT)] = FORMAT


_decoder: Final = msgspec.msgpack.Decoder(Program)


def encode_program(program: ProgramText, modules: Mapping[str, str | Path] | None = None) -> bytes:
    """Return the bytes of an executable object.

    ``modules`` has sources, or paths to them, by the names under which they are imported. Raises
    InvalidError if a file cannot be read.
    """
    if isinstance(program, Program):
        merged = {**program.modules, **_sources(modules or {})}
        return msgspec.msgpack.encode(Program(program.main, merged))
    source = program if isinstance(program, bytes) else _read(Path(program)).encode()
    if not modules:
        return source
    known = decode_program(source)
    return msgspec.msgpack.encode(Program(known.main, {**known.modules, **_sources(modules)}))


def _sources(modules: Mapping[str, str | Path]) -> dict[str, str]:
    return {name: _read(text) if isinstance(text, Path) else text for name, text in modules.items()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidError(f"the program {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidError(f"the program {path} is not Python source in UTF-8") from None


def decode_program(data: bytes) -> Program:
    """Read the bytes of an executable object; raises NotExecutableError."""
    try:
        if data[:1] and 0x80 <= data[0] <= 0x8F:
            return _decoder.decode(data)
        # Not the codec that removes the mark itself: a task would have to import it first.
        return Program(data.removeprefix(codecs.BOM_UTF8).decode())
    except UnicodeDecodeError:
        raise NotExecutableError("the executable is neither Python source in UTF-8 nor a packet") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise NotExecutableError(f"the executable's packet is malformed: {error}") from None
