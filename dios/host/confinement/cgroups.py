"""Limits on all processes of a task together, through control groups of version 2, 1, or both mixed.

On machines where this process may not write control groups, only the resource limits of each process hold.
Processors are divided among tasks, whatever their numbers of threads: by the controller ``cpu`` where it
divides them already, and elsewhere by the kernel's groups of sessions (autogroup), which cost nothing. There
only tasks with a share of their own are put under the controller: those with reserved processors, and those
that yield to all others.
Groups are created below the group that the daemon runs in: a folder for the node, and below it a folder for
each task. They are removed again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

_MEMORY_FILES: Final = {1: "memory.limit_in_bytes", 2: "memory.max"}
_OOM_FILES: Final = {1: "memory.oom_control", 2: "memory.events"}
_HIT_FILES: Final = {1: "memory.failcnt", 2: "memory.events"}
_PEAK_FILES: Final = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}
_FILE_BYTES_MAX: Final = 4096
_WANTED: Final = ("memory", "pids")
_CPU: Final = "cpu"
_IO: Final = "io"
_SHARES: Final = {1: ("cpu.shares", 1024), 2: ("cpu.weight", 100)}
"""The file with a group's share of the processors, and the share of a process or a group by default."""

_TASKS_LIKE: Final = 16
"""All tasks of a node together count like this number of processes next to them."""

_MOST_SHARES: Final = {1: 262_144, 2: 10_000}
"""The share of a task for which all processors are reserved. That of others is in proportion."""

_LEAST_SHARES: Final = {1: 2, 2: 1}
_PERIOD_US: Final = 100_000
_QUOTA_US_MIN: Final = 1_000
_IO_WEIGHT_MAX: Final = 10_000
_IO_WEIGHT: Final = 100
"""The weight of a group by default."""
_NO_QUOTA: Final = {1: ("cpu.cfs_quota_us", b"-1"), 2: ("cpu.max", b"max")}
_SPARE: Final = "spare"
_TIME: Final = "cpuacct"
_TIME_FILES: Final = {1: "cpuacct.usage", 2: "cpu.stat"}
_TIMES: Final = "times"
_AUTOGROUP: Final = "sys/kernel/sched_autogroup_enabled"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A mounted control group hierarchy that this process may write, with the node's folder in it."""

    folder: Path
    version: int
    controllers: frozenset[str]


class GroupShare(NamedTuple):
    """The part of the processors and of the disk that a group is held to, in thousandths of all; 0: no part.

    ``cpus_milli`` is the quota in thousandths of one processor. A ``best_effort`` group yields to all others.
    """

    cpus_milli: int = 0
    cpu_part: int = 0
    io_part: int = 0
    best_effort: bool = False
    replaces: bool = False
    """True if parts of 0 are set to those of a group without a share, which an earlier share has changed."""


class GroupFolder(NamedTuple):
    """The folder of a task in a hierarchy, with the hierarchy's version and controllers."""

    folder: Path
    version: int
    controllers: tuple[str, ...]


class MemoryEvents(NamedTuple):
    """The kernel's counts of the memory of a group."""

    kills: int
    """Processes of the group that the kernel ended for lack of memory, in the group or around it."""
    limit_hits: int
    """The number of times that the group was at its own limit; 0 if the lack was around it."""


