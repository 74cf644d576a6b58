"""Sandboxes with the root file system of an image: what runs in them, their files, limits and ends."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

import dios
import dios.aio
from dios.errors import InvalidError, NotSupportedError, StaleError
from dios.lib.catalogue import CatalogueEntry
from dios.lib.executor.errors import NoWorkerError
from dios.lib.files.downloads import download
from dios.lib.files.group_files import GroupFiles
from dios.lib.images import group_archives
from dios.lib.images.images import image_on
from dios.lib.sandbox.errors import SandboxCodeError, SandboxEndedError
from dios.node import restart_status
from tests.support.layouts import LayoutMaker, archive_of, busybox_layer, busybox_layout, entry, layer_of
from tests.support.node.command_user import Person
from tests.support.node.confinement import children_of, mechanisms_or_skip, runtimes_or_skip
from tests.support.node.running_node import RunningNode, exists, running_node, wait_until
from tests.support.web_servers import web_server

LOOP = "i=0; while true; do i=$((i+1)); echo $i > /tmp/count; done"
SHORT_LOOP = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"
MARK = "7654321"
RESTART_MS = 60_000


@pytest.fixture(scope="module")
def runtimes() -> list[str]:
    """The OCI runtimes of this machine."""
    return runtimes_or_skip()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory, runtimes: list[str]) -> str:
    """An image of a busybox."""
    del runtimes
    return f"oci-layout:{busybox_layout(tmp_path_factory.mktemp('layout') / 'tiny')}:tiny"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, runtimes: list[str]) -> Iterator[RunningNode]:
    """One node for the tests of this module."""
    del runtimes
    with running_node(tmp_path_factory.mktemp("node") / "data", container_runtime="any") as running:
        yield running


@pytest.fixture(scope="module")
def box(node: RunningNode, image: str) -> Iterator[dios.Sandbox]:
    """One sandbox for the tests that leave it as it was."""
    with dios.Sandbox(node=node.place, image=image, memory="256 MiB") as sandbox:
        yield sandbox


def commands_below(node: RunningNode) -> list[str]:
    """The command lines of all processes of a node."""
    lines = []
    for pid in node.descendants():
        with contextlib.suppress(OSError):
            lines.append(Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").replace("\0", " "))
    return lines


def test_code_runs_in_the_image(box: dios.Sandbox) -> None:
    """It sees the files, the variables and the working directory of the image, and starts its programs."""
    assert box.run("open('/etc/release').read()").value_repr == "'tiny 1.0\\n'"
    assert box.run("import os; os.getcwd(), os.environ['COLOR']").value_repr == "('/work', 'green')"
    started = box.run(
        "import subprocess; subprocess.run(['cat', '/etc/release'], capture_output=True).stdout"
    )
    assert started.value_repr == "b'tiny 1.0\\n'"


def test_a_program_has_its_arguments_input_folder_and_variables(box: dios.Sandbox) -> None:
    """The result has its status and both streams; no shell reads the arguments."""
    done = box.exec(
        "sh",
        "-c",
        'cat; echo "$0 $A $COLOR" >&2; pwd; exit 3',
        "it's",
        stdin="in\n",
        cwd="/etc",
        env={"A": "b"},
    )
    assert (done.exit_code, done.stdout, done.stderr, done.ok) == (3, "in\n/etc\n", "it's b green\n", False)
    assert box.exec("echo", "$HOME;").stdout == "$HOME;\n"


@pytest.mark.parametrize("arguments", [(), ("echo", "a\0b"), ("echo", 1)])
def test_a_program_has_a_name_and_arguments_that_are_texts(
    box: dios.Sandbox, arguments: tuple[object, ...]
) -> None:
    """Others are refused before the sandbox gets them."""
    with pytest.raises(InvalidError, match="which are texts"):
        box.exec(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "operation",
    [
        lambda box: box.exec("echo", env={"A": 1}),
        lambda box: box.exec("echo", env=1),
        lambda box: box.exec("echo", cwd=0),
        lambda box: box.exec("echo", cwd=b"/"),
        lambda box: box.exec("cat", stdin=5),
        lambda box: box.exec("cat", stdin="\ud800"),
        lambda box: box.exec("echo", timeout="1"),
        lambda box: box.files.read(0),
        lambda box: box.files.read(b"/etc/release"),
        lambda box: box.files.write("/tmp/x", 1),
        lambda box: box.files.write("/tmp/x", "\ud800"),
        lambda box: box.run(1),
    ],
)
def test_an_argument_of_another_type_is_refused(
    box: dios.Sandbox, operation: Callable[[dios.Sandbox], object]
) -> None:
    """The sandbox gets nothing of it, and goes on."""
    with pytest.raises(InvalidError):
        operation(box)
    assert not box.ended


def test_paths_may_be_objects(box: dios.Sandbox) -> None:
    """As in other libraries of Python."""
    assert (
        box.files.read(Path("/etc/release")) == box.exec("cat", "release", cwd=Path("/etc")).stdout.encode()
    )
    assert [file.name for file in box.files.list(Path("/etc"))] == ["passwd", "release"]


def test_output_arrives_before_the_program_ends(box: dios.Sandbox) -> None:
    """The program waits for a file that the receiver of its output writes."""
    parts: list[str] = []
    asked = threading.Event()

    def show(stream: str, text: str) -> None:
        parts.append(stream + text)
        asked.set()

    def interrupt() -> None:
        asked.wait()
        box.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    done = box.exec("sh", "-c", "echo begun; sleep 100000", on_output=show)
    thread.join()
    assert parts == ["stdoutbegun\n"]
    assert (done.exit_code, done.stdout) == (None, "begun\n")
    assert done.error is not None
    assert done.error.type == "KeyboardInterrupt"


def test_a_program_over_its_time_is_killed_with_its_children(box: dios.Sandbox, node: RunningNode) -> None:
    """The session goes on."""
    done = box.exec("sh", "-c", f"sleep {MARK} & sleep {MARK}", timeout=0.2)
    assert done.exit_code is None
    assert done.error is not None
    assert (done.error.type, done.error.ended) == ("TimeoutError", False)
    assert not [line for line in commands_below(node) if MARK in line]
    assert box.exec("echo", "on").stdout == "on\n"


def test_a_signal_is_the_end_of_a_program(box: dios.Sandbox) -> None:
    """Its number is negative in the result."""
    assert box.exec("sh", "-c", "kill -9 $$").exit_code == -9


def test_a_program_that_is_not_there_is_an_error(box: dios.Sandbox) -> None:
    """The error is that of the image, without advice about other kinds of sandboxes."""
    with pytest.raises(SandboxCodeError, match="No such file or directory: 'nothing'") as caught:
        box.exec("nothing")
    assert caught.value.failure.refused is None


def test_a_program_may_leave_processes_which_end_with_the_sandbox(node: RunningNode, image: str) -> None:
    """They run on after it, and not after the sandbox."""
    with dios.Sandbox(node=node.place, image=image) as own:
        assert own.exec("sh", "-c", f"sleep {MARK}9 &").exit_code == 0
        assert [line for line in commands_below(node) if f"{MARK}9" in line]
    wait_until(lambda: not [line for line in commands_below(node) if f"{MARK}9" in line], "it has ended")


def test_orphans_are_removed(box: dios.Sandbox) -> None:
    """A process whose parent has ended leaves no zombie, which would count as a process."""
    box.exec("sh", "-c", "for i in 1 2 3 4 5; do (sleep 0.01 &) ; done")
    states = "import glob\n[open(p).read().split()[2] for p in glob.glob('/proc/[0-9]*/stat')].count('Z')"
    wait_until(lambda: box.run(states).value_repr == "0", "no zombie is left")


def test_files_are_written_and_read_by_absolute_paths(box: dios.Sandbox) -> None:
    """A list has kinds, sizes and modes; a removal takes whole folders."""
    box.files.make_folder("/srv/new/deep")
    box.files.write("/srv/new/text", "äb")
    box.exec("ln", "-s", "text", "/srv/new/link")
    assert box.files.read("/srv/new/text") == "äb".encode()
    rows = [(file.name, file.kind, file.size) for file in box.files.list("/srv/new")]
    assert rows[0][:2] == ("deep", "folder")
    assert rows[1:] == [("link", "link", 4), ("text", "file", 3)]
    box.files.remove("/srv/new/text")
    box.files.remove("/srv")
    with pytest.raises(SandboxCodeError, match="No such file"):
        box.files.list("/srv")


def test_trees_are_uploaded_and_downloaded(box: dios.Sandbox, tmp_path: Path) -> None:
    """Files, permissions and folders both ways; links go into the sandbox, and do not come out of it."""
    tree = tmp_path / "tree"
    (tree / "deep" / "empty").mkdir(parents=True)
    (tree / "deep" / "tool").write_text("#!/bin/sh\necho tool\n", encoding="utf-8")
    (tree / "deep" / "tool").chmod(0o755)
    (tree / "link").symlink_to("deep/tool")
    (tree / "folder").symlink_to("deep")
    box.files.upload(tree, "/srv/tree")
    box.files.upload(tree / "deep" / "tool", "/srv/alone")
    assert box.exec("/srv/tree/link").stdout == box.exec("/srv/alone").stdout == "tool\n"
    assert box.files.download("/srv/tree", tmp_path / "copy") == ["/srv/tree/folder", "/srv/tree/link"]
    copied = sorted(str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*"))
    assert copied == ["deep", "deep/empty", "deep/tool"]
    assert stat.S_IMODE((tmp_path / "copy" / "deep" / "tool").stat().st_mode) == 0o755
    with pytest.raises(FileExistsError):
        box.files.download("/srv/tree", tmp_path / "copy")
    os.mkfifo(tree / "pipe")
    with pytest.raises(InvalidError, match="no file, folder or link"):
        box.files.upload(tree, "/srv/tree2")
    box.files.remove("/srv")


def test_the_layer_that_is_written_belongs_to_one_sandbox(node: RunningNode, image: str) -> None:
    """In another sandbox, and after a reset, a changed and a removed file of the image are as before."""
    with (
        dios.Sandbox(node=node.place, image=image) as first,
        dios.Sandbox(node=node.place, image=image) as second,
    ):
        first.files.write("/etc/release", b"changed\n")
        first.files.remove("/etc/passwd")
        assert first.exec("cat", "/etc/release").stdout == "changed\n"
        assert second.exec("cat", "/etc/release").stdout == "tiny 1.0\n"
        first.reset()
        assert first.exec("cat", "/etc/release", "/etc/passwd").stdout.startswith("tiny 1.0\nroot")


def test_a_program_is_written_and_executed(box: dios.Sandbox) -> None:
    """As a compiler or a package manager does."""
    box.files.write("/tmp/own", b"#!/bin/sh\necho own\n")
    assert box.exec("sh", "-c", "/bin/busybox chmod 755 /tmp/own; exec /tmp/own").stdout == "own\n"


def test_memory_is_limited_for_all_processes_together(node: RunningNode, image: str) -> None:
    """The files that they write count, too."""
    with dios.Sandbox(node=node.place, image=image, memory="128 MiB") as own:
        # The kernel ends the largest process: a program alone, or the session.
        done = own.exec("sh", "-c", "yes | head -c 50000000 > /tmp/a; yes | head -c 500000000 | sort")
        assert done.exit_code == 137 or (done.error is not None and "memory" in done.error.message), done
        own.reset()
        error = own.run("parts = []\nwhile True: parts.append(bytearray(1 << 20))").error
        assert error is not None
        assert error.refused == "memory" or "memory" in error.message


def test_a_full_layer_is_an_error_of_the_program(node: RunningNode, image: str) -> None:
    """The layer has half of the memory; the session goes on."""
    with dios.Sandbox(node=node.place, image=image, memory="128 MiB") as own:
        assert not own.exec("sh", "-c", "yes | head -c 100000000 > /tmp/full").ok
        error = own.run("open('/tmp/more', 'wb').write(bytes(10_000_000))").error
        assert error is not None
        assert "No space left on device" in error.message
        assert own.exec("rm", "/tmp/full").ok


def test_processes_are_limited(box: dios.Sandbox) -> None:
    """The session itself can still report it."""
    started = """
