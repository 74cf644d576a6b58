"""The host calls of WebAssembly modules, called with what no honest module would give."""

from __future__ import annotations

import os
import queue
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dios.installation import extra_command

wasmtime = pytest.importorskip("wasmtime")

from dios.client.program import Program, decode_program, encode_program, is_wasm  # noqa: E402
from dios.client.sync.node import Node  # noqa: E402
from dios.client.wasm.codes import WasiCode, WasiError  # noqa: E402
from dios.client.wasm.descriptors import (  # noqa: E402
    DescriptorTable,
    FolderDirectory,
    InputDirectory,
    InputFile,
    StreamInput,
    relative,
)
from dios.client.wasm.guest_memory import GuestMemory  # noqa: E402
from dios.client.wasm.host_calls import SIGNATURES, HostCalls  # noqa: E402
from dios.client.wasm.program import run_module  # noqa: E402
from dios.errors import EndOfStreamError, InvalidError, TimeLimitError  # noqa: E402
from dios.limits import WASM_DESCRIPTORS_MAX  # noqa: E402

PAGE = 65_536
PATH, ROOM = 256, 4_096
SECRET = b"outside"
INPUT = b"an input"
PATHS = [
    b"a",
    b"sub",
    b"sub/a",
    b"../secret",
    b"sub/../../secret",
    b"/etc/passwd",
    b".",
    b"..",
    b"",
    b"\xff",
    b"a\0",
]
ADDRESSES = [0, 8, PATH, ROOM, PAGE - 4, PAGE, 0xFFFF_FFFF, -1]
NUMBERS = [*range(8), 77, *ADDRESSES]
LARGE = [0, 1, 5, 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -1]
WAITS_OR_ENDS = {"poll_oneoff", "proc_exit"}


