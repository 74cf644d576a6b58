"""The entry point of the sandbox tests: a task that does, one after the other, what it is told to try.

Each function below, and each row of ``SHORT_ATTEMPTS``, is one attempt. ``main`` reads a name from the DIOS
socket, makes the attempt and writes back what came of it: ``did:…`` with the value, or ``refused:ERRNO``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import importlib
import json
import mmap
import os
import platform
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dios.host.confinement import linux_calls, syscall_numbers

STDLIB_MODULES = (
    *("ssl", "sqlite3", "decimal", "asyncio", "multiprocessing.pool", "xml.etree.ElementTree", "csv"),
    *("lzma", "bz2", "zlib", "hashlib", "unicodedata", "statistics", "fractions", "email.message"),
)

LIBRARY = Path(os.__file__)
MACHINE = platform.node()
"""Asked before the sandbox is closed, as modules do at their import: Python remembers the answer."""
RECEIVED: list[int] = []
HELD: list[object] = []


def main() -> int:
    """Serve attempts until the other end closes."""
    channel = socket.socket(fileno=3)
    while True:
        data, received, _, _ = socket.recv_fds(channel, 4096, 1)
        if not data:
            return 0
        name, _, argument = data.decode().partition(" ")
        RECEIVED[:] = received
        channel.send(outcome(name, argument).encode())


def trivial() -> None:
    """Wait for one byte and end."""
    os.read(3, 1)


def at_once() -> int:
    """End without waiting."""
    return 3


def outcome(name: str, argument: str) -> str:
    """Make one attempt."""
    attempt: Callable[[str], object] = SHORT_ATTEMPTS.get(name) or globals()[f"_{name}"]
    try:
        return f"did:{attempt(argument)}"
    except OSError as error:
        return "refused:" + errno.errorcode.get(error.errno or 0, repr(error))


# -- files ----------------------------------------------------------------------------------------
def _read_file(path: str) -> object:
    with Path(path).open("rb") as file:
        return file.read(1)


def _write_file(path: str) -> object:
    with Path(path).open("ab") as file:
        return file.write(b"x")


def _rename_library(_: str) -> None:
    LIBRARY.rename(LIBRARY.with_suffix(".old"))


def _make_temporary(_: str) -> None:
    tempfile.TemporaryFile().close()


# -- network --------------------------------------------------------------------------------------
def _open_socket(words: str) -> None:
    family, kind = (int(word) for word in words.split())
    socket.socket(family, kind).close()


def _connect_tcp(port: str) -> None:
    with socket.socket() as out:
        out.connect(("127.0.0.1", int(port)))


def _send_datagram(port: str) -> object:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        return out.sendto(b"loot", ("127.0.0.1", int(port)))


def _connect_unix(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as out:
        out.connect(path.replace("@", "\0", 1))


def _connect_own_socket(_: str) -> None:
    with socket.socket(fileno=os.dup(3)) as own:
        own.connect("\0somewhere")


def _bind_own_socket(_: str) -> None:
    with socket.socket(fileno=os.dup(3)) as own:
        own.bind("\0somewhere")


def _send_descriptors(_: str) -> object:
    here, there = socket.socketpair()
    with here, there:
        return socket.send_fds(here, [b"x"], [0])


def _send_by_message(_: str) -> object:
    with socket.socket(fileno=os.dup(3)) as own:
        return own.sendmsg([b"x"])


def _set_option_of_own_socket(_: str) -> object:
    with socket.socket(fileno=os.dup(3)) as own:
        return own.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


# -- programs and processes -----------------------------------------------------------------------
def _execute(path: str) -> object:
    return os.execv(path, [path])  # noqa: S606 - the attempt itself


def _signal_peer(_: str) -> object:
    """Ask the socket for a hold of the process at its other end, and whether that may be signalled."""
    so_peerpidfd = 77
    with socket.socket(fileno=os.dup(3)) as own:
        hold = own.getsockopt(socket.SOL_SOCKET, so_peerpidfd)
    return raw("pidfd_send_signal", hold, 0, 0, 0)


# -- undoing the sandbox --------------------------------------------------------------------------
def _bind_mount(_: str) -> object:
    bind = 0x1000
    return raw("mount", b"/\0", b"/\0", None, bind, None)


def _system_call(words: str) -> object:
    """Any call by name, with plain numbers as arguments."""
    name, *arguments = words.split()
    return raw(name, *(int(argument) for argument in arguments))


def _foreign_call(number: str) -> object:
    """A call by number, as the other ABI of this architecture would make it."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(ctypes.c_long(int(number)))


