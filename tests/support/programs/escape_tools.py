"""Inside the task: what every hostile program of the escape suite is made of.

Not for: the attempts themselves (``escape_files`` and its neighbours), nor for judging them (``escape``). The
same programs run as ordinary ones too, to show that an attempt works where nothing is in its way.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import ModuleType
from typing import cast

from dios.errors import DiosError
from dios.host.confinement import linux_calls

LOOT: dict[str, str | int] = {}
"""What the author of the program found out beforehand: paths, ports and process numbers outside."""

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *([ctypes.c_int] * 3), ctypes.c_long]


class NothingFoundError(Exception):
    """The attempt was answered, with nothing."""


def text(key: str) -> str:
    """Loot that is text."""
    return str(LOOT[key])


def number(key: str) -> int:
    """Loot that is a number."""
    return int(LOOT[key])


def raw(name: str, *arguments: int | bytes | None) -> int:
    """A system call by name."""
    return linux_calls.syscall(name, *arguments)


def numbered(x86_64: int, aarch64: int, *arguments: int) -> int:
    """A system call by its number on either architecture; ENOSYS where it is not there."""
    which = {"x86_64": x86_64, "aarch64": aarch64}.get(os.uname().machine, -1)
    if which < 0:
        raise OSError(errno.ENOSYS, "no such call here")
    return checked(libc.syscall(ctypes.c_long(which), *(ctypes.c_long(argument) for argument in arguments)))


def checked(result: int | None) -> int:
    """The result of a C function, or its errno as ``OSError``."""
    if result is None or result in {-1, 2**64 - 1}:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def outcome(attempt: Callable[[], object]) -> str:
    """Make an attempt: ``did:…`` with what came of it, or the word for who refused it."""
    try:
        return f"did:{attempt()}"
    except DiosError as error:
        return error.code.name
    except NothingFoundError:
        return "nothing"
    except socket.gaierror as error:
        return f"gaierror:{error.errno}"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    except (MemoryError, RuntimeError) as error:
        return type(error).__name__


def _tell(answer: str) -> None:
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


def attempt_of(program: ModuleType, name: str) -> Callable[[], object]:
    """An attempt of a program: a row of its table, or the function ``_try_NAME``."""
    short: dict[str, Callable[[], object]] = getattr(program, "SHORT_ATTEMPTS", {})
    return short.get(name) or cast("Callable[[], object]", getattr(program, f"_try_{name}"))


def run(module: str) -> None:
    """Make the attempts named on the command line, one answer a line; the first argument is the loot."""
    LOOT.update(json.loads(sys.argv[1]))
    for name in sys.argv[2:]:
        _tell(outcome(attempt_of(sys.modules[module], name)))


def apart(module: str) -> None:
    """The same for an ordinary program: each attempt in a process of its own, which it may cost its life."""
    for name in sys.argv[2:]:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            # Whatever it holds goes with it: nothing of an attempt outlives it.
            signal.alarm(10)
            sys.argv[2:] = [name]
            run(module)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status < 0:
            _tell(signal.Signals(-status).name)
