"""Hostile programs of the escape suite that are after files; ``attempt_of`` returns each attempt.

Not for: anything but ``escape.Cage``, which runs them and knows what must come of each.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
import sys
import termios
from collections.abc import Callable
from pathlib import Path

from escape_tools import NothingFoundError, checked, libc, number, raw, text

import dios

LIBRARY = Path(os.__file__)
AT_FDCWD = -100
READ_BYTES = 64


def _read(path: str) -> object:
    with Path(path).open("rb") as file:
        return len(file.read(READ_BYTES))


def _list(path: str) -> object:
    return len(os.listdir(path))  # noqa: PTH208 - the plain call is what is tried


# -- reading what is outside the view -----------------------------------------------------------------
def _try_climb_from_library() -> object:
    here = os.open(LIBRARY.parent, os.O_RDONLY | os.O_DIRECTORY)
    return os.open("../" * 40 + "etc/passwd", os.O_RDONLY, dir_fd=here)


def _try_follow_links() -> object:
    """Open every link of the library that leads out of it, but to what the interpreter itself has loaded."""
    loaded = {os.path.realpath(getattr(module, "__file__", None) or "") for module in sys.modules.values()}
    targets = []
    for folder, folders, files in os.walk(LIBRARY.parent):
        for name in (*folders, *files):
            path = Path(folder, name)
            if not path.is_symlink():
                continue
            target = os.path.normpath(os.path.join(folder, os.readlink(path)))  # noqa: PTH115, PTH118 - as text
            if (
                target.startswith(("/etc", "/var", "/home", "/root", "/opt", "/tmp"))
                and target not in loaded
                and path.exists()
            ):
                targets.append(target)
    if not targets:
        raise NothingFoundError
    return targets


# -- opening a descriptor again -----------------------------------------------------------------------
def _try_open_by_structure() -> object:
    how = struct.pack("=3Q", os.O_RDONLY, 0, 0)
    return raw("openat2", AT_FDCWD, b"/etc/passwd\0", how, len(how))


def _try_open_rooted() -> object:
    resolve_in_root = 0x10
    how = struct.pack("=3Q", os.O_RDONLY, 0, resolve_in_root)
    return raw("openat2", AT_FDCWD, b"/etc/passwd\0", how, len(how))


def _try_name_to_handle() -> object:
    handle = struct.pack("=Ii", 128, 0) + bytes(128)
    return raw("name_to_handle_at", AT_FDCWD, os.fsencode(LIBRARY) + b"\0", handle, bytes(8), 0)


# -- changing what is in the view ---------------------------------------------------------------------
def _try_exchange_library() -> object:
    exchange = 2
    ours, theirs = os.fsencode(LIBRARY) + b"\0", os.fsencode(LIBRARY.parent / "abc.py") + b"\0"
    return raw("renameat2", AT_FDCWD, ours, AT_FDCWD, theirs, exchange)


def _try_map_library_for_writing() -> object:
    file = os.open(LIBRARY, os.O_RDONLY)
    return mmap.mmap(file, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def _try_unprotect_library() -> object:
    """Map the library's file for reading, then ask for more."""
    file = os.open(LIBRARY, os.O_RDONLY)
    place = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    return checked(libc.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(mmap.PAGESIZE), 3))


def _try_punch_mapping() -> object:
    """Remove a page of the file from under its mapping."""
    remove = 9
    file = os.open(LIBRARY, os.O_RDONLY)
    place = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    return checked(libc.madvise(ctypes.c_void_p(place), ctypes.c_size_t(mmap.PAGESIZE), remove))


# -- /dev/null, the one device of the view -------------------------------------------------------------
NULL = Path(os.devnull)
OTHER_DEVICES = (
    *("zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts", "fd", "stdin", "stdout", "shm"),
    *("mem", "kmsg", "port", "kvm", "fuse", "loop0", "sda", "net/tun", "cpu_dma_latency", "mqueue"),
)


def _try_other_devices() -> object:
    devices = [name for name in OTHER_DEVICES if os.path.lexists(NULL.parent / name)]
    if not devices:
        raise NothingFoundError
    return devices


