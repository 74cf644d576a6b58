"""The library that is loaded before a process's own ones, and the file that controls it."""

from __future__ import annotations

import atexit
import functools
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.chaos.kept import power

SOURCE: Final = Path(__file__).with_name("shim.c")
_FIELDS: Final = ("clock_offset_ns", "strobe_ns", "strobe_period_ns", "sync_delay_ns", "stalled", "journal")
_NUMBER: Final = struct.Struct("<q")


class NoCompilerError(Exception):
    """There is no C compiler here, and so no false clocks, slow disks and power cuts."""


@functools.cache
def shim() -> Path:
    """Compile the library and return its path; NoCompilerError if there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise NoCompilerError("no C compiler is installed (on Debian or Ubuntu: apt install gcc)")
    folder = tempfile.mkdtemp(prefix="dios-chaos-shim-")
    atexit.register(_remove, folder, os.getpid())
    library = Path(folder) / "shim.so"
    flags = ["-O2", "-Wall", "-shared", "-fPIC"]
    words = [compiler, *flags, "-o", str(library), str(SOURCE), "-ldl", "-lpthread"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoCompilerError(f"{compiler} cannot make the library: {done.stderr.strip()}")
    return library


def _remove(folder: str, owner: int) -> None:
    """Remove the library at the end of the process that made it, and not at that of a forked one."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


class Machinery:
    """The clock and the disk of the processes of one machine."""

    def __init__(self, folder: Path, data: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.data: Final = data
        self.journal: Final = folder / "journal"
        self._path: Final = folder / "control"
        self._path.write_bytes(bytes(_NUMBER.size * len(_FIELDS)))
        with self._path.open("r+b") as file:
            self._memory: Final = mmap.mmap(file.fileno(), 0)
        power.clear(self.journal)

    def environment(self) -> dict[str, str]:
        """Return what a process of this machine needs in its environment."""
        return {
            "LD_PRELOAD": str(shim()),
            "CHAOS_CONTROL": str(self._path),
            "CHAOS_JOURNAL": str(self.journal),
            "CHAOS_DATA": str(self.data.resolve()),
        }

    def set(self, **fields: int) -> None:
        """Change fields of the control, at once for all running processes."""
        for name, value in fields.items():
            _NUMBER.pack_into(self._memory, _NUMBER.size * _FIELDS.index(name), value)

    @property
    def is_stalled(self) -> bool:
        """True if no sync ends at the moment."""
        (stalled,) = _NUMBER.unpack_from(self._memory, _NUMBER.size * _FIELDS.index("stalled"))
        return bool(stalled)

    def heal(self) -> None:
        """Let the disk work, and let no clock jump any more; a clock that is wrong stays wrong."""
        self.set(strobe_ns=0, sync_delay_ns=0, stalled=0)

    def close(self) -> None:
        """Release the control."""
        self._memory.close()