def raw(name: str, *arguments: int | bytes | None) -> int:
    """A system call by name."""
    return linux_calls.syscall(name, *arguments)


# -- memory that limits of data do not count --------------------------------------------------------
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
BLOCK = 1 << 20


def _mapped(size: int, protection: int, more: int = 0) -> int:
    return raw("mmap", None, size, protection, PRIVATE | more, -1, 0)


def _keep_pages_that_are_read_only(size: str) -> object:
    """Pages that were written and may no longer be written do not count as data."""
    for _ in range(int(size) // BLOCK):
        place = _mapped(BLOCK, mmap.PROT_READ | mmap.PROT_WRITE)
        ctypes.memset(place, 1, BLOCK)
        raw("mprotect", place, BLOCK, mmap.PROT_READ)
    return _wait_to_be_ended()


def _keep_pages_without_the_first_thread(size: str) -> object:
    """The first thread ends, and another one goes on with all memory: the process shows none of its own."""
    keep = threading.Thread(target=_keep_pages_that_are_read_only, args=(size,))
    keep.start()
    return raw("exit", 0)


def _fill_page_tables(size: str) -> object:
    """A page of zeros that is read once in every two MiB costs a page table each time."""
    reach = 2 << 20
    place = _mapped(int(size) // mmap.PAGESIZE * reach, mmap.PROT_READ)
    for page in range(int(size) // mmap.PAGESIZE):
        ctypes.string_at(place + page * reach, 1)
    return _wait_to_be_ended()


def _fill_folder_and_memory(size: str) -> object:
    """Keep files in the private folder, and own pages: each less than the limit, both together more."""
    limit = int(size) // 4
    with open(os.environ["TMPDIR"] + "/large", "wb") as file:  # noqa: PTH123 - no pathlib in the task
        file.write(bytes(limit // 2 - 65536))
    held = bytearray(b"x") * (limit * 3 // 4)
    return _wait_to_be_ended(), held


def _wait_to_be_ended() -> object:
    time.sleep(10)
    return "kept"


def _fill_sockets(_: str) -> object:
    """As many sockets as there may be, with buffers as large as they get, each full."""
    kept, buffered = [], 0
    try:
        while True:
            for end in socket.socketpair():
                kept.append(end)
                end.setblocking(False)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        buffered += end.send(bytes(32 << 10))
    except OSError as error:
        if error.errno != errno.EMFILE:
            raise
    count, total = kept[-1].fileno() + 1, buffered
    for end in kept:
        end.close()
    return f"{count} {total}"


def _thread_with_own_descriptors(_: str) -> object:
    shared_but_files = 0x100 | 0x200 | 0x800 | 0x10000
    stack = _mapped(BLOCK, mmap.PROT_READ | mmap.PROT_WRITE)
    return raw("clone", shared_but_files, stack + BLOCK, 0, 0, 0)


def _use_and_hold(size: str) -> object:
    HELD.append(bytearray(b"x") * int(size))
    HELD.append(mmap.mmap(-1, 64 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ))
    return "held"


# -- what a task can see of itself ----------------------------------------------------------------
def _descriptors(_: str) -> object:
    descriptors = []
    for number in range(1024):
        try:
            os.fstat(number)
        except OSError:
            continue
        descriptors.append(number)
    return descriptors


def _identity(_: str) -> object:
    names = socket.gethostname(), os.uname().nodename, platform.node()
    return os.getpid(), os.getppid(), *names, str(Path.cwd()), len(sys.argv)


def _limits_of(_: str) -> object:
    kinds = (resource.RLIMIT_DATA, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC)
    return [resource.getrlimit(kind)[1] for kind in kinds]


# -- what must work -------------------------------------------------------------------------------
def _use_threads(_: str) -> object:
    with ThreadPoolExecutor(4) as pool:
        return sum(pool.map(lambda n: n * n, range(10)))


def _use_event_loop(_: str) -> object:
    asyncio = importlib.import_module("asyncio")

    async def answer() -> int:
        return await asyncio.to_thread(lambda: 42)  # type: ignore[no-any-return]

    return asyncio.run(answer())


def _use_trio(_: str) -> object:
    trio = importlib.import_module("trio")

    async def answer() -> int:
        return await trio.to_thread.run_sync(lambda: 42)  # type: ignore[no-any-return]

    return trio.run(answer)


def _use_memory(_: str) -> object:
    with mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:5] = b"hello"
        return memory[:5].decode()


def _interrupt_itself(_: str) -> object:
    seen = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.set())
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    return seen.is_set()


# -- ends -----------------------------------------------------------------------------------------
def _end_with(status: str) -> object:
    sys.exit(int(status))


def _fail(_: str) -> object:
    raise LookupError("the test's own failure")


def _count_threads(wanted: str) -> object:
    """How many threads could be started beside this one."""
    stop = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in range(int(wanted)):
            thread = threading.Thread(target=stop.wait)
            thread.start()
            started.append(thread)
    except RuntimeError:
        pass
    finally:
        stop.set()
        for thread in started:
            thread.join()
    return len(started)


def _take_memory(size: str) -> object:
    try:
        return len(bytearray(int(size)))
    except MemoryError:
        return "MemoryError"


def _share_memory(size: str) -> None:
    """Memory that no limit of a process counts, only a group's."""
    memory = mmap.mmap(-1, int(size), flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
    for at in range(0, int(size), mmap.PAGESIZE):
        memory[at] = 1
    memory.close()


def _spin(_: str) -> object:
    while True:
        pass


def _leave_processes(count: str) -> object:
    """Limbo only: start processes that outlive this one, in sessions of their own."""
    children = [subprocess.Popen(["sleep", "1000"], start_new_session=True) for _ in range(int(count))]
    os.write(3, (" ".join(str(child.pid) for child in children)).encode())
    os._exit(0)


# -- tasks of the template ``hostile_template`` --------------------------------------------------------
def _found_at_import(module: str) -> object:
    """What came of the attempts that a module of the template made."""
    return json.dumps(sys.modules[module or "hostile_template"].FOUND)


def _mark_the_template(text: str) -> object:
    """Write to the memory that all tasks of the template had at their start, and to the place of files."""
    mark = sys.modules["hostile_template"].MARK
    seen = bytes(mark).decode(), sorted(map(str, Path().iterdir()))
    mark += text.encode()
    Path(text).write_text(text, encoding="utf-8")
    os.environ[text] = text
    return seen


def _secrets(_: str) -> object:
    """What an attacker wants to know of a neighbour: addresses, the stack guard, and the hash of a text."""
    libc = ctypes.CDLL(None)
    address = ctypes.cast(libc.printf, ctypes.c_void_p).value
    if os.uname().machine != "x86_64":
        return [address, id(object), address, hash("text")]
    # mov rax, fs:[0x28]; ret
    code = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE, 7)
    code.write(b"\x64\x48\x8b\x04\x25\x28\x00\x00\x00\xc3")
    place = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return [address, id(HELD), ctypes.CFUNCTYPE(ctypes.c_uint64)(place)(), hash("text")]


SHORT_ATTEMPTS: dict[str, Callable[[str], object]] = {
    # files
    "read_below_received": lambda name: os.read(os.open(name, os.O_RDONLY, dir_fd=RECEIVED[0]), 1),
    "write_own_library": lambda _: _write_file(os.__file__),
    "read_own_library": lambda _: _read_file(os.__file__),
    "create_beside_library": lambda _: _write_file(str(LIBRARY.parent / "planted.py")),
    "remove_library": lambda _: LIBRARY.unlink(),
    "link_library": lambda _: os.link(os.__file__, "/linked"),
    "chmod_library": lambda _: LIBRARY.chmod(0o600),
    "touch_library": lambda _: os.utime(os.__file__),
    "truncate_library": lambda _: os.truncate(os.__file__, 0),
    "make_directory": lambda _: Path("/made").mkdir(),
    "make_symlink": lambda _: Path("/linked").symlink_to("/etc"),
    "make_device": lambda _: os.mknod("/device", 0o20600, os.makedev(1, 1)),
    "list_directory": lambda path: sorted(str(entry) for entry in Path(path).iterdir()),
    "change_directory": lambda _: os.chdir("/usr"),
    "watch_files": lambda _: raw("inotify_init1", 0),
    "memory_file": lambda _: os.memfd_create("x"),
    "truncate_console": lambda _: os.ftruncate(1, 0),
    # network
    "datagram_pair": lambda _: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    # programs and processes
    "execute_descriptor": lambda _: raw("execveat", 3, b"\0", 0, 0, 0x1000),
    "fork": lambda _: os.fork(),
    "fork_by_number": raw,
    "clone_process": lambda flags: raw("clone", int(flags) | signal.SIGCHLD, 0, 0, 0, 0),
    "clone_by_structure": lambda _: raw("clone3", bytes(88), 88),
    "run_program": lambda _: subprocess.run(["/bin/true"], check=True),
    "spawn_program": lambda _: os.posix_spawn("/bin/true", ["/bin/true"], {}),
    "send_signal": lambda pid: os.kill(int(pid), signal.SIGKILL),
    "send_signal_by_thread": lambda pid: raw("tgkill", int(pid), int(pid), int(signal.SIGKILL)),
    "queue_signal": lambda pid: raw("rt_sigqueueinfo", int(pid), int(signal.SIGKILL), bytes(128)),
    "open_pidfd": lambda pid: os.pidfd_open(int(pid)),
    # undoing the sandbox
    "raise_limit": lambda _: raw("prlimit64", 0, resource.RLIMIT_NOFILE, bytes(16), 0),
    "forget_parent": lambda _: linux_calls.prctl(linux_calls.PR_SET_PDEATHSIG, 0),
    "become_dumpable": lambda _: linux_calls.prctl(linux_calls.PR_SET_DUMPABLE, 1),
    "change_root": lambda _: os.chroot("/"),
    "become_root": lambda _: os.setuid(0),
    "set_groups": lambda _: os.setgroups([0]),
    "take_capabilities": lambda _: raw(
        "capset", struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *([0xFFFFFFFF] * 6))
    ),
    "rename_host": lambda _: socket.sethostname("mine"),
    "set_personality": lambda _: raw("personality", 0x0040000),
    "add_filter": lambda _: raw("seccomp", 1, 0, 0),
    "add_seals": lambda _: fcntl.fcntl(1, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL),
    "own_descriptor_signals": lambda _: fcntl.fcntl(3, fcntl.F_SETOWN, 1),
    "type_into_terminal": lambda _: fcntl.ioctl(0, termios.TIOCSTI, b"x"),
    "shared_memory_segment": lambda _: raw("shmget", 0, 4096, 0o1600),
    "raise_priority": lambda _: os.setpriority(os.PRIO_PROCESS, 0, -5),
    "number_is_known": syscall_numbers.number_of,
    # memory that limits of data do not count
    "map_growing_stack": lambda _: _mapped(BLOCK, mmap.PROT_READ | mmap.PROT_WRITE, 0x100),
    # what a task can see of itself
    "environment": lambda _: sorted(os.environ),
    # what must work
    "import_library": lambda _: (
        len([importlib.import_module(name) for name in STDLIB_MODULES]) == len(STDLIB_MODULES)
    ),
    # ends
    "crash": lambda _: ctypes.string_at(0),
    "user": lambda _: (os.getuid(), os.geteuid()),
    "sleep": lambda seconds: time.sleep(float(seconds)),
}
"""The attempts that are one expression; each other one is a function ``_NAME``."""