class ControlGroup:
    """One task's groups, one in each hierarchy that counts memory or processes."""

    def __init__(self, folders: list[tuple[Path, Hierarchy]]) -> None:
        self._folders = folders

    @classmethod
    def taken_over(cls, folders: Iterable[GroupFolder]) -> ControlGroup:
        """Return the groups of a task of this process's predecessor."""
        return cls(
            [
                (
                    folder.folder,
                    Hierarchy(folder.folder.parent, folder.version, frozenset(folder.controllers)),
                )
                for folder in folders
            ]
        )

    def hand_over(self) -> tuple[GroupFolder, ...]:
        """Describe the groups for the successor of this process."""
        return tuple(
            GroupFolder(folder, hierarchy.version, tuple(sorted(hierarchy.controllers)))
            for folder, hierarchy in self._folders
        )

    @property
    def controllers(self) -> frozenset[str]:
        """The names of the controllers that these groups have."""
        return frozenset(name for _, hierarchy in self._folders for name in hierarchy.controllers)

    def add(self, folder: Path, hierarchy: Hierarchy) -> None:
        """Add the task's group in one more hierarchy."""
        self._folders.append((folder, hierarchy))

    def hold(self, share: GroupShare) -> None:
        """Set the shares and quotas, where these groups have the controllers. Raise ``OSError``."""
        for folder, hierarchy in self._folders:
            version = hierarchy.version
            if _CPU in hierarchy.controllers:
                least = _LEAST_SHARES[version]
                if share.best_effort:
                    _write(folder, _SHARES[version][0], least)
                elif share.cpu_part:
                    part = max(least, _MOST_SHARES[version] * min(share.cpu_part, 1000) // 1000)
                    _write(folder, _SHARES[version][0], part)
                elif share.replaces:
                    _write(folder, *_SHARES[version])
                if share.replaces and not share.cpus_milli:
                    _write_text(folder, *_NO_QUOTA[version])
                if share.cpus_milli:
                    quota = max(_QUOTA_US_MIN, share.cpus_milli * _PERIOD_US // 1000)
                    if version == 2:
                        _write(folder, "cpu.max", quota, _PERIOD_US)
                    else:
                        _write(folder, "cpu.cfs_quota_us", quota)
            if _IO in hierarchy.controllers and (share.io_part or share.best_effort):
                weight = max(1, _IO_WEIGHT_MAX * min(share.io_part, 1000) // 1000)
                _write(folder, "io.weight", weight)
            elif _IO in hierarchy.controllers and share.replaces:
                _write(folder, "io.weight", _IO_WEIGHT)

    def limit(self, *, memory_bytes: int, processes: int) -> None:
        """Set the limits; 0 leaves a limit unchanged. Raise ``OSError``."""
        for folder, hierarchy in self._folders:
            if memory_bytes and "memory" in hierarchy.controllers:
                _write(folder, _MEMORY_FILES[hierarchy.version], memory_bytes)
            if processes and "pids" in hierarchy.controllers:
                _write(folder, "pids.max", processes)

    def enter(self, pid: int) -> None:
        """Move a process into the group; it and all its later children count there. Raise ``OSError``.

        The kernel may take ten milliseconds, in which no process of the machine begins or ends.
        """
        for folder, _ in self._folders:
            _write(folder, "cgroup.procs", pid)

    def for_all(self, act: Callable[[int], None], first: int) -> None:
        """Call ``act`` for the process ``first`` and all others of the group, also for those that start now.

        Raise ``OSError``, and ``ProcessLookupError`` if ``first`` has ended.
        """
        act(first)
        handled = {first}
        while further := self._processes() - handled:
            handled |= further
            for number in further:
                with contextlib.suppress(ProcessLookupError):
                    act(number)

    def pin(self, first: int, processors: Collection[int]) -> None:
        """Let all processes of the group, and ``first``, run on these processors alone. Raise ``OSError``."""
        self.for_all(lambda number: os.sched_setaffinity(number, processors), first)

    def _processes(self) -> set[int]:
        for folder, _ in self._folders[:1]:
            with contextlib.suppress(FileNotFoundError):
                return set(map(int, (folder / "cgroup.procs").read_text().split()))
        return set()

    def open_entrances(self, *, at_once: bool = False) -> tuple[int, ...]:
        """Return descriptors to which a process with one thread writes 0 to move itself into the group.

        That takes the kernel no time, because it need not wait for other threads. If one of the hierarchies
        is of version 2, which has no such file for these controllers, return none: use ``enter``. A process
        that must be inside ``at_once`` gets the slow file there. The caller closes them. Raise ``OSError``.
        """
        if not at_once and any(hierarchy.version != 1 for _, hierarchy in self._folders):
            return ()
        opened: list[int] = []
        try:
            for folder, hierarchy in self._folders:
                name = "tasks" if hierarchy.version == 1 else "cgroup.procs"
                opened.append(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            for number in opened:
                os.close(number)
            raise
        return tuple(opened)

    def memory_events(self) -> MemoryEvents | None:
        """Return the kernel's counts of this group, or None if it has none or they cannot be read."""
        for folder, hierarchy in self._folders:
            if "memory" in hierarchy.controllers:
                version = hierarchy.version
                with contextlib.suppress(OSError, ValueError, KeyError):
                    kills = int(_rows(_read(folder, _OOM_FILES[version]))[b"oom_kill"])
                    hits = _read(folder, _HIT_FILES[version])
                    return MemoryEvents(kills, int(hits if version == 1 else _rows(hits)[b"oom"]))
        return None

    @property
    def counts_time(self) -> bool:
        """True if the processor time of all processes together is of interest."""
        return _TIME in self.controllers

    def cpu_ms(self) -> int:
        """Return the processor time of all processes in ms, also of those that ended; 0 if unknown."""
        used_ms = 0
        for folder, hierarchy in self._folders if self.counts_time else ():
            with contextlib.suppress(OSError, ValueError, KeyError):
                content = _read(folder, _TIME_FILES[hierarchy.version])
                if hierarchy.version == 1:
                    used_ms += int(content) // 1_000_000
                else:
                    used_ms += int(_rows(content)[b"usage_usec"]) // 1_000
        return used_ms

    def peak_bytes(self) -> int:
        """Return the group's peak memory in bytes, or 0 if the kernel does not report it."""
        for folder, hierarchy in self._folders:
            if "memory" in hierarchy.controllers:
                with contextlib.suppress(OSError, ValueError):
                    return int(_read(folder, _PEAK_FILES[hierarchy.version]))
        return 0

    def kill(self) -> None:
        """Kill every process of the group at once, if the kernel supports that (version 2)."""
        for folder, hierarchy in self._folders:
            if hierarchy.version == 2:
                with contextlib.suppress(OSError):
                    _write(folder, "cgroup.kill", 1)

    def remove(self) -> bool:
        """Remove the groups. Return False if a process is still ending in one; call again later then."""
        gone = True
        for folder, _ in self._folders:
            try:
                folder.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                gone = False
        return gone


class ControlGroups:
    """The node's folder in every hierarchy that it may write; there may be none."""

    def __init__(
        self,
        hierarchies: list[Hierarchy],
        aside: tuple[Hierarchy, Hierarchy] | None = None,
        former: Collection[str] = (),
        times: Hierarchy | None = None,
    ) -> None:
        self._hierarchies = hierarchies
        self._times = times
        """The folder of tasks whose processor time is counted, where no other hierarchy counts it."""
        self._former = former
        self._aside = aside
        """The folders of tasks with reserved processors and of best-effort tasks, where all other tasks are
        in the kernel's groups of sessions."""
        self._leftover: list[ControlGroup] = []

    def __bool__(self) -> bool:
        return bool(self._hierarchies)

    @property
    def controllers(self) -> frozenset[str]:
        """The names of the available controllers."""
        return frozenset(name for h in self._hierarchies for name in h.controllers)

    @property
    def held(self) -> frozenset[str]:
        """The names of the controllers by which ``hold`` holds a task to its share."""
        aside = frozenset() if self._aside is None else self._aside[0].controllers
        return (self.controllers & {_CPU, _IO, "memory"}) | aside

    def hold(self, group: ControlGroup, name: str, pid: int, share: GroupShare) -> None:
        """Hold a task's group, made as ``name``, to a share; ``pid`` is its process. Raise ``OSError``.

        May be called in any thread, and again with the same share.
        """
        wants_processors = share.best_effort or bool(share.cpus_milli)
        if self._aside is not None and wants_processors and _CPU not in group.controllers:
            hierarchy = self._aside[share.best_effort]
            folder = hierarchy.folder / name
            folder.mkdir(parents=True, exist_ok=True)
            group.add(folder, hierarchy)
            group.hold(share)
            group.for_all(lambda number: _write(folder, "cgroup.procs", number), pid)
            return
        group.hold(share)

    def make(self, name: str, *, counts_time: bool = False) -> ControlGroup:
        """Create the groups of one task; may be called in any thread. Raise ``OSError``.

        Those of a task with many processes also count their processor time, where the machine can.
        """
        hierarchies = self._hierarchies
        if counts_time:
            hierarchies = [*map(_with_time, hierarchies), *([] if self._times is None else [self._times])]
        folders = [(hierarchy.folder / name, hierarchy) for hierarchy in hierarchies]
        for folder, _ in folders:
            folder.mkdir(parents=True)
        return ControlGroup(folders)

    def dispose(self, group: ControlGroup) -> None:
        """Note that a task's groups are to be removed, at the next call of ``remove_disposed``."""
        self._leftover.append(group)

    @property
    def any_disposed(self) -> bool:
        """True while groups of ended tasks are to be removed."""
        return bool(self._leftover)

    def remove_disposed(self) -> None:
        """Remove the groups of ended tasks, except for those in which a process is still ending.

        May be called in any one thread at a time: the kernel takes milliseconds for each.
        """
        disposed, self._leftover = self._leftover, []
        self._leftover += [group for group in disposed if not group.remove()]

    @property
    def _all(self) -> tuple[Hierarchy, ...]:
        times = () if self._times is None else (self._times,)
        return (*self._hierarchies, *(self._aside or ()), *times)

    def remove_former(self) -> None:
        """Remove the folders of predecessors of this process's program in which no task is left."""
        for hierarchy in self._all:
            for name in self._former:
                for folder in (name, f"{name}-{_SPARE}", f"{name}-{_TIMES}"):
                    _remove_empty(hierarchy.folder.with_name(folder))

    def close(self) -> None:
        """Remove the node's own folders, except for those with running processes."""
        self.remove_disposed()
        self.remove_former()
        for hierarchy in self._all:
            with contextlib.suppress(OSError):
                hierarchy.folder.rmdir()


def open_control_groups(
    name: str, *, former: Collection[str] = (), proc: Path = Path("/proc/self")
) -> ControlGroups:
    """Create the node's folder ``name`` below its own group in every hierarchy that permits it.

    ``former`` are the names of the folders of predecessors of this process's program.

    Hierarchies that cannot be written are left out; ``attempt`` reports the reason.
    """
    return ControlGroups(_open(name, proc)[0], _open_aside(name, proc), former, _open_times(name, proc))


def usable(proc: Path = Path("/proc/self")) -> frozenset[str]:
    """Return the names of the controllers by which a node started here could hold tasks to a share.

    Nothing is created or changed.
    """
    controllers = {name for names in _writable(proc, autogroup=None) for name in names}
    if any(_CPU in names for names in _writable(proc, autogroup=False)):
        controllers.add(_CPU)
    return frozenset(controllers & {_CPU, _IO, "memory"})


def _writable(proc: Path, *, autogroup: bool | None) -> list[set[str]]:
    """Return the controllers of each hierarchy that this process may write."""
    try:
        own = _own_groups(proc, autogroup=autogroup)
    except OSError:
        return []
    return [
        names
        for folder, version, names in own
        if os.access(folder / "cgroup.subtree_control" if version == 2 else folder, os.W_OK)
    ]


def _open_aside(name: str, proc: Path) -> tuple[Hierarchy, Hierarchy] | None:
    """Create the folders for reserved and for best-effort tasks in the first group of the controller ``cpu``.

    Return None where all tasks have groups with that controller, and where it cannot be written.
    """
    if not is_autogroup_on(proc) or any(_CPU in names for _, _, names in _own_groups(proc)):
        return None
    for parent, version, names in _own_groups(proc, autogroup=False):
        if _CPU not in names or version != 1:
            continue
        reserved, spare = parent / name, parent / f"{name}-{_SPARE}"
        _sweep(parent)
        try:
            file, share = _SHARES[version]
            for folder, number in ((reserved, _TASKS_LIKE * share), (spare, _LEAST_SHARES[version])):
                folder.mkdir(exist_ok=True)
                (folder / file).write_text(str(number))
        except OSError:
            for folder in (reserved, spare):
                with contextlib.suppress(OSError):
                    folder.rmdir()
            return None
        controllers = frozenset({_CPU})
        return Hierarchy(reserved, version, controllers), Hierarchy(spare, version, controllers)
    return None


def _open_times(name: str, proc: Path) -> Hierarchy | None:
    """Create the folder for processor time in a hierarchy of version 1 where no other controller is wanted.

    Every group of version 2 counts it.
    """
    for parent, _, names in _own_groups(proc, also=_TIME):
        if names == {_TIME}:
            _sweep(parent)
            folder = parent / f"{name}-{_TIMES}"
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True)
                return Hierarchy(folder, 1, frozenset({_TIME}))
    return None


def _with_time(hierarchy: Hierarchy) -> Hierarchy:
    if not (hierarchy.folder / _TIME_FILES[hierarchy.version]).exists():
        return hierarchy
    return Hierarchy(hierarchy.folder, hierarchy.version, hierarchy.controllers | {_TIME})


def _open(name: str, proc: Path) -> tuple[list[Hierarchy], list[str]]:
    hierarchies: list[Hierarchy] = []
    refused: list[str] = []
    taken: set[str] = set()
    for parent, version, controllers in _own_groups(proc):
        folder = parent / name
        _sweep(parent)
        try:
            usable = frozenset(controllers) - taken
            if version == 2:
                usable = frozenset(_delegate(parent, usable))
            if not usable:
                continue
            folder.mkdir(exist_ok=True)
            if version == 2:
                (folder / "cgroup.subtree_control").write_text(" ".join(f"+{c}" for c in sorted(usable)))
            if _CPU in usable:
                file, share = _SHARES[version]
                (folder / file).write_text(str(_TASKS_LIKE * share))
            hierarchies.append(Hierarchy(folder, version, usable))
            taken |= usable
        except OSError as error:
            refused.append(f"{folder.parent}: {errno.errorcode.get(error.errno or 0, '?')}")
            with contextlib.suppress(OSError):
                folder.rmdir()
    return hierarchies, refused


def _sweep(parent: Path) -> None:
    """Remove the empty folders of killed nodes, whose names contain the id of a process that is gone."""
    for folder in parent.glob("dios-*"):
        number = folder.name.split("-")[1]
        if number.isdecimal() and not _lives(number):
            _remove_empty(folder)


def _remove_empty(folder: Path) -> None:
    """Remove a node's folder and those of its tasks, except for those with processes.

    Another node may remove them at the same time.
    """
    inside: list[Path] = []
    with contextlib.suppress(OSError):
        inside = list(folder.glob("task-*"))
    for path in (*inside, folder):
        with contextlib.suppress(OSError):
            path.rmdir()


def _lives(number: str) -> bool:
    """Return True if a process runs; an ended process that was not reaped does not."""
    try:
        return Path("/proc", number, "stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def _own_groups(
    proc: Path, *, autogroup: bool | None = None, also: str = ""
) -> list[tuple[Path, int, set[str]]]:
    """Return the groups of this process: folder, version, and the available wanted controllers.

    ``autogroup`` is True if the kernel divides processors by sessions where no group does; None: look at it.
    """
    mounts = _mounts(proc)
    has_autogroup = is_autogroup_on(proc) if autogroup is None else autogroup
    groups: list[tuple[Path, int, set[str]]] = []
    for line in (proc / "cgroup").read_text().splitlines():
        number, names, path = line.split(":", 2)
        version = 2 if number == "0" and not names else 1
        for mount, mount_root, mount_version, options in mounts:
            if mount_version != version or (version == 1 and not set(names.split(",")) & options):
                continue
            place = os.path.relpath(path, mount_root)
            if place.startswith(".."):
                continue
            folder = mount / place
            offered = set(names.split(",")) if version == 1 else _words(folder / "cgroup.controllers")
            wanted = offered & {*_WANTED, also}
            # Elsewhere than in the first group of its hierarchy, autogroup divides nothing.
            below = (folder / _SHARES[2][0]).exists() if version == 2 else path != "/"
            if _CPU in offered and (below or not has_autogroup):
                wanted.add(_CPU)
            if version == 2:
                wanted |= offered & {_IO}
            if wanted:
                groups.append((folder, version, wanted))
            break
    return groups


def is_autogroup_on(proc: Path = Path("/proc/self")) -> bool:
    """Return True if the kernel has groups of sessions (autogroup), and they are switched on."""
    try:
        return (proc.parent / _AUTOGROUP).read_text().strip() == "1"
    except OSError:
        return False


def divides_processors(proc: Path = Path("/proc/self")) -> int:
    """Return the version of the hierarchy whose controller ``cpu`` a node here gives to its tasks.

    Return 0 if there is none, or if it cannot be written.
    """
    try:
        groups = _own_groups(proc)
    except OSError:
        return 0
    for folder, version, controllers in groups:
        if _CPU in controllers:
            file = folder / "cgroup.subtree_control" if version == 2 else folder
            return version if os.access(file, os.W_OK) else 0
    return 0


def has_processor_group(proc: Path = Path("/proc/self")) -> bool:
    """Return True if control groups divide the processors for this process, so that autogroup does not."""
    try:
        return any(_CPU in controllers for _, _, controllers in _own_groups(proc, autogroup=True))
    except OSError:
        return False


def _mounts(proc: Path) -> list[tuple[Path, str, int, set[str]]]:
    rows: list[tuple[Path, str, int, set[str]]] = []
    for line in (proc / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in {"cgroup", "cgroup2"}:
            fields = before.split(" ")
            rows.append((Path(fields[4]), fields[3], 2 if kind == "cgroup2" else 1, set(options.split(","))))
    return rows


def _read(folder: Path, name: str) -> bytes:
    """Return the content of a short file, without the objects that Python makes to read a file as text."""
    fd = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _FILE_BYTES_MAX)
    finally:
        os.close(fd)


def _rows(content: bytes) -> dict[bytes, bytes]:
    """Return the rows of a file with a name and a value in each line. Raise ``ValueError``."""
    return dict(line.split() for line in content.splitlines())


def _write(folder: Path, name: str, *numbers: int) -> None:
    _write_text(folder, name, b" ".join(b"%d" % number for number in numbers))


def _write_text(folder: Path, name: str, text: bytes) -> None:
    fd = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text().split())
    except OSError:
        return set()


def _delegate(parent: Path, wanted: frozenset[str]) -> set[str]:
    """Enable ``wanted`` controllers for the groups below ``parent`` (version 2), and return those enabled.

    A group with processes of its own cannot do that. If this process is its only one, it first moves into a
    group below.
    """
    missing = wanted - _words(parent / "cgroup.subtree_control")
    if missing - {_CPU, _IO}:
        _enable(parent, missing - {_CPU, _IO})
    for name in sorted(missing & {_CPU, _IO}):
        # A process with a real-time policy, for one, keeps it from being enabled. The others hold without it.
        with contextlib.suppress(OSError):
            _enable(parent, {name})
    return set(wanted & _words(parent / "cgroup.subtree_control"))


def _enable(parent: Path, names: Collection[str]) -> None:
    request = " ".join(f"+{name}" for name in sorted(names))
    try:
        (parent / "cgroup.subtree_control").write_text(request)
    except OSError as error:
        if error.errno != errno.EBUSY or _words(parent / "cgroup.procs") != {str(os.getpid())}:
            raise
        own = parent / "daemon"
        own.mkdir(exist_ok=True)
        (own / "cgroup.procs").write_text(str(os.getpid()))
        (parent / "cgroup.subtree_control").write_text(request)


def attempt(controller: str) -> str:
    """Create and remove a group like the start of a node. Raise ``OSError`` if ``controller`` is missing."""
    hierarchies, refused = _open(f"dios-{os.getpid()}-probe", Path("/proc/self"))
    groups = ControlGroups(hierarchies)
    try:
        if controller not in groups.controllers:
            raise OSError("; ".join(refused) or f"no {controller} controller in this process's groups")
        group = groups.make("task")
        group.limit(memory_bytes=1 << 30, processes=16)
        groups.dispose(group)
        groups.remove_disposed()
        return ", ".join(f"version {h.version}" for h in hierarchies if controller in h.controllers)
    finally:
        groups.close()
