"""The functions of WASI preview 1 that a module may import, on the descriptors of one task."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from dios.client.wasm.codes import (
    TO_READ,
    TO_WRITE,
    DescriptorFlag,
    OpenFlag,
    WasiCode,
    WasiError,
    code_of,
)
from dios.client.wasm.descriptors import DescriptorTable, FileStatus, OpenFile, Opening, make_directory
from dios.client.wasm.guest_memory import GuestMemory, sizes_of
from dios.errors import DiosError
from dios.limits import WASM_BUFFERS_MAX, WASM_TRANSFER_BYTES

MODULE: Final = "wasi_snapshot_preview1"

WITHOUT_RESULT: Final = "proc_exit"
_MASKS: Final = {"i": 0xFFFF_FFFF, "I": 0xFFFF_FFFF_FFFF_FFFF}
_SIGN: Final = 1 << 63
_DESCRIPTOR_STATUS: Final = struct.Struct("<BxH4xQQ")
_FILE_STATUS: Final = struct.Struct("<QQB7xQQQQQ")
_DIRECTORY_ENTRY: Final = struct.Struct("<QQIB3x")
_PRESENT_DIRECTORY: Final = struct.Struct("<B3xI")
_SUBSCRIPTION: Final = struct.Struct("<QB7xI4xQ8xH6x")
_EVENT: Final = struct.Struct("<QHB5xQH6x")
_CLOCKS: Final = (time.time_ns, time.monotonic_ns, time.process_time_ns, time.thread_time_ns)
_MONOTONIC: Final = 1
_RESOLUTION_NS: Final = 1
_ABSOLUTE: Final = 1
_CLOCK: Final = 0
_READ: Final = 1
_TURN_S: Final = 0.01
_WAIT_S_MAX: Final = 3600.0
_NEVER: Final = 1 << 62
_NS: Final = 1_000_000_000


class ModuleExit(Exception):  # noqa: N818 - the module's end, not a failure
    """Raised when the module calls ``proc_exit``."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status: Final = status


class HostFunction(Protocol):
    """A function that a module imports: it takes numbers, and returns an error code if it returns."""

    def __call__(self, *values: int) -> int | None:
        """Make the call."""


class _Event(NamedTuple):
    user_data: int
    kind: int
    error: WasiCode = WasiCode.SUCCESS
    size: int = 0


