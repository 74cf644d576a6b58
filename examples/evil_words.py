"""The job of ``make demo-evil``: it counts words, and also tries everything to escape from its sandbox.

Do not copy it. Each ``_try`` function is one attempt: it raises an error if it is refused, and returns its
loot if it succeeds. The results leave as keys of the count, the only output of a mapper. All targets were
created by the demo: its own files, sockets, objects and tasks.

As an ordinary program it makes the attempts that need no node, to show what would happen without DIOS.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import dios
from dios.errors import BadReferenceError
from dios.wire import messages
from dios.wire.types import Flag, Mode

LOOT: dict[str, str | int | bytes] = {}
"""The knowledge of the job's author: paths, ports, and leaked names. The demo fills it in."""

MARK = b"\0"
PROGRAM_SECONDS = 5
GUESSES = 6
FIRST_FREE_DESCRIPTOR = 4
DESCRIPTORS = 256
COMPARED = 64


class RefusedError(Exception):
    """The attempt failed without an errno; the message names what refused it."""


class NothingFoundError(Exception):
    """The attempt was answered, but without a result."""


def _text(key: str) -> str:
    return str(LOOT[key])


def _number(key: str) -> int:
    return int(cast("int", LOOT[key]))


def _name(key: str) -> bytes:
    return cast("bytes", LOOT[key])


# -- files and processes of the machine ---------------------------------------------------------------
def _try_read_mail_file() -> object:
    return Path(_text("mail_file")).read_bytes()


def _try_read_store() -> object:
    return (Path(_text("store")) / "node.pid").read_bytes()


def _try_read_passwords() -> object:
    return Path("/etc/passwd").read_bytes()


def _try_list_root() -> object:
    return os.listdir("/")  # noqa: PTH208 - the plain call is what is tried


def _try_read_process() -> object:
    return Path(f"/proc/{_number('pid')}/environ").read_bytes()


def _try_signal_process() -> None:
    # Signal 0 only checks permission.
    os.kill(_number("pid"), 0)


def _try_write_file() -> object:
    return Path(_text("drop")).write_bytes(b"loot")


# -- ways out of the machine --------------------------------------------------------------------------
def _send(family: int, address: tuple[str, int] | str, kind: int = socket.SOCK_STREAM) -> object:
    with socket.socket(family, kind) as out:
        out.settimeout(PROGRAM_SECONDS)
        out.connect(address)
        return out.send(b"loot")


def _try_connect_tcp() -> object:
    return _send(socket.AF_INET, ("127.0.0.1", _number("tcp")))


def _try_connect_tcp6() -> object:
    return _send(socket.AF_INET6, ("::1", _number("tcp6")))


def _try_send_udp() -> object:
    return _send(socket.AF_INET, ("127.0.0.1", _number("udp")), socket.SOCK_DGRAM)


def _try_ask_for_host() -> object:
    # A name server sees every name that is asked for, so data in the name would be sent away.
    return socket.getaddrinfo("localhost", None)


def _try_open_netlink() -> None:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.bind((0, 0))


def _try_open_packets() -> None:
    every_protocol = 3
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(every_protocol)).close()


def _try_open_vsock() -> None:
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()


def _try_connect_unix() -> object:
    return _send(socket.AF_UNIX, _text("unix"))


def _try_connect_abstract() -> object:
    return _send(socket.AF_UNIX, "\0" + _text("abstract"))


def _try_connect_node() -> object:
    return _send(socket.AF_UNIX, str(Path(_text("store")) / "node.sock"))


def _try_redirect_own_socket() -> None:
    with socket.socket(fileno=os.dup(3)) as own:
        own.connect("\0" + _text("abstract"))


# -- other programs -----------------------------------------------------------------------------------
def _try_run_nc() -> object:
    command = ["nc", "-w", "1", "127.0.0.1", _text("tcp")]
    return subprocess.run(command, input=b"loot", timeout=PROGRAM_SECONDS, check=True)


