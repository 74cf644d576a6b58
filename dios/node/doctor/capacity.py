"""Shows the capacity of the node's disk and link: of the running node, or what the machine says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dios import limits
from dios.client.sync.node import connect
from dios.errors import DiosError
from dios.host.machine import capacity
from dios.node import daemon
from dios.node.addresses import split_address
from dios.node.doctor.finding import DoctorFinding, DoctorTest
from dios.node.settings import Settings, load
from dios.wire.messages import ResourceCapacity

_PURPOSE: Final = "--disk-io and --net reserve a part of it"
_DISK: Final = DoctorTest("disk", _PURPOSE)
_NETWORK: Final = DoctorTest("network", _PURPOSE)


def examine_capacity(data: Path, root: Path = Path("/sys")) -> list[DoctorFinding]:
    """Return the capacities of the node in ``data``, none without a cluster. Nothing is measured here."""
    try:
        settings = load(data)
        if not settings.listen:
            return []
        if daemon.find(settings.socket) is not None:
            with connect(str(settings.socket), groups=()) as node:
                return [of_running(row) for row in node.info().capacities]
    except DiosError:
        return []  # other tests show what is wrong with the settings or the node
    return [_disk(settings, root), _link(settings, root)]


def of_running(row: ResourceCapacity) -> DoctorFinding:
    """Return the result for a capacity of the running node."""
    test = DoctorTest(row.resource, _PURPOSE)
    if row.bytes_s:
        more = f", {row.detail}" if row.detail else ""
        return test.result(f"{_rate_text(row.bytes_s)}, {row.source}{more}")
    setting, option = ("store_rate", "--disk-io") if row.resource == "disk" else ("link_rate", "--net")
    return test.result(
        f"unknown, so {option} reserves nothing here: {row.detail}",
        f"give the setting {setting}, or wait: the node finds it out when much is moved",
    )


def _disk(settings: Settings, root: Path) -> DoctorFinding:
    disk = capacity.disk_of(_existing(settings.data), root)
    name = "" if disk is None else f" ({disk})"
    if settings.store_rate:
        return _DISK.result(f"{_rate_text(settings.store_rate)}, configured{name}")
    if not settings.measure:
        return _DISK.result(f"the setting measure is off{name}", "give the setting store_rate")
    return _DISK.result(f"the node measures it at its start{name}")


def _link(settings: Settings, root: Path) -> DoctorFinding:
    if settings.link_rate:
        return _NETWORK.result(f"{_rate_text(settings.link_rate)}, configured")
    interfaces = capacity.interfaces_of(split_address(settings.address)[0], root)
    bytes_s, name = capacity.link_bytes_s(interfaces, root)
    if bytes_s:
        return _NETWORK.result(f"{_rate_text(bytes_s)}, interface, {name}")
    if capacity.is_loopback(interfaces) and settings.measure:
        return _NETWORK.result("the node measures the loopback at its start")
    silent = ", ".join(interfaces) or "any interface"
    return _NETWORK.result(f"the system says no speed of {silent}", "give the setting link_rate")


def _existing(folder: Path) -> Path:
    """Return the folder, or the first one above it that exists."""
    return next((ancestor for ancestor in (folder, *folder.absolute().parents) if ancestor.exists()), folder)


def _rate_text(bytes_s: int) -> str:
    return f"{bytes_s / limits.MIB:.1f} MiB/s"
