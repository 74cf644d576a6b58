"""The controller of a job: creates its objects, starts its tasks, and delegates their data (thesis §5.4.2).

It sends the job's code as text and never imports or runs it; ``dios.lib.jobs.ledger`` decides the next steps.
Mappers and reducers are members of an empty group of their own only; they have the narrowed references of the
controller and nothing else.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dios.client.ops.attributes import Handed
from dios.client.ops.status import Status
from dios.client.program import Program
from dios.client.sync.node import Node, Reference, Stream, Task
from dios.client.tracing import active
from dios.client.tracing.contexts import current
from dios.client.tracing.recorder import OpenSpan
from dios.errors import (
    ClosedError,
    DiosError,
    EndOfStreamError,
    OutOfMemoryError,
    ProtocolError,
    TimeLimitError,
    UnreachableError,
)
from dios.lib.closing import close_all
from dios.lib.jobs.inputs import Inputs
from dios.lib.jobs.ledger import GivePart, GiveUp, Ledger, Role, StartJobTask, Step, Stop
from dios.lib.jobs.orders import (
    JOB_MODULE,
    PART_LABEL,
    Finished,
    MapOrder,
    Order,
    PairsReceived,
    PartUnread,
    ProgressReport,
    ReduceOrder,
    StreamRead,
    decode_report,
    encode,
)
from dios.lib.jobs.records import Segment, plan_splits
from dios.lib.jobs.results import JobFailedError, JobProgress, JobResult, OnProgress, TaskReport
from dios.lib.jobs.saved import SavedProgress, plan_digest
from dios.lib.jobs.speculation import MapperProgress, slowest
from dios.lib.supervised.kept_state import KeptState
from dios.limits import (
    JOB_END_TIMEOUT_MS,
    JOB_GRACE_MS,
    JOB_REPORT_PERIOD_MS,
    JOB_REPORT_RING_BYTES,
    JOB_SPLIT_BYTES,
)
from dios.wire.messages import Limits, Work
from dios.wire.types import Brand, Cause, NameKind, ObjectType, Semantics

_ENTRY: Final = "from dios.lib.jobs.task import main\n\nmain()\n"

_MOVED: Final = frozenset({Cause.MOVED, Cause.PREEMPTED})
_JOB_NUMBER_BITS: Final = 62

_REFUSED_S: Final = (0.25, 30.0)
"""The first and the longest pause after starts that were refused. It is doubled after each one."""

REFUSALS_MAX: Final = 12
"""The refusals in a row, over about two minutes, after which each counts as a failed attempt."""


class JobOptions(Struct, frozen=True):
    """The options of a job; ``dios.lib.mapreduce.run`` explains them."""

    reducers: int
    workers: int
    splits: int | None
    attempts: int
    memory_bytes: int
    block_bytes: int
    stream_bytes: int
    ordered: bool
    durable: bool
    brand: Brand
    limits: Limits | None
    label: str
    copies: bool
    keep: int = 0


@dataclass(slots=True)
class RunningJobTask:
    """One attempt that was started."""

    start: StartJobTask
    task: Task
    reports: Stream
    began: float
    listening: bool = True
    stopped: bool = False
    done: int = 0
    finished: Finished | None = None
    failure: str = ""
    part: Reference | None = None
    span: OpenSpan | None = None


class Controller:
    """One job from its inputs to its outputs."""

    def __init__(
        self,
        node: Node,
        source: str,
        inputs: Inputs,
        groups: Iterable[Reference],
        options: JobOptions,
        on_progress: OnProgress | None,
        state: KeptState | None = None,
    ) -> None:
        self._node: Final = node
        self._options: Final = options
        self._inputs: Final = inputs
        self._on_progress: Final = on_progress
        self._total: Final = sum(document.end - document.start for document in inputs.documents)
        wanted = options.splits or max(options.workers, -(-self._total // JOB_SPLIT_BYTES))
        self._splits: Final = plan_splits(inputs.documents, wanted)
        self._ledger: Final = Ledger(len(self._splits), options.reducers, options.workers, options.attempts)
        # A task that must leave its node has some time to end, and is started elsewhere if that is too short.
        # Mappers of a job name it, so that the scheduler can compare their progress.
        self._work: Final = Work(restartable=True, grace_ms=JOB_GRACE_MS)
        self._map_work: Final = replace(self._work, job=1 + secrets.randbits(_JOB_NUMBER_BITS))
        self._running: Final[list[RunningJobTask]] = []
        self._reducers: Final[dict[int, RunningJobTask]] = {}
        self._reports: Final[list[TaskReport]] = []
        self._mapped: Final[dict[int, int]] = {}
        self._map_seconds: Final[list[float]] = []
        self._parts: Final[dict[int, list[Reference]]] = {}
        """The kept pairs of each mapper, one reference for each replica."""
        self._turn = 0
        self._outputs_done = 0
        self._told = 0.0
        self._refusals = 0
        self._starts_at = 0.0
        self._program: Final = node.create_program(Program(_ENTRY, {JOB_MODULE: source}))
        self._groups: Final = tuple(groups)
        self._saved: Final = None if state is None else self._saved_progress(state, source)
        # Every object of a job has the lifetime of this session until the job has succeeded, so that a
        # controller that is killed leaves nothing. A durable object with a name would stay.
        self._publishes: Final = bool(self._groups) and (options.durable or self._saved is not None)
        self._outputs: Final = (
            self._made_outputs() if self._saved is None else self._kept_outputs(self._saved)
        )

    def _made_outputs(self) -> list[Reference]:
        options = self._options
        kind = ObjectType.DURABLE_BLOB if options.durable and not self._publishes else ObjectType.SHMEM_BLOB
        named = bool(self._groups) and not self._publishes
        return [
            self._node.create(
                kind,
                groups=self._groups if named else (),
                naming=NameKind.RANDOM if named else NameKind.ANONYMOUS,
            )
            for _ in range(options.reducers)
        ]

    # -- saved progress -------------------------------------------------------------------------------
    def _saved_progress(self, state: KeptState, source: str) -> SavedProgress:
        """Read what an earlier controller of this job has left."""
        options = self._options
        plan = plan_digest(source, self._inputs, self._splits, options.reducers, ordered=options.ordered)
        saved = SavedProgress(self._node, state, options.label, plan)
        for number, kept in saved.mapped.items():
            self._parts[number] = kept
            self._ledger.part_kept(number)
            self._mapped[number] = sum(part.size for part in self._splits[number])
        return saved

    def _kept_outputs(self, saved: SavedProgress) -> list[Reference]:
        """Return the outputs of the reducers that are done, and new objects for the others."""
        missing = self._options.reducers - len(saved.reduced)
        new_outputs = iter(saved.outputs([""], missing))
        outputs = [
            saved.reduced[number] if number in saved.reduced else next(new_outputs)
            for number in range(self._options.reducers)
        ]
        for number in saved.reduced:
            self._ledger.reduced_before(number)
            self._outputs_done += 1
        return outputs

    def _keep_output(self, number: int) -> None:
        """Copy the output of a reducer that is done, and record it."""
        if self._saved is None:
            return
        output = self._outputs[number]
        there = {output.node}
        for host in self._hosts():
            if len(there) < self._options.keep and host not in there:
                with suppress(DiosError):
                    close_all([output.copy(host=host)])
                    there.add(host)
        self._saved.reducer_done(number, output)

    def run(self) -> JobResult:
        """Run the job to its end; JobFailedError if a task failed too often."""
        began = time.monotonic()
        try:
            while not self._ledger.done:
                if time.monotonic() >= self._starts_at:
                    for step in self._ledger.next_steps():
                        self._do(step)
                if self._options.copies:
                    self._copy_slowest()
                self._listen()
                self._tell(at_once=False)
                if self._saved is not None:
                    self._saved.save_sometimes()
            if self._saved is not None:
                self._saved.save()
            with active.span("last tasks"):
                self._settle()
            if self._publishes:
                with active.span("publish"):
                    self._publish()
            self._tell(at_once=True)
        except BaseException:
            self._end_everything()
            for output in self._outputs:
                with suppress(DiosError):
                    # Objects with a name are for the next attempt, which knows them by the state.
                    output.delete() if self._saved is None else output.close()
            raise
        else:
            if self._saved is not None:
                self._saved.finish(self._parts.values())
        finally:
            for kept in self._parts.values():
                close_all(kept)
            with suppress(DiosError):
                self._program.close()
        return JobResult(tuple(self._outputs), tuple(self._reports), self._total, time.monotonic() - began)

    def _publish(self) -> None:
        """Replace the outputs by durable ones with names."""
        for number, output in enumerate(self._outputs):
            reference = None if self._saved is None else self._saved.published.get(number)
            if reference is None:
                with output.read(Semantics.ANY) as request:
                    reference = self._node.create(
                        ObjectType.DURABLE_BLOB, groups=self._groups, data=request.view
                    )
                if self._saved is not None:
                    self._saved.output_published(number, reference)
            self._outputs[number] = reference
            if self._saved is None:
                output.delete()
            else:
                output.close()

    def _do(self, step: Step) -> None:
        if isinstance(step, GiveUp):
            raise self._failed(step)
        if isinstance(step, Stop):
            self._stop(step)
            return
        if isinstance(step, GivePart):
            self._give_part(step)
            return
        try:
            if step.role is Role.REDUCER:
                self._start_reducer(step)
            else:
                self._start_mapper(step)
        except (UnreachableError, OutOfMemoryError, TimeLimitError) as error:
            # The chosen node has just died, or cannot start a task now.
            self._unstarted(step, error.message)

    def _unstarted(self, start: StartJobTask, why: str) -> None:
        counts = self._note_refusal()
        if start.role is Role.MAPPER:
            self._ledger.mapper_ended(start.number, start.attempt, why, counts=counts)
        else:
            self._ledger.reducer_ended(start.number, start.attempt, why, counts=counts)

    def _note_refusal(self) -> bool:
        """Delay further starts after one that was refused; return True if that counts as a failed attempt.

        The program of the task did not run, so it is not to blame. Starts that are refused together count
        once.
        """
        now = time.monotonic()
        if now >= self._starts_at:
            pause_s, pause_s_max = _REFUSED_S
            self._starts_at = now + min(pause_s * 2 ** min(self._refusals, 16), pause_s_max)
            self._refusals += 1
        return self._refusals > REFUSALS_MAX

    # -- kept parts ---------------------------------------------------------------------------------
    def _part_for(self, start: StartJobTask) -> Reference | None:
        """Create the object for all pairs of a mapper, on the next node; None if they are not kept."""
        if not self._options.keep or len(start.partitions) < self._options.reducers:
            return None
        hosts = self._hosts()
        self._turn += 1
        turned = hosts[self._turn % len(hosts) :] + hosts[: self._turn % len(hosts)]
        if self._saved is not None:
            return self._saved.part(turned, min(self._options.workers, self._ledger.mappers))
        for host in turned:
            with suppress(UnreachableError):
                return self._node.create(ObjectType.DURABLE_BLOB, naming=NameKind.ANONYMOUS, host=host)
        return None

    def _hosts(self) -> list[str]:
        """Return the nodes that may keep parts: those where tasks of the job run or ran."""
        seen = [running_task.task.node for running_task in self._running] + [
            report.status.node for report in self._reports
        ]
        return list(dict.fromkeys(name for name in seen if name)) or [""]

    def _keep_part(self, running: RunningJobTask) -> None:
        """Copy the part of a mapper that has ended to as many nodes as the job wants."""
        part = running.part
        if part is None:
            return
        if self._parts.get(running.start.number):
            # Its other attempt has ended, too.
            self._drop_part(running)
            return
        self._parts[running.start.number] = kept = [part]
        there = {part.node}
        for host in self._hosts():
            if len(kept) < self._options.keep and host not in there:
                with suppress(DiosError):
                    kept.append(part.copy(host=host))
                    there.add(host)
        self._ledger.part_kept(running.start.number)
        if self._saved is not None:
            self._saved.mapper_done(running.start.number, part)

    def _give_part(self, step: GivePart) -> None:
        reducer = self._reducers.get(step.reducer)
        kept = self._parts.get(step.mapper, [])
        while kept and reducer is not None:
            try:
                kept[0].stat()
                kept[0].delegate(reducer.task, "read")
            except DiosError:
                # Its node is gone, or the reducer, whose end is noticed later.
                if reducer.task.zombie:
                    return
                close_all([kept.pop(0)])
            else:
                return
        self._ledger.part_lost(step.mapper)
        if self._saved is not None:
            self._saved.mapper_lost(step.mapper)

    def _part_unread(self, object_id: int) -> None:
        for mapper, kept in self._parts.items():
            lost = [part for part in kept if part.object_id == object_id]
            if lost:
                kept.remove(lost[0])
                close_all(lost)
                self._ledger.part_lost(mapper)
                if not kept and self._saved is not None:
                    self._saved.mapper_lost(mapper)
                if kept:
                    # The next replica is given.
                    self._ledger.part_kept(mapper)

    # -- copies -------------------------------------------------------------------------------------
    def _copy_slowest(self) -> None:
        """Start the slowest mapper a second time if it is slow and a worker is free."""
        now = time.monotonic()
        progress = [
            MapperProgress(mapper.start.number, self._share_of(mapper), max(now - mapper.began, 1e-3))
            for mapper in self._mappers()
        ]
        number = slowest(progress, self._map_seconds)
        start = None if number is None else self._ledger.copy(number)
        if start is not None:
            self._do(start)

    def _mappers(self) -> list[RunningJobTask]:
        """Return the running attempts of mappers that have not sent everything."""
        return [
            running_task
            for running_task in self._running
            if running_task.start.role is Role.MAPPER
            and not running_task.stopped
            and running_task.finished is None
        ]

    def _share_of(self, running: RunningJobTask) -> float:
        """Return the share of its input that a mapper has read."""
        size = sum(part.end - part.start for part in self._splits[running.start.number])
        return min(1.0, running.done / size) if size else 1.0

    def _work_for(self, start: StartJobTask) -> Work:
        """Return the needs of a task; a copy of a mapper names its original for the scheduler."""
        if start.role is not Role.MAPPER:
            return self._work
        originals = [
            mapper.task.fingerprint for mapper in self._mappers() if mapper.start.number == start.number
        ]
        return replace(self._map_work, copy_of=originals[0]) if originals else self._map_work

    # -- starting -----------------------------------------------------------------------------------
    def _start_reducer(self, start: StartJobTask) -> None:
        options = self._options
        order = ReduceOrder(
            start.number, start.attempt, self._ledger.mappers, options.memory_bytes, options.ordered
        )
        output = self._outputs[start.number].restrict("write", label="output")
        self._reducers[start.number] = self._launch(start, order, [], [output])

    def _start_mapper(self, start: StartJobTask) -> None:
        needed = sorted({segment.input for segment in self._splits[start.number]})
        blobs = [self._inputs.blobs[number] for number in needed]
        streams = [self._stream_to(reducer) for reducer in start.partitions]
        order = self._map_order(start, {number: place for place, number in enumerate(needed)})
        part = self._part_for(start)
        handed = [stream.restrict("write", label="intermediate") for stream in streams]
        if part is not None:
            handed.append(part.restrict("write", label=PART_LABEL))
        try:
            running = self._launch(
                start, order, [blob.restrict("read", label="input") for blob in blobs], handed
            )
            running.part = part
        except DiosError:
            close_all(streams)
            if part is not None and self._saved is not None:
                self._saved.forget(part)
            elif part is not None:
                close_all([part])
            raise
        for reducer, stream in zip(start.partitions, streams, strict=True):
            # The end of a dead reducer is noticed later; a mapper without a reader is stopped then.
            with suppress(DiosError):
                if reducer in self._reducers:
                    stream.delegate(self._reducers[reducer].task, "read")
            stream.close()

    def _stream_to(self, reducer: int) -> Stream:
        """Create a stream on its reader's node, so that a pair crosses between nodes at most once."""
        running = self._reducers.get(reducer)
        size = self._options.stream_bytes
        if running is not None and running.task.node:
            host = running.task.node
            # If that node is dead, its reducer is dead too and is started again.
            with suppress(UnreachableError):
                return self._node.create_stream(ring_bytes=size, host=host)
        return self._node.create_stream(ring_bytes=size)

    def _map_order(self, start: StartJobTask, places: dict[int, int]) -> MapOrder:
        segments = tuple(
            Segment(places[part.input], part.start, part.end, part.first, part.last, part.label)
            for part in self._splits[start.number]
        )
        return MapOrder(
            start.number,
            start.attempt,
            self._options.reducers,
            start.partitions,
            segments,
            self._options.memory_bytes,
            self._options.block_bytes,
        )

    def _launch(
        self, start: StartJobTask, order: Order, inputs: list[Handed], outputs: list[Handed]
    ) -> RunningJobTask:
        """Start one task with its order, its stream of reports, and its data."""
        node = self._node
        words = node.create(ObjectType.SHMEM_BLOB, data=encode(order), naming=NameKind.ANONYMOUS)
        reports = node.create_stream(ring_bytes=JOB_REPORT_RING_BYTES)
        # Before the task starts: an end that was never attached could not show the controller's end.
        _ = reports.reader
        work = self._work_for(start)
        span = active.begin(f"{start.role} {start.number}")
        token = current.set(current.get() if span is None else span.context)
        try:
            task = node.run(
                self._program,
                inputs=[words.restrict("read", label="order"), *inputs],
                outputs=[reports.restrict("write", label="reports"), *outputs],
                label=f"{self._options.label} {start.role} {start.number}",
                brand=self._options.brand,
                limits=self._options.limits,
                work=work,
                # A copy must not wait for a place: nobody would read the reports of the others meanwhile.
                wait=not work.copy_of,
            )
        except DiosError:
            active.end(span, failed=True)
            reports.detach()
            reports.close()
            raise
        finally:
            current.reset(token)
            words.close()
        running = RunningJobTask(start, task, reports, time.monotonic(), span=span)
        self._running.append(running)
        return running

    def _stop(self, stop: Stop) -> None:
        for running in self._running:
            start = running.start
            if start.role is Role.MAPPER and (start.number, start.attempt) == (
                stop.number,
                stop.attempt,
            ):
                running.stopped = True
                _end(running)

    # -- listening ----------------------------------------------------------------------------------
    def _listen(self) -> None:
        """Wait until a task reports or ends, and act on it."""
        told = [running.reports for running in self._running if running.listening]
        ended = [running.task for running in self._running]
        if not ended:
            time.sleep(JOB_REPORT_PERIOD_MS / 1000)  # the next start comes after a pause
            return
        ready = self._node.select([*told, *ended], timeout=JOB_REPORT_PERIOD_MS / 1000)
        if ready is None:
            return
        for running in list(self._running):
            if ready is running.reports:
                self._read(running)
            elif ready is running.task:
                self._ended(running)

    def _read(self, running: RunningJobTask) -> None:
        """Read every report that is here."""
        reader = running.reports.reader
        while running.listening:
            try:
                if not reader.readable():
                    return
                for message in reader.receive_many(timeout_s=0):
                    self._heard(running, message)
            except (EndOfStreamError, ClosedError, UnreachableError):
                running.listening = False
            except TimeLimitError:
                return
            except ProtocolError as error:
                # It broke the stream or sent an invalid report: nothing it does will count.
                running.listening = False
                running.failure = error.message
                _end(running)

    def _heard(self, running: RunningJobTask, message: bytes) -> None:
        report = decode_report(message)
        start = running.start
        self._refusals = 0
        if isinstance(report, ProgressReport):
            running.done += report.amount
            if start.role is Role.MAPPER:
                self._mapped[start.number] = max(self._mapped.get(start.number, 0), running.done)
        elif isinstance(report, Finished):
            running.finished = report
        elif start.role is not Role.REDUCER:
            raise ProtocolError("a mapper sent a report that only reducers send")
        elif isinstance(report, StreamRead):
            self._ledger.heard(start.number, start.attempt, report.mapper, report.attempt)
        elif isinstance(report, PartUnread):
            self._part_unread(report.object_id)
        elif isinstance(report, PairsReceived):
            self._ledger.took(start.number, start.attempt, report.mapper)

    def _ended(self, running: RunningJobTask) -> None:
        """Handle the end of a task: read its last reports, and record the end."""
        self._read(running)
        status = running.task.wait()
        # The last report of a task on another node may come after the notice of its end.
        until = time.monotonic() + JOB_END_TIMEOUT_MS / 1000
        while status.ok and running.finished is None and running.listening and time.monotonic() < until:
            self._node.select([running.reports], timeout=JOB_REPORT_PERIOD_MS / 1000)
            self._read(running)
        self._forget(running)
        start, finished = running.start, running.finished
        self._reports.append(_report_of(running, status))
        failure = running.failure or _failure_of(status, finished)
        active.end(running.span, failed=bool(failure))
        refused = status.cause is Cause.SPAWN and not self._note_refusal()
        moved = refused or status.cause in _MOVED
        if running.stopped:
            self._drop_part(running)
            self._ledger.mapper_stopped(start.number, start.attempt)
        elif start.role is Role.MAPPER:
            counts = not moved and not (failure and self._loses_reader(start))
            self._ledger.mapper_ended(start.number, start.attempt, failure or None, counts=counts)
            if failure:
                self._drop_part(running)
            else:
                self._keep_part(running)
                self._map_seconds.append(time.monotonic() - running.began)
        else:
            self._ledger.reducer_ended(start.number, start.attempt, failure or None, counts=not moved)
            self._outputs_done += not failure
            if not failure:
                self._keep_output(start.number)

    def _drop_part(self, running: RunningJobTask) -> None:
        """Drop the object for the pairs of a mapper that has failed."""
        part, running.part = running.part, None
        if part is not None and self._saved is not None:
            self._saved.forget(part)
        elif part is not None:
            close_all([part])

    def _loses_reader(self, start: StartJobTask) -> bool:
        """Return True if a reducer that reads from a mapper has to leave its node, or has just left it."""
        for number in start.partitions:
            reader = self._reducers.get(number)
            if reader in self._running:
                with suppress(DiosError):
                    status = reader.task.status()
                    if status.leave_ns or status.cause in _MOVED:
                        return True
        return False

    def _forget(self, running: RunningJobTask) -> None:
        self._running.remove(running)
        running.reports.detach()
        close_all((running.reports, running.task))

    def _settle(self) -> None:
        """Wait after the last output for tasks that are about to end, and end the others."""
        patience = time.monotonic() + JOB_END_TIMEOUT_MS / 1000
        while self._running and time.monotonic() < patience:
            self._listen()
        for running in self._running:
            running.stopped = True
            _end(running)
        while self._running:
            self._listen()

    def _end_everything(self) -> None:
        """End every running task, and wait until it is gone."""
        for running in self._running:
            _end(running)
        for running in list(self._running):
            with suppress(DiosError):
                running.task.wait()
            self._forget(running)

    # -- progress -----------------------------------------------------------------------------------
    def _failed(self, step: GiveUp) -> JobFailedError:
        times = "once" if step.attempts == 1 else f"{step.attempts} times"
        return JobFailedError(
            f"{step.role} {step.number} was started {times} and did not succeed: {step.reason}",
            tuple(report for report in self._reports if not report.ok),
        )

    def _tell(self, *, at_once: bool) -> None:
        now = time.monotonic()
        if self._on_progress is None or (now - self._told < JOB_REPORT_PERIOD_MS / 1000 and not at_once):
            return
        self._told = now
        self._on_progress(
            JobProgress(
                bytes_done=min(self._total, sum(self._mapped.values())),
                bytes_total=self._total,
                parts_taken=self._ledger.taken,
                parts_total=self._ledger.mappers * self._ledger.reducers,
                outputs_done=self._outputs_done,
                outputs_total=self._ledger.reducers,
                running=len(self._running),
            )
        )


def _end(running: RunningJobTask) -> None:
    """End a task; the reference stays, and its end is awaited like any other."""
    with suppress(DiosError):
        running.task.kill()


def _failure_of(status: Status, finished: Finished | None) -> str:
    if status.ok:
        return "" if finished is not None else "it ended without a report of its work"
    return status.detail or status.cause.name.lower()


def _report_of(running: RunningJobTask, status: Status) -> TaskReport:
    finished = running.finished or Finished(0, 0, 0)
    return TaskReport(
        role=running.start.role,
        number=running.start.number,
        attempt=running.start.attempt,
        status=status,
        seconds=time.monotonic() - running.began,
        cpu_seconds=finished.cpu_ns / 1e9,
        peak_bytes=finished.peak_bytes,
        input_bytes=running.done if running.start.role is Role.MAPPER else 0,
        pairs=finished.pairs,
        spilled=finished.spilled,
    )