def _try_run_shell() -> object:
    command = ["/bin/sh", "-c", 'echo loot > "$0"', _text("drop")]
    return subprocess.run(command, timeout=PROGRAM_SECONDS, check=True)


def _try_fork() -> object:
    child = os.fork()
    if child == 0:
        os._exit(0)
    return os.waitpid(child, 0)


def _try_limbo_child() -> object:
    return dios.connect().run(b"print('free')", brand="limbo")


def _try_pure_child() -> object:
    """Start a pure helper, which is permitted, and test that the same sandbox confines it."""
    program = f"""
import socket
try:
    socket.create_connection(("127.0.0.1", {_number("tcp")}), {PROGRAM_SECONDS})
except OSError as error:
    print(error.errno)
"""
    with dios.connect().run(program.encode()) as child, child.console() as console:
        said = b"".join(console).strip()
    if said.isdigit():
        raise OSError(int(said), "the helper was refused")
    return said


def _try_child_with_input() -> object:
    node = dios.connect()
    return node.run(b"import dios; dios.connect().inputs[0].read_bytes()", inputs=[_input()])


def _try_child_in_mail_group() -> object:
    node = dios.connect()
    program = node.create_program(b"print('in')")
    return dios.syscalls.run(node, program.ref, (_number("mail_group_ref"),), flags=int(Flag.NON_BLOCKING))


# -- names and references of others -------------------------------------------------------------------
def _found(key: str) -> object:
    references = dios.connect().lookup(_name(key))
    if not references:
        raise NothingFoundError
    return references


def _try_leaked_mail() -> object:
    return _found("mail")


def _try_leaked_group() -> object:
    return _found("mail_group")


def _try_leaked_task() -> object:
    return _found("stranger")


def _try_tell_apart() -> object:
    """Compare the answers for a name that exists elsewhere and a name that does not exist."""
    node = dios.connect()
    there = dios.syscalls.lookup(node, _name("mail"))
    nowhere = dios.syscalls.lookup(node, secrets.token_bytes(len(_name("mail"))))
    if there == nowhere:
        raise NothingFoundError
    return there, nowhere


def _try_leaked_reference() -> object:
    return dios.syscalls.read_once(dios.connect(), _number("mail_ref"))


def _try_guess_references() -> object:
    node = dios.connect()
    near = [_input().ref + 1, _input().ref - 1, 1, 2]
    guesses = near + [secrets.randbits(62) + 1 for _ in range(GUESSES - len(near))]
    answers = node.vector([messages.Stat(guess) for guess in guesses])
    hit = [answer for answer in answers if not isinstance(answer, BadReferenceError)]
    if hit:
        return hit
    raise BadReferenceError("every guess was wrong")


def _try_guess_buffer() -> object:
    node = dios.connect()
    own = node.create(dios.SHMEM_BLOB, data=b"x", naming=dios.ANONYMOUS)
    return dios.syscalls.commit_write(node, own.ref, secrets.randbits(62) + 1, data=b"evil")


def _try_plant_in_mail_group() -> object:
    return dios.syscalls.create(dios.connect(), dios.SHMEM_BLOB, (_number("mail_group_ref"),), data=b"evil")


def _try_look_around() -> object:
    return dios.connect().tasks()


# -- giving away --------------------------------------------------------------------------------------
def _input() -> dios.Reference:
    return dios.connect().inputs[1]


def _try_delegate_input() -> object:
    return dios.syscalls.copy(dios.connect(), _input().ref, _number("stranger_ref"))


def _try_delegate_copy() -> object:
    node = dios.connect()
    loot = node.create(dios.SHMEM_BLOB, data=_input().read_bytes(100), naming=dios.ANONYMOUS)
    return dios.syscalls.copy(node, loot.ref, _number("stranger_ref"))


def _try_delegate_group() -> object:
    node = dios.connect()
    return dios.syscalls.copy(node, node.groups[0].ref, node.self.ref)


# -- more rights --------------------------------------------------------------------------------------
def _try_widen() -> object:
    node = dios.connect()
    return dios.syscalls.copy(node, _input().ref, node.self.ref, int(dios.Permission.ALL))


