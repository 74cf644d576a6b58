"""The private folder of a pure task: a file system in memory that counts as the task's and ends with it.

The zygote makes one for each child (``make``), and the child mounts it in its own mount namespace (``place``)
before it gives up its rights. It holds ``/tmp``, and the files of ``/inputs`` and ``/outputs`` if the program
wants its inputs and outputs as files. Nothing in it can be executed. Where a control group limits the memory
of a task, the group counts the folder's pages. Elsewhere the daemon counts them
(``limits_of_task.bytes_of_folder``).
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final

from dios import limits
from dios.host.confinement import memory_mounts

NEEDED: Final = frozenset({"user", "mount"})
"""The mechanisms without which a task has no private folder."""

HOLDER: Final = "/private"
"""The directory of the view with the rule of Landlock: a rule does not reach files through the mount point
itself, but through its parent."""

MOUNT_POINT: Final = HOLDER + "/task"
NEXT: Final = HOLDER + "/next"
"""The place of the folder of a fork, while it copies the files of its origin."""
TEMPORARY: Final = MOUNT_POINT + "/tmp"  # noqa: S108 - of this task alone
LINKS: Final[dict[str, str]] = {
    "/tmp": TEMPORARY,  # noqa: S108 - a link into it
    "/var/tmp": TEMPORARY,  # noqa: S108 - the same
    "/inputs": MOUNT_POINT + "/inputs",
    "/outputs": MOUNT_POINT + "/outputs",
}
"""Links in the view's root. A link is left out if a library of the view lies below its path."""

_BYTES_PER_FILE: Final = 16 * limits.KIB
_FILES_MIN: Final = 1_024
_FILES_MAX: Final = 65_536


def is_available(mechanisms: Collection[str]) -> bool:
    """Return True if tasks get a private folder on a machine with these mechanisms."""
    return NEEDED.issubset(mechanisms)


def size_for(memory_bytes: int) -> int:
    """Return the bytes that the folder of a task with this memory limit holds: half of it."""
    return memory_bytes // 2


def files_for(memory_bytes: int) -> int:
    """Return the number of files and directories that the folder of such a task holds."""
    return min(max(size_for(memory_bytes) // _BYTES_PER_FILE, _FILES_MIN), _FILES_MAX)


def make(memory_bytes: int, *, may_execute: bool = False) -> int:
    """Return a new, empty folder as a mount that is nowhere yet; the caller closes it. Raise ``OSError``."""
    options = {
        "size": str(size_for(memory_bytes)),
        "nr_inodes": str(files_for(memory_bytes)),
        "mode": "0700",
    }
    attributes = memory_mounts.NO_SUID | memory_mounts.NO_DEV
    return memory_mounts.new(options, attributes if may_execute else attributes | memory_mounts.NO_EXEC)


def place(folder: int, path: str = MOUNT_POINT) -> None:
    """Mount the folder in the mount namespace of the calling process. Raise ``OSError``."""
    memory_mounts.place(folder, path)


def replace() -> None:
    """Mount the folder at NEXT in the place of the present one, which nothing may use. Raise ``OSError``."""
    memory_mounts.replace(MOUNT_POINT, NEXT)


def enter() -> None:
    """Make the place for temporary files in the mounted folder, and move into it. Raise ``OSError``."""
    os.umask(0o077)
    os.mkdir(TEMPORARY)  # noqa: PTH102 - no pathlib in the zygote
    os.chdir(TEMPORARY)


def variables() -> dict[str, str]:
    """Return the environment that leads libraries to the folder. Call it inside the view."""
    short = "/tmp"  # noqa: S108 - the link
    temporary = short if os.path.islink(short) else TEMPORARY  # noqa: PTH114 - no pathlib in the zygote
    return {
        "HOME": temporary,
        "TMPDIR": temporary,
        "XDG_CACHE_HOME": temporary + "/.cache",
        "XDG_CONFIG_HOME": temporary + "/.config",
        "MPLCONFIGDIR": temporary + "/.config/matplotlib",
        "POLARS_OOC_SPILL_DIR": temporary + "/.cache/polars",
    }
