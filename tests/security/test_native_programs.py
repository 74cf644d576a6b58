"""Hostile native programs: behind the sandbox of a pure task, they reach no more than one in Python."""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.errors import InvalidError
from tests.support.node.confinement import ENVIRONMENT, mechanisms_or_skip
from tests.support.node.running_node import RunningNode, running_node
from tests.support.node.task_folder import TEMPORARY
from tests.support.security.escape import Neighbour

PERL = Path("/usr/bin/perl")
SORT = Path("/usr/bin/sort")
BASH = Path("/bin/bash")
SMALL = 64 << 20
REFUSED = {
    "a file of the machine": ('open(F, "<", "/etc/passwd")', "ENOENT"),
    "the memory of a process": ('open(F, "<", "/proc/self/mem")', "ENOENT"),
    "another device": ('open(F, "<", "/dev/zero")', "ENOENT"),
    "removing the device": ('unlink("/dev/null")', "EROFS EACCES"),
    "a connection": ("socket(S, 2, 1, 0)", "EPERM"),
    "a socket of the machine": ("socket(S, 1, 1, 0)", "EPERM"),
    "another process": ("defined(my $p = fork)", "EPERM"),
    "a program that is not listed": ('exec {"/bin/sh"} "sh"', "ENOENT"),
    "a library as a program": ('exec {"LIBRARY"} "x"', "EACCES"),
    "a program that it has written": (
        'open(F, ">", "/tmp/x") && print(F "x") && close(F) && chmod(0700, "/tmp/x") && exec {"/tmp/x"} "x"',
        "EACCES",
    ),
    "writing its input": ('open(F, "+<", "/inputs/script")', "EACCES"),
    "removing its input": ('unlink("/inputs/script")', "EACCES"),
    "a file next to the programs": ('open(F, ">", "/programs/mine")', "EROFS EACCES"),
    "changing a program": ('open(F, "+<", "/programs/perl")', "EROFS EACCES"),
    "a list of the machine": ('opendir(D, "/")', "EACCES"),
    "another process, to end it": ("kill(9, 2)", "EPERM ESRCH"),
    **{
        name: (f"syscall({call}) == 0", answers)
        for name, call, answers in (
            ("being looked into", "157, 4, 1", "EPERM"),
            ("outliving the node", "157, 1, 0", "EPERM"),
            ("another base register", "158, 0x1001, 0", "EPERM"),
            ("a program by descriptor", "322, 0, 0, 0, 0, 0x1000", "EPERM"),
            ("a process by structure", "435, 0, 88", "ENOSYS"),
            ("a filter of its own", "317, 1, 0, 0", "EPERM"),
            ("another process group", "109, 0, 0", "EPERM"),
        )
        if platform.machine() == "x86_64"
    },
    "a named pipe": ('open(F, ">", "/tmp/p") && unlink("/tmp/p") && symlink("/etc", "/tmp/p")', "EPERM"),
}
DESCRIPTORS = """
for my $number (4 .. 255) { open(my $file, "<&=", $number) and print "$number " }
print "end";
"""
LOADER = """
open(IN, "<", "/programs/perl"); binmode IN; local $/; my $all = <IN>;
open(OUT, ">", "/tmp/copy"); binmode OUT; print OUT $all; close OUT; chmod(0700, "/tmp/copy");
exec {"LOADER"} "loader", "/tmp/copy", "-v"; print "not executed";
"""
PRELOADER = """
open(IN, "<", "LIBRARY"); binmode IN; local $/; my $all = <IN>;
open(OUT, ">", "/tmp/own.so"); binmode OUT; print OUT $all; close OUT; chmod(0700, "/tmp/own.so");
$ENV{LD_PRELOAD} = "/tmp/own.so"; $ENV{LD_AUDIT} = "/tmp/own.so"; open(STDERR, ">&STDOUT");
exec {"/programs/perl"} "perl", "-e", "print 'as listed'";
"""
KEEPER = '$| = 1; open(F, ">", "/tmp/kept"); print "written"; while (1) { select(undef, undef, undef, 1) }'
LOOP = (
    "for i in 1 2; do echo $((i * 7)); done > /tmp/x 2> /dev/null; "
    "echo lost > /dev/null; read -d '' a < /tmp/x; echo $a; read b < /dev/null; echo $b"
)
FINDER = 'print -e "/tmp/kept" ? "found" : "nothing"'


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node, whose settings name two programs."""
    mechanisms_or_skip()
    if not PERL.exists() or not SORT.exists():
        pytest.skip("no perl or sort here")
    with running_node(
        tmp_path_factory.mktemp("native") / "data",
        accept_weaker_sandbox="no",
        task_memory_bytes=str(2 * SMALL),
        programs=f"perl={PERL} sort={SORT}" + (f" bash={BASH}" if BASH.exists() else ""),
    ) as node:
        yield node


@pytest.fixture(scope="module")
def node(running: RunningNode) -> Iterator[dios.Node]:
    """The session that starts hostile programs."""
    with dios.connect(running.place, groups=()) as node:
        yield node


@pytest.fixture
def neighbour(running: RunningNode) -> Iterator[Neighbour]:
    """Somebody else's session, which is answered after the attempt."""
    other = Neighbour(running)
    yield other
    other.is_answered()
    other.client.close()


