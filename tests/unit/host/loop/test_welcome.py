"""A Welcome carries the program of its task, if that is small, on this node, and the present content."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from dios import limits
from dios.core.effects import Answer, ApplyWrite, WriteSource
from dios.ids import ObjectId
from dios.wire.messages import Welcome
from tests.support.host.harness import TASK, Rig, put, rig
from tests.support.wire.descriptions import sample_message

NUMBER = 5
SMALL = b"print(1)"


def welcome(size: int) -> Answer:
    """The Welcome of a task whose program is an object of this size."""
    sample = sample_message(Welcome)
    assert isinstance(sample, Welcome)
    assert sample.executable is not None
    executable = replace(sample.executable, object=NUMBER, size=size)
    return Answer(TASK, 0, replace(sample, executable=executable, program=None))


def program_sent(host: Rig) -> bytes | None:
    """The program in the Welcome that was sent."""
    ((_, result),) = host.replies
    assert isinstance(result, Welcome)
    return result.program


@pytest.mark.parametrize("size", [1, limits.WELCOME_PROGRAM_BYTES_MAX])
async def test_a_small_program_comes_with_the_welcome(tmp_path: Path, size: int) -> None:
    """The task need not read its program."""
    async with rig(tmp_path) as host:
        host.host.contents.set(ObjectId(NUMBER), b"#" * size)
        host.do(welcome(size))
        assert program_sent(host) == b"#" * size


async def test_a_large_program_is_left_to_the_task(tmp_path: Path) -> None:
    """The task reads it, as it reads any object."""
    size = limits.WELCOME_PROGRAM_BYTES_MAX + 1
    async with rig(tmp_path) as host:
        host.host.contents.set(ObjectId(NUMBER), b"#" * size)
        host.do(welcome(size))
        assert program_sent(host) is None


async def test_the_program_of_another_node_is_left_to_the_task(tmp_path: Path) -> None:
    """This node has no content of it, which is no empty program."""
    async with rig(tmp_path) as host:
        host.do(welcome(len(SMALL)))
        assert program_sent(host) is None


async def test_no_task_gets_a_program_that_is_being_replaced(tmp_path: Path) -> None:
    """While a newer content is on its way to the disk, the task reads its program, and waits for that."""
    async with rig(tmp_path) as host:
        host.host.contents.set(ObjectId(NUMBER), SMALL)
        host.store.gate.clear()
        source = WriteSource(payload=host.next_payload, length=len(SMALL))
        host.do(
            ApplyWrite(ObjectId(NUMBER), source, durable=True),
            persist=[put(NUMBER, source)],
            data=SMALL[::-1],
        )
        host.do(welcome(len(SMALL)))
        assert program_sent(host) is None
        host.store.gate.set()
        await host.settled()


async def test_a_welcome_comes_after_the_changes_before_it(tmp_path: Path) -> None:
    """A volatile change that waits for the disk is in the program of a task that started after it."""
    async with rig(tmp_path) as host:
        host.store.gate.clear()
        source = WriteSource(payload=host.next_payload, length=len(SMALL))
        host.do(ApplyWrite(ObjectId(NUMBER), source), persist=[put(9)], data=SMALL)
        host.do(welcome(len(SMALL)))
        assert not host.replies
        host.store.gate.set()
        await host.settled()
        assert program_sent(host) == SMALL
