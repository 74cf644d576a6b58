"""Limits a network interface to the rate of its link, so that bytes wait in the daemon and not in the link.

For a node that root started with the setting ``shape``. All traffic of the interface is limited alike, also
that of other programs; ``dios.host.bandwidth.guarantees`` divides the link among principals and tasks.

The system's program ``tc`` does the work, with a token bucket filter (tbf) at the interface's root,
identified by its handle. A killed daemon leaves it behind; a file in the node's data directory names the
interface, and the next start removes the filter.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dios import limits
from dios.errors import DiosError, InvalidError, NotPermittedError

_log: Final = logging.getLogger(__name__)
HANDLE: Final = "d105:"
"""The handle of this program's filters."""
RECORD: Final = "shaped"
_PLACES: Final = "/usr/local/sbin:/usr/sbin:/sbin"


@contextlib.contextmanager
def shaped(data: Path, interface: str, link_rate: int) -> Iterator[None]:
    """Limit ``interface`` to ``link_rate`` bytes of content per second, plus headers; "" for no interface.

    First a filter that an earlier daemon of ``data`` left behind is removed. Raise InvalidError without a
    rate or without ``tc``, and for an interface that does not exist or is shaped already; NotPermittedError
    for a user other than root.
    """
    record = data / RECORD
    if record.exists():
        _remove(record)
    if not interface:
        yield
        return
    _add(interface, link_rate, record)
    try:
        yield
    finally:
        _remove(record)


def _add(interface: str, link_rate: int, record: Path) -> None:
    setting = f"the setting shape = {interface!r}"
    if not link_rate:
        raise InvalidError(f"{setting} needs the setting link_rate: the bytes per second of the link")
    if os.geteuid():
        raise NotPermittedError(f"{setting} needs a node started by root. Start it as root, or remove shape.")
    kind, handle = _root_of(interface)
    if handle != "0:":
        raise InvalidError(
            f"{setting}: the interface is shaped already, with {kind} {handle}. "
            f"Remove that with `tc qdisc del dev {interface} root`."
        )
    bits = link_rate * 8 * (100 + limits.SHAPE_HEADERS_PERCENT) // 100
    burst = max(limits.SHAPE_BURST_BYTES_MIN, link_rate * limits.SHAPE_BURST_MS // 1000)
    record.write_text(interface)
    words = f"rate {bits}bit burst {burst}b latency {limits.SHAPE_WAIT_MS}ms"
    try:
        _tc("qdisc", "add", "dev", interface, "root", "handle", HANDLE, "tbf", *words.split())
    except DiosError:
        record.unlink()
        raise
    _log.info("shaping the interface", extra={"interface": interface, "bits_s": bits})


def _remove(record: Path) -> None:
    """Remove the filter from an interface if it is this program's."""
    interface = record.read_text().strip()
    try:
        if _root_of(interface)[1] == HANDLE:
            _tc("qdisc", "del", "dev", interface, "root", "handle", HANDLE)
    except DiosError as error:
        if _is_here(interface):
            _log.warning(
                "an interface may still be shaped", extra={"interface": interface, "why": error.message}
            )
            return
    record.unlink(missing_ok=True)


def _is_here(interface: str) -> bool:
    return any(name == interface for _, name in socket.if_nameindex())


def _root_of(interface: str) -> tuple[str, str]:
    """Return the kind and handle of an interface's root queue; "0:" is the system's default."""
    words = _tc("qdisc", "show", "dev", interface, "root").split()
    return (words[1], words[2]) if len(words) > 2 else ("nothing", "0:")


def _tc(*words: str) -> str:
    """Run ``tc`` and return its output. Raise InvalidError with its error message."""
    program = shutil.which("tc", path=f"{os.environ.get('PATH', '')}:{_PLACES}")
    if program is None:
        raise InvalidError("shaping needs the program tc. Install iproute2, or remove the setting shape.")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip() or f"status {done.returncode}"
        raise InvalidError(f"`tc {' '.join(words)}` failed: {why}")
    return done.stdout