import subprocess
children = []
try:
    while len(children) < 2000:
        children.append(subprocess.Popen(['sleep', '1000']))
except BlockingIOError:
    print('refused')
for child in children:
    child.kill()
    child.wait()
"""
    done = box.run(started)
    assert done.stdout == "refused\n", done


def test_processor_time_is_limited(node: RunningNode, image: str) -> None:
    """The reason is named."""
    with dios.Sandbox(node=node.place, image=image, cpu_seconds=1) as own:
        error = own.run("while True: pass").error
        assert error is not None
        assert "processor time" in error.message


def test_processor_time_is_limited_for_all_processes_together(node: RunningNode, image: str) -> None:
    """Each of many programs stays below the limit; the kernel's count of all is recorded and ends them."""
    with dios.Sandbox(node=node.place, image=image, cpu_seconds=2) as own:
        many = f"import subprocess\nfor _ in range(1000): subprocess.run(['sh', '-c', {SHORT_LOOP!r}])"
        error = own.run(many).error
        assert error is not None
        assert "processor time" in error.message


def test_a_suspended_sandbox_does_nothing(node: RunningNode, image: str) -> None:
    """All its processes stop, those of its programs as well, and continue."""
    with dios.connect(node.place) as control, dios.Sandbox(node=control, image=image) as own:
        own.exec("sh", "-c", f"({LOOP}) &")
        assert own._link is not None
        task = own._link.task
        assert task is not None
        task.pause()

        def states() -> set[str]:
            return {_state_of(pid) for pid in _below(task.status().pid)}

        wait_until(lambda: states() == {"T"}, "every process is stopped")
        task.resume()
        first = own.files.read("/tmp/count")
        wait_until(lambda: own.files.read("/tmp/count") != first, "it goes on")


