"""Jobs over time at the coordinator: who asks for them, who runs of them, what nodes guarantee to them.

For: ``coordinator.office`` and the desk (`dios run JOB.toml`, `dios pack`). Not for: admitting, which is
``policies.packing``'s, nor for keeping to rates, which is the nodes' daemons'.

The question is ``{"ask": "pack", "do": "admit", "job": DESCRIPTION}``, where the description is TOML,
compressed by zlib, in base64; ``check`` takes the same, ``renew`` and ``release`` a ``number``, and ``list``
nothing.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from dios.errors import InvalidError, NotPermittedError
from dios.firmament.coordinator.assignment import SetUp
from dios.firmament.coordinator.cluster_state import Books, Entry, Phase
from dios.firmament.coordinator.rate_control import RateControl
from dios.firmament.policies.ledger import Ledger, Rule
from dios.firmament.policies.packed_jobs import MBIT, MIB, Booking, Machine
from dios.firmament.policies.packing import Admitted, Packing, Runner
from dios.limits import GUARANTEE_STEPS_MAX, PACKED_LEASE_S, PACKED_TEXT_BYTES_MAX
from dios.packer import Edge
from dios.wire.messages import Asked, Guarantee
from dios.wire.types import Traffic


class _Question(msgspec.Struct):
    do: str
    job: str = ""
    number: int = 0


class Promise(NamedTuple):
    """What one edge of a job has been promised, and between which nodes."""

    source: str
    target: str
    guarantee: Guarantee

    @property
    def bytes_s(self) -> int:
        """What it is now."""
        return self.guarantee.steps[0][1] if self.guarantee.steps[0][0] == 0 else 0


class Admissions:
    """The jobs over time of one coordinator."""

    def __init__(
        self, books: Books, packing: Packing, ledger: Ledger, rates: RateControl, set_up: str
    ) -> None:
        self._books = books
        self._packing = packing
        self._ledger = ledger
        self._rates = rates
        self._set_up = set_up
        self._unkept: list[int] = []
        """Jobs that were admitted and are not stored yet."""

    # Each round -----------------------------------------------------------------------------------------

    def look(self, now: float) -> tuple[bool, list[Runner]]:
        """Take in who runs; whether guarantees have changed by that, and who has to stop."""
        packing = self._packing
        if not (packing.jobs or packing.over):
            return False, []
        packing.machines_are(self._machines(), now)
        late: list[Runner] = []
        running: dict[int, dict[str, Runner]] = {}
        for task, entry in self._books.tasks.items():
            work = entry.row.work
            if not work.reservation or entry.phase is not Phase.RUNNING:
                continue
            job = packing.jobs.get(work.reservation)
            if job is not None and entry.row.principal == job.principal:
                running.setdefault(work.reservation, {})[work.member] = Runner(task, entry.host)
            elif job is None and work.reservation in packing.over:
                late.append(Runner(task, entry.host))
        news = packing.seen(running, now)
        late += packing.overdue(now)
        packing.update(now)
        return news or bool(late), late

    def promises(self, now: float, span_s: float) -> list[Promise]:
        """What edges between nodes may send at least, now and in the next ``span_s`` seconds."""
        found: list[Promise] = []
        for job in self._packing.jobs.values():
            weight = round(job.booking.job.weight * 1000)
            for at, edge in enumerate(job.booking.job.edges):
                ends = self._ends(job, edge)
                if ends is None or ends[0].node == ends[1].node:
                    continue
                source, target = ends
                steps = _steps(job.booking, at, self._packing.elapsed(job, now), span_s)
                if any(bytes_s for _, bytes_s in steps):
                    told = Guarantee(job.principal, source.task, target.task, weight, steps)
                    found.append(Promise(source.node, target.node, told))
        return found

    def _ends(self, job: Admitted, edge: Edge) -> tuple[Runner, Runner] | None:
        """Who sends and who is sent to; None while one of them does not run, or neither is a task."""
        found = []
        for node in (edge.source, edge.target):
            if node in job.running:
                found.append(job.running[node])
            elif job.booking.is_service(node):
                found.append(Runner(0, job.booking.places[node]))
            else:
                return None
        return (found[0], found[1]) if found[0].task or found[1].task else None

    def explained(self, entry: Entry) -> str:
        """Why a member of a job is where it is; empty for any other task."""
        work = entry.row.work
        job = self._packing.jobs.get(work.reservation)
        if job is None or entry.row.principal != job.principal:
            return ""
        return (
            f"it is {work.member} of the job {job.booking.job.name}, which was admitted as a whole: Packer "
            f"chose {job.booking.places.get(work.member, 'no place')} for it; `dios pack ls` shows the job"
        )

    def unkept(self, now: float) -> bool:
        """What was admitted last could not be stored, and is so no longer; whether there was any."""
        lost = [number for number in self._unkept if number in self._packing.jobs]
        for number in lost:
            self._packing.release(number, now)
        self._unkept.clear()
        return bool(lost)

    def kept(self) -> None:
        """All jobs are stored."""
        self._unkept.clear()
        self._packing.changed = False

    # The desk -------------------------------------------------------------------------------------------

    def answer(self, asked: Asked, question: dict[str, object], now: float) -> dict[str, object]:
        """One question."""
        try:
            told = msgspec.convert(question, type=_Question)
        except msgspec.ValidationError as error:
            raise InvalidError(f"a question about jobs that makes no sense: {error}") from None
        if self._set_up != SetUp.CENTRALISED:
            raise NotPermittedError(
                f"jobs over time need one coordinator for all nodes: scheduling is {self._set_up!r} here"
            )
        if told.do in {"admit", "check"}:
            return self._brought(asked, told, now)
        if told.do == "list":
            shown = [one for one in self._packing.jobs.values() if _may_see(asked, one)]
            return {"ok": True, "jobs": [self._row(one, now) for one in shown]}
        if told.do not in {"renew", "release"}:
            raise InvalidError(f"no such question about jobs: {told.do!r}")
        admitted = self._packing.jobs.get(told.number)
        if admitted is None or not _may_see(asked, admitted):
            raise InvalidError("no such job is admitted here: its time is over, or it was released")
        if told.do == "renew":
            self._packing.renew(told.number, now)
        else:
            self._packing.release(told.number, now)
        return {"ok": True}

    def _brought(self, asked: Asked, told: _Question, now: float) -> dict[str, object]:
        text = _text(told.job)
        found = self._packing.check(text, self._machines(), now)
        self._check_terms(asked.principal, found, now)
        answer: dict[str, object] = {"ok": True}
        if told.do == "admit":
            admitted = self._packing.admit(asked.principal, found, now)
            self._unkept.append(admitted.number)
            answer |= {"number": admitted.number, "lease_s": PACKED_LEASE_S}
        return answer | _described(found)

    def _check_terms(self, principal: str, booking: Booking, now: float) -> None:
        """Quotas hold; and while others wait nobody takes more than its right by such jobs."""
        state = self._books.scheduler.state
        state.now = max(state.now, now)
        tasks = sum(not booking.is_service(member) for member in booking.places)
        wanted = (tasks, *self._packing.peak(booking))
        waits = any(
            entry.phase is Phase.WAITING and entry.row.principal != principal
            for entry in self._books.tasks.values()
        )
        why = self._ledger.over(
            state, principal, wanted, rightful=waits and self._ledger.rule is not Rule.FIFO
        )
        if why:
            raise NotPermittedError(f"{booking.job.name!r} is not admitted: {why}")

    def _machines(self) -> tuple[Machine, ...]:
        """The nodes that take tasks, as Packer sees them."""
        able = self._rates.capacities()
        return tuple(
            Machine(
                board.node,
                name,
                board.rack,
                float(board.cpus),
                float(board.memory_bytes),
                float(able.get(name, (0, 0, 0))[Traffic.OUT]),
                float(able.get(name, (0, 0, 0))[Traffic.STORE]),
                name in able,
            )
            for name, board in sorted(self._books.nodes.items())
        )

    def _row(self, one: Admitted, now: float) -> dict[str, object]:
        """One job, for people."""
        elapsed = self._packing.elapsed(one, now)
        found = _described(one.booking)
        members = found.pop("members")
        assert isinstance(members, list)  # noqa: S101 - as made above
        for member in members:
            runner = one.running.get(member["member"])
            member["running"] = runner is not None
        return {
            "number": one.number,
            "principal": one.principal,
            **found,
            "age_s": elapsed,
            "problem": self._packing.problems.get(one.number, ""),
            "members": members,
            "edges": list(self._edges(one, elapsed)),
        }

    def _edges(self, one: Admitted, elapsed: float) -> Iterator[dict[str, object]]:
        """What is guaranteed to each edge now, and what goes for its ends; in bytes a second."""
        for at, edge in enumerate(one.booking.job.edges):
            ends = self._ends(one, edge)
            moves = 0.0
            if ends is not None:
                moves = sum(self._rates.moves(ends[0].node, end.task) for end in ends if end.task)
            steps = _steps(one.booking, at, elapsed, 0.0)
            yield {
                "from": edge.source,
                "to": edge.target,
                "node": one.booking.places[edge.source],
                "inside": one.booking.places[edge.source] == one.booking.places[edge.target],
                "guaranteed_bytes_s": steps[0][1] if steps else 0,
                "moving_bytes_s": moves,
            }


def _may_see(asked: Asked, admitted: Admitted) -> bool:
    return asked.ruler or asked.principal == admitted.principal


def _text(packed: str) -> str:
    try:
        unpacker = zlib.decompressobj()
        text = unpacker.decompress(base64.b64decode(packed, validate=True), PACKED_TEXT_BYTES_MAX)
        if unpacker.unconsumed_tail:
            raise InvalidError(f"a description of a job has at most {PACKED_TEXT_BYTES_MAX} bytes")
        if not unpacker.eof:
            raise InvalidError("a description of a job that cannot be read: it breaks off")
        return text.decode()
    except (binascii.Error, zlib.error, UnicodeDecodeError) as error:
        raise InvalidError(f"a description of a job that cannot be read: {error}") from None


def _described(booking: Booking) -> dict[str, object]:
    """A job with its places."""
    job = booking.job
    members = []
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
    return {"job": job.name, "length_s": length, "members": members}


def _steps(booking: Booking, edge: int, elapsed: float, span_s: float) -> tuple[tuple[int, int], ...]:
    """An edge's bandwidth from now on for so many seconds, where it changes."""
    job = booking.job
    flow = job.bandwidth[edge]
    if booking.endless:
        return ((0, int(flow[0] * MBIT)),)
    found: list[tuple[int, int]] = []
    first = max(0, int(elapsed / job.instant_s))
    for instant in range(first, job.instants + 1):
        in_s = max(0.0, instant * job.instant_s - elapsed)
        bytes_s = int(flow[instant] * MBIT) if instant < job.instants else 0
        if in_s > span_s or len(found) == GUARANTEE_STEPS_MAX:
            break
        if not found or found[-1][1] != bytes_s:
            found.append((round(in_s * 1000), bytes_s))
    return tuple(found)