def _try_keep_in_null() -> object:
    """Write to it, and read with this descriptor and with another."""
    device = os.open(NULL, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    assert os.write(device, b"kept") == len(b"kept")
    os.lseek(device, 0, os.SEEK_SET)
    kept = os.read(device, READ_BYTES) + NULL.read_bytes() + os.pread(device, READ_BYTES, 0)
    if not kept and not os.fstat(device).st_size:
        raise NothingFoundError
    return kept


def _try_map_null() -> object:
    place = libc.mmap(None, mmap.PAGESIZE, 3, mmap.MAP_SHARED, os.open(NULL, os.O_RDWR), 0)
    return checked(place)


def _try_replace_null() -> object:
    mine = Path("/tmp/mine")
    mine.touch()
    return mine.rename(NULL)


# -- roots, directories and mounts --------------------------------------------------------------------
def _try_bind_mount() -> object:
    bind = 0x1000
    return checked(libc.mount(b"/", b"/", None, ctypes.c_ulong(bind), None))


def _try_remount_writable() -> object:
    remount = 0x20
    return checked(libc.mount(None, os.fsencode(LIBRARY.parent), None, ctypes.c_ulong(remount), None))


def _try_writable_mount() -> object:
    attributes = struct.pack("=4Q", 0, 1, 0, 0)
    return raw("mount_setattr", AT_FDCWD, b"/\0", 0, attributes, len(attributes))


# -- memory files -------------------------------------------------------------------------------------
def _shared() -> int:
    """The descriptor of a large input, which is sealed memory or a file opened for reading."""
    with dios.connect().inputs[0].read(dios.ANY) as request:
        for descriptor in range(4, 64):
            try:
                if os.pread(descriptor, 8, 0) == request.view[:8]:
                    return os.dup(descriptor)
            except OSError:
                continue
    raise LookupError("the input's descriptor was not found")


def _try_punch_input() -> object:
    punch_and_keep_size = 3
    return raw("fallocate", _shared(), punch_and_keep_size, 0, mmap.PAGESIZE)


def _try_see_seals() -> object:
    """What may be done with it: the seals that a pure task sees."""
    return fcntl.fcntl(_shared(), fcntl.F_GET_SEALS)


SHORT_ATTEMPTS: dict[str, Callable[[], object]] = {
    # reading what is outside the view
    "read_passwords": lambda: _read("/etc/passwd"),
    "read_secret": lambda: _read(text("mail_file")),
    "read_store": lambda: _read(text("store") + "/node.pid"),
    "climb_out": lambda: _read("../" * 40 + "etc/passwd"),
    "list_root": lambda: _list("/"),
    "list_above_library": lambda: _list(str(LIBRARY.parents[2])),
    "list_proc": lambda: _list("/proc"),
    "own_memory_file": lambda: _read("/proc/self/mem"),
    "own_environment": lambda: _read("/proc/self/environ"),
    "own_maps": lambda: _read("/proc/self/maps"),
    "thread_files": lambda: _read("/proc/thread-self/status"),
    "other_environment": lambda: _read(f"/proc/{number('victim')}/environ"),
    "other_memory": lambda: _read(f"/proc/{number('victim')}/mem"),
    "first_process": lambda: _read("/proc/1/cmdline"),
    "node_descriptors": lambda: _list(f"/proc/{number('node')}/fd"),
    "kernel_memory": lambda: _read("/dev/mem"),
    "kernel_log_device": lambda: _read("/dev/kmsg"),
    "terminal": lambda: _read("/dev/tty"),
    "kernel_symbols": lambda: _read("/proc/kallsyms"),
    "system_settings": lambda: _read("/sys/kernel/notes"),
    "disk": lambda: _list("/dev/disk"),
    "shared_memory_folder": lambda: _list("/dev/shm"),
    "control_groups": lambda: _list("/sys/fs/cgroup"),
    "home": lambda: _list("/root") if os.geteuid() == 0 else _list("/home"),
    # opening a descriptor again
    "reopen_by_proc": lambda: os.open("/proc/self/fd/1", os.O_RDONLY),
    "reopen_by_dev": lambda: os.open("/dev/fd/1", os.O_RDONLY),
    "reopen_for_writing": lambda: os.open("/proc/self/fd/1", os.O_RDWR),
    "path_handle": lambda: os.open(LIBRARY, os.O_PATH),
    "open_by_handle": lambda: raw("open_by_handle_at", AT_FDCWD, struct.pack("=Ii", 128, 1) + bytes(128), 0),
    # changing what is in the view
    "remove_library": LIBRARY.unlink,
    "hard_link": lambda: os.link(LIBRARY, LIBRARY.with_suffix(".link")),
    "symlink": lambda: (LIBRARY.parent / "planted").symlink_to("/etc"),
    "make_directory": (LIBRARY.parent / "planted").mkdir,
    "remove_directory": (LIBRARY.parent / "__pycache__").rmdir,
    "make_device": lambda: os.mknod("/planted", 0o20666, os.makedev(1, 1)),
    "make_pipe_file": lambda: os.mkfifo("/planted"),
    "change_mode": lambda: LIBRARY.chmod(0o777),
    "change_mode_by_descriptor": lambda: os.fchmod(os.open(LIBRARY, os.O_RDONLY), 0o777),
    "change_owner": lambda: os.chown(LIBRARY, os.getuid(), os.getgid()),
    "change_times": lambda: os.utime(LIBRARY, (0, 0)),
    "change_attributes": lambda: os.setxattr(LIBRARY, "user.evil", b"1"),
    "truncate": lambda: os.truncate(LIBRARY, 0),
    "truncate_descriptor": lambda: os.ftruncate(os.open(LIBRARY, os.O_RDONLY), 0),
    "allocate": lambda: os.posix_fallocate(os.open(LIBRARY, os.O_RDONLY), 0, 0),
    "lock_library": lambda: fcntl.flock(os.open(LIBRARY, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB),
    "write_library": lambda: LIBRARY.write_bytes(b""),
    "append_library": lambda: os.open(LIBRARY, os.O_WRONLY | os.O_APPEND),
    "truncate_on_opening": lambda: os.open(LIBRARY, os.O_RDONLY | os.O_TRUNC),
    "plant_module": lambda: (LIBRARY.parent / "planted.py").write_text(""),
    "plant_cache": lambda: (LIBRARY.parent / "__pycache__" / "planted.pyc").write_bytes(b""),
    "creat": lambda: checked(libc.creat(os.fsencode(text("drop")), 0o600)),
    "nameless_file": lambda: os.open(text("drop").rpartition("/")[0], os.O_TMPFILE | os.O_RDWR, 0o600),
    "rename_library": lambda: LIBRARY.rename(LIBRARY.with_suffix(".old")),
    "read_attributes": lambda: os.getxattr(LIBRARY, "security.capability"),
    "lease_library": lambda: fcntl.fcntl(os.open(LIBRARY, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK),
    "watch_library": lambda: raw("inotify_init1", 0),
    "watch_everything": lambda: raw("fanotify_init", 0, 0),
    "copy_in_kernel": lambda: os.sendfile(1, os.open(LIBRARY, os.O_RDONLY), 0, 0),
    # /dev/null, the one device of the view
    "grow_null": lambda: os.ftruncate(os.open(NULL, os.O_RDWR), 1 << 20),
    "remove_null": NULL.unlink,
    "change_mode_of_null": lambda: NULL.chmod(0o600),
    "change_times_of_null": lambda: os.utime(NULL, (0, 0)),
    "set_attribute_of_null": lambda: os.setxattr(NULL, "user.mark", b"1"),
    "lock_null": lambda: fcntl.flock(os.open(NULL, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB),
    "list_devices": lambda: _list(str(NULL.parent)),
    "climb_from_null": lambda: os.open(f"{NULL}/../zero", os.O_RDONLY),
    "control_null": lambda: fcntl.ioctl(os.open(NULL, os.O_RDWR), termios.FIONREAD, bytes(4)),
    "move_null": lambda: NULL.rename("/tmp/null"),
    "plant_beside_null": lambda: (NULL.parent / "planted").write_text(""),
    "lease_null": lambda: fcntl.fcntl(os.open(NULL, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK),
    # roots, directories and mounts
    "change_directory": lambda: os.chdir("/"),
    "change_directory_by_descriptor": lambda: os.fchdir(os.open(LIBRARY.parent, os.O_RDONLY)),
    "change_root": lambda: os.chroot("."),
    "swap_root": lambda: raw("pivot_root", b".\0", b".\0"),
    "mount_proc": lambda: checked(libc.mount(b"proc", b"/", b"proc", ctypes.c_ulong(0), None)),
    "unmount_view": lambda: raw("umount2", os.fsencode(LIBRARY.parent) + b"\0", 2),
    "clone_mount": lambda: raw("open_tree", AT_FDCWD, b"/\0", 1),
    "move_mount": lambda: raw("move_mount", AT_FDCWD, b"/\0", AT_FDCWD, b"/\0", 0),
    "new_file_system": lambda: raw("fsopen", b"tmpfs\0", 0),
    "quotas": lambda: raw("quotactl", 0, b"/\0", 0, bytes(128)),
    # memory files
    "grow_input": lambda: os.ftruncate(_shared(), 1 << 30),
    "memory_file": lambda: os.memfd_create("planted"),
    "secret_memory": lambda: raw("memfd_secret", 0),
    "seal_again": lambda: fcntl.fcntl(_shared(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL),
    "write_input": lambda: os.pwrite(_shared(), b"evil", 0),
    "reopen_input": lambda: os.open(f"/proc/self/fd/{_shared()}", os.O_RDONLY),
    "map_input_for_writing": lambda: mmap.mmap(
        _shared(), mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE
    ),
}
"""The attempts that are one expression; each other one is a function ``_try_NAME``."""
