"""Jobs with demands over time, admitted as a whole next to the flow network (Packer paper, III).

``dios.packer.allocate`` finds the places.

The resources of tasks in the flow network are reserved in Packer's data centre at all instants, because the
end of these tasks is unknown. The largest amount that Packer has promised of a machine at any future instant
is withheld from the flow network. So neither of them uses the resources of the other.
"""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dios.errors import InvalidError, LimitError, NotPermittedError
from dios.firmament.cluster.columns import ABSENT, Floats
from dios.firmament.descriptors import Resources
from dios.firmament.policies.packed_jobs import (
    POLICY,
    Booking,
    Machine,
    Network,
    booking_of,
    placed,
    site_of,
    starting_later,
    units_of,
)
from dios.firmament.policies.stored_shares import StoredJob
from dios.firmament.scheduler import FlowScheduler
from dios.limits import (
    GUARANTEES_MAX,
    PACKED_INSTANT_S,
    PACKED_JOBS_BYTES_MAX,
    PACKED_JOBS_MAX,
    PACKED_LEASE_S,
    PACKED_WAIT_S_MAX,
)
from dios.packer import Datacenter, JobError, Link, Placement, Refusal, TiMra, allocate


@dataclass(frozen=True, slots=True)
class RunningMember:
    """A running task that is a member of an admitted job."""

    task: int
    node: str


@dataclass
class AdmittedJob:
    """A job that was admitted and has its places."""

    number: int
    principal: str
    booking: Booking
    renewed: float
    """The last time at which its user renewed it or one of its tasks ran, in the scheduler's clock."""
    running: dict[str, RunningMember] = field(default_factory=dict)
    """By member."""
    placement: Placement | None = None
    """Its allocation in Packer's data centre; None for a job without an end, which is only reserved."""


