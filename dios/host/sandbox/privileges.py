"""Giving up user identity and capabilities, so that none of them comes back.

Not for: namespaces and filters. Every step is irreversible for the calling process.
"""

from __future__ import annotations

import os
import struct
from typing import Final

from dios.host.sandbox import kernel

UNPRIVILEGED_ID: Final = 65534
"""The user and group that pure tasks of a daemon run by root have: the kernel's own "nobody"."""

CAP_SYS_ADMIN: Final = 21
CAP_SYSLOG: Final = 34

KEPT_BY_THE_ZYGOTE: Final = (CAP_SYS_ADMIN, CAP_SYSLOG)
"""Where root started it: namespaces where they are kept from ordinary users, and the kernel's log, which
names the call that a filter killed a task for."""

_VERSION_3: Final = 0x20080522
_CAPABILITY_NUMBERS: Final = 64

# NOROOT, NO_SETUID_FIXUP, KEEP_CAPS off and NO_CAP_AMBIENT_RAISE, each with its lock: user 0 means
# nothing any more, whatever comes.
_SECUREBITS: Final = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80


def set_capabilities(wanted: tuple[int, ...]) -> None:
    """Keep exactly ``wanted`` as permitted and effective, nothing inheritable. Raises ``OSError``."""
    low = sum(1 << cap for cap in wanted if cap < 32)
    high = sum(1 << (cap - 32) for cap in wanted if cap >= 32)
    header = struct.pack("=Ii", _VERSION_3, 0)
    kernel.syscall("capset", header, struct.pack("=6I", low, low, 0, high, high, 0))


def permitted() -> int:
    """The capabilities that this process may use, as a bit mask. Raises ``OSError``."""
    rows = kernel.hold(bytes(24))
    kernel.syscall("capget", struct.pack("=Ii", _VERSION_3, 0), kernel.address_of(rows))
    low, high = struct.unpack("=4xI8xI4x", rows.raw)
    return int(low | high << 32)


def may_mount() -> bool:
    """Whether this is root with the right to mount; root in a container may be without."""
    return os.geteuid() == 0 and bool(permitted() >> CAP_SYS_ADMIN & 1)


def become_unprivileged(keep: tuple[int, ...] = ()) -> None:
    """From root to UNPRIVILEGED_ID with, of the capabilities ``keep``, those it has. Raises ``OSError``."""
    had = permitted()
    kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    os.setresuid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    set_capabilities(tuple(number for number in keep if had >> number & 1))


def last_capability() -> int:
    """The highest capability number this kernel knows."""
    number = 0
    while number < _CAPABILITY_NUMBERS:
        try:
            kernel.prctl(kernel.PR_CAPBSET_READ, number)
        except OSError:
            break
        number += 1
    return number - 1


def drop_everything(last: int) -> None:
    """Empty the bounding set up to ``last`` and every other set, and lock the securebits.

    Needs CAP_SETPCAP in the caller's own user namespace. Raises ``OSError``.
    """
    for number in range(last + 1):
        kernel.prctl(kernel.PR_CAPBSET_DROP, number)
    kernel.prctl(kernel.PR_SET_SECUREBITS, _SECUREBITS)
    set_capabilities(())


def no_new_privileges() -> None:
    """No later exec or call gives this process more than it has. Raises ``OSError``."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