def in_folder(script: str) -> str:
    """Return a script whose /tmp is the private folder of its task, wherever DIOS is installed."""
    return script.replace("/tmp", TEMPORARY)


def perl(node: dios.Node, script: str, **bounds: int) -> dios.Task:
    """Start a script."""
    with node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=in_folder(script).encode()) as source:
        return node.run(
            dios.Program("", native="perl"),
            inputs={"script": source.restrict("read")},
            files=["script"],
            args=["/inputs/script"],
            limits=dios.Limits(**bounds),
        )


def outcome(node: dios.Node, script: str, **bounds: int) -> tuple[dios.Status, str]:
    """Run a script: its end, and its console."""
    with perl(node, script, **bounds) as task:
        return task.wait(timeout=120), b"".join(task.console()).decode(errors="replace")


def mapped(name: str) -> str:
    """The path of a library of this process, which tasks have, too; skips if it is no executable file."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    path = next((line.split()[-1] for line in lines if name in line.rpartition("/")[2]), "")
    if not os.access(path, os.X_OK):
        pytest.skip(f"no {name} here that can be executed")
    return path


@pytest.mark.parametrize("attempt", REFUSED)
def test_an_attempt_is_refused(node: dios.Node, attempt: str) -> None:
    """The program gets the error of the system, and goes on."""
    code, answers = REFUSED[attempt]
    if "LIBRARY" in code:
        code = code.replace("LIBRARY", mapped("libc.so"))
    script = f'no warnings; if ({code}) {{ print "did" }} else {{ print $!+0 }}'
    status, said = outcome(node, script)
    assert status.ok, (status, said)
    assert said != "did"
    assert errno.errorcode[int(said)] in answers.split(), said


def test_it_inherits_nothing(node: dios.Node) -> None:
    """Its descriptors are those of any pure task, and so are the variables of its environment."""
    assert outcome(node, DESCRIPTORS)[1] == "end"
    _, said = outcome(node, "print join ' ', sort keys %ENV")
    assert set(said.split()) <= {*ENVIRONMENT, "POLARS_OVERRIDE_TOTAL_MEMORY_MB"}


def test_the_loader_runs_no_written_program(node: dios.Node) -> None:
    """The loader may be executed, and maps no code from the private folder."""
    loader = os.path.realpath(mapped("ld-linux"))
    status, said = outcome(node, LOADER.replace("LOADER", loader))
    assert status.exit_code == 127, (status, said)
    assert "not executed" not in said


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the number of the call is of x86_64")
def test_no_library_is_its_own(node: dios.Node) -> None:
    """The loader of a listed program maps no written file, and runs the program as it is."""
    status, said = outcome(node, PRELOADER.replace("LIBRARY", mapped("libc.so")))
    assert status.ok, (status, said)
    assert "cannot be preloaded" in said
    assert said.endswith("as listed")


def test_an_attack_on_the_kernel_ends_it(node: dios.Node) -> None:
    """The filter of pure tasks stays when a task becomes a native program."""
    status, _ = outcome(node, "syscall(272, 0x10000000); print 1")
    assert status.cause is dios.Cause.SANDBOX


@pytest.mark.usefixtures("neighbour")
def test_it_is_ended_at_its_limits(node: dios.Node) -> None:
    """An endless loop ends at the limit of processor time; memory beyond the limit is refused, or ends it."""
    status, _ = outcome(node, "while (1) {}", cpu_ms=1000)
    assert status.cause is dios.Cause.CPU
    status, said = outcome(node, "my @all; push @all, 'x' x 1000000 while 1", memory_bytes=SMALL)
    assert not status.ok
    assert status.cause is dios.Cause.MEMORY or "Out of memory" in said, (status, said)


@pytest.mark.usefixtures("neighbour")
def test_many_children_are_none(node: dios.Node) -> None:
    """A fork bomb makes no process."""
    status, said = outcome(node, "my $n = 0; for (1 .. 10000) { $n++ if defined fork } print $n")
    assert status.ok
    assert said == "0"


def test_no_task_sees_the_folder_of_another(node: dios.Node) -> None:
    """A file in /tmp is that of its task."""
    with perl(node, KEEPER) as keeper:
        assert keeper.console().receive() == b"written"
        assert outcome(node, FINDER)[1] == "nothing"
        keeper.kill()


def test_a_program_in_python_becomes_listed_programs_only(node: dios.Node) -> None:
    """Which is what the node's owner permits; and it stays the same task."""
    script = 'import os; os.execv("/programs/{}", ["x", "-e1"])'
    with node.run(script.format("../bin/sh").encode()) as task:
        assert task.wait(timeout=120).exit_code == 1
    with node.run(script.format("sort").replace("-e1", "--version").encode()) as task:
        assert task.wait(timeout=120).ok
        assert b"sort" in b"".join(task.console())


