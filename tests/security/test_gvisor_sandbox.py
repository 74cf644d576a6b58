"""Attacks from a sandbox in gVisor: its kernel refuses them, and so do the layers around that kernel.

Each test is one sentence of the section on gVisor in docs/threat-model.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import dios
from dios.host.confinement.privileges import UNPRIVILEGED_ID
from tests.support.node.confinement import gvisor_or_skip
from tests.support.node.running_node import RunningNode, exists, running_node

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
DEVICES = {"full", "fuse", "null", "ptmx", "random", "tty", "urandom", "zero"}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for the tests of this module."""
    gvisor_or_skip()
    with running_node(tmp_path_factory.mktemp("node") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def box(node: RunningNode) -> Iterator[dios.Sandbox]:
    """One sandbox, whose attempts fail."""
    with dios.Sandbox(node=node.place, isolation="gvisor", memory="256 MiB") as sandbox:
        yield sandbox


def asked(box: dios.Sandbox, code: str) -> object:
    """The JSON that code prints."""
    result = box.run(code)
    assert result.error is None, result.error
    return json.loads(result.stdout)


def kernels_of(node: RunningNode) -> list[int]:
    """The processes of the runtime: those that start it, serve its files, and are its kernel."""
    pids = []
    for pid in node.descendants():
        with contextlib.suppress(OSError):
            if b"runsc" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
                pids.append(pid)
    return pids


def test_no_file_of_the_machine_is_there(box: dios.Sandbox, node: RunningNode, tmp_path: Path) -> None:
    """Neither by its path nor by the roots of processes; the root has the interpreter and empty folders."""
    secret = tmp_path / "secret"
    secret.write_text("s", encoding="utf-8")
    paths = [
        str(secret),
        str(node.data),
        node.place,
        "/etc/hostname",
        "/etc/shadow",
        "/run",
        "/boot",
        "/root",
    ]
    code = f"""
import json, os
roots = ['', '/..', *(f'/proc/{{pid}}/root' for pid in (1, 'self'))]
print(json.dumps([root + path for root in roots for path in {paths!r} if os.path.lexists(root + path)]))
"""
    assert asked(box, code) == []


def test_the_kernel_itself_sees_nothing_of_the_machine(
    box: dios.Sandbox, node: RunningNode, tmp_path: Path
) -> None:
    """All its processes are in a view and in namespaces without a network, as an ordinary user."""
    assert box.run("1").ok
    secret = tmp_path / "secret"
    secret.write_text("s", encoding="utf-8")
    pids = kernels_of(node)
    assert len(pids) >= 3
    for pid in pids:
        rows = dict(
            line.split(":\t", 1)
            for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
            if ":\t" in line
        )
        assert rows["NoNewPrivs"] == "1"
        if os.geteuid() == 0:
            assert set(rows["Uid"].split()) == {str(UNPRIVILEGED_ID)}
            for path in (secret, node.data, Path("/etc/shadow"), Path("/home")):
                assert not os.path.lexists(f"/proc/{pid}/root{path}"), path
        for name in NAMESPACES:
            own = Path(f"/proc/self/ns/{name}").readlink()
            assert Path(f"/proc/{pid}/ns/{name}").readlink() != own, name
        interfaces = Path(f"/proc/{pid}/net/dev").read_text(encoding="utf-8").splitlines()[2:]
        assert {line.split(":")[0].strip() for line in interfaces} <= {"lo"}
    filters = [Path(f"/proc/{pid}/status").read_text(encoding="utf-8") for pid in pids]
    assert sum("Seccomp:\t2" in text for text in filters) >= 2, "the kernel and the server of its files"


def test_there_is_no_network(box: dios.Sandbox, node: RunningNode) -> None:
    """No server of the machine is reached, over IP or over a Unix socket; it reaches itself."""
    del node
    with socket.socket() as server, socket.socket(socket.AF_UNIX) as abstract:
        server.bind(("127.0.0.1", 0))
        server.listen()
        abstract.bind(b"\0dios-test-gvisor")
        abstract.listen()
        code = f"""
import json, socket
outcomes = []
for family, address in ((socket.AF_INET, {server.getsockname()!r}), (socket.AF_INET, ('192.0.2.1', 80)),
                        (socket.AF_UNIX, b'\\0dios-test-gvisor')):
    with socket.socket(family) as own:
        own.settimeout(2)
        try:
            own.connect(address)
            outcomes.append('connected')
        except OSError:
            outcomes.append('refused')
with socket.socket() as own, socket.socket() as other:
    own.bind(('127.0.0.1', 0))
    own.listen()
    other.connect(own.getsockname())
    outcomes.append('itself')
print(json.dumps(outcomes))
"""
        assert asked(box, code) == ["refused", "refused", "refused", "itself"]


def test_other_processes_are_out_of_reach(box: dios.Sandbox, node: RunningNode) -> None:
    """Their numbers are unknown there: none is seen, signalled or traced."""
    pids = [os.getpid(), node.running.pid, *kernels_of(node)]
    code = f"""
import json, os
shown = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())
reached = []
for pid in {pids!r}:
    if pid in shown:
        continue
    try:
        os.kill(pid, 0)
        reached.append(pid)
    except ProcessLookupError:
        pass
print(json.dumps([reached, len(shown)]))
"""
    reached, shown = asked(box, code)  # type: ignore[misc]
    assert reached == []  # type: ignore[has-type]
    assert shown <= 3  # type: ignore[has-type]
    assert exists(node.running.pid)


def test_the_python_of_the_node_cannot_be_changed(box: dios.Sandbox) -> None:
    """Its files are read-only, also for the root of the sandbox, and their folders, too."""
    code = """
import json, os
outcomes = []
for act in (lambda: open(os.__file__, 'r+'), lambda: os.chmod(os.__file__, 0o777),
            lambda: os.unlink(os.__file__),
            lambda: open(os.path.dirname(os.__file__) + '/new.py', 'w'), lambda: open('/new', 'w'),
            lambda: os.utime(os.__file__)):
    try:
        act()
        outcomes.append('done')
    except OSError:
        outcomes.append('refused')
print(json.dumps(outcomes))
"""
    assert asked(box, code) == ["refused"] * 6


def test_nothing_of_the_kernel_of_the_machine_is_shown_or_set(box: dios.Sandbox) -> None:
    """Files of /proc and /sys are those of its own kernel; devices hold nothing."""
    code = """
import json, os
written = []
for path in ('/proc/sysrq-trigger', '/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname',
             '/sys/kernel/uevent_helper', '/sys/fs/cgroup/memory.max'):
    try:
        written.append(os.write(os.open(path, os.O_WRONLY), b'x'))
    except OSError:
        pass
boot = ''
try:
    boot = open('/proc/sys/kernel/random/boot_id').read()
except OSError:
    pass
names = [name for name in os.listdir('/dev') if os.path.exists('/dev/' + name)]
devices = [name for name in names if not os.path.isdir('/dev/' + name) and not os.path.islink('/dev/' + name)]
print(json.dumps([written, boot, devices, open('/proc/version').read(), open('/proc/cmdline').read()]))
"""
    written, boot, devices, version, command = asked(box, code)  # type: ignore[misc]
    assert written == []  # type: ignore[has-type]
    assert boot != Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")  # type: ignore[has-type]
    assert set(devices) <= DEVICES  # type: ignore[has-type]
    assert version != Path("/proc/version").read_text(encoding="utf-8")  # type: ignore[has-type]
    assert command != Path("/proc/cmdline").read_text(encoding="utf-8")  # type: ignore[has-type]


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
        assert link.startswith(("pipe:", "socket:", "host:", "anon_inode:", "/proc/", "/dev/null")), link


def test_two_sandboxes_share_nothing(node: RunningNode, box: dios.Sandbox) -> None:
    """Neither files, nor memory with a key, nor addresses of sockets."""
    code = """
import ctypes, os, socket
libc = ctypes.CDLL(None)
kept = socket.socket(socket.AF_UNIX)
kept.bind(b'\\0dios-test-shared')
open('/tmp/mark', 'w').close()
libc.shmget(4711, 4096, 0o1666)
"""
    looking = """
import ctypes, json, os, socket
ctypes.CDLL(None).shmget.restype = ctypes.c_int
other = socket.socket(socket.AF_UNIX)
try:
    other.bind(b'\\0dios-test-shared')
    taken = False
except OSError:
    taken = True
print(json.dumps([os.path.exists('/tmp/mark'), ctypes.CDLL(None).shmget(4711, 4096, 0) >= 0, taken]))
"""
    with dios.Sandbox(node=node.place, isolation="gvisor") as other:
        assert box.run(code).ok
        assert asked(other, looking) == [False, False, False]
    box.reset()


def test_memory_of_the_node_that_it_may_read_is_not_written(node: RunningNode) -> None:
    """The contents of an input are mapped there, and cannot be mapped for writing."""
    data = bytes(1 << 22)
    code = """
import ctypes, gc, json, mmap, os
handle = inputs['data']
first = handle.read(4096)
outcomes = []
for name in os.listdir('/proc/self/fd'):
    try:
        size = os.fstat(int(name)).st_size
        if size >= 1 << 22:
            mmap.mmap(int(name), size)
            outcomes.append(name)
    except OSError:
        pass
wrong = []
for line in open('/proc/self/maps').read().splitlines():
    begin, end = (int(part, 16) for part in line.split()[0].split('-'))
    if end - begin >= 1 << 22 and 'r--s' in line:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(4096), 3) == 0:
            wrong.append(line)
print(json.dumps([outcomes, wrong]))
"""
    with dios.connect(node.place) as own:
        blob = own.create(dios.SHMEM_BLOB, data=data)
        with dios.Sandbox(node=own, isolation="gvisor", inputs={"data": blob}, memory="64 MiB") as box:
            assert asked(box, code) == [[], []]
        assert blob.read_bytes() == data


@pytest.mark.parametrize("status", [int(signal.SIGSYS), 0, 9])
def test_a_hostile_report_says_no_more_than_an_end(node: RunningNode, status: int) -> None:
    """A program that finds the pipe for the status claims no call that a filter refused, and no limit."""
    code = f"""
import os, stat
for name in os.listdir('/proc/1/fd'):
    try:
        number = os.open(f'/proc/1/fd/{{name}}', os.O_WRONLY | os.O_NONBLOCK)
        if stat.S_ISFIFO(os.fstat(number).st_mode):
            os.write(number, bytes([{status}, 0]))
    except OSError:
        pass
os._exit(7)
"""
    with dios.Sandbox(node=node.place, isolation="gvisor") as box:
        error = box.run(code).error
        assert error is not None
        assert error.ended
        for claim in ("system call", "memory=", "cpu_seconds="):
            assert claim not in error.message
