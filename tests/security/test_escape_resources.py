"""Hostile programs that want all there is of something, each in a pure task of a running node.

What they get is a clear refusal or a clear cause of death; a neighbour's calls are answered throughout.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import dios
from dios import limits
from tests.support.node.confinement import mechanisms_or_skip
from tests.support.security.escape import Cage, Neighbour, open_cage

SMALL = limits.TASK_MEMORY_BYTES_MIN
TASKS = 24
BOUNDS = dios.Limits(memory_bytes=SMALL, processes=32, descriptors=1_000)
C = dios.Cause


@dataclass(frozen=True, slots=True)
class Greed:
    """An attempt to have all of something: what may answer it, or what may be its end."""

    name: str
    claim: str
    answers: tuple[str, ...] = ()
    causes: tuple[dios.Cause, ...] = (C.EXITED,)


def greed(name: str, claim: str, answers: str, *causes: dios.Cause) -> Greed:
    """A row; ``causes`` are for what ends the task and leaves no answer."""
    return Greed(name, claim, tuple(answers.split()), (*causes, C.EXITED) if answers else causes)


MEMORY = (
    greed("memory_bomb", "memory has an end, which is an error in the program", "MemoryError"),
    greed("mapped_memory_bomb", "also where it is mapped", "ENOMEM"),
    greed("one_giant_mapping", "also at once", "ENOMEM"),
    greed("memory_without_a_reserve", "also where the kernel only promises it", "ENOMEM"),
    greed(
        "shared_memory_bomb", "memory that processes share is counted, or not to be had", "EPERM", C.MEMORY
    ),
    greed("stack_bomb", "stacks are memory", "RuntimeError"),
    greed("deep_recursion", "recursion has an end, which is an error", "RecursionError"),
    greed("deep_recursion_in_c", "a stack that is used up ends its task alone", "RecursionError", C.SIGNAL),
    greed("protect_many_pages", "mappings have a number", "ENOMEM"),
)
PROCESSOR = (
    greed("thread_bomb", "threads have a number", "RuntimeError"),
    greed("descriptor_bomb", "descriptors have a number", "EMFILE"),
    greed("pipe_bomb", "filled pipes have a number", "EMFILE ENOMEM", C.MEMORY),
    greed("event_bomb", "event queues have a number", "EMFILE ENOMEM", C.MEMORY),
    greed("socket_pair_bomb", "filled sockets have a number", "EMFILE ENOBUFS ENOMEM", C.MEMORY),
    greed("futex_storm", "sixteen threads at one lock hurt themselves alone", "did:over"),
    greed("signal_storm", "a storm of its own timers hurts itself alone", "did:over"),
    greed("yield_storm", "giving the processor away all the time hurts nobody", "did:over"),
)
SOCKET = (
    greed("flood_with_rubbish", "bytes that are no frame end the session", "ECONNRESET", C.PROTOCOL),
    greed("flood_with_zeroes", "so do frames of nothing", "ECONNRESET", C.PROTOCOL),
    greed("giant_frame", "so does a frame longer than any may be", "ECONNRESET", C.PROTOCOL),
    greed("endless_frame", "a frame that never ends waits for itself alone", "did:over", C.PROTOCOL),
    greed("deep_frame", "so does a frame of arrays in arrays", "ECONNRESET", C.PROTOCOL),
    greed("wide_frame", "so does one that promises more members than it has", "ECONNRESET", C.PROTOCOL),
    greed("giant_vector", "so does a vector of more calls than one may have", "ECONNRESET", C.PROTOCOL),
    greed("flood_with_calls", "lawful calls without end are served in turn", "did:over"),
    greed(
        "never_read_replies",
        "who reads no reply is read no further, or let go",
        "EAGAIN ECONNRESET",
        C.PROTOCOL,
    ),
    greed("wait_without_end", "waiting calls have a number", "did:refused"),
)
NODE = (
    greed("every_reference", "references have a number", "ENOMEM EDQUOT"),
    greed("every_buffer", "buffers have a number", "ENOMEM EDQUOT"),
    greed("every_large_buffer", "also those of shared memory, or its descriptors", "EPROTO ENOMEM EDQUOT"),
    greed("every_stream", "so do streams, before the node has no descriptors for others", "EDQUOT"),
    greed("giant_blob", "an object has a largest size", "EFBIG EDQUOT"),
    greed("flood_the_audit_log", "a flood of refusals is recorded, and others are served", "did:over"),
    greed("task_bomb", "tasks have a number, also those that tasks start", "ENOEXEC ENOMEM EDQUOT"),
)
ALL = (*MEMORY, *PROCESSOR, *SOCKET, *NODE)


@pytest.fixture(scope="module")
def cage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cage]:
    """One node, neighbour and set of witnesses for all attempts."""
    with open_cage(tmp_path_factory.mktemp("resources"), "escape_resources", tasks_max=str(TASKS)) as opened:
        yield opened


@contextmanager
def calling(cage: Cage) -> Iterator[list[bool]]:
    """A neighbour that makes calls one after the other; gives what is appended to by each answer."""
    answered: list[bool] = []
    failed: list[BaseException] = []
    over = threading.Event()
    neighbour = Neighbour(cage.running)

    def call() -> None:
        try:
            while not over.is_set():
                neighbour.is_answered()
                answered.append(True)
        except BaseException as error:  # noqa: BLE001 - told by the test's own thread
            failed.append(error)

    caller = threading.Thread(target=call)
    caller.start()
    try:
        yield answered
    finally:
        over.set()
        caller.join()
        neighbour.client.close()
    assert not failed, failed
    assert answered


@pytest.mark.parametrize("wanted", ALL, ids=lambda wanted: wanted.name)
def test_greed_is_refused(cage: Cage, wanted: Greed) -> None:
    """Who wants all of something is refused clearly, or ends of a clear cause; others are served."""
    with calling(cage):
        said, status = cage.run(wanted.name, limits=BOUNDS)
    told = (wanted.claim, said, status)
    assert status.cause in wanted.causes, told
    if status.cause is C.EXITED:
        assert said, told
        assert said[0].partition(" ")[0] in wanted.answers, told
    else:
        assert status.detail, told
    cage.neighbour.is_answered()
    cage.witness.unharmed()


def names_in_vain() -> int:
    """Return the number of the kernel's entries for names that do not exist."""
    return int(Path("/proc/sys/fs/dentry-state").read_text().split()[4])


