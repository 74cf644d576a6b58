"""Hostile programs of the escape suite that are after files; each ``try_`` function is one attempt.

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
def _try_read_passwords() -> object:
    return _read("/etc/passwd")


def _try_read_secret() -> object:
    return _read(text("mail_file"))


def _try_read_store() -> object:
    return _read(text("store") + "/node.pid")


def _try_climb_out() -> object:
    return _read("../" * 40 + "etc/passwd")


def _try_climb_from_library() -> object:
    here = os.open(LIBRARY.parent, os.O_RDONLY | os.O_DIRECTORY)
    return os.open("../" * 40 + "etc/passwd", os.O_RDONLY, dir_fd=here)


def _try_list_root() -> object:
    return _list("/")


def _try_list_above_library() -> object:
    return _list(str(LIBRARY.parents[2]))


def _try_list_proc() -> object:
    return _list("/proc")


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


def _try_own_memory_file() -> object:
    return _read("/proc/self/mem")


def _try_own_environment() -> object:
    return _read("/proc/self/environ")


def _try_own_maps() -> object:
    return _read("/proc/self/maps")


def _try_thread_files() -> object:
    return _read("/proc/thread-self/status")


def _try_other_environment() -> object:
    return _read(f"/proc/{number('victim')}/environ")


def _try_other_memory() -> object:
    return _read(f"/proc/{number('victim')}/mem")


def _try_first_process() -> object:
    return _read("/proc/1/cmdline")


def _try_node_descriptors() -> object:
    return _list(f"/proc/{number('node')}/fd")


def _try_kernel_memory() -> object:
    return _read("/dev/mem")


def _try_kernel_log_device() -> object:
    return _read("/dev/kmsg")


def _try_terminal() -> object:
    return _read("/dev/tty")


def _try_kernel_symbols() -> object:
    return _read("/proc/kallsyms")


def _try_system_settings() -> object:
    return _read("/sys/kernel/notes")


def _try_disk() -> object:
    return _list("/dev/disk")


def _try_shared_memory_folder() -> object:
    return _list("/dev/shm")


def _try_control_groups() -> object:
    return _list("/sys/fs/cgroup")


def _try_home() -> object:
    return _list("/root") if os.geteuid() == 0 else _list("/home")


# -- opening a descriptor again -----------------------------------------------------------------------
def _try_reopen_by_proc() -> object:
    return os.open("/proc/self/fd/1", os.O_RDONLY)


def _try_reopen_by_dev() -> object:
    return os.open("/dev/fd/1", os.O_RDONLY)


def _try_reopen_for_writing() -> object:
    return os.open("/proc/self/fd/1", os.O_RDWR)


def _try_path_handle() -> object:
    return os.open(LIBRARY, os.O_PATH)


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


def _try_open_by_handle() -> object:
    return raw("open_by_handle_at", AT_FDCWD, struct.pack("=Ii", 128, 1) + bytes(128), 0)


# -- changing what is in the view ---------------------------------------------------------------------
def _try_write_library() -> object:
    return LIBRARY.write_bytes(b"")


def _try_append_library() -> object:
    return os.open(LIBRARY, os.O_WRONLY | os.O_APPEND)


def _try_truncate_on_opening() -> object:
    return os.open(LIBRARY, os.O_RDONLY | os.O_TRUNC)


def _try_plant_module() -> object:
    return (LIBRARY.parent / "planted.py").write_text("")


def _try_plant_cache() -> object:
    return (LIBRARY.parent / "__pycache__" / "planted.pyc").write_bytes(b"")


def _try_creat() -> object:
    return checked(libc.creat(os.fsencode(text("drop")), 0o600))


def _try_nameless_file() -> object:
    return os.open(text("drop").rpartition("/")[0], os.O_TMPFILE | os.O_RDWR, 0o600)


def _try_remove_library() -> None:
    LIBRARY.unlink()


def _try_rename_library() -> object:
    return LIBRARY.rename(LIBRARY.with_suffix(".old"))


def _try_exchange_library() -> object:
    exchange = 2
    ours, theirs = os.fsencode(LIBRARY) + b"\0", os.fsencode(LIBRARY.parent / "abc.py") + b"\0"
    return raw("renameat2", AT_FDCWD, ours, AT_FDCWD, theirs, exchange)


def _try_hard_link() -> None:
    os.link(LIBRARY, LIBRARY.with_suffix(".link"))


def _try_symlink() -> None:
    (LIBRARY.parent / "planted").symlink_to("/etc")


def _try_make_directory() -> None:
    (LIBRARY.parent / "planted").mkdir()


def _try_remove_directory() -> None:
    (LIBRARY.parent / "__pycache__").rmdir()


def _try_make_device() -> None:
    os.mknod("/planted", 0o20666, os.makedev(1, 1))


def _try_make_pipe_file() -> None:
    os.mkfifo("/planted")


def _try_change_mode() -> None:
    LIBRARY.chmod(0o777)


def _try_change_mode_by_descriptor() -> None:
    os.fchmod(os.open(LIBRARY, os.O_RDONLY), 0o777)


def _try_change_owner() -> None:
    os.chown(LIBRARY, os.getuid(), os.getgid())


def _try_change_times() -> None:
    os.utime(LIBRARY, (0, 0))


def _try_change_attributes() -> None:
    os.setxattr(LIBRARY, "user.evil", b"1")


def _try_read_attributes() -> object:
    return os.getxattr(LIBRARY, "security.capability")


def _try_truncate() -> None:
    os.truncate(LIBRARY, 0)


def _try_truncate_descriptor() -> None:
    os.ftruncate(os.open(LIBRARY, os.O_RDONLY), 0)


def _try_allocate() -> None:
    os.posix_fallocate(os.open(LIBRARY, os.O_RDONLY), 0, 0)


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


def _try_lock_library() -> None:
    fcntl.flock(os.open(LIBRARY, os.O_RDONLY), fcntl.LOCK_SH | fcntl.LOCK_NB)


def _try_lease_library() -> object:
    return fcntl.fcntl(os.open(LIBRARY, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)


def _try_watch_library() -> object:
    return raw("inotify_init1", 0)


def _try_watch_everything() -> object:
    return raw("fanotify_init", 0, 0)


def _try_copy_in_kernel() -> object:
    return os.sendfile(1, os.open(LIBRARY, os.O_RDONLY), 0, 0)


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


def _try_list_devices() -> object:
    return _list(str(NULL.parent))


def _try_climb_from_null() -> object:
    return os.open(f"{NULL}/../zero", os.O_RDONLY)


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


def _try_grow_null() -> None:
    os.ftruncate(os.open(NULL, os.O_RDWR), 1 << 20)


def _try_control_null() -> object:
    return fcntl.ioctl(os.open(NULL, os.O_RDWR), termios.FIONREAD, bytes(4))


def _try_remove_null() -> None:
    NULL.unlink()


def _try_move_null() -> object:
    return NULL.rename("/tmp/null")


def _try_replace_null() -> object:
    mine = Path("/tmp/mine")
    mine.touch()
    return mine.rename(NULL)


def _try_plant_beside_null() -> object:
    return (NULL.parent / "planted").write_text("")


def _try_change_mode_of_null() -> None:
    NULL.chmod(0o600)


def _try_change_times_of_null() -> None:
    os.utime(NULL, (0, 0))


def _try_set_attribute_of_null() -> None:
    os.setxattr(NULL, "user.mark", b"1")


def _try_lock_null() -> None:
    fcntl.flock(os.open(NULL, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _try_lease_null() -> object:
    return fcntl.fcntl(os.open(NULL, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK)


# -- roots, directories and mounts --------------------------------------------------------------------
def _try_change_directory() -> None:
    os.chdir("/")


def _try_change_directory_by_descriptor() -> None:
    os.fchdir(os.open(LIBRARY.parent, os.O_RDONLY))


def _try_change_root() -> None:
    os.chroot(".")


def _try_swap_root() -> object:
    return raw("pivot_root", b".\0", b".\0")


def _try_mount_proc() -> object:
    return checked(libc.mount(b"proc", b"/", b"proc", ctypes.c_ulong(0), None))


def _try_bind_mount() -> object:
    bind = 0x1000
    return checked(libc.mount(b"/", b"/", None, ctypes.c_ulong(bind), None))


def _try_remount_writable() -> object:
    remount = 0x20
    return checked(libc.mount(None, os.fsencode(LIBRARY.parent), None, ctypes.c_ulong(remount), None))


def _try_unmount_view() -> object:
    return raw("umount2", os.fsencode(LIBRARY.parent) + b"\0", 2)


def _try_clone_mount() -> object:
    return raw("open_tree", AT_FDCWD, b"/\0", 1)


def _try_move_mount() -> object:
    return raw("move_mount", AT_FDCWD, b"/\0", AT_FDCWD, b"/\0", 0)


def _try_new_file_system() -> object:
    return raw("fsopen", b"tmpfs\0", 0)


def _try_writable_mount() -> object:
    attributes = struct.pack("=4Q", 0, 1, 0, 0)
    return raw("mount_setattr", AT_FDCWD, b"/\0", 0, attributes, len(attributes))


def _try_quotas() -> object:
    return raw("quotactl", 0, b"/\0", 0, bytes(128))


# -- memory files -------------------------------------------------------------------------------------
def _try_memory_file() -> object:
    return os.memfd_create("planted")


def _try_secret_memory() -> object:
    return raw("memfd_secret", 0)


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


def _try_seal_again() -> object:
    return fcntl.fcntl(_shared(), fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)


def _try_write_input() -> object:
    return os.pwrite(_shared(), b"evil", 0)


def _try_reopen_input() -> object:
    return os.open(f"/proc/self/fd/{_shared()}", os.O_RDONLY)


def _try_map_input_for_writing() -> object:
    return mmap.mmap(_shared(), mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)


def _try_punch_input() -> object:
    punch_and_keep_size = 3
    return raw("fallocate", _shared(), punch_and_keep_size, 0, mmap.PAGESIZE)


def _try_grow_input() -> None:
    os.ftruncate(_shared(), 1 << 30)


def _try_see_seals() -> object:
    """What may be done with it: the seals that a pure task sees."""
    return fcntl.fcntl(_shared(), fcntl.F_GET_SEALS)
