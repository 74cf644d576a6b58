"""The capacity of this node's link and disk: measured at the start, and again until the figure is good.

The order of the sources is: the settings, else the largest of the speed of the interface, a measurement, and
the most that was seen. Each of the latter can be too small: a machine was busy, or a receiver slow. Until one
of them is known, the capacity is unknown, and schedulers reserve nothing of it.
"""

from __future__ import annotations

import enum
import logging
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, Self

import trio

from dios import limits
from dios.errors import DiosError
from dios.host.bandwidth.rates import Rates
from dios.host.machine import capacity
from dios.host.machine.capacity import Measurement, MeasurementError
from dios.node.addresses import split_address
from dios.node.settings import Settings
from dios.wire.messages import ResourceCapacity
from dios.wire.types import Traffic

_log: Final = logging.getLogger(__name__)
_LOWEST_PRIORITY: Final = 19
_NOT_YET: Final = "it is not measured yet"
_MEASURE_IS_OFF: Final = "the setting measure is off"
_NO_SPEED: Final = "the system does not say the speed of its interface, and nothing was moved for a second"


class CapacitySource(enum.StrEnum):
    """The origin of a capacity; the words are for users."""

    CONFIGURED = "configured"
    INTERFACE = "interface"
    MEASURED = "measured"
    SEEN = "most seen"
    UNKNOWN = "unknown"


class KnownCapacity(NamedTuple):
    """A capacity in bytes per second, its source, and a detail; None if it is unknown, with the reason."""

    bytes_s: int | None
    source: CapacitySource
    detail: str = ""


class CapacitySources:
    """The capacity of one resource, by all that is known of it.

    Args:
        configured: the bytes per second that the settings give, 0 if they do not.
        measure: measures it, in a thread, if that is allowed and makes sense.
        why_unknown: the reason while nothing is known.
    """

    def __init__(self, configured: int, measure: Callable[[], Measurement] | None, why_unknown: str) -> None:
        self._configured: Final = configured
        self._measure: Final = None if configured else measure
        self._interface = self._measured = 0
        self._interface_name = self._remark = ""
        self._why_unknown = why_unknown
        self._busy_attempts = 0
        self.is_settled = self._measure is None
        """True if no further measurement is due."""

    def note_interface(self, bytes_s: int, name: str) -> None:
        """Record the speed of the interface; 0 if the system does not say it."""
        self._interface, self._interface_name = bytes_s, name

    def known(self, seen: int) -> KnownCapacity:
        """Return the present capacity; ``seen`` is the most that was seen in bytes per second, or 0."""
        if self._configured:
            return KnownCapacity(self._configured, CapacitySource.CONFIGURED)
        sources = (
            KnownCapacity(self._interface, CapacitySource.INTERFACE, self._interface_name),
            KnownCapacity(self._measured, CapacitySource.MEASURED, self._remark),
            KnownCapacity(seen, CapacitySource.SEEN),
        )
        best = max(sources, key=lambda source: source.bytes_s or 0)
        return best if best.bytes_s else KnownCapacity(None, CapacitySource.UNKNOWN, self._why_unknown)

    def measure(self) -> None:
        """Measure in this thread. A busy machine has to be measured again; the best measurement counts."""
        if self._measure is None:
            return
        try:
            measurement = self._measure()
        except (MeasurementError, RuntimeError, OSError) as error:
            self.note_failure(error)
            return
        self._measured = max(self._measured, measurement.bytes_s)
        self._busy_attempts += measurement.was_busy
        self.is_settled = not measurement.was_busy or self._busy_attempts >= limits.CAPACITY_BUSY_ATTEMPTS_MAX
        self._remark = "while the machine was busy" if measurement.was_busy else ""

    def note_failure(self, error: Exception) -> None:
        """Record why a measurement was not possible; it is tried again."""
        if not self.is_settled:
            self._why_unknown = (
                error.message if isinstance(error, DiosError) else f"cannot measure it: {error}"
            )


