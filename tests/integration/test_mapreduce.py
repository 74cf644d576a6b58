"""MapReduce on a real node: pure tasks, streams between them, and what happens when some of them die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

import dios
from dios.client.ops.status import Status
from dios.lib import mapreduce
from dios.lib.jobs import controller
from dios.lib.mapreduce import JobProgress, Role
from dios.wire.types import Cause
from tests.support.node.running_node import RunningNode, exists, running_node, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LINES = [" ".join(f"w{(row * row + column) % 101}" for column in range(8)) for row in range(400)]
TEXT = "\n".join(LINES).encode()
COUNTS = Counter(TEXT.split())

COUNT = b"""
def map_keys(line):
    return line.split()
reduce = sum
"""

COUNT_SLOWLY = b"""
import time
def map(line):
    time.sleep(0.005)
    for word in line.split():
        yield word, 1
combine = reduce = sum
"""

COUNT_AND_DAWDLE = b"""
import time
def map(line):
    for word in line.split():
        yield word, 1
def reduce(key, values):
    time.sleep(0.01)
    return sum(values)
"""

COUNT_IN_MANY_LISTS = b"""
def map(line):
    for word in line.split():
        for turn in range(40):
            yield b"%s-%d" % (word, turn), 1
def reduce(key, values):
    return sum(values)
"""

HOSTILE = b"""
import os, socket
def attempt(what, do):
    try:
        do()
    except OSError as error:
        return what, f"refused: {type(error).__name__}"
    return what, "done"
def map(line):
    yield attempt("open", lambda: open("/etc/passwd"))
    yield attempt("write", lambda: open("/stolen", "w"))
    yield attempt("connect", lambda: socket.create_connection(("127.0.0.1", 9), timeout=1))
    yield attempt("exec", lambda: os.execv("/bin/sh", ["sh", "-c", "true"]))
    yield attempt("fork", lambda: os.fork())
def reduce(key, values):
    return sorted(set(values))
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this file."""
    with running_node(tmp_path_factory.mktemp("mapreduce") / "node") as node:
        yield node


@pytest.fixture
def node(started: RunningNode) -> Iterator[dios.Node]:
    """A session of a person; at its end no task may be left."""
    with dios.connect(started.place, groups=()) as session:
        yield session
        wait_until(lambda: all(task.ended for task in session.tasks()), "all tasks have ended")


class Killer:
    """Kills the first task of a role as soon as a job's progress allows it."""

    def __init__(self, node: dios.Node, role: Role, when: Callable[[JobProgress], bool]) -> None:
        self.node = node
        self.role = role
        self.when = when
        self.killed = 0

    def __call__(self, progress: JobProgress) -> None:
        """Look at each report of progress."""
        if self.killed or not self.when(progress):
            return
        for task in self.node.tasks():
            if not task.ended and f" {self.role} " in task.label and task.pid:
                self.killed = task.pid
                os.kill(self.killed, signal.SIGKILL)
                wait_until(lambda: not exists(self.killed), "the task is dead")
                return


def in_the_middle(progress: JobProgress) -> bool:
    """Whether mappers have begun and are far from done."""
    return 0 < progress.bytes_done < progress.bytes_total // 2


def test_words_are_counted(node: dios.Node) -> None:
    """Five mappers, two at a time, and three reducers give the counts of a plain Counter, once each."""
    with mapreduce.run(node, COUNT, [TEXT], reducers=3, workers=2, splits=5) as result:
        pairs = list(result)
        assert dict(pairs) == COUNTS
        assert len(pairs) == len(COUNTS)
        assert len(result.outputs) == 3
        assert result.input_bytes == len(TEXT)
        assert sum(task.input_bytes for task in result.tasks) == len(TEXT)
        ran = Counter(task.role for task in result.tasks)
        assert ran == {Role.MAPPER: 5, Role.REDUCER: 3}
        assert len({task.status.pid for task in result.tasks}) == 8


