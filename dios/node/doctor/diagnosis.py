"""Examines what this machine can enforce: tries each mechanism, and derives guarantees and advice.

``dios.cli.nodes.doctor`` shows the result. It needs no running node and leaves nothing behind.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import resource
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dios import limits
from dios.client.enforcement import enforcement_text
from dios.errors import DiosError, InvalidError, NotSupportedError
from dios.host.confinement import cgroups, limits_of_task, syscall_numbers
from dios.host.confinement.enforcement import CPU, MEMORY, PIN, enforcement
from dios.host.confinement.mechanisms import (
    LOST_WITHOUT,
    Availability,
    Mechanism,
    fitness_of,
    obstacle_to_pure,
    probe,
)
from dios.host.machine.power import PowerMeter
from dios.installation import extra_command
from dios.lib.sandbox.network.authorities import BEGIN, authorities
from dios.node import machine
from dios.node.doctor import processor
from dios.node.doctor.capacity import examine_capacity
from dios.node.doctor.cluster import examine_cluster
from dios.node.doctor.environments import examine_environments
from dios.node.doctor.finding import DoctorFinding, DoctorLevel, DoctorTest
from dios.node.doctor.images import examine_gvisor, examine_images
from dios.node.doctor.promises import promises
from dios.node.doctor.releases import examine_releases
from dios.node.doctor.replicas import examine_replicas
from dios.node.doctor.scrubbing import examine_scrubbing
from dios.node.doctor.store import examine_store
from dios.node.limit_text import NONE, WORD_OF
from dios.node.settings import SANDBOX_LIMITS_DEFAULT, load

PYTHON_MIN: Final = (3, 11)
_DESCRIPTORS_WANTED: Final = limits.TASK_OPEN_FILES_MAX
_ENGINE: Final = "wasmtime"
_LANDLOCK_NET: Final = 4
_LANDLOCK_SCOPE: Final = 6
_READ_AND_ENTER: Final = stat.S_IROTH | stat.S_IXOTH


@dataclass(frozen=True, slots=True)
class DoctorGuarantee:
    """A promise of the threat model on this machine.

    It does not hold if mechanisms are ``missing``. ``weaker`` are the parts of it that fall away here, and
    ``left`` is what an attacker can do in any case.
    """

    area: str
    promise: str
    holds: bool
    missing: tuple[str, ...] = ()
    weaker: tuple[str, ...] = ()
    left: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The whole result. ``confined`` means that pure tasks are fully confined; else see ``why_not``.

    ``fitness`` is the ability to run pure tasks: fit, unfit, or unknown if an attempt came to no answer.
    ``running_node`` is what a node that runs on ``data`` says of its own, empty if none runs.
    """

    confined: bool
    fitness: str
    why_not: str
    user: str
    data: Path
    findings: tuple[DoctorFinding, ...]
    guarantees: tuple[DoctorGuarantee, ...]
    running_node: str = ""


_USER_NAMESPACES: Final = (
    "permit user namespaces: sysctl user.max_user_namespaces above 0, and, where they exist, "
    "kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0; in a container, "
    "its runtime must permit clone3 and unshare"
)
_AGAIN: Final = "run this command again; a node tries by itself until it knows"
_NEWER_KERNEL: Final = "run a newer kernel"
_CGROUPS: Final = (
    "optional: run the node in a control group that it may write (systemd: Delegate=yes in its unit), "
    "or as root outside a container"
)

_MECHANISM_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "user": ("a task has no user's rights and no capability", _USER_NAMESPACES),
    "pid": ("a task sees only its own processes", _USER_NAMESPACES),
    "mount": (
        "a task sees Python's library, read-only, and no other file",
        _USER_NAMESPACES + "; the kernel must be 5.12 or newer (mount_setattr)",
    ),
    "net": ("a task has a network of its own, without any interface that leads out", _USER_NAMESPACES),
    "ipc": ("a task shares no System V memory or queues", _USER_NAMESPACES),
    "uts": ("a task can neither change nor read the machine's name", _USER_NAMESPACES),
    "no_new_privs": ("no program that a task starts gives it rights", _NEWER_KERNEL + " (3.5 or newer)"),
    "landlock": (
        "a second lock on files, in addition to namespaces; newer kernels also restrict ports and signals",
        "run Linux 5.13 or newer with landlock in /sys/kernel/security/lsm (boot option lsm=…,landlock)",
    ),
    "seccomp": (
        "a task can make only the system calls in a short list",
        "use a kernel with CONFIG_SECCOMP_FILTER, on x86_64 or aarch64",
    ),
    "memfd_seals": ("a task cannot write memory that it got for reading", _NEWER_KERNEL + " (3.17 or newer)"),
    "pidfd": ("the node cannot end the wrong process by mistake", _NEWER_KERNEL + " (5.4 or newer)"),
    "cgroup_memory": ("the memory of all processes of a task is counted together", _CGROUPS),
    "cgroup_pids": ("the threads and processes of each task are counted", _CGROUPS),
    "passrights": (
        "nobody can send the node a descriptor, and delay it with one whose closing waits",
        "optional: " + _NEWER_KERNEL + " (6.16 or newer)",
    ),
    "listeners": (
        "the node decides about each fork of a sandbox's session",
        "optional: " + _NEWER_KERNEL + " (5.19 or newer)",
    ),
}
"""For each mechanism: its purpose, and what to change if it is missing."""


