"""What the server reads of a session: bytes alone, in parts that wait for the client, within bounds."""

from __future__ import annotations

import json
from typing import cast

import msgspec
import pytest
import trio
from trio.testing import MockClock

from dios.lib.executor.errors import UntrustedResultError
from dios.lib.executor.values import encode_result
from dios.lib.sandbox.async_process import SandboxProcess
from dios.lib.sandbox.async_sandbox import Sandbox
from dios.lib.sandbox.processes.channels import ProgramOutput
from dios.lib.sandbox_server import held as module
from dios.lib.sandbox_server import inside
from dios.lib.sandbox_server.failures import Kind, RequestError
from dios.lib.sandbox_server.held import Command, CommandConfig, Context, HeldSandbox
from dios.lib.sandbox_server.http import AnswerWriter
from dios.lib.sandbox_server.keys import KeyBounds, KeyRecord
from dios.lib.sandbox_server.templates import SandboxTemplate

KEY = KeyRecord(
    name="one",
    principal="key:one",
    digest="0",
    created_ns=0,
    bounds=KeyBounds(sandboxes=1, memory_bytes=1 << 30, seconds=60),
)


class AnsweringBox:
    """A session that answers each question with the next of these bytes, the last one again and again."""

    paused = False
    ended = ""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.questions = 0

    async def call(self, _function: str, *_arguments: object) -> bytes:
        """Return the next answer."""
        self.questions += 1
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class CountingWriter:
    """An answer, and the number of questions before each of its parts."""

    def __init__(self, box: AnsweringBox) -> None:
        self.box = box
        self.has_begun = False
        self.sent: list[tuple[int, int]] = []

    async def begin(self, _content_type: str) -> None:
        """Begin."""
        self.has_begun = True

    async def send(self, data: bytes) -> None:
        """Count the bytes of a part."""
        self.sent.append((self.box.questions, len(data)))


def held_with(box: AnsweringBox) -> HeldSandbox:
    """A sandbox with this session."""
    held = HeldSandbox(
        KEY, "base", SandboxTemplate(), seconds=None, metadata={}, variables={}, request_key=""
    )
    held.contexts[held.name] = Context(held.name, cast("Sandbox", box), "")
    return held


async def read(box: AnsweringBox) -> CountingWriter:
    """Read a file."""
    writer = CountingWriter(box)
    await held_with(box).read_file("/tmp/x", cast("AnswerWriter", writer))
    return writer


@pytest.mark.parametrize("value", [[[]] * 100, [0] * 100, {"a": 1}, None, "x", (1, b"x")])
def test_only_bytes_of_a_session_are_decoded(value: object) -> None:
    """Lists of a few megabytes would keep every client of the server waiting for seconds."""
    box = SandboxTemplate().sandbox(None)
    with pytest.raises(UntrustedResultError):
        box._decoded(encode_result(value))
    assert box._decoded(encode_result(b"x")) == b"x"


async def test_a_file_is_sent_part_by_part() -> None:
    """The next part is asked for when the client has taken the one before it."""
    size = inside.FILE_PART_BYTES
    writer = await read(AnsweringBox(bytes(size), bytes(size), b"end"))
    assert writer.sent == [(1, size), (2, size), (3, 3)]


async def test_a_file_without_end_is_cut() -> None:
    """A session that goes on sending loses the request; nothing of the file is kept."""
    box = AnsweringBox(bytes(inside.FILE_PART_BYTES))
    with pytest.raises(RequestError) as cut:
        await read(box)
    assert cut.value.kind is Kind.TOO_LARGE
    assert box.questions == inside.FILE_BYTES_MAX // inside.FILE_PART_BYTES + 1


async def test_a_part_is_bounded() -> None:
    """A session that sends more than it was asked for loses the request before anything is sent."""
    with pytest.raises(RequestError):
        await read(AnsweringBox(bytes(inside.FILE_PART_BYTES + 1)))


@pytest.mark.parametrize("data", [b"", b"nul", b"[" * 1000, b'{"a": 1}', json.dumps("x" * 10**6).encode()])
async def test_an_answer_of_another_form_is_refused(data: bytes) -> None:
    """And one that is longer than an honest one, before it is decoded."""
    with pytest.raises(UntrustedResultError):
        await held_with(AnsweringBox(data)).ask(str if b"xx" in data else bool, "has_file", "/bin/sh")


def test_the_longest_honest_answer_is_within_the_bound() -> None:
    """A list whose JSON is quoted again."""
    text = json.dumps(['"' * (inside.JSON_CHARS_MAX // 2 - 2)])
    assert len(text) <= inside.JSON_CHARS_MAX
    assert len(msgspec.json.encode(text)) <= module._ANSWER_BYTES_MAX


class WritingProcess:
    """A process that has written these parts, and ended well."""

    id = "1"

    def __init__(self, *parts: bytes) -> None:
        self.parts = list(parts)

    async def read(self, _seconds: float | None = None) -> ProgramOutput | None:
        """Return the next part."""
        return ProgramOutput("stdout", self.parts.pop(0)) if self.parts else None

    async def wait(self) -> int:
        """Return the exit status."""
        return 0

    async def close(self) -> None:
        """Forget it."""


async def test_a_client_that_takes_its_output_late_learns_of_the_gap(autojump_clock: MockClock) -> None:
    """The exit status comes all the same, and is no success."""
    process = cast("SandboxProcess", WritingProcess(*[b"x"] * 40))
    command = Command(process, CommandConfig(["a"], {}, ""), "", trio.current_time() + 5)

    async def run() -> None:
        await command.end(await command.run())

    async with command.followed() as parts, trio.open_nursery() as nursery:
        nursery.start_soon(run)
        while not command.has_gap:  # noqa: ASYNC110 - it has no event
            await trio.sleep(1)
        taken = [part async for part in parts]
    assert command.has_gap
    assert len(taken) < 41
    assert taken[-1].status == 0
