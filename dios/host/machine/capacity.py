"""The bytes per second of this machine's link and disk: what the system says of them, and short measurements.

``dios.node.capacity`` decides when to measure, and what of it a node announces.
"""

from __future__ import annotations

import array
import contextlib
import errno
import fcntl
import ipaddress
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from dios import limits
from dios.errors import DiosError
from dios.host.machine import procfs

_BITS: Final = 8
_SECTOR: Final = 512
_LOOPBACK: Final = "lo"
_LOWER_MAX: Final = 4
"""The most devices below each other that are followed, such as a bridge, a bond and a network card."""

_SIOCGIFCONF: Final = 0x8912
_ADDRESS_ROWS: Final = struct.Struct("iP")
"""The argument of SIOCGIFCONF: the length and the place of the rows."""
_ADDRESS_ROW: Final = struct.Struct("16s4x4s16x")
"""A name, and a socket address with an IPv4 address in it."""
_ADDRESSES_MAX: Final = 256

_FREE_FACTOR: Final = 16
"""A disk is measured only if it has this many times the bytes of a measurement free."""
_OTHERS_PERCENT: Final = 25
"""The most that others move on an idle disk meanwhile, as a part of the bytes that the measurement writes."""

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


class MeasurementError(DiosError):
    """A measurement was not possible now; the message says why. It is worth trying again later."""


class Measurement(NamedTuple):
    """The measured bytes per second. A busy machine carries more than was measured."""

    bytes_s: int
    was_busy: bool


# -- the link -------------------------------------------------------------------------------------------
def interfaces_of(host: str, root: Path = Path("/sys"), proc: Path = Path("/proc")) -> tuple[str, ...]:
    """Return the interfaces that may carry the traffic of a node with this address.

    They are all but the loopback for a name, for any address, and for one that this machine does not have.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if address is not None and address.is_loopback:
        return (_LOOPBACK,)
    rows = (*_addresses_4(), *_addresses_6(proc))
    owners = tuple(name for name, local in rows if local == address)
    return owners or tuple(sorted(name for name in procfs.names(root / "class/net") if name != _LOOPBACK))


def is_loopback(interfaces: tuple[str, ...]) -> bool:
    """Return True if the traffic stays on this machine."""
    return interfaces == (_LOOPBACK,)


def link_bytes_s(interfaces: tuple[str, ...], root: Path = Path("/sys")) -> tuple[int, str]:
    """Return the bytes of content per second of the fastest of the interfaces, and its name; 0 if unknown.

    Virtual interfaces that lead to no network card report a speed that is none, and do not count.
    """
    speeds = [
        (procfs.number(root / "class/net" / name / "speed"), name)
        for name in interfaces
        if _leads_to_card(root, name) and procfs.text(root / "class/net" / name / "operstate") != "down"
    ]
    speed, name = max(speeds, default=(0, ""))
    if speed <= 0:
        return 0, ""
    return speed * 1_000_000 // _BITS * 100 // (100 + limits.SHAPE_HEADERS_PERCENT), name


def _leads_to_card(root: Path, name: str, depth: int = 0) -> bool:
    folder = root / "class/net" / name
    if (folder / "device").exists():
        return True
    lower = [entry.removeprefix("lower_") for entry in procfs.names(folder) if entry.startswith("lower_")]
    return depth < _LOWER_MAX and any(_leads_to_card(root, device, depth + 1) for device in lower)


def _addresses_4() -> Iterator[tuple[str, _Address]]:
    """Yield the interfaces of this network namespace with their IPv4 addresses."""
    rows = array.array("B", bytes(_ADDRESS_ROW.size * _ADDRESSES_MAX))
    place, length = rows.buffer_info()
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        answer = fcntl.ioctl(asked, _SIOCGIFCONF, _ADDRESS_ROWS.pack(length, place))
        yield from _parsed_rows(rows.tobytes()[: _ADDRESS_ROWS.unpack(answer)[0]])


def _parsed_rows(rows: bytes) -> Iterator[tuple[str, _Address]]:
    for name, address in _ADDRESS_ROW.iter_unpack(rows):
        # A labelled address has a name such as eth0:1; that of the interface has no colon.
        interface = name.partition(b"\0")[0].partition(b":")[0]
        yield interface.decode(errors="replace"), ipaddress.IPv4Address(address)


def _addresses_6(proc: Path) -> Iterator[tuple[str, _Address]]:
    for row in procfs.text(proc / "net/if_inet6").splitlines():
        words = row.split()
        with contextlib.suppress(ValueError, IndexError):
            yield words[5], ipaddress.IPv6Address(bytes.fromhex(words[0]))


def measure_loopback(proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic) -> Measurement:
    """Send bytes to this process itself through the loopback, for LOOPBACK_PROBE_MS at most.

    Raises:
        MeasurementError: the system refuses the connection.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(limits.CAPACITY_TIMEOUT_MS / 1000)
            sender = socket.create_connection(listener.getsockname(), limits.CAPACITY_TIMEOUT_MS / 1000)
            receiver, _ = listener.accept()
        with sender, receiver:
            receiver.settimeout(limits.CAPACITY_TIMEOUT_MS / 1000)
            sending = threading.Thread(target=_send, args=(sender, clock), name="capacity", daemon=True)
            began = clock()
            sending.start()
            room, received = bytearray(limits.CAPACITY_PIECE_BYTES), 0
            while count := receiver.recv_into(room):
                received += count
            elapsed = clock() - began
            sending.join()
    except OSError as error:
        raise MeasurementError(f"cannot measure the loopback: {error.strerror or error}") from error
    return Measurement(_rate(received, elapsed), _is_crowded(proc))


