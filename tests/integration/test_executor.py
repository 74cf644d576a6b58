"""``dios.Executor`` on a running node: an executor of the standard library, whose workers nobody trusts."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import dios
from dios.lib.executor import frames, output, pool
from dios.lib.executor.errors import (
    InitializerError,
    NoWorkerError,
    UntrustedResultError,
    WorkerEndedError,
)
from dios.lib.executor.pool import FAILED_STARTS_MAX, REFUSED_STARTS_MAX
from tests.support.node.running_node import RunningNode, wait_until
from tests.support.node.unconfined_node import unconfined_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module."""
    running = RunningNode(tmp_path_factory.mktemp("executor") / "data", {})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def executor(node: RunningNode) -> Iterator[dios.Executor]:
    """An executor with two workers."""
    with dios.Executor(2, node=node.place) as executor:
        yield executor


def test_a_waiting_call_shows_its_place_and_the_reason(node: RunningNode) -> None:
    """A future tells its state without waiting, from the queue to the end of the call."""
    with dios.Executor(1, node=node.place) as executor:
        done = executor.submit(pow, 2, 3)
        assert done.result() == 8
        assert done.status() == ("done", 0, 0, "")
        first = executor.submit(time.sleep, 3600)
        wait_until(lambda: first.status().state == "running", "the first call runs")
        rest = [executor.submit(pow, 2, exponent) for exponent in range(50)]
        wait_until(lambda: rest[49].status().place > 0, "the last call waits")
        statuses = [future.status() for future in rest]
        queued = [status for status in statuses if status.place]
        assert [status.place for status in queued] == list(range(1, len(queued) + 1))
        assert {(status.state, status.waiting) for status in queued} == {("waiting", len(queued))}
        reason = "all workers have calls that come before it"
        assert str(statuses[-1]) == f"waiting, place {len(queued)} of {len(queued)}: {reason}"
        assert rest[49].cancel()
        assert rest[49].status() == ("cancelled", 0, 0, "")
        executor.kill_workers()
        assert isinstance(first.exception(), WorkerEndedError)
        assert first.status().state == "failed"


def test_calls_return_their_values(executor: dios.Executor) -> None:
    """Functions of all kinds run with their arguments, in any number."""
    assert executor.submit(pow, 2, 10).result() == 1024

    def both(x: int, *, y: set[int]) -> tuple[int, set[int]]:
        return x, y

    assert executor.submit(both, 1, y={2}).result() == (1, {2})
    assert executor.submit(functools.partial(max, key=abs), [1, -3]).result() == -3
    assert executor.submit("a-b".split, "-").result() == ["a", "b"]
    futures = [executor.submit(lambda x: x * x, number) for number in range(3000)]
    assert [future.result() for future in futures] == [number * number for number in range(3000)]
    assert executor.stats().waiting == 0


def test_the_module_of_futures_works_with_it(executor: dios.Executor) -> None:
    """``wait``, ``as_completed``, callbacks and asyncio see ordinary futures."""
    futures = [executor.submit(abs, -number) for number in range(5)]
    assert {future.result() for future in concurrent.futures.as_completed(futures, timeout=30)} == set(
        range(5)
    )
    done, rest = concurrent.futures.wait(futures)
    assert (len(done), len(rest)) == (5, 0)
    called = threading.Event()
    executor.submit(abs, 1).add_done_callback(lambda _future: called.set())
    assert called.wait(30)

    async def gathered() -> list[int]:
        loop = asyncio.get_running_loop()
        return list(await asyncio.gather(*(loop.run_in_executor(executor, abs, -n) for n in range(3))))

    assert asyncio.run(gathered()) == [0, 1, 2]


def test_an_exception_is_raised_again_with_the_remote_traceback(executor: dios.Executor) -> None:
    """The exception keeps its type and arguments; its cause shows the worker's lines."""

    def fails() -> None:
        raise KeyError("there is none")

    with pytest.raises(KeyError, match="there is none") as caught:
        executor.submit(fails).result()
    assert "in fails" in str(caught.value.__cause__)
    assert isinstance(executor.submit(fails).exception(), KeyError)