def _is_in_container(pid: int) -> bool:
    """True for a process in a pid namespace below that of its runtime."""
    with contextlib.suppress(OSError):
        line = next(line for line in _status_of(pid) if line.startswith("NSpid:"))
        return len(line.split()) > 3
    return False


def _below(pid: int) -> set[int]:
    """All processes below one."""
    children = children_of(pid)
    return children.union(*map(_below, children))


def _state_of(pid: int) -> str:
    return next(line for line in _status_of(pid) if line.startswith("State:")).split()[1]


def _status_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()


def test_every_known_runtime_starts_images(tmp_path: Path, runtimes: list[str], image: str) -> None:
    """The setting names one by its path."""
    for path in runtimes:
        with (
            running_node(tmp_path / Path(path).name, container_runtime=path) as running,
            dios.Sandbox(node=running.place, image=image) as own,
        ):
            assert own.exec("cat", "/etc/release").stdout == "tiny 1.0\n"
            assert [line for line in commands_below(running) if line.startswith(f"{Path(path).name} --root")]


def test_an_archive_of_a_layout_is_an_image(node: RunningNode, image: str, tmp_path: Path) -> None:
    """The layout as a tar file, with the same tag."""
    folder = Path(image.split(":")[1])
    file = archive_of(folder, tmp_path / "layout.tar")
    with dios.Sandbox(node=node.place, image=f"oci-archive:{file}:tiny") as own:
        assert own.exec("cat", "/etc/release").ok


