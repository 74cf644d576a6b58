"""Hostile WebAssembly modules: each is a pure task, and reaches less than one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import dios
from dios.client.wasm.codes import WasiCode
from tests.support.node.confinement import mechanisms_or_skip
from tests.support.node.running_node import RunningNode, running_node
from tests.support.security.escape import Neighbour
from tests.support.wasm import (
    BAD_ADDRESS,
    CREATE,
    INPUTS,
    READ,
    ROOM,
    TEMPORARY,
    TRUNCATE,
    WRITE,
    Call,
    Word,
    built,
    opening,
    program,
    put,
)

INPUT = b"what others rely on"
MANY_MUTANTS = 25
SMALL = 64 << 20

REFUSED = {
    "a file of the machine": (opening(TEMPORARY, b"/etc/passwd", 64), "NOT_PERMITTED"),
    "a path out of the folder": (opening(TEMPORARY, b"../../etc/passwd", 64), "NOT_PERMITTED"),
    "a path that goes down first": (opening(TEMPORARY, b"a/../../../etc/passwd", 64), "NOT_PERMITTED"),
    "the parent of the inputs": (opening(INPUTS, b"..", 64), "NOT_PERMITTED"),
    "another name below the inputs": (opening(INPUTS, b"other", 64), "NO_ENTRY"),
    "writing an input": (opening(INPUTS, b"data", 64, rights=READ | WRITE), "READ_ONLY"),
    "cutting an input": (opening(INPUTS, b"data", 64, flags=TRUNCATE), "READ_ONLY"),
    "a new input": (opening(INPUTS, b"new", 64, flags=CREATE), "READ_ONLY"),
    "removing an input": (Call("path_unlink_file", (INPUTS, b"data")), "READ_ONLY"),
    "moving an input": (Call("path_rename", (INPUTS, b"data", TEMPORARY, b"mine")), "READ_ONLY"),
    "a symbolic link": (Call("path_symlink", (b"/etc", TEMPORARY, b"etc")), "NOT_PERMITTED"),
    "a hard link": (Call("path_link", (TEMPORARY, 0, b".", TEMPORARY, b"hard")), "NOT_PERMITTED"),
    "a connection": (Call("sock_accept", (0, 0, 64)), "NOT_SOCKET"),
    "sending": (Call("sock_send", (1, 64, 1, 0, 68)), "NOT_SOCKET"),
    "a descriptor of the host": (Call("fd_read", (77, 64, 1, 68)), "BAD_DESCRIPTOR"),
    "reading the console": (Call("fd_seek", (1, 0, 0, 64)), "NOT_SEEKABLE"),
    "a signal": (Call("proc_raise", (9,)), "NOT_SUPPORTED"),
    "memory of the host, to write": (Call("random_get", (BAD_ADDRESS, 16)), "FAULT"),
    "memory of the host, to read": (Call("path_unlink_file", (TEMPORARY, BAD_ADDRESS, 16)), "FAULT"),
    "a buffer at the end of memory": (Call("args_get", (BAD_ADDRESS, BAD_ADDRESS)), "FAULT"),
    "more buffers than there may be": (Call("fd_write", (1, 0, 1 << 30, 64)), "INVALID"),
    "a very long path": (Call("path_unlink_file", (TEMPORARY, bytes(5000))), "NAME_TOO_LONG"),
    "a path that is no text": (opening(TEMPORARY, b"\xff\xfe", 64), "ILLEGAL_BYTES"),
    "a path with a zero": (opening(TEMPORARY, b"a\0b", 64), "INVALID"),
    "a descriptor below zero": (Call("fd_close", (0xFFFF_FFFF,)), "BAD_DESCRIPTOR"),
    "a length that wraps around": (Call("random_get", (16, 0xFFFF_FFFF)), "FAULT"),
    "a list with a length that wraps around": (
        Call("fd_readdir", (TEMPORARY, 16, 0xFFFF_FFFF, 0, 64)),
        "FAULT",
    ),
    "vectors that wrap around": (Call("fd_write", (1, 0xFFFF_FFF8, 4, 64)), "FAULT"),
    "waiting for more than there may be": (Call("poll_oneoff", (64, 128, 1 << 28, 64)), "INVALID"),
    "a clock that is none": (Call("clock_time_get", (77, 0, 64)), "INVALID"),
    "a name of a directory beyond memory": (
        Call("fd_prestat_dir_name", (INPUTS, BAD_ADDRESS, 64)),
        "FAULT",
    ),
    "a place in a directory": (Call("fd_seek", (INPUTS, 1 << 63, 0, 64)), "NOT_SEEKABLE"),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all attempts."""
    mechanisms_or_skip()
    with running_node(
        tmp_path_factory.mktemp("wasm") / "data", accept_weaker_sandbox="no", task_memory_bytes=str(2 * SMALL)
    ) as node:
        yield node


@pytest.fixture(scope="module")
def node(running: RunningNode) -> Iterator[dios.Node]:
    """The session that starts hostile modules."""
    with dios.connect(running.place, groups=()) as node:
        yield node


@pytest.fixture
def neighbour(running: RunningNode) -> Iterator[Neighbour]:
    """Somebody else's session, which is answered after the attempt."""
    other = Neighbour(running)
    yield other
    other.is_answered()
    other.client.close()


def outcome(node: dios.Node, module: bytes, **limits: int) -> tuple[dios.Status, bytes]:
    """Run a module: its end, and its console."""
    with node.run(module, limits=dios.Limits(**limits)) as task:
        return task.wait(timeout=120), b"".join(task.console())


