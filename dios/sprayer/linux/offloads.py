"""Switches the offloads of interfaces off while a network function runs.

With offloads, the kernel joins segments before a socket sees them and leaves checksums to hardware. The other
end of a virtual cable is for ``frame_sizes.py``.

The previous state is written to a file first. If a function is killed, the next function on the same
interface restores it before it starts. A running function holds a lock on the file, so a second function on
the same interface is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import logging
import os
import re
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from dios.errors import Busy, InvalidError, NotPermittedError
from dios.limits import SPRAYER_QUEUES_MAX
from dios.trusted_files import require_trusted

_log: Final = logging.getLogger(__name__)

RECORDS: Final = Path("/run/dios-offloads")
"""Removed at the next start of the machine, like the changes themselves."""

_SIOCETHTOOL: Final = 0x8946
_STRINGS: Final = 0x1B
_HOW_MANY: Final = 0x37
_GET: Final = 0x3A
_SET: Final = 0x3B
_DRIVER: Final = 0x03
_CHANNELS: Final = 0x3C
_FEATURES: Final = 4
_NAME_BYTES: Final = 32
_UNWANTED: Final = re.compile(
    r"rx-gro.*|rx-lro|rx-udp-gro-forwarding|tx-.*segmentation|tx-checksum-.*|tx-gso-(robust|partial|list)"
)
_TAGS: Final = re.compile(r"rx-vlan-(stag-)?hw-parse")


@contextlib.contextmanager
def without_offloads(names: Sequence[str], records: Path = RECORDS, *, tags: bool = False) -> Iterator[None]:
    """Switch offloads that change frames off on interfaces, and on again at the end.

    With ``tags``, this includes the removal of VLAN tags from frames. What a killed function left is restored
    first. Raises NotPermittedError without root, Busy for an interface of another function, and InvalidError
    with the system's message for an interface that cannot be changed.
    """
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(_without(name, records, tags=tags))
        yield


@contextlib.contextmanager
def _without(name: str, records: Path, *, tags: bool) -> Iterator[None]:
    with _locked(name, records) as (file, index):
        _restore(name, index, file)
        on = requested_features(name)
        kinds = (_UNWANTED, _TAGS) if tags else (_UNWANTED,)
        off = {
            feature: False
            for feature, state in on.items()
            if state and any(kind.fullmatch(feature) for kind in kinds)
        }
        # Written before the change, so that a killed process leaves the previous state behind.
        _write(file, dict.fromkeys(off, True))
        try:
            change_features(name, off)
            yield
        finally:
            _restore(name, index, file)


@contextlib.contextmanager
def _locked(name: str, records: Path) -> Iterator[tuple[int, int]]:
    """Lock the interface's record; it is removed if it is empty at the end."""
    try:
        network = Path("/proc/self/ns/net").stat().st_ino
        index = socket.if_nametoindex(name)
        path = records / f"{network}-{index}-{name}.json"
        records.mkdir(mode=0o755, parents=True, exist_ok=True)
        require_trusted(records, "the folder of changed offloads")
        while (file := _lock(path)) is None:
            continue  # its last owner removed it in between
    except BlockingIOError:
        raise Busy(
            f"interface {name!r} is in use by a running network function; stop that function first"
        ) from None
    except PermissionError as error:
        raise NotPermittedError(
            f"changing the offloads of {name} needs root ({error.strerror}: {error.filename})"
        ) from None
    except OSError as error:
        raise InvalidError(f"interface {name!r}: {error.strerror or error}") from None
    try:
        yield file, index
    finally:
        if not os.fstat(file).st_size:
            path.unlink(missing_ok=True)
        os.close(file)