def test_map_keeps_order_and_chooses_chunks(
    executor: dios.Executor, capsys: pytest.CaptureFixture[str]
) -> None:
    """Results come in the order of the items, with any size of chunks."""
    assert list(executor.map(lambda a, b: a + b, range(500), range(500), progress=True)) == list(
        range(0, 1000, 2)
    )
    assert "500 of 500" in capsys.readouterr().err
    assert list(executor.map(abs, [-1, -2, -3], chunksize=2)) == [1, 2, 3]
    assert list(executor.map(abs, [])) == []
    with pytest.raises(ValueError, match="chunksize"):
        executor.map(abs, [1], chunksize=0)


def test_arrays_go_and_come_by_their_buffers(executor: dios.Executor) -> None:
    """Arrays larger than the rings arrive unchanged in both directions."""
    array = np.arange(3_000_000, dtype=np.float64)
    assert executor.submit(np.sum, array).result() == array.sum()
    assert np.array_equal(executor.submit(np.arange, 3_000_000).result(), np.arange(3_000_000))


def test_a_worker_has_its_arguments_and_nothing_else(executor: dios.Executor) -> None:
    """Files, network and other programs are out of the reach of a call."""

    def tries() -> list[str]:
        import socket

        failed = []
        for name, attempt in (
            ("file", lambda: open("/etc/passwd")),  # noqa: PTH123, SIM115 - the attempt fails
            ("network", lambda: socket.create_connection(("127.0.0.1", 1))),
            ("program", lambda: os.posix_spawn("/bin/true", ["true"], {})),
        ):
            try:
                attempt()
            except OSError:
                failed.append(name)
        return failed

    assert executor.submit(tries).result() == ["file", "network", "program"]


def test_what_a_worker_may_not_send_is_refused(executor: dios.Executor) -> None:
    """A result that would run code in the caller is an error of that call alone."""

    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, ("true",)

    with pytest.raises(UntrustedResultError, match="system"):
        executor.submit(lambda: Evil()).result()  # noqa: PLW0108 - a class would be refused at once
    assert executor.submit(abs, -1).result() == 1


def test_what_cannot_be_sent_is_an_error_of_its_call(executor: dios.Executor) -> None:
    """An argument that cannot be pickled, and a result that cannot, are named; the worker goes on."""
    with pytest.raises(dios.InvalidError, match="argument cannot be sent"):
        executor.submit(id, threading.Lock()).result()
    with pytest.raises(TypeError, match="pickle"):
        executor.submit(threading.Lock).result()
    with pytest.raises(dios.InvalidError, match=r"dios\.current_executor"):
        executor.submit(id, executor).result()
    with pytest.raises(dios.InvalidError, match="a generator"):
        executor.submit(lambda: (yield))
    assert executor.submit(abs, -1).result() == 1


def test_a_worker_that_ends_fails_its_call_alone(node: RunningNode) -> None:
    """A call that ends its process fails with the reason; waiting calls get a new worker."""
    with dios.Executor(1, node=node.place) as executor:
        ended = executor.submit(os._exit, 3)
        after = [executor.submit(abs, -number) for number in range(20)]
        with pytest.raises(WorkerEndedError, match="exit code"):
            ended.result(60)
        assert [future.result(60) for future in after] == list(range(20))
        assert executor.stats().workers_lost == 1
        with pytest.raises(WorkerEndedError):
            executor.submit(sys.exit, 0).result(60)


def test_a_worker_over_its_memory_is_named(node: RunningNode) -> None:
    """A limit of the workers holds, and the error says which."""
    with dios.Executor(1, node=node.place, limits=dios.Limits(memory_bytes=64 << 20)) as executor:
        with pytest.raises((MemoryError, WorkerEndedError)):
            executor.submit(lambda: len(bytearray(500 << 20))).result(60)
        assert executor.submit(abs, -1).result(60) == 1


