"""Measurements of a node from outside, once per second: processes, descriptors, control groups and files.

The counts that the node reports itself are added by ``run``.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import lmdb

from dios.core.model.names import logs_group
from dios.host.audit.reader import AuditReader
from dios.store.recovery import read_rows
from dios.store.schema import ContentKind
from dios.wire.types import Deletion
from labs.benchmarks.measure import descendants, oldest, pss_kib

MB: Final = 1e6
_KIB: Final = 1024


class Sampler:
    """The measurements of one node."""

    def __init__(self, pid: int, data: Path, log: Path, temporary: Path) -> None:
        self.pid: Final = pid
        self._data: Final = data
        self._log: Final = log
        self._temporary: Final = temporary
        self._groups: Final = group_folders(pid)
        self._audit: Final = AuditReader(data / "audit")
        self._audit_records = 0
        self._busy = (0, 0)
        self.endings: Final[Counter[str]] = Counter()
        self._log_read = 0
        self.log_errors: Final[list[str]] = []
        self.log_messages: Final[Counter[str]] = Counter()

    def sample(self) -> dict[str, float]:
        """Take one sample of everything."""
        readings: dict[str, float] = {}
        tree = descendants(self.pid)
        readings["processes"] = 1 + len(tree)
        readings["processors at work"] = self._use()
        readings |= self._memory(tree)
        readings |= self._descriptors()
        readings |= self._files()
        readings["cgroup folders"] = sum(1 for folder in self._groups for _ in _folders_below(folder))
        return readings

    def _use(self) -> float:
        """Return the percentage of all processors in use since the last sample, by any process."""
        times = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        before, self._busy = self._busy, (sum(times), sum(times) - times[3] - times[4])
        passed = self._busy[0] - before[0]
        return 100 * (self._busy[1] - before[1]) / passed if passed else 0.0

    def _memory(self, tree: list[int]) -> dict[str, float]:
        status = _fields(Path(f"/proc/{self.pid}/status"))
        zygote = oldest(tree)
        with contextlib.suppress(OSError):
            mappings = len(Path(f"/proc/{self.pid}/maps").read_bytes().splitlines())
        return {
            "daemon own memory": _kib(status, "RssAnon") * _KIB / MB,
            "daemon shared memory": _kib(status, "RssShmem") * _KIB / MB,
            "daemon PSS": pss_kib(self.pid) * _KIB / MB,
            "daemon threads": _kib(status, "Threads"),
            "daemon mappings": mappings,
            "zygote own memory": _kib(_fields(Path(f"/proc/{zygote}/status")), "RssAnon") * _KIB / MB,
            "zygote PSS": pss_kib(zygote) * _KIB / MB,
        }

    def _descriptors(self) -> dict[str, float]:
        kinds: Counter[str] = Counter()
        for pid, role in ((self.pid, "daemon"), (oldest(descendants(self.pid)), "zygote")):
            folder = Path(f"/proc/{pid}/fd")
            with contextlib.suppress(OSError):
                for entry in os.scandir(folder):
                    kinds[f"{role} descriptors"] += 1
                    if role == "daemon":
                        with contextlib.suppress(OSError):
                            target = str(Path(entry.path).readlink())
                            kinds["memfds"] += target.startswith("/memfd:")
                            kinds["sockets"] += target.startswith("socket:")
        names = ("daemon descriptors", "zygote descriptors", "memfds", "sockets")
        return {name: float(kinds[name]) for name in names}

    def _files(self) -> dict[str, float]:
        count, size = extents(self._data)
        audit = [path.stat().st_size for path in (self._data / "audit").iterdir()]
        for entry in self._audit.poll():
            self._audit_records += 1
            if entry.record.action == "ended":
                self.endings[entry.record.outcome] += 1
        self._read_log()
        shared = os.statvfs("/dev/shm")  # noqa: S108 - looked at, not used
        return {
            "extent files": count,
            "extent bytes": size / MB,
            "database bytes": (self._data / "store" / "data.mdb").stat().st_size / MB,
            "audit bytes": sum(audit) / MB,
            "audit records": self._audit_records,
            "log bytes": self._log.stat().st_size / MB,
            "shared memory files": (shared.f_blocks - shared.f_bfree) * shared.f_frsize / MB,
            "temporary files": sum(1 for _ in os.scandir(self._temporary)),
        }

    def _read_log(self) -> None:
        with self._log.open(errors="replace") as file:
            file.seek(self._log_read)
            for line in iter(file.readline, ""):
                if not line.endswith("\n"):
                    break
                self._log_read = file.tell()
                try:
                    record: dict[str, object] = json.loads(line)
                except ValueError:
                    # A line that is not a log record was printed by something that failed.
                    self.log_errors.append(line.rstrip())
                    continue
                self.log_messages[f"{record.get('level')}: {record.get('message')}"] += 1
                if record.get("level") not in {"debug", "info", "warning"}:
                    self.log_errors.append(line.rstrip())


def extents(data: Path) -> tuple[int, int]:
    """Return the number of extent files and their total bytes."""
    count = size = 0
    for folder in os.scandir(data / "extents"):
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    size += entry.stat(follow_symlinks=False).st_size
                    count += 1
    return count, size


def stored(data: Path) -> dict[str, float]:
    """Return counts from the rows of a store that nobody writes: objects, extents, pages ever used."""
    environment = lmdb.open(
        str(data / "store"), readonly=True, lock=False, create=False, max_dbs=2, map_size=1 << 34
    )
    try:
        objects = environment.open_db(b"objects", create=False)
        with environment.begin(objects) as txn, txn.cursor() as cursor:
            scan = read_rows(cursor.iternext())
        homes = [
            record.name for record in scan.records if record.deletion is Deletion.IMMORTAL and record.name
        ]
        logs = {
            (logs_group(home),) for home in homes
        }  # logs of ended tasks: kept on purpose, in a limited number
        return {
            "rows": sum(record.groups not in logs for record in scan.records) + scan.rows_lost,
            "extents of rows": len(scan.named),
            "extent bytes of rows": sum(
                row.payload.size for row in scan.named.values() if row.payload.kind is ContentKind.EXTENT
            )
            / MB,
            "database pages": environment.info()["last_pgno"] + 1,
        }
    finally:
        environment.close()


def group_folders(pid: int) -> list[Path]:
    """Return the folders of the node's control groups in every hierarchy."""
    mounts = [
        Path(line.split()[1])
        for line in Path("/proc/mounts").read_text().splitlines()
        if line.split()[2] in {"cgroup", "cgroup2"}
    ]
    folders: set[Path] = set()
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        below = line.split(":", 2)[2].lstrip("/")
        for mount in mounts:
            with contextlib.suppress(OSError):
                folders.update((mount / below).resolve().glob(f"dios-{pid}-*"))
    return sorted(folders)


def _folders_below(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            if entry.is_dir():
                yield entry


def _fields(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _kib(fields: dict[str, str], name: str) -> float:
    return float(fields.get(name, "0").split()[0])
