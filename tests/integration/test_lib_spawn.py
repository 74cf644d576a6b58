from __future__ import annotations

import datetime as dt
import decimal
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lib_functions as functions
import pytest

import dios
from dios.lib.channels import channel, select
from dios.lib.executor.remote_errors import RemoteTraceback
from dios.lib.spawn import Spawner, SpawnFailedError, narrowed
from tests.support.node.running_node import RunningNode, running_node, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SECONDS_MAX = 60


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node for all tests of this file."""
    with running_node(tmp_path_factory.mktemp("spawn") / "node") as node:
        yield node


@pytest.fixture
def node(started: RunningNode) -> Iterator[dios.Node]:
    """A session of a person; at its end no task may be left."""
    with dios.connect(started.place, groups=()) as session:
        yield session
        wait_until(lambda: all(task.ended for task in session.tasks()), "every task has ended")


@pytest.fixture
def spawner(node: dios.Node) -> Iterator[Spawner]:
    """Spawns on that node."""
    with Spawner(node) as new_spawner:
        yield new_spawner


def test_values_go_in_and_come_out(spawner: Spawner) -> None:
    """Records, tuples and keywords arrive as the function has them, and its result as it promises."""
    assert spawner.spawn(functions.mirrored, functions.Point(3, 4)).result(SECONDS_MAX) == functions.Point(
        -3, 4
    )
    assert spawner.spawn(functions.joined, ("a", "b"), separator="-").result(SECONDS_MAX) == "a-b"


def test_values_keep_their_types(spawner: Spawner) -> None:
    """Tuples, sets, dates and decimals come back as they went; a record without an annotation is refused."""
    value = {"pair": (1, {2}), (3,): [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), decimal.Decimal("1.50")]}
    assert spawner.spawn(functions.echoed, value).result(SECONDS_MAX) == value
    with pytest.raises(dios.InvalidError, match="argument value of echoed"):
        spawner.spawn(functions.echoed, functions.Point(3, 4))


def test_a_result_is_kept(spawner: Spawner) -> None:
    """A future answers again and again, and says that it is done."""
    future = spawner.spawn(functions.joined, ("a",))
    assert future.result(SECONDS_MAX) == future.result() == "a"
    assert future.done


def test_a_result_of_another_type_is_refused(spawner: Spawner) -> None:
    """A task that answers with something else than its function promises is not believed."""
    with pytest.raises(dios.ProtocolError, match="int"):
        spawner.spawn(functions.liar).result(SECONDS_MAX)


def test_an_exception_is_told_with_its_reason(spawner: Spawner) -> None:
    """When the function fails, the caller learns of the exception; asking again tells the same."""
    future = spawner.spawn(functions.failing)
    for _ in range(2):
        with pytest.raises(SpawnFailedError, match="so it goes") as caught:
            future.result(SECONDS_MAX)
        assert caught.value.status.cause is dios.Cause.EXCEPTION
        assert isinstance(caught.value.__cause__, RemoteTraceback)
        assert "so it goes" in str(caught.value.__cause__)
        assert future.task.zombie


def test_a_failure_can_be_pickled(spawner: Spawner) -> None:
    """A failure crosses a process pool with its text and its status."""
    with pytest.raises(SpawnFailedError) as caught:
        spawner.spawn(functions.failing).result(SECONDS_MAX)
    unpickled = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - made here
    assert isinstance(unpickled, SpawnFailedError)
    assert str(unpickled) == str(caught.value)
    assert unpickled.status == caught.value.status


def test_a_task_can_be_cancelled(spawner: Spawner) -> None:
    """What never ends is ended by its future, and has no result."""
    future = spawner.spawn(functions.forever)
    with pytest.raises(dios.TimeLimitError):
        future.result(0.05)
    assert not future.done
    future.cancel()
    with pytest.raises(SpawnFailedError):
        future.result(SECONDS_MAX)


def test_the_first_to_end_is_found(spawner: Spawner) -> None:
    """Of several futures the one whose task has ended is answered; none within the time is None."""
    with spawner.spawn(functions.forever) as waiting:
        quick = spawner.spawn(functions.joined, ("a",))
        assert spawner.wait_any([waiting, quick], SECONDS_MAX) is quick
        assert quick.result(SECONDS_MAX) == "a"
        assert spawner.wait_any([waiting, quick]) is quick
        assert spawner.wait_any([waiting], 0.05) is None


def test_a_task_gets_its_arguments_and_nothing_else(node: dios.Node, spawner: Spawner) -> None:
    """A reference among the arguments arrives, narrowed as the caller says; there is no other one."""
    with node.create(dios.SHMEM_BLOB, data=b"text") as blob:
        told = spawner.spawn(functions.attempts, narrowed(blob, "read")).result(SECONDS_MAX)
        assert told == ["3", "3", "text", "NotPermittedError"]
        assert spawner.spawn(functions.rights, blob).result(SECONDS_MAX) == int(blob.permissions)
        handed_on = spawner.spawn(functions.half_of, narrowed(blob, "read", "delegate")).result(SECONDS_MAX)
        assert handed_on == int(dios.Permission.READ)


def test_a_channel_carries_values_until_it_is_closed(node: dios.Node, spawner: Spawner) -> None:
    """A task sends through the end that moved to it; the receiver ends when the task has."""
    sender, receiver = channel(node, int)
    future = spawner.spawn(functions.numbers, sender, 1000)
    with receiver:
        assert list(receiver) == list(range(1000))
    future.result(SECONDS_MAX)
    assert sender.stream.zombie


def test_a_channel_is_bounded(node: dios.Node) -> None:
    """A sender waits when nobody receives, and with a limit of time is told so."""
    sender, receiver = channel(node, bytes, ring_bytes=4096)
    with sender, receiver:
        for _ in range(4):
            sender.send(bytes(900))
        with pytest.raises(dios.TimeLimitError):
            sender.send(bytes(900), timeout=0.05)
        assert receiver.receive(SECONDS_MAX) == bytes(900)


def test_a_receiver_that_leaves_is_noticed(node: dios.Node) -> None:
    """Sending into a channel whose receiver was closed fails."""
    sender, receiver = channel(node, int)
    with sender:
        with receiver:
            sender.send(1)
            assert receiver.receive(SECONDS_MAX) == 1
        with pytest.raises(dios.ClosedError):
            sender.send(2)


def test_a_value_of_another_type_is_refused(node: dios.Node, spawner: Spawner) -> None:
    """The receiver checks what comes, whatever the task calls the channel's type."""
    sender, receiver = channel(node, int)
    future = spawner.spawn(functions.wrong_numbers, sender)  # type: ignore[arg-type]
    with receiver, pytest.raises(dios.ProtocolError, match="int"):
        receiver.receive(SECONDS_MAX)
    future.result(SECONDS_MAX)


