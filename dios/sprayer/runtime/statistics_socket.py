"""The statistics socket of a running network function, for ``dios nf stats``.

A running function answers on its own Unix socket, which only its user can open: each connection receives one
JSON document, and nothing is read from it. A socket that a killed function left is removed by the next
function with the same name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Final

from dios.errors import Busy, Code, DiosError, InvalidError, NotPermittedError
from dios.limits import SPRAYER_ANSWER_BYTES_MAX
from dios.trusted_files import require_trusted

_log: Final = logging.getLogger(__name__)

FOLDER: Final = Path("/run/dios-functions")
"""Not below ``/run/dios``, which belongs to the user of a node that runs as a service."""
TIMEOUT_S: Final = 5.0
JsonObject = Mapping[str, object]
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}")
_BACKLOG: Final = 8


class NotRunningError(DiosError):
    """No network function of that name runs, or it does not answer."""

    code: ClassVar[Code] = Code.ESRCH


@contextlib.contextmanager
def serve_statistics(
    name: str, get_statistics: Callable[[], JsonObject], folder: Path = FOLDER
) -> Iterator[Path]:
    """Serve the result of ``get_statistics`` on a socket of that name until the end of the context.

    Raises InvalidError for an invalid name, Busy if a running function has the name, and NotPermittedError if
    the user may not write to the folder.
    """
    if not _NAME.fullmatch(name):
        raise InvalidError(f"{name!r} is not a valid name: use at most 64 letters, digits, and _ . @ -")
    path = folder / f"{name}.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        _bind(listener, path)
        thread = threading.Thread(
            target=_answer, args=(listener, get_statistics), name="statistics", daemon=True
        )
        thread.start()
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)
            # Closing alone does not wake the thread.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _bind(listener: socket.socket, path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        require_trusted(path.parent, "the folder of network functions")
        if path.exists() and not _answers(path):
            path.unlink(missing_ok=True)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(_BACKLOG)
    except PermissionError as error:
        raise NotPermittedError(
            f"cannot create a socket in {path.parent}: {error.strerror}. Run network functions as root."
        ) from None
    except OSError as error:
        if path.exists():
            raise Busy(f"a function named {path.stem} is running; choose another name with --name") from None
        raise InvalidError(f"{path}: {error.strerror}") from None


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True


def _answer(listener: socket.socket, get_statistics: Callable[[], JsonObject]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(TIMEOUT_S)
            try:
                connection.sendall(json.dumps(get_statistics()).encode())
            except OSError as error:
                _log.debug("a reader of statistics went away", extra={"why": str(error)})


def names(folder: Path = FOLDER) -> list[str]:
    """Return the names of functions that run or were killed. Raises NotPermittedError."""
    try:
        return sorted(path.stem for path in folder.glob("*.sock"))
    except PermissionError as error:
        raise NotPermittedError(f"{folder}: {error.strerror}") from None


def read_statistics(name: str, folder: Path = FOLDER) -> JsonObject:
    """Return the current statistics of the function of that name.

    Raises NotRunningError if it does not run, NotPermittedError if it belongs to another user.
    """
    data = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            require_trusted(folder, "the folder of network functions")
            connection.connect(str(folder / f"{name}.sock"))
            while part := connection.recv(65_536):
                data += part
                if len(data) > SPRAYER_ANSWER_BYTES_MAX:
                    raise InvalidError(f"the function {name} sent more than {SPRAYER_ANSWER_BYTES_MAX} bytes")
            answer: object = json.loads(data)
        except PermissionError:
            raise NotPermittedError(
                f"the function {name} belongs to another user (this is uid {os.geteuid()}): ask as root"
            ) from None
        except (ConnectionRefusedError, FileNotFoundError):
            raise NotRunningError(f"no function named {name} is running") from None
        except (OSError, ValueError) as error:
            raise NotRunningError(f"the function {name} does not answer: {error}") from None
    if not isinstance(answer, dict):
        raise InvalidError(f"the function {name} sent no statistics")
    return {str(key): value for key, value in answer.items()}
