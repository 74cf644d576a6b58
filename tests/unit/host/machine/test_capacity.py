"""The speeds of links and disks, from files made by hand, and short measurements of this machine."""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from dios import limits
from dios.host.machine import capacity
from dios.host.machine.capacity import DiskKind, MeasurementError

GIGABIT = 1000 * 10**6 // 8 * 100 // (100 + limits.SHAPE_HEADERS_PERCENT)


def interface(root: Path, name: str, speed: str, *lower: str, card: bool = False, state: str = "up") -> None:
    """Make the files of one interface; ``card`` is a network card, ``lower`` are the interfaces below it."""
    folder = root / "class/net" / name
    folder.mkdir(parents=True)
    (folder / "speed").write_text(speed)
    (folder / "operstate").write_text(state)
    for entry in ("device", *(f"lower_{lower_name}" for lower_name in lower)):
        if card or entry != "device":
            (folder / entry).mkdir()


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return the /sys of a machine with cards, a bridge, a container's pair, a tunnel, and silent cards."""
    interface(tmp_path, "eth0", "1000\n", card=True)
    interface(tmp_path, "eth1", "10000\n", card=True, state="down")
    interface(tmp_path, "eth2", "-1\n", card=True)
    interface(tmp_path, "eth3", "nonsense", card=True)
    interface(tmp_path, "br0", "1000\n", "bond0")
    interface(tmp_path, "bond0", "1000\n", "eth0")
    interface(tmp_path, "veth0", "10000\n")
    interface(tmp_path, "loop0", "10000\n", "loop0")
    interface(tmp_path, "tun0", "10\n", "veth0")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("eth0",), (GIGABIT, "eth0")),
        (("veth0", "eth0", "tun0"), (GIGABIT, "eth0")),
        (("br0",), (GIGABIT, "br0")),
        (("eth1",), (0, "")),
        (("eth2", "eth3"), (0, "")),
        (("veth0",), (0, "")),
        (("loop0",), (0, "")),
        (("tun0",), (0, "")),
        (("absent",), (0, "")),
        ((), (0, "")),
    ],
)
def test_the_speed_of_network_cards_counts(
    machine: Path, names: tuple[str, ...], expected: tuple[int, str]
) -> None:
    """The content that the fastest card carries, also below a bridge; virtual interfaces have no speed."""
    assert capacity.link_bytes_s(names, machine) == expected


def test_an_address_has_interfaces(machine: Path, tmp_path: Path) -> None:
    """An address leads to its interface; a name, any address and one of elsewhere lead to all of them."""
    proc = tmp_path / "proc"
    (proc / "net").mkdir(parents=True)
    (proc / "net/if_inet6").write_text("fd0000000000000000000000000000a1 02 40 00 82     eth0\nrubbish\n")
    every = tuple(sorted(path.name for path in (machine / "class/net").iterdir()))
    assert capacity.interfaces_of("fd00::a1", machine, proc) == ("eth0",)
    for host in ("127.0.0.1", "127.1.2.3", "::1"):
        assert capacity.is_loopback(capacity.interfaces_of(host, machine, proc))
    for host in ("0.0.0.0", "::", "node7.example", "203.0.113.77"):  # noqa: S104 - nobody listens
        assert capacity.interfaces_of(host, machine, proc) == every
        assert not capacity.is_loopback(every)


def test_the_own_addresses_are_known() -> None:
    """The kernel's table of addresses has the loopback of this machine."""
    assert ("lo", "127.0.0.1") in [(name, str(address)) for name, address in capacity._addresses_4()]


def test_a_labelled_address_belongs_to_its_interface() -> None:
    """The kernel's table names an address by its label, which begins with the name of the interface."""
    rows = [struct.pack("16s4x4s16x", name, bytes((10, 0, 0, 7))) for name in (b"eth0", b"eth0:1")]
    assert [name for name, _ in capacity._parsed_rows(b"".join(rows))] == ["eth0", "eth0"]


