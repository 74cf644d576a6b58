"""Jobs over time in the coordinator: questions about them, the members that run, and guarantees (Packer).

Finding places and accounting for room are in ``policies.packing``.

A question is ``{"ask": "pack", "do": "admit", "job": DESCRIPTION}``, where the description is TOML,
compressed by zlib, in base64. ``check`` takes the same, ``renew`` and ``release`` take a ``number``, and
``list`` and ``timeline`` nothing. A job with ``wait_s`` may wait for this time. The answer to ``renew`` has
its places and its start, which may have become earlier.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Iterator
from typing import Annotated, Final, NamedTuple

import msgspec

from dios.errors import InvalidError, NotPermittedError
from dios.firmament.cluster.state import ClusterState
from dios.firmament.coordinator.answers import (
    AdmittedJobAnswer,
    AdmittedMemberAnswer,
    EdgeAnswer,
    PackTimelineAnswer,
    PlacedJobAnswer,
    PlacedMemberAnswer,
    TimelineEdgeAnswer,
    TimelineJobAnswer,
    TimelineMemberAnswer,
)
from dios.firmament.coordinator.assignment import SetUp
from dios.firmament.coordinator.cluster_state import Phase, TrackedCluster, TrackedTask
from dios.firmament.coordinator.rate_control import RateControl
from dios.firmament.policies.packed_jobs import MB, MBIT, MIB, Booking, Machine
from dios.firmament.policies.packing import AdmittedJob, AdmittedJobs, RunningMember
from dios.firmament.policies.principal_accounts import FairnessRule, PrincipalAccounts
from dios.limits import GUARANTEE_STEPS_MAX, PACKED_LEASE_S, PACKED_TEXT_BYTES_MAX, PACKED_WAIT_S_MAX
from dios.packer import Edge
from dios.wire import node_labels
from dios.wire.fields import Identifier, Text
from dios.wire.messages import Asked, Guarantee, HeldPart
from dios.wire.schema_words import fault_in_words
from dios.wire.types import Traffic

_STEPS_MAX: Final = 4_000
"""The most changes of demands and guarantees in one answer."""
_PARTS_S: Final = 2.0
"""The time ahead that a part of a node covers: nodes receive new parts every second."""


class _JobQuestion(msgspec.Struct):
    do: Text
    job: Annotated[str, msgspec.Meta(max_length=PACKED_TEXT_BYTES_MAX)] = ""
    number: Identifier = 0
    wait_s: Annotated[float, msgspec.Meta(ge=0.0, le=PACKED_WAIT_S_MAX)] = 0.0


class EdgeGuarantee(NamedTuple):
    """The bandwidth that an edge of a job is guaranteed, and the nodes of its ends."""

    source: str
    target: str
    guarantee: Guarantee

    @property
    def bytes_s(self) -> int:
        """The guaranteed bandwidth at this time, in bytes per second."""
        return self.guarantee.steps[0][1] if self.guarantee.steps[0][0] == 0 else 0


class WaitingJob(NamedTuple):
    """A job that waits for its promised start, and the reason in lines of text."""

    name: str
    lines: list[str]


class Admissions:
    """The jobs over time of one coordinator."""

    def __init__(
        self,
        cluster: TrackedCluster,
        state: ClusterState,
        jobs: AdmittedJobs,
        accounts: PrincipalAccounts,
        rates: RateControl,
        set_up: str,
    ) -> None:
        self._cluster = cluster
        self._state = state
        self._jobs = jobs
        self._accounts = accounts
        self._rates = rates
        self._set_up = set_up
        self._unstored: list[int] = []
        """Jobs that were admitted and are not stored yet."""

    # Each round -----------------------------------------------------------------------------------------

    def update(self, now: float) -> tuple[bool, list[RunningMember]]:
        """Record which members run.

        Returns:
            True if guarantees have changed, and the members that have to stop.
        """
        jobs = self._jobs
        if not (jobs.jobs or jobs.over):
            return False, []
        jobs.machines_are(self._machines(), now)
        late: list[RunningMember] = []
        running: dict[int, dict[str, RunningMember]] = {}
        for task, tracked in self._cluster.tasks.items():
            work = tracked.row.work
            if not work.reservation or tracked.phase is not Phase.RUNNING:
                continue
            job = jobs.jobs.get(work.reservation)
            if job is not None and tracked.row.principal == job.principal:
                running.setdefault(work.reservation, {})[work.member] = RunningMember(task, tracked.host)
            elif job is None and work.reservation in jobs.over:
                late.append(RunningMember(task, tracked.host))
        changed = jobs.seen(running, now)
        late += jobs.overdue(now)
        jobs.update(now)
        return changed or bool(late), late

    def guarantees(self, now: float, span_s: float) -> list[EdgeGuarantee]:
        """Return the guarantees of edges between different nodes; they apply to the next ``span_s``
        seconds.
        """
        guarantees: list[EdgeGuarantee] = []
        for job in self._jobs.jobs.values():
            weight = round(job.booking.job.weight * 1000)
            for at, edge in enumerate(job.booking.job.edges):
                ends = self._ends(job, edge)
                if ends is None or ends[0].node == ends[1].node:
                    continue
                source, target = ends
                steps = _steps(job.booking, at, self._jobs.elapsed(job, now), span_s)
                if any(bytes_s for _, bytes_s in steps):
                    guarantee = Guarantee(job.principal, source.task, target.task, weight, steps)
                    guarantees.append(EdgeGuarantee(source.node, target.node, guarantee))
        return guarantees

    def parts(self, now: float) -> dict[str, list[HeldPart]]:
        """Return the parts of nodes to which the running members are held at present, by node.

        The demand of a member is the largest from now on until the nodes receive new parts.
        """
        parts: dict[str, list[HeldPart]] = {}
        for job in self._jobs.jobs.values():
            elapsed = self._jobs.elapsed(job, now)
            for at, node in enumerate(job.booking.job.nodes):
                member = job.running.get(node.name)
                if member is not None and not job.booking.is_service(node.name):
                    cpus, _, write, read = job.booking.demand_at(at, elapsed, _PARTS_S)
                    part = HeldPart(member.task, math.ceil(1000 * cpus), math.ceil((write + read) * MB))
                    if part.cpus_milli or part.disk_io:
                        parts.setdefault(member.node, []).append(part)
        return parts

    def _ends(self, job: AdmittedJob, edge: Edge) -> tuple[RunningMember, RunningMember] | None:
        """Return the sender and the receiver of an edge.

        Return None if a task at one of its ends does not run, or if neither end is a task.
        """
        ends = []
        for node in (edge.source, edge.target):
            if node in job.running:
                ends.append(job.running[node])
            elif job.booking.is_service(node):
                ends.append(RunningMember(0, job.booking.places[node]))
            else:
                return None
        return (ends[0], ends[1]) if ends[0].task or ends[1].task else None

    def explain(self, tracked: TrackedTask) -> str:
        """Return why a member of a job is where it is; empty for any other task."""
        work = tracked.row.work
        job = self._jobs.jobs.get(work.reservation)
        if job is None or tracked.row.principal != job.principal:
            return ""
        return (
            f"it is {work.member} of the job {job.booking.job.name}, which was admitted as a whole: Packer "
            f"chose {job.booking.places.get(work.member, 'no place')} for it; `dios pack ls` shows the job"
        )

    def waiting_job(self, asked: Asked, word: str, now: float) -> WaitingJob | None:
        """Return the job that waits for its start and has this name or number, and why it waits.

        Raises:
            InvalidError: several jobs of this name wait.
        """
        waiting = self._jobs.waiting(now)
        matches = [
            (at, candidate)
            for at, candidate in enumerate(waiting)
            if _may_see(asked, candidate) and word in {candidate.booking.job.name, str(candidate.number)}
        ]
        if len(matches) > 1:
            some = ", ".join(str(candidate.number) for _, candidate in matches)
            raise InvalidError(
                f"{len(matches)} jobs that wait are called {word!r}. Name one by its number: {some}"
            )
        if not matches:
            return None
        (at, admitted) = matches[0]
        problem = self._jobs.problems.get(admitted.number)
        why = (
            f"{admitted.booking.job.name} waits for its start in {self._jobs.waits_s(admitted, now):.0f} "
            "s at the "
            "latest: that is the first time with room for all of its tasks next to what was promised before"
        )
        order = (
            f"{at} of the jobs that wait were admitted before it; their starts are never moved for it. It "
            "starts earlier if others end early"
        )
        lines = [why, order, *([problem] if problem else [])]
        return WaitingJob(admitted.booking.job.name, lines)

    def drop_unstored(self, now: float) -> bool:
        """Release the jobs that could not be stored; return True if there was any."""
        lost = [number for number in self._unstored if number in self._jobs.jobs]
        for number in lost:
            self._jobs.release(number, now)
        self._unstored.clear()
        return bool(lost)

    def mark_stored(self) -> None:
        """Record that all jobs are stored."""
        self._unstored.clear()
        self._jobs.changed = False

    # Questions ------------------------------------------------------------------------------------------

    def answer(self, asked: Asked, question: dict[str, object], now: float) -> dict[str, object]:
        """Return the answer to one question.

        Raises:
            InvalidError: the question or the description is invalid, or the job is unknown.
            NotPermittedError: the job has no place, or it exceeds its principal's share, or the set-up
                admits no jobs.
        """
        try:
            request = msgspec.convert(question, type=_JobQuestion)
        except msgspec.ValidationError as error:
            raise InvalidError(f"invalid question about jobs: {fault_in_words(error)}") from None
        if self._set_up != SetUp.CENTRALISED:
            raise NotPermittedError(
                "jobs over time need one coordinator for all nodes, and the setting `scheduling` is "
                f"{self._set_up!r} here. Set it to {SetUp.CENTRALISED.value!r} on all nodes."
            )
        if request.do in {"admit", "check"}:
            return self._check_or_admit(asked, request, now)
        if request.do == "list":
            shown = [admitted for admitted in self._jobs.jobs.values() if _may_see(asked, admitted)]
            return {"ok": True, "jobs": [self._row(admitted, now) for admitted in shown]}
        if request.do == "timeline":
            return {"ok": True, **self._timeline(asked, now)}
        if request.do not in {"renew", "release"}:
            raise InvalidError(f"unknown question about jobs: {request.do!r}")
        admitted = self._jobs.jobs.get(request.number)
        if admitted is None or not _may_see(asked, admitted):
            raise InvalidError("no such job is admitted here: its time is over, or it was released")
        if request.do == "release":
            self._jobs.release(request.number, now)
            return {"ok": True}
        self._jobs.renew(request.number, now)
        return {"ok": True, **self._description(admitted.booking, now)}

    def _check_or_admit(self, asked: Asked, request: _JobQuestion, now: float) -> dict[str, object]:
        text = _text(request.job)
        booking = self._jobs.check(text, self._machines(), now, request.wait_s)
        self._check_share(asked.principal, booking, now)
        answer: dict[str, object] = {"ok": True}
        if request.do == "admit":
            admitted = self._jobs.admit(asked.principal, booking, now)
            self._unstored.append(admitted.number)
            answer |= {"number": admitted.number, "lease_s": PACKED_LEASE_S}
        return {**answer, **self._description(booking, now)}

    def _check_share(self, principal: str, booking: Booking, now: float) -> None:
        """Raise NotPermittedError for a job over the quota, or over the entitlement while others wait."""
        state = self._state
        state.now = max(state.now, now)
        tasks = sum(not booking.is_service(member) for member in booking.places)
        wanted = (tasks, *self._jobs.peak(booking))
        others_wait = any(
            tracked.phase is Phase.WAITING and tracked.row.principal != principal
            for tracked in self._cluster.tasks.values()
        )
        reason = self._accounts.over(
            state,
            principal,
            wanted,
            rightful=others_wait and self._accounts.rule is not FairnessRule.FIFO,
        )
        if reason:
            raise NotPermittedError(f"cannot admit {booking.job.name!r}: {reason}")

    def _machines(self) -> tuple[Machine, ...]:
        """Return the nodes that take tasks, as Packer describes machines."""
        capacities = self._rates.capacities()
        machines = []
        for name, queue in sorted(self._cluster.nodes.items()):
            labels = dict(queue.labels)
            machine = Machine(
                queue.node,
                name,
                queue.rack,
                float(queue.cpus),
                float(queue.memory_bytes),
                float(capacities.get(name, (0, 0, 0))[Traffic.OUT]),
                float(capacities.get(name, (0, 0, 0))[Traffic.STORE]),
                name in capacities,
                node_labels.rate_of(labels, node_labels.RACK_LINK),
                labels.get(node_labels.POD, ""),
                node_labels.rate_of(labels, node_labels.POD_LINK),
            )
            machines.append(machine)
        return tuple(machines)

    def _row(self, admitted: AdmittedJob, now: float) -> AdmittedJobAnswer:
        """Return one job as JSON."""
        elapsed = max(0.0, self._jobs.elapsed(admitted, now))
        description = self._description(admitted.booking, now)
        members: list[AdmittedMemberAnswer] = [
            {**member, "running": admitted.running.get(member["member"]) is not None}
            for member in description["members"]
        ]
        return {
            "number": admitted.number,
            "principal": admitted.principal,
            "job": description["job"],
            "length_s": description["length_s"],
            "waits_s": description["waits_s"],
            "age_s": elapsed,
            "problem": self._jobs.problems.get(admitted.number, ""),
            "members": members,
            "edges": list(self._edges(admitted, elapsed)),
        }

    def _description(self, booking: Booking, now: float) -> PlacedJobAnswer:
        """Return a job and the places of its members, as JSON."""
        job = booking.job
        members: list[PlacedMemberAnswer] = []
        for at, node in enumerate(job.nodes):
            peak = job.demand[at].max(axis=0).tolist()
            members.append(
                {
                    "member": node.name,
                    "node": booking.places[node.name],
                    "service": node.service is not None,
                    "start_s": node.start * job.instant_s,
                    "end_s": None if booking.endless else (node.end or job.instants) * job.instant_s,
                    "cpus": peak[0],
                    "memory_bytes": math.ceil(peak[1] * MIB),
                }
            )
        length = None if booking.endless else job.instants * job.instant_s
        waits_s = max(0.0, booking.began - self._jobs.wall_at(now))
        return {"job": job.name, "length_s": length, "waits_s": waits_s, "members": members}

    def _timeline(self, asked: Asked, now: float) -> PackTimelineAnswer:
        """Return the demands and guarantees over time of the jobs that the asking user may see."""
        room = _STEPS_MAX
        jobs: list[TimelineJobAnswer] = []
        for admitted in self._jobs.jobs.values():
            if room > 0 and _may_see(asked, admitted):
                jobs.append(self._course(admitted, self._jobs.elapsed(admitted, now), room))
                room -= sum(len(member["steps"]) for member in jobs[-1]["members"])
                room -= sum(len(edge["steps"]) for edge in jobs[-1]["edges"])
        return {
            "now_s": self._jobs.wall_at(now),
            "ruler": asked.ruler,
            "cut": room <= 0,
            "nodes": [
                {"node": machine.name, "cpus": machine.cpus, "memory_bytes": int(machine.memory)}
                for machine in self._machines()
            ],
            "jobs": jobs,
        }

    def _course(self, admitted: AdmittedJob, elapsed: float, room: int) -> TimelineJobAnswer:
        """Return one job with at most about ``room`` changes of its demands and guarantees."""
        booking, job = admitted.booking, admitted.booking.job
        moving = [edge["moving_bytes_s"] for edge in self._edges(admitted, elapsed)]
        most_steps = max(2, room // max(1, len(job.nodes) + len(job.edges)))
        members: list[TimelineMemberAnswer] = [
            {
                "member": node.name,
                "node": booking.places[node.name],
                "running": node.name in admitted.running,
                "steps": [
                    (when, cells[0], math.ceil(cells[1] * MIB))
                    for when, cells in _changes(booking, job.demand[at, :, :2].tolist(), most_steps)
                ],
            }
            for at, node in enumerate(job.nodes)
        ]
        edges: list[TimelineEdgeAnswer] = [
            {
                "from": edge.source,
                "to": edge.target,
                "source_node": booking.places[edge.source],
                "target_node": booking.places[edge.target],
                "moving_bytes_s": moving[at],
                "steps": [
                    (when, int(cells[0] * MBIT))
                    for when, cells in _changes(
                        booking, [[flow] for flow in job.bandwidth[at].tolist()], most_steps
                    )
                ],
            }
            for at, edge in enumerate(job.edges)
        ]
        return {
            "number": admitted.number,
            "principal": admitted.principal,
            "job": job.name,
            "began_s": booking.began,
            "ends_s": None if booking.endless else booking.ends,
            "problem": self._jobs.problems.get(admitted.number, ""),
            "members": members,
            "edges": edges,
        }

    def _edges(self, admitted: AdmittedJob, elapsed: float) -> Iterator[EdgeAnswer]:
        """Yield each edge as JSON: its present guarantee and its traffic, in bytes per second."""
        for at, edge in enumerate(admitted.booking.job.edges):
            ends = self._ends(admitted, edge)
            moves = 0.0
            if ends is not None:
                moves = sum(self._rates.sent_for(ends[0].node, end.task) for end in ends if end.task)
            steps = _steps(admitted.booking, at, elapsed, 0.0)
            yield {
                "from": edge.source,
                "to": edge.target,
                "node": admitted.booking.places[edge.source],
                "inside": admitted.booking.places[edge.source] == admitted.booking.places[edge.target],
                "guaranteed_bytes_s": steps[0][1] if steps else 0,
                "moving_bytes_s": moves,
            }


def _may_see(asked: Asked, admitted: AdmittedJob) -> bool:
    return asked.ruler or asked.principal == admitted.principal


def _text(packed: str) -> str:
    """Return a job's description, unpacked."""
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b64decode(packed, validate=True), PACKED_TEXT_BYTES_MAX)
        if unpacker.unconsumed_tail:
            raise InvalidError(
                f"the description of the job is too long: it may have at most {PACKED_TEXT_BYTES_MAX} bytes"
            )
        if not unpacker.eof:
            raise InvalidError("cannot read the description of the job: its end is missing")
        return text.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError) as error:
        raise InvalidError(f"cannot read the description of the job: {error}") from None