def test_an_image_without_any_file_runs_python(node: RunningNode, tmp_path: Path) -> None:
    """Python and the libraries that it needs are the node's."""
    layout = LayoutMaker(tmp_path / "layout").add([layer_of([])], working_dir="")
    with dios.Sandbox(node=node.place, image=f"oci-layout:{layout}") as own:
        assert own.run("import msgspec").ok
        assert {file.name for file in own.files.list("/")} == {".dios-changes", ".dios-python", "dev", "proc"}


def test_layers_add_replace_and_remove(node: RunningNode, tmp_path: Path) -> None:
    """The sandbox sees the files that result from all layers, with their permissions."""
    upper = layer_of([entry("etc/release", b"second\n", mode=0o600), entry("etc/.wh.passwd")])
    layout = LayoutMaker(tmp_path / "layout").add([busybox_layer(), upper])
    with dios.Sandbox(node=node.place, image=f"oci-layout:{layout}") as own:
        assert own.exec("cat", "/etc/release").stdout == "second\n"
        (file,) = own.files.list("/etc")
        assert (file.name, stat.S_IMODE(file.mode)) == ("release", 0o600)


def test_an_input_takes_the_place_of_a_file_of_the_image(node: RunningNode, tmp_path: Path) -> None:
    """An image cannot pass its own bytes off as an input."""
    layer = layer_of([entry("inputs/given", b"false"), entry("inputs/link", kind=b"2", link="given")])
    layout = LayoutMaker(tmp_path / "layout").add([layer], working_dir="/new/place")
    inputs = {"given": b"true", "link": b"other"}
    with dios.Sandbox(node=node.place, image=f"oci-layout:{layout}", inputs=inputs) as own:
        assert [own.files.read(f"/inputs/{name}") for name in inputs] == [b"true", b"other"]
        assert own.run("import os; os.getcwd()").value_repr == "'/new/place'"


