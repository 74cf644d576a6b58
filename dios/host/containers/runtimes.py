"""The OCI runtimes of this machine: programs that start a process in a container.

A node uses the one of its settings, or the first of ``KNOWN`` that works. A zygote tries it before it has
tasks (``dios.host.containers.container``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, Struct

from dios import limits
from dios.errors import InvalidError, NotSupportedError
from dios.host.confinement.native_programs import NativeProgram, ProgramSetting, examine
from dios.wire.fields import Text
from dios.wire.images import ImageSettings


class RuntimeKind(NamedTuple):
    """The options of a runtime. With ``reads_groups`` it ends if it cannot read the control groups.

    One with an ``own_kernel`` handles the system calls of a container itself. ``trial_options`` let it give
    the reason if its trial fails. ``newer_options`` are those that its older releases lack, by the names of
    their flags.
    """

    options: tuple[str, ...] = ()
    reads_groups: bool = False
    own_kernel: bool = False
    trial_options: tuple[str, ...] = ()
    newer_options: Mapping[str, str] = MappingProxyType({})


KNOWN: Final[Mapping[str, RuntimeKind]] = {
    "crun": RuntimeKind(("--cgroup-manager=disabled",)),
    "runc": RuntimeKind(reads_groups=True),
}
"""The runtimes whose containers use the kernel of the machine.

A container is in the control groups of its task already, so no runtime makes groups.
"""

GVISOR: Final = "runsc"
"""The runtime of gVisor, a kernel in an ordinary process: its containers make no call of the machine's."""

_KINDS: Final = {
    **KNOWN,
    GVISOR: RuntimeKind(
        ("--rootless", "--network=none", "--ignore-cgroups"),
        own_kernel=True,
        # To the pipe of the trial, which nobody else can open again.
        trial_options=("--panic-log=/proc/self/fd/2",),
        # Since 2023 it would keep written files in a file of its own, in the root of the container. Nobody
        # changes the folders of Python while it runs.
        newer_options=MappingProxyType(
            {"overlay2": "--overlay2=none", "file-access-mounts": "--file-access-mounts=exclusive"}
        ),
    ),
}

ANY: Final = "any"
NO_RUNTIME: Final = "none"
"""The settings for the first known runtime that works, and for none."""

NEEDED: Final = frozenset(
    {"user", "pid", "mount", "net", "ipc", "uts", "no_new_privs", "seccomp", "cgroup_memory", "cgroup_pids"}
)
"""The mechanisms without which no task has a container. The groups bound all its processes together."""

_LIST_S: Final = 10
_PLACES: Final = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class ContainerSetup(Struct, frozen=True):
    """The programs of a container: its runtime, a known one, and the Python of its first process.

    ``variables`` and ``folder`` are the environment and the working directory of the image. Without an image
    the environment of the tasks, if they have one, is a set of packages. ``options`` are further ones of the
    runtime. ``below`` is the folder of the image if the environment has changes to it, else empty.
    """

    runtime: NativeProgram
    python: NativeProgram
    has_image: bool = True
    options: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    variables: Annotated[tuple[Text, ...], Meta(max_length=limits.IMAGE_VARIABLES_MAX)] = ()
    folder: Text = "/"
    below: Text = ""

    @property
    def kind(self) -> RuntimeKind:
        """The kind of the runtime."""
        return _KINDS[self.runtime.name]


def lacking(available: Iterable[str], *, own_kernel: bool = False) -> list[str]:
    """Return the names of the missing conditions of containers, given the available mechanisms.

    One of them is root. The user of a node owns its memory and its files, and can open for writing what it
    has open for reading. In a container of the same user, the root of the container could do that. A kernel
    of its own (``own_kernel``) refuses it there.
    """
    of_user = [] if own_kernel or os.geteuid() == 0 else ["a node of root"]
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


def is_gvisor(setting: str) -> bool:
    """Return True for ``GVISOR``, a path of it, and ``NO_RUNTIME``."""
    return setting == NO_RUNTIME or os.path.basename(setting) == GVISOR  # noqa: PTH119 - the zygote loads this module


def find_gvisor(setting: str) -> str:
    """Return the path of gVisor's runtime for a setting.

    Raise NotSupportedError if this machine has none, and for ``NO_RUNTIME``.
    """
    if setting == NO_RUNTIME:
        raise NotSupportedError(
            "this node starts no sandbox in gVisor: its settings say gvisor_runtime = "
            f'"{NO_RUNTIME}". Ask its owner for "{GVISOR}", or leave out isolation',
            call="run",
        )
    import shutil  # noqa: PLC0415 - the daemon comes here, the zygote never

    path = shutil.which(setting, path=_PLACES)
    if path is None:
        raise NotSupportedError(
            f"this node cannot start a sandbox in gVisor: it has no program {setting} in {_PLACES}. "
            "Install gVisor there (the package runsc), use a node that has it, or leave out isolation",
            call="run",
        )
    return path


def setup_for(path: str, image: ImageSettings | None, below: str = "") -> ContainerSetup:
    """Return the programs of containers of the runtime at ``path``, of an image if there is one.

    ``below`` is the folder of the image if the environment has changes to it.

    Raise InvalidError with the reason for a runtime that no task can become.
    """
    runtime = examine(ProgramSetting(os.path.basename(path), path))  # noqa: PTH119 - the zygote loads this module
    newer = _KINDS[runtime.name].newer_options
    options = tuple(option for flag, option in newer.items() if flag in flags_of(path)) if newer else ()
    variables, folder = (image.variables, image.folder) if image else ((), "/")
    return ContainerSetup(runtime, _this_python(), image is not None, options, variables, folder, below)


def flags_of(path: str) -> set[str]:
    """Return the names of the flags that a program of Go lists. Raise InvalidError if it fails."""
    import subprocess  # noqa: PLC0415 - the daemon comes here, the zygote never

    try:
        # They come on standard error, as all help of such programs.
        listed = subprocess.run(
            [path, "flags"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=True,
            text=True,
            timeout=_LIST_S,
            env={},
            cwd="/",
        ).stdout
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InvalidError(f"{path} does not list its flags: {error}") from None
    return {word.lstrip("-") for line in listed.splitlines() for word in line.split()[:1]}


def _this_python() -> NativeProgram:
    """Return the interpreter of this process, with its files. Raise InvalidError if it has no loader."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return examine(ProgramSetting("python", os.path.realpath(base)))