def test_an_end_moves_on_to_a_task_of_a_task(node: dios.Node, spawner: Spawner) -> None:
    """A task that did not use its end hands it on, and the values arrive there."""
    sender, receiver = channel(node, int)
    future = spawner.spawn(functions.relayed, receiver)
    with sender:
        for number in range(5):
            sender.send(number)
    assert future.result(SECONDS_MAX) == 10


def test_an_end_that_was_used_stays(node: dios.Node, spawner: Spawner) -> None:
    """After the first value an end belongs to who sent it, and the refusal leaves it usable."""
    sender, receiver = channel(node, int)
    with sender, receiver:
        sender.send(1)
        with pytest.raises(dios.InvalidError, match="was used"):
            spawner.spawn(functions.numbers, sender, 1)
        assert receiver.receive(SECONDS_MAX) == 1


def test_an_end_that_a_task_never_used_is_closed_with_it(node: dios.Node, spawner: Spawner) -> None:
    """The receiver of a task that returns without having sent anything is not left waiting."""
    sender, receiver = channel(node, int)
    future = spawner.spawn(functions.silent, sender)
    with receiver:
        assert list(receiver) == []
    future.result(SECONDS_MAX)


def test_a_task_killed_before_it_used_its_end_closes_it(node: dios.Node, spawner: Spawner) -> None:
    """The receiver learns that nobody can send any more, also when nobody ever did."""
    sender, receiver = channel(node, int)
    with receiver, spawner.spawn(functions.holding, sender) as future:
        with future.task.console() as console:
            assert console.receive(SECONDS_MAX) == b"here"
        future.cancel()
        with pytest.raises(dios.EndOfStreamError):
            receiver.receive(SECONDS_MAX)


def test_select_finds_the_channel_with_a_value(node: dios.Node) -> None:
    """Of several channels the one that has something is answered, also one whose sender is gone."""
    pairs = [channel(node, int) for _ in range(3)]
    receivers = [receiver for _, receiver in pairs]
    assert select(node, receivers, 0) is None
    pairs[1][0].send(7)
    ready = select(node, receivers, SECONDS_MAX)
    assert ready is receivers[1]
    assert ready.receive() == 7
    pairs[2][0].send(8)
    pairs[2][0].close()
    assert receivers[2].receive() == 8
    assert select(node, receivers, SECONDS_MAX) is receivers[2]
    for sender, receiver in pairs:
        sender.close()
        receiver.close()


def test_fib_is_short_and_right(node: dios.Node, started: RunningNode) -> None:
    """The program of Listing 9.1 takes under 20 lines, starts 177 pure tasks, and says 55."""
    example = EXAMPLES / "fib.py"
    assert len(example.read_text().splitlines()) < 20
    before = len(node.tasks())
    done = subprocess.run(
        [sys.executable, str(example)],
        env={"DIOS_NODE": started.place, "PATH": "/usr/bin:/bin", "HOME": str(started.data.parent)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.stdout == "fib(10) = 55\n", done.stderr
    fibs = node.tasks()[before:]
    assert len(fibs) == 177
    assert all(task.ok and task.brand is dios.Brand.PURE for task in fibs)
