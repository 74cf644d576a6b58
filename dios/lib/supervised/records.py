"""The records of supervised services: what a user wants to run, as bytes that every node keeps.

Each node has a copy of all records of a user. A change writes every copy that can be reached. Each service
has a version; where copies differ, the later version wins.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dios import limits
from dios.errors import DamagedError, InvalidError, LimitError, UnreachableError
from dios.lib.decoding import decoded
from dios.lib.supervised.arrays import index_text
from dios.lib.user_records.kind import RecordKind
from dios.wire.earlier_forms import earlier_form
from dios.wire.fields import U63, Arguments, Count, Fingerprint, Label, NameBytes
from dios.wire.messages import Limits, Work
from dios.wire.types import Cause, Flag

FORMAT_VERSION: Final = 3
_BEFORE_ARRAYS: Final = 2
"""The version of the stored form without arrays, runs after others, and bounds of times."""
_BEFORE_JOBS: Final = 1
"""The version of the stored form without kept jobs: nodes of an earlier release read it."""
SERVICES_NAME: Final = bytes(31) + b"\x04"
"""The special name of the records of the caller's services."""

Index: TypeAlias = Annotated[int, Meta(ge=0, le=limits.JOB_INDEX_MAX)]

_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_TOKEN_BYTES: Final = 4
_KILLED: Final = 137
"""The exit status of a killed program in a shell."""
_NOT_BEGUN: Final = 125
"""The exit status of `dios run` if it runs nothing."""
STATE_LABEL: Final = "kept state"
"""The label of the copies of a kept job's state among the outputs of its task."""