@pytest.mark.parametrize("attempt", REFUSED)
def test_a_call_is_refused_with_its_code(node: dios.Node, attempt: str) -> None:
    """The module gets the error code and goes on; the input stays as it was."""
    call, code = REFUSED[attempt]
    with (
        node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=INPUT) as data,
        node.run(program([call]), inputs={"data": data.restrict("read")}) as task,
    ):
        status, said = task.wait(timeout=120), b"".join(task.console())
        assert status.ok, (status, said)
        assert WasiCode(said[0]).name == code
        assert data.read_bytes() == INPUT


def test_an_open_input_is_not_written(node: dios.Node) -> None:
    """Neither by the descriptor's writing, nor by its size."""
    calls = [
        opening(INPUTS, b"data", 64),
        put(80, ROOM),
        put(84, 4),
        Call("fd_write", (Word(64), 80, 1, 88)),
        Call("fd_pwrite", (Word(64), 80, 1, 0, 88)),
        Call("fd_filestat_set_size", (Word(64), 0)),
    ]
    with (
        node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=INPUT) as data,
        node.run(program(calls), inputs={"data": data.restrict("read")}) as task,
    ):
        assert task.wait(timeout=120).ok
        assert not {0} & set(b"".join(task.console())[3:]), "each was refused"
        assert data.read_bytes() == INPUT


def test_no_task_sees_the_folder_of_another(node: dios.Node) -> None:
    """A module finds nothing in /tmp while another one has a file there."""
    keeper = program(
        [opening(TEMPORARY, b"kept", 64, flags=CREATE, rights=WRITE)],
        body="(loop (br 0))",
    )
    finder = program([Call("fd_readdir", (TEMPORARY, ROOM, 100, 0, 64))], show=[(64, 4)])
    with node.run(keeper) as first:
        assert first.console().receive() == b"\0", "it has its file"
        status, said = outcome(node, finder)
        first.kill()
    assert status.ok
    assert said == bytes(5), "no error, and no entry"


def test_a_file_ends_where_the_folder_does(node: dios.Node) -> None:
    """A file cannot be made larger than the task's memory limit, and the module goes on."""
    calls = [
        opening(TEMPORARY, b"large", 64, flags=CREATE, rights=WRITE),
        Call("fd_filestat_set_size", (Word(64), 1 << 40)),
        Call("fd_allocate", (Word(64), 1 << 62, 1 << 62)),
    ]
    status, said = outcome(node, program(calls))
    assert status.ok
    assert said[0] == 0
    assert said[1] == WasiCode.FILE_TOO_LARGE
    assert said[2] in {WasiCode.FILE_TOO_LARGE, WasiCode.INVALID}


@pytest.mark.usefixtures("neighbour")
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("(local $i i32) (loop (local.set $i (i32.add (local.get $i) (i32.const 1))) (br 0))", ""),
        ("(loop (br_if 0 (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable", "unreachable"),
    ],
    ids=["processor", "memory"],
)
def test_a_greedy_module_is_ended_or_refused(node: dios.Node, body: str, told: str) -> None:
    """Without end, it is ended by its limit; without bound, the growth of its memory is refused."""
    # The locals of a body come first in a function.
    status, said = outcome(
        node, built(f'(module (memory 1) (func (export "_start") {body}))'), cpu_ms=2000, memory_bytes=SMALL
    )
    if told:
        assert told in said.decode(), (status, said)
    else:
        assert status.cause is dios.Cause.CPU, (status, said)


@pytest.mark.usefixtures("neighbour")
def test_endless_recursion_is_a_trap(node: dios.Node) -> None:
    """The stack of a module has a bound of its own."""
    status, said = outcome(node, built('(module (func $f (export "_start") call $f))'))
    assert status.exit_code == 1
    assert b"call stack exhausted" in said


@pytest.mark.long
@pytest.mark.usefixtures("neighbour")
def test_a_module_that_is_hard_to_compile_costs_its_task(node: dios.Node) -> None:
    """The compiler works within the limits of the task: it ends, or is ended by them."""
    nest = 400
    function = "(func (result i32)" + "(i32.add (i32.const 1) " * nest + "(i32.const 0)" + ")" * nest + ")"
    module = built("(module " + function * 2000 + '(func (export "_start")))')
    status, _ = outcome(node, module, cpu_ms=1000, memory_bytes=SMALL)
    assert status.cause in {dios.Cause.CPU, dios.Cause.MEMORY, dios.Cause.SIGNAL, dios.Cause.EXITED}, status


@pytest.mark.usefixtures("neighbour")
def test_hostile_bytes_cost_their_task(node: dios.Node) -> None:
    """Changed bytes of a module never do more than end a task, whatever they become."""
    chance = random.Random(0)  # noqa: S311 - repeatable
    whole = program([opening(TEMPORARY, b"kept", 64, flags=CREATE, rights=WRITE)], show=[(64, 4)])
    for _ in range(MANY_MUTANTS):
        mutant = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            mutant[chance.randrange(8, len(mutant))] = chance.randrange(256)
        status, _ = outcome(node, bytes(mutant), cpu_ms=2000, memory_bytes=SMALL)
        assert status.ended


def test_nothing_starts_processes_or_threads(node: dios.Node) -> None:
    """There is no call for it, and a module that asks for one is not run."""
    for name in ("proc_fork", "proc_exec", "thread_spawn"):
        module = built(f'(module (import "wasi_snapshot_preview1" "{name}" (func)) (func (export "_start")))')
        status, said = outcome(node, module)
        assert status.exit_code == 1
        assert name.encode() in said