def test_an_initializer_runs_first_and_its_failure_is_reported(node: RunningNode) -> None:
    """Each worker runs the initializer; if it raises, calls fail with its exception as the cause."""

    def prepare(value: int) -> None:
        import builtins

        builtins.prepared = value  # type: ignore[attr-defined]

    with dios.Executor(2, node=node.place, initializer=prepare, initargs=(5,)) as executor:
        assert executor.submit(eval, "prepared").result(60) == 5
    with dios.Executor(1, node=node.place, initializer=lambda: 1 // 0) as executor:
        with pytest.raises(InitializerError, match="division") as caught:
            executor.submit(abs, 1).result(60)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_change_of_what_a_function_refers_to_is_seen(executor: dios.Executor) -> None:
    """A function is sent again if a list or a cell to which it refers has changed."""
    values = [1]
    total = lambda: sum(values)  # noqa: E731 - a closure
    assert executor.submit(total).result() == 1
    values.append(2)
    assert executor.submit(total).result() == 3


def test_killed_workers_fail_their_calls(node: RunningNode) -> None:
    """Without waiting for long calls, their workers end, and calls that run or wait raise."""
    executor = dios.Executor(1, node=node.place)
    calls = [executor.submit(__import__("time").sleep, 600) for _ in range(3)]
    executor.kill_workers()
    for call in calls:
        with pytest.raises(WorkerEndedError):
            call.result()
    with pytest.raises(WorkerEndedError, match="was stopped"):
        executor.submit(abs, 1)
    executor.shutdown()  # returns when the worker has ended


def test_shutdown_and_cancel_are_those_of_the_standard_library(node: RunningNode) -> None:
    """Calls that wait can be cancelled; after the end none is accepted, and no process is left."""
    with dios.Executor(1, node=node.place) as first:
        first.submit(abs, -1).result(60)  # it starts what all tasks share
    before = node.descendants()
    executor = dios.Executor(1, node=node.place)
    slow = executor.submit(__import__("time").sleep, 0.5)
    waiting = [executor.submit(abs, number) for number in range(5)]
    assert waiting[3].cancel()
    executor.shutdown(wait=True, cancel_futures=True)
    assert slow.done()
    assert waiting[3].cancelled()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, 1)
    wait_until(lambda: len(node.descendants()) <= len(before) + 1, "the worker has ended")
    with pytest.raises(ValueError, match="max_workers"):
        dios.Executor(0, node=node.place)
    with pytest.raises(TypeError, match="integer"):
        dios.Executor(2.5, node=node.place)  # type: ignore[arg-type]


def test_modules_beside_the_program_are_sent_along(node: RunningNode, tmp_path: Path) -> None:
    """A function of a sibling module that uses another one, and a package, runs in a worker."""
    (tmp_path / "sibling.py").write_text("import helper\ndef twice(x): return helper.add(x, x)\n")
    (tmp_path / "helper.py").write_text("def add(a, b): return a + b\n")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("")
    (tmp_path / "parts" / "inner.py").write_text("def inner(): from parts.late import VALUE; return VALUE\n")
    (tmp_path / "parts" / "late.py").write_text("VALUE = 7\n")
    (tmp_path / "job.py").write_text(
        textwrap.dedent(f"""
            import dios, sibling, parts.inner
            with dios.Executor(1, node={node.place!r}) as executor:
                print(executor.submit(sibling.twice, 4).result(), executor.submit(parts.inner.inner).result())
                print(executor.submit(lambda: sibling.twice(5)).result())
        """)
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py")], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == "8 7\n10\n", done.stderr


def _processes_of(folder: Path) -> list[str]:
    """Return the commands of the processes that name a folder."""
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(folder) in command:
            commands.append(command)
    return commands


def test_without_a_node_a_private_one_is_started_and_ends(tmp_path: Path) -> None:
    """A script needs nothing set up and is told so; the node ends with it, even after kill -9."""
    script = (
        "import dios, os, sys\n"
        "executor = dios.Executor(1)\n"
        "print(executor.submit(abs, -3).result(), flush=True)\n"
    )
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "TMPDIR": str(tmp_path)}
    environment.pop("DIOS_NODE", None)
    for end in ("", "sys.stdout.flush(); os.kill(os.getpid(), 9)\n"):
        done = subprocess.run(
            [sys.executable, "-c", script + end],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=environment,
        )
        assert done.stdout == "3\n", done.stderr
        assert "private one" in done.stderr
        wait_until(lambda: not _processes_of(tmp_path), "the private node has ended")
        wait_until(lambda: not list(tmp_path.glob("dios-*")), "its data are deleted")


