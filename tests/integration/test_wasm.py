"""WebAssembly modules as programs of tasks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.client.wasm.codes import WasiCode
from dios.errors import InvalidError
from tests.support.node.command_user import Person
from tests.support.node.confinement import mechanisms_or_skip
from tests.support.node.running_node import running_node
from tests.support.wasm import (
    CREATE,
    INPUTS,
    OUTPUTS,
    READ,
    ROOM,
    TEMPORARY,
    WRITE,
    Call,
    Word,
    built,
    opening,
    program,
    put,
)

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONTENT = bytes(range(256)) * 100
COPY = program(
    [
        opening(INPUTS, b"data", 64),
        opening(OUTPUTS, b"copy", 68, flags=CREATE, rights=READ | WRITE),
        put(80, ROOM),
        put(84, len(CONTENT)),
        Call("fd_read", (Word(64), 80, 1, 84)),
        Call("fd_write", (Word(68), 80, 1, 84)),
        Call("fd_close", (Word(68),)),
    ]
)
ENDLESS = built('(module (func (export "_start") (loop (br 0))))')
TRAP = built('(module (func $inner unreachable) (func (export "_start") call $inner))')
STARTED = b"""
import sys
print([name for name in sys.modules if "wasm" in name])
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dios.Node]:
    """A connection to one node for all tests of this module."""
    mechanisms_or_skip()
    with (
        running_node(tmp_path_factory.mktemp("wasm") / "data") as running,
        dios.connect(running.place, groups=()) as node,
    ):
        yield node


def blob(node: dios.Node, data: bytes = b"before") -> dios.Reference:
    """An anonymous object."""
    return node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=data)


def outcome(node: dios.Node, module: bytes, *args: str, **limits: int) -> tuple[dios.Status, bytes]:
    """Run a module: its end, and its console."""
    with node.run(module, args=args, limits=dios.Limits(**limits)) as task:
        return task.wait(), b"".join(task.console())


def test_a_module_reads_inputs_and_writes_outputs(node: dios.Node) -> None:
    """The input's bytes are in /inputs; the file that is left in /outputs is the output's content."""
    data, copy = blob(node, CONTENT), blob(node)
    with node.run(
        COPY, inputs={"data": data.restrict("read")}, outputs={"copy": copy.restrict("read", "write")}
    ) as task:
        assert task.wait().ok, b"".join(task.console())
    assert copy.read_bytes() == CONTENT


def test_a_module_that_fails_changes_no_output(node: dios.Node) -> None:
    """The exit status is the module's, and an output is stored after a success only."""
    data, copy = blob(node, CONTENT), blob(node)
    failing = program([opening(OUTPUTS, b"copy", 68, flags=CREATE, rights=WRITE), Call("proc_exit", (7,))])
    with node.run(
        failing, inputs={"data": data.restrict("read")}, outputs={"copy": copy.restrict("read", "write")}
    ) as task:
        assert task.wait().exit_code == 7
    assert copy.read_bytes() == b"before"


def test_arguments_and_console(node: dios.Node) -> None:
    """A module gets its label and the arguments, and writes to both ends of the console."""
    module = program(
        [
            Call("args_get", (ROOM, ROOM + 100)),
            put(80, ROOM + 100),
            put(84, 10),
            Call("fd_write", (2, 80, 1, 88)),
        ]
    )
    with node.run(module, args=["one", "two"], label="m") as task:
        assert task.wait().ok
        assert b"m\0one\0two\0" in b"".join(task.console())


def test_standard_input_is_empty(node: dios.Node) -> None:
    """A read of descriptor 0 succeeds and gives no byte."""
    module = program([put(80, ROOM), put(84, 10), Call("fd_read", (0, 80, 1, 88))], show=[(88, 4)])
    status, said = outcome(node, module)
    assert status.ok
    assert said[2:] == b"\0" + bytes(4)


def test_the_temporary_folder_is_there(node: dios.Node) -> None:
    """What a module writes below /tmp it can read again, and it can list and rename it."""
    module = program(
        [
            Call("path_create_directory", (TEMPORARY, b"sub")),
            opening(TEMPORARY, b"sub/file", 64, flags=CREATE, rights=READ | WRITE),
            put(80, ROOM),
            put(84, 5),
            put(ROOM, 0x6C6C6568),
            Call("fd_write", (Word(64), 80, 1, 88)),
            Call("fd_pread", (Word(64), 80, 1, 1, 88)),
            Call("path_rename", (TEMPORARY, b"sub/file", TEMPORARY, b"other")),
            Call("path_remove_directory", (TEMPORARY, b"sub")),
            Call("fd_readdir", (TEMPORARY, ROOM + 100, 29, 0, 92)),
        ],
        show=[(ROOM, 3), (ROOM + 124, 5)],
    )
    status, said = outcome(node, module)
    assert status.ok
    assert said == bytes(10) + b"ell" + b"other"