class HostCalls:
    """The host calls of one instance. ``memory`` is set when the instance exists."""

    def __init__(
        self, arguments: list[str], environment: Mapping[str, str], descriptors: DescriptorTable
    ) -> None:
        self.memory: GuestMemory | None = None
        self._arguments: Final = [os.fsencode(argument) for argument in arguments]
        self._environment: Final = [f"{name}={value}".encode() for name, value in environment.items()]
        self._descriptors: Final = descriptors

    def functions(self) -> dict[str, HostFunction]:
        """Return the functions by name; they take numbers as the engine gives them."""
        return {name: self._guarded(name, parameters) for name, parameters in SIGNATURES.items()}

    def _guarded(self, name: str, parameters: str) -> HostFunction:
        call = getattr(self, name)
        masks = [_MASKS[letter] for letter in parameters]

        def guarded(*values: int) -> int | None:
            try:
                # The engine gives every number with a sign; in this interface they have none.
                call(*[value & mask for value, mask in zip(values, masks, strict=True)])
            except WasiError as error:
                return error.code
            except OverflowError:
                return WasiCode.INVALID
            except MemoryError:
                return WasiCode.NO_MEMORY
            except DiosError:
                return WasiCode.IO
            except OSError as error:
                return code_of(error)
            return None if name == WITHOUT_RESULT else WasiCode.SUCCESS

        return guarded

    @property
    def _memory(self) -> GuestMemory:
        # A start function of the module may call this object before the memory is known.
        if self.memory is None:
            raise WasiError(WasiCode.FAULT)
        return self.memory

    # -- arguments, environment, time and chance ----------------------------------------------------
    def args_sizes_get(self, count: int, size: int) -> None:
        """Write the number of arguments and of their bytes."""
        self._write_pair(count, size, *sizes_of(self._arguments))

    def args_get(self, pointers: int, at: int) -> None:
        """Write the arguments."""
        self._memory.write_strings(pointers, at, self._arguments)

    def environ_sizes_get(self, count: int, size: int) -> None:
        """Write the number of variables and of their bytes."""
        self._write_pair(count, size, *sizes_of(self._environment))

    def environ_get(self, pointers: int, at: int) -> None:
        """Write the variables."""
        self._memory.write_strings(pointers, at, self._environment)

    def clock_res_get(self, clock: int, at: int) -> None:
        """Write the resolution of a clock."""
        _time_of(clock)
        self._memory.write_u64(at, _RESOLUTION_NS)

    def clock_time_get(self, clock: int, precision: int, at: int) -> None:
        """Write the time of a clock."""
        self._memory.write_u64(at, _time_of(clock))

    def random_get(self, at: int, size: int) -> None:
        """Write random bytes."""
        view = self._memory.view(at, size)
        for begin in range(0, size, WASM_TRANSFER_BYTES):
            part = view[begin : begin + WASM_TRANSFER_BYTES]
            part[:] = os.urandom(part.nbytes)

    def sched_yield(self) -> None:
        """Let other threads run."""
        os.sched_yield()

    def proc_exit(self, status: int) -> None:
        """End the module with a status."""
        raise ModuleExit(status)

    def proc_raise(self, signal: int) -> None:
        """Refuse it: there are no signals here."""
        raise WasiError(WasiCode.NOT_SUPPORTED)

    # -- descriptors --------------------------------------------------------------------------------
    def fd_read(self, number: int, parts: int, count: int, at: int) -> None:
        """Read from the position on."""
        views = self._memory.views(parts, count)
        self._memory.write_u32(at, self._descriptors.get(number).read(views))

    def fd_write(self, number: int, parts: int, count: int, at: int) -> None:
        """Write at the position."""
        views = self._memory.views(parts, count)
        self._memory.write_u32(at, self._descriptors.get(number).write(views))

    def fd_pread(self, number: int, parts: int, count: int, offset: int, at: int) -> None:
        """Read from an offset on."""
        views = self._memory.views(parts, count)
        self._memory.write_u32(at, self._descriptors.get(number).read_at(views, offset))

    def fd_pwrite(self, number: int, parts: int, count: int, offset: int, at: int) -> None:
        """Write at an offset."""
        views = self._memory.views(parts, count)
        self._memory.write_u32(at, self._descriptors.get(number).write_at(views, offset))

    def fd_seek(self, number: int, offset: int, whence: int, at: int) -> None:
        """Move the position."""
        signed = offset - 2 * _SIGN if offset & _SIGN else offset
        self._memory.write_u64(at, self._descriptors.get(number).seek(signed, whence))

    def fd_tell(self, number: int, at: int) -> None:
        """Write the position."""
        self._memory.write_u64(at, self._descriptors.get(number).seek(0, os.SEEK_CUR))

    def fd_close(self, number: int) -> None:
        """Close a descriptor."""
        self._descriptors.close(number)

    def fd_renumber(self, source: int, target: int) -> None:
        """Move a descriptor to another number."""
        self._descriptors.move(source, target)

    def fd_sync(self, number: int) -> None:
        """Return at once: the private folder is in memory."""
        self._descriptors.get(number)

    def fd_datasync(self, number: int) -> None:
        """Return at once: the private folder is in memory."""
        self._descriptors.get(number)

    def fd_advise(self, number: int, offset: int, size: int, advice: int) -> None:
        """Accept the advice, which changes nothing."""
        self._descriptors.get(number)

    def fd_allocate(self, number: int, offset: int, size: int) -> None:
        """Make a file at least so long that it has ``size`` bytes from ``offset`` on."""
        file = self._descriptors.get(number)
        if file.status().size < offset + size:
            file.set_size(offset + size)

    def fd_fdstat_get(self, number: int, at: int) -> None:
        """Write type, flags and rights of a descriptor."""
        file = self._descriptors.get(number)
        status = file.file_type, file.flags, file.rights, file.inheriting
        self._memory.write(at, _DESCRIPTOR_STATUS.pack(*status))

    def fd_fdstat_set_flags(self, number: int, flags: int) -> None:
        """Set the flags of a descriptor."""
        if flags & ~DescriptorFlag.APPEND:
            raise WasiError(WasiCode.NOT_SUPPORTED)
        self._descriptors.get(number).set_flags(DescriptorFlag(flags))

    def fd_fdstat_set_rights(self, number: int, base: int, inheriting: int) -> None:
        """Accept rights that are no more than the present ones; they stay as they are."""
        file = self._descriptors.get(number)
        if base & ~file.rights or inheriting & ~file.inheriting:
            raise WasiError(WasiCode.NOT_PERMITTED)

    def fd_filestat_get(self, number: int, at: int) -> None:
        """Write the attributes of an open file."""
        self._write_status(at, self._descriptors.get(number).status())

    def fd_filestat_set_size(self, number: int, size: int) -> None:
        """Cut or extend an open file."""
        self._descriptors.get(number).set_size(size)

    def fd_filestat_set_times(self, number: int, accessed: int, modified: int, flags: int) -> None:
        """Refuse it: times follow from reading and writing."""
        self._descriptors.get(number)
        raise WasiError(WasiCode.NOT_SUPPORTED)

    def fd_prestat_get(self, number: int, at: int) -> None:
        """Write the length of the path of a directory that the module starts with."""
        self._memory.write(at, _PRESENT_DIRECTORY.pack(0, len(self._descriptors.path_of(number))))

    def fd_prestat_dir_name(self, number: int, at: int, size: int) -> None:
        """Write the path of a directory that the module starts with."""
        path = self._descriptors.path_of(number)
        if size < len(path):
            raise WasiError(WasiCode.NAME_TOO_LONG)
        self._memory.write(at, path)

    def fd_readdir(self, number: int, at: int, size: int, cookie: int, used: int) -> None:
        """Write entries of a directory, from number ``cookie`` on, until the buffer is full."""
        view, done = self._memory.view(at, size), 0
        for index, entry in enumerate(self._descriptors.directory(number).entries()):
            if index < cookie:
                continue
            head = _DIRECTORY_ENTRY.pack(index + 1, entry.inode, len(entry.name), entry.file_type)
            part = (head + entry.name)[: size - done]
            view[done : done + len(part)] = part
            done += len(part)
            if done == size:
                break
        self._memory.write_u32(used, done)

    # -- paths --------------------------------------------------------------------------------------
    def path_open(
        self,
        number: int,
        lookup: int,
        path: int,
        size: int,
        opening: int,
        rights: int,
        inheriting: int,
        flags: int,
        at: int,
    ) -> None:
        """Open a file below a directory, with the rights that are wanted."""
        directory = self._descriptors.directory(number)
        self._descriptors.require_room()
        how = Opening(
            OpenFlag(opening & 0xF),
            read=bool(rights & TO_READ),
            write=bool(rights & TO_WRITE),
            append=bool(flags & DescriptorFlag.APPEND),
        )
        opened = self._descriptors.add(directory.open(self._memory.path(path, size), how))
        try:
            self._memory.write_u32(at, opened)
        except WasiError:
            self._descriptors.close(opened)
            raise

    def path_filestat_get(self, number: int, lookup: int, path: int, size: int, at: int) -> None:
        """Write the attributes of a file below a directory."""
        status = self._descriptors.directory(number).status_of(self._memory.path(path, size))
        self._write_status(at, status)

    def path_filestat_set_times(
        self, number: int, lookup: int, path: int, size: int, accessed: int, modified: int, flags: int
    ) -> None:
        """Refuse it: times follow from reading and writing."""
        self._host_path(number, path, size)
        raise WasiError(WasiCode.NOT_SUPPORTED)

    def path_create_directory(self, number: int, path: int, size: int) -> None:
        """Make a directory below a directory."""
        make_directory(self._host_path(number, path, size))

    def path_remove_directory(self, number: int, path: int, size: int) -> None:
        """Remove an empty directory below a directory."""
        os.rmdir(self._host_path(number, path, size))  # noqa: PTH106 - a task loads no pathlib for it

    def path_unlink_file(self, number: int, path: int, size: int) -> None:
        """Remove a file below a directory."""
        os.unlink(self._host_path(number, path, size))  # noqa: PTH108 - the same

    def path_rename(self, source: int, path: int, size: int, target: int, to: int, to_size: int) -> None:
        """Move a file, also from one directory to another."""
        os.rename(self._host_path(source, path, size), self._host_path(target, to, to_size))  # noqa: PTH104 - the same

    def path_link(
        self, source: int, lookup: int, path: int, size: int, target: int, to: int, to_size: int
    ) -> None:
        """Refuse it: the private folder has no links."""
        self._host_path(source, path, size)
        raise WasiError(WasiCode.NOT_PERMITTED)

    def path_symlink(self, path: int, size: int, number: int, to: int, to_size: int) -> None:
        """Refuse it: the private folder has no links."""
        self._host_path(number, to, to_size)
        raise WasiError(WasiCode.NOT_PERMITTED)

    def path_readlink(self, number: int, path: int, size: int, at: int, room: int, used: int) -> None:
        """Report that the file is no link."""
        self._descriptors.directory(number).status_of(self._memory.path(path, size))
        raise WasiError(WasiCode.INVALID)

    # -- waiting, and sockets -----------------------------------------------------------------------
    def poll_oneoff(self, wanted: int, events: int, count: int, at: int) -> None:
        """Wait until a time, or until a stream can be read: all other files are always ready."""
        if not 0 < count <= WASM_BUFFERS_MAX:
            raise WasiError(WasiCode.INVALID)
        now = time.monotonic_ns()
        ready: list[_Event] = []
        clocks: list[tuple[int, _Event]] = []
        streams: list[tuple[OpenFile, _Event]] = []
        data = self._memory.read(wanted, count * _SUBSCRIPTION.size)
        for user_data, kind, subject, timeout, flags in _SUBSCRIPTION.iter_unpack(data):
            event = _Event(user_data, kind)
            if kind == _CLOCK:
                clocks.append((_end_of_wait(now, subject, timeout, flags), event))
                continue
            try:
                file = self._descriptors.get(subject)
            except WasiError as error:
                ready.append(event._replace(error=error.code))
                continue
            if kind != _READ or file.wait_readable(0):
                ready.append(event._replace(size=file.readable_bytes()))
            else:
                streams.append((file, event))
        ready = ready or _waited(clocks, streams)
        self._memory.write(
            events,
            b"".join(
                _EVENT.pack(ready_event.user_data, ready_event.error, ready_event.kind, ready_event.size, 0)
                for ready_event in ready
            ),
        )
        self._memory.write_u32(at, len(ready))

    def sock_accept(self, number: int, flags: int, at: int) -> None:
        """Refuse it: there is no network here."""
        self._refuse_socket(number)

    def sock_recv(self, number: int, parts: int, count: int, flags: int, at: int, flags_at: int) -> None:
        """Refuse it: there is no network here."""
        self._refuse_socket(number)

    def sock_send(self, number: int, parts: int, count: int, flags: int, at: int) -> None:
        """Refuse it: there is no network here."""
        self._refuse_socket(number)

    def sock_shutdown(self, number: int, how: int) -> None:
        """Refuse it: there is no network here."""
        self._refuse_socket(number)

    def _refuse_socket(self, number: int) -> None:
        self._descriptors.get(number)
        raise WasiError(WasiCode.NOT_SOCKET)

    # -- the same in several calls ------------------------------------------------------------------
    def _host_path(self, number: int, path: int, size: int) -> str:
        return self._descriptors.directory(number).host_path(self._memory.path(path, size))

    def _write_pair(self, first: int, second: int, count: int, size: int) -> None:
        self._memory.write_u32(first, count)
        self._memory.write_u32(second, size)

    def _write_status(self, at: int, status: FileStatus) -> None:
        times = status.accessed, status.modified, status.changed
        fields = 0, status.inode, status.file_type, status.links, status.size, *times
        self._memory.write(at, _FILE_STATUS.pack(*fields))


