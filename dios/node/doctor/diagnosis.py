"""What this machine can enforce, told to a person: each mechanism tried, what follows, what to change.

Not for: using the mechanisms (``dios.host.sandbox``), a node that runs (``dios-node status``), or showing
(``dios.cli.nodes.doctor``). It needs no node, and leaves nothing behind.
"""

from __future__ import annotations

import enum
import os
import platform
import resource
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dios import limits
from dios.host.sandbox import numbers
from dios.host.sandbox.mechanisms import Mechanism, missing_for_pure, probe
from dios.node.doctor import cluster as doctor_cluster
from dios.node.doctor import store as doctor_store

PYTHON_MIN: Final = (3, 11)
_DESCRIPTORS_WANTED: Final = limits.TASK_OPEN_FILES_MAX
_READ_AND_ENTER: Final = stat.S_IROTH | stat.S_IXOTH


class Level(enum.StrEnum):
    """How a finding bears on what the node guarantees."""

    OK = "ok"
    WEAK = "weak"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried; ``advice`` is what to change where it is not ok."""

    name: str
    level: Level
    detail: str
    purpose: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What a node here promises, and by what; where it does not hold, ``missing`` names what lacks."""

    promise: str
    holds: bool
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All of it. ``confined``: pure tasks are fully confined here; ``why_not`` says what is in the way."""

    confined: bool
    why_not: str
    user: str
    data: Path
    findings: tuple[Finding, ...]
    guarantees: tuple[Guarantee, ...]


_USER_NAMESPACES: Final = (
    "let users make namespaces: sysctl user.max_user_namespaces above 0, and where they exist "
    "kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0; in a container, "
    "its runtime must allow clone3 and unshare"
)
_NEWER_KERNEL: Final = "run a newer kernel"
_CGROUPS: Final = (
    "optional: run the node in a control group that it may write (systemd: Delegate=yes in its unit), "
    "or as root outside a container"
)

_TOLD: Final[Mapping[str, tuple[str, str]]] = {
    "user": ("a task is nobody: no user's rights, no capability", _USER_NAMESPACES),
    "pid": ("a task sees no process but its own", _USER_NAMESPACES),
    "mount": (
        "a task sees Python's library, read-only, and no other file",
        _USER_NAMESPACES + "; the kernel must be 5.12 or newer (mount_setattr)",
    ),
    "net": ("a task has a network of its own with nothing in it", _USER_NAMESPACES),
    "ipc": ("a task shares no System V memory or queues", _USER_NAMESPACES),
    "uts": ("a task cannot rename the machine, nor learn its name", _USER_NAMESPACES),
    "no_new_privs": ("no program that a task could start gives it rights", _NEWER_KERNEL + " (3.5 or newer)"),
    "landlock": (
        "a second lock on files, below the namespaces; newer kernels lock ports and signals too",
        "run Linux 5.13 or newer with landlock in /sys/kernel/security/lsm (boot option lsm=…,landlock)",
    ),
    "seccomp": (
        "of the system's calls a task can make a short list only",
        "use a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64",
    ),
    "memfd_seals": ("memory handed out to be read cannot be written", _NEWER_KERNEL + " (3.17 or newer)"),
    "pidfd": ("the node ends exactly the process that it means", _NEWER_KERNEL + " (5.4 or newer)"),
    "cgroup_memory": ("memory is counted over all processes of a task", _CGROUPS),
    "cgroup_pids": ("threads and processes are counted for each task", _CGROUPS),
}
"""For each mechanism: what it is good for, and what to change where it is missing."""

_PROMISES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (
        "A pure task opens no file of yours: it sees Python's library, read-only, and nothing else",
        ("user", "mount", "landlock", "seccomp"),
    ),
    ("A pure task reaches no network, in no way", ("user", "net", "seccomp")),
    ("A pure task sees, signals and traces no other process", ("user", "pid", "ipc", "seccomp")),
    ("A pure task starts no other program, and gains no right", ("user", "no_new_privs", "seccomp")),
    ("A pure task neither learns nor changes the machine's name", ("user", "uts")),
    ("What a task may only read, it cannot write", ("memfd_seals",)),
    ("A task that is ended is gone, with all of its processes", ("pid", "pidfd")),
)


def examine(data: Path, *, mechanisms: Mapping[str, Mechanism] | None = None) -> Diagnosis:
    """Try everything once and say what follows; takes tenths of a second, and blocks.

    ``data`` is where a node's data are or would be: it need not exist, and is not made. ``mechanisms`` are
    those of an earlier ``probe``. Raises nothing for what is missing.
    """
    found = probe() if mechanisms is None else mechanisms
    store = _of_store(data)
    machine = (_python(), _kernel(), _open_files())
    cluster = _of_cluster(data)
    findings = (*machine, *_sandbox(found), _shared_memory(found), _memory(found), store, *cluster)
    missing = missing_for_pure(found)
    return Diagnosis(
        confined=not missing,
        why_not=missing,
        user=f"uid {os.geteuid()}",
        data=data,
        findings=findings,
        guarantees=(*_guarantees(found), _durable(store)),
    )


# -- the machine --------------------------------------------------------------------------------------
def _python() -> Finding:
    purpose = "runs the node and its tasks"
    detail = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < PYTHON_MIN:
        wanted = ".".join(map(str, PYTHON_MIN))
        return Finding("python", Level.MISSING, detail, purpose, f"use Python {wanted} or newer")
    library = Path(os.__file__).resolve().parent
    # Root's tasks are another user, who reads the library with everybody's rights.
    if os.geteuid() == 0 and library.stat().st_mode & _READ_AND_ENTER != _READ_AND_ENTER:
        advice = (
            f"tasks run as another user and cannot read {library}: install Python where everybody may read"
        )
        return Finding("python", Level.MISSING, detail, purpose, advice)
    return Finding("python", Level.OK, detail, purpose)


def _kernel() -> Finding:
    machine = platform.machine()
    detail = f"{platform.system()} {platform.release()}, {machine}"
    purpose = "holds the tasks"
    if machine not in numbers.AUDIT_ARCH:
        known = " or ".join(numbers.AUDIT_ARCH)
        return Finding("kernel", Level.MISSING, detail, purpose, f"use a machine of kind {known}")
    return Finding("kernel", Level.OK, detail, purpose)


def _sandbox(found: Mapping[str, Mechanism]) -> list[Finding]:
    findings: list[Finding] = []
    for name, mechanism in found.items():
        purpose, advice = _TOLD[name]
        if mechanism.available:
            findings.append(Finding(name, Level.OK, mechanism.detail, purpose))
        else:
            level = Level.MISSING if mechanism.needed_for_pure else Level.WEAK
            findings.append(Finding(name, level, mechanism.detail, purpose, advice))
    return findings


def _shared_memory(found: Mapping[str, Mechanism]) -> Finding:
    purpose = "bytes move between tasks without a copy"
    seals = found["memfd_seals"]
    if not seals.available:
        return Finding("shared memory", Level.MISSING, seals.detail, purpose, _TOLD["memfd_seals"][1])
    return Finding("shared memory", Level.OK, "memfd; /dev/shm is not used, whatever its size", purpose)


def _memory(found: Mapping[str, Mechanism]) -> Finding:
    purpose = "a task that takes more than its share is ended"
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    default = limits.TASK_MEMORY_BYTES_DEFAULT
    by = "its control group" if found["cgroup_memory"].available else "a limit on each process"
    detail = f"{default / limits.GIB:.0f} GiB for a task that asks for none, held by {by}"
    detail += f"; the machine has {total / limits.GIB:.1f} GiB"
    if default > total:
        advice = "one task may take all memory: start the node with --task-memory-bytes below the machine's"
        return Finding("memory limits", Level.WEAK, detail, purpose, advice)
    return Finding("memory limits", Level.OK, detail, purpose)


def _open_files() -> Finding:
    purpose = "each connection, blob in use and stream is a descriptor of the node"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    detail = "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard:,}; the node takes what it may"
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS_WANTED:
        advice = f"raise the hard limit of open files to {_DESCRIPTORS_WANTED:,} or more (ulimit -Hn)"
        return Finding("open files", Level.WEAK, detail, purpose, advice)
    return Finding("open files", Level.OK, detail, purpose)


def _of_store(data: Path) -> Finding:
    looked = doctor_store.look(data)
    purpose = "objects that are answered as stored are on the disk"
    if looked.refused:
        return Finding("store", Level.MISSING, looked.refused, purpose, looked.advice)
    level = Level.WEAK if looked.advice else Level.OK
    return Finding("store", level, looked.detail, purpose, looked.advice)


def _of_cluster(data: Path) -> list[Finding]:
    found: list[Finding] = []
    for looked in doctor_cluster.look(data):
        level = Level.MISSING if looked.refused else Level.WEAK if looked.advice else Level.OK
        found.append(Finding(looked.name, level, looked.detail, looked.purpose, looked.advice))
    return found


# -- what follows -------------------------------------------------------------------------------------
def _guarantees(found: Mapping[str, Mechanism]) -> list[Guarantee]:
    told: list[Guarantee] = []
    for promise, needs in _PROMISES:
        lacking = tuple(name for name in needs if not found[name].available)
        told.append(Guarantee(promise, not lacking, lacking))
    for name, promise in (
        ("cgroup_memory", "A memory limit counts all processes of a task together, limbo tasks too"),
        ("cgroup_pids", "A limit of threads and processes holds for limbo tasks too"),
    ):
        available = found[name].available
        told.append(Guarantee(promise, available, () if available else (name,)))
    return told


def _durable(store: Finding) -> Guarantee:
    holds = store.level is Level.OK
    promise = "What was acknowledged as durable survives a crash, as far as the disk keeps what it synced"
    return Guarantee(promise, holds, () if holds else ("store",))
