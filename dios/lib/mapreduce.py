"""MapReduce over the calls of a node (thesis §3.3, §5.3): ``run(node, "wordcount.py", inputs=["texts/"])``.

``docs/libraries.md#mapreduce`` is for authors of jobs; ``dios.lib.jobs`` is the implementation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dios.client.sync.node import Node, Reference
from dios.client.tracing import active
from dios.errors import DiosError, InvalidError
from dios.lib.jobs.controller import Controller, JobOptions
from dios.lib.jobs.inputs import Inputs, Source, Sources
from dios.lib.jobs.ledger import Role
from dios.lib.jobs.results import JobFailedError, JobProgress, JobResult, OnProgress, TaskReport
from dios.lib.supervised.kept_state import KeptState
from dios.limits import JOB_BLOCK_BYTES_DEFAULT, JOB_KEEP_MAX, JOB_MEMORY_BYTES_DEFAULT, JOB_MEMORY_BYTES_MIN
from dios.wire.messages import Limits
from dios.wire.types import Brand

__all__ = [
    "JobFailedError",
    "JobProgress",
    "JobResult",
    "OnProgress",
    "Role",
    "Source",
    "Sources",
    "TaskReport",
    "run",
]


def run(
    node: Node | Sequence[Node],
    job: str | Path | bytes,
    inputs: Sources,
    *,
    reducers: int = 2,
    workers: int = 2,
    splits: int | None = None,
    attempts: int = 3,
    memory_bytes: int = JOB_MEMORY_BYTES_DEFAULT,
    block_bytes: int = JOB_BLOCK_BYTES_DEFAULT,
    stream_bytes: int = 0,
    ordered: bool = False,
    durable: bool = False,
    groups: Iterable[Reference] = (),
    brand: Brand = Brand.PURE,
    limits: Limits | None = None,
    copies: bool = False,
    keep: int = 0,
    state: KeptState | None = None,
    progress: OnProgress | None = None,
) -> JobResult:
    """Run a MapReduce job and wait for its result.

    ``job`` is the path of a Python file, or its source as bytes. It defines ``map``, ``map_keys`` or
    ``map_block``, ``reduce``, and optionally ``combine``, and is imported by the job's tasks only.
    ``inputs`` are references, files, directories or bytes; in a mapping, the keys are labels for map
    functions with two arguments.

    ``reducers`` is the number of outputs. At most ``workers`` mappers run at a time, and the input is divided
    into ``splits`` mappers (default: the number of workers, more for very large inputs). A failed task is
    started ``attempts`` times in all. Each task keeps about ``memory_bytes`` of pairs and spills the rest.
    A block function gets about ``block_bytes`` at a time. ``stream_bytes`` is the ring between each mapper
    and reducer (0: the node's default). ``ordered`` sorts each output by key. Outputs are ``durable`` or in
    shared memory, and named in ``groups`` if groups are given.

    With ``copies``, the mapper that would end last is started a second time while a worker is free, if it is
    much slower than the others (LATE), and the first of the two to end stops the other.

    With ``keep`` all pairs of a mapper are also written to the disks of that number of nodes, at most
    JOB_KEEP_MAX. A reducer that is started again reads them there, and mappers that have ended are not run
    again while one of these nodes lives.

    With the ``state`` of the kept job whose program this is (``kept_state(node)``), a controller that begins
    again continues from the tasks that are done: their pairs and outputs are on ``keep`` nodes, at least one,
    and outputs are durable. None changes nothing.

    The job survives the end of any node but its controller's, which is ``node``. With sessions at several
    nodes, the next one starts the job again when the first dies; then inputs must be files or bytes, and
    ``groups`` must be empty, because a reference is valid at one node.

    Raises JobFailedError if a task failed for the last time, InvalidError for invalid arguments.
    """
    sessions = [node] if isinstance(node, Node) else list(node)
    if memory_bytes < JOB_MEMORY_BYTES_MIN or block_bytes < 1 or (splits is not None and splits < 1):
        raise InvalidError(f"a job needs {JOB_MEMORY_BYTES_MIN} bytes of memory, one split, and whole blocks")
    if not 0 <= keep <= JOB_KEEP_MAX:
        raise InvalidError(f"the pairs of mappers are kept on 0 to {JOB_KEEP_MAX} nodes, not {keep}")
    if state is not None and (not keep or len(sessions) > 1):
        raise InvalidError(
            "a job that continues from a state keeps pairs, and has one controlling node: give keep=2"
        )
    source, label = _source_of(job)
    options = JobOptions(
        reducers=reducers,
        workers=workers,
        splits=splits,
        attempts=attempts,
        memory_bytes=memory_bytes,
        block_bytes=block_bytes,
        stream_bytes=stream_bytes,
        ordered=ordered,
        durable=durable,
        brand=brand,
        limits=limits,
        label=label,
        copies=copies,
        keep=keep,
    )
    return _run_at_first(sessions, source, inputs, tuple(groups), options, progress, state)


def _run_at_first(
    sessions: list[Node],
    source: str,
    inputs: Sources,
    groups: tuple[Reference, ...],
    options: JobOptions,
    progress: OnProgress | None,
    state: KeptState | None,
) -> JobResult:
    """Run the job at the first node, and again at the next one if that node dies."""
    if not sessions or (len(sessions) > 1 and (groups or _has_references(inputs))):
        raise InvalidError(
            "a job with several controlling nodes takes files or bytes as inputs, and no groups"
        )
    for session in sessions[:-1]:
        try:
            return _run_at(session, source, inputs, groups, options, progress)
        except DiosError:
            if _lives(session):
                raise
    return _run_at(sessions[-1], source, inputs, groups, options, progress, state)


def _run_at(
    node: Node,
    source: str,
    inputs: Sources,
    groups: tuple[Reference, ...],
    options: JobOptions,
    progress: OnProgress | None,
    state: KeptState | None = None,
) -> JobResult:
    with active.span(f"job {options.label}"):
        brought = Inputs(node, compared=state is not None)
        try:
            with active.span("inputs"):
                brought.add_all(inputs)
            return Controller(node, source, brought, groups, options, progress, state).run()
        finally:
            brought.close()


def _lives(node: Node) -> bool:
    try:
        node.info()
    except DiosError:
        return False
    return True


def _has_references(inputs: Sources) -> bool:
    sources = inputs.values() if isinstance(inputs, Mapping) else inputs
    return any(not isinstance(source, bytes | str | Path) for source in sources)


def _source_of(job: str | Path | bytes) -> tuple[str, str]:
    """Return a job's text, and the label of its tasks."""
    try:
        if isinstance(job, bytes):
            return job.decode(), "job"
        path = Path(job)
        return path.read_text(encoding="utf-8"), path.stem
    except UnicodeDecodeError:
        raise InvalidError("the job is not Python source in UTF-8") from None
    except OSError as error:
        raise InvalidError(f"the job {error.filename} cannot be read: {error.strerror}") from None