# -- failures and hostile workers ---------------------------------------------------------------------
def _send_as_worker(kind: int, body: bytes) -> None:
    """Send any frame to the caller: a call can reach everything in its process."""
    import gc

    from dios.lib.executor.worker import _Worker

    next(candidate for candidate in gc.get_objects() if isinstance(candidate, _Worker)).send(kind, body)


def test_workers_that_end_at_their_start_break_the_executor(node: RunningNode) -> None:
    """After some attempts in a row the calls fail with the reason, and further calls are refused."""
    with dios.Executor(2, node=node.place, initializer=os._exit, initargs=(7,)) as executor:
        futures = [executor.submit(abs, number) for number in range(3)]
        for future in futures:
            with pytest.raises(NoWorkerError, match=r"exit code 7.*attempts"):
                future.result(60)
        with pytest.raises(NoWorkerError):
            executor.submit(abs, 1)
        assert FAILED_STARTS_MAX <= executor.stats().workers_started <= FAILED_STARTS_MAX + 1


def test_a_start_that_is_refused_for_good_is_reported_at_once(node: RunningNode) -> None:
    """A host that does not exist is an error of the call, which names it."""
    with (
        dios.Executor(1, node=node.place, host="nowhere") as executor,
        pytest.raises(NoWorkerError, match="nowhere"),
    ):
        executor.submit(abs, 1).result(60)


def test_a_machine_that_cannot_confine_tasks_is_reported(tmp_path: Path) -> None:
    """Calls fail with the reason, when no worker's process can be started; later ones try again."""
    with unconfined_node(tmp_path / "data") as data, dios.Executor(1, node=data) as executor:
        for _ in range(2):
            with pytest.raises(NoWorkerError, match="cannot confine them: mount missing"):
                executor.submit(abs, 1).result(60)
        assert executor.stats().workers_started == 0


@pytest.mark.parametrize("kind", [dios.LimitError, dios.DiosError])
def test_refused_starts_do_not_break_an_executor(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch, kind: type[dios.DiosError]
) -> None:
    """Calls wait for refusals that pass by themselves, and fail after some others; then calls run again."""
    monkeypatch.setattr(pool, "_RETRY_S", (0.001, 0.001))
    original = dios.Node.run
    left = [FAILED_STARTS_MAX]

    def run(self: dios.Node, *args: object, **kwargs: object) -> dios.Task:
        if left[0]:
            left[0] -= 1
            raise kind("not now")
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(dios.Node, "run", run)
    with dios.Executor(1, node=node.place) as executor:
        first = executor.submit(abs, -1)
        if kind is dios.DiosError:
            with pytest.raises(NoWorkerError, match="not now"):
                first.result(60)
            first = executor.submit(abs, -1)
        assert first.result(60) == 1