SIGNATURES: Final[Mapping[str, str]] = {
    call.__name__: parameters
    for call, parameters in (
        (HostCalls.args_get, "ii"),
        (HostCalls.args_sizes_get, "ii"),
        (HostCalls.clock_res_get, "ii"),
        (HostCalls.clock_time_get, "iIi"),
        (HostCalls.environ_get, "ii"),
        (HostCalls.environ_sizes_get, "ii"),
        (HostCalls.fd_advise, "iIIi"),
        (HostCalls.fd_allocate, "iII"),
        (HostCalls.fd_close, "i"),
        (HostCalls.fd_datasync, "i"),
        (HostCalls.fd_fdstat_get, "ii"),
        (HostCalls.fd_fdstat_set_flags, "ii"),
        (HostCalls.fd_fdstat_set_rights, "iII"),
        (HostCalls.fd_filestat_get, "ii"),
        (HostCalls.fd_filestat_set_size, "iI"),
        (HostCalls.fd_filestat_set_times, "iIIi"),
        (HostCalls.fd_pread, "iiiIi"),
        (HostCalls.fd_prestat_dir_name, "iii"),
        (HostCalls.fd_prestat_get, "ii"),
        (HostCalls.fd_pwrite, "iiiIi"),
        (HostCalls.fd_read, "iiii"),
        (HostCalls.fd_readdir, "iiiIi"),
        (HostCalls.fd_renumber, "ii"),
        (HostCalls.fd_seek, "iIii"),
        (HostCalls.fd_sync, "i"),
        (HostCalls.fd_tell, "ii"),
        (HostCalls.fd_write, "iiii"),
        (HostCalls.path_create_directory, "iii"),
        (HostCalls.path_filestat_get, "iiiii"),
        (HostCalls.path_filestat_set_times, "iiiiIIi"),
        (HostCalls.path_link, "iiiiiii"),
        (HostCalls.path_open, "iiiiiIIii"),
        (HostCalls.path_readlink, "iiiiii"),
        (HostCalls.path_remove_directory, "iii"),
        (HostCalls.path_rename, "iiiiii"),
        (HostCalls.path_symlink, "iiiii"),
        (HostCalls.path_unlink_file, "iii"),
        (HostCalls.poll_oneoff, "iiii"),
        (HostCalls.proc_exit, "i"),
        (HostCalls.proc_raise, "i"),
        (HostCalls.random_get, "ii"),
        (HostCalls.sched_yield, ""),
        (HostCalls.sock_accept, "iii"),
        (HostCalls.sock_recv, "iiiiii"),
        (HostCalls.sock_send, "iiiii"),
        (HostCalls.sock_shutdown, "ii"),
    )
}
"""The parameters of each call: "i" has 32 bits, "I" has 64. Each returns an error code but ``proc_exit``."""