def test_names_that_do_not_exist_are_memory_of_their_task(cage: Cage) -> None:
    """Where a control group counts memory, a task keeps no more entries for such names than its limit."""
    if not mechanisms_or_skip()["cgroup_memory"].available:
        pytest.skip("no control group counts memory here")
    before = names_in_vain()
    with calling(cage):
        said, status = cage.run("names_in_vain", limits=BOUNDS)
    assert status.ok, status
    assert names_in_vain() - before < int(said[0].removeprefix("did:")) // 2


@pytest.mark.parametrize("name", ["burn", "burn_in_threads"])
def test_a_processor_limit_ends_who_burns_it(cage: Cage, name: str) -> None:
    """A task that computes for ever ends of its limit, also with threads, and its neighbour was served."""
    with calling(cage):
        said, status = cage.run(name, limits=dios.Limits(cpu_ms=1000, memory_bytes=SMALL))
    assert not said
    assert status.cause is C.CPU, status
    assert "CPU" in status.detail


def test_a_flooded_console_keeps_its_end(cage: Cage) -> None:
    """Sixty megabytes on a console cost bounded memory: its end is kept, and the task ends as it would."""
    with calling(cage):
        said, status = cage.run("flood_the_console")
    assert status.ok, status
    assert said[-1] == "did:over"
    assert sum(map(len, said)) <= limits.CONSOLE_ENDED_BYTES_MAX


def test_after_it_all_the_node_is_as_before(cage: Cage) -> None:
    """A new task starts, has threads and memory, and is answered: nothing is gone for good."""
    program = (
        b"import dios, threading; t = threading.Thread(target=print); t.start(); t.join(); dios.connect()"
    )
    with cage.node.run(program) as task:
        assert task.wait(timeout=20).ok
