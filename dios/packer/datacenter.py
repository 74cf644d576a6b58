"""A data centre: servers, services and links, and the free amounts of each over the next instants.

Time is a ring of ``horizon`` instants that begins now. Advancing it clears the passed instants and reuses
them at the end. Amounts are given in the caller's units and stored as whole numbers of a decimal fraction of
them, fine enough for seven digits of the largest server. Demands are rounded up and capacities are rounded
down.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from dios.limits import PACKER_AMOUNT_MAX, PACKER_INSTANTS_MAX, PACKER_SERVERS_MAX, PACKER_STATE_MAX
from dios.packer.job.ti_mra import RESOURCES, Floats, Ints
from dios.packer.kernels.records import (
    TOO_MUCH,
    UNITS_MAX,
    DatacenterArrays,
    JobArrays,
    Scratch,
    has_room,
    new_scratch,
)

_NOISE: Final = 2.0**-40
"""Decimal fractions are not exact in binary; a relative difference up to this is ignored."""


_RISE_ROWS: Final = 256
"""Instants that are compared at a time: a bound of the memory for copies."""

TRUNK_UNITS_MAX: Final = 2.0**46
"""The bandwidth of a million servers with full links."""


class Capacity(NamedTuple):
    """The resources of a server: cores, MiB, and MB/s written and read; by default as in the paper."""

    cpu: float = 16.0
    memory: float = 32_768.0
    disk_write: float = 200.0
    disk_read: float = 200.0


class Spot(NamedTuple):
    """A machine that offers a service: its rack, its resources, and the bandwidth of its link (each way)."""

    rack: int
    capacity: Capacity = Capacity()
    link: float = 1000.0


class Link(NamedTuple):
    """One direction of a link of a server, of a machine of a service, of a rack, or of a pod."""

    kind: str
    """``server``, ``service``, ``rack`` or ``pod``."""
    number: int
    """The number of its owner among the places, the racks or the pods."""
    owner: str
    """The name of its owner: ``server 17``, ``storage[0]``, ``rack 2``, ``pod 1``."""
    direction: str
    """``up`` or ``down``."""
    plane: int | None = None
    """Its plane; None if there is one plane."""

    def text(self, owner: str) -> str:
        """Return the link in words, with the name of its owner as the caller has it."""
        plane = "" if self.plane is None else f", plane {self.plane}"
        return f"the link {self.direction} of {owner}{plane}"


class Quanta:
    """The smallest counted amount of each of k units, as powers of ten."""

    def __init__(self, largest: Floats) -> None:
        """Choose the finest powers for which the ``largest`` amounts (k,) are at most ``UNITS_MAX``."""
        powers = np.array([_power_of_ten(float(amount)) for amount in largest])
        # One of the two factors is 1 and the other an integer power, which is exact; a fraction is not.
        self._times: Final[Floats] = 10.0 ** np.maximum(-powers, 0)
        self._over: Final[Floats] = 10.0 ** np.maximum(powers, 0)

    def up(self, amounts: Floats, most: float = TOO_MUCH) -> Floats:
        """Return (..., k) whole numbers, rounded up; ``most`` for larger ones, which no server has."""
        units = amounts * self._times
        units /= self._over
        units *= 1.0 - _NOISE
        return np.minimum(np.ceil(units, out=units), most, out=units)

    def down(self, amounts: Floats) -> Floats:
        """Return (..., k) whole numbers, rounded down."""
        return np.floor(amounts * self._times / self._over * (1.0 + _NOISE))

    def amount(self, units: Floats) -> Floats:
        """Return (..., k) whole numbers converted to the caller's units."""
        return units * self._over / self._times


def _power_of_ten(largest: float) -> int:
    if largest <= 0.0:
        return 0
    power = math.floor(math.log10(largest / UNITS_MAX))
    while math.floor(largest * 10.0**-power * (1.0 + _NOISE)) > UNITS_MAX:
        power += 1
    return power


