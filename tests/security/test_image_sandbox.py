"""Attacks from a sandbox with an image: it is a weaker class, and still reaches nothing of the machine.

The programs of an image make more system calls than a pure task. Each test is one sentence of the section on
images in docs/threat-model.md.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios import limits
from dios.errors import DiosError, InvalidError
from dios.host.confinement import syscall_numbers
from dios.host.confinement.policy import KILLED
from dios.lib.executor.errors import UntrustedResultError
from dios.lib.sandbox.errors import SandboxEndedError
from tests.support.layouts import LayoutMaker, busybox_layer, busybox_layout, entry, folder, layer_of
from tests.support.node.confinement import children_of, runtimes_or_skip
from tests.support.node.running_node import RunningNode, running_node, wait_until

CALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def outcome(number, *arguments):
    ctypes.set_errno(0)
    if libc.syscall(ctypes.c_long(number), *[ctypes.c_ulong(value) for value in arguments]) >= 0:
        return 0
    return ctypes.get_errno()
"""
EPERM, ENOSYS = 1, 38
NAMESPACES = {
    name: 1 << bit
    for name, bit in {
        "time": 7,
        "mount": 17,
        "cgroup": 25,
        "uts": 26,
        "ipc": 27,
        "user": 28,
        "pid": 29,
        "net": 30,
    }.items()
}


SHOWN = {
    f"/proc/{name}"
    for name in (
        *("cpuinfo", "crypto", "devices", "execdomains", "fb", "filesystems", "loadavg", "mdstat", "meminfo"),
        *("stat", "sysvipc", "uptime", "version", "version_signature", "bootconfig"),
    )
}
"""Files of the kernel that say what kind of machine it is, and how much it works."""


