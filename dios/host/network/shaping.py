"""A network interface that sends no more than the link carries, so that what waits does so in the daemon.

For: a node that was started as root with the setting ``shape``. Not for: dividing the link among principals
and tasks (``dios.host.bandwidth.guarantees``); all of the interface's traffic is shaped alike, other
programs' too.

It is the system's program ``tc`` that does it, with a token bucket filter (tbf) as the interface's root,
known by its handle. A daemon that was killed leaves it behind; a file in the node's data says where, and the
next start removes it.
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
"""What ours is known by."""
RECORD: Final = "shaped"
_PLACES: Final = "/usr/local/sbin:/usr/sbin:/sbin"


@contextlib.contextmanager
def shaped(data: Path, interface: str, link_rate: int) -> Iterator[None]:
    """Let ``interface`` send ``link_rate`` bytes of contents per second, and headers; "" for none.

    First what an earlier daemon of ``data`` left behind is removed. Raises InvalidError without a rate,
    without ``tc``, or for an interface that is not there or shaped by somebody else; NotPermittedError for
    whoever is not root.
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
        raise InvalidError(f"{setting} needs link_rate: how many bytes a second the link carries")
    if os.geteuid():
        raise NotPermittedError(f"{setting} needs a node that root starts; leave it out, or start it as root")
    kind, handle = _root_of(interface)
    if handle != "0:":
        raise InvalidError(
            f"{setting}: somebody shapes it already, with {kind} {handle}; "
            f"`tc qdisc del dev {interface} root` ends that"
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
    _log.info("the interface is shaped", extra={"interface": interface, "bits_s": bits})


def _remove(record: Path) -> None:
    """Let an interface be as the system makes it, if it is ours that shapes it."""
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
    """The kind and handle of what an interface sends by; "0:" is the system's own."""
    words = _tc("qdisc", "show", "dev", interface, "root").split()
    return (words[1], words[2]) if len(words) > 2 else ("nothing", "0:")


def _tc(*words: str) -> str:
    """What ``tc`` prints; raises InvalidError with its own words."""
    program = shutil.which("tc", path=f"{os.environ.get('PATH', '')}:{_PLACES}")
    if program is None:
        raise InvalidError("shaping an interface needs the program tc; install iproute2, or leave out shape")
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip() or f"status {done.returncode}"
        raise InvalidError(f"`tc {' '.join(words)}` failed: {why}")
    return done.stdout