class Datacenter:
    """Servers in racks, racks in pods, and pods around a core (Packer paper, section III-A).

    - ``capacity``: one ``Capacity`` for all servers, or an array (servers, 4).
    - ``rack_of`` (servers,), ``pod_of`` (racks,): the rack of each server and the pod of each rack.
    - ``link``: the bandwidth of a server in each direction, one number or (servers,); ``rack_link``,
      ``pod_link``: that of each link of a rack and of a pod, one number, or (racks,) and (pods,).
    - ``planes`` (a, c): a rack has one link to each of the ``a`` switches of its pod, and each of those has
      one to each of ``c`` core switches, which gives a c paths between pods; (1, 1) is a tree.
    - ``services``: the machines that offer each service, by its name.
    - ``horizon``: the number of instants ahead that can be reserved; ``instant_s``: the length of one in
      seconds; ``now``: the first instant.

    Not thread-safe. Raises ``ValueError`` with the argument and the index at fault.
    """

    def __init__(
        self,
        *,
        capacity: Capacity | npt.ArrayLike,
        rack_of: npt.ArrayLike,
        pod_of: npt.ArrayLike,
        link: float | npt.ArrayLike = 1000.0,
        rack_link: float | npt.ArrayLike = 10_000.0,
        pod_link: float | npt.ArrayLike = 100_000.0,
        planes: tuple[int, int] = (1, 1),
        services: Mapping[str, Sequence[Spot]] | None = None,
        horizon: int = 64,
        instant_s: float = 1.0,
        now: int = 0,
    ) -> None:
        pods = _checked_places("pod_of", pod_of, None)
        racks = _checked_places("rack_of", rack_of, pods.size)
        self.servers: Final = racks.size
        spots = [(name, spot) for name, many in (services or {}).items() for spot in many]
        self.services: Final = _service_spans(racks.size, services or {})
        for name, spot in spots:
            if not 0 <= spot.rack < pods.size:
                raise ValueError(
                    f"services[{name}].rack is {spot.rack}; it must be from 0 to {pods.size - 1}"
                )
        racks = np.append(racks, np.array([spot.rack for _, spot in spots], np.int64))
        has = np.empty((racks.size, 4))
        has[: self.servers] = _checked_amounts("capacity", capacity, (self.servers, 4))
        links = np.empty(racks.size)
        links[: self.servers] = _checked_amounts("link", link, (self.servers,))
        for at, (name, spot) in enumerate(spots, self.servers):
            has[at] = _checked_amounts(f"services[{name}].capacity", spot.capacity, (4,))
            links[at] = _checked_amounts(f"services[{name}].link", spot.link, ())
        trunks = (
            _checked_amounts("rack_link", rack_link, (pods.size,)),
            _checked_amounts("pod_link", pod_link, (int(pods.max()) + 1,)),
        )
        if min(planes) < 1:
            raise ValueError(f"planes is {planes}; both numbers must be at least 1")
        if not 1 <= horizon <= PACKER_INSTANTS_MAX:
            raise ValueError(f"horizon is {horizon}; it must be from 1 to {PACKER_INSTANTS_MAX} instants")
        if not (math.isfinite(instant_s) and instant_s > 0.0):
            raise ValueError(f"instant_s is {instant_s}; it must be finite and above 0")
        width = 2 * pods.size * planes[0] + 2 * (int(pods.max()) + 1) * planes[0] * planes[1]
        if horizon * (6 * racks.size + width) > PACKER_STATE_MAX:
            raise ValueError(
                f"horizon is {horizon}; it is too long for {racks.size} servers and {width} links"
            )
        self.horizon: Final = horizon
        self.instant_s: Final = instant_s
        self.now = now
        self.quanta: Final = Quanta(has.max(axis=0))
        """The conversion of the four resources."""
        self.band: Final = Quanta(links.max(keepdims=True))
        """The conversion of bandwidth."""
        self._build(has, links, trunks, racks, pods, planes)
        self._scratch: Scratch | None = None
        self._active: set[int] = set()
        self._ends: list[tuple[int, int]] = []
        self._booked = 0

    @classmethod
    def tree(
        cls,
        servers: int = 1200,
        *,
        per_rack: int = 40,
        racks_per_pod: int = 10,
        capacity: Capacity | npt.ArrayLike = Capacity(),  # noqa: B008 - a constant
        link: float | npt.ArrayLike = 1000.0,
        rack_link: float = 10_000.0,
        pod_link: float = 100_000.0,
        services: Mapping[str, Sequence[Spot]] | None = None,
        horizon: int = 64,
        instant_s: float = 1.0,
    ) -> Datacenter:
        """Return a three-tier tree with one path between any two servers; the defaults are the paper's."""
        for name, value in (("servers", servers), ("per_rack", per_rack), ("racks_per_pod", racks_per_pod)):
            if not 1 <= value <= PACKER_SERVERS_MAX:
                raise ValueError(f"{name} is {value}; it must be from 1 to {PACKER_SERVERS_MAX}")
        rack_of = np.arange(servers) // per_rack
        return cls(
            capacity=capacity,
            rack_of=rack_of,
            pod_of=np.arange(int(rack_of[-1]) + 1) // racks_per_pod,
            link=link,
            rack_link=rack_link,
            pod_link=pod_link,
            services=services,
            horizon=horizon,
            instant_s=instant_s,
        )

    @classmethod
    def fat_tree(
        cls,
        ports: int,
        *,
        capacity: Capacity | npt.ArrayLike = Capacity(),  # noqa: B008 - a constant
        link: float = 1000.0,
        services: Mapping[str, Sequence[Spot]] | None = None,
        horizon: int = 64,
        instant_s: float = 1.0,
    ) -> Datacenter:
        """Return a fat tree of switches with an even number of ``ports``: ports**3 / 4 servers, equal links.

        Between pods there are ports**2 / 4 paths; each edge of a job uses the emptiest one.
        """
        if ports < 2 or ports % 2 or ports**3 // 4 > PACKER_SERVERS_MAX:
            raise ValueError(
                f"ports is {ports}; it must be even, at least 2, "
                f"and give at most {PACKER_SERVERS_MAX} servers (ports**3 / 4)"
            )
        half = ports // 2
        return cls(
            capacity=capacity,
            rack_of=np.arange(ports * half * half) // half,
            pod_of=np.arange(ports * half) // half,
            link=link,
            rack_link=link,
            pod_link=link,
            planes=(half, half),
            services=services,
            horizon=horizon,
            instant_s=instant_s,
        )

    def advance(self, now: int) -> None:
        """Advance time to instant ``now`` and forget the past; ``ValueError`` if ``now`` is in the past."""
        if now < self.now:
            raise ValueError(f"now is {now}; time is already at {self.now} and never runs backwards")
        passed = min(now - self.now, self.horizon)
        for instant in range(self.now, self.now + passed):
            slot = instant % self.horizon
            self.site.free[slot] = self._empty_instant.free[0]
            self.site.trunk[slot] = self._empty_instant.trunk[0]
            self.site.bundle[slot] = self._empty_instant.bundle[0]
            self.site.spent[slot] = 0
        self.now = now
        while self._ends and self._ends[0][0] <= now:
            self._active.discard(heapq.heappop(self._ends)[1])

    @property
    def racks(self) -> int:
        """The number of racks."""
        return int(self.site.pod.size)

    @property
    def pods(self) -> int:
        """The number of pods."""
        return int(self.site.pod.max()) + 1

    def free(self, resource: str) -> Floats:
        """Return the free amounts (horizon, servers) from now on.

        ``resource`` is cpu, memory, disk_write, disk_read, up or down.
        """
        names = (*RESOURCES, "up", "down")
        if resource not in names:
            raise ValueError(f"resource is {resource!r}; choose one of {', '.join(names)}")
        which = names.index(resource)
        units = self.site.free[self._slots(), :, : self.servers].astype(np.float64)
        if which >= 4:
            return self.band.amount(units[:, which, :, None])[..., 0]
        return self.quanta.amount(np.moveaxis(units[:, :4], 1, 2))[..., which]

    def set_aside(self, amounts: npt.ArrayLike) -> None:
        """Keep amounts of each server free of jobs at all instants; this replaces the previous amounts.

        ``amounts`` (servers, 6) are the four resources, and bandwidth up and down. An amount above the
        server's capacity leaves nothing for jobs. Jobs that were admitted before keep their reservations.
        """
        wanted = _checked_amounts("amounts", amounts, (self.servers, 6))
        units = np.concatenate([self.quanta.up(wanted[:, :4]), self.band.up(wanted[:, 4:])], axis=1).T
        units = np.minimum(units, self._has[:, : self.servers]).astype(np.float32)
        whole = self._empty_instant.free[0, :, : self.servers]
        # Differences of whole numbers are exact.
        more = whole - (self._has[:, : self.servers] - units).astype(np.float32)
        if more.any():
            self.site.free[:, :, : self.servers] -= more
            whole -= more

    def set_links_aside(self, amounts: npt.ArrayLike) -> None:
        """Keep bandwidth of the links of racks and pods free of jobs at all instants, in a tree.

        ``amounts`` (2 racks + 2 pods,) are in the order racks up, racks down, pods up, pods down; they
        replace the previous amounts. An amount above a link's capacity leaves nothing for jobs.

        Raises:
            ValueError: there are several planes, so that a rack has several links.
        """
        if self.site.planes.max() > 1:
            raise ValueError("planes are several: links can be set aside only in a tree")
        wanted = _checked_amounts("amounts", amounts, self._bundles.shape)
        most = float(self._bundles.max())
        units = np.minimum(self.band.up(wanted[:, None], most)[:, 0], self._bundles).astype(np.int64)
        more = self._empty_instant.trunk[0] - (self._bundles - units)
        if more.any():
            for arrays in (self.site, self._empty_instant):
                # A rack's only link is its bundle.
                arrays.trunk[:] -= more
                arrays.bundle[:] -= more

    def link_peak(self) -> Floats:
        """Return (2 racks + 2 pods,): the most that jobs reserve of each link at any instant from now on.

        The order is that of ``set_links_aside``.
        """
        held = (self._empty_instant.bundle - self.site.bundle).max(axis=0).astype(np.float64)
        return self.band.amount(held[:, None])[:, 0]

    def peak(self) -> Floats:
        """Return (servers, 6): the most that jobs reserve together at any instant from now on."""
        held = (
            (self._empty_instant.free - self.site.free)[:, :, : self.servers].max(axis=0).T.astype(np.float64)
        )
        return np.concatenate([self.quanta.amount(held[:, :4]), self.band.amount(held[:, 4:])], axis=1)

    def utilisation(self, instants: int = 1, after: int = 0) -> Floats:
        """Return (5,) the fraction in use over instants ``after`` now: four resources, and all bandwidth."""
        slots = self._slots()[after : after + instants]
        return np.asarray(self.site.spent[slots].mean(axis=0) / self.totals)

    def is_empty(self) -> bool:
        """Return True if no job has any reservation."""
        return (
            bool((self.site.free == self._empty_instant.free).all())
            and bool((self.site.trunk == self._empty_instant.trunk).all())
            and bool((self.site.bundle == self._empty_instant.bundle).all())
            and not self.site.spent.any()
        )

    def link(self, link: int) -> Link:
        """Return a link by its number among all links: places up, places down, racks, pods."""
        places, (planes, cores) = self.site.rack.size, self.site.planes.tolist()
        if link < 2 * places:
            number = link % places
            kind = "server" if number < self.servers else "service"
            return Link(kind, number, self.place_name(number), "up" if link < places else "down")
        link -= 2 * places
        kind, groups, per_group = "rack", self.racks, planes
        if link >= 2 * groups * per_group:
            link -= 2 * groups * per_group
            kind, groups, per_group = "pod", self.pods, planes * cores
        number, plane = divmod(link % (groups * per_group), per_group)
        direction = "up" if link < groups * per_group else "down"
        return Link(kind, number, f"{kind} {number}", direction, plane if per_group > 1 else None)

    def place_name(self, place: int) -> str:
        """Return the name of a server, or of a machine of a service."""
        if place < self.servers:
            return f"server {place}"
        name = next(name for name, (low, high) in self.services.items() if low <= place < high)
        return f"{name}[{place - self.services[name][0]}]"

    def scratch(self, load: JobArrays) -> Scratch:
        """Return scratch memory for the kernels, large enough for any task of the job, and keep it."""
        if self._scratch is None or not has_room(self._scratch, load):
            self._scratch = new_scratch(self.site, load)
        return self._scratch

    def rises(self) -> Ints:
        """Return the instants, counted from now and from 1 on, at which a free amount is larger than before.

        Only then may a job fit that does not fit earlier.
        """
        slots = self._slots()
        rising = np.zeros(self.horizon - 1, np.bool_)
        for free in (self.site.free.reshape(self.horizon, -1), self.site.trunk):
            for low in range(0, self.horizon - 1, _RISE_ROWS):
                rows = free[slots[low : low + _RISE_ROWS + 1]]
                rising[low : low + _RISE_ROWS] |= (rows[1:] > rows[:-1]).any(axis=1)
        return np.flatnonzero(rising) + 1

    def _slots(self) -> Ints:
        return np.arange(self.now, self.now + self.horizon) % self.horizon

    def _register(self, end: int) -> int:
        """Return a number for a new reservation, which is live until instant ``end`` or until its release."""
        self._booked += 1
        self._active.add(self._booked)
        heapq.heappush(self._ends, (end, self._booked))
        return self._booked

    def _build(
        self,
        has: Floats,
        links: Floats,
        trunks: tuple[Floats, Floats],
        racks: Ints,
        pods: Ints,
        planes: tuple[int, int],
    ) -> None:
        """Create the reservations of an empty data centre, and those of a single instant without jobs."""
        rows = np.empty((6, racks.size))
        rows[:4] = self.quanta.down(has).T
        rows[4] = rows[5] = self.band.down(links)
        # All servers together cannot send more than this, and it stays an exact whole number.
        rack_units, pod_units = (np.minimum(self.band.down(amounts), TRUNK_UNITS_MAX) for amounts in trunks)
        first, cores = planes
        # Of each kind, all links up come before all links down.
        trunk = np.concatenate(
            [np.tile(np.repeat(rack_units, first), 2), np.tile(np.repeat(pod_units, first * cores), 2)]
        ).astype(np.int64)
        bundle = np.concatenate(
            [np.tile(rack_units * first, 2), np.tile(pod_units * first * cores, 2)]
        ).astype(np.int64)
        inverse = np.divide(1.0, rows, out=np.zeros_like(rows), where=rows > 0.0)

        def arrays(instants: int) -> DatacenterArrays:
            return DatacenterArrays(
                free=np.tile(rows.astype(np.float32), (instants, 1, 1)),
                scale=inverse.astype(np.float32),
                trunk=np.tile(trunk, (instants, 1)),
                bundle=np.tile(bundle, (instants, 1)),
                bundle_scale=1.0 / np.maximum(bundle, 1),
                spent=np.zeros((instants, 5), np.int64),
                rack=racks,
                pod=pods,
                planes=np.array(planes, np.int64),
            )

        self.site = arrays(self.horizon)
        self._empty_instant = arrays(1)
        self._has = rows
        """(6, places) capacities, in units."""
        self._bundles = bundle
        """(2 R + 2 P,) capacities of the links of racks and pods, in units."""
        self.smallest = rows[:4, : self.servers].min(axis=1)
        """(4,) the least capacity of any server, in units."""
        self.totals = np.maximum(np.append(rows[:4].sum(axis=1), rows[4:].sum() + trunk.sum()), 1.0)
        """(5,) the total capacity of each resource, in units."""


