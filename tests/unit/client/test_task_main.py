"""The entry of a task's process, run in processes of their own against a node that answers as told."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import replace

from dios.client.program import Program, decode_program, encode_program
from dios.errors import InvalidError, NotExecutableError
from dios.wire import messages
from dios.wire.messages import AnyCall, AnyResult
from dios.wire.types import Brand
from tests.support.client.fake_node import FakeNode, reference, welcome

ENTRY = """
import os, socket, sys
from dios.wire.codec import encode_request
fd = int(sys.argv[1])
os.dup2(fd, 3)
from dios.client.task_main import main
sys.exit(main())
"""


def run(program: bytes, *arguments: str, in_welcome: bool = False) -> tuple[int, str, str]:
    """Run ``program`` as a task would: its exit status, and what it printed on both descriptors."""
    hello = welcome(
        brand=Brand.PURE,
        executable=reference(9),
        arguments=arguments,
        label="worker.py",
        home=None,
        inputs=(reference(11, label="text"),),
    )
    if in_welcome:
        hello = replace(hello, program=program)

    def script(call: AnyCall) -> AnyResult:
        if isinstance(call, messages.ReadOnce) and call.ref == 9:
            return messages.Buffer(0, len(program), 1, 0, data=program)
        if isinstance(call, messages.ReadOnce):
            return messages.Buffer(0, 5, 1, 0, data=b"bytes")
        return messages.Done(1)

    with FakeNode(script, hello) as fake:
        fake.send_welcome()
        done = subprocess.run(
            [sys.executable, "-c", ENTRY, str(fake.peer.fileno())],
            pass_fds=[fake.peer.fileno()],
            capture_output=True,
            check=False,
            timeout=30,
            text=True,
        )
    return done.returncode, done.stdout, done.stderr


def test_program_runs_as_main_with_its_arguments() -> None:
    """The program is ``__main__``, sees its arguments, and what it prints is its console."""
    source = b"import sys\nif __name__ == '__main__':\n    print(sys.argv, __file__)\n"
    assert run(source, "--top", "3") == (0, "['worker.py', '--top', '3'] worker.py\n", "")


def test_a_fork_before_the_first_use_has_not_the_node_of_its_parent() -> None:
    """The socket, which nobody has used so far, stays the parent's alone."""
    source = b"""
import os, dios
from dios.client.sync.node import ambient
pid = os.fork()
if not pid:
    print(ambient(), flush=True)
else:
    os.waitpid(pid, 0)
    print(dios.connect().input("text").read_bytes())
"""
    assert run(source, in_welcome=True) == (0, "None\nb'bytes'\n", "")


def test_connect_gives_the_tasks_own_node() -> None:
    """Inside a task, connect gives the node of the inherited socket, and closing it closes nothing."""
    source = b"""
import dios
with dios.connect() as node:
    print(node.input("text").read_bytes())
print(dios.connect() is node, dios.connect().inputs[0].read_bytes())
"""
    assert run(source) == (0, "b'bytes'\nTrue b'bytes'\n", "")


def test_both_faces_take_turns_on_one_socket() -> None:
    """Inside a task open_node works on the same socket, and the blocking face works again after it."""
    source = b"""
import dios, trio
async def main():
    async with dios.open_node() as node:
        print(await node.input("text").read_bytes())
print(dios.connect().inputs[0].size)
trio.run(main)
print(dios.connect().inputs[0].read_bytes())
"""
    assert run(source) == (0, "0\nb'bytes'\nb'bytes'\n", "")


def test_a_program_that_does_not_compile_shows_its_own_line_only() -> None:
    """A syntax error is told as an exception of the program's file, with no frame of ours."""
    status, _, told = run(b"def f(:\n")
    assert status == 1
    assert told.startswith('Traceback (most recent call last):\n  File "worker.py", line 1\n')
    assert "task_main" not in told


def test_exit_status_is_the_programs() -> None:
    """SystemExit is honoured, with a number or with words."""
    assert run(b"raise SystemExit(7)")[0] == 7
    status, _, errors = run(b"import sys\nsys.exit('no input')")
    assert (status, errors) == (1, "no input\n")


def test_exception_shows_the_programs_lines_alone() -> None:
    """An exception ends with status 1 and a traceback with its source and no frame of ours."""
    status, printed, errors = run(b"print('before')\ndef f():\n    return 1 / 0  # here\nf()\n")
    assert (status, printed) == (1, "before\n")
    assert 'File "worker.py", line 3, in f' in errors
    assert "return 1 / 0  # here" in errors
    assert "task_main" not in errors
    assert errors.endswith("ZeroDivisionError: division by zero\n")


def test_own_modules_are_importable() -> None:
    """Modules that came with the program are imported from it, packages and relative imports included."""
    program = Program(
        "import helper\nfrom pack.inner import value\nprint(helper.twice(value))\n",
        {
            "helper": "def twice(x):\n    return 2 * x\n",
            "pack.inner": "from .base import value\n",
            "pack.base": "value = 21\n",
        },
    )
    assert run(encode_program(program)) == (0, "42\n", "")


def test_traceback_through_an_own_module_shows_its_lines() -> None:
    """Lines of the program's own modules show in tracebacks too."""
    program = encode_program(
        b"import helper\nhelper.fail()\n", {"helper": "def fail():\n    raise KeyError(3)\n"}
    )
    status, _, errors = run(program)
    assert status == 1
    assert 'File "helper.py", line 2, in fail' in errors
    assert "raise KeyError(3)" in errors


def test_future_features_are_the_programs_own() -> None:
    """The program is compiled without the future features of our own modules."""
    source = b"def f(x: int): ...\nprint(f.__annotations__)\n"
    assert run(source) == (0, "{'x': <class 'int'>}\n", "")


def test_child_of_the_pool_ends_quietly_with_its_node() -> None:
    """A process that waits for a task when the node goes ends with status 0 and says nothing."""
    with FakeNode(lambda _: None) as fake:
        process = subprocess.Popen(
            [sys.executable, "-c", ENTRY, str(fake.peer.fileno())],
            pass_fds=[fake.peer.fileno()],
            stderr=subprocess.PIPE,
        )
        fake.peer.close()
        fake.hang_up()
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, b"")


# -- what an executable holds -----------------------------------------------------------------------
def test_source_and_packets_are_told_apart() -> None:
    """Plain source stays plain; modules make it a packet; both come back."""
    assert encode_program(b"print(1)") == b"print(1)"
    packet = encode_program(b"print(1)", {"a": "x = 1"})
    assert decode_program(packet) == Program("print(1)", {"a": "x = 1"})
    again = encode_program(packet, {"b": "y = 2"})
    assert decode_program(again).modules == {"a": "x = 1", "b": "y = 2"}
    assert decode_program(b"\xef\xbb\xbfprint(1)").main == "print(1)"


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"\x83\xa4main", b"\x81\xa4main\x01", b"\x82\xa4main\xa0\xa1x\xc0"]
)
def test_other_bytes_are_not_executable(data: bytes) -> None:
    """Bytes of neither form are refused with a sentence."""
    with pytest.raises(NotExecutableError):
        decode_program(data)


def test_missing_program_is_told_by_its_path() -> None:
    """A program that cannot be read is refused, naming the path."""
    with pytest.raises(InvalidError, match=r"nowhere\.py"):
        encode_program("nowhere.py")


def test_text_in_place_of_a_path_is_told() -> None:
    """The text of a program as a str is not taken for a path."""
    with pytest.raises(InvalidError, match="give the text of a program as bytes"):
        encode_program("import dios\nprint(1)\n")