def examine(data: Path, *, mechanisms: Mapping[str, Mechanism] | None = None) -> Diagnosis:
    """Run all tests and return the diagnosis; this takes some tenths of a second, and blocks.

    ``data`` is the present or future data directory of a node; it is not created. ``mechanisms`` is the
    result of an earlier ``probe``. A missing mechanism raises nothing.
    """
    probed = probe() if mechanisms is None else mechanisms
    store, daemon = examine_store(data), processor.examine_processor(data)
    findings = (
        _python(),
        _kernel(),
        _open_files(),
        _authorities(),
        *_sandbox(probed),
        _shared_memory(probed),
        _memory(probed),
        _processes(probed),
        _processor_time(),
        _processor_share(),
        _reservations(probed),
        _machine_insides(),
        _power(),
        _sandbox_limits(data),
        *daemon,
        _webassembly(),
        examine_environments(data, probed),
        examine_images(data, probed),
        examine_gvisor(data, probed),
        store,
        examine_scrubbing(data),
        *examine_cluster(data),
        *examine_capacity(data),
        examine_releases(data),
        examine_replicas(data),
    )
    missing = obstacle_to_pure(probed)
    guarantees, unread = _guarantees(probed, store, daemon)
    return Diagnosis(
        confined=not missing,
        fitness=fitness_of(probed).name.lower(),
        why_not=missing,
        user=f"uid {os.geteuid()}",
        data=data,
        findings=tuple(finding for finding in (*findings, unread) if finding is not None),
        guarantees=guarantees,
    )


# -- the machine --------------------------------------------------------------------------------------
def _python() -> DoctorFinding:
    test = DoctorTest("python", "runs the node and its tasks")
    detail = f"{platform.python_version()}, {sys.executable}"
    if sys.version_info < PYTHON_MIN:
        wanted = ".".join(map(str, PYTHON_MIN))
        return test.missing(detail, f"use Python {wanted} or newer")
    library = Path(os.__file__).resolve().parent
    # Tasks of a node run by root have another user, who needs read permission for everybody.
    if os.geteuid() == 0 and library.stat().st_mode & _READ_AND_ENTER != _READ_AND_ENTER:
        advice = f"tasks run as another user and cannot read {library}: make it readable for all"
        return test.missing(detail, advice)
    # The standard library, the environment with the packages, and DIOS itself.
    needed = (library, Path(sys.prefix).resolve(), Path(limits.__file__).resolve().parent)
    closed = [ancestor for path in needed for ancestor in (path, *path.parents) if not _may_enter(ancestor)]
    if os.geteuid() == 0 and closed:
        advice = (
            f"templates and forks run as another user, which cannot enter {closed[0]}: use a Python outside"
        )
        return test.result(detail, advice)
    return test.result(detail)


def _may_enter(folder: Path) -> bool:
    """Return True if every user may enter the folder."""
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def _kernel() -> DoctorFinding:
    machine = platform.machine()
    detail = f"{platform.system()} {platform.release()}, {machine}"
    test = DoctorTest("kernel", "confines tasks")
    if machine not in syscall_numbers.AUDIT_ARCH:
        known = " or ".join(syscall_numbers.AUDIT_ARCH)
        return test.missing(detail, f"use a machine with a {known} processor")
    return test.result(detail)


def _sandbox(mechanisms: Mapping[str, Mechanism]) -> list[DoctorFinding]:
    findings: list[DoctorFinding] = []
    for name, mechanism in mechanisms.items():
        purpose, advice = _MECHANISM_TEXTS[name]
        level = _level_of(mechanism)
        remedy = {DoctorLevel.OK: "", DoctorLevel.UNKNOWN: _AGAIN}.get(level, advice)
        findings.append(DoctorFinding(name, level, mechanism.detail, purpose, remedy))
    return findings