def test_output_is_the_same_in_every_run(node: dios.Node) -> None:
    """The same job gives the same output bytes whichever mapper is faster."""
    outputs = set()
    for _ in range(3):
        with mapreduce.run(node, COUNT, [TEXT], reducers=1, workers=3) as result:
            outputs.add(result.outputs[0].read_bytes())
    assert len(outputs) == 1


def test_a_job_without_input_has_empty_outputs(node: dios.Node) -> None:
    """No bytes, no mappers, and outputs with nothing in them."""
    with mapreduce.run(node, COUNT, [b""]) as result:
        assert list(result) == []
        assert all(task.role is Role.REDUCER for task in result.tasks)


def test_a_killed_mapper_runs_again(node: dios.Node) -> None:
    """A mapper that is killed in the middle of its work is run again, and every word counts once."""
    killer = Killer(node, Role.MAPPER, in_the_middle)
    with mapreduce.run(node, COUNT_SLOWLY, [TEXT], progress=killer, block_bytes=500) as result:
        assert killer.killed
        assert dict(result) == COUNTS
        (failed,) = result.failures
        assert (failed.role, failed.attempt) == (Role.MAPPER, 1)
        assert failed.status.pid == killer.killed
        assert max(task.attempt for task in result.tasks) == 2


def test_a_killed_reducer_runs_again(node: dios.Node) -> None:
    """A reducer that is killed is run again; mappers repeat only its part, and every word counts once."""
    killer = Killer(node, Role.REDUCER, lambda progress: progress.parts_taken == progress.parts_total)
    with mapreduce.run(node, COUNT_AND_DAWDLE, [TEXT], reducers=2, progress=killer) as result:
        assert killer.killed
        assert dict(result) == COUNTS
        (failed,) = result.failures
        assert failed.role is Role.REDUCER
        again = [task for task in result.tasks if task.attempt == 2]
        assert Counter(task.role for task in again) == {Role.MAPPER: 2, Role.REDUCER: 1}


def test_a_reducer_killed_early_holds_nobody_up(node: dios.Node) -> None:
    """A reducer that dies while mappers work is replaced, and the mappers' parts for the other one stand."""
    killer = Killer(node, Role.REDUCER, in_the_middle)
    with mapreduce.run(node, COUNT_SLOWLY, [TEXT], progress=killer, block_bytes=500) as result:
        assert killer.killed
        assert dict(result) == COUNTS


def test_a_reducer_short_of_memory_spills(node: dios.Node) -> None:
    """With hardly any memory a reducer puts sorted runs on disk, and the counts are the same."""
    with mapreduce.run(node, COUNT_IN_MANY_LISTS, [TEXT], reducers=1, memory_bytes=64 * 1024) as result:
        counts = dict(result)
        assert sum(task.spilled for task in result.tasks) > 0
        keys = [key for key in counts if isinstance(key, bytes)]
        assert keys == sorted(keys)
    assert counts == {b"%s-%d" % (word, turn): count for word, count in COUNTS.items() for turn in range(40)}


