"""The order to an OCI runtime for the container of one task: the file ``config.json`` of its bundle.

It has the format of the runtime specification 1.0.2. Nothing in it comes from the image except the
environment variables, which the first process gets as an argument, so that no library path of the image
changes what it loads.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Final

from dios import limits
from dios.host.confinement.limits_of_task import LimitsOfTask, seconds_of
from dios.host.confinement.private_folder import MOUNT_POINT, size_for
from dios.host.containers.calls import Json, filter_of
from dios.host.containers.first_process import CAPABILITIES
from dios.host.containers.runtimes import ContainerSetup
from dios.wire.images import CHANGES, RESERVED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PYTHON: Final = f"/{RESERVED}"
"""The place of the node's Python in a container, read-only. An image has no such file."""

CHANGES_PLACE: Final = f"/{CHANGES}"
"""The place of the changed files in a container, read-only, which its session reads for a snapshot."""

TEMPORARY: Final = "/tmp"  # noqa: S108 - of a container without an image, which has it alone

_MASKED: Final = (
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kallsyms", "/proc/kcore", "/proc/keys"),
    *("/proc/key-users", "/proc/latency_stats", "/proc/modules", "/proc/sched_debug", "/proc/scsi"),
    *("/proc/timer_list", "/proc/timer_stats", "/proc/sysrq-trigger", "/proc/cmdline", "/proc/config.gz"),
    *("/proc/partitions", "/proc/diskstats", "/proc/swaps", "/proc/vmallocinfo"),
    *("/proc/buddyinfo", "/proc/iomem", "/proc/ioports", "/proc/kpagecount", "/proc/kpageflags"),
    *("/proc/locks", "/proc/pagetypeinfo", "/proc/schedstat", "/proc/slabinfo", "/proc/softirqs"),
    *("/proc/vmstat", "/proc/zoneinfo", "/proc/dma", "/proc/mtrr", "/proc/kpagecgroup"),
    *("/proc/cgroups", "/proc/consoles", "/proc/misc", "/proc/sys/fs/file-nr", "/proc/sys/fs/inode-nr"),
    *("/proc/sys/fs/aio-nr", "/proc/sys/fs/inode-state", "/proc/sys/fs/dentry-state"),
    *("/proc/sys/kernel/pty/nr", "/proc/sys/kernel/random/boot_id"),
    *("/proc/bus", "/proc/driver", "/proc/fs", "/proc/irq", "/proc/pressure", "/proc/tty"),
)
_READ_ONLY: Final = ("/proc/sys",)
_SHARED_MEMORY_FILES: Final = 4_096
_TERMINALS: Final = ("ptmxmode=0666", "mode=0620", "max=64")
"""The machine has a number of pseudo terminals for all, 4,096 by default."""
_UNLIMITED: Final = resource.RLIM_INFINITY


def configuration(
    setup: ContainerSetup, root: str, command: Sequence[str], bounds: LimitsOfTask, mounts: Mapping[str, str]
) -> Json:
    """Return the order for a container with the root file system ``root``, which runs ``command``.

    ``mounts`` are further folders and files of the view by their places in the container, read-only.
    ``bounds`` are limits of each of its processes; its control groups limit all of them together.
    """
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(command),
            "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "noNewPrivileges": True,
            "capabilities": {
                name: [f"CAP_{capability}" for capability in (CAPABILITIES if setup.has_image else ())]
                for name in ("bounding", "effective", "permitted")
            },
            "rlimits": [
                {"type": f"RLIMIT_{name}", "soft": value, "hard": value}
                for name, value in _bounds(bounds, own_kernel=setup.kind.own_kernel).items()
            ],
        },
        "root": {"path": root, "readonly": not setup.has_image},
        "mounts": [
            *_file_systems(bounds.memory_bytes, has_image=setup.has_image),
            *(_folder(place, source) for place, source in mounts.items()),
        ],
        "linux": _OF_OWN_KERNEL if setup.kind.own_kernel else _of_this_kernel(),
    }


_OF_OWN_KERNEL: Final[Json] = {
    "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]
}
"""The namespaces of the processes that are the kernel. It has a filter of its own for them."""


def _of_this_kernel() -> Json:
    return {
        # Its network, IPC and host name are those of the process that becomes the runtime: new ones, in which
        # the container has no rights.
        "namespaces": [{"type": kind} for kind in ("user", "pid", "mount")],
        "uidMappings": [_itself(os.geteuid())],
        "gidMappings": [_itself(os.getegid())],
        "maskedPaths": list(_MASKED),
        "readonlyPaths": list(_READ_ONLY),
        "seccomp": filter_of(os.uname().machine),
    }


def _itself(number: int) -> Json:
    return {"containerID": 0, "hostID": number, "size": 1}


def _bounds(bounds: LimitsOfTask, *, own_kernel: bool) -> dict[str, int]:
    rows = {
        "DATA": bounds.memory_bytes,
        "CPU": seconds_of(bounds.cpu_ms),
        "NPROC": bounds.processes,
        "STACK": limits.TASK_STACK_BYTES_MAX,
        "SIGPENDING": limits.TASK_SIGNALS_MAX,
        # Descriptors on their way count for the user of all tasks. A process that sends one is refused when
        # there are more than its own limit.
        "NOFILE": limits.CONTAINER_OPEN_FILES_MAX,
        # gVisor ignores the limit of data. The limit of addresses refuses one request that is too large.
        "AS": bounds.memory_bytes + limits.OWN_KERNEL_MAPPED_BYTES if own_kernel else 0,
    }
    # A program that locks memory, or keeps messages in the kernel, would hold what no group gives back.
    return {name: value for name, value in rows.items() if value} | {"MEMLOCK": 0, "MSGQUEUE": 0, "CORE": 0}


def _file_systems(memory_bytes: int, *, has_image: bool) -> list[Json]:
    size = f"size={size_for(memory_bytes)}"
    shared = size, f"nr_inodes={_SHARED_MEMORY_FILES}"
    own = () if has_image else (TEMPORARY, MOUNT_POINT)
    return [
        *(_mount(place, "tmpfs", "nosuid", "noexec", "nodev", "mode=0700", size) for place in own),
        _mount("/proc", "proc", "nosuid", "noexec", "nodev"),
        _mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=64k", "nr_inodes=256"),
        _mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", *_TERMINALS),
        _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", *shared),  # noqa: S108 - its own
    ]


def _mount(place: str, kind: str, *options: str) -> Json:
    return {"destination": place, "type": kind, "source": kind, "options": list(options)}


def _folder(place: str, source: str) -> Json:
    options: list[Json] = ["rbind", "ro", "nosuid", "nodev"]
    return {"destination": place, "type": "none", "source": source, "options": options}