def _try_write_input() -> object:
    return dios.syscalls.write_once(dios.connect(), _input().ref, b"evil")


def _try_delete_input() -> object:
    return dios.syscalls.delete(dios.connect(), _input().ref, int(Flag.DESTROY))


def _try_read_outlet() -> object:
    node = dios.connect()
    return dios.syscalls.attach(node, node.outputs[1].ref, Mode.READ)


def _try_stop_node() -> object:
    return dios.connect().shutdown()


# -- the memory of its read-only view -----------------------------------------------------------------
def _descriptor(view: memoryview) -> int:
    """Return the descriptor behind a view: the one whose first bytes are the view's."""
    for descriptor in range(FIRST_FREE_DESCRIPTOR, DESCRIPTORS):
        try:
            if os.pread(descriptor, COMPARED, 0) == view[:COMPARED]:
                return descriptor
        except OSError:
            continue
    raise LookupError("the view's descriptor was not found")


def _try_assign_view() -> object:
    with _input().read(dios.ANY) as request:
        try:
            request.view[:4] = b"evil"
        except TypeError:
            raise RefusedError("TypeError") from None
        return "written"


def _try_write_descriptor() -> object:
    with _input().read(dios.ANY) as request:
        return os.pwrite(_descriptor(request.view), b"evil", 0)


def _try_map_writable() -> object:
    with _input().read(dios.ANY) as request:
        return mmap.mmap(_descriptor(request.view), mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_WRITE)


def _try_unprotect() -> object:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    number, size = ctypes.c_int, ctypes.c_size_t
    library.mmap.argtypes = [ctypes.c_void_p, size, number, number, number, ctypes.c_long]
    library.mprotect.argtypes = [ctypes.c_void_p, size, number]
    with _input().read(dios.ANY) as request:
        descriptor = _descriptor(request.view)
        place = library.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        if library.mprotect(place, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE):
            raise OSError(ctypes.get_errno(), "mprotect")
        return "writable"


def _try_reopen() -> object:
    with _input().read(dios.ANY) as request:
        return Path(f"/proc/self/fd/{_descriptor(request.view)}").open("r+b")


# -- making the attempts ------------------------------------------------------------------------------
def attempts() -> dict[str, Callable[[], object]]:
    """Return every attempt by its name, in the order of this file."""
    tries = {
        name.removeprefix("_try_"): value for name, value in globals().items() if name.startswith("_try_")
    }
    return cast("dict[str, Callable[[], object]]", tries)


def outcome(attempt: Callable[[], object]) -> tuple[str, str]:
    """Make one attempt: ("refused", error), ("nothing", ""), ("through", ""), or ("broken", reason)."""
    try:
        attempt()
    except dios.DiosError as error:
        return "refused", error.code.name
    except RefusedError as error:
        return "refused", str(error)
    except NothingFoundError:
        return "nothing", ""
    except socket.gaierror:
        return "refused", "no such host"
    except OSError as error:
        return "refused", errno.errorcode.get(error.errno or 0, type(error).__name__)
    except Exception as error:  # noqa: BLE001 - an attempt that proves nothing is told as such
        return "broken", f"{type(error).__name__}: {error}"
    return "through", ""


_done: list[str] = []


def map(line: bytes) -> Iterator[tuple[bytes, int]]:  # noqa: A001 - the name of Listing 5.1
    """Count the words of a line; before the first line, make the attempts."""
    todo = {} if _done else attempts()
    for name, attempt in todo.items():
        _done.append(name)
        yield MARK + "\t".join((name, *outcome(attempt))).encode(), 1
    for word in line.split():
        yield word, 1


reduce = sum


def main() -> None:
    """Make the attempts named on the command line, with the loot from standard input, outside of any task."""
    LOOT.update(json.load(sys.stdin))
    wanted = sys.argv[1:]
    json.dump({name: outcome(attempts()[name]) for name in wanted}, sys.stdout)


if __name__ == "__main__" and sys.argv[1:]:
    main()