@pytest.mark.parametrize("partition", [False, True])
def test_a_disk_is_known_by_its_queue(tmp_path: Path, *, partition: bool) -> None:
    """The disk below a folder, or the disk of the partition below it, with the kind that the system gives."""
    device = tmp_path.stat().st_dev
    disk = tmp_path / "devices/nvme0n1"
    (disk / "queue").mkdir(parents=True)
    (disk / "queue/rotational").write_text("0\n")
    place = disk / "nvme0n1p1" if partition else disk
    place.mkdir(exist_ok=True)
    if partition:
        (place / "partition").write_text("1\n")
    (tmp_path / "dev/block").mkdir(parents=True)
    (tmp_path / f"dev/block/{os.major(device)}:{os.minor(device)}").symlink_to(place)
    assert capacity.disk_of(tmp_path, tmp_path) == DiskKind("nvme0n1", rotational=False)
    assert str(capacity.disk_of(tmp_path, tmp_path)) == "nvme0n1, solid state"
    assert capacity.disk_of(tmp_path, tmp_path / "nothing") is None


def ticking(seconds: float) -> Callable[[], float]:
    """Return a clock that goes on by this time with each reading."""
    ticks = itertools.count()
    return lambda: next(ticks) * seconds


def test_a_measurement_of_a_disk_leaves_nothing(tmp_path: Path) -> None:
    """It gives a rate, and neither a file nor a descriptor is left."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    assert capacity.measure_disk(tmp_path).bytes_s > 0
    assert list(tmp_path.iterdir()) == []
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_slow_disk_is_measured_with_one_piece(tmp_path: Path) -> None:
    """Once the time is over no further piece is written: the rate is that of the pieces until then."""
    late = limits.DISK_PROBE_MS / 1000
    size = limits.DISK_PROBE_PIECES * limits.CAPACITY_PIECE_BYTES
    # Of the readings of the clock the first is the beginning, the second the check, the fourth the end.
    read_rate = limits.CAPACITY_PIECE_BYTES / (3 * late / 2)
    measurement = capacity.measure_disk(tmp_path, clock=ticking(late / 2 + 1e-9))
    assert measurement.bytes_s <= size / late
    assert measurement.bytes_s == pytest.approx(min(size / (3 * late / 2), read_rate), rel=1e-3)


@pytest.mark.parametrize(("running", "moved", "busy"), [(0, 0, False), (10_000, 0, True), (0, 10**6, True)])
def test_a_busy_machine_is_noticed(tmp_path: Path, running: int, moved: int, *, busy: bool) -> None:
    """Many runnable threads, or bytes of others on the same disk, mark a measurement."""
    device = tmp_path.stat().st_dev
    proc, root = tmp_path / "proc", tmp_path / "sys"
    disk = root / "devices/vda"
    for folder in (proc, disk / "queue", root / "dev/block", tmp_path / "data"):
        folder.mkdir(parents=True)
    (disk / "queue/rotational").write_text("1")
    (root / f"dev/block/{os.major(device)}:{os.minor(device)}").symlink_to(disk)
    (proc / "stat").write_text(f"cpu 1 2 3\nprocs_running {running}\n")
    clock = ticking(1e-3)

    def moving() -> float:
        sectors = 10**7 + (moved if clock() > 3e-3 else 0)
        (proc / "diskstats").write_text(f"   8 0 vda 1 0 5 0 1 0 {sectors} 0 0 0 0\n")
        return clock()

    (proc / "diskstats").write_text(f"   8 0 vda 1 0 5 0 1 0 {10**7} 0 0 0 0\n")
    measurement = capacity.measure_disk(tmp_path / "data", root, proc, moving)
    assert measurement.was_busy is busy


def test_a_folder_that_is_not_there_is_not_measured(tmp_path: Path) -> None:
    """The error says why, and nothing is made."""
    with pytest.raises(MeasurementError, match="No such file"):
        capacity.measure_disk(tmp_path / "absent")


def test_the_loopback_carries_something() -> None:
    """The loopback of this machine is measured."""
    assert capacity.measure_loopback().bytes_s > 0