class ServiceInput(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An object that each replica may read, by the name of the copies that belong to the service."""

    label: Label
    name: NameBytes

    def __repr__(self) -> str:
        """Return a text without the name, which is a secret."""
        return f"ServiceInput({self.label!r})"


class ServiceGeneration(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The program of a service and everything that its replicas get; one generation of it.

    A replica is healthy when it has run for ``healthy_ms``. If there is a program ``check``, it also must
    have ended with 0; it runs every ``check_every_ms``.
    """

    program: NameBytes
    label: Label
    arguments: Arguments = ()
    inputs: Annotated[tuple[ServiceInput, ...], Meta(max_length=limits.SERVICE_INPUTS_MAX)] = ()
    groups: Annotated[tuple[NameBytes, ...], Meta(max_length=limits.SERVICE_GROUPS_MAX)] = ()
    work: Work = Work(service=True)
    bounds: Limits = Limits()
    network: bool = False
    template: Label = ""
    healthy_ms: Annotated[int, Meta(ge=0, le=limits.SERVICE_SPAN_MS_MAX)] = limits.SERVICE_HEALTHY_MS
    check: NameBytes | None = None
    check_every_ms: Annotated[int, Meta(ge=100, le=limits.SERVICE_SPAN_MS_MAX)] = (
        limits.SERVICE_CHECK_EVERY_MS
    )

    def __repr__(self) -> str:
        """Return a text without the names, which are secrets."""
        return f"ServiceGeneration({self.label!r})"

    def objects(self) -> tuple[bytes, ...]:
        """Return the names of the objects that every node keeps for this generation."""
        return (
            self.program,
            *(service_input.name for service_input in self.inputs),
            *(() if self.check is None else (self.check,)),
        )


class JobEnd(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The end of a kept job: that of its last attempt, or the order to stop.

    ``output`` is the name of the copies of its last output; None while it printed nothing, or if its node was
    lost before the output was stored.
    """

    cause: Cause
    exit_status: Annotated[int, Meta(ge=0, le=255)]
    ended_ns: U63
    node: Label = ""
    detail: Annotated[str, Meta(max_length=limits.KEPT_JOB_DETAIL_MAX)] = ""
    output: NameBytes | None = None

    def __repr__(self) -> str:
        """Return a text without the name, which is a secret."""
        return f"JobEnd({self.cause.name}, {self.exit_status})"


class Condition(IntEnum):
    """The event of another run for which a job waits."""

    STARTED = 0  # begin, or end without that
    SUCCEEDED = 1  # end with 0
    ENDED = 2  # end in any way


class Predecessor(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A run after which a job begins: a task, or the kept job with this token, or an element of that.

    ``run`` is the word by which the user named it. The names of jobs may be used again, and their tokens are
    not, so no job ever waits for itself.
    """

    run: Label
    condition: Condition
    task: Fingerprint = ""
    token: Label = ""
    index: Index | None = None


class JobElement(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An element of an array that has failed once or has ended. Its attempts are counted by themselves."""

    index: Index
    attempt: Count = 1
    end: JobEnd | None = None


class JobArray(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The elements of a job that is an array: the slots of its record.

    ``changed`` are those that are not as they were at first.
    """

    indices: Annotated[tuple[Index, ...], Meta(max_length=limits.JOB_ELEMENTS_MAX)]
    at_once: Annotated[int, Meta(ge=1, le=limits.JOB_ARRAY_AT_ONCE_MAX)]
    changed: Annotated[tuple[JobElement, ...], Meta(max_length=limits.JOB_ELEMENTS_MAX)] = ()

    def elements(self) -> dict[int, JobElement]:
        """Return all elements by index."""
        return {index: JobElement(index) for index in self.indices} | {
            element.index: element for element in self.changed
        }

    def with_element(self, element: JobElement) -> JobArray:
        """Return the array with this element in place of the one with its index."""
        known = {known_element.index: known_element for known_element in self.changed} | {
            element.index: element
        }
        return replace(self, changed=tuple(known[index] for index in sorted(known)))

    @property
    def ends(self) -> list[JobElement]:
        """The elements that have ended."""
        return [element for element in self.changed if element.end is not None]


class JobState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The part of a record that only kept jobs have. Their attempts are the generations of a service.

    ``state`` is the name of the copies of what the program saves for its next attempt, and ``group`` that of
    the group of the job's own objects. The job begins when no run in ``after`` is left.
    """

    attempts: Annotated[int, Meta(ge=1, le=limits.KEPT_JOB_ATTEMPTS_MAX)]
    created_ns: U63
    state: NameBytes
    group: NameBytes
    end: JobEnd | None = None
    after: Annotated[tuple[Predecessor, ...], Meta(max_length=limits.JOB_AFTER_MAX)] = ()
    array: JobArray | None = None

    def __repr__(self) -> str:
        """Return a text without the names, which are secrets."""
        return f"JobState({self.attempts} attempts, {self.end})"


class ServiceRecord(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One service: the number of its replicas, its program, and the generation before.

    While ``verified`` is not ``generation`` an update is under way. ``token`` is in the labels of the
    replicas, so that no other task of the user is taken for one of them. ``dropped`` are the objects of
    earlier generations.
    """

    name: Annotated[str, Meta(max_length=40)]
    version: U63
    token: Label
    replicas: Annotated[int, Meta(ge=0, le=limits.SERVICE_REPLICAS_MAX)]
    spec: ServiceGeneration
    generation: Count = 1
    verified: Count = 1
    newest: Count = 1
    previous: ServiceGeneration | None = None
    previous_generation: Count = 0
    removed: bool = False
    dropped: Annotated[tuple[NameBytes, ...], Meta(max_length=limits.SERVICE_DROPPED_MAX)] = ()
    job: JobState | None = None

    def __repr__(self) -> str:
        """Return a text without the names, which are secrets."""
        return f"ServiceRecord({self.name!r}, version {self.version}, generation {self.generation})"

    @property
    def updating(self) -> bool:
        """Return True while replicas of the generation before are replaced."""
        return self.previous is not None and self.verified != self.generation and not self.removed

    @property
    def waits(self) -> bool:
        """Return True if it is a job that waits for other runs."""
        return self.job is not None and bool(self.job.after)

    def attempt(self, slot: int) -> int | None:
        """Return the attempt of a job that runs or is to run in a slot; None if none is."""
        return self.attempts().get(slot)

    def attempts(self) -> dict[int, int]:
        """Return the attempts of a job that run or are to run, by slot."""
        if self.job is None or self.job.end is not None or self.removed:
            return {}
        if self.job.array is None:
            return {0: self.generation}
        elements = self.job.array.elements().values()
        return {element.index: element.attempt for element in elements if element.end is None}

    def spec_of(self, slot: int, generation: int) -> ServiceGeneration | None:
        """Return the program of a replica, or of an element of an array; None if it is not wanted now."""
        if self.job is not None and self.job.array is not None:
            return self.spec if self.attempt(slot) == generation else None
        return self.specs().get(generation) if slot < self.replicas else None

    def specs(self) -> dict[int, ServiceGeneration]:
        """Return the programs that replicas may run now, by generation."""
        specs = {self.generation: self.spec}
        if self.updating and self.previous is not None:
            specs[self.previous_generation] = self.previous
        return {} if self.removed else specs

    def objects(self) -> tuple[bytes, ...]:
        """Return the names of the objects that every node keeps for this service."""
        kept = () if self.previous is None else self.previous.objects()
        if self.job is not None:
            end = self.job.end
            output = None if end is None else end.output
            kept = (*kept, self.job.state, *(() if output is None else (output,)))
        return () if self.removed else tuple(dict.fromkeys((*self.spec.objects(), *kept)))

    def label(self, slot: int, generation: int) -> str:
        """Return the label of the task that is replica ``slot`` with the program of a generation."""
        return f"{self.name}.{slot}/{generation}/{self.token}"

    def place(self, label: str) -> tuple[int, int] | None:
        """Return the slot and the generation of the replica with this label, or None."""
        match = re.fullmatch(r"([a-z0-9-]+)\.([0-9]{1,4})/([0-9]{1,9})/([0-9a-f]+)", label)
        if match is None or (match[1], match[4]) != (self.name, self.token):
            return None
        return int(match[2]), int(match[3])


class _StoredServices(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    format: int
    services: Annotated[
        tuple[ServiceRecord, ...], Meta(max_length=limits.SERVICES_MAX + limits.SERVICE_REMOVED_KEPT)
    ]


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(_StoredServices).decode


def encode(services: Iterable[ServiceRecord]) -> bytes:
    """Return the stored form; forget the oldest removed services. Raise LimitError if there are too many."""
    listed = sorted(services, key=lambda record: record.name)
    living = [record for record in listed if not record.removed]
    gone = sorted((record for record in listed if record.removed), key=lambda record: record.version)
    if len(living) > limits.SERVICES_MAX:
        raise LimitError(f"you have {limits.SERVICES_MAX} services, the maximum. Remove one first.")
    kept = [*living, *gone[-limits.SERVICE_REMOVED_KEPT :]]
    data = _stored(sorted(kept, key=lambda record: record.name))
    arrays = [
        record.job.array for record in living if record.job is not None and record.job.array is not None
    ]
    if sum(len(array.indices) for array in arrays) > limits.JOB_ELEMENTS_MAX:
        raise LimitError(
            f"your listed arrays of jobs would have more than {limits.JOB_ELEMENTS_MAX} elements together. "
            "`dios job rm` removes those that have ended."
        )
    if len(data) > limits.SERVICE_RECORDS_BYTES_MAX:
        raise LimitError(
            f"the records of your services would have {len(data)} bytes, more than "
            f"{limits.SERVICE_RECORDS_BYTES_MAX}. Put long arguments into an input."
        )
    return data


def _stored(kept: list[ServiceRecord]) -> bytes:
    """Return the stored form, in the earliest version that has fields for all of it."""
    if any(map(_is_newest, kept)):
        return _encode(_StoredServices(FORMAT_VERSION, tuple(kept)))
    has_jobs = any(record.job is not None for record in kept)
    return _encode((_BEFORE_ARRAYS if has_jobs else _BEFORE_JOBS, earlier_form(kept)))


def _is_newest(record: ServiceRecord) -> bool:
    """Return True if only the newest version has fields and words for all of a record."""
    specs = (record.spec, record.previous)
    if any(spec is not None and spec.work.time_ms for spec in specs):
        return True
    job = record.job
    if job is None:
        return False
    return bool(job.after) or job.array is not None or (job.end is not None and job.end.cause is Cause.TIME)


def decode(data: bytes) -> dict[str, ServiceRecord]:
    """Return the services by name. Raise DamagedError if the bytes are not records of services."""
    if not data:
        return {}
    stored = decoded(_decode, data, "the records of the services cannot be read")
    if not _BEFORE_JOBS <= stored.format <= FORMAT_VERSION:
        raise DamagedError(
            f"the records of the services have version {stored.format}, this program reads {FORMAT_VERSION}. "
            "Update it."
        )
    return {record.name: record for record in stored.services}


def merged(copies: Iterable[dict[str, ServiceRecord]]) -> dict[str, ServiceRecord]:
    """Return of each service the record with the latest version; of equal ones the same on each node."""
    records_by_name: dict[str, ServiceRecord] = {}
    for copy in copies:
        for name, record in copy.items():
            known = records_by_name.get(name)
            if known is None or _order(record) > _order(known):
                records_by_name[name] = record
    return records_by_name


SERVICE_RECORDS: Final[RecordKind[dict[str, ServiceRecord]]] = RecordKind(
    SERVICES_NAME, Flag.SERVICES, decode, lambda services: encode(services.values()), merged
)


def _order(record: ServiceRecord) -> tuple[int, bytes]:
    return record.version, _encode(record)


# -- changes ----------------------------------------------------------------------------------------
def checked_name(name: str) -> str:
    """Return the name of a service. Raise InvalidError for one that cannot be a name."""
    if not _NAME.fullmatch(name):
        raise InvalidError(
            f"{name[:60]!r} cannot be the name of a service: it has 1 to 40 lower-case letters, digits and "
            "hyphens"
        )
    return name


def checked_replicas(replicas: int) -> int:
    """Return a number of replicas. Raise InvalidError if it is out of range."""
    if not 0 <= replicas <= limits.SERVICE_REPLICAS_MAX:
        raise InvalidError(f"a service has 0 to {limits.SERVICE_REPLICAS_MAX} replicas, not {replicas}")
    return replicas


def service_named(services: dict[str, ServiceRecord], name: str) -> ServiceRecord:
    """Return the service of this name. Raise InvalidError if there is none."""
    record = services.get(name)
    if record is None or record.removed or record.job is not None:
        raise InvalidError(f"you have no service {name[:60]!r}. `dios service ls` lists your services.")
    return record


def created(
    services: dict[str, ServiceRecord],
    name: str,
    spec: ServiceGeneration,
    replicas: int,
    job: JobState | None = None,
) -> ServiceRecord:
    """Return the record of a new service, or of a kept ``job``. Raise InvalidError if the name is taken."""
    former = services.get(checked_name(name))
    if former is not None and not former.removed:
        if former.job is not None:
            raise InvalidError(f"you have a kept job {name!r}. `dios job rm {name}` removes it.")
        raise InvalidError(
            f"you have a service {name!r} already. Use `dios service update`, or another name."
        )
    return ServiceRecord(
        name,
        _next_version(former),
        secrets.token_hex(_TOKEN_BYTES),
        checked_replicas(replicas),
        spec,
        dropped=() if former is None else former.dropped,
        job=job,
    )


def scaled(record: ServiceRecord, replicas: int) -> ServiceRecord:
    """Return the record with another number of replicas."""
    return replace(record, version=_next_version(record), replicas=checked_replicas(replicas))


def updated(record: ServiceRecord, spec: ServiceGeneration) -> ServiceRecord:
    """Return the record with a new generation. It replaces an update that is under way."""
    base, base_generation = record.spec, record.generation
    if record.updating and record.previous is not None:
        base, base_generation = record.previous, record.previous_generation
    return _dropping(
        replace(
            record,
            version=_next_version(record),
            spec=spec,
            generation=record.newest + 1,
            newest=record.newest + 1,
            previous=base,
            previous_generation=base_generation,
        ),
        record,
    )


def rolled_back(record: ServiceRecord) -> ServiceRecord:
    """Return the record with the generation before. Raise InvalidError if there is none."""
    if record.previous is None:
        raise InvalidError(f"service {record.name!r} was never updated, so there is nothing to return to")
    back = record.updating
    return replace(
        record,
        version=_next_version(record),
        spec=record.previous,
        generation=record.previous_generation,
        # The generation before an update that is not complete has proved itself.
        verified=record.previous_generation if back else record.verified,
        previous=record.spec,
        previous_generation=record.generation,
    )


def verified(record: ServiceRecord) -> ServiceRecord:
    """Return the record after a complete update."""
    return replace(record, version=record.version + 1, verified=record.generation)


def _job_of(record: ServiceRecord) -> JobState:
    if record.job is None:
        raise InvalidError(f"{record.name!r} is a service, not a job")
    return record.job


# The supervisor adds one to the version, so that a user's change at the same time wins: it has a time.
def ended(record: ServiceRecord, end: JobEnd, index: int = 0) -> ServiceRecord:
    """Return the record of a kept job after the end of the present attempt of it, or of an element.

    The next attempt follows, unless the program ended with 0 or this was the last one.
    """
    job, version = _job_of(record), record.version + 1
    if job.array is not None:
        element = job.array.elements()[index]
        if end.exit_status and element.attempt < job.attempts:
            element = replace(element, attempt=element.attempt + 1)
        else:
            element = replace(element, end=end)
        return _with_array(record, job, job.array.with_element(element), version)
    if end.exit_status and record.generation < job.attempts:
        following = record.generation + 1
        return replace(record, version=version, generation=following, verified=following, newest=following)
    return replace(record, version=version, replicas=0, job=replace(job, end=end))


def _with_array(record: ServiceRecord, job: JobState, array: JobArray, version: int) -> ServiceRecord:
    """Return the record of a job with these elements. The job ends with the last of them."""
    ends = array.ends
    if len(ends) < len(array.indices):
        return replace(record, version=version, job=replace(job, array=array))
    failed = [element.index for element in ends if element.end is not None and element.end.exit_status]
    worst = max((element.end for element in ends if element.end is not None), key=lambda end: end.exit_status)
    detail = f"{len(failed)} of its {len(ends)} elements failed: {index_text(failed)}" if failed else ""
    end = JobEnd(
        worst.cause,
        worst.exit_status,
        max(element.end.ended_ns for element in ends if element.end is not None),
        worst.node,
        detail[: limits.KEPT_JOB_DETAIL_MAX],
    )
    return replace(record, version=version, replicas=0, job=replace(job, array=array, end=end))


def not_begun(record: ServiceRecord, reason: str, now_ns: int) -> ServiceRecord:
    """Return the record of a job that never begins, because a run before it did not end as it has to."""
    end = JobEnd(Cause.DEPENDENCY, _NOT_BEGUN, now_ns, detail=reason[: limits.KEPT_JOB_DETAIL_MAX])
    return replace(record, version=record.version + 1, replicas=0, job=replace(_job_of(record), end=end))


def with_after(record: ServiceRecord, after: tuple[Predecessor, ...]) -> ServiceRecord:
    """Return the record of a job that still waits for these runs."""
    return replace(record, version=record.version + 1, job=replace(_job_of(record), after=after))


def stopped(record: ServiceRecord, now_ns: int, index: int | None = None) -> ServiceRecord:
    """Return the record of a kept job that a user has stopped, or of which an element was stopped.

    One that has ended stays as it is.
    """
    job = record.job
    if job is None or job.end is not None:
        return record
    end = JobEnd(Cause.KILLED, _KILLED, now_ns, detail="stopped by its user")
    version = _next_version(record)
    if index is None:
        return replace(record, version=version, replicas=0, job=replace(job, end=end))
    if job.array is None or record.attempt(index) is None:
        return record
    element = replace(job.array.elements()[index], end=end)
    return _with_array(record, job, job.array.with_element(element), version)


def removed(record: ServiceRecord) -> ServiceRecord:
    """Return the record of a service that shall end. It is kept for nodes that are away now."""
    gone = replace(record, version=_next_version(record), removed=True, previous=None, replicas=0, job=None)
    return _dropping(gone, record)


def _dropping(record: ServiceRecord, former: ServiceRecord) -> ServiceRecord:
    """Add the objects that are not needed any more to those that nodes delete."""
    left = [name for name in (*former.dropped, *former.objects()) if name not in record.objects()]
    return replace(record, dropped=tuple(dict.fromkeys(left))[-limits.SERVICE_DROPPED_MAX :])


def _next_version(former: ServiceRecord | None) -> int:
    """Return a version above the former one; by the clock, so that the later change wins at last."""
    now = time.time_ns() // 1_000_000
    return now if former is None else max(former.version + 1, now)


def missing(reason: str) -> UnreachableError:
    """Return the error of a start that lacks an object."""
    return UnreachableError(f"cannot start the replica: {reason}")


def living(services: dict[str, ServiceRecord], *, jobs: bool = False) -> Iterator[ServiceRecord]:
    """Yield the services that were not removed, or the kept ``jobs``."""
    return (record for record in services.values() if not record.removed and (record.job is not None) == jobs)


def found_job(services: Mapping[str, ServiceRecord], name: str) -> ServiceRecord:
    """Return the kept job of this name. Raise InvalidError if there is none."""
    record = services.get(name)
    if record is None or record.removed or record.job is None:
        raise InvalidError(f"you have no kept job {name[:60]!r}. `dios job ls` lists your jobs.")
    return record


def found_element(services: Mapping[str, ServiceRecord], name: str) -> tuple[ServiceRecord, int | None]:
    """Return the kept job of this name, or that of this element with its index, such as ``sweep.7``.

    Raise InvalidError if there is none.
    """
    job, _, number = name.rpartition(".")
    index = int(number) if job and number.isascii() and number.isdigit() else None
    if index is None:
        return found_job(services, name), None
    record = found_job(services, job)
    array = None if record.job is None else record.job.array
    if array is None or index not in array.indices:
        raise InvalidError(f"the job {job!r} has no element {index}. `dios job describe {job}` lists them.")
    return record, index


class ReplicaNote(Struct, frozen=True):
    """The leader's knowledge of a replica: its starts, and why it ended last or could not be started.

    ``starts`` is the node on which it is being started, and it ``waits`` before the next start.
    """

    slot: int = 0
    generation: int = 0
    restarts: int = 0
    reason: str = ""
    starts: str = ""
    waits: bool = False


class ServicesReport(Struct, frozen=True):
    """The report of the leading supervisor."""

    leader: str = ""
    services: dict[str, list[ReplicaNote]] = {}

    def notes(self, name: str) -> Mapping[tuple[int, int], ReplicaNote]:
        """Return what is reported of a service or job, by slot and generation."""
        notes = {(note.slot, note.generation): note for note in self.services.get(name, ())}
        return defaultdict(ReplicaNote, notes)