def _level_of(mechanism: Mechanism) -> DoctorLevel:
    if mechanism.available:
        return DoctorLevel.OK
    if mechanism.availability is Availability.UNKNOWN:
        return DoctorLevel.UNKNOWN
    return DoctorLevel.MISSING if mechanism.needed_for_pure else DoctorLevel.WEAK


def _shared_memory(mechanisms: Mapping[str, Mechanism]) -> DoctorFinding:
    test = DoctorTest("shared memory", "bytes move between tasks without a copy")
    seals = mechanisms["memfd_seals"]
    if not seals.available:
        return test.missing(seals.detail, _MECHANISM_TEXTS["memfd_seals"][1])
    return test.result("memfd; /dev/shm is not used, whatever its size")


def _memory(mechanisms: Mapping[str, Mechanism]) -> DoctorFinding:
    test = DoctorTest("memory limits", "a task that exceeds its memory limit is ended")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    default = limits.TASK_MEMORY_BYTES_DEFAULT
    counted = mechanisms["cgroup_memory"].available
    by = "its control group" if counted else "a limit of its data, and by the node, which reads its memory"
    detail = f"{default / limits.GIB:.0f} GiB for a task that requests no limit, enforced by {by}"
    detail += f"; the machine has {total / limits.GIB:.1f} GiB"
    if not counted and not _sees_processes():
        advice = "mount /proc without hidepid, or give the node's group access by its option gid"
        detail += "; /proc hides processes, so that the node cannot read the memory of tasks"
        return test.missing(detail, advice)
    if default > total:
        advice = (
            "one task may use all memory: start the node with --task-memory-bytes below the machine's memory"
        )
        return test.result(detail, advice)
    if not counted:
        detail += f"; {LOST_WITHOUT['cgroup_memory']}"
        return test.result(detail, _CGROUPS)
    return test.result(detail)


def _processes(mechanisms: Mapping[str, Mechanism]) -> DoctorFinding:
    test = DoctorTest("process limits", "a task that starts threads or processes without end is refused more")
    detail = f"{limits.TASK_PROCESSES_DEFAULT} for a task that requests no limit, enforced by "
    if mechanisms["cgroup_pids"].available:
        return test.result(detail + "its control group")
    detail += f"RLIMIT_NPROC; {LOST_WITHOUT['cgroup_pids']}"
    return test.result(detail, _CGROUPS)


def _processor_time() -> DoctorFinding:
    test = DoctorTest(
        "time limits",
        "a task that exceeds its processor time, and a sandbox's run over its time or output, is stopped",
    )
    detail = "processor time by RLIMIT_CPU; time and output of a run by the program that has the sandbox"
    return test.result(detail)


def _processor_share(proc: Path = Path("/proc/self")) -> DoctorFinding:
    test = DoctorTest(
        "processor share",
        "tasks that compute get equal parts of the processors, whatever their numbers of threads",
    )
    version = cgroups.divides_processors(proc)
    if version:
        detail = f"the controller cpu of control groups of version {version}, with a group for each task"
        return test.result(detail)
    if cgroups.has_processor_group(proc):
        detail = "the control group of the node divides processors, where each thread counts"
        advice = "optional: let the node write its control group (Delegate=yes in a unit of systemd)"
        return test.result(detail, advice)
    if not cgroups.is_autogroup_on(proc):
        detail = "the kernel's groups of sessions (autogroup) are off, so each thread counts"
        advice = "optional: sysctl kernel.sched_autogroup_enabled=1"
        return test.result(detail, advice)
    return test.result("the kernel's groups of sessions (autogroup)")


def _reservations(mechanisms: Mapping[str, Mechanism]) -> DoctorFinding:
    test = DoctorTest(
        "reservations",
        "a run has what is reserved for it (--cpus, --reserve-memory, --disk-io, --net, --pin, --device), "
        "and no more",
    )
    reported = dict(enforcement(cgroups.usable(), mechanisms))
    detail = enforcement_text(reported, reported, limbo=False)
    if reported[CPU] or reported[MEMORY] or reported[PIN]:
        return test.result(detail, _CGROUPS)
    return test.result(detail)


