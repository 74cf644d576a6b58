"""The needs of a task, questions to the scheduler, and the calls of a scheduler to nodes.

``dios.firmament`` schedules; ``dios.core.calls.scheduling_calls`` executes the calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from dios.client.ops.usage import UsageOps
from dios.client.session import Operation, expect
from dios.errors import InvalidError
from dios.limits import (
    DEVICE_KIND_CHARS_MAX,
    DEVICES_MAX,
    GRACE_MS_MAX,
    INLINE_BYTES_MAX,
    JOB_BOUND_MAX,
    RUN_TIME_MS_MAX,
)
from dios.wire import messages
from dios.wire.messages import Constraint, DeviceRequest, Near, Work
from dios.wire.types import Affinity, Operator

CLASSES = ("turtle", "sheep", "rabbit", "devil")
"""The effects of a task on its neighbours (§7.3.2), as values of ``interference``."""

AFFINITIES = {
    "spread-nodes": Affinity.SPREAD_NODES,
    "spread-racks": Affinity.SPREAD_RACKS,
    "same-node": Affinity.SAME_NODE,
    "same-rack": Affinity.SAME_RACK,
}


def work(
    *,
    cpus: float = 0.0,
    memory: int = 0,
    disk_io: int = 0,
    network: int = 0,
    priority: int = 0,
    deadline: float = 0.0,
    equivalence: str = "",
    interference: str = "sheep",
    service: bool = False,
    restartable: bool = False,
    job: int | str = 0,
    job_minimum: int = 0,
    job_maximum: int = 0,
    gang: tuple[int, int] | None = None,
    affinity: str = "",
    near: Iterable[Near] = (),
    constraints: Iterable[str] = (),
    pin: bool = False,
    best_effort: bool = False,
    grace: float = 0.0,
    devices: Mapping[str, int] | None = None,
    copy_of: str = "",
    time: float = 0.0,
) -> Work:
    """Return the needs of a task, for ``node.run(..., work=work(cpus=2))``; they are reserved while it runs.

    With ``pin`` it runs on ``cpus`` whole processors that no other pinned task has. With ``best_effort``
    nothing is reserved: it runs where the measured use leaves the resources, and yields to all others.
    A ``restartable`` task with a ``grace`` gets that number of seconds to save its state and leave
    (``dios.checkpointed``) when its place is taken or its node is drained.
    ``devices`` are numbers by kind, like ``{"gpu": 1}``: nobody else gets these while it runs.
    ``copy_of`` is the fingerprint of a running task that this one does again; the cost model late runs such a
    copy on a fast machine, and the caller uses the result of whichever ends first.
    After ``time`` seconds its node ends it, with the cause TIME; 0 for never. The scheduler expects it to end
    then.
    ``memory`` is in bytes, ``disk_io`` and ``network`` in bytes per second, ``deadline`` in seconds from now.
    With a ``gang`` of (k, n), at least k of the job's n tasks start together. ``job`` is any name or number
    that the tasks of a job share. At most ``job_maximum`` tasks of it run at once, 0 for all, and while fewer
    than ``job_minimum`` run, they come before other work (§6.3, F_j and E_j). ``constraints`` are texts
    like "gpu=yes", "zone!=a", "ssd", "!ssd"; a "?" before one makes it a preference. Raises InvalidError with
    the name of the field.
    """
    amounts = {"cpus": cpus, "memory": memory, "disk_io": disk_io, "network": network}
    for name, value in (amounts | {"priority": priority, "deadline": deadline}).items():
        if not 0 <= value < 2**53:
            raise InvalidError(f"{name} must be 0 or more, not {value}", call="run")
    if not 0 <= grace * 1000 <= GRACE_MS_MAX or (grace and not restartable):
        raise InvalidError(
            f"grace is from 0 to {GRACE_MS_MAX // 1000} seconds, of a restartable task; not {grace:g}",
            call="run",
        )
    if not 0 <= time * 1000 <= RUN_TIME_MS_MAX or 0 < time * 1000 < 1:
        raise InvalidError(
            f"time is from 0.001 to {RUN_TIME_MS_MAX // 1000} seconds, or 0 for no bound; not {time:g}",
            call="run",
        )
    k, n = gang or (0, 0)
    if gang is not None and not 1 <= k <= n:
        raise InvalidError(
            f"gang is (k, n) with 1 <= k <= n: k of n tasks start together; not {k}/{n}", call="run"
        )
    _check_bounds(job, job_minimum, job_maximum, k)
    if best_effort and job_minimum:
        raise InvalidError("best effort excludes a minimum of a job: nobody makes room for it", call="run")
    if pin and (cpus < 1 or cpus != int(cpus)):
        raise InvalidError(f"pin needs whole processors: cpus is {cpus:g}, not 1, 2 or more", call="run")
    if best_effort and (pin or gang is not None or devices):
        raise InvalidError(
            "best effort excludes pin, gang and devices: nothing is reserved for it", call="run"
        )
    if interference not in CLASSES:
        raise InvalidError(f"class is one of {', '.join(CLASSES)}, not {interference!r}", call="run")
    if affinity and affinity not in AFFINITIES:
        raise InvalidError(f"affinity is one of {', '.join(AFFINITIES)}, not {affinity!r}", call="run")
    return Work(
        cpus_milli=round(cpus * 1000),
        memory_bytes=int(memory),
        disk_io=int(disk_io),
        network=int(network),
        priority=int(priority),
        deadline_ms=round(deadline * 1000),
        equivalence=equivalence,
        interference=CLASSES.index(interference),
        service=service,
        restartable=restartable,
        job=job_number(job) if isinstance(job, str) else job,
        gang=k,
        tasks=n,
        affinity=AFFINITIES[affinity] if affinity else Affinity.NONE,
        near=tuple(near),
        constraints=tuple(map(constraint, constraints)),
        pinned=pin,
        best_effort=best_effort,
        grace_ms=round(grace * 1000),
        copy_of=copy_of,
        devices=tuple(_device(kind, count) for kind, count in sorted((devices or {}).items())),
        job_minimum=job_minimum,
        job_maximum=job_maximum,
        time_ms=round(time * 1000),
    )


def job_number(name: str) -> int:
    """Return the number that runs send for the name of a job; 0 for no name."""
    if not name:
        return 0
    digest = hashlib.blake2b(name.encode(), digest_size=8, person=b"dios job name 1").digest()
    return 1 + int.from_bytes(digest, "big") % 2**62


def _check_bounds(job: int | str, minimum: int, maximum: int, gang: int) -> None:
    """Raise InvalidError if the bounds of a job contradict each other; ``gang`` tasks start together."""
    for name, value in (("job_minimum", minimum), ("job_maximum", maximum)):
        if not 0 <= value <= JOB_BOUND_MAX:
            raise InvalidError(f"{name} must be from 0 to {JOB_BOUND_MAX}, not {value}", call="run")
    if (minimum or maximum) and not job:
        raise InvalidError("a minimum or maximum is of a job: give the runs of the job its name", call="run")
    if maximum and maximum < max(minimum, gang):
        raise InvalidError(
            f"a job cannot run at most {maximum} tasks and at least {max(minimum, gang)}", call="run"
        )


def _device(kind: str, count: int) -> DeviceRequest:
    if not 1 <= len(kind) <= DEVICE_KIND_CHARS_MAX or not 1 <= count <= DEVICES_MAX:
        raise InvalidError(
            f"devices are kinds like gpu with numbers from 1 to {DEVICES_MAX}, not {kind}={count}", call="run"
        )
    return DeviceRequest(kind, count)


def constraint(text: str) -> Constraint:
    """Return a constraint on labels: "key=value", "key!=value", "key" or "!key"; "?" before: preferred."""
    rest = text.removeprefix("?")
    unequal = "!=" in rest
    key, equals, value = rest.partition("!=" if unequal else "=")
    if equals:
        operator = Operator.UNEQUAL if unequal else Operator.EQUAL
    else:
        operator = Operator.ABSENT if key.startswith("!") else Operator.PRESENT
        key = key.removeprefix("!")
    if not key.strip():
        raise InvalidError(f"a constraint is like gpu=yes, zone!=a, ssd or !ssd, not {text!r}", call="run")
    return Constraint(key.strip(), operator, value.strip(), not text.startswith("?"))


class SchedulingOps(UsageOps):
    """The calls between tasks, nodes and schedulers."""

    def ask_scheduler_op(self, question: bytes) -> Operation[bytes]:
        """Ask the scheduler of this node; ``dios.firmament.coordinator.query_handler`` has the questions.

        Returns the answer as bytes.
        """
        return expect(messages.Advice, (yield messages.AskScheduler(question))).answer

    def board_op(
        self,
        host: str = "",
        *,
        since: int = 0,
        wait_ms: int = 0,
        attend: bool = False,
        own: bool = False,
        changes: bool = False,
        listed: int = 0,
        tasks_listed: int = 0,
    ) -> Operation[messages.QueueRows]:
        """Return the submissions and tasks of a node, once newer than ``since``; for its own user.

        With ``changes`` only the rows that changed after ``since``; ``listed`` and ``tasks_listed`` continue
        a partial answer.
        """
        call = messages.ReadQueue(host, since, wait_ms, attend, own, changes, listed, tasks_listed)
        return expect(messages.QueueRows, (yield call))

    def place_op(
        self,
        host: str,
        placements: Iterable[tuple[int, str]] = (),
        preempted: Iterable[int] = (),
        threads: Mapping[int, tuple[int, ...]] | None = None,
    ) -> Operation[messages.Placed]:
        """Start submissions of ``host`` on the named nodes, and stop tasks that run on ``host``.

        ``threads`` are the hardware threads for the task of a submission. Returns the refused ones with the
        reasons. For the nodes' own user.
        """
        named = threads or {}
        rows = tuple(
            messages.Placement(submission, node, named.get(submission, ())) for submission, node in placements
        )
        return expect(messages.Placed, (yield messages.Place(host, rows, tuple(preempted))))

    def keep_rooms_op(
        self, host: str, promised: Iterable[messages.PromisedStart]
    ) -> Operation[messages.Placed]:
        """Note promised starts in the queue of ``host``; returns the refused ones with the reasons.

        For the nodes' own user.
        """
        return expect(messages.Placed, (yield messages.KeepRooms(host, tuple(promised))))

    def govern_op(
        self,
        host: str = "",
        rates: Iterable[messages.Rate] = (),
        *,
        lease_ms: int = 0,
        shares_version: int = 0,
        shares: bytes = b"",
        guarantees: Iterable[messages.Guarantee] = (),
        parts: Iterable[messages.HeldPart] = (),
    ) -> Operation[messages.Metered]:
        """Make a node enforce ``rates`` for ``lease_ms``, and return the traffic and the demand there.

        The rates, ``guarantees`` (the least bytes per second of edges of jobs) and ``parts`` (to which tasks
        are held) replace all earlier ones; without a ``lease_ms`` nothing is changed. ``shares`` are data of
        the coordinators: the answer has the node's own if they are newer. For the nodes' own user.
        """
        call = messages.Govern(
            host, tuple(rates), lease_ms, shares_version, shares, tuple(guarantees), tuple(parts)
        )
        return expect(messages.Metered, (yield call))

    def set_admission_op(self, host: str, admission: messages.SetAdmission) -> Operation[None]:
        """Make a node enforce the quotas of an admission, and state a reason there not to place runs.

        For the nodes' own user.
        """
        expect(messages.Done, (yield replace(admission, host=host)))

    def advise_op(self, host: str, number: int, answer: bytes) -> Operation[None]:
        """Answer a question that waits on a node."""
        rest = memoryview(answer)
        while len(rest) > INLINE_BYTES_MAX:
            part, rest = rest[:INLINE_BYTES_MAX], rest[INLINE_BYTES_MAX:]
            expect(messages.Done, (yield messages.Advise(host, number, bytes(part), more=True)))
        expect(messages.Done, (yield messages.Advise(host, number, bytes(rest))))

    def report_op(self, data: bytes) -> Operation[None]:
        """Store measurements on the node for the scheduler."""
        expect(messages.Done, (yield messages.Report(data)))