def test_calls_that_wait_too_long_for_refusals_fail_with_the_reason(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound on the refusals of starts that may pass; the executor can be used later."""
    monkeypatch.setattr(pool, "_RETRY_S", (0.001, 0.001))
    attempts: list[int] = []

    def run(self: dios.Node, *args: object, **kwargs: object) -> dios.Task:
        del self, args, kwargs
        attempts.append(1)
        raise dios.LimitError("no more tasks")

    with monkeypatch.context() as refusing, dios.Executor(1, node=node.place) as executor:
        refusing.setattr(dios.Node, "run", run)
        with pytest.raises(NoWorkerError, match="no more tasks"):
            executor.submit(abs, -1).result(60)
        assert len(attempts) == REFUSED_STARTS_MAX
        refusing.undo()
        assert executor.submit(abs, -1).result(60) == 1


def test_a_refused_start_is_tried_again_and_a_slow_one_delays_no_call(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the node refuses or delays a second worker, the first one goes on; then the second one starts."""
    original = dios.Node.run
    attempts: list[int] = []
    go_on = threading.Event()

    def run(self: dios.Node, *args: object, **kwargs: object) -> dios.Task:
        attempts.append(1)
        if len(attempts) == 2:
            raise dios.LimitError("no more tasks")
        if len(attempts) == 3:
            assert go_on.wait(60)
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(dios.Node, "run", run)
    with dios.Executor(2, node=node.place) as executor:
        first = executor.submit(abs, -1)
        assert first.result(60) == 1
        calls = [executor.submit(__import__("time").sleep, 0.01) for _ in range(200)]
        wait_until(lambda: len(attempts) == 3, "the start is tried again")
        assert not go_on.is_set()
        assert calls[10].result(60) is None
        assert executor.stats().workers == 1
        go_on.set()
        wait_until(lambda: executor.stats().workers_started == 2, "the second worker has started")
        assert all(call.result(60) is None for call in calls)


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (frames.BROKEN, b"\x80\x05.", "kind 8"),
        (frames.READY, b"", "kind 9"),
        (frames.CALL, b"", "kind 2"),
        (frames.RESULT, frames.number(10**6) + b"m\x01", "not given"),
        (frames.RESULT, b"short", "no number"),
    ],
)
def test_a_hostile_frame_ends_its_worker_alone(
    node: RunningNode, kind: int, body: bytes, reason: str
) -> None:
    """A worker that breaks the rules, or claims that its initializer failed, ends with its own call."""
    with dios.Executor(1, node=node.place, initializer=abs, initargs=(1,)) as executor:
        hostile = executor.submit(_send_as_worker, kind, body)
        after = [executor.submit(abs, -number) for number in range(10)]
        with pytest.raises(WorkerEndedError, match=reason):
            hostile.result(60)
        assert [future.result(60) for future in after] == list(range(10))


def test_a_frame_of_a_worker_has_a_bounded_length(node: RunningNode) -> None:
    """The caller buffers no frame over the bound, whatever its head promises."""

    def promise() -> None:
        import gc

        from dios.lib.executor.worker import _Worker

        worker = next(candidate for candidate in gc.get_objects() if isinstance(candidate, _Worker))
        worker._results.write((frames.RESULT_BYTES_MAX + 1).to_bytes(4, "little") + b"\x06")

    with (
        dios.Executor(1, node=node.place) as executor,
        pytest.raises(WorkerEndedError, match=f"over {frames.RESULT_BYTES_MAX}"),
    ):
        executor.submit(promise).result(60)


def test_an_initializer_with_a_hostile_exception_hurts_only_who_asks(node: RunningNode) -> None:
    """The exception of an initializer is decoded with the check of results."""

    class Evil(Exception):  # noqa: N818 - it is not raised here
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return os.system, ("true",)

    def evil() -> None:
        raise Evil

    with dios.Executor(1, node=node.place, initializer=evil) as executor:
        with pytest.raises(InitializerError) as caught:
            executor.submit(abs, 1).result(60)
        assert not isinstance(caught.value.__cause__, Evil)
        with pytest.raises(concurrent.futures.BrokenExecutor):
            executor.submit(abs, 1)


def test_calls_keep_their_order_when_a_worker_ends(node: RunningNode) -> None:
    """Calls that only waited in the worker that ended run in the order of their submission."""
    with dios.Executor(1, node=node.place) as executor:
        executor.submit(abs, 1).result(60)
        quick = [executor.submit(abs, 1) for _ in range(500)]
        ended = executor.submit(os._exit, 3)
        after = [executor.submit(__import__("time").monotonic_ns) for _ in range(300)]
        assert [future.result(60) for future in quick] == [1] * 500
        with pytest.raises(WorkerEndedError):
            ended.result(60)
        times = [future.result(60) for future in after]
        assert times == sorted(times)
        assert executor.stats().repeated == 0


