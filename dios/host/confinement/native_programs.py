"""Native programs that pure tasks may become: the files that each needs, found before any task exists.

The owner of a node lists them in its settings. Their files are in the read-only view of all pure tasks of the
node. Of all files, Landlock lets a task execute these programs and their loader alone.
"""

from __future__ import annotations

import os
import struct
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from dios.errors import InvalidError
from dios.wire.fields import Text

PROGRAMS_MAX: Final = 64
PROGRAM_FILES_MAX: Final = 256
PROGRAM_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
PLACE: Final = "/programs"
"""The directory of the view with a link to each program."""

_MAGIC: Final = b"\x7fELF\x02\x01"
"""The first bytes of a program for a processor with 64 bits, the lowest byte first."""

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
_INTERPRETER: Final = 3
_LIST_S: Final = 10


class ProgramSetting(NamedTuple):
    """A program as the settings describe it: its name, its file, and further paths that it reads."""

    name: str
    path: str
    read: tuple[str, ...] = ()


class NativeProgram(Struct, frozen=True):
    """A program with all paths that its tasks can read.

    ``path`` and ``loader`` are real paths; a static program has no loader.
    """

    name: Text
    path: Text
    loader: Text
    files: Annotated[tuple[Text, ...], Meta(max_length=PROGRAM_FILES_MAX)]

    @property
    def executable(self) -> tuple[str, ...]:
        """The files that a task must be able to execute."""
        return (self.path, self.loader) if self.loader else (self.path,)


def examine(setting: ProgramSetting) -> NativeProgram:
    """Find the files of a program. Raise ``InvalidError`` with the reason for one that no task can become.

    The program's own loader lists its libraries, without running it.
    """
    for path in setting.read:
        if not os.path.exists(path):  # noqa: PTH110 - the zygote loads this module, and no pathlib
            raise _refused(setting, f"{path} in read does not exist")
    loader = _loader(setting)
    libraries = _libraries(setting, loader) if loader else []
    paths = (setting.path, *([loader] if loader else []), *libraries, *setting.read)
    files = tuple(dict.fromkeys(paths))
    if len(files) > PROGRAM_FILES_MAX:
        raise _refused(setting, f"it needs {len(files)} files, more than {PROGRAM_FILES_MAX}")
    real = os.path.realpath(loader) if loader else ""
    return NativeProgram(setting.name, os.path.realpath(setting.path), real, files)


def _loader(setting: ProgramSetting) -> str:
    """Return the path of the dynamic loader that a program names, "" for a static one."""
    try:
        with open(setting.path, "rb") as file:  # noqa: PTH123 - the same
            head = file.read(_HEADER.size)
            if not head.startswith(_MAGIC) or len(head) < _HEADER.size:
                raise _refused(setting, "it is no ELF program of 64 bits. For a script, name its interpreter")
            fields = _HEADER.unpack(head)
            offset, size, count = fields[5], fields[9], fields[10]
            for index in range(count):
                file.seek(offset + index * size)
                kind, _, begin, _, _, length, _, _ = _SEGMENT.unpack(file.read(_SEGMENT.size))
                if kind == _INTERPRETER:
                    file.seek(begin)
                    return file.read(length).rstrip(b"\0").decode()
    except (OSError, struct.error, ValueError) as error:
        raise _refused(setting, str(error)) from None
    return ""


def _libraries(setting: ProgramSetting, loader: str) -> list[str]:
    import subprocess  # noqa: PLC0415 - the daemon comes here, the zygote never

    try:
        listed = subprocess.run(
            [loader, "--list", setting.path],
            capture_output=True,
            check=True,
            text=True,
            timeout=_LIST_S,
            env={},
            cwd="/",
        ).stdout
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise _refused(setting, f"its libraries cannot be listed: {error}") from None
    words = [word for line in listed.splitlines() for word in line.split()]
    if "not" in words:
        missing = [line.split()[0] for line in listed.splitlines() if "not found" in line]
        raise _refused(setting, f"a library is missing: {', '.join(missing)}")
    return [word for word in words if word.startswith("/")]


def _refused(setting: ProgramSetting, reason: str) -> InvalidError:
    return InvalidError(f"the program {setting.name} ({setting.path}) cannot be a task's: {reason}")