def test_refused_starts_are_no_attempts_of_a_tasks_program(
    node: dios.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with one attempt for each task survives errors of the call, and tasks that never ran."""
    monkeypatch.setattr(controller, "_REFUSED_S", (0.001, 0.001))
    run, wait = dios.Node.run, dios.Task.wait
    refusals: list[str] = []

    def refuse(self: dios.Node, *args: object, **kwargs: object) -> dios.Task:
        if len(refusals) < 3:
            refusals.append("call")
            raise dios.OutOfMemoryError("no memory")
        return run(self, *args, **kwargs)  # type: ignore[arg-type]

    def end_unstarted(self: dios.Task, timeout: float | None = None) -> Status:
        if len(refusals) >= 6:
            return wait(self, timeout)
        refusals.append("task")
        return replace(wait(self, timeout), cause=Cause.SPAWN)

    monkeypatch.setattr(dios.Node, "run", refuse)
    monkeypatch.setattr(dios.Task, "wait", end_unstarted)
    with mapreduce.run(node, COUNT, [TEXT], attempts=1) as result:
        assert dict(result) == COUNTS
    assert refusals == ["call"] * 3 + ["task"] * 3


def test_a_job_whose_starts_are_all_refused_fails_with_the_reason(
    node: dios.Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience ends."""
    monkeypatch.setattr(controller, "_REFUSED_S", (0.001, 0.001))

    def refuse(self: dios.Node, *args: object, **kwargs: object) -> dios.Task:
        del self, args, kwargs
        raise dios.OutOfMemoryError("no memory anywhere")

    monkeypatch.setattr(dios.Node, "run", refuse)
    with pytest.raises(mapreduce.JobFailedError, match="no memory anywhere"):
        mapreduce.run(node, COUNT, [TEXT], attempts=1)


def test_a_function_that_fails_fails_the_job(node: dios.Node) -> None:
    """After the last attempt the job says which task failed and with which exception."""
    job = b"def map(line): raise KeyError('no such column')\nreduce = sum\n"
    with pytest.raises(mapreduce.JobFailedError, match="no such column") as caught:
        mapreduce.run(node, job, [TEXT], attempts=2)
    assert "mapper" in str(caught.value)
    assert all(failure.status.exit_code for failure in caught.value.failures)


def test_a_job_that_is_no_job_fails_with_the_reason(node: dios.Node) -> None:
    """A module without a reduce function, or that is no Python, fails in its tasks, never here."""
    for job, reason in ((b"def map(line): ...\n", "reduce"), (b"def map(line) ...\n", "SyntaxError")):
        with pytest.raises(mapreduce.JobFailedError, match=reason):
            mapreduce.run(node, job, [TEXT], attempts=1)


def test_a_hostile_map_function_is_refused(node: dios.Node) -> None:
    """Opening files, connecting, exec and fork are refused inside a mapper, and the job's output says so."""
    if node.info().guarantees["pure tasks"] != "confined":
        pytest.skip(f"pure tasks are not confined: {node.info().guarantees['pure tasks']}")
    with mapreduce.run(node, HOSTILE, [b"one line\n"], reducers=1) as result:
        outcomes = dict(result)
    assert set(outcomes) == {"open", "write", "connect", "exec", "fork"}
    for told in outcomes.values():
        assert isinstance(told, list)
        assert all(text.startswith("refused") for text in told)


def test_tasks_get_only_what_they_need(node: dios.Node) -> None:
    """A mapper may read its order and input, write its reports and streams, in a group of its own."""
    job = b"""
import dios
def map(line):
    node = dios.connect()
    yield "inputs", sorted({str(int(item.permissions)) for item in node.inputs})
    yield "outputs", sorted({str(int(item.permissions)) for item in node.outputs})
    yield "groups", [str(len(node.groups))]
def reduce(key, values):
    return values[0]
"""
    with mapreduce.run(node, job, [b"one line\n"], reducers=1) as result:
        handed = dict(result)
    assert handed == {"inputs": ["1"], "outputs": ["2"], "groups": ["1"]}


def test_the_controller_may_be_a_pure_task(node: dios.Node) -> None:
    """A controller that is itself confined runs a job over references it was handed, as in §5.4.2."""
    controller = b"""
import dios
from dios.client.sync.connection import Connection
from dios.lib import mapreduce
node = dios.connect()
job = node.input("job").read_bytes()
with mapreduce.run(node, job, [node.input("text")], reducers=1) as result:
    node.output("counts").write_bytes(b" ".join(b"%s=%d" % pair for pair in sorted(result)))
"""
    job = node.create(dios.SHMEM_BLOB, data=COUNT, naming=dios.ANONYMOUS)
    text = node.create(dios.SHMEM_BLOB, data=TEXT, naming=dios.ANONYMOUS)
    counts = node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS)
    task = node.run(
        controller,
        inputs={"job": job.restrict("read"), "text": text.restrict("read", "delegate")},
        outputs={"counts": counts.restrict("write")},
    )
    status = task.wait(timeout=60)
    assert status.ok, status.detail
    assert counts.read_bytes() == b" ".join(b"%s=%d" % pair for pair in sorted(COUNTS.items()))