def _service_spans(servers: int, services: Mapping[str, Sequence[Spot]]) -> dict[str, tuple[int, int]]:
    spans: dict[str, tuple[int, int]] = {}
    for name, spots in services.items():
        if not spots:
            raise ValueError(f"services[{name}] is empty; list the machines that offer it")
        spans[name] = (servers, servers + len(spots))
        servers += len(spots)
    return spans


def _checked_places(name: str, given: npt.ArrayLike, bound: int | None) -> Ints:
    """Return ``given`` as whole numbers from 0, and below ``bound`` unless it is None."""
    places = np.asarray(given)
    if places.ndim != 1 or places.dtype.kind not in "iu" or not 1 <= places.size <= PACKER_SERVERS_MAX:
        raise ValueError(f"{name} must be a list of 1 to {PACKER_SERVERS_MAX} whole numbers")
    highest = PACKER_SERVERS_MAX if bound is None else bound - 1
    good = (places >= 0) & (places <= highest)
    if not good.all():
        at = int(np.argmin(good))
        raise ValueError(f"{name}[{at}] is {places[at]}; it must be from 0 to {highest}")
    return places.astype(np.int64)


def _checked_amounts(name: str, given: npt.ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Return amounts broadcast to ``shape``; they must be finite and not negative."""
    try:
        amounts = np.asarray(given, np.float64)
        spread = np.broadcast_to(amounts, shape)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number or an array of the shape {shape}") from None
    good = (amounts >= 0.0) & (amounts <= PACKER_AMOUNT_MAX)
    if not good.all():
        place = np.unravel_index(int(np.argmin(good)), amounts.shape)
        index = f"[{', '.join(str(int(at)) for at in place)}]" if place else ""
        raise ValueError(f"{name}{index} is {amounts[place]}; it must be from 0 to {PACKER_AMOUNT_MAX:g}")
    return spread