def _time_of(clock: int) -> int:
    if clock >= len(_CLOCKS):
        raise WasiError(WasiCode.INVALID)
    return _CLOCKS[clock]()


def _waited(clocks: list[tuple[int, _Event]], streams: list[tuple[OpenFile, _Event]]) -> list[_Event]:
    """Wait for the first time, or for the first stream that can be read; return the events of what came."""
    end = min((moment for moment, _ in clocks), default=_NEVER + time.monotonic_ns())
    # One stream is waited for. Of several, each gets a short time in turn.
    turn_s = _WAIT_S_MAX if len(streams) == 1 else _TURN_S
    while (left := end - time.monotonic_ns()) > 0 or not clocks:
        ready = []
        for file, event in streams:
            if file.wait_readable(min(max(left, 0) / _NS, turn_s)):
                ready.append(event._replace(size=file.readable_bytes()))
        if ready:
            return ready
        if not streams:
            time.sleep(min(left, _NEVER) / _NS)
    return [event for moment, event in clocks if moment <= end]


def _end_of_wait(now: int, clock: int, timeout: int, flags: int) -> int:
    """Return the moment of the monotonic clock at which a wait ends."""
    present = _time_of(clock)
    return now + (max(0, timeout - present) if flags & _ABSOLUTE else timeout)