def test_an_inverted_index_of_a_directory(node: dios.Node, tmp_path: Path) -> None:
    """The example finds each word's documents, in sorted outputs that are durable and named in a group."""
    (tmp_path / "deep").mkdir()
    (tmp_path / "one.txt").write_text("red green\nGreen blue\n")
    (tmp_path / "deep" / "two.txt").write_text("blue sky")
    (tmp_path / "empty.txt").write_text("")
    group = node.create_group()
    job = EXAMPLES / "inverted_index.py"
    with mapreduce.run(node, job, [tmp_path], ordered=True, durable=True, groups=[group]) as result:
        assert dict(result) == {
            "red": ["one.txt"],
            "green": ["one.txt"],
            "blue": ["deep/two.txt", "one.txt"],
            "sky": ["deep/two.txt"],
        }
        for output in result.outputs:
            assert output.name is not None
            (reference,) = node.lookup(output.name, group=group)
            assert reference.persistence is dios.Persistence.DURABLE


def test_a_join_of_two_inputs(node: dios.Node, tmp_path: Path) -> None:
    """The example joins two labelled inputs, one of them a durable object, the other a file."""
    (tmp_path / "orders.tsv").write_text("1\tapple\n1\tpear\n3\tplum\n")
    people = node.create(dios.DURABLE_BLOB, data=b"1\tAda\n2\tBob\n", naming=dios.ANONYMOUS)
    inputs: mapreduce.Sources = {"people": people, "orders": tmp_path / "orders.tsv"}
    with mapreduce.run(node, EXAMPLES / "join.py", inputs) as result:
        assert dict(result) == {"1": [["Ada", "apple"], ["Ada", "pear"]]}


@pytest.mark.parametrize("name", ["wordcount.py", "wordcount_block.py"])
def test_word_count_examples(node: dios.Node, name: str) -> None:
    """The examples count words without regard to case."""
    with mapreduce.run(node, EXAMPLES / name, [b"Red red\nGREEN red\n"]) as result:
        assert dict(result) == {b"RED": 3, b"GREEN": 1}


def test_a_block_function_may_use_numpy(node: dios.Node) -> None:
    """A pure task imports a package that the node's Python has, and the columnar example counts right."""
    if find_spec("numpy") is None:
        pytest.skip("numpy is not installed: make setup")
    words = TEXT + b"\nextraordinarily long words are counted one by one\n"
    with mapreduce.run(node, EXAMPLES / "wordcount_numpy.py", [words]) as result:
        assert dict(result) == Counter(words.split())


def test_tasks_of_a_killed_controller_end(node: dios.Node, started: RunningNode, tmp_path: Path) -> None:
    """When the controller is killed without a word, its tasks notice and end by themselves."""
    program = (
        "import sys, dios\n"
        "from dios.lib import mapreduce\n"
        "with dios.connect(sys.argv[1], groups=()) as node:\n"
        f"    mapreduce.run(node, {COUNT_SLOWLY!r}, [sys.argv[2]], block_bytes=500)\n"
    )
    text = tmp_path / "text"
    text.write_bytes(TEXT * 50)
    with subprocess.Popen([sys.executable, "-c", program, started.place, str(text)]) as controller:
        wait_until(lambda: sum(not task.ended for task in node.tasks()) == 4, "the job's tasks run")
        controller.kill()
    wait_until(lambda: all(task.ended for task in node.tasks()), "its tasks have ended")


