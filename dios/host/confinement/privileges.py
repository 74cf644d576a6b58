"""Gives up user identity and capabilities irreversibly for the calling process."""

from __future__ import annotations

import os
import struct
from typing import Final

from dios.host.confinement import linux_calls

UNPRIVILEGED_ID: Final = 65534
"""The user and group of pure tasks of a daemon that root runs: the system's "nobody"."""

CAP_SYS_ADMIN: Final = 21
CAP_SYSLOG: Final = 34

KEPT_BY_THE_ZYGOTE: Final = (CAP_SYS_ADMIN, CAP_SYSLOG)
"""Kept if root started the node: to create namespaces on machines that deny them to ordinary users, and to
read the kernel's log, which names the call that a filter killed a task for."""

_VERSION_3: Final = 0x20080522
_CAPABILITY_NUMBERS: Final = 64

# NOROOT, NO_SETUID_FIXUP, KEEP_CAPS off and NO_CAP_AMBIENT_RAISE, each with its lock: user 0 has no
# special rights any more, whatever the process does later.
_SECUREBITS: Final = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x40 | 0x80


def set_capabilities(wanted: tuple[int, ...]) -> None:
    """Keep exactly ``wanted`` as permitted and effective, nothing inheritable. Raise ``OSError``."""
    low = sum(1 << cap for cap in wanted if cap < 32)
    high = sum(1 << (cap - 32) for cap in wanted if cap >= 32)
    header = struct.pack("=Ii", _VERSION_3, 0)
    linux_calls.syscall("capset", header, struct.pack("=6I", low, low, 0, high, high, 0))


def permitted() -> int:
    """Return the capabilities that this process may use, as a bit mask. Raise ``OSError``."""
    rows = linux_calls.hold(bytes(24))
    linux_calls.syscall("capget", struct.pack("=Ii", _VERSION_3, 0), linux_calls.address_of(rows))
    low, high = struct.unpack("=4xI8xI4x", rows.raw)
    return int(low | high << 32)


def may_mount() -> bool:
    """Return True if this is root with the right to mount; root in a container may lack it."""
    return os.geteuid() == 0 and bool(permitted() >> CAP_SYS_ADMIN & 1)


def become_unprivileged(keep: tuple[int, ...] = ()) -> None:
    """Change from root to UNPRIVILEGED_ID; keep the capabilities ``keep`` if held. Raise ``OSError``."""
    had = permitted()
    linux_calls.prctl(linux_calls.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    os.setresuid(UNPRIVILEGED_ID, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    set_capabilities(tuple(number for number in keep if had >> number & 1))


def last_capability() -> int:
    """Return the highest capability number of this kernel."""
    number = 0
    while number < _CAPABILITY_NUMBERS:
        try:
            linux_calls.prctl(linux_calls.PR_CAPBSET_READ, number)
        except OSError:
            break
        number += 1
    return number - 1


def drop_everything(last: int, keep: tuple[int, ...] = ()) -> None:
    """Clear the bounding set up to ``last`` and every other set except for ``keep``; lock the securebits.

    Needs CAP_SETPCAP in the caller's own user namespace. Raise ``OSError``.
    """
    for number in range(last + 1):
        if number not in keep:
            linux_calls.prctl(linux_calls.PR_CAPBSET_DROP, number)
    linux_calls.prctl(linux_calls.PR_SET_SECUREBITS, _SECUREBITS)
    set_capabilities(keep)


def no_new_privileges() -> None:
    """Prevent every later exec or call from adding privileges to this process. Raise ``OSError``."""
    linux_calls.prctl(linux_calls.PR_SET_NO_NEW_PRIVS, 1)
