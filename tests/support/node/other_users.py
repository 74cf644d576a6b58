"""Processes of other users of this machine; nobody need know them. Only root can start one."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable


def as_user(uid: int, work: Callable[[], None]) -> int:
    """A process of another user that does this."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            work()
            status = 0
        except BaseException:  # noqa: BLE001  # the process ends here, and says why
            traceback.print_exc()
        os._exit(status)
    return pid