def _changes(booking: Booking, cells: list[list[float]], most: int) -> list[tuple[float, list[float]]]:
    """Return the first ``most`` changes of amounts by instant: (time since 1970, the amounts from then on).

    The last change of a job with an end is the one to 0.
    """
    changes: list[tuple[float, list[float]]] = []
    for instant, amounts in enumerate(cells):
        if not changes or changes[-1][1] != amounts:
            changes.append((booking.began + instant * booking.job.instant_s, amounts))
    if not booking.endless and any(changes[-1][1]):
        changes.append((booking.ends, [0.0] * len(cells[0])))
    return changes[:most]


def _steps(booking: Booking, edge: int, elapsed: float, span_s: float) -> tuple[tuple[int, int], ...]:
    """Return an edge's bandwidth for the next ``span_s`` seconds, as changes: (in ms from now, bytes/s)."""
    job = booking.job
    flow = job.bandwidth[edge]
    if booking.endless:
        return ((0, int(flow[0] * MBIT)),)
    steps: list[tuple[int, int]] = []
    first = max(0, int(elapsed / job.instant_s))
    for instant in range(first, job.instants + 1):
        in_s = max(0.0, instant * job.instant_s - elapsed)
        bytes_s = int(flow[instant] * MBIT) if instant < job.instants else 0
        if in_s > span_s or len(steps) == GUARANTEE_STEPS_MAX:
            break
        if not steps or steps[-1][1] != bytes_s:
            steps.append((round(in_s * 1000), bytes_s))
    return tuple(steps)