def _machine_insides() -> DoctorFinding:
    test = DoctorTest(
        "machine insides",
        "pinned tasks get whole cores near each other, and CoCo places tasks on single threads",
    )
    insides = machine.insides()
    detail = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in insides.counts.items())
    if insides.missing:
        detail += "; " + "; ".join(insides.missing)
    return test.result(detail)


def _sandbox_limits(data: Path) -> DoctorFinding:
    test = DoctorTest("sandbox limits", "the code of one sandbox cannot use up what the node gives its user")
    try:
        bounds = {bound.resource: bound.value for bound in load(data).sandbox_limits}
    except DiosError as error:
        advice = "correct the settings"
        return test.result(error.message, advice)
    shown = " ".join(f"{WORD_OF[key]}={NONE if value is None else value}" for key, value in bounds.items())
    detail = f"each session has {shown} on the node, by the setting sandbox_limits"
    open_ended = [
        WORD_OF[bound.resource] for bound in SANDBOX_LIMITS_DEFAULT if bounds[bound.resource] is None
    ]
    if open_ended:
        advice = f"give sandbox_limits a number for {', '.join(open_ended)}"
        return test.result(detail, advice)
    return test.result(detail)


def _power() -> DoctorFinding:
    test = DoctorTest("power", "the cost model green knows what tasks draw here")
    problem = PowerMeter().problem
    detail = f"not measured: {problem}. The label power=idle:full:cores can say it" if problem else "measured"
    return test.result(detail)


def _sees_processes() -> bool:
    """Return True if this user can read the state of other users' processes, as it must of pure tasks."""
    try:
        limits_of_task.used_bytes(1)
    except PermissionError:
        return False
    return Path("/proc/1").exists()


def _open_files() -> DoctorFinding:
    test = DoctorTest("open files", "the node needs a descriptor for each connection, open blob and stream")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    detail = "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard:,}; the node uses this maximum"
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS_WANTED:
        advice = f"raise the hard limit of open files to {_DESCRIPTORS_WANTED:,} or more (ulimit -Hn)"
        return test.result(detail, advice)
    return test.result(detail)


def _webassembly() -> DoctorFinding:
    test = DoctorTest(_ENGINE, "runs tasks whose program is a WebAssembly module")
    # Found, not loaded: the engine belongs into tasks.
    if importlib.util.find_spec(_ENGINE) is None:
        advice = f"optional: {extra_command('wasm')}"
        detail = f"the package {_ENGINE} is not installed"
        return test.result(detail, advice)
    return test.result(importlib.metadata.version(_ENGINE))


def _authorities() -> DoctorFinding:
    test = DoctorTest("authorities", "sandboxes with --network https://… verify the servers")
    try:
        bundle = authorities()
    except (InvalidError, OSError) as error:
        advice = "optional: install ca-certificates, or set SSL_CERT_FILE"
        return test.result(str(error), advice)
    count = bundle.count(BEGIN)
    return test.result(f"{count} certificates")


# -- what follows -------------------------------------------------------------------------------------
def _guarantees(
    mechanisms: Mapping[str, Mechanism], store: DoctorFinding, daemon: Iterable[DoctorFinding]
) -> tuple[tuple[DoctorGuarantee, ...], DoctorFinding | None]:
    """Return the guarantees here, or nothing and the reason why they are not known."""
    available = {name: mechanism.available for name, mechanism in mechanisms.items()}
    available |= {finding.name: finding.level is DoctorLevel.OK for finding in daemon}
    landlock = _landlock_version(mechanisms["landlock"])
    available["landlock_net"] = landlock >= _LANDLOCK_NET
    available["landlock_scope"] = landlock >= _LANDLOCK_SCOPE
    available["store"] = store.level is DoctorLevel.OK
    try:
        claims = promises()
    except NotSupportedError as error:
        test = DoctorTest("promises", "what this machine guarantees")
        return (), test.missing(error.message, "install dios again")
    guarantees = (
        DoctorGuarantee(
            promise.area,
            promise.claim,
            # A mechanism that this program does not know is missing.
            holds=all(available.get(name, False) for name in promise.needs),
            missing=tuple(name for name in promise.needs if not available.get(name, False)),
            weaker=tuple(text for name, text in promise.without.items() if not available.get(name, False)),
            left=promise.left,
        )
        for promise in claims
    )
    return tuple(guarantees), None


def _landlock_version(landlock: Mechanism) -> int:
    """Return the version of Landlock's interface from the detail of its probe, 0 without it."""
    number = landlock.detail.rpartition(" ")[2]
    return int(number) if landlock.available and number.isascii() and number.isdigit() else 0
