"""The OCI runtimes of this machine: programs that start a process in a container.

A node uses the one of its settings, or the first of ``KNOWN`` that works. A zygote tries it before it has
tasks (``dios.host.containers.container``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from dios import limits
from dios.errors import NotSupportedError
from dios.host.confinement.native_programs import NativeProgram, ProgramSetting, examine
from dios.wire.fields import Text


class RuntimeKind(NamedTuple):
    """The options of a runtime. With ``reads_groups`` it ends if it cannot read the control groups."""

    options: tuple[str, ...] = ()
    reads_groups: bool = False


KNOWN: Final[Mapping[str, RuntimeKind]] = {
    "crun": RuntimeKind(("--cgroup-manager=disabled",)),
    "runc": RuntimeKind(reads_groups=True),
}
"""The runtimes that can give a container the descriptor of its task.

A container is in the control groups of its task already, so no runtime makes groups.
"""

ANY: Final = "any"
NO_RUNTIME: Final = "none"
"""The settings for the first known runtime that works, and for no images."""

NEEDED: Final = frozenset(
    {"user", "pid", "mount", "net", "ipc", "uts", "no_new_privs", "seccomp", "cgroup_memory", "cgroup_pids"}
)
"""The mechanisms without which no task has a container. The groups bound all its processes together."""

_PLACES: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class ContainerSetup(Struct, frozen=True):
    """The programs of a container: its runtime, a known one, and the Python of its first process.

    ``variables`` and ``folder`` are the environment and the working directory of the image. ``below`` is the
    folder of the image if the environment has changes to it, else empty.
    """

    runtime: NativeProgram
    python: NativeProgram
    variables: Annotated[tuple[Text, ...], Meta(max_length=limits.IMAGE_VARIABLES_MAX)] = ()
    folder: Text = "/"
    below: Text = ""

    @property
    def kind(self) -> RuntimeKind:
        """The options of the runtime."""
        return KNOWN[self.runtime.name]


def lacking(available: Iterable[str]) -> list[str]:
    """Return the names of the missing conditions of containers, given the available mechanisms.

    One of them is root. The user of a node owns its memory and its files, and can open for writing what it
    has open for reading. In a container of the same user, the root of the container could do that.
    """
    of_user = [] if os.geteuid() == 0 else ["a node of root"]
    return of_user + sorted(NEEDED.difference(available))


def is_known(setting: str) -> bool:
    """Return True for the name of a known runtime, a path of one, ``ANY`` and ``NO_RUNTIME``."""
    return setting in {ANY, NO_RUNTIME} or os.path.basename(setting) in KNOWN  # noqa: PTH119 - the zygote loads this module


def known_runtimes(setting: str) -> list[str]:
    """Return the paths of the runtimes to try, in this order: that of a setting, or all known for ``ANY``.

    Raise NotSupportedError if this machine has none, and for ``NO_RUNTIME``.
    """
    if setting == NO_RUNTIME:
        raise NotSupportedError(
            f'this node runs no images. Its owner permits them with the setting container_runtime = "{ANY}"',
            call="run",
        )
    import shutil  # noqa: PLC0415 - the daemon comes here, the zygote never

    names = list(KNOWN) if setting == ANY else [setting]
    paths = [path for name in names if (path := shutil.which(name, path=_PLACES))]
    if not paths:
        raise NotSupportedError(
            f"this machine has no OCI runtime for images: install {' or '.join(names)}", call="run"
        )
    return paths


def examine_runtime(path: str) -> NativeProgram:
    """Return a runtime with its files. Raise InvalidError with the reason for one that no task can become."""
    return examine(ProgramSetting(os.path.basename(path), path))  # noqa: PTH119 - the zygote loads this module


def this_python() -> NativeProgram:
    """Return the interpreter of this process, with its files. Raise InvalidError if it has no loader."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return examine(ProgramSetting("python", os.path.realpath(base)))
