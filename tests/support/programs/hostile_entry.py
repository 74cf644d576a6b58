"""The entry point of the sandbox tests: a task that does, one after the other, what it is told to try.

Each function below is one attempt. ``main`` reads a name from the DIOS socket, makes the attempt and
writes back what came of it: ``did:…`` with the value, or ``refused:ERRNO``.
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
    attempt: Callable[[str], object] = globals()[f"_{name}"]
    try:
        return f"did:{attempt(argument)}"
    except OSError as error:
        return "refused:" + errno.errorcode.get(error.errno or 0, repr(error))


# -- files ----------------------------------------------------------------------------------------
def _read_file(path: str) -> object:
    with Path(path).open("rb") as file:
        return file.read(1)


def _read_below_received(name: str) -> object:
    return os.read(os.open(name, os.O_RDONLY, dir_fd=RECEIVED[0]), 1)


def _write_file(path: str) -> object:
    with Path(path).open("ab") as file:
        return file.write(b"x")


def _write_own_library(_: str) -> object:
    return _write_file(os.__file__)


def _read_own_library(_: str) -> object:
    return _read_file(os.__file__)


def _create_beside_library(_: str) -> object:
    return _write_file(str(LIBRARY.parent / "planted.py"))


def _remove_library(_: str) -> None:
    LIBRARY.unlink()


def _rename_library(_: str) -> None:
    LIBRARY.rename(LIBRARY.with_suffix(".old"))


def _link_library(_: str) -> None:
    os.link(os.__file__, "/linked")


def _chmod_library(_: str) -> None:
    LIBRARY.chmod(0o600)


def _touch_library(_: str) -> None:
    os.utime(os.__file__)


def _truncate_library(_: str) -> None:
    os.truncate(os.__file__, 0)


def _make_directory(_: str) -> None:
    Path("/made").mkdir()


def _make_symlink(_: str) -> None:
    Path("/linked").symlink_to("/etc")


def _make_device(_: str) -> None:
    os.mknod("/device", 0o20600, os.makedev(1, 1))


def _make_temporary(_: str) -> None:
    tempfile.TemporaryFile().close()


def _list_directory(path: str) -> object:
    return sorted(str(entry) for entry in Path(path).iterdir())


def _change_directory(_: str) -> None:
    os.chdir("/usr")


def _watch_files(_: str) -> object:
    return raw("inotify_init1", 0)


def _memory_file(_: str) -> object:
    return os.memfd_create("x")


def _truncate_console(_: str) -> None:
    os.ftruncate(1, 0)


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


def _datagram_pair(_: str) -> object:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)


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


def _execute_descriptor(_: str) -> object:
    return raw("execveat", 3, b"\0", 0, 0, 0x1000)


def _fork(_: str) -> object:
    return os.fork()


def _fork_by_number(name: str) -> object:
    return raw(name)


def _clone_process(flags: str) -> object:
    return raw("clone", int(flags) | signal.SIGCHLD, 0, 0, 0, 0)


def _clone_by_structure(_: str) -> object:
    return raw("clone3", bytes(88), 88)


def _run_program(_: str) -> object:
    return subprocess.run(["/bin/true"], check=True)


def _spawn_program(_: str) -> object:
    return os.posix_spawn("/bin/true", ["/bin/true"], {})


def _send_signal(pid: str) -> None:
    os.kill(int(pid), signal.SIGKILL)


def _send_signal_by_thread(pid: str) -> object:
    return raw("tgkill", int(pid), int(pid), int(signal.SIGKILL))


def _queue_signal(pid: str) -> object:
    return raw("rt_sigqueueinfo", int(pid), int(signal.SIGKILL), bytes(128))


def _signal_peer(_: str) -> object:
    """Ask the socket for a hold of the process at its other end, and whether that may be signalled."""
    so_peerpidfd = 77
    with socket.socket(fileno=os.dup(3)) as own:
        hold = own.getsockopt(socket.SOL_SOCKET, so_peerpidfd)
    return raw("pidfd_send_signal", hold, 0, 0, 0)


def _open_pidfd(pid: str) -> object:
    return os.pidfd_open(int(pid))


# -- undoing the sandbox --------------------------------------------------------------------------
def _raise_limit(_: str) -> object:
    return raw("prlimit64", 0, resource.RLIMIT_NOFILE, bytes(16), 0)


def _forget_parent(_: str) -> object:
    return linux_calls.prctl(linux_calls.PR_SET_PDEATHSIG, 0)


def _become_dumpable(_: str) -> object:
    return linux_calls.prctl(linux_calls.PR_SET_DUMPABLE, 1)


def _bind_mount(_: str) -> object:
    bind = 0x1000
    return raw("mount", b"/\0", b"/\0", None, bind, None)


def _change_root(_: str) -> None:
    os.chroot("/")


def _become_root(_: str) -> None:
    os.setuid(0)


def _set_groups(_: str) -> None:
    os.setgroups([0])


def _take_capabilities(_: str) -> object:
    return raw("capset", struct.pack("=Ii", 0x20080522, 0), struct.pack("=6I", *([0xFFFFFFFF] * 6)))


def _rename_host(_: str) -> None:
    socket.sethostname("mine")


def _set_personality(_: str) -> object:
    return raw("personality", 0x0040000)


def _add_filter(_: str) -> object:
    return raw("seccomp", 1, 0, 0)


def _add_seals(_: str) -> object:
    return fcntl.fcntl(1, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)


def _own_descriptor_signals(_: str) -> object:
    return fcntl.fcntl(3, fcntl.F_SETOWN, 1)


def _type_into_terminal(_: str) -> object:
    return fcntl.ioctl(0, termios.TIOCSTI, b"x")


def _shared_memory_segment(_: str) -> object:
    return raw("shmget", 0, 4096, 0o1600)


def _raise_priority(_: str) -> None:
    os.setpriority(os.PRIO_PROCESS, 0, -5)


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


def _number_is_known(name: str) -> object:
    return syscall_numbers.number_of(name)


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


def _map_growing_stack(_: str) -> object:
    return _mapped(BLOCK, mmap.PROT_READ | mmap.PROT_WRITE, 0x100)


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


def _environment(_: str) -> object:
    return sorted(os.environ)


def _identity(_: str) -> object:
    names = socket.gethostname(), os.uname().nodename, platform.node()
    return os.getpid(), os.getppid(), *names, str(Path.cwd()), len(sys.argv)


def _limits_of(_: str) -> object:
    kinds = (resource.RLIMIT_DATA, resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC)
    return [resource.getrlimit(kind)[1] for kind in kinds]


# -- what must work -------------------------------------------------------------------------------
def _import_library(_: str) -> object:
    return len([importlib.import_module(name) for name in STDLIB_MODULES]) == len(STDLIB_MODULES)


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


def _crash(_: str) -> object:
    return ctypes.string_at(0)


def _user(_: str) -> object:
    return os.getuid(), os.geteuid()


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


def _sleep(seconds: str) -> None:
    time.sleep(float(seconds))


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