def test_an_input_is_a_file_and_an_output_is_refused(node: dios.Node) -> None:
    """The result of a native program is its standard output."""
    sort = dios.Program("", native="sort")
    with node.create(dios.SHMEM_BLOB, naming=dios.ANONYMOUS, data=b"3\n10\n2\n") as lines:
        with node.run(
            sort, inputs={"lines": lines.restrict("read")}, files=["lines"], args=["-n", "/inputs/lines"]
        ) as task:
            assert task.wait(timeout=120).ok
            assert b"".join(task.console()) == b"2\n3\n10\n"
        with pytest.raises(InvalidError, match="standard output"):
            node.run(sort, outputs={"out": lines.restrict("read", "write")}, files=["out"])


@pytest.mark.parametrize("name", ["absent", "python"])
def test_another_program_does_not_exist(node: dios.Node, name: str) -> None:
    """The task ends with 1, and says who could add it."""
    with node.run(dios.Program("", native=name)) as task:
        assert task.wait(timeout=120).exit_code == 1
        assert b"[programs.NAME]" in b"".join(task.console())


@pytest.mark.skipif(not BASH.exists(), reason="no bash here")
def test_a_shell_runs_its_own_commands_and_no_others(node: dios.Node) -> None:
    """It starts no process: no pipe, and no program."""
    bash = dios.Program("", native="bash")
    with node.run(bash, args=["-c", in_folder(LOOP)]) as task:
        assert task.wait(timeout=120).ok
        assert b"".join(task.console()) == b"7 14\n\n"
    with node.run(bash, args=["-c", "echo out | read x"]) as task:
        assert not task.wait(timeout=120).ok
        assert b"Operation not permitted" in b"".join(task.console())