def test_commands_run_code_in_an_image_and_list_it(node: RunningNode, image: str, tmp_path: Path) -> None:
    """The node keeps an image once; its inputs are files, as in other sandboxes."""
    person = Person(tmp_path)
    person.environment["DIOS_NODE"] = node.place
    (tmp_path / "code.py").write_text(
        "import subprocess\n"
        "print(subprocess.run(['cat', '/inputs/note', '/etc/release'], capture_output=True).stdout)\n",
        encoding="utf-8",
    )
    (tmp_path / "note").write_text("given ", encoding="utf-8")
    for _ in range(2):
        done = person.types(f"dios sandbox run code.py --image {image} --input note")
        assert "given tiny 1.0" in done.stdout
    rows = json.loads(person.types("dios env ls --json").stdout)
    assert [row["packages"] for row in rows].count(["(image)"]) == len({row["environment"] for row in rows})


def test_an_archive_of_a_group_is_an_image(node: RunningNode, image: str, tmp_path: Path) -> None:
    """A group carries images to all who share it; a file that it does not have is named."""
    person = Person(tmp_path)
    person.environment["DIOS_NODE"] = node.place
    folder = tmp_path / "images"
    folder.mkdir()
    archive_of(Path(image.split(":")[1]), folder / "tiny.tar")
    (tmp_path / "code.py").write_text("print(open('/etc/release').read())\n", encoding="utf-8")
    person.types("dios group create images")
    person.types(f"dios sync {folder} dios://images")
    line = "dios sandbox run code.py --image"
    assert person.types(f"{line} dios://images/tiny.tar:tiny").stdout.strip() == "tiny 1.0"
    assert "no file" in person.types(f"{line} dios://images/other.tar", status=1).stderr
    assert "no group" in person.types(f"{line} dios://elsewhere/tiny.tar", status=1).stderr


