"""Sandboxes in gVisor: the session makes its calls to a kernel of its own, and is otherwise the same."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dios
import dios.aio
from dios.errors import InvalidError, NotSupportedError
from dios.lib.sandbox.errors import SandboxEndedError
from tests.support.layouts import busybox_layout
from tests.support.node.confinement import children_of, gvisor_or_skip
from tests.support.node.running_node import RunningNode, exists, running_node, wait_until
from tests.support.web_servers import web_server

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for the tests of this module, with the settings that every node has."""
    gvisor_or_skip()
    with running_node(tmp_path_factory.mktemp("node") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def box(node: RunningNode) -> Iterator[dios.Sandbox]:
    """One sandbox for the tests that leave it as it was."""
    with opened(node, inputs={"note": b"bytes"}) as sandbox:
        yield sandbox


def opened(node: RunningNode, **given: Any) -> dios.Sandbox:  # type: ignore[explicit-any]  # its arguments
    """A sandbox in gVisor."""
    return dios.Sandbox(node=node.place, isolation="gvisor", timeout=PATIENCE_S, **given)


def value_of(box: dios.Sandbox, source: str) -> str | None:
    """The last value of code that raises nothing."""
    result = box.run(source)
    assert result.error is None, str(result.error)
    return result.value_repr


def test_a_session_has_another_kernel_and_the_same_python(box: dios.Sandbox) -> None:
    """Its variables stay, and its interpreter and folders are those of an ordinary pure task."""
    machine = " ".join(os.uname()[2:4])
    assert value_of(box, "import os; ' '.join(os.uname()[2:4])") != repr(machine)
    assert value_of(box, "import sys, msgspec, numpy; (sys.version_info[:3], os.getcwd())") == repr(
        (tuple(__import__("sys").version_info[:3]), "/tmp")
    )
    assert value_of(box, "x = 20; x + 1") == "21"
    assert value_of(box, "x") == "20"
    assert value_of(box, "inputs['note'].read(), open('/inputs/note', 'rb').read()") == "(b'bytes', b'bytes')"
    box.put("numbers.csv", b"n\n1\n")
    assert value_of(box, "open('/tmp/numbers.csv').read()") == "'n\\n1\\n'"
    assert box.get("numbers.csv") == b"n\n1\n"


def test_large_values_go_in_and_come_back(box: dios.Sandbox) -> None:
    """More than a stream holds at once, in both directions."""
    data = os.urandom(3 << 20)
    box.put("data", data)
    assert box.get("data") == data


def test_a_large_input_is_read_without_a_copy(node: RunningNode) -> None:
    """The memory of the node is mapped in the sandbox, which cannot write to it."""
    data = bytes(range(256)) * 4096 * 64
    with opened(node, inputs={"large": data}, memory="128 MiB") as own:
        assert value_of(own, "sum(inputs['large'].read(1 << 20))") == str(sum(data[: 1 << 20]))
        assert value_of(own, "import os; os.path.lexists('/inputs/large')") == "False"


def test_a_run_over_its_time_is_interrupted(node: RunningNode) -> None:
    """The session keeps its variables."""
    with dios.Sandbox(node=node.place, isolation="gvisor", timeout=2) as own:
        own.run("x = 1")
        error = own.run("while True: pass").error
        assert error is not None
        assert (error.type, error.ended) == ("TimeoutError", False)
        assert own.run("x").value_repr == "1"


@pytest.mark.parametrize("status", [3, 130, 137, 255])
def test_an_exit_status_is_no_signal(node: RunningNode, status: int) -> None:
    """Also one that a shell uses for the end by a signal."""
    with opened(node) as own:
        error = own.run(f"import os; os._exit({status})").error
        assert error is not None
        assert f"it left its process with exit status {status} " in error.message
        own.reset()
        assert value_of(own, "5") == "5"


REACHED = {
    "memory": ("kept = []\nwhile True: kept.append(bytearray(1 << 20))", "memory="),
    "shared memory": (
        "import mmap\npages = mmap.mmap(-1, 600 << 20)\nfor at in range(0, 600 << 20, 4096): pages[at] = 1",
        "memory=",
    ),
    "processor time": ("while True: pass", "cpu_seconds="),
    "open files": ("import os\nkept = []\nwhile True: kept.append(os.dup(0))", "limit of open files"),
}
"""For each limit, code that reaches it, and what its error says about it."""


@pytest.mark.parametrize("limit", REACHED)
def test_each_limit_is_enforced_and_named(node: RunningNode, limit: str) -> None:
    """The kernel of the session is within the same limits; a fresh session starts."""
    source, told = REACHED[limit]
    with opened(node, memory="128 MiB", cpu_seconds=6) as own:
        error = own.run(source).error
        assert error is not None
        assert told in str(error), str(error)
        own.reset()
        assert value_of(own, "1") == "1"


def test_files_are_limited(node: RunningNode) -> None:
    """The folder for temporary files holds half of the memory; the session goes on."""
    with opened(node, memory="128 MiB") as own:
        error = own.run("with open('large', 'wb') as file:\n    while True: file.write(bytes(1 << 20))").error
        assert error is not None
        assert "No space left on device" in error.message
        assert value_of(own, "import os; os.remove('large')") is None


def test_a_flood_of_threads_or_processes_ends_with_the_sandbox(node: RunningNode) -> None:
    """The number of processes of the machine is bounded; the node and others go on, and nothing is left."""
    flood = "import os, time\nwhile True:\n    if not os.fork():\n        time.sleep(1000)"
    with opened(node, memory="2 GiB") as own, opened(node) as other:
        pids = node.descendants()
        error = own.run(flood).error
        assert error is not None
        assert error.ended
        assert re.search("its processes reached their limit, 256|memory=", error.message), error.message
        assert value_of(other, "1") == "1"
        own.close()
        wait_until(lambda: len(node.descendants()) <= len(pids), "the flood has ended")


@pytest.mark.long
def test_a_paused_sandbox_does_nothing(node: RunningNode) -> None:
    """Its kernel is stopped with it, and continues."""
    with opened(node) as own:
        loop = "import threading\nn = 0\ndef count():\n    global n\n    while True: n += 1"
        own.run(f"{loop}\nthreading.Thread(target=count, daemon=True).start()")
        assert own._link is not None
        task = own._link.task
        assert task is not None
        own.pause()

        def states() -> set[str]:
            rows = (Path(f"/proc/{pid}/stat").read_text(encoding="utf-8") for pid in below(task.status().pid))
            return {row.rpartition(")")[2].split()[0] for row in rows}

        wait_until(lambda: states() <= {"T", "t"}, "every process is stopped")
        own.resume()
        first = value_of(own, "n")
        wait_until(lambda: value_of(own, "n") != first, "it goes on")


def below(pid: int) -> set[int]:
    """A process and all below it."""
    return {pid}.union(*map(below, children_of(pid)))


def test_a_closed_sandbox_leaves_no_process_and_no_mount(node: RunningNode) -> None:
    """Neither of the runtime nor of its kernel; killed or closed."""
    before = node.descendants()
    mounts = Path("/proc/mounts").read_text(encoding="utf-8")
    own = opened(node)
    within = set(node.descendants()) - set(before)
    assert len(within) > 2
    own.close()
    wait_until(lambda: not any(map(exists, within)), "all have ended")
    assert Path("/proc/mounts").read_text(encoding="utf-8") == mounts


def test_a_killed_node_leaves_no_process(tmp_path: Path) -> None:
    """The kernel of a sandbox ends with its zygote, and that with its node."""
    gvisor_or_skip()
    with running_node(tmp_path / "data") as running:
        own = opened(running)
        pids = running.descendants()
        assert any("runsc" in command_of(pid) for pid in pids)
        running.kill()
        wait_until(lambda: not any(map(exists, pids)), "all have ended")
        own.close()


def command_of(pid: int) -> str:
    """The command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")


def test_templates_and_forks_are_refused(node: RunningNode) -> None:
    """Before anything is sent; another word is refused with the words that exist."""
    for given in ({"forkable": True}, {"template": "data"}):
        with pytest.raises(InvalidError, match="a sandbox in gVisor has no template"):
            opened(node, **given)
    with pytest.raises(InvalidError, match="isolation is 'kernel' or 'gvisor', not 'strong'"):
        dios.Sandbox(node=node.place, isolation="strong")


@pytest.mark.parametrize(
    ("setting", "reason"),
    [("none", 'gvisor_runtime = "none"'), ("/nowhere/runsc", "no program /nowhere/runsc .* Install gVisor")],
)
def test_a_node_without_gvisor_says_so(tmp_path: Path, setting: str, reason: str) -> None:
    """With the cause and the next step; other sandboxes start there."""
    with running_node(tmp_path / "data", gvisor_runtime=setting) as running:
        with pytest.raises(NotSupportedError, match=reason):
            opened(running)
        with dios.Sandbox(node=running.place) as pure:
            assert value_of(pure, "1") == "1"


def test_a_program_without_its_own_kernel_is_no_gvisor(tmp_path: Path) -> None:
    """A runtime that has the name alone starts nothing: the first process looks at its kernel."""
    program = tmp_path / "runsc"
    program.write_bytes(Path("/bin/true").read_bytes())
    program.chmod(0o755)
    with (
        running_node(tmp_path / "data", gvisor_runtime=str(program)) as running,
        pytest.raises(NotSupportedError, match="does not share memory between a container and the node"),
    ):
        opened(running)


@pytest.mark.long
def test_an_image_runs_in_gvisor(node: RunningNode, tmp_path: Path) -> None:
    """Its programs, too, on a node that permits no images in the kernel of the machine."""
    image = f"oci-layout:{busybox_layout(tmp_path / 'tiny')}:tiny"
    with opened(node, image=image) as own:
        done = own.exec("sh", "-c", "cat /etc/release; exit 130")
        assert (done.exit_code, done.stdout) == (130, "tiny 1.0\n")
        assert own.exec("sh", "-c", "kill -9 $$").exit_code == -9
        own.files.write("/etc/release", b"changed\n")
        assert value_of(own, "open('/etc/release').read()") == "'changed\\n'"
        own.reset()
        assert value_of(own, "open('/etc/release').read()") == "'tiny 1.0\\n'"
        for begin in (own.fork, lambda: own.snapshot("dios://tries/state")):
            with pytest.raises(NotSupportedError, match="in gVisor has no snapshots"):
                begin()
    with pytest.raises(NotSupportedError, match="container_runtime"):
        dios.Sandbox(node=node.place, image=image)


@pytest.mark.long
def test_a_granted_network_is_the_only_one(node: RunningNode) -> None:
    """Requests go through the gateway, as from every sandbox."""
    with web_server() as (port, _):
        origin = f"http://127.0.0.1:{port}"
        with opened(node, network=[origin]) as own:
            read = f"import urllib.request\nurllib.request.urlopen('{origin}/bytes/3').read()"
            assert value_of(own, read) == r"b'\x00\x00\x00'"


@pytest.mark.long
async def test_an_async_program_has_the_same_sandbox(node: RunningNode) -> None:
    """With the same argument."""
    async with dios.aio.Sandbox(node=node.place, isolation="gvisor") as own:
        assert (await own.run("import os; os.uname().nodename")).value_repr is not None
        await own.put("x", 5)
        assert await own.get("x") == 5


@pytest.mark.long
def test_an_ended_session_is_reported(node: RunningNode) -> None:
    """Each later call says that it ended."""
    with opened(node) as own:
        own.run("import os; os.kill(os.getpid(), 9)")
        with pytest.raises(SandboxEndedError, match="reset"):
            own.run("1")