def test_functions_that_change_leave_nothing_in_the_worker(node: RunningNode) -> None:
    """A function that refers to something changeable is sent with each call, and forgotten after it."""

    def kept() -> int:
        import gc

        from dios.lib.executor.worker import _Worker

        return len(
            next(candidate for candidate in gc.get_objects() if isinstance(candidate, _Worker))._functions
        )

    with dios.Executor(1, node=node.place) as executor:
        before = executor.submit(kept).result(60)
        values = [1]
        for number in range(50):
            values.append(number)
            assert executor.submit(lambda: len(values)).result(60) == number + 2
        assert executor.submit(kept).result(60) <= before + 1


def test_the_output_of_workers_is_shown_in_harmless_lines(
    node: RunningNode, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output and error of a call come on standard error; escapes are visible, floods are cut."""

    def prints() -> None:
        print("plain")  # noqa: T201 - the test is about it
        sys.stderr.write("\x1b[2Jhidden\rshown\nhalf")

    def floods() -> None:
        for _ in range(400):
            print("x" * 8000)  # noqa: T201 - the same

    with dios.Executor(1, node=node.place) as executor:
        executor.submit(prints).result(60)
        executor.submit(floods).result(60)
        executor.submit(print, "after").result(60)
    shown = capsys.readouterr().err
    for line in ("plain", "\\x1b[2Jhidden", "shown", "after"):
        assert f"[worker 1] {line}\n" in shown
    assert "\x1b" not in shown
    assert "is not shown" in shown
    assert len(shown) < 2 * output.OUTPUT_BYTES_MAX


# -- the end of the process -----------------------------------------------------------------------------
def _python(script: str, *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def test_a_forked_process_gets_a_clear_error(node: RunningNode) -> None:
    """The executor and its unfinished futures refuse in a child; the parent goes on."""
    done = _python(f"""
        import os, time, dios
        executor = dios.Executor(1, node={node.place!r})
        slow = executor.submit(time.sleep, 1)
        pid = os.fork()
        if not pid:
            for attempt in (lambda: executor.submit(abs, 1), slow.result):
                try:
                    attempt()
                except RuntimeError as error:
                    print("forked:", "fork" in str(error), flush=True)
            executor.shutdown()
            raise SystemExit
        os.waitpid(pid, 0)
        print(slow.result(), executor.submit(abs, -2).result())
    """)
    assert done.stdout == "forked: True\nforked: True\nNone 2\n", done.stderr


def test_the_end_of_the_interpreter_waits_for_the_calls_and_no_longer(node: RunningNode) -> None:
    """An executor that nobody shut down, or that was forgotten, ends by itself."""
    done = _python(f"""
        import dios, sys, time
        def slowly(x): time.sleep(0.3); return x
        def show(future): sys.stdout.write(f"{{future.result()}} ")
        executor = dios.Executor(1, node={node.place!r})
        executor.submit(slowly, 1).add_done_callback(show)
        executor = dios.Executor(1, node={node.place!r})
        executor.submit(slowly, 2).add_done_callback(show)
    """)
    assert sorted(done.stdout.split()) == ["1", "2"], done.stderr


@pytest.mark.parametrize("form", ["with dios.Executor(2, node=place) as executor:", "if 1:"])
def test_ctrl_c_ends_the_calls_and_leaves_no_process(node: RunningNode, form: str) -> None:
    """Ctrl-C in a wait ends the program soon, although its calls would run on for minutes."""
    before = len(node.descendants())
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(f"""
                import dios, time
                place = {node.place!r}
                executor = dios.Executor(2, node=place)
                {form}
                    futures = [executor.submit(time.sleep, 300) for _ in range(5)]
                    while executor.stats().running < 2:
                        time.sleep(0.01)
                    print("runs", flush=True)
                    futures[0].result()
            """),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in errors
    wait_until(lambda: len(node.descendants()) <= before + 2, "the workers have ended")


# -- nested calls ---------------------------------------------------------------------------------------
def _fib(n: int) -> int:
    if n < 2:
        return n
    executor = dios.current_executor()
    first, two = executor.submit(_fib, n - 2), executor.submit(_fib, n - 1)
    return first.result() + two.result()


def test_a_call_can_have_an_executor_of_its_own(node: RunningNode) -> None:
    """``dios.Executor()`` in a worker starts further tasks; the worker goes on with the data of its calls."""

    def outer(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, int, bool]:
        import dios

        with dios.Executor(2) as inner:
            total, ones = inner.submit(np.sum, values), inner.submit(np.ones, 300_000)
            inner.submit(setattr, sys, "marked", 1).result(60)
            return float(total.result(60)), len(ones.result(60)), hasattr(sys, "marked")

    with dios.Executor(1, node=node.place) as executor:
        for size in (300_000, 300_001):
            assert executor.submit(outer, np.ones(size)).result(100) == (size, 300_000, False)
        assert executor.stats().workers_started == 1


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_nested_calls_give_their_places_back(node: RunningNode, workers: int) -> None:
    """A tree of calls, each of which waits for two others, ends with any number of workers."""
    with dios.Executor(workers, node=node.place) as executor:
        results = [executor.submit(_fib, n) for n in (13, 10, 3)]
        assert [future.result(60) for future in results] == [233, 55, 2]
        assert executor.submit(abs, -1).result(60) == 1
        assert executor.stats().completed > 900
        assert executor.stats().workers <= workers


def test_the_example_of_nested_calls_runs(node: RunningNode) -> None:
    """fib(15) runs as 1,973 calls."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "examples" / "fib_executor.py")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "DIOS_NODE": node.place},
    )
    assert done.stdout == "fib(15) = 610\n1973 calls\n", done.stderr