@pytest.fixture(scope="module", params=["crun", "runc"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node with each of the known runtimes."""
    path = next((path for path in runtimes_or_skip() if Path(path).name == request.param), None)
    if path is None:
        pytest.skip(f"{request.param} starts no container here")
    with running_node(tmp_path_factory.mktemp("node") / "data", container_runtime=path) as running:
        yield running


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of a busybox."""
    return f"oci-layout:{busybox_layout(tmp_path_factory.mktemp('layout') / 'tiny')}"


@pytest.fixture(scope="module")
def box(node: RunningNode, image: str) -> Iterator[dios.Sandbox]:
    """One sandbox, whose attempts fail."""
    with dios.Sandbox(node=node.place, image=image, memory="256 MiB") as sandbox:
        yield sandbox


def pid_of(box: dios.Sandbox) -> int:
    """The process of the task of a sandbox, which is its runtime."""
    assert box._link is not None
    assert box._link.task is not None
    return box._link.task.status().pid


def asked(box: dios.Sandbox, code: str) -> object:
    """The JSON that code prints."""
    result = box.run(code)
    assert result.error is None, result.error
    return json.loads(result.stdout)


def test_no_file_of_the_machine_is_there(box: dios.Sandbox, node: RunningNode, tmp_path: Path) -> None:
    """Neither by its path, nor by the roots of processes, nor above the root."""
    secret = tmp_path / "secret"
    secret.write_text("s", encoding="utf-8")
    paths = [str(secret), str(node.data), node.place, "/etc/hostname", "/etc/shadow", "/sys/kernel", "/run"]
    code = f"""
import json, os
roots = ['', '/..', *(f'/proc/{{pid}}/root' for pid in (1, 'self'))]
print(json.dumps([root + path for root in roots for path in {paths!r} if os.path.lexists(root + path)]))
"""
    assert asked(box, code) == []
    assert asked(box, "import json, os; print(json.dumps(sorted(os.listdir('/'))))") == [
        ".dios-changes",
        ".dios-python",
        "bin",
        "dev",
        "etc",
        "proc",
        "tmp",
        "work",
    ]


def test_the_runtime_itself_sees_nothing_of_the_machine(box: dios.Sandbox, node: RunningNode) -> None:
    """A container that gets out of its root is in a view without the files of the machine."""
    if os.geteuid() != 0:
        pytest.skip("only root looks into the root of another user's process")
    root = Path(f"/proc/{pid_of(box)}/root")
    mounts = Path(f"/proc/{pid_of(box)}/mountinfo").read_text(encoding="utf-8")
    assert mounts.count(" - proc ") == 1
    assert {path.name for path in (root / "proc").iterdir() if path.name.isdigit()} <= {
        *map(str, range(1, 200))
    }
    names = {path.name for path in root.iterdir()}
    assert {"environment", "private", ".dios-python"} <= names
    for path in (
        node.data,
        Path(node.place),
        Path("/etc/passwd"),
        Path("/root"),
        Path("/home"),
        Path("/run"),
    ):
        assert not root.joinpath(str(path).lstrip("/")).exists(), path
    assert (
        not any((root / "sys/fs/cgroup").glob("*/*/cgroup.procs"))
        or os.statvfs(root / "sys/fs/cgroup").f_flag & os.ST_RDONLY
    )


def test_the_python_of_the_node_cannot_be_changed(box: dios.Sandbox) -> None:
    """It is mounted read-only, and cannot be mounted in another way."""
    code = (
        CALL
        + """
import json, os
outcomes = []
for path, flags in (('/.dios-python/new', os.O_CREAT | os.O_WRONLY), (os.__file__, os.O_WRONLY)):
    try:
        os.open(path, flags)
        outcomes.append('opened')
    except OSError as error:
        outcomes.append(error.errno)
try:
    os.chmod(os.__file__, 0o777)
except OSError as error:
    outcomes.append(error.errno)
print(json.dumps(outcomes))
"""
    )
    assert all(number in {1, 13, 30} for number in asked(box, code))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", KILLED)
def test_a_call_that_ends_a_pure_task_is_refused(box: dios.Sandbox, name: str) -> None:
    """The interfaces of the kernel that only attacks and administrators use are shut."""
    try:
        number = syscall_numbers.number_of(name)
    except OSError:
        pytest.skip("this architecture has no such call")
    assert asked(box, f"{CALL}\nprint(outcome({number}, 0, 0, 0, 0, 0))") == EPERM


@pytest.mark.parametrize("name", sorted(NAMESPACES))
def test_no_namespace_is_made(box: dios.Sandbox, name: str) -> None:
    """A user namespace would give capabilities, with which much more of the kernel can be reached."""
    clone, clone3 = map(syscall_numbers.number_of, ("clone", "clone3"))
    code = f"{CALL}\nprint([outcome({clone}, {NAMESPACES[name] | 17}, 0, 0, 0, 0), outcome({clone3}, 0, 0)])"
    refused, unknown = asked(box, code)  # type: ignore[misc]
    assert refused == ENOSYS, "without the filter the kernel answers EPERM, or makes it"  # type: ignore[has-type]
    assert unknown == ENOSYS  # type: ignore[has-type]


def test_only_ordinary_sockets_are_made(box: dios.Sandbox) -> None:
    """The others are interfaces of the kernel, or lead to the host of a virtual machine."""
    code = """
import json, socket
families = []
for family in range(1, 46):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
        try:
            socket.socket(family, kind).close()
            families.append(family)
        except OSError:
            pass
print(json.dumps(sorted(set(families))))
"""
    assert asked(box, code) == [1, 2, 10]


def test_there_is_no_network(box: dios.Sandbox) -> None:
    """Not even to the machine itself, by TCP, or by the names of Unix sockets."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as named:
        name = f"\0dios-test-{os.getpid()}"
        named.bind(name)
        named.listen()
        code = f"""
import json, socket
outcomes = []
for family, address in ((2, ('127.0.0.1', {server.getsockname()[1]})), (2, ('192.0.2.1', 80)), (1, {name!r})):
    with socket.socket(family) as link:
        link.settimeout(5)
        try:
            link.connect(address)
            outcomes.append('connected')
        except OSError as error:
            outcomes.append('refused')
print(json.dumps(outcomes))
"""
        # The module of the session itself, not that of a granted network.
        assert asked(box, code) == ["refused"] * 3
    assert [
        line.split(":")[0].strip() for line in box.files.read("/proc/net/dev").decode().splitlines()[2:]
    ] == ["lo"]


def test_other_processes_are_out_of_reach(box: dios.Sandbox, node: RunningNode, image: str) -> None:
    """Another sandbox of the same user, the runtime and the node are not even seen."""
    with dios.Sandbox(node=node.place, image=image) as other:
        assert other.exec("sh", "-c", "sleep 7654 &").ok
        code = f"""
import json, os
pids = [int(name) for name in os.listdir('/proc') if name.isdigit()]
commands = [open(f'/proc/{{pid}}/cmdline').read() for pid in pids]
outcomes = []
for pid in ({node.running.pid}, {os.getpid()}):
    try:
        os.kill(pid, 0)
        outcomes.append(pid in pids)
    except ProcessLookupError:
        pass
words = '7654', 'dios.node', 'run --bundle'
print(json.dumps([any(word in line for line in commands for word in words), outcomes]))
"""
        seen, _ = asked(box, code)  # type: ignore[misc]
        assert seen is False  # type: ignore[has-type]
        with contextlib.suppress(SandboxEndedError):
            box.exec("sh", "-c", "kill -9 -1", timeout=2)
        assert other.exec("echo", "on").stdout == "on\n"
    box.reset()


def test_two_sandboxes_share_nothing(node: RunningNode, image: str) -> None:
    """No folder for temporary files, no shared memory, and no message queue."""
    with (
        dios.Sandbox(node=node.place, image=image) as owner,
        dios.Sandbox(node=node.place, image=image) as other,
    ):
        shmget = syscall_numbers.number_of("shmget")
        assert asked(owner, f"{CALL}\nprint(outcome({shmget}, 77, 4096, 0o1600))") == 0
        for place in ("/tmp/a", "/dev/shm/a", "/bin/a"):
            owner.files.write(place, b"x")
            with pytest.raises(DiosError):
                other.files.read(place)
        assert asked(other, f"{CALL}\nprint(outcome({shmget}, 77, 4096, 0))") == 2


def test_no_device_is_made_or_there(box: dios.Sandbox) -> None:
    """There are the six that hold nothing, and pseudo terminals of its own."""
    code = """
import json, os, stat
outcomes = []
for kind in (stat.S_IFCHR, stat.S_IFBLK):
    try:
        os.mknod('/tmp/device', kind | 0o600, os.makedev(1, 1))
        outcomes.append('made')
    except OSError:
        outcomes.append('refused')
modes = {name: os.lstat('/dev/' + name).st_mode for name in os.listdir('/dev')}
devices = [name for name, mode in modes.items() if stat.S_ISCHR(mode) or stat.S_ISBLK(mode)]
print(json.dumps([outcomes, sorted(devices)]))
"""
    outcomes, devices = asked(box, code)  # type: ignore[misc]
    assert outcomes == ["refused", "refused"]  # type: ignore[has-type]
    assert set(devices) <= {"full", "null", "ptmx", "random", "tty", "urandom", "zero"}  # type: ignore[has-type]


def test_its_rights_are_those_of_a_package_manager(box: dios.Sandbox) -> None:
    """In its own user namespace alone, for good, and behind a filter of system calls."""
    rows = dict(line.split(":\t", 1) for line in box.files.read("/proc/self/status").decode().splitlines())
    permitted = sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7))
    for name in ("CapEff", "CapPrm", "CapBnd"):
        assert int(rows[name], 16) == permitted, name
    assert (rows["NoNewPrivs"].strip(), rows["Seccomp"].strip()) == ("1", "2")
    assert [line.split()[2] for line in box.files.read("/proc/self/uid_map").decode().splitlines()] == ["1"]


def test_a_program_with_the_mark_of_another_user_gains_nothing(node: RunningNode, tmp_path: Path) -> None:
    """The mark is not kept, and would have no effect."""
    layer = layer_of([entry("bin/marked", Path("/bin/busybox").read_bytes(), mode=0o6755)])
    layout = LayoutMaker(tmp_path / "layout").add([busybox_layer(), layer])
    with dios.Sandbox(node=node.place, image=f"oci-layout:{layout}") as own:
        (mode,) = (file.mode for file in own.files.list("/bin") if file.name == "marked")
        assert mode == 0o755


def test_the_kernel_shows_little_of_the_machine(box: dios.Sandbox) -> None:
    """What tells other users' work, or changes the machine, is hidden or cannot be written."""
    code = """
import json, os
paths = ['/proc/' + name for name in os.listdir('/proc') if not name.isdigit()]
paths += ['/proc/sys/fs/' + name for name in os.listdir('/proc/sys/fs') if name.endswith(('-nr', '-state'))
          and 'max' not in name]
paths += ['/proc/sys/kernel/pty/nr', '/proc/sys/kernel/random/boot_id']
shown = []
for path in paths:
    try:
        if os.path.islink(path) or path == '/proc/sys':
            continue
        if os.path.isdir(path):
            shown += [path] * bool(os.listdir(path))
        elif open(path, 'rb').read(1):
            shown.append(path)
    except OSError:
        pass
shown = sorted(set(shown) - SHOWN)
for path in ('/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/proc/sysrq-trigger'):
    try:
        if os.write(os.open(path, os.O_WRONLY), b'x') and not path.endswith('trigger'):
            shown.append(path)
    except OSError:
        pass
shown += [line for line in open('/proc/self/cgroup').read().splitlines() if not line.endswith(':/')]
print(json.dumps(shown))
"""
    assert asked(box, f"SHOWN = {SHOWN!r}\n{code}") == []


def test_other_programs_files_are_not_watched(box: dios.Sandbox) -> None:
    """Devices and Python are files that others open, too."""
    for name in ("inotify_init1", "fanotify_init"):
        number = syscall_numbers.number_of(name)
        assert asked(box, f"{CALL}\nprint(outcome({number}, 0, 0))") in {EPERM, ENOSYS}
    code = f"""{CALL}
import fcntl, os
folder, file = os.open(os.path.dirname(os.__file__), os.O_RDONLY), os.open(os.__file__, os.O_RDONLY)
own = os.open("/tmp/own", os.O_RDWR | os.O_CREAT)
print([outcome({syscall_numbers.number_of("fcntl")}, *arguments) for arguments in (
    (folder, fcntl.F_NOTIFY, 1), (folder, 1 << 32 | fcntl.F_NOTIFY, 1),
    (file, fcntl.F_SETLEASE, fcntl.F_RDLCK),
    (own, fcntl.F_SETLEASE, fcntl.F_WRLCK), (own, 1 << 32 | fcntl.F_SETLEASE, fcntl.F_WRLCK),
    (own, fcntl.F_GETFD))])
"""
    assert asked(box, code) == [ENOSYS] * 5 + [0]


OTHER_NUMBERS = {
    "x86_64": {"io_setup": 206, "sync": 162},
    "aarch64": {"io_setup": 0, "sync": 81},
}[os.uname().machine]
"""Numbers of calls that are in no table of the node."""

TAKEN = {
    "asynchronous requests": ("io_setup", (64, 0), None),
    "huge pages": ("mmap", (0, 2 << 20, 3, 0x40022, 2**64 - 1, 0), (0, 4096, 3, 0x22, 2**64 - 1, 0)),
    "huge pages of a file": ("memfd_create", ("name", 4), ("name", 0)),
    "huge pages that are shared": ("shmget", (0, 2 << 20, 0o5600), (0, 4096, 0o1600)),
    "pages that are merged": ("madvise", ("page", 4096, 12), ("page", 4096, 4)),
    "pages that are written to the swap device": ("madvise", ("page", 4096, 21), ("page", 4096, 4)),
    "merging of all pages": ("prctl", (67, 1, 0, 0, 0), (16, "page", 0, 0, 0)),
    "a processor for itself": ("prctl", (62, 1, 0, 0, 0), (3, 0, 0, 0, 0)),
    "processors of others": ("sched_setaffinity", (0, 8, "page"), None),
    "a module of the kernel": ("socketpair", (30, 1, 0, "page"), (1, 1, 0, "page")),
    "a descriptor of the node": ("getsockopt", (3, 1, 77, "page", "size"), (3, 1, 3, "page", "size")),
    "the work of disks": ("sync", (), None),
}
"""A call, its arguments, and similar ones that are permitted."""


@pytest.mark.parametrize("name", TAKEN)
def test_what_no_account_counts_is_not_taken(box: dios.Sandbox, name: str) -> None:
    """Resources of the machine without a limit for each task, and ways to what others do."""
    call, refused, permitted = TAKEN[name]
    number = OTHER_NUMBERS[call] if call in OTHER_NUMBERS else syscall_numbers.number_of(call)
    code = f"""{CALL}
memory = ctypes.create_string_buffer(16384)
page = (ctypes.addressof(memory) + 4095) & ~4095
text, number = ctypes.create_string_buffer(b"x"), ctypes.c_int(4)
words = dict(page=page, name=ctypes.addressof(text), size=ctypes.addressof(number))
def tried(arguments):
    return outcome({number}, *[words.get(value, value) for value in arguments])
print([tried({refused}), {permitted} and tried({permitted}) or 0])
"""
    assert asked(box, code) == [ENOSYS, 0]


def test_pseudo_terminals_are_limited(box: dios.Sandbox) -> None:
    """A sandbox has a part of the machine's."""
    code = """
import os
number = 0
try:
    while number < 1000:
        os.openpty()
        number += 1
except OSError:
    pass
print(number)
"""
    assert 16 <= int(box.run(code).stdout) <= 64
    box.reset()


def test_no_descriptor_leads_out(box: dios.Sandbox) -> None:
    """The first process and the session have their console, one socket, and memory of the session."""
    code = """
import json, os
links = []
for pid in (1, os.getpid()):
    for name in os.listdir(f'/proc/{pid}/fd'):
        try:
            links.append(os.readlink(f'/proc/{pid}/fd/{name}'))
        except OSError:
            pass
print(json.dumps(links))
"""
    for link in asked(box, code):  # type: ignore[attr-defined]
        assert link.startswith(("pipe:", "socket:", "/memfd:", "anon_inode:", "/proc/")), link


@pytest.mark.parametrize("status", ["'0'", "None", "True", "256", "-129", "[0]", "10**30"])
def test_a_hostile_session_reports_no_other_status(box: dios.Sandbox, status: str) -> None:
    """The exit status of a program is a number of an exit or a signal."""
    box.run(f"import dios.lib.sandbox.programs as programs\nprograms.run_program = lambda *_: {status}")
    with pytest.raises(DiosError, match=r"something else|type|int"):
        box.exec("echo")
    box.reset()


@pytest.mark.parametrize("rows", ["[1]", "'text'", "[{'name': 1, 'kind': '', 'size': 0, 'mode': 0}]", "[{}]"])
def test_a_hostile_session_lists_no_other_files(box: dios.Sandbox, rows: str) -> None:
    """A list of files has names, kinds, sizes and modes."""
    box.run(f"import dios.lib.sandbox.session as session\nsession._changed = lambda _: {rows}")
    with pytest.raises(UntrustedResultError, match="something else than files"):
        box.files.list("/")
    box.reset()


def test_programs_do_not_get_the_socket_of_the_session(box: dios.Sandbox) -> None:
    """They would make calls in its name, and a program that goes on would keep it."""
    listed = box.exec("ls", "-l", "/proc/self/fd").stdout
    assert "pipe:" in listed
    assert "socket:" not in listed


def test_a_flood_of_processes_ends_with_the_sandbox(node: RunningNode, image: str) -> None:
    """The node and other sandboxes go on; nothing of it is left."""
    with (
        dios.Sandbox(node=node.place, image=image, memory="256 MiB") as own,
        dios.Sandbox(node=node.place, image=image) as other,
    ):
        own.files.write("/tmp/flood", b"#!/bin/sh\n/tmp/flood & /tmp/flood &\nsleep 1000\n")
        own.exec("sh", "-c", "/bin/busybox chmod 755 /tmp/flood; /tmp/flood", timeout=2)
        assert other.exec("echo", "on").stdout == "on\n"
        pid = pid_of(own)
    wait_until(lambda: not children_of(pid), "nothing of it is left")


def test_descriptors_on_their_way_leave_room_for_zygotes(node: RunningNode, image: str) -> None:
    """They count for the user of all tasks; a flood of them keeps no other task from its start."""
    flood = """
import array, os, socket
pairs, sent = [], 0
number = os.open('/dev/null', os.O_RDONLY)
try:
    while sent < 100_000:
        pairs.append(socket.socketpair())
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [number] * 250))]
        pairs[-1][0].sendmsg([b'x'], rights)
        sent += 250
except OSError as error:
    print(error.errno, sent)
"""
    with dios.Sandbox(node=node.place, image=image) as own:
        number, sent = map(int, own.run(flood).stdout.split())
        assert number == errno.ETOOMANYREFS
        # The kernel compares before a message, which has at most 253. The least limit of a zygote is 1,024.
        assert sent <= limits.CONTAINER_OPEN_FILES_MAX + 253 < 1_024 - 253
        with dios.Sandbox(node=node.place, image=image) as other, dios.Sandbox(node=node.place) as pure:
            assert other.exec("echo").ok
            assert pure.run("1").ok


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("leads out", layer_of([entry("../escaped", b"x")])),
        ("leads through", layer_of([entry("way", kind=b"2", link="/etc"), entry("way/escaped", b"x")])),
        ("no file of the image", layer_of([entry("linked", kind=b"1", link="/etc/shadow")])),
        ("may be a device", layer_of([entry("memory", kind=b"3")])),
        ("place of the node", layer_of([folder(".dios-python"), entry(".dios-python/lib", b"x")])),
        ("no folder", layer_of([entry("proc", kind=b"2", link="/tmp")])),
    ],
)
def test_a_hostile_layer_is_refused_before_it_reaches_a_node(
    node: RunningNode, tmp_path: Path, name: str, layer: bytes
) -> None:
    """Paths that lead out, links out of the tree, devices, and places of the node and the kernel."""
    layout = LayoutMaker(tmp_path / "layout").add([layer])
    with pytest.raises(InvalidError, match=name):
        dios.Sandbox(node=node.place, image=f"oci-layout:{layout}")
    assert not Path("/etc/escaped").exists()


