"""Inputs and outputs of tasks as files: /inputs/LABEL and /outputs/LABEL."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent

import pytest

import dios
from dios.errors import InvalidError
from tests.support.node.command_user import Person
from tests.support.node.confinement import mechanisms_or_skip
from tests.support.node.running_node import running_node

pytestmark = pytest.mark.long

CONTENT = bytes(range(256)) * 20_000

COPY = """
    data = open("/inputs/data", "rb").read()
    with open("/outputs/copy", "wb") as file:
        file.write(data[::-1])
    """
REFUSED = """
    import os
    for attempt in (
        lambda: open("/inputs/data", "r+b"),
        lambda: open("/inputs/other", "wb"),
        lambda: os.unlink("/inputs/data"),
        lambda: os.rename("/inputs/data", "/inputs/other"),
    ):
        try:
            attempt()
        except PermissionError:
            print("refused")
    print(os.listdir("/inputs"), os.listdir("/outputs"), len(open("/inputs/data", "rb").read()))
    """


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dios.Node]:
    """A connection to one node for all tests of this module."""
    mechanisms_or_skip()
    with (
        running_node(tmp_path_factory.mktemp("files") / "data") as running,
        dios.connect(running.place, groups=()) as node,
    ):
        yield node


def blob(node: dios.Node, data: bytes = b"before") -> dios.Reference:
    """An anonymous object."""
    return node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=data)


def outcome(
    node: dios.Node,
    program: str,
    data: dios.Reference,
    copy: dios.Reference,
    limits: dios.Limits | None = None,
) -> tuple[dios.Status, str]:
    """Run a program with one input and one output as files: its end, and its console."""
    with node.run(
        dedent(program).encode(),
        inputs={"data": data.restrict("read")},
        outputs={"copy": copy.restrict("read", "write")},
        files=["data", "copy"],
        limits=limits,
    ) as task:
        return task.wait(), b"".join(task.console()).decode()


@pytest.mark.parametrize("content", [CONTENT, b""], ids=["large", "empty"])
def test_a_program_that_knows_only_files_reads_and_writes_objects(node: dios.Node, content: bytes) -> None:
    """The input's bytes are in its file; the file that is left is the output's content afterwards."""
    data, copy = blob(node, content), blob(node)
    status, said = outcome(node, COPY, data, copy)
    assert status.ok, said
    assert copy.read_bytes() == content[::-1]


@pytest.mark.parametrize(
    ("last", "ok"),
    [
        ("raise SystemExit(3)", False),
        ("raise ValueError", False),
        ("import os; os._exit(1)", False),
        ("import os; os.abort()", False),
        ("raise SystemExit('failed')", False),
        ("import os; os.remove('/outputs/copy')", True),
    ],
)
def test_a_failure_changes_nothing(node: dios.Node, last: str, ok: bool) -> None:  # noqa: FBT001 - a column
    """An output stays as it was if its task fails, or leaves no file."""
    data, copy = blob(node, CONTENT), blob(node)
    status, _ = outcome(node, dedent(COPY) + last, data, copy)
    assert status.ok == ok
    assert copy.read_bytes() == b"before"


@pytest.mark.parametrize("last", ["raise SystemExit", "raise SystemExit(0)", "import sys; sys.exit(None)"])
def test_a_program_that_ends_itself_successfully_is_a_success(node: dios.Node, last: str) -> None:
    """The end of the interpreter with 0 counts, also in exit functions of the program."""
    late = "import atexit; atexit.register(lambda: open('/outputs/copy', 'ab').write(b' late'))\n"
    data, copy = blob(node, b"abc"), blob(node)
    status, _ = outcome(node, late + dedent(COPY) + last, data, copy)
    assert status.ok
    assert copy.read_bytes() == b"cba late"


def test_inputs_are_read_only(node: dios.Node) -> None:
    """The files of inputs are not written, removed or renamed, and the object never is."""
    data = blob(node, CONTENT)
    status, said = outcome(node, REFUSED, data, blob(node))
    assert status.ok, said
    assert said == "refused\n" * 4 + f"['data'] [] {len(CONTENT)}\n"
    assert data.read_bytes() == CONTENT


def test_an_input_without_room_is_named(node: dios.Node) -> None:
    """The copy counts as memory of the task, and the error says what to do."""
    least = dios.Limits(memory_bytes=64 << 20)
    with blob(node, bytes(3 << 30)) as data:
        status, said = outcome(node, COPY, data, blob(node), least)
    assert not status.ok
    assert "'data'" in said or status.cause is dios.Cause.MEMORY


def test_an_output_that_may_not_be_written_fails_the_task(node: dios.Node) -> None:
    """The task ends with 1, and says why."""
    copy = blob(node)
    with node.run(
        b"open('/outputs/copy', 'w').write('text')",
        outputs={"copy": copy.restrict("read")},
        files=["copy"],
    ) as task:
        assert task.wait().exit_code == 1
        assert "cannot store the outputs" in b"".join(task.console()).decode()
    assert copy.read_bytes() == b"before"


def test_labels_that_are_no_names_of_files_are_refused(node: dios.Node) -> None:
    """No label leads out of the folder, none is missing or there twice, and limbo tasks have no files."""
    data = blob(node)
    for label in ("", ".", "..", "a/b", "/etc/passwd", "a\0b", "x" * 256):
        with pytest.raises(InvalidError):
            node.run(b"", inputs={label: data}, files=[label])
    with pytest.raises(InvalidError, match="exactly one"):
        node.run(b"", inputs={"data": data}, files=["other"])
    with pytest.raises(InvalidError, match="exactly one"):
        node.run(b"", inputs={"data": data}, outputs={"data": data}, files=["data"])
    with pytest.raises(InvalidError, match="pure"):
        node.run(b"", inputs={"data": data}, files=["data"], brand="limbo")
    with pytest.raises(InvalidError, match="reference"):
        node.run(data, inputs={"data": data}, files=["data"])


def test_the_command_line(tmp_path_factory: pytest.TempPathFactory) -> None:
    """`dios run` reads and stores files of the group; after a failure nothing is stored."""
    mechanisms_or_skip()
    person = Person(tmp_path_factory.mktemp("home"))
    person.types("dios-node start --data ./node0 --detach")
    try:
        person.types("dios group create analytics")
        person.writes("t.csv", "a,b\n1,2\n")
        person.types("dios put t.csv --group analytics")
        person.writes("etl.py", "open('/outputs/out', 'w').write(open('/inputs/csv').read().upper())")
        run = "dios run etl.py -g analytics --input csv=t.csv --output"
        person.types(f"{run} out=result.csv")
        assert person.types("dios get analytics/result.csv").stdout == "A,B\n1,2\n"
        person.writes("etl.py", "open('/outputs/out', 'w').write('half'); raise SystemExit(4)")
        person.types(f"{run} out=result.csv", status=4)
        assert person.types("dios get analytics/result.csv").stdout == "A,B\n1,2\n"
        person.writes("etl.py", "print('no file')")
        missing = person.types(f"{run} out=deep/other.csv", status=125)
        assert "left no file /outputs/out" in missing.stderr
        assert "other.csv" not in person.types("dios ls analytics").stdout
        for bad in ("out", "=x", "a/b=x", "out=x --detach", "csv=x"):
            person.types(f"{run} {bad}", status=125)
    finally:
        person.types("dios-node stop")