class NodeCapacity:
    """The capacities of this node's link and disk, and the attempts to find them out."""

    def __init__(
        self,
        disk: CapacitySources,
        link: CapacitySources,
        interface_speed: Callable[[], tuple[int, str]],
        rates: Rates,
    ) -> None:
        """``rates`` has seen what was moved; ``interface_speed`` returns bytes per second and a name."""
        self._disk, self._link = disk, link
        self._interface_speed: Final = interface_speed
        self._rates: Final = rates
        self._look_at_interface()

    @classmethod
    def of_node(cls, settings: Settings, address: str, rates: Rates) -> Self:
        """Return those of a node with these settings and this address for other nodes."""
        interfaces = capacity.interfaces_of(split_address(address)[0])
        local = capacity.is_loopback(interfaces)
        disk = CapacitySources(
            settings.store_rate,
            (lambda: capacity.measure_disk(settings.data)) if settings.measure else None,
            _NOT_YET if settings.measure else _MEASURE_IS_OFF,
        )
        link = CapacitySources(
            settings.link_rate,
            capacity.measure_loopback if settings.measure and local else None,
            (_NOT_YET if settings.measure else _MEASURE_IS_OFF) if local else _NO_SPEED,
        )
        return cls(disk, link, partial(capacity.link_bytes_s, interfaces), rates)

    @property
    def disk(self) -> KnownCapacity:
        """The capacity of the disk."""
        return self._disk.known(self._rates.seen[Traffic.STORE])

    @property
    def network(self) -> KnownCapacity:
        """The capacity of the link in each direction."""
        seen = self._rates.seen
        return self._link.known(max(seen[Traffic.OUT], seen[Traffic.IN]))

    def rows(self) -> tuple[ResourceCapacity, ...]:
        """Return both for users."""
        return tuple(
            ResourceCapacity(name, known.bytes_s or 0, known.source.value, known.detail)
            for name, known in (("disk", self.disk), ("network", self.network))
        )

    async def keep(self, report: Callable[[int, int], None]) -> None:
        """Measure until both are known well, and ``report`` them when they change much: disk and network.

        0 stands for unknown. It runs until it is cancelled, because the most seen grows.
        """
        reported = (0, 0)
        pause_ms = limits.CAPACITY_PAUSE_MS_MIN
        while True:
            self._look_at_interface()
            reported = self._report_changed(reported, report)
            if self._disk.is_settled and self._link.is_settled:
                await trio.sleep(limits.CAPACITY_LOOK_MS / 1000)
                continue
            try:
                await _in_low_priority(self._measure)
            except (RuntimeError, OSError) as error:
                self._disk.note_failure(error)
                self._link.note_failure(error)
            reported = self._report_changed(reported, report)
            await trio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, limits.CAPACITY_PAUSE_MS_MAX)

    def _report_changed(
        self, reported: tuple[int, int], report: Callable[[int, int], None]
    ) -> tuple[int, int]:
        """Report the present capacities if one differs much from the last report; return the last report."""
        disk, network = self.disk, self.network
        present = (disk.bytes_s or 0, network.bytes_s or 0)
        if not any(map(_differs, reported, present)):
            return reported
        self._rates.learned = (present[1], present[1], present[0])
        report(*present)
        for name, known in (("disk", disk), ("network", network)):
            shown: Mapping[str, object] = known._asdict()
            _log.info("the capacity of the node is known", extra={"resource": name, **shown})
        return present

    def _measure(self) -> None:
        for estimate in (self._disk, self._link):
            if not estimate.is_settled:
                estimate.measure()

    def _look_at_interface(self) -> None:
        """Read the speed of the interface, which may come up later or change."""
        self._link.note_interface(*self._interface_speed())


def _differs(before: int, now: int) -> bool:
    return abs(now - before) * 100 > before * limits.CAPACITY_CHANGE_PERCENT


async def _in_low_priority(work: Callable[[], None]) -> None:
    """Run work in a thread of its own, whose priority cannot be raised again.

    Raises:
        RuntimeError: the system refuses the thread.
        OSError: it refuses the priority.
    """
    ended, token = trio.Event(), trio.lowlevel.current_trio_token()
    failures: list[Exception] = []

    def run() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
            work()
        except Exception as error:  # noqa: BLE001 - it is raised in the loop
            failures.append(error)
        try:
            token.run_sync_soon(ended.set)
        except trio.RunFinishedError:
            return  # the node has ended

    threading.Thread(target=run, name="capacity", daemon=True).start()
    await ended.wait()
    if failures:
        raise failures[0]