def test_variables_of_an_image_do_not_change_what_the_session_loads(
    node: RunningNode, tmp_path: Path
) -> None:
    """Libraries and modules of the image come into its own programs alone."""
    variables = [
        "PATH=/bin",
        "LD_PRELOAD=/bin/busybox",
        "PYTHONPATH=/bin",
        "LD_LIBRARY_PATH=/bin",
        "PYTHONHOME=/bin",
    ]
    layout = LayoutMaker(tmp_path / "layout").add([busybox_layer()], variables=variables)
    with dios.Sandbox(node=node.place, image=f"oci-layout:{layout}") as own:
        assert own.run("import os; os.__file__.startswith('/.dios-python/')").value_repr == "True"
        assert "LD_PRELOAD=/bin/busybox" in own.exec("env").stdout


def test_links_of_an_image_lead_to_the_image(node: RunningNode, tmp_path: Path) -> None:
    """A link to a file of the machine is one to a file of the image that is not there."""
    with tempfile.NamedTemporaryFile() as secret:
        layer = layer_of(
            [
                entry("link", kind=b"2", link=secret.name),
                entry("up", kind=b"2", link="../../../../etc/hostname"),
            ]
        )
        layout = LayoutMaker(tmp_path / "layout").add([busybox_layer(), layer])
        with dios.Sandbox(node=node.place, image=f"oci-layout:{layout}") as own:
            for name in ("/link", "/up"):
                with pytest.raises(DiosError):
                    own.files.read(name)


def test_a_user_does_not_get_the_image_of_another(node: RunningNode, image: str) -> None:
    """The digest of an image is no right to it: the node keeps it for one principal."""
    with dios.Sandbox(node=node.place, image=image):
        records = list((node.data / "environments").glob("*/*/about.json"))
        owners = {json.loads(record.read_bytes())["principal"] for record in records}
        assert owners == {f"uid:{os.geteuid()}"}
        with contextlib.suppress(PermissionError):
            assert (
                not (node.data / "environments").stat().st_mode & 0o007
                or not node.data.stat().st_mode & 0o007
            )