class Host:
    """The calls of one module, with an input and a folder next to a secret."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folder = place / "folder"
        (self.folder / "sub").mkdir(parents=True)
        (place / "secret").write_bytes(SECRET)
        store = wasmtime.Store()
        self.memory = GuestMemory(store, wasmtime.Memory(store, wasmtime.MemoryType(wasmtime.Limits(1, 1))))
        self.inputs = InputDirectory({"input": lambda: InputFile(memoryview(INPUT))})
        self.table = DescriptorTable({"/inputs": self.inputs, "/tmp": FolderDirectory(str(self.folder))})
        calls = HostCalls(["program", "argument"], {"HOME": "/tmp"}, self.table)
        calls.memory = self.memory
        self.call = calls.functions()

    def close(self) -> None:
        """Close the files that calls left open."""
        for number in range(3, WASM_DESCRIPTORS_MAX):
            try:
                self.table.close(number)
            except WasiError:
                continue

    def open(self, path: bytes, flags: int = 0, rights: int = 66, directory: int = 4) -> int:
        """Open a path and return the descriptor, or the negative error code."""
        self.memory.write(PATH, path)
        code = self.call["path_open"](directory, 0, PATH, len(path), flags, rights, rights, 0, 8)
        return -code if code else int.from_bytes(self.memory.read(8, 4), "little")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """The calls of one module."""
    opened = Host(tmp_path)
    yield opened
    opened.close()


def argument(kind: str) -> st.SearchStrategy[int]:
    """Numbers that are descriptors, addresses, sizes and flags, and any others."""
    known = st.sampled_from(LARGE if kind == "I" else NUMBERS)
    return known | st.integers(
        -(1 << 63) if kind == "I" else -(1 << 31), (1 << 63) if kind == "I" else 1 << 31
    )


CALLS = st.sampled_from(sorted(set(SIGNATURES) - WAITS_OR_ENDS)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(PATHS), st.tuples(*map(argument, SIGNATURES[name])))
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls=st.lists(CALLS, max_size=40))
def test_no_call_gets_out_or_fails_otherwise_than_by_a_code(
    tmp_path_factory: pytest.TempPathFactory, calls: list[tuple[str, bytes, tuple[int, ...]]]
) -> None:
    """Whatever a module gives, it gets an error code of the interface, and only its folder is changed."""
    place = tmp_path_factory.mktemp("host")
    host = Host(place)
    # The console of the test is not the module's.
    for number in range(3):
        host.table.close(number)
    for name, path, values in calls:
        host.memory.write(PATH, path)
        code = host.call[name](*values)
        assert code is not None
        assert WasiCode(code) in WasiCode
    host.close()
    assert {entry.name for entry in place.iterdir()} == {"folder", "secret"}
    assert (place / "secret").read_bytes() == SECRET


@pytest.mark.parametrize(
    ("path", "expected"),
    [("a/./b", "a/b"), ("a/../b", "b"), (".", ""), ("", ""), ("a//b/", "a/b")],
)
def test_a_path_inside(path: str, expected: str) -> None:
    """Dots and empty parts are left out."""
    assert relative(path) == expected


@pytest.mark.parametrize("path", ["/etc/passwd", "..", "a/../../b", "../folder2"])
def test_a_path_that_leads_out_is_refused(path: str) -> None:
    """Also one that would come back."""
    with pytest.raises(WasiError) as refused:
        relative(path)
    assert refused.value.code is WasiCode.NOT_PERMITTED


def test_a_link_out_of_the_folder_is_not_followed(host: Host) -> None:
    """A task cannot make one; this one was there before."""
    (host.folder / "link").symlink_to(host.place / "secret")
    assert host.open(b"link", rights=2) == -WasiCode.LOOP


def test_descriptors_have_a_bound(host: Host) -> None:
    """The module is told, and a closed one is free again."""
    opened = [host.open(b"sub", rights=2) for _ in range(WASM_DESCRIPTORS_MAX - 5)]
    assert min(opened) >= 0
    assert host.open(b"sub", rights=2) == -WasiCode.TOO_MANY_FILES
    assert host.call["fd_close"](opened[7]) == WasiCode.SUCCESS
    assert host.open(b"sub", rights=2) == opened[7]


def test_positions_move_without_copying(host: Host) -> None:
    """An input is read by position and by offset."""
    number = host.open(b"input", rights=2, directory=3)
    host.memory.write(0, ROOM.to_bytes(4, "little") + (3).to_bytes(4, "little"))
    assert host.call["fd_seek"](number, -5, os.SEEK_END, 16) == 0
    assert host.memory.read(16, 8) == (3).to_bytes(8, "little")
    assert host.call["fd_read"](number, 0, 1, 24) == 0
    assert host.memory.read(ROOM, 3) == b"inp"
    assert host.call["fd_pread"](number, 0, 1, 0, 24) == 0
    assert host.memory.read(ROOM, 3) == b"an "
    assert host.call["fd_seek"](number, -9, os.SEEK_SET, 16) == WasiCode.INVALID


def test_a_wait_for_a_time_ends(host: Host) -> None:
    """poll_oneoff waits for the clock, and reports which subscription was ready."""
    host.memory.write_u64(0, 42)
    host.memory.write_u32(16, 1)
    host.memory.write_u64(24, 1_000_000)
    assert host.call["poll_oneoff"](0, ROOM, 1, 64) == 0
    assert host.memory.read(64, 4) == (1).to_bytes(4, "little")
    assert host.memory.read(ROOM, 8) == (42).to_bytes(8, "little")


def test_a_wait_for_a_stream_ends_with_a_message_or_its_end(host: Host) -> None:
    """poll_oneoff reports a stream when a read would not wait, and the time if nothing came before it."""
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def receive(timeout: float | None) -> bytes:
        try:
            message = messages.get(timeout=timeout)
        except queue.Empty:
            raise TimeLimitError("nothing came") from None
        if message == b"end":
            raise EndOfStreamError("the end")
        return message

    stream = StreamInput(receive)
    inputs = InputDirectory({"stream": lambda: stream, "input": lambda: InputFile(memoryview(INPUT))})
    host.table = DescriptorTable({"/inputs": inputs})
    calls = HostCalls([], {}, host.table)
    calls.memory = host.memory
    host.call = calls.functions()
    number = host.open(b"stream", rights=2, directory=3)
    other = host.open(b"input", rights=2, directory=3)

    def ready(*files: int, wait_ns: int) -> list[tuple[int, int]]:
        """Return the marks of what is ready, and the numbers of bytes."""
        for place, file in enumerate(files):
            at = 48 * place
            host.memory.write(at, struct.pack("<QB7xI28x", 10 + place, 1, file))
        host.memory.write(48 * len(files), struct.pack("<QB7xI4xQQQ", 99, 0, 1, wait_ns, 0, 0))
        assert host.call["poll_oneoff"](0, ROOM, len(files) + 1, 960) == 0
        count = int.from_bytes(host.memory.read(960, 4), "little")
        polled = [
            struct.unpack("<QHB5xQH6x", host.memory.read(ROOM + 32 * index, 32)) for index in range(count)
        ]
        return [(mark, size) for mark, _, _, size, _ in polled]

    hour_ns = 3_600_000_000_000
    assert ready(number, wait_ns=1_000_000) == [(99, 0)]
    assert ready(number, other, wait_ns=hour_ns) == [(11, len(INPUT))]
    threading.Timer(0.05, messages.put, (b"message",)).start()
    assert ready(number, wait_ns=hour_ns) == [(10, 7)]
    assert ready(number, number, wait_ns=hour_ns) == [(10, 7), (11, 7)]
    host.memory.write(0, struct.pack("<II", ROOM, 20))
    assert host.call["fd_read"](number, 0, 1, 24) == 0
    assert ready(number, number, wait_ns=1_000_000) == [(99, 0)]
    messages.put(b"end")
    assert ready(number, wait_ns=hour_ns) == [(10, 0)]


def test_calls_before_the_memory_is_known_fail() -> None:
    """A start function of a module runs before its memory has a name."""
    calls = HostCalls([], {}, DescriptorTable({})).functions()
    assert calls["random_get"](0, 8) == WasiCode.FAULT


def test_without_the_engine_the_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The task ends with 1 and says what to install."""
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    node = SimpleNamespace(inputs=(), outputs=(), arguments=())
    assert run_module(b"\0asm\1\0\0\0", cast("Node", node), "m") == 1
    assert extra_command("wasm") in capsys.readouterr().err


def test_a_module_is_a_program(tmp_path: Path) -> None:
    """A file, its bytes and a packet are the same program; text that is no module stays Python."""
    module = bytes(wasmtime.wat2wasm("(module)"))
    file = tmp_path / "any.name"
    file.write_bytes(module)
    for form in (str(file), file, module, Program("", wasm=module)):
        assert is_wasm(form)
        assert decode_program(encode_program(form)).wasm == module
    assert not is_wasm(b"print()")
    with pytest.raises(InvalidError):
        encode_program(module, {"a": "x = 1"})
