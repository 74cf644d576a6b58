"""Hostile programs after files, each in a pure task of a running node: what stops them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dios
from tests.support.security.escape import Attempt, Cage, check_plainly, name_of, open_cage, row

LARGE = 3 << 20

READING = (
    row("read_passwords", "ENOENT", "the machine's files are not there", "did"),
    row("read_secret", "ENOENT", "a file that is open to all is not there", "did"),
    row("read_store", "ENOENT", "the node's own files are not there", "did"),
    row("climb_out", "ENOENT", "no number of .. leads out of the view", "did"),
    row("climb_from_library", "ENOENT", "nor from a directory that it may open", "did"),
    row("list_root", "EACCES", "the view's root cannot be listed", "did"),
    row("list_above_library", "EACCES", "what holds the library cannot be listed", "did"),
    row("list_proc", "ENOENT", "there is no /proc", "did"),
    row("follow_links", "nothing", "no link of the library leads out of the view"),
    row("own_memory_file", "ENOENT", "its own memory is no file", "did|EIO"),
    row("own_environment", "ENOENT", "nor is its environment", "did"),
    row("own_maps", "ENOENT", "nor the list of its mappings", "did"),
    row("thread_files", "ENOENT", "nor what the kernel says of its thread", "did"),
    row("other_environment", "ENOENT", "another process's environment is not there"),
    row("other_memory", "ENOENT", "another process's memory is not there"),
    row("first_process", "ENOENT", "the machine's first process is not there", "did"),
    row("node_descriptors", "ENOENT", "the daemon's descriptors are not there", "did"),
    row("kernel_memory", "ENOENT", "there is no /dev/mem"),
    row("kernel_log_device", "ENOENT", "there is no /dev/kmsg"),
    row("terminal", "ENOENT", "there is no terminal"),
    row("kernel_symbols", "ENOENT", "there are no kernel symbols", "did"),
    row("system_settings", "ENOENT", "there is no /sys", "did"),
    row("disk", "ENOENT", "there are no disks"),
    row("shared_memory_folder", "ENOENT", "there is no shared memory to find by name", "did"),
    row("control_groups", "ENOENT", "its limits are not there to be raised", "did"),
    row("home", "ENOENT", "nobody's home is there", "did"),
)
AGAIN = (
    row("reopen_by_proc", "ENOENT", "a descriptor cannot be opened again through /proc/self/fd", "did"),
    row("reopen_by_dev", "ENOENT", "nor through /dev/fd", "did"),
    row("reopen_for_writing", "ENOENT", "nor for writing", "did"),
    row("path_handle", "EPERM", "O_PATH, which checks no right to read, is refused", "did"),
    row("open_by_structure", "ENOSYS", "openat2, whose flags no filter can see, does not exist", "did"),
    row("open_rooted", "ENOSYS", "nor with a root of the caller's choice", "did"),
    row("name_to_handle", "SIGSYS", "asking for a file's handle ends the task", "did|EOPNOTSUPP|EOVERFLOW"),
    row("open_by_handle", "SIGSYS", "opening by handle, around every path, ends the task"),
)
CHANGING = (
    row("write_library", "EROFS EACCES", "the library cannot be written"),
    row("append_library", "EROFS EACCES", "nor appended to"),
    row("truncate_on_opening", "EROFS EACCES", "nor truncated by opening it for reading"),
    row("plant_module", "EROFS EACCES", "no module is planted that others would import"),
    row("plant_cache", "EROFS EACCES", "nor a compiled one"),
    row("creat", "EPERM", "no file is made by the older call", "did"),
    row("nameless_file", "EPERM", "no file without a name is made", "did|EOPNOTSUPP"),
    row("remove_library", "EROFS EACCES", "the library cannot be removed"),
    row("rename_library", "EROFS EACCES", "nor renamed"),
    row("exchange_library", "EPERM", "nor exchanged with another file"),
    row("hard_link", "EPERM", "no hard link is made"),
    row("symlink", "EPERM", "no symbolic link is made"),
    row("make_directory", "EROFS EACCES", "no directory is made"),
    row("remove_directory", "EROFS EACCES", "none is removed"),
    row("make_device", "EPERM", "no device is made"),
    row("make_pipe_file", "EPERM", "no named pipe is made, to meet others at"),
    row("change_mode", "EROFS EPERM", "no mode is changed"),
    row("change_mode_by_descriptor", "EPERM", "nor through an open file"),
    row("change_owner", "EPERM", "no owner is changed"),
    row("change_times", "EROFS EACCES", "no times are changed"),
    row("change_attributes", "EPERM", "no attribute is set"),
    row("read_attributes", "EPERM", "nor are attributes read", "did|ENODATA"),
    row("truncate", "EPERM", "nothing is truncated"),
    row("truncate_descriptor", "EINVAL", "nor through an open file"),
    row("allocate", "EPERM", "no room is made in a file"),
    row("map_library_for_writing", "EACCES", "the library's pages cannot be mapped to be written", "EACCES"),
    row("unprotect_library", "EACCES", "nor mapped for reading and then unprotected", "EACCES"),
    row("punch_mapping", "EPERM", "nor punched out from under a mapping", "EACCES|EINVAL"),
    row("lock_library", "EPERM", "a file cannot be locked, by which two tasks could talk", "did"),
    row("lease_library", "EPERM", "nor leased", "did|EAGAIN|EACCES"),
    row("watch_library", "EPERM", "who reads what cannot be watched", "did"),
    row("watch_everything", "SIGSYS", "watching all files ends the task"),
    row("copy_in_kernel", "EPERM", "no file is sent by the kernel itself", "did"),
)
DEVICES = (
    row("other_devices", "nothing", "of all devices /dev/null alone is there", "did"),
    row("list_devices", "EACCES", "where it is cannot be listed", "did"),
    row("climb_from_null", "ENOTDIR", "no path leads through it", "ENOTDIR"),
    row("keep_in_null", "nothing", "it keeps nothing that is written", "nothing"),
    row("map_null", "ENODEV", "it is no memory", "ENODEV"),
    row("grow_null", "EINVAL", "it has no size", "EINVAL"),
    row("control_null", "EACCES ENOTTY", "the calls that control devices are refused", "ENOTTY"),
    row("remove_null", "EROFS EACCES", "it cannot be removed"),
    row("move_null", "EXDEV EROFS EACCES", "nor moved into the folder"),
    row("replace_null", "EXDEV EROFS EACCES", "nor replaced by a file of the folder"),
    row("plant_beside_null", "EROFS EACCES", "nothing is written next to it"),
    row("change_mode_of_null", "EROFS", "its mode, which others could read, stays"),
    row("change_times_of_null", "EROFS", "so do its times"),
    row("set_attribute_of_null", "EPERM", "it gets no attribute"),
    row("lock_null", "EPERM", "it cannot be locked, by which two tasks could talk", "did"),
    row("lease_null", "EPERM", "nor leased", "EINVAL|EACCES|EAGAIN"),
)
MOUNTS = (
    row("change_directory", "EPERM", "it stays in its directory", "did"),
    row("change_directory_by_descriptor", "EPERM", "also by descriptor", "did"),
    row("change_root", "SIGSYS", "another root ends the task"),
    row("swap_root", "SIGSYS", "exchanging roots ends the task"),
    row("mount_proc", "SIGSYS", "mounting /proc ends the task"),
    row("bind_mount", "SIGSYS", "a bind mount ends the task"),
    row("remount_writable", "SIGSYS", "remounting the view ends the task"),
    row("unmount_view", "SIGSYS", "taking the view away, to see what is under it, ends the task"),
    row("clone_mount", "SIGSYS", "cloning a mount ends the task"),
    row("move_mount", "SIGSYS", "moving one ends the task"),
    row("new_file_system", "SIGSYS", "making a file system ends the task"),
    row("writable_mount", "SIGSYS", "making the view writable ends the task"),
    row("quotas", "SIGSYS", "asking for quotas ends the task"),
)
MEMORY = (
    row("memory_file", "EPERM", "no file is made of memory, which no limit would count", "did"),
    row("secret_memory", "EPERM", "nor of secret memory", "did|ENOSYS"),
)
INPUT = (
    row("seal_again", "EPERM", "the seals of shared memory cannot be changed"),
    row("write_input", "EFBIG EPERM EBADF", "an input's memory cannot be written"),
    row("reopen_input", "ENOENT", "nor opened again"),
    row("map_input_for_writing", "EPERM EACCES", "nor mapped to be written"),
    row("punch_input", "EPERM", "no hole is made in it"),
    row("grow_input", "EPERM EINVAL", "nor is it made larger"),
)
ALL = (*READING, *AGAIN, *CHANGING, *DEVICES, *MOUNTS, *MEMORY)


@pytest.fixture(scope="module")
def cage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cage]:
    """One node, neighbour and set of witnesses for all attempts."""
    with open_cage(tmp_path_factory.mktemp("files"), "escape_files") as opened:
        yield opened


@pytest.mark.parametrize("attempt", ALL, ids=name_of)
def test_escape(cage: Cage, attempt: Attempt) -> None:
    """Each attempt is answered as its row says, nothing outside is touched, and the neighbour is served."""
    cage.refuses(attempt)


@pytest.mark.parametrize("attempt", INPUT, ids=name_of)
def test_shared_memory_stays_what_it_is(cage: Cage, attempt: Attempt) -> None:
    """The memory of a large input, which other readers share, is refused to whoever would change it."""
    data = bytes(range(256)) * (LARGE // 256)
    with cage.node.create(dios.SHMEM_BLOB, data=data) as blob:
        said, status = cage.run(attempt.name, inputs=(blob.restrict("read"),))
        assert status.ok, (attempt.claim, said, status)
        assert said[0] in attempt.answers, (attempt.claim, said)
        assert blob.read_bytes() == data
    cage.neighbour.is_answered()
    cage.witness.unharmed()


def test_the_attempts_are_real(cage: Cage) -> None:
    """An ordinary program of the same user gets through with those attempts that can be made outside."""
    check_plainly(cage, ALL)