def test_futures_of_nested_calls_are_those_of_the_standard_library(node: RunningNode) -> None:
    """``wait``, ``as_completed``, ``map``, timeouts and exceptions work within a call."""

    def uses() -> list[object]:
        import concurrent.futures
        import time

        executor = dios.current_executor()
        futures = [executor.submit(pow, number, 2) for number in range(20)]
        observations: list[object] = [
            sorted(future.result() for future in concurrent.futures.as_completed(futures)),
            list(executor.map(abs, [-3, -2])),
        ]
        done, rest = concurrent.futures.wait([executor.submit(abs, 1), executor.submit(abs, 2)])
        observations.append((len(done), len(rest)))
        try:
            executor.submit(time.sleep, 1).result(0.1)
        except concurrent.futures.TimeoutError:
            observations.append("timeout")
        try:
            executor.submit(int, "x").result()
        except ValueError as error:
            observations.append("invalid literal" in str(error) and "Traceback" in str(error.__cause__))
        return observations

    # The call that sleeps needs another worker, because the one that waits would make it itself.
    with dios.Executor(2, node=node.place) as executor:
        assert executor.submit(uses).result(60)[:3] == [
            [number**2 for number in range(20)],
            [3, 2],
            (2, 0),
        ]
        assert executor.submit(uses).result(60)[-1] is True


def _answered_by_another() -> None:
    """Wait, without making nested calls, until another worker has made the one that was submitted."""
    import time

    from dios.lib.executor.nested import _current

    while not _current[0]._worker._calls.readable():  # type: ignore[attr-defined]
        time.sleep(0.01)


def test_a_nested_call_that_ends_its_worker_fails_alone(node: RunningNode) -> None:
    """A nested call in another worker that dies is an exception in the call that waits for it."""

    def outer() -> str:
        future = dios.current_executor().submit(os._exit, 3)
        _answered_by_another()
        error = future.exception()
        return str(error) if isinstance(error, WorkerEndedError) else ""

    with dios.Executor(2, node=node.place) as executor:
        assert "exit code 3" in executor.submit(outer).result(60)
        assert executor.submit(abs, -1).result(60) == 1