def test_mappers_report_their_share_to_the_node(node: dios.Node) -> None:
    """While they map, their tasks show it; reducers do not know how much will come, and show none."""
    seen: dict[str, set[float | None]] = {role: set() for role in Role}

    def look(progress: JobProgress) -> None:
        del progress
        for task in node.tasks():
            for role in Role:
                if f" {role} " in task.label:
                    seen[role].add(task.progress)

    mapreduce.run(node, COUNT_SLOWLY, [TEXT], progress=look, block_bytes=500).close()
    assert seen[Role.REDUCER] == {None}
    shares = {share for share in seen[Role.MAPPER] if share is not None}
    assert shares
    assert all(0 <= share <= 1 for share in shares)


STUCK_AT_FIRST = (
    COUNT
    + b"""
import time
import dios
from dios.lib.jobs.orders import MapOrder, decode_order

order = decode_order(dios.connect().inputs[0].read_bytes())
if isinstance(order, MapOrder) and (order.mapper, order.attempt) == (5, 1):
    time.sleep(3600)
"""
)


def test_a_mapper_that_is_stuck_is_copied(node: dios.Node) -> None:
    """Its copy serves the reducers, the stuck attempt is ended, and nothing counts twice or as a failure."""
    with mapreduce.run(node, STUCK_AT_FIRST, [TEXT], splits=6, workers=3, attempts=1, copies=True) as result:
        assert dict(result) == COUNTS
        mappers = [
            (task.number, task.attempt) for task in result.tasks if task.role is Role.MAPPER and task.ok
        ]
        assert sorted(mappers) == [(0, 1), (1, 1), (2, 1), (3, 1), (4, 1), (5, 2)]
        ended = [task for task in result.tasks if task.role is Role.MAPPER and not task.ok]
        assert [(task.number, task.attempt) for task in ended] == [(5, 1)]


def test_an_interrupted_job_leaves_nothing(node: dios.Node) -> None:
    """When the controller is interrupted, its tasks are ended before the exception goes on."""

    def interrupt(progress: JobProgress) -> None:
        if progress.running:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mapreduce.run(node, COUNT_SLOWLY, [TEXT * 50], progress=interrupt)
    assert all(task.ended for task in node.tasks())


# -- what stays --------------------------------------------------------------------------------------
def data_objects(node: dios.Node) -> set[str]:
    """The node's blobs and streams, without the programs that it keeps of failed tasks."""
    kinds = {"SHMEM_BLOB", "DURABLE_BLOB", "SHMEM_STREAM"}
    rows = node.read_table("objects")
    return {str(row["fingerprint"]) for row in rows if row["type"] in kinds and not row["pinned"]}


@pytest.mark.parametrize("job", [COUNT, b"def map(line): raise ValueError\ndef reduce(key, values): ..."])
def test_a_job_leaves_no_reference(node: dios.Node, job: bytes) -> None:
    """After a job, complete or failed, its controller's session holds what it held before."""
    before = node.info().counts["references"]
    try:
        with mapreduce.run(node, job, [TEXT], attempts=2) as result:
            assert result.outputs
    except mapreduce.JobFailedError:
        assert job is not COUNT
    assert node.info().counts["references"] == before


def test_a_killed_controller_leaves_no_objects(node: dios.Node, started: RunningNode, tmp_path: Path) -> None:
    """Of a job with durable outputs in a group nothing stays when its controller is killed."""
    group = node.create_group()
    before = data_objects(node)
    script = tmp_path / "controller.py"
    script.write_text(
        "import dios\nfrom dios.lib import mapreduce\n"
        f"with dios.connect({started.place!r}, groups=[{group.name!r}]) as node:\n"
        f"    group = next(one for one in node.groups if one.fingerprint == {group.fingerprint!r})\n"
        f"    mapreduce.run(node, {COUNT_SLOWLY!r}, [{TEXT!r}], splits=8, durable=True, groups=[group])\n"
    )
    controller = subprocess.Popen([sys.executable, str(script)])
    try:
        wait_until(lambda: len(data_objects(node) - before) > 4, "the job runs")
    finally:
        controller.kill()
        controller.wait()
    wait_until(lambda: data_objects(node) <= before, "nothing of the job is left")
