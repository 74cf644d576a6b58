"""What a running network function did, told to whoever asks on this machine.

For: ``dios nf stats``. Not for: counting, which each core does for itself (``workers.py``).

A function that runs answers on a Unix socket of its own, for its user alone: who connects gets one document
of JSON, and nothing is read. What a killed one left is taken away by the next one of the same name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar, Final

from dios.errors import Busy, Code, DiosError, InvalidError, NotPermittedError
from dios.limits import SPRAYER_ANSWER_BYTES_MAX

_log: Final = logging.getLogger(__name__)

FOLDER: Final = Path("/run/dios/functions")
TAKES_S: Final = 5.0
Told = dict[str, object]
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_BACKLOG: Final = 8


class NotRunningError(DiosError):
    """No network function of that name runs, or it does not answer."""

    code: ClassVar[Code] = Code.ESRCH


@contextlib.contextmanager
def telling(name: str, tell: Callable[[], Told], folder: Path = FOLDER) -> Iterator[Path]:
    """Answer with what ``tell`` says, on a socket of that name, until the end.

    InvalidError for a name that is none, Busy for one that a function has which runs, NotPermittedError
    for whoever may not write there.
    """
    if not _NAME.fullmatch(name):
        raise InvalidError(
            f"{name!r} cannot be the name of a function: use letters, digits, and _ . @ -; 64 at most"
        )
    path = folder / f"{name}.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _bind(listener, path)
        thread = threading.Thread(target=_answer, args=(listener, tell), name="telling", daemon=True)
        thread.start()
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)
            # This wakes the thread, which closing alone does not.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _bind(listener: socket.socket, path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if path.exists() and not _answers(path):
            path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except PermissionError as error:
        raise NotPermittedError(
            f"{path.parent}: {error.strerror}; network functions are for root to run"
        ) from None
    except OSError as error:
        if path.exists():
            raise Busy(f"a function of the name {path.stem} runs: give this one another (--name)") from None
        raise InvalidError(f"{path}: {error.strerror}") from None


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(TAKES_S)
        try:
            asked.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True


def _answer(listener: socket.socket, tell: Callable[[], Told]) -> None:
    while True:
        try:
            asked, _ = listener.accept()
        except OSError:
            return
        with asked:
            asked.settimeout(TAKES_S)
            try:
                asked.sendall(json.dumps(tell()).encode())
            except OSError as error:
                _log.debug("an answer was not taken", extra={"why": str(error)})


def names(folder: Path = FOLDER) -> list[str]:
    """Functions that run, or were killed, by name. NotPermittedError for whoever may not look."""
    try:
        return sorted(path.stem for path in folder.glob("*.sock"))
    except PermissionError as error:
        raise NotPermittedError(f"{folder}: {error.strerror}") from None


def ask(name: str, folder: Path = FOLDER) -> Told:
    """What the function of that name did until now.

    NotRunningError if it does not run, NotPermittedError if it is another user's.
    """
    data = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(TAKES_S)
        try:
            asked.connect(str(folder / f"{name}.sock"))
            while part := asked.recv(65_536):
                data += part
                if len(data) > SPRAYER_ANSWER_BYTES_MAX:
                    raise InvalidError(f"the function {name} says more than {SPRAYER_ANSWER_BYTES_MAX} bytes")
            found: object = json.loads(data)
        except PermissionError:
            raise NotPermittedError(
                f"the function {name} is another user's (this is {os.geteuid()}): ask as root"
            ) from None
        except (ConnectionRefusedError, FileNotFoundError):
            raise NotRunningError(f"no function of the name {name} runs") from None
        except (OSError, ValueError) as error:
            raise NotRunningError(f"the function {name} does not answer: {error}") from None
    if not isinstance(found, dict):
        raise InvalidError(f"the function {name} says something else than what it did")
    return {str(key): value for key, value in found.items()}