def test_an_archive_of_a_group_is_copied_once(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards the digest in the group's list is enough, until the file or the tag is another one."""
    person = Person(tmp_path)
    person.environment["DIOS_NODE"] = node.place
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    maker = LayoutMaker(tmp_path / "layout")
    folder = tmp_path / "images"
    folder.mkdir()
    copies: list[str] = []

    def counted(files: GroupFiles, entry: CatalogueEntry, target: Path) -> None:
        copies.append(entry.file)
        download(files, entry, target)

    monkeypatch.setattr(group_archives, "download", counted)
    names = set()
    with dios.connect(node.place) as control:
        for tag in ("one", "two"):
            archive_of(maker.add([layer_of([entry("own", tag.encode())])], tag), folder / "images.tar")
            person.types("dios group create images" if tag == "one" else "dios group ls")
            person.types(f"dios sync {folder} dios://images")
            for _ in range(2):
                names.add(image_on(control, f"dios://images/images.tar:{tag}"))
        assert (len(names), len(copies)) == (2, 2)
        names.add(image_on(control, "dios://images/images.tar:one"))
        assert (len(names), len(copies)) == (2, 3)


def test_a_file_of_a_group_that_is_replaced_while_it_is_copied_does_not_count(
    node: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of other bytes is not kept under the digest of the list."""
    person = Person(tmp_path)
    person.environment["DIOS_NODE"] = node.place
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ".config"))
    folder = tmp_path / "images"
    folder.mkdir()
    archive_of(
        LayoutMaker(tmp_path / "layout").add([layer_of([entry("own", b"first")])]), folder / "images.tar"
    )
    other = archive_of(
        LayoutMaker(tmp_path / "other").add([layer_of([entry("own", b"second")])]), tmp_path / "x"
    )
    person.types("dios group create images")
    person.types(f"dios sync {folder} dios://images")
    monkeypatch.setattr(group_archives, "download", lambda _files, _entry, target: shutil.copy(other, target))
    with dios.connect(node.place) as control, pytest.raises(StaleError, match="was replaced"):
        image_on(control, "dios://images/images.tar")


async def test_an_image_that_a_node_has_removed_is_brought_again(node: RunningNode, tmp_path: Path) -> None:
    """Both faces try the start first, which fails then."""
    layout = LayoutMaker(tmp_path / "layout").add([layer_of([entry("own", b"kept")])], working_dir="")
    image = f"oci-layout:{layout}"

    def remove() -> None:
        with dios.connect(node.place) as control:
            wait_until(lambda: _pruned(control, node), "no environment is left")

    def opened() -> bytes:
        with dios.Sandbox(node=node.place, image=image) as own:
            return own.files.read("/own")

    assert await trio.to_thread.run_sync(opened) == b"kept"
    await trio.to_thread.run_sync(remove)
    assert await trio.to_thread.run_sync(opened) == b"kept"
    await trio.to_thread.run_sync(remove)
    async with dios.aio.Sandbox(node=node.place, image=image) as own:
        assert await own.files.read("/own") == b"kept"


def _pruned(control: dios.Node, node: RunningNode) -> bool:
    """Remove unused environments; True if only that of the sandbox of this module is left."""
    control.prune_environments()
    return len(list((node.data / "environments").glob("*/*/about.json"))) <= 1


def test_other_sandboxes_have_no_programs(node: RunningNode) -> None:
    """The error says what to do."""
    with dios.Sandbox(node=node.place) as own:
        with pytest.raises(InvalidError, match="image="):
            own.exec("true")
        own.files.write("note", b"kept")
        assert own.files.read("note") == b"kept"


def test_an_image_excludes_packages_and_templates(node: RunningNode, image: str) -> None:
    """A sandbox has one of them."""
    for others in ({"packages": ["fruit"]}, {"template": "numbers"}):
        with pytest.raises(InvalidError, match="leave out the others"):
            dios.Sandbox(node=node.place, image=image, **others)


def test_a_sandbox_that_ended_says_so(node: RunningNode, image: str) -> None:
    """A program that ends the first process ends the sandbox."""
    with dios.Sandbox(node=node.place, image=image) as own:
        own.exec("sh", "-c", "kill -9 $PPID; sleep 1000")
        with pytest.raises(SandboxEndedError):
            own.exec("true")


def test_the_first_process_ignores_interrupts(box: dios.Sandbox) -> None:
    """A program that sends it one does not end the sandbox, and one that sends it to itself ends."""
    assert box.exec("sh", "-c", "kill -INT 1").ok
    assert box.exec("sh", "-c", "kill -INT $$").exit_code == -2
    assert box.exec("echo", "on").stdout == "on\n"


@pytest.mark.parametrize("status", [3, 130, 137])
def test_an_exit_status_is_no_signal(node: RunningNode, image: str, status: int) -> None:
    """Also one that a shell uses for the end by a signal."""
    with dios.Sandbox(node=node.place, image=image) as own:
        error = own.run(f"import os; os._exit({status})").error
        assert error is not None
        assert f"it left its process with exit status {status} " in error.message


def test_the_loopback_reaches_the_sandbox_itself(box: dios.Sandbox) -> None:
    """A server of a program answers there."""
    code = """
import socket
with socket.create_server(('127.0.0.1', 0)) as own, socket.create_connection(own.getsockname()) as other:
    own.accept()[0].sendall(b'answer')
    print(other.recv(6))
"""
    assert box.run(code).stdout == "b'answer'\n"


def test_a_status_is_no_call_that_a_filter_refused(node: RunningNode, image: str) -> None:
    """A program that ends with the number of SIGSYS has chosen it."""
    with dios.Sandbox(node=node.place, image=image) as own:
        error = own.run("import os; os._exit(159)").error
        assert error is not None
        assert "forbidden system call" not in error.message


def test_a_stopped_zygote_ends_with_its_node(tmp_path: Path, image: str) -> None:
    """With all its containers: it cannot read that the node has closed its socket."""
    with (
        running_node(tmp_path / "data", container_runtime="any") as running,
        dios.connect(running.place) as control,
    ):
        own = dios.Sandbox(node=control, image=image)
        own.exec("sh", "-c", "sleep 1000 &")
        assert own._link is not None
        assert own._link.task is not None
        status = _status_of(own._link.task.status().pid)
        zygote = int(next(line for line in status if line.startswith("PPid:")).split()[1])
        os.kill(zygote, signal.SIGSTOP)
        below = running.descendants()
        running.kill()
        wait_until(lambda: not any(exists(pid) for pid in below), "all of it is gone")
        own.close()


def test_a_machine_without_a_runtime_refuses_images(tmp_path: Path) -> None:
    """The error names the runtime that is missing."""
    mechanisms_or_skip()
    layout = busybox_layout(tmp_path / "tiny")
    with (
        running_node(tmp_path / "data", container_runtime=str(tmp_path / "crun")) as running,
        pytest.raises(NotSupportedError, match="no OCI runtime"),
    ):
        dios.Sandbox(node=running.place, image=f"oci-layout:{layout}")


def test_a_node_refuses_images_that_its_owner_has_not_permitted(tmp_path: Path) -> None:
    """The error names the setting, and nothing of the image stays on the node."""
    mechanisms_or_skip()
    layout = busybox_layout(tmp_path / "tiny")
    with running_node(tmp_path / "data") as running:
        for _ in range(2):
            with pytest.raises(NotSupportedError, match='container_runtime = "any"'):
                dios.Sandbox(node=running.place, image=f"oci-layout:{layout}")
        assert not list((running.data / "environments").glob("*/*"))


def test_images_that_were_permitted_are_refused_later(tmp_path: Path, image: str) -> None:
    """Also an executor whose template names the environment of one."""
    with running_node(tmp_path / "data", container_runtime="any") as running:
        dios.Sandbox(node=running.place, image=image).close()
    with running_node(tmp_path / "data") as running:
        (record,) = (running.data / "environments").glob("*/*/about.json")
        with (
            dios.Executor(node=running.place, template=f"environment:{record.parent.name}") as executor,
            pytest.raises(NoWorkerError, match='container_runtime = "any"'),
        ):
            executor.submit(os.getpid).result()


async def test_an_async_program_has_the_same_calls(node: RunningNode, image: str) -> None:
    """Programs and files, without a thread; a cancelled program is stopped."""
    async with dios.aio.Sandbox(node=node.place, image=image) as own:
        assert (await own.exec("cat", stdin=b"x")).stdout == "x"
        await own.files.write("/tmp/a", b"1")
        assert await own.files.read("/tmp/a") == b"1"
        assert [file.name for file in await own.files.list("/tmp")] == ["a"]
        await own.files.remove("/tmp/a")
        await own.files.make_folder("/tmp/b")
        with trio.move_on_after(0.1) as scope:
            await own.exec("sleep", "100000")
        assert scope.cancelled_caught
        assert (await own.exec("echo", "on")).stdout == "on\n"


def test_code_reaches_a_granted_origin_and_programs_do_not(node: RunningNode, image: str) -> None:
    """The requests of the session go by way of the node; a container has no network."""
    with web_server() as (port, _):
        origin = f"http://127.0.0.1:{port}"
        with dios.Sandbox(node=node.place, image=image, network=[origin]) as own:
            read = f"import urllib.request\nurllib.request.urlopen('{origin}/bytes/3').read()"
            assert own.run(read).value_repr == r"b'\x00\x00\x00'"
            assert not own.exec("nc", "-w", "5", "127.0.0.1", str(port)).ok


def test_a_sandbox_goes_on_when_the_program_of_its_node_is_replaced(tmp_path: Path, image: str) -> None:
    """It is suspended and ended by the new one, and the reason of an end is read as before."""
    with (
        running_node(tmp_path / "data", container_runtime="any") as running,
        dios.connect(running.place) as control,
    ):
        own = dios.Sandbox(node=control, image=image)
        own.files.write("/tmp/kept", b"1")
        restart_status.request(running.running.pid, running.data, limit_ms=RESTART_MS)
        assert own.files.read("/tmp/kept") == b"1"
        error = own.run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").error
        assert error is not None
        assert "SIGSEGV" in error.message
        own.reset()
        assert own.exec("cat", "/etc/release").ok
        own.close()


def test_a_killed_node_leaves_no_process(tmp_path: Path, image: str) -> None:
    """The container ends with its runtime, and that with its zygote."""
    with running_node(tmp_path / "data", container_runtime="any") as running:
        own = dios.Sandbox(node=running.place, image=image)
        own.exec("sh", "-c", f"sleep {MARK}8 & setsid sleep {MARK}8 &")
        pids = running.descendants()
        running.kill()
        wait_until(lambda: not any(map(exists, pids)), "all have ended")
        own.close()


def test_root_is_not_root_outside(box: dios.Sandbox, node: RunningNode) -> None:
    """The user 0 of a container is the ordinary user of tasks."""
    assert box.exec("id", "-u").stdout == "0\n"
    pids = [pid for pid in node.descendants() if _is_in_container(pid)]
    users = {next(line for line in _status_of(pid) if line.startswith("Uid:")).split()[1] for pid in pids}
    assert users == {str(65534 if os.geteuid() == 0 else os.geteuid())}