def _lock(path: Path) -> int | None:
    """Open a file and lock it; return None if the name belongs to another file by then."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), path.stat()):
            return file
    except FileNotFoundError:
        pass
    except OSError:
        os.close(file)
        raise
    os.close(file)
    return None


def _write(file: int, features: dict[str, bool]) -> None:
    os.ftruncate(file, 0)
    if features:
        os.pwrite(file, json.dumps(features).encode(), 0)
        os.fsync(file)


def _restore(name: str, index: int, file: int) -> None:
    """Restore the recorded state and empty the record; nothing is left to restore for a removed interface."""
    text = os.pread(file, os.fstat(file).st_size, 0)
    if not text:
        return
    if (index, name) not in socket.if_nameindex():
        _write(file, {})
        return
    try:
        record = json.loads(text)
    except ValueError:
        record = {}  # The record is incomplete, so nothing had been changed yet.
    features = {str(key): True for key in record} if isinstance(record, dict) else {}
    try:
        change_features(name, features)
    except (InvalidError, NotPermittedError) as error:
        _log.warning(
            "offloads of an interface may still be off", extra={"interface": name, "why": error.message}
        )
        return
    _write(file, {})


def requested_features(name: str) -> dict[str, bool]:
    """Return the features of an interface that can be changed, and True if they are requested."""
    with _control_socket() as control:
        names = _names(control, name)
        blocks = -(-len(names) // 32)
        reply = _call(control, name, struct.pack("=II", _GET, blocks) + bytes(16 * blocks))
    features: dict[str, bool] = {}
    for place, feature in enumerate(names):
        available, requested, _, never = struct.unpack_from("=4I", reply, 8 + place // 32 * 16)
        bit = 1 << place % 32
        if feature and available & bit and not never & bit:
            features[feature] = bool(requested & bit)
    return features


def active_features(name: str) -> dict[str, bool]:
    """Return each feature of an interface, and True if it is active."""
    with _control_socket() as control:
        names = _names(control, name)
        blocks = -(-len(names) // 32)
        reply = _call(control, name, struct.pack("=II", _GET, blocks) + bytes(16 * blocks))
    return {
        feature: bool(struct.unpack_from("=4I", reply, 8 + place // 32 * 16)[2] & 1 << place % 32)
        for place, feature in enumerate(names)
        if feature
    }


def change_features(name: str, features: dict[str, bool]) -> None:
    """Request features on or off; ignore names that this kernel does not know."""
    with _control_socket() as control:
        names = _names(control, name)
        blocks = [[0, 0] for _ in range(-(-len(names) // 32))]
        for place, feature in enumerate(names):
            if feature in features:
                blocks[place // 32][0] |= 1 << place % 32
                blocks[place // 32][1] |= features[feature] << place % 32
        if any(valid for valid, _ in blocks):
            reply = b"".join(struct.pack("=II", *block) for block in blocks)
            _call(control, name, struct.pack("=II", _SET, len(blocks)) + reply)


def driver(name: str) -> str:
    """Return the name of an interface's driver, or "" if it is unknown."""
    try:
        with _control_socket() as control:
            reply = _call(control, name, struct.pack("=I192x", _DRIVER))
    except InvalidError:
        return ""
    return reply[4:36].partition(b"\0")[0].decode(errors="replace")


def receive_queues(name: str) -> int:
    """Return the number of receive queues; raise InvalidError above ``SPRAYER_QUEUES_MAX``."""
    try:
        with _control_socket() as control:
            reply = _call(control, name, struct.pack("=9I", _CHANNELS, *bytes(8)))
        _, _, _, _, _, receiving, _, _, both = struct.unpack("=9I", reply)
        count = max(int(receiving) + int(both), 1)
    except InvalidError:
        count = 1  # The driver does not report queues.
    if count > SPRAYER_QUEUES_MAX:
        raise InvalidError(
            f"interface {name!r} has {count} receive queues, and each needs a socket for every core. "
            f"Reduce them with `ethtool -L {name} combined {SPRAYER_QUEUES_MAX}`"
        )
    return count


def _names(control: socket.socket, name: str) -> list[str]:
    """Return the kernel's names of the features, in the order of their bits."""
    reply = _call(control, name, struct.pack("=IIQI", _HOW_MANY, 0, 1 << _FEATURES, 0))
    (count,) = struct.unpack_from("=I", reply, 16)
    reply = _call(control, name, struct.pack("=III", _STRINGS, _FEATURES, count) + bytes(_NAME_BYTES * count))
    texts = (reply[12 + at : 12 + at + _NAME_BYTES] for at in range(0, _NAME_BYTES * count, _NAME_BYTES))
    return [text.partition(b"\0")[0].decode() for text in texts]


def _control_socket() -> socket.socket:
    return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


def _call(control: socket.socket, name: str, reply: bytes) -> bytes:
    """Make one ethtool call about an interface; return its data afterwards."""
    memory = ctypes.create_string_buffer(reply, len(reply))
    request = struct.pack("16sP", name.encode()[:15], ctypes.addressof(memory)).ljust(40, b"\0")
    try:
        fcntl.ioctl(control, _SIOCETHTOOL, request)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise NotPermittedError(f"changing the offloads of {name} needs root or CAP_NET_ADMIN") from None
        raise InvalidError(
            f"cannot read or change the offloads of interface {name!r}: {error.strerror}"
        ) from None
    return memory.raw