def _send(sender: socket.socket, clock: Callable[[], float]) -> None:
    piece, sent, until = bytes(limits.CAPACITY_PIECE_BYTES), 0, clock() + limits.LOOPBACK_PROBE_MS / 1000
    # If the receiver has given up it says why.
    with contextlib.suppress(OSError):
        while sent < limits.LOOPBACK_PROBE_BYTES and clock() < until:
            sender.sendall(piece)
            sent += len(piece)
        sender.shutdown(socket.SHUT_WR)


# -- the disk -------------------------------------------------------------------------------------------
class DiskKind(NamedTuple):
    """The disk below a folder, as the system names it."""

    name: str
    rotational: bool

    def __str__(self) -> str:
        return f"{self.name}, {'rotating' if self.rotational else 'solid state'}"


def disk_of(folder: Path, root: Path = Path("/sys")) -> DiskKind | None:
    """Return the disk below a folder; None if the system does not say, as for a file system in memory."""
    try:
        device = folder.stat().st_dev
        place = (root / "dev/block" / f"{os.major(device)}:{os.minor(device)}").resolve(strict=True)
    except OSError:
        return None
    # The queue belongs to the disk, and a partition is a folder in it.
    disk = place.parent if (place / "partition").exists() else place
    rotational = procfs.number(disk / "queue/rotational")
    return None if rotational < 0 else DiskKind(disk.name, bool(rotational))


def measure_disk(
    folder: Path,
    root: Path = Path("/sys"),
    proc: Path = Path("/proc"),
    clock: Callable[[], float] = time.monotonic,
) -> Measurement:
    """Write bytes durably to a nameless file in a folder and read them again; return the lower rate.

    Each part ends after DISK_PROBE_BYTES or DISK_PROBE_MS, whichever comes first.

    Raises:
        MeasurementError: the disk is nearly full, or the system refuses.
    """
    disk = disk_of(folder, root)
    try:
        usage = os.statvfs(folder)
        if usage.f_bavail * usage.f_frsize < _FREE_FACTOR * limits.DISK_PROBE_BYTES:
            raise MeasurementError(f"the disk of {folder} is nearly full, so it is not measured. Free space.")
        before = _moved_bytes(disk, proc)
        file = _nameless_file(folder)
        try:
            written, write_s = _write(file, clock)
            read, read_s = _read(file, written, clock)
        finally:
            os.close(file)
    except OSError as error:
        raise MeasurementError(f"cannot measure the disk of {folder}: {error.strerror or error}") from error
    others = _moved_bytes(disk, proc) - before - written - read
    was_busy = _is_crowded(proc) or others * 100 > written * _OTHERS_PERCENT
    return Measurement(min(_rate(written, write_s), _rate(read, read_s)), was_busy)


def _nameless_file(folder: Path) -> int:
    """Return a descriptor of a new file without a name, of which nothing is left after a crash."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        # Some file systems have no such files.
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT}:
            raise
    path = folder / f".capacity-{os.getpid()}"
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    path.unlink()
    return file


def _write(file: int, clock: Callable[[], float]) -> tuple[int, float]:
    # Random bytes, because some file systems store zeros nowhere.
    piece, written, began = os.urandom(limits.CAPACITY_PIECE_BYTES), 0, clock()
    while written < limits.DISK_PROBE_BYTES and clock() - began < limits.DISK_PROBE_MS / 1000:
        for _ in range(limits.DISK_PROBE_PIECES):
            written += os.write(file, piece)
        os.fdatasync(file)
    return written, clock() - began


def _read(file: int, size: int, clock: Callable[[], float]) -> tuple[int, float]:
    # The pages of the cache would be read otherwise.
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    read, began = 0, clock()
    while read < size and clock() - began < limits.DISK_PROBE_MS / 1000:
        read += len(os.pread(file, limits.CAPACITY_PIECE_BYTES, read))
    return read, clock() - began


def _rate(size: int, seconds: float) -> int:
    return max(1, round(size / max(seconds, 1e-6)))


def _moved_bytes(disk: DiskKind | None, proc: Path) -> int:
    """Return the bytes that the disk has read and written since the machine started; 0 if not known."""
    for row in procfs.text(proc / "diskstats").splitlines():
        words = row.split()
        if disk is not None and len(words) > 9 and words[2] == disk.name:
            return _SECTOR * sum(procfs.numbers(f"{words[5]} {words[9]}", 2))
    return 0


def _is_crowded(proc: Path) -> bool:
    """Return True if more threads are ready to run than processors, so that the measuring one had to wait."""
    running = procfs.rows(procfs.text(proc / "stat"), " ").get("procs_running", 0)
    return running > len(os.sched_getaffinity(0))
