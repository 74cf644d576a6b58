"""The interface for users' programs: create, change and show supervised services."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec
from msgspec.structs import replace

from dios import limits
from dios.client.ops.scheduling import work
from dios.client.ops.status import Status
from dios.client.program import ProgramText, decode_program, encode_program, with_files
from dios.client.sync.node import Group, Node, Reference, Task
from dios.errors import DiosError, InvalidError, TooLargeError, UnreachableError
from dios.lib.supervised import records
from dios.lib.supervised.records import (
    JobState,
    ServiceGeneration,
    ServiceInput,
    ServiceRecord,
    ServicesReport,
)
from dios.lib.user_records.records import UserRecords
from dios.wire.messages import Limits, Work
from dios.wire.types import ObjectType, Persistence


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One living replica of a service, or a place for one that does not run now.

    ``reason`` is why it ended last, or could not be started; ``restarts`` are those that the present leader
    has seen. ``task`` is None while it does not run.
    """

    slot: int
    generation: int
    task: Status | None
    restarts: int = 0
    reason: str = ""
    waits: bool = False


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """A service: the wanted replicas, the generation of its program, and its replicas.

    While ``updating``, replicas of two generations run. ``leader`` is the node that supervises it; "" if that
    is not known. ``incomplete`` if a node did not answer.
    """

    name: str
    label: str
    wanted: int
    generation: int
    previous_generation: int
    updating: bool
    replicas: tuple[ReplicaStatus, ...]
    leader: str = ""
    incomplete: bool = False

    @property
    def running(self) -> int:
        """The number of replicas that run."""
        return sum(replica.task is not None for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class ServiceProgram:
    """The program of a service and what its replicas get; the arguments of ``Node.run``, if they last.

    ``inputs`` are copied: the replicas read the bytes of this moment. ``check`` is a program that is run for
    each replica every ``check_every`` seconds on its node, with the name of the service, the number of the
    replica and the name of the node as arguments; it ends with 0 if the replica is healthy.
    """

    program: ProgramText
    args: tuple[str, ...] = ()
    inputs: Mapping[str, Reference] | None = None
    files: Collection[str] = ()
    groups: tuple[Group, ...] = ()
    work: Work | None = None
    bounds: Limits | None = None
    network: bool = False
    template: str = ""
    label: str = ""
    check: ProgramText | None = None
    check_every: float = limits.SERVICE_CHECK_EVERY_MS / 1000
    healthy_after: float = limits.SERVICE_HEALTHY_MS / 1000


_decode_report: Final = msgspec.json.Decoder(ServicesReport).decode


class Services:
    """The supervised services of a user; ``node`` is a session of that user.

    A change is on the disks of the nodes that could store it when its method returns, of at least one. The
    leader brings it to the others.
    """

    def __init__(self, node: Node) -> None:
        self._node: Final = node
        self._records: Final = UserRecords(node, records.SERVICE_RECORDS)

    # -- changes --------------------------------------------------------------------------------------
    def create(self, name: str, program: ServiceProgram, *, replicas: int = 1) -> None:
        """Create a service: the nodes keep ``replicas`` tasks with this program running from now on.

        Raises InvalidError for a bad name or a name that is taken, LimitError, and errors of storing objects.
        """
        records.checked_name(name)
        records.checked_replicas(replicas)
        self._create(name, program, replicas, None)

    def create_job(self, name: str, program: ServiceProgram, job: Callable[[list[bytes]], JobState]) -> None:
        """Create the record of a kept job, whose state ``job`` stores, as ``KeptJobs.start`` does."""
        self._create(name, program, 1, job)

    def _create(
        self, name: str, program: ServiceProgram, replicas: int, job: Callable[[list[bytes]], JobState] | None
    ) -> None:
        """Create the record of a service, or of a kept job whose state ``job`` stores."""
        known = self.read()
        if name in known and not known[name].removed:
            records.created(known, name, known[name].spec, replicas)  # raises
        state: list[JobState | None] = []

        def stored() -> tuple[ServiceGeneration, list[bytes]]:
            spec, names = self._stored(program, ends=job is not None)
            try:
                state.append(None if job is None else job(names))
            except BaseException:
                self._destroy(names)
                raise
            return spec, names

        self._change_spec(
            stored, lambda services, spec: records.created(services, name, spec, replicas, state[0])
        )

    def scale(self, name: str, replicas: int) -> None:
        """Change the number of replicas; InvalidError if there is no such service."""
        self.edit(lambda services: records.scaled(records.service_named(services, name), replicas))

    def update(self, name: str, program: ServiceProgram) -> None:
        """Replace the program, one replica after another; each new one must be healthy first."""
        records.service_named(self.read(), name)
        self._change_spec(
            lambda: self._stored(program),
            lambda services, spec: records.updated(records.service_named(services, name), spec),
        )

    def update_program(self, name: str, program: ProgramText, *, label: str = "") -> None:
        """Update a service with another program, and keep everything else that its replicas get."""
        former = self._node.find(records.service_named(self.read(), name).spec.program)
        if former is None:
            raise UnreachableError(f"the present program of service {name!r} is on no node that answers")
        with former:
            files = decode_program(former.read_bytes()).inputs
        text = with_files(program, files, ()) if files else program

        def changed(services: dict[str, ServiceRecord], spec: ServiceGeneration) -> ServiceRecord:
            record = records.service_named(services, name)
            return records.updated(record, replace(record.spec, program=spec.program, label=spec.label))

        self._change_spec(lambda: self._stored(ServiceProgram(text, label=label)), changed)

    def rollback(self, name: str) -> None:
        """Return to the program before the last update; InvalidError if there is none."""
        self.edit(lambda services: records.rolled_back(records.service_named(services, name)))

    def remove(self, name: str) -> None:
        """End a service and its replicas, and delete its programs and inputs."""
        self.edit(lambda services: records.removed(records.service_named(services, name)))

    # -- questions ------------------------------------------------------------------------------------
    def statuses(self) -> list[ServiceStatus]:
        """Return the status of all services, by name."""
        services = self.read()
        rows = self._node.tasks()
        report = self.report()
        return [
            _status(record, rows, report, incomplete=rows.incomplete)
            for record in sorted(records.living(services), key=lambda record: record.name)
        ]

    def describe(self, name: str) -> ServiceStatus:
        """Return the status of one service; InvalidError if there is none of this name."""
        record = records.service_named(self.read(), name)
        rows = self._node.tasks()
        return _status(record, rows, self.report(), incomplete=rows.incomplete)

    def task(self, replica: ReplicaStatus) -> Task | None:
        """Return the task of a replica, or None if it does not run any more."""
        status = replica.task
        reference = None if status is None or status.name is None else self._node.find(status.name)
        return reference if isinstance(reference, Task) else None

    # -- records --------------------------------------------------------------------------------------
    def read(self) -> dict[str, ServiceRecord]:
        """Return the records of services and kept jobs by name."""
        return self._records.read()

    def read_known(self) -> dict[str, ServiceRecord]:
        """Return the records. Raise UnreachableError also if none was found and a node does not answer."""
        return self._records.read_known()

    def read_near(self) -> dict[str, ServiceRecord]:
        """Return the records as the asked node has them, which may miss the latest changes; else all."""
        return self._records.read_near()

    def report(self) -> ServicesReport:
        """Return what the leading node reports about starts and ends."""
        return self._records.report(_decode_report, ServicesReport())

    def edit(self, change: Callable[[dict[str, ServiceRecord]], ServiceRecord]) -> None:
        """Change the record of one service in every copy that can be reached."""

        def changed(services: dict[str, ServiceRecord]) -> dict[str, ServiceRecord]:
            record = change(services)
            return {**services, record.name: record}

        self._records.edit(changed)

    # -- programs -------------------------------------------------------------------------------------
    def _change_spec(
        self,
        store: Callable[[], tuple[ServiceGeneration, list[bytes]]],
        change: Callable[[dict[str, ServiceRecord], ServiceGeneration], ServiceRecord],
    ) -> None:
        spec, stored_names = store()
        try:
            self.edit(lambda services: change(services, spec))
        except BaseException:
            self._destroy(stored_names)
            raise

    def _stored(self, given: ServiceProgram, *, ends: bool = False) -> tuple[ServiceGeneration, list[bytes]]:
        """Store a program and its inputs on every node; return the spec, and the names of the new objects."""
        inputs = given.inputs or {}
        if given.work is not None and (given.work.job_minimum or given.work.job_maximum):
            raise InvalidError(
                "a service keeps its number of replicas, no fewer and no more: leave out the bounds of a job"
            )
        if len(inputs) > limits.SERVICE_INPUTS_MAX:
            raise InvalidError(f"a service has at most {limits.SERVICE_INPUTS_MAX} inputs, not {len(inputs)}")
        total = sum(reference.size for reference in inputs.values())
        if total > limits.SERVICE_INPUT_BYTES_MAX:
            raise TooLargeError(
                f"the inputs of a service have at most {limits.SERVICE_INPUT_BYTES_MAX} bytes, not {total}; "
                "each node keeps a copy. Let the replicas look larger objects up in a group."
            )
        text = with_files(given.program, given.files, ()) if given.files else given.program
        stored_names: list[bytes] = []
        try:
            program = self.store(encode_program(text), stored_names)
            check = None if given.check is None else self.store(encode_program(given.check), stored_names)
            handed = tuple(
                ServiceInput(label, self.store(reference.view_bytes(), stored_names))
                for label, reference in inputs.items()
            )
            names = tuple(bytes(group.read_name()) for group in given.groups)
        except BaseException:
            self._destroy(stored_names)
            raise
        wanted = work() if given.work is None else given.work
        spec = ServiceGeneration(
            program,
            given.label,
            given.args,
            handed,
            names,
            replace(wanted, service=not ends, deadline_ms=0, near=()),
            Limits() if given.bounds is None else given.bounds,
            given.network,
            given.template,
            round(given.healthy_after * 1000),
            check,
            round(given.check_every * 1000),
        )
        return spec, stored_names

    def store(self, data: bytes | memoryview, stored_names: list[bytes]) -> bytes:
        """Store bytes on every node that answers, under a new name."""
        home = self._node.home
        if home is None:
            raise InvalidError("only a user's process has supervised services, not a task")
        with self._node.create(ObjectType.DURABLE_BLOB, groups=[home], data=data) as first:
            if first.name is None:
                raise UnreachableError("the program could not be stored under a name")
            stored_names.append(first.name)
            for name in self._records.others({first.node}):
                with suppress(UnreachableError):
                    first.copy(persistence=Persistence.DURABLE, host=name).close()
            return first.name

    def _destroy(self, names: Iterable[bytes]) -> None:
        for name in names:
            with suppress(DiosError):
                for reference in self._node.lookup(name):
                    reference.destroy()


def _status(
    record: ServiceRecord, rows: Iterable[Status], report: ServicesReport, *, incomplete: bool
) -> ServiceStatus:
    notes = report.notes(record.name)
    running = [
        (place, task) for task in rows if not task.ended and (place := record.place(task.label)) is not None
    ]
    there = {place for place, _ in running}
    wanted = {(slot, record.generation) for slot in range(record.replicas)}
    replicas = [
        ReplicaStatus(
            *place,
            task,
            notes[place].restarts,
            notes[place].reason,
            waits=task is None and notes[place].waits,
        )
        for place, task in sorted(
            [*running, *((place, None) for place in wanted - there)], key=lambda replica: replica[0]
        )
    ]
    return ServiceStatus(
        record.name,
        record.spec.label,
        record.replicas,
        record.generation,
        record.previous_generation,
        record.updating,
        tuple(replicas),
        report.leader,
        incomplete,
    )
