"""Limits, retirement, expiry, repetition and description in both faces, against a real node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.client.sync.node import Node
from tests.support.client.loops import on_both_loops
from tests.support.node.running_node import RunningNode, running_node

ME = f"uid:{os.geteuid()}"
WAITS = b"""
import dios, sys
node = dios.connect()
given = node.next_event().reference
if sys.argv[1:]:
    print(given.read_bytes(), flush=True)
event = node.next_event()
print(type(event).__name__, event.ref == given.ref, event.expired)
try:
    given.read_bytes()
except dios.DiosError as error:
    print(type(error).__name__)
"""
SHOWS = b"""
import dios, sys
node = dios.connect()
print(sys.argv[1:], node.input("text").read_bytes(), [item.label for item in node.inputs])
sys.exit(len(sys.argv) - 1)
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests here."""
    with running_node(tmp_path_factory.mktemp("node") / "data") as started:
        yield started


@pytest.fixture
def node(running: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A connection of somebody whose home directory is empty."""
    monkeypatch.setenv("HOME", str(tmp_path))
    with dios.connect(running.place, groups=[]) as connected:
        yield connected


def test_what_was_delegated_is_taken_back(node: Node) -> None:
    """The receiver used it, is told, and can use it no more; the giver still can."""
    with node.create(dios.SHMEM_BLOB, data=b"secret") as blob:
        task = node.run(WAITS, args=["read"])
        blob.delegate(task, "read")
        with task.console() as console:
            assert console.receive() == b"b'secret'\n"
            assert blob.retire() == 1
            assert b"".join(console) == b"Retired True False\nBadReferenceError\n"
        assert task.wait(30).ok
        assert blob.read_bytes() == b"secret"
        assert blob.retire(everyone=True) == 0


def test_what_was_delegated_ends_by_itself(node: Node) -> None:
    """When its time is over the receiver is told, with that reason, and can use it no more."""
    with node.create(dios.SHMEM_BLOB, data=b"secret") as blob:
        task = node.run(WAITS)
        blob.delegate(task, "read", expires=0.05)
        assert task.wait(30).ok
        assert b"".join(task.console()) == b"Retired True True\nBadReferenceError\n"


def test_an_input_may_be_given_for_a_while(node: Node) -> None:
    """What is handed at start with an end says in how many seconds; what has none says None."""
    program = b"import dios\nprint([item.expires and item.expires > 60 for item in dios.connect().inputs])"
    with node.create(dios.SHMEM_BLOB) as blob:
        assert blob.expires is None
        task = node.run(program, inputs=[blob.restrict("read", expires=3600), blob.restrict("read")])
        assert task.wait(30).ok
        assert b"".join(task.console()) == b"[True, None]\n"


def test_limits_of_a_user_are_set_and_lifted(node: Node) -> None:
    """Over its limit a user is refused, with whose limit it is; lifted, the same call is granted."""
    (mine,) = [usage for usage in node.limits() if usage.subject == ME]
    used = mine.used[dios.Resource.OBJECTS]
    (now,) = node.set_limits(ME, objects=used)
    try:
        assert now.limits[dios.Resource.OBJECTS] == used
        with pytest.raises(dios.LimitError, match=f"objects for {ME}"):
            node.create(dios.SHMEM_BLOB)
    finally:
        node.set_limits(ME, objects=None)
    node.create(dios.SHMEM_BLOB).close()


def test_limits_of_a_group_and_a_task_are_set_by_their_handles(node: Node) -> None:
    """A handle says whose limits are meant; the listing has them afterwards."""
    group = node.create_group()
    task = node.run(b"import dios\ndios.connect().next_event()")
    node.set_limits(group, bytes=17)
    node.set_limits(task, requests=3, cpu_ms=4)
    usages = {usage.subject: usage for usage in node.limits()}
    assert usages[task.fingerprint].limits[dios.Resource.REQUESTS] == 3
    assert usages[task.fingerprint].limits[dios.Resource.CPU_MS] == 4
    task.kill()
    with pytest.raises(dios.LimitError):
        node.create(dios.SHMEM_BLOB, groups=[group], data=bytes(18))


def test_a_run_is_repeated(node: Node) -> None:
    """Like another task, with its program, arguments and inputs; what is added comes after them."""
    with node.create(dios.SHMEM_BLOB, data=b"text") as text, node.create(dios.SHMEM_BLOB) as more:
        first = node.run(SHOWS, inputs={"text": text.restrict("read")}, args=["a", "b"], label="shows")
        assert first.wait(30).exit_code == 2
        again = node.run(like=first, inputs={"more": more.restrict("read")})
        assert again.wait(30).exit_code == 2
        printed = [b"".join(task.console()) for task in (first, again)]
    assert printed == [b"['a', 'b'] b'text' ['text']\n", b"['a', 'b'] b'text' ['text', 'more']\n"]
    with pytest.raises(dios.StaleError, match="input text"):
        node.run(like=first)


def test_a_task_is_described(node: Node) -> None:
    """What it was given, what it used, and what has changed or gone since."""
    text = node.create(dios.SHMEM_BLOB, data=b"text")
    limits = dios.Limits(memory_bytes=2**28, objects=5)
    task = node.run(SHOWS, inputs={"text": text.restrict("read")}, args=["x"], limits=limits)
    task.wait(30)
    description = node.describe(task)
    (given,) = description.inputs
    assert (given.label, given.size, given.changed, given.gone) == ("text", 4, False, False)
    assert description.arguments == ("x",)
    assert (description.status.exit_code, description.memory_limit_bytes, description.not_repeatable) == (
        1,
        2**28,
        "",
    )
    assert description.usage.limits[dios.Resource.OBJECTS] == 5
    assert description.memory_bytes > 0
    text.write_bytes(b"other")
    assert node.describe(task).inputs[0].changed
    text.destroy()
    description = node.describe(task)
    assert description.inputs[0].gone
    assert "input text" in description.not_repeatable


@on_both_loops
async def test_the_async_client_has_them_all(running: RunningNode) -> None:
    """Retirement, limits, description and repetition are awaited under the same names."""
    async with (
        dios.open_node(running.place, groups=[]) as node,
        await node.create(dios.SHMEM_BLOB, data=b"text") as text,
    ):
        task = await node.run(SHOWS, inputs={"text": text.restrict("read")}, args=["x"])
        assert (await task.wait(30)).exit_code == 1
        assert (await node.describe(task)).arguments == ("x",)
        assert (await (await node.run(like=task)).wait(30)).exit_code == 1
        await text.delegate(node.self, "read", expires=60)
        assert await text.retire() == 1
        await node.set_limits(ME, tasks=None)
        assert ME in {usage.subject for usage in await node.limits()}