def test_a_worker_that_helped_another_one_gets_no_more_calls_of_the_user(node: RunningNode) -> None:
    """Code that a worker sent to another one cannot touch later calls: a fresh worker makes them."""

    def infect() -> None:
        import builtins

        builtins.infected = True  # type: ignore[attr-defined]

    def outer() -> None:
        future = dios.current_executor().submit(infect)
        _answered_by_another()
        future.result()

    def infected() -> bool:
        import builtins
        import time

        until = time.monotonic() + 0.2  # so that both workers get some of the calls
        while time.monotonic() < until:
            time.sleep(0.01)
        return hasattr(builtins, "infected")

    with dios.Executor(2, node=node.place) as executor:
        executor.submit(outer).result(60)
        assert not any(future.result(60) for future in [executor.submit(infected) for _ in range(6)])
        assert executor.stats().workers_started == 3


def test_calls_that_wait_behind_a_waiting_one_go_to_others(node: RunningNode) -> None:
    """A worker gives back what was sent ahead to it when its call waits."""

    def outer() -> int:
        return dios.current_executor().submit(abs, -5).result()

    with dios.Executor(2, node=node.place) as executor:
        for future in [executor.submit(abs, 1) for _ in range(2000)]:
            future.result(60)
        futures = [executor.submit(abs, 1) if number % 3 else executor.submit(outer) for number in range(600)]
        assert [future.result(60) for future in futures] == [1 if number % 3 else 5 for number in range(600)]


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        (frames.SUBMIT, frames.number(1) + frames.number(99) + b"short", "longer than the frame"),
        (frames.RETURNED, frames.number(2), "gave back"),
        (frames.RETURNED, frames.number(10**9), "gave back"),
        (frames.WAITING, b"", "no number"),
    ],
)
def test_a_hostile_nested_frame_ends_its_worker_alone(
    node: RunningNode, kind: int, body: bytes, reason: str
) -> None:
    """Lengths and numbers in the frames of nested calls are checked."""
    with dios.Executor(1, node=node.place) as executor:
        executor.submit(abs, 1).result(60)
        with pytest.raises(WorkerEndedError, match=reason):
            executor.submit(_send_as_worker, kind, body).result(60)
        assert executor.submit(abs, -1).result(60) == 1


def test_a_nested_pickle_is_never_loaded_by_the_caller(node: RunningNode, tmp_path: Path) -> None:
    """The bytes of a nested call run in a sandbox, and their failure is an exception there."""
    mark = tmp_path / "loaded"

    class Evil:
        def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
            return eval, (f"open({str(mark)!r}, 'w')",)

    def outer(evil: bytes) -> str:
        from dios.lib.executor import frames
        from dios.lib.executor.nested import NestedFuture, _current

        worker = _current[0]._worker
        future: NestedFuture[object] = NestedFuture(worker)
        worker.submit(future, frames.number(len(evil)), evil, b"m\x90")
        return repr(future.exception())

    import pickle

    with dios.Executor(1, node=node.place) as executor:
        assert "Error" in executor.submit(outer, pickle.dumps(Evil())).result(60)
    assert not mark.exists()


@pytest.mark.extended
@pytest.mark.long
def test_nested_calls_are_bounded(node: RunningNode) -> None:
    """Calls that wait too deep are refused, and a nested executor exists only in a worker."""

    def deeper(depth: int) -> int:
        if depth == 0:
            return 0
        return 1 + dios.current_executor().submit(deeper, depth - 1).result()

    with dios.Executor(1, node=node.place) as executor:
        assert executor.submit(deeper, frames.NESTED_DEPTH_MAX - 1).result(60) == frames.NESTED_DEPTH_MAX - 1
        with pytest.raises(dios.LimitError, match="wait for nested"):
            executor.submit(deeper, frames.NESTED_DEPTH_MAX + 5).result(60)
    with pytest.raises(dios.InvalidError, match="not a worker"):
        dios.current_executor()