def test_a_trap_is_reported_like_an_exception(node: dios.Node) -> None:
    """The reason is in the task's status, and the module's functions are on the console."""
    status, said = outcome(node, TRAP)
    assert status.exit_code == 1
    assert status.cause is dios.Cause.EXCEPTION
    assert "unreachable" in status.detail
    assert b"function inner" in said


def test_an_endless_loop_is_ended_by_its_limit(node: dios.Node) -> None:
    """Compiled code is interrupted at the limit of processor time like any other."""
    status, _ = outcome(node, ENDLESS, cpu_ms=1000)
    assert status.cause is dios.Cause.CPU


def test_a_killed_loop_ends(node: dios.Node) -> None:
    """A kill ends it, too."""
    with node.run(ENDLESS) as task:
        task.kill()
        assert task.wait().cause is dios.Cause.KILLED


def test_memory_beyond_the_limit_is_refused(node: dios.Node) -> None:
    """memory.grow answers -1, and the module goes on."""
    # 60 MiB more than the limit.
    body = (
        "(if (i32.eq (memory.grow (i32.const 2000)) (i32.const -1)) (then (call $proc_exit (i32.const 3))))"
    )
    status, _ = outcome(node, program([], body=body), memory_bytes=64 << 20)
    assert status.exit_code == 3, status


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (b"\0asm\1\0\0\0nonsense", b"cannot run the WebAssembly module"),
        (b"\0asm\x0d\0\1\0", b"component"),
        (built("(module)"), b"exports no function _start"),
        (built('(module (import "wasi" "thread-spawn" (func)) (func (export "_start")))'), b"thread-spawn"),
    ],
    ids=["malformed", "component", "library", "unknown import"],
)
def test_a_module_that_cannot_run_is_refused_with_the_reason(
    node: dios.Node, module: bytes, reason: bytes
) -> None:
    """The task ends with 1, and its console says why."""
    status, said = outcome(node, module)
    assert status.exit_code == 1
    assert reason in said


def test_a_module_runs_as_a_pure_task_only(node: dios.Node) -> None:
    """In limbo its compiler would be outside the sandbox."""
    with pytest.raises(InvalidError, match="pure task"):
        node.run(ENDLESS, brand="limbo")
    with pytest.raises(InvalidError, match="imports modules of Python"):
        node.run(ENDLESS, modules={"a": "x = 1"})


def test_no_other_task_loads_the_engine(node: dios.Node) -> None:
    """A program in Python starts without a module of WebAssembly."""
    status, said = outcome(node, STARTED)
    assert status.ok
    assert said == b"[]\n"


PIPE = program(
    [
        opening(INPUTS, b"from", 64),
        opening(OUTPUTS, b"to", 68, flags=CREATE, rights=WRITE),
        put(80, ROOM),
        put(84, 5),
        Call("fd_read", (Word(64), 80, 1, 88)),
        Call("fd_read", (Word(64), 80, 1, 88)),
        put(84, Word(88)),
        Call("fd_write", (Word(68), 80, 1, 92)),
        put(84, 5),
        Call("fd_read", (Word(64), 80, 1, 88)),
    ],
    show=[(88, 4)],
)


def test_streams_connect_modules(node: dios.Node) -> None:
    """A stream among the inputs is read up to its end, and one among the outputs is written."""
    with (
        node.create_stream() as source,
        node.create_stream() as sink,
        node.run(
            PIPE, inputs={"from": source.restrict("read")}, outputs={"to": sink.restrict("write")}
        ) as task,
    ):
        source.send(b"seven b")
        assert sink.receive(timeout=120) == b" b"
        source.writer.close()
        assert task.wait(timeout=120).ok
        assert b"".join(task.console()) == bytes(14), "no error, and no byte at the end"


def test_an_input_that_may_not_be_read_fails_when_it_is_opened(node: dios.Node) -> None:
    """The rights of the reference are those of the file."""
    with (
        blob(node) as data,
        node.run(program([opening(INPUTS, b"0", 64)]), inputs=[data.restrict("write")]) as task,
    ):
        assert task.wait().ok
        assert b"".join(task.console()) == bytes([WasiCode.IO])


def test_the_command_runs_a_file(tmp_path: Path) -> None:
    """`dios run FILE.wasm` stores the outputs of the module."""
    mechanisms_or_skip()
    person = Person(tmp_path)
    (tmp_path / "copy.wasm").write_bytes(COPY)
    (tmp_path / "content").write_bytes(b"some text")
    person.types("dios-node start --data ./node0 --detach")
    try:
        person.types("dios group create work")
        person.types("dios put content --group work")
        person.types("dios run copy.wasm -g work --input data=content --output copy=result")
        assert person.types("dios get work/result").stdout == "some text"
    finally:
        person.types("dios-node stop")


def test_the_example_runs(tmp_path: Path) -> None:
    """examples/wasm_upper.py runs a module on a node of its own."""
    mechanisms_or_skip()
    (tmp_path / "text").write_text("Made by hand.\n" * 10_000)
    done = subprocess.run(
        [sys.executable, EXAMPLES / "wasm_upper.py", "text"],
        cwd=tmp_path,
        env=Person(tmp_path).environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "MADE BY HAND.\n" * 10_000