class AdmittedJobs:
    """The admitted jobs of one cluster, and Packer's data centre.

    Args:
        scheduler: shares its machines with these jobs.
        wall: seconds since 1970 at time 0 of the scheduler's clock.
    """

    def __init__(self, scheduler: FlowScheduler, *, wall: float) -> None:
        self._scheduler = scheduler
        self._wall = wall
        self.jobs: dict[int, AdmittedJob] = {}
        self.problems: dict[int, str] = {}
        """Jobs that hold less than they were promised, and the reasons."""
        self._machines: tuple[Machine, ...] = ()
        self._datacenter: Datacenter | None = None
        self._network = Network(())
        self._drawn: tuple[int, int] | None = None
        """The version and the instant for which ``_promised`` was computed."""
        self._promised: Floats = np.zeros((0, 6))
        """The withheld amounts by machine, in Packer's units."""
        self._version = 0
        self._gone: deque[int] = deque(maxlen=4 * PACKED_JOBS_MAX)
        """Jobs that were released: late messages of others must not bring them back."""
        self.over: deque[int] = deque(maxlen=4 * PACKED_JOBS_MAX)
        """Jobs whose time is over: a task of theirs that begins late is stopped, too."""
        self._owners: set[str] = set()
        self.changed = False
        """True if a job came or went, or begins earlier, since the last storing."""
        self._freed = False
        """True if there may be more room than when the starts of waiting jobs were chosen."""
        self._taken = 0.0
        """The sum of the parts of machines that tasks of the flow network held at the last update."""

    # Admission ------------------------------------------------------------------------------------------

    def check(self, text: str, machines: Iterable[Machine], now: float, wait_s: float = 0.0) -> Booking:
        """Return the places that a job would get, by its description in TOML. Nothing is held.

        A job that may wait for ``wait_s`` begins within this time, as early as it has places.

        Raises:
            InvalidError: the description is invalid. NotPermittedError: there is no place for the whole job;
            the message names the short resource and the time.
            LimitError: too many jobs are admitted, or too many edges guaranteed.
        """
        there = tuple(machines)
        if there != self._machines:
            self._rebuild(there, now)
        try:
            # A text of one line would be interpreted as the name of a file.
            job = TiMra.from_toml(f"{text}\n")
            booking = booking_of(job, self._wall + now, self._names())
        except JobError as error:
            raise InvalidError(str(error)) from None
        if wait_s and booking.endless:
            raise InvalidError(
                "a job without instants cannot wait: it would hold its places from its start on for ever. "
                "Give its description `instants`."
            )
        wait = int(min(wait_s, PACKED_WAIT_S_MAX) / PACKED_INSTANT_S)
        booked = placed(booking, self._room(now, endless=booking.endless), self._names(), wait)
        if isinstance(booked, Refusal):
            late = f". No start within {wait_s:g} s has room for all of it" if wait_s else ""
            raise NotPermittedError(f"{self._refusal_text(booked, booking)}{late}")
        self._check_bounds(booked)
        return booked

    def admit(self, principal: str, booking: Booking, now: float) -> AdmittedJob:
        """Admit a job with the places that ``check`` has found at the same time."""
        number = 1 + secrets.randbelow(2**62)
        admitted = AdmittedJob(number, principal, booking, now)
        self.jobs[number] = admitted
        self._hold(admitted)
        self._touched()
        self.update(now)
        return admitted

    def peak(self, booking: Booking) -> Resources:
        """Return the most that a job holds of all machines together at any of its instants."""
        return units_of(booking.job.demand.sum(axis=0).max(axis=0))

    def release(self, number: int, now: float) -> None:
        """Release a job and all that it holds."""
        admitted = self.jobs.pop(number)
        self._gone.append(number)
        if admitted.placement is not None and admitted.placement.end > self._instant(now):
            admitted.placement.release(self._instant(now))
        self.problems.pop(number, None)
        self._freed = True
        self._touched()
        self.update(now)

    def _check_bounds(self, booking: Booking) -> None:
        """Check that the job can be stored, and that nodes can enforce its guarantees."""
        kept = sum(job.booking.kept_bytes for job in self.jobs.values()) + booking.kept_bytes
        if len(self.jobs) >= PACKED_JOBS_MAX or kept > PACKED_JOBS_BYTES_MAX:
            raise LimitError(
                f"cannot admit the job: {len(self.jobs)} are admitted already. Try again when one has ended."
            )
        edges = Counter(booking.sources)
        for admitted in self.jobs.values():
            edges.update(admitted.booking.sources)
        node, most = max(edges.items(), key=lambda edge: edge[1], default=("", 0))
        if most > GUARANTEES_MAX:
            raise LimitError(
                f"cannot admit the job: there would be {most} edges from {node} to other nodes, and at most "
                f"{GUARANTEES_MAX} are guaranteed. Let fewer tasks send to each other."
            )

    def _refusal_text(self, refusal: Refusal, booking: Booking) -> str:
        """Return why a job has no place, with the names of nodes and times from its beginning."""
        after = max(0.0, refusal.instant * PACKED_INSTANT_S - booking.began)
        when = "" if booking.endless else f"{after:.0f} s after its beginning "
        text = refusal.text(when, self._owner_name(refusal.link) if refusal.link else "")
        return ". ".join(sentence for sentence in (text, self._blind(refusal.resource)) if sentence)

    def _owner_name(self, link: Link) -> str:
        if link.kind == "server":
            return self._machines[link.number].name
        names = self._network.racks if link.kind == "rack" else self._network.pods
        return f"{link.kind} {names[link.number] or 'without a name'}"

    def _blind(self, resource: str) -> str:
        """Return which capacities are unknown, if the job was refused for that."""
        setting = {"bandwidth": "link_rate", "disk_write": "store_rate", "disk_read": "store_rate"}
        if resource not in setting:
            return ""
        silent = [machine.name for machine in self._machines if not machine.heard]
        if silent:
            return f"The capacities of {_some(silent)} were not reported yet: try again in a moment"
        link = resource == "bandwidth"
        nothing = [machine.name for machine in self._machines if not (machine.link if link else machine.disk)]
        if not nothing:
            return ""
        return f"The capacities of {_some(nothing)} are unknown: give them the setting {setting[resource]}"

    # Time, and running members -----------------------------------------------------------------------------

    def seen(self, running: Mapping[int, Mapping[str, RunningMember]], now: float) -> bool:
        """Record the running members, by job and name; return True if they have changed."""
        news = False
        for number, admitted in self.jobs.items():
            members = dict(running.get(number, {}))
            news |= members != admitted.running
            admitted.running = members
            if members:
                admitted.renewed = now
        return news

    def wall_at(self, now: float) -> float:
        """Return a time of the scheduler's clock in seconds since 1970."""
        return self._wall + now

    def elapsed(self, admitted: AdmittedJob, now: float) -> float:
        """Return the age of a job in seconds; it is negative while the job waits for its start."""
        return self._wall + now - admitted.booking.began

    def waits_s(self, admitted: AdmittedJob, now: float) -> float:
        """Return the seconds until the promised start of a job; 0 if it has begun."""
        return max(0.0, -self.elapsed(admitted, now))

    def waiting(self, now: float) -> list[AdmittedJob]:
        """Return the jobs that have not begun, in the order of their admission."""
        return [admitted for admitted in self.jobs.values() if self.waits_s(admitted, now)]

    def renew(self, number: int, now: float) -> None:
        """Record that the user of a job still wants it."""
        self.jobs[number].renewed = now

    def overdue(self, now: float) -> list[RunningMember]:
        """Release jobs whose time is over or whose user is gone; return the members that have to stop."""
        late: list[RunningMember] = []
        for number, admitted in list(self.jobs.items()):
            over = self._wall + now >= admitted.booking.ends
            left = not admitted.running and now - admitted.renewed > PACKED_LEASE_S
            if over:
                late += admitted.running.values()
                self.over.append(number)
            if over or left:
                self.release(number, now)
        return late

    def update(self, now: float) -> None:
        """Update the amounts withheld from each machine and those held by principals."""
        if self._datacenter is None:
            return
        drawn = self._version, self._instant(now)
        if drawn != self._drawn:
            self._drawn = drawn
            self._datacenter.advance(drawn[1])
            self._start_earlier(now)
            self._promised = self._datacenter.peak() + self._endless()[0]
            self._tell_holdings()
        for machine, row in zip(self._machines, self._promised, strict=True):
            # A machine that has joined again does not know the withheld amounts.
            if self._scheduler.state.machine_row(machine.node) != ABSENT:
                self._scheduler.withhold(machine.node, units_of(row))

    def _start_earlier(self, now: float) -> None:
        """Begin waiting jobs earlier if room has come, in the order of their admission; none begins later."""
        taken = self._taken_part()
        freed, self._freed, self._taken = self._freed or taken < self._taken, False, taken
        waiting = self.waiting(now) if freed else []
        if not waiting:
            return
        for admitted in waiting:
            books = self._room(now, endless=False)
            after = admitted.booking.began_instant - books.now
            if admitted.placement is not None:
                admitted.placement.release()
                earliest = starting_later(admitted.booking, books, self._names(), after - 1)
            else:
                earliest = starting_later(admitted.booking, books, self._names(), books.horizon)
            if earliest is None:
                # A node that takes no tasks at the moment must not cost the job its promise.
                books.set_aside(0.0)
                books.set_links_aside(0.0)
                self._hold(admitted, at=now)
            else:
                admitted.placement, admitted.booking = earliest
                self.problems.pop(admitted.number, None)
                self.changed = True

    def _taken_part(self) -> float:
        """Return the sum of the parts of all machines that tasks of the flow network hold."""
        state, sum_of = self._scheduler.state, 0.0
        for machine in self._machines:
            row = state.machine_row(machine.node)
            if row != ABSENT:
                taken = state.resources.reserved[row] - state.resources.withheld[row]
                whole = np.array((machine.cpus, machine.memory))
                sum_of += float((taken[:2] / np.maximum(whole, 1.0)).sum())
        return sum_of

    def _tell_holdings(self) -> None:
        """Count the resources of jobs as held by their principals."""
        held: dict[str, Floats] = {owner: np.zeros(len(Resources._fields)) for owner in self._owners}
        for admitted in self.jobs.values():
            sum_of = held.setdefault(admitted.principal, np.zeros(len(Resources._fields)))
            sum_of += np.array(self.peak(admitted.booking))
        for principal, amount in held.items():
            self._scheduler.promise(principal, 0, Resources(*amount.tolist()))
        self._owners = {admitted.principal for admitted in self.jobs.values()}

    def machines_are(self, machines: Iterable[Machine], now: float) -> None:
        """Use the present machines; jobs hold their places on these."""
        there = tuple(machines)
        if self.jobs and [machine.node for machine in there] != [machine.node for machine in self._machines]:
            self._rebuild(there, now)

    # Storing ------------------------------------------------------------------------------------------------

    def to_stored(self) -> tuple[StoredJob, ...]:
        """Return the jobs in their stored form."""
        return tuple(
            StoredJob(
                admitted.number,
                admitted.principal,
                admitted.booking.packed,
                admitted.booking.began,
                tuple(admitted.booking.places.items()),
            )
            for admitted in self.jobs.values()
        )

    def take_over(self, kept: Iterable[StoredJob], now: float) -> None:
        """Add jobs that another coordinator has admitted, except those that are over.

        Raises:
            InvalidError: a stored job is invalid.
        """
        for row in kept:
            if row.number in self.jobs or row.number in self._gone:
                continue
            booking = Booking.unpacked(row.packed, row.began, dict(row.places))
            if self._wall + now < booking.ends:
                self.jobs[row.number] = AdmittedJob(row.number, row.principal, booking, now)
                # Their machines may not be known yet.
                self._machines, self._datacenter = (), None
        self._version += 1

    # Packer's data centre -----------------------------------------------------------------------------------

    def _books(self) -> Datacenter:
        if self._datacenter is None:
            raise NotPermittedError("no node of the cluster takes tasks now. `dios node ls` shows the nodes.")
        return self._datacenter

    def _instant(self, now: float) -> int:
        return int((self._wall + now) // PACKED_INSTANT_S)

    def _names(self) -> dict[str, int]:
        return {machine.name: number for number, machine in enumerate(self._machines)}

    def _touched(self) -> None:
        self._version += 1
        self.changed = True

    def _rebuild(self, machines: tuple[Machine, ...], now: float) -> None:
        """Make a new data centre of the present machines, with all jobs in their places."""
        self._machines = machines
        self._network = Network(machines)
        self._datacenter = site_of(machines, self._instant(now)) if machines else None
        self._version += 1
        self.problems.clear()
        if self._datacenter is None:
            return
        for admitted in self.jobs.values():
            if not self.waits_s(admitted, now):
                self._hold(admitted, at=now)
        for admitted in self.waiting(now):
            self._hold_waiting(admitted, now)

    def _hold_waiting(self, admitted: AdmittedJob, now: float) -> None:
        """Hold a job that has not begun at its promised start, or else at the next one with room."""
        books, names, promised = self._books(), self._names(), admitted.booking.began
        if all(node in names for node in admitted.booking.places.values()):
            self._hold(admitted, at=now)
            if admitted.placement is not None:
                return
        earliest = starting_later(admitted.booking, books, names, books.horizon)
        if earliest is None:
            self.problems[admitted.number] = (
                f"{admitted.booking.job.name}: it has no start, because nodes have left or changed"
            )
            return
        admitted.placement, admitted.booking = earliest
        self.changed = True
        late = admitted.booking.began - promised
        self.problems.pop(admitted.number, None)
        if late > 0.0:
            self.problems[admitted.number] = (
                f"{admitted.booking.job.name}: its start is {late:.0f} s later than promised, because nodes "
                "have left or changed"
            )

    def _hold(self, admitted: AdmittedJob, *, at: float | None = None) -> None:
        """Allocate a job in the data centre; members on missing machines are left out."""
        admitted.placement = None
        booking = admitted.booking
        if booking.endless:
            return
        names = self._names()
        pinned = {member: names[node] for member, node in booking.places.items() if node in names}
        elapsed = 0.0 if at is None else max(0.0, self._wall + at - booking.began)
        rest = booking.rest(elapsed, set(pinned))
        if rest is None:
            return
        books = self._books()
        after = max(0, booking.began_instant - books.now)
        outcome = allocate(books, rest, policy=POLICY, pinned=pinned, after=after)
        if isinstance(outcome, Placement):
            admitted.placement = outcome
        else:
            self.problems[admitted.number] = self._refusal_text(outcome, booking)

    def _endless(self) -> tuple[Floats, Floats]:
        """Return the amounts that jobs without an end hold, in Packer's units.

        They are (machines, 6), and those of the links of racks and pods.
        """
        names = self._names()
        held, links = np.zeros((len(self._machines), 6)), np.zeros(self._network.links)
        for admitted in self.jobs.values():
            if admitted.booking.endless:
                admitted.booking.add_to(held, links, names, self._network)
        return held, links

    def _room(self, now: float, *, endless: bool) -> Datacenter:
        """Return the data centre with the flow network's tasks; at its peak for a job without an end."""
        books = self._books()
        books.advance(self._instant(now))
        state = self._scheduler.state
        amounts, links = self._endless()
        runs = np.zeros(len(self._machines))
        for number, machine in enumerate(self._machines):
            row = state.machine_row(machine.node)
            if row == ABSENT or not state.resources.usable[row]:
                amounts[number] = machine.all_of_it()
                continue
            taken = state.resources.reserved[row] - state.resources.withheld[row]
            wanted = machine.taken(Resources(*np.maximum(taken, 0.0).tolist()))
            amounts[number] += wanted
            runs[number] = wanted[4]
        # The other ends of these runs are unknown: they may be in other racks and pods.
        links += self._network.through(runs, runs)
        books.set_aside(amounts)
        books.set_links_aside(links)
        if not endless:
            return books
        worst = site_of(self._machines, books.now, 1)
        worst.set_aside(amounts + books.peak())
        worst.set_links_aside(links + books.link_peak())
        return worst


def _some(nodes: Sequence[str]) -> str:
    return ", ".join(nodes[:5]) + (", ..." if len(nodes) > 5 else "")
