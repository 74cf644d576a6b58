"""``fork`` of ``dios.Sandbox``: another session with the same state, which shares nothing afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios import aio
from dios.errors import LimitError
from dios.host.confinement.mechanisms import probe
from dios.host.confinement.notifications import FORKS
from dios.lib.sandbox import link
from dios.lib.sandbox.errors import SessionForkError
from tests.support.client.loops import on_both_loops
from tests.support.node.running_node import RunningNode

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this module."""
    listeners = probe()[FORKS]
    if not listeners.available:
        pytest.skip(f"sessions cannot be forked here: {listeners.detail}")
    running = RunningNode(tmp_path_factory.mktemp("forks") / "data", {"templates": "texts=colorsys"})
    yield running
    running.stop()


@pytest.fixture(scope="module")
def shared(node: RunningNode) -> Iterator[dios.Sandbox]:
    """A session that can be forked; each test gets it afresh."""
    with dios.Sandbox(
        node=node.place,
        forkable=True,
        inputs={"note": b"given", "large": bytes(4_000_000), "larger": bytes(100_000_000)},
        timeout=PATIENCE_S,
        memory="256 MiB",
    ) as box:
        yield box


@pytest.fixture
def box(shared: dios.Sandbox) -> dios.Sandbox:
    """A fresh session that can be forked."""
    shared.reset()
    return shared


def shown(box: dios.Sandbox, source: str) -> str | None:
    """Run code that raises nothing, and return its value."""
    result = box.run(source)
    assert result.error is None, str(result.error)
    return result.value_repr


STATE = """
import colorsys, os, sys
numbers = [1, 2]
def total(): return sum(numbers)
class Point: x = 5
os.makedirs("folder", exist_ok=True)
with open("folder/file.txt", "w") as file:
    file.write("before")
with open("holes", "wb") as file:
    file.truncate(1_000_000)
    file.seek(500_000)
    file.write(b"middle")
"""


def test_a_fork_has_the_state_and_shares_nothing_afterwards(box: dios.Sandbox) -> None:
    """Variables, functions, modules, files and inputs are there; what one changes, the other does not see."""
    shown(box, STATE)
    with box.fork() as fork:
        assert shown(fork, "total(), Point.x, 'colorsys' in sys.modules, os.getcwd()") == (
            "(3, 5, True, '/private/task/tmp')"
        )
        assert shown(fork, "open('folder/file.txt').read(), inputs['note'].read()") == "('before', b'given')"
        assert shown(fork, "open('/inputs/note', 'rb').read()") == "b'given'"
        shown(fork, "data = open('holes', 'rb').read()")
        holes = "len(data), data.strip(b'\\0'), os.stat('holes').st_blocks < 100"
        assert shown(fork, holes) == "(1000000, b'middle', True)"
        discarded = "open(os.devnull, 'w').write('lost'), open(os.devnull).read()"
        assert (shown(box, discarded), shown(fork, discarded)) == ("(4, '')", "(4, '')")
        shown(fork, "numbers.append(10); Point.x = 6; open('folder/file.txt', 'w').write('fork')")
        shown(fork, "open('new', 'w').close()")
        shown(box, "numbers.append(100); open('folder/file.txt', 'w').write('origin')")
        assert shown(fork, "total(), Point.x, open('folder/file.txt').read()") == "(13, 6, 'fork')"
        assert shown(box, "total(), Point.x, open('folder/file.txt').read(), os.path.exists('new')") == (
            "(103, 5, 'origin', False)"
        )
        assert fork.call("total") == 13
        fork.put("given", {"a": 1})
        assert fork.get("given") == {"a": 1}
        assert fork.run("print('text'); 1 / 0").error is not None
        assert box.run("print('own')").stdout == "own\n"


def test_forks_are_forked_and_outlive_their_origin(node: RunningNode) -> None:
    """A chain of forks, of which only the last one is left, and a reset of it."""
    box = dios.Sandbox(node=node.place, forkable=True, timeout=PATIENCE_S)
    shown(box, "path = ['root']")
    for number in range(5):
        fork = box.fork()
        box.close()
        shown(fork, f"path.append({number})")
        box = fork
    assert shown(box, "path") == "['root', 0, 1, 2, 3, 4]"
    box.reset()
    assert shown(box, "'path' in globals()") == "False"
    with box.fork() as last:
        assert shown(last, "1 + 1") == "2"
    box.close()


def test_a_session_of_a_template_is_forked(node: RunningNode) -> None:
    """The modules of the template are there, in both."""
    with dios.Sandbox(node=node.place, forkable=True, template="texts", timeout=PATIENCE_S) as box:
        shown(box, "import sys; x = 1")
        with box.fork() as fork:
            assert shown(fork, "'colorsys' in sys.modules, x") == "(True, 1)"


def test_runs_of_both_are_interrupted_alone(box: dios.Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit stops the code of one session, in a system call, too, and keeps the variables of both."""
    monkeypatch.setattr(link, "GRACE_S", PATIENCE_S)
    shown(box, "import time; x = 1")
    with box.fork() as fork:
        for session in (fork, box):
            session._timeout = 0.5  # type: ignore[misc] # a short time for one run
            result = session.run("time.sleep(3600)")
            session._timeout = PATIENCE_S  # type: ignore[misc] # as before
            assert result.error is not None
            assert result.error.type == "TimeoutError"
            assert shown(session, "x") == "1"


REASONS = {
    "import threading as t; end = t.Event(); thread = t.Thread(target=end.wait); thread.start()": "threads",
    "file = open('kept', 'w')": "'kept'",
    "import socket; pair = socket.socketpair()": "socket",
    "view = inputs['large'].getbuffer()": r"without a copy \(view\)",
    "pair = memoryview(inputs['larger'].getbuffer())[5:]\nview = inputs['larger']": r"copy \(pair, view\)",
}


@pytest.mark.parametrize("source", REASONS, ids=REASONS.values())
def test_what_cannot_be_shared_is_named_and_the_session_goes_on(box: dios.Sandbox, source: str) -> None:
    """Threads, open files and mapped inputs refuse a fork; without them it is possible again."""
    shown(box, source + "\nx = 1")
    with pytest.raises(SessionForkError, match=REASONS[source]):
        box.fork()
    assert shown(box, "x") == "1"
    shown(box, "if 'end' in globals():\n    end.set(), thread.join()")
    shown(box, "file = pair = view = None")
    with box.fork() as fork:
        assert shown(fork, "x") == "1"


def test_the_order_of_a_failed_fork_gets_no_process(box: dios.Sandbox, node: RunningNode) -> None:
    """It is taken back before the error is raised, or the next fork would be made for it, and end with it."""
    with dios.connect(node.place, groups=()) as session:

        def living() -> set[str]:
            return {row.fingerprint for row in session.tasks() if row.state is not dios.TaskState.ENDED}

        for _ in range(5):
            shown(box, "file = open('kept', 'w')")
            before = living()  # perhaps with the former fork, whose process is ending
            with pytest.raises(SessionForkError, match="'kept'"):
                box.fork()
            assert living() <= before
            shown(box, "file.close(); del file")
            with box.fork() as fork:
                assert shown(fork, "1") == "1"


def test_a_fast_timer_of_the_session_stops_no_fork(box: dios.Sandbox) -> None:
    """Its signals come more often than the supervisor answers; each of many forks is made at once."""
    shown(box, "import signal\nold = signal.signal(signal.SIGALRM, lambda *_: None); x = 1")
    shown(box, "signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005) and None")
    for _ in range(30):
        with box.fork() as fork:
            assert shown(fork, "x, signal.getitimer(signal.ITIMER_REAL)") == "(1, (0.0, 0.0))"


SILENT = """
import time
from dios.host.process import session_fork
session_fork.become_task = lambda: time.sleep(3600)
"""


def test_a_fork_that_stays_silent_is_waited_for_until_the_time_limit(
    box: dios.Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor would wait longer. The session goes on, and the next fork does not wait."""
    shown(box, SILENT)
    with monkeypatch.context() as patch:
        patch.setattr(box, "_timeout", 1.0)
        with pytest.raises(SessionForkError, match="did not start in time"):
            box.fork()
    shown(box, "import importlib; x = importlib.reload(session_fork) and 1")
    with box.fork() as fork:
        assert shown(fork, "x") == "1"


@pytest.mark.parametrize("name", ["large", "larger"])
def test_an_input_that_was_read_without_a_copy_refuses_no_fork(box: dios.Sandbox, name: str) -> None:
    """Neither one that is a file, too, nor one that is too large for that; each session reads it again."""
    shown(box, f"with inputs[{name!r}] as closed:\n    size = len(closed.read())")
    shown(box, f"part = inputs[{name!r}].read(10)\nview = inputs[{name!r}].getbuffer()[5:10]\ndel view")
    with box.fork() as fork:
        for session in (fork, box):
            assert shown(session, f"size == len(inputs[{name!r}].read()), len(part), closed.closed") == (
                "(True, 10, True)"
            )


def test_only_sessions_that_were_started_for_it_are_forked(node: RunningNode) -> None:
    """The others keep every layer of a pure task, and say what to do."""
    with dios.Sandbox(node=node.place) as box:
        with pytest.raises(SessionForkError, match="forkable=True"):
            box.fork()
        assert shown(box, "import os; os.getpid()") == "1"


def test_forks_count_as_tasks_of_their_principal(tmp_path: Path) -> None:
    """The limit of tasks bounds forks of forks, and each fork shows in the list of tasks."""
    running = RunningNode(tmp_path / "data", {"principal_limits": "tasks=4"})
    try:
        with dios.Sandbox(node=running.place, forkable=True, timeout=PATIENCE_S) as box:
            forks = [box.fork()]
            forks.append(forks[-1].fork())
            forks.append(forks[-1].fork())
            with pytest.raises(LimitError):
                forks[-1].fork()
            for session in (box, *forks):
                assert shown(session, "2") == "2"
            forks.pop().close()
            for session in forks:
                session.close()
    finally:
        running.stop()


def test_a_fork_has_the_limits_of_its_origin(box: dios.Sandbox) -> None:
    """Memory that the fork needs is its own; at the limit it ends alone."""
    shown(box, "x = bytearray(50_000_000)")
    with box.fork() as fork:
        result = fork.run("y = bytearray(400_000_000)")
        assert result.error is not None
        assert shown(box, "len(x)") == "50000000"


def test_many_forks_of_one_state_run_at_once(box: dios.Sandbox) -> None:
    """Each goes on by itself, as in a search."""
    shown(box, "choice = None")
    forks = [box.fork() for _ in range(6)]
    for number, fork in enumerate(forks):
        shown(fork, f"choice = {number}")
    assert [shown(session, "choice") for session in forks] == [str(number) for number in range(6)]
    assert shown(box, "choice is None") == "True"
    for fork in forks:
        fork.close()


@on_both_loops
async def test_async_sandboxes_are_forked(node: RunningNode) -> None:
    """The same with ``await``: also a fork of a fork, and the end of the origin before it."""
    async with aio.Sandbox(node=node.place, forkable=True, timeout=PATIENCE_S) as box:
        await box.run("x = [1]")
        async with await box.fork() as fork:
            assert (await fork.run("x.append(2); x")).value_repr == "[1, 2]"
            again = await fork.fork()
        assert (await again.run("x")).value_repr == "[1, 2]"
        assert (await box.run("x")).value_repr == "[1]"
    assert (await again.run("x")).value_repr == "[1, 2]"
    await again.close()


def test_rollouts_have_rewards_and_failures(node: RunningNode) -> None:
    """examples/rollouts.py: a try that hangs or leaves its session costs its own reward alone."""
    script = Path(__file__).parents[2] / "examples" / "rollouts.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", script, "--tries", "24", "--together", "6", "--seed", "4", "--json"],
        env={**os.environ, "DIOS_NODE": node.place},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["tries"] == sum(outcome["rewards"].values()) == 24
    assert "total += number\n    return total\n" in outcome["best"]
    assert set(outcome["failures"]) == {"TimeoutError", "session ended"}
